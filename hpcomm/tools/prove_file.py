"""`hpcomm prove`: whether the algorithms of a Python file do what their verbs say, on how many ranks.

python -m hpcomm prove star.py
python -m hpcomm prove star.py --ranks 2,3,48,1000 --algorithm star:chunks=4
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from ..errors import HpcommError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..schedule.assured import Evidence

__all__ = ["main"]

_RANKS = "1,2,3,4,5,6,7,8,9,12,15,16,17,24,31,32,33,48,64"
_MOST = 1_000_000_000  # chunks that move: a minute
WRONG = 1  # exit status


def main(words: Sequence[str]) -> int:
    """Carry out the command; returns the exit status."""
    options = _parser().parse_args(list(words))
    from ..schedule.registry import algorithms, load, named, verbs
    from .sim import ranks_of

    sizes = ranks_of(options.ranks)
    before = {(verb, name) for verb in verbs() for name in algorithms(verb)}
    load(options.file)
    found = [(verb, name) for verb in verbs() for name in algorithms(verb) if (verb, name) not in before]
    if options.algorithm:
        asked = named(found[0][0], options.algorithm) if found else []
        found = [(verb, word) for word in asked for verb, name in found if name == word.partition(":")[0]]
    if not found:
        raise UsageError(
            f"{options.file} registers no such algorithm",
            hint='@register("star", "all_reduce") above a function',
        )
    return max([_prove(verb, name, sizes) for verb, name in found])


def _prove(verb: str, algorithm: str, sizes: list[int]) -> int:
    """Prove one on all sizes and roots that it takes, and say so; returns the exit status."""
    from ..schedule.interpret import ScheduleError

    tried = {p: _tried(verb, algorithm, p) for p in sizes}
    wrong = [p for p, found in tried.items() if isinstance(found, ScheduleError)]
    refused = [p for p, found in tried.items() if isinstance(found, HpcommError) and p not in wrong]
    right = [p for p in sizes if p not in (*wrong, *refused)]
    if wrong or not right:
        p = (wrong or refused)[0]
        print(
            f"{verb} by {algorithm}: {'wrong on' if wrong else 'not for'} {p} ranks\n{tried[p]}",
            file=sys.stderr,
        )
        return WRONG
    print(f"{verb} by {algorithm}: right on {', '.join(map(str, right))} ranks")
    if refused:
        print(f"  it is not for {', '.join(map(str, refused))}: {getattr(tried[refused[0]], 'what', '')}")
    last: Any = tried[right[-1]]
    proof = last.proof
    print(f"  on {right[-1]}, {last.words}: rounds {proof.rounds}, at least {proof.least_rounds}")
    print(f"  sent by the busiest rank {proof.sent:.4g} of x, at least {proof.least_sent:.4g}")
    return 0


def _tried(verb: str, algorithm: str, p: int) -> Evidence | HpcommError:
    """What is known of an algorithm on p ranks, with all kinds of roots; or why it is not right."""
    from ..core.verbs import ROOTED
    from ..schedule.assured import evidence

    roots = {0, p // 2, p - 1} if verb in ROOTED else {0}
    try:
        return [evidence(verb, algorithm, p, root, _MOST) for root in sorted(roots)][-1]
    except HpcommError as error:
        return error


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="hpcomm prove", description="whether algorithms do what they should"
    )
    parser.add_argument("file", help="Python that registers algorithms")
    parser.add_argument("--ranks", default=_RANKS, help=f"one number or several; {_RANKS}")
    parser.add_argument(
        "--algorithm", help="names with commas between, with parameters; default: all of the file"
    )
    return parser
