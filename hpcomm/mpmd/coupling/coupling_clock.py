"""Coupling times: when what is put becomes what is got; lag, means and their like, interpolation. Pure.

    time of the model   0      every    2·every   3·every
    giver's version     0        1         2         3        a put at n·every is version n
    taker at time t     takes version (t - lag) / every: the last one not after t - lag; "linear" lies
                        between that one and the next

A put at time t says what holds at t; of "mean", "sum", "min" and "max" what was put since the last coupling
time, the coupling time itself included. Taken before there is a version: what was there first.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple, TypeGuard

from ...errors import UsageError

_AHEAD = 64  # versions that are kept for a taker at most
NEAR = 1e-6  # of a period: times are floats
_MOST = 1e12  # steps in a period, which floats can still tell apart


def is_number(x: Any, *, above: float = -math.inf) -> TypeGuard[float]:
    """Whether x is finite, and greater than above."""
    try:
        return math.isfinite(x) and bool(x > above)
    except (TypeError, OverflowError):
        return False


def check_time(seconds: object, verb: str) -> None:
    """Refuse a time of the model that is none; None: the call names no time."""
    if seconds is not None and not is_number(seconds):
        raise UsageError(f"{seconds!r} is no time of the model", verb, "a finite number of seconds")


def divides(step: float, whole: float) -> bool:
    """Whether whole is a multiple of step, but for rounding; 0 is one of any."""
    n = whole / step
    return whole == 0 or (0.5 < n < _MOST and abs(n - round(n)) < max(1e-9, 1e-15 * n))


class Schedule(NamedTuple):
    """every_s None: each put is taken by one get, and times mean nothing. start_s: when the run begins."""

    every_s: float | None = None
    lag_s: float = 0.0
    time: str = "instant"
    start_s: float = 0.0

    @property
    def joins(self) -> bool:
        """Whether a version is made of all puts of a period."""
        return self.time in ("mean", "sum", "min", "max")

    def is_due(self, t: float) -> int | None:
        """The version that a put at time t completes; None if it only adds to one."""
        assert self.every_s is not None
        n = t / self.every_s
        return round(n) if abs(n - round(n)) < NEAR else None

    def wanted(self, t: float) -> tuple[int, float]:
        """(version, share of the next one) that a get at time t takes; version < 0: none yet."""
        assert self.every_s is not None
        n = (t - self.lag_s) / self.every_s
        whole = round(n) if abs(n - round(n)) < NEAR else int(n // 1)
        return whole, (n - whole if self.time == "linear" and abs(n - whole) >= NEAR else 0.0)

    def ahead(self, step_s: float | None) -> int:
        """How many versions may be put before the first of them is taken, by a taker of this step.

        One more than need be: so neither program waits for the other's turn on a core.
        """
        if self.every_s is None:
            return 2
        step_s = max(self.every_s, step_s or 0.0)
        return min(_AHEAD, 1 + math.ceil((self.lag_s + step_s) / self.every_s - NEAR))

    def first(self) -> int:
        """The first version of the run."""
        assert self.every_s is not None
        return math.ceil(self.start_s / self.every_s - NEAR)
