"""`hpcomm check`, `hpcomm plan` and `hpcomm mpmd draw`: what a spec says, before anything starts."""

from __future__ import annotations

import html
import math
from pathlib import Path
from typing import TYPE_CHECKING

from ...errors import ConfigError
from ..record_reader import read

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .spec_file import FieldSpec, JobSpec, ProgramSpec

__all__ = ["check", "main", "plan", "svg"]

USAGE = {
    "check": "usage: hpcomm check SPEC.toml ...\n\nSay whether each spec is right; start nothing.",
    "plan": "usage: hpcomm plan SPEC.toml\n\nSay who would start where, and what goes where when.",
    "mpmd": "usage: hpcomm mpmd draw SPEC.toml [FILE]\n\nDraw it into FILE.svg or FILE.html.",
}


def check(argv: Sequence[str]) -> int:
    """`hpcomm check SPEC.toml ...`; the first that is wrong ends it."""
    if _helped("check", argv):
        return 0
    for path in argv or [""]:
        spec = _read([path], "check")
        ranks = sum(program.ranks for program in spec.programs.values())
        counts = ((len(spec.programs), "program"), (ranks, "rank"), (len(spec.fields), "field"))
        told = ", ".join(f"{n} {what}" + "s" * (n != 1) for n, what in counts)
        print(f"{spec.path.name} is right: {told}")
    return 0


def plan(argv: Sequence[str]) -> int:
    """`hpcomm plan SPEC.toml`."""
    if _helped("plan", argv):
        return 0
    spec = _read(argv, "plan")
    for name, ranks in spec.world_ranks().items():
        program = spec.programs[name]
        where = ", ".join(host for host, _ in program.hosts) or "anywhere"
        alone = "" if program.joins else ", does not join"
        numbers = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {ranks[0]}-{ranks[-1]}"
        print(f"program {name}: {numbers}, {program.device}, {where}{alone}")
    for each in spec.fields:
        print(f"field {each.name}: {each.source} -> {each.target}, {_about(each)}")
    return 0


def main(argv: Sequence[str]) -> int:
    """`hpcomm mpmd draw SPEC.toml [FILE]`."""
    if _helped("mpmd", argv or ["--help"]):
        return 0
    if argv[0] != "draw":
        raise ConfigError(
            f"hpcomm mpmd has no command {argv[0]!r}", "hpcomm mpmd", "hpcomm mpmd draw SPEC.toml"
        )
    spec = _read(argv[1:], "mpmd draw", most=2)
    file = Path(argv[2]) if len(argv) > 2 else spec.path.with_suffix(".svg")
    if file.suffix not in (".svg", ".html"):
        raise ConfigError(f"cannot draw into {file.name}", "hpcomm mpmd draw", "a file called .svg or .html")
    picture = svg(spec)
    page = f"<!doctype html><title>{html.escape(spec.name)}</title>\n{picture}"
    try:
        file.write_text(picture if file.suffix == ".svg" else page, encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"{file} cannot be written: {error.strerror}", "hpcomm mpmd draw", "a folder that is there"
        ) from None
    print(f"drawn: {file}")
    return 0


def _helped(command: str, argv: Sequence[str]) -> bool:
    asked = bool(argv) and argv[0] in ("-h", "--help")
    if asked:
        print(USAGE[command])
    return asked


def _read(argv: Sequence[str], command: str, most: int = 1) -> JobSpec:
    """The spec that these words begin with. most: of words that the command takes."""
    if not argv or not argv[0].endswith(".toml"):
        what = f"{argv[0]!r} is no spec: its name ends with .toml" if argv and argv[0] else "which spec?"
        raise ConfigError(what, f"hpcomm {command}", f"hpcomm {command} SPEC.toml")
    if len(argv) > most:
        raise ConfigError(
            f"what is {argv[most]!r}?", f"hpcomm {command}", f"hpcomm {command} {' '.join(argv[:most])}"
        )
    return read(Path(argv[0]))


