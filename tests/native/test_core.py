"""The node core from Python, its ranks forked processes: results, mismatches, deadlines, deaths."""

import ctypes
import mmap
import os
import pickle
import platform
import signal
import struct
import sys
import threading
import time
import tracemalloc
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from hpcomm.node import native

core = pytest.importorskip("hpcomm.node._native.core")
pytestmark = pytest.mark.once

import ranks  # noqa: E402

core.know_numpy(np)

SIZES = [1, 1000, 3000, 200_001]  # of elements: in the cells, in one piece, in many


def plain(x):
    """float64 values of an array of any kind."""
    return np.asarray(x.double() if hasattr(x, "double") else x, np.float64)


def every_verb(node, kind, length):
    """Each verb once; x of rank r is r + 1 + i % 5."""
    p, me, root = node.size, node.rank, node.size - 1

    def x_of(rank, n=length):
        return kind(np.arange(n) % 5 + rank + 1)

    def new(n=length):
        return kind(np.full(n, 77))

    def check(name, out, want):
        assert out is not NotImplemented, name
        np.testing.assert_array_equal(plain(out), want, err_msg=name)

    everything = [plain(x_of(r)) for r in range(p)]
    total = sum(everything)
    node.barrier()
    check("all_reduce", node.all_reduce(x_of(me), "sum", new()), total)
    x = x_of(me)
    check("all_reduce in place", node.all_reduce(x, "max", x), np.max(everything, 0))
    result = node.reduce(x_of(me), "min", root, new() if me == root else None)
    assert result is None or me == root
    if me == root:
        check("reduce", result, np.min(everything, 0))
    x = x_of(me)
    check("broadcast", node.broadcast(x, root), everything[root])
    check("broadcast to out", node.broadcast(x_of(me), 0, new()), everything[0])
    result = node.gather(x_of(me), root, new(p * length) if me == root else None)
    if me == root:
        check("gather", result, np.concatenate(everything))
    check("all_gather", node.all_gather(x_of(me), new(p * length)), np.concatenate(everything))
    result = node.scatter(x_of(root, p * length) if me == root else None, root, new())
    check("scatter", result, plain(x_of(root, p * length))[me * length : (me + 1) * length])
    blocks = [plain(x_of(r, p * length)).reshape(p, length) for r in range(p)]
    check("reduce_scatter", node.reduce_scatter(x_of(me, p * length), "sum", new()), sum(blocks)[me])
    check(
        "all_to_all",
        node.all_to_all(x_of(me, p * length), new(p * length)),
        np.concatenate([b[me] for b in blocks]),
    )
    x = x_of(me, p * length)
    check("all_to_all in place", node.all_to_all(x, x), np.concatenate([b[me] for b in blocks]))
    check("scan", node.scan(x_of(me), "sum", new()), sum(everything[: me + 1]))
    check("exscan", node.exscan(x_of(me), "sum", new()), sum(everything[:me]) if me else np.zeros(length))
    every_new_result(node, kind, length, x_of, check)


def every_new_result(node, kind, length, x_of, check):
    """Each verb without out; x of the verbs that cut it has an axis of the ranks."""
    p, me, root = node.size, node.rank, node.size - 1
    everything = np.stack([plain(x_of(r)) for r in range(p)])
    blocks = [plain(x_of(r, p * length)).reshape(p, length) for r in range(p)]
    x, cut = x_of(me), x_of(me, p * length).reshape(p, length)
    for verb, result, want in (
        ("all_reduce", node.all_reduce(x, "sum"), everything.sum(0)),
        ("scan", node.scan(x, "max", None), everything[: me + 1].max(0)),
        ("exscan", node.exscan(x, "prod", None), everything[:me].prod(0)),
        ("broadcast", node.broadcast(x, root, None), everything[root]),
        ("all_gather", node.all_gather(x), everything),
        ("all_to_all", node.all_to_all(cut), np.stack([b[me] for b in blocks])),
        ("scatter", node.scatter(cut, root), blocks[root][me]),
        ("reduce_scatter", node.reduce_scatter(cut, "sum"), sum(blocks)[me]),
    ):
        check(f"new {verb}", result, want)
        assert (type(result), result.dtype, result.shape) == (type(x), x.dtype, want.shape)
    for result, want in (
        (node.gather(x, root), everything),
        (node.reduce(x, "sum", root), everything.sum(0)),
    ):
        if me == root:
            check("new at the root", result, want)
            assert result.shape == want.shape
        else:
            assert result is None
    check("x is left alone", x, everything[me])


