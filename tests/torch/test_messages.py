"""Messages: send, recv, tags, anybody, batches, and what becomes of those that nobody waits for."""

from __future__ import annotations

import random
import threading
import time
from datetime import timedelta
from typing import Any

import pytest
import random_beside_gloo
import torch
import torch.distributed as dist
from steady import steady_time

import hpcomm
from hpcomm.torch_backend import worker


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.bool, torch.complex64], ids=str)
@pytest.mark.parametrize("n", [0, 1, 1000, 300_000])
def test_a_message_arrives(n: int, dtype: torch.dtype, rank: int) -> None:
    if rank == 0:
        dist.send(torch.ones(n, dtype=dtype), 1)
    elif rank == 1:
        x = torch.zeros(n, dtype=dtype)
        assert dist.recv(x, 0) == 0
        assert bool((x == 1).all())


def test_messages_both_ways_at_once_do_not_wait_for_each_other(rank: int, size: int) -> None:
    right, left = (rank + 1) % size, (rank - 1) % size
    x, y = torch.full((500_000,), float(rank)), torch.empty(500_000)
    going, coming = dist.isend(x, right), dist.irecv(y, left)
    assert going is not None
    assert coming is not None
    coming.wait()
    going.wait()
    assert bool((y == left).all())
    assert coming.is_completed()
    assert coming.get_future().wait()[0] is y


@pytest.mark.parametrize("poll_s", [0.5, 1e-4], ids=["unseen", "let go"])
def test_a_message_that_has_come_has_a_future(
    poll_s: float, world: Any, rank: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "WORKER_POLL_S", poll_s)  # with the long one nobody looks meanwhile
    if rank == 1:
        work = dist.irecv(x := torch.zeros(2), 0)
        assert work is not None
    dist.barrier()
    if rank == 0:
        dist.send(torch.ones(2), 1)
    elif rank == 1:
        while not work._request.done() or (poll_s < 0.1 and world.under_way):  # type: ignore[attr-defined]
            time.sleep(1e-3)
        assert work.get_future().wait()[0] is x
        assert x.tolist() == [1, 1]


@pytest.mark.parametrize("n", [1, 100_000])
def test_a_send_has_no_results(n: int, rank: int) -> None:
    if rank == 0:
        going = [dist.isend(torch.ones(n), 1, tag=i) for i in range(2)]
        for work in going:
            assert work is not None
            work.wait()
            assert work.result() == work.get_future().wait() == []
            assert work.is_success()
    elif rank == 1:
        for i in range(2):
            dist.recv(torch.zeros(n), 0, tag=i)


def test_tags_tell_messages_apart(rank: int) -> None:
    if rank == 0:
        dist.send(torch.tensor([1.0]), 1, tag=1)
        dist.send(torch.tensor([2.0]), 1, tag=2)
    elif rank == 1:
        two, one = torch.zeros(1), torch.zeros(1)
        dist.recv(two, 0, tag=2)
        dist.recv(one, 0, tag=1)
        assert (one.item(), two.item()) == (1, 2)


@pytest.mark.parametrize("seed", range(3))
def test_random_messages_are_what_their_senders_sent(seed: int, rank: int, size: int) -> None:
    """All ranks draw the same messages. Each begins its own, and waits for them, in an order of its own."""
    common, own = random.Random(seed), random.Random(seed * 100 + rank)
    x, works, received = torch.arange(70_000) * 3 % 251, [], []
    order: list[tuple[int, int, int, int, int]] = []
    for i in range(60):
        source, dest, tag = common.randrange(size), common.randrange(size), common.randrange(3)
        order.append((source, dest, tag, common.choice([0, 3, 700, 9_000, 60_000]), i))
    mine = [each for each in order if rank in each[:2]]
    own.shuffle(mine)
    for way in ("send", "recv"):  # those of one source, dest and tag in their order
        for same in {each[:3] for each in mine}:
            places = [k for k, each in enumerate(mine) if each[:3] == same]
            for k, each in zip(places, sorted((mine[k] for k in places), key=lambda e: e[4]), strict=True):
                mine[k] = each
        for source, dest, tag, n, i in mine:
            if way == "send" and source == rank:
                works.append(dist.isend(x[i : i + n].to(torch.float32), dest, tag=tag))
            elif way == "recv" and dest == rank:
                out = torch.full((n + 1,), -1.0)
                works.append(dist.irecv(out, source, tag=tag))
                received.append((out, i, n))
    own.shuffle(works)
    for work in works:
        assert work is not None
        work.wait()
    for out, i, n in received:
        assert torch.equal(out[:n], x[i : i + n].to(torch.float32))
        assert out[n] == -1


