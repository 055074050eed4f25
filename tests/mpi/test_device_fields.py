"""Fields, halos and redistribution of arrays on a device, on the model of the driver, without a race."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import device_model as model
import numpy as np
import pytest
from test_devices import comm, device, found_races, path, told_edges

import hpcomm
from hpcomm import Field, Halo, Partition, Points, Redistribution, checkpoint, hdf5, io, zarr
from hpcomm.apps import _library, gpu_demo, overlap_demo
from hpcomm.apps._library import Library
from hpcomm.device import driver
from hpcomm.fields.files.checkpoints import checksum

__all__ = ["comm", "device", "path"]  # fixtures
pytestmark = [pytest.mark.few, pytest.mark.once]
Where = Callable[[int], bool]
PLACES: dict[str, Where] = {"all": lambda rank: True, "even ranks": lambda rank: rank % 2 == 0}


@pytest.fixture(params=PLACES)
def on_device(request: pytest.FixtureRequest, comm: hpcomm.Communicator) -> bool:
    """Whether this rank's arrays lie on the device."""
    return PLACES[request.param](comm.rank)


def there(x: Any, on_device: bool) -> Any:
    return model.asarray(x) if on_device else x


def here(x: Any) -> Any:
    return x.get() if isinstance(x, model.DeviceArray) else x


def pair(
    ranks: Any, shape: tuple[int, ...], on_device: bool, dtype: str = "float32", **options: Any
) -> list[Field]:
    """The same field twice, filled by global index: on the host, and where it is tried."""
    host = Field(ranks, shape, dtype=dtype, **options)
    host.inner[...] = sum(k * (3 + 7 * a) for a, k in enumerate(host.indices)) % 251
    return [host, Field(ranks, shape, array=there(host.array.copy(), on_device), **options)]


@pytest.mark.parametrize("n", [2, 40])  # faces in one MPI call, and past the bound of the path of large ones
def test_a_halo_on_a_device_is_what_it_is_on_the_host(
    comm: hpcomm.Communicator, on_device: bool, n: int
) -> None:
    mesh = comm.mesh(y=-1, x=2 if comm.size == 4 else 1, periodic=["y"])
    options: dict[str, Any] = {"halo": ((1, 2), 1)}
    fields = [
        pair(mesh, (3 * n, 9 * n), on_device, name="T", **options),
        pair(mesh, (3 * n, 9 * n), on_device, "complex128", corners=False, **options),
    ]
    for host, _ in fields:
        host.update_halo()
    halo = Halo(*(tried for _, tried in fields))
    for _ in range(2):
        halo.start()
        halo.wait()
        for host, tried in fields:
            np.testing.assert_array_equal(here(tried.array), host.array)
    if comm.size > 1 and comm.all_reduce(on_device, "land"):
        assert ("ipc, through the slab" in halo.explain()) == (n == 40)
    halo.close()
    fields[0][1].update_halo()


def test_a_halo_may_be_waited_for_on_another_stream(comm: hpcomm.Communicator) -> None:
    place = driver.driver().device(0)
    begins, ends = place.stream(), place.stream()
    host, tried = pair(comm, (8 * comm.size, 30), True, halo=1, periodic=[0, 1])
    halo = Halo(tried)
    handed = place.event()
    place.record(handed, model.current_stream())
    for _ in range(3):
        host.update_halo()
        with model.stream(begins):
            place.wait(begins, handed)
            halo.start()
            inside = tried.array[2:-2].copy()
            inside += 1
            place.record(handed, begins)
        with model.stream(ends):
            place.wait(ends, handed)
            halo.wait()
            np.testing.assert_array_equal(tried.array.get(), host.array)
            rows = tried.array[1:-1, 1:-1]
            rows += 1
            host.inner[...] += 1
            place.record(handed, ends)
    with model.stream(begins):
        place.wait(begins, handed)
        halo.close()


