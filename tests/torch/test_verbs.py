"""Every collective of torch.distributed gives what its definition says, for every dtype and layout."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from order_law import differing, given, law, nodes_of

from hpcomm.node import native, segment
from hpcomm.torch_backend import collectives
from hpcomm.transport import rank_order
from hpcomm.transport.scheduled import ordered_blocks

pytestmark = pytest.mark.once

INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32]
FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
COMPLEX = [torch.complex64, torch.complex128]
FP8 = [torch.float8_e4m3fn, torch.float8_e5m2]
SHAPES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "plain": lambda x: x,
    "every other": lambda x: torch.stack([x, x], -1).reshape(*x.shape[:-1], -1)[..., ::2],
    "transposed": lambda x: x.t().contiguous().t(),
    "empty": lambda x: x[:0],
    "0-d": lambda x: x.reshape(-1)[0].clone(),
}


def of_rank(rank: int, dtype: torch.dtype, shape: tuple[int, ...] = (3, 4)) -> torch.Tensor:
    """Small numbers, different on every rank and in every place, exact in every dtype."""
    n = torch.arange(int(torch.tensor(shape).prod()), dtype=torch.float32).reshape(shape)
    x = (n * 2 + rank) % 5 + 1
    if dtype == torch.bool:
        return x > 3
    if dtype.is_complex:
        return torch.complex(x, x + 1).to(dtype)
    return x.to(dtype)


def bits(x: torch.Tensor) -> torch.Tensor:
    """fp8 has no equality on the CPU."""
    return x.view(torch.uint8) if x.dtype in FP8 else x


def same(got: torch.Tensor, expected: torch.Tensor) -> None:
    assert got.dtype == expected.dtype
    torch.testing.assert_close(bits(got), bits(expected), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("layout", SHAPES)
@pytest.mark.parametrize("dtype", [*INTEGERS, *FLOATS, *COMPLEX, torch.bool], ids=str)
def test_all_reduce_sums(dtype: torch.dtype, layout: str, rank: int, size: int) -> None:
    x = SHAPES[layout](of_rank(rank, dtype))
    parts = [SHAPES[layout](of_rank(r, dtype)) for r in range(size)]
    expected = torch.stack(parts)
    wide = expected.to(torch.int64) if not (dtype.is_floating_point or dtype.is_complex) else expected
    total = expected.any(0) if dtype == torch.bool else wide.sum(0).to(dtype)
    dist.all_reduce(x)
    same(x, total)


OPS = {
    "SUM": lambda s: s.sum(0),
    "PRODUCT": lambda s: s.prod(0),
    "MIN": lambda s: s.amin(0),
    "MAX": lambda s: s.amax(0),
    "AVG": lambda s: s.mean(0),
}


@pytest.mark.parametrize("background", [False, True], ids=["blocking", "async"])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("op", OPS)
def test_all_reduce_by_each_operator(
    op: str, dtype: torch.dtype, background: bool, rank: int, size: int
) -> None:
    x = of_rank(rank, dtype)
    expected = OPS[op](torch.stack([of_rank(r, dtype).double() for r in range(size)])).to(dtype)
    work = dist.all_reduce(x, getattr(dist.ReduceOp, op), async_op=background)
    if background:
        work.wait()
    torch.testing.assert_close(x, expected)


@pytest.mark.parametrize("op", ["BAND", "BOR", "BXOR"])
@pytest.mark.parametrize("dtype", [torch.int32, torch.uint8, torch.int64, torch.bool], ids=str)
def test_all_reduce_of_bits(op: str, dtype: torch.dtype, rank: int, size: int) -> None:
    x = of_rank(rank, dtype)
    expected = of_rank(0, dtype)
    for r in range(1, size):
        other = of_rank(r, dtype)
        expected = {"BAND": expected & other, "BOR": expected | other, "BXOR": expected ^ other}[op]
    dist.all_reduce(x, getattr(dist.ReduceOp, op))
    same(x, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
def test_premul_sum_multiplies_first(dtype: torch.dtype, rank: int, size: int) -> None:
    """In float32 where x is of halves, which are rounded once, and by each rank's own factor."""
    wide = torch.promote_types(dtype, torch.float32)
    each = [of_rank(r, dtype).to(wide) * (0.1 + r) for r in range(size)]
    expected, op = torch.stack(each).sum(0).to(dtype), dist._make_nccl_premul_sum(0.1 + rank)
    dist.all_reduce(x := of_rank(rank, dtype), op)
    torch.testing.assert_close(x, expected)
    dist.reduce(x := of_rank(rank, dtype), size - 1, op)
    torch.testing.assert_close(x, expected if rank == size - 1 else of_rank(rank, dtype))
    dist.reduce_scatter(x := torch.empty_like(expected), [of_rank(rank, dtype)] * size, op)
    torch.testing.assert_close(x, expected)


