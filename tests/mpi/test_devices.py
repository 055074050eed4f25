"""Arrays on a device, on the model of the driver: every verb, every path, in order on every stream.

The model executes late, begins memory as poison, and tells races by vector clocks even where the data came
out right. Small constants here make the pieces of small arrays many.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import device_model as model
import numpy as np
import order_law
import pytest
from device_model import order
from mpi4py import MPI
from stand_ins import ModelNccl

import hpcomm
from hpcomm.communicator.payloads import payload, pickling
from hpcomm.communicator.topology import Cart
from hpcomm.core import buffer
from hpcomm.device import driver, libraries
from hpcomm.mpmd.coupling.device_operations import DeviceOperations
from hpcomm.node import segment
from hpcomm.transport import rank_order
from hpcomm.transport.device import cuda_aware, dispatch, ipc, pipeline, staging, workspace

# The tensors of tests/torch go the same ways on each MPI.
pytestmark = [pytest.mark.few, pytest.mark.three, pytest.mark.once]

# elements of float32 that go in one MPI call; in pieces or through the slab; in an allocation opened itself
SMALL, LARGE, DIRECT = 20, 700, 3000


@pytest.fixture(scope="module")
def device() -> model.Model:
    return model.Model()


@pytest.fixture
def path() -> str:
    return "auto"


@pytest.fixture
def comm(device: model.Model, monkeypatch: pytest.MonkeyPatch, path: str) -> Iterator[hpcomm.Communicator]:
    """A communicator whose ranks have a device; afterwards nothing that ran may have been a race."""
    monkeypatch.setattr(dispatch, "DEVICE_EAGER", 1024)
    monkeypatch.setattr(pipeline, "PIPELINE_PIECE", 512)
    monkeypatch.setattr(workspace, "WORKSPACE", 4096)
    monkeypatch.setattr(ipc, "IPC_SLOT", 512)
    monkeypatch.setattr(ipc, "IPC_DIRECT", 4 * DIRECT)
    monkeypatch.setenv("HPCOMM_GPU", path)
    driver.install(device)
    device.order.forget()
    made = hpcomm.Communicator(MPI.COMM_WORLD, name="devices")
    try:
        yield made
        assert found_races(device) == []
        made.close()
    finally:
        driver.install(None)


def found_races(device: model.Model) -> list[str]:
    """The races of all ranks together; collective."""
    parts = MPI.COMM_WORLD.gather(device.noted())
    here = None if parts is None else order.races(parts)
    races: list[str] = MPI.COMM_WORLD.bcast(here)
    return races


def told_edges(device: model.Model, ours: Callable[[str], bool]) -> tuple[list[str], list[str]]:
    """Of the edges of all ranks: those of ours, and those of them without which nothing races; collective."""
    parts = MPI.COMM_WORLD.gather(device.noted())
    here = None
    if parts is not None:
        run = order.Run(parts)
        edges = [edge for edge in run.edges if ours(edge)]
        here = edges, [edge for edge in edges if not run.races(without=edge)]
    found: tuple[list[str], list[str]] = MPI.COMM_WORLD.bcast(here)
    return found


def values(n: int, rank: int, dtype: Any = np.float32) -> Any:
    return (np.arange(n) % 91 + 100 * rank).astype(dtype)


def given(n: int, rank: int, p: int = 0, dtype: Any = np.float32) -> model.DeviceArray:
    return model.asarray(values(n * max(p, 1), rank, dtype).reshape((p, n) if p else (n,)))


def stacked(n: int, p: int) -> Any:
    return np.stack([values(n, rank) for rank in range(p)])


def block(n: int, p: int, rank: int, i: int) -> Any:
    return values(n * p, rank).reshape(p, n)[i]


COLLECTIVES: dict[str, Callable[[int, int, int], tuple[Any, Any]]] = {
    # verb -> (n, p, rank) -> (what it is given, what comes out; None: nothing)
    "all_reduce": lambda n, p, r: (given(n, r), sum(values(n, q) for q in range(p))),
    "reduce": lambda n, p, r: (given(n, r), sum(values(n, q) for q in range(p)) if r == p - 1 else None),
    "broadcast": lambda n, p, r: (given(n, r), values(n, p - 1)),
    "scan": lambda n, p, r: (given(n, r), sum(values(n, q) for q in range(r + 1))),
    "exscan": lambda n, p, r: (given(n, r), sum((values(n, q) for q in range(r)), np.zeros(n, np.float32))),
    "all_gather": lambda n, p, r: (given(n, r), stacked(n, p)),
    "gather": lambda n, p, r: (given(n, r), stacked(n, p) if r == p - 1 else None),
    "scatter": lambda n, p, r: (given(n, r, p), block(n, p, p - 1, r)),
    "all_to_all": lambda n, p, r: (given(n, r, p), np.stack([block(n, p, q, r) for q in range(p)])),
    "reduce_scatter": lambda n, p, r: (given(n, r, p), sum(block(n, p, q, r) for q in range(p))),
}  # fmt: skip
ROOTED = ("reduce", "broadcast", "gather", "scatter")


def collective(comm: hpcomm.Communicator, verb: str, x: Any, **options: Any) -> Any:
    if verb in ROOTED:
        options["root"] = comm.size - 1
    return getattr(comm, verb)(x, **options)


@pytest.mark.parametrize("n", [0, SMALL, LARGE])
@pytest.mark.parametrize("verb", COLLECTIVES)
def test_a_collective_takes_arrays_on_a_device_and_gives_one_back(
    comm: hpcomm.Communicator, verb: str, n: int
) -> None:
    x, expected = COLLECTIVES[verb](n, comm.size, comm.rank)
    y = collective(comm, verb, x)
    x.fill(-1)  # in the current stream, behind the call
    if expected is None:
        assert y is None
    else:
        assert type(y) is model.DeviceArray
        y += 1
        np.testing.assert_array_equal(y.get(), expected + 1)


@pytest.mark.parametrize("verb", COLLECTIVES)
def test_background_calls_of_any_size_may_be_waited_for_in_any_order(
    comm: hpcomm.Communicator, verb: str
) -> None:
    jobs = [COLLECTIVES[verb](n, comm.size, comm.rank) for n in (LARGE, SMALL, LARGE + 1)]
    requests = [collective(comm, verb, x, async_op=True) for x, _ in jobs]
    order = (0, 1, 2) if comm.rank % 2 else (2, 1, 0)
    for i in order:
        y = requests[i].wait()
        if jobs[i][1] is not None:
            y += 1
            np.testing.assert_array_equal(y.get(), jobs[i][1] + 1)


@pytest.mark.parametrize("n", [SMALL, LARGE])
def test_some_ranks_may_bring_host_arrays(comm: hpcomm.Communicator, n: int) -> None:
    x = given(n, comm.rank) if comm.rank % 2 == 0 else values(n, comm.rank)
    y = comm.all_reduce(x)
    got = y.get() if comm.rank % 2 == 0 else y
    assert type(y) is type(x)
    np.testing.assert_array_equal(got, sum(values(n, q) for q in range(comm.size)))


def test_short_calls_go_by_the_node_core_wherever_each_rank_has_its_array(comm: hpcomm.Communicator) -> None:
    for turn in range(2):
        x = given(SMALL, comm.rank) if (comm.rank + turn) % 2 == 0 else values(SMALL, comm.rank)
        begun = comm.context.node.number if comm.context.node else 0
        comm.all_reduce(x)
        comm.broadcast(x, root=comm.size - 1, out=x)
        assert comm.context.node is None or comm.context.node.number == begun + 2
        comm.all_reduce(values(LARGE, comm.rank))  # whether anybody's is on a device is asked by MPI
        comm.all_reduce(x, async_op=True).wait()
        assert comm.context.node is None or comm.context.node.number == begun + 2


@pytest.mark.parametrize("path", ["auto", "pipeline"])
@pytest.mark.parametrize("n", [SMALL, LARGE, DIRECT])
@pytest.mark.parametrize("sender_has", ["device", "host"])
@pytest.mark.parametrize("receiver_has", ["device", "host"])
def test_a_message_goes_between_any_two_places(
    comm: hpcomm.Communicator, n: int, sender_has: str, receiver_has: str
) -> None:
    """All in a ring, some sends begun first, so that everybody must be moved on while waiting."""
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    x = values(n, comm.rank) if sender_has == "host" else given(n, comm.rank)
    out = np.zeros(n, np.float32) if receiver_has == "host" else model.empty(n, np.float32)
    if receiver_has == "device":
        out.fill(7)
    going = comm.isend(x, dest=right, tag=3)
    status = hpcomm.Status()
    y = comm.recv(out, source=left, tag=3, status=status)
    going.wait()
    assert y is out
    assert (status.source, status.tag, status.nbytes) == (left, 3, 4 * n)
    np.testing.assert_array_equal(y if receiver_has == "host" else y.get(), values(n, left))


def test_a_large_message_is_moved_on_while_both_ranks_do_something_else(comm: hpcomm.Communicator) -> None:
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    out = model.empty(LARGE, np.float32)
    coming = comm.irecv(out, source=left)
    if comm.rank % 2:
        comm.send(given(LARGE, comm.rank), dest=right) if right != comm.rank else None
        comm.barrier()
    else:
        going = comm.isend(given(LARGE, comm.rank), dest=right)
        comm.barrier()
        going.wait()
    np.testing.assert_array_equal(coming.wait().get(), values(LARGE, left))


def test_a_strided_array_is_packed_on_its_device(comm: hpcomm.Communicator) -> None:
    for n in (SMALL, LARGE):
        x = model.asarray(np.repeat(values(n, comm.rank), 2).reshape(n, 2).copy())[:, 1]
        assert x.strides is not None
        y = comm.all_reduce(x)
        np.testing.assert_array_equal(y.get(), sum(values(n, q) for q in range(comm.size)))
    with pytest.raises(hpcomm.LayoutError, match="out does not lie in C order"):
        comm.all_reduce(y, out=model.empty((LARGE, 2), np.float32)[:, 0])


OPERATORS = [
    ("sum", np.float16), ("avg", np.float16), ("max", np.bool_), ("sum", np.int64), ("avg", np.complex128),
    ("land", np.float32), ("lor", np.float16), ("bxor", np.uint16), ("prod", np.float32), ("min", np.uint64),
    (hpcomm.premul_sum(0.5), np.float16), (hpcomm.premul_sum(3), np.int32),
]  # fmt: skip


@pytest.mark.parametrize(("op", "dtype"), OPERATORS, ids=lambda each: getattr(each, "__name__", str(each)))
def test_operators_give_what_they_give_on_host_arrays(comm: hpcomm.Communicator, op: Any, dtype: Any) -> None:
    for n in (SMALL, LARGE):
        x = (values(n, comm.rank) % 3).astype(dtype)
        for verb in ("all_reduce", "exscan"):
            if verb == "exscan" and op == "avg":
                continue
            here = getattr(comm, verb)(x, op)
            np.testing.assert_array_equal(getattr(comm, verb)(model.asarray(x), op).get(), here)


@pytest.mark.parametrize("path", ["schedule", "pipeline"])
@pytest.mark.parametrize("verb", COLLECTIVES)
def test_every_path_gives_the_same(comm: hpcomm.Communicator, device: model.Model, verb: str) -> None:
    """Through pinned memory: rank 0 opens nobody's memory, the others open all."""
    device.can_open = comm.rank != 0
    try:
        x, expected = COLLECTIVES[verb](LARGE, comm.size, comm.rank)
        y = collective(comm, verb, x)
        assert expected is None or (y.get() == expected).all()
    finally:
        device.can_open = True


