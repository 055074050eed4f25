"""What a call returns, and what happens when ranks disagree or do not come."""

from __future__ import annotations

import random
import re
import threading
import time
import weakref
from datetime import timedelta
from inspect import signature
from typing import Any

import pytest
import torch
import torch.distributed as dist
from steady import steady_time

import hpcomm
from hpcomm.torch_backend.collectives import NetworkCollectives


def test_background_calls_keep_their_order_and_let_the_caller_go_on(rank: int, size: int) -> None:
    xs = [torch.full((n * 1000 + 1,), float(rank)) for n in range(20)]
    works = [dist.all_reduce(x, async_op=True) for x in xs]
    dist.all_reduce(last := torch.ones(1))  # blocking, behind all of them
    assert all(work.is_completed() for work in works)
    assert last.item() == size
    for x, work in zip(xs, works, strict=True):
        assert work.wait()
        assert work.is_success()
        assert work.exception() is None
        assert x[0] == size * (size - 1) / 2


def test_a_future_holds_the_tensors_and_calls_back(rank: int, size: int) -> None:
    x = torch.ones(3)
    doubled = dist.all_reduce(x, async_op=True).get_future().then(lambda done: done.value()[0] * 2)
    assert doubled.wait().tolist() == [2.0 * size] * 3
    late = dist.all_reduce(x, async_op=True)
    late.wait()
    assert late.get_future().wait()[0] is x
    assert late.result()[0] is x


def test_a_callback_may_make_calls_of_its_own(rank: int, size: int) -> None:
    x, y = torch.ones(1), torch.ones(1)

    def again(done: torch.futures.Future[list[torch.Tensor]]) -> float:
        dist.all_reduce(y)
        inner = dist.all_reduce(y, async_op=True)
        inner.wait()
        return y.item()

    work = dist.all_reduce(x, async_op=True)
    assert work.get_future().then(again).wait() == size**2


def test_a_wait_may_be_given_a_time(rank: int, size: int) -> None:
    dist.barrier()
    if rank == 0:
        work = dist.barrier(async_op=True)
        with pytest.raises(hpcomm.WaitTimeoutError, match=r"barrier\(\) was not complete after 0\.2 s"):
            work.wait(timedelta(seconds=0.2))
    dist.distributed_c10d._get_default_store().add("go", 1)
    while rank and int(dist.distributed_c10d._get_default_store().add("go", 0)) % size:
        time.sleep(0.01)
    if rank != 0:
        dist.barrier()
    else:
        work.wait()


def made_and_waited_for(x: torch.Tensor, background: bool) -> None:
    work = dist.all_reduce(x, async_op=background)
    if background:
        work.wait()


@pytest.mark.parametrize("background", [False, True], ids=["blocking", "async"])
def test_ranks_that_disagree_are_all_told_and_may_go_on(background: bool, rank: int, size: int) -> None:
    with pytest.raises(
        hpcomm.MismatchError, match=r"(?s)ranks disagree about call .*rank 0: .*rank 1: "
    ) as told:
        made_and_waited_for(torch.ones(2 + rank), background)
    assert isinstance(told.value, dist.DistBackendError)
    with pytest.raises(RuntimeError, match=r"op='max'.*|op='sum'"):
        dist.all_reduce(torch.ones(4), dist.ReduceOp.MAX if rank else dist.ReduceOp.SUM)
    with pytest.raises(hpcomm.MismatchError, match=r"broadcast\(.*root=1"):
        dist.broadcast(torch.ones(4), 1) if rank else dist.all_reduce(torch.ones(4))
    dist.all_reduce(x := torch.ones(2))
    assert x.tolist() == [size, size]


def of(*lengths: int) -> list[torch.Tensor]:
    return [torch.ones(n) for n in lengths]


def sparse(n: int) -> torch.Tensor:
    return torch.eye(n).to_sparse()


