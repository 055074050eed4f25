"""Small programs that each make one classic mistake, and what has to be said of it.

A kind begins with a line of its name, how many ranks run it, the ranks that have to be named, the lowest
level at which that happens, and patterns that have to be said as well, such as communicators. A line that
has to be named ends with `# <`; its call, too. `x` is 6 ones of float64; `long` is too long for a message
that a library keeps.
"""

from __future__ import annotations

from typing import NamedTuple

PROLOGUE = """
import os, signal, sys, threading, time
import numpy as np
from {module} import world as comm

x, long, y = np.ones(6), np.ones(1 << 20), np.empty(6)
rank, size = comm.rank, comm.size
comm.barrier()
"""


class Mistake(NamedTuple):
    """As the first line of a kind tells it."""

    how_many: int
    ranks: list[int]
    level: str
    words: list[str]
    source: str


KINDS = r"""
=== order of calls | 2 | 0 1 | light | 'world'
if rank == 0:
    comm.all_reduce(x)  # <
    comm.barrier()
else:
    comm.barrier()  # <
    comm.all_reduce(x)
=== missing call | 3 | 0 2 | light | 'world'
if rank != 2:
    comm.all_reduce(x)  # <
comm.barrier()  # <
=== call on rank 0 only | 3 | 0 | light | 'world' broadcast|barrier program\.py(:|",.line.)1[12] rank.[12],
if rank == 0:
    comm.broadcast(x)
    comm.barrier()
=== extra iteration | 3 | 0 | light | 'world' rank.[12],
for _ in range(3 + (rank == 0)):
    comm.all_reduce(x)  # <
=== extra iteration, then another call | 3 | 0 2 | light | 'world' broadcast
for _ in range(3 + (rank == 2)):
    comm.all_reduce(x)  # <
comm.broadcast(x)
comm.barrier()
=== error caught on one rank | 2 | 0 1 | light | 'world'
try:
    if rank == 0:
        raise ValueError
    comm.barrier()  # <
except ValueError:
    pass
comm.all_reduce(x)  # <
=== object against array | 2 | 0 1 | light | 'world'
if rank == 1:
    comm.all_gather_object(x)  # <
else:
    comm.all_gather(x)  # <
=== object against array, message | 2 | 0 1 | light | 'world'
if rank == 0:
    comm.send_object([1], dest=1)  # <
else:
    comm.recv(y, source=0)  # <
comm.barrier()
=== blocking against background | 2 | 0 1 | light | 'world'
if rank == 1:
    comm.all_gather(x, async_op=True).wait()  # <
else:
    comm.all_reduce(x)  # <
=== order in the background | 2 | 0 1 | light | 'world' all_reduce
sums = [comm.all_reduce(np.ones(8 * k), async_op=True) for k in ((1, 2) if rank == 0 else (2, 1))]  # <
for each in sums:
    each.wait()
=== crossed communicators | 2 | 0 1 | light | 'one' 'two'
one, two = comm.dup("one"), comm.dup("two")
if rank == 0:
    one.barrier()  # <
    two.barrier()
else:
    two.barrier()  # <
    one.barrier()
=== crossed communicators, three | 3 | 0 1 2 | light | 'not[012]'
pairs = [comm.split(0 if rank != k else None, name=f"not{k}") for k in range(3)]
mine = pairs[(rank + 1) % 3], pairs[(rank + 2) % 3]
mine[0].all_reduce(x)  # <
mine[1].all_reduce(x)
=== missing split | 3 | 0 2 | light | 'world'
if rank != 2:
    comm.split(0)  # <
comm.all_reduce(x)  # <
=== group instead of world | 3 | 0 2 | light | 'half' 'world'
two = comm.split(rank // 2, name="half")
if rank == 0:
    two.barrier()  # <
comm.barrier()  # <
=== counts | 2 | 0 1 | light | 'world'
if rank == 1:
    comm.all_reduce(x[1:])  # <
else:
    comm.all_reduce(x)  # <
=== counts, gather | 3 | 0 2 | full | 'world'
if rank == 2:
    comm.gather(x[1:])  # <
else:
    comm.gather(x)  # <
=== element type | 2 | 0 1 | light | 'world'
if rank == 1:
    comm.all_reduce(x.astype('f4'))  # <
else:
    comm.all_reduce(x)  # <
=== root | 2 | 0 1 | light | 'world' broadcast root=0 root=1 program\.py:1[14]
if rank == 1:
    comm.broadcast(x, root=1)
else:
    comm.broadcast(x, root=0)
comm.barrier()
=== root, reduce | 3 | 0 2 | full | 'world'
if rank == 2:
    comm.reduce(x, root=1)  # <
else:
    comm.reduce(x, root=0)  # <
=== operator | 2 | 0 1 | light | 'world'
if rank == 1:
    comm.all_reduce(x, 'max')  # <
else:
    comm.all_reduce(x, 'sum')  # <
=== operation | 3 | 0 2 | light | 'world'
if rank == 2:
    comm.broadcast_object([1])  # <
else:
    comm.all_reduce(x)  # <
=== truncation | 2 | 0 1 | light | 'world'
if rank == 0:
    comm.send(x, dest=1)
else:
    comm.recv(np.empty(5), source=0)  # <
=== element type of a message | 2 | 0 1 | full | 'world'
if rank == 0:
    comm.send(x.astype("f4"), dest=1)
else:
    comm.recv(y, source=0)  # <
=== tag | 2 | 0 1 | light | 'world'
if rank == 0:
    comm.send(x, dest=1, tag=1)
else:
    comm.recv(y, source=0, tag=2)  # <
comm.barrier()  # <
=== tag, long message | 2 | 0 1 | light | 'world'
if rank == 0:
    comm.send(long, dest=1, tag=1)  # <
else:
    comm.recv(long, source=0, tag=2)  # <
=== cycle of two receives | 2 | 0 1 | light | 'world'
comm.recv(y, source=1 - rank)  # <
comm.send(x, dest=1 - rank)
=== cycle of two sends | 2 | 0 1 | light | 'world'
comm.send(long, dest=1 - rank)  # <
comm.recv(long, source=1 - rank)
=== cycle of two receives of objects | 2 | 0 1 | light | 'world'
comm.recv_object(source=1 - rank)  # <
comm.send_object([1], dest=1 - rank)
=== cycle after right exchanges | 2 | 0 1 | light | 'world'
for k in range(5):
    if rank == 0 or k == 4:
        comm.recv(y, source=1 - rank)  # <
        comm.send(x, dest=1 - rank)
    else:
        comm.send(x, dest=1 - rank)
        comm.recv(y, source=1 - rank)
=== cycle of three | 3 | 0 1 2 | light | 'world'
comm.recv(y, source=(rank + 1) % 3)  # <
comm.send(x, dest=(rank - 1) % 3)
=== cycle of three, sendrecv | 3 | 0 1 2 | light | 'world'
comm.sendrecv(x, dest=(rank + 1) % 3, source=(rank + 1) % 3)  # <
=== cycle of waits in the background | 2 | 0 1 | light | 'world' recv
got = comm.irecv(y, source=1 - rank)
got.wait()  # <
comm.isend(x, dest=1 - rank).wait()
=== all receive from anyone | 3 | 0 1 2 | light | 'world'
comm.recv(y)  # <
=== barrier against send | 2 | 0 1 | light | 'world'
if rank == 0:
    comm.barrier()  # <
    comm.recv(long, source=1)
else:
    comm.send(long, dest=0)  # <
    comm.barrier()
=== barrier against receive | 3 | 0 1 | light | 'world'
if rank == 0:
    comm.recv(y, source=1)  # <
    comm.barrier()
else:
    comm.barrier()  # <
    if rank == 1:
        comm.send(x, dest=0)
=== receive from itself | 2 | 0 | light | 'world'
if rank == 0:
    comm.recv(y, source=0)  # <
comm.barrier()
=== receive that nobody serves | 2 | 0 1 | light | 'world'
if rank == 0:
    comm.recv(y, source=1)  # <
=== probe that nobody serves | 2 | 0 1 | light | 'world'
if rank == 0:
    comm.probe(source=1)  # <
comm.barrier()  # <
=== exception | 2 | 1 | light | ValueError:.broken
if rank == 1:
    raise ValueError("broken")  # <
comm.all_reduce(x)
=== exit of one rank | 3 | 1 2 | light | 'world'
if rank == 1:
    sys.exit(0)
if rank == 2:
    comm.all_reduce(x)  # <
time.sleep(1)
comm.all_reduce(x)
=== os._exit of one rank | 2 | 1 | light | .
if rank == 1:
    os._exit(0)  # <
comm.all_reduce(x)
=== SIGKILL | 2 | 1 | light | killed|signal.9|SIGKILL|KILLED
if rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
comm.all_reduce(x)
=== SIGSTOP | 2 | 0 1 | light | 'world' stopped
if rank == 1:
    os.kill(os.getpid(), signal.SIGSTOP)
comm.all_reduce(x)  # <
=== endless computing | 3 | 0 2 | light | 'world'
while rank == 2: x = x + 1  # <
comm.all_reduce(x)  # <
=== endless computing in C | 2 | 0 1 | light | 'world' interpreter.lock
if rank == 1:
    import ctypes
    time.sleep(0.1)
    ctypes.PyDLL(None).sleep(60)  # holds the interpreter lock
comm.all_reduce(x)  # <
=== endless polling | 2 | 0 1 | light | 'world'
if rank == 0:
    while not comm.iprobe(source=1, tag=3): time.sleep(0.01)  # <
comm.barrier()  # <
=== inter-communicator, roots | 4 | 0 1 | light | 'both'
from mpi4py import MPI
half = comm.split(rank // 2, name="half")
both = half.create_intercomm(0, comm, 2 - rank // 2 * 2, name="both")
if rank < 2:
    both.broadcast(x, root=MPI.ROOT if rank == 0 else MPI.PROC_NULL)  # <
else:
    both.broadcast(y, root=1)  # <
both.barrier()
=== inter-communicator, cycle | 2 | 0 1 | light | 'both'
half = comm.split(rank, name="half")
both = half.create_intercomm(0, comm, 1 - rank, name="both")
both.recv(y, source=0)  # <
both.send(x, dest=0)
=== threads in one communicator | 2 | 0 | light | thread
both = threading.Barrier(2)
def reduce():
    both.wait()
    for _ in range(20):
        comm.all_reduce(np.ones(1 << 22))
threads = [threading.Thread(target=reduce) for _ in range(2)]
for each in threads:
    each.start()
for each in threads:
    each.join()
=== communicators kept | 2 |  | light | .
kept = []
for _ in range(700):
    kept.append(comm.split(0, rank))  # <
time.sleep(5)
=== message never received | 2 | 0 1 | strict | 'world'
if rank == 0:
    comm.send(x, dest=1)  # <
comm.barrier()
=== request never waited for | 2 | 0 | strict | 'world'
if rank == 0:
    comm.isend(x, dest=1)  # <
else:
    comm.recv(y, source=0)
comm.barrier()
=== wildcard race | 3 | 0 1 2 | strict | 'world'
if rank:
    sent = comm.isend(x, dest=0)
comm.barrier()
for _ in range(2 * (rank == 0)):
    comm.recv(y)  # <
if rank:
    sent.wait()
=== sends that only buffers save | 2 | 0 1 | strict | 'world'
comm.send(x, dest=1 - rank)  # <
comm.recv(y, source=1 - rank)
=== buffer changed in flight | 2 | 0 | strict | 'world'
if rank == 0:
    sent = comm.isend(long, dest=1)  # <
    long[:] = 2
    sent.wait()
else:
    time.sleep(1)
    comm.recv(long, source=0)
=== buffer read in flight | 2 | 1 | strict | 'world'
if rank == 0:
    time.sleep(1)
    comm.send(x, dest=1)
else:
    got = comm.irecv(y, source=0)  # <
    y[0] = 5
    got.wait()
=== window without an epoch | 2 | 0 1 | strict | .
window = comm.window(6)
if rank == 0:
    window.put(x, 0)  # <
else:
    window.put(y, 0)  # <
window.fence()
"""


def _read() -> dict[str, Mistake]:
    found = {}
    for kind in KINDS.split("=== ")[1:]:
        head, _, source = kind.partition("\n")
        name, how_many, ranks, level, words = (each.strip() for each in head.split("|", 4))
        found[name] = Mistake(int(how_many), [*map(int, ranks.split())], level, words.split(), "\n" + source)
    return found


MISTAKES = _read()
