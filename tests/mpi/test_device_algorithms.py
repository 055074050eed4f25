"""algorithm= on arrays on a device, on the model of the driver: there while all lie there, else on copies."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import device_model as model
import numpy as np
import pytest
from mpi4py import MPI
from test_devices import (
    COLLECTIVES,
    LARGE,
    SMALL,
    collective,
    comm,
    device,
    found_races,
    given,
    path,
    stacked,
    told_edges,
    values,
)

import hpcomm
from hpcomm.device import driver
from hpcomm.schedule.registry import algorithms
from hpcomm.transport.device import host_copy, workspace
from hpcomm.transport.device.staging import DeviceSink, DeviceSource
from hpcomm.transport.scheduled import rounds

# Of MPI it takes messages alone; test_schedules.py has more ranks, on hosts.
pytestmark = [pytest.mark.few, pytest.mark.three, pytest.mark.once]

__all__ = ["comm", "device", "path"]  # fixtures

LONG = 1500  # elements of float32 that do not fit into a workspace at once
# as they are before other tests register some
NAMES = [(verb, name) for verb in COLLECTIVES for name in algorithms(verb)]
LAST = dict(NAMES)


def here(x: Any) -> Any:
    return x.get() if isinstance(x, model.DeviceArray) else x


def wanted(comm: hpcomm.Communicator, verb: str, name: str) -> str:
    """name, with what it needs to be told on so many ranks; skips where it cannot be."""
    from hpcomm.schedule.registry import build

    try:
        build(verb, name, comm.size, 0)
    except hpcomm.UsageError as error:
        pytest.skip(str(error))
    return name


@pytest.mark.parametrize(("verb", "name"), NAMES)
def test_every_algorithm_goes_from_device_to_device(
    comm: hpcomm.Communicator, monkeypatch: pytest.MonkeyPatch, verb: str, name: str
) -> None:
    moved: list[str] = []
    move = rounds.Rounds.move
    monkeypatch.setattr(rounds.Rounds, "move", lambda self, n: (moved.append(self.key[1]), move(self, n))[1])
    x, expected = COLLECTIVES[verb](LONG, comm.size, comm.rank)
    y = collective(comm, verb, x, algorithm=wanted(comm, verb, name))
    x.fill(-1)  # in the current stream, behind the call
    if expected is None:
        assert y is None
    else:
        y += 1
        np.testing.assert_array_equal(y.get(), expected + 1)
    assert {each.partition(":")[0] for each in moved} == {name}
    assert len(moved) > 1  # in columns that fit into the workspace


@pytest.mark.parametrize("on", ["all", "all but rank 1", "none"])
@pytest.mark.parametrize("verb", COLLECTIVES)
def test_an_algorithm_takes_arrays_wherever_they_lie(comm: hpcomm.Communicator, verb: str, on: str) -> None:
    name = LAST[verb]
    for n in (SMALL, LARGE):
        x, expected = COLLECTIVES[verb](n, comm.size, comm.rank)
        if on == "none" or (on != "all" and comm.rank == 1):
            x = here(x)
        waiting = collective(comm, verb, x, algorithm=name, async_op=True)
        for y in (collective(comm, verb, x, algorithm=name), waiting.wait()):
            if expected is None:
                assert y is None
            else:
                assert verb == "broadcast" or type(y) is type(x)
                np.testing.assert_array_equal(here(y), expected)


@pytest.mark.parametrize("on", ["all", "all but rank 1"])
@pytest.mark.parametrize("dtype", ["float16", "bool", "complex64", "int16"])
def test_what_an_algorithm_folds_is_what_the_op_says(comm: hpcomm.Communicator, dtype: str, on: str) -> None:
    op = "lor" if dtype == "bool" else "max" if dtype == "int16" else "avg"
    x = values(4 * LARGE, comm.rank, dtype) if dtype != "bool" else np.arange(4 * LARGE) % 7 == comm.rank
    lies = model.asarray(x) if on == "all" or comm.rank != 1 else x.copy()
    expected = comm.all_reduce(x, op)
    for algorithm in ("ring", "recursive_doubling"):
        got = comm.all_reduce(lies, op, algorithm=algorithm)
        np.testing.assert_array_equal(here(got), expected)
    assert comm.all_reduce(lies, op, out=lies, algorithm="ring") is lies
    np.testing.assert_array_equal(here(lies), expected)


def test_calls_in_the_background_keep_their_order(comm: hpcomm.Communicator) -> None:
    """On devices, on copies and on the host, large and small, waited for from the last."""
    arrays = [
        given(LARGE, comm.rank),
        values(LARGE, comm.rank) if comm.rank else given(LARGE, comm.rank),
        values(LARGE, comm.rank),
        given(SMALL, comm.rank),
        given(2 * LARGE, comm.rank),
    ]
    waiting = [comm.all_reduce(x, algorithm="ring", async_op=True) for x in arrays]
    for x, request in reversed(list(zip(arrays, waiting, strict=True))):
        expected = sum(values(x.shape[0], q) for q in range(comm.size))
        np.testing.assert_array_equal(here(request.wait()), expected)


@pytest.mark.parametrize("on", ["all", "all but rank 1", "none"])
@pytest.mark.parametrize("n", [SMALL, LARGE])
def test_plans_take_algorithms_and_arrays_on_devices(comm: hpcomm.Communicator, n: int, on: str) -> None:
    def lies(x: Any) -> Any:
        return x if on == "none" or (on != "all" and comm.rank == 1) else model.asarray(x)

    x = lies(values(n, comm.rank))
    half, gathered = lies(values(n, comm.rank, "float16")), lies(np.zeros((comm.size, n), np.float32))
    with (
        comm.plan("all_reduce", x, algorithm="ring") as step,
        comm.plan("all_reduce", half, out=half, op="max", algorithm="ring") as narrow,
        comm.plan("all_gather", x, out=gathered, algorithm="ring") as join,
        comm.plan("broadcast", x, out=x, algorithm="tree") as spread,
    ):
        total: Any = sum(values(n, q) for q in range(comm.size))
        for k in (1, 2):
            np.testing.assert_array_equal(here(step()), total + (k - 1) * comm.size)
            np.testing.assert_array_equal(here(narrow()), values(n, comm.size - 1, "float16"))
            assert join() is gathered
            np.testing.assert_array_equal(here(gathered), stacked(n, comm.size) + k - 1)
            x += 1
        np.testing.assert_array_equal(here(spread()), values(n, 0) + 2)
        if n == LARGE and on != "none":
            way = "ipc (an own schedule" if on == "all" else "pipeline (an own schedule on copies in host"
            if comm.size > 1 or on == "all":
                assert f"by {way}" in step.explain()
                assert "nccl: refused, algorithm= names an own schedule" in step.explain()


@pytest.mark.parametrize("path", ["pipeline", "direct", "nccl"])
def test_a_forced_path_that_takes_no_algorithm_says_so(comm: hpcomm.Communicator, path: str) -> None:
    x = given(LARGE, comm.rank)
    if path == "pipeline":
        got = comm.all_reduce(x, algorithm="ring")
        np.testing.assert_array_equal(got.get(), sum(values(LARGE, q) for q in range(comm.size)))
        return
    with pytest.raises(hpcomm.ConfigError, match=f"{path} is forced, .* names an own schedule"):
        comm.all_reduce(x, algorithm="ring")


def test_what_is_wrong_is_said_before_others_wait(comm: hpcomm.Communicator) -> None:
    x = given(LARGE, comm.rank)
    host = np.zeros(2 * LARGE, np.float32)
    with pytest.raises(hpcomm.UsageError, match="'rinf'"):
        comm.all_reduce(x, algorithm="rinf")
    with pytest.raises(hpcomm.DtypeError, match="out is int32"):
        comm.all_reduce(x, out=model.empty(LARGE, np.int32), algorithm="ring")
    with pytest.raises(hpcomm.LayoutError, match="overlap"):
        comm.all_reduce(host[:LARGE], out=host[1 : LARGE + 1], algorithm="ring")


@pytest.mark.parametrize("on", ["all", "all but rank 1", "none"])
def test_ranks_that_disagree_about_a_large_call_all_say_so(comm: hpcomm.Communicator, on: str) -> None:
    """Also where they look at no other's call before: on another node, or with checks off."""
    if comm.size == 1:
        pytest.skip("one rank agrees")
    first = comm.rank == 0
    for calls in (
        lambda c, x: c.all_reduce(x, algorithm="ring" if first else "recursive_doubling"),
        lambda c, x: c.all_reduce(x, "sum" if first else "max"),
        lambda c, x: c.broadcast(x, root=min(c.rank, 1), out=x),
    ):
        with hpcomm.Communicator(MPI.COMM_WORLD, name="unwatched", check="off") as other:
            x = values(LARGE, comm.rank)
            lies = x if on == "none" or (on != "all" and comm.rank == 1) else model.asarray(x)
            with pytest.raises(hpcomm.MismatchError, match=r"(?s)'unwatched'.*rank 0: .*rank 1: "):
                calls(other, lies)
            with pytest.raises(hpcomm.MismatchError, match=r"float32, 700 elements"):
                calls(other, lies)


