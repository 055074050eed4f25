"""Timeouts: of a call, of a group, of making a group; and what is said when one is over."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Callable
from datetime import timedelta
from traceback import walk_stack
from types import FrameType
from typing import Any

import pytest
import torch
import torch.distributed as dist

import hpcomm
from hpcomm.agree import deadline, doing, runtime
from hpcomm.errors import named
from hpcomm.torch_backend import store_reports
from hpcomm.torch_backend.collectives import NetworkCollectives
from hpcomm.torch_backend.message_work import MessageWork, NodeMessageWork
from hpcomm.watch import watchdog

c10d: Any = dist.distributed_c10d
SHORT, LONG = timedelta(seconds=0.05), timedelta(seconds=60)


def calls(rank: int, size: int) -> list[tuple[str, str, tuple[Any, ...], tuple[Any, ...] | None]]:
    """(call of a group, its options, arguments before those, arguments before a timeout) of all calls."""
    x, row, xs = torch.ones(1), torch.ones(size), [torch.ones(1) for _ in range(size)]
    at_root, op = xs if rank == 0 else [], dist.ReduceOp.SUM
    of_root = [xs] if rank == 0 else []
    return [
        ("allreduce", "Allreduce", ([x],), (x, op)),
        ("allreduce_coalesced", "AllreduceCoalesced", ([x, x],), None),
        ("broadcast", "Broadcast", ([x],), (x, 0)),
        ("reduce", "Reduce", ([x],), (x, 0, op)),
        ("allgather", "Allgather", ([xs], [x]), (xs, x)),
        ("allgather_coalesced", "Allgather", ([[each] for each in xs], [x]), None),
        ("allgather_into_tensor_coalesced", "Allgather", ([row], [x]), None),
        ("_allgather_base", "Allgather", (row, x), None),
        ("gather", "Gather", (of_root, [x]), (at_root, x, 0)),
        ("scatter", "Scatter", ([x], of_root), (x, at_root, 0)),
        ("reduce_scatter", "ReduceScatter", ([x], [xs]), (x, xs, op)),
        ("reduce_scatter_tensor_coalesced", "ReduceScatter", ([x], [row]), None),
        ("_reduce_scatter_base", "ReduceScatter", (x, row), None),
        ("alltoall", "AllToAll", (xs, xs), None),
        ("alltoall_base", "AllToAll", (row, row.clone(), [], []), (row, row.clone(), [], [])),
        ("alltoall_base", "AllToAll", (row, row.clone(), [1] * size, [1] * size), None),
        ("barrier", "Barrier", (), ()),
    ]


def ways(group: Any, rank: int, size: int) -> list[tuple[str, Callable[[], Any]]]:
    """Each call with a short timeout of its own, in each way to give it one."""
    found = []
    for verb, kind, before_options, before_timeout in calls(rank, size):
        call = getattr(group, verb)
        for is_async in (True, False) if hasattr(dist.AllreduceOptions, "asyncOp") else (None,):
            options = getattr(dist, f"{kind}Options", None) or getattr(c10d, f"{kind}Options")
            opts = options()
            if not hasattr(opts, "timeout"):
                continue  # of torch 2.6
            opts.timeout = SHORT
            if is_async is not None:
                opts.asyncOp = is_async
            found.append(
                (f"{verb}, options, async {is_async}", lambda c=call, a=(*before_options, opts): c(*a))
            )
        if before_timeout is not None:
            found += [
                (f"{verb}, by position", lambda c=call, a=(*before_timeout, SHORT): c(*a)),
                (f"{verb}, by name", lambda c=call, a=before_timeout: c(*a, timeout=SHORT)),
            ]
    return found


def meets_by_messages(group: Any) -> None:
    """As where its ranks are on several nodes."""
    group.entry.node = group._node = None
    group._by = NetworkCollectives(group.comm, group.entry)


def give_up(*groups: Any) -> None:
    """On all ranks: or who came to nothing would wait for the others at the end."""
    for group in groups:
        group.entry.failed = hpcomm.UsageError("nobody goes on with this group")


def over(size: int) -> str:
    """What rank 0 says where no other rank has come."""
    return rf"waited 0\.05 s for {named(range(1, size))}\n"


def until_all_others_wait(world: Any, rank: int) -> None:
    """For this rank, in their next call on the world."""
    node = world.entry.node
    while node is not None and any(
        number <= node.calls()[rank][0] for r, (number, *_) in enumerate(node.calls()) if r != rank
    ):
        time.sleep(0.01)


@pytest.mark.parametrize("by", ["memory", "messages"])
def test_a_calls_own_timeout_counts_however_it_is_given(
    rank: int, size: int, by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 0 alone makes the calls."""
    monkeypatch.setattr(doing, "_AT_A_FAILURE_S", 0.0)  # nobody is asked what the others do
    group: Any = dist.new_group(timeout=LONG)
    if by == "messages":
        meets_by_messages(group)
        monkeypatch.setattr(store_reports, "say", lambda *_: None)  # the store is slow
    for how, call in ways(group, rank, size) if rank == 0 else []:
        if by == "messages" and not how.startswith(("allreduce,", "barrier")):
            continue
        with pytest.raises(RuntimeError) as told:
            call().wait()
        assert re.search(over(size), str(told.value)), (how, str(told.value))
        assert isinstance(told.value, hpcomm.WaitTimeoutError), how
        group.entry.failed = None  # it would be broken for good
    give_up(group)
    assert group.seconds == LONG.total_seconds()
    dist.barrier()


