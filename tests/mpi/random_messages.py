"""The messages of a random program, as one rank carries them out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import random_model as model
import torch
from arrays import make, numpy_dtype
from random_steps import ANY, Program, Step

import hpcomm

Settle = Callable[[Any], None]


class Messages:
    """The part of a Runner that sends and receives."""

    program: Program
    comms: dict[int, Any]
    pending: dict[tuple[int, str], tuple[Any, Settle]]
    part: Any
    plain: Any
    room: Any
    check: Any
    spoil: Any
    wrong: Any

    def message(self, step: Step) -> None:
        part = self.part(step)
        if "send" in part:
            self.send(step, part)
        if "recv" in part:
            self.recv(step, part)

    def send(self, step: Step, part: dict[str, Any]) -> None:
        options, comm, how = step.options, self.comms[step.circle], part["send"]
        ranks = self.program.circles[step.circle].members
        dest, tag, key = ranks.index(options["dest"]), options["tag"], (step.key, "send")
        if options["domain"] == "object":
            form = options["form"]
            x = self.ragged_part(step)
            if form == "ragged" and how == "isend":
                self.pending[key] = comm.send_ragged(x, dest, tag, async_op=True), lambda y: None
            elif how == "isend":
                self.pending[key] = comm.isend_object(x, dest, tag), lambda y: None
            else:
                getattr(comm, f"send_{form}")(x, dest, tag)
            return
        plain = self.plain(step, self.rank, options["shape"])
        x = make(part["kind"], options["dtype"], part["layout"], plain)

        def after(y: Any) -> None:
            if model.difference(x, plain, options["dtype"], True):
                self.wrong(step, "x has changed")
            self.spoil(step, x, None)

        if how == "send":
            after(comm.send(x, dest, tag))
        elif how == "isend":
            self.pending[key] = comm.isend(x, dest, tag), after
        else:
            self.pending[key] = started(comm.plan("send", x, dest=dest, tag=tag)), after

    def ragged_part(self, step: Step) -> Any:
        rng = model.rng_of(self.program.seed, step.key)
        return (model.an_object if step.options["form"] == "object" else model.an_array)(rng)

    def recv(self, step: Step, part: dict[str, Any]) -> None:
        options, comm, how = step.options, self.comms[step.circle], part["recv"]
        ranks = self.program.circles[step.circle].members
        source = ranks.index(options["source"])
        tag = None if part.get("tag") == ANY else options["tag"]
        status, key = hpcomm.Status(), (step.key, "recv")

        def look(got: Any) -> None:
            if (status.source, status.tag) != (source, options["tag"]):
                self.wrong(step, f"the status is {status}")
            if options["domain"] == "object":
                if not model.same(got, wanted := self.ragged_part(step)):
                    self.wrong(step, f"{model.shown(wanted)} was expected, not {model.shown(got)}")
                return
            plain = model.values(
                model.rng_of(self.program.seed, step.key, options["source"], 0),
                options["dtype"],
                options["shape"],
                "bits",
            )
            plain = model.as_laid(plain, options_of_source(self.program, step))
            wanted = plain.reshape(-1) if part["into"] == "dtype" else plain
            self.check(step, got, wanted, part["out_lay"]["kind"])
            if part["into"] == "out" and got is not out:
                self.wrong(step, "what came is not out")

        if options["domain"] == "object":
            return self.recv_parcel(step, how, comm, source, tag, status, look)
        if part.get("probe"):
            self.probe(step, part["probe"], comm, source, tag)
        lay, out, keywords = part["out_lay"], None, {}
        if part["into"] == "out":
            out = self.room(step, lay, options["shape"])
        else:
            dtype: Any = (
                getattr(torch, options["dtype"]) if lay["kind"] == "torch" else numpy_dtype(options["dtype"])
            )
            keywords = {"dtype": dtype} | ({"shape": options["shape"]} if part["into"] == "shape" else {})
        if how == "recv":
            look(comm.recv(out, source, tag, status=status, **keywords))
        elif how == "plan":
            plan = comm.plan("recv", out=out, source=source, tag=tag)
            status = hpcomm.Status(source, options["tag"])  # plans have none
            self.pending[key] = started(plan), look
        else:
            request = comm.irecv(out, source, tag, **keywords)
            status = request.status
            self.pending[key] = request, look
        return None

    def recv_parcel(
        self, step: Step, how: str, comm: Any, source: int, tag: Any, status: Any, look: Settle
    ) -> None:
        form = step.options["form"]
        if how == "recv":
            return look(getattr(comm, f"recv_{form}")(source, tag, status=status))
        if form == "ragged":
            self.pending[step.key, "recv"] = comm.recv_ragged(source, tag, status=status, async_op=True), look
            return None
        request = comm.irecv_object(source, tag)

        def with_status(got: Any) -> None:
            status.source, status.tag = request.status.source, request.status.tag
            look(got)

        self.pending[step.key, "recv"] = request, with_status
        return None

    def probe(self, step: Step, how: str, comm: Any, source: int, tag: Any) -> None:
        seen = comm.probe(source, tag) if how == "probe" else None
        while seen is None:
            seen = comm.iprobe(source, tag)
        nbytes = int(np.prod(step.options["shape"])) * numpy_dtype(step.options["dtype"]).itemsize
        if (seen.source, seen.tag, seen.nbytes) != (source, step.options["tag"], nbytes):
            self.wrong(step, f"the probe saw {seen}, not {nbytes} bytes")

    def sendrecv(self, step: Step) -> None:
        options, comm, p = step.options, self.comms[step.circle], len(step.ranks)
        me, by, tag, part = step.ranks.index(self.rank), options["by"], options["tag"], self.part(step)
        dest, source = (me + by) % p, (me - by) % p
        if step.verb == "sendrecv_object":
            sent = [model.an_object(model.rng_of(self.program.seed, step.uid, r)) for r in range(p)]
            got = comm.sendrecv_object(sent[me], dest, source, tag, tag)
            if not model.same(got, sent[source]):
                self.wrong(step, f"{model.shown(sent[source])} was expected, not {model.shown(got)}")
            return
        x = make(
            part["kind"], options["dtype"], part["layout"], self.plain(step, self.rank, options["shape"])
        )
        out = x if part["out"] == "in_place" else None
        if part["out"] == "out":
            out = self.room(step, part["out_lay"], options["shape"])
        got = comm.sendrecv(x, dest, source, tag, tag, out=out)
        self.check(step, got, self.plain(step, step.ranks[source], options["shape"]), part["kind"])
        if out is not x:
            self.spoil(step, x, got)

    def fan_in(self, step: Step) -> None:
        options, comm = step.options, self.comms[step.circle]
        n, tag, form, root = (
            options["length"],
            options["tag"],
            options["form"],
            step.ranks.index(options["root"]),
        )
        me, others = step.ranks.index(self.rank), len(step.ranks) - 1
        suffix = "" if form == "plain" else f"_{form}"
        if me != root:
            getattr(comm, f"send{suffix}")(np.full(n, float(me)), root, tag)
            return
        came = []
        how = self.part(step)["recv"]
        if how == "irecv" and form != "ragged":
            take: Any = (
                (lambda: comm.irecv(np.empty(n), None, tag))
                if not suffix
                else (lambda: comm.irecv_object(None, tag))
            )
            requests = [take() for _ in range(others)]
            while requests:
                i, got = hpcomm.wait_any(requests)
                came.append((requests.pop(i).status.source, got))
        else:
            for _ in range(others):
                status = hpcomm.Status()
                if how == "probe" and not suffix:
                    status = comm.probe(None, tag)
                    came.append((status.source, comm.recv(np.empty(n), status.source, tag)))
                    continue
                got = (
                    comm.recv(np.empty(n), None, tag, status=status)
                    if not suffix
                    else getattr(comm, f"recv{suffix}")(None, tag, status=status)
                )
                came.append((status.source, got))
        if sorted(source for source, _ in came) != [r for r in range(others + 1) if r != root]:
            self.wrong(step, f"messages came from {[source for source, _ in came]}")
        for source, got in came:
            if not np.array_equal(got, np.full(n, float(source))):
                self.wrong(step, f"rank {source} sent {source}, not {got[:3]}")

    def batch(self, step: Step) -> None:
        comm, n, tag = self.comms[step.circle], step.options["length"], step.options["tag"]
        me, p = step.ranks.index(self.rank), len(step.ranks)
        ops = [hpcomm.P2POp(kind, np.full(n, 10 * me + peer if kind == "send" else -1), peer, tag)
               for peer in range(p) if peer != me for kind in ("send", "recv")]  # fmt: skip
        got = hpcomm.wait_all(comm.batch_isend_irecv(ops))
        for op, y in zip(ops, got, strict=True):
            if op.verb == "recv" and not (y == 10 * op.peer + me).all():
                self.wrong(step, f"from rank {op.peer} came {y[:3]}")


def started(plan: Any) -> Any:
    plan.start()
    return plan


def options_of_source(program: Program, step: Step) -> str:
    """The layout that the sender of a message gave it."""
    source = step.options["source"]
    ends = [each for each in program.steps if each.key == step.key and "send" in each.parts.get(source, {})]
    return str(ends[0].parts[source].get("layout", ""))
