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


OTHER_NAMES = """
import numpy as np
import hpcomm

comm, x = hpcomm.world, np.ones(2)
for call, hint in {
    (lambda: hpcomm.init(), "nothing: hpcomm.world is there when it is first used"),
    (lambda: hpcomm.Finalize(), "nothing: all ends at the exit"),
    (lambda: hpcomm.get_rank(), "hpcomm.world.rank"),
    (lambda: hpcomm.all_reduce(x), "hpcomm.world.all_reduce(...)"),
    (lambda: hpcomm.COMM_WORLD, "hpcomm.world"),
    (lambda: comm.plan("allreduce", x), "did you mean 'all_reduce'?"),
    (lambda: comm.broadcast(x, root=1), "`hpcomm run -n 2 python program.py` starts two"),
    (lambda: comm.send(x, dest=1), "`hpcomm run -n 2 python program.py` starts two"),
    (lambda: comm.broadcast_object(x, root=1), "`hpcomm run -n 2 python program.py` starts two"),
    (lambda: comm.Ssend(x, 0), "comm.send(..., sync=True)"),
}:
    try:
        call()
    except (AttributeError, hpcomm.UsageError) as error:
        assert f"try:   {hint}" in str(error) or f"{hint}" in str(error), error
    else:
        raise AssertionError(hint)
assert hpcomm.wtime() <= hpcomm.wtime()
assert "allreduce" not in dir(comm) and comm.allreduce
print("told")
"""


def test_names_of_other_libraries_say_what_to_use_here(job: Any) -> None:
    assert job(1, OTHER_NAMES).stdout == "told\n"
    done = job(2, "import hpcomm\nhpcomm.world.rank()\n", expect="failure")
    assert "hpcomm: rank is a number: comm.rank, without ()" in done.stderr
