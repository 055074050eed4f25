"""Python objects: any size, any nesting, receivers that know nothing."""

from __future__ import annotations

import contextlib
import functools
import operator
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

import hpcomm
from hpcomm.communicator.payloads import dissemination, payload

pytestmark = pytest.mark.few

WAIT_S = 30


@dataclass
class Point:
    x: float
    name: str


def objects(rank: int) -> dict[str, Any]:
    """One of each sort, different on every rank."""
    return {
        "number": rank + 0.5,
        "text": "hëllo" * rank,
        "none": None,
        "nested": {"a": [1, (2, {"b": {rank}})], "empty": {}},
        "dataclass": Point(rank, "p"),
        "small array": np.arange(rank + 3),
        "strided array": np.arange(24).reshape(4, 6)[::2, ::3] + rank,
        "tensor": torch.arange(6, dtype=torch.bfloat16) + rank,
        "bytes": bytes([rank]) * 10,
        "large array": np.full(650_000, rank, np.float64),
        "large tensor": torch.full((1_300_000,), float(rank)),
        "large bytes": bytes([rank]) * 5_000_000,
        "large and mixed": {"w": np.full(650_000, rank), "t": torch.full((1_000,), rank), "s": "x" * 100_000},
    }


SORTS = list(objects(0))


def same(a: Any, b: Any) -> bool:
    """Equality that goes into containers of arrays."""
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and np.array_equal(a, b)
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    return bool(a == b)


