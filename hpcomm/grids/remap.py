"""Mappings between grids: sparse weights, each rank holding the rows of its own points.

mapping         order  conserves  reads from
nearest         1      no         anything
idw             1      no         anything: k nearest, weighted by 1/d²
bilinear        2      no         anything: between those around a corner (Wachspress 1975)
rbf             4      no         anything: radial basis functions around each point (Wendland 1995)
projection      2      no         a mesh: the nearest edge or triangle
conservative    1      yes        cells: overlap areas (Jones 1999)
conservative2   2      yes        cells: with gradients of the source (Kritsikis et al. 2017)
to_nearest      -      sums       anything: each source's amount goes to the nearest target
to_rbf          -      sums       anything: to the targets around it, by the transpose of rbf

Each is one function of interpolate.py or conserve.py. What is quicker between rows is in rows.py. SciPy's
trees and sparse matrices do the heavy work.

Points that are not given (masked, land) do not count: a target cell takes the mean over the part of it that
is covered (or over all of it: normalise="destarea"). `Weights.fraction` says how large that is, and
`Weights.uncovered` which points nothing reaches.
Cells that are given lie beside each other, not over each other.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from .._lazy import MPI, NDArray
from ..core.types import Floats, Ints
from ..errors import ConfigError, LayoutError, did_you_mean
from . import conserve, interpolate, projection, radial
from .grid import Grid, PointCloud, checked_areas, indices, joined
from .methods import AMOUNTS, KINDS, NORMALISE, misfit, stack
from .radians import Ends
from .rows import Rows
from .sparse_exchange import exchange_sparse
from .stack import stacked
from .weights import Ask, Entries, Options, Weights, of_triples, sparse_matrices

_UNLIKE = 2.0  # times the other side's: areas of another unit
Triples: TypeAlias = tuple[Ints, Ints, Floats]  # target, source, by their global indices; weight
_OVER = 0.05  # of a cell may be covered twice, and is told: great circles are no parallels, so 0.002 is usual
_METHODS: dict[str, Callable[[Ask], Entries]] = {
    "nearest": interpolate.nearest,
    "idw": interpolate.idw,
    "bilinear": interpolate.bilinear,
    "rbf": radial.rbf,
    "projection": projection.projection,
    "conservative": conserve.conservative,
    "conservative2": partial(conserve.conservative, has_gradients=True),
    "to_nearest": interpolate.to_nearest,
    "to_rbf": radial.to_rbf,
}


def weights(
    source: Grid,
    target: Grid,
    mapping: str | Sequence[str | float],
    *,
    neighbours: int = 4,
    radius: float = 0.0,
    normalise: str = "fracarea",
    areas: tuple[object, object] | None = None,
    given: object = None,
    points: object = None,
) -> Weights:
    """Weights between two grids in one process.

    Args:
        mapping: a method, or a list: each further one takes what those before it leave uncovered. "creep"
            takes the mean of neighbours that have a value, step by step outward. A number is a value.
        neighbours: of "idw".
        radius: of "to_nearest": an amount goes in equal parts to all targets that are so near to the nearest
            one, in degrees of the sphere, or in units of the plane.
        normalise: of conservative mappings: "fracarea" divides by the part of a target cell that is covered,
            so values stay in the source's range. "destarea" divides by the whole cell, so the integral over
            whole cells is kept.
        areas: the models' own areas of all cells of the source, and of the target, in one unit. Conservative
            mappings then keep the integral with these areas, and not a constant. None: as computed here.
        given: indices of the source points that have values; None: all.
        points: indices of the target points that are wanted; None: all. Amounts go to these alone.

    Raises:
        ConfigError: there is no such mapping, or not between these grids.
        DtypeError, LayoutError: given or points are not indices of the grids, or cells overlap.
    """
    methods, fill = stack(mapping, "regrid.weights")
    for each in methods:
        _check(source, target, each)
    here, there = (
        np.arange(grid.size) if chosen is None else indices(chosen, grid.size, name, "regrid.weights")
        for name, chosen, grid in (("given", given, source), ("points", points, target))
    )
    here = np.unique(here)
    own = _own_areas(source, target, areas)
    options = _options(neighbours, radius, normalise, len(here) if "idw" in methods else None)
    all_ = np.arange(target.size) if "creep" in methods else there  # it goes over other points

    def make(method: str, which: Ints) -> Weights:
        gives, takes = (source, here), (target, all_[which])
        if method in AMOUNTS:  # there the sources look for targets
            gives, takes = (target, np.unique(there)), gives
        shapes = _shapes(gives[0].part(gives[1]), gives[1], method)
        ratios = None if own is None or method in AMOUNTS else (own[0][gives[1]], own[1][takes[1]])
        scale = _scale(gives[0], shapes[:, 0])
        ask = Ask(gives[0], takes[0].part(takes[1]), takes[1], options, scale, gives[1], shapes, ratios)
        made, entries = _made(method, ask)
        if entries.doubled > _OVER:
            raise _lie_over(made.overlap, "regrid.weights")
        return _turned([_triples(entries, ask)], there) if method in AMOUNTS else made

    part = target if points is None or all_ is not there else target.part(there)
    scale = _scale(target, part.centres(all_)) if "creep" in methods else 1.0
    made = stacked(make, methods, part, all_, scale, lambda said: [said])
    assert made is not None
    made = made if all_ is there else made.part(there)
    made.fill = fill if isinstance(fill, (int, float)) else 0.0
    for side, doubt in (
        ("source", Ends.of(source).doubt()),
        ("target", Ends.of(target).doubt()),
        ("", made.overlap),
    ):
        if doubt:
            warnings.warn(f"the {side} grid has {doubt}" if side else doubt, RuntimeWarning, stacklevel=2)
    return made


def _options(neighbours: int, radius: float, normalise: str, given: int | None) -> Options:
    """These, if they are some. given: how many points there are for neighbours; None: these do not count."""
    if given is not None and not (isinstance(neighbours, int) and 1 <= neighbours <= max(1, given)):
        what = f"{neighbours} neighbours of {given} points that are given"
        raise ConfigError(what, "regrid.weights", "neighbours=4")
    is_number = isinstance(radius, (int, float, np.number)) and not isinstance(radius, bool)
    if not (is_number and 0 <= radius < np.inf):
        raise ConfigError(f"radius is {radius!r}, and no number from 0", "regrid.weights", "radius=1.0")
    if normalise not in NORMALISE:
        hint = did_you_mean(normalise, NORMALISE, f"one of {', '.join(NORMALISE)}")
        raise ConfigError(f"there is no normalise {normalise!r}", "regrid.weights", hint)
    return Options(neighbours, float(radius), normalise)


def _own_areas(source: Grid, target: Grid, areas: object) -> list[Floats] | None:
    """The models' areas of both grids, divided by those of their cells; None: they are not given."""
    if areas is None:
        return None
    where = "regrid.weights"
    if not isinstance(areas, (tuple, list)) or len(areas) != 2:
        raise ConfigError("areas are not two arrays", where, "areas=(of the source, of the target)")
    found, sums = [], []
    for side, grid, said in zip(("source", "target"), (source, target), areas, strict=True):
        checked = checked_areas(said, grid.size, f"the areas of the {side}", where)
        ratios, its = _ratios(grid, np.arange(grid.size), checked)
        found.append(ratios)
        sums.append(its)
    _check_units(np.array(sums), where)
    return found


