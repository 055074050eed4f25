"""A field that a program gives or takes: its values on this rank, and which points they are."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from ..buffer import as_buffer
from ..errors import DtypeError, LayoutError
from . import route

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..communicator import Communicator

__all__ = ["Field", "gather", "scatter", "width_of"]


class Field:
    """What Program.gives and Program.takes return.

    Attributes:
        name: the field's.
        values: this rank's values, shape (points, ...), in memory of the program's own; may be set anew.
        points: their global indices, shape (points,).
        grid: the grid that the points are of, for mappings; None: indices mean the same on both sides.
    """

    def __init__(self, comm: Communicator, name: str, values: Any, points: Any, grid: Any, verb: str) -> None:
        self.name = name
        self.values = values
        self.grid = grid
        shape = tuple(getattr(values, "shape", ()))
        if not shape:
            raise LayoutError(
                f"the values of field {name!r} have no axis of points", verb, "shape (points, ...)"
            )
        self.points = route.concatenated(comm, shape[0]) if points is None else _indices(name, points, verb)
        if len(self.points) != shape[0]:
            raise LayoutError(
                f"field {name!r} has {len(self.points)} points here, but values of shape {shape}",
                verb,
                "one row of values for each point",
            )
        self.dtype = wire_dtype(values)
        self.shape = shape[1:]

    def __repr__(self) -> str:
        return f"<Field '{self.name}', {len(self.points)} points here, {self.dtype}>"


def _indices(name: str, points: Any, verb: str) -> NDArray[np.int64]:
    found = np.asarray(points)
    if found.ndim != 1 or (found.size and (found.dtype.kind not in "iu" or found.min() < 0)):
        raise DtypeError(
            f"the points of field {name!r} are no list of indices from 0",
            verb,
            "points=np.arange(first, last)",
        )
    return np.ascontiguousarray(found, np.int64)


def _is_cuda(values: Any) -> bool:
    return type(values).__module__.startswith("torch") and bool(values.is_cuda)


def wire_dtype(values: Any) -> np.dtype[Any]:
    """The dtype that values travel as; half types of torch as their bits."""
    if _is_cuda(values):
        return np.dtype(as_buffer(values[:0].cpu()).array.dtype)
    return np.dtype(as_buffer(values).array.dtype)


def width_of(field: Field) -> int:
    """Numbers per point."""
    return int(np.prod(field.shape, dtype=np.int64))


def host(values: Any) -> NDArray[Any]:
    """A numpy view of values in host memory."""
    return values if isinstance(values, np.ndarray) else as_buffer(values).array


def gather(values: Any, where: route.Selection, out: NDArray[Any]) -> None:
    """Put the chosen rows of values, which may live on a GPU, into out, shape (rows, ...)."""
    if _is_cuda(values):
        rows = values[where] if isinstance(where, slice) else values[_there(values, where)]
        out[...] = host(rows.cpu())
    elif isinstance(where, slice):
        out[...] = host(values)[where]
    else:
        np.take(host(values), where, axis=0, out=out, mode="clip")


def scatter(values: Any, where: route.Selection, rows: NDArray[Any]) -> None:
    """Put rows at the chosen places of values, which may live on a GPU."""
    if _is_cuda(values):
        torch = sys.modules["torch"]
        moved = torch.from_numpy(np.ascontiguousarray(rows)).to(values.device).view(values.dtype)
        values[where if isinstance(where, slice) else _there(values, where)] = moved
    else:
        host(values)[where] = rows


def _there(values: Any, where: NDArray[np.int64]) -> Any:
    return sys.modules["torch"].from_numpy(where).to(values.device)
