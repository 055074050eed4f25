"""Every algorithm of every collective: is it right, how long does it take, and what did the model say?

    python -m hpcomm run -n 4 python -m hpcomm.apps.algorithms_demo --bytes 64k

Each is proved before its first call and compared with what numpy makes of everybody's x. The model is
LogGP (hpcomm/simulate.py), fitted to a few calls on all ranks. These are timed in turn with the algorithms,
several times over, so that all of them meet the same machine. Calls that it was not fitted to show how good
it is. If it fails there, or if the machine is too busy with other work, no prediction is printed.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

import hpcomm

from .. import Communicator
from ..errors import counted
from ..schedule.cost.machine_model import Machine, machine
from ..schedule.cost.simulator import predict
from ..schedule.prove import prove
from ..schedule.registry import algorithms, build, verbs
from ..tools.fit import seconds_of
from ..tools.selftest import expected, given
from ._arguments import nbytes, require_memory
from ._report import Parser, Progress, Report

PASSES, WARMING, REPEATS = 6, 1, 5
LEAST = 1 << 16  # bytes whose time stands out from the noise
SURE = 0.2  # how far off the model may be on the calls it is tried on, and times may differ, to predict
CHECKS = (
    ("all_reduce", "ring"), ("all_gather", "tree"), ("reduce", "ring_gather"), ("all_to_all", "bruck"),
)  # fmt: skip
LEFT_OUT = """\
Predicted: rounds, bytes and reductions by LogGP, and the copies of x and of the result. Left out: packing,
the shorter way of all_reduce through Python, and that ranks which wait may leave their core to others."""

Calls = dict[tuple[str, str], Callable[[], object]]


class Timed(NamedTuple):
    """Seconds of a call in its fastest pass, and how much longer it took in the middle one, as a share."""

    seconds: float
    spread: float


class Model(NamedTuple):
    """The machine while all ranks are at work; seconds to copy a byte within a rank; a barrier's own base."""

    machine: Machine
    copy: float
    barrier_base: float

    def predict(self, verb: str, algorithm: str, p: int, nbytes: int, copied: int) -> float:
        """Seconds of a call of nbytes in which a rank copies so many bytes besides."""
        on = replace(self.machine, base=self.barrier_base) if verb == "barrier" else self.machine
        return float(predict(verb, algorithm, p, nbytes, on).seconds + self.copy * copied)


def time_all(comm: Communicator, calls: Calls) -> dict[tuple[str, str], Timed]:
    """Each call in turn, several passes over all of them; the slowest rank's time counts."""
    passes: dict[tuple[str, str], list[float]] = {name: [] for name in calls}
    progress = Progress(comm, "algorithms timed", PASSES * len(calls))
    for _ in range(PASSES):
        for name, call in calls.items():
            for _ in range(WARMING):
                call()
            passes[name].append(float(np.median([seconds_of(comm, call, 1) for _ in range(REPEATS)])))
            progress.step()
    return {name: Timed(min(each), float(np.median(each)) / min(each) - 1) for name, each in passes.items()}


