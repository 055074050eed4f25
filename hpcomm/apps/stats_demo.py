"""Mean, variance, quantiles and a histogram of a table whose rows are spread unevenly over the ranks.

    python -m hpcomm run -n 4 python -m hpcomm.apps.stats_demo [FILE.csv | FILE.npy] [--picture FILE.png]

Without a file it takes 1,800 days of made-up weather. Rank 0 reads and deals out the rows. From then on only
summaries travel, never the data. numpy on rank 0 checks it all.
"""

from __future__ import annotations

import sys

import numpy as np
from numpy.typing import NDArray

import hpcomm

from .. import Communicator
from ..core.types import AnyArray
from ._arguments import bins, positive
from ._dataset import read
from ._picture import draw_histogram, require_picture
from ._report import Parser, Report
from ._selection import quantiles

Rows = NDArray[np.float64]
PROBABILITIES = np.array([0.05, 0.25, 0.5, 0.75, 0.95])


def merge(a: Rows, b: Rows) -> Rows:
    """(count, mean, sum of squared deviations) of two sets from those of each (Chan, Golub & LeVeque 1979).

    The textbook's sum of squares minus square of sums would cancel where the mean is large.
    """
    count = a[0] + b[0]
    share = b[0] / np.maximum(count, 1)  # a rank may have no rows at all
    step = b[1] - a[1]
    return np.stack([count, a[1] + step * share, a[2] + b[2] + step**2 * a[0] * share])


def moments(comm: Communicator, mine: Rows) -> tuple[Rows, Rows]:
    """Mean and variance of every column over the rows of all ranks, in one all_reduce."""
    count = np.full(mine.shape[1], float(len(mine)))
    mean = mine.sum(axis=0) / np.maximum(count, 1)
    count, mean, squares = comm.all_reduce(np.stack([count, mean, ((mine - mean) ** 2).sum(axis=0)]), merge)
    return mean, squares / count


def histogram(comm: Communicator, column: Rows, bins: int) -> tuple[Rows, NDArray[np.int64] | None]:
    """Edges, and on rank 0 everybody's counts (p, bins); their sum is the histogram of the whole."""
    least = comm.all_reduce(column.min(initial=np.inf), "min")
    greatest = comm.all_reduce(column.max(initial=-np.inf), "max")
    finest = bins * np.spacing(max(abs(least), abs(greatest)))  # closer, and edges would fall together
    if greatest - least < finest:
        least, greatest = least - max(finest, 0.5), greatest + max(finest, 0.5)
    edges = np.histogram_bin_edges([least, greatest], bins)
    return edges, comm.gather(np.histogram(column, edges)[0])


def deal(rows: Rows, size: int) -> list[Rows]:
    """Uneven shares, to make it interesting: rank r gets r + 1 parts."""
    return np.split(rows, len(rows) * np.cumsum(np.arange(1, size)) // (size * (size + 1) // 2))


def compare(rows: Rows, column: int, edges: Rows, **got: AnyArray) -> list[str]:
    """What differs from numpy's own result on the whole table."""
    expected = {
        "mean": rows.mean(axis=0),
        "variance": rows.var(axis=0),
        "quantiles": np.quantile(rows, PROBABILITIES, axis=0),
        "histogram": np.histogram(rows[:, column], edges)[0],
    }
    scale = np.abs(rows).max()
    return [
        f"{what} differs from numpy's by {np.abs(got[what] - right).max():g}"
        for what, right in expected.items()
        if not np.allclose(got[what], right, rtol=1e-10, atol=1e-13 * scale)
    ]


def main(argv: list[str] | None = None) -> int:
    parser = Parser("stats_demo", "statistics of a scattered table")
    parser.add_argument("file", nargs="?", help=".csv or .npy; made-up weather if absent")
    parser.add_argument("--columns", type=positive, default=5, help="print those columns that vary most")
    parser.add_argument("--bins", type=bins, default=17, help="bins of the histogram")
    parser.add_picture("--picture", "draw the histogram")
    options = parser.parse_args(argv)
    require_picture(parser, options.picture)

    comm = hpcomm.world
    report = Report(comm, options.json)
    rows, names, told = read(options.file) if comm.rank == 0 else (None, [], "")
    mine = comm.scatter_ragged(None if rows is None else deal(rows, comm.size))

    mean, variance = moments(comm, mine)
    found = quantiles(comm, mine, PROBABILITIES)
    column = int(np.argmax(variance))
    edges, counts = histogram(comm, mine[:, column], options.bins)
    lengths = comm.gather_object(len(mine))
    wrong = []
    if rows is not None and counts is not None:
        whole = counts.sum(axis=0)
        wrong = compare(rows, column, edges, mean=mean, variance=variance, quantiles=found, histogram=whole)
        shape = f"{rows.shape[0]} rows of {rows.shape[1]} columns"
        report.say(f"{told}: {shape}, dealt out as {lengths}\n", data=told, rows=lengths)
        lines = [
            [names[c], mean[c], np.sqrt(variance[c]), *found[:, c]]
            for c in np.argsort(-variance, kind="stable")[: options.columns]
        ]
        figures = ["mean", "std", *(f"{100 * p:.0f} %" for p in PROBABILITIES)]
        report.table("columns", {"column": ""} | dict.fromkeys(figures, ".5g"), lines)
        report.say(f"\nhistogram of {names[column]}: {whole.tolist()}", histogram=whole.tolist())
        if options.picture:
            draw_histogram(edges, counts, names[column], options.picture)
            report.say(f"drawn: {options.picture}", picture=options.picture)
    return report.verdict(wrong, "\nnumpy on rank 0 finds the same.")


if __name__ == "__main__":
    sys.exit(main())
