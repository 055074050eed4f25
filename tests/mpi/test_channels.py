"""Exchanges through memory of the node, or by MPI where there is none: the same halos, and nobody hangs."""

from __future__ import annotations

import gc
import time
from typing import Any

import numpy as np
import pytest

import hpcomm
from hpcomm import Field, Halo
from hpcomm.fields import negotiation
from hpcomm.node import segment
from hpcomm.node.channels import has_memory
from hpcomm.node.native import core


def numbered(comm: Any, halo: Any = 1, shape: Any = (8, 9), **options: Any) -> Field:
    field = Field(comm.mesh(y=-1), shape, halo=halo, **options)
    field.inner[...] = 100 * field.indices[0] + field.indices[1]
    return field


def expected(field: Field) -> Any:
    """What a ring along axis 0 holds in the rows of this rank and its halo."""
    box = field.box.grown(field.halo)
    rows, columns = (np.arange(a, b) for a, b in zip(box.start, box.stop, strict=True))
    return 100 * (rows % field.shape[0])[:, None] + columns


def through_memory(halo: Halo) -> int:
    return int(halo.explain().split(" messages")[0].rpartition(" ")[2])


@pytest.fixture(params=["memory", "no memory on rank 0", "too long for it"])
def way(request: Any, comm: Any, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "too long for it":
        monkeypatch.setattr(negotiation, "CHANNEL_MOST", 0)
    elif request.param != "memory" and comm.rank == 0:
        monkeypatch.setattr(negotiation, "reserved", lambda nbytes: 0)
    return str(request.param)


def test_halos_are_the_same_whichever_way_they_come(comm: Any, way: str) -> None:
    field = numbered(comm, halo=((2, 1), 0), periodic=[0])
    halo = Halo(field)
    for turn in range(5):
        field.inner[...] += 1000 * turn
        if turn % 2:
            halo()
        else:
            halo.start()
            halo.wait()
        assert np.array_equal(field.array, expected(field) + 1000 * sum(range(turn + 1)))
    count = through_memory(halo)
    if comm.size == 1 or way == "too long for it" or not has_memory():
        assert count == 0
    elif way == "memory":
        assert count == halo.messages
    elif comm.rank == 0:
        assert count == halo.messages - (2 if comm.size > 2 else 1)
    halo.close()
    assert through_memory(halo) == 0


def test_who_only_sends_is_one_exchange_ahead_and_no_further(comm: Any, way: str) -> None:
    """A message that the receiver has not taken out yet stays as it was sent."""
    field = numbered(comm, halo=((1, 0), 0))
    halo = Halo(field)
    for turn in range(6):
        if comm.rank:
            time.sleep(0.002)
        field.inner[...] += 1000
        halo()
        if comm.rank:
            assert np.array_equal(field.array[0], expected(field)[0] + 1000 * (turn + 1))


def test_the_ends_of_an_exchange_may_lie_apart(comm: Any) -> None:
    """start() asks nothing of a peer that has not come to wait() yet, and waiting lets MPI move on."""
    field = numbered(comm, periodic=[0])
    halo = Halo(field)
    above, below = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    big, arrived = np.full(1 << 18, float(comm.rank)), np.empty(1 << 18)
    for _ in range(3):
        sending = comm.send(big, above, async_op=True)  # which needs this rank's hand while it waits
        if comm.rank % 2:
            comm.recv(arrived, below)
        halo.start()
        halo.wait()
        halo.start()
        if not comm.rank % 2:
            comm.recv(arrived, below)
        halo.wait()
        sending.wait()
        assert (arrived == below).all()


def test_waiting_ends_in_time_and_goes_on(comm: Any) -> None:
    if comm.size == 1:
        pytest.skip("nobody to wait for")
    field = numbered(comm, periodic=[0])
    halo = Halo(field)
    halo.start()
    if comm.rank == 0:
        comm.barrier()
        halo.wait()
        halo.start()
    else:
        halo.wait(timeout=60)
        halo.start()
        if comm.rank == 1:
            with pytest.raises(hpcomm.WaitTimeoutError, match="not complete after"):
                halo.wait(timeout=0.02)
        comm.barrier()
    halo.wait()
    halo()


@pytest.mark.few
def test_exchanges_that_are_dropped_or_closed_give_their_memory_back(comm: Any) -> None:
    if comm.size == 1 or not has_memory():
        pytest.skip("no memory in common")
    places, field = set(), numbered(comm, periodic=[0], shape=(8, 3000))  # its communicator stays
    for turn in range(5):
        gc.collect()
        comm.barrier()
        if comm.rank == 0 and turn:  # the others wait: nobody else reserves memory
            places.add(end_of_memory())
        comm.barrier()
        halo = Halo(field)
        halo()
        if turn % 2:
            halo.close()
            with pytest.raises(hpcomm.UsageError, match="closed"):
                halo()
        del halo
    assert len(places) <= 1


def end_of_memory() -> int:
    """Where the node's memory has room for something large."""
    native, shared = core(), segment.current.shared
    at = shared.reserve_channel(1 << 20)
    for end in (0, 1):
        native.Channel(shared, at, end).close()
    return at


def test_ends_of_a_halo_that_differ_about_its_length_hear_of_it(comm: Any) -> None:
    if comm.size == 1:
        pytest.skip("one end")
    field = numbered(comm, periodic=[0], dtype="f4" if comm.rank == 0 else "f8")
    if 1 < comm.rank < comm.size - 1:
        Halo(field)
        return
    with pytest.raises(hpcomm.MismatchError, match=r"to rank \d go \d+ bytes as this rank has it"):
        Halo(field)
