"""torch.distributed with backend "mpi" on CUDA tensors of a real GPU; 1 to 4 ranks may share one.

Run:  hpcomm run -n 2 python -m pytest --with-mpi tests/gpu
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import hpcomm

torch = pytest.importorskip("torch")
dist = pytest.importorskip("torch.distributed")

pytestmark = [pytest.mark.gpu, pytest.mark.mpi]
SIZES = [1, 1000, 3 << 20]  # elements of a block: staged, and past the bound of large calls
DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.int64]


@pytest.fixture(scope="module", autouse=True)
def group() -> Iterator[None]:
    if not torch.cuda.is_available():
        pytest.skip("this torch has no CUDA")
    import hpcomm.torch_backend  # noqa: F401  not needed where hpcomm is installed

    dist.init_process_group("mpi")
    yield
    dist.destroy_process_group()


def block(n: int, seed: int, dtype: Any = torch.float32) -> Any:
    """Small whole numbers, which every order of summing gives exactly; on the host."""
    made = torch.randint(-9, 9, (n,), generator=torch.Generator().manual_seed(seed))
    return made.to(dtype)


def ranks() -> list[int]:
    return list(range(dist.get_world_size()))


def same(got: Any, wanted: Any) -> None:
    assert got.is_cuda
    assert torch.equal(got.cpu(), wanted)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("n", SIZES)
def test_reductions(n: int, dtype: Any) -> None:
    parts = [block(n, r, dtype) for r in ranks()]
    mine, last = parts[dist.get_rank()], ranks()[-1]
    for op, fold in (("SUM", lambda s: s.sum(0).to(dtype)), ("MAX", lambda s: s.max(0).values)):
        x = mine.cuda()
        dist.all_reduce(x, getattr(dist.ReduceOp, op))
        same(x, fold(torch.stack(parts)))
        x = mine.cuda()
        dist.reduce(x, last, getattr(dist.ReduceOp, op))
        if dist.get_rank() == last:
            same(x, fold(torch.stack(parts)))


@pytest.mark.parametrize("n", SIZES)
def test_blocks_are_gathered_scattered_and_exchanged(n: int) -> None:
    rank, p = dist.get_rank(), dist.get_world_size()
    parts = [block(n, r) for r in ranks()]
    out = torch.full((p * n,), float("nan"), device="cuda")
    dist.all_gather_into_tensor(out, parts[rank].cuda())
    same(out, torch.cat(parts))
    outs = [torch.full((n,), float("nan"), device="cuda") for _ in ranks()]
    dist.all_gather(outs, parts[rank].cuda())
    same(torch.cat(outs), torch.cat(parts))
    whole = [block(p * n, 10 + r) for r in ranks()]
    out = torch.full((n,), float("nan"), device="cuda")
    dist.reduce_scatter_tensor(out, whole[rank].cuda())
    same(out, torch.stack(whole).sum(0).view(p, n)[rank])
    out = torch.full((p * n,), float("nan"), device="cuda")
    dist.all_to_all_single(out, whole[rank].cuda())
    same(out, torch.cat([each.view(p, n)[rank] for each in whole]))
    gathered = [torch.empty(n, device="cuda") for _ in ranks()] if rank == 0 else None
    dist.gather(parts[rank].cuda(), gathered)
    if gathered is not None:
        same(torch.cat(gathered), torch.cat(parts))
    out = torch.full((n,), float("nan"), device="cuda")
    dist.scatter(out, [each.cuda() for each in parts] if rank == 0 else None)
    same(out, parts[rank])


@pytest.mark.parametrize("n", SIZES)
def test_messages_and_broadcasts(n: int) -> None:
    rank, p = dist.get_rank(), dist.get_world_size()
    x = block(n, 5).cuda() if rank == 0 else torch.full((n,), float("nan"), device="cuda")
    dist.broadcast(x, 0)
    same(x, block(n, 5))
    if p == 1:
        return
    x, out = block(n, rank).cuda(), torch.full((n,), float("nan"), device="cuda")
    work = dist.isend(x, (rank + 1) % p)
    dist.recv(out, (rank - 1) % p)
    work.wait()
    x.zero_()
    same(out, block(n, (rank - 1) % p))


def test_a_strided_tensor_is_reduced_where_it_lies() -> None:
    x = torch.arange(8.0, device="cuda")
    dist.all_reduce(x[::2])
    wanted = torch.arange(8.0)
    wanted[::2] *= dist.get_world_size()
    same(x, wanted)


@pytest.mark.parametrize("n", SIZES)
def test_a_background_call_is_in_order_with_the_stream_it_was_made_on(n: int) -> None:
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        x = block(n, dist.get_rank()).cuda()
        torch.cuda._sleep(1 << 20)
        x += 1
        work = dist.all_reduce(x, async_op=True)
        work.wait()
        x *= 2
    stream.synchronize()
    same(x, 2 * sum(block(n, r) + 1 for r in ranks()))


def test_ddp_averages_gradients() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 512), torch.nn.ReLU(), torch.nn.Linear(512, 8)).cuda()
    parallel = torch.nn.parallel.DistributedDataParallel(model)
    data = [torch.randn(16, 64, generator=torch.Generator().manual_seed(r)).cuda() for r in ranks()]
    parallel(data[dist.get_rank()]).square().mean().backward()
    got = [each.grad.clone() for each in model.parameters()]
    model.zero_grad()
    (sum(model(each).square().mean() for each in data) / len(data)).backward()
    for mine, wanted in zip(got, model.parameters(), strict=True):
        torch.testing.assert_close(mine, wanted.grad, rtol=1e-4, atol=1e-6)


def test_the_communicator_and_the_group_agree_on_one_tensor() -> None:
    x = block(1000, dist.get_rank(), torch.bfloat16).cuda()
    y = hpcomm.world.all_reduce(x)
    dist.all_reduce(x)
    assert torch.equal(x, y)
