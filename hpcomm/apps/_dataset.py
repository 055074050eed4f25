"""Input data: a table of numbers from a file, or weather that is made up."""

from __future__ import annotations

import csv
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.float64]
LARGEST = 1e150


def read(path: str | None) -> tuple[Rows, list[str], str]:
    """Rows (n, columns) of float64, the columns' names, and what was read, in words.

    Rows with a missing value are left out, and so are columns without a single number.

    Raises:
        SystemExit: with a sentence, if the file is not there or holds no table of numbers.
    """
    if path is None:
        rows, names = _weather()
        return rows, names, "made-up weather"
    try:
        rows, names = _npy(path) if path.endswith(".npy") else _csv(path)
    except (OSError, ValueError, csv.Error) as error:
        sys.exit(f"stats_demo: cannot read {path}: {error}")
    return _complete(rows, names, path)


def _weather(days: int = 1800) -> tuple[Rows, list[str]]:
    """The same days in every run: seasons with noise, and columns of unlike distributions."""
    noise = np.random.default_rng(1979)
    warmth = 10 - 9 * np.cos(2 * np.pi * np.arange(days) / 365.25) + noise.normal(0, 3, days)
    rain = np.where(noise.random(days) < 0.4, noise.exponential(6, days), 0)
    wind = 5 * noise.weibull(2, days)
    pressure = noise.normal(1013, 8, days) - 0.3 * rain
    names = ["temperature (degC)", "rain (mm)", "wind (m/s)", "pressure (hPa)"]
    return np.column_stack([warmth, rain, wind, pressure]), names


def _npy(path: str) -> tuple[Rows, list[str]]:
    with Path(path).open("rb") as file:
        loaded: NDArray[Any] = np.lib.format.read_array(file, allow_pickle=False)
    if loaded.dtype.kind not in "biuf" or loaded.ndim == 0:
        raise ValueError(f"not a table of real numbers: {loaded.dtype} of shape {loaded.shape}")
    rows = loaded.reshape(len(loaded), math.prod(loaded.shape[1:])).astype(np.float64)
    return rows, [f"column {i}" for i in range(rows.shape[1])]


def _lines(path: str) -> list[tuple[int, list[str]]]:
    """The numbers and the cells of the lines that are neither empty nor, from # on, a comment.

    Cells are between commas, semicolons or tabs, whichever the first line has most of.
    """
    with Path(path).open(newline="", encoding="utf-8-sig", errors="replace") as file:
        between = max(",;\t", key=file.readline().count)
        file.seek(0)
        reader = csv.reader(file, delimiter=between, skipinitialspace=True)
        return [(reader.line_num, line) for line in reader if any(line) and not line[0].startswith("#")]


def _csv(path: str) -> tuple[Rows, list[str]]:
    lines = _lines(path)
    head = [cell.strip() for cell in lines[0][1]] if lines else []
    for number, line in lines:
        if len(line) != len(head):
            raise ValueError(f"line {number} has {len(line)} cells, line {lines[0][0]} has {len(head)}")
    has_names = all(_number(cell) is None for cell in head)
    cells = [[_number(cell) for cell in line] for _, line in lines[has_names:]]
    names = head if has_names else [f"column {i}" for i in range(len(head))]
    return np.array(cells, np.float64).reshape(len(cells), len(head)), names


def _number(cell: str) -> float | None:
    try:
        return float(cell)
    except ValueError:
        return None


def _complete(rows: Rows, names: list[str], path: str) -> tuple[Rows, list[str], str]:
    number = np.isfinite(rows)
    columns = np.flatnonzero(number.any(axis=0)) if rows.size else np.array([], int)
    kept = number[:, columns].all(axis=1)
    if not columns.size or not kept.any():
        sys.exit(f"stats_demo: {path} holds no row of numbers: it takes columns of them, below names or not")
    if np.abs(rows[np.ix_(kept, columns)]).max() > LARGEST:
        sys.exit(f"stats_demo: {path} holds numbers past {LARGEST:g}: their squares would be no float64")
    told = Path(path).name
    without, gaps = rows.shape[1] - len(columns), int((~kept).sum())
    if without or gaps:
        told += f" (left out: {without} columns without numbers, {gaps} rows with gaps)"
    return rows[np.ix_(kept, columns)], [names[c] for c in columns], told