@pytest.mark.parametrize("n", [1, 3, 40_000])
@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_an_average_of_integers_is_cut_towards_zero(dtype: torch.dtype, n: int, rank: int, size: int) -> None:
    """As nccl does, but never past what dtype holds: the sum is one of 64 bits."""
    most = min(torch.iinfo(dtype).max, 2**60)
    top, total = most - rank, sum(most - r for r in range(size)) // size
    expected = torch.full((n,), total).to(dtype)
    dist.all_reduce(x := torch.full((n,), top).to(dtype), dist.ReduceOp.AVG)
    same(x, expected)
    dist.reduce(x := torch.full((n,), top).to(dtype), 0, dist.ReduceOp.AVG)
    same(x, expected if rank == 0 else torch.full((n,), top).to(dtype))
    dist.reduce_scatter_tensor(x, torch.full((size * n,), top).to(dtype), dist.ReduceOp.AVG)
    same(x, expected)
    if dtype.is_signed:
        dist.all_reduce(x := torch.full((n,), -3 - (rank == 0)).to(dtype), dist.ReduceOp.AVG)
        same(x, torch.full((n,), -3).to(dtype))


def test_errors_speak_of_torchs_calls(rank: int, size: int) -> None:
    """And the line of the caller is named, not the one of torch that calls us."""
    whose = rf"on process group 'world' \(rank {rank} of {size}\) at test_verbs.py:"
    with pytest.raises(RuntimeError, match=rf"all_reduce\(bool \(2,\), op='avg'\) {whose}"):
        dist.all_reduce(torch.ones(2, dtype=torch.bool), dist.ReduceOp.AVG)
    with pytest.raises(dist.DistBackendError, match=rf"all_gather\(float32 \(3,\), list .* {whose}"):
        dist.all_gather([torch.zeros(2)] * size, torch.zeros(3))
    with pytest.raises(dist.DistBackendError, match=rf"reduce_scatter {whose}"):
        dist.reduce_scatter(torch.zeros(2), [torch.zeros(2)] * (size + 1))
    with pytest.raises(
        dist.DistBackendError, match=rf"(?s){size + 5}.*send\(float32 \(1,\), to {size + 5}\) {whose}"
    ):
        dist.send(torch.ones(1), size + 5)


def test_lists_of_the_root_that_do_not_fit_are_told_to_all_ranks(rank: int, size: int) -> None:
    with pytest.raises(
        RuntimeError,
        match=r"(?s)rank 0: scatter\(float32 \(2,\), list of \d x 3 .*rank 1: scatter\(float32 \(2,\), r",
    ):
        dist.scatter(torch.zeros(2), [torch.zeros(3)] * size if rank == 0 else None)
    with pytest.raises(
        RuntimeError,
        match=r"(?s)rank 0: gather\(float32 \(2,\), list of \d x 3 .*rank 1: gather\(float32 \(2,\), r",
    ):
        dist.gather(torch.zeros(2), [torch.zeros(3)] * size if rank == 0 else None)
    dist.all_reduce(x := torch.ones(2))
    assert x[0] == size


