"""What MPI answers by ending the job, or by a hang, is an error here, or right."""

from __future__ import annotations

from typing import Any

AFTER_FINALIZE = """
import numpy as np
import hpcomm
from mpi4py import MPI

comm, x = hpcomm.world, np.ones(4)
plan = comm.plan("all_reduce", x)
kept = comm.all_reduce
field = hpcomm.Field(comm, (8,), halo=1, periodic=True)
for _ in range(2):
    kept(x), plan(), field.update_halo(), comm.barrier()
MPI.Finalize()
calls = [
    lambda: comm.all_reduce(x), lambda: kept(x), comm.barrier, lambda: comm.all_gather_object(1), plan,
    lambda: comm.send(x, 0), lambda: comm.isend(x, 0), lambda: comm.recv(x, 0), lambda: comm.recv_object(0),
    lambda: comm.all_reduce(x, async_op=True), lambda: comm.split(0), comm.dup, comm.probe, field.update_halo,
    lambda: hpcomm.Communicator(MPI.COMM_WORLD), lambda: comm.plan("barrier"),
]
for i, call in enumerate(calls):
    try:
        call()
    except hpcomm.UsageError as error:
        assert "finalized" in error.what or "is closed" in error.what, error
    else:
        raise AssertionError(i)
comm.close()
print("refused")
"""


def test_every_call_after_finalize_is_refused(job: Any) -> None:
    assert job(2, AFTER_FINALIZE, timeout=40).stdout.count("refused") == 2
