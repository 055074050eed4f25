"""CUDA tensors: each call of a group takes the Communicator's own path, in order with the streams around it.

There is no GPU: memory and streams are those of the driver's model (tests/device_model), which begins memory
as poison, executes as late as it may and tells races. What stands for torch's tensors has of theirs what the
backend uses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import device_model as model
import numpy as np
import pytest
import torch
import torch.distributed as dist
from device_model import order
from mpi4py import MPI

import hpcomm
from hpcomm.device import driver
from hpcomm.torch_backend import cuda_streams, group_calls, other_devices

pytestmark = pytest.mark.once

CUDA = torch.device("cuda", 0)


class Tensor(model.DeviceArray):
    """float32 on the model, with those words of torch that the backend uses; others fail."""

    is_cpu, is_cuda, is_sparse, layout = False, True, False, torch.strided
    device, dtype, itemsize = CUDA, torch.float32, 4  # type: ignore[assignment]

    def __init__(self, address: int, shape: Any, strides: Any = None, owner: Any = None) -> None:
        super().__init__(address, tuple(shape), np.float32, strides, owner)
        self.seen = model.DeviceArray(address, tuple(shape), np.float32, strides)
        self.dtype = torch.float32  # type: ignore[assignment]
        self.recorded: list[Any] = []

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return self.seen.__cuda_array_interface__

    def numel(self) -> int:
        return int(np.prod(self.shape))

    def dim(self) -> int:
        return len(self.shape)

    def __len__(self) -> int:
        return int(self.shape[0])

    def data_ptr(self) -> int:
        return self.address

    def untyped_storage(self) -> Tensor:
        return self.owner or self  # type: ignore[no-any-return]

    @property
    def nbytes(self) -> int:
        return self.numel() * 4

    def is_contiguous(self) -> bool:
        return self.strides is None

    def as_subclass(self, kind: type) -> Tensor:
        return self

    def contiguous(self) -> Tensor:
        return self if self.strides is None else self.clone()

    def clone(self, memory_format: object = None) -> Tensor:
        made = Tensor(model.empty(self.shape, np.float32).address, self.shape)
        return made.copy_(self)

    def is_inference(self) -> bool:
        return False

    is_neg = is_conj = is_inference

    @property
    def data(self) -> Tensor:
        return self

    def detach(self) -> Tensor:
        return self

    def stride(self, dim: int | None = None) -> Any:
        strides = tuple(int(np.prod(self.shape[i + 1 :])) for i in range(len(self.shape)))
        return strides if dim is None else strides[dim]

    def as_strided(self, shape: Any, strides: Any) -> Tensor:
        return Tensor(self.address, shape, None, self.untyped_storage())

    def view(self, *shape: Any) -> Tensor:
        shape = shape[0] if isinstance(shape[0], tuple) else shape
        free = self.numel() // -int(np.prod(shape)) if -1 in shape else 0
        return Tensor(self.address, [free if n == -1 else n for n in shape], None, self.untyped_storage())

    reshape = view

    def copy_(self, other: Any) -> Tensor:
        self.seen[...] = other.seen if isinstance(other, Tensor) else other
        return self

    def record_stream(self, stream: Stream) -> None:
        self.untyped_storage().recorded.append(stream)


class Event:
    def __init__(self, stream: int) -> None:
        self.device = driver.driver().device(0)
        self.number = self.device.event()
        self.device.record(self.number, stream)

    def query(self) -> bool:
        return self.device.query(self.number)


class Stream:
    def __init__(self, device: Any = None, number: int = 0) -> None:
        self.number = number or driver.driver().device(0).stream()

    def record_event(self) -> Event:
        return Event(self.number)

    def wait_event(self, event: Event) -> None:
        event.device.wait(self.number, event.number)


class streams:  # noqa: N801
    """torch.cuda, of which this build has none."""

    Stream = Stream

    @staticmethod
    def current_stream(device: Any = None) -> Stream:
        return Stream(number=model.current_stream())

    @staticmethod
    def stream(stream: Stream) -> Any:
        return model.stream(stream.number)


@pytest.fixture(scope="module")
def device() -> Iterator[model.Model]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cuda_streams, "streams", streams)
        patch.setattr(cuda_streams, "_sides", {})
        made = model.Model()
        driver.install(made)
        yield made
        driver.install(None)


@pytest.fixture(scope="module")
def every(device: model.Model) -> Iterator[Any]:
    """A group of all ranks, each with a device."""
    comm = hpcomm.Communicator(MPI.COMM_WORLD, name="devices")
    made: Any = comm.as_process_group()
    yield made
    made.shutdown()
    comm.close()


@pytest.fixture
def group(device: model.Model, every: Any) -> Iterator[Any]:
    """The same; nothing that ran on it may have been a race."""
    device.order.forget()
    yield every
    assert order.races(MPI.COMM_WORLD.allgather(device.noted())) == []


def on_device(values: Any) -> Tensor:
    """A copy on the device, made in the current stream."""
    host = np.array(values, np.float32)
    tensor = Tensor(model.empty(host.shape, np.float32).address, host.shape)
    tensor.copy_(model.asarray(host))
    return tensor


def poison(*shape: int) -> Tensor:
    return Tensor(model.empty(shape, np.float32).address, shape)


def rows(stack: Tensor) -> list[Tensor]:
    n, width = stack.shape
    return [Tensor(stack.address + 4 * width * i, (width,), None, stack) for i in range(n)]


def two_streams() -> tuple[int, int]:
    """Of the program's own."""
    device = driver.driver().device(0)
    return device.stream(), device.stream()


