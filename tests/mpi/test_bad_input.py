"""What meshes, fields, files and gradients refuse, on all ranks alike, in words of our own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hpcomm
from hpcomm import Field, Partition, Points, Redistribution, checkpoint, hdf5, io, zarr
from hpcomm import differentiable as d
from hpcomm.communicator import mesh

pytestmark = [pytest.mark.few, pytest.mark.three]

NO_PATHS = (None, 3, b"x")


def refused(*deeds: Callable[[], Any]) -> None:
    for deed in deeds:
        with pytest.raises(hpcomm.HpcommError):
            deed()


@pytest.fixture
def field(comm: Any) -> Field:
    return Field(comm, (4, 3), halo=1, name="T")


@pytest.mark.parametrize("path", NO_PATHS)
def test_what_is_no_path(comm: Any, field: Field, path: Any) -> None:
    words = "the path is"
    for deed in (
        lambda: io.save(field, path),
        lambda: io.load(path, comm),
        lambda: io.read_into(field, path),
        lambda: io.write_raw(field, path),
        lambda: io.read_raw(field, path),
        lambda: checkpoint.save(path, field),
        lambda: checkpoint.load(path, field),
        lambda: checkpoint.steps(path),
    ):
        with pytest.raises(hpcomm.UsageError, match=words):
            deed()
    for form in (hdf5, zarr):
        pytest.importorskip("h5py" if form is hdf5 else "zarr")
        for deed in (
            lambda form=form: form.save(field, path),
            lambda form=form: form.load(path, comm),
            lambda form=form: form.read_into(field, path),
        ):
            with pytest.raises(hpcomm.UsageError, match=words):
                deed()


@pytest.mark.parametrize("bad", [None, 1.5, "x", [0.5], {}])
def test_what_is_no_place(comm: Any, bad: Any) -> None:
    cart, net = comm.cart((-1,), periodic=True), comm.mesh(a=-1)
    points, partition = Points((1,), [[0]]), Partition((4, 3), {"p": 2})
    refused(
        lambda: cart.shift(0, bad),
        lambda: cart.coords_of(bad),
        lambda: net.coords_of(bad),
        lambda: net.neighbour("a", bad),
        lambda: partition.box(bad),
        lambda: partition.owner(bad),
        lambda: points.owner(bad),
        lambda: Partition((4,), {"p": 2}, bounds={0: bad}),
        lambda: mesh.from_torch(comm, bad),
    )
    if bad != "x" and bad != {}:
        refused(lambda: net.sub(bad), lambda: net.neighbour(bad), lambda: comm.cart((-1,), bad))
    for made in (cart, net):
        made.close()


@pytest.mark.parametrize("bad", [None, 1.5, 3])
def test_what_is_no_description(comm: Any, tmp_path: Path, bad: Any) -> None:
    refused(
        lambda: Field(comm, (4, 3), name=bad),
        lambda: Field(comm, (4, 3), unit=bad),
        lambda: comm.mesh(x=-1, periodic=bad),
        lambda: Partition((4,), {"p": 2}, bounds=bad),
        lambda: Points((4,), bad),
        lambda: Partition((4,), {"p": 2}, partial=bad),
    )
    file = comm.broadcast_object(str(tmp_path / "x.npy"))
    io.save(Field(comm, (4, 3)), file)
    if bad is not None:
        refused(lambda: io.load(file, comm, bad), lambda: Points((4,), [[0, 1, 2, 3]], bad))


@pytest.mark.parametrize("bad", [None, 3, "x", np.ones(2)])
def test_what_has_no_gradient(comm: Any, field: Field, bad: Any) -> None:
    torch = pytest.importorskip("torch")
    x = torch.ones(comm.size, 2, dtype=torch.float64)
    move = Redistribution(comm, Partition((4,), {"p": comm.size}), Partition((4,), {"p": comm.size}))
    refused(
        lambda: d.send(comm, bad, comm.rank),
        lambda: d.recv(comm, bad, comm.rank),
        lambda: d.update_halo(field, bad),
        lambda: d.update_halo(bad, x),
        lambda: d.redistribute(bad, x),
        lambda: d.redistribute(move, bad),
        lambda: d.gradcheck(comm, bad, x),
        lambda: d.gradcheck(comm, lambda t: t, bad),
    )
    verbs = (d.all_reduce, d.all_gather, d.reduce_scatter, d.all_to_all, d.broadcast)
    refused(*(lambda verb=verb: verb(bad, x) for verb in verbs))
    refused(*(lambda verb=verb: verb(comm, bad) for verb in verbs))
    refused(lambda: d.send(bad, x, 0), lambda: d.recv(bad, x, 0))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_what_is_no_operator_or_no_plain_tensor_is_named(comm: Any) -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(hpcomm.UsageError, match=r"op is a Tensor\n(.*\n)*.*by its name, out="):
        comm.all_reduce(torch.ones(2), torch.ones(2))
    x = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    with pytest.raises(hpcomm.LayoutError, match=r"x is a nested tensor"):
        comm.all_reduce(x)
