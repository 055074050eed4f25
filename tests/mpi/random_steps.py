"""What a random program is: one sequence of steps that all ranks go through, each doing its own part.

Step     one call: what is the same on all its ranks (options), and what is not (parts)
Circle   a communicator that the program has made: its ranks, its neighbours
Program  the steps, and what communicators are made in them
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

ANY = -1  # as source or tag


@dataclass(frozen=True)
class Flags:
    """Which programs are made.

    rounds: background calls that take several rounds may be under way beside blocking calls
    mixed: some ranks may work in place in background and planned calls, and others not
    inter: communicators of two groups
    """

    rounds: bool = True
    mixed: bool = True
    inter: bool = True


@dataclass
class Step:
    """One call of a program. ranks: world ranks that take part, in the order of their communicator."""

    uid: int
    verb: str
    circle: int
    ranks: tuple[int, ...]
    options: dict[str, Any] = field(default_factory=dict)
    parts: dict[int, dict[str, Any]] = field(default_factory=dict)

    @property
    def key(self) -> int:
        """The same for both ends of a message."""
        return int(self.options.get("message", self.uid))

    def __str__(self) -> str:
        said = ", ".join(f"{name}={value!r}" for name, value in self.options.items())
        if self.verb == "wait":
            return f"if rank == {self.ranks[0]}: wait({said})"
        parts: dict[str, list[int]] = {}
        for rank in self.ranks:
            text = " ".join(f"{k}={v}" for k, v in self.parts.get(rank, {}).items() if v not in (None, 0, ""))
            parts.setdefault(text, []).append(rank)
        own = "; ".join(f"{ranks}: {text}" for text, ranks in parts.items() if text)
        who = f"  # ranks {list(self.ranks)}"
        return f"r{self.uid} = c{self.circle}.{self.verb}({said}){who}{'  ' + own if own else ''}"


@dataclass(frozen=True)
class Ways:
    """The neighbours of one rank, by rank of the circle; None: nobody. A grid's are the same both ways.

    partners: at which place of its destinations each source has this rank.
    """

    sources: tuple[int | None, ...]
    destinations: tuple[int | None, ...]
    partners: tuple[int, ...]


@dataclass
class Circle:
    """A communicator: its world ranks in order, and of an inter-communicator the other group's."""

    number: int
    members: tuple[int, ...]
    remote: tuple[int, ...] = ()
    ways: list[Ways] | None = None  # of each rank, where it has neighbours
    under: int = 0  # made from
    busy: dict[tuple[int, int, str], list[dict[str, Any]]] = field(default_factory=dict)

    def channel(self, source: int, dest: int, domain: str) -> list[dict[str, Any]]:
        """Messages of which one end has been begun and the other has not, oldest first."""
        return self.busy.setdefault((source, dest, domain), [])


@dataclass
class Program:
    seed: int
    size: int
    flags: Flags
    steps: list[Step] = field(default_factory=list)
    circles: list[Circle] = field(default_factory=list)

    def __str__(self) -> str:
        return "\n".join(map(str, self.steps))

    def only(self, kept: Iterable[int]) -> Program:
        """The program without all other calls, and without what needs them."""
        kept, made = set(kept), {0}
        steps = []
        for step in self.steps:
            if step.verb == "wait":
                step.options["requests"] = [r for r in step.options["requests"] if r[0] in kept]
                if step.options["requests"]:
                    steps.append(step)
            elif step.key in kept and step.circle in made:
                steps.append(step)
                made |= set(step.options.get("makes", ()))
            else:
                kept.discard(step.key)
        return Program(self.seed, self.size, self.flags, steps, self.circles)