def _about(each: FieldSpec) -> str:
    parts = [] if each.mapping == "none" else [each.mapping]
    if each.every_s is not None:
        parts.append(f"every {each.every_s:g} s")
    if each.time != "instant":
        parts.append(each.time)
    if each.lag_s:
        parts.append(f"lag {each.lag_s:g} s")
    if each.implicit:
        parts.append("implicit")
    if each.source_unit:
        same = each.source_unit == each.target_unit
        parts.append(each.source_unit if same else f"{each.source_unit} to {each.target_unit}")
    return ", ".join(parts) or "as it is"


def svg(spec: JobSpec) -> str:
    """Programs on a circle with a square per rank, and an arrow per field."""
    radius = 150.0 + 30.0 * len(spec.programs)
    wide, high = 2 * radius + 260, 2 * radius + 160
    at = {}
    for i, name in enumerate(spec.programs):
        turn = 2 * math.pi * i / len(spec.programs) - math.pi
        at[name] = (wide / 2 + radius * math.cos(turn), high / 2 + radius * math.sin(turn) * 0.8)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide:.0f} {high:.0f}"',
        ' font-family="sans-serif" font-size="13">',
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8"',
        ' orient="auto"><path d="M0,0 L8,4 L0,8 z"/></marker></defs>',
    ]
    between: dict[frozenset[str], int] = {}
    for each in spec.fields:
        pair = frozenset((each.source, each.target))
        between[pair] = between.get(pair, 0) + 1
        parts.append(_arrow(each, at[each.source], at[each.target], between[pair]))
    parts += [_box(spec.programs[name], ranks, *at[name]) for name, ranks in spec.world_ranks().items()]
    return "\n".join([*parts, "</svg>\n"])


def _arrow(each: FieldSpec, a: tuple[float, float], b: tuple[float, float], nth: int) -> str:
    """A bent arrow; the nth between two programs is bent more."""
    dx, dy = b[0] - a[0], b[1] - a[1]
    length = math.hypot(dx, dy) or 1.0
    bend = 40.0 * ((nth + 1) // 2)
    ux, uy = dx / length, dy / length
    x0, y0, x1, y1 = a[0] + 75 * ux, a[1] + 45 * uy, b[0] - 75 * ux, b[1] - 45 * uy
    mx, my = (x0 + x1) / 2 - bend * uy * 2, (y0 + y1) / 2 + bend * ux * 2
    tx, ty = (x0 + x1) / 2 - bend * uy, (y0 + y1) / 2 + bend * ux
    dash = ' stroke-dasharray="5 3"' if each.lag_s else ""
    text = html.escape(f"{each.name}: {_about(each)}")
    return (
        f'<path d="M{x0:.0f},{y0:.0f} Q{mx:.0f},{my:.0f} {x1:.0f},{y1:.0f}" fill="none" stroke="black"{dash} '
        f'marker-end="url(#tip)"/><text x="{tx:.0f}" y="{ty - 4:.0f}" text-anchor="middle">{text}</text>'
    )


def _box(program: ProgramSpec, ranks: range, x: float, y: float) -> str:
    fill = "#d8ecd8" if program.device == "gpu" else "#dde6f4"
    stroke = "black" if program.joins else "gray"
    shown = list(ranks)[:8]
    squares = "".join(
        f'<rect x="{x - 9 * len(shown) + 18 * i:.0f}" y="{y + 8:.0f}" width="15" height="15" fill="white" '
        f'stroke="black"/><text x="{x - 9 * len(shown) + 18 * i + 7:.0f}" y="{y + 20:.0f}" font-size="10" '
        f'text-anchor="middle">{rank}</text>'
        for i, rank in enumerate(shown)
    )
    more = f" ({len(ranks)} ranks)" if len(ranks) > len(shown) else ""
    return (
        f'<rect x="{x - 75:.0f}" y="{y - 35:.0f}" width="150" height="70" rx="8" fill="{fill}"'
        f' stroke="{stroke}"/><text x="{x:.0f}" y="{y - 14:.0f}" text-anchor="middle"'
        f' font-weight="bold">{html.escape(program.name)}'
        f'</text><text x="{x:.0f}" y="{y + 2:.0f}" text-anchor="middle" font-size="11">{program.device}{more}'
        f"</text>{squares}"
    )