@pytest.mark.parametrize("direct", [True, False])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_messages_are_told_apart_by_source_and_tag(size, direct):
    def body(node):
        node.timeout, me = 30, node.rank
        lengths = [0, 3, 5000, 300_000]
        going = [
            node.isend(np.full(n, 10 * me + i, np.float32), dest, i)
            for dest in range(size)
            for i, n in enumerate(lengths)
        ]
        node.barrier()
        for source in reversed(range(size)):
            for i, n in [*enumerate(lengths)][::-1]:
                message = node.irecv(x := np.full(n + 2, -1, np.float32), source, i)
                assert message.wait(30)
                assert (message.state, message.source, message.came) == (1, source, 4 * n)
                assert (x[:n] == 10 * source + i).all()
                assert (x[n:] == -1).all()
        assert all(message is None or message.wait(30) for message in going)
        assert going[0] is None  # short ones are complete at once
        anybody = [node.irecv(np.zeros(1), None, 9) for _ in range(size)]
        for dest in range(size):
            node.isend(np.ones(1), dest, 9)
        assert all(message.wait(30) for message in anybody)
        assert {message.source for message in anybody} == set(range(size))
        with pytest.raises(ValueError, match="rank 7 of"):
            node.isend(np.ones(1), 7, 0)
        assert node.isend(np.ones(4)[::2], 0, 0) is NotImplemented
        node.barrier()

    ranks.together(size, body, direct=direct)


def test_a_first_message_without_room_for_its_queue_is_refused():
    segment = ranks.memory(1 << 18)
    node = core.Node(segment, segment.reserve(1), 0)
    while segment.reserve_words(core.UNIT // 8):
        pass
    with pytest.raises(OSError, match="No space"):
        node.isend(np.ones(1), 0, 0)
    node.close()


@pytest.mark.parametrize("source", [1, None], ids=["of a rank", "of anybody"])
@pytest.mark.parametrize("next_is", ["later", "there"])
@pytest.mark.parametrize("when", ["before it comes", "in its memory", "in memory of the core", "complete"])
def test_a_receive_that_is_taken_back_leaves_its_message_to_the_next_one(when, next_is, source):
    n = 3 if when == "complete" else 300_000  # more than the slots of a queue hold

    def body(node):
        node.timeout = 30
        if node.rank == 1:
            if when != "in memory of the core":
                node.barrier()
            going = node.isend(np.arange(n, dtype=np.float32), 0, 5)
            assert node.isend(np.ones(1), 0, 6) is going is None or when != "complete"
            if when != "before it comes":
                node.barrier()
            node.barrier()
            assert going is None or going.wait(30)
            return
        if when == "in memory of the core":
            node.barrier()
            node.move_messages()
        first = node.irecv(x := np.full(n, -1, np.float32), source, 5)
        later = [node.irecv(y := np.full(n, -1, np.float32), source, 5)] if next_is == "there" else []
        if when in ("in its memory", "complete"):
            node.barrier()
            node.barrier()
            assert first.done() == (when == "complete")
            assert (x[0], x[-1]) == (0, 2 if when == "complete" else -1)
        assert first.cancel() == (when != "complete")
        assert first.done()
        assert first.state == (1 if when == "complete" else 4)
        assert not first.cancel()
        if when == "before it comes":
            node.barrier()
        taken = x.copy()
        node.barrier()
        if when == "complete":
            return
        second = later[0] if later else node.irecv(y := np.full(n, -1, np.float32), source, 5)
        assert second.wait(30)
        assert (second.state, second.source, second.came) == (1, 1, 4 * n)
        assert (y == np.arange(n)).all()
        assert (x == taken).all()

    ranks.together(2, body, direct=False)


def test_who_waits_in_another_thread_sees_that_a_receive_is_taken_back():
    def body(node):
        node.timeout, message, waits = 30, node.irecv(np.zeros(1), 0, 5), ranks.waits(node)
        waiter = threading.Thread(target=message.wait, args=(60,))
        waiter.start()
        waits.wait()
        assert message.cancel()
        waiter.join(30)
        assert not waiter.is_alive()
        going = node.isend(np.zeros(100_000), 1 - node.rank, 6)
        assert not going.cancel()  # a send stays
        node.barrier()

    ranks.together(2, body)


def test_a_message_that_is_too_long_late_or_lost_says_so():
    def body(node):
        if node.rank == 1:
            for n in (4, 3000, 100_000):
                message = node.isend(np.ones(n), 0, n)
                assert message is None or message.wait(30)
            assert node.isend(np.ones(1), 0, 0) is None
            node.barrier()
            lying = node.isend(np.ones(100_000), 0, 1)
            node.tell(1, struct.pack("qQQ", *core.mark()))
            assert lying.state == 0
            os.kill(os.getpid(), signal.SIGKILL)
        for n in (4, 3000, 100_000):
            message = node.irecv(x := np.zeros(2), 1, n)
            assert message.wait(30)
            assert (message.state, message.came, x.tolist()) == (2, 8 * n, [0, 0])
        late = node.irecv(x := np.zeros(1), 1, 5)
        assert not late.wait(0.01)
        assert not late.done()
        node.barrier()
        mark = struct.unpack("qQQ", node.tell(1, bytes(24))[1])
        while core.reaches(*mark):
            time.sleep(0.001)
        lost = node.irecv(np.zeros(100_000), 1, 1)
        assert lost.wait(30)
        assert lost.state == 3
        node.hook = lambda reason, others, *_: 1 / 0
        with pytest.raises(ZeroDivisionError):
            late.wait(30)
        node.close()
        assert late.state == 3
        with pytest.raises(ValueError, match="closed"):
            node.isend(np.zeros(1), 1, 1)

    assert ranks.end(ranks.start(2, body))[1] is None


@pytest.mark.parametrize("direct_from", [1 << 60, 0])
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_every_verb_gives_what_its_definition_says(size, direct_from):
    def body(node):
        for length in SIZES:
            every_verb(node, np.float32, length)
        every_verb(node, np.int64, 1001)

    ranks.together(size, body, direct_from=direct_from)


def secret(n):
    """float32 in memory that the system reads for no other process, as what a device's driver has mapped."""
    call = ctypes.CDLL(None).syscall
    file = call(447, 0)  # memfd_secret
    if file < 0:
        pytest.skip("no memory here that the system does not read")
    os.ftruncate(file, 4 * n)
    memory = mmap.mmap(file, 4 * n)
    os.close(file)
    return np.frombuffer(memory, np.float32)


def test_memory_that_the_system_reads_for_nobody_goes_through_pieces():
    n = 300_000
    secret(1)  # skips here, not in a rank

    def body(node):
        mine = secret(n) if node.rank == 0 else np.empty(n, np.float32)
        mine[:] = node.rank + 1
        total = np.empty_like(mine)
        assert (node.all_reduce(mine, "sum", total) == 3).all()
        assert (node.all_reduce(total, "sum", mine) == 6).all()
        assert (node.broadcast(mine, 0) == 6).all()
        rows = np.empty((2, n), np.float32)
        assert (node.all_gather(mine, rows) == 6).all()
        return None

    ranks.together(2, body, direct_from=0)


def test_every_verb_takes_tensors():
    torch = pytest.importorskip("torch")
    core.know_torch(torch)

    def body(node):
        for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.int32):
            for length in (3, 5000):
                every_verb(node, lambda x, dtype=dtype: torch.from_numpy(x).to(dtype), length)

    ranks.together(2, body)


