"""A long computation and a large transfer at once: what is saved, as a timeline.

    python -m hpcomm run -n 2 python -m hpcomm.apps.overlap_demo [--bytes 64000000] [--picture FILE.png]

Each rank multiplies matrices while an all_reduce is under way: kernels of a GPU where there is one, a thread
of numpy's otherwise. First each alone, then both together. Where both need the same cores, or the same
memory, little or nothing is saved; the demo shows what is.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import numpy as np

import hpcomm

from .. import Communicator
from . import _library
from ._arguments import positive, require_memory
from ._picture import draw_timeline, require_picture
from ._report import Parser, Report

SIDE = 256  # of the matrices
WIDTH = 60  # characters of the timeline
Deed = Callable[[], Callable[[], bool]]  # begins, and returns what asks for the end


def ends(deeds: dict[str, Deed]) -> dict[str, float]:
    """Begin all deeds and ask until all are done: when each ended, in seconds."""
    start = time.perf_counter()
    asked = {name: begin() for name, begin in deeds.items()}
    found: dict[str, float] = {}
    while len(found) < len(asked):
        for name, done in asked.items():
            if name not in found and done():
                found[name] = time.perf_counter() - start
        time.sleep(1e-4)  # leaves the core to who computes
    return found


def measured(comm: Communicator, deeds: dict[str, Deed], rounds: int = 3) -> dict[str, float]:
    """The ends in the round that was the shortest on its slowest rank."""
    best: tuple[float, dict[str, float]] = (float("inf"), {})
    for _ in range(rounds):
        comm.mpi.Barrier()
        found = ends(deeds)
        slowest = max(comm.mpi.allgather(max(found.values())))
        best = min(best, (slowest, found), key=lambda pair: pair[0])
    return best[1]


def bars(spans: dict[str, tuple[float, float]], whole: float) -> str:
    """(begin, end) of each, drawn as text."""
    lines = []
    for name, (begin, end) in spans.items():
        first, last = (round(WIDTH * t / whole) for t in (begin, end))
        bar = "." * first + "#" * max(1, last - first)
        lines.append(f"{name:>11} {bar:.<{WIDTH}} {end * 1e3:8.1f} ms")
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    parser = Parser("overlap_demo", "computing while communicating")
    parser.add_argument("--bytes", type=positive, default=64_000_000, help="of each rank's array")
    parser.add_picture("--picture", "draw the timeline")
    options = parser.parse_args(argv)
    require_picture(parser, options.picture)
    library, missing = _library.find()
    comm = Communicator(hpcomm.world.mpi.Dup(), name="overlap")
    report = Report(comm, options.json)
    require_memory(parser, comm, "--bytes", 2 * options.bytes)
    n = options.bytes // 4
    x = library.there(np.full(n, comm.rank + 2, np.float32))
    out = library.there(np.zeros(n, np.float32))
    matrix = library.there(np.eye(SIDE, dtype=np.float32))
    library.synchronize()

    def transfer() -> Callable[[], bool]:
        request = comm.all_reduce(x, out=out, async_op=True)
        return lambda: request.done() and request.wait() is out

    alone: dict[str, float] = measured(comm, {"transfer": transfer})
    once = measured(comm, {"compute": lambda: library.start_products(matrix, 20)})["compute"] / 20
    times = comm.mpi.bcast(max(1, round(alone["transfer"] / once)))  # computing is to last about as long

    compute: dict[str, Deed] = {"compute": lambda: library.start_products(matrix, times)}
    alone |= measured(comm, compute)
    both = measured(comm, {"transfer": transfer, **compute})
    one_by_one, together = alone["compute"] + alone["transfer"], max(both.values())
    saved = one_by_one - together
    of_best = saved / min(alone.values())
    everyone = comm.mpi.gather((one_by_one, together, saved, of_best))
    wrong = []
    expected = comm.size * (comm.size + 3) // 2  # 2 + 3 + ...
    if not np.all(library.here(out) == expected):
        wrong.append(f"the sum is {library.here(out)[:3]}..., not {expected}")
    if comm.rank == 0:
        said = f"{library.name}: {times} products of {SIDE} x {SIDE}; all_reduce of {4 * n} bytes"
        report.say(said, products=times, bytes=4 * n)
        for what in missing:
            report.say(f"no GPU is used: {what}")
        whole = max(one_by_one, together)
        first = alone["compute"]
        runs = {
            "one after the other": {"compute": (0.0, first), "transfer": (first, one_by_one)},
            "at once": {"compute": (0.0, both["compute"]), "transfer": (0.0, both["transfer"])},
        }
        for how, deeds in runs.items():
            report.say(f"\n{how}, on rank 0\n{bars(deeds, whole)}")
        columns = {"rank": "", "one by one ms": ".1f", "at once ms": ".1f", "saved ms": ".1f"}
        rows = [[rank, *(t * 1e3 for t in row[:3]), row[3]] for rank, row in enumerate(everyone or [])]
        report.say("")
        report.table("saved", columns | {"of what could be": ".0%"}, rows)
        if options.picture:
            draw_timeline(runs, options.picture)
            report.say(f"\ndrawn: {options.picture}", picture=options.picture)
    return report.verdict(wrong, "\nThe sums are right.")


if __name__ == "__main__":
    sys.exit(main())
