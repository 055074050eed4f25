"""What a reader of a torch.distributed tutorial types, with "nccl" or "gloo" replaced by "mpi"."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

pytestmark = pytest.mark.once


def test_hello_world(rank: int, size: int, capsys: pytest.CaptureFixture[str]) -> None:
    print(f"Hello from rank {dist.get_rank()} of {dist.get_world_size()}")
    assert capsys.readouterr().out == f"Hello from rank {rank} of {size}\n"


def test_all_reduce_all_gather_broadcast(rank: int, size: int) -> None:
    tensor = torch.tensor([rank + 1.0])
    dist.all_reduce(tensor, op=dist.ReduceOp.SUM)
    assert tensor.item() == size * (size + 1) / 2
    tensors = [torch.zeros(2, dtype=torch.int64) for _ in range(size)]
    dist.all_gather(tensors, torch.arange(2, dtype=torch.int64) + 1 + 2 * rank)
    assert torch.cat(tensors).tolist() == list(range(1, 2 * size + 1))
    tensor = torch.tensor([7.0]) if rank == 0 else torch.empty(1)
    dist.broadcast(tensor, src=0)
    assert tensor.item() == 7


def test_even_ranks_send_to_odd_ranks(rank: int, size: int) -> None:
    if rank % 2 == 0 and rank + 1 < size:
        dist.send(torch.tensor([float(rank)]), dst=rank + 1)
    elif rank % 2 == 1:
        tensor = torch.zeros(1)
        dist.recv(tensor, src=rank - 1)
        assert tensor.item() == rank - 1


def test_reduce_scatter_gather_and_scatter_with_none(rank: int, size: int) -> None:
    output = torch.empty(1)
    dist.reduce_scatter(output, [torch.tensor([float(rank)]) for _ in range(size)])
    assert output.item() == size * (size - 1) / 2
    places = [torch.empty(1) for _ in range(size)] if rank == 0 else None
    dist.gather(torch.tensor([float(rank)]), places, dst=0)
    if places:
        assert torch.cat(places).tolist() == list(range(size))
    tensor = torch.empty(1)
    dist.scatter(tensor, [torch.tensor([r * 10.0]) for r in range(size)] if rank == 0 else None, src=0)
    assert tensor.item() == rank * 10


def test_a_barrier_within_a_subgroup(rank: int, size: int) -> None:
    group = dist.new_group([0, 1])
    if rank in (0, 1):
        dist.barrier(group)
        tensor = torch.ones(1)
        dist.all_reduce(tensor, group=group)
        assert tensor.item() == 2


def test_information_of_each_process_as_encoded_text(rank: int, size: int) -> None:
    text = f"rank {rank} on node{'!' * rank}".encode()
    length = torch.tensor([len(text)])
    lengths = [torch.zeros_like(length) for _ in range(size)]
    dist.all_gather(lengths, length)
    longest = int(max(lengths))
    padded = torch.zeros(longest, dtype=torch.uint8)
    padded[: len(text)] = torch.tensor(list(text), dtype=torch.uint8)
    texts = [torch.empty(longest, dtype=torch.uint8) for _ in range(size)]
    dist.all_gather(texts, padded)
    decoded = [bytes(t[: int(n)].tolist()).decode() for t, n in zip(texts, lengths, strict=True)]
    assert decoded == [f"rank {r} on node{'!' * r}" for r in range(size)]


def test_weighted_sum(rank: int, size: int) -> None:
    weights = torch.arange(1.0, size + 1) / sum(range(1, size + 1))
    tensor = torch.full((3,), float(rank)) * weights[rank]
    dist.all_reduce(tensor)
    expected = float((torch.arange(float(size)) * weights).sum())
    torch.testing.assert_close(tensor, torch.full((3,), expected))


def test_distributed_softmax_and_norm(rank: int, size: int) -> None:
    whole = torch.linspace(-3, 3, 4 * size)
    mine = whole[4 * rank : 4 * rank + 4]
    largest = mine.max()
    dist.all_reduce(largest, op=dist.ReduceOp.MAX)
    part = (mine - largest).exp()
    total = part.sum()
    dist.all_reduce(total)
    torch.testing.assert_close(part / total, whole.softmax(0)[4 * rank : 4 * rank + 4])
    square = mine.pow(2).sum()
    dist.all_reduce(square)
    torch.testing.assert_close(square.sqrt(), whole.norm())


def test_a_chain_over_three_ranks(rank: int, size: int) -> None:
    if size < 3:
        pytest.skip("three ranks")
    tensor = torch.zeros(1)
    if rank == 0:
        tensor += 1
        request = dist.isend(tensor, dst=1)
        request.wait()
    elif rank == 1:
        dist.irecv(tensor, src=0).wait()
        tensor *= 2
        dist.isend(tensor, dst=2).wait()
    elif rank == 2:
        request = dist.irecv(tensor, src=1)
        request.wait()
        assert tensor.item() == 2
