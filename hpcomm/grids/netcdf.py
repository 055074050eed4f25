"""netCDF files as grids and weights are kept in them, their faults told by variable and index."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from ..core.types import AnyArray, Floats
from ..errors import LayoutError
from ..job.optional_packages import load
from .geometry import last_repeated

_MOST = 1080.0, 90.0 + 1e-6  # degrees of longitude and latitude, as numbers of four bytes have them

Span: TypeAlias = tuple[int, int]  # cells from the first to before the last


class File:
    """A netCDF file whose faults are said by variable and index."""

    def __init__(self, path: Path, arrays: dict[str, AnyArray] | None = None) -> None:
        """arrays: what stands in a file of another kind, as a netCDF file would have it."""
        self.path, self.is_radians = path, False  # whatever the units say
        self.data: Any = None
        self.variables: dict[str, Any] = arrays or {}
        self.beside: dict[str, File] = {}  # other files, by the variables that these have
        if arrays is not None:
            return
        lack = "files of grids are read by netCDF4"
        library = load("netCDF4", lack, "regrid.open", "pip install 'hpcomm[files]'")
        try:
            self.data = library.Dataset(str(path))
        except (OSError, RuntimeError, ValueError) as error:
            raise LayoutError(f"{path} is no netCDF file, or damaged: {error}", "regrid.open") from None
        self.data.set_auto_mask(False)
        self.variables = self.data.variables

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

    def degrees(self, names: tuple[str, ...], cells: Span, shape: tuple[int, ...], axis: int = 0) -> Floats:
        """(cells, ..., 2): longitude and latitude, finite and in their bounds, of one variable or two."""
        parts = []
        for name in names:
            part = np.asarray(self.read(name, cells, shape, axis), float)
            is_radians = self.is_radians or str(self.attribute(name, "units")).startswith("radian")
            parts.append(np.degrees(part) if is_radians else part)
        found = parts[0] if len(parts) == 1 else np.stack(parts, axis=-1)
        if found.shape[-1] != 2:
            raise self.fault(f"{names[0]} has the shape {self.shape(names[0])}, and not (nodes, 2)")
        wrong = np.argwhere(~(np.abs(found) <= _MOST))
        if len(wrong):
            *at, which = wrong[0].tolist()
            name, at[0] = names[min(which, len(names) - 1)], at[0] + cells[0]
            raise self.fault(f"{name} of cell {at} is {found[tuple(wrong[0])]:g} degrees")
        found[..., 1] = np.clip(found[..., 1], -90.0, 90.0)
        return found

    def by_numbers(
        self, name: str, cells: Span, nodes: tuple[str, ...], start: int = 1, counts: str = "", axis: int = 0
    ) -> Floats:
        """(cells, corners, 2) in degrees of cells that are given by numbers of nodes.

        Args:
            nodes: the variables of their longitudes and latitudes, or one that has both.
            start: the number of the first one.
            counts: the variable that says how many each cell has.
        """
        found = self.shape(name)
        if len(found) != 2:
            raise self.fault(f"{name} has the shape {found}, and not (cells, corners)")
        numbers = self.read(name, cells, (found[axis],), axis).astype(np.int64) - start
        size, given = self.shape(nodes[0])[0], numbers >= 0
        if counts:
            each = self.read(counts, cells, (found[axis],)).astype(np.int64)
            given = np.arange(numbers.shape[1]) < each[:, None]
        is_wrong = given & ((numbers < 0) | (numbers >= size))
        is_wrong[:, :1] |= ~given[:, :1]
        if is_wrong.any():
            cell, corner = np.argwhere(is_wrong)[0]
            what = f"{name}[{cells[0] + cell}, {corner}] is {numbers[cell, corner] + start}"
            raise self.fault(f"{what}, and there are {size} nodes from {start}")
        numbers = last_repeated(numbers, given)
        low, high = (int(numbers.min()), int(numbers.max()) + 1) if numbers.size else (0, 0)
        return self.degrees(nodes, (low, high), (size,))[numbers - low]
