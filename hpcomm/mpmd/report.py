"""Report of a coupled job: where time goes in each program, who waits for whom, what mappings keep."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..communicator.communicator import Communicator
from ..errors import ConfigError
from ..grids.methods import AMOUNTS
from ..job.command_line import table as laid_out
from .coupled_field import host, width_of
from .coupling import trial
from .coupling.coupler import Incoming, Outgoing
from .coupling.coupling_clock import NONE
from .coupling.wire import Wire
from .link_context import LinkContext

_WHOLE = 1e-6  # parts that are missing and not worth a word
_NAMED = 4  # fields
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


def row_of(program: str, comm: Communicator, total_s: float, spent: Mapping[str, tuple[float, float]]) -> Row:
    """This program's row. Collective over comm, its communicator.

    spent: seconds in exchanges with each other program, and how many of these were waited for it.
    """
    busy_s, waits_s = np.array([*spent.values()]).reshape(-1, 2).T
    mine = np.array([total_s, busy_s.sum(), *waits_s])
    total, busy, *waits = (comm.all_reduce(mine) / comm.size).tolist()
    waiting = sum(waits)
    whom = dict(zip(spent, waits, strict=True))
    return Row(program, comm.size, total, total - busy, waiting, busy - waiting, whom)


def doubts(program: str, gives: Iterable[str], links: Collection[LinkContext], rank: int) -> Iterator[str]:
    """What may be wrong with a plan that can be carried out. gives: the fields that the program declares."""
    for link in links:
        for name, taking in link.takes.items():
            if taking.weights is not None and taking.weights.overlap:
                yield f"field {name} ({link.peer} -> {program}): {taking.weights.overlap}"
    untaken = [repr(name) for name in gives if not any(name in link.gives for link in links)]
    if untaken and rank == 0:
        more = f" and {len(untaken) - _NAMED} more" * (len(untaken) > _NAMED)
        yield f"no program takes {', '.join(untaken[:_NAMED])}{more} of '{program}': its puts go nowhere"


def table(rows: Sequence[Row], ensembles: Mapping[str, str]) -> list[str]:
    """Lines of text. ensembles: to which of them programs belong, where they do."""
    cells = []
    for row in rows:
        parts = [f"{100 * part / max(row.total_s, 1e-9):.0f} %" for part in row[3:6]]
        cells.append((row.program, row.ranks, f"{row.total_s:.2f}", *parts))
    header = ("program", "ranks", "seconds", "computing", "waiting", "exchanging")
    lines = laid_out(header, cells, rule=False).splitlines()
    for row in rows:
        for peer, seconds in row.waits_for.items():
            if seconds > 0.01 * row.total_s:
                lines.append(f"{row.program} waits {seconds:.2f} s for {peer}")
    return [*lines, advice(rows, ensembles)]


def advice(rows: Sequence[Row], ensembles: Mapping[str, str]) -> str:
    """How the same number of ranks would be dealt out so that the slowest program computes least long.

    Members of an ensemble have as many ranks each.
    """
    alike: dict[str, list[Row]] = {}
    for row in rows:
        alike.setdefault(ensembles.get(row.program, row.program), []).append(row)
    work = [max(row.computing_s * row.ranks for row in some) for some in alike.values()]
    total, counts = sum(row.ranks for row in rows), [*map(len, alike.values())]
    if not sum(work) or len(alike) < 2:
        return "nothing to balance"
    ranks, left = [1] * len(alike), total - len(rows)
    slowest = [(-seconds, i) for i, seconds in enumerate(work)]  # with these ranks, the slowest first
    heapq.heapify(slowest)
    while left >= counts[i := slowest[0][1]]:
        ranks[i], left = ranks[i] + 1, left - counts[i]
        heapq.heapreplace(slowest, (-work[i] / ranks[i], i))
    if -slowest[0][0] > _GAIN * max(row.computing_s for row in rows):
        return f"balanced as far as {total} ranks can be"
    told = ", ".join(f"{name} {n}" for name, n in zip(alike, ranks, strict=True))
    return f"by computing time {total} ranks would be better dealt out as {told}"


def link_lines(link: LinkContext, wire: Wire, *, alone: bool) -> list[str]:
    """What each field of a link moves and keeps. Collective over both programs, or this one alone."""
    ends, local = (link.name, link.peer), link.local
    sides: dict[Any, Outgoing | Incoming] = {(ends[0], name): side for name, side in link.gives.items()}
    sides |= {(ends[1], name): side for name, side in link.takes.items()}
    mine = {key: _about(sides[key], local, key[0] == ends[0]) for key in sides}
    if alone:
        return [_own_line(name, by, ends[by == ends[0]], mine[by, name]) for by, name in sorted(sides)]
    theirs = link.swapped(mine, "report")
    for number, key in enumerate(sorted(sides)):
        within = mine[key]["extent"] or theirs[key]["extent"]
        if within is not None:
            mine[key]["trial"] = trial.measure(wire, sides[key], number, within, local)
    theirs = link.swapped(mine, "report")
    both = {ends[0]: (mine, theirs), ends[1]: (theirs, mine)}  # (giver's, taker's), by the giver
    return [
        _line((source, name), ends[source == ends[0]], *both[source])
        for source, name in sorted(sides, key=lambda key: key[::-1])
    ]


def _own_line(name: str, source: str, target: str, about: Mapping[str, Any]) -> str:
    words = f"{name}: {source} -> {target}, {about['points']} points here, {about['mapping']}{about['cover']}"
    return words if about["integral"] is None else f"{words}; integral {about['integral']:.12g}"


def _line(key: tuple[str, str], target: str, givers: Mapping[Any, Any], takers: Mapping[Any, Any]) -> str:
    (source, name), given, taken = key, givers[key], takers[key]
    line = f"{name}: {source} -> {target}, {given['points']} points to {taken['points']}, {taken['mapping']}"
    line += "" if taken["trial"] is None else f": {trial.judged(given['trial'], taken['trial'])}"
    line += str(taken["cover"])
    if given["integral"] is None or taken["integral"] is None or given["version"] != taken["version"]:
        return line
    is_judged = taken["trial"] is not None and not taken["is_fixed"]
    if is_judged and not trial.comparable(given["trial"], taken["trial"]):
        return line
    a, b = given["integral"], taken["integral"]
    off = abs(a - b) / max(abs(a), 1e-300)
    word = "sum" if taken["trial"] is None else "integral"
    return f"{line}; {word} {a:.12g} to {b:.12g}, relative difference {off:.1e}"


def _about(side: Outgoing | Incoming, local: Communicator, gives: bool) -> dict[str, Any]:
    """This program's side of a field. Collective over its ranks."""
    field, is_judged = side.field, side.mapping not in ("none", *AMOUNTS)
    is_kept = side.mapping in AMOUNTS or side.mapping.startswith("cons") or side.fixer is not None
    is_kept = is_kept and side.turn is None
    return {
        "points": int(local.all_reduce(len(field.points))),
        "mapping": side.mapping,
        "integral": _integral(side, local) if is_kept else None,
        "version": side.version,
        "is_fixed": side.fixer is not None,
        "trial": None,
        "cover": _last(side) + _cover(side, local),
        "extent": trial.extent(field.grid, field.points, local) if gives and is_judged else None,
    }