def _ratios(grid: Grid, points: Ints, areas: Floats) -> tuple[Floats, tuple[float, float]]:
    """(a model's areas divided by those of the cells, the sums of both); bare points have no cells."""
    if KINDS[grid.kind].has != "cells":
        return np.ones(len(points)), (0.0, 0.0)
    computed = grid.areas(points)
    return areas / computed, (float(areas.sum()), float(computed.sum()))


def _check_units(sums: Floats, where: str) -> None:
    """That the models' areas of both sides are in one unit: rows are (theirs, as computed), source first."""
    if not sums.all():
        return
    source, target = sums[:, 0] / sums[:, 1]
    if not 1 / _UNLIKE < source / target < _UNLIKE:
        what = f"areas of the source are {source:.6g} times those of its cells, "
        what += f"of the target {target:.6g} times"
        raise LayoutError(what, where, "one unit on both sides; of grids by formula grid.areas(points)")


def _scale(grid: Grid, x: Floats) -> float:
    """A power of two above all coordinates."""
    most = np.abs(x[np.isfinite(x)]).max(initial=1e-300)
    return 1.0 if grid.sphere else float(2.0 ** np.ceil(np.log2(most)))


def _lie_over(what: str, where: str) -> LayoutError:
    hint = "each place once: leave copies (halo columns, the fold of a tripolar grid) out of the points given"
    return LayoutError(what, where, hint)


def _check(source: Any, target: Any, mapping: str) -> None:
    for each in (source, target):
        if not isinstance(each, Grid):
            what = f"{each!r:.60} is no grid"
            raise ConfigError(what, "regrid.weights", "hpcomm.regrid.LatLon(nlat, nlon)")
    wrong = misfit(mapping, (source.kind, source.surface), (target.kind, target.surface))
    if wrong is not None:
        raise ConfigError(wrong[1], "regrid.weights", wrong[2])
    if mapping.startswith("cons") and not (isinstance(source, Rows) and isinstance(target, Rows)):
        _check_widths(_is_halved(source) or _is_halved(target), "regrid.weights")