def test_a_broadcast_out_is_refused_before_anybody_waits() -> None:
    with pytest.raises(RuntimeError, match="a tensor to be filled is expanded"):
        dist.all_reduce(torch.ones(1).expand(3))


@pytest.mark.parametrize("layout", SHAPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.bool, torch.complex64, *FP8], ids=str)
def test_broadcast_from_each_root(dtype: torch.dtype, layout: str, rank: int, size: int) -> None:
    if dtype in FP8 and layout != "plain":
        pytest.skip("torch has no operations to lay out fp8")
    for root in range(size):
        x = SHAPES[layout](of_rank(rank, dtype))
        dist.broadcast(x, root)
        same(x, SHAPES[layout](of_rank(root, dtype)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.complex64], ids=str)
def test_reduce_gives_the_root_alone_the_sum(dtype: torch.dtype, rank: int, size: int) -> None:
    for root in range(size):
        x = of_rank(rank, dtype)
        dist.reduce(x, root)
        total = sum(of_rank(r, dtype) for r in range(size))
        same(x, total if rank == root else of_rank(rank, dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.bool, torch.complex64, *FP8], ids=str)
def test_all_gather_into_lists_and_tensors(dtype: torch.dtype, rank: int, size: int) -> None:
    x = of_rank(rank, dtype)
    expected = [of_rank(r, dtype) for r in range(size)]
    apart = [torch.empty_like(x) for _ in range(size)]
    dist.all_gather(apart, x)
    whole = torch.empty(size, *x.shape, dtype=dtype)
    dist.all_gather(list(whole), x)
    joined = torch.empty(size * x.shape[0], *x.shape[1:], dtype=dtype)
    dist.all_gather_into_tensor(joined, x)
    stacked = torch.empty(size, *x.shape, dtype=dtype)
    dist.all_gather_into_tensor(stacked, x)
    for r in range(size):
        same(apart[r], expected[r])
        same(whole[r], expected[r])
        same(joined[r * 3 : r * 3 + 3], expected[r])
        same(stacked[r], expected[r])


def test_all_gather_in_place_of_ones_own_block(rank: int, size: int) -> None:
    whole = torch.zeros(size, 5)
    whole[rank] = rank + 1
    dist.all_gather_into_tensor(whole, whole[rank])
    same(whole, torch.arange(1.0, size + 1)[:, None].expand(size, 5).clone())


def test_all_gather_of_unequal_shapes(rank: int, size: int) -> None:
    places = [torch.zeros(r + 1, 2) for r in range(size)]
    dist.all_gather(places, torch.full((rank + 1, 2), float(rank)))
    for r in range(size):
        same(places[r], torch.full((r + 1, 2), float(r)))


def test_gather_and_scatter_with_none_elsewhere(rank: int, size: int) -> None:
    for root in range(size):
        places = [torch.empty(3, 4) for _ in range(size)] if rank == root else None
        dist.gather(of_rank(rank, torch.float32), places, dst=root)
        for r, place in enumerate(places or []):
            same(place, of_rank(r, torch.float32))
        x = torch.empty(3, 4)
        dist.scatter(x, [of_rank(r, torch.float32) for r in range(size)] if rank == root else None, src=root)
        same(x, of_rank(rank, torch.float32))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int64], ids=str)
def test_reduce_scatter_of_lists_and_tensors(dtype: torch.dtype, rank: int, size: int) -> None:
    blocks = [of_rank(rank + i, dtype) for i in range(size)]
    expected = sum(of_rank(r + rank, dtype) for r in range(size))
    out = torch.empty(3, 4, dtype=dtype)
    dist.reduce_scatter(out, blocks)
    same(out, expected)
    out.zero_()
    dist.reduce_scatter_tensor(out, torch.cat(blocks))
    same(out, expected)
    whole = torch.cat(blocks)
    mine = whole[rank * 3 : rank * 3 + 3]
    dist.reduce_scatter_tensor(mine, whole)
    same(mine, expected)


