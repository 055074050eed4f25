"""all_gather between nodes, which hpcomm itself moves: as if ranks were dealt out to two nodes, or three."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI
from order_law import nodes_of

from hpcomm.node import segment
from hpcomm.transport import rank_order
from hpcomm.transport.scheduled import ordered_blocks

pytestmark = pytest.mark.three
RECORD = np.dtype([("a", "f4"), ("b", "i2")])
KINDS = ["f8", "c8", "?", "M8[s]", RECORD]


@pytest.fixture(params=[2, 3])
def apart(request: Any, comm: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A communicator without a core, of which arrays of 100 bytes are long, and go in pieces."""
    many = request.param
    monkeypatch.setattr(segment, "ranks_here", lambda mpi: nodes_of(mpi.size, many)[mpi.rank % many])
    monkeypatch.setattr(rank_order, "GATHERED_FAR", 100)
    monkeypatch.setattr(ordered_blocks, "ORDER_PIECE", 2000)
    monkeypatch.setattr(rank_order, "_RINGS", {MPI.get_vendor()[0]})
    with comm.dup(check="full") as made:
        yield made


def given(dtype: Any, n: int, rank: int) -> Any:
    return np.random.default_rng(rank).integers(0, 2 if dtype == "?" else 99, n).astype(dtype)


@pytest.mark.parametrize("dtype", KINDS, ids=str)
def test_each_rank_gets_each_block(apart: Any, dtype: Any) -> None:
    for n in (1, 31, 2003):
        wanted = np.stack([given(dtype, n, rank) for rank in range(apart.size)])
        x = wanted[apart.rank].copy()
        every_other, out = np.zeros(2 * n, dtype), np.zeros((apart.size, n), dtype)
        every_other[::2] = x
        in_place, columns = np.zeros_like(wanted), np.zeros((n, apart.size), dtype)
        in_place[apart.rank] = x
        plan, before = apart.plan("all_gather", x), apart.all_gather(x, async_op=True)
        found = {
            "new": apart.all_gather(x),
            "out": apart.all_gather(x, out=out),
            "strided": apart.all_gather(every_other[::2]),
            "in place": apart.all_gather(in_place[apart.rank], out=in_place),
            "strided out": apart.all_gather(x, out=columns.T),
            "late": before.wait(),
            "plan": plan(),
        }
        assert [name for name, got in found.items() if not np.array_equal(got, wanted)] == [], n
        x[...] = given(dtype, n, 99)
        assert np.array_equal(plan(), np.stack([x] * apart.size))
        plan.close()


def test_blocks_cross_to_each_node_once(apart: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    met: list[int] = []
    pieces = ordered_blocks.pieces

    def counted(messages: Any, most: Any) -> Any:
        met.extend(peer for peer, _ in messages)
        return pieces(messages, most)

    monkeypatch.setattr(ordered_blocks, "pieces", counted)
    apart.all_gather(np.zeros(50))
    nodes = rank_order.nodes_of(apart.context).groups
    near = next(ranks for ranks in nodes if apart.rank in ranks)
    crossed = apart.mpi.allreduce(sum(peer not in near for peer in met))
    assert crossed == 2 * apart.size * (len(nodes) - 1)  # both ends are counted
