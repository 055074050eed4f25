"""Reading a table of numbers from a file, or the digits that scikit-learn ships."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["read"]

Rows = NDArray[np.float64]


def read(path: str | None) -> tuple[Rows, list[str], str]:
    """Rows (n, columns) of float64, the columns' names, and what was read, in words.

    Rows with a missing value are left out, and so are columns without a single number.

    Raises:
        SystemExit: with a sentence, if the file is not there or holds no table of numbers.
    """
    if path is None:
        rows, names = _digits()
        return rows, names, "scikit-learn's digits"
    try:
        rows, names = _npy(path) if path.endswith(".npy") else _csv(path)
    except (OSError, ValueError) as error:
        sys.exit(f"stats_demo: cannot read {path}: {error}")
    return _complete(rows, names, path)


def _digits() -> tuple[Rows, list[str]]:
    if not find_spec("sklearn"):
        sys.exit("stats_demo: scikit-learn is not installed: name a .csv or .npy file, or install it")
    from sklearn.datasets import load_digits

    rows = np.asarray(load_digits().data, np.float64)
    return rows, [f"pixel {i // 8},{i % 8}" for i in range(rows.shape[1])]


def _npy(path: str) -> tuple[Rows, list[str]]:
    loaded: NDArray[Any] = np.load(path, allow_pickle=False)
    if loaded.dtype.kind not in "biuf" or loaded.ndim == 0:
        raise ValueError(f"not a table of real numbers: {loaded.dtype} of shape {loaded.shape}")
    rows = loaded.reshape(len(loaded), -1).astype(np.float64)
    return rows, [f"column {i}" for i in range(rows.shape[1])]


def _csv(path: str) -> tuple[Rows, list[str]]:
    with Path(path).open(encoding="utf-8") as file:
        head = [cell.strip().strip('"') for cell in file.readline().split(",")]
    has_names = not any(_is_number(cell) for cell in head)
    rows = np.genfromtxt(path, delimiter=",", skip_header=int(has_names), ndmin=2, encoding="utf-8")
    return rows, head if has_names else [f"column {i}" for i in range(rows.shape[1])]


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _complete(rows: Rows, names: list[str], path: str) -> tuple[Rows, list[str], str]:
    number = np.isfinite(rows)
    columns = np.flatnonzero(number.any(axis=0)) if rows.size else np.array([], int)
    kept = number[:, columns].all(axis=1)
    if not columns.size or not kept.any():
        sys.exit(f"stats_demo: {path} holds no row of numbers")
    told = Path(path).name
    without, gaps = rows.shape[1] - len(columns), int((~kept).sum())
    if without or gaps:
        told += f" (left out: {without} columns without numbers, {gaps} rows with gaps)"
    return rows[np.ix_(kept, columns)], [names[c] for c in columns], told
