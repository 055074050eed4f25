"""One more step of a random mixture: two programs and the fields between them, in model time, with lags."""

from __future__ import annotations

import random
from typing import Any, NamedTuple

import numpy as np

from hpcomm.mpmd.link_context import LinkContext
from hpcomm.mpmd.program import Program


class Coupled(NamedTuple):
    """A field between them. every: 0 where each put is taken by one get; step: of its taker."""

    name: str
    giver: str
    whole: int
    every: int
    lag: int
    time: str
    step: int
    seed: int

    def value(self, t: float) -> Any:
        """Of all points, as it is put at time t."""
        return np.arange(self.whole) + 7.0 * t + self.seed % 10

    def version(self, n: int) -> Any:
        """Of all points, what is put at the n-th coupling time."""
        since = range((n - 1) * self.every + 1 if n else 0, n * self.every + 1)
        values = sum(self.value(t) for t in since) if self.time in ("mean", "sum") else self.value(since[-1])
        return values / len(since) if self.time == "mean" else values

    def wanted(self, t: int) -> Any:
        """Of all points, what a get at time t brings; None: nothing yet."""
        if not self.every:
            return self.value(t)
        n, rest = divmod(t - self.lag, self.every)
        if n < 0:
            return None
        if self.time != "linear" or not rest:
            return self.version(n)
        share = rest / self.every
        return (1 - share) * self.version(n) + share * self.version(n + 1)


class Couplings:
    """A part of a Mixture."""

    rank: int
    now: str
    check: Any
    halves: Any

    def coupled(self, rng: random.Random, circle: Any) -> None:
        """Halves of a circle as programs, which put and get in every step of a time of their own."""
        if circle.size < 2:
            return
        cut, is_low, half, inter = self.halves(rng, circle)
        mine, other = ("a", "b") if is_low else ("b", "a")
        link = LinkContext.over(mine, other, half, inter.mpi.Dup())
        inter.close()
        ranks = {"a": list(range(cut)), "b": list(range(cut, circle.size))}
        me = Program(mine, half, ranks, [link])
        drawn = [self.draw_coupled(rng, number) for number in range(rng.randrange(1, 6))]
        self.now += f", {cut} and {circle.size - cut} ranks, {drawn}"
        fields = {each: self.declare(me, each) for each in drawn}
        length = rng.randrange(1, 10)
        for t in range(length):
            self.put_all(me, fields, t)
            for each, field in fields.items():
                if each.giver != mine and t % each.step == 0:
                    self.take(me, each, field, t)
        for each, field in fields.items():
            if each.every and each.giver != mine:  # what is under way yet
                self.take(me, each, field, each.lag + (length - 1) // each.every * each.every)
        link.settle()

    def draw_coupled(self, rng: random.Random, number: int) -> Coupled:
        every, time = rng.randrange(4), rng.choice(["instant", "mean", "sum", "linear"])
        if not every:
            return Coupled(f"f{number}", rng.choice("ab"), rng.choice((1, 6, 50)), 0, 0, "instant", 1, number)
        lag = every * rng.randrange(1 if time == "linear" else 0, 4)  # else the next version is yet to come
        sizes = rng.choice((1, 6, 50, 3000))
        step = rng.choice((1, every))
        return Coupled(f"f{number}", rng.choice("ab"), sizes, every, lag, time, step, rng.randrange(1 << 30))

    def declare(self, me: Program, each: Coupled) -> Any:
        """This rank's part: points in any order, each with one giver, and any number of takers."""
        drawn = np.random.default_rng(each.seed)
        if each.giver == me.name:
            owner = drawn.integers(0, me.comm.size, each.whole)
            points = drawn.permutation(each.whole)
            points = points[owner[points] == me.comm.rank]
            return me.gives(each.name, np.zeros(len(points)), points)
        points = drawn.integers(0, each.whole, (me.comm.size, each.whole))[me.comm.rank]
        points = points[: drawn.integers(0, each.whole + 1, me.comm.size)[me.comm.rank]]
        wish = {"every": float(each.every), "lag": float(each.lag), "time": each.time} if each.every else {}
        return me.takes(each.name, np.full(len(points), -1.0), points, timeout=40.0, **wish)

    def put_all(self, me: Program, fields: dict[Coupled, Any], t: int) -> None:
        for each, field in fields.items():
            if each.giver == me.name:
                field.values = each.value(t)[field.points]
                me.put(field, float(t))
                field.values[:] = -5.0  # what was put has been copied

    def take(self, me: Program, each: Coupled, field: Any, t: int) -> None:
        wanted, got = each.wanted(t), me.get(field, float(t)).copy()
        due = np.full(len(got), -1.0) if wanted is None else wanted[field.points]
        wrong = "" if np.allclose(got, due, rtol=1e-13, atol=0) else f"{got}, not {due}"
        self.check(got, lambda _: wrong, f"{each} at {t}")
