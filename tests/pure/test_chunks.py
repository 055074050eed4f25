"""The law of chunks: each lies on one rank, and where pieces are chunks already nothing moves."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_partition import partitions

from hpcomm import LayoutError
from hpcomm.core.partition import Partition
from hpcomm.fields.files.chunks import aligned, chunk_shape


@given(partitions(partial=False), st.data())
def test_every_chunk_lies_on_one_rank(partition: Partition, data: Any) -> None:
    chunks = [data.draw(st.integers(1, max(1, n))) for n in partition.shape]
    target = aligned(partition, chunks)
    assert target.grid == partition.grid
    for edges, chunk, n in zip(target.edges, chunks, partition.shape, strict=True):
        assert all(edge % chunk == 0 or edge == n for edge in edges)
    if (
        all(partition.shape)
        and not partition.bounds
        and all(n % parts == 0 for n, parts in zip(partition.shape, partition.grid, strict=True))
    ):  # even pieces are the chunks: nothing travels
        assert aligned(partition, chunk_shape(partition, 8)).edges == partition.edges


def test_chunks_that_nobody_asked_for_stay_below_64_mebibytes() -> None:
    whole = Partition((5000, 9000), {"p": 2})
    assert chunk_shape(whole, 8) == (2500, 2250)  # the longest axis is halved, and again
    assert chunk_shape(whole, 8, (3, 10**6)) == (3, 9000)
    with pytest.raises(LayoutError, match="do not fit the shape"):
        chunk_shape(whole, 8, (3, 0))
    with pytest.raises(LayoutError, match=r"chunks is \(2.5, 3\)"):
        chunk_shape(whole, 8, (2.5, 3))  # type: ignore[arg-type]
