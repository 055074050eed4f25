"""Weights: a mapping between two grids as a sparse matrix, applied, kept and distributed."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..core.buffer import refuse_masked
from ..core.types import AnyArray, Floats, Ints
from ..errors import ConfigError, MissingError
from ..job.optional_packages import load
from . import weight_files
from .grid import Grid

NAN = ("spread", "renormalise")  # what a nan of the source may do
_PARTLY = 1e-6  # of a cell: less is rounding
_MOST = 3.0001  # times its sum that absolute weights may add up to, as those with gradients do


@dataclass
class Weights:
    """target = matrix @ source for the points of this rank.

    Attributes:
        matrix: SciPy CSR, (points here, sources).
        sources: global indices of the source points that are needed, ascending.
        fraction: (points here,): covered part of each target cell; 1 or 0 for mappings without areas.
        overlap: what is to be said of source cells that lie over each other a little; mostly "".
        fill: what apply leaves at points that nothing reaches.
        normalise: whether values of conservative mappings are means over the covered part of each cell
            ("fracarea"), or over the whole of it ("destarea").
    """

    matrix: Any
    sources: Ints
    fraction: Floats
    overlap: str = ""
    fill: float = 0.0
    normalise: str = "fracarea"

    @property
    def valid(self) -> Floats:
        """(points,): the part of each cell that its value is a mean over."""
        return self.fraction if self.normalise == "fracarea" else (self.fraction > 0).astype(float)

    @property
    def sums(self) -> Floats:
        """(points,): of the weights of each."""
        return np.asarray(self.matrix @ np.ones(self.columns))

    @property
    def columns(self) -> int:
        return len(self.sources)

    @cached_property
    def rows(self) -> Ints:
        """Points that something reaches."""
        return np.flatnonzero(np.diff(self.matrix.indptr))

    @cached_property
    def uncovered(self) -> Ints:
        """Points that nothing reaches; apply leaves fill there."""
        return np.flatnonzero(np.diff(self.matrix.indptr) == 0)

    @cached_property
    def _picks(self) -> bool:
        """Whether each point takes one source as it is."""
        m = self.matrix
        return bool(len(m.data) and (m.data == 1).all() and (np.diff(m.indptr) == 1).all())

    def apply(self, values: AnyArray, nan: str = "spread") -> AnyArray:
        """Map values of the sources, shape (sources, ...): in float64, or complex128. Whole numbers of which
        each is taken as it is stay whole numbers.

        Args:
            nan: "spread": what takes a nan is nan. "renormalise": it is the sum over the other sources, whose
                weights grow to the same sum, as with YAC's fractional masks. It is nan where there are no
                others, or the sum of their weights is below a third of that of their absolute values.
        """
        refuse_masked(values, "the values are")
        if nan not in NAN:
            raise ConfigError(f"there is no nan {nan!r}", "apply", f"one of {', '.join(NAN)}")
        if values.dtype.kind in "biu" and self._picks:
            picked: AnyArray = values[self.matrix.indices]
            return picked
        wide = np.asarray(values, complex if values.dtype.kind == "c" else float)
        flat = wide.reshape(len(values), math.prod(values.shape[1:]))
        made: AnyArray = np.asarray(self.matrix @ flat)
        if nan != "spread" and (lost := np.isnan(made)).any():
            made[lost] = self._renormalised(flat)[lost]
        if self.fill:
            made[self.uncovered] = self.fill
        return np.asarray(made.reshape(self.matrix.shape[0], *values.shape[1:]))

    def _renormalised(self, flat: AnyArray) -> AnyArray:
        """apply over those of the sources that are no nan, (sources, n)."""
        there = ~np.isnan(flat)
        share, most = (m @ there.astype(float) for m in (self.matrix, abs(self.matrix)))
        made = np.asarray(self.matrix @ np.where(there, flat, 0)) * self.sums[:, None]
        held = (share > 0) & (most <= _MOST * share)
        return np.asarray(np.divide(made, share, out=np.full_like(made, np.nan), where=held))

    def save(self, path: str | Path) -> None:
        """Keep them as an npz file, or, where it is called .nc, as netCDF in the form of ESMF."""
        m = self.matrix
        if str(path).endswith(".nc"):
            return weight_files.write(Path(path), m, self.sources, self.fraction)
        kept = m.data, m.indices, m.indptr, self.sources, self.fraction
        np.savez(path, **dict(zip(_KINDS, kept, strict=True)))

    @classmethod
    def load(cls, path: str | Path) -> Weights:
        """Read what save has written, or a netCDF file of weights in the form of ESMF or SCRIP.

        Raises:
            ConfigError: there is nothing there that save has written, or it is damaged.
        """
        kept = _kept(Path(path))
        shape, fraction = (len(kept["indptr"]) - 1, len(kept["sources"])), kept["fraction"].astype(float)
        matrix = sparse_matrices().csr_matrix((kept["data"], kept["indices"], kept["indptr"]), shape=shape)
        made = cls(matrix, kept["sources"].astype(np.int64), fraction)
        # Few files say it, but their weights do.
        partly = (fraction > 0) & (fraction < 1 - _PARTLY)
        if partly.any() and np.allclose(made.sums[partly], fraction[partly], rtol=_PARTLY):
            made.normalise = "destarea"
        return made

    @staticmethod
    def sizes(path: Path) -> tuple[int, int]:
        """Of what save has written: how many targets, one more than the highest source. Needs no SciPy."""
        kept = _kept(path)
        return len(kept["indptr"]) - 1, int(kept["sources"].max(initial=-1)) + 1

    def part(self, points: Ints) -> Weights:
        """Those of some of the points only: the same rows, to the last bit."""
        if points.max(initial=-1) >= self.matrix.shape[0]:
            what = f"the weights are for {self.matrix.shape[0]} points, and point {points.max()} is taken"
            raise ConfigError(what, "regrid", "weights for this grid")
        rows = self.matrix[points]
        used = np.unique(rows.indices)
        return replace(self, matrix=rows[:, used], sources=self.sources[used], fraction=self.fraction[points])

    def filled(self, rest: Ints, more: Weights) -> Weights:
        """With the rows of more at points, in the order of its own, that nothing reaches here."""
        a, b = self.matrix.tocoo(), more.matrix.tocoo()
        pairs = (a.row, rest[b.row]), (self.sources[a.col], more.sources[b.col]), (a.data, b.data)
        matrix, sources = of_triples(np.arange(a.shape[0]), *map(np.concatenate, pairs))
        return replace(self, matrix=matrix, sources=sources, overlap=self.overlap or more.overlap)


def of_triples(points: Ints, target: Ints, source: Ints, value: Floats) -> tuple[Any, Ints]:
    """(matrix of weights of points, its sources), all by global indices; target may have others, too."""
    here = np.isin(target, points)
    sources, column = np.unique(source[here], return_inverse=True)
    entries = value[here], (np.searchsorted(points, target[here]), column)
    matrix = sparse_matrices().csr_matrix(entries, (len(points), len(sources)))
    matrix.sort_indices()
    return matrix, sources


class Options(NamedTuple):
    """Of mappings. radius: in degrees of the sphere, or in units of the plane."""

    neighbours: int = 4  # of idw
    radius: float = 0.0  # of to_nearest
    normalise: str = "fracarea"  # of conservative ones, or "destarea"


@dataclass
class Ask:
    """Source points that are given, and target points that want their values."""

    source: Any  # the grid of the givers, if it is Rows
    target: Grid
    points: Ints  # of the target
    options: Options
    scale: float  # the source's largest coordinate
    given: Ints  # ascending
    shapes: Floats  # (given, 1 + corners, 3 or 2): the centre of each, and for areas its corners
    own: tuple[Floats, Floats] | None = None  # of given, of points: the models' areas / those computed here

    @cached_property
    def x(self) -> Floats:
        """Where the values of the source live."""
        return self.shapes[:, 0]

    @cached_property
    def wanted(self) -> Floats:
        """Where the values of the target live."""
        return self.target.centres(self.points)


class Entries(NamedTuple):
    """Of a matrix of weights: rows and columns are positions in Ask.points and Ask.given."""

    row: Ints
    column: Ints
    value: Floats
    fraction: Floats  # (points,): covered part of each
    needed: float = 0.0  # how far the farthest source was that counted
    doubled: float = 0.0  # part of a target that sources cover twice, at most; inf: two are in one place
    overlap: str = ""  # the same in words

    @classmethod
    def of_each(cls, which: Ints, share: Floats, reached: Floats, needed: float) -> Entries:
        """Those that are not 0 of (points, sources of each)."""
        row, nth = np.nonzero(share)
        return cls(row, which[row, nth], share[row, nth], reached, needed)


_KINDS = {"data": "f", "indices": "iu", "indptr": "iu", "sources": "iu", "fraction": "f"}


def _kept(path: Path) -> dict[str, AnyArray]:
    """The arrays that save has written, which SciPy's C code may trust."""
    if str(path).endswith(".nc") and path.exists():
        kept = weight_files.read(path)
    else:
        try:
            with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
                kept = {name: file[name] for name in _KINDS}
        except Exception as error:  # depends on what the file is instead
            what = f"no weights in {path}: {error}"
            raise MissingError(what, "regrid", "hpcomm.regrid.weights(...).save(path)") from error
    if wrong := _damage(**kept):
        raise ConfigError(f"the weights in {path} are damaged: {wrong}", "regrid", "make them again")
    return kept