def test_reduce_scatter_of_unequal_blocks(rank: int, size: int) -> None:
    blocks = [torch.full((i + 1,), float(rank)) for i in range(size)]
    out = torch.empty(rank + 1)
    dist.reduce_scatter(out, blocks)
    same(out, torch.full((rank + 1,), size * (size - 1) / 2))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex128, torch.bool], ids=str)
def test_all_to_all_even_and_uneven(dtype: torch.dtype, rank: int, size: int) -> None:
    x = torch.cat([of_rank(rank * size + j, dtype) for j in range(size)])
    out = torch.empty_like(x)
    dist.all_to_all_single(out, x)
    same(out, torch.cat([of_rank(i * size + rank, dtype) for i in range(size)]))
    here = [(rank + j) % 3 for j in range(size)]
    there = [(i + rank) % 3 for i in range(size)]
    x = torch.cat([of_rank(rank, dtype, (n, 2)) for n in here])
    out = torch.empty(sum(there), 2, dtype=dtype)
    dist.all_to_all_single(out, x, there, here)
    same(out, torch.cat([of_rank(i, dtype, (n, 2)) for i, n in enumerate(there)]))
    outs = [torch.empty(n, 2, dtype=dtype) for n in there]
    dist.all_to_all(outs, [of_rank(rank, dtype, (n, 2)) for n in here])
    for i, n in enumerate(there):
        same(outs[i], of_rank(i, dtype, (n, 2)))