def test_a_calls_own_timeout_counts_for_that_call_only(world: Any, rank: int, size: int) -> None:
    """Ranks may give different ones, and the calls after it have the group's again."""
    node = world.entry.node
    before = None if node is None else node.timeout
    opts = dist.AllreduceOptions()
    opts.timeout = timedelta(seconds=20 + rank)
    work = world.allreduce([x := torch.ones(1)], opts)
    if work is not None:
        work.wait()
    assert x.item() == size
    assert node is None or node.timeout == before


def test_a_groups_timeout_can_be_set_later(world: Any, rank: int, size: int) -> None:
    groups: list[Any] = [dist.new_group(timeout=LONG) for _ in range(4)]
    c10d._set_pg_timeout(SHORT, groups[0])
    c10d._set_pg_timeout(SHORT, group=groups[1])
    groups[2].set_timeout(SHORT)
    groups[3]._set_default_timeout(SHORT)
    if rank:
        dist.barrier()
        give_up(*groups[:3])
        if rank == 1:  # what rank 0 has given up
            dist.send(torch.ones(1), 0, groups[1])
            dist.send(torch.ones(1), 0, groups[1], tag=7)
        return
    until_all_others_wait(world, rank)
    with pytest.raises(hpcomm.WaitTimeoutError, match=over(size)):
        dist.all_reduce(torch.ones(1), group=groups[0])
    does = "" if world.entry.node is None else r"\n  rank 1: barrier\(\) at test_timeouts.py"
    with pytest.raises(hpcomm.WaitTimeoutError, match=rf"recv\(.* waited (?!60).* s{does}"):
        dist.recv(torch.ones(1), 1, group=groups[1])
    requests = dist.batch_isend_irecv([dist.P2POp(dist.irecv, torch.ones(1), 1, groups[1], tag=7)])
    with pytest.raises(hpcomm.WaitTimeoutError, match=r"recv\(.* waited (?!60)"):
        requests[0].wait()
    with pytest.raises(hpcomm.WaitTimeoutError, match=over(size)), c10d._coalescing_manager(groups[1]):
        dist.all_reduce(torch.ones(1), group=groups[1])
    with c10d._coalescing_manager(groups[2], torch.device("cpu"), async_ops=True) as several:
        dist.all_gather([torch.ones(1) for _ in range(size)], torch.ones(1), group=groups[2], async_op=True)
        dist.barrier(groups[2], async_op=True)
    with pytest.raises(hpcomm.WaitTimeoutError, match=over(size)):
        several.wait()
    with pytest.raises(hpcomm.WaitTimeoutError, match="in 50 ms"):
        dist.monitored_barrier(groups[3], timeout=SHORT)
    give_up(*groups[:3])
    dist.barrier()


class InterruptedWaitError(Exception):
    pass


WAITS = "_poll_until", "_wait_in_core"  # a signal that comes when it has not begun to wait leaves it posted


@pytest.mark.parametrize("source", [1, None], ids=["of a rank", "of anybody"])
@pytest.mark.parametrize("by", ["memory", "messages"])
def test_a_blocking_receive_that_ends_without_its_message_leaves_it_to_the_next_one(
    by: str, source: int | None, rank: int
) -> None:
    """And one that its caller holds stays under way."""
    group: Any = dist.new_group(timeout=LONG)
    if by == "messages":
        group._mail = None
    if rank == 0:
        given_up = [torch.zeros(1) for _ in range(2)]
        group.set_timeout(SHORT)
        with pytest.raises(hpcomm.WaitTimeoutError, match=r"recv\("):
            dist.recv(given_up[0], source, group)
        group.set_timeout(LONG)

        def interrupt(number: int, frame: FrameType | None) -> None:
            if any(each.f_code.co_name in WAITS for each, _ in walk_stack(frame)):
                raise InterruptedWaitError
            signal.setitimer(signal.ITIMER_REAL, 0.05)  # it has not come so far yet

        before = signal.signal(signal.SIGALRM, interrupt)
        try:
            for _ in range(100):
                signal.setitimer(signal.ITIMER_REAL, 0.002)
                with pytest.raises(InterruptedWaitError):
                    dist.recv(given_up[1], source, group)
        finally:
            signal.signal(signal.SIGALRM, before)
        assert not group.under_way
        held: Any = dist.irecv(x := torch.zeros(1), source, group)
        with pytest.raises(hpcomm.WaitTimeoutError):
            held.wait(SHORT)
    dist.barrier()
    if rank == 1:
        for i in (1.0, 2.0):
            dist.send(torch.full((1,), i), 0, group)
    elif rank == 0:
        held.wait()
        dist.recv(y := torch.zeros(1), source, group)
        assert (x.item(), y.item()) == (1, 2)
        assert not any(given_up)
    dist.barrier()