def fitting_calls(comm: Communicator, nbytes: int) -> Calls:
    """Calls that tell the machine's times apart.

    A broadcast of p numbers has ceil(log2 p) rounds by tree, p-1 more by scatter_ring; an all_gather of large
    x by ring moves them p-1 times, and copies them to the messages and back. A barrier looks at no array.
    """
    few, room, many = np.zeros(comm.size), np.zeros(comm.size), np.ones(max(LEAST, nbytes) // 8)
    rooms = np.zeros((comm.size, many.size))
    calls: dict[str, Callable[[], object]] = {
        "copy": lambda: np.copyto(rooms, many),
        "reduce": lambda: np.add(many, rooms[0], out=many),
        "short": lambda: comm.broadcast(few, out=room, algorithm="tree"),
        "longer": lambda: comm.broadcast(few, out=room, algorithm="scatter_ring"),
        "large": lambda: comm.all_gather(many, out=rooms, algorithm="ring"),
        "barrier": lambda: comm.barrier(algorithm="bruck"),
    }
    return {("fit", name): call for name, call in calls.items()}


def fitted(times: Mapping[tuple[str, str], Timed], p: int, nbytes: int) -> Model:
    """The model that has the times of fitting_calls on p ranks."""
    each = {name: timed.seconds for (kind, name), timed in times.items() if kind == "fit"}
    others, rounds, many = max(1, p - 1), (p - 1).bit_length(), max(LEAST, nbytes) // 8 * 8
    copy, reduce = each["copy"] / (p * many), each["reduce"] / many
    hop = max((each["longer"] - each["short"]) / others, 1e-8)
    base = max(0.0, each["short"] - rounds * hop)
    moved = each["large"] - base - others * hop - copy * (p + 1) * many
    per_byte = max(moved / others / many, 1e-13)
    plain = replace(machine("cluster"), node=1, pod=0, nodewise=(), nic_per_byte=0.0, uplink_per_byte=0.0)
    on = replace(plain, overhead=hop / 4, latency=(hop / 2,) * 3, per_byte=(per_byte,) * 3)
    on = replace(on, reduce_per_byte=reduce, base=base)
    return Model(on, copy, max(0.0, each["barrier"] - rounds * hop))


def doubts(
    times: Mapping[tuple[str, str], Timed], predicted: Mapping[tuple[str, str], float], here: int
) -> list[str]:
    """Why nothing should be predicted for so many ranks of a node; [] where the model may be believed."""
    found = []
    off = {name: predicted[name] / times[name].seconds - 1 for name in CHECKS}
    worst = max(off, key=lambda name: abs(off[name]))
    if abs(off[worst]) > SURE:
        found.append(f"the model is off by {off[worst]:+.0%} on {worst[0]} by {worst[1]}")
    spread = float(np.median([timed.spread for timed in times.values()]))
    if spread > SURE:
        found.append(f"the same call differs by {spread:.0%} from pass to pass")
    cores = os.cpu_count() or here
    if here > cores:
        found.append(f"{here} ranks share {cores} cores, and the model knows nothing of taking turns")
    return found


def call_all(comm: Communicator, nbytes: int) -> tuple[Calls, dict[tuple[str, str], int], list[str]]:
    """All algorithms: their calls, what a rank copies in each, and what was wrong."""
    count, p, rank = max(1, nbytes // 8), comm.size, comm.rank
    calls: Calls = {}
    copied, wrong = {}, []
    pairs = [(verb, name) for verb in verbs() for name in algorithms(verb)]
    for verb, name in pairs:
        x = given(verb, rank, p, count)
        function = getattr(comm, verb)
        arguments = () if verb == "barrier" else (x,)
        want, found = expected(verb, rank, p, count), function(*arguments, algorithm=name)
        if want is not None and not np.array_equal(found, want):
            wrong.append(f"{verb} by {name} is not what numpy finds")
        out = {} if found is None else {"out": found}
        calls[verb, name] = partial(function, *arguments, algorithm=name, **out)
        here = 0 if verb == "barrier" else x.nbytes + (0 if found is None else found.nbytes)
        copied[verb, name] = max(comm.mpi.allgather(here))
    return calls, copied, wrong


def rows_of(
    times: Mapping[tuple[str, str], Timed], predicted: Mapping[tuple[str, str], float], p: int, sure: bool
) -> list[list[Any]]:
    """A row for each algorithm; with a prediction only where the model is sure and the times agree."""
    rows: list[list[Any]] = []
    for (verb, name), seconds in predicted.items():
        timed, rounds = times[verb, name], prove(build(verb, name, p)).rounds
        told: list[object] = [None, None]
        if sure and timed.spread <= SURE:
            told = [seconds * 1e6, seconds / timed.seconds - 1]
        rows.append([verb, name, rounds, timed.seconds * 1e6, timed.spread, *told])
    return rows


def told(rows: list[list[Any]], why_not: list[str]) -> str:
    """What is below the table: how sure the predictions are, or why there are none."""
    if why_not:
        return "\n  ".join(["No predictions:", *why_not])
    off = sorted(abs(row[-1]) for row in rows if row[-1] is not None)
    checks = ", ".join(f"{verb} by {name}" for verb, name in CHECKS)
    return (
        f"{LEFT_OUT}\nHow sure: within {SURE:.0%} on calls that it was not fitted to ({checks}).\n"
        f"{len(off)} predictions: off by {off[len(off) // 2]:.0%} in the median, by {off[-1]:.0%} at most."
    )


def main(argv: list[str] | None = None) -> int:
    parser = Parser("algorithms_demo", "all algorithms, checked and timed")
    parser.add_argument("--bytes", type=nbytes, default="64k", help="of x, or of one block of it")
    options = parser.parse_args(argv)
    world = hpcomm.world
    report = Report(world, options.json)
    require_memory(parser, world, "--bytes", (world.size + 2) * world.size * options.bytes)
    calls, copied, wrong = call_all(world, options.bytes)
    times = time_all(world, {**fitting_calls(world, options.bytes), **calls})
    model = fitted(times, world.size, options.bytes)
    sizes = {name: 1 if name[0] == "barrier" else max(1, options.bytes // 8) * 8 for name in calls}
    predicted = {name: model.predict(*name, world.size, sizes[name], copied[name]) for name in calls}
    here = world.split_node().size
    if world.rank == 0:
        why_not = doubts(times, predicted, here)
        rows = rows_of(times, predicted, world.size, not why_not)
        report.say(f"{options.bytes} bytes on {counted(world.size, 'rank')}\n", bytes=options.bytes)
        columns = {"verb": "", "algorithm": "", "rounds": "", "fastest us": ".1f", "median": "+.0%"}
        report.table("algorithms", columns | {"predicted us": ".1f", "off": "+.0%"}, rows)
        report.say(f"\n{told(rows, why_not)}", no_predictions=why_not)
    return report.verdict(wrong, "\nEvery algorithm found what numpy finds.")


if __name__ == "__main__":
    sys.exit(main())
