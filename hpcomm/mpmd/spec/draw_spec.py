"""`hpcomm check`, `hpcomm plan` and `hpcomm mpmd draw`: what a spec says, before anything starts."""

from __future__ import annotations

import html
import json
import math
from pathlib import Path
from typing import TYPE_CHECKING

from ...errors import ConfigError
from ...job.command_line import Command
from ..record_reader import read

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .spec_file import FieldSpec, JobSpec, ProgramSpec

__all__ = ["check", "check_parser", "main", "parser", "plan", "plan_parser", "svg"]


def check(argv: Sequence[str]) -> int:
    """`hpcomm check SPEC.toml ...`; the first that is wrong ends it."""
    options = check_parser().parse_args(list(argv))
    records = []
    for path in options.spec or [""]:
        spec = _read([path], "check")
        ranks = sum(program.ranks for program in spec.programs.values())
        counts = ((len(spec.programs), "program"), (ranks, "rank"), (len(spec.fields), "field"))
        told = ", ".join(f"{n} {what}" + "s" * (n != 1) for n, what in counts)
        records.append({"spec": str(spec.path), **{what: n for n, what in counts}})
        if not options.json:
            print(f"{spec.path.name} is right: {told}")
    if options.json:
        print(json.dumps(records, indent=1))
    return 0


def plan(argv: Sequence[str]) -> int:
    """`hpcomm plan SPEC.toml`."""
    options = plan_parser().parse_args(list(argv))
    spec = _read(options.spec, "plan")
    if options.json:
        print(json.dumps(_planned(spec), indent=1))
        return 0
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
    """`hpcomm mpmd draw SPEC.toml [-o FILE]`."""
    options = parser().parse_args(list(argv) or ["--help"])
    if options.command != "draw":
        raise ConfigError(
            f"hpcomm mpmd has no command {options.command!r}", "hpcomm mpmd", "hpcomm mpmd draw SPEC.toml"
        )
    spec = _read(options.spec, "mpmd draw")
    file = Path(options.output) if options.output else spec.path.with_suffix(".svg")
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


def check_parser() -> Command:
    """Options of `hpcomm check`."""
    made = Command("hpcomm check", "Say whether each spec is right; start nothing.")
    made.add_argument("spec", nargs="*", metavar="SPEC.toml", help="jobs of several programs")
    made.add_argument("--json", action="store_true", help="a list of records instead of text")
    return made


def plan_parser() -> Command:
    """Options of `hpcomm plan`."""
    made = Command("hpcomm plan", "Say who would start where, and what goes where when.")
    made.add_argument("spec", nargs="*", metavar="SPEC.toml", help="a job of several programs")
    made.add_argument("--json", action="store_true", help="programs and fields as records")
    return made


def parser() -> Command:
    """Options of `hpcomm mpmd`."""
    made = Command("hpcomm mpmd", "Draw the programs and fields of a spec.")
    made.add_argument("command", metavar="draw", help="the only one there is")
    made.add_argument("spec", nargs="*", metavar="SPEC.toml", help="a job of several programs")
    made.add_argument("-o", "--output", metavar="FILE", help=".svg or .html (default: SPEC.svg)")
    return made


def _planned(spec: JobSpec) -> dict[str, object]:
    programs = [
        {
            "program": name,
            "ranks": list(ranks),
            "device": spec.programs[name].device,
            "hosts": [host for host, _ in spec.programs[name].hosts],
            "joins": spec.programs[name].joins,
        }
        for name, ranks in spec.world_ranks().items()
    ]
    fields = [
        {"field": each.name, "from": each.source, "to": each.target, "how": _about(each)}
        for each in spec.fields
    ]
    return {"spec": str(spec.path), "programs": programs, "fields": fields}


def _read(argv: Sequence[str], command: str) -> JobSpec:
    """The spec that these words are."""
    if not argv or not argv[0].endswith(".toml"):
        what = f"{argv[0]!r} is no spec: its name ends with .toml" if argv and argv[0] else "which spec?"
        raise ConfigError(what, f"hpcomm {command}", f"hpcomm {command} SPEC.toml")
    if len(argv) > 1:
        raise ConfigError(f"what is {argv[1]!r}?", f"hpcomm {command}", f"hpcomm {command} {argv[0]}")
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