@pytest.mark.parametrize("path", ["ipc"])
def test_a_path_that_cannot_work_is_refused_by_all(comm: hpcomm.Communicator, device: model.Model) -> None:
    if comm.size == 1:
        pytest.skip("one rank needs no memory but its own")
    device.can_open = comm.rank != 0
    try:
        why = "cannot carry this call: rank 0 cannot copy from rank 1: cannot be opened: operation not"
        for _ in range(2):
            with pytest.raises(hpcomm.ConfigError, match=why):
                comm.all_reduce(given(LARGE, comm.rank))
        with pytest.raises(hpcomm.ConfigError, match="some ranks bring arrays in host memory"):
            comm.all_reduce(given(LARGE, comm.rank) if comm.rank else values(LARGE, 0))
        x, out = values(LARGE, comm.rank), model.empty(LARGE, np.float32)
        going = comm.isend(x, dest=(comm.rank + 1) % comm.size)
        with pytest.raises(hpcomm.ConfigError, match="cannot carry this message: x is in host memory"):
            comm.recv(out, source=(comm.rank - 1) % comm.size)
        with pytest.raises(hpcomm.ConfigError, match="cannot carry this message: x is in host memory"):
            going.wait()
    finally:
        device.can_open = True


@pytest.fixture
def nccl(device: model.Model) -> Iterator[ModelNccl]:
    """Each rank has a device of its own, and there is NCCL."""
    made = device.nccl = ModelNccl(MPI.COMM_WORLD.Dup(), device)
    device.number_of_gpu = MPI.COMM_WORLD.rank
    yield made
    device.nccl, device.number_of_gpu = None, 0
    made.mpi.Free()