def options(kind: str, background: bool, **fields: Any) -> Any:
    made = getattr(torch._C._distributed_c10d, kind)()
    for name, value in {"asyncOp": background, **fields}.items():
        if hasattr(made, name):
            setattr(made, name, value)
    return made


def finish(work: Any) -> None:
    """As torch does after a blocking call."""
    if work is not None:
        work.wait()


N = 6  # elements of a block
SUM = dist.ReduceOp(dist.ReduceOp.SUM)
Case = tuple[Callable[[Any, Any, Any], Any], str, Callable[[int, int], tuple[Any, Any, Any]]]


def of(rank: int, *shape: int) -> Any:
    return (np.arange(int(np.prod(shape))).reshape(shape) + 100 * rank).astype(np.float32)


def total(p: int, *shape: int) -> Any:
    return sum(of(rank, *shape) for rank in range(p))


CASES: dict[str, Any] = {
    # verb -> (group, out, x, options) -> a Work; its options; (rank, p) -> x, shape of out, what it becomes
    "all_reduce": (
        lambda g, out, x, o: g.allreduce([x], o), "AllreduceOptions",
        lambda r, p: (of(r, N), None, total(p, N)),
    ),
    "broadcast": (
        lambda g, out, x, o: g.broadcast([x], o), "BroadcastOptions",
        lambda r, p: (of(r, N), None, of(0, N)),
    ),
    "reduce": (
        lambda g, out, x, o: g.reduce([x], o), "ReduceOptions",
        lambda r, p: (of(r, N), None, of(r, N) if r else total(p, N)),
    ),
    "all_gather": (
        lambda g, out, x, o: g.allgather([rows(out)], [x], o), "AllgatherOptions",
        lambda r, p: (of(r, N), (p, N), np.stack([of(q, N) for q in range(p)])),
    ),
    "all_gather_single": (
        lambda g, out, x, o: g.all_gather_single(out, x, o), "AllgatherOptions",
        lambda r, p: (of(r, N), (p * N,), np.concatenate([of(q, N) for q in range(p)])),
    ),
    "gather": (
        lambda g, out, x, o: g.gather([] if g.rank() else [rows(out)], [x], o), "GatherOptions",
        lambda r, p: (of(r, N), (p, N), None if r else np.stack([of(q, N) for q in range(p)])),
    ),
    "scatter": (
        lambda g, out, x, o: g.scatter([out], [] if g.rank() else [rows(x)], o), "ScatterOptions",
        lambda r, p: (of(r, p, N), (N,), of(0, p, N)[r]),
    ),
    "reduce_scatter": (
        lambda g, out, x, o: g.reduce_scatter([out], [rows(x)], o), "ReduceScatterOptions",
        lambda r, p: (of(r, p, N), (N,), total(p, p, N)[r]),
    ),
    "reduce_scatter_single": (
        lambda g, out, x, o: g.reduce_scatter_single(out, x, o), "ReduceScatterOptions",
        lambda r, p: (of(r, p, N), (N,), total(p, p, N)[r]),
    ),
    "all_to_all_single": (
        lambda g, out, x, o: g.all_to_all_single(out, x, None, None, o), "AllToAllOptions",
        lambda r, p: (of(r, p, N), (p, N), np.stack([of(q, p, N)[r] for q in range(p)])),
    ),
}  # fmt: skip


@pytest.mark.parametrize("background", [False, True], ids=["blocking", "background"])
@pytest.mark.parametrize("verb", CASES)
def test_a_call_is_in_order_with_the_streams_around_it(verb: str, background: bool, group: Any) -> None:
    """Its input is made in the stream that is current at the call, its output read in the one that waits."""
    ours, others = two_streams()
    call, kind, make = CASES[verb]
    given, place, want = make(group.rank(), group.size())
    with model.stream(ours):
        x = on_device(given)
        out = x if place is None else poison(*place)
        work = call(group, out, x, options(kind, background, reduceOp=SUM))
        if not background:
            finish(work)
            found = out.seen.get()
    if background:
        with model.stream(others):
            work.wait()
            found = out.seen.get()
        taken = verb != "scatter" or group.rank() == 0
        assert x.recorded or not taken, "its memory could be given away while the call goes on"
    if want is not None:
        np.testing.assert_array_equal(found, want)


def test_messages(group: Any) -> None:
    ours, others = two_streams()
    rank, p = group.rank(), group.size()
    with model.stream(ours):
        x, out = on_device(of(rank, N)), poison(N)
        works = [group.recv([out], (rank - 1) % p, 0), group.send([x], (rank + 1) % p, 0)]
    with model.stream(others):
        for work in works:
            work.wait()
        np.testing.assert_array_equal(out.seen.get(), of((rank - 1) % p, N))


