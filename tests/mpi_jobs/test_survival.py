"""A rank is killed, and the job goes on: `hpcomm run --survive`."""

from __future__ import annotations

from textwrap import dedent
from typing import Any

import pytest

from hpcomm.job.installation import find_mpi

pytestmark = [
    pytest.mark.once,
    pytest.mark.skipif(find_mpi().vendor != "openmpi", reason="MPICH ends all ranks when one is killed"),
]

BEGIN = """
import os, signal, time
import numpy as np
import hpcomm
from hpcomm import world as comm

def die():
    os.kill(os.getpid(), signal.SIGKILL)

x = np.ones(4)
comm.barrier()
"""


def test_waits_of_every_kind_end_when_a_rank_dies(job: Any) -> None:
    """A collective of the core, a message and a request wait when it dies. What is begun later fails, too."""
    source = """
    def fails(verb, *given, **named):
        try:
            done = getattr(comm, verb)(*given, **named)
            if verb.startswith("i") or "async_op" in named:
                done.wait()
        except hpcomm.PeerFailedError as error:
            assert error.ranks == (3,), (verb, error)
            assert "rank 3 of 'world' has died" in str(error), error
        else:
            raise AssertionError(verb)

    if comm.rank == 3:
        time.sleep(0.3)
        die()
    waits = [
        lambda: fails("all_reduce", x),
        lambda: fails("recv", out=x, source=3),
        lambda: fails("irecv", out=x, source=3),
    ]
    waits[comm.rank]()
    fails("barrier")
    fails("all_reduce", x, async_op=True)
    fails("all_gather_object", "a")
    fails("all_gather_ragged", x)
    fails("recv_object", source=3)
    fails("send", np.ones(1_000_000), 3)
    fails("split", 0)
    fails("dup")
    fails("all_reduce", x, algorithm="ring")
    print("has gone on")
    """
    done = job(4, BEGIN + dedent(source), options=("--survive",))
    assert done.stdout.count("has gone on") == 3
    assert "hpcomm run: rank 3 was killed; the job has gone on without it" in done.stderr


def test_a_rank_that_fails_by_itself_is_missed_and_its_status_is_the_jobs(job: Any) -> None:
    source = """
    if comm.rank == 1:
        raise SystemExit(3)
    try:
        comm.barrier()
    except hpcomm.PeerFailedError as error:
        print("missed", error.ranks)
    """
    done = job(2, BEGIN + dedent(source), options=("--survive",), expect=3)
    assert "missed (1,)" in done.stdout
    assert "hpcomm run: rank 1 failed with status 3; the job has gone on without it" in done.stderr
