"""Arrays of which every rank brings its own shape, dtype and library, to receivers that know nothing."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from arrays import DTYPES, LAYOUTS, bits, dtype_of, exists, kind_of, make, plain_of, plain_values

import hpcomm

WAIT_S = 30
SHAPES: list[tuple[int, ...]] = [(3,), (0,), (), (2, 3), (2, 0, 4), (1, 1, 1, 5)]
LARGE = 300_000  # elements: several MB of doubles


def bring(rank: int, shift: int, large: bool = False) -> tuple[Any, np.ndarray]:
    """An array that no other rank brings, and its plain values: all about it depends on rank."""
    kind = ("numpy", "torch")[(rank + shift) % 2]
    dtype = DTYPES[(3 * rank + shift) % len(DTYPES)]
    shape = (LARGE + 1000 * rank,) if large else SHAPES[(rank + shift) % len(SHAPES)]
    values = plain_values(dtype, shape, 100 * shift + rank)
    layout = "sliced" if shape and shape[-1] else "contiguous"
    return make(kind, dtype, layout, values), values


def same(got: Any, sent: Any) -> bool:
    return (
        kind_of(got) == kind_of(sent)
        and dtype_of(got) == dtype_of(sent)
        and np.array_equal(plain_of(got), plain_of(sent))
    )


@pytest.mark.parametrize("large", [False, True], ids=["small", "large"])
@pytest.mark.parametrize("shift", range(6))
def test_every_rank_may_bring_its_own_shape_dtype_and_library(comm: Any, shift: int, large: bool) -> None:
    p, rank, root = comm.size, comm.rank, shift % comm.size
    given = [bring(r, shift, large)[0] for r in range(p)]
    mine = given[rank]
    before = bits(mine)
    everything = comm.all_gather_ragged(mine)
    assert isinstance(everything, list)
    assert all(map(same, everything, given))
    gathered = comm.gather_ragged(mine, root=root)
    assert gathered is None if rank != root else all(map(same, gathered, given))
    assert same(comm.broadcast_ragged(mine if rank == root else None, root=root), given[root])
    assert same(comm.scatter_ragged(given if rank == root else None, root=root), mine)
    sent = [bring((rank + other) % p, shift, large)[0] for other in range(p)]
    assert all(map(same, comm.all_to_all_ragged(sent), sent))  # symmetric: what i sends j is what j sends i
    assert bits(mine) == before


@pytest.mark.parametrize("large", [False, True], ids=["small", "large"])
@pytest.mark.parametrize("shift", range(6))
def test_a_ragged_message_brings_its_shape_and_dtype(comm: Any, shift: int, large: bool) -> None:
    left, right = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
    request = comm.send_ragged(bring(comm.rank, shift, large)[0], right, tag=shift, async_op=True)
    status = hpcomm.Status()
    got = comm.recv_ragged(left, shift, status=status)
    request.wait(timeout=WAIT_S)
    assert same(got, bring(left, shift, large)[0])
    assert (status.source, status.tag) == (left, shift)


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("count", [0, 5, 100, 3000, 500_000])
def test_ragged_send_and_recv_meet_blocking(comm: Any, count: int) -> None:
    if comm.rank == 0:
        assert comm.send_ragged(torch.arange(count, dtype=torch.float32), 1) is None
    if comm.rank == 1:
        got = comm.recv_ragged()
        assert torch.equal(got, torch.arange(count, dtype=torch.float32))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_every_dtype_and_layout_may_be_ragged(comm: Any, kind: str, layout: str) -> None:
    dtypes = [dtype for dtype in DTYPES if exists(kind, dtype, layout)]
    shape = {"zero_d": (), "empty": (0, 4)}.get(layout, (comm.rank + 1, 2))
    everything = [
        comm.all_gather_ragged(make(kind, dtype, layout, plain_values(dtype, shape, comm.rank, layout)))
        for dtype in dtypes
    ]
    for dtype, arrays in zip(dtypes, everything, strict=True):
        for rank, got in enumerate(arrays):
            wanted = {"zero_d": (), "empty": (0, 4)}.get(layout, (rank + 1, 2))
            assert (dtype_of(got), kind_of(got)) == (dtype, kind)
            assert np.array_equal(plain_of(got), plain_values(dtype, wanted, rank, layout))


def test_ranks_may_bring_nothing_while_others_bring_much(comm: Any) -> None:
    x = np.ones(2_000_000 if comm.rank == comm.size - 1 else 0)
    lengths = [len(a) for a in comm.all_gather_ragged(x)]
    assert lengths == [0] * (comm.size - 1) + [2_000_000]


def test_one_long_array_and_a_thousand_ranks_worth_of_small_ones_in_turn(comm: Any) -> None:
    for i in range(100):
        got = comm.all_gather_ragged(np.arange(i * (comm.rank + 1)))
        assert [len(a) for a in got] == [i * (rank + 1) for rank in range(comm.size)]


class Marked(torch.Tensor):
    """A tensor of a class of its own."""


def test_a_tensor_of_a_class_of_its_own_arrives_as_tensor(comm: Any) -> None:
    for y in comm.all_gather_ragged(torch.full((2,), 3.0).as_subclass(Marked)):
        assert type(y) is torch.Tensor
        assert y.tolist() == [3.0, 3.0]


def test_what_comes_back_is_not_the_memory_that_went_out(comm: Any) -> None:
    for count in (3, 200_000):
        x = np.zeros(count)
        results = [
            *comm.all_gather_ragged(x),
            comm.broadcast_ragged(x, root=0),
            comm.scatter_ragged([x] * comm.size if comm.rank == 0 else None),
            *comm.all_to_all_ragged([x] * comm.size),
        ]
        for y in results:
            y += 1.0  # and what arrives may be written to
        assert x.sum() == 0.0


@pytest.mark.parametrize("time", ["blocking", "async"])
def test_records_times_and_texts_may_be_ragged(comm: Any, time: str) -> None:
    record = np.dtype([("where", np.float64, 3), ("id", np.int32)])
    for x in (
        np.zeros(comm.rank + 1, record),
        np.array(["a" * (comm.rank + 1)]),
        np.array(["2020-01-01"], "M8[D]"),
    ):
        got = comm.all_gather_ragged(x, async_op=time == "async")
        got = got.wait(timeout=WAIT_S) if time == "async" else got
        assert all(a.dtype.kind == x.dtype.kind for a in got)
        assert got[comm.rank].dtype == x.dtype
        assert np.array_equal(got[comm.rank], x)
        assert len(got[-1].dtype.str) >= len(x.dtype.str) - 1


@pytest.mark.parametrize("name", ["int4", "float8_e5m2", "float8_e3m4", "float4_e2m1fn"])
def test_small_numbers_of_ml_dtypes_keep_their_dtype(comm: Any, name: str) -> None:
    x = np.ones(3 + 3000 * comm.rank, getattr(ml_dtypes, name))
    for got in (comm.all_gather_ragged(x), comm.all_gather_object(x)):
        assert [y.dtype for y in got] == [x.dtype] * comm.size
        assert all((y == x[0]).all() for y in got)


def test_a_dtype_without_words_is_refused(comm: Any) -> None:
    with pytest.raises(hpcomm.DtypeError, match="no words") as caught:
        comm.all_gather_ragged(np.zeros(2, [("a", ml_dtypes.int4)]))
    assert "_object" in str(caught.value.hint)


def test_bytes_and_numbers_arrive_as_numpy_arrays(comm: Any) -> None:
    for x, values in ((bytearray(b"ab"), [97, 98]), (2.5, 2.5), (np.int8(3), 3)):
        got = comm.all_gather_ragged(x)
        assert all(type(a) is np.ndarray and np.array_equal(a, values) for a in got)


VERBS = ["all_gather_ragged", "gather_ragged", "broadcast_ragged", "scatter_ragged", "all_to_all_ragged"]


@pytest.mark.parametrize("large", [False, True], ids=["small", "large"])
@pytest.mark.parametrize("verb", VERBS)
def test_a_ragged_verb_in_the_background_gives_what_the_blocking_one_gives(
    comm: Any, verb: str, large: bool
) -> None:
    x: Any = bring(comm.rank, 1, large)[0]
    if verb in ("scatter_ragged", "all_to_all_ragged"):
        x = [bring(rank, 1, large)[0] for rank in range(comm.size)]
    blocking = getattr(comm, verb)(x)
    request = getattr(comm, verb)(x, async_op=True)
    background = request.wait(timeout=WAIT_S)
    if not isinstance(blocking, list):
        blocking, background = [blocking], [background]
    for a, b in zip(blocking, background, strict=True):
        assert (a is None and b is None) or same(a, b)


def test_ragged_messages_and_objects_do_not_mix_silently(own_comm: Any) -> None:
    right = (own_comm.rank + 1) % own_comm.size
    request = own_comm.isend_object({"a": 1}, right)
    with pytest.raises(hpcomm.HpcommError, match="object"):
        own_comm.recv_ragged()
    request.wait(timeout=WAIT_S)


@pytest.mark.parametrize("verb", ["scatter_ragged", "all_to_all_ragged"])
def test_a_list_that_is_not_one_array_per_rank_is_a_usage_error(comm: Any, verb: str) -> None:
    is_own = comm.rank == 0 or verb == "all_to_all_ragged"
    for wrong in ([np.ones(1)] * (comm.size + 1), 7):
        with pytest.raises(hpcomm.UsageError if is_own else hpcomm.PeerFailedError) as caught:
            getattr(comm, verb)(wrong)
        assert f"each of {comm.size} ranks" in caught.value.what
        assert f"{verb} on communicator 'test'" in str(caught.value.where)


@pytest.mark.parametrize("verb", ["broadcast_ragged", "gather_ragged", "scatter_ragged"])
def test_a_root_that_does_not_exist_is_a_rank_error(comm: Any, verb: str) -> None:
    x: Any = [np.ones(1)] * comm.size if verb == "scatter_ragged" else np.ones(1)
    with pytest.raises(hpcomm.RankError, match="-1") as caught:
        getattr(comm, verb)(x, root=-1)
    assert str(comm.size - 1) in str(caught.value.hint)


def test_what_is_no_array_is_refused_before_anything_moves(comm: Any) -> None:
    with pytest.raises(hpcomm.UsageError, match="dict"):
        comm.all_gather_ragged({})
    assert len(comm.all_gather_ragged(np.ones(1))) == comm.size


def test_ragged_messages_may_go_in_the_background_under_names_of_their_own(comm: Any) -> None:
    left, right = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
    coming = comm.irecv_ragged(left, 3)
    going = comm.isend_ragged(bring(comm.rank, 1)[0], right, 3)
    assert same(coming.wait(timeout=WAIT_S), bring(left, 1)[0])
    assert going.wait(timeout=WAIT_S) is None
    assert (coming.status.source, coming.status.tag) == (left, 3)