@pytest.mark.parametrize("direct", [True, False], ids=["direct", "through pieces"])
def test_unequal_parts_of_all_lengths(
    direct: bool, rank: int, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Short ones lie in the core's cells, others where their giver has them, if ranks may read that."""
    from hpcomm.node import segment

    if segment.current is not None:
        monkeypatch.setattr(segment, "current", segment.current._replace(direct=direct))
    group = dist.new_group()
    for lengths in ((0, 1, 2), (90, 0, 700), (2000, 300, 0, 1000), (0,), (40_000, 7, 1)):
        here = there = [lengths[(rank + j) % len(lengths)] for j in range(size)]
        x = torch.arange(float(sum(here))) + rank
        dist.all_to_all_single(out := torch.empty(sum(there)), x, there, here, group=group)
        first = [sum(lengths[(i + j) % len(lengths)] for j in range(rank)) for i in range(size)]
        same(out, torch.cat([torch.arange(float(n)) + i + first[i] for i, n in enumerate(there)]))
        outs = [torch.empty(lengths[i % len(lengths)], 2) for i in range(size)]
        mine = torch.full_like(outs[rank], float(rank))
        dist.all_gather(outs, mine, group=group)
        for i, part in enumerate(outs):
            same(part, torch.full_like(part, float(i)))
    dist.destroy_process_group(group)


def test_several_tensors_in_one_call(rank: int, size: int) -> None:
    xs = [torch.full((n + 1,), float(rank)) for n in range(3)]
    with pytest.warns(FutureWarning):
        dist.all_reduce_coalesced(xs)
    for n, x in enumerate(xs):
        same(x, torch.full((n + 1,), size * (size - 1) / 2))


@pytest.mark.parametrize("background", [False, True], ids=["blocking", "async"])
def test_the_coalescing_manager_joins_calls(background: bool, rank: int, size: int) -> None:
    from torch.distributed.distributed_c10d import _coalescing_manager

    total = size * (size - 1) / 2
    xs = [torch.full((3,), float(rank)) for _ in range(4)]
    with _coalescing_manager(async_ops=background) as joined:
        for x in xs:
            dist.all_reduce(x)
    wholes = [torch.empty(size * 2) for _ in range(2)]
    if background:
        joined.wait()
    with _coalescing_manager(async_ops=background) as gathered:
        for whole in wholes:
            dist.all_gather_into_tensor(whole, torch.full((2,), float(rank)))
    if background:
        gathered.wait()
    parts = [torch.empty(2) for _ in range(2)]
    with _coalescing_manager(async_ops=background) as scattered:
        for part in parts:
            dist.reduce_scatter_tensor(part, torch.full((size * 2,), float(rank)))
    if background:
        scattered.wait()
    y = torch.full((2,), float(rank))
    with _coalescing_manager(device=torch.device("cpu"), async_ops=background) as old:
        dist.all_reduce(y)
        dist.broadcast(z := torch.full((1,), float(rank)), 0)
    if background:
        old.wait()
    for x in xs:
        same(x, torch.full((3,), total))
    for whole in wholes:
        same(whole, torch.arange(float(size)).repeat_interleave(2))
    for part in parts:
        same(part, torch.full((2,), total))
    same(y, torch.full((2,), total))
    same(z, torch.zeros(1))
    dist.all_reduce(last := torch.ones(1))
    assert last.item() == size  # nothing was left that swallows later calls


def test_a_sparse_all_reduce_adds_equal_places(rank: int, size: int) -> None:
    x = torch.sparse_coo_tensor([[0, rank + 1]], [1.0, 2.0], (size + 1,), check_invariants=True)
    dist.all_reduce(x)
    same(x.to_dense(), torch.tensor([float(size), *[2.0] * size]))


def test_objects_of_any_size_travel(rank: int, size: int) -> None:
    mine = {"rank": rank, "text": "x" * (rank * 1000)}
    everyone: list[object] = [None] * size
    dist.all_gather_object(everyone, mine)
    assert [each["rank"] for each in everyone] == list(range(size))  # type: ignore[index]
    told = [mine, rank]
    dist.broadcast_object_list(told, src=size - 1)
    assert told[1] == size - 1
    place: list[object] = [None]
    dist.scatter_object_list(place, [f"for {r}" for r in range(size)] if rank == 0 else None, src=0)
    assert place == [f"for {rank}"]
    got = [None] * size if rank == 1 % size else None
    dist.gather_object(rank, got, dst=1 % size)
    assert got is None or got == list(range(size))


def test_many_elements_are_right_past_every_internal_threshold(rank: int, size: int) -> None:
    for n in (5_000, 50_000, 700_001, 3_000_001):
        for dtype in (torch.float32, torch.bfloat16):
            x = torch.full((n,), float(rank + 1), dtype=dtype)
            dist.all_reduce(x)
            assert bool((x == size * (size + 1) / 2).all())


BLOCKS: dict[str, Callable[..., object]] = {
    "all_reduce": lambda out, x, op, **how: dist.all_reduce(out.copy_(x), op, **how),
    "broadcast": lambda out, x, op, **how: dist.broadcast(out.copy_(x), 1, **how),
    "reduce_scatter": lambda out, x, op, **how: dist.reduce_scatter_tensor(out[0], x, op, **how),
    "all_gather": lambda out, x, op, **how: dist.all_gather_into_tensor(out, x[0], **how),
    "all_to_all": lambda out, x, op, **how: dist.all_to_all_single(out, x, **how),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int32], ids=str)
