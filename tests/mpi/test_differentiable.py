"""Gradients through communication, compared with finite differences across the ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import hpcomm
from hpcomm import Field, Partition, Points, Redistribution
from hpcomm.fields import autograd as d


def stacked(comm: Any) -> torch.Tensor:
    return torch.randn(comm.size, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(comm.rank))


COLLECTIVES: dict[str, Callable[[Any, Any], Any]] = {
    "all_reduce": lambda c, x: d.all_reduce(c, x * x),
    "average": lambda c, x: d.all_reduce(c, x.sin(), "avg"),
    "all_gather": lambda c, x: d.all_gather(c, x.T * (1 + c.rank)) ** 2,
    "reduce_scatter": lambda c, x: d.reduce_scatter(c, x**3),
    "all_to_all": lambda c, x: d.all_to_all(c, x.flip(0)).exp(),
    "broadcast": lambda c, x: d.broadcast(c, x, c.size - 1) * x,
    "twice": lambda c, x: d.all_reduce(c, d.all_to_all(c, x) * d.all_reduce(c, x)),
}


@pytest.mark.parametrize("name", COLLECTIVES)
def test_a_collective_has_the_gradient_of_its_definition(comm: Any, name: str) -> None:
    assert d.gradcheck(comm, lambda x: COLLECTIVES[name](comm, x), stacked(comm), tolerance=1e-7)


def test_a_message_carries_its_gradient_back(comm: Any) -> None:
    def ring(x: Any) -> Any:
        if comm.size == 1:
            return x
        if comm.rank == 0:
            zero = d.send(comm, x**2, 1, tag=3)
            return d.recv(comm, x, comm.size - 1, tag=3) * x + zero
        got = d.recv(comm, x, comm.rank - 1, tag=3)
        zero = d.send(comm, got * x, (comm.rank + 1) % comm.size, tag=3)
        return x + zero

    d.gradcheck(comm, ring, stacked(comm))


@pytest.mark.parametrize("corners", [True, False])
def test_a_halo_gives_its_gradient_to_the_owners(comm: Any, corners: bool) -> None:
    mesh = comm.mesh(y=-1, x=2 if comm.size == 4 else 1, periodic=["x"])
    field = Field(mesh, (5, 4), dtype=torch.float64, halo=((1, 2), 1), corners=corners)
    x = torch.randn(
        field.array.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(comm.rank)
    )
    d.gradcheck(mesh.comm, lambda t: d.update_halo(field, t) ** 2, x)
    with pytest.raises(hpcomm.LayoutError, match="the field's array"):
        d.update_halo(field, x[1:])


def test_a_halo_of_points_gives_its_gradient_to_the_owners(comm: Any) -> None:
    owned = [np.arange(r, 9, comm.size) for r in range(comm.size)]
    ghosts = [np.setdiff1d(np.arange(0, 9, 2), mine) for mine in owned]
    field = Field(comm, Points((9,), owned, ghosts), dtype=torch.float64)
    x = torch.linspace(0.1, 1, len(field.array), dtype=torch.float64)
    d.gradcheck(comm, lambda t: d.update_halo(field, t) ** 2, x)


@pytest.mark.parametrize("target", ["columns", "copies", "uneven"])
def test_redistribution_takes_gradients_back(comm: Any, target: str) -> None:
    rows = Partition((4, 3), {"p": comm.size}, ("p", None))
    to = {
        "columns": Partition((4, 3), {"p": comm.size}, (None, "p")),
        "copies": Partition((4, 3), {"p": comm.size}, (None, None)),
        "uneven": Partition((4, 3), {"p": comm.size}, ("p", None), {0: (0, *[3] * (comm.size - 1), 4)}),
    }[target]
    move = Redistribution(comm, rows, to)
    x = torch.randn(
        move.source_shape, dtype=torch.float64, generator=torch.Generator().manual_seed(comm.rank)
    )
    d.gradcheck(comm, lambda t: d.redistribute(move, t).tanh(), x)


def test_what_has_no_gradient_is_refused(comm: Any) -> None:
    with pytest.raises(hpcomm.UsageError, match="'max' has no gradient"):
        d.all_reduce(comm, torch.ones(2), "max")
    with pytest.raises(hpcomm.UsageError, match="not a tensor"):
        d.all_reduce(comm, np.ones(2))
    with pytest.raises(hpcomm.DtypeError, match="float32"):
        d.gradcheck(comm, lambda t: t, torch.ones(1))
    if comm.size > 1:
        copies = Partition((3,), {"p": comm.size}, (None,))
        with pytest.raises(hpcomm.LayoutError, match="holds copies"):
            d.redistribute(Redistribution(comm, copies, copies), torch.ones(3))


def test_gradcheck_notices_a_wrong_gradient(comm: Any) -> None:
    with pytest.raises(AssertionError, match="the gradient of element"):
        d.gradcheck(comm, lambda t: d._through(comm, t, comm.all_reduce, lambda g: g * 0.5), stacked(comm))
    with pytest.raises(AssertionError, match="nan"):
        d.gradcheck(comm, lambda t: (t * 0).sqrt(), stacked(comm))