def test_memory_of_the_exchange_is_in_order_between_streams_that_the_user_does_not_join(
    comm: hpcomm.Communicator, device: model.Model
) -> None:
    if comm.size not in (2, 3):
        pytest.skip("one rank sends no messages, and four have no edges that three have not")
    place = device.device(0)
    begins, ends = place.stream(), place.stream()

    columns = {"split": (None, "rank"), "halo": 1, "periodic": [0, 1]}  # rows come from this rank itself
    tried = pair(comm, (9, 9 * comm.size), True, **columns)[1]
    halo, ready = Halo(tried), place.event()
    place.record(ready, model.current_stream())
    place.wait(begins, ready)
    place.wait(ends, ready)
    for _ in range(2):
        with model.stream(begins):
            halo.start()
        with model.stream(ends):
            halo.wait()
    with model.stream(ends):
        tried.array.get()
    assert found_races(device) == []
    edges, unnoticed = told_edges(device, lambda edge: edge.count("exchange.py") == 2)
    assert edges
    assert not unnoticed


@pytest.mark.parametrize("shape", [(6, 4), (40, 60)])
def test_redistribution_on_a_device_is_what_it_is_on_the_host(
    comm: hpcomm.Communicator, on_device: bool, shape: tuple[int, int]
) -> None:
    p = comm.size
    rows, columns = Partition(shape, {"p": p}, ("p", None)), Partition(shape, {"p": p}, (None, "p"))
    copies, summands = (
        Partition(shape, {"p": p}, (None, None)),
        Partition(shape, {"p": p}, (None, None), {}, "p"),
    )
    for source, target in ((rows, columns), (columns, copies), (summands, rows), (rows, summands)):
        box = source.box(comm.rank).shape
        x = (np.arange(np.prod(box)).reshape(box) + 10 * comm.rank).astype(np.float32)
        with_host = Redistribution(comm, source, target)
        move = Redistribution(comm, source, target)
        given = there(x, on_device)
        for _ in range(2):
            got = move(given)
            np.testing.assert_array_equal(here(got), with_host(x))
        assert isinstance(got, model.DeviceArray) == on_device
        wide = there(np.zeros((*move.target_shape, 2), np.float32), on_device)  # type: ignore[misc]
        out = wide[:, :, 1]
        for _ in range(2):
            assert move(given, out=out) is out
            np.testing.assert_array_equal(here(out), with_host(x))
        move.close()
        with_host.close()


def test_a_field_on_a_device_is_gathered_sliced_and_reduced(
    comm: hpcomm.Communicator, on_device: bool
) -> None:
    mesh = comm.mesh(y=-1, x=2 if comm.size == 4 else 1)
    host, tried = pair(mesh, (5, 7), on_device, halo=1)
    whole = host.all_gather()
    root = comm.size - 1
    at_root = tried.gather(root)
    assert (at_root is None) == (comm.rank != root)
    np.testing.assert_array_equal(here(tried.all_gather()), whole)
    assert (tried.sum(), tried.max(), tried.norm()) == (host.sum(), host.max(), host.norm())
    assert checksum(tried) == checksum(host)
    for key in (np.s_[1:4:2, 3], np.s_[...], np.s_[-1]):
        whole = host.all_gather()
        np.testing.assert_array_equal(here(tried[key]), whole[key])
        for field in (host, tried):
            field[key] = -whole[key]
            field[0, 2:4] = 7
        np.testing.assert_array_equal(here(tried.array), host.array)
    whole = host.all_gather()
    other = Field(mesh, (5, 7), like=tried.array, halo=2)
    assert isinstance(other.array, model.DeviceArray) == on_device
    assert here(other.array).max() == 0
    other.scatter(whole if comm.rank == root else None, root)
    np.testing.assert_array_equal(here(other.all_gather()), whole)
    other.scatter(model.asarray(whole) if comm.rank == root else None, root)
    np.testing.assert_array_equal(here(other.all_gather()), whole)
    columns = tried.redistribute(Partition((5, 7), {"p": comm.size}, (None, "p")))
    assert isinstance(columns.array, model.DeviceArray) == on_device
    np.testing.assert_array_equal(here(columns.all_gather()), host.all_gather())


