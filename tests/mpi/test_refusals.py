"""What one rank alone refuses: who waits for its part is told, and why, in every collective verb."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

import hpcomm

pytestmark = [pytest.mark.few, pytest.mark.mpi(min_size=2)]
WAIT_S = 30
MOVES = ("broadcast", "gather", "all_gather", "scatter", "all_to_all")
FOLDS = ("reduce", "all_reduce", "reduce_scatter", "scan", "exscan")
ROOTED = {
    "broadcast": 0,
    "scatter": 0,
    "gather": -1,
    "reduce": -1,
}  # whose part the others need, or who waits


def array(comm: Any) -> Any:
    """What goes within a node in every verb."""
    return np.ones((comm.size, 4096))


def call_of(comm: Any, verb: str, **options: Any) -> Callable[[Any], Any]:
    """The call of a verb, of an array; rank 0 refuses it for one of another byte order."""
    if verb in ROOTED:
        options["root"] = ROOTED[verb] % comm.size
    return partial(getattr(comm, verb), **options)


def refused_by_first(comm: Any, call: Callable[[Any], Any], why: str = "byte order") -> None:
    """Rank 0 has an error of its own; of the others those who need its part learn of it, with both lines."""
    x = array(comm)
    if comm.rank == 0:
        with pytest.raises(hpcomm.UsageError, match=why):
            call(x.astype(">f8"))
        return
    with pytest.raises(hpcomm.PeerFailedError, match="refused") as caught:
        call(x)
    assert caught.value.ranks == (0,)
    said = str(caught.value)
    assert why in said, said
    assert said.count("test_refusals.py:") >= 3, said


@pytest.mark.parametrize("way", ["now", "async_op", "ring"])
@pytest.mark.parametrize("verb", [*MOVES, *FOLDS])
def test_full_tells_all_ranks_and_they_go_on(comm: Any, verb: str, way: str) -> None:
    if way == "ring" and verb not in ("all_reduce", "all_gather", "reduce_scatter"):
        pytest.skip("not by this algorithm")
    options: dict[str, Any] = {"async_op": {"async_op": True}, "ring": {"algorithm": "ring"}}.get(way, {})
    with hpcomm.Communicator(MPI.COMM_WORLD, name="full", check="full") as full:
        for _ in range(2):
            refused_by_first(full, call_of(full, verb, **options))
            assert full.all_reduce(1) == full.size


OTHERS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any], str]] = {
    "barrier": (lambda c: c.barrier(), lambda c: c.barrier(algorithm="none"), "no algorithm 'none'"),
    "root": (lambda c: c.broadcast_object(1), lambda c: c.broadcast_object(1, 99), "root 99"),
    "plan": (lambda c: c.plan("all_reduce", np.ones(1)), lambda c: c.plan("all_reduce", "?"), "str"),
    "split": (lambda c: c.split(0), lambda c: c.split(-3), "color -3"),
    "cart": (lambda c: c.cart((c.size,)), lambda c: c.cart((c.size + 1,)), "ranks"),
    "graph": (lambda c: c.graph([0]), lambda c: c.graph([99]), "rank 99"),
    "mesh": (lambda c: c.mesh(a=c.size), lambda c: c.mesh(a=7), "ranks"),
    "dup": (lambda c: c.dup(), lambda c: c.dup(check="much"), "check level"),
    "no array": (lambda c: c.all_reduce(1), lambda c: c.all_reduce(Broken()), "cannot be read"),
}


class Broken:
    """Not one of hpcomm's errors either."""

    @property
    def __array_interface__(self) -> Any:
        raise hpcomm.UsageError("it cannot be read")


@pytest.mark.parametrize("about", OTHERS)
def test_full_tells_all_ranks_whatever_is_refused(comm: Any, about: str) -> None:
    right, wrong, why = OTHERS[about]
    with hpcomm.Communicator(MPI.COMM_WORLD, name="full", check="full") as full:
        call = wrong if full.rank == 0 else right
        with pytest.raises(hpcomm.UsageError if full.rank == 0 else hpcomm.PeerFailedError, match=why):
            call(full)
        assert full.all_reduce(1) == full.size


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("verb", [*MOVES, *FOLDS[:3]])
def test_within_a_node_light_tells_those_who_wait(comm: Any, verb: str, first: bool) -> None:
    """first: rank 0 comes before the others, else after them. Those who need nothing of it may go on."""
    with hpcomm.Communicator(MPI.COMM_WORLD, name="light", check="light") as light:
        if light.context.node is None:
            pytest.skip("goes by MPI here")
        light.all_reduce(np.ones(9000))  # there is memory for long ones from now on
        last = light.rank == ROOTED.get(verb, light.rank) % light.size
        if light.rank == 0 and not first:
            time.sleep(0.02)
        elif light.rank and first:
            comm.barrier()
        if light.rank == 0 or last or verb in ("broadcast", "scatter"):
            refused_by_first(light, call_of(light, verb))
        else:
            with suppress(hpcomm.PeerFailedError):
                call_of(light, verb)(array(light))
        if light.rank == 0 and first:
            comm.barrier()
        with pytest.raises(hpcomm.HpcommError, match=r"out of step|refused|disagree|ended"):
            light.all_reduce(1)
        comm.barrier()


@pytest.mark.core
def test_light_tells_who_waits_for_a_call_in_the_background_with_a_timeout(comm: Any) -> None:
    with hpcomm.Communicator(MPI.COMM_WORLD, name="light", check="light") as light:
        request = light.all_reduce(array(light), async_op=True) if light.rank else None
        comm.barrier()
        if request is None:
            with pytest.raises(hpcomm.DtypeError):
                light.all_reduce(array(light).astype(">f8"), async_op=True)
        elif light.context.near.watched is not None:
            with pytest.raises(hpcomm.PeerFailedError, match="byte order") as caught:
                request.wait(timeout=WAIT_S)
            assert caught.value.ranks == (0,)
        comm.barrier()
        if request is not None and light.context.near.watched is not None:
            light.context.fall_out()  # nobody is to wait for that call at the end


def test_what_all_ranks_refuse_leaves_them_in_step(own_comm: Any) -> None:
    for _ in range(3):
        with pytest.raises(hpcomm.UsageError):
            own_comm.all_reduce(np.ones(2), "plus") if own_comm.rank else own_comm.broadcast(1, root=99)
        assert own_comm.all_reduce(np.ones(2)).tolist() == [own_comm.size] * 2


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("verb", ["split", "dup", "cart"])
def test_what_one_rank_will_not_make_no_other_one_makes(own_comm: Any, verb: str) -> None:
    """Not even begins to: none is inside MPI when it hears of it."""
    if own_comm.context.node is None:
        pytest.skip("needs the node core: MPI cannot be stopped")
    wrong, right = {
        "split": ([-2], [0]),
        "dup": ([None, "quick"], []),
        "cart": ([[own_comm.size, 2]], [[-1]]),
    }[verb]
    if own_comm.rank == 0:
        time.sleep(0.05)  # the others wait by then
    with pytest.raises(hpcomm.HpcommError) as caught:
        getattr(own_comm, verb)(*(right if own_comm.rank else wrong))
    assert own_comm.rank == 0 or "refused" in str(caught.value)