@pytest.mark.parametrize("verb", BLOCKS)
def test_blocking_calls_by_the_short_way_give_what_background_calls_do(
    verb: str, dtype: torch.dtype, rank: int, size: int
) -> None:
    """Of every length at which another algorithm takes over."""
    for n in (1, 700, 5_000, 50_000, 300_001):
        x = of_rank(rank, dtype, (size, n))
        for op in (dist.ReduceOp.SUM, dist.ReduceOp.MAX) if "reduce" in verb else (dist.ReduceOp.SUM,):
            short, long = torch.zeros_like(x), torch.zeros_like(x)
            BLOCKS[verb](short, x, op)
            BLOCKS[verb](long, x, op, async_op=True).wait()  # type: ignore[attr-defined]
            same(short, long)
            if verb == "all_reduce":
                parts = torch.stack([of_rank(r, dtype, (size, n)) for r in range(size)])
                same(short, (parts.sum(0) if op == dist.ReduceOp.SUM else parts.amax(0)).to(dtype))
            elif verb == "reduce_scatter":
                parts = torch.stack([of_rank(r, dtype, (size, n))[rank] for r in range(size)])
                same(short[0], (parts.sum(0) if op == dist.ReduceOp.SUM else parts.amax(0)).to(dtype))
            elif verb == "broadcast":
                same(short, of_rank(1, dtype, (size, n)))
            else:
                block = 0 if verb == "all_gather" else rank
                same(short, torch.stack([of_rank(r, dtype, (size, n))[block] for r in range(size)]))


@pytest.mark.parametrize("verb", BLOCKS)
def test_a_rank_may_bring_its_tensors_in_another_layout_or_make_its_call_in_the_background(
    verb: str, rank: int, size: int
) -> None:
    """What the other ranks see of a call does not depend on that."""
    for n in (2, 5_000, 20_001, 300_001):
        for odd in range(size):
            x = of_rank(rank, torch.float32, (size, n))
            want, out = torch.zeros_like(x), torch.zeros_like(x)
            BLOCKS[verb](want, x, dist.ReduceOp.SUM)
            if rank == odd:
                BLOCKS[verb](out, x, dist.ReduceOp.SUM, async_op=True).wait()  # type: ignore[attr-defined]
            else:
                if rank % 2:
                    x = torch.zeros(size, 2 * n).narrow(1, 0, n).copy_(x)
                    if verb in ("all_reduce", "broadcast"):
                        out = torch.zeros(size, 2 * n).narrow(1, 0, n)
                BLOCKS[verb](out, x, dist.ReduceOp.SUM)
            same(out, want)


class Own(torch.Tensor):
    """A tensor of a class of its own."""


def made_odd(x: torch.Tensor, how: str) -> torch.Tensor:
    """x anew: at an odd address, as a lazy negative, or of a class of its own."""
    if how == "unaligned":
        memory = bytearray(x.nbytes + 1)
        return torch.frombuffer(memory, dtype=x.dtype, offset=1, count=x.numel()).view(x.shape).copy_(x)
    return torch._neg_view(-x) if how == "negative" else x.clone().as_subclass(Own)


@pytest.mark.parametrize("how", ["unaligned", "negative", "subclass"])
@pytest.mark.parametrize("verb", BLOCKS)
def test_a_tensor_of_one_rank_may_lie_at_any_address_be_lazy_or_of_another_class(
    verb: str, how: str, rank: int, size: int
) -> None:
    for n in (2, 20_001):
        for dtype in (torch.float64, torch.bfloat16):
            x = of_rank(rank, dtype, (size, n))
            want, out = torch.zeros_like(x), torch.zeros_like(x)
            BLOCKS[verb](want, x, dist.ReduceOp.SUM)
            if rank == size - 1:
                x, out = made_odd(x, how), made_odd(out, how)
            BLOCKS[verb](out, x, dist.ReduceOp.SUM)
            same(torch.zeros(want.shape, dtype=dtype).copy_(out), want)


@pytest.mark.parametrize("verb", BLOCKS)
def test_long_calls_give_the_same_directly(verb: str, rank: int, size: int) -> None:
    """Where ranks read each other's memory, which they do from some MiB on."""
    group = dist.new_group(list(range(size)))
    if group.entry.node is None:
        pytest.skip("the ranks share no memory")
    group.entry.node.direct_from = 0
    for dtype, n in ((torch.float32, 400_001), (torch.bfloat16, 700_001)):
        x = of_rank(rank, dtype, (size, n))
        pieces, directly = torch.zeros_like(x), torch.zeros_like(x)
        BLOCKS[verb](pieces, x, dist.ReduceOp.SUM)
        BLOCKS[verb](directly, x, dist.ReduceOp.SUM, group=group)
        same(pieces, directly)
    dist.destroy_process_group(group)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn], ids=str)
