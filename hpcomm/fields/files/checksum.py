"""Checksum of a field that does not depend on the partition.

Every rank adds up its own elements by core/checksum.py, and one all_reduce gives the checksum of the whole.
So a checkpoint of p ranks is verified on q.
"""

from __future__ import annotations

from ..._lazy import np
from ...core.types import AnyArray
from ..field import Field


def checksum(field: Field, owned: AnyArray | None = None) -> int:
    """The checksum of the whole, a number below 2**64, the same on every rank. Collective.

    Args:
        owned: what this rank owns, if not yet in the field.
    """
    return int(field.comm.all_reduce(np.array([field.own_checksum(owned)], np.uint64))[0])
