"""Gradients through communication, compared with finite differences across the ranks."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from mpi4py import MPI as mpi  # noqa: N811

import hpcomm
from hpcomm import Field, Partition, Points, Redistribution, checkpoint, hdf5, io, zarr
from hpcomm.compat import MPI
from hpcomm.fields import autograd as d

pytestmark = pytest.mark.once


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


@pytest.mark.few
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


@pytest.mark.parametrize("corners", [True, pytest.param(False, marks=pytest.mark.few)])
def test_a_halo_gives_its_gradient_to_the_owners(comm: Any, corners: bool) -> None:
    mesh = comm.mesh(y=-1, x=2 if comm.size == 4 else 1, periodic=["x"])
    field = Field(mesh, (5, 4), dtype=torch.float64, halo=((1, 2), 1), corners=corners)
    x = torch.randn(
        field.array.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(comm.rank)
    )
    d.gradcheck(mesh.comm, lambda t: d.update_halo(field, t) ** 2, x)
    with pytest.raises(hpcomm.LayoutError, match="the field's array"):
        d.update_halo(field, x[1:])


@pytest.mark.few
def test_a_halo_of_points_gives_its_gradient_to_the_owners(comm: Any) -> None:
    owned = [np.arange(r, 9, comm.size) for r in range(comm.size)]
    ghosts = [np.setdiff1d(np.arange(0, 9, 2), mine) for mine in owned]
    field = Field(comm, Points((9,), owned, ghosts), dtype=torch.float64)
    x = torch.linspace(0.1, 1, len(field.array), dtype=torch.float64)
    d.gradcheck(comm, lambda t: d.update_halo(field, t) ** 2, x)


@pytest.mark.few
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


@pytest.mark.few
def test_gradcheck_notices_a_wrong_gradient(comm: Any) -> None:
    with pytest.raises(AssertionError, match="the gradient of element"):
        d.gradcheck(comm, lambda t: d._through(comm, t, comm.all_reduce, lambda g: g * 0.5), stacked(comm))
    with pytest.raises(AssertionError, match="nan"):
        d.gradcheck(comm, lambda t: (t * 0).sqrt(), stacked(comm))


NEEDING: dict[str, Callable[[Any, Any], Any]] = {
    "broadcast": lambda c, x: c.broadcast(x),
    "scatter": lambda c, x: c.scatter(x),
    "gather": lambda c, x: c.gather(x),
    "all_gather": lambda c, x: c.all_gather(x),
    "all_to_all": lambda c, x: c.all_to_all(x),
    "reduce": lambda c, x: c.reduce(x),
    "all_reduce": lambda c, x: c.all_reduce(x),
    "reduce_scatter": lambda c, x: c.reduce_scatter(x),
    "scan": lambda c, x: c.scan(x),
    "exscan": lambda c, x: c.exscan(x),
    "in place": lambda c, x: c.all_reduce(x, out=x),
    "out": lambda c, x: c.all_reduce(x.detach().clone(), out=x),
    "in the background": lambda c, x: c.all_reduce(x, async_op=True).wait(),
    "algorithm": lambda c, x: c.all_reduce(x, algorithm="ring"),
    "function": lambda c, x: c.all_reduce(x, lambda a, b: a + b),
    "extremes": lambda c, x: c.all_reduce_loc(x, "max"),
    "send": lambda c, x: c.send(x, c.rank),
    "isend": lambda c, x: c.isend(x, c.rank),
    "recv": lambda c, x: c.recv(x, c.rank),
    "irecv": lambda c, x: c.irecv(x, c.rank),
    "sendrecv": lambda c, x: c.sendrecv(x, c.rank, source=c.rank),
    "batch": lambda c, x: c.batch_isend_irecv([hpcomm.P2POp("send", x, c.rank)]),
    "ragged": lambda c, x: c.all_gather_ragged(x),
    "object": lambda c, x: c.all_gather_object({"loss": x}),
    "send_object": lambda c, x: c.send_object([x], c.rank),
    "plan": lambda c, x: c.plan("all_reduce", x),
    "plan of send": lambda c, x: c.plan("send", x, dest=c.rank),
    "neighbours": lambda c, x: c.ring.neighbour_all_gather(x),
    "window": lambda c, x: c.memory.put(x, rank=c.rank),
    "field": lambda c, x: Field(c, (2 * c.size, 2), array=x),
}


@pytest.mark.parametrize("kind", ["leaf", "made"])
def test_what_needs_a_gradient_is_refused_wherever_it_would_be_lost(comm: Any, kind: str) -> None:
    """Every rank refuses its part, so they stay in step; without autograd each call goes as others do."""
    with (
        comm.dup() as own,
        own.cart((-1,), periodic=True) as own.ring,
        own.window((own.size, 2), torch.float32) as own.memory,
    ):
        for name, call in NEEDING.items():
            if kind == "leaf" and "object" in name:
                continue  # comes as a leaf
            for _ in range(2):  # after a call that went well, messages take their quick path
                leaf = torch.ones(own.size, 2, requires_grad=True)
                x = leaf if kind == "leaf" else leaf * 2
                with pytest.raises(hpcomm.UsageError, match=r"needs a gradient.*") as caught:
                    call(own, x)
                named = (
                    f"hpcomm.differentiable.{name.removeprefix('i')}"
                    if name in NAMED
                    else "hpcomm.differentiable"
                )
                assert named in str(caught.value), name
                assert "no_grad" in str(caught.value), name
                assert own.sendrecv(torch.ones(2), own.rank, source=own.rank).tolist() == [1, 1]
        with torch.no_grad():
            assert own.all_reduce(x).tolist() == own.all_reduce(x.detach()).tolist()
        with torch.inference_mode():
            assert not own.all_reduce(leaf, out=torch.ones(own.size, 2)).requires_grad


NAMED = ("broadcast", "all_gather", "all_to_all", "all_reduce", "reduce_scatter", "isend", "recv")


def test_a_broadcast_may_set_a_parameter(comm: Any) -> None:
    """As a model's are before training: a leaf has no history that could be lost."""
    weight = torch.nn.Parameter(torch.full((3,), float(comm.rank)))
    assert comm.broadcast(weight, root=comm.size - 1, out=weight) is weight
    assert weight.tolist() == [comm.size - 1.0] * 3
    (weight * (1 + comm.rank)).sum().backward()
    assert weight.grad is not None
    assert comm.all_reduce(weight.grad).tolist() == [comm.size * (comm.size + 1) / 2] * 3
    assert comm.all_gather_object(weight)[0].requires_grad
    with pytest.raises(hpcomm.UsageError, match="out needs a gradient"):
        comm.broadcast(weight.detach(), out=weight * 1)


