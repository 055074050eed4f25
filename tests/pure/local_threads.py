"""Threads of one process as ranks: a channel for schedules, without MPI."""

from __future__ import annotations

import queue
import threading
from typing import TYPE_CHECKING, Any

import numpy as np

from hpcomm.errors import WaitTimeoutError
from hpcomm.schedule.rank_program import program
from hpcomm.transport.scheduled.executor import Executor, memory_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from hpcomm.schedule.stream import Schedule

    Array = NDArray[Any]

__all__ = ["Hub", "run"]

TIMEOUT_S = 60.0


class Hub:
    """Where the threads meet: a line of messages from every rank to every other."""

    def __init__(self, size: int) -> None:
        self.lines: dict[tuple[int, int], queue.SimpleQueue[Array]] = {
            (a, b): queue.SimpleQueue() for a in range(size) for b in range(size)
        }

    def channel(self, rank: int) -> _Line:
        """What the executor of one rank sends and receives through."""
        return _Line(self, rank)


class _Line:
    def __init__(self, hub: Hub, rank: int) -> None:
        self.hub, self.rank = hub, rank

    def prepare(self, sends: list[tuple[int, Array]], recvs: list[tuple[int, Array]]) -> _Turn:
        out = [(self.hub.lines[self.rank, peer], view) for peer, view in sends]
        return _Turn(out, [(self.hub.lines[peer, self.rank], view) for peer, view in recvs])


class _Turn:
    """The messages of one round."""

    def __init__(self, sends: Any, recvs: Any) -> None:
        self.sends, self.recvs = sends, recvs

    def start(self) -> None:
        for line, view in self.sends:
            line.put(view.copy())

    def wait(self) -> None:
        for line, view in self.recvs:
            try:
                view[:] = line.get(timeout=TIMEOUT_S)
            except queue.Empty:
                raise WaitTimeoutError(
                    f"no message came within {TIMEOUT_S:g} s", hint="look at the other ranks"
                ) from None


def run(
    schedule: Schedule, given: list[Array], op: Callable[..., object] = np.add, wire: Any = None
) -> list[Array]:
    """Carry a schedule out with one thread per rank.

    Args:
        given: per rank the memory it begins with, one axis of slots * count elements; left alone.
        op: op(a, b, out), as numpy's ufuncs are.
        wire: a half type as which float32 travels, or None.

    Returns:
        Per rank its memory at the end.

    Raises:
        WaitTimeoutError, or what else a rank met; the first one's.
    """
    hub, failed = Hub(schedule.size), []
    memory = [np.empty_like(x) if wire is None else np.array(x) for x in given]

    def rank(r: int) -> None:
        try:
            part = program(schedule, r, memory[r].size // schedule.slots, staged=wire is not None)
            x = given[r] if wire is None else None
            where = memory_for(part, memory[r].dtype, wire, memory[r])._replace(given=x)
            Executor(part, hub.channel(r), where, op, wire).run()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=rank, args=(r,), daemon=True) for r in range(schedule.size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]
    return memory
