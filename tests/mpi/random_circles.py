"""The communicators of a random program: making them, neighbours on them, and calls between two groups."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import random_model as model
from arrays import make, numpy_dtype
from random_steps import Circle, Program, Step

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
                "split_node": lambda: comm.split_node(),
            }[step.verb]()
        if new is not None and number is not None:
            self.comms[number] = new
            members = self.program.circles[number].members
            if (new.size, new.rank) != (len(members), members.index(self.rank)):
                self.wrong(step, f"{new} should be ranks {members}")

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
        if verb == "all_to_all":
            x = np.stack([self.plain(step, self.rank, shape, "fold", to) for to in range(len(there))])
            wanted: Any = np.stack([self.plain(step, r, shape, "fold", me) for r in there])
        else:
            x, given = (
                self.plain(step, self.rank, shape, "fold"),
                [self.plain(step, r, shape, "fold") for r in there],
            )
            wanted = (
                model.folded("sum", step.options["dtype"], given) if verb == "all_reduce" else np.stack(given)
            )
        if verb == "exchange":
            if me < min(len(here), len(there)):
                got = comm.sendrecv(x, me, me, step.uid, step.uid)
                return self.check(step, got, given[me], "numpy")
            if step.options["how"] == "async":
                self.pending[step.uid, "call"] = None, lambda y: None
            return None

        def look(got: Any) -> None:
            self.check(
                step, np.stack(got) if verb.endswith("object") else got, wanted, "numpy", verb != "all_reduce"
            )

        if step.options["how"] == "async":
            self.pending[step.uid, "call"] = getattr(comm, verb)(x, async_op=True), look
        else:
            look(getattr(comm, verb)(x))
        return None

    def neighbours(self, step: Step) -> None:
        circle, comm, options = self.program.circles[step.circle], self.comms[step.circle], step.options
        ends, shape, me = model.ends(circle.grid), options["shape"], step.ranks.index(self.rank)
        is_all = "to_all" in step.verb
        part = self.part(step)
        if step.verb.endswith("ragged"):
            return self.neighbours_ragged(step, comm, ends, is_all)
        whole = (len(ends[me]), *shape) if is_all else shape
        given = [self.plain(step, rank, whole) for rank in step.ranks]
        zero = np.zeros(shape, numpy_dtype(options["dtype"]))
        wanted = np.stack(
            [zero if r is None else given[r][i ^ 1] if is_all else given[r] for i, r in enumerate(ends[me])]
        )
        x = make(part["kind"], options["dtype"], part["layout"], given[me])
        out = self.room(step, part["out_lay"], (len(ends[me]), *shape)) if part["out"] == "out" else None

        def look(got: Any) -> None:
            self.check(step, got, wanted, part["kind"])
            self.spoil(step, x, got)

        result = getattr(comm, step.verb)(x, out=out, async_op=options["how"] == "async")
        if options["how"] == "async":
            self.pending[step.uid, "call"] = result, look
        else:
            look(result)
        return None

    def neighbours_ragged(self, step: Step, comm: Any, ends: Any, is_all: bool) -> None:
        me = step.ranks.index(self.rank)

        def of(rank: int, place: int = 0) -> Any:
            return model.an_array(model.rng_of(self.program.seed, step.uid, rank, place))

        wanted = [None if r is None else of(r, i ^ 1 if is_all else 0) for i, r in enumerate(ends[me])]
        given: Any = [of(me, i) for i in range(len(ends[me]))] if is_all else of(me)
        got = getattr(comm, step.verb)(given)
        if not model.same(got, wanted):
            self.wrong(step, f"{model.shown(wanted)} was expected, not {model.shown(got)}")