def test_random_programs_give_what_gloo_gives(world: Any, size: int) -> None:
    """`python tests/torch/random_beside_gloo.py` runs more of them."""
    gloo: Any = dist.new_group(backend="gloo") if size > 1 else None
    for seed in range(20 if size > 1 else 0):
        assert random_beside_gloo.differing(seed, world, gloo) == [], seed


def test_any_number_of_messages_both_ways_are_sent_before_one_is_received(rank: int, size: int) -> None:
    """More than a queue has room for: whoever waits to send takes what others send."""
    others = [other for other in range(size) if other != rank]
    for i in range(300):
        for other in others:
            dist.send(torch.full((200,), i + 0.5), other, tag=i)
    for other in others:
        for i in reversed(range(300)):
            dist.recv(x := torch.zeros(200), other, tag=i)
            assert x[0] == x[-1] == i + 0.5


def test_many_long_messages_wait_for_those_that_are_wanted_first(rank: int) -> None:
    n, x = 80, torch.ones(5_000)
    if rank == 0:
        for work in [dist.isend(x * i, 1, tag=i) for i in range(n)]:
            assert work is not None
            work.wait()
    elif rank == 1:
        for i in reversed(range(n)):
            dist.recv(y := torch.zeros(5_000), 0, tag=i)
            assert bool((y == i).all())


def test_a_thread_receives_while_another_one_is_in_a_collective(rank: int, size: int) -> None:
    found: list[float] = []

    def receive() -> None:
        for i in range(50):
            dist.recv(x := torch.zeros(3000), (rank - 1) % size, tag=i)
            found.append(x[0].item())

    thread = threading.Thread(target=receive)
    if size > 1:
        thread.start()
        for i in range(50):
            dist.all_reduce(torch.ones(10))
            dist.send(torch.full((3000,), float(i)), (rank + 1) % size, tag=i)
        thread.join(60)
        assert found == [float(i) for i in range(50)]


def test_from_anybody(rank: int, size: int) -> None:
    if rank == 0:
        seen = set()
        for _ in range(1, size):
            x = torch.zeros(2)
            source = dist.recv(x)
            assert x[0] == source
            seen.add(source)
        assert seen == set(range(1, size))
    else:
        dist.send(torch.full((2,), float(rank)), 0)


@pytest.mark.parametrize("layout", ["plain", "strided"])
@pytest.mark.parametrize("n", [3, 100_000])
def test_a_shorter_message_fills_the_beginning(n: int, layout: str, rank: int) -> None:
    """As with gloo; and from anybody its sender is known."""
    if rank == 0:
        dist.send(torch.ones(n), 1)
        dist.send(torch.ones(n), 1)
    elif rank == 1:
        for source in (0, None):
            x = torch.zeros(n + 2) if layout == "plain" else torch.zeros(2 * n + 4)[::2]
            assert dist.recv(x, source) == 0
            assert x.tolist() == [1.0] * n + [0.0] * 2


def test_a_longer_message_is_refused(rank: int, size: int) -> None:
    if rank == 0:
        dist.send(torch.ones(5), 1)
    elif rank == 1:
        where = rf"recv\(float32 \(3,\), from 0\) on process group 'world' \(rank 1 of {size}\)"
        with pytest.raises(RuntimeError, match=rf"(?s)(longer|20 bytes).*{where}"):
            dist.recv(torch.zeros(3), 0)


def test_a_message_is_received_as_a_lazy_negative(rank: int) -> None:
    x = torch.zeros(3, dtype=torch.complex64).conj().imag
    assert x.is_neg()
    if rank == 0:
        dist.send(x.fill_(2.0), 1)
    elif rank == 1:
        dist.recv(x, 0)
        assert x.tolist() == [2.0] * 3


def test_strided_tensors(rank: int) -> None:
    if rank == 0:
        dist.send(torch.arange(8.0)[::2], 1)
    elif rank == 1:
        x = torch.zeros(8)
        dist.recv(x[1::2], 0)
        assert x.tolist() == [0, 0, 0, 2, 0, 4, 0, 6]


