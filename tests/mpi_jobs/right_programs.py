"""Small programs that are unusual but right: none may be ended, and of none may be said that it never can.

A program begins with a line of its name and how many ranks run it. Each rank prints RIGHT at its end. `W` is
for how many seconds something lasts, longer than a report waits.
"""

from __future__ import annotations

PROLOGUE = """
import os, signal, subprocess, sys, threading, time
import numpy as np
from hpcomm import world as comm

W = float(os.environ["W"])
x, long, y = np.ones(6), np.ones(1 << 20), np.empty(6)
rank, size = comm.rank, comm.size
comm.barrier()

def lines_later(text):
    # standard input that gives text after W seconds
    reader, writer = os.pipe()
    os.dup2(reader, 0)
    subprocess.Popen(["sh", "-c", f"sleep {W}; printf '{text}'"], stdout=writer)
    os.close(writer)
"""
EPILOGUE = """
comm.barrier()
print("RIGHT", flush=True)
"""
PROGRAMS = r"""
=== long computing | 3
if rank == 1:
    end = time.time() + W
    while time.time() < end:
        x = x + 0
comm.all_reduce(x)
=== long computing in C | 2
if rank == 1:
    import ctypes
    ctypes.PyDLL(None).sleep(int(W))  # holds the interpreter lock
comm.all_reduce(x)
=== input() | 3
if rank == 0:
    lines_later("go\\n")
    comm.broadcast_object(input(), root=0)
else:
    comm.broadcast_object(root=0)
=== debugger | 2
if rank == 1:
    import pdb
    lines_later("p 3\\nc\\n")
    pdb.set_trace()
comm.all_reduce(x)
=== halos, one rank late | 3
import hpcomm
field = hpcomm.Field(comm, (9, 3), halo=1)
for k in range(4):
    if rank == 1 and k == 2:
        time.sleep(W)
    field.update_halo()
=== long reading | 2
if rank == 1:
    lines_later("a")
    os.read(0, 1)
comm.recv(y, source=1) if rank == 0 else comm.send(x, dest=0)
=== idle workers | 4
if rank == 0:
    time.sleep(W)
    for worker in range(1, size):
        comm.send_object("stop", dest=worker)
else:
    comm.recv_object(source=0)
=== server of anyone | 3
if rank == 0:
    comm.recv(y)
    comm.recv(y)
else:
    time.sleep(W)
    comm.send(x, dest=0)
=== whole job stopped | 2
pids = comm.all_gather_object(os.getpid())
if rank == 0:
    names = " ".join(map(str, pids))
    stop = f"sleep 1; kill -STOP {names}; sleep {W}; kill -CONT {names}"
    subprocess.Popen(["sh", "-c", stop])
for _ in range(10):
    comm.all_reduce(x)
    time.sleep(0.2)
if rank == 1:
    time.sleep(2)
comm.all_reduce(x)
=== one rank stopped and continued | 2
if rank == 1:
    subprocess.Popen(["sh", "-c", f"sleep {W}; kill -CONT {os.getpid()}"])
    os.kill(os.getpid(), signal.SIGSTOP)
comm.all_reduce(x)
=== uneven subgroups | 4
part = comm.split(int(rank == 0))
for _ in range(3 if rank else 1):
    part.all_reduce(x)
    time.sleep(W / 3 if rank == 3 else 0)
=== one-sided | 2
window = comm.window(6)
if rank == 0:
    window.put(x, 1)
else:
    time.sleep(W)
window.fence()
=== threads | 2
other = comm.dup("of the thread")
def exchange():
    time.sleep(W)
    other.send(x, dest=1 - rank)
thread = threading.Thread(target=exchange)
thread.start()
other.recv(y, source=1 - rank)
thread.join()
=== a thread serves the circle | 2
def send():
    time.sleep(W)
    comm.send(x, dest=1 - rank)
thread = threading.Thread(target=send)
thread.start()
comm.recv(y, source=1 - rank)
thread.join()
=== sent in the background before | 2
sent = [comm.isend(long, dest=1 - rank, tag=k) for k in range(2)]
if rank == 1:
    time.sleep(W)
got = np.empty_like(long)
comm.recv(got, source=1 - rank, tag=1)
comm.recv(got, source=1 - rank, tag=0)
[each.wait() for each in sent]
=== long message to one who computes | 2
big = np.ones(1 << 23)
if rank == 0:
    comm.send(big, dest=1)
else:
    time.sleep(W)
    comm.recv(big, source=0)
=== polling | 2
if rank == 0:
    got = comm.irecv(y, source=1)
    while not got.done():
        time.sleep(0.01)
else:
    time.sleep(W)
    comm.send(x, dest=0)
=== asyncio | 2
import asyncio
async def wait():
    await comm.irecv(y, source=1)
if rank == 0:
    asyncio.run(wait())
else:
    time.sleep(W)
    comm.send(x, dest=0)
=== waits with a time of their own | 2
import hpcomm
got = comm.irecv(y, source=1 - rank)
try:
    got.wait(timeout=W)
except hpcomm.WaitTimeoutError:
    pass
comm.send(x, dest=1 - rank)
got.wait()
=== other processes | 2
if rank == 1:
    subprocess.run(["sleep", str(W)])
comm.all_reduce(x)
=== waits for a file | 2
name = f"/tmp/hpcomm-kinds-{comm.broadcast_object(os.getpid())}"
if rank == 0:
    time.sleep(W)
    open(name, "w").close()
while rank and not os.path.exists(name):
    time.sleep(0.05)
comm.barrier()
if rank == 0:
    os.unlink(name)
=== pool | 3
with comm.pool() as pool:
    if pool is not None:
        list(pool.map(time.sleep, [W, 0.1, 0.1]))
=== any and all of several messages, one of them late | 3
import hpcomm
if rank == 2:
    time.sleep(W)
    [comm.send(x, dest=k) for k in range(2)]
    time.sleep(W)
else:
    got = [comm.irecv(np.empty(6), source=k) for k in (1 - rank, 2)]
    hpcomm.wait_any(got)
    comm.send(x, dest=1 - rank)
    hpcomm.wait_all(got)
    got = [comm.irecv(np.empty(6), source=0, tag=k) for k in range(3) if rank == 1]
    for k in range(3):  # longer than a report waits in all, and each of them not
        if rank == 0:
            time.sleep(W / 4)
            comm.send(x, dest=1, tag=k)
    hpcomm.wait_all(got)
=== eight ranks, one late | 8
for k in range(20):
    comm.all_reduce(x)
    comm.sendrecv(x, dest=(rank + 1) % size, source=(rank - 1) % size)
time.sleep(W if rank == 5 else 0)
comm.barrier()
=== a chain of waits | 4
if rank == 3:
    time.sleep(W)
if rank < 3:
    comm.recv(y, source=rank + 1)
if rank > 0:
    comm.send(x, dest=rank - 1)
"""


def _read() -> dict[str, tuple[int, str]]:
    found = {}
    for program in PROGRAMS.split("=== ")[1:]:
        head, _, source = program.partition("\n")
        name, _, how_many = head.partition(" | ")
        found[name] = int(how_many), "\n" + source
    return found


RIGHT = _read()
