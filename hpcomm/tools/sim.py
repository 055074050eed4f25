"""`hpcomm sim`: what collectives would take on a machine, as a table or as JSON.

python -m hpcomm sim all_reduce --algorithm ring,tree,double_tree --ranks 24576 --bytes 8 --machine summit
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from ..errors import UsageError
from ..job.command_line import AS_JSON, LOAD, Command, duration, option, size
from ..job.command_line import table as laid_out
from ..schedule.assured import evidence
from ..schedule.cost.machine_model import lower_bound, machine
from ..schedule.cost.simulator import meant, simulate
from ..schedule.registry import load, named

_NAMES = "names with commas between, with parameters as in double_tree:chunks=16"
_FIT = """measure a ping-pong of 2 ranks here, write the machine to FILE (default: here.json), and say how far
off it is"""
parser = partial(
    Command,
    "hpcomm sim",
    "What collectives take on a machine.",
    option("verb", nargs="?", metavar="operation", default="all_reduce", help="all_reduce, broadcast, ..."),
    option("--algorithm", default="all", help=_NAMES),
    option("--ranks", default="8", help="one number or several: 96,384,1536"),
    option("--bytes", default="8", help="of x; one or several: 8,64k,1M"),
    option("--machine", default="cluster", help="a preset's name, or a JSON file"),
    LOAD,
    option("--flat", action="store_true", help="let no algorithm treat nodes apart"),
    AS_JSON,
    option("--fit", metavar="FILE", nargs="?", const="here.json", help=_FIT),
)
MOST_RANKS = 1_000_000  # of a simulation
_DIGITS = 18  # of a number
_SUFFIXES = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


def main(words: Sequence[str]) -> int:
    """Carry out the command; returns the exit status."""
    options = parser().parse_args(list(words))
    if options.fit:
        from . import fit

        return fit.report(options.fit, as_json=options.json)
    if options.load:
        load(options.load)
    names = named(options.verb, options.algorithm)
    records = [
        record(options.verb, name, ranks, nbytes, options.machine, options.flat)
        for ranks in ranks_of(options.ranks)
        for nbytes in numbers(options.bytes)
        for name in names
    ]
    print(json.dumps(records, indent=1) if options.json else table(records, options.machine))
    return 0


def record(
    verb: str, algorithm: str, ranks: int, nbytes: int, name: str, flat: bool = False
) -> dict[str, Any]:
    """One prediction: algorithm, ranks, bytes, seconds, and what else is known about it."""
    on = machine(name)
    if flat:
        on = replace(on, nodewise=())
    schedule = meant(verb, algorithm, ranks, nbytes, on)
    known = evidence(verb, schedule.name, ranks)
    begin = time.perf_counter()
    found = simulate(schedule, on, nbytes)
    return {
        "verb": verb,
        "algorithm": algorithm,
        "schedule": found.schedule.name,
        "ranks": ranks,
        "bytes": nbytes,
        "seconds": found.seconds,
        "machine": name,
        "lower_bound": lower_bound(verb, ranks, nbytes, on),
        "iterations": found.iterations,
        "load": {kind: {"busiest": most, "total": total} for kind, (most, total) in found.load.items()},
        "simulated_in": time.perf_counter() - begin,
        "proof": known.words,
    }


def table(records: list[dict[str, Any]], name: str) -> str:
    """The records as text, with where the machine's figures come from below."""
    on = machine(name)
    lines = [f"{on.name}: {on.about}", ""]
    rows = []
    for r in records:
        busiest = [size(r["load"][kind]["busiest"]) for kind in ("rank", "nic")]
        rows.append(
            [r["schedule"], r["ranks"], r["bytes"], duration(r["seconds"]), r["iterations"], *busiest]
        )
    head = ("algorithm", "ranks", "bytes", "time", "rounds", "sent/rank", "NIC")
    lines.append(laid_out(head, rows, rule=False))
    sampled = sorted({r["schedule"] for r in records if r["proof"].startswith("sampled")})
    if sampled:
        lines += ["", f"too large to be proved as they are, so proved on fewer ranks: {', '.join(sampled)}"]
    lines += ["", "where the figures come from:"]
    lines += [f"  {key}: {text}" for key, text in on.sources.items()]
    return "\n".join(lines)


def numbers(text: str) -> list[int]:
    """`8,64k,1M` -> [8, 65536, 1048576]."""
    found = []
    for word in text.split(","):
        scale = _SUFFIXES.get(word[-1:].lower(), 1)
        digits = word[:-1] if scale > 1 else word
        if not digits.isdecimal() or len(digits) > _DIGITS:
            raise UsageError(f"{word!r:.60} is no number", hint="8, 64k, 1M, or several: 8,64k,1M")
        found.append(int(digits) * scale)
    return found


def ranks_of(text: str) -> list[int]:
    """numbers(text), as numbers of ranks."""
    found = numbers(text)
    for ranks in found:
        check_ranks(ranks)
    return found


def check_ranks(ranks: int) -> None:
    """Refuse what no schedule is made for."""
    if ranks > MOST_RANKS:
        raise UsageError(f"{ranks:,} ranks are too many to simulate", hint=f"at most {MOST_RANKS:,}")
