"""Device arrays on a real GPU; 1 to 4 ranks may share one.

Run:  hpcomm run -n 2 python -m pytest --with-mpi tests/gpu
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import hpcomm
from hpcomm.device import driver

pytestmark = [pytest.mark.gpu, pytest.mark.mpi]
SIZES = [0, 1, 1000, 1 << 20, 6 << 20]  # float32 elements: staged, pipeline or the slab, opened itself


def no_gpu() -> str | None:
    """Why there is no GPU to test on."""
    try:
        return None if driver.driver().count() else "the driver knows no device"
    except hpcomm.ConfigError as error:
        return error.what


@pytest.fixture(scope="module", params=["cupy", "torch"])
def library(request: pytest.FixtureRequest) -> Any:
    if (why := no_gpu()) is not None:
        pytest.skip(why)
    try:
        found = importlib.import_module(request.param)
    except ImportError as error:
        pytest.skip(str(error))
    if request.param == "torch" and not found.cuda.is_available():
        pytest.skip("this torch has no CUDA")
    return found


@pytest.fixture(params=["auto", "pipeline"])
def comm(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[hpcomm.Communicator]:
    monkeypatch.setenv("HPCOMM_GPU", request.param)
    from mpi4py import MPI

    with hpcomm.Communicator(MPI.COMM_WORLD, name="gpu") as made:
        yield made


def there(library: Any, x: Any) -> Any:
    return library.asarray(x) if library.__name__ == "cupy" else library.from_numpy(x).cuda()


def here(x: Any) -> Any:
    return x.get() if hasattr(x, "get") else x.cpu().numpy()


def random(n: int, rank: int) -> Any:
    return np.random.default_rng(rank).integers(-99, 99, n).astype(np.float32)


@pytest.mark.parametrize("n", SIZES)
def test_collectives_give_what_host_arrays_give(comm: hpcomm.Communicator, library: Any, n: int) -> None:
    x = random(n, comm.rank)
    for verb in ("all_reduce", "all_gather", "scan", "broadcast"):
        given = there(library, x)
        got = getattr(comm, verb)(given)
        given *= 0  # behind the call in the current stream
        np.testing.assert_array_equal(here(got), getattr(comm, verb)(x), verb)


@pytest.mark.parametrize("op", ["sum", "avg", "max"])
def test_halves_are_folded_in_float32(comm: hpcomm.Communicator, library: Any, op: str) -> None:
    for n in (1000, 3 << 20):
        x = random(n, comm.rank).astype(np.float16)
        np.testing.assert_array_equal(here(comm.all_reduce(there(library, x), op)), comm.all_reduce(x, op))


def test_reductions_stay_on_the_device_unless_the_pipeline_is_forced(
    comm: hpcomm.Communicator, library: Any
) -> None:
    with comm.plan("all_reduce", there(library, random(1 << 20, comm.rank))) as step:
        said = step.explain()
    assert ("by pipeline" in said) == (os.environ["HPCOMM_GPU"] == "pipeline"), said


@pytest.mark.parametrize("step", [1, 0])
@pytest.mark.parametrize("n", SIZES)
def test_messages_arrive_as_they_were_sent(
    comm: hpcomm.Communicator, library: Any, n: int, step: int
) -> None:
    right, left = (comm.rank + step) % comm.size, (comm.rank - step) % comm.size  # 0: to itself
    x, out = there(library, random(n, comm.rank)), there(library, np.full(n, np.nan, np.float32))
    going = comm.isend(x, dest=right)
    comm.recv(out, source=left)
    going.wait()
    x *= 0
    np.testing.assert_array_equal(here(out), random(n, left))


@pytest.mark.parametrize("n", SIZES)
def test_objects_and_ragged_arrays_come_on_the_device(
    comm: hpcomm.Communicator, library: Any, n: int
) -> None:
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    x = there(library, random(n, comm.rank))
    going = comm.isend_object({"x": x, "name": comm.rank}, right)
    got = comm.recv_object(left)
    going.wait()
    parts = comm.all_gather_ragged(x[: n - comm.rank] if n else x)
    x *= 0
    assert got["name"] == left
    assert type(got["x"]) is type(x)
    assert got["x"].device == x.device
    np.testing.assert_array_equal(here(got["x"]), random(n, left))
    for rank, part in enumerate(parts):
        assert type(part) is type(x)
        np.testing.assert_array_equal(here(part), random(n, rank)[: n - rank] if n else [])


def test_a_background_call_is_in_order_on_streams_of_the_users(
    comm: hpcomm.Communicator, library: Any
) -> None:
    stream = library.cuda.Stream()
    with stream if library.__name__ == "cupy" else library.cuda.stream(stream):
        x = there(library, random(1 << 20, comm.rank))
        request = comm.all_reduce(x, async_op=True)
        got = request.wait()
        got += 1
        x *= 0
        np.testing.assert_array_equal(here(got), comm.all_reduce(random(1 << 20, comm.rank)) + 1)


@pytest.mark.parametrize("path", ["ipc", "direct", "nccl"])
def test_a_forced_path_is_right_or_says_why_it_is_not_here(library: Any, path: str) -> None:
    from mpi4py import MPI

    whys = []
    with hpcomm.Communicator(MPI.COMM_WORLD, name=path, gpu=path) as comm:
        mine, left = random(1 << 20, comm.rank), (comm.rank - 1) % comm.size
        x, out = there(library, mine), there(library, np.full(1 << 20, np.nan, np.float32))
        try:
            np.testing.assert_array_equal(here(comm.all_reduce(x)), comm.all_reduce(mine))
        except hpcomm.ConfigError as error:
            whys.append(f"all_reduce: {error.what}")
        going = comm.isend(x, dest=(comm.rank + 1) % comm.size)
        try:
            comm.recv(out, source=left)
            going.wait()
            np.testing.assert_array_equal(here(out), random(1 << 20, left))
        except hpcomm.ConfigError as error:
            whys.append(f"messages: {error.what}")
            with pytest.raises(hpcomm.ConfigError):
                going.wait()
    if whys:
        pytest.skip("; ".join(whys))
