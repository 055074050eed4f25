"""What stands on torch.distributed stands on MPI: DDP, FSDP2, DTensor, ZeRO, checkpoints, autograd."""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STEPS, ROWS = 4, 12  # ROWS: samples of a whole batch; 1, 2, 3 and 4 ranks divide it
pytestmark = pytest.mark.filterwarnings("ignore")  # torch's own, of what it means to rename


class Net(nn.Module):
    def __init__(self, unused: bool = False) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 16), nn.Linear(16, 4)
        self.extra = nn.Linear(16, 16) if unused else None

    def forward(self, x: torch.Tensor, extra: bool = False) -> torch.Tensor:
        y = self.first(x).relu()
        if extra and self.extra is not None:
            y = self.extra(y)
        return self.last(y)


def batches() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    data = torch.Generator().manual_seed(5)
    for _ in range(STEPS):
        yield torch.randn(ROWS, 8, generator=data), torch.randn(ROWS, 4, generator=data)


def fresh(unused: bool = False) -> Net:
    torch.manual_seed(7)
    return Net(unused)


def alone(model: nn.Module) -> nn.Module:
    """model after training on the whole batches, in this process alone."""
    step = torch.optim.SGD(model.parameters(), 0.1)
    for x, y in batches():
        step.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        step.step()
    return model


def mine(x: torch.Tensor) -> torch.Tensor:
    return x.chunk(dist.get_world_size())[dist.get_rank()]


def close(got: nn.Module, expected: nn.Module) -> None:
    for (name, a), b in zip(got.named_parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"bucket_cap_mb": 0.0005},
        {"find_unused_parameters": True},
        {"static_graph": True},
        {"gradient_as_bucket_view": True},
    ],
    ids=str,
)
def test_ddp_reaches_the_weights_of_one_process(options: dict[str, object]) -> None:
    unused = "find_unused_parameters" in options
    expected = alone(fresh(unused))
    model = DistributedDataParallel(fresh(unused), **options)
    step = torch.optim.SGD(model.parameters(), 0.1)
    for x, y in batches():
        step.zero_grad()
        nn.functional.mse_loss(model(mine(x)), mine(y)).backward()
        step.step()
    close(model.module, expected)


def test_ddp_gives_weights_of_the_same_bits_for_buckets_of_any_size() -> None:
    found = []
    for cap in (0.0001, 0.001, 25):
        model = DistributedDataParallel(fresh(), bucket_cap_mb=cap)
        step = torch.optim.SGD(model.parameters(), 0.1)
        for x, y in batches():
            step.zero_grad()
            nn.functional.mse_loss(model(mine(x)), mine(y)).backward()
            step.step()
        found.append(torch.cat([weights.detach().view(-1) for weights in model.parameters()]))
    assert [int((weights != found[0]).sum()) for weights in found] == [0, 0, 0]


def test_ddp_accumulates_without_synchronising() -> None:
    expected = fresh()
    model = DistributedDataParallel(fresh())
    for i, (x, y) in enumerate(batches()):
        nn.functional.mse_loss(expected(x), y).backward()
        if i < STEPS - 1:
            with model.no_sync():
                nn.functional.mse_loss(model(mine(x)), mine(y)).backward()
        else:
            nn.functional.mse_loss(model(mine(x)), mine(y)).backward()
    for a, b in zip(model.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("hook", ["allreduce_hook", "fp16_compress_hook", "powerSGD"])
def test_ddp_comm_hooks(hook: str) -> None:
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

    model = DistributedDataParallel(fresh())
    if hook == "powerSGD":
        state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=2)
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    else:
        model.register_comm_hook(None, getattr(default_hooks, hook))
    x, y = next(batches())
    nn.functional.mse_loss(model(mine(x)), mine(y)).backward()
    expected = fresh()
    nn.functional.mse_loss(expected(x), y).backward()
    loose = 3e-2 if "16" in hook else 1e-5
    for a, b in zip(model.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=loose, atol=loose)
    for x, y in batches():
        nn.functional.mse_loss(model(mine(x)), mine(y)).backward()


def test_ddp_join_with_uneven_inputs(rank: int) -> None:
    """At the end all ranks have the weights of the one that went on longest."""
    model = DistributedDataParallel(fresh())
    step = torch.optim.SGD(model.parameters(), 0.01)
    with model.join():
        for _ in range(rank + 1):
            step.zero_grad()
            model(torch.ones(2, 8)).sum().backward()
            step.step()
    weights = [torch.empty(16, 8) for _ in range(dist.get_world_size())]
    dist.all_gather(weights, model.module.first.weight.detach())
    for other in weights:
        torch.testing.assert_close(other, weights[0])
    assert not weights[0].equal(fresh().first.weight)


def test_ddp_refuses_models_that_differ(rank: int, size: int) -> None:
    """torch itself lets rank 0 go on; it then waits for the others, but not for ever."""
    group = dist.new_group(list(range(size)))
    dist.distributed_c10d._set_pg_timeout(timedelta(seconds=1.5), group)  # not for making it
    dist.barrier()
    words = r"waited [\d.]+ s for rank" if rank == 0 else r"params\[0\] in this process"
    with pytest.raises(RuntimeError, match=words):
        DistributedDataParallel(nn.Linear(3 + rank, 2), process_group=group)


