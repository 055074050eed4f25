"""Exchanges through memory of the node, or by MPI where there is none: the same halos, and nobody hangs."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hpcomm
from hpcomm import Field, Halo
from hpcomm.fields import negotiation
from hpcomm.node import slots


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
    def full(sizes: Any) -> None:
        raise OSError("no space")

    if request.param == "too long for it":
        monkeypatch.setattr(negotiation, "SLOT_MOST", 0)
    elif request.param != "memory" and comm.rank == 0:
        monkeypatch.setattr(negotiation, "Outbox", full)
        monkeypatch.setattr(negotiation, "inbox", lambda card: None)
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
    lone = comm.size == 1 or way == "too long for it"
    count = through_memory(halo)
    assert (count == 0) if lone or (way != "memory" and comm.rank == 0) else True
    assert not (way == "memory" and comm.size > 1 and slots.has_memory()) or count == halo.messages
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


def test_no_file_is_left_in_shared_memory(comm: Any) -> None:
    halo = Halo(numbered(comm, periodic=[0]))
    halo()
    assert not list(Path("/dev/shm").glob(f"hpcomm-{os.getpid()}-*"))
