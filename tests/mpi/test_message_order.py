"""Order of all messages between the same ranks: blocking, in the background, planned, mpi4py's own."""

from __future__ import annotations

import random
import threading
import time
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

import hpcomm

LENGTHS = (2, 1000, 1024, 5000, 60_000)  # on both sides of where MPIs change their ways

pytestmark = pytest.mark.mpi(min_size=2)


@pytest.mark.parametrize("n", LENGTHS[::2])
def test_a_pending_receive_gets_its_message_first(own_comm: Any, n: int) -> None:
    comm = own_comm
    for _ in range(2):  # the second time all of these calls are known
        if comm.rank == 0:
            for value in range(5):
                comm.send(np.full(n, float(value)), 1)
        elif comm.rank == 1:
            pending = [comm.irecv(np.empty(n), 0), comm.irecv(np.empty(n), None)]
            last = comm.recv(np.empty(n), 0)
            assert [*(request.wait()[0] for request in pending), last[0]] == [0, 1, 2]
            of_any_length = comm.irecv(dtype="float64", source=0)
            assert comm.recv(np.empty(n), 0)[0] == 4
            assert of_any_length.wait()[0] == 3


@pytest.mark.parametrize("n", LENGTHS[::2])
def test_mpi4py_underneath_shares_the_order(own_comm: Any, n: int) -> None:
    comm, x = own_comm, np.zeros(n)
    if comm.rank == 0:
        request = comm.mpi.Isend(x, 1)
        comm.send(x + 1, 1)
        comm.send(x + 2, 1)
        request.Wait()
    elif comm.rank == 1:
        assert comm.recv(np.empty_like(x), 0)[0] == 0
        first = np.empty_like(x)
        request = comm.mpi.Irecv(first, 0)
        assert comm.recv(np.empty_like(x), 0)[0] == 2
        request.Wait()
        assert first[0] == 1


def test_a_probe_sees_no_message_that_a_pending_receive_takes(own_comm: Any) -> None:
    """As with MPI's own receives, also where one of any length has to look at it first."""
    comm = own_comm
    if comm.rank == 0:
        for n in (1, 2, 3, 4):
            comm.send(np.full(n, 0.0), 1, tag=n)
    elif comm.rank == 1:
        first, second = comm.irecv(dtype="float64", source=0), comm.irecv(dtype="float64")
        assert comm.probe(0) == hpcomm.Status(0, 3, 3 * 8)
        assert comm.recv(np.empty(3), 0).shape == (3,)
        while (seen := comm.iprobe(0)) is None:
            pass
        assert (seen.tag, seen.nbytes) == (4, 4 * 8)
        assert [len(first.wait()), len(second.wait()), len(comm.recv(np.empty(4)))] == [1, 2, 4]


def test_probe_and_others_find_what_was_sent(own_comm: Any) -> None:
    comm, x = own_comm, np.arange(5000.0)
    if comm.rank == 0:
        for tag in range(6):
            comm.send(x + tag, 1, tag)
    elif comm.rank == 1:
        assert comm.probe(0) == hpcomm.Status(0, 0, x.nbytes)
        assert comm.recv(np.empty(5000), 0, 0)[0] == 0
        while comm.iprobe(None, 1) is None:
            pass
        assert comm.recv(np.empty(5000), None)[0] == 1
        assert comm.recv(dtype="float64", source=0)[0] == 2
        status = hpcomm.Status()
        assert comm.recv(np.empty(5000), 0, status=status)[0] == 3
        assert (status.tag, status.nbytes) == (3, x.nbytes)
        assert comm.sendrecv(np.empty(0), hpcomm.PROC_NULL, 0, out=np.empty(5000))[0] == 4
        assert comm.recv(np.empty(5000)[::1], 0, tag=5)[0] == 5


