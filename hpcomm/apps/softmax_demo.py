"""Softmax and Euclidean norm of a vector that no rank holds whole.

    python -m hpcomm run -n 4 python -m hpcomm.apps.softmax_demo

softmax(x)_i = exp(x_i) / sum_j exp(x_j). In float64 exp overflows past 709. So all ranks first agree on the
greatest element m, and compute exp(x_i - m) instead. The quotient is the same, and no term exceeds 1
(Blanchard, Higham & Higham 2021). The norm is scaled by the greatest magnitude for the same reason.
Two numbers per rank travel for each result, whatever the length of the vector.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

import hpcomm

from .. import Communicator
from ..errors import counted
from ._arguments import moderate, positive, require_memory
from ._report import Parser, Report

Vector = NDArray[np.float64]


def softmax(comm: Communicator, mine: Vector) -> Vector:
    """This rank's part of the softmax; mine is its part of x, of any length, also none."""
    greatest = comm.all_reduce(np.max(mine, initial=-np.inf), "max")
    terms = np.exp(mine - greatest)
    return np.asarray(terms / comm.all_reduce(terms.sum(), "sum"))


def norm(comm: Communicator, mine: Vector) -> float:
    """The Euclidean norm of the whole vector, on every rank, also where the squares would overflow."""
    scale = float(comm.all_reduce(np.max(np.abs(mine), initial=0.0), "max"))
    if scale == 0.0:
        return 0.0
    return scale * float(np.sqrt(comm.all_reduce(np.sum((mine / scale) ** 2), "sum")))


def uneven(length: int, size: int) -> list[int]:
    """Where the parts begin and end: rank r holds a share proportional to r, so rank 0 holds nothing
    when there are others."""
    shares = np.cumsum([0, *(range(size) if size > 1 else [1])])
    return [int(length * share // shares[-1]) for share in shares]


def difference(got: ArrayLike, expected: ArrayLike) -> float:
    """The greatest difference relative to the greatest magnitude; infinite when got is not finite."""
    error = np.max(np.abs(np.subtract(got, expected))) / np.max(np.abs(expected))
    return float(error) if np.isfinite(error) else float("inf")


def main(argv: list[str] | None = None) -> int:
    parser = Parser("softmax_demo", "softmax and norm over the ranks")
    parser.add_argument("--length", type=positive, default=1_000_003, help="elements of the whole vector")
    parser.add_argument("--spread", type=moderate, default=2_000.0, help="x lies between minus and plus this")
    options = parser.parse_args(argv)

    comm = hpcomm.world
    report = Report(comm, options.json)
    require_memory(parser, comm, "--length", (8 if comm.rank == 0 else 1) * 8 * options.length)
    whole = np.random.default_rng(7).uniform(-options.spread, options.spread, options.length)
    bounds = uneven(options.length, comm.size)
    mine = whole[bounds[comm.rank] : bounds[comm.rank + 1]]

    parts = comm.gather_ragged(softmax(comm, mine))
    length = norm(comm, mine * 1e200)  # whose squares overflow

    wrong = []
    if parts is not None:
        with np.errstate(over="ignore", invalid="ignore"):
            naive = np.exp(whole) / np.exp(whole).sum()
            naive_norm = np.sqrt(np.sum((whole * 1e200) ** 2))
        shifted = np.exp(whole - whole.max())
        rows = []
        results: list[tuple[str, Any, Any, float]] = [
            ("softmax", np.concatenate(parts), shifted / shifted.sum(), np.max(naive)),
            ("norm of 1e200 x", length, np.linalg.norm(whole) * 1e200, naive_norm),
        ]
        for what, got, expected, bare in results:
            error = difference(got, expected)
            rows.append([what, np.max(got), np.max(expected), error, bare])
            if not error <= 1e-12:  # NaN too
                wrong.append(f"{what}: relative error {error:.1e}")
        shares = np.diff(bounds).tolist()
        report.say(f"{options.length} elements on {counted(comm.size, 'rank')}: {shares}\n", elements=shares)
        columns = {"result": "", "all ranks": ".6g", "one process": ".6g", "error": ".1e", "naive": "g"}
        report.table("results", columns, rows)
    return report.verdict(wrong, "\nThe parts make the whole.")


if __name__ == "__main__":
    sys.exit(main())