@pytest.mark.parametrize("verb", COLLECTIVES)
def test_nccl_carries_what_it_can(nccl: ModelNccl, comm: hpcomm.Communicator, verb: str) -> None:
    if comm.size == 1:
        pytest.skip("one rank needs no NCCL")
    for dtype in (np.float32, np.float16):
        x, expected = COLLECTIVES[verb](LARGE, comm.size, comm.rank)
        if dtype is np.float16 and verb == "all_reduce":  # folded in float32
            x, expected = model.asarray(x.get().astype(dtype)), expected.astype(dtype)
        y = collective(comm, verb, x)
        x.fill(-1)
        if expected is not None:
            y += 1
            np.testing.assert_array_equal(y.get(), expected + 1)
    assert set(nccl.calls) == (set() if "scan" in verb else {verb})


@pytest.mark.parametrize("path", ["nccl", "direct"])
def test_messages_go_by_nccl_and_by_an_mpi_that_reads_device_memory(
    nccl: ModelNccl, aware: None, comm: hpcomm.Communicator, path: str
) -> None:
    """Several at once, received in another order than they were sent in, on several streams."""
    if comm.size == 1 and path == "nccl":
        pytest.skip("one rank needs no NCCL")
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    user = driver.driver().device(0).stream()
    for _ in range(2):
        with model.stream(user):
            x = [given(LARGE + i, comm.rank) for i in range(3)]
            going = [comm.isend(each, dest=right, tag=i) for i, each in enumerate(x)]
            out = [model.empty(LARGE + i, np.float32) for i in range(3)]
            coming = {i: comm.irecv(out[i], source=left, tag=i) for i in (2, 0, 1)}
            for i, request in coming.items():
                y = request.wait()
                y += 1
                np.testing.assert_array_equal(y.get(), values(LARGE + i, left) + 1)
            for request, each in zip(going, x, strict=True):
                request.wait()
                each.fill(-1)
    for verb, peer in (("send", {"dest": right}), ("recv", {"source": left})):
        with comm.plan(verb, x[0], **peer) as plan:
            assert f"by {path}; ipc: refused, {path} is forced" in plan.explain()
    with pytest.raises(hpcomm.ConfigError, match=f"{path} is forced, .* x is in host memory"):
        comm.sendrecv(values(LARGE, comm.rank), right, left, out=out[0][:LARGE])


@pytest.mark.parametrize("path", ["nccl"])
def test_both_ranks_of_a_message_are_told_why_nccl_does_not_come_up(
    nccl: ModelNccl, comm: hpcomm.Communicator, monkeypatch: pytest.MonkeyPatch
) -> None:
    if comm.size == 1:
        pytest.skip("one rank needs no NCCL")

    def fails(self: Any, *arguments: Any) -> Any:
        raise hpcomm.TransportError("ncclCommInitRank failed: unhandled system error")

    monkeypatch.setattr(ModelNccl, "group", fails)
    for _ in range(2):
        going = comm.isend(given(LARGE, comm.rank), dest=(comm.rank + 1) % comm.size)
        with pytest.raises(hpcomm.ConfigError, match="ncclCommInitRank failed: unhandled"):
            comm.recv(model.empty(LARGE, np.float32), source=(comm.rank - 1) % comm.size)
        with pytest.raises(hpcomm.ConfigError, match="ncclCommInitRank failed: unhandled"):
            going.wait()


