"""MPI started for one thread at a time: no thread of hpcomm's calls it, or what needs one is refused."""

from __future__ import annotations

from typing import Any

import pytest

SOURCE = """
import ctypes, gc, sys, threading, time
import mpi4py
level = sys.argv[1]
mpi4py.rc(initialize=False, finalize=True) if level == "from C" else mpi4py.rc(thread_level=level)
from mpi4py import MPI
level == "from C" and ctypes.CDLL(MPI.__file__).MPI_Init(None, None)

callers = {}  # the first call of each thread


def look(found, name, again=lambda made: watched[type(made)](made) if type(made) in watched else made):
    if name[0].isupper():
        callers.setdefault(threading.current_thread().name, name)
    if name.startswith(("I", "Create_", "Dup", "Split")) or name.endswith("_init"):
        return lambda *args, **names: again(found(*args, **names))  # what a call makes is watched, too
    return found


class Class(type):  # of functions such as MPI.Request.Testall
    def __getattribute__(cls, name):
        return look(super().__getattribute__(name), name)


def watching(kind):
    def of(self, name):
        return look(kind.__getattribute__(self, name), name)

    return Class(kind.__name__, (kind,), {"__getattribute__": of})


kinds = ["Intracomm", "Intercomm", "Request", "Prequest", "Message", "Win"]
watched = {getattr(MPI, name): watching(getattr(MPI, name)) for name in kinds}
MPI.Request, MPI.Win = watched[MPI.Request], watched[MPI.Win]
MPI.COMM_WORLD = watched[MPI.Intracomm](MPI.COMM_WORLD)
import numpy as np
import hpcomm

rank = MPI.COMM_WORLD.rank
me = hpcomm.join("ab"[rank])
link, heat = me.link("ba"[rank]), np.full(3, 1.0 + rank)
if rank == 0:
    put = me.gives("heat", heat, range(3))
    link.put(put)
    link.comm.recv(heat, 0)  # the watchdog asks whether the other program has ended
else:
    link.get(me.takes("heat", heat, range(3)))
    time.sleep(1.2)
    link.comm.send(heat + 1, 0)
assert heat.tolist() == [2 - rank] * 3
comm, p = hpcomm.Communicator(MPI.COMM_WORLD), 2
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
gc.disable()
dropped = comm.dup()
dropped.send(heat, comm.rank)
del dropped
collecting = threading.Thread(target=gc.collect, name="hpcomm-collects")
collecting.start()
collecting.join()
time.sleep(0.3)  # the watchdog looks
several = MPI.Query_thread() == MPI.THREAD_MULTIPLE
doors = ["with comm.pool() as pool: pool and list(pool.map(abs, [1]))"]
if level == "funneled":
    doors.append("import hpcomm.torch_backend; hpcomm.torch_backend.rendezvous.world()")
for door in doors:
    try:
        exec(door)
        said = ""
    except hpcomm.ConfigError as error:
        said = error.what
    assert several == (not said) and (several or "for one thread at a time" in said), said
comm.barrier()
assert several or callers.keys() == {"MainThread"}, callers
print("right", flush=True)
if level == "funneled" and rank == 0:
    hpcomm.watch.start_up.expect_foreigners()  # to be told of an abort
    hpcomm.agree.runtime.at_abort.append(lambda: print("called by", *callers, flush=True))
    comm.recv(np.empty(300_000), 1)  # the watchdog ends the job
"""


@pytest.mark.parametrize("level", ["from C", "funneled", "serialized", "multiple"])
def test_no_second_thread_calls_an_mpi_of_one_thread(job: Any, tmp_path: Any, level: str) -> None:
    program = tmp_path / "levels.py"
    program.write_text(SOURCE)
    done = job(2, ["python", str(program), level], timeout=60, expect=1 if level == "funneled" else 0)
    assert done.stdout.count("right") == 2
    if level == "funneled":
        assert "which has ended" in done.stderr
        assert "called by MainThread\n" in done.stdout