def test_plans_keep_their_order_with_other_messages(own_comm: Any) -> None:
    comm, x, y = own_comm, np.zeros(3000), np.empty(3000)
    if comm.rank == 0:
        with comm.plan("send", x, dest=1) as plan:
            plan.start()
            comm.send(x + 1, 1)
            plan.wait()
        for turn in range(4):
            comm.send(np.full(3000, float(turn)), 1)
    elif comm.rank == 1:
        assert [comm.recv(y, 0)[0] for _ in range(2)] == [0, 1]
        with comm.plan("recv", out=y, source=0) as plan:
            plan.start()
            second = comm.recv(np.empty(3000), 0)
            assert (plan.wait()[0], second[0]) == (0, 1)
            assert (comm.recv(np.empty(3000), 0)[0], plan()[0]) == (2, 3)


def test_two_threads_receive_at_once(own_comm: Any) -> None:
    if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
        pytest.skip("this MPI lets one thread call it at a time")
    if own_comm.rank == 0:
        for turn in range(30):
            for tag in range(2):
                own_comm.send(np.full(LENGTHS[turn % 5], float(turn + tag)), 1, tag)
    elif own_comm.rank == 1:
        wrong: list[Any] = []

        def receive(tag: int) -> None:
            for turn in range(30):
                y = own_comm.recv(np.empty(LENGTHS[turn % 5]), 0, tag)
                if not (y == turn + tag).all():
                    wrong.append((turn, tag))

        threads = [threading.Thread(target=receive, args=(tag,)) for tag in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wrong


@pytest.mark.parametrize("check", ["light", "off"])
def test_a_random_program(check: str) -> None:
    """Two ranks of all exchange messages of all kinds, in every way to send and to receive, and come late."""
    with hpcomm.Communicator(MPI.COMM_WORLD, name="random", check=check) as comm:
        plan, own = random.Random(7), random.Random(comm.rank)
        for turn in range(60):
            a, b = plan.sample(range(comm.size), 2)
            messages = [
                (plan.randrange(2), plan.choice(LENGTHS), float(turn * 100 + i))
                for i in range(plan.randrange(1, 5))
            ]
            if own.random() < 0.2:
                time.sleep(own.random() * 3e-3)
            if comm.rank == a:
                send_some(comm, messages, b, own)
            elif comm.rank == b:
                receive_some(comm, messages, a, own)


def send_some(comm: Any, messages: Any, dest: int, own: random.Random) -> None:
    going = []
    for tag, n, value in messages:
        if own.random() < 0.3:
            going.append(comm.isend(np.full(n, value), dest, tag))
        else:
            comm.send(np.full(n, value), dest, tag)
    hpcomm.wait_all(going)


def receive_some(comm: Any, messages: Any, source: int, own: random.Random) -> None:
    coming = []
    for tag, n, value in messages:
        way, out = own.randrange(6), np.empty(n)
        if way == 0:
            coming.append((comm.irecv(out, source, tag), value))
            continue
        if way == 1:
            assert comm.probe(source, tag).nbytes == out.nbytes
        if way == 2:
            out = comm.recv(dtype="float64", source=source, tag=tag)
        else:
            comm.recv(out, source, own.choice((tag, None)))
        assert out.size == n
        assert (out == value).all(), way
    for request, value in coming:
        assert (request.wait() == value).all()


def test_a_receive_that_failed_takes_its_message_and_no_other(own_comm: Any) -> None:
    left, right = (own_comm.rank - 1) % own_comm.size, (own_comm.rank + 1) % own_comm.size
    for n in (1000, 3):
        refused = own_comm.irecv(np.zeros(9), left)
        own_comm.isend(np.ones(n), right).wait()
        with pytest.raises(hpcomm.MismatchError):
            refused.wait()
    own_comm.isend(np.ones(3), right).wait()
    with pytest.raises(hpcomm.MismatchError):
        own_comm.recv(np.zeros(9))
    going = own_comm.isend(np.full(9, 5.0), right)
    assert own_comm.recv(np.zeros(9), left)[-1] == 5
    going.wait()