def test_numpy_and_torch_meet_in_one_call():
    torch = pytest.importorskip("torch")
    core.know_torch(torch)

    def body(node):
        x = np.ones(3, np.float32) if node.rank else torch.ones(3)
        return float(node.all_reduce(x, "sum", x)[0])

    assert ranks.together(2, body) == [2.0, 2.0]


def test_what_the_core_does_not_take_is_left_to_python_before_anybody_knows():
    torch = pytest.importorskip("torch")
    core.know_torch(torch)

    def body(node):
        x, y = np.ones(8), np.zeros(8)
        z = torch.ones(4, dtype=torch.complex64)
        for call in (
            lambda: node.all_reduce(x, "sum", y.astype("f4")),
            lambda: node.all_reduce(x, "sum", y[:4]),
            lambda: node.all_reduce(x, "band", y),
            lambda: node.all_reduce(x, "nonsense", y),
            lambda: node.all_reduce(x[:4], "sum", x[1:5]),
            lambda: node.all_reduce(x.astype(">f8"), "sum", y),
            lambda: node.all_reduce(object(), "sum", y),
            lambda: node.all_reduce("text", "sum", y),
            lambda: node.all_gather(x, x),
            lambda: node.reduce_scatter(x[: node.size + 1], "sum", y[:1]),
            lambda: node.all_reduce(torch.ones(4, device="meta"), "sum", torch.ones(4)),
            lambda: node.all_reduce(z.conj(), "sum", z.clone()),
            lambda: node.all_reduce(z.conj().imag, "sum", torch.ones(4)),
        ):
            assert call() is NotImplemented
        readonly = np.ones(3)
        readonly.flags.writeable = False
        assert node.all_reduce(readonly, "sum", readonly) is NotImplemented
        assert (node.all_reduce(readonly, "sum", y[:3]) == node.size).all()

    ranks.together(2, body)


def test_a_length_of_more_than_31_bits_is_not_taken_for_a_short_one():
    def body(node):
        x = np.zeros(4 + (node.rank == 0) * 2**31, np.int8)  # memory that nobody touches
        with pytest.raises(RuntimeError, match="mismatch"):
            node.broadcast(x, 0, x)

    ranks.together(2, body)