def test_a_field_on_a_device_is_saved_and_loaded(
    comm: hpcomm.Communicator, on_device: bool, tmp_path: Path
) -> None:
    folder = comm.broadcast_object(tmp_path)
    comm.barrier()
    host, tried = pair(comm, (40, 30), on_device, halo=1, name="T")
    whole = host.all_gather()
    deeds: list[tuple[Callable[[Field], Any], Callable[[Field], Any]]] = [
        (lambda f: io.save(f, folder / "x.npy"), lambda f: io.read_into(f, folder / "x.npy")),
        (lambda f: checkpoint.save(folder / "c", [f]), lambda f: checkpoint.load(folder / "c", [f])),
    ]
    for module, library in ((hdf5, "h5py"), (zarr, "zarr")):
        if importlib.util.find_spec(library):
            path = folder / library
            deeds.append(
                (lambda f, m=module, p=path: m.save(f, p), lambda f, m=module, p=path: m.read_into(f, p))
            )
    for save, load in deeds:
        save(tried)
        like = Field(comm, (40, 30), like=tried.array, name="T")
        load(like)
        np.testing.assert_array_equal(here(like.array), whole[like.box.slices()])  # type: ignore[union-attr]
    again = io.load(folder / "x.npy", comm, like=tried.array)
    assert isinstance(again.array, model.DeviceArray) == on_device
    np.testing.assert_array_equal(here(again.all_gather()), whole)
    comm.barrier()


@pytest.mark.parametrize("n", [3, 500, 3100])  # in one MPI call, by the slab, in memory opened itself
def test_neighbours_take_arrays_on_a_device(comm: hpcomm.Communicator, on_device: bool, n: int) -> None:
    sides = comm.all_gather_object(on_device)
    for ring in (False, True):
        grid = comm.cart((-1, 2 if comm.size % 2 == 0 else 1), ring)
        x = np.arange(n, dtype=np.float32) + 100 * grid.rank
        both = np.stack([x + i for i in range(4)])
        expected = [np.stack([x + 100 * (rank - grid.rank) if rank >= 0 else x * 0 for rank in grid.sources])]
        expected.append(expected[0] + [[(i ^ 1) * (rank >= 0)] for i, rank in enumerate(grid.sources)])
        for later in (False, True):
            given, turned = (
                there(x, on_device),
                there(np.repeat(both, 2, axis=0), on_device)[::2],
            )  # one to be packed
            got = [
                grid.neighbour_all_gather(given, async_op=later),
                grid.neighbour_all_to_all(turned, async_op=later),
            ]
            if later:
                got = [each.wait() for each in got]
            for array, right in zip(got, expected, strict=True):
                assert isinstance(array, model.DeviceArray) == on_device
                np.testing.assert_array_equal(here(array), right)
        out = there(np.zeros((4, n), np.float32), on_device)
        assert grid.neighbour_all_gather(there(x, on_device), out=out) is out
        np.testing.assert_array_equal(here(out), expected[0])
        parts = grid.neighbour_all_gather_ragged(there(x[grid.rank :], on_device))
        for rank, part in zip(grid.sources, parts, strict=True):
            if rank < 0:
                assert part is None
            else:
                assert isinstance(part, model.DeviceArray) == sides[rank]
                np.testing.assert_array_equal(here(part), x[rank:] + 100 * (rank - grid.rank))
        grid.close()


def test_neighbours_of_a_graph_pair_what_goes_twice_in_order(
    comm: hpcomm.Communicator, on_device: bool
) -> None:
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    if comm.size == 1:
        pytest.skip("all three edges would be one rank's to itself")
    with comm.graph([right, comm.rank, right], [left, left, comm.rank]) as graph:
        x = there(np.arange(3 * 500, dtype=np.float32).reshape(3, 500) + 5000 * comm.rank, on_device)
        got = here(graph.neighbour_all_to_all(x))
        assert list(got[:, 0] - 5000 * np.array([left, left, comm.rank])) == [0, 1000, 500]
        parts = graph.neighbour_all_to_all_ragged([x[0], x[1, :7], x[2]])
        assert [here(part)[0] - 5000 * rank for part, rank in zip(parts, graph.sources, strict=True)] == [
            0, 1000, 500,
        ]  # fmt: skip
        if comm.size > 1 and all(comm.all_gather_object(on_device)):
            paths = graph.context.devices.messages.paths
            assert paths["to", right].startswith("ipc")
            assert paths["from", left].startswith("ipc")


