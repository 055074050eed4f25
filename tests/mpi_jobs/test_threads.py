"""Threads of a rank: collectives of one communicator one after the other, or an error; all else at once."""

from __future__ import annotations

from typing import Any

import pytest

AT_ONCE = """
import threading, time
import numpy as np
import hpcomm

world, small, large = hpcomm.world, np.ones(2), np.ones(9000)
errors = []

def kept(work):
    try:
        work()
    except hpcomm.HpcommError as error:
        errors.append(error)

cases = {
    "small": (None, lambda c: c.all_reduce(small)),
    "root": (None, lambda c: c.broadcast(small, root=1)),
    "large": (None, lambda c: c.all_reduce(large)),
    "careful": (None, lambda c: c.all_reduce(large[::2])),
    "off": ("off", lambda c: c.all_reduce(small)),
    "strict": ("strict", lambda c: c.all_reduce(small)),
    "objects": (None, lambda c: c.all_gather_object(1)),
    "split": (None, lambda c: c.split(0)),
}
for name, (check, call) in cases.items():
    comm = world.dup(name=name, check=check)
    world.barrier()
    if world.rank == 0:
        def late():
            while not (comm.context.call_guard._thread or comm.context.call_guard.waiting):
                time.sleep(1e-3)
            kept(lambda: comm.all_gather_object(1))
            time.sleep(0.05)  # the other thread is told while it waits
            world.send(small, 1)
        threads = [threading.Thread(target=late), threading.Thread(target=kept, args=(lambda: call(comm),))]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        assert len(errors) == 2, (name, errors)
        for error in errors:
            assert type(error) is hpcomm.UsageError, error
            assert f"two threads make collective calls of '{name}' at once" in str(error), error
            assert str(error).count("device_call.py:") == 3 and "all_gather_object() at" in str(error), error
        errors.clear()
        kept(lambda: comm.all_reduce(small))
        assert "since two threads of one called at once" in str(errors.pop())
    else:
        world.recv(small, 0)
        kept(lambda: call(comm))
    world.barrier()
print("refused", flush=True)
"""

IN_MPI = """
import threading
import numpy as np
import hpcomm

comm, x = hpcomm.world.dup(check="full"), np.ones(2)
if comm.rank == 0:
    threads = [threading.Thread(target=comm.all_reduce, args=(x,)) for _ in range(2)]
    for thread in threads: thread.start()
else:
    hpcomm.world.recv(x, 0)
"""

APART = """
import sys, threading, time
import numpy as np
from concurrent.futures import ThreadPoolExecutor
from mpi4py import MPI
from hpcomm import world

failures = []

def together(*works):
    def safely(work):
        try:
            work()
        except BaseException as error:
            failures.append(error)
            raise
    threads = [threading.Thread(target=safely, args=(work,)) for work in works]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    assert not failures, failures

def first(after_s):
    def look():
        time.sleep(after_s)
        assert world.size == MPI.COMM_WORLD.size and world.context.direct.barrier and world.context.agreement
    return look

together(*(first(i * 2e-4) for i in range(20)))  # while one of them makes it
sys.setswitchinterval(1e-4)
p, rank = world.size, world.rank
peer = (rank + 1) % p, (rank - 1) % p

def collectives(comm, n):
    def work():
        for i in range(40):
            assert (comm.all_reduce(np.full(n, i + rank)) == p * i + p * (p - 1) / 2).all()
            assert (comm.broadcast(np.full(n, i + rank), root=i % p) == i + i % p).all()
            if i % 20 == 0:
                assert comm.all_gather_object((rank, i)) == [(r, i) for r in range(p)]
        comm.barrier()
    return work

def messages(comm, tag, n):
    def give():
        for i in range(40):
            comm.send(np.full(n, i), peer[0], tag)
            comm.send_object({"i": i}, peer[0], tag)
    def take():
        for i in range(40):
            assert (comm.recv(np.empty(n, int), peer[1], tag) == i).all()
            assert comm.recv_object(peer[1], tag) == {"i": i}
    return give, take

def exchange(comm, tag, n):
    def work():
        for i in range(40):
            going = comm.isend(np.full(n, i), peer[0], tag)
            assert (comm.irecv(np.empty(n, int), peer[1], tag).wait() == i).all()
            going.wait()
            assert (comm.sendrecv(np.full(n, i), peer[0], peer[1], sendtag=tag, recvtag=tag) == i).all()
    return work

comms = [world.dup() for _ in range(3)]
together(*(collectives(comm, n) for comm, n in zip(comms, (1, 1000, 40_000))))
together(*messages(world, 1, 5), *messages(world, 2, 30_000))
together(*messages(world, 1, 5), exchange(world, 0, 20_000), collectives(world, 100))
with ThreadPoolExecutor(1) as pool:  # one after the other
    for i in range(20):
        assert pool.submit(world.all_reduce, i).result() == world.all_reduce(i) == p * i
print("right", flush=True)
"""


@pytest.mark.once
def test_collectives_of_two_threads_at_once_are_refused_in_both(job: Any) -> None:
    assert job(2, AT_ONCE, timeout=60).stdout.count("refused") == 2


def test_two_threads_inside_mpi_end_the_job_in_words(job: Any) -> None:
    done = job(2, IN_MPI, timeout=30, expect=None)
    assert done.returncode not in (0, 124)
    assert "two threads make collective calls of 'world.dup' at once" in done.stderr, done.stderr


