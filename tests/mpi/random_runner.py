"""Carries out a random program on one rank, and holds every result against what plain numpy makes of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import random_model as model
import torch
from arrays import bits, dtype_of, kind_of, make, numpy_dtype
from mpi4py import MPI
from random_circles import Circles
from random_messages import Messages
from random_steps import Program, Step

import hpcomm

WAIT_S = 60.0
Settle = Callable[[Any], None]


class Runner(Messages, Circles):
    """One rank's part in a program.

    problems: what was wrong, in words; now: the step that this rank is at
    """

    def __init__(self, program: Program, comm: Any) -> None:
        self.program = program
        self.comms: dict[int, Any] = {0: comm}
        self.rank = comm.rank
        self.problems: list[str] = []
        self.now: Step | None = None
        self.pending: dict[tuple[int, str], tuple[Any, Settle]] = {}
        self.kept: list[tuple[Step, Any, bytes]] = []  # results, which nothing may change any more

    def run(self) -> list[str]:
        for step in self.program.steps:
            if self.rank in step.ranks:
                self.now = step
                self.perform(step)
        self.now = None
        for step, result, seen in self.kept:
            if bits(result) != seen:
                self.wrong(step, "the result has changed since")
        for number in sorted(self.comms, reverse=True):
            if number:
                self.comms[number].close()
        return self.problems

    def perform(self, step: Step) -> None:
        late_ms = step.parts.get(self.rank, {}).get("late_ms", 0)
        if late_ms:
            time.sleep(late_ms / 1000)
        verb = step.verb
        for start, method in DISPATCH.items():
            if verb.startswith(start):
                return method(self, step)
        return Runner.collective(self, step)

    def wrong(self, step: Step, what: str) -> None:
        self.problems.append(f"rank {self.rank}: {what}\n    in {step}")

    def part(self, step: Step) -> dict[str, Any]:
        return step.parts[self.rank]

    # -- data ------------------------------------------------------------------------------------------
    def plain(
        self, step: Step, rank: int, shape: tuple[int, ...], style: str = "bits", turn: int = 0
    ) -> np.ndarray:
        """What a world rank gives in a step, as numpy has it."""
        rng = model.rng_of(self.program.seed, step.key, rank, turn)
        made = model.values(rng, step.options["dtype"], shape, style)
        return model.as_laid(made, step.parts.get(rank, {}).get("layout", ""))

    def room(self, step: Step, lay: dict[str, str], shape: tuple[int, ...]) -> Any:
        """An array to receive in."""
        rng = model.rng_of(self.program.seed, step.uid, self.rank, 99)
        return make(
            lay["kind"],
            step.options["dtype"],
            lay["layout"],
            model.values(rng, step.options["dtype"], shape, "fold"),
        )

    def check(self, step: Step, got: Any, wanted: Any, kind: str, exact: bool = True) -> None:
        """One array that came."""
        if wanted is None:
            if got is not None:
                self.wrong(step, f"None was expected, not {got!r}")
            return
        dtype = step.options["dtype"]
        if kind == "number" and isinstance(got, np.ndarray):  # of several
            kind = "numpy"
        if kind_of(got) != kind or numpy_dtype_of(got) != numpy_dtype(dtype):
            return self.wrong(step, f"{kind} of {dtype} was expected, not {type(got)} of {dtype_of(got)}")
        shape = tuple(np.shape(got)) if kind != "dlpack" else got.shape
        if shape != wanted.shape:
            return self.wrong(step, f"shape {wanted.shape} was expected, not {shape}")
        what = model.difference(got, wanted, dtype, exact)
        if what:
            self.wrong(step, f"wrong values: {what}")
        self.kept.append((step, got, bits(got)))
        return None

    # -- collectives of arrays ----------------------------------------------------------------------------
    def collective(self, step: Step) -> None:
        options, part = step.options, self.part(step)
        comm = self.comms[step.circle]
        shape, verb, p = options["shape"], step.verb, len(step.ranks)
        whole = (p, *shape) if verb in model.STACKED else shape
        style = ("special" if options.get("special") else "fold") if verb in model.REDUCTIONS else "bits"
        x = make(part["kind"], options["dtype"], part["layout"], self.plain(step, self.rank, whole, style))
        if part["out"] == "row":  # what a rank gives lies where the result has it, or the other way round
            return self.in_a_row(step, comm, whole, style)
        if options.get("joined") and verb in model.STACKED:
            x = x.reshape(p * shape[0], *shape[1:])
        out = self.out_of(step, x, shape)
        keywords = {name: options[name] for name in ("root", "algorithm", "deterministic") if name in options}
        if "op" in options:
            keywords["op"] = spelt(options["op"], options.get("factor"), part.get("spelt"))
        if out is not None:
            keywords["out"] = out
        given = None if part.get("no_x") else x

        def settle(turn: int, before: bytes | None) -> Settle:
            def look(y: Any) -> None:
                self.settle(step, y, x, out, before, self.wanted(step, style, turn))

            return look

        if options["how"] == "plan":
            return self.planned(step, comm, x, given, keywords, whole, style, settle)
        before = None if out is x else bits(x)
        call = getattr(comm, verb)
        if options["how"] == "blocking":
            settle(0, before)(call(given, **keywords))
        else:
            self.pending[step.uid, "call"] = call(given, async_op=True, **keywords), settle(0, before)
        return None

    def in_a_row(self, step: Step, comm: Any, whole: tuple[int, ...], style: str) -> None:
        """gather, all_gather: x is out[rank]; scatter: out is x[rank]. On the root, or on all ranks."""
        options, part, me = step.options, self.part(step), step.ranks.index(self.rank)
        lay = {"kind": part["kind"], "layout": "contiguous"}
        if step.verb == "scatter":
            x = make(part["kind"], options["dtype"], "contiguous", self.plain(step, self.rank, whole, style))
            out = x[me, ...]
        else:
            out = self.room(step, lay, (len(step.ranks), *whole))
            x = out[me, ...]
            put(x, self.plain(step, self.rank, whole, style), options["dtype"])
        keywords = {name: options[name] for name in ("root", "algorithm") if name in options}
        call, wanted = getattr(comm, step.verb), self.wanted(step, style)

        def look(y: Any) -> None:
            self.check(step, y, wanted, part["kind"])

        if options["how"] == "blocking":
            look(call(x, out=out, **keywords))
        else:
            self.pending[step.uid, "call"] = call(x, out=out, async_op=True, **keywords), look

    def planned(
        self,
        step: Step,
        comm: Any,
        x: Any,
        given: Any,
        keywords: dict[str, Any],
        whole: tuple[int, ...],
        style: str,
        settle: Any,
    ) -> None:
        plan = comm.plan(step.verb, given, **keywords)
        for turn in range(step.options["starts"]):
            if turn or keywords.get("out") is x:
                put(
                    x,
                    self.plain(step, self.rank, whole, style, turn).reshape(tuple(x.shape)),
                    step.options["dtype"],
                )
            before = None if keywords.get("out") is x else bits(x)
            look = settle(turn, before)
            plan.start()
            if turn + 1 < step.options["starts"]:
                kept = len(self.kept)
                look(plan.wait())
                del self.kept[kept:]  # the next start fills it again

        def last(y: Any) -> None:
            look(y)
            plan.close()

        self.pending[step.uid, "call"] = plan, last

    def wanted(self, step: Step, style: str, turn: int = 0) -> Any:
        options, p = step.options, len(step.ranks)
        shape, verb = options["shape"], step.verb
        whole = (p, *shape) if verb in model.STACKED else shape
        given = [self.plain(step, rank, whole, style, turn) for rank in step.ranks]
        made = model.collective(
            verb,
            given,
            step.ranks.index(self.rank),
            options.get("root", 0),
            options.get("op", "sum"),
            options["dtype"],
            options.get("factor"),
        )
        if made is not None and options.get("joined") and verb in ("gather", "all_gather", "all_to_all"):
            made = made.reshape(p * shape[0], *shape[1:])
        return made

    def out_of(self, step: Step, x: Any, shape: tuple[int, ...]) -> Any:
        part, verb = self.part(step), step.verb
        if part["out"] != "out":
            return x if part["out"] == "in_place" else None
        p = len(step.ranks)
        joined = step.options.get("joined")
        stacked = verb in ("gather", "all_gather", "all_to_all")
        size = ((p * shape[0], *shape[1:]) if joined else (p, *shape)) if stacked else shape
        return self.room(step, part["out_lay"], size)

    def settle(self, step: Step, y: Any, x: Any, out: Any, before: bytes | None, wanted: Any) -> None:
        options, part = step.options, self.part(step)
        exact = step.verb not in model.REDUCTIONS or model.sort_of(options["dtype"]) in ("int", "bool")
        left = step.verb == "exscan" and wanted is None
        if out is not None and wanted is not None and y is not out:
            self.wrong(step, "what came is not out")
        self.check(step, y, wanted, part["out_lay"]["kind"] if part["out"] == "out" else part["kind"], exact)
        is_place = out is x and (wanted is not None or left)
        if not is_place and before is not None and bits(x) != before:
            self.wrong(step, "x has changed")
        if out is not x:
            self.spoil(step, x, y)

    def spoil(self, step: Step, x: Any, y: Any) -> None:
        """x is the program's again: whoever still reads it, or gave it away as result, will be seen."""
        if isinstance(x, np.ndarray) and x.flags.writeable:
            x[...] = np.ones((), x.dtype) if x.dtype.kind != "V" else np.zeros((), x.dtype)
        elif isinstance(x, torch.Tensor) and self.part(step).get("layout") != "repeated":
            x.fill_(1)

    # -- objects and ragged arrays -----------------------------------------------------------------------
    def objects(self, step: Step) -> None:
        options, verb = step.options, step.verb
        name, form = verb.rsplit("_", 1)
        make_one = model.an_object if form == "object" else model.an_array
        large = {"large": True} if options.get("large") else {}
        p, me = len(step.ranks), step.ranks.index(self.rank)

        def of(rank: int, to: int = 0) -> Any:
            return make_one(model.rng_of(self.program.seed, step.uid, rank, to), **large)

        root, call = options.get("root", 0), getattr(self.comms[step.circle], verb)
        keywords = {"root": root} if "root" in options else {}
        if options["how"] == "async":
            keywords["async_op"] = True
        given: Any = of(me)
        if name in ("scatter", "all_to_all"):
            given = [of(me, to) for to in range(p)]
        if name in ("broadcast", "scatter") and me != root:
            given = None
        wanted: Any = {
            "broadcast": lambda: of(root),
            "gather": lambda: [of(rank) for rank in range(p)] if me == root else None,
            "all_gather": lambda: [of(rank) for rank in range(p)],
            "scatter": lambda: of(root, me),
            "all_to_all": lambda: [of(rank, me) for rank in range(p)],
        }[name]()

        def look(got: Any) -> None:
            if not model.same(got, wanted):
                self.wrong(step, f"{model.shown(wanted)} was expected, not {model.shown(got)}")

        result = call(given, **keywords)
        if options["how"] == "async":
            self.pending[step.uid, "call"] = result, look
        else:
            look(result)

    def fold_objects(self, step: Step) -> None:
        options = step.options
        given = [
            model.foldable(model.rng_of(self.program.seed, step.uid, r), options["sort"]) for r in step.ranks
        ]
        me, call = step.ranks.index(self.rank), getattr(self.comms[step.circle], step.verb)
        op = (lambda a, b: a * 2 - b) if options["op"] == "function" else options["op"]
        got = call(given[me], op=op, **({"root": options["root"]} if "root" in options else {}))
        total = given[0]
        for each in given[1:]:
            total = op(total, each) if callable(op) else max(total, each) if op == "max" else total + each
        wanted = total if options.get("root", me) == me else None
        if not model.same(got, wanted):
            self.wrong(step, f"{wanted!r} was expected, not {got!r}")

    def barrier(self, step: Step) -> None:
        keywords = {"algorithm": step.options["algorithm"]} if "algorithm" in step.options else {}
        if step.options["how"] == "async":
            request = self.comms[step.circle].barrier(async_op=True, **keywords)
            self.pending[step.uid, "call"] = request, lambda y: self.check(step, y, None, "")
        else:
            self.comms[step.circle].barrier(**keywords)

    # -- waits ----------------------------------------------------------------------------------------------
    def wait(self, step: Step) -> None:
        keys = [key for key in map(tuple, step.options["requests"]) if key in self.pending]
        taken = [self.pending.pop(key) for key in keys]
        taken = [(request, look) for request, look in taken if request is not None]
        how = step.options["how"]
        plans = [each for each in taken if not isinstance(each[0], hpcomm.Request)]
        if how in ("wait_all", "wait_any"):
            requests = [each for each in taken if isinstance(each[0], hpcomm.Request)]
            self.wait_together(how, requests)
            taken = plans
        for request, look in taken:
            if how == "poll" and isinstance(request, hpcomm.Request):
                while not request.done():
                    time.sleep(0)
            if how == "timeout":
                try:
                    look(request.wait(timeout=0))
                    continue
                except hpcomm.WaitTimeoutError:
                    look(request.wait(timeout=WAIT_S))
                    continue
            look(request.wait())

    def wait_together(self, how: str, taken: list[tuple[Any, Settle]]) -> None:
        if how == "wait_all":
            for (_, look), got in zip(taken, hpcomm.wait_all([r for r, _ in taken]), strict=True):
                look(got)
            return
        while taken:
            i, got = hpcomm.wait_any([request for request, _ in taken])
            taken.pop(i)[1](got)


