"""The heartbeat between hosts, here between ranks."""

from __future__ import annotations

from typing import Any

import pytest

from hpcomm.agree import heartbeat


@pytest.mark.mpi(min_size=2)
def test_no_beat_goes_to_a_host_that_has_not_taken_the_last_one(comm: Any, monkeypatch: Any) -> None:
    """Rank 0 says five times that it lives, and nobody hears it: one message waits on each neighbour."""
    monkeypatch.setattr(heartbeat, "HEARTBEAT_S", 0.0)
    firsts = comm.mpi.Dup()
    mine = heartbeat.Heartbeat(firsts)
    if comm.rank == 0:
        for _ in range(5):
            mine.beat()
    firsts.Barrier()
    come = 0
    while come < 9 and firsts.Iprobe(0):
        firsts.Recv(bytearray(512), 0)
        come += 1
    assert come == (comm.rank in (1, comm.size - 1) and comm.rank > 0)
    firsts.Barrier()
    while comm.rank == 0 and not all(each.Test() for each in mine._letters._next.values()):
        pass
    firsts.Free()
