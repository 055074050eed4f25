"""Halos, redistribution and files of arrays on a real GPU, held against host memory; ranks may share one.

Run:  hpcomm run -n 2 python -m pytest --with-mpi tests/gpu
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_gpu import comm, here, library, there

import hpcomm
from hpcomm import Field, Halo, Partition, Redistribution, io

__all__ = ["comm", "library"]  # fixtures
pytestmark = [pytest.mark.gpu, pytest.mark.mpi]


def pair(ranks: Any, library: Any, shape: tuple[int, ...], **options: Any) -> list[Field]:
    """The same field twice, filled by global index: on the host, and on the device."""
    host = Field(ranks, shape, dtype="float32", **options)
    host.inner[...] = sum(k * (3 + 7 * a) for a, k in enumerate(host.indices)) % 251
    return [host, Field(ranks, shape, array=there(library, host.array.copy()), **options)]


@pytest.mark.parametrize("n", [3, 500])  # faces of a few bytes, and past the bound of large messages
def test_a_halo_on_a_device_is_what_it_is_on_the_host(
    comm: hpcomm.Communicator, library: Any, n: int
) -> None:
    mesh = comm.mesh(y=-1, x=2 if comm.size == 4 else 1, periodic=["y"])
    host, tried = pair(mesh, library, (4 * n, 1200 * n), halo=((1, 2), 1))
    host.update_halo()
    halo = Halo(tried)
    for _ in range(2):
        halo.start()
        halo.wait()
        np.testing.assert_array_equal(here(tried.array), host.array)
    halo.close()


@pytest.mark.parametrize("shape", [(6, 4), (2000, 1200)])
def test_redistribution_on_a_device_is_what_it_is_on_the_host(
    comm: hpcomm.Communicator, library: Any, shape: tuple[int, int]
) -> None:
    p = comm.size
    rows, columns = Partition(shape, {"p": p}, ("p", None)), Partition(shape, {"p": p}, (None, "p"))
    box = rows.box(comm.rank).shape
    x = (np.arange(np.prod(box)).reshape(box) + 10 * comm.rank).astype(np.float32)
    with_host, move = Redistribution(comm, rows, columns), Redistribution(comm, rows, columns)
    given = there(library, x)
    for _ in range(2):
        np.testing.assert_array_equal(here(move(given)), with_host(x))
    with_host.close()
    move.close()


def test_a_field_on_a_device_is_gathered_reduced_saved_and_loaded(
    comm: hpcomm.Communicator, library: Any, tmp_path: Path
) -> None:
    folder = comm.broadcast_object(tmp_path)
    host, tried = pair(comm, library, (40, 30), halo=1)
    np.testing.assert_array_equal(here(tried.all_gather()), host.all_gather())
    assert (tried.sum(), tried.max()) == (host.sum(), host.max())
    io.save(tried, folder / "x.npy")
    tried.array[...] = 0
    io.read_into(tried, folder / "x.npy")
    np.testing.assert_array_equal(here(tried.all_gather()), host.all_gather())


def test_mixed_host_and_device_arrays_meet_in_one_call(comm: hpcomm.Communicator, library: Any) -> None:
    for n in (1000, 1 << 20):
        parts = [np.random.default_rng(r).integers(-99, 99, n).astype(np.float32) for r in range(comm.size)]
        mine = parts[comm.rank]
        got = comm.all_reduce(there(library, mine) if comm.rank % 2 == 0 else mine)
        np.testing.assert_array_equal(here(got) if comm.rank % 2 == 0 else got, sum(parts))
