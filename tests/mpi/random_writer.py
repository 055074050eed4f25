"""Writes random programs that MPI allows.

No rank waits for what another rank does only in a later step, so no program can hang: what blocks is met by
its partners in the same step, or was begun before; a request is waited for when its partners have begun.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

from arrays import INPUT_ONLY, UNUSUAL
from random_arrays import LENGTHS, Arrays
from random_making import Making
from random_model import FUNCTIONS, MOVED, REDUCTIONS, STACKED, sort_of
from random_steps import ANY, Circle, Flags, Program, Step

from hpcomm.schedule import registry

COLLECTIVES = ("broadcast", "reduce", "all_reduce", "gather", "all_gather", "scatter", "reduce_scatter",
               "all_to_all", "scan", "exscan")  # fmt: skip
ROOTED = ("broadcast", "reduce", "gather", "scatter")
SAME_SHAPE = ("broadcast", "reduce", "all_reduce", "all_to_all", "scan", "exscan")
OBJECT_VERBS = ("broadcast", "gather", "all_gather", "scatter", "all_to_all", "reduce", "all_reduce")


def program(seed: int, size: int, flags: Flags | None = None, length: int = 14) -> Program:
    """The program of that seed for so many ranks."""
    return Writer(seed, size, flags or Flags()).write(length)


class Writer(Arrays, Making):
    """Writes one program, and knows what is under way at each point of it."""

    def __init__(self, seed: int, size: int, flags: Flags) -> None:
        self.rng = random.Random(f"{seed} {size}")
        self.program = Program(seed, size, flags, circles=[Circle(0, tuple(range(size)))])
        self.flags = flags
        self.uid = 0
        self.waiting: dict[int, list[tuple[int, str]]] = {
            rank: [] for rank in range(size)
        }  # may be waited for

    def write(self, length: int) -> Program:
        for _ in range(self.rng.choice((0, 0, 1, 2))):
            self.make()
        for _ in range(self.rng.randint(3, length)):
            self.call()
            self.wait_somewhere()
        for circle in self.program.circles:
            for key in list(circle.busy):
                while circle.busy[key]:
                    self.complete(circle, key)
        for rank in self.shuffled(self.waiting):
            self.wait(rank, len(self.waiting[rank]))
        return self.program

    # -- steps -------------------------------------------------------------------------------------------
    def call(self) -> None:
        circle = self.rng.choice(self.program.circles)
        if circle.remote:
            return self.between(circle)
        choices = [self.array_collective] * 10 + [self.object_collective] * 4 + [self.message] * 7
        choices += [self.sendrecv, self.barrier, self.fan_in, self.batch]
        if circle.ways is not None:
            choices += [self.neighbours] * 9
        self.rng.choice(choices)(circle)
        if self.rng.random() < 0.06:
            self.make()
        return None

    def add(self, verb: str, circle: Circle, ranks: Iterable[int], **options: Any) -> Step:
        """A step; each of its ranks may come late to it."""
        self.uid += 1
        step = Step(self.uid, verb, circle.number, tuple(ranks), options)
        for rank in step.ranks:
            late = self.rng.random() < 0.04
            step.parts[rank] = {"late_ms": self.rng.choice((0.2, 1.0, 3.0))} if late else {}
        self.program.steps.append(step)
        return step

    def begun(self, step: Step, rounds: bool) -> None:
        """The ranks of a background call may wait for it from now on; at once, where it must not stay."""
        for rank in step.ranks:
            self.waiting[rank].append((step.uid, "call"))
        if rounds and not self.flags.rounds:
            for rank in step.ranks:
                self.wait(rank, len(self.waiting[rank]))

    def wait_somewhere(self) -> None:
        for rank in self.shuffled(self.waiting):
            held = self.waiting[rank]
            if held and self.rng.random() < 0.25:
                self.wait(rank, self.rng.randint(1, len(held)))

    def wait(self, rank: int, count: int) -> None:
        """One rank waits for some of what is under way, in any order."""
        held = self.waiting[rank]
        chosen = self.rng.sample(held, count)
        self.waiting[rank] = [request for request in held if request not in chosen]
        if chosen:
            how = self.rng.choice(("each", "each", "wait_all", "wait_any", "poll", "timeout"))
            step = Step(0, "wait", -1, (rank,), {"requests": chosen, "how": how})
            self.program.steps.append(step)

    def shuffled(self, items: Iterable[Any]) -> list[Any]:
        items = list(items)
        return self.rng.sample(items, len(items))

    # -- arrays ------------------------------------------------------------------------------------------
    def array_collective(self, circle: Circle) -> None:
        verb = self.rng.choice(COLLECTIVES)
        reduces = verb in REDUCTIONS
        dtype = self.rng.choice(MOVED[: -5 if reduces else None])
        shape = self.shape(verb in STACKED)
        options: dict[str, Any] = {
            "dtype": dtype,
            "shape": shape,
            "how": self.rng.choice(("blocking",) * 5 + ("async",) * 4 + ("plan",)),
        }
        if verb in ROOTED:
            options["root"] = self.rng.randrange(len(circle.members))
        if reduces:
            options |= self.operator(verb, dtype)
            if (
                sort_of(dtype) == "float"
                and options["op"] in ("sum", "min", "max")
                and self.rng.random() < 0.2
            ):
                options["special"] = True
        if self.rng.random() < 0.15 and sort_of(dtype) != "moved":
            options["algorithm"] = self.rng.choice(registry.algorithms(verb))
        elif (
            verb == "all_reduce"
            and options["op"] == "sum"
            and sort_of(dtype) == "float"
            and options["how"] != "plan"
            and self.rng.random() < 0.2
        ):
            options["deterministic"] = True
        self._write(verb, circle, options)

    def _write(self, verb: str, circle: Circle, options: dict[str, Any]) -> None:
        """Choose what each rank brings, and add the step."""
        shape = options["shape"]
        joined = (
            verb in (*STACKED, "gather", "all_gather") and shape and shape[0] > 1 and self.rng.random() < 0.15
        )
        if joined:
            options["joined"] = True
        step = self.add(verb, circle, circle.members, **options)
        several = "algorithm" in options or "deterministic" in options or options["how"] == "plan"
        outs = ["out"] if joined else ["new", "new", "out"] + ["in_place"] * (verb in SAME_SHAPE)
        uniform = self.rng.choice(outs) if self.is_uniform(verb, options) else None
        function = options.get("op") if options.get("op") in FUNCTIONS else None
        whole = (len(step.ranks), *shape) if verb in STACKED else shape
        rows = verb in ("gather", "all_gather", "scatter") and not joined and options["how"] != "plan"
        for rank in step.ranks:
            out = uniform or self.rng.choice(outs)
            part = step.parts[rank]
            part |= self.laid(
                options["dtype"], whole, self.kinds(options["dtype"], function), out == "in_place"
            )
            if uniform == "in_place":
                part["layout"] = (
                    part["layout"] if part["layout"] in ("zero_d", "empty", *UNUSUAL) else "contiguous"
                )
            if part["kind"] not in ("numpy", "torch") and out != "new":
                part |= {
                    "kind": "numpy",
                    "layout": "contiguous" if part["layout"] in INPUT_ONLY else part["layout"],
                }
            at_root = step.ranks.index(rank) == options.get("root", step.ranks.index(rank))
            if rows and at_root and shape and 0 not in shape and self.rng.random() < 0.1:
                part |= {"kind": self.rows_kind(options["dtype"]), "layout": "contiguous", "out": "row"}
                continue
            part["out"] = out
            if out == "out":
                part["out_lay"] = self.laid(
                    options["dtype"],
                    self.result_shape(verb, shape, len(step.ranks), bool(joined)),
                    ("numpy", "torch") if sort_of(options["dtype"]) != "moved" else ("numpy",),
                    True,
                )
                part["no_x"] = verb in ("broadcast", "scatter") and not at_root and self.rng.random() < 0.5
            if function is None and "op" in options and self.rng.random() < 0.2:
                part["spelt"] = self.rng.choice(("MPI", "torch"))
            if options["how"] == "plan" and part["kind"] not in ("numpy", "torch"):
                part["kind"] = "numpy"
            if options["how"] == "plan" and part["layout"] in INPUT_ONLY:
                part["layout"] = "contiguous"  # is filled anew
        if options["how"] == "plan":
            options["starts"] = step.options["starts"] = self.rng.randint(1, 3)
        if options["how"] != "blocking":
            self.begun(step, several or function is not None)

    def rows_kind(self, dtype: str) -> str:
        return self.rng.choice(("numpy", "torch") if sort_of(dtype) != "moved" else ("numpy",))

    def is_uniform(self, verb: str, options: dict[str, Any]) -> bool:
        return verb in REDUCTIONS and options["how"] != "blocking" and not self.flags.mixed

    # -- objects and ragged arrays ---------------------------------------------------------------------------
    def object_collective(self, circle: Circle) -> None:
        verb, form = self.rng.choice(OBJECT_VERBS), self.rng.choice(("object", "ragged"))
        options: dict[str, Any] = {"how": self.rng.choice(("blocking", "blocking", "async"))}
        if verb.endswith("reduce"):
            form = "object"
            options = {"how": "blocking", "sort": self.rng.choice(("list", "str", "int", "huge"))}
            options["op"] = self.rng.choice(
                ("sum", "max", "function") if options["sort"] in ("int", "huge") else ("sum",)
            )
        elif self.rng.random() < 0.2:
            options["large"] = True
        if verb in ROOTED:
            options["root"] = self.rng.randrange(len(circle.members))
        step = self.add(f"{verb}_{form}", circle, circle.members, **options)
        if options["how"] == "async":
            self.begun(step, True)

    def barrier(self, circle: Circle) -> None:
        step = self.add("barrier", circle, circle.members, how=self.rng.choice(("blocking", "async")))
        if self.rng.random() < 0.2:
            step.options["algorithm"] = self.rng.choice(registry.algorithms("barrier"))
        if step.options["how"] == "async":
            self.begun(step, "algorithm" in step.options)

    # -- messages ------------------------------------------------------------------------------------------
    def message(self, circle: Circle) -> None:
        """A message: both ends now, or one now and one later."""
        source, dest = self.rng.choice(circle.members), self.rng.choice(circle.members)
        domain = self.rng.choice(("plain", "plain", "plain", "object"))
        channel = circle.channel(source, dest, domain)
        if channel and self.rng.random() < 0.5:
            return self.complete(circle, (source, dest, domain))
        tag = self.rng.choice((0, 0, 1, 32_000))
        order = self.rng.choice(("both", "both", "sent", "posted"))
        if domain == "object" and not self.flags.rounds:
            order = "both"
        others = {each["order"] for each in channel if ANY in (each["tag"], tag) or each["tag"] == tag}
        if (others and order == "both") or others - {order}:
            return None
        options: dict[str, Any] = {
            "message": self.uid + 1,
            "source": source,
            "dest": dest,
            "tag": tag,
            "domain": domain,
        }
        if domain == "plain":
            dtype = self.rng.choice(MOVED)
            options |= {"dtype": dtype, "shape": self.shape(False)}
        else:
            options["form"] = self.rng.choice(("object", "ragged"))
        first = self.add(
            {"both": "message", "sent": "send", "posted": "recv"}[order],
            circle,
            dict.fromkeys((source, dest)),
            **options,
        )
        if order != "posted":
            self.sends(first, order == "sent")
        if order != "sent":
            self.receives(first, channel, order == "posted")
        if order == "both":
            return self.met(first, first)
        channel.append(
            {
                "order": order,
                "tag": first.parts[dest].get("tag", tag) if order == "posted" else tag,
                "step": first,
                "circle": circle,
            }
        )
        return None

    def complete(self, circle: Circle, key: tuple[int, int, str]) -> None:
        """Do the other end of the oldest message of a channel."""
        channel = circle.busy[key]
        done = channel.pop(0)
        first: Step = done["step"]
        verb = "recv" if done["order"] == "sent" else "send"
        rank = key[1] if verb == "recv" else key[0]
        second = self.add(verb, circle, (rank,), **first.options)
        if verb == "recv":
            self.receives(second, channel, False)
        else:
            self.sends(second, False)
        self.met(first, second)

    def sends(self, step: Step, early: bool) -> None:
        options, part = step.options, step.parts[step.options["source"]]
        to_self = options["source"] == options["dest"]
        part["send"] = self.rng.choice(("isend",) if early else ("send", "isend"))
        if options["domain"] == "plain":
            part |= self.laid(options["dtype"], options["shape"], self.kinds(options["dtype"]))
            if (
                part["layout"] == "contiguous"
                and part["kind"] in ("numpy", "torch")
                and not to_self
                and self.rng.random() < 0.15
            ):
                part["send"] = "plan"

    def receives(self, step: Step, channel: list[dict[str, Any]], early: bool) -> None:
        options, part = step.options, step.parts[step.options["dest"]]
        part["recv"] = "irecv" if early else self.rng.choice(("recv", "recv", "irecv"))
        if options["source"] == options["dest"] and step.verb == "message":
            part["recv"] = "recv"
        if not channel and self.rng.random() < 0.15:
            part["tag"] = ANY
        if options["domain"] != "plain":
            return
        part["into"] = self.rng.choice(("out", "out", "out", "shape"))
        if self.flags.rounds and options["dtype"] != "S3":
            part["into"] = self.rng.choice((part["into"], "dtype"))
        torch = sort_of(options["dtype"]) != "moved"
        part["out_lay"] = self.laid(
            options["dtype"], options["shape"], ("numpy", "torch") if torch else ("numpy",), True
        )
        if part["into"] == "out" and part["out_lay"]["layout"] == "contiguous" and self.rng.random() < 0.15:
            part["recv"] = "plan" if part["recv"] != "recv" else "recv"
        if not channel and not early and self.rng.random() < 0.2 and part["recv"] != "plan":
            part["probe"] = self.rng.choice(("probe", "iprobe"))

    def met(self, first: Step, second: Step) -> None:
        """Both ends of a message have begun: those in the background may be waited for."""
        source, dest = first.options["source"], first.options["dest"]
        parts = [step.parts[rank] for step in (first, second) for rank in step.ranks]
        for rank, role in ((source, "send"), (dest, "recv")):
            how = (
                next(part[role] for part in parts if role in part)
                if source != dest
                else next(p[role] for p in parts if role in p)
            )
            if how not in ("send", "recv"):
                self.waiting[rank].append((first.options["message"], role))
                if first.options["domain"] == "object" and not self.flags.rounds:
                    self.wait(rank, len(self.waiting[rank]))

    @staticmethod
    def is_open(circle: Circle) -> bool:
        """Whether somebody waits for a message of any tag, and would take any other."""
        return any(each["tag"] == ANY for channel in circle.busy.values() for each in channel)

    def sendrecv(self, circle: Circle) -> None:
        """Every rank to the one so many places on, as a ring."""
        p, form = len(circle.members), self.rng.choice(("", "", "", "_object"))
        dtype = self.rng.choice(MOVED)
        if self.is_open(circle):
            return
        step = self.add(
            f"sendrecv{form}",
            circle,
            circle.members,
            by=self.rng.randrange(p),
            dtype=dtype,
            shape=self.shape(False),
            tag=100 + self.uid,
        )
        for rank in step.ranks if not form else ():
            part = step.parts[rank]
            part["out"] = self.rng.choice(("new", "out", "in_place"))
            part |= self.laid(
                dtype,
                step.options["shape"],
                ("numpy", "torch") if sort_of(dtype) != "moved" else ("numpy",),
                part["out"] == "in_place",
            )
            if part["out"] == "out":
                part["out_lay"] = self.laid(dtype, step.options["shape"], (part["kind"],), True)

    def fan_in(self, circle: Circle) -> None:
        """Every other rank to one, which takes them as they come."""
        root, form = self.rng.choice(circle.members), self.rng.choice(("plain", "object", "ragged"))
        if self.is_open(circle):
            return
        step = self.add(
            "fan_in",
            circle,
            circle.members,
            root=root,
            form=form,
            tag=100 + self.uid,
            length=self.rng.choice(LENGTHS),
        )
        step.parts[root]["recv"] = self.rng.choice(("recv", "irecv", "probe"))

    def batch(self, circle: Circle) -> None:
        """Every rank with every other one, in one batch."""
        if self.is_open(circle):
            return
        self.add("batch", circle, circle.members, length=self.rng.choice(LENGTHS), tag=100 + self.uid)
