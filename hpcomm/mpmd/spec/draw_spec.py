"""Commands that read a spec: `hpcomm run`, and `hpcomm check`, `hpcomm plan`, `hpcomm mpmd draw`."""

from __future__ import annotations

import html
import json
import os
import shlex
import sys
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from ...errors import ConfigError, counted, named
from ...job import run_spec
from ...job.command_line import AS_JSON, Command, check_file, option
from ...job.optional_packages import load
from ...job.spec import schema
from ...job.spec.programs import ProgramSpec
from .spec_file import FieldSpec, JobSpec
from .spec_reader import read

_SPEC = option("spec", nargs="*", metavar="SPEC.toml", help="a job of several programs")
_SCHEMA = option("--schema", action="store_true", help="print the JSON Schema of specs, for editors")
_CHECK = "Say whether each spec is right; start nothing."
check_parser = partial(Command, "hpcomm check", _CHECK, _SPEC, AS_JSON, _SCHEMA)
_PLAN = "Say who would start where, and what goes where when."
plan_parser = partial(Command, "hpcomm plan", _PLAN, _SPEC, AS_JSON)
parser = partial(
    Command,
    "hpcomm mpmd",
    "Draw the programs and fields of a spec.",
    option("command", metavar="draw", help="the only one there is"),
    _SPEC,
    option("-o", "--output", metavar="FILE", help=".svg or .html (default: SPEC.svg)"),
    usage="hpcomm mpmd draw [-h] [-o FILE] SPEC.toml",
)
_FONT = "DejaVu Sans"  # wide, so that there is room for the text where another one takes its place
_MOST_RANKS = 8  # shown of a program
_WIDEST = 30  # characters in a line of a field's label


def run(argv: Sequence[str]) -> int:
    """`hpcomm run SPEC.toml`; the job's exit status."""
    asked = run_spec.parse(argv)
    return run_spec.run(read(asked.spec), asked)


def check(argv: Sequence[str]) -> int:
    """`hpcomm check SPEC.toml ...`; the first that is wrong ends it."""
    options = check_parser().parse_args(list(argv))
    if options.schema:
        print(schema.TEXT, end="")
        return 0
    records = []
    for path in options.spec or [""]:
        spec = _read([path], "check")
        counts = {"program": len(_whole(spec))}
        if members := sum(program.member > 0 for program in spec.programs.values()):
            counts["member"] = members
        counts["rank"] = sum(program.ranks for program in spec.programs.values())
        counts["field"] = len(spec.written)
        records.append({"spec": str(spec.path), **counts})
        if not options.json:
            told = ", ".join(counted(n, what) for what, n in counts.items())
            print(f"{spec.path.name} is right: {told}")
    if options.json:
        print(json.dumps(records, indent=1))
    return 0


def plan(argv: Sequence[str]) -> int:
    """`hpcomm plan SPEC.toml`."""
    options = plan_parser().parse_args(list(argv))
    spec = _read(options.spec, "plan")
    told = _planned(spec)
    if options.json:
        print(json.dumps(told, indent=1))
        return 0
    if told["time"]:
        print(f"time: {told['time']}")
    for each in told["programs"]:
        where = ", ".join(each["hosts"]) or "anywhere"
        alone = "" if each["joins"] else ", does not join"
        print(f"program {each['program']}: {named(each['ranks'])}, {each['device']}, {where}{alone}")
    for each in told["fields"]:
        print("field {field}: {from} -> {to}, {how}".format(**each))
    return 0


def main(argv: Sequence[str]) -> int:
    """`hpcomm mpmd draw SPEC.toml [-o FILE]`."""
    options = parser().parse_args(list(argv) or ["--help"])
    if options.command != "draw":
        what = f"hpcomm mpmd has no command {options.command!r}"
        raise ConfigError(what, "hpcomm mpmd", "hpcomm mpmd draw SPEC.toml")
    spec = _read(options.spec, "mpmd draw")
    file = Path(options.output) if options.output else spec.path.with_suffix(".svg")
    if file.suffix not in (".svg", ".html"):
        raise ConfigError(f"cannot draw into {file.name}", "hpcomm mpmd draw", "a file called .svg or .html")
    picture = svg(spec)
    page = f"<!doctype html><title>{html.escape(spec.name)}</title>\n{picture}"
    check_file(file)
    file.write_text(picture if file.suffix == ".svg" else page, encoding="utf-8")
    print(f"drawn: {file}")
    return 0


def _planned(spec: JobSpec) -> dict[str, Any]:
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
    by_date = spec.calendar is not None
    fields = [
        {"field": each.name, "from": each.source, "to": each.target, "how": _about(each, by_date)}
        for each in spec.written
    ]
    return {"spec": str(spec.path), "time": _dates(spec), "programs": programs, "fields": fields}


