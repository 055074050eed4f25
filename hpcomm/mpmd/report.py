"""Where the time goes in each program, who waits for whom, and what mappings keep."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .channel import memory_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ..communicator import Communicator
    from .coupling import Giving, Taking

__all__ = ["Row", "advice", "bars", "link_lines", "row_of", "table"]

_GAIN = 0.95  # of the time now: less to win is not worth a word
_PARTS = (("computing", "#7fb77f"), ("waiting", "#d98880"), ("exchanging", "#7fa8d9"))


class Row(NamedTuple):
    """One program: seconds of wall clock, and parts of them (means over its ranks)."""

    program: str
    ranks: int
    total_s: float
    computing_s: float
    waiting_s: float
    exchanging_s: float
    waits_for: dict[str, float]


def row_of(
    program: str, comm: Communicator, total_s: float, busy_s: float, waited: Mapping[str, float]
) -> Row:
    """This program's row. Collective over comm, its communicator. waited: seconds for each other program."""
    mine = np.array([total_s, busy_s, *waited.values()])
    total, busy, *waits = (comm.all_reduce(mine) / comm.size).tolist()
    waiting = sum(waits)
    return Row(
        program,
        comm.size,
        total,
        total - busy,
        waiting,
        busy - waiting,
        dict(zip(waited, waits, strict=True)),
    )


def table(rows: Sequence[Row]) -> list[str]:
    """Lines of text."""
    lines = [
        f"{'program':14s}{'ranks':>6s}{'seconds':>10s}{'computing':>11s}{'waiting':>9s}{'exchanging':>12s}"
    ]
    for row in rows:
        parts = [100 * part / max(row.total_s, 1e-9) for part in row[3:6]]
        lines.append(
            f"{row.program:14s}{row.ranks:6d}{row.total_s:10.2f}"
            f"{parts[0]:10.0f} %{parts[1]:7.0f} %{parts[2]:10.0f} %"
        )
    for row in rows:
        for peer, seconds in row.waits_for.items():
            if seconds > 0.01 * row.total_s:
                lines.append(f"{row.program} waits {seconds:.2f} s for {peer}")
    return [*lines, advice(rows)]


def advice(rows: Sequence[Row]) -> str:
    """How the same number of ranks would be dealt out so that the slowest program computes least long."""
    work = [row.computing_s * row.ranks for row in rows]
    total = sum(row.ranks for row in rows)
    if not sum(work) or len(rows) < 2:
        return "nothing to balance"
    ranks = [1] * len(rows)
    slowest = [(-seconds, i) for i, seconds in enumerate(work)]  # with these ranks, the slowest first
    heapq.heapify(slowest)
    for _ in range(total - len(rows)):
        i = slowest[0][1]
        ranks[i] += 1
        heapq.heapreplace(slowest, (-work[i] / ranks[i], i))
    if -slowest[0][0] > _GAIN * max(row.computing_s for row in rows):
        return f"balanced as far as {total} ranks can be"
    told = ", ".join(f"{row.program} {n}" for row, n in zip(rows, ranks, strict=True))
    return f"by computing time {total} ranks would be better dealt out as {told}"


def link_lines(
    ends: tuple[str, str],
    local: Communicator,
    gives: Mapping[str, Giving],
    takes: Mapping[str, Taking],
    swapped: Callable[[Any, str], Any],
) -> list[str]:
    """What each field of a link moves and keeps. Collective over both programs.

    Args:
        ends: this program's name and the other's.
        local: this program's communicator.
        swapped: gives what the other program says, for what this one does.
    """
    sides: dict[str, Giving | Taking] = {**gives, **takes}
    mine = {name: _about(sides[name], local) for name in sorted(sides)}
    theirs = swapped(mine, "report")
    lines = []
    for name in mine:
        own, other = mine[name], theirs.get(name, {})
        given, taken = (own, other) if name in gives else (other, own)
        source, target = ends if name in gives else ends[::-1]
        line = (
            f"{name}: {source} -> {target}, {given['points']} points to {taken['points']}, {taken['mapping']}"
        )
        if _comparable(given, taken):
            a, b = given["integral"], taken["integral"]
            line += (
                f", integral {a:.12g} to {b:.12g}, relative difference {abs(a - b) / max(abs(a), 1e-300):.1e}"
            )
        lines.append(line)
    return lines


def _comparable(given: dict[str, Any], taken: dict[str, Any]) -> bool:
    """Whether both integrals are of the same time and over the same area: not with land on one side."""
    if given["area"] is None or taken["area"] is None or given["version"] != taken["version"]:
        return False
    return bool(abs(given["area"] - taken["area"]) < 1e-9 * given["area"])


def _about(side: Giving | Taking, local: Communicator) -> dict[str, Any]:
    """This program's side of a field. Collective over its ranks."""
    weights = getattr(side, "weights", None)
    areas = _areas(side)
    factor, offset = getattr(side, "conversion", (1.0, 0.0))
    area = integral = None
    if areas is not None:
        if weights is not None:
            areas = areas * weights.fraction
        values = (memory_of(side.field).reshape(len(areas), -1) - offset) / factor
        mine = np.array([areas.sum(), (areas[:, None] * values).sum()])
        area, integral = local.all_reduce(mine).tolist()
    points = int(local.all_reduce(len(side.field.points)))
    return {
        "points": points,
        "mapping": side.mapping,
        "area": area,
        "integral": integral,
        "version": side.version,
    }


def _areas(side: Giving | Taking) -> Any:
    """Areas of the cells of a field that is mapped conservatively."""
    grid = side.field.grid
    if not side.mapping.startswith("cons") or not hasattr(grid, "areas"):
        return None
    from .. import regrid

    return regrid.areas_against(grid, side.field.points, side.peer_kind)


def bars(rows: Sequence[Row]) -> str:
    """The table as an SVG picture: a bar per program, as long as its time."""
    most = max((row.total_s for row in rows), default=1.0) or 1.0
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 640 {60 + 40 * len(rows)}"',
        ' font-family="sans-serif" font-size="13">',
    ]
    for i, row in enumerate(rows):
        x, y = 130.0, 20 + 40 * i
        parts.append(f'<text x="120" y="{y + 19}" text-anchor="end">{row.program} ({row.ranks})</text>')
        for seconds, (_, colour) in zip(row[3:6], _PARTS, strict=True):
            wide = 480 * max(seconds, 0.0) / most
            parts.append(f'<rect x="{x:.1f}" y="{y}" width="{wide:.1f}" height="28" fill="{colour}"/>')
            x += wide
    for i, (name, colour) in enumerate(_PARTS):
        y = 30 + 40 * len(rows)
        parts.append(f'<rect x="{130 + 130 * i}" y="{y}" width="14" height="14" fill="{colour}"/>')
        parts.append(f'<text x="{150 + 130 * i}" y="{y + 12}">{name}</text>')
    return "\n".join([*parts, "</svg>\n"])
