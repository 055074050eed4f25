"""`hpcomm env`: the variables that hpcomm reads, and what they are now."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from functools import partial

from ..job.command_line import AS_JSON, Command, option, table
from ..job.variables import VARIABLES, unknown

parser = partial(
    Command,
    "hpcomm env",
    "List the variables that hpcomm reads, and what they are now.",
    option("--all", action="store_true", help="those, too, that hpcomm sets itself"),
    AS_JSON,
)


def main(words: Sequence[str]) -> int:
    """Carry out the command; returns the exit status."""
    options = parser().parse_args(list(words))
    records = [
        {**each._asdict(), "now": os.environ.get(each.name)}
        for each in VARIABLES
        if options.all or not each.own
    ]
    strange = unknown()
    if options.json:
        print(json.dumps({"variables": records, "unknown": strange}, indent=1))
        return 0
    rows = [(r["name"], r["now"] or "", r["values"], r["default"], r["what"]) for r in records]
    print(table(("variable", "now", "values", "default", "what"), rows, left=range(5)))
    for name, near in strange.items():
        print(f"\nnothing reads {name}{f'; is {near} meant?' if near else ''}")
    return 0