def test_an_older_torch_hands_the_core_arrays_of_numpy(
    dtype: torch.dtype, rank: int, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def reduced(out: torch.Tensor, x: torch.Tensor, op: dist.ReduceOp) -> None:
        dist.reduce(out.copy_(x), 1, op)

    for verb, call in {**BLOCKS, "reduce": reduced}.items():
        if "reduce" in verb and dtype in FP8:
            continue
        x = of_rank(rank, dtype, (size, 3))
        tensors, arrays = torch.zeros_like(x), torch.zeros_like(x)
        call(tensors, x, dist.ReduceOp.SUM)
        with monkeypatch.context() as patch:
            patch.setattr(native, "takes_tensors", lambda: False)
            call(arrays, x, dist.ReduceOp.SUM)
        if verb != "reduce" or rank == 1:
            same(tensors, arrays)


def test_one_element_may_have_any_stride(rank: int, size: int) -> None:
    """As the gradient of a sum has, which is expanded; it is contiguous, yet cannot be viewed as bytes."""
    x = torch.tensor(float(rank)).expand(1)
    assert x.stride() == (0,)
    parts = [torch.zeros(1) for _ in range(size)]
    dist.all_gather(parts, x)
    same(torch.cat(parts), torch.arange(float(size)))
    dist.gather(x, parts if rank == 0 else None)
    dist.all_to_all_single(y := torch.zeros(size), torch.full((size,), float(rank)))
    same(y, torch.arange(float(size)))
    dist.broadcast(z := torch.tensor(float(rank)).expand(1), 1)
    same(z, torch.ones(1))


def test_lazy_negatives_are_what_they_say(rank: int, size: int) -> None:
    """Tensors whose memory holds the negative of what they are."""
    ranks = torch.arange(float(size))
    x = torch.complex(torch.ones(size), torch.full((size,), float(rank))).conj().imag
    assert x.is_neg()
    gathered, swapped, total = torch.zeros(size, size), torch.zeros(size), torch.zeros(1)
    dist.all_gather_into_tensor(gathered, x)
    dist.all_to_all_single(swapped, x)
    dist.reduce_scatter_tensor(total, x)
    same(gathered, -ranks[:, None].expand(size, size))
    same(swapped, -ranks)
    same(total, -ranks.sum(0, keepdim=True))
    dist.all_reduce(x)
    same(x, -ranks.sum().expand(size))


WAYS = {"core": (1, 5, 64, 65, 1000, 9_001, 40_001), "whole": (1, 1003), "parts": (1, 1003)}


@pytest.mark.parametrize("way", WAYS)
def test_an_element_of_a_sum_has_the_bits_of_the_law_of_order(
    way: str, rank: int, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the core, on either side of lengths where it takes another way; and on two nodes, by messages."""
    group, nodes, wrong = dist.new_group(list(range(size))), nodes_of(size, 1), {}
    if way != "core":
        nodes = nodes_of(size, 2)
        monkeypatch.setattr(segment, "ranks_here", lambda mpi: nodes[mpi.rank % 2])
        monkeypatch.setattr(rank_order, "ORDER_GATHERED_FAR", 1 << 30 if way == "whole" else 0)
        monkeypatch.setattr(ordered_blocks, "ORDER_PIECE", 2000)
        monkeypatch.setattr(collectives, "TORCH_CUT", 2000)
        monkeypatch.setattr(collectives, "TORCH_CUT_PIECE", 1600)
        group.entry.node = group._node = None
        group._by = collectives.NetworkCollectives(group.comm.dup(check="full"), group.entry)
    for dtype in ("float16", "bfloat16", "float32", "float64", "complex64"):
        for op in ("sum", "product", "avg") if "complex" not in dtype else ("sum",):
            by = getattr(dist.ReduceOp, op.upper())
            for n in WAYS[way]:
                all_have = [torch.as_tensor(given(dtype, n, r)) for r in range(size)]
                wanted = torch.as_tensor(
                    law(op.replace("product", "prod"), [as_given(x) for x in all_have], nodes)
                )
                for _ in range(2):  # the same memory again goes the short way
                    dist.all_reduce(x := all_have[rank].clone(), op=by, group=group)
                    wrong[dtype, op, n, "all_reduce"] = differing(as_given(x), as_given(wanted))
                out = torch.empty_like(x)
                dist.reduce_scatter_tensor(out, torch.cat([all_have[rank]] * size), by, group)
                wrong[dtype, op, n, "reduce_scatter"] = differing(as_given(out), as_given(wanted))
                dist.reduce(x := all_have[rank].clone(), 0, by, group)
                wrong[dtype, op, n, "reduce"] = differing(as_given(x), as_given(wanted)) if rank == 0 else 0
                if op != "product" and "complex" not in dtype:  # of which torch itself makes a copy
                    dist.all_reduce(x := all_have[rank].to_sparse(), by, group)
                    wrong[dtype, op, n, "sparse"] = differing(as_given(x.to_dense()), as_given(wanted))
    assert {name: count for name, count in wrong.items() if count} == {}


def as_given(x: torch.Tensor) -> Any:
    """As the law takes it."""
    return x if x.dtype in FLOATS[:2] else x.numpy()


@pytest.mark.parametrize("across", [False, True], ids=["one node", "several nodes"])
def test_sums_are_exact_where_the_environment_asks_for_it(
    across: bool, rank: int, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So they do not depend on the number of ranks, nor on which rank has what."""
    monkeypatch.setenv("HPCOMM_DETERMINISTIC", "1")
    monkeypatch.setattr(collectives, "_SUMMED", 2000)
    group = dist.new_group(list(range(size)))
    if across:
        group.entry.node = group._node = None
        group._by = collectives.ExactSums(group.comm.dup(check="full"), group.entry)
    for dtype in (torch.bfloat16, torch.float32, torch.float64, torch.complex64):
        for n in (1, 1003):
            xs = [torch.as_tensor(given("complex128", n, r)) for r in range(size)]
            xs = [(x if dtype.is_complex else x.real).to(dtype) for x in xs]
            wide = torch.view_as_real(torch.stack(xs)) if dtype.is_complex else torch.stack(xs)[..., None]
            wanted = torch.as_tensor(np.apply_along_axis(math.fsum, 0, wide.double().numpy()))
            wanted = wanted.to(torch.float32 if dtype == torch.bfloat16 else wide.dtype).to(wide.dtype)
            for turned in (0, 1):
                mine = xs[(rank + turned) % size]
                dist.all_reduce(x := mine.clone(), group=group)
                dist.reduce_scatter_tensor(out := torch.empty_like(x), torch.cat([mine] * size), group=group)
                dist.reduce(y := mine.clone(), 0, group=group)
                z = mine.to_sparse()
                dist.all_reduce(z, group=group)
                all_got = [x, out] + [z.to_dense()] * (not dtype.is_complex) + [y] * (rank == 0)
                for got in all_got:  # of a sparse complex tensor torch itself makes a copy
                    same(torch.view_as_real(got) if dtype.is_complex else got[:, None], wanted)
    dist.all_reduce(torch.empty(0), group=group)
    dist.all_reduce(x := torch.full((3,), 2.0), dist.ReduceOp.AVG, group=group)
    dist.all_reduce(y := torch.full((3,), rank), dist.ReduceOp.MAX, group=group)
    assert (x.tolist(), y.tolist()) == ([2.0] * 3, [size - 1] * 3)
