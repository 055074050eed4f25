"""MPI started for one thread at a time: no thread of hpcomm's calls it, or what needs one is refused."""

from __future__ import annotations

from typing import Any

import pytest

SOURCE = """
import sys, threading, time
import mpi4py
mpi4py.rc.thread_level = sys.argv[1]
from mpi4py import MPI

callers = set()


class Watched(MPI.Intracomm):
    # What is made of it is watched, too.
    def __getattribute__(self, name):
        if name[0].isupper():
            callers.add(threading.current_thread().name)
        return super().__getattribute__(name)


MPI.COMM_WORLD = Watched(MPI.COMM_WORLD)
import numpy as np
import hpcomm

comm, p = hpcomm.world, hpcomm.world.size
right, left = (comm.rank + 1) % p, (comm.rank - 1) % p
assert comm.all_reduce(np.ones(3)).sum() == 3 * p
x = np.ones(300_000)
assert comm.all_reduce(x, async_op=True).wait()[0] == p
assert comm.all_gather_object([x], async_op=True).wait()[1][0].sum() == x.size
coming = comm.irecv_object(left)
comm.send_object({"x": x}, right, async_op=True).wait()
assert coming.wait()["x"].size == x.size
coming = comm.irecv(np.empty(9), left)
comm.send(np.ones(9), right)
coming.wait()
assert [len(a) for a in comm.all_gather_ragged(np.ones(comm.rank))] == [*range(p)]
field = hpcomm.Field(comm, (8,), halo=1, periodic=True)
field.update_halo()
with comm.window(4, float) as window:
    window.fence()
with comm.split(comm.rank % 2) as half, half.create_intercomm(0, comm, 1 - comm.rank % 2) as inter:
    assert inter.all_reduce(1.0) == 1
    assert inter.all_gather_object(1, async_op=True).wait() == [1]
time.sleep(0.7)  # the watchdog looks
several = MPI.Query_thread() == MPI.THREAD_MULTIPLE
doors = ["with comm.pool() as pool: pool and list(pool.map(abs, [1]))"]
if sys.argv[1] == "funneled":
    doors.append("import hpcomm.torch_backend; hpcomm.torch_backend.rendezvous.world()")
for door in doors:
    try:
        exec(door)
        said = ""
    except hpcomm.ConfigError as error:
        said = error.what
    assert several == (not said) and (several or "for one thread at a time" in said), said
comm.barrier()
assert several or callers == {"MainThread"}, callers
print("right")
"""


@pytest.mark.parametrize("level", ["single", "funneled", "serialized", "multiple"])
def test_no_second_thread_calls_an_mpi_of_one_thread(job: Any, tmp_path: Any, level: str) -> None:
    program = tmp_path / "levels.py"
    program.write_text(SOURCE)
    done = job(2, ["python", str(program), level], timeout=60)
    assert done.stdout.count("right") == 2