def test_nccl_is_left_where_ranks_share_a_gpu(
    nccl: ModelNccl, comm: hpcomm.Communicator, device: model.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    if comm.size == 1:
        pytest.skip("one rank needs no NCCL")
    x = given(LARGE, comm.rank)
    with comm.plan("all_reduce", x) as step:
        assert "by nccl" in step.explain()
    device.number_of_gpu = 0
    with comm.dup() as other, other.plan("all_reduce", x) as step:
        assert "by ipc" in step.explain()
        assert "nccl: refused, ranks 0 and 1 share a GPU" in step.explain()
    monkeypatch.setenv("HPCOMM_GPU", "nccl")
    with comm.dup() as other, pytest.raises(hpcomm.ConfigError, match="ranks 0 and 1 share a GPU"):
        other.all_reduce(x)


@pytest.fixture
def aware(monkeypatch: pytest.MonkeyPatch) -> None:
    """An MPI that reads device memory: the model's, which memory() shows to it."""
    monkeypatch.setattr(cuda_aware, "_found", dict.fromkeys(cuda_aware.OPERATIONS, ""))


@pytest.mark.parametrize("path", ["direct"])
@pytest.mark.parametrize("verb", COLLECTIVES)
def test_an_mpi_that_reads_device_memory_is_given_it(
    aware: None, comm: hpcomm.Communicator, verb: str
) -> None:
    x, expected = COLLECTIVES[verb](LARGE, comm.size, comm.rank)
    y = collective(comm, verb, x)
    x.fill(-1)
    if expected is not None:
        y += 1
        np.testing.assert_array_equal(y.get(), expected + 1)
    with comm.plan("all_reduce", given(LARGE, comm.rank)) as step:
        assert "by direct (the MPI library, on device memory)" in step.explain()


def test_an_mpi_that_does_not_say_so_is_given_none(
    comm: hpcomm.Communicator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda_aware, "_found", {})
    monkeypatch.setattr(cuda_aware, "_child", lambda names: pytest.fail("was tried"))
    monkeypatch.setenv("HPCOMM_GPU", "direct")
    with (
        comm.dup() as other,
        pytest.raises(hpcomm.ConfigError, match=r"this MPI (says|does not say) that it"),
    ):
        other.all_reduce(given(LARGE, comm.rank))


def test_the_trial_tells_right_from_wrong(
    comm: hpcomm.Communicator, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In this job, because the model's memory cannot crash it."""
    if comm.size == 1:
        pytest.skip("alone, a rank finds in the wrong memory what it has put there itself")
    cuda_aware.trial(["send", "all_reduce", "reduce_scatter"])
    wrong = model.asarray(np.zeros(1 << 22, np.uint8))
    monkeypatch.setattr(
        type(driver.driver().device(0)), "memory", lambda self, at, n: wrong._on_host()[0][:n]
    )
    cuda_aware.trial(["all_gather"])
    out = capsys.readouterr().out
    if comm.rank == 0:
        assert [line.split(" ", 1)[1] for line in out.splitlines()] == [
            '["send", ""]', '["all_reduce", ""]', '["reduce_scatter", ""]',
            '["all_gather", "data came out wrong"]',
        ]  # fmt: skip


def test_a_path_can_be_forced_in_code(comm: hpcomm.Communicator) -> None:
    """What is made of a communicator keeps it, until it is told another one."""
    x = given(LARGE, comm.rank)
    with comm.dup(gpu="pipeline") as piped, piped.split(0) as part, part.dup(gpu="auto") as free:
        for made, way in ((piped, "pipeline"), (part, "pipeline"), (free, "ipc")):
            with made.plan("all_reduce", x) as step:
                assert f"by {way}" in step.explain()
                assert way == "ipc" or "ipc: refused, pipeline is forced" in step.explain()
    with pytest.raises(hpcomm.ConfigError, match="there is no path 'pigeon'"):
        comm.dup(gpu="pigeon")
    if comm.size > 1:
        with pytest.raises(hpcomm.MismatchError, match="and another path elsewhere"):
            comm.dup(gpu="ipc" if comm.rank else "pipeline")


def test_a_path_must_be_one_and_the_same_on_all_ranks(
    comm: hpcomm.Communicator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HPCOMM_GPU", "carrier pigeon")
    with pytest.raises(hpcomm.ConfigError, match="there is no path 'carrier pigeon'"):
        comm.dup()
    if comm.size > 1:
        monkeypatch.setenv("HPCOMM_GPU", "ipc" if comm.rank else "pipeline")
        with pytest.raises(hpcomm.MismatchError, match="another path elsewhere"):
            comm.dup()


def test_two_groups_told_different_paths_are_told_so_on_all_ranks(
    comm: hpcomm.Communicator, monkeypatch: pytest.MonkeyPatch
) -> None:
    if comm.size == 1:
        pytest.skip("one rank is one group")
    side = comm.rank % 2
    with comm.split(side) as group:
        monkeypatch.setenv("HPCOMM_GPU", ["ipc", "pipeline"][side])
        between = group.mpi.Create_intercomm(0, comm.mpi, 1 - side)
        with pytest.raises(hpcomm.MismatchError, match="another path elsewhere"):
            hpcomm.Communicator(between)
        between.Free()


def test_a_closed_communicator_has_given_its_device_memory_back(
    comm: hpcomm.Communicator, device: model.Model
) -> None:
    x = given(LARGE, comm.rank)
    before, events = len(device.allocations), len(device.events)
    with comm.dup() as made:
        y = made.all_reduce(x)
        assert len(device.allocations) == before + 2
        y.get()
    del y
    assert len(device.allocations) == before + 1
    assert len(device.events) <= events + 4  # of waits that others may take


def test_in_place_calls_and_blocks_of_the_result_itself(comm: hpcomm.Communicator) -> None:
    for n in (SMALL, LARGE):
        x = given(n, comm.rank)
        assert comm.all_reduce(x, out=x) is x
        np.testing.assert_array_equal(x.get(), sum(values(n, q) for q in range(comm.size)))
        whole = model.empty((comm.size, n), np.float32)
        whole[comm.rank][...] = given(n, comm.rank)
        comm.all_gather(whole[comm.rank], out=whole)
        np.testing.assert_array_equal(whole.get(), [values(n, q) for q in range(comm.size)])
        x = given(n, comm.rank)
        comm.broadcast(x, out=x)
        np.testing.assert_array_equal(x.get(), values(n, 0))


def test_what_cannot_be_right_is_refused(comm: hpcomm.Communicator) -> None:
    x = given(8, comm.rank)
    with pytest.raises(hpcomm.LayoutError, match="overlap"):
        comm.all_reduce(x[:6], out=x[2:])
    with pytest.raises(hpcomm.UsageError, match="function as op"):
        comm.all_reduce(x, op=lambda a, b: a)
    with pytest.raises(hpcomm.DtypeError, match="out is float64"):
        comm.all_reduce(x, out=model.empty(8))


def test_a_request_orders_streams_at_wait_and_the_host_at_synchronize(comm: hpcomm.Communicator) -> None:
    device = driver.driver().device(0)
    producer, consumer = device.stream(), device.stream()
    with model.stream(producer):
        x = given(LARGE, comm.rank)
        request = comm.all_reduce(x, async_op=True)
    with model.stream(consumer):
        y = request.wait()
        y += 1
        x.fill(0)
        np.testing.assert_array_equal(y.get(), sum(values(LARGE, q) for q in range(comm.size)) + 1)
    request = comm.all_reduce(given(LARGE, comm.rank), async_op=True)
    while not request.done():
        pass
    assert request.result is not None
    request = comm.all_reduce(given(LARGE, comm.rank), async_op=True)
    request.synchronize()
    assert request.done()


def test_arrays_live_until_the_device_is_through_with_them(comm: hpcomm.Communicator) -> None:
    """Waited for on another stream than they were made on: their library gives memory out again there."""
    producer, consumer = (driver.driver().device(0).stream() for _ in range(2))
    with model.stream(producer):
        x = given(LARGE, comm.rank)
        request = comm.all_reduce(x, async_op=True)
    with model.stream(consumer):
        y = request.wait()
        there = weakref.ref(x)
        del x, request
        gc.collect()
        assert there() is not None
        np.testing.assert_array_equal(y.get(), sum(values(LARGE, q) for q in range(comm.size)))
        comm.all_reduce(given(SMALL, comm.rank))
        gc.collect()
        assert there() is None


def test_a_capture_into_a_graph_is_refused(comm: hpcomm.Communicator, device: model.Model) -> None:
    x = given(SMALL, comm.rank)
    device.capturing = (model.current_stream(),)  # type: ignore[attr-defined]
    try:
        with pytest.raises(hpcomm.UsageError, match="captured into a CUDA graph"):
            comm.all_reduce(x)
    finally:
        device.capturing = ()  # type: ignore[attr-defined]


def test_a_race_is_told_although_the_data_is_right(device: model.Model) -> None:
    """The model itself: two streams and no edge between them."""
    driver.install(device)
    try:
        device.order.forget()
        place = device.device(0)
        other = place.stream()
        x = model.asarray(np.ones(3))
        with model.stream(other):
            x += 1
        assert any("write by stream" in race for race in order.races([device.noted()]))
        device.order.forget()
        event = place.event()
        x += 1
        place.record(event, model.current_stream())
        place.wait(other, event)
        with model.stream(other):
            x += 1
        assert order.races([device.noted()]) == []
    finally:
        driver.install(None)


@pytest.mark.parametrize("n", [SMALL, LARGE])
def test_sendrecv_batches_and_ragged_arrays_take_device_arrays(comm: hpcomm.Communicator, n: int) -> None:
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    x = given(n, comm.rank)
    y = comm.sendrecv(x, right, left)
    np.testing.assert_array_equal(y.get(), values(n, left))
    assert comm.sendrecv(x, right, left, out=x) is x
    np.testing.assert_array_equal(x.get(), values(n, left))
    out = model.empty(n, np.float32)
    jobs = [hpcomm.P2POp("send", y, right), hpcomm.P2POp("recv", out, left)]
    hpcomm.wait_all(hpcomm.batch_isend_irecv(comm, jobs))
    np.testing.assert_array_equal(out.get(), values(n, (left - 1) % comm.size))
    parts = comm.all_gather_ragged(given(n + comm.rank, comm.rank))
    for rank, part in enumerate(parts):
        assert type(part) is model.DeviceArray
        np.testing.assert_array_equal(part.get(), values(n + rank, rank))
    mixed = comm.all_gather_ragged(given(n, 0) if comm.rank == 0 else values(n, comm.rank))
    assert [type(part) for part in mixed] == [model.DeviceArray] + [np.ndarray] * (comm.size - 1)
    objects = comm.all_gather_object({"x": given(n, comm.rank)})
    np.testing.assert_array_equal(objects[left]["x"].get(), values(n, left))


@pytest.mark.parametrize("path", ["auto", "pipeline"])
@pytest.mark.parametrize("n", [0, SMALL, LARGE, DIRECT])
def test_arrays_in_objects_go_from_device_to_device(comm: hpcomm.Communicator, n: int, path: str) -> None:
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    x, wide = given(n, comm.rank), given(2, comm.rank, n) if n else model.empty((2, 0), np.float32)
    going = comm.isend_object(
        {"x": x, "more": [wide[:, : n // 2], "text"], "host": values(n, 5)}, right, tag=4
    )
    got = comm.recv_object(left)
    going.wait()
    x.fill(-1)
    wide.fill(-1)
    for array in (got["x"], got["more"][0]):
        assert type(array) is model.DeviceArray
        array += 1
    np.testing.assert_array_equal(got["x"].get(), values(n, left) + 1)
    expected = values(2 * n, left).reshape(n, 2)[:, : n // 2] if n else np.empty((2, 0))
    np.testing.assert_array_equal(got["more"][0].get(), expected + 1)
    np.testing.assert_array_equal(got["host"], values(n, 5))
    assert got["more"][1] == "text"
    assert comm.context.devices is not None
    taken = comm.context.devices.messages.paths.get(("from", left), "")
    expects = "pipeline" if path == "pipeline" else "ipc, opened itself" if n == DIRECT else "ipc, through"
    assert taken.startswith(expects if n > SMALL and comm.size > 1 else "")
    assert n > SMALL or not taken


RAGGED: dict[str, Callable[[hpcomm.Communicator, Any, bool], Any]] = {
    # verb -> (communicator, array of a rank, in the background) -> what it gives
    "all_gather": lambda c, make, late: c.all_gather_ragged(make(c.rank), async_op=late),
    "gather": lambda c, make, late: c.gather_ragged(make(c.rank), root=c.size - 1, async_op=late),
    "broadcast": lambda c, make, late: c.broadcast_ragged(make(c.rank), root=c.size - 1, async_op=late),
    "scatter": lambda c, make, late: c.scatter_ragged(
        [make(r) for r in range(c.size)] if c.rank == c.size - 1 else None, root=c.size - 1, async_op=late
    ),
    "all_to_all": lambda c, make, late: c.all_to_all_ragged([make(c.rank)] * c.size, async_op=late),
    "all_gather_object": lambda c, make, late: c.all_gather_object([make(c.rank)], async_op=late),
    "gather_object": lambda c, make, late: c.gather_object([make(c.rank)], root=c.size - 1, async_op=late),
    "broadcast_object": lambda c, make, late: c.broadcast_object(
        [make(c.rank)] if c.rank == c.size - 1 else None, root=c.size - 1, async_op=late
    ),
    "scatter_object": lambda c, make, late: c.scatter_object(
        [[make(r)] for r in range(c.size)] if c.rank == c.size - 1 else None, root=c.size - 1, async_op=late
    ),
    "all_to_all_object": lambda c, make, late: c.all_to_all_object([[make(c.rank)]] * c.size, async_op=late),
}


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("n", [SMALL, LARGE])
@pytest.mark.parametrize("verb", RAGGED)
def test_collectives_of_ragged_arrays_and_objects_leave_them_on_devices(
    comm: hpcomm.Communicator, verb: str, n: int, late: bool
) -> None:
    made: list[Any] = []

    def make(rank: int) -> Any:
        made.append(given(n + rank, rank))
        return made[-1]

    got = RAGGED[verb](comm, make, late)
    got = got.wait() if late else got
    last = comm.size - 1
    if verb.startswith("gather") and comm.rank != last:
        assert got is None
        made[0].fill(0)
        return
    givers = {"broadcast": [last], "scatter": [comm.rank]}.get(verb.partition("_")[0], range(comm.size))
    arrays = [got] if verb in ("broadcast", "scatter") else got
    arrays = [each[0] if isinstance(each, list) else each for each in arrays]
    assert len(arrays) == len(givers)
    for array, rank in zip(arrays, givers, strict=True):
        assert type(array) is model.DeviceArray
        if "object" in verb and any(array is each for each in made):  # a rank's own object comes back itself
            continue
        assert not any(array is each for each in made)
        array += 1  # in the current stream, without waiting for it
        np.testing.assert_array_equal(array.get(), values(n + rank, rank) + 1)
    for array in made:
        array.fill(0)


def test_arrays_that_one_rank_alone_brings_may_be_overwritten_after_the_call(
    comm: hpcomm.Communicator,
) -> None:
    x = given(LARGE, comm.rank)
    got = comm.all_to_all_object([x if comm.rank == 0 and rank else rank for rank in range(comm.size)])
    x.fill(-1)
    for rank, array in enumerate(got):
        if rank == 0 and comm.rank:
            np.testing.assert_array_equal(array.get(), values(LARGE, 0))
        else:
            assert array == comm.rank


def test_objects_with_and_without_arrays_on_devices_take_turns(
    comm: hpcomm.Communicator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the sizes of real use: what travels with the object is copied while its receiver opens it."""
    assert type(pickling.encode([given(SMALL, 0)])) is payload.DevicePayload
    assert type(pickling.encode([values(SMALL, 0)])) is list
    monkeypatch.setattr(dispatch, "DEVICE_EAGER", 1 << 20)
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    with hpcomm.Communicator(MPI.COMM_WORLD) as usual:
        for n in (200_000, 3, 260_000, 200_000):
            going = usual.isend_object([given(n, comm.rank), n], right)
            array, said = usual.recv_object(left)
            np.testing.assert_array_equal(array.get(), values(n, left))
            assert said == n
            going.wait()
            assert usual.sendrecv_object(n, right, left) == n


def test_an_object_may_be_waited_for_on_another_stream(
    comm: hpcomm.Communicator, device: model.Model
) -> None:
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    other = device.device(0).stream()
    with model.stream(other):
        x = given(LARGE, comm.rank)
        going = comm.isend_object([x], right)
    coming = comm.irecv_object(left)
    while not coming.done():
        pass
    with model.stream(other):
        [got] = coming.wait()
        got += 1
        going.wait()
        x += 1
    with model.stream(other):
        np.testing.assert_array_equal(got.get(), values(LARGE, left) + 1)


def test_what_follows_an_object_is_sent_while_its_rank_does_something_else(comm: hpcomm.Communicator) -> None:
    """The sender waits for something else first, and asks for nothing meanwhile."""
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    if comm.rank % 2:
        going = comm.isend_object(given(LARGE, comm.rank), right)
        MPI.COMM_WORLD.recv(source=right, tag=77)
        going.wait()
    if comm.rank % 2 == 0 and left % 2:
        got = comm.recv_object(left)
        MPI.COMM_WORLD.send(None, left, tag=77)
        np.testing.assert_array_equal(got.get(), values(LARGE, left))
    elif comm.rank % 2 and left % 2:
        pytest.fail("there are two odd ranks beside each other")


@pytest.mark.parametrize("n", [SMALL, LARGE])
def test_where_their_library_is_not_loaded_arrays_come_to_the_host(
    comm: hpcomm.Communicator, monkeypatch: pytest.MonkeyPatch, n: int
) -> None:
    if comm.rank % 2:
        monkeypatch.delitem(libraries.LIBRARIES, "device_model")
    got = comm.all_gather_object((given(n, comm.rank), 7))
    parts = comm.all_gather_ragged(given(n, comm.rank))
    for rank in set(range(comm.size)) - {comm.rank}:
        for array in (got[rank][0], parts[rank]):
            assert type(array) is (np.ndarray if comm.rank % 2 else model.DeviceArray)
            array = array if comm.rank % 2 else array.get()
            np.testing.assert_array_equal(array, values(n, rank))


@pytest.mark.parametrize("path", ["auto", "pipeline"])
def test_messages_between_two_groups_go_from_device_to_device(comm: hpcomm.Communicator, path: str) -> None:
    """Those of all forms, some to and from ranks whose arrays lie in host memory."""
    if comm.size == 1:
        pytest.skip("one rank is one group")
    side = comm.rank % 2
    with (
        comm.split(side) as group,
        hpcomm.Communicator(group.mpi.Create_intercomm(0, comm.mpi, 1 - side)) as inter,
    ):
        if inter.rank >= inter.remote_size:
            return
        peer, ways = inter.rank, inter.context.devices.messages.paths
        due = values(LARGE, 10 * (1 - side))
        going = inter.isend(given(LARGE, 10 * side), peer)
        np.testing.assert_array_equal(inter.recv(model.empty(LARGE, np.float32), peer).get(), due)
        going.wait()
        coming = inter.irecv(model.empty(LARGE, np.float32), peer, tag=2)
        inter.send(given(LARGE, 10 * side), peer, tag=2)
        np.testing.assert_array_equal(coming.wait().get(), due)
        taken = "pipeline" if path == "pipeline" else "ipc, through"
        assert [ways[way, peer].startswith(taken) for way in ("to", "from")] == [True, True], ways
        found = inter.sendrecv(given(LARGE, 10 * side), peer, peer)
        np.testing.assert_array_equal(found.get(), due)
        inter.isend(given(LARGE, 10 * side), peer, tag=3)
        assert inter.probe(peer, 3).nbytes == due.nbytes
        np.testing.assert_array_equal(inter.recv(np.empty(LARGE, np.float32), peer, tag=3), due)
        going = inter.isend_object([given(LARGE, 10 * side)], peer)
        [got] = inter.recv_object(peer)
        assert type(got) is model.DeviceArray
        np.testing.assert_array_equal(got.get(), due)
        going.wait()
        x, y = given(LARGE, 10 * side), model.empty(LARGE, np.float32)
        with inter.plan("recv", out=y, source=peer) as comes, inter.plan("send", x, dest=peer) as goes:
            assert "in one MPI call" not in goes.explain()
            for _ in range(2):
                comes.start()
                goes()
                np.testing.assert_array_equal(comes.wait().get(), due)


@pytest.mark.parametrize("n", [SMALL, LARGE])
def test_objects_to_this_rank_itself_and_to_another_group_hold_device_arrays(
    comm: hpcomm.Communicator, n: int
) -> None:
    x = given(n, comm.rank)
    comm.send_object([x], comm.rank)
    comm.send_ragged(x, comm.rank, tag=3)
    x.fill(-1)
    [got] = comm.recv_object(comm.rank, 0)
    np.testing.assert_array_equal(got.get(), values(n, comm.rank))
    np.testing.assert_array_equal(comm.recv_ragged(comm.rank, 3).get(), values(n, comm.rank))
    comm.send_object([given(n, 0)], MPI.PROC_NULL)
    if comm.size == 1:
        return
    side = comm.rank % 2
    with (
        comm.split(side) as group,
        hpcomm.Communicator(group.mpi.Create_intercomm(0, comm.mpi, 1 - side)) as inter,
    ):
        for rank, part in enumerate(inter.all_gather_object([given(n, 10 * side + inter.rank)])):
            np.testing.assert_array_equal(part[0].get(), values(n, 10 * (1 - side) + rank))


@pytest.mark.parametrize("path", ["auto", "ipc", "pipeline"])
@pytest.mark.parametrize("n", [SMALL, LARGE, DIRECT])
def test_a_message_to_this_rank_itself_is_one_copy_on_the_device(
    comm: hpcomm.Communicator, device: model.Model, n: int, path: str
) -> None:
    x, y, out = given(n, comm.rank), given(n, 5), model.empty(n, np.float32)
    device.can_open = device.can_export = False  # needed for nothing here
    try:
        out.fill(-1)  # before what comes
        going = comm.isend(x, comm.rank)
        comm.recv(out, comm.rank)
        out += 1
        going.wait()
        x.fill(-1)
        np.testing.assert_array_equal(out.get(), values(n, comm.rank) + 1)
        comm.send(y, comm.rank, tag=3)  # a copy waits for its receiver
        y.fill(-1)
        comm.recv(out, hpcomm.ANY_SOURCE, 3)
        np.testing.assert_array_equal(out.get(), values(n, 5))
        assert comm.sendrecv(out, comm.rank, comm.rank, out=out) is out
        np.testing.assert_array_equal(out.get(), values(n, 5))
    finally:
        device.can_open = device.can_export = True
    assert comm.context.devices is not None
    taken = comm.context.devices.messages.paths
    expects = "pipeline" if path == "pipeline" else "ipc, within this process"
    assert [each.partition(";")[0] for each in taken.values()] == ([] if n == SMALL else [expects] * 2)


def test_arrays_on_two_devices_of_one_rank_are_not_copied_so(comm: hpcomm.Communicator) -> None:
    assert comm.context.devices is not None
    why, *_ = comm.context.devices.messages._open(ipc.Lent(1, 0, 0), driver.driver().device(0))
    assert why == "x lies on another device of this rank"


def test_what_a_field_drops_lives_until_other_streams_are_through(device: model.Model) -> None:
    driver.install(device)
    try:
        lives, streams = [], [driver.driver().device(0).stream() for _ in range(2)]
        for second in streams:
            there, kept = DeviceOperations(model.empty(4)), model.empty(4)
            for now in (streams[0], second):
                with model.stream(now), there:
                    kept.fill(1)
            with model.stream(second):
                there.drop(kept)
            alive = weakref.ref(kept)
            del kept
            gc.collect()
            lives.append(alive() is not None)
        assert lives == [False, True]
    finally:
        driver.install(None)


def test_neighbours_that_a_rank_has_in_itself_hear_it_on_the_device(comm: hpcomm.Communicator) -> None:
    ring = comm.cart((comm.size, 1), periodic=True)
    got = ring.neighbour_all_gather(given(LARGE, comm.rank))
    assert type(got) is model.DeviceArray
    np.testing.assert_array_equal(got.get(), [values(LARGE, rank) for rank in ring.sources])
    assert ring.context.devices is not None
    assert ring.context.devices.messages.paths["from", ring.rank].startswith("ipc, within this process")
    ring.close()


def test_an_object_whose_arrays_cannot_go_the_forced_way_is_refused_by_both_ranks(
    comm: hpcomm.Communicator, device: model.Model
) -> None:
    with comm.dup(gpu="nccl") as forced:
        right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
        if comm.size == 1:
            return
        kept, taken = staging.station(buffer.as_buffer(given(1, 0)).place.device), []
        for _ in range(4):
            going = forced.isend_object([given(LARGE, comm.rank) for _ in range(9)], right)
            with pytest.raises(hpcomm.ConfigError, match="nccl is forced, but cannot carry this message"):
                forced.recv_object(left)
            with pytest.raises(hpcomm.ConfigError, match="nccl is forced, but cannot carry this message"):
                going.wait()
            gc.collect()
            # Not how many there are: that grows where both directions happen to be under way at once.
            taken.append(len(device.events) - len(kept._events))
        assert taken[3] <= taken[0]  # those of arrays behind the refused one are used again


def test_plans_take_device_arrays_and_explain_their_way(comm: hpcomm.Communicator) -> None:
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    for n, way in (
        (SMALL, "staged: through pinned memory in one MPI call"),
        (LARGE, "by ipc (an own schedule"),
    ):
        x, out = given(n, comm.rank), model.empty(n, np.float32)
        with comm.plan("all_reduce", x, out=out) as step:
            assert way in step.explain()
            assert n == SMALL or "nccl: refused" in step.explain()
            for _ in range(2):
                assert step() is out
                np.testing.assert_array_equal(out.get(), sum(values(n, q) for q in range(comm.size)))
    x, out = given(LARGE, comm.rank), model.empty(LARGE, np.float32)
    with comm.plan("send", x, dest=right) as send, comm.plan("recv", out=out, source=left) as recv:
        for _ in range(2):
            send.start()
            recv()
            send.wait()
            np.testing.assert_array_equal(out.get(), values(LARGE, left))
        if comm.size > 1:
            assert "ipc, through the slab" in send.explain()
            assert "ipc, through the slab" in recv.explain()


def test_large_host_arrays_go_the_same_way_on_a_machine_with_devices(comm: hpcomm.Communicator) -> None:
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    expected = sum(values(LARGE, q) for q in range(comm.size))
    np.testing.assert_array_equal(comm.all_reduce(values(LARGE, comm.rank)), expected)
    np.testing.assert_array_equal(comm.all_reduce(values(LARGE, comm.rank), algorithm="ring"), expected)
    np.testing.assert_array_equal(comm.all_reduce(values(LARGE, comm.rank), async_op=True).wait(), expected)
    for n in (SMALL, 384, LARGE):  # 384 elements are as long as a entry
        for x in (values(n, comm.rank), given(n, comm.rank)):
            going = comm.isend(x, dest=right)
            status = hpcomm.Status()
            got = comm.recv(dtype=np.float32, source=left, status=status)
            going.wait()
            np.testing.assert_array_equal(got, values(n, left))
            assert status.nbytes == 4 * n


@pytest.mark.parametrize("where", ["device", "host"])
def test_probe_tells_the_length_of_a_message_of_any_size(comm: hpcomm.Communicator, where: str) -> None:
    """Also of one that is as long as what announces large ones; what was probed is received all the same."""
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    make: Any = given if where == "device" else values
    sizes = (LARGE, 384, SMALL, LARGE, LARGE, 384)
    going = [comm.isend(make(n, comm.rank), dest=right, tag=n) for n in sizes]
    for i, n in enumerate(sizes):
        while (found := comm.iprobe(left, n)) is None:
            pass
        assert found == hpcomm.Status(left, n, 4 * n)
        assert comm.probe(left, n) == found
        if i == 3:  # whose array is made
            got = comm.recv(source=left, tag=n, dtype=np.float32)
        elif i == 4:
            coming = comm.irecv(make(SMALL, 0), source=comm.rank, tag=9)  # MPICH does not buffer it
            got = comm.sendrecv(make(SMALL, 0), comm.rank, left, 9, n, out=make(n, 0))
            coming.wait()
        else:
            got = comm.recv(make(n, 0), source=left, tag=n)
        np.testing.assert_array_equal(got.get() if hasattr(got, "get") else got, values(n, left))
    hpcomm.wait_all(going)
    assert not comm.context.devices.messages.held
    going = [comm.isend(make(LARGE, comm.rank), dest=right)]
    comm.probe(left)
    with pytest.raises(hpcomm.MismatchError, match=f"message has {4 * LARGE} bytes, .* it {4 * SMALL}"):
        comm.recv(make(SMALL, 0), source=left)
    with pytest.raises(hpcomm.MismatchError, match=f"message has {4 * LARGE} bytes"):
        going[0].wait()


def test_a_message_that_does_not_fit_is_an_error_on_both_ranks(comm: hpcomm.Communicator) -> None:
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    going = comm.isend(given(LARGE, comm.rank), dest=right)
    with pytest.raises(
        hpcomm.MismatchError, match=f"message has {4 * LARGE} bytes, the array .* {4 * LARGE + 4}"
    ):
        comm.recv(model.empty(LARGE + 1, np.float32), source=left)
    with pytest.raises(hpcomm.MismatchError, match=f"message has {4 * LARGE} bytes"):
        going.wait()


def test_memory_that_cannot_be_opened_goes_by_pieces_and_says_why(
    comm: hpcomm.Communicator, device: model.Model
) -> None:
    if comm.size == 1:
        pytest.skip("with one rank there is nobody whose memory could be opened")
    device.can_open = False
    kept, comm.context.devices.messages.opened = comm.context.devices.messages.opened, ipc.Opened()
    try:
        out = model.empty(LARGE, np.float32)
        exchange(comm, given(LARGE, comm.rank), out)
        with comm.plan("recv", out=out, source=(comm.rank - 1) % comm.size) as recv:
            assert "by pipeline; ipc: refused, operation not supported" in recv.explain()
        with comm.plan("all_reduce", out) as step:
            assert "by schedule" in step.explain()
            assert "through pinned memory, for it cannot be opened: operation not supported" in step.explain()
    finally:
        device.can_open, comm.context.devices.messages.opened = True, kept


def all_paths(comms: list[Cart]) -> None:
    """Calls that between them need every edge of every path; nothing waits for a device but calls."""
    one_way(comms[0])
    aside = driver.driver().device(0).stream()
    for comm in comms:
        for n in (SMALL, LARGE, DIRECT) if comm is comms[0] else (LARGE,):
            x, out = given(n, comm.rank), model.empty(n, np.float32)
            for again in range(2):  # the second uses slots that the first has used
                out.fill(0)  # an earlier writer of what is received into
                if n != DIRECT:
                    request = comm.all_reduce(x, out=out, async_op=bool(again))
                    request.wait() if again else None
                    out += 1
                    x += 1
                    out.fill(0)
                exchange(comm, x, out)
                exchange_objects(comm, x)
                if comm.name == "ipc":
                    exchange_with_itself(comm, x, aside)
                if n == LARGE:
                    exchange_with_neighbours(comm, x, bool(again))
        for verb in ("all_gather", "scan") if "nccl" not in comm.name else ("all_gather",):
            x, _ = COLLECTIVES[verb](LARGE // 2, comm.size, comm.rank)
            y = collective(comm, verb, x)
            x.fill(0)
            y += 1


def exchange_objects(comm: hpcomm.Communicator, x: Any) -> None:
    going = comm.isend_object([x], (comm.rank + 1) % comm.size)
    [got] = comm.recv_object((comm.rank - 1) % comm.size)
    got += 1
    going.wait()
    x += 1


def exchange_with_neighbours(chain: Cart, x: Any, later: bool) -> None:
    out = model.empty((2, *x.shape), np.float32)
    out.fill(0)
    request = chain.neighbour_all_gather(x, out=out, async_op=later)
    request.wait() if later else None
    out += 1
    x += 1


def exchange(comm: hpcomm.Communicator, x: Any, out: Any) -> None:
    going = comm.isend(x, dest=(comm.rank + 1) % comm.size)
    comm.recv(out, source=(comm.rank - 1) % comm.size)
    out += 1
    going.wait()
    x += 1


def exchange_with_itself(comm: hpcomm.Communicator, x: Any, aside: int) -> None:
    """Received on another stream, of which only the request tells the one on which it was sent."""
    going = comm.isend(x, dest=comm.rank)
    with model.stream(aside):
        out = model.empty(x.shape, np.float32)
        out.fill(0)
        comm.recv(out, source=comm.rank)
        out += 1
    going.wait()
    x += 1


def one_way(comm: hpcomm.Communicator) -> None:
    """Rank 0 hears nothing of ranks 1 and 2 but that they have taken what it sent."""
    for n, dest in ((LARGE, 1), (DIRECT, 2), (LARGE, 1)):
        if comm.rank == 0:
            comm.send(given(n, 0), dest=dest)
        elif comm.rank == dest:
            comm.recv(model.empty(n, np.float32), source=0)


def test_every_edge_is_needed_and_the_lack_of_any_is_told(
    nccl: ModelNccl, aware: None, comm: hpcomm.Communicator, device: model.Model,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    if comm.size != 3:
        pytest.skip("three ranks have all edges")
    comms = [
        forced(comm, device, monkeypatch, path) for path in ("ipc", "pipeline", "schedule", "nccl", "direct")
    ]
    all_paths(comms)  # the ranks meet
    device.order.forget()
    all_paths(comms)
    for each in comms:
        name = {"schedule": "ipc"}.get(each.name, each.name)
        taken = {
            path.partition(";")[0].partition(",")[0] for path in each.context.devices.messages.paths.values()
        }
        assert taken == {name}, (each.name, taken)
    assert found_races(device) == []
    edges, unnoticed = told_edges(device, lambda edge: "test_devices.py" not in edge)
    assert len(edges) > 12, edges
    assert not unnoticed, "\n".join([*unnoticed, "of", *edges])
    for each in comms:
        each.close()


def forced(
    comm: hpcomm.Communicator, device: model.Model, monkeypatch: pytest.MonkeyPatch, path: str
) -> Cart:
    """A chain of ranks whose calls take one path; "schedule": with messages through pinned memory."""
    monkeypatch.setenv("HPCOMM_GPU", path)
    made = comm.cart((-1,), name=path)
    device.can_open = path != "schedule"
    try:
        with made.plan("all_reduce", given(LARGE, comm.rank)) as step:
            assert f"by {path}" in step.explain()
    finally:
        device.can_open = True
    return made


@pytest.mark.mpi(min_size=2)
def test_a_message_that_is_no_card_is_not_written_behind_one(
    comm: hpcomm.Communicator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Open MPI would write all of it there, into memory of others."""
    monkeypatch.setattr(dispatch, "DEVICE_EAGER", 1 << 20)
    dupe = comm.dup()
    if dupe.rank == 0:
        dupe.isend(np.ones(1 << 16), 1).wait()
    elif dupe.rank == 1:
        with pytest.raises(hpcomm.MismatchError):
            dupe.recv(np.zeros(1 << 18), 0)
    dupe.barrier()
    assert dupe.all_reduce(1) == dupe.size


@pytest.mark.parametrize("limit", [0, 1 << 30], ids=["parts", "whole"])
@pytest.mark.parametrize("path", ["pipeline"])
def test_sums_through_host_memory_have_the_order_of_ranks_on_several_nodes_too(
    comm: hpcomm.Communicator, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    nodes, wrong = order_law.nodes_of(comm.size, 2), {}
    monkeypatch.setattr(segment, "ranks_here", lambda mpi: nodes[mpi.rank % 2])
    monkeypatch.setattr(rank_order, "ORDER_GATHERED_FAR", limit)
    with comm.dup(check="full") as apart:  # which has no core
        for n in (SMALL, LARGE):
            xs = [order_law.given("float32", n, rank) for rank in range(comm.size)]
            wanted = order_law.law("sum", xs, nodes)
            requests = [apart.all_reduce(model.asarray(xs[comm.rank]), async_op=True) for _ in range(2)]
            here = apart.all_reduce(xs[comm.rank] if comm.rank else model.asarray(xs[0]))
            got = [here, *(request.wait() for request in requests)]
            for i, each in enumerate(got):
                found = each.get() if isinstance(each, model.DeviceArray) else each
                wrong[n, i] = order_law.differing(found, wanted)
    assert {key: count for key, count in wrong.items() if count} == {}
