"""Messages between ranks of a node that are copied through memory which they share, instead of by MPI."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from mpi4py import MPI

import hpcomm
from hpcomm.core.limits import RENDEZVOUS_LEAST, RENDEZVOUS_MOST_BOTH
from hpcomm.node import segment


def is_wanted():
    return False


from hpcomm.node.segment import _cores
from hpcomm.transport import node_messages
from hpcomm.transport.node_messages import NodeMessages

pytestmark = pytest.mark.skipif(
    MPI.COMM_WORLD.size == 1 or not is_wanted(), reason="one rank, or a processor without this way"
)


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Counter[tuple[str, bool]]:
    """How often messages were handed over ("give", True), taken, and left to MPI, on this rank."""
    counts: Counter[tuple[str, bool]] = Counter()

    def counted(name: str) -> Callable[..., bool]:
        function = getattr(NodeMessages, name)

        def call(*arguments: Any) -> bool:
            done: bool = function(*arguments)
            counts[name, done] += 1
            return done

        return call

    for name in ("give", "take", "_withdraw"):
        monkeypatch.setattr(NodeMessages, name, counted(name))
    return counts


@pytest.fixture
def comm(request: Any) -> Iterator[hpcomm.Communicator]:
    with hpcomm.Communicator(MPI.COMM_WORLD, name="near", check=getattr(request, "param", "light")) as made:
        yield made


@pytest.fixture
def patient(comm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both wait as long as it takes, so nothing depends on who comes first; and no copy is slow."""
    monkeypatch.setattr(node_messages, "RENDEZVOUS_PATIENCE_S", 30.0)
    monkeypatch.setattr(node_messages, "_NEAR", 0.0)
    comm.node_messages._waits = range(20_000_000)