def _is_halved(grid: Grid) -> bool:
    """Whether cells may go half round the sphere: no two meridians have such a cell between them."""
    return isinstance(grid, Rows) and grid.sphere and grid.widest >= np.pi


def _check_widths(wrong: bool, where: str) -> None:
    if wrong:
        what = "a grid of one or two columns around the sphere has no areas in common with cells"
        raise ConfigError(what, where, "three columns or more")


def weights_between(
    comm: MPI.Intracomm,
    grid: Any,
    points: Ints,
    is_giver: bool,
    mapping: str | Sequence[str],
    neighbours: int = 4,
    *,
    radius: float = 0.0,
    normalise: str = "fracarea",
    areas: Floats | None = None,
) -> Weights | None:
    """Weights between the grids of two programs. Collective over both. None on the ranks of the giver.

    Ranks that give send to each rank that takes only those points that are in a box around its own.

    Args:
        mapping: a method, or several: each further one takes what those before it leave uncovered.
        neighbours, radius, normalise: as of weights.
        areas: those that the model has of these cells, at both programs or at none.

    Raises:
        LayoutError, ConfigError: cells that are given overlap, or are too wide. Every rank raises.
    """

    def make(method: str, which: Ints) -> Weights | None:
        some = (grid, points, own) if is_giver else (grid.part(which), points[which], own[which])
        return _between(comm, some, is_giver, method, options)

    methods = (mapping,) if isinstance(mapping, str) else mapping
    options, own = Options(neighbours, radius, normalise), np.ones(len(points))
    if areas is not None:
        sums = np.zeros((2, 2))
        own, sums[0 if is_giver else 1] = _ratios(grid, points, areas)
        comm.Allreduce(MPI.IN_PLACE, sums)
        _check_units(sums, "connect")
    scale = _scale(grid, grid.centres(points)) if "creep" in methods else 1.0
    scale = float(comm.allreduce(0.0 if is_giver else scale, MPI.MAX))
    return stacked(make, methods, grid, points, scale, comm.allgather)


def _between(
    comm: MPI.Intracomm, part: tuple[Any, Ints, Floats], is_giver: bool, mapping: str, options: Options
) -> Weights | None:
    """part: of this rank: grid, points, and the model's areas of these divided by those computed."""
    grid, points, own = part
    is_giver = is_giver != (mapping in AMOUNTS)  # there the givers look for the points of the takers
    entries = _entries(comm, grid, points, is_giver)
    is_source = entries["is_giver"]
    source = comm.bcast(grid if isinstance(grid, Rows) else None, int(np.argmax(is_source)))
    if mapping.startswith("cons"):
        _check_widths(bool(entries["is_cells"].any() & entries["is_halved"].any()), "connect")
    margin = float(entries["reach"].max()) / (1 + (mapping == "nearest"))
    scale = _scale(grid, np.stack([entries["low"], entries["high"]])[:, is_source])
    found, made = None, _NOTHING
    shapes = _shapes(grid, points, mapping) if is_giver else np.empty((0, 1, 3))
    while True:  # until every taker has been given all that may count
        given, near, its = _nearby(comm, entries, (points, shapes, own), margin)
        lacks = False
        if not is_giver:
            ask = Ask(source, grid, points, options, scale, given, near, (its, own))
            found, made = _made(mapping, ask)
            farthest = interpolate.FAR * float(np.abs(grid.centres(points)).max(initial=1.0))
            lacks = len(points) > 0 and margin < min(made.needed, farthest)  # some farther away may count
        if not comm.allreduce(lacks):
            break
        margin *= 2
    if mapping in AMOUNTS:
        ends, x = (entries["low"], entries["high"]), near[made.column, 0]
        parts = {} if is_giver else _in_boxes(np.flatnonzero(is_source), ends, x, _triples(made, ask))
        got = exchange_sparse(comm, parts)
        return _turned(got, points) if is_giver else None
    most, turn = comm.allreduce((made.doubled, -comm.rank), MPI.MAX)  # the worst tells; of too much all raise
    if most > _OVER:
        raise _lie_over(comm.bcast(found and found.overlap, -turn), "connect")
    if found is not None and comm.rank != -turn:
        found.overlap = ""
    return found


def _triples(made: Entries, ask: Ask) -> Triples:
    return ask.given[made.column], ask.points[made.row], made.value


def _in_boxes(ranks: Ints, ends: tuple[Floats, Floats], x: Floats, rows: tuple[Any, ...]) -> dict[int, Any]:
    """The rows, which lie at x, that are in the box of each of these ranks, if any are."""
    parts, x = {}, _in_three(x)
    for rank in ranks.tolist():
        inside = ((x >= ends[0][rank]) & (x <= ends[1][rank])).all(axis=1)
        if inside.any():
            parts[rank] = tuple(each[inside] for each in rows)
    return parts