def test_messages_and_collectives_apart_may_go_in_threads_at_once(job: Any) -> None:
    assert job(2, APART, timeout=60).stdout.count("right") == 2


CLOSES = """
import threading, time
from concurrent.futures import ThreadPoolExecutor
from hpcomm import world as comm

both = threading.Barrier(3)

def sum_of(its):
    both.wait(20)
    time.sleep(1.5 * (comm.rank == 0))
    return int(its.all_reduce(comm.rank + 1))

with ThreadPoolExecutor() as pool, comm.dup() as first, comm.dup() as second:
    first.all_reduce(1), second.all_reduce(1)  # all that a call loads is there then
    sums = pool.map(sum_of, [first, second])
    both.wait(20)
    if comm.rank == 0:
        assert list(sums) == [3, 3]
    else:
        time.sleep(0.5)  # both threads wait for rank 0 then, and their communicators are closed
assert comm.rank == 0 or list(sums) == [3, 3]
assert comm.all_reduce(1) == 2
"""


@pytest.mark.once
def test_a_communicator_that_is_closed_while_a_thread_waits_in_it_ends_no_job(job: Any) -> None:
    job(2, CLOSES)


def test_the_world_may_be_asked_for_by_signal_handlers_and_threads_while_it_is_made(job: Any) -> None:
    storm = """
        import signal
        import hpcomm

        seen = []
        def note(*_): seen.append((hpcomm.world.rank, hpcomm.world.size, hpcomm.self_.size))
        signal.signal(signal.SIGALRM, note)
        signal.setitimer(signal.ITIMER_REAL, 1e-3, 3e-3)
        first = [hpcomm.world.rank, hpcomm.world.size]
        signal.setitimer(signal.ITIMER_REAL, 0)
        print(hpcomm.world.all_reduce(1), {*seen} == {(*first, 1)} and first[1] == 2, flush=True)
    """
    assert job(2, storm).stdout.splitlines() == ["2 True"] * 2
    at_once = """
        import threading
        from hpcomm import world

        go, seen = threading.Barrier(5), []
        threads = [threading.Thread(target=lambda: (go.wait(), seen.append(world.rank))) for _ in range(4)]
        for thread in threads:
            thread.start()
        go.wait()
        seen.append(world.rank)
        for thread in threads:
            thread.join()
        print(world.all_reduce(1), seen == [world.rank] * 5, flush=True)
    """
    assert job(2, at_once).stdout.splitlines() == ["2 True"] * 2


@pytest.mark.parametrize("node", ["on", "off"])
def test_threads_may_receive_messages_of_unknown_length_at_once(job: Any, node: str) -> None:
    source = """
        import threading
        import time
        import numpy as np
        from hpcomm import world as comm

        TAKES = {
            "array": lambda: comm.recv(dtype="float64"),
            "array of 1": lambda: comm.recv(source=1, dtype="float64"),
            "array later": lambda: comm.irecv(dtype="float64").wait(),
            "object": lambda: comm.recv_object(),
            "object later": lambda: comm.irecv_object(1).wait(),
            "ragged": lambda: comm.recv_ragged(),
        }
        SENDS = {"array": comm.send, "object": comm.send_object, "ragged": comm.send_ragged}
        N = 20
        kinds = {"array": ["array", "array of 1", "array later"], "object": ["object", "object later"] , "ragged": ["ragged"] * 2}
        for kind, takes in kinds.items():
            comm.barrier()
            if comm.rank == 1:
                for sent in range(len(takes) * N):
                    if sent < 3:
                        time.sleep(0.2)  # all threads wait for the first
                    SENDS[kind](np.full(1 + sent * 37 % 90, 1.0 + sent * 37 % 90), 0)
                continue
            got = []
            def work(take):
                got.extend(TAKES[take]() for _ in range(N))
            threads = [threading.Thread(target=work, args=(take,)) for take in takes]
            for thread in threads:
                thread.start()
                time.sleep(0.05)
            for thread in threads:
                thread.join()
            lengths = sorted(len(x) for x in got if np.all(x == len(x)))
            print(kind, lengths == sorted(1 + i * 37 % 90 for i in range(len(takes) * N)), flush=True)
    """  # noqa: E501
    done = job(2, source, timeout=30, env={"HPCOMM_NODE": node})
    assert done.stdout == "array True\nobject True\nragged True\n"


@pytest.mark.once
def test_one_thread_progresses_though_several_start_it_at_once(job: Any) -> None:
    source = """
        import threading
        import time
        from hpcomm import world as comm
        from hpcomm.transport import progress

        class Slow(threading.Thread):  # whoever asks whether there is one has time to
            def __init__(self, **words):
                time.sleep(0.2)
                super().__init__(**words)

        comm.barrier()
        errors = []
        threading.excepthook = errors.append
        thread, threading.Thread = threading.Thread, Slow
        wakers = [thread(target=progress.wake) for _ in range(4)]
        for each in wakers:
            each.start()
        for each in wakers:
            each.join()
        count = sum(each.name == "hpcomm progress" for each in threading.enumerate())
        print(count, [each.exc_value for each in errors], flush=True)
    """
    assert job(1, source).stdout == "1 []\n"