def _last(side: Outgoing | Incoming) -> str:
    """The date of what was put or taken last, where there are dates."""
    clock = side.schedule.clock
    if clock.calendar is None or side.schedule.every is None or side.version == NONE:
        return ""
    return f"; last of {clock.said(side.schedule.time_of(side.version))}"


def _cover(side: Outgoing | Incoming, local: Communicator) -> str:
    """What there is to say of points that a mapping does not reach, or not all of. Collective over local."""
    weights = getattr(side, "weights", None)
    fraction = np.ones(0) if weights is None else weights.fraction
    none = 0 if weights is None else len(weights.uncovered)
    part = fraction[(fraction > 0) & (fraction < 1 - _WHOLE)]
    mine = [none, len(part), getattr(side, "nan_points", 0)]
    none, partly, lost = local.all_reduce(np.array(mine)).tolist()
    least = float(local.all_reduce(np.array(part.min(initial=1.0)), "min"))
    words = [f"{partly} points are covered in part, from {least:.1%} on"] if partly else []
    if none:
        uncovered = getattr(side, "uncovered", "keep")
        does = "kept" if uncovered == "keep" else f"filled with {uncovered}"
        words.append(f"{none} points that nothing reaches are {does}")
    if lost:
        words.append(f"{lost} points were nan last, because of sources that are")
    words += filter(None, [local.all_reduce_object("" if weights is None else weights.overlap, max)])
    return "".join(f"; {each}" for each in words)


def _integral(side: Outgoing | Incoming, local: Communicator) -> complex | None:
    """Of what was sent last, or taken last, of amounts the sum; None: that lies between two times."""
    if side.schedule.time == "linear":
        return None
    values: Any = host(getattr(side, "last", side.field.values))
    factor, offset = getattr(side, "conversion", (1.0, 0.0))
    area = np.ones(len(values)) if side.mapping in AMOUNTS else trial.weighing(side)
    area = area if side.fixer is None else side.fixer.area
    assert area is not None
    wide = values.reshape(len(area), width_of(side.field)).astype(np.result_type(values.dtype, np.float64))
    held = (wide - offset) / factor
    whole: complex = local.all_reduce(np.array((area[:, None] * held).sum())).item()
    return whole


def draw(rows: Sequence[Row], file: Path) -> None:
    """Draw the table into an SVG file."""
    try:
        file.write_text(bars(rows), encoding="utf-8")
    except OSError as error:
        what = f"{file} cannot be written: {error.strerror}"
        raise ConfigError(what, "report", "a folder that is there") from None


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