def _read(argv: Sequence[str], command: str) -> JobSpec:
    """The spec that these words are."""
    if not argv or not argv[0].endswith(".toml"):
        what = f"{argv[0]!r} is no spec: its name ends with .toml" if argv and argv[0] else "which spec?"
        raise ConfigError(what, f"hpcomm {command}", f"hpcomm {command} SPEC.toml")
    if len(argv) > 1:
        hint = f"hpcomm {command} {shlex.quote(argv[0])}"
        raise ConfigError(f"what is {argv[1]!r}?", f"hpcomm {command}", hint)
    return read(Path(argv[0]), command=f"hpcomm {command}")


def _dates(spec: JobSpec) -> str | None:
    """From when to when the model runs; None: it has no dates."""
    if spec.calendar is None:
        return None
    stop = "" if spec.until_s is None else f" to {spec.calendar.said(spec.until_s)}"
    return f"{spec.calendar.said(0.0)}{stop or ' on'}, calendar {spec.calendar.name}"


def _about(each: FieldSpec, by_date: bool) -> str:
    parts = [" and ".join(each.vector)] if isinstance(each.vector, tuple) else []
    parts += [] if each.mapping == "none" else each.methods
    period = "" if each.every is None else each.every.said(by_date)
    if each.implicit:
        parts.append(f"implicit, window {period}" if period else "implicit")
    else:
        parts += [f"every {period}"] * bool(period) + [each.time] * (each.time != "instant")
    if each.lag.seconds:
        parts.append(f"lag {each.lag.said(by_date)}")
    if each.source_unit:
        same = each.source_unit == each.target_unit
        parts.append(each.source_unit if same else f"{each.source_unit} to {each.target_unit}")
    return ", ".join(parts) or "as it is"


def svg(spec: JobSpec) -> str:
    """Programs as boxes with a square per rank, and an arrow per field; Graphviz places them."""
    hint = "pip install 'hpcomm[graph]'; hpcomm plan says the same in words"
    graphviz = load("pygraphviz", "drawing a spec needs pygraphviz", "hpcomm mpmd draw", hint)
    graph = graphviz.AGraph(directed=True, strict=False, nodesep=0.6, ranksep=0.7)
    graph.node_attr.update(shape="box", style="rounded,filled", fontname=_FONT, fontsize=12)
    graph.edge_attr.update(fontname=_FONT, fontsize=11)
    for name, (program, ranks) in _whole(spec).items():
        fill = "#d8ecd8" if program.device == "gpu" else "#dde6f4"
        edge = "black" if program.joins else "gray"
        graph.add_node(name, label=_box(program, ranks), fillcolor=fill, color=edge)
    if dates := _dates(spec):
        graph.graph_attr.update(label=dates, labelloc="b", fontname=_FONT, fontsize=11)
    for i, each in enumerate(spec.written):
        style = "dashed" if each.lag.seconds else "solid"
        graph.add_edge(each.source, each.target, key=str(i), label=_label(each, spec), style=style)
    with _without_stderr():
        text: str = graph.draw(format="svg", prog="dot").decode()
    return text[text.index("<svg") :]


def _whole(spec: JobSpec) -> dict[str, tuple[ProgramSpec, range]]:
    """Programs as the file has them, and their ranks: of an ensemble a member, and the ranks of all."""
    found: dict[str, tuple[ProgramSpec, range]] = {}
    for name, ranks in spec.world_ranks().items():
        program = spec.programs[name]
        _, others = found.get(program.ensemble, (program, ranks))
        found[program.ensemble] = program, range(others.start, ranks.stop)
    return found


def _box(program: ProgramSpec, ranks: range) -> str:
    """A program in Graphviz's HTML: its name, its device, its ranks."""
    shown = [str(rank) for rank in ranks[:_MOST_RANKS]]
    cells = "".join(f'<td border="1" bgcolor="white">{rank}</td>' for rank in shown)
    more = f", {len(ranks)} ranks" if len(ranks) > len(shown) else ""
    members = f", {program.members} members" if program.members else ""
    rows = [f"<b>{html.escape(program.ensemble)}</b>{members}", f"{program.device}{more}"]
    wide = "".join(f'<tr><td colspan="{len(shown)}">{row}</td></tr>' for row in rows)
    return f'<<table border="0" cellspacing="3">{wide}<tr>{cells}</tr></table>>'


def _label(each: FieldSpec, spec: JobSpec) -> str:
    """A field in Graphviz's HTML, in short lines; they begin behind the arrow."""
    about = textwrap.wrap(_about(each, spec.calendar is not None), _WIDEST)
    lines = [f"<b>{html.escape(each.name)}</b>", *map(html.escape, about)]
    text = "<br/>".join(lines)
    return f'<<table border="0" cellspacing="0"><tr><td balign="left">{text}</td></tr></table>>'


@contextmanager
def _without_stderr() -> Iterator[None]:
    """Keep from the terminal what libraries in C write there about the fonts of the machine."""
    sys.stderr.flush()
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)