def test_who_calls_another_collective_is_told_with_both_signatures_and_nobody_hangs():
    heard = []

    def hook(reason, who, mine, theirs):
        if reason != "waits":
            heard.append((reason, who, mine & 63, theirs & 63, mine >> 32, theirs >> 32))
            raise RuntimeError(reason)

    def body(node):
        x = np.ones(3 + (node.rank == 1), np.float32)
        with pytest.raises(RuntimeError, match="mismatch"):
            node.all_reduce(x, "sum", x)
        node.barrier()
        try:
            if node.rank == 0:  # a broadcast's root waits for nobody, so it hears at its next call
                node.broadcast(x, 0)
                node.barrier()
            else:
                node.all_gather(x, np.empty(12, np.float32)[: x.size * 3])
                node.barrier()
        except RuntimeError:
            pass
        return heard

    first, second, third = ranks.together(3, body, hook=hook)
    assert first[0] == ("mismatch", (1,), 2, 2, 3, 4)
    assert second[0] == ("mismatch", (0,), 2, 2, 4, 3)
    assert third[0][:2] == ("mismatch", (1,))
    assert all(any({5, 1} == {mine, theirs} for _, _, mine, theirs, *_ in r) for r in (first, second, third))


def test_the_root_of_broadcasts_may_be_four_calls_ahead_and_no_further():
    def body(node):
        x, seen, ahead = np.zeros(3), [], None
        if node.rank == 1:
            while node.calls()[0][0] < 4:
                time.sleep(0.001)
            time.sleep(0.05)
            ahead = node.calls()[0][0]
        for i in range(30):
            x[:] = i if node.rank == 0 else -1
            node.broadcast(x, 0)
            seen.append(x[2])
        assert seen == list(range(30))
        return ahead

    assert ranks.together(2, body, timeout=20)[1] == 4


def test_signatures_are_those_of_the_package():
    from hpcomm.core import signature as words

    heard = []

    def hook(reason, who, mine, theirs):
        if reason != "waits":
            heard.append(words.describe(mine, 2))
            raise RuntimeError(reason)

    def body(node):
        x = np.ones(6, np.float64)
        with pytest.raises(RuntimeError):
            node.reduce(x, ["min", "max"][node.rank], 1, x)
        return heard

    said = ranks.together(2, body, hook=hook, synchronous=True)
    assert said[1] == ["reduce(float64, 6 elements, op='max', root=1)"]


def test_a_call_that_somebody_misses_fails_within_its_time_on_all_who_came():
    ended = [ranks.Told(), ranks.Told()]

    def body(node):
        node.all_reduce(np.ones(1), "sum", np.ones(1))  # all are there
        node.timeout = 0.5
        if node.rank == 2:
            for each in ended:
                each.wait()
        with pytest.raises(RuntimeError) as caught:
            node.all_reduce(np.ones(1), "sum", np.ones(1))
        if node.rank < 2:
            ended[node.rank].tell()
        node.timeout = 60
        return str(caught.value), float(node.all_reduce(np.ones(1), "sum", np.ones(1))[0])

    said = ranks.together(3, body, synchronous=True)
    late = [what for what, _ in said if what.startswith("late")]
    # On a busy machine another one may have been late, too.
    assert {*late} <= {"late (2,)", "late (0, 2)", "late (1, 2)"}
    assert late
    assert sum(what.startswith("withdrawn") for what, _ in said) == 3 - len(late)
    assert said[2][0].startswith("withdrawn")
    assert [s[1] for s in said] == [3.0, 3.0, 3.0]  # and all count alike from then on


def test_all_may_wait_for_all_and_withdraw_from_any_call_on():
    ended = ranks.Told()

    def body(node):
        x = np.ones(1)
        node.broadcast(x, 0)
        node.synchronous = True
        if node.rank:
            ended.wait()
            with pytest.raises(RuntimeError, match="withdrawn"):
                node.arrive_and_wait(12345)
        else:
            node.timeout = 0.05
            with pytest.raises(RuntimeError, match=r"late \(1,\)"):
                node.arrive_and_wait(12345)
            ended.tell()
            node.timeout = 0
        node.arrive_and_wait(99)

    ranks.together(2, body)


def test_a_hook_can_be_replaced():
    def body(node):
        def hook(reason, *_):
            if reason != "waits":
                raise RuntimeError(f"another hook: {reason}")

        node.hook = hook
        with pytest.raises(RuntimeError, match="another hook: mismatch"):
            node.arrive_and_wait(1 + node.rank)
        del node.hook
        with pytest.raises(ValueError, match="mismatch"):
            node.arrive_and_wait(3 + node.rank)

    ranks.together(2, body)


def test_who_refuses_a_call_comes_to_it_and_the_others_hear_at_once():
    from hpcomm.core.signature import REFUSED

    def body(node):
        assert node.arrive_and_wait(77) == 1
        if node.rank == 1:
            assert node.arrive(REFUSED) == 2
        else:
            with pytest.raises(RuntimeError, match=r"mismatch \(1,\)"):
                node.all_reduce(np.ones(2), "sum", np.ones(2))
        return node.arrive_and_wait(78)

    assert ranks.together(3, body) == [3, 3, 3]


