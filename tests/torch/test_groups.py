"""Groups: sub-groups, beside gloo, made by their members alone, split, ended, made anew."""

from __future__ import annotations

import importlib
import inspect
import os
import warnings
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

import hpcomm
from hpcomm.torch_backend import factory, torch_errors
from hpcomm.torch_backend.collectives import NetworkCollectives


def total(group: dist.ProcessGroup | None, value: float) -> float:
    x = torch.full((2,), value)
    dist.all_reduce(x, group=group)
    return float(x[0])


def test_mpi_is_available_and_named(world: dist.ProcessGroup) -> None:
    assert dist.is_mpi_available()
    assert dist.is_backend_available("mpi")
    assert dist.get_backend() == "mpi"
    assert (dist.get_rank(), dist.get_world_size()) == (hpcomm.world.rank, hpcomm.world.size)
    assert world.name() == "mpi"
    assert world._get_backend_name() == "mpi"


def test_several_groups_created_in_one_order_on_all_ranks(rank: int, size: int) -> None:
    groups = {
        ranks: dist.new_group(list(ranks)) for ranks in [(0, 1), (1, 0), (size - 1,), tuple(range(size))]
    }
    for ranks, group in groups.items():
        if rank in ranks:
            assert total(group, rank) == sum(ranks)
            assert dist.get_process_group_ranks(group) == sorted(ranks)
            dist.barrier(group)
    broadcast = torch.tensor([float(rank)])
    if rank in (0, 1):
        dist.broadcast(broadcast, src=1, group=groups[0, 1])
        assert broadcast.item() == 1
        dist.destroy_process_group(groups[0, 1])


def test_gloo_beside_mpi(rank: int, size: int) -> None:
    group = dist.new_group(list(range(size)), backend="gloo")
    assert total(group, rank) == size * (size - 1) / 2
    assert dist.get_backend(group) == "gloo"
    dist.monitored_barrier(group, timeout=timedelta(seconds=10))


