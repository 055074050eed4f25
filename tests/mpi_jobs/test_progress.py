"""What one rank has begun and not waited for goes on while it sits in another call, as MPI's own calls do."""

from __future__ import annotations

from typing import Any

import pytest

PROLOGUE = """
import os, sys
import numpy as np
import hpcomm
from mpi4py import MPI

comm = hpcomm.world
other, late = 1 - comm.rank, int(os.environ["LATE"])
apart = comm.dup()
field = hpcomm.Field(comm, (8,), halo=1, periodic=True)
halo = field.update_halo
step = comm.plan("all_reduce", np.ones(4))
long = np.ones(300_000)

begins = {
    "objects": lambda: comm.all_gather_object({"a": np.ones(300_000)}, async_op=True),
    "broadcast": lambda: comm.broadcast_ragged(long if comm.rank == late else None, late, async_op=True),
    "a schedule": lambda: comm.all_reduce(np.ones(40_000), async_op=True, algorithm="ring"),
    "exact sums": lambda: comm.all_reduce(np.ones(4_000), async_op=True, deterministic=True),
    "a receive": lambda: [comm.isend_object(long, other), comm.irecv_object(other)],
}


def passes(here, there):
    return here if comm.rank == late else there


blocks = {
    "recv": passes(lambda: comm.recv(np.empty(1), other, 7), lambda: comm.send(np.ones(1), other, 7)),
    "recv_object": passes(lambda: apart.recv_object(other), lambda: apart.send_object(1, other)),
    "recv_ragged": passes(lambda: apart.recv_ragged(other), lambda: apart.send_ragged(long, other)),
    "probe": passes(lambda: comm.probe(other, 8), lambda: comm.send(np.ones(1), other, 8)),
    "probed": passes(lambda: comm.recv(np.empty(1), other, 8), lambda: None),
    "send": passes(lambda: comm.send(long, other, 9), lambda: comm.recv(long.copy(), other, 9)),
    "sendrecv": lambda: comm.sendrecv(np.ones(1), other, other, 10, 10),
    "barrier": comm.barrier,
    "a schedule": lambda: apart.barrier(algorithm="tree"),
    "all_reduce": lambda: comm.all_reduce(np.ones(1)),
    "long all_reduce": lambda: comm.all_reduce(long),
    "all_gather_object": lambda: apart.all_gather_object(comm.rank),
    "a request": lambda: comm.all_reduce(np.ones(1), async_op=True).wait(),
    "a plan": step,
    "a plan's wait": lambda: (step.start(), step.wait(timeout=20)),
    "a halo": halo,
    "dup": lambda: comm.dup().close(),
    "split": lambda: comm.split(0),
}
"""


@pytest.mark.parametrize("late", [0, pytest.param(1, marks=pytest.mark.once)])
def test_calls_in_rounds_go_on_in_every_call_that_blocks(job: Any, late: int) -> None:
    """The other rank comes to that call only when it has waited for the one in the background."""
    source = PROLOGUE + (
        "for begun, begin in begins.items():\n"
        "    for name, block in blocks.items():\n"
        "        made = begin()\n"
        "        made = made if isinstance(made, list) else [made]\n"
        "        print(begun, name, comm.rank, file=sys.stderr, flush=True)\n"
        "        if comm.rank != late:\n"
        "            hpcomm.wait_all(made)\n"
        "        block()\n"
        "        hpcomm.wait_all(made)\n"
        "comm.barrier()\n"
        "if comm.rank == 0:\n"
        "    print('done')\n"
    )
    assert job(2, source, timeout=60, env={"LATE": str(late)}).stdout == "done\n"
