"""Direct calls: what collective verbs try first, whose methods are those of the native core's Node.

A direct call takes plain arrays and does the whole job, or returns NotImplemented before any other rank could
know of it. Then the general path prepares the arrays, says what is wrong with them, or takes another way.
"""

from __future__ import annotations

from typing import Any

__all__ = ["NO_DIRECT"]


class NoDirect:
    """Every call takes the general path: while observers look on, or a timeout is set, or after close()."""

    def _refuse(self, *arguments: Any) -> Any:
        return NotImplemented

    barrier = broadcast = reduce = all_reduce = gather = all_gather = scatter = _refuse
    reduce_scatter = all_to_all = scan = exscan = _refuse


NO_DIRECT = NoDirect()