REFUSED = "a call that it refuses"
# Calls in which rank 1 (odd) differs, of p ranks, and what every rank's error says. The last ones rank 1
# refuses itself: the others hear of that, and it says why.
UNEQUAL: dict[str, tuple[Any, str, str]] = {
    "sparse shapes": (
        lambda p, r, odd, g: dist.all_reduce(sparse(3 + odd), group=g),
        r"rank 0: all_reduce\(sparse_coo float32 \(3, 3\).*rank 1: all_reduce\(sparse_coo float32 \(4, 4\)",
        "",
    ),
    "sparse and dense": (
        lambda p, r, odd, g: dist.all_reduce(sparse(3) if odd else torch.eye(3), group=g),
        r"rank 0: all_reduce\(float32 \(3, 3\).*rank 1: all_reduce\(sparse_coo float32 \(3, 3\)",
        "",
    ),
    "all_to_all, a long part": (
        lambda p, r, odd, g: dist.all_to_all(of(*[2] * p), of(2 + odd, *[2] * (p - 1)), group=g),
        r"disagree about all_to_all\(.*\n  rank 0: expects 2 elements of rank 1, which sends 3\n  where",
        "",
    ),
    "all_to_all, a long place": (
        lambda p, r, odd, g: dist.all_to_all(of(2 + odd, *[2] * (p - 1)), of(*[2] * p), group=g),
        r"disagree about all_to_all\(.*\n  rank 1: expects 3 elements of rank 0, which sends 2\n  where",
        "",
    ),
    "all_to_all_single, a long part": (
        lambda p, r, odd, g: dist.all_to_all_single(
            torch.zeros(2 * p, 4), torch.zeros(2 * p + odd, 4), [2] * p, [2 + odd, *[2] * (p - 1)], group=g
        ),
        r"\n  rank 0: expects 8 elements of rank 1, which sends 12\n  where",
        "",
    ),
    "all_to_all_single, sizes on one rank": (
        lambda p, r, odd, g: dist.all_to_all_single(
            torch.zeros(2 * p), torch.zeros(2 * p), *([] if odd else [[2] * p] * 2), group=g
        ),
        r"rank 0: all_to_all\(float32 \(\d,\), list of \d x 2 el.*rank 1: all_to_all\(float32 \(\d,\)\)",
        "",
    ),
    "reduce_scatter, lists of one total": (
        lambda p, r, odd, g: dist.reduce_scatter(
            torch.ones(3 if odd else 2), of(1, 3, *[2] * (p - 2)) if odd else of(*[2] * p), group=g
        ),
        r"rank 0: reduce_scatter\(float32 \(2,\), op.*rank 1: reduce_scatter\(float32 \(3,\), list of 1, 3",
        "",
    ),
    "reduce_scatter, output": (
        lambda p, r, odd, g: dist.reduce_scatter(torch.ones(2 + odd), of(*[2] * p), group=g),
        r"rank 0: reduce_scatter\(float32 \(2,\), op.*rank 1: reduce_scatter\(float32 \(3,\), list of \d x 2",
        "",
    ),
    "all_gather, its places": (
        lambda p, r, odd, g: dist.all_gather(of(*[2 + odd] * p), torch.ones(2), group=g),
        r"rank 0: all_gather\(float32 \(2,\)\).*rank 1: all_gather\(float32 \(2,\), list of \d x 3 elements",
        "",
    ),
    "all_gather, one of its places": (
        lambda p, r, odd, g: dist.all_gather(of(2 + odd, *[2] * (p - 1)), torch.ones(2), group=g),
        r"rank 0: all_gather\(float32 \(2,\)\).*rank 1: all_gather\(float32 \(2,\), list of 3, .*2 elements",
        "",
    ),
    "all_gather of unequal shapes, one of them": (
        lambda p, r, odd, g: dist.all_gather(of(*range(1, p + 1)), torch.ones(r + 1 + odd), group=g),
        r"rank 0: all_gather\(float32 \(1,\), list of 1, 2.*rank 1: all_gather\(float32 \(3,\), list of 1, 2",
        "",
    ),
    "several tensors of one total": (
        lambda p, r, odd, g: dist.all_reduce_coalesced(of(1, 3) if odd else of(2, 2), group=g),
        r"rank 0: all_reduce\(.*list of 2 x 2 elements.*rank 1: all_reduce\(.*list of 1, 3 elements",
        "",
    ),
    "a short list": (
        lambda p, r, odd, g: dist.all_to_all(of(*[2] * (p - odd)), of(*[2] * p), group=g),
        REFUSED,
        r"output_tensor_list holds \d tensors, the group has \d ranks",
    ),
    "split sizes": (
        lambda p, r, odd, g: dist.all_to_all_single(
            torch.zeros(2 * p), torch.zeros(2 * p), [2] * p, [2 + odd, *[2] * (p - 1)], group=g
        ),
        REFUSED,
        "Split sizes doesn't match total dim 0 size",
    ),
    "a long output": (
        lambda p, r, odd, g: dist.all_gather_into_tensor(torch.zeros(2 * p + odd), torch.zeros(2), group=g),
        REFUSED,
        "output tensor size must be equal to world_size times input tensor size",
    ),
    "an output of another dtype": (
        lambda p, r, odd, g: dist.reduce_scatter_tensor(
            torch.zeros(2), torch.zeros(2 * p, dtype=torch.int32 if odd else torch.float32), group=g
        ),
        REFUSED,
        r"output and input differ: float32 \(2,\), int32(?s:.*) at test_works.py:",
    ),
    "an expanded output": (
        lambda p, r, odd, g: dist.all_reduce(torch.ones(1).expand(3) if odd else torch.ones(3), group=g),
        REFUSED,
        "a tensor to be filled is expanded",
    ),
    "an operator without meaning": (
        lambda p, r, odd, g: dist.all_reduce(torch.ones(3) > odd, dist.ReduceOp.AVG, group=g)
        if odd
        else dist.all_reduce(torch.ones(3), dist.ReduceOp.AVG, group=g),
        REFUSED,
        "the average of bool",
    ),
    "a sparse broadcast": (
        lambda p, r, odd, g: dist.broadcast(sparse(3) if odd else torch.eye(3), 0, group=g),
        REFUSED,
        r"sparse_coo float32 \(3, 3\) is sparse: the call takes dense tensors\n",
    ),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:.*coalesced:FutureWarning")
@pytest.mark.parametrize("across", [False, True], ids=["one node", "several nodes"])
def test_tensors_that_do_not_fit_those_of_other_ranks_are_an_error_on_all(
    across: bool, rank: int, size: int
) -> None:
    """Before anything moves; then the group goes on."""
    group = dist.new_group(list(range(size)))
    if across:
        meets_by_messages(group)
    for name, (call, said, own) in UNEQUAL.items():
        with pytest.raises((hpcomm.HpcommError, ValueError)) as told:
            call(size, rank, rank == 1, group)
        wanted = own if rank == 1 and own else f"(?s){said}"
        assert re.search(wanted, str(told.value)), (name, str(told.value))
        assert isinstance(told.value, hpcomm.MismatchError) or (own and rank == 1), name
        dist.all_reduce(x := torch.ones(1), group=group)
        assert x.item() == size, name


@pytest.mark.parametrize("across", [False, True], ids=["one node", "several nodes"])
def test_ranks_that_differ_hear_of_another_one_that_refuses_its_call(
    across: bool, rank: int, size: int
) -> None:
    group = dist.new_group(list(range(size)))
    if across:
        meets_by_messages(group)
    if rank == 1:
        with pytest.raises(hpcomm.LayoutError):
            dist.all_gather([torch.ones(2) for _ in range(size + 1)], torch.ones(2), group=group)
    else:
        with pytest.raises(hpcomm.MismatchError, match="rank 1: a call that it refuses\n"):
            dist.all_reduce(torch.ones(2 + rank), group=group)
    dist.all_reduce(x := torch.ones(1), group=group)
    assert x.item() == size


def meets_by_messages(group: Any) -> None:
    """As where its ranks are on several nodes."""
    group.entry.node = group._node = None
    group._by = NetworkCollectives(group.comm, group.entry)
    group._by.refuse = group.refuse


def test_an_exception_of_a_background_call_reaches_its_future(rank: int) -> None:
    future = dist.all_reduce(torch.ones(2 + rank), async_op=True).get_future()
    with pytest.raises(RuntimeError, match="ranks disagree"):
        future.wait()


@pytest.mark.parametrize("seed", range(3))
def test_ranks_may_wait_for_the_same_calls_in_different_ways(rank: int, size: int, seed: int) -> None:
    """At once, later, by a future, by asking, with a limit: short and long, by the core or the worker."""
    same, own = random.Random(seed), random.Random(f"{seed} {rank}")
    left: list[tuple[Any, torch.Tensor, float]] = []
    for call in range(60):
        n, verb = same.choice((0, 1, 5, 3000, 70_000)), same.choice(("sum", "max", "broadcast"))
        dtype = same.choice((torch.float32, torch.int64, torch.bfloat16))
        x, root, way = torch.full((n,), rank + call, dtype=dtype), same.randrange(size), own.randrange(5)
        expected = {"sum": sum(range(call, call + size)), "max": call + size - 1, "broadcast": root + call}[
            verb
        ]
        if verb == "broadcast":
            work = dist.broadcast(x, root, async_op=way > 0)
        else:
            work = dist.all_reduce(x, getattr(dist.ReduceOp, verb.upper()), async_op=way > 0)
        if way == 1:
            work.get_future().wait()
        elif way == 2:
            while not work.is_completed():
                pass
        elif way == 3:
            work.wait(timedelta(seconds=50))
        elif way == 4:
            left.append((work, x, expected))
            if own.random() < 0.7:
                continue
            for each, its, value in left:
                each.wait()
                assert (its == torch.tensor(value, dtype=its.dtype)).all()
            left.clear()
            continue
        assert (x == torch.tensor(expected, dtype=dtype)).all(), (call, verb, way)
    dist.barrier()  # carries out what is left
    for each, its, value in left:
        assert each.is_completed()
        assert each.result()[0] is its
        assert (its == torch.tensor(value, dtype=its.dtype)).all()


def test_an_operator_that_the_core_has_not_is_no_sum_in_the_background(rank: int, size: int) -> None:
    twice = dist._make_nccl_premul_sum(2.0)
    x, y = torch.ones(3), torch.ones(2 * size)
    work = dist.all_reduce(x, twice, async_op=True)
    part = torch.empty(2)
    other = dist.reduce_scatter_tensor(part, y, twice, async_op=True)
    work.wait()
    other.wait()
    assert x.tolist() == [2.0 * size] * 3
    assert part.tolist() == [2.0 * size] * 2


def test_errors_can_be_sent_as_objects(rank: int, size: int) -> None:
    """As a distributed checkpoint sends those of each rank to the first."""
    with pytest.raises(hpcomm.MismatchError) as told:
        dist.all_reduce(torch.ones(2 + rank))
    gathered: list[Any] = [None] * size
    dist.all_gather_object(gathered, told.value)
    assert len({str(error) for error in gathered}) == size  # where is each rank's own
    assert all(isinstance(error, (hpcomm.MismatchError, dist.DistBackendError)) for error in gathered)
    assert gathered[rank].__dict__ == told.value.__dict__


def test_a_rank_that_does_not_come_is_named_within_the_groups_timeout(rank: int, size: int) -> None:
    group = dist.new_group(list(range(size)))
    dist.distributed_c10d._set_pg_timeout(timedelta(seconds=1), group)  # not for making it
    dist.barrier()
    if rank != size - 1:
        begin = steady_time()
        with pytest.raises(hpcomm.WaitTimeoutError, match=rf"waited [\d.]+ s for rank {size - 1}\n"):
            dist.all_reduce(torch.ones(2), group=group)
        assert steady_time() - begin < 8
        with pytest.raises(hpcomm.WaitTimeoutError):  # this group is broken for good, and says so at once
            dist.all_reduce(torch.ones(2), group=group)
    dist.barrier()
    if rank == size - 1 and group.entry.node is not None:
        with pytest.raises(hpcomm.PeerFailedError, match="gave up"):
            dist.all_reduce(torch.ones(2), group=group)


def test_a_long_call_that_ranks_disagree_about_is_told_whole(world: Any, rank: int, size: int) -> None:
    xs = [torch.ones(1000 + i + rank) for i in range(60)]
    with pytest.raises(hpcomm.MismatchError) as told:
        world.allreduce_coalesced(xs).wait()
    lines = [line for line in str(told.value).splitlines() if re.match("  rank ", line)]
    assert len(lines) == size
    for each, line in enumerate(lines):
        assert line.endswith("elements, op='sum')")
        assert (
            f"{1000 + 59 + each}, " in line
            or f"x {1000 + 59 + each} el" in line
            or f", {1059 + each} el" in line
        )


def test_ranks_of_several_nodes_meet_by_messages(rank: int, size: int) -> None:
    """As without a node segment: disagreement is told, and who does not come is named."""
    group, hasty = dist.new_group(list(range(size))), dist.new_group()
    for each in group, hasty:
        meets_by_messages(each)
    for dtype in (torch.float32, torch.bfloat16, torch.int64):
        for n in (2, 700, 50_000, 300_000):
            x = torch.arange(n, dtype=dtype) % 100 + rank
            op = dist.ReduceOp.SUM if dtype == torch.int64 else dist.ReduceOp.AVG
            for other in (group, None):  # the same as through shared memory
                ys = [x.clone(), x.clone(), torch.zeros(size, n, dtype=dtype), torch.zeros(n, dtype=dtype)]
                dist.all_reduce(ys[0], op, group=other)
                dist.broadcast(ys[1], 1, group=other)
                dist.all_gather_into_tensor(ys[2], x, group=other)
                dist.reduce_scatter_tensor(ys[3], ys[2].clone(), op, group=other)
                dist.all_to_all_single(swapped := torch.zeros_like(ys[2]), ys[2] + rank, group=other)
                found = [*ys, swapped]
                if other is group:
                    far = found
            assert all(torch.equal(a, b) for a, b in zip(far, found, strict=True)), (dtype, n)
    with pytest.raises(hpcomm.MismatchError, match=r"(?s)rank 0: all_reduce.* \(2,\).*rank 1: .* \(3,\)"):
        dist.all_reduce(torch.ones(2 + rank), group=group)
    dist.distributed_c10d._set_pg_timeout(timedelta(seconds=4), hasty)
    dist.barrier()
    if rank != size - 1:
        with pytest.raises(hpcomm.WaitTimeoutError, match=rf"call #\d+ .* for rank {size - 1}\n"):
            dist.barrier(hasty)
    dist.barrier()


@pytest.mark.skipif(
    "timeout" not in signature(dist.barrier).parameters, reason="this torch gives barrier no time"
)
def test_a_longer_name_for_the_same_timeout(rank: int, size: int) -> None:
    group = dist.new_group(list(range(size)))
    if rank == 0:
        work = dist.barrier(group, async_op=True, timeout=timedelta(seconds=0.3))
        with pytest.raises(RuntimeError, match="for rank"):
            work.wait()
    dist.barrier()


def test_transfers_go_on_in_the_background(rank: int, size: int) -> None:
    """No rank waits; the calls end nevertheless."""
    works = [dist.all_reduce(torch.ones(100_000), async_op=True) for _ in range(5)]
    deadline = steady_time() + 10
    while not all(work.is_completed() for work in works) and steady_time() < deadline:
        time.sleep(0.005)
    assert all(work.is_completed() for work in works)


def test_calls_from_another_thread(rank: int, size: int) -> None:
    x = torch.ones(2)
    thread = threading.Thread(target=dist.all_reduce, args=(x,))
    thread.start()
    thread.join(10)
    assert x.tolist() == [size, size]


def test_sequence_numbers_count_calls(world: dist.ProcessGroup) -> None:
    before = world._get_sequence_number_for_group()
    dist.all_reduce(torch.ones(2))
    dist.barrier()
    assert world._get_sequence_number_for_group() == before + 2


def test_the_profiler_sees_the_names_that_other_backends_give(rank: int) -> None:
    with torch.autograd.profiler.profile() as seen:
        dist.all_reduce(torch.ones(2))
        dist.all_reduce(torch.ones(2), async_op=True).wait()
        dist.broadcast(torch.ones(2), 0)
        if rank == 0:
            dist.send(torch.ones(1), 1)
        elif rank == 1:
            dist.recv(torch.ones(1), 0)
    names = [event.name for event in seen.function_events]
    assert names.count("mpi:all_reduce") == 2
    assert names.count("mpi:broadcast") == 1
    assert rank > 1 or names.count(("mpi:send", "mpi:recv")[rank]) == 1


def test_debug_level_detail_compares_shapes_of_equal_length(rank: int, size: int) -> None:
    before = dist.get_debug_level()
    dist.set_debug_level(dist.DebugLevel.DETAIL)
    try:
        group = dist.new_group(list(range(size)))
    finally:
        dist.set_debug_level(before)
    shape = (2, 3) if rank else (3, 2)
    with pytest.raises(hpcomm.MismatchError, match=r"rank 0: all_reduce\(float32 \(3, 2\)"):
        dist.all_reduce(torch.ones(shape), group=group)
    dist.all_reduce(x := torch.ones(2, 3), group=group)
    assert bool((x == size).all())
    dist.all_reduce(torch.ones(shape))  # the level of the group counts, not that of the moment


def test_a_groups_own_methods(world: dist.ProcessGroup, rank: int, size: int) -> None:
    """As libraries call them: without options, on one tensor or a list."""
    x, y, z = torch.tensor(1.0), torch.ones(2), torch.full((2,), float(rank))
    world.allreduce(x).wait()
    world.allreduce([y]).wait()
    world.broadcast(z, size - 1).wait()
    assert x.item() == size
    assert y.tolist() == [size] * 2
    assert z.tolist() == [size - 1.0] * 2
    world.barrier().wait()


@pytest.mark.parametrize("n", [4, 60_000], ids=["short", "long"])
def test_tensors_of_inference_mode(n: int, rank: int, size: int) -> None:
    """What is filled on other threads, and what is kept of one mode for the other."""
    with torch.inference_mode():
        x, rows = torch.ones(n), [torch.zeros(n) for _ in range(size)]
        dist.all_reduce(x)
        dist.all_reduce(x, async_op=True).wait()
        dist.all_gather(rows, x, async_op=True).wait()
        assert all(bool((row == size**2).all()) for row in rows)
        at = x.data_ptr()
        del x
    for _ in range(8):  # perhaps one of them lies where x lay
        y = torch.ones(n, requires_grad=True)
        with torch.no_grad():
            dist.all_reduce(y)
        assert bool((y == size).all()), y.data_ptr() == at
    (2 * y).sum().backward()
    assert y.grad is not None
    dist.all_reduce(y.grad, async_op=True).wait()
    assert bool((y.grad == 2 * size).all())


@pytest.mark.parametrize("n", [4, 60_000], ids=["short", "long"])
def test_tensors_that_need_a_gradient_go_as_with_other_backends(n: int, rank: int, size: int) -> None:
    """A model's parameters are broadcast so; autograd does not see it."""
    p, made = torch.nn.Parameter(torch.full((n,), float(rank))), torch.ones(n, requires_grad=True) * 2
    for is_later in (False, True):
        for call in (
            lambda w: dist.broadcast(p, size - 1, async_op=w),
            lambda w: dist.all_reduce(made, async_op=w),
        ):
            work = call(is_later)
            if is_later:
                work.wait()
    assert bool((p == size - 1).all())
    assert bool((made == 2 * size**2).all())
    rows = [torch.zeros(n) for _ in range(size)]
    dist.all_gather(rows, p)
    assert bool((rows[0] == size - 1).all())
    dist.group.WORLD.allreduce_coalesced([p, made]).wait()
    sparse = torch.eye(2, requires_grad=True).to_sparse()
    dist.all_reduce(sparse)
    assert sparse.to_dense().tolist() == [[size, 0], [0, size]]
    if size > 1 and rank < 2:
        (dist.send if rank else dist.recv)(p, 1 - rank)
    assert p.requires_grad


def test_nothing_keeps_what_was_waited_for() -> None:
    """Also where the group's poller moves calls on, which may look much later."""
    tensors = []
    for _ in range(40):
        x = torch.ones(1 << 17, dtype=torch.float16)
        dist.all_reduce(x, async_op=True).wait()
        tensors.append(weakref.ref(x))
        del x
    assert sum(each() is not None for each in tensors) <= 2  # at which the poller looks just now