def test_of_many_ranks_parts_pass_through_others(comm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As of more than 16 ranks; entries are short, as of thousands. Waited for in any order."""
    monkeypatch.setattr(dissemination, "FEW", 1)
    monkeypatch.setattr(payload, "_HEADERS", 0)
    assert payload.room(comm.size) == 128
    many = {str(i): np.full(300, float(i)) for i in range(200)}  # whose lengths need a message
    sorts = [*(objects(0)[sort] for sort in SORTS), many, 7]
    for i in range(0, len(sorts), 3):
        given = [sorts[(i + r) % len(sorts)] for r in range(comm.size)]
        mine = given[comm.rank]
        first, second = (comm.all_gather_object(mine, async_op=True) for _ in range(2))
        for request in (first, second)[:: -1 if comm.rank % 2 else 1]:
            request.wait(timeout=WAIT_S)
        for got in (comm.all_gather_object(mine), first.result, second.result):
            assert all(map(same, got, given))
        roots = range(comm.size)
        asked = [comm.broadcast_object(mine if comm.rank == r else None, r, async_op=True) for r in roots]
        for request in asked[:: -1 if comm.rank % 2 else 1]:
            request.wait(timeout=WAIT_S)
        assert all(same(each.result, given[r]) for r, each in enumerate(asked))
    with comm.split(0, -comm.rank) as turned:  # of ranks that share its channel, by other numbers
        asked = [each.broadcast_object([each.rank, many], 0, async_op=True) for each in (comm, turned)]
        assert [each.wait(timeout=WAIT_S)[0] for each in asked[::-1]] == [0, 0]
        assert [each[0] for each in turned.all_gather_object([turned.rank, many])] == [*range(comm.size)]
    shapes = [a.shape for a in comm.all_gather_ragged(np.ones((comm.rank, 99)))]
    assert shapes == [(r, 99) for r in range(comm.size)]
    assert comm.gather_object("x" * 500) == (["x" * 500] * comm.size if comm.rank == 0 else None)
    assert (
        comm.all_to_all_object(["y" * r for r in range(0, 500 * comm.size, 500)])
        == ["y" * 500 * comm.rank] * comm.size
    )


@pytest.mark.parametrize("sort", SORTS)
def test_an_object_arrives_equal_by_every_verb(comm: Any, sort: str) -> None:
    p, rank, last = comm.size, comm.rank, comm.size - 1
    given = [objects(r)[sort] for r in range(p)]
    mine = given[rank]
    assert same(comm.broadcast_object(mine if rank == last else None, root=last), given[last])
    gathered = comm.gather_object(mine, root=last)
    assert gathered is None if rank != last else all(map(same, gathered, given))
    assert all(map(same, comm.all_gather_object(mine), given))
    assert same(comm.scatter_object(given if rank == 0 else None), mine)
    assert all(map(same, comm.all_to_all_object([mine] * p), given))
    left, right = (rank - 1) % p, (rank + 1) % p
    assert same(comm.sendrecv_object(mine, right, left), given[left])
    request = comm.isend_object(mine, right, tag=6)
    assert same(comm.recv_object(left, tag=6), given[left])
    request.wait(timeout=WAIT_S)


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("sort", ["number", "large array"])
def test_send_object_and_recv_object_meet_blocking(comm: Any, sort: str) -> None:
    if comm.rank == 0:
        assert comm.send_object(objects(0)[sort], 1, tag=3) is None
    if comm.rank == 1:
        status = hpcomm.Status()
        assert same(comm.recv_object(0, 3, status=status), objects(0)[sort])
        assert (status.source, status.tag) == (0, 3)


def test_irecv_object_needs_no_size_and_does_not_hang(comm: Any) -> None:
    left, right = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
    receive = comm.irecv_object(left)
    send = comm.isend_object({"x": np.full(100_000, comm.rank, np.float64)}, right)  # 800 kB
    got = receive.wait(timeout=WAIT_S)
    send.wait(timeout=WAIT_S)
    assert (got["x"] == left).all()


def test_many_irecv_object_take_their_messages_in_order(comm: Any) -> None:
    left, right = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
    receives = [comm.irecv_object(left, tag=1) for _ in range(20)]
    sends = [comm.isend_object(("x" * (i * 10_000), i), right, tag=1) for i in range(20)]
    got = hpcomm.wait_all(receives, timeout=WAIT_S)
    hpcomm.wait_all(sends, timeout=WAIT_S)
    assert [i for _, i in got] == list(range(20))
    assert all(len(text) == i * 10_000 for text, i in got)


@pytest.mark.mpi(min_size=2)
def test_objects_from_anybody_with_any_tag_are_told_apart_by_their_status(comm: Any) -> None:
    if comm.rank:
        comm.send_object({"from": comm.rank, "pad": "x" * 50_000 * comm.rank}, 0, tag=10 + comm.rank)
        return
    seen = set()
    for _ in range(1, comm.size):
        status = hpcomm.Status()
        got = comm.recv_object(status=status)
        assert got["from"] == status.source == status.tag - 10
        seen.add(status.source)
    assert seen == set(range(1, comm.size))


def test_objects_and_arrays_of_the_same_tag_come_in_the_order_they_were_sent(comm: Any) -> None:
    left, right = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
    requests = [
        comm.isend_object("first", right, tag=1),
        comm.isend(np.arange(3), right, tag=2),
        comm.isend_object("second", right, tag=1),
    ]
    assert comm.recv(np.zeros(3, int), left, tag=2).tolist() == [0, 1, 2]
    assert [comm.recv_object(left, tag=1) for _ in range(2)] == ["first", "second"]
    hpcomm.wait_all(requests, timeout=WAIT_S)


def test_a_received_array_may_be_written_to(comm: Any) -> None:
    """Out-of-band pickles give read-only arrays unless somebody takes care."""
    for size in (3, 500_000):
        got = comm.all_gather_object(np.ones(size))
        got[-1][0] = 5.0
        gathered = comm.broadcast_object({"x": np.ones(size)} if comm.rank == 0 else None)
        gathered["x"][0] = 5.0


def test_what_was_received_from_another_rank_is_nobody_elses(comm: Any) -> None:
    for size in (3, 200_000):
        mine = {"x": np.zeros(size)}
        for rank, entry in enumerate(comm.all_gather_object(mine)):
            if rank != comm.rank:
                entry["x"][:] = 1.0
        assert mine["x"].sum() == 0.0
        assert comm.all_gather_object(mine)[comm.size - 1]["x"].sum() == 0.0


@pytest.mark.parametrize("nbytes", [60_000, 70_000, 1 << 20, 9 << 20])
def test_objects_that_are_kept_stay_what_they_are(comm: Any, nbytes: int) -> None:
    """More of them than there are blocks that serve again; some sizes fit into none."""
    left, right = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
    kept, count = [], 4 if nbytes > 1 << 20 else 12
    for i in range(count):
        mine = {"x": np.full(nbytes, 10 * comm.rank + i, np.uint8), "t": torch.full((nbytes // 4,), float(i))}
        request = comm.isend_object(mine, right)
        kept.append(comm.recv_object(left))
        request.wait(timeout=WAIT_S)
        kept[-1]["x"][: nbytes // 2] += 100  # its own, and nobody else's
    for i, got in enumerate(kept):
        want = 10 * left + i
        assert (got["x"][: nbytes // 2] == want + 100).all()
        assert (got["x"][nbytes // 2 :] == want).all()
        assert (got["t"] == i).all()
        assert len(got["t"]) == nbytes // 4


class Summed:
    """An object that looks at its array when it is unpickled."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.array = state["array"]
        self.total = self.array.sum()


class Unloadable:
    def __reduce__(self) -> Any:
        return _fail, ()


def _fail() -> None:
    raise KeyError("missing on this rank")


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("verb", ["recv_object", "irecv_object", "broadcast_object", "all_gather_object"])
def test_what_cannot_be_unpickled_says_whose_it_was_and_the_next_object_comes(
    own_comm: Any, verb: str
) -> None:
    with contextlib.ExitStack() as stack:
        if own_comm.rank or verb == "all_gather_object":
            caught = stack.enter_context(pytest.raises(hpcomm.UsageError))
        if verb == "broadcast_object":
            own_comm.broadcast_object(Unloadable())
        elif verb == "all_gather_object":
            own_comm.all_gather_object(Unloadable())
        elif own_comm.rank == 0:
            for rank in range(1, own_comm.size):
                own_comm.send_object(Unloadable(), rank)
        else:
            got = getattr(own_comm, verb)(source=0)
            got.wait(timeout=WAIT_S)
    if own_comm.rank:
        assert caught.value.what.startswith(
            "the object of rank 0 cannot be unpickled here: KeyError: 'missing"
        )
        assert isinstance(caught.value.__cause__, KeyError)
        assert verb.removeprefix("i") in str(caught.value)
    assert own_comm.all_gather_object(own_comm.rank) == list(range(own_comm.size))


def test_what_looks_at_its_array_while_it_is_unpickled_sees_all_of_it(comm: Any) -> None:
    left, right = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
    frozen = np.full(1 << 20, 7, np.uint8)
    frozen.flags.writeable = False
    for i in range(5):
        given = [Summed(np.full(1 << 17, i + 1.0)), frozen, bytes([i]) * (1 << 17)]
        got, constant, text = comm.sendrecv_object(given, right, left)
        assert got.total == (i + 1) << 17
        assert constant.sum() == 7 << 20
        assert text == given[2]


def test_an_operator_that_changes_its_left_side_cannot_change_the_users_object(comm: Any) -> None:
    mine = [comm.rank]
    assert comm.all_reduce_object(mine, operator.iadd) == list(range(comm.size))
    assert mine == [comm.rank]
    reduced = comm.reduce_object(mine, operator.iadd, root=0)
    assert reduced == (list(range(comm.size)) if comm.rank == 0 else None)
    assert mine == [comm.rank]


def test_tensors_that_pickle_alone_cannot_copy_are_reduced(comm: Any) -> None:
    got = comm.all_reduce_object([torch.ones(3).to(torch.float8_e5m2)], operator.add)
    assert [x.float().tolist() for x in got] == [[1, 1, 1]] * comm.size


def test_an_object_sent_in_the_background_is_what_it_was_at_the_call(comm: Any) -> None:
    left, right = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
    mine = [comm.rank]
    request = comm.isend_object(mine, right)
    mine.append("changed later")
    assert comm.recv_object(left) == [left]
    request.wait(timeout=WAIT_S)


def test_a_rank_may_send_an_object_to_itself(comm: Any) -> None:
    request = comm.isend_object("me", comm.rank, tag=4)
    assert comm.recv_object(comm.rank, tag=4) == "me"
    request.wait(timeout=WAIT_S)
    assert comm.sendrecv_object("again", comm.rank, comm.rank) == "again"


def test_objects_to_nobody_go_nowhere_and_from_nobody_are_none(comm: Any) -> None:
    assert comm.send_object("x", hpcomm.PROC_NULL) is None
    assert comm.recv_object(hpcomm.PROC_NULL) is None
    left = comm.rank - 1 if comm.rank else hpcomm.PROC_NULL
    right = comm.rank + 1 if comm.rank + 1 < comm.size else hpcomm.PROC_NULL
    assert comm.sendrecv_object(comm.rank, right, left) == (comm.rank - 1 if comm.rank else None)


def test_the_status_of_a_request_for_an_object_tells_who_it_was(comm: Any) -> None:
    left, right = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
    receive = comm.irecv_object()
    send = comm.isend_object("x" * 100_000, right, tag=12)
    receive.wait(timeout=WAIT_S)
    send.wait(timeout=WAIT_S)
    assert (receive.status.source, receive.status.tag) == (left, 12)


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("verb", ["gather_object", "all_gather_object", "broadcast_object"])
def test_a_receive_from_anybody_never_takes_parts_of_a_collective(comm: Any, verb: str) -> None:
    """The others are inside the collective already while rank 0 takes messages of any tag from anybody."""
    large = np.full(300_000, comm.rank, np.float64)
    root = 1 if verb == "broadcast_object" else 0
    keywords = {} if verb == "all_gather_object" else {"root": root}
    if comm.rank == 0:
        got = [comm.recv_object() for _ in range(1, comm.size)]
        result = getattr(comm, verb)(large, async_op=True, **keywords).wait(timeout=WAIT_S)
    else:
        request = getattr(comm, verb)(large, async_op=True, **keywords)
        for _ in range(100):
            request.done()  # moves its first stage on
        comm.send_object({"from": comm.rank}, 0, tag=comm.rank)
        got = []
        result = request.wait(timeout=WAIT_S)
    assert sorted(entry["from"] for entry in got) == (list(range(1, comm.size)) if comm.rank == 0 else [])
    if verb == "broadcast_object":
        assert (result == root).all()
    elif verb == "all_gather_object" or comm.rank == root:
        assert [float(entry[-1]) for entry in result] == list(range(comm.size))


@pytest.mark.mpi(min_size=3)
def test_a_blocking_scatter_may_begin_before_a_receive_from_anybody(comm: Any) -> None:
    """Rank 0 has left its part of the scatter on the way to rank 1 before rank 2 writes to rank 1."""
    blocks = [np.full(2_000, rank, np.float64) for rank in range(comm.size)]
    if comm.rank == 2:
        time.sleep(0.2)
        comm.send_object("from 2", 1, tag=2)
    said = comm.recv_object() if comm.rank == 1 else "from 2"
    mine = comm.scatter_object(blocks if comm.rank == 0 else None, root=0)
    assert said == "from 2"
    assert (mine == comm.rank).all()


def test_reduce_object_folds_in_rank_order(comm: Any) -> None:
    ranks = [str(rank) for rank in range(comm.size)]
    last = comm.size - 1
    reduced = comm.reduce_object(str(comm.rank), operator.add, root=last)
    assert reduced == ("".join(ranks) if comm.rank == last else None)
    assert comm.all_reduce_object(str(comm.rank), lambda a, b: a + b) == "".join(ranks)
    assert comm.all_reduce_object([comm.rank], operator.add) == list(range(comm.size))


@pytest.mark.parametrize(
    ("op", "expected"),
    [
        ("sum", lambda values: sum(values)),
        ("prod", lambda values: functools.reduce(operator.mul, values)),
        ("min", min),
        ("max", max),
        ("band", lambda values: functools.reduce(operator.and_, values)),
        ("bor", lambda values: functools.reduce(operator.or_, values)),
        ("bxor", lambda values: functools.reduce(operator.xor, values)),
    ],
)
def test_reduce_object_knows_operators_by_name(comm: Any, op: str, expected: Any) -> None:
    values = [2**80 + rank for rank in range(comm.size)]  # past any array's integers
    assert comm.all_reduce_object(values[comm.rank], op) == expected(values)
    reduced = comm.reduce_object(values[comm.rank], op, root=0)
    assert reduced == (expected(values) if comm.rank == 0 else None)


def test_the_place_of_the_least_and_the_greatest_is_the_first_one(comm: Any) -> None:
    values = [3.5, 1.0, 3.5, 1.0][: comm.size]
    pair = (values[comm.rank], comm.rank)
    assert comm.all_reduce_object(pair, "maxloc") == (3.5, 0)
    assert comm.all_reduce_object(pair, "minloc") == (min(values), values.index(min(values)))


@pytest.mark.parametrize("length", ["short", "long"])
def test_a_list_that_is_not_one_object_per_rank_is_a_usage_error(own_comm: Any, length: str) -> None:
    wrong = [0] * (own_comm.size + (1 if length == "long" else -1))
    with pytest.raises(hpcomm.UsageError) as caught:
        own_comm.all_to_all_object(wrong)
    assert str(own_comm.size) in caught.value.what
    assert str(len(wrong)) in caught.value.what


def test_a_root_that_does_not_exist_is_a_rank_error_for_objects_too(comm: Any) -> None:
    for call in (
        comm.broadcast_object,
        comm.gather_object,
        lambda x, root: comm.scatter_object([x] * comm.size, root),
    ):
        with pytest.raises(hpcomm.RankError, match="99"):
            call(1, 99)


def test_what_cannot_be_pickled_is_a_usage_error_that_names_it(own_comm: Any) -> None:
    """All ranks fail alike here; nothing was sent, so the communicator still works."""
    left, right = (own_comm.rank - 1) % own_comm.size, (own_comm.rank + 1) % own_comm.size
    calls = [
        lambda: own_comm.isend_object(lambda: None, right),
        lambda: own_comm.sendrecv_object({"f": lambda: None}, right, left),
        lambda: own_comm.all_gather_object(lambda: None),
        lambda: own_comm.all_reduce_object(lambda: None, "sum"),
    ]
    for call in calls:
        with pytest.raises(hpcomm.UsageError) as caught:
            call()
        assert "pickle" in str(caught.value)
        assert "test_objects.py:" in str(caught.value.where)
    assert own_comm.all_gather_object(1) == [1] * own_comm.size


def test_what_cannot_be_pickled_is_refused_in_the_background_too(own_comm: Any) -> None:
    with pytest.raises(hpcomm.UsageError, match="pickle") as caught:
        own_comm.all_gather_object(lambda: None, async_op=True).wait(timeout=WAIT_S)
    assert "test_objects.py:" in str(caught.value.where)
    assert own_comm.all_gather_object(1) == [1] * own_comm.size


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("async_op", [False, True])
@pytest.mark.parametrize("kind", ["object", "ragged"])
@pytest.mark.parametrize("verb", ["all_gather", "gather", "broadcast", "scatter", "all_to_all"])
@pytest.mark.parametrize("whole", [True, False])
def test_what_one_rank_refuses_the_others_are_told_of(
    own_comm: Any, verb: str, kind: str, async_op: bool, whole: bool
) -> None:
    """Rank 0 raises its own error; who would have received from it learns that nothing comes, and why."""
    p, rank = own_comm.size, own_comm.rank
    broken: Any = (lambda: None) if kind == "object" else np.arange(3).astype(">f4")
    why = "pickle" if kind == "object" else "byte order"
    x: Any = np.ones(2)
    if verb in ("scatter", "all_to_all"):
        x = [x] * p
        broken = [broken] * p if whole else x[1:]
        why = why if whole else "one item for each"
    elif not whole:
        pytest.skip("takes no list")

    def call() -> Any:
        made = getattr(own_comm, f"{verb}_{kind}")(x if rank else broken, async_op=async_op)
        return made.wait(timeout=WAIT_S) if async_op else made

    if rank and verb == "gather":
        assert call() is None
    else:
        with pytest.raises(hpcomm.PeerFailedError if rank else hpcomm.UsageError, match=why) as caught:
            call()
        assert "test_objects.py:" in str(caught.value.where)
        assert not rank or caught.value.ranks == (0,)
    assert own_comm.all_reduce(1) == own_comm.size


@pytest.mark.mpi(min_size=2)
def test_an_operator_that_one_rank_refuses_is_told_the_others(own_comm: Any) -> None:
    with pytest.raises(hpcomm.HpcommError, match="no operator 'hypot'"):
        own_comm.all_reduce_object(1, "sum" if own_comm.rank else "hypot")
    assert own_comm.all_reduce(1) == own_comm.size


@pytest.mark.parametrize("timeout", [None, 30.0])
def test_messages_of_objects_take_async_op_like_all_others(comm: Any, timeout: float | None) -> None:
    left, right = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
    with comm.dup() as other:
        other.timeout = timeout
        status = hpcomm.Status()
        coming = other.recv_object(left, 3, status=status, async_op=True)
        going = other.send_object({"from": comm.rank}, right, 3, async_op=True)
        assert coming.wait(timeout=30) == {"from": left}
        assert going.wait(timeout=30) is None
        assert (status.source, status.tag) == (left, 3)
        assert other.send_object("again", comm.rank) is None
        assert other.recv_object(comm.rank) == "again"