def test_the_last_calls_of_each_rank_can_be_read():
    def body(node):
        for k in range(11):
            node.all_reduce(np.ones(k + 1), "sum")
        return [[(n, sig >> 32) for n, sig in node.last_calls(rank)] for rank in (0, 1)]

    assert ranks.together(2, body) == [[[(k, k) for k in range(4, 12)]] * 2] * 2


def test_what_a_waiting_rank_waits_for_can_be_read():
    def body(node):
        if node.rank:
            while node.calls()[0][2] is None:
                time.sleep(0.001)
            (number, signature, waits, since), own = node.calls()
            node.barrier()
            assert own == (0, 0, None, None)
            return number, signature & 63, waits, 0 < time.monotonic() - since < 60
        node.barrier()
        return node.calls()[1][0]

    assert ranks.together(2, body) == [1, (1, 4, 1, True)]


def test_the_hook_hears_who_is_waited_for_and_may_end_the_wait():
    heard, ended = [], ranks.Told()

    def hook(reason, who, mine, theirs):
        heard.append((reason, who))
        if len(heard) == 3:
            raise KeyError("enough")

    def body(node):
        if node.rank == 0:
            with pytest.raises(KeyError):
                node.all_reduce(np.ones(1), "sum", np.ones(1))
            ended.tell()
            return heard
        ended.wait()
        return None

    assert ranks.together(3, body, hook=hook)[0] == [("waits", (1, 2))] * 3


@pytest.mark.parametrize("length", [1, 300_000])
def test_ctrl_c_ends_a_wait_and_the_others_hear_of_a_long_call(length):
    ended = ranks.Told()

    def body(node):
        x = np.ones(length)
        node.all_reduce(x, "sum", x)
        if node.rank:
            ended.wait()
            if length > 1:
                with pytest.raises(RuntimeError, match="gave up"):
                    node.all_reduce(x, "sum", x)
            return True
        ranks.interrupt_when_it_waits(node)
        held = sys.getrefcount(x)
        with pytest.raises(KeyboardInterrupt):
            node.all_reduce(x, "sum", x)
        ended.tell()
        assert (sys.getrefcount(x) > held) == (
            length > 1
        )  # others may still write to the memory of a long call
        return True

    ranks.together(2, body)


def test_other_threads_run_while_a_rank_waits_and_may_not_enter_the_same_node():
    import threading

    refused = ranks.Told()

    def body(node):
        if node.rank:
            refused.wait()
            node.barrier()
            return None
        said = []

        def second():
            waits.wait()
            with pytest.raises(RuntimeError, match="another thread"):
                node.barrier()
            said.append("refused")
            refused.tell()

        waits = ranks.waits(node)
        thread = threading.Thread(target=second)
        thread.start()
        node.barrier()
        thread.join()
        return said

    assert ranks.together(2, body) == [["refused"], None]


def test_the_hook_says_what_a_second_thread_is_told_and_may_end_the_wait_of_the_first():
    import threading

    asked, waits, ended = [], threading.Event(), ranks.Told()

    def hook(reason, who, mine, theirs):
        if reason == "busy":
            asked.append(who)
            raise KeyError("one thread at a time")
        waits.set()
        if asked:
            raise KeyError("another thread came")

    def body(node):
        if node.rank:
            ended.wait()
            return []
        said = []

        def second():
            waits.wait()
            with pytest.raises(KeyError, match="at a time"):
                node.all_reduce(np.ones(1), "sum", np.ones(1))
            said.append(1)

        thread = threading.Thread(target=second)
        thread.start()
        with pytest.raises(KeyError, match="another thread came"):
            node.barrier()
        thread.join()
        ended.tell()
        return said + asked

    assert ranks.together(2, body, hook=hook)[0] == [1, ()]


def test_who_waits_sees_that_another_rank_has_begun_more_background_calls():
    nodes, seen, ended = [], [], ranks.Told()

    def hook(reason, who, mine, theirs):
        if reason == "waits":
            begun = nodes[0].last_logged(1)  # first this, then whether it has come
            has_come = nodes[0].calls()[1][0] >= nodes[0].calls()[0][0]
            if not has_come and begun > nodes[0].last_logged(0):
                seen.append(begun)
                raise KeyError("elsewhere")

    def body(node):
        nodes.append(node)
        assert node.log_call(100 + node.rank) == 1
        if node.rank == 0:
            with pytest.raises(KeyError, match="elsewhere"):
                node.barrier()
            ended.tell()
            return seen
        time.sleep(0.05)
        for signature in range(200, 264):
            node.log_call(signature)
        assert [node.logged_call(1, number) for number in (0, 2, 3, 65, 66)] == [None, None, 201, 263, None]
        ended.wait()
        return node.logged_call(0, 1)

    (begun,), first = ranks.together(2, body, hook=hook)
    assert 2 <= begun <= 65
    assert first == 100