@pytest.mark.filterwarnings("ignore:.*coalesced:FutureWarning")
def test_coalesced_calls_of_another_backend_are_its_own(
    rank: int, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """gloo serves the host here."""
    c10d: Any = dist.distributed_c10d
    group: Any = dist.new_group(backend="cpu:gloo,cuda:mpi")
    monkeypatch.setattr(group, "_call", None)
    xs = [torch.full((1,), rank + 1.0), torch.full((2,), rank + 2.0)]
    rows = [torch.zeros(size), torch.zeros(2 * size)]
    with c10d._coalescing_manager(group):
        for row, x in zip(rows, xs, strict=True):
            dist.all_gather_into_tensor(row, x, group=group)
    assert rows[1][-1].item() == size + 1
    with c10d._coalescing_manager(group):
        for x, row in zip(xs, rows, strict=True):
            dist.reduce_scatter_tensor(x, row, group=group)
    assert xs[0].item() == size * (rank + 1)
    lists = [[torch.zeros(1), torch.zeros(2)] for _ in range(size)]
    dist.all_gather_coalesced(lists, xs, group=group)
    assert lists[-1][0].item() == size * size


def test_a_group_that_only_its_members_make(rank: int, size: int) -> None:
    if rank < 2:
        group = dist.new_group([0, 1], use_local_synchronization=True)
        assert dist.get_backend(group) == "mpi"
        assert total(group, rank) == 1
        dist.destroy_process_group(group)
    dist.barrier()
    later = dist.new_group(list(range(size)), backend="gloo")  # names still agree
    assert total(later, 1.0) == size


def test_subgroups_and_split_groups(rank: int, size: int) -> None:
    """They end here: on ranks with other groups torch names each otherwise, and ends all in turn by names."""
    mine, _ = dist.new_subgroups(group_size=1)
    assert total(mine, rank) == rank
    halves = [list(range(size // 2)), list(range(size // 2, size))]
    part = dist.split_group(split_ranks=halves)
    ours = halves[rank >= size // 2]
    assert total(part, rank) == sum(ours)
    alone = dist.split_group(split_ranks=[[0]])
    assert (alone is not None) == (rank == 0)
    for group in filter(None, (alone, part, mine)):
        dist.destroy_process_group(group)


def test_the_store_of_a_group(rank: int, size: int) -> None:
    store = dist.distributed_c10d._get_default_store()
    store.set(f"key {rank}", str(rank))
    store.wait([f"key {r}" for r in range(size)], timedelta(seconds=10))
    assert store.get(f"key {size - 1}") == str(size - 1).encode()
    assert store.add("count", 1) >= 1


def test_options_that_have_no_effect_give_a_warning(world: dist.ProcessGroup, rank: int, size: int) -> None:
    """None is no option; and where another backend takes them they count there."""
    options = dist.ProcessGroupGloo._Options()
    for make in (
        lambda: dist.new_group(pg_options=options),
        lambda: dist.split_group(split_ranks=[list(range(size))], pg_options=options),
    ):
        with pytest.warns(UserWarning, match=r"pg_options= has no effect: backend 'mpi' has no") as told:
            group = make()
        assert total(group, 1.0) == size
        assert told[0].filename == __file__
        dist.destroy_process_group(group)  # as in test_subgroups_and_split_groups
    assert total(dist.new_group(pg_options=None), 1.0) == size
    dist.destroy_process_group()
    with pytest.warns(UserWarning, match=r"pg_options= has no effect"):
        dist.init_process_group("mpi", pg_options=options, timeout=timedelta(seconds=15))
    assert total(None, 1.0) == size


def test_the_end_and_a_new_beginning(rank: int, size: int) -> None:
    for _ in range(3):
        dist.destroy_process_group()
        assert not dist.is_initialized()
        dist.init_process_group("mpi", timeout=timedelta(seconds=15))
        assert total(None, 1.0) == size


@pytest.mark.parametrize("backend", ["MPI", "cpu:mpi", "cpu:mpi,cuda:mpi"])
def test_each_spelling_of_the_backend(backend: str, rank: int, size: int) -> None:
    dist.destroy_process_group()
    dist.init_process_group(backend, timeout=timedelta(seconds=15))
    try:
        assert total(None, rank) == size * (size - 1) / 2
        dist.barrier()
        got: list[object] = [None] * size
        dist.all_gather_object(got, rank)
        assert got == list(range(size))
        if rank < 2:
            pair = dist.new_group([0, 1], use_local_synchronization=True)
            assert total(pair, 1.0) == 2
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize("backend", ["mpi", "cpu:mpi", "gloo"])
def test_env_as_init_method(backend: str, rank: int, size: int) -> None:
    """As tutorials spell it: what env:// reads was set from MPI."""
    dist.destroy_process_group()
    dist.init_process_group(backend, init_method="env://", timeout=timedelta(seconds=15))
    try:
        assert (dist.get_rank(), dist.get_world_size()) == (rank, size)
        assert total(None, rank) == size * (size - 1) / 2
        dist.barrier()
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize("backend", ["mpi", "cpu:mpi"])
@pytest.mark.filterwarnings("ignore:For MPI backend, world_size:UserWarning")
def test_under_a_launcher_mpis_numbers_hold_and_a_warning_names_both(
    backend: str, rank: int, size: int
) -> None:
    """Zeros are torch's own recipe for MPI; "0" of "1" is what programs take where RANK is not set."""
    store = dist.distributed_c10d._get_default_store()
    ways: list[tuple[int, int, dict[str, Any]]] = [
        (0, 0, {}),
        (0, 1, {"init_method": "env://"}),
        (0, size, {"init_method": "tcp://127.0.0.1:1"}),
        (rank, size + 1, {"store": store}),
        (rank, size, {"store": store}),
    ]
    for told_rank, told_size, way in ways:
        dist.destroy_process_group()
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            dist.init_process_group(backend, rank=told_rank, world_size=told_size, **way)
        told = f"say rank {told_rank} of {told_size}, MPI says rank {rank} of {size}: MPI's numbers hold"
        found = [each.filename for each in said if told in str(each.message)]
        assert found == [__file__] * ((told_rank, told_size) != (rank, size)), [str(x.message) for x in said]
        assert (dist.get_rank(), dist.get_world_size()) == (rank, size)
        assert total(None, rank) == size * (size - 1) / 2
    assert total(dist.new_group(backend="gloo"), rank) == size * (size - 1) / 2


def _square(x: torch.Tensor) -> torch.Tensor:
    return x * x


@pytest.mark.filterwarnings("ignore:You are using a Backend:UserWarning")  # torch itself does
def test_rpc_and_distributed_autograd_come_after_it(rank: int, size: int) -> None:
    """Their own rendezvous is at MASTER_PORT, where this backend's store is."""
    dist.destroy_process_group()
    dist.init_process_group("mpi")
    rpc: Any = importlib.import_module("torch.distributed.rpc")
    autograd: Any = importlib.import_module("torch.distributed.autograd")
    rpc.init_rpc(f"worker-{rank}", rank=rank, world_size=size)
    try:
        x = torch.full((2,), rank + 2.0, requires_grad=True)
        with autograd.context() as context:
            y = rpc.rpc_sync(f"worker-{(rank + 1) % size}", _square, args=(x,))
            autograd.backward(context, [y.sum()])
            assert autograd.get_gradients(context)[x].tolist() == [2 * (rank + 2.0)] * 2
            rpc.api._barrier({f"worker-{each}" for each in range(size)})
    finally:
        rpc.shutdown()
    assert total(None, rank) == size * (size - 1) / 2


def test_torchs_own_functions_take_arguments_by_position_and_by_name(rank: int, size: int) -> None:
    """Each argument once this way and once that, up to the last that this torch has."""
    c10d: Any = dist.distributed_c10d
    store = c10d._get_default_store()
    for given in range(1, 8):
        names = ("group_size", "group_rank", "global_ranks_in_group", "backend", "store", "group_name")
        values = (size, rank, [], c10d.Backend("mpi"), dist.PrefixStore(f"of {given}", store), f"of {given}")
        named = dict(zip(names[given:], values[given:], strict=True))
        group, _ = c10d._new_process_group_helper(*values[:given], **named, timeout=c10d.default_pg_timeout)
        c10d._world.pg_group_ranks[group] = {each: each for each in range(size)}
        assert total(group, rank) == size * (size - 1) / 2
        assert group.group_name == f"of {given}"
    everybody, wait = list(range(size)), timedelta(seconds=30)
    # new_group's and its kin's last ones have come with the years
    given = dict.fromkeys(inspect.signature(c10d._new_group_with_tag).parameters)
    given.update(ranks=everybody, timeout=wait, use_local_synchronization=True, group_desc="ours")
    if "sort_ranks" in given:
        given["sort_ranks"] = True
    for group in (c10d._new_group_with_tag(**given), c10d._new_group_with_tag(*given.values())):
        assert total(group, rank) == size * (size - 1) / 2
        assert (group.group_desc, dist.get_backend(group)) == ("ours", "mpi")
    dist.monitored_barrier(group, wait, False)
    dist.monitored_barrier(group=group, timeout=wait, wait_all_ranks=True)
    for part in (
        dist.split_group(group, [everybody], wait, None, "parts"),
        dist.split_group(parent_pg=group, split_ranks=[everybody], timeout=wait, group_desc="parts"),
    ):
        assert total(part, rank) == size * (size - 1) / 2
        assert part.group_desc == "parts"
    with pytest.raises(TypeError, match="group_name"):
        c10d._new_process_group_helper(size, rank, [], c10d.Backend("mpi"), store)


def flat(tensors: Any) -> list[torch.Tensor]:
    """The elements of tensors in lists, lists of lists, ..."""
    if isinstance(tensors, torch.Tensor):
        return [*tensors]
    return [x for each in tensors for x in flat(each)]


def overloads(rank: int, size: int) -> list[tuple[str, dict[str, Any], Any]]:
    """(call, arguments by torch's names in torch's order, what is then in the first) of all overloads."""
    out, outs = torch.zeros(size), [torch.zeros(1) for _ in range(size)]
    x, xs, top = (
        torch.full((1,), rank + 1.0),
        [torch.full((1,), rank + 1.0) for _ in range(size)],
        dist.ReduceOp.MAX,
    )
    all_of, total = [r + 1.0 for r in range(size)], size * (size + 1) / 2
    root = dist.BroadcastOptions()
    root.rootRank = size - 1
    of = {name: getattr(dist, f"{name}Options")() for name in ("Allreduce", "Reduce", "Scatter", "Gather")}
    for each in ("Reduce", "Scatter", "Gather"):
        of[each].rootRank = size - 1
    last = rank == size - 1
    wait = timedelta(seconds=30)
    y = x.clone
    calls: list[tuple[str, dict[str, Any], Any]] = [
        ("allreduce", {"tensors": [y()], "opts": of["Allreduce"]}, [total]),
        ("allreduce", {"tensors": [y()], "op": top, "timeout": wait}, [size]),
        ("allreduce", {"tensor": y(), "op": top, "timeout": wait}, [size]),
        ("broadcast", {"tensors": [y()], "opts": root}, [size]),
        ("broadcast", {"tensor": y(), "root": size - 1, "timeout": wait}, [size]),
        ("reduce", {"tensors": [y()], "opts": of["Reduce"]}, [total] if last else None),
        ("reduce", {"tensor": y(), "root": size - 1, "op": top, "timeout": wait}, [size] if last else None),
        ("allgather", {"output_tensors": [outs], "input_tensors": [x]}, all_of),
        ("allgather", {"output_tensors": outs, "input_tensor": x, "timeout": wait}, all_of),
        ("_allgather_base", {"output": out, "input": x}, all_of),
        ("allgather_coalesced", {"output_lists": [[each] for each in outs], "input_list": [x]}, all_of),
        ("allgather_into_tensor_coalesced", {"outputs": [out], "inputs": [x]}, all_of),
        ("gather", {"output_tensors": [outs] if last else [], "input_tensors": [x], "opts": of["Gather"]},
         all_of if last else None),
        ("gather", {"output_tensors": outs if last else [], "input_tensor": x, "root": size - 1,
                    "timeout": wait}, all_of if last else None),
        ("scatter", {"output_tensors": [y()], "input_tensors": [xs] if last else [],
                     "opts": of["Scatter"]}, [size]),
        ("scatter", {"output_tensor": y(), "input_tensors": xs if last else [], "root": size - 1,
                     "timeout": wait}, [size]),
        ("reduce_scatter", {"output_tensors": [y()], "input_tensors": [xs]}, [total]),
        ("reduce_scatter", {"output": y(), "input": xs, "op": top, "timeout": wait}, [size]),
        ("_reduce_scatter_base", {"outputTensor": y(), "inputTensor": torch.cat(xs)}, [total]),
        ("alltoall", {"output_tensors": outs, "input_tensors": xs}, all_of),
        ("alltoall_base", {"output": out, "input": torch.cat(xs), "output_split_sizes": [1] * size,
                           "input_split_sizes": [1] * size, "timeout": wait}, all_of),
        ("barrier", {"timeout": wait}, None),
        ("barrier", {"opts": dist.distributed_c10d.BarrierOptions()}, None),
        ("monitored_barrier", {"timeout": wait, "wait_all_ranks": True}, None),
    ]  # fmt: skip
    return calls


def test_each_overload_of_a_groups_calls_takes_its_arguments_by_name_and_by_position(
    world: dist.ProcessGroup, rank: int, size: int
) -> None:
    for by_name in (True, False):
        for verb, given, result in overloads(rank, size):
            if not by_name and verb == "alltoall_base":
                given.pop("timeout")
            call = getattr(world, verb)
            work = call(**given) if by_name else call(*given.values())
            if work is not None:
                work.wait()
            got = [x.item() for x in flat([next(iter(given.values()))])] if result else None
            assert got == result, (verb, given)
    with pytest.raises(TypeError, match="no such argument: 'rank'"):
        world.broadcast(tensor=torch.ones(1), rank=0)
    x = torch.full((1,), float(rank))
    to = world.send(tensors=[x], dstRank=(rank + 1) % size, tag=3)
    got = torch.zeros(1)
    world.recv(tensors=[got], srcRank=(rank - 1) % size, tag=3).wait()
    to.wait()
    assert got.item() == (rank - 1) % size


def test_env_is_what_libraries_read(rank: int, size: int) -> None:
    assert (os.environ["RANK"], os.environ["WORLD_SIZE"]) == (str(rank), str(size))
    assert int(os.environ["LOCAL_RANK"]) < int(os.environ["LOCAL_WORLD_SIZE"])


def test_the_store_listens_on_the_loopback_address_only(world: dist.ProcessGroup) -> None:
    """All ranks share a node: nobody else has a reason to reach it."""
    dist.barrier()  # whoever serves does so
    port = f":{int(os.environ['MASTER_PORT']):04X}"
    rows = [
        line.split()
        for kind in ("tcp", "tcp6")
        for line in Path(f"/proc/net/{kind}").read_text().splitlines()
    ]
    listening = [row[1] for row in rows if row[3] == "0A" and row[1].endswith(port)]
    assert listening == [f"0100007F{port}"]


def test_gloo_finds_its_ranks_by_mpi_and_has_mpi_groups_beside_it(rank: int, size: int) -> None:
    dist.destroy_process_group()
    dist.init_process_group("gloo", timeout=timedelta(seconds=15))
    try:
        assert (dist.get_rank(), dist.get_world_size()) == (rank, size)
        group = dist.new_group([0, 1], backend="mpi")
        if rank < 2:
            assert total(group, rank) == 1
            assert dist.get_backend(group) == "mpi"
        dist.barrier()  # gloo is still connecting where a rank has had nothing to do
    finally:
        dist.destroy_process_group()


def test_a_monitored_barrier_names_the_missing_ranks(rank: int, size: int) -> None:
    dist.monitored_barrier(timeout=timedelta(seconds=60))
    told: list[Any] = []
    for _ in range(3):  # a machine that is held makes others late as well
        said = f"Rank {size - 1} failed to pass monitoredBarrier in 300 ms"
        dist.barrier()
        if rank == size - 1:
            dist.distributed_c10d._get_default_group().barriers += 1  # so that it may join the next one
        else:
            with pytest.raises(RuntimeError) as caught:
                dist.monitored_barrier(timeout=timedelta(seconds=0.3), wait_all_ranks=True)
            told.append(str(caught.value))
        right: list[Any] = [None] * size
        dist.all_gather_object(right, not told or said in told[-1])
        if all(right):
            break
    else:
        pytest.fail(str(told))
    dist.monitored_barrier(timeout=timedelta(seconds=60))


def test_a_newer_torch_that_fails_where_names_have_moved_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object, **kwargs: object) -> None:
        raise TypeError("create() takes no ranks")

    def call() -> inspect.BoundArguments:
        helper = inspect.signature(dist.distributed_c10d._new_process_group_helper)
        return helper.bind(1, 0, [0], "mpi", None, "x")

    with pytest.raises(TypeError, match="takes no ranks"):
        factory.make(fail, call(), {})
    monkeypatch.setattr(torch_errors, "_NEWEST", (2, 5))
    with pytest.raises(
        hpcomm.ConfigError, match=r"torch .* says create\(\) takes no ranks: its interface .* changed"
    ):
        factory.make(fail, call(), {})


def test_from_torch_and_back(world: dist.ProcessGroup, rank: int, size: int) -> None:
    comm = hpcomm.from_torch(world)
    assert (comm.rank, comm.size) == (rank, size)
    assert comm.all_reduce(np.ones(2)).tolist() == [size] * 2
    assert hpcomm.from_torch(world) is comm
    gloo = dist.new_group(list(range(size)), backend="gloo")
    beside = hpcomm.from_torch(gloo)
    assert beside.all_gather_object(rank) == list(range(size))
    group = hpcomm.world.as_process_group()
    assert total(group, rank) == size * (size - 1) / 2
    assert hpcomm.world.as_process_group() is group
    if rank < 2:
        pair = hpcomm.world.group([1, 0], name="pair")
        turned = pair.as_process_group()
        assert (turned.rank(), turned.size()) == (1 - rank, 2)
        dist.all_reduce(x := torch.ones(2), group=turned)
        assert x.tolist() == [2, 2]
        dist.broadcast(x := torch.full((1,), float(rank)), group=turned, group_src=0)
        assert x.item() == 1
        dist.destroy_process_group(turned)
        pair.close()


def test_a_group_of_one_rank_goes_by_the_core_where_larger_ones_do(world: Any, rank: int, size: int) -> None:
    """As those of a mesh with an axis of length 1."""
    mine: Any = [dist.new_group([r]) for r in range(size)][rank]
    assert (mine.entry.node is None) == (world.entry.node is None)
    x, out = torch.arange(3.0), torch.zeros(1, 3)
    dist.all_reduce(x, group=mine)
    dist.all_gather_into_tensor(out, x, group=mine)
    assert out[0].tolist() == [0, 1, 2]
    dist.destroy_process_group(mine)


@pytest.mark.parametrize("by", ["memory", "messages"])
def test_an_input_that_overlaps_the_output_on_one_rank_only_counts_as_it_was(
    by: str, rank: int, size: int
) -> None:
    group: Any = dist.new_group()
    if by == "messages":
        group.entry.node = group._node = None
        group._by = NetworkCollectives(group.comm, group.entry)
    n = 2 * size

    def own(root: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
        memory = torch.arange(2.0 * n) + 100 * rank
        return (memory[:n], memory[1 : n + 1]) if rank == root else (memory[:n], memory[n:])

    ways = {
        "all_gather": lambda x, out: dist.all_gather(list(out.chunk(size)), x[:2], group),
        "all_gather_single": lambda x, out: dist.all_gather_into_tensor(out, x[:2], group),
        "gather": lambda x, out: dist.gather(x[:2], None if rank else [*out.chunk(size)], 0, group),
        "scatter": lambda x, out: dist.scatter(
            out[:2], [*x.chunk(size)] if not rank else None, 0, group=group
        ),
        "all_to_all": lambda x, out: dist.all_to_all_single(out, x, group=group),
        "exchange": lambda x, out: dist.all_to_all_single(out, x, [2] * size, [2] * size, group=group),
        "reduce_scatter": lambda x, out: dist.reduce_scatter(out[:2], list(x.chunk(size)), group=group),
        "reduce_scatter_single": lambda x, out: dist.reduce_scatter_tensor(out[:2], x, group=group),
    }
    for verb, way in ways.items():
        x, out = own(root=-1)
        way(x, out)
        same, into = own()
        if rank:
            assert same.data_ptr() + same.nbytes <= into.data_ptr()
        way(same, into)
        filled = 2 if "scatter" in verb else n
        if verb != "gather" or not rank:
            assert into[:filled].tolist() == out[:filled].tolist(), verb
