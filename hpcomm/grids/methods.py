"""Kinds of grids, a grid as specs describe it, and which mapping method goes between which kinds. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod
from numbers import Real
from pathlib import Path
from typing import Any, NamedTuple, cast

from ..errors import ConfigError, did_you_mean


class Kind(NamedTuple):
    """A kind of grid."""

    maker: str  # its class in hpcomm.regrid
    keys: tuple[str, ...]  # of a spec: the numbers that say how large it is, which its class begins with
    has: str  # what mappings may use: "points" alone, "cells" around them, or a "mesh" between them
    sphere: bool | None = True  # None: a plane or the sphere, as the grid says
    size: Callable[..., int] = lambda *counts, **_: prod(counts)
    more: tuple[str, ...] = ()  # further keys of a spec, which its class takes by name

    @property
    def is_own(self) -> bool:
        """Whether only the program knows its coordinates: each rank has its own part."""
        return self.keys == ("size",)


def _of_reduced(n: int | None, rows: Sequence[int] | None = None) -> int:
    """How many points a reduced Gaussian grid has; without rows an octahedral one."""
    return 4 * cast("int", n) * (cast("int", n) + 9) if rows is None else sum(rows) * (1 + (n == len(rows)))


KINDS = {
    "latlon": Kind("LatLon", ("nlat", "nlon"), "cells"),
    "gaussian": Kind("Gaussian", ("nlat", "nlon"), "cells"),
    "reduced_gaussian": Kind("ReducedGaussian", ("N",), "cells", size=_of_reduced, more=("rows",)),
    "healpix": Kind("Healpix", ("nside",), "cells", size=lambda n, **_: 12 * n * n, more=("nest",)),
    "plane": Kind("Plane", ("nx", "ny"), "cells", sphere=False, more=("bounds",)),
    "points": Kind("PointCloud", ("size",), "points", sphere=None),
    "mesh": Kind("Mesh", ("size",), "mesh", sphere=None),
    "cells": Kind("Cells", ("size",), "cells", sphere=None),
}
MAPPINGS = ("nearest", "idw", "bilinear", "rbf", "projection", "conservative", "conservative2")
NORMALISE = ("fracarea", "destarea")  # SCRIP's words: a mean over the covered part, or over the whole cell
AMOUNTS = ("to_nearest", "to_rbf")  # mappings that keep the sum of amounts, not values; alone
_USES = {  # mapping: what it needs of the grid that it reads from, and of the one that it writes to
    **dict.fromkeys((*MAPPINGS, *AMOUNTS), ("points", "points")),
    **dict.fromkeys(("conservative", "conservative2"), ("cells", "cells")),
    "projection": ("mesh", "points"),
    "creep": ("points", "cells"),  # behind another one
}


@dataclass(frozen=True)
class GridSpec:
    """A grid that fields live on.

    shape: what its kind needs, in the order of its keys; more: what its class takes by name.
    """

    name: str
    kind: str
    shape: tuple[int | None, ...]
    sphere: bool = True
    more: dict[str, Any] = field(default_factory=dict)
    file: Path | None = None  # that has its cells
    entry: str | None = None  # its name there

    @property
    def surface(self) -> str:
        return "sphere" if self.sphere else "plane"

    @property
    def size(self) -> int:
        return KINDS[self.kind].size(*self.shape, **self.more)


def stack(
    mapping: object, where: str, end: str | float = "error", whose: str = ""
) -> tuple[tuple[str, ...], str | float]:
    """(methods in their order, what becomes of points that none of them reaches) of a mapping.

    Args:
        mapping: one method; or a list of them, at its end perhaps "keep" or a value.
        end: what is so without these.
        whose: begins what an error says.

    Raises:
        ConfigError: it is neither, or there is no such method.
    """
    listed: list[Any] = [*mapping] if isinstance(mapping, (list, tuple)) else [mapping]
    last = listed[-1] if listed else None
    if last == "keep" or (isinstance(last, Real) and not isinstance(last, bool)):
        end = listed.pop()
    listed = listed or [mapping]
    gives = next((each for each in AMOUNTS if each in listed), None)
    if gives and len(listed) > 1:
        what = f"{whose}{gives!r} gives each amount away whole, so no other mapping goes with it"
        raise ConfigError(what, where, f"{gives!r} alone, or [{gives!r}, 'keep']")
    for nth, each in enumerate(listed):
        known = (*MAPPINGS, *(("creep",) if nth else AMOUNTS))
        if each not in known:
            hint = f"one of {', '.join(known)}; or a list, as ['bilinear', 'creep', 0.0]"
            what = f"{whose}there is no mapping {each!r}{' at this place' * (nth > 0)}"
            raise ConfigError(what, where, did_you_mean(each, known, hint))
    return tuple(listed), 0.0 if end == "error" and gives else end


def misfit(mapping: str, source: tuple[str, str], target: tuple[str, str]) -> tuple[str, str, str] | None:
    """Why mapping does not go between grids of these kinds; None: it does.

    Args:
        source, target: (kind, what it lies on: "sphere", "plane" or "space").

    Returns:
        (the side whose grid does not fit, "from" or "to", what is wrong, what to do).
    """
    for side, (kind, _), uses in zip(("from", "to"), (source, target), _USES[mapping], strict=True):
        fits = [name for name, each in KINDS.items() if uses in ("points", each.has)]
        if kind not in fits:
            what = f"mapping {mapping!r} does not go {side} a grid of kind {kind}"
            return side, what, f"kinds that it fits: {', '.join(sorted(fits))}"
    if source[1] != target[1]:
        where = [{"space": "in space"}.get(each[1], f"on a {each[1]}") for each in (source, target)]
        what = f"mapping {mapping!r} goes from a grid {where[0]} to one {where[1]}"
        return "from", what, "grids of one field lie on the same surface"
    if source[1] == "space" and mapping == "bilinear":
        return "from", "mapping 'bilinear' does not go between points in space", 'mapping = "rbf"'
    return None