def test_a_batch(rank: int, size: int) -> None:
    out = torch.empty(2)
    works = dist.batch_isend_irecv(
        [
            dist.P2POp(dist.isend, torch.full((2,), float(rank)), (rank + 1) % size),
            dist.P2POp(dist.irecv, out, (rank - 1) % size),
        ]
    )
    for work in works:
        work.wait()
    assert out.tolist() == [(rank - 1) % size] * 2


def test_a_large_message_goes_on_while_its_sender_computes(rank: int) -> None:
    """Nobody waits on either side until it is over: the poller moves it."""
    import time

    n = 4_000_000
    if rank < 2:
        work = dist.isend(torch.ones(n), 1) if rank == 0 else dist.irecv(y := torch.zeros(n), 0)
        assert work is not None
        deadline = steady_time() + 10
        while work.is_under_way and steady_time() < deadline:
            time.sleep(0.01)
        assert not work.is_under_way
        work.wait()
        assert rank == 0 or bool((y == 1).all())


def test_a_message_that_does_not_come_is_waited_for_no_longer_than_asked(rank: int) -> None:
    if rank == 0:
        dist.send(torch.ones(1), 1, tag=3)
    dist.barrier()
    if rank == 1:
        work = dist.irecv(x := torch.zeros(1), 0)
        assert work is not None
        with pytest.raises(hpcomm.WaitTimeoutError, match=r"recv\(.*\(1,\), from 0\) .* waited \d") as told:
            work.wait(timedelta(seconds=0.2))
        assert "try:   a message of tag 3 from rank 0 is there, which it does not take" in str(told.value)
        dist.recv(x, 0, tag=3)
    dist.barrier()
    if rank == 0:
        dist.send(torch.ones(1) * 2, 1)
    if rank == 1:
        work.wait()
        assert x.item() == 2


def test_a_message_of_another_length_is_an_error(rank: int) -> None:
    if rank == 0:
        dist.send(torch.ones(3), 1)
    elif rank == 1:
        with pytest.raises(RuntimeError, match=r"8 bytes|longer|12 bytes") as told:
            dist.recv(torch.zeros(2), 0)
        assert "receive into a tensor of the sender's dtype" in str(told.value)
        assert "_ragged" not in str(told.value)


@pytest.mark.parametrize("kind", ["meta", "sparse"])
def test_a_tensor_that_cannot_be_a_message_is_refused_in_words(kind: str, rank: int) -> None:
    x = torch.ones(2, device="meta") if kind == "meta" else torch.ones(2).to_sparse()
    for call in (dist.send, dist.recv, dist.isend, dist.irecv):
        with pytest.raises(hpcomm.LayoutError, match="has no elements" if kind == "meta" else "is sparse"):
            call(x, 1 - min(rank, 1))


def test_a_tensor_with_a_negative_bit_is_sent_as_what_it_says(rank: int) -> None:
    x = torch.tensor([1 + 2j, 3 - 4j]).conj().imag  # torch itself refuses those with a conjugate one
    if rank == 0:
        dist.send(x, 1)
    elif rank == 1:
        dist.recv(y := torch.zeros(2), 0)
        assert y.tolist() == [-2, 4]


def test_objects_from_rank_to_rank(rank: int) -> None:
    if rank == 0:
        dist.send_object_list(["a", {"b": 2}], 1)
    elif rank == 1:
        got: list[object] = [None, None]
        dist.recv_object_list(got, 0)
        assert got == ["a", {"b": 2}]


def test_a_message_to_no_rank_or_of_a_group_that_is_gone_is_refused_in_words(world: Any) -> None:
    with pytest.raises(hpcomm.RankError, match=r"99 is (no|not one)(?s:.*)send\(float32 \(1,\), to 99\)"):
        world.send([torch.ones(1)], 99, 0)
    group: Any = dist.new_group()
    dist.destroy_process_group(group)
    with pytest.raises(hpcomm.UsageError, match=r"send\(float32 \(1,\), to 0\)"):
        group.send([torch.ones(1)], 0, 0)


def test_a_rank_that_waits_in_a_collective_call_takes_what_others_send(rank: int) -> None:
    """Else who sends more than there is room for would never come to that call."""
    n = 3000
    for i in range(n if rank == 1 else 0):
        dist.send(torch.full((1,), float(i)), 0)
    dist.barrier()
    for i in range(n if rank == 0 else 0):
        dist.recv(x := torch.zeros(1), 1)
        assert x.item() == i