def test_an_arena_too_small_for_a_schedule_is_told_to_all(
    comm: hpcomm.Communicator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workspace, "WORKSPACE", 8)
    if comm.size > 1:
        with pytest.raises(hpcomm.UsageError, match="is too small for"):
            comm.all_to_all(given(LARGE, comm.rank, comm.size), algorithm=LAST["all_to_all"])


def test_what_folds_in_order_takes_arrays_on_devices(comm: hpcomm.Communicator) -> None:
    x = given(SMALL, comm.rank)
    comm.all_reduce(x, out=x, deterministic=True)
    np.testing.assert_array_equal(x.get(), sum(values(SMALL, q) for q in range(comm.size)))
    for n in (SMALL, LARGE):
        x, y = given(n, comm.rank), model.empty(n, np.float32)
        assert comm.all_reduce(x, lambda a, b: np.maximum(a, b), out=y, algorithm="ring") is y
        y += 1
        np.testing.assert_array_equal(y.get(), values(n, comm.size - 1) + 1)


def test_every_edge_of_an_algorithm_is_needed(
    comm: hpcomm.Communicator, device: model.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on the other paths (test_devices.py): copies down, the schedule, and up again."""
    if comm.size != 3:
        pytest.skip("three ranks have all edges")
    monkeypatch.setattr(host_copy, "HOST_COPY_PIECE", 512)
    noted = driver.watching(SimpleNamespace(Send=lambda memory: memory, Recv=lambda memory: memory))
    for end, touches in ((DeviceSource, noted.Send), (DeviceSink, noted.Recv)):  # what numpy copies, too
        columns = end.columns
        monkeypatch.setattr(end, "columns", lambda *a, c=columns, touches=touches: touches(c(*a)))

    def calls() -> None:
        for on_device in (True, comm.rank != 1):
            x = given(LARGE, comm.rank) if on_device else values(LARGE, comm.rank)
            out = model.empty(LARGE, np.float32) if on_device else np.empty(LARGE, np.float32)
            for again in (False, True):
                out.fill(0)  # an earlier writer of what is received into
                request = comm.all_reduce(x, out=out, algorithm="ring", async_op=again)
                request.wait() if again else None
                out += 1
                x += 1

    calls()
    MPI.COMM_WORLD.Barrier()
    device.order.forget()
    calls()
    assert found_races(device) == []
    edges, unnoticed = told_edges(device, lambda edge: "test_device" not in edge)
    assert len(edges) > 6, edges
    assert not unnoticed, "\n".join([*unnoticed, "of", *edges])