def test_places_are_used_again_when_all_ranks_have_left():
    segment = core.Segment(1 << 20)
    try:
        assert Path(segment.name).stat().st_mode & 0o777 == 0o600
        other = core.Segment(1 << 20, segment.name)
        place = segment.reserve(2)
        assert other.reserve(2) > place
        nodes = [core.Node(s, place, r) for r, s in enumerate((segment, other))]
        nodes[0].close()
        assert segment.reserve(2) > place
        nodes[1].close()
        assert segment.reserve(2) == place
        assert segment.reserve(native.MOST_RANKS + 1) is None
        while segment.reserve(2) is not None:
            pass
        assert other.reserve(1) is None or other.reserve(2) is None
        with pytest.raises(ValueError, match="closed"):
            nodes[0].barrier()
    finally:
        segment.unlink()
    with pytest.raises(OSError, match="No such file"):
        core.Segment(1 << 20, segment.name)


def policy(at):
    """The system's policy for memory at an address, and its domains."""
    mode, domains = ctypes.c_int(), (ctypes.c_ulong * 16)()
    number = {"x86_64": 239, "aarch64": 236}[platform.machine()]  # get_mempolicy, MPOL_F_ADDR
    call = ctypes.CDLL(None).syscall
    if call(
        number, ctypes.byref(mode), domains, ctypes.c_ulong(1024), ctypes.c_void_p(at), ctypes.c_ulong(2)
    ):
        pytest.skip("no policies of memory here")
    return mode.value, domains[0]


def test_memory_of_each_rank_is_to_lie_near_it():
    segment, preferred = ranks.memory(4 << 20), 1
    start = ctypes.addressof(ctypes.c_char.from_buffer(memoryview(segment)))
    here = core.domain()
    assert policy(start + segment.reserve(3))[0] != preferred
    at = segment.reserve(3, bytes([here, 255, here]))
    of = [policy(start + (at + part * 36_000 & ~4095)) for part in (0, 2)]
    if of[0][0] != preferred:
        pytest.skip("the system forbids it")
    assert of == [(preferred, 1 << here)] * 2
    with pytest.raises(ValueError, match="1 domains of 2 ranks"):
        segment.reserve(2, b"0")


def test_words_are_seen_by_all_who_have_the_segment():
    segment = core.Segment(1 << 20)
    other = core.Segment(1 << 20, segment.name)
    segment.unlink()
    at = segment.reserve_words(5000)
    assert [segment.store(at, -5), other.load(at), other.add(at, 7), segment.load(at)] == [-5, -5, 2, 2]
    assert segment.store(at + 8, (1 << 64) - 1) == other.load(at + 8) == -1
    other.store_bytes(at + 16, b"sixteen bytes in")
    assert segment.load_bytes(at + 16, 3) == b"sixteen bytes in" + bytes(8)
    with pytest.raises(ValueError, match="no 1 words begin at"):
        segment.load(0)  # owners of units
    for bad in (at + 4, 1 << 20, 1 << 60):
        with pytest.raises(ValueError, match="words begin at"):
            segment.store(bad, 1)
    with pytest.raises(ValueError, match="words begin at"):
        segment.load_bytes(at, 1 << 60)
    with pytest.raises(TypeError):
        segment.store_bytes(at, b"seven..")
    assert segment.reserve_words(1 << 60) is None


def test_each_rank_of_a_place_has_cleared_words_of_its_own():
    segment = ranks.memory()
    for _ in range(2):  # the second time in the same place
        nodes = [core.Node(segment, place, rank) for place in [segment.reserve(2)] for rank in range(2)]
        at = [nodes[0].words(rank) for rank in range(2)]
        assert at == [nodes[1].words(rank) for rank in range(2)]
        assert [segment.load_bytes(each, core.WORDS) for each in at] == [bytes(8 * core.WORDS)] * 2
        segment.store_bytes(at[0], b"\1" * 8 * core.WORDS)
        segment.store_bytes(at[1], b"\2" * 8 * core.WORDS)
        assert segment.load_bytes(at[0], core.WORDS) == b"\1" * 8 * core.WORDS
        assert [node.close() for node in nodes] == [False, True]
    with pytest.raises(ValueError, match="closed"):
        nodes[0].words(0)


def test_names_that_are_not_ours_are_refused(tmp_path):
    real = tmp_path / "real"
    real.write_bytes(bytes(1 << 20))
    real.chmod(0o644)
    (tmp_path / "link").symlink_to(real)
    for path, word in ((real, "not permitted"), (tmp_path / "link", "symbolic links")):
        with pytest.raises(OSError, match=word):
            core.Segment(1 << 20, str(path))
    real.chmod(0o600)
    with pytest.raises(OSError, match="Protocol"):
        core.Segment(1 << 20, str(real))


def test_where_there_is_no_room_for_long_calls_all_ranks_know_since_the_first():
    def body(node):
        x, one = np.ones(100_000), np.ones(1)
        if node.rank == 1:
            time.sleep(0.05)
        for _ in range(2):
            assert node.all_reduce(x, "sum", x) is NotImplemented
        # the first one was a meeting, the second one nobody came to
        return node.arrive_and_wait(77), float(node.all_reduce(one, "sum", one)[0])

    assert ranks.together(2, body, nbytes=8 * core.UNIT) == [(2, 2.0)] * 2


