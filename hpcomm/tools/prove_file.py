"""`hpcomm prove`: whether the algorithms of a Python file do what their operations say, on how many ranks.

python -m hpcomm prove star.py
python -m hpcomm prove star.py --ranks 2,3,48,1000 --algorithm star:chunks=4
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from functools import partial
from typing import Any

from ..core.verbs import ROOTED
from ..errors import HpcommError, UsageError
from ..job.command_line import AS_JSON, Command, option
from ..schedule.assured import Evidence, evidence
from ..schedule.interpret import ScheduleError
from ..schedule.registry import algorithms, load, named, verbs
from .sim import ranks_of

_RANKS = "1,2,3,4,5,6,7,8,9,12,15,16,17,24,31,32,33,48,64"
parser = partial(
    Command,
    "hpcomm prove",
    "Whether algorithms do what they should.",
    option("file", help="Python that registers algorithms"),
    option("--ranks", default=_RANKS, help="one number or several"),
    option("--algorithm", help="names with commas between, with parameters; default: all of the file"),
    AS_JSON,
)
_MOST = 1_000_000_000  # chunks that move: a minute
WRONG = 1  # exit status


def main(words: Sequence[str]) -> int:
    """Carry out the command; returns the exit status."""
    options = parser().parse_args(list(words))
    sizes = ranks_of(options.ranks)
    records = [_prove(verb, name, sizes) for verb, name in _loaded(options.file, options.algorithm)]
    if options.json:
        print(json.dumps(records, indent=1))
    else:
        for record in records:
            print(_told(record), file=sys.stderr if record["wrong"] else sys.stdout)
    return WRONG if any(record["wrong"] for record in records) else 0


def _loaded(file: str, asked: str | None) -> list[tuple[str, str]]:
    """The algorithms of a file, or those of them that are asked for: (verb, name)."""
    before = _registered()
    load(file)
    found = [each for each in _registered() if each not in before]
    if found and asked:
        words = named(found[0][0], asked)
        found = [(verb, word) for word in words for verb, name in found if name == word.partition(":")[0]]
    if not found:
        what = f"{file} registers no such algorithm"
        raise UsageError(what, hint='@register("star", "all_reduce") above a function')
    return found


def _registered() -> list[tuple[str, str]]:
    return [(verb, name) for verb in verbs() for name in algorithms(verb)]


def _prove(verb: str, algorithm: str, sizes: list[int]) -> dict[str, object]:
    """Prove one on all sizes and roots that it takes: what came of that."""
    tried = {p: _tried(verb, algorithm, p) for p in sizes}
    wrong = [p for p, found in tried.items() if isinstance(found, ScheduleError)]
    refused = [p for p, found in tried.items() if isinstance(found, HpcommError) and p not in wrong]
    right = [p for p in sizes if p not in (*wrong, *refused)]
    record = {"verb": verb, "algorithm": algorithm, "right": right, "refused": refused}
    if refused:
        record["why_refused"] = getattr(tried[refused[0]], "what", "")
    if wrong or not right:
        bad = wrong or refused
        return {**record, "wrong": bad, "why_wrong": str(tried[bad[0]]), "no_proof": not wrong}
    last: Any = tried[right[-1]]
    proof = last.proof
    return {
        **record,
        "wrong": [],
        "proved": last.words,
        "rounds": proof.rounds,
        "least_rounds": proof.least_rounds,
        "sent": proof.sent,
        "least_sent": proof.least_sent,
    }


def _told(found: dict[str, Any]) -> str:
    what, right, refused = f"{found['verb']} by {found['algorithm']}", found["right"], found["refused"]
    if found["wrong"]:
        how = "not for" if found["no_proof"] else "wrong on"
        return f"{what}: {how} {found['wrong'][0]} ranks\n{found['why_wrong']}"
    lines = [f"{what}: right on {', '.join(map(str, right))} ranks"]
    if refused:
        lines.append(f"  it is not for {', '.join(map(str, refused))}: {found['why_refused']}")
    lines.append(
        f"  on {right[-1]}, {found['proved']}: rounds {found['rounds']}, at least {found['least_rounds']}"
    )
    lines.append(f"  sent by the busiest rank {found['sent']:.4g} of x, at least {found['least_sent']:.4g}")
    return "\n".join(lines)


def _tried(verb: str, algorithm: str, p: int) -> Evidence | HpcommError:
    """What is known of an algorithm on p ranks, with all kinds of roots; or why it is not right."""
    roots = {0, p // 2, p - 1} if verb in ROOTED else {0}
    try:
        return [evidence(verb, algorithm, p, root, _MOST) for root in sorted(roots)][-1]
    except HpcommError as error:
        return error