def test_who_waits_is_told_of_a_tensor_that_needs_a_gradient(comm: Any) -> None:
    """Rank 0 alone refuses."""
    with hpcomm.Communicator(comm.mpi, name="told", check="full") as full:
        x = torch.ones(3, requires_grad=full.rank == 0)
        with pytest.raises(hpcomm.HpcommError, match="needs a gradient"):
            full.all_reduce(x)
        assert full.all_reduce(1) == full.size


def test_backward_in_a_thread_that_mpi_may_not_be_called_in_is_refused(comm: Any, monkeypatch: Any) -> None:
    """Torch runs that of tensors on a device in a thread of its own."""
    monkeypatch.setattr(mpi, "Query_thread", lambda: mpi.THREAD_FUNNELED)
    y = d.all_reduce(comm, torch.ones(2, requires_grad=True)).sum()
    with ThreadPoolExecutor() as pool, pytest.raises(hpcomm.ConfigError, match="one thread at a time"):
        pool.submit(y.backward).result()
    y.backward()


def test_a_plan_whose_tensor_came_to_need_a_gradient_refuses_to_start(comm: Any) -> None:
    x, out, mine = torch.ones(3), torch.empty(3), comm.rank
    with (
        comm.plan("all_reduce", x, out=out) as direct,
        comm.plan("all_reduce", x) as made,
        comm.plan("all_reduce", x, algorithm="ring") as scheduled,
        comm.plan("all_reduce", torch.ones(3), out=x) as into,
        comm.plan("send", x, dest=mine, tag=3) as sending,
        comm.plan("broadcast", x, out=x) as setting,
    ):
        plans = direct, made, scheduled, into
        for plan in plans:
            plan()
        x[:] = 1
        x.requires_grad_()
        for plan in (*plans, sending):
            for call in (plan, plan.start):
                with pytest.raises(
                    hpcomm.UsageError, match=r"(?s)x needs a gradient.*plan of (all_reduce|send)"
                ):
                    call()
        setting()  # a leaf may be set
        with torch.no_grad():
            assert direct().tolist() == [comm.size] * 3
        x.requires_grad_(False)
        for plan in plans:  # none of them is under way
            plan()


def test_a_field_that_came_to_need_a_gradient_says_so(comm: Any) -> None:
    for is_planned in (False, True):
        field = Field(comm, (4 * comm.size,), halo=1, dtype=torch.float64)
        if is_planned:
            field.update_halo()
            halo = hpcomm.Halo(field)
        field[...] = torch.ones(4 * comm.size, dtype=torch.float64, requires_grad=True) * 2
        for call in (field.update_halo, field.gather, *([halo, halo.start] if is_planned else [])):
            with pytest.raises(hpcomm.UsageError, match="needs a gradient"):
                call()
    with torch.no_grad():
        halo()
    assert field.array[0].item() == (2 if comm.rank else 0)


def test_mpi4pys_words_and_files_lose_no_gradient(comm: Any, tmp_path: Path) -> None:
    compat = MPI.COMM_WORLD
    made = torch.ones(2, requires_grad=True) * 2
    for call in (
        lambda: compat.Allreduce(made, torch.ones(2)),
        lambda: compat.Allreduce(MPI.IN_PLACE, made),
        lambda: compat.Bcast(made, 0),
        lambda: compat.Isend(made, compat.rank),
        lambda: compat.allgather(made),
        lambda: compat.allreduce(made),
    ):
        with pytest.raises(hpcomm.UsageError, match="needs a gradient"):
            call()
    assert compat.allgather(made.detach().requires_grad_())[0].requires_grad
    field = Field(comm, (4 * comm.size,), dtype=torch.float64, name="x")
    field[...] = torch.ones(4 * comm.size, dtype=torch.float64, requires_grad=True) * 2
    folder = comm.broadcast_object(tmp_path)
    names = [folder / "x.npy", folder / "x.h5", folder / "x.zarr", folder / "x"]
    for save, path in zip((io.save, hdf5.save, zarr.save, checkpoint.save), names, strict=True):
        given = (path, field) if save is checkpoint.save else (field, path)
        with pytest.raises(hpcomm.UsageError, match="needs a gradient"):
            save(*given)