def test_a_rank_that_fails_in_the_first_long_call_knows_that_there_is_no_room():
    ended = ranks.Told()

    def body(node):
        x = np.ones(100_000)
        if node.rank == 2:
            ended.wait()
        if node.rank == 1:
            node.timeout = 0.1
            with pytest.raises(RuntimeError, match="late"):
                node.all_reduce(x, "sum", x)
            ended.tell()
            node.timeout = 20
        else:
            assert node.all_reduce(x, "sum", x) is NotImplemented
        assert node.all_reduce(x, "sum", x) is NotImplemented
        return node.arrive_and_wait(77)

    assert ranks.together(3, body, nbytes=18 * core.UNIT) == [2, 2, 2]


def test_arrays_that_dtype_makes_of_different_lengths_are_not_taken():
    segment = ranks.memory()
    node = core.Node(segment, segment.reserve(1), 0)
    x, out = np.zeros(8, np.int16), np.zeros(8, np.int8)
    assert node.all_reduce(x, "sum", out, 6) is NotImplemented
    assert node.all_gather(x, np.zeros((1, 8), np.int8), 6) is NotImplemented
    assert node.all_reduce(x.view(np.uint16), "sum", out.repeat(2).view(np.int16), 11) is not NotImplemented


@pytest.mark.parametrize("size", [2, 3, 5])
def test_long_scans_of_halves_are_right_where_steps_end_anywhere(size):
    def body(node):
        for n in (524_160, 520_007, 65_521):
            x = ((np.arange(n) * 7 + node.rank) % 13).astype(np.float16)
            below = [(np.arange(n) * 7 + r) % 13 for r in range(node.rank + 1)]
            np.testing.assert_array_equal(node.scan(x, "sum"), sum(below).astype(np.float16))

    ranks.together(size, body)


def test_messages_of_a_channel_come_in_order():
    segment = ranks.memory()
    at = segment.reserve_channel(64)
    child = os.fork()
    channel = core.Channel(segment, at, int(child == 0), ranks.raising)
    boxes = np.frombuffer(channel, np.int64).reshape(2, -1)
    for i in range(500):
        if not child:
            channel.empty_box(True)
            boxes[i % 2] = i
            channel.fill()
        else:
            assert channel.full_box(True)
            assert (boxes[i % 2] == i).all()
            channel.free()
    if not child:
        os._exit(0)
    os.waitpid(child, 0)


def test_boxes_of_a_channel_are_used_in_turn_and_stay_while_somebody_has_a_view():
    segment = ranks.memory()
    at = segment.reserve_channel(100)
    sends, receives = core.Channel(segment, at, 1), core.Channel(segment, at, 0)
    there, here = (np.frombuffer(end, np.int32).reshape(2, -1) for end in (sends, receives))
    for i in range(20):
        assert sends.empty_box(True)
        there[i % 2, :25] = i
        sends.fill()
        if i:
            assert not sends.empty_box(False)
            assert receives.full_box(True)
            assert (here[(i - 1) % 2, :25] == i - 1).all()
            receives.free()
    receives.free()
    assert not receives.full_box(False)
    with pytest.raises(BufferError, match="views"):
        receives.close()
    del here, receives
    with pytest.raises(ValueError, match="receiver's"):
        [sends.fill() for _ in range(3)]
    del there
    sends.close()
    with pytest.raises(ValueError, match="closed"):
        memoryview(sends)
    assert segment.reserve_channel(100) == at


def test_tensors_of_a_torch_without_an_exchange_table_are_not_taken():
    torch = pytest.importorskip("torch")

    class Old(torch.Tensor):
        __dlpack_c_exchange_api__ = None

    segment = ranks.memory()
    node = core.Node(segment, segment.reserve(1), 0)
    assert core.know_torch(SimpleNamespace(Tensor=Old)) is False
    assert core.know_torch(SimpleNamespace(Tensor=int)) is False
    assert node.all_reduce(torch.Tensor._make_subclass(Old, torch.ones(3)), "sum") is NotImplemented


def test_what_is_told_by_the_fields_of_an_array_is_what_numpy_tells():
    segment = ranks.memory()
    node = core.Node(segment, segment.reserve(1), 0)
    kinds = [np.dtype(kind) for kind in "?bhilqBHILQefdFD"]
    for kind in [*kinds, pickle.loads(pickle.dumps(np.dtype("f8"))), np.dtype("f8", metadata={"a": 1})]:
        x, out = np.ones((2, 3), kind), np.zeros((2, 3), kind)
        assert node.all_reduce(x, "sum", out) is out, kind
        assert (out == 1).all()
        assert node.all_reduce(x, "sum").dtype == kind
        assert node.all_reduce(x.T, "sum", out) is NotImplemented
    for kind in [
        *(kind.newbyteorder() for kind in kinds if kind.itemsize > 1),
        "g",
        "O",
        "M8[s]",
        "S8",
        "i4,f4",
    ]:
        x = np.zeros((2, 3), kind)
        assert node.broadcast(x, 0) is NotImplemented, kind


