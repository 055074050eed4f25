"""Weights: a mapping between two grids as a sparse matrix, applied, kept and distributed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import MissingError
from ..job.optional_packages import load

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..core.types import AnyArray

    Array = NDArray[np.float64]
    Indices = NDArray[np.int64]

__all__ = ["Weights", "sparse_matrices"]


@dataclass
class Weights:
    """target = matrix @ source for the points of this rank.

    Attributes:
        matrix: SciPy CSR, (points here, sources).
        sources: global indices of the source points that are needed, ascending.
        fraction: (points here,): covered part of each target cell; 1 or 0 for mappings without areas.
    """

    matrix: Any
    sources: Indices
    fraction: Array

    @property
    def columns(self) -> int:
        return len(self.sources)

    @cached_property
    def rows(self) -> Indices:
        """Points that something reaches."""
        return np.flatnonzero(np.diff(self.matrix.indptr))

    @cached_property
    def uncovered(self) -> Indices:
        """Points that nothing reaches; apply leaves 0 there."""
        return np.flatnonzero(np.diff(self.matrix.indptr) == 0)

    def apply(self, values: AnyArray) -> Array:
        """Map values of the sources, shape (sources, ...)."""
        flat = np.asarray(values, float).reshape(len(values), math.prod(values.shape[1:]))
        made: Array = np.asarray(self.matrix @ flat).reshape(self.matrix.shape[0], *values.shape[1:])
        return made

    def save(self, path: Path) -> None:
        """Keep them as an npz file."""
        m = self.matrix
        np.savez(
            path,
            data=m.data,
            indices=m.indices,
            indptr=m.indptr,
            sources=self.sources,
            fraction=self.fraction,
        )

    @classmethod
    def load(cls, path: Path) -> Weights:
        """Read what save has written.

        Raises:
            ConfigError: there is nothing there that save has written.
        """
        cls.sizes(path)
        with np.load(path) as kept:
            shape = (len(kept["indptr"]) - 1, len(kept["sources"]))
            matrix = sparse_matrices().csr_matrix(
                (kept["data"], kept["indices"], kept["indptr"]), shape=shape
            )
            return cls(matrix, kept["sources"], kept["fraction"])

    @staticmethod
    def sizes(path: Path) -> tuple[int, int]:
        """Of what save has written: how many targets, and one more than the highest source. Needs no SciPy.

        Raises:
            ConfigError: there is nothing there that save has written.
        """
        try:
            with np.load(path) as kept:
                return len(kept["indptr"]) - 1, int(kept["sources"].max(initial=-1)) + 1
        except Exception as error:  # depends on what the file is instead
            raise MissingError(
                f"no weights in {path}: {error}", "regrid", "hpcomm.regrid.weights(...).save(path)"
            ) from error

    def part(self, points: Indices) -> Weights:
        """Those of some of the points only: the same rows, to the last bit."""
        rows = self.matrix[points]
        used = np.unique(rows.indices)
        return Weights(rows[:, used], self.sources[used], self.fraction[points])


def sparse_matrices() -> Any:
    """SciPy's.

    Raises:
        MissingError: there is no SciPy.
    """
    lack = "mappings between grids need SciPy"
    return load("scipy.sparse", lack, "regrid", "pip install 'hpcomm[mpmd]'")
