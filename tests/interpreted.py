"""What schedules compute, found by carrying out their rows in turn on real arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

from hpcomm.schedule.rank_program import edges
from hpcomm.schedule.stream import AFTER, COPY, Schedule


def interpret_values(schedule: Schedule, given: Any, op: Any) -> list[Any]:
    """What every rank's memory holds at the end, computed on real arrays, in the executor's order.

    Args:
        given: per rank the memory it begins with: arrays of one axis, slots * count elements.
        op: op(a, b, out=c) reduces two arrays element by element.
    """
    memory = [np.array(x) for x in given]
    bounds = edges(schedule, memory[0].size // schedule.slots)
    for t in range(schedule.iterations):
        moves = []
        for stream, k in schedule.active(t):
            source, dest = stream.ends(k, schedule.size)
            for row in range(stream.rows):
                here, there = stream.chunks(k, row)
                how = int(np.broadcast_to(stream.reduce, source.shape)[row])
                for a, b in zip(here, there, strict=True):
                    moves.append(
                        (int(dest[row]), b, memory[source[row]][bounds[a] : bounds[a + 1]].copy(), how)
                    )
        for d, b, data, how in moves:
            mine = memory[d][bounds[b] : bounds[b + 1]]
            if how == COPY:
                mine[:] = data
            elif how == AFTER:
                op(mine, data, out=mine)
            else:
                op(data, mine, out=mine)
    return memory