def test_an_array_of_which_numpy_warns_is_written_to_when_it_has_warned():
    segment = ranks.memory()
    node = core.Node(segment, segment.reserve(1), 0)
    x = np.ones(3)
    x.flags._warn_on_write = True  # as numpy.broadcast_arrays does
    with pytest.warns(DeprecationWarning, match="writing"):
        assert node.all_reduce(np.ones(3), "sum", x) is x


def test_what_a_hook_or_a_child_process_may_not_do_is_refused():
    segment = ranks.memory()
    node = core.Node(segment, segment.reserve(2), 0, lambda *_: node.close())
    calls, said = [], []

    def within(*_):
        for call in (channel.close, channel.fill, channel.free, lambda: channel.full_box(False)):
            with pytest.raises(ValueError, match="under way") as error:
                call()
            said.append(error)
        raise InterruptedError

    at = segment.reserve_channel(64)
    channel = core.Channel(segment, at, 1, within)
    with pytest.raises(InterruptedError):
        channel.full_box(True)
    assert len(said) == 4
    with pytest.raises(RuntimeError, match="in a call of this node"):
        node.barrier()
    calls = [
        lambda: node.log_call(7),
        node.barrier,
        lambda: node.tell(1, b""),
        lambda: channel.empty_box(False),
    ]
    calls += [channel.fill, channel.free, lambda: memoryview(channel)]

    def in_a_child():
        for call in calls:
            with pytest.raises(ValueError, match="parent process's"):
                call()

    assert ranks.forked(in_a_child)
    assert node.last_logged(0) == 0
    channel.close()  # no wait is under way any more
    with pytest.raises(ValueError, match="this channel is closed"):
        channel.fill()


def test_of_several_bad_arguments_the_first_is_told_and_the_others_are_not_asked():
    class Asked:
        def __float__(self):
            raise AssertionError("asked while an exception was set")

        __index__ = __float__

    segment = ranks.memory()
    node = core.Node(segment, segment.reserve(1), 0)
    node.timeout = 5
    for call, given, kind in [
        (node.arrive_and_wait, (-1,), OverflowError),
        (node.arrive_and_wait, (1 << 63,), ValueError),
        (node.logged_call, (7, Asked()), ValueError),
        (node.logged_call, ("0", 1), TypeError),
        (node.share, ("0", Asked(), Asked(), [], None), TypeError),
        (node.share, (1, "0", Asked(), [], None), TypeError),
        (core.reaches, ("0", Asked(), Asked()), TypeError),
        (setattr, (node, "timeout", "5"), TypeError),
    ]:
        with pytest.raises(kind):
            call(*given)
    assert (node.timeout, node.number) == (5, 0)


def test_numbers_of_words_and_bytes_that_wrap_around_are_no_room():
    segment = ranks.memory()
    for sizes in (1 << 61, (1 << 61) + 1, (1 << 64) - 1, 1 << 63, (1 << 20) // 8 + 1):
        assert segment.reserve_words(sizes) is None
    for capacity in ((1 << 64) - 1, (1 << 64) - 63, 1 << 63, (1 << 63) - 64, 1 << 20):
        assert segment.reserve_channel(capacity) is None
    first = segment.reserve_words(1)
    with pytest.raises(ValueError, match="words begin at"):
        segment.load_bytes(first, (1 << 61) + 1)


def test_results_of_calls_that_were_given_up_are_kept_until_all_others_have_left_these():
    """Others may write to them until then, and not for ever after."""

    class LeavesError(Exception):
        pass

    def hook(reason, *_):
        if reason != "waits" or leaves:
            raise LeavesError

    leaves = []

    def body(node):
        x, held = np.ones(1 << 17), []
        for i in range(24):
            leaves[:] = [1] * (node.rank == 0)
            while node.rank and node.last_logged(0) <= i:  # it comes when the other one has left
                time.sleep(1e-4)
            with pytest.raises(LeavesError):
                node.all_reduce(x, "sum")
            node.log_call(7)
            leaves.clear()
            node.barrier()
            held.append(tracemalloc.get_traced_memory()[0])
            if i % 10 == 9:
                assert node.all_reduce(x, "sum")[0] == node.size
        assert node.all_reduce(x[:1], "sum") == node.size
        held.append(tracemalloc.get_traced_memory()[0])
        return max(held) - held[0] < 9 * x.nbytes and held[-1] - held[0] < x.nbytes

    tracemalloc.start()
    try:
        assert ranks.together(2, body, hook=hook) == [True, True]
    finally:
        tracemalloc.stop()