def _turned(parts: Sequence[Triples], points: Ints) -> Weights:
    """Weights of these points, of triples that may be for others, too."""
    taken, where = np.unique(points, return_inverse=True)
    parts = [(points[:0], points[:0], np.empty(0)), *parts]
    matrix, sources = of_triples(taken, *map(np.concatenate, zip(*parts, strict=True)))
    matrix = matrix[where]
    return Weights(matrix, sources, (np.diff(matrix.indptr) > 0).astype(float))


def _entries(comm: MPI.Intracomm, grid: Grid, points: Ints, is_giver: bool) -> NDArray[np.void]:
    """What all ranks say of their parts: the box around its points, and how far mappings reach from them."""
    what = np.dtype("?, ?, ?, f8, 3f8, 3f8")  # on a plane with a third coordinate, 0
    what.names = ("is_giver", "is_cells", "is_halved", "reach", "low", "high")
    low, high, reach = np.full(3, np.inf), np.full(3, -np.inf), 0.0
    if len(points):
        x = grid.centres(points)
        low, high, reach = _in_three(x.min(axis=0)), _in_three(x.max(axis=0)), 4.0 * _radius(grid, points)
    flags = is_giver, not isinstance(grid, Rows), _is_halved(grid)
    entry = np.array([(*flags, reach, low, high)], what)
    entries = np.empty(comm.size, entry.dtype)
    comm.Allgather(entry.view(np.uint8), entries.view(np.uint8))
    return entries


def _in_three(x: Floats) -> Floats:
    return np.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, 3 - x.shape[-1])])


def _radius(grid: Grid, points: Ints) -> float:
    """The largest distance of a corner from its centre; of bare points, about half that to the next one."""
    x = grid.centres(points)
    if isinstance(grid, PointCloud):
        extent = float(np.prod(np.maximum(x.max(axis=0) - x.min(axis=0), 1e-3))) ** (1 / x.shape[1])
        return float(extent / max(1.0, len(points)) ** 0.5)
    return float(np.linalg.norm(grid.corners(points) - x[:, None], axis=2).max())


def _shapes(grid: Any, points: Ints, mapping: str) -> Floats:
    """What a giver says of each point: its centre, and behind it, where a mapping needs them, its corners.

    Of a mesh the numbers of the points of its cells, in the places of first coordinates.
    """
    x = grid.centres(points)[:, None]
    if mapping == "projection":
        numbers = grid.cells_of(points)[..., None]
        return np.concatenate([x, np.pad(numbers, ((0, 0), (0, 0), (0, x.shape[2] - 1)))], axis=1)
    needs = mapping.startswith("cons") or (mapping == "bilinear" and not isinstance(grid, Rows))
    return np.concatenate([x, grid.corners(points)], axis=1) if needs else x


def _nearby(
    comm: MPI.Intracomm, entries: NDArray[np.void], said: tuple[Ints, Floats, Floats], margin: float
) -> tuple[Ints, Floats, Floats]:
    """What the givers say of their points that lie within the margin of this taker's box, ascending."""
    parts: dict[int, tuple[Ints, Floats, Floats]] = {}
    if entries["is_giver"][comm.rank]:
        mine = entries[comm.rank]
        low, high = entries["low"] - margin, entries["high"] + margin
        meets = (low <= mine["high"]).all(axis=1) & (high >= mine["low"]).all(axis=1)
        parts = _in_boxes(np.flatnonzero(meets & ~entries["is_giver"]), (low, high), said[1][:, 0], said)
    got = exchange_sparse(comm, parts)
    return joined(got) if got else (np.empty(0, np.int64), said[1][:0], said[2][:0])  # halos are there twice


_NOTHING = Entries(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0), np.empty(0), np.inf)


def _made(mapping: str, ask: Ask) -> tuple[Weights, Entries]:
    """Rows for the target points, as a matrix and as they were found."""
    sparse, given, n = sparse_matrices(), ask.given, len(ask.points)
    if not len(given):
        return Weights(sparse.csr_matrix((n, 0)), given, np.zeros(n)), _NOTHING
    found, normalise = _METHODS[mapping](ask), ask.options.normalise
    if mapping.startswith("cons"):
        if normalise == "destarea":
            found = found._replace(value=found.value * found.fraction[found.row])
        if ask.own is not None:
            found = found._replace(value=found.value * ask.own[0][found.column] / ask.own[1][found.row])
    matrix = sparse.csr_matrix((found.value, (found.row, found.column)), shape=(n, len(given)))
    matrix.sum_duplicates()
    used = np.flatnonzero(np.bincount(matrix.indices, minlength=len(given)))
    matrix = sparse.csr_matrix(matrix[:, used])
    matrix.sort_indices()  # sums run in the order of global indices, on any number of ranks
    return Weights(matrix, given[used], found.fraction, found.overlap, 0.0, normalise), found