@pytest.mark.parametrize("hooked", [False, True], ids=["plain", "hook"])
def test_ddp_names_a_rank_that_does_not_come(hooked: bool, rank: int, size: int) -> None:
    """DDP waits for futures in C++, which knows errors, but not a future's set_exception()."""
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    group = dist.new_group(list(range(size)))
    model = DistributedDataParallel(nn.Linear(3, 2), process_group=group)
    dist.distributed_c10d._set_pg_timeout(timedelta(seconds=1), group)  # not for making either
    dist.barrier()
    if hooked:
        model.register_comm_hook(group, default_hooks.allreduce_hook)
    if rank != size - 1:
        with pytest.raises(RuntimeError, match=rf"(?s)all_reduce\(.*waited .* s for rank {size - 1}\n"):
            model(torch.ones(1, 3)).sum().backward()
    dist.barrier()


def test_batches_of_a_sampler_are_shared_out(rank: int, size: int) -> None:
    data = torch.utils.data.TensorDataset(torch.arange(float(ROWS)))
    sampler = torch.utils.data.DistributedSampler(data, shuffle=True, seed=3)
    seen = torch.tensor([float(x) for (x,) in torch.utils.data.DataLoader(data, sampler=sampler)])
    everything = torch.empty(ROWS)
    dist.all_gather_into_tensor(everything, seen)
    assert sorted(everything.tolist()) == list(range(ROWS))


@pytest.mark.skipif(
    not hasattr(torch.cpu.Stream, "record_event"), reason="torch 2.6 shards on an accelerator only"
)
def test_fully_shard_reaches_the_weights_of_one_process() -> None:
    from torch.distributed.fsdp import fully_shard

    expected = alone(fresh())
    model = fresh()
    mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
    for part in (model.first, model.last):
        fully_shard(part, mesh=mesh)
    fully_shard(model, mesh=mesh)
    step = torch.optim.SGD(model.parameters(), 0.1)
    for x, y in batches():
        step.zero_grad()
        nn.functional.mse_loss(model(mine(x)), mine(y)).backward()
        step.step()
    for (name, shard), whole in zip(model.named_parameters(), expected.parameters(), strict=True):
        got = shard.full_tensor()
        torch.testing.assert_close(got, whole, rtol=1e-4, atol=1e-6, msg=lambda t, name=name: f"{name}: {t}")


def test_tensor_parallel_layers(size: int) -> None:
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = dist.init_device_mesh("cpu", (size,), mesh_dim_names=("tp",))
    expected, model = fresh(), fresh()
    nn.init.zeros_(model.last.bias)
    nn.init.zeros_(expected.last.bias)
    if 16 % size:
        pytest.skip("16 hidden units do not divide among the ranks")
    parallelize_module(model, mesh["tp"], {"first": ColwiseParallel(), "last": RowwiseParallel()})
    x, y = next(batches())
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    reference = nn.functional.mse_loss(expected(x), y)
    reference.backward()
    torch.testing.assert_close(loss, reference)
    torch.testing.assert_close(model.first.weight.grad.full_tensor(), expected.first.weight.grad)


def test_dtensors_change_their_placement(rank: int, size: int) -> None:
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh = dist.init_device_mesh("cpu", (size,))
    whole = torch.arange(float(size * size * 6)).reshape(size * 2, size * 3)
    spread = distribute_tensor(whole, mesh, [Shard(0)])
    assert spread.to_local().shape == (2, size * 3)
    turned = spread.redistribute(mesh, [Shard(1)])
    assert turned.to_local().equal(whole[:, rank * 3 : rank * 3 + 3])
    assert turned.redistribute(mesh, [Replicate()]).to_local().equal(whole)
    assert (spread @ spread.t()).full_tensor().equal(whole @ whole.t())


def test_a_mesh_of_two_axes(rank: int, size: int) -> None:
    if size != 4:
        pytest.skip("four ranks")
    mesh = dist.init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    for axis, stride in (("dp", 2), ("tp", 1)):
        x = torch.tensor([float(rank)])
        dist.all_reduce(x, group=mesh[axis].get_group())
        partner = rank ^ stride
        assert x.item() == rank + partner


def test_zero_redundancy_optimizer_reaches_the_same_weights() -> None:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    expected = alone(fresh())
    model = DistributedDataParallel(fresh())
    step = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1)
    for x, y in batches():
        step.zero_grad()
        nn.functional.mse_loss(model(mine(x)), mine(y)).backward()
        step.step()
    close(model.module, expected)