@pytest.mark.parametrize("error", [None, hpcomm.WaitTimeoutError("late"), InterruptedWaitError()], ids=str)
def test_a_message_that_comes_as_its_receive_is_taken_back_counts(
    error: Exception | None, rank: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wait ends when the message is there already."""
    store, key = c10d._get_default_store(), f"rank 0 waits, {error}"
    if rank == 1:
        store.wait([key])
        dist.send(torch.ones(1), 0)
    elif rank == 0:

        def ends(work: Any, *_: object) -> None:
            store.set(key, "yes")
            while not work._request.done():
                time.sleep(1e-3)
            if error is not None:
                raise error

        for kind, wait in ((MessageWork, "_poll_until"), (NodeMessageWork, "_wait_in_core")):
            monkeypatch.setattr(kind, wait, ends)
        x = torch.zeros(1)
        if isinstance(error, InterruptedWaitError):
            with pytest.raises(InterruptedWaitError) as told:
                dist.recv(x, 1)
            assert "was interrupted, but is complete" in told.value.__notes__[0]
        else:
            assert dist.recv(x, 1) == 1
        assert x.item() == 1
    dist.barrier()


def test_who_does_not_come_is_named_with_what_it_does_instead(world: Any, rank: int, size: int) -> None:
    group: Any = dist.new_group(timeout=SHORT)
    if rank == 0:
        until_all_others_wait(world, rank)
        with pytest.raises(hpcomm.WaitTimeoutError, match=over(size)) as told:
            dist.all_reduce(torch.ones(2), group=group)
        for other in range(1, size) if group.entry.node is not None else ():
            row = rf"\n  rank {other}: all_reduce\(float32 \(3,\), op='sum'\) at test_timeouts.py:\d+"
            assert re.search(row, str(told.value))
    dist.all_reduce(torch.ones(3))
    give_up(group)


def test_a_call_that_waits_for_long_is_reported_as_those_of_communicators(
    world: Any, rank: int, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, x = c10d._get_default_store(), torch.ones(3)
    makes = {
        "all_reduce": lambda: dist.all_reduce(x),
        "broadcast": lambda: dist.broadcast(x, 1, async_op=True).wait(),
    }
    if rank == 0:
        monkeypatch.setattr(watchdog.current.reporter, "stall_s", 0.2)  # type: ignore[union-attr]
    for verb, make in makes.items():
        if rank == 0:
            monkeypatch.setattr(runtime, "_write", lambda stream, text, verb=verb: store.set(verb, text))
        else:
            store.wait([verb])
        make()
        said = store.get(verb).decode()
        assert re.search(rf"{verb}\(.* at test_timeouts.py:\d+ on 'world' has waited \d+ s", said), said
        assert world.entry.node is None or "\n  for rank 1: not in a call of hpcomm" in said


def test_making_a_group_takes_no_longer_than_the_groups_timeout(
    world: Any, rank: int, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ranks in MPI cannot be called back: the job ends, with what each of the group's ranks does."""
    monkeypatch.setattr(deadline, "NETWORK_PATIENCE_S", 0.0)
    store, everybody = c10d._get_default_store(), list(range(size))
    made = re.escape(f"new_group({everybody}) at test_timeouts.py")
    rows = [f"  rank {other}: {made}" for other in range(1, size - 1)]
    rows += [f"  rank {size - 1}: not in a call of hpcomm, .*at test_timeouts.py"]
    told: list[str] = []

    def say(text: str) -> None:
        if world.entry.node is None or all(re.search(row, text) for row in rows):
            told.append(text)
            store.set("a group is late", "yes")

    monkeypatch.setattr(runtime, "abort", say if rank == 0 else lambda text: None)
    while rank == size - 1 and not store.check(["a group is late"]):
        time.sleep(0.01)
    dist.new_group(everybody, timeout=SHORT)
    dist.barrier()
    if rank == 0:
        said = (
            r"WaitTimeoutError: making group '\S+' of \[0, .*\] on 'world' stands in MPI for more than 0.05 s"
        )
        assert re.match(said, told[0])