@pytest.mark.parametrize("comm", ["light", "off"], indirect=True)
@pytest.mark.parametrize("form", [np.copy, lambda x: torch.from_numpy(x.copy())], ids=["numpy", "torch"])
def test_messages_of_all_lengths_arrive(comm: Any, patient: None, seen: Any, form: Any) -> None:
    most = comm.node_messages.most
    lengths = (
        RENDEZVOUS_LEAST - 8,
        RENDEZVOUS_LEAST,
        RENDEZVOUS_LEAST + 8,
        100_000,
        node_messages._PIECE.stop,
        node_messages._PIECE.stop + 8,
        most,
        most + 8,
    )
    for turn, nbytes in enumerate(lengths):
        x = form(np.arange(nbytes // 8) * 3 + turn)
        if comm.rank == 0:
            comm.send(x, 1, tag=turn)
        elif comm.rank == 1:
            y = form(np.zeros(nbytes // 8, x.numpy().dtype if hasattr(x, "numpy") else x.dtype))
            assert comm.recv(y, 0, tag=[turn, None][turn % 2]) is y
            assert bool((y == x).all()), nbytes
    name = ["give", "take"][comm.rank] if comm.rank < 2 else ""
    assert not name or seen[name, True] == len(lengths) - 2


def test_messages_between_cores_far_apart_are_left_to_mpi_until_these_are_near(
    comm: Any, patient: None, seen: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_messages, "_NEAR", np.inf)  # no copy is quick enough
    x = np.arange(node_messages._TELLS // 8.0)
    for turn in range(node_messages._SELDOM + 20):
        if turn == node_messages._SELDOM:
            assert comm.rank > 1 or seen["give", True] + seen["take", True] == node_messages._SLOW
            monkeypatch.setattr(node_messages, "_NEAR", 0.0)
        if comm.rank == 0:
            comm.send(x + turn, 1)
        elif comm.rank == 1:
            np.testing.assert_array_equal(comm.recv(np.empty_like(x), 0), x + turn)
    assert comm.rank > 1 or seen["give", True] + seen["take", True] == node_messages._SLOW + 19


def test_where_cores_stay_far_apart_it_is_tried_ever_more_seldom(
    comm: Any, patient: None, seen: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_messages, "_NEAR", np.inf)
    monkeypatch.setattr(node_messages, "_RARELY", 4 * node_messages._SELDOM + 3)
    trials = [node_messages._SLOW + i for i in range(6)]  # by then, one more each time
    x, unit = np.arange(node_messages._TELLS // 8.0), node_messages._SELDOM + 1
    for turn in range(13 * unit):
        if comm.rank > 1:
            break
        if turn in (unit, 2 * unit, 4 * unit, 8 * unit, 12 * unit):
            assert seen["give", True] + seen["take", True] == trials.pop(0)
        if comm.rank == 0:
            comm.send(x, 1)
        else:
            comm.recv(np.empty_like(x), 0)
    assert comm.rank > 1 or seen["give", True] + seen["take", True] == trials.pop(0)


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint16", "float32", "complex128", "longdouble"])
def test_elements_of_all_types_and_shapes(comm: Any, patient: None, seen: Any, dtype: str) -> None:
    x = (np.arange(60_000) % 3).astype(dtype).reshape(200, 300)
    if comm.rank == 0:
        comm.send(x, 1)
        comm.send(x.T, 1)  # is packed, and goes by MPI
    elif comm.rank == 1:
        np.testing.assert_array_equal(comm.recv(np.zeros_like(x), 0), x)
        np.testing.assert_array_equal(comm.recv(np.zeros((300, 200), dtype), 0), x.T)
    assert comm.rank > 0 or seen == {("give", True): 1}


def test_a_message_does_not_overtake_those_before_it(comm: Any, patient: None, seen: Any) -> None:
    """One by MPI is under way while its receiver waits for the next: that goes by MPI too."""
    few, many = np.zeros(RENDEZVOUS_LEAST // 8), np.ones(RENDEZVOUS_LEAST // 8)
    hand = comm.node_messages
    if comm.rank == 0:
        hand._waits = range(100)
        for begin in (comm.isend, comm.send):
            comm.barrier()
            request = begin(few, 1)
            comm.send(many, 1)
            if request is not None:
                request.wait()
    else:
        for kind in range(2):
            comm.barrier()
            if comm.rank != 1:
                continue
            first = comm.irecv(np.empty(RENDEZVOUS_LEAST // 8), 0) if kind == 0 else None
            y = [comm.recv(np.empty(RENDEZVOUS_LEAST // 8), 0) for _ in range(2 - (first is not None))]
            y = [first.wait(), *y] if first is not None else y
            assert [each[0] for each in y] == [0.0, 1.0], kind


def test_a_pending_receive_gets_its_message_first(comm: Any, patient: None, seen: Any) -> None:
    if comm.rank == 0:
        comm.node_messages._waits = range(100)
        for value in range(4):
            comm.send(np.full(2000, float(value)), 1)
    elif comm.rank == 1:
        pending = [comm.irecv(np.empty(2000), 0), comm.irecv(np.empty(2000), None)]
        last = comm.recv(np.empty(2000), 0)
        assert [*(request.wait()[0] for request in pending), last[0]] == [0, 1, 2]
        assert comm.irecv(dtype="float64", source=0).wait()[0] == 3
        assert comm.node_messages.pending == 0
    assert seen["give", True] == seen["take", True] == 0


def test_after_messages_in_the_background_others_are_handed_over(comm: Any, patient: None, seen: Any) -> None:
    x = np.ones(2000)
    for turn in range(3):
        if comm.rank == 0:
            comm.isend(x, 1).wait()
            comm.send(x, 1)
        elif comm.rank == 1:
            comm.irecv(np.empty(2000), 0).wait()
            comm.recv(np.empty(2000), 0)
        assert seen["give", True] + seen["take", True] == (turn + 1) * (comm.rank < 2)


def test_what_mpi4py_sends_underneath_is_not_overtaken(comm: Any, patient: None, seen: Any) -> None:
    """The receiver waits, and does not look for MPI's messages as yet."""
    x = np.arange(RENDEZVOUS_LEAST / 8)
    comm.node_messages._looks = range(500_000)
    comm.barrier()
    if comm.rank == 0:
        time.sleep(0.005)
        comm.node_messages._waits = range(100)
        request = comm.mpi.Isend(x, 1)
        comm.send(x + 1, 1)
        request.Wait()
    elif comm.rank == 1:
        assert [comm.recv(np.empty_like(x), 0)[0] for _ in range(2)] == [0, 1]
    assert seen["give", True] == seen["take", True] == 0


def test_what_mpi4py_waits_for_underneath_gets_its_message(comm: Any, patient: None, seen: Any) -> None:
    x = np.arange(RENDEZVOUS_LEAST / 8)
    if comm.rank == 1:
        first = np.empty_like(x)
        request = comm.mpi.Irecv(first, 0)
    comm.barrier()
    if comm.rank == 0:
        time.sleep(0.005)
        comm.node_messages._waits = range(100)
        comm.send(x, 1)
        comm.send(x + 1, 1)
    elif comm.rank == 1:
        assert comm.recv(np.empty_like(x), 0)[0] == 1
        request.Wait()
        assert first[0] == 0
    assert seen["give", True] == seen["take", True] == 0


def test_probe_and_others_find_what_was_sent(comm: Any) -> None:
    x = np.arange(5000.0)
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
        hand = comm.node_messages
        assert (hand.pending, hand.received[0]) == (0, 6)


def test_plans_keep_their_order_with_other_messages(comm: Any, patient: None, seen: Any) -> None:
    x, y = np.zeros(3000), np.empty(3000)
    comm.node_messages._looks = range(500_000)
    comm.barrier()
    if comm.rank == 0:
        time.sleep(0.005)
        comm.node_messages._waits = range(100)
        with comm.plan("send", x, dest=1) as plan:
            plan.start()
            comm.send(x + 1, 1)
            plan.wait()
    elif comm.rank == 1:
        assert [comm.recv(y, 0)[0] for _ in range(2)] == [0, 1]
    with comm.dup() as other:
        if other.rank == 1:
            plan = other.plan("recv", out=y, source=0)
            plan.start()
        other.barrier()
        if other.rank == 0:
            time.sleep(0.005)
            other.node_messages._waits = range(100)
            for turn in range(4):
                other.send(np.full(3000, float(turn)), 1)
        elif other.rank == 1:
            second = other.recv(np.empty(3000), 0)
            assert (plan.wait()[0], second[0]) == (0, 1)
            assert (other.recv(y, 0)[0], plan()[0]) == (2, 3)
            plan.close()
    assert seen["give", True] == seen["take", True] == 0


def test_a_post_is_for_one_tag(comm: Any, patient: None, seen: Any) -> None:
    x, hand = np.arange(3000.0), comm.node_messages
    if comm.rank == 0:
        assert not hand.give(1, 1, x, x.nbytes, 0)
        assert hand.give(1, 2, x, x.nbytes, hand.number[1]())
    elif comm.rank == 1:
        np.testing.assert_array_equal(comm.recv(np.empty(3000), 0, tag=2), x)


def test_a_message_of_another_length_or_tag_is_left_to_mpi(comm: Any, patient: None, seen: Any) -> None:
    if comm.rank == 0:
        comm.node_messages._waits = range(100)
        long = comm.isend(np.ones(4000), 1, tag=3)
        comm.send(np.ones(2000), 1, tag=2)
        comm.send(np.ones(1999), 1, tag=1)
        long.wait()
    elif comm.rank == 1:
        y = np.empty(2000)
        comm.recv(y, 0, tag=2)
        with pytest.raises(hpcomm.MismatchError, match=r"has 15992 bytes, the array that receives it 16000"):
            comm.recv(y, 0, tag=1)
        comm.recv(np.empty(4000), 0, tag=3)
    assert seen["give", True] == seen["take", True] == 0


def lose_patience(hand: NodeMessages, monkeypatch: pytest.MonkeyPatch, when: Callable[[], bool]) -> None:
    """Let a receiver give up as soon as something is so."""

    class Looks:
        def __iter__(self) -> Iterator[int]:
            if when():
                monkeypatch.setattr(node_messages, "RENDEZVOUS_PATIENCE_S", -1.0)
            return iter(range(3))

    monkeypatch.setattr(hand, "_looks", Looks())


def until_withdrawn(hand: NodeMessages) -> None:
    """Wait until rank 1 has taken its post back."""
    end = time.monotonic() + 20
    while hand._notes[1][node_messages._POST] and time.monotonic() < end:
        time.sleep(1e-3)


def test_a_sender_that_claims_a_post_which_is_withdrawn_backs_out(
    comm: Any, patient: None, seen: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The receiver loses patience while the sender stands between its claim and its second look."""
    hand = comm.node_messages

    class Slow:
        def __enter__(self) -> None:
            until_withdrawn(hand)

        def __exit__(self, *error: object) -> None:
            pass

    if comm.rank == 0:
        monkeypatch.setattr(hand, "_fence", Slow())
        comm.send(np.full(2000, 5.0), 1)
        assert seen["give", False] == 1
    elif comm.rank == 1:
        lose_patience(hand, monkeypatch, lambda: hand._own[node_messages._CLAIM] > 0)
        assert comm.recv(np.empty(2000), 0)[0] == 5
        assert seen["_withdraw", True] == 1
    monkeypatch.undo()
    comm.barrier()
    if comm.rank == 0:
        hand._waits = range(100)
        comm.send(np.full(2000, 6.0), 1)
    elif comm.rank == 1:
        assert comm.recv(np.empty(2000), 0)[0] == 6


def test_a_claim_stands_though_the_receiver_would_withdraw(
    comm: Any, patient: None, seen: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sender has looked and takes its time to copy."""
    hand, world = comm.node_messages, MPI.COMM_WORLD
    if comm.rank == 0:
        parts = hand._parts_of

        def slowly(*arguments: Any) -> Any:
            world.send("has looked twice", 1)
            until_withdrawn(hand)
            return parts(*arguments)

        monkeypatch.setattr(hand, "_parts_of", slowly)
        comm.send(np.full(50_000, 5.0), 1)
        assert seen["give", True] == 1
    elif comm.rank == 1:
        lose_patience(hand, monkeypatch, lambda: world.iprobe(0))
        assert (comm.recv(np.empty(50_000), 0) == 5).all()
        world.recv(source=0)
        assert (seen["take", True], seen["_withdraw", False]) == (1, 1)


def test_a_sender_stopped_while_it_copies_is_an_error_of_both(comm: Any, patient: None) -> None:
    hand = comm.node_messages
    n = 3 * node_messages._PIECE.stop // 8
    if comm.rank == 0:
        bad = [(0, 10, np.empty(10)), (10, n, None)]
        parts, hand._parts_of = hand._parts_of, lambda *_: bad
        with pytest.raises(TypeError):
            comm.send(np.ones(n), 1)
        hand._parts_of = parts
    elif comm.rank == 1:
        with pytest.raises(hpcomm.PeerFailedError, match="rank 0 was stopped while it copied") as caught:
            comm.recv(np.empty(n), 0)
        assert "recv on communicator 'near'" in str(caught.value)
    comm.barrier()
    if comm.rank == 0:
        comm.send(np.ones(n), 1)
    elif comm.rank == 1:
        assert (comm.recv(np.empty(n), 0) == 1).all()


@contextmanager
def interrupted(after_s: float) -> Iterator[None]:
    """Ctrl-C within the block, after so many seconds; 0: when SIGALRM comes."""

    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    old = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, after_s)
    try:
        with pytest.raises(KeyboardInterrupt):
            yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)


def test_a_receiver_that_is_interrupted_leaves_no_post_behind(comm: Any, patient: None, seen: Any) -> None:
    x = np.arange(5000.0)
    if comm.rank == 1:
        with interrupted(0.05):
            comm.recv(np.empty(5000), 0)
    comm.barrier()
    if comm.rank == 0:
        for turn in range(3):
            comm.send(x + turn, 1)
    elif comm.rank == 1:
        for turn in range(3):
            np.testing.assert_array_equal(comm.recv(np.empty(5000), 0), x + turn)
        assert seen["take", True] == 3


def test_a_receiver_interrupted_while_it_is_handed_a_message_waits_for_the_end(
    comm: Any, patient: None
) -> None:
    """The sender still writes to the landing, where the next message would stand."""
    n = 2 * node_messages._PIECE.start // 8
    hand = comm.node_messages
    receiver = comm.all_gather_object(os.getpid())[1]
    if comm.rank == 0:
        half = n // 2
        places = iter([(0, half, np.empty(half)), (half, n, np.empty(half))])

        class Slowly:
            def __iter__(self) -> Any:
                yield next(places)
                os.kill(receiver, signal.SIGALRM)
                time.sleep(0.2)
                yield next(places)

        parts, hand._parts_of = hand._parts_of, lambda *_: Slowly()
        comm.send(np.ones(n), 1)
        hand._parts_of = parts
    elif comm.rank == 1:
        with interrupted(0):
            comm.recv(np.empty(n), 0)
        assert hand._own[node_messages._HERE] & 255 == 2
    comm.barrier()
    if comm.rank == 0:
        comm.send(np.full(n, 3.0), 1)
    elif comm.rank == 1:
        assert (comm.recv(np.empty(n), 0) == 3).all()


def test_where_memory_is_short_mpi_carries_the_messages(
    comm: Any, patient: None, seen: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    if comm.rank == 0:
        comm.node_messages._waits = range(100)
        comm.send(np.ones(5000), 1)
    elif comm.rank == 1:
        monkeypatch.setattr(type(comm.node_messages._shelves), "prepare", lambda *_: False)
        assert comm.recv(np.zeros(5000), 0)[-1] == 1
        assert seen == {("take", False): 1}


def test_the_user_can_leave_messages_to_mpi(monkeypatch: pytest.MonkeyPatch) -> None:
    if MPI.COMM_WORLD.rank == 0:  # one rank is enough
        monkeypatch.setenv("HPCOMM_SHARED_MEMORY", "off")
    with hpcomm.Communicator(MPI.COMM_WORLD) as comm:
        assert (comm.node_messages is None) == (comm.rank == 0)
        for _ in range(3):
            if comm.rank == 0:
                comm.send(np.ones(5000), 1)
                comm.recv(np.zeros(5000), 1)
            elif comm.rank == 1:
                assert comm.recv(np.zeros(5000), 0)[-1] == 1
                comm.send(np.ones(5000), 0)


@pytest.mark.parametrize("form", [np.copy, lambda x: torch.from_numpy(x.copy())], ids=["numpy", "torch"])
def test_ranks_that_exchange_hand_over_both_messages(comm: Any, patient: None, seen: Any, form: Any) -> None:
    if comm.rank > 1:
        return
    other, most = 1 - comm.rank, RENDEZVOUS_MOST_BOTH
    lengths = [RENDEZVOUS_LEAST - 8, RENDEZVOUS_LEAST, 50_000, most, most + 8]
    for turn, nbytes in enumerate(lengths):
        there = lengths[(turn + 1) % 5] if turn in (1, 3) else nbytes  # what they send may differ in length
        mine, theirs = (nbytes, there) if comm.rank == 0 else (there, nbytes)
        x, y = form(np.arange(mine // 8) + comm.rank), form(np.zeros(theirs // 8, np.int64))
        assert comm.sendrecv(x, other, other, turn, [turn, None][turn % 2], out=y) is y
        np.testing.assert_array_equal(np.asarray(y), np.arange(theirs // 8) + other)
    assert seen["give", True] == seen["take", True] == 2  # turns 1 and 2; in turn 3 one of them is too long


def test_an_exchange_goes_on_by_mpi_where_the_other_rank_is_elsewhere(comm: Any, patient: None) -> None:
    """Its partner sends in the background, or takes nothing as yet; and one message is too long."""
    x, y = np.full(3000, float(comm.rank)), np.empty(3000)
    if comm.rank == 0:
        comm.node_messages._waits = range(100)
        for _ in range(2):
            assert comm.sendrecv(x, 1, 1, out=y)[0] == 1
        with pytest.raises(hpcomm.MismatchError, match=r"sendrecv on communicator 'near'"):
            comm.sendrecv(x, 1, 1, out=y)
        assert comm.sendrecv(x, 1, 1, out=y)[0] == 1
    elif comm.rank == 1:
        for length in (3000, 3000, 2999):
            going = comm.isend(np.full(length, 1.0), 0)
            assert comm.recv(y, 0)[0] == 0
            going.wait()
        pending = comm.irecv(np.empty(3000), 0)
        comm.send(x, 0)
        assert pending.wait()[0] == 0


def test_a_ring_of_exchanges(comm: Any) -> None:
    p, rank = comm.size, comm.rank
    x = np.full(20_000, float(rank))
    for turn in range(20):
        if (rank + turn) % 7 == 0:
            time.sleep(1e-3)
        y = np.empty_like(x)
        comm.sendrecv(x, (rank + 1) % p, (rank - 1) % p, out=y)
        assert (y == (rank - 1 - turn) % p).all(), turn
        x = y


def test_two_threads_receive_at_once(comm: Any, patient: None) -> None:
    """There is one landing: the second thread's message comes by MPI."""
    if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
        pytest.skip("this MPI lets one thread call it at a time")
    with comm.dup() as other:
        both = (comm, other)
        if comm.rank == 0:
            comm.node_messages._waits = other.node_messages._waits = range(100)
            for turn in range(30):
                for each in both:
                    each.send(np.full(60_000, float(turn)), 1, tag=turn)
        elif comm.rank == 1:
            wrong: list[Any] = []

            def receive(each: Any) -> None:
                for turn in range(30):
                    y = each.recv(np.empty(60_000), 0, tag=turn)
                    if not (y == turn).all():
                        wrong.append((turn, y))

            threads = [threading.Thread(target=receive, args=(each,)) for each in both]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert not wrong
        comm.barrier()


def test_counts_begin_anew_with_every_communicator() -> None:
    """Rings of the node_segment serve again; what an old one says must not be taken for today's."""
    node_segment = segment.current
    assert node_segment is not None
    for turn in range(8):
        node_segment._free.rotate(1)  # what was given back last is taken first
        with hpcomm.Communicator(MPI.COMM_WORLD) as comm:
            for i in range(turn % 3 + 1):
                if comm.rank == 0:
                    comm.send(np.full(3000, float(i)), 1)
                elif comm.rank == 1:
                    assert (comm.recv(np.empty(3000), 0) == i).all()


def test_a_sender_waits_in_vain_only_now_and_then(comm: Any, seen: Any) -> None:
    """Where the receiver always takes its messages otherwise, a send looks once."""
    waited: list[int] = []
    if comm.rank == 0:

        class Waits:
            def __iter__(self) -> Iterator[int]:
                waited.append(1)
                return iter(())

        comm.node_messages._waits = Waits()
    for _ in range(3 * (node_messages.RENDEZVOUS_AGAIN + 1)):
        if comm.rank == 0:
            comm.send(np.ones(RENDEZVOUS_LEAST), 1)
        elif comm.rank == 1:
            comm.irecv(np.empty(RENDEZVOUS_LEAST), 0).wait()
    assert comm.rank > 0 or len(waited) == node_messages.RENDEZVOUS_TRIES + 2


@pytest.mark.parametrize("comm", ["light", "off"], indirect=True)
def test_a_random_program(comm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two ranks of all exchange messages of all kinds, in every way to send and to receive, and come late."""
    monkeypatch.setattr(node_messages, "RENDEZVOUS_TRIES", 1 << 30)
    plan, own = random.Random(7), random.Random(comm.rank)
    lengths = (2, 1000, RENDEZVOUS_LEAST // 8 - 1, RENDEZVOUS_LEAST // 8, 5000, 20_000, 60_000)
    for turn in range(60):
        a, b = plan.sample(range(comm.size), 2)
        messages = [
            (plan.randrange(2), plan.choice(lengths), float(turn * 100 + i))
            for i in range(plan.randrange(1, 5))
        ]
        if own.random() < 0.2:
            time.sleep(own.random() * 3e-3)
        if comm.rank == a:
            going = []
            for tag, n, value in messages:
                if own.random() < 0.3:
                    going.append(comm.isend(np.full(n, value), b, tag))
                else:
                    comm.send(np.full(n, value), b, tag)
            for request in going:
                request.wait()
        elif comm.rank == b:
            coming = []
            for tag, n, value in messages:
                way, out = own.randrange(6), np.empty(n)
                if way == 0:
                    coming.append((comm.irecv(out, a, tag), value))
                    continue
                if way == 1:
                    assert comm.probe(a, tag).nbytes == out.nbytes
                if way == 2:
                    out = comm.recv(dtype="float64", source=a, tag=tag)
                else:
                    comm.recv(out, a, own.choice((tag, None)))
                assert out.size == n
                assert (out == value).all(), (turn, way)
            for request, value in coming:
                assert (request.wait() == value).all(), turn


def test_cores_are_counted_for_all_ranks_together(comm: Any) -> None:
    """Each alone may be bound to one, which does not make the node crowded."""
    node_segment, own = segment.current, os.sched_getaffinity(0)
    assert node_segment is not None
    everyone = set().union(*comm.all_gather_object(own))
    assert node_segment.is_crowded == (comm.size > len(everyone))
    assert (
        len(comm.node_messages._looks) == node_messages.RENDEZVOUS_LOOKS_CROWDED
    ) == node_segment.is_crowded
    os.sched_setaffinity(0, {sorted(everyone)[comm.rank % len(everyone)]})
    try:
        assert _cores(MPI.COMM_WORLD) == min(comm.size, len(everyone))
    finally:
        os.sched_setaffinity(0, own)


@pytest.mark.mpi(min_size=2)
def test_a_receive_that_failed_is_counted_and_does_not_end_this_way(own_comm: Any) -> None:
    if own_comm.node_messages is None:
        pytest.skip("these ranks share no memory")
    left, right = (own_comm.rank - 1) % own_comm.size, (own_comm.rank + 1) % own_comm.size
    too_long = own_comm.irecv(np.zeros(9), left)
    own_comm.isend(np.ones(1000), right).wait()
    with pytest.raises(hpcomm.MismatchError):
        too_long.wait()
    too_short = own_comm.irecv(np.zeros(9), left)
    own_comm.isend(np.ones(3), right).wait()
    with pytest.raises(hpcomm.MismatchError):
        too_short.wait()
    own_comm.isend(np.ones(3), right).wait()
    with pytest.raises(hpcomm.MismatchError):
        own_comm.recv(np.zeros(9))
    assert own_comm.node_messages.pending == 0
    assert own_comm.node_messages.received[left] == 3