def test_a_checkpoint_is_saved_and_loaded_on_another_number_of_ranks(
    rank: int, size: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    from torch.distributed import checkpoint
    from torch.distributed.tensor import Shard, distribute_tensor

    place = [str(tmp_path_factory.mktemp("checkpoint")) if rank == 0 else None]
    dist.broadcast_object_list(place, 0)
    whole = torch.arange(24.0).reshape(12, 2)
    mesh = dist.init_device_mesh("cpu", (size,))
    checkpoint.save({"x": distribute_tensor(whole, mesh, [Shard(0)])}, checkpoint_id=place[0])
    assert place[0] is not None
    assert len(list(Path(place[0]).iterdir())) >= 2
    few = list(range(max(size - 1, 1)))
    group = dist.new_group(few)
    if rank in few:
        smaller = dist.device_mesh.DeviceMesh.from_group(group, "cpu")
        state = {"x": distribute_tensor(torch.zeros(12, 2), smaller, [Shard(0)])}
        checkpoint.load(state, checkpoint_id=place[0], process_group=group)
        assert state["x"].full_tensor().equal(whole)
    dist.barrier()


def test_differentiable_collectives(rank: int, size: int) -> None:
    from torch.distributed import nn as dnn

    x = torch.full((2,), rank + 1.0, requires_grad=True)
    dnn.all_reduce(x * 2, group=dist.group.WORLD).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [2.0 * size] * 2
    y = torch.full((1,), float(rank), requires_grad=True)
    gathered = dnn.all_gather(y, group=dist.group.WORLD)
    (gathered[0] * 3 + gathered[-1]).backward()
    assert y.grad is not None
    assert y.grad.item() == 3 * size * (rank == 0) + size * (rank == size - 1)


def test_functional_collectives(rank: int, size: int) -> None:
    from torch.distributed import _functional_collectives as functional

    group = dist.group.WORLD
    x = torch.full((2,), float(rank))
    total = size * (size - 1) / 2
    assert functional.all_reduce(x, "sum", group).tolist() == [total] * 2
    assert functional.all_gather_tensor(x, 0, group).tolist() == [
        float(r) for r in range(size) for _ in (0, 1)
    ]
    assert functional.reduce_scatter_tensor(x.repeat(size), "sum", 0, group).tolist() == [total] * 2
    swapped = functional.all_to_all_single(torch.arange(float(size)) + 10 * rank, None, None, group)
    assert swapped.tolist() == [10.0 * r + rank for r in range(size)]
    assert functional.broadcast(x, size - 1, group).tolist() == [size - 1.0] * 2
    both = functional.all_reduce_coalesced([x, x + 1], "sum", group)
    assert [each[0].item() for each in both] == [total, total + size]


def test_collectives_under_compile(rank: int, size: int) -> None:
    from torch.distributed import _functional_collectives as functional

    @torch.compile(backend="aot_eager", fullgraph=True)
    def step(x: torch.Tensor) -> torch.Tensor:
        y = functional.all_reduce(x * 2, "sum", dist.group.WORLD)
        return y + 1

    assert step(torch.full((3,), float(rank))).tolist() == [size * (size - 1) + 1.0] * 3


def test_a_pipeline_of_two_stages(rank: int) -> None:
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

    model = fresh()
    parts = [nn.Sequential(model.first, nn.ReLU()), nn.Sequential(model.last)]
    if rank < 2:
        pair = dist.new_group([0, 1], use_local_synchronization=True)
        stage = PipelineStage(parts[rank], rank, 2, torch.device("cpu"), group=pair)
        schedule = ScheduleGPipe(stage, n_microbatches=3, loss_fn=nn.functional.mse_loss)
        x, y = next(batches())
        losses: list[torch.Tensor] = []
        out = schedule.step(x) if rank == 0 else schedule.step(target=y, losses=losses)
        if rank == 1:
            torch.testing.assert_close(out, copy.deepcopy(model)(x))
            assert len(losses) == 3
    dist.barrier()


@pytest.mark.parametrize("method", ["allgather", "alltoall"])
@pytest.mark.parametrize("causal", [False, True])
def test_context_parallel_attention_is_that_of_the_whole_sequence(
    method: str, causal: bool, rank: int, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its loop over blocks that go round; context_parallel() itself has only operators of accelerators."""
    cp = pytest.importorskip("torch.distributed.tensor.experimental._attention")
    ring = sys.modules[cp.set_rotate_method.__module__]
    cp.set_rotate_method(method)
    monkeypatch.setattr(ring._cp_options, "enable_load_balance", False)
    torch.manual_seed(1)
    whole = torch.randn(3, 2, 4, 8 * size, 16)
    here = whole.chunk(size, dim=3)[rank]
    attend = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    got, _ = ring._templated_ring_attention(dist.group.WORLD, 2, attend, *here, is_causal=causal)
    expected = nn.functional.scaled_dot_product_attention(*whole, is_causal=causal)
    torch.testing.assert_close(got, expected.chunk(size, dim=2)[rank])


def test_averaged_models_and_statistics(rank: int, size: int) -> None:
    model = fresh()
    with torch.no_grad():
        model.first.weight.fill_(rank)
    from torch.distributed.algorithms.model_averaging.utils import average_parameters

    average_parameters(iter(model.parameters()), dist.group.WORLD)
    torch.testing.assert_close(model.first.weight, torch.full((16, 8), (size - 1) / 2))
