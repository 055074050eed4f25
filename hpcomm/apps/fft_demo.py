"""A Fourier transform over ranks: transform along whole axes, turn, transform the rest.

    python -m hpcomm run -n 4 python -m hpcomm.apps.fft_demo [--shape 64 48 40]

slab: the array lies in slices along axis 0, one turn makes axis 0 whole. pencil: it lies in columns over
a two-dimensional mesh, two turns, each within a row or column of ranks (Plimpton; Dalcin, Mortensen & Keyes
2019). Both are compared with numpy.fft.fftn on rank 0.
"""

from __future__ import annotations

import math
import sys
import time
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

import hpcomm

from .. import Communicator, Field, Partition, Redistribution
from ..errors import counted
from ._arguments import positive, require_memory
from ._report import Parser, Report

Array = NDArray[Any]


class Transform:
    """A forward and backward FFT of an array that passes through these partitions, one after the other.

    In each, the axes to be transformed are whole on every rank.
    """

    def __init__(self, comm: Communicator, stages: list[tuple[Partition, tuple[int, ...]]]) -> None:
        self.stages = stages
        parts = [partition for partition, _ in stages]
        self.turns = [Redistribution(comm, a, b) for a, b in pairwise(parts)]
        self.back = [Redistribution(comm, b, a) for a, b in pairwise(parts)]
        # a turn between arrays that it knows is planned already
        self.kept = [
            (np.empty(turn.source_shape or (), complex), np.empty(turn.target_shape or (), complex))
            for turn in self.turns
        ]

    def forward(self, x: Array) -> Array:
        """Of this rank's share in the first partition; the result is in the last."""
        x = np.fft.fftn(x, axes=self.stages[0][1])
        for turn, (there, here), (_, axes) in zip(self.turns, self.kept, self.stages[1:], strict=True):
            there[...] = x
            x = np.fft.fftn(turn(there, out=here), axes=axes)
        return x

    def backward(self, x: Array) -> Array:
        """The inverse of forward, from the last partition to the first."""
        steps = zip(self.back, self.kept, self.stages[1:], strict=True)
        for turn, (there, here), (_, axes) in reversed(list(steps)):
            here[...] = np.fft.ifftn(x, axes=axes)
            x = turn(here, out=there)
        return np.fft.ifftn(x, axes=self.stages[0][1])


def slab(comm: Communicator, shape: tuple[int, int, int]) -> Transform:
    stages = {("p", None, None): (1, 2), (None, "p", None): (0,)}
    return Transform(comm, [(Partition(shape, {"p": comm.size}, s), axes) for s, axes in stages.items()])


def pencil(comm: Communicator, shape: tuple[int, int, int]) -> Transform:
    mesh = comm.mesh(a=-1, b=-1).shape
    splits = [("a", "b", None), ("a", None, "b"), (None, "a", "b")]
    return Transform(comm, [(Partition(shape, mesh, s), (2 - i,)) for i, s in enumerate(splits)])


def main(argv: list[str] | None = None) -> int:
    parser = Parser("fft_demo", "slab and pencil FFT over ranks")
    parser.add_argument("--shape", type=positive, nargs=3, default=[36, 40, 28], help="of the array")
    options = parser.parse_args(argv)
    shape = tuple(options.shape)
    comm = hpcomm.world
    report = Report(comm, options.json)
    whole_nbytes = 16 * math.prod(shape)
    needed = 5 * whole_nbytes // comm.size + 3 * whole_nbytes * (comm.rank == 0)
    require_memory(parser, comm, "--shape", needed)
    rng = np.random.default_rng(0)
    whole = rng.normal(size=shape) + 1j * rng.normal(size=shape) if comm.rank == 0 else None
    expected = None if whole is None else np.fft.fftn(whole)
    wrong: list[str] = []
    rows = []
    for name, make in (("slab", slab), ("pencil", pencil)):
        transform = make(comm, shape)
        first, last = transform.stages[0][0], transform.stages[-1][0]
        x = Field(comm, first, dtype="complex128").scatter(whole)
        transform.forward(x.inner)  # plans
        start = time.perf_counter()
        there = transform.forward(x.inner)
        took = comm.all_reduce(time.perf_counter() - start, "max")
        back = transform.backward(there)
        spectrum = Field(comm, last, array=there).gather()
        error = float(np.abs(back - x.inner).max(initial=0.0))
        if not error <= 1e-12:  # NaN too
            wrong.append(f"{name}: there and back again differs by {error:g}")
        if spectrum is not None and expected is not None:
            error = float(np.abs(spectrum - expected).max() / np.abs(expected).max())
            if not error <= 1e-13:
                wrong.append(f"{name} differs from numpy.fft by {error:g}")
            rows.append([name, str(last.mesh), took * 1e3, error])
    if comm.rank == 0:
        words = f"{' x '.join(map(str, shape))} complex numbers on {counted(comm.size, 'rank')}"
        report.say(f"{words}\n", shape=shape)
        report.table("transforms", {"kind": "", "mesh": "", "ms": ".2f", "error": ".1e"}, rows)
    return report.verdict(wrong, "\nnumpy.fft on rank 0 finds the same.")


if __name__ == "__main__":
    sys.exit(main())
