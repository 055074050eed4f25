"""netCDF files as grids and weights are kept in them, their faults told by variable and index."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from ..core.types import AnyArray, Floats
from ..errors import LayoutError
from ..job.optional_packages import load

_MOST_LATITUDE = 90.0 + 1e-6  # of degrees, as numbers of four bytes have it
_MOST_LONGITUDE = 1080.0

Span: TypeAlias = tuple[int, int]  # cells from the first to before the last


class Nodes(NamedTuple):
    """Corners that cells share, by the variables of their longitudes and latitudes, or one that has both."""

    names: tuple[str, ...]
    start: int  # the number of the first one
    radians: bool = False  # whatever their unit says


class File:
    """A netCDF file whose faults are said by variable and index."""

    def __init__(self, path: Path) -> None:
        lack = "files of grids are read by netCDF4"
        library = load("netCDF4", lack, "regrid.open", "pip install 'hpcomm[files]'")
        self.path = path
        try:
            self.data = library.Dataset(str(path))
        except (OSError, RuntimeError, ValueError) as error:
            raise LayoutError(f"{path} is no netCDF file, or damaged: {error}", "regrid.open") from None
        self.data.set_auto_mask(False)
        self.variables: dict[str, Any] = self.data.variables

    def has(self, *names: str) -> bool:
        return all(name in self.variables for name in names)

    def attribute(self, name: str, attribute: str, default: object = "") -> Any:
        return getattr(self.variables[name], attribute, default)

    def dimension(self, name: str) -> int:
        if name not in self.data.dimensions:
            raise self.fault(f"there is no dimension {name!r}")
        return len(self.data.dimensions[name])

    def fault(self, what: str) -> LayoutError:
        return LayoutError(f"{self.path}: {what}", "regrid.open", "a whole file, as the model has written it")

    def shape(self, name: str) -> tuple[int, ...]:
        if name not in self.variables:
            raise self.fault(f"there is no variable {name!r}")
        return tuple(int(n) for n in self.variables[name].shape)

    def read(self, name: str, cells: Span, shape: tuple[int, ...], axis: int = 0) -> AnyArray:
        """Numbers of some cells: (cells, ...).

        Args:
            shape: of all cells, which the variable has from this axis on. An axis before or behind is the
                last one of the result.
        """
        found = self.shape(name)
        if found[axis : axis + len(shape)] != shape or len(found) - len(shape) > 1:
            raise self.fault(f"{name} has the shape {found}, and the grid {shape}")
        (first, last), per = cells, int(np.prod(shape[1:]))
        low = first // max(per, 1)
        rows = slice(low, -(-last // max(per, 1)))
        try:
            part = np.asarray(self.variables[name][(slice(None), rows) if axis else rows])
        except (OSError, RuntimeError, IndexError) as error:
            raise self.fault(f"{name} cannot be read: {error}") from None
        if axis:
            part = np.moveaxis(part, 0, -1)
        flat = part.reshape(-1, *part.shape[len(shape) :])
        return np.asarray(flat[first - low * per : last - low * per])

    def whole(self, name: str) -> AnyArray:
        shape = self.shape(name)
        return self.read(name, (0, int(np.prod(shape))), shape).reshape(shape)

    def _angles(
        self, name: str, cells: Span, shape: tuple[int, ...], axis: int = 0, radians: bool = False
    ) -> Floats:
        """As read, in degrees."""
        found = np.asarray(self.read(name, cells, shape, axis), float)
        is_radians = radians or str(self.attribute(name, "units")).startswith("radian")
        return np.asarray(np.degrees(found) if is_radians else found)

    def degrees(self, names: tuple[str, str], cells: Span, shape: tuple[int, ...], axis: int = 0,
                radians: bool = False) -> Floats:  # fmt: skip
        """(cells, ..., 2): longitude and latitude, each finite and in its bounds."""
        parts = []
        for name, most in zip(names, (_MOST_LONGITUDE, _MOST_LATITUDE), strict=True):
            part = self._angles(name, cells, shape, axis, radians)
            wrong = np.argwhere(~(np.abs(part) <= most))
            if len(wrong):
                at = [cells[0] + int(wrong[0][0]), *map(int, wrong[0][1:])]
                raise self.fault(f"{name} of cell {at} is {part[tuple(wrong[0])]:g} degrees")
            parts.append(np.clip(part, -90.0, 90.0) if most < 91.0 else part)
        return np.stack(parts, axis=-1)

    def by_numbers(self, name: str, cells: Span, nodes: Nodes, counts: str = "", axis: int = 0) -> Floats:
        """(cells, corners, 2) in degrees of cells that are given by numbers of nodes.

        Args:
            counts: the variable that says how many each cell has.
        """
        first, names, start = cells[0], nodes.names, nodes.start
        found = self.shape(name)
        if len(found) != 2:
            raise self.fault(f"{name} has the shape {found}, and not (cells, corners)")
        numbers = self.read(name, cells, (found[axis],), axis).astype(np.int64) - start
        size, most = self.shape(names[0])[0], numbers.shape[1]
        given = numbers >= 0
        if counts:
            each = self.read(counts, cells, (found[axis],)).astype(np.int64)
            given = np.arange(most) < each[:, None]
        wrong = np.argwhere(given & ((numbers < 0) | (numbers >= size)))
        if len(wrong) or (len(given) and not given[:, 0].all()):
            cell, corner = wrong[0] if len(wrong) else (int(np.argmin(given[:, 0])), 0)
            what = f"{name}[{first + cell}, {corner}] is {numbers[cell, corner] + start}"
            raise self.fault(f"{what}, and there are {size} nodes from {start}")
        last_one = np.maximum.accumulate(np.where(given, np.arange(most), 0), axis=1)
        numbers = np.take_along_axis(numbers, last_one, axis=1)
        low, high = (int(numbers.min()), int(numbers.max()) + 1) if numbers.size else (0, 0)
        if len(names) == 1:
            at = self._angles(names[0], (low, high), (size,))
        else:
            at = self.degrees((names[0], names[1]), (low, high), (size,), radians=nodes.radians)
        if not np.isfinite(at).all():
            raise self.fault(f"{names[0]}[{low + int(np.argwhere(~np.isfinite(at))[0][0])}] is not finite")
        return np.asarray(at[numbers - low])