def test_a_strided_tensor_is_filled(group: Any) -> None:
    with model.stream(two_streams()[0]):
        whole = on_device(of(group.rank(), 4, 2))
        x = Tensor(whole.address, (4,), (8,), whole)
        finish(group.allreduce([x], options("AllreduceOptions", False, reduceOp=SUM)))
        want = of(group.rank(), 4, 2)
        want[:, 0] = total(group.size(), 4, 2)[:, 0]
        np.testing.assert_array_equal(whole.seen.get(), want)


def test_ranks_whose_tensors_lie_elsewhere_are_told(group: Any) -> None:
    if group.size() == 1:
        pytest.skip("nobody to disagree with")
    x: Any = torch.ones(N) if group.rank() else on_device(of(0, N))
    with pytest.raises(hpcomm.MismatchError, match=r"rank 0: all_reduce\(float32 \(6,\) on cuda:0"):
        finish(group.allreduce([x], options("AllreduceOptions", False, reduceOp=SUM)))


class Far(torch.Tensor):
    """A tensor that says it is on the device. It is not: whoever reads its memory there would not notice."""

    is_cpu, is_cuda, device = False, True, CUDA  # type: ignore[assignment]

    @staticmethod
    def of(x: torch.Tensor) -> Far:
        made: Far = torch.Tensor._make_subclass(Far, x)
        return made

    def cpu(self) -> torch.Tensor:  # type: ignore[override]
        return self.as_subclass(torch.Tensor).clone(memory_format=torch.preserve_format)

    def record_stream(self, stream: Stream) -> None:
        pass


def test_without_mpi_a_devices_tensors_are_copied_through_the_host(
    device: model.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.accelerator, "synchronize", lambda where: None)
    comm = hpcomm.Communicator(MPI.COMM_WORLD)
    comm.context.devices = None  # as ranks have none that need no MPI
    group: Any = comm.as_process_group()
    rank, p = comm.rank, comm.size
    for background in (False, True):
        x = Far.of(torch.from_numpy(of(rank, N)))
        assert p == 1 or group._node is None or group._node.all_reduce(x, "sum", x) is NotImplemented
        finish(group.allreduce([x], options("AllreduceOptions", background, reduceOp=SUM)))
        np.testing.assert_array_equal(x.cpu(), total(p, N))
    out, x = Far.of(torch.zeros(p, N)), Far.of(torch.from_numpy(of(rank, N)))
    finish(group.all_gather_single(out, x, options("AllgatherOptions", False)))
    np.testing.assert_array_equal(out.cpu(), [of(q, N) for q in range(p)])
    for strided in (False, True) if p > 1 else ():
        x, out = Far.of(torch.from_numpy(of(rank, 2, N))), Far.of(torch.full((2, N), -1.0))
        x, out = (x.t(), out.t()) if strided else (x, out)
        coming, going = group.recv([out], (rank - 1) % p, 0), group.send([x], (rank + 1) % p, 0)
        coming.wait()
        going.wait()
        want = of((rank - 1) % p, 2, N)
        np.testing.assert_array_equal(out.cpu(), want.T if strided else want)
        with monkeypatch.context() as full:
            full.setattr(group_calls, "give_back", lambda flat, x: x.resize_(10**15))
            coming, going = group.recv([out], (rank - 1) % p, 0), group.send([x], (rank + 1) % p, 0)
            with pytest.raises(RuntimeError, match=r"allocate|resize"):
                coming.wait()
            going.wait()
    group.shutdown()
    comm.close()


def test_calls_of_a_device_that_another_backend_serves_are_handed_to_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given: list[Any] = []

    class Other:
        def __getattr__(self, verb: str) -> Any:
            return lambda *given_to_it, **named: given.append((verb, *given_to_it[1:], *named))

    monkeypatch.setattr(other_devices, "_inner_group", lambda *_: Other())
    told = {"group_name": "mixed", "backend": "cpu:mpi,cuda:nccl", "store": dist.HashStore(), "ranks": [0]}
    comm = hpcomm.Communicator(MPI.COMM_SELF)
    group: Any = other_devices.MixedGroup(comm.dup(check="off"), told)
    x, own = Far.of(torch.zeros(2)), torch.ones(2)
    group.send([x], 0, 3)
    group.recv([x], 0, 3)
    group.recv_anysource([x], 4)
    group.allreduce([x])
    group.broadcast(tensor=x, root=0)
    group.gather([], [x], "options")
    group.alltoall_base(x, x, [], [], "options")
    names = [verb if verb != "all_to_all_single" else "alltoall_base" for verb, *_ in given]
    assert names == ["send", "recv", "recv_anysource", "allreduce", "broadcast", "gather", "alltoall_base"]
    rest = [[0, 3], [0, 3], [4], [], ["tensor", "root"], [[x], "options"], [x, [], [], "options"]]
    assert [more for _, *more in given] == rest
    group.allreduce([own], dist.ReduceOp.SUM)
    assert len(given) == 7
    group.shutdown()
    assert given[-1] == ("shutdown",)
    comm.close()
