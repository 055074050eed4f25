"""Arrival flags: words of shared memory by which ranks of a node say that their data is ready.

A flag is the signature of a call with a number that tells it from the calls before, in one word:

    bits  0-55  the signature, or 1 where ranks do not compare calls
    bits 56-57  number of the step modulo 4; its last bit says which of the two cells is used

So who has seen a flag knows two things: that the elements are there, and that the other rank makes the same
call. Stores are seen in program order on the processors where this is done (x86-64); nothing in Python could
see to it elsewhere.
"""

from __future__ import annotations

import os
import time
from contextvars import copy_context
from functools import lru_cache, partial
from itertools import cycle
from typing import TYPE_CHECKING, Any

from ..core.limits import FLAG_LOOKS, FLAG_SLEEP_S, FLAG_YIELDING_S, FLAG_YIELDS_CROWDED
from ..core.signature import LEFT, VERB, VERBS, head
from ..errors import ConfigError, PeerFailedError, where
from . import segment

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np

    from ..core.comm import Comm

    Suspect = Callable[[int, int | None, int], None]
else:
    from .._lazy import LazyModule

    np = LazyModule("numpy")

__all__ = ["MARK", "NUMBERS", "RANKS", "ArrivalFlags", "functions", "is_wanted", "numbers"]

MARK = 56  # bit of a flag from which the number stands
NUMBERS = 4  # of flags, even ones for the first of two cells; all ranks raise one at every use of a cell
RANKS = 16  # at most: each reads of all
_ORDERED = ("x86_64", "AMD64")
_MPI_TURNS, _CHECK_TURNS = 16, 512  # of waiting, between two moves of MPI, and two looks for a reason


def is_wanted() -> bool:
    """Whether calls may go by flags: this processor shows stores in their order, and the user lets them.

    Raises:
        ConfigError: HPCOMM_SHARED_MEMORY is neither on nor off.
    """
    said = os.environ.get("HPCOMM_SHARED_MEMORY") or "on"
    if said not in ("on", "off"):
        raise ConfigError(f"HPCOMM_SHARED_MEMORY is {said!r}", hint="on, or off to leave collectives to MPI")
    return said == "on" and os.uname().machine in _ORDERED


def numbers() -> Callable[[], int]:
    """Numbers for the flags of one use after the other, from which also follows which of two cells is used.

    What a rank finds in a cell is the flag that it waits for, or that of the use before, two numbers less.
    So uses are numbered, and not calls: those that go another way would let a number come again too soon.
    """
    return cycle(range(NUMBERS)).__next__


@lru_cache(maxsize=1)
def functions() -> dict[int, tuple[Any, Any]]:
    """By the code of an all_reduce: (numpy's function, dtype), where numpy reduces as MPI does."""
    from ..core.dtypes import BY_NAME
    from ..core.reduction import NAMES

    by_name = {
        "sum": np.add, "avg": np.add, "prod": np.multiply,
        "min": lambda a, b, out: np.minimum(a, b, out=out),  # numpy wants the keyword there, which is slower
        "max": lambda a, b, out: np.maximum(a, b, out=out),
        "band": np.bitwise_and, "bor": np.bitwise_or, "bxor": np.bitwise_xor,
    }  # fmt: skip
    whole, real = [name for name in by_name if name != "avg"], ["sum", "avg", "prod", "min", "max"]
    names = {"i": whole, "u": whole, "f": real, "c": ["sum", "avg"]}
    return {
        head("all_reduce", NAMES.index(name), dtype.code): (by_name[name], np.dtype(dtype.storage))
        for dtype in BY_NAME.values()
        for name in names.get(dtype.kind, [])
    }


class ArrivalFlags:
    """How the ranks of one communicator wait for each other's flags.

    Args:
        suspect: suspect(signature, None, rank) raises if that rank makes another call than this one.
    """

    def __init__(self, comm: Comm, suspect: Suspect) -> None:
        self._comm, self._suspect = comm, suspect
        self._owner: dict[int, int] = {}
        is_crowded = segment.current is not None and segment.current.is_crowded
        self._looks = range(0 if is_crowded else FLAG_LOOKS)
        self._turns = range(FLAG_YIELDS_CROWDED if is_crowded else 0)
        self._context: Any = None

    def know(self, rank: int, line: memoryview) -> None:
        """Know a line as a rank's."""
        self._owner[id(line)] = rank

    def look(self, line: memoryview, flag: int, mine: int) -> None:
        """Wait for a flag in a line.

        Args:
            mine: the signature of the call that this rank makes.

        Raises:
            MismatchError: the rank makes another call. PeerFailedError: it has ended.
        """
        for _ in self._looks:
            if line[0] == flag:
                return
        for _ in self._turns:
            if line[0] == flag:
                return
            os.sched_yield()
        with self._comm.call_guard:
            self._wait(line, flag, mine)

    def _wait(self, line: memoryview, flag: int, mine: int) -> None:
        """The same, when it has been looked for some times."""
        begin, turns = time.monotonic(), 0
        while line[0] != flag:
            turns += 1
            waited = time.monotonic() - begin
            if waited >= FLAG_YIELDING_S or not turns % _MPI_TURNS:
                self._comm.move_on()
            if not turns % _CHECK_TURNS:
                self._check(line, flag, mine)
            if waited < FLAG_YIELDING_S:
                os.sched_yield()
            else:
                time.sleep(min(waited / 50, FLAG_SLEEP_S))

    def _check(self, line: memoryview, flag: int, mine: int) -> None:
        self._comm.call_guard.check()
        verb, rank = VERBS[mine & VERB], self._owner[id(line)]
        self._suspect(mine, None, rank)
        why = "has ended" if rank in self._comm.node_regions and self._comm.node_regions[rank].ended else ""
        rings = [] if self._comm.watched is None else self._comm.watched[1]
        if any(segment.posted(ring, segment.last_call(ring)) == LEFT for r, _, ring in rings if r == rank):
            why = why or "is out of step"
        if why and line[0] != flag:
            self._comm.fall_out()
            raise PeerFailedError(
                f"{verb} on '{self._comm.name}' needs rank {rank}, which {why}",
                where(verb, self._comm),
                "look at what that rank printed; every rank must make the same collective calls",
                [rank],
            )

    def calmly(self, work: Callable[..., Any]) -> Callable[..., Any]:
        """What works without numpy's warnings: MPI has none."""
        if int(np.__version__.partition(".")[0]) < 2:  # whose settings are the thread's, not the context's
            return np.errstate(all="ignore")(work)
        if self._context is None:
            self._context = copy_context()
            self._context.run(np.seterr, all="ignore")
        return partial(self._context.run, work)

    def folding(self, function: Any, parts: Sequence[Any]) -> Callable[[Any], Any]:
        """What reduces parts into out, in their order."""

        def fold(out: Any) -> None:
            function(parts[0], parts[1], out)
            for part in parts[2:]:
                function(out, part, out)

        work = function if len(parts) == 2 else fold  # without a frame of our own between
        if parts[0].dtype.kind in "fc":
            work = self.calmly(work)
        return partial(work, *parts) if len(parts) == 2 else work
