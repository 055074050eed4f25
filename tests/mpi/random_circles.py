"""The communicators of a random program: making them, neighbours on them, and calls between two groups."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import random_model as model
from arrays import make, numpy_dtype
from random_steps import Circle, Program, Step, Ways

import hpcomm

Settle = Callable[[Any], None]


class Circles:
    """The part of a Runner that makes communicators."""

    program: Program
    rank: int
    comms: dict[int, Any]
    pending: dict[tuple[int, str], tuple[Any, Settle]]
    part: Any
    plain: Any
    room: Any
    check: Any
    spoil: Any
    wrong: Any

    def make(self, step: Step) -> None:
        comm, options, part = self.comms[step.circle], step.options, self.part(step)
        made = options["makes"]
        if step.verb == "split":
            new, number = comm.split(part["color"], part["key"]), part.get("gets")
            if (new is None) != (number is None):
                self.wrong(step, f"split gave {new}")
        else:
            number = made[0]
            new = {
                "dup": lambda: comm.dup(check=options["check"]),
                "group": lambda: comm.group(options["members"], tag=step.uid),
                "cart": lambda: comm.cart(options["shape"], options["periodic"]),
                "graph": lambda: self.graph(comm, step),
                "merge": lambda: self.merge(comm, step),
                "split_node": lambda: comm.split_node(),
            }[step.verb]()
        if new is not None and number is not None:
            self.comms[number] = new
            members = self.program.circles[number].members
            if (new.size, new.rank) != (len(members), members.index(self.rank)):
                self.wrong(step, f"{new} should be ranks {members}")

    def graph(self, comm: Any, step: Step) -> Any:
        ways = self.program.circles[step.options["makes"][0]].ways
        assert ways is not None
        mine = ways[comm.rank]
        return comm.graph(mine.destinations, mine.sources if step.options["says_sources"] else None)

    def merge(self, comm: Any, step: Step) -> Any:
        is_first = self.rank in self.program.circles[step.circle].members
        return comm.merge(high=step.options["high"] == is_first)

    def join(self, step: Step) -> None:
        comm, here, there = self.comms[step.circle], step.options["here"], step.options["there"]
        first = self.rank in here
        with comm.split(0 if first else 1) as half:
            other = self.program.circles[step.circle].members.index(there[0] if first else here[0])
            self.comms[step.options["makes"][0]] = half.create_intercomm(0, comm, other, tag=step.uid)

    def between(self, step: Step) -> None:
        circle: Circle = self.program.circles[step.circle]
        comm, verb = self.comms[step.circle], step.verb.removeprefix("inter_")
        here, there = (
            (circle.members, circle.remote)
            if self.rank in circle.members
            else (circle.remote, circle.members)
        )
        n, me = step.options["length"], here.index(self.rank)
        shape = (n,)
        words: dict[str, Any] = {}
        x: Any = self.plain(step, self.rank, shape, "fold")
        given = [self.plain(step, r, shape, "fold") for r in there]
        wanted: Any = np.stack(given)
        if verb == "all_to_all":
            x = np.stack([self.plain(step, self.rank, shape, "fold", to) for to in range(len(there))])
            wanted = np.stack([self.plain(step, r, shape, "fold", me) for r in there])
        elif verb == "all_reduce":
            wanted = model.folded("sum", step.options["dtype"], given)
        elif verb not in ("all_gather", "all_gather_object", "exchange"):
            x, wanted, words = self.rooted(step, verb, x, given, here, there)
        if verb == "exchange":
            if me < min(len(here), len(there)):
                got = comm.sendrecv(x, me, me, step.uid, step.uid)
                return self.check(step, got, given[me], "numpy")
            if step.options["how"] == "async":
                self.pending[step.uid, "call"] = None, lambda y: None
            return None

        def look(got: Any) -> None:
            got = np.stack(got) if verb == "all_gather_object" else got
            self.check(step, got, wanted, "numpy", "reduce" not in verb)

        if step.options["how"] == "async":
            self.pending[step.uid, "call"] = getattr(comm, verb)(x, async_op=True, **words), look
        else:
            look(getattr(comm, verb)(x, **words))
        return None

    def rooted(
        self, step: Step, verb: str, x: Any, given: list[Any], here: Any, there: Any
    ) -> tuple[Any, Any, dict[str, Any]]:
        """What this rank gives to, gets of and says in a verb whose root is in one of two groups."""
        root, dtype, shape = step.options["root"], step.options["dtype"], (step.options["length"],)
        is_root, is_near = self.rank == root, root in here
        number = hpcomm.ROOT if is_root else hpcomm.PROC_NULL if is_near else there.index(root)
        words = {"root": number}
        if verb in ("reduce", "gather"):  # everybody over there gives
            wanted = model.folded("sum", dtype, given) if verb == "reduce" else np.stack(given)
            if is_root:
                words["out"] = np.zeros_like(wanted)
            return x, (wanted if is_root else None), words
        others = there if is_near else here
        parts = [self.plain(step, root, shape, "fold", to) for to in range(len(others))]
        whole = np.stack(parts) if verb == "scatter" else parts[0]
        wanted = None if is_near else parts[here.index(self.rank) if verb == "scatter" else 0]
        if not verb.endswith("object") and not is_near:
            words["out"] = np.zeros(shape, whole.dtype)
        return (whole if is_near else None), wanted, words

    def neighbours(self, step: Step) -> None:
        circle, comm, options = self.program.circles[step.circle], self.comms[step.circle], step.options
        assert circle.ways is not None
        shape, me = options["shape"], step.ranks.index(self.rank)
        ways, is_all = circle.ways[me], "to_all" in step.verb
        part = self.part(step)
        if step.verb.endswith("ragged"):
            return self.neighbours_ragged(step, comm, ways, is_all)
        zero = np.zeros(shape, numpy_dtype(options["dtype"]))

        def of(rank: int) -> Any:
            goes = len(circle.ways[rank].destinations)  # type: ignore[index]
            return self.plain(step, step.ranks[rank], (goes, *shape) if is_all else shape)

        rows = [
            zero if r is None else of(r)[i] if is_all else of(r)
            for r, i in zip(ways.sources, ways.partners, strict=True)
        ]
        wanted = np.stack(rows) if rows else np.zeros((0, *shape), zero.dtype)
        x = make(part["kind"], options["dtype"], part["layout"], of(me))
        out = self.room(step, part["out_lay"], (len(ways.sources), *shape)) if part["out"] == "out" else None

        def look(got: Any) -> None:
            self.check(step, got, wanted, part["kind"])
            self.spoil(step, x, got)

        result = getattr(comm, step.verb)(x, out=out, async_op=options["how"] == "async")
        if options["how"] == "async":
            self.pending[step.uid, "call"] = result, look
        else:
            look(result)
        return None

    def neighbours_ragged(self, step: Step, comm: Any, ways: Ways, is_all: bool) -> None:
        me = step.ranks.index(self.rank)

        def of(rank: int, place: int = 0) -> Any:
            return model.an_array(model.rng_of(self.program.seed, step.uid, rank, place))

        pairs = zip(ways.sources, ways.partners, strict=True)
        wanted = [None if r is None else of(r, i if is_all else 0) for r, i in pairs]
        given: Any = [of(me, i) for i in range(len(ways.destinations))] if is_all else of(me)
        got = getattr(comm, step.verb)(given)
        if not model.same(got, wanted):
            self.wrong(step, f"{model.shown(wanted)} was expected, not {model.shown(got)}")