def _damage(
    data: AnyArray, indices: AnyArray, indptr: AnyArray, sources: AnyArray, fraction: AnyArray
) -> str:
    """What does not fit in arrays of weights; "" if all does."""
    for (name, kinds), array in zip(_KINDS.items(), (data, indices, indptr, sources, fraction), strict=True):
        if array.ndim != 1 or array.dtype.kind not in kinds:
            return f"{name} is {array.dtype} of shape {array.shape}"
    if indptr[:1].tolist() != [0] or (np.sort(indptr) != indptr).any():
        return "indptr does not ascend from 0"
    if (len(data), len(indices), len(fraction)) != (indptr[-1], indptr[-1], len(indptr) - 1):
        return "its arrays are not of lengths that fit each other"
    if (np.less(indices, 0) | np.greater_equal(indices, len(sources))).any():
        return f"indices from {indices.min()} to {indices.max()}, of {len(sources)} sources"
    if not np.array_equal(np.unique(np.maximum(sources, 0)), sources):
        return "sources do not ascend from 0 or more"
    return "" if np.isfinite(np.concatenate([data, fraction])).all() else "weights that are not finite"


def sparse_matrices() -> Any:
    """SciPy's."""
    lack = "mappings between grids need SciPy"
    return load("scipy.sparse", lack, "regrid", "pip install 'hpcomm[mpmd]'")