def test_a_graph_without_neighbours_moves_nothing(comm: hpcomm.Communicator, on_device: bool) -> None:
    with comm.graph([], []) as graph:
        x = there(np.zeros(500, np.float32), on_device)
        assert graph.neighbour_all_gather(x).shape == (0, 500)
        assert graph.neighbour_all_gather(x, async_op=True).wait().shape == (0, 500)
        assert graph.neighbour_all_gather_ragged(x) == []


def test_blocks_of_neighbours_that_do_not_fit_are_an_error_on_both_ranks(comm: hpcomm.Communicator) -> None:
    if comm.size == 1:
        pytest.skip("a rank fits itself")
    with comm.dup(name="unchecked", check="off") as ranks, ranks.cart((-1,), True) as grid:
        x = model.asarray(np.zeros(500 + grid.rank, np.float32))
        with pytest.raises(hpcomm.MismatchError, match=r"has \d+ bytes(.|\n)*neighbour_all_gather"):
            grid.neighbour_all_gather(x)


def test_what_a_device_cannot_do_is_refused(comm: hpcomm.Communicator) -> None:
    x = model.asarray(np.zeros((4, 2), np.float32))
    with pytest.raises(hpcomm.LayoutError, match="points cannot lie on a device"):
        Field(comm, Points((4 * comm.size, 2), np.arange(4 * comm.size).reshape(-1, 4)), array=x)
    rows = Partition((4 * comm.size, 2), {"p": comm.size}, ("p", None))
    points = Points((4 * comm.size, 2), np.arange(4 * comm.size).reshape(-1, 4)[::-1])
    with pytest.raises(hpcomm.LayoutError, match="points cannot be gathered on a device"):
        Redistribution(comm, rows, points)(x)
    move = Redistribution(comm, rows, rows)
    with pytest.raises(hpcomm.LayoutError, match="out on cpu"):
        move(x, out=np.zeros((4, 2), np.float32))
    with pytest.raises(hpcomm.LayoutError, match="overlap"):
        move(x, out=x)
    with pytest.raises(hpcomm.UsageError, match="one of them"):
        Field(comm, (4, 2), like=x, dtype="float32")
    turn = Redistribution(comm, rows, Partition((4 * comm.size, 2), {"p": comm.size}, ("p", None), {0: (
        0, *range(5, 4 * comm.size, 4), 4 * comm.size)} if comm.size > 1 else {}))  # fmt: skip
    turn(np.zeros((4, 2), np.float32))
    if comm.size > 1:
        with pytest.raises(hpcomm.LayoutError, match="does not expect"):
            turn(x)


class Model(Library):
    """The model's arrays, as the apps would have CuPy's."""

    name, on_device = "model", True

    def there(self, x: Any) -> Any:
        return model.asarray(x)

    def here(self, x: Any) -> Any:
        return x.get()

    def start_products(self, a: Any, times: int) -> Callable[[], bool]:
        return lambda: True


def test_the_apps_show_a_device_where_there_is_one(
    comm: hpcomm.Communicator, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(_library, "find", lambda: (Model(), []))
    monkeypatch.setattr(gpu_demo, "SPAN_S", 0.0)
    assert gpu_demo.main(["--most", "4096"]) == 0
    assert overlap_demo.main(["--bytes", "4000"]) == 0
    if comm.rank == 0:
        said = capsys.readouterr().out
        measured = re.findall(r"^(\w+) +4096 ", said, re.MULTILINE)
        assert measured == ["naive", "pipeline", "ipc", "auto"]
        how = "through the slab" if comm.size > 1 else "within this process"
        assert re.search(r"^direct: not here: direct is forced, but ", said, re.MULTILINE)
        assert re.search(r"^nccl: not here: nccl is forced, but ", said, re.MULTILINE)
        assert re.search(f"^auto: .*by ipc, {how}", said, re.MULTILINE)
        assert re.search(r"^pipeline: .*ipc: refused, pipeline is forced", said, re.MULTILINE)
