"""all_reduce of everything at hand, checked against its definition; then its price next to raw mpi4py.

    python -m hpcomm run -n 4 python -m hpcomm.apps.allreduce_demo

Every rank can compute the inputs of all ranks. So each one computes the result alone, in the widest type of
the family, and compares. Blocking, in place and in the background go by turns.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import numpy as np

import hpcomm

from .. import Communicator
from ..core.types import Array, Operator
from ..errors import counted
from ..tools.fit import seconds_of
from ._arrays import DTYPES, OPS, Kind, definition, fault, kinds_at_hand, operators, values
from ._report import Parser, Progress, Report

SIZES = [8, 64, 1 << 10, 8 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20]


def all_reduce(comm: Communicator, x: Array, op: Operator, way: int) -> Array:
    """The same reduction as a blocking call, in place, or in the background."""
    if way == 0:
        return comm.all_reduce(x, op)
    if way == 1:
        return comm.all_reduce(x, op, out=x)
    return comm.all_reduce(x, op, async_op=True).wait()


def check(comm: Communicator, kind: Kind, dtype: str) -> Iterator[str]:
    """Yield "" for every check passed, a sentence for every one failed."""
    cases = [(layout, op) for layout in kind.layouts for op in operators(dtype)]
    for turn, (layout, op) in enumerate(cases):
        inputs = np.stack([values(rank, dtype, layout) for rank in range(comm.size)])
        x = kind.make(kind.dtypes[dtype], layout, inputs[comm.rank])
        result = all_reduce(comm, x, OPS[op][0], turn % 3)
        wrong = fault(kind.read(result), definition(op, inputs, dtype), dtype, comm.size)
        if type(result) is not type(x) or kind.read(result).shape != kind.read(x).shape:
            wrong = f"gave a {type(result).__name__} of another shape or kind"
        yield f"all_reduce({op!r}) of a {layout} {kind.name} {dtype}: {wrong}" if wrong else ""


def check_everything(comm: Communicator, kinds: list[Kind], report: Report) -> tuple[int, list[str]]:
    """Check every kind x dtype and print the table; return how many checks, and what was wrong."""
    dtypes = [dtype for dtype in DTYPES if any(dtype in kind.dtypes for kind in kinds)]
    progress = Progress(comm, "kinds of array x dtypes checked", len(dtypes) * len(kinds))
    total, rows = 0, []
    wrong: list[str] = []
    for dtype in dtypes:
        cells: list[str | None] = []
        for kind in kinds:
            found = list(check(comm, kind, dtype)) if dtype in kind.dtypes else []
            cells.append(f"{found.count('')} of {len(found)}" if found else None)
            wrong += [sentence for sentence in found if sentence]
            total += len(found)
            progress.step()
        rows.append([dtype, *cells])
    report.say(f"all_reduce on {counted(comm.size, 'rank')}: checks passed, by dtype and kind of array\n")
    report.table("checks", dict.fromkeys(["dtype", *(kind.name for kind in kinds)], ""), rows)
    return total, wrong


def price(comm: Communicator, nbytes: int) -> list[float]:
    """One line of the table: raw mpi4py and hpcomm by turns, so that both see the same machine."""
    x = np.ones(nbytes // 4, np.float32)
    out = np.empty_like(x)
    rounds, repeats = (31, 20) if nbytes < 64 << 10 else (9, max(2, (1 << 20) // nbytes))
    both = (lambda: comm.mpi.Allreduce(x, out)), (lambda: comm.all_reduce(x, out=out))
    pairs = [[seconds_of(comm, call, repeats) for call in both] for _ in range(rounds)]
    raw, ours = np.median(pairs, axis=0)
    return [nbytes, raw * 1e6, ours * 1e6, ours / raw, nbytes / ours / 1e9]


def main(argv: list[str] | None = None) -> int:
    parser = Parser("allreduce_demo", "all_reduce, checked and timed")
    parser.add_argument("--no-torch", action="store_true", help="leave torch out: its import takes a second")
    parser.add_argument("--no-timing", action="store_true", help="only check")
    options = parser.parse_args(argv)
    comm = hpcomm.world
    kinds = kinds_at_hand(with_torch=not options.no_torch)
    report = Report(comm, options.json)
    total, wrong = check_everything(comm, kinds, report)
    if not options.no_timing:
        rows = [price(comm, nbytes) for nbytes in SIZES]
        report.say("\nall_reduce of a float32 numpy array, medians of alternated runs on this machine\n")
        columns = {"bytes": "", "mpi4py us": ".1f", "hpcomm us": ".1f", "ratio": ".2f", "hpcomm GB/s": ".3f"}
        report.table("prices", columns, rows)
    names = ", ".join(kind.name for kind in kinds)
    return report.verdict(
        wrong, f"\n{total} checks on each of {counted(comm.size, 'rank')}, all passed. Kinds: {names}."
    )


if __name__ == "__main__":
    sys.exit(main())
