"""Fields as xarray has arrays: with dimensions that have names, coordinates and a unit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Self

from .._lazy import np
from ..communicator.communicator import Communicator
from ..communicator.mesh import Mesh, axes_of, ranks_of
from ..core.buffer import refuse_masked
from ..core.html import sheet
from ..core.partition import Partition
from ..errors import LayoutError, UsageError, demand, where
from ..job.optional_packages import load


class Labelled:
    """What of a field has to do with names of its axes."""

    def to_xarray(
        self: Any, dims: Sequence[str] | None = None, coords: Mapping[str, Any] | None = None
    ) -> Any:
        """What this rank owns as xarray.DataArray, a view where numpy has one. Not collective.

        Args:
            dims: names of the axes; None: of the mesh axes that cut them, else dim_0, dim_1, ...
            coords: for an axis, coordinates of the whole, of which this rank's part is taken; an axis
                without them has the global indices.

        Raises:
            MissingError: xarray is not installed.
            LayoutError: a partial field; names or coordinates that
                do not fit.
        """
        xarray = _xarray("to_xarray")
        own, indices = self.__array__(), self.indices
        hint = "to_xarray(dims=['y', 'x'], coords={'x': an array of one axis})"
        dims, coords = _names(self) if dims is None else dims, {} if coords is None else coords
        demand(dims, Iterable, "dims", "to_xarray", hint)
        demand(coords, Mapping, "coords", "to_xarray", hint)
        names, made = [*dims], {}
        for name in names:
            demand(name, str, "the name of an axis", "to_xarray", hint)
        if not len({*names}) == len(names) == own.ndim:
            what = f"{own.ndim} axes have the names {names}"
            raise LayoutError(what, where("to_xarray", self.comm), "a name for each axis")
        for name, index, n in zip(names, indices, self.shape, strict=False):  # points have one
            made[name], whole = index.ravel(), coords.get(name)
            if whole is not None:
                made[name] = _along(name, n, whole, where("to_xarray", self.comm))[made[name]]
        if unknown := [*{*coords} - {*made}]:
            raise LayoutError(f"there is no axis {unknown[0]!r}", where("to_xarray", self.comm), f"{names}")
        attrs = {"units": self.unit} if self.unit else {}
        return xarray.DataArray(own, made, names, self.name or None, attrs)

    @classmethod
    def from_xarray(
        cls, ranks: Mesh | Communicator, x: Any, whole: Sequence[int] | None = None, **options: Any
    ) -> Self:
        """A field that holds a copy of an xarray.DataArray, with its name and unit. Not collective.

        A dimension that is called as a mesh axis is cut by that one; where none is, mesh axes cut
        dimensions in their order, as Field does.

        Args:
            x: the whole on each rank (it may be lazy: each rank reads its own part of a file); or, with
                whole, this rank's part.
            whole: shape of the whole, where x is a part of it.
            options: of Field: split, halo, periodic, corners.

        Raises:
            MissingError: xarray is not installed.
            LayoutError: x is not this rank's part.
        """
        xarray = _xarray("from_xarray")
        if not isinstance(x, xarray.DataArray):
            raise UsageError(
                f"{type(x).__name__} is no DataArray", hint="dataset['name'] for one of a Dataset"
            )
        axes, _ = axes_of(ranks)
        if "split" not in options and not {*axes}.isdisjoint(x.dims):
            options["split"] = [name if name in axes else None for name in x.dims]
        partition = Partition(tuple(x.shape if whole is None else whole), axes, options.pop("split", None))
        comm = ranks_of(ranks, "from_xarray")
        box = partition.box(comm.rank)
        part = x[box.slices()] if whole is None else x
        if part.shape != box.shape:
            what = f"this rank's part has shape {part.shape}, due is {box.shape}"
            hint = "what field.to_xarray() gives for such a partition"
            raise LayoutError(what, where("from_xarray", comm), hint)
        made: Any = cls(  # type: ignore[call-arg]
            ranks,
            partition,
            dtype=x.dtype,
            name=str(x.name or ""),
            unit=str(x.attrs.get("units", "")),
            **options,
        )
        made.inner[...] = part.to_numpy()
        return made  # type: ignore[no-any-return]

    def _repr_html_(self: Any) -> str:
        rows = [("whole", f"{self.shape} of {self.look.dtype}"), ("partition", self.partition)]
        own = "points" if self.box is None else self.box
        rows += [("rank", f"{self.comm.rank} of {self.comm.size}"), ("owns", f"{self.owned_shape}: {own}")]
        widths = self.halo or ()  # of points 0
        rows += [("halo", ", ".join(f"{low}+{high}" for low, high in widths))] * any(map(any, widths))
        unit = f" [{self.unit}]" if self.unit else ""
        return sheet(f"Field {self.name or '?'}{unit}", rows)


def _along(name: str, n: int, whole: Any, place: str) -> Any:
    """The coordinates of an axis of n elements."""
    refuse_masked(whole, f"coordinates of axis {name} are", place)
    try:
        found = np.asarray(whole)
    except ValueError:  # lists of different lengths
        found = np.empty(())
    if found.shape != (n,):
        held = f"{found.size} coordinates" if found.ndim == 1 else f"the coordinates {whole!r:.40}"
        hint = "coordinates of the whole: an array of one axis"
        raise LayoutError(f"axis {name} has {n} elements, and {held}", place, hint)
    return found


def _names(field: Any) -> list[str]:
    axes = getattr(field.partition, "axes", ())
    names = ["_".join(axes[a]) if a < len(axes) else "" for a in range(len(field.shape))]
    return [name or f"dim_{a}" for a, name in enumerate(names)]


def _xarray(verb: str) -> Any:
    return load("xarray", "xarray cannot be loaded", verb, "pip install xarray")
