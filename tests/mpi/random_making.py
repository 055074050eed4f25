"""Writes the communicators of a random program, and calls between two groups or neighbours."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence

import numpy as np
from random_arrays import LENGTHS
from random_model import MOVED, sort_of
from random_steps import Circle, Flags, Program, Step, Ways

BETWEEN = ("all_reduce", "all_gather", "broadcast", "reduce", "gather", "scatter", "broadcast_object")


class Making:
    """The part of a Writer that makes communicators."""

    rng: random.Random
    program: Program
    flags: Flags
    add: Callable[..., Step]
    begun: Callable[[Step, bool], None]
    laid: Callable[..., dict[str, str]]
    shape: Callable[[bool], tuple[int, ...]]

    def make(self) -> None:
        circle = self.rng.choice([c for c in self.program.circles if not c.remote])
        kinds = ("split", "split", "dup", "group", "cart", "graph", "split_node", "inter", "merge")
        kind = self.rng.choice(kinds)
        if kind == "merge":
            return self.merge()
        if kind == "inter":
            if self.flags.inter and len(circle.members) > 1:
                self.join(circle)
            return
        if kind == "group":
            chosen = self.rng.sample(circle.members, self.rng.randint(1, len(circle.members)))
            step = self.add("group", circle, chosen, members=[circle.members.index(r) for r in chosen])
            step.options["makes"] = [self.circle(chosen, circle).number]
            return
        step = self.add(kind, circle, circle.members)
        if kind == "split":
            self.split(step, circle)
        elif kind == "dup":
            step.options |= {"check": self.rng.choice((None, "off", "light", "full", "values"))}
            step.options["makes"] = [self.circle(circle.members, circle).number]
        elif kind == "cart":
            made = self.circle(circle.members, circle)
            shape, periodic = self.grid(len(circle.members))
            made.ways = ways_of_grid(shape, periodic)
            step.options |= {"shape": shape, "periodic": periodic, "makes": [made.number]}
        elif kind == "graph":
            made = self.circle(circle.members, circle)
            p = len(circle.members)
            made.ways = ways_of_edges(
                [[self.rng.randrange(p) for _ in range(self.rng.randint(0, 3))] for _ in range(p)]
            )
            step.options |= {"says_sources": self.rng.random() < 0.5, "makes": [made.number]}
        else:
            step.options["makes"] = [self.circle(circle.members, circle).number]

    def circle(self, members: Iterable[int], under: Circle, remote: Iterable[int] = ()) -> Circle:
        made = Circle(len(self.program.circles), tuple(members), tuple(remote), under=under.number)
        self.program.circles.append(made)
        return made

    def split(self, step: Step, circle: Circle) -> None:
        """By colors, of which one may be None, with ranks in any order."""
        colors = {rank: self.rng.choice((0, 0, 1, None)) for rank in circle.members}
        keys = {rank: self.rng.randint(-3, 3) for rank in circle.members}
        for rank in circle.members:
            step.parts[rank] |= {"color": colors[rank], "key": keys[rank]}
        step.options["makes"] = []
        for color in {color for color in colors.values() if color is not None}:
            members = [rank for rank in circle.members if colors[rank] == color]
            members.sort(key=lambda rank: (keys[rank], circle.members.index(rank)))
            number = self.circle(members, circle).number
            step.options["makes"].append(number)
            for rank in members:
                step.parts[rank]["gets"] = number

    def grid(self, p: int) -> tuple[tuple[int, ...], tuple[bool, ...]]:
        shapes = [(p,), *((d, p // d) for d in range(1, p + 1) if p % d == 0)]
        shape = self.rng.choice(shapes)
        return shape, tuple(self.rng.random() < 0.5 for _ in shape)

    def merge(self) -> None:
        """The two groups of a communicator, in one."""
        between = [c for c in self.program.circles if c.remote]
        if between:
            circle, high = self.rng.choice(between), self.rng.random() < 0.5
            here, there = circle.members, circle.remote
            members = (*there, *here) if high else (*here, *there)
            made = self.circle(members, circle)
            self.add("merge", circle, (*here, *there), high=high, makes=[made.number])

    def join(self, circle: Circle) -> None:
        """Two groups of a communicator, joined."""
        cut = self.rng.randint(1, len(circle.members) - 1)
        here, there = circle.members[:cut], circle.members[cut:]
        step = self.add("inter", circle, circle.members, here=here, there=there)
        step.options["makes"] = [self.circle(here, circle, there).number]

    def neighbours(self, circle: Circle) -> None:
        verb = self.rng.choice(("neighbour_all_gather", "neighbour_all_to_all"))
        form = self.rng.choice(("", "", "_ragged"))
        dtype = self.rng.choice(MOVED)
        how = "blocking" if form else self.rng.choice(("blocking", "async"))
        step = self.add(verb + form, circle, circle.members, how=how, dtype=dtype, shape=self.shape(True))
        assert circle.ways is not None
        shape = step.options["shape"]
        for rank in step.ranks if not form else ():
            part, ways = step.parts[rank], circle.ways[circle.members.index(rank)]
            whole = (len(ways.destinations), *shape) if "to_all" in verb else shape
            part |= self.laid(dtype, whole, ("numpy", "torch") if sort_of(dtype) != "moved" else ("numpy",))
            part["out"] = self.rng.choice(("new", "out"))
            if part["out"] == "out":
                part["out_lay"] = self.laid(dtype, (len(ways.sources), *shape), (part["kind"],), True)
        if how == "async":
            self.begun(step, False)

    def between(self, circle: Circle) -> None:
        """A call on a communicator of two groups."""
        verb = self.rng.choice((*BETWEEN, "all_to_all", "all_gather_object", "exchange"))
        how = self.rng.choice(("blocking", "async"))
        dtype = self.rng.choice(MOVED[:-5])
        step = self.add(
            f"inter_{verb}",
            circle,
            (*circle.members, *circle.remote),
            how=how,
            dtype=dtype,
            length=self.rng.choice(LENGTHS),
            root=self.rng.choice((*circle.members, *circle.remote)),
        )
        if how == "async":
            self.begun(step, "object" in verb)


def ways_of_grid(shape: tuple[int, ...], periodic: tuple[bool, ...]) -> list[Ways]:
    """Of each rank the neighbours below and above, axis by axis."""
    places = np.arange(int(np.prod(shape))).reshape(shape)
    found = []
    for rank in range(places.size):
        coords = np.unravel_index(rank, shape)
        own: list[int | None] = []
        for axis, (n, ring) in enumerate(zip(shape, periodic, strict=True)):
            for step in (-1, 1):
                there = list(coords)
                there[axis] += step
                inside = 0 <= there[axis] < n
                there[axis] %= n
                own.append(int(places[tuple(there)]) if inside or ring else None)
        found.append(Ways(tuple(own), tuple(own), tuple(i ^ 1 for i in range(len(own)))))
    return found


def ways_of_edges(destinations: Sequence[Sequence[int]]) -> list[Ways]:
    """The first edge between two ranks meets the first, the second the second."""
    found = []
    for me in range(len(destinations)):
        came = [(r, i) for r, goes in enumerate(destinations) for i, to in enumerate(goes) if to == me]
        sources, partners = tuple(r for r, _ in came), tuple(i for _, i in came)
        found.append(Ways(sources, tuple(destinations[me]), partners))
    return found