DISPATCH: dict[str, Any] = {
    "wait": Runner.wait,
    "message": Runner.message,
    "send_": Runner.message,
    "sendrecv": Runner.sendrecv,
    "send": Runner.message,
    "recv": Runner.message,
    "fan_in": Runner.fan_in,
    "batch": Runner.batch,
    "barrier": Runner.barrier,
    "inter_": Runner.between,
    "inter": Runner.join,
    "neighbour": Runner.neighbours,
    "all_reduce_object": Runner.fold_objects,
    "reduce_object": Runner.fold_objects,
    **{
        f"{verb}_{form}": Runner.objects
        for verb in ("broadcast", "gather", "all_gather", "scatter", "all_to_all")
        for form in ("object", "ragged")
    },
    **dict.fromkeys(("split", "dup", "group", "cart", "graph", "merge", "split_node"), Runner.make),
}


def numpy_dtype_of(x: Any) -> np.dtype[Any]:
    return x.dtype if isinstance(x, np.ndarray) else numpy_dtype(dtype_of(x))


def put(x: Any, plain: np.ndarray, dtype: str) -> None:
    """Fill x anew."""
    x[...] = make("torch", dtype, "contiguous", plain) if isinstance(x, torch.Tensor) else plain


def spelt(op: str, factor: Any, how: str | None) -> Any:
    """An operator in the words of some library."""
    if op in model.FUNCTIONS:
        return model.FUNCTIONS[op]
    if op == "premul_sum":
        return hpcomm.premul_sum(factor)
    if how == "MPI" and op != "avg":
        return getattr(MPI, op.upper())
    if how == "torch" and op not in ("land", "lor"):
        return getattr(torch.distributed.ReduceOp, {"prod": "PRODUCT"}.get(op, op.upper()))
    return op
