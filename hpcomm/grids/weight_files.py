"""Files of weights that other couplers write and read: netCDF of ESMF (row, col, S) and of SCRIP (OASIS)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ..core.types import AnyArray
from ..errors import ConfigError
from ..job.optional_packages import load
from .netcdf import File

# What has the targets, the sources, the weights; covered parts; how many targets and sources there are.
_FORMS = {
    "ESMF": ("row", "col", "S", "frac_b", "n_b", "n_a"),
    "SCRIP": (
        "dst_address",
        "src_address",
        "remap_matrix",
        "dst_grid_frac",
        "dst_grid_size",
        "src_grid_size",
    ),
}


def read(path: Path) -> dict[str, AnyArray]:
    """A compressed matrix by rows: data, indices, indptr; the sources that are needed, and covered parts.

    Raises:
        ConfigError: the file has none of these forms, or weights for gradients.
        LayoutError: it is damaged: a number of a point that there is not.
    """
    file = File(path)
    names = next((each for each in _FORMS.values() if file.has(*each[:3])), None)
    if names is None:
        what = f"no weights in {path}: it has {', '.join(list(file.variables)[:12])}"
        raise ConfigError(what, "regrid", "row, col and S (ESMF), or src_address and its like (SCRIP)")
    to, of, values, covered, n_to, n_of = names
    weights = np.asarray(file.whole(values), float)
    if weights.ndim == 2 and weights.shape[1] > 1 and weights[:, 1:].any():
        what = f"{values} of {path} has weights for gradients, which the program would have to give"
        raise ConfigError(what, "regrid", "weights of first order")
    weights = weights.reshape(len(weights), -1)[:, 0]
    counts = {name: file.dimension(name) for name in (n_to, n_of)}
    row, column = (_numbers(file, name, counts[n]) for name, n in ((to, n_to), (of, n_of)))
    order = np.lexsort((column, row))
    sources, indices = np.unique(column[order], return_inverse=True)
    reached = np.bincount(row, minlength=counts[n_to])
    part = file.whole(covered) if covered in file.variables else reached > 0
    return {
        "data": weights[order],
        "indices": indices,
        "indptr": np.concatenate(([0], np.cumsum(reached))),
        "sources": sources,
        "fraction": np.asarray(part, float).reshape(-1),
    }


def _numbers(file: File, name: str, count: int) -> AnyArray:
    """Numbers of points, from 0."""
    numbers = np.asarray(file.whole(name)).astype(np.int64) - 1
    wrong = np.flatnonzero((numbers < 0) | (numbers >= count))
    if len(wrong):
        what = f"{name}[{wrong[0]}] is {numbers[wrong[0]] + 1}"
        raise file.fault(f"{what}, and there are {count} points from 1")
    return numbers


def write(path: Path, matrix: Any, sources: AnyArray, fraction: AnyArray) -> None:
    """As ESMF has them. n_a, how many sources there are, is what the highest one needs."""
    lack = "files of weights are written by netCDF4"
    library = load("netCDF4", lack, "regrid", "pip install 'hpcomm[files]'")
    rows = matrix.tocoo()
    with library.Dataset(str(path), "w", format="NETCDF3_64BIT_OFFSET") as data:
        data.title = "hpcomm.regrid"
        sizes = {"n_s": matrix.nnz, "n_a": int(sources.max(initial=-1)) + 1, "n_b": matrix.shape[0]}
        for name, size in sizes.items():
            data.createDimension(name, size)
        for name, kind, dim, values in (
            ("row", "i4", "n_s", rows.row + 1),
            ("col", "i4", "n_s", sources[rows.col] + 1),
            ("S", "f8", "n_s", rows.data),
            ("frac_b", "f8", "n_b", fraction),
        ):
            data.createVariable(name, kind, (dim,))[:] = values
