"""Products of matrices that no rank holds whole: SUMMA over a mesh, and the two layers of tensor parallelism.

    python -m hpcomm run -n 4 python -m hpcomm.apps.matmul_demo [--size 240]

SUMMA (van de Geijn & Watts 1997): C = A B in blocks over a mesh. Panel after panel, the owners broadcast
columns of A along their row of ranks, and rows of B along their column. Tensor parallel: W1 cut by columns,
W2 by rows, one all_reduce (Shoeybi et al. 2019). Both are compared with numpy on rank 0.
"""

from __future__ import annotations

import sys
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

import hpcomm

from .. import Field, Mesh, Partition
from ..errors import counted
from ._arguments import positive, require_memory
from ._report import Parser, Report

Array = NDArray[Any]


def summa(mesh: Mesh, a: Field, b: Field, c: Field, panel: int) -> None:
    """c += a @ b; the panels of the common axis are cut where an owner of a or b changes."""
    assert isinstance(a.partition, Partition)
    assert isinstance(b.partition, Partition)
    of_a, of_b = a.partition.edges[1], b.partition.edges[0]
    cuts = sorted({*of_a, *of_b, *range(0, a.shape[1], panel)})
    for low, high in pairwise(cuts):
        column = next(i for i in range(mesh.shape["x"]) if of_a[i] <= low < of_a[i + 1])
        row = next(i for i in range(mesh.shape["y"]) if of_b[i] <= low < of_b[i + 1])
        left = np.empty((a.inner.shape[0], high - low))
        top = np.empty((high - low, b.inner.shape[1]))
        if mesh.coords["x"] == column:
            left[...] = a.inner[:, low - of_a[column] : high - of_a[column]]
        if mesh.coords["y"] == row:
            top[...] = b.inner[low - of_b[row] : high - of_b[row]]
        mesh["x"].broadcast(left, column, out=left)
        mesh["y"].broadcast(top, row, out=top)
        c.inner[...] += left @ top


def tensor_parallel(mesh: Mesh, x: Array, w1: Field, w2: Field) -> Array:
    """relu(x W1) W2; each rank multiplies its columns of W1 and its rows of W2."""
    hidden = np.maximum(x @ w1.inner, 0.0)
    return np.asarray(mesh["tp"].all_reduce(hidden @ w2.inner))


def main(argv: list[str] | None = None) -> int:
    parser = Parser("matmul_demo", "distributed matrix products")
    parser.add_argument("--size", type=positive, default=240, help="rows and columns of each matrix")
    parser.add_argument("--panel", type=positive, default=64, help="columns of A that are broadcast at once")
    options = parser.parse_args(argv)
    comm = hpcomm.world
    report = Report(comm, options.json)
    n = options.size
    require_memory(parser, comm, "--size", 10 * 8 * n * n)
    rng = np.random.default_rng(0)
    whole = [
        rng.normal(size=shape) for shape in ((n, n + 13), (n + 13, n + 5))
    ]  # everybody could; rank 0 deals
    mesh = comm.mesh(y=-1, x=-1)
    a, b = (Field(mesh, w.shape).scatter(w if comm.rank == 0 else None) for w in whole)
    c = Field(mesh, (n, n + 5))
    summa(mesh, a, b, c, options.panel)
    product = c.gather()

    line = comm.mesh(tp=comm.size)
    w1 = Field(line, (n, 4 * n), split=(None, "tp"))
    w2 = Field(line, (4 * n, n), split=("tp", None))
    weights = [rng.normal(size=w.shape) / np.sqrt(n) for w in (w1, w2)]
    for field, w in zip((w1, w2), weights, strict=True):
        field.scatter(w if comm.rank == 0 else None)
    x = comm.broadcast(whole[0][:16, :n])
    y = tensor_parallel(line, x, w1, w2)

    wrong: list[str] = []
    rows = []
    if comm.rank == 0:
        pairs = {
            f"SUMMA over {mesh.shape}": (product, whole[0] @ whole[1]),
            f"tensor parallel over {line.shape}": (y, np.maximum(x @ weights[0], 0.0) @ weights[1]),
        }
        for name, (got, expected) in pairs.items():
            error = float(np.abs(got - expected).max() / np.abs(expected).max())
            rows.append([name, error])
            if not error < 1e-12:
                wrong.append(f"{name} differs from numpy by {error:g}")
        report.say(f"on {counted(comm.size, 'rank')}\n")
        report.table("products", {"product": "", "error": ".1e"}, rows)
    return report.verdict(wrong, "\nnumpy on rank 0 finds the same.")


if __name__ == "__main__":
    sys.exit(main())
