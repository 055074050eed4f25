"""`hpcomm diff A B`: the first call in which two runs with --fingerprint differ, with line and ranks."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from .._lazy import NDArray
from ..communicator import program_calls
from ..communicator.fingerprint import CALL, CALLS, KINDS
from ..errors import counted, named
from ..job.command_line import Command, option

parser = partial(
    Command,
    "hpcomm diff",
    "Name the first call in which two runs differ. The exit status is 1 if they do.",
    *(
        option(name, metavar="FOLDER", help="what hpcomm run --fingerprint FOLDER has written")
        for name in "ab"
    ),
)
_CALL = np.dtype([("kind", "<u4"), ("given", "<u4"), ("got", "<u8")])
_OF_SIZE = re.compile(r" \([\d, ]*\)|, (root|src|dst)=\d+|\(\w+=\d+\)")  # what other numbers of ranks change
assert _CALL.itemsize == CALL.size


class Rank(NamedTuple):
    """What a rank has written: about the run and its kinds of calls; and its calls."""

    kinds: list[dict[str, Any]]
    calls: NDArray[Any]

    @property
    def size(self) -> int:
        """How many ranks its program had."""
        return int(self.kinds[0]["ranks"])

    def kind(self, n: int) -> dict[str, Any]:
        """Of call n; empty where it has not ended."""
        return self.kinds[self.calls[n]["kind"]] if n < len(self.calls) and self.calls[n]["kind"] else {}

    def shared(self) -> NDArray[np.bool_]:
        """Which calls all ranks of the program make, and get what can be put together."""
        alike = [each.get("size") == self.size and each["how"] != "each" for each in self.kinds[1:]]
        found: NDArray[np.bool_] = np.array([False, *alike])[self.calls["kind"]]
        return found

    def words(self, n: int) -> str:
        """Call n, with its line."""
        if n >= len(self.calls):
            return f"nothing more: {counted(len(self.calls), 'call')}"
        if not (its := self.kind(n)):
            return "a call that has not ended, or was not waited for"
        return f"{its['call']} on '{its['on']}' at {its['line']}"


Ranks = dict[int, Rank]


def main(argv: Sequence[str]) -> int:
    """Carry out the command; 1 where the runs differ."""
    options = parser().parse_args(list(argv))
    one, two = _read(Path(options.a)), _read(Path(options.b))
    lacking = sorted(one.keys() ^ two.keys())
    found = [(False, f"only {'A' if name in one else 'B'} has {_called(name)}") for name in lacking]
    for name in sorted(one.keys() & two.keys()):
        a, b = one[name], two[name]
        for which, ranks in (("A", a), ("B", b)):
            print(f"{which}{f' {name}' * bool(name)}: {_about(ranks)}")
        same_size = a[min(a)].size == b[min(b)].size
        if said := (_first if same_size else _first_of_all)(a, b):
            takes = ".get(" in said or ".exchange(" in said  # then another program may have caused it
            found.append((takes, f"{_called(name)}: {said}" if name else said))
    print("\n".join(text for _, text in sorted(found)) or "no difference")
    return int(bool(found))


def _about(ranks: Ranks) -> str:
    """How many ranks a program has, by which MPI, and how many calls they made."""
    about = ranks[min(ranks)].kinds[0]
    calls = counted(sum(len(each.calls) for each in ranks.values()), "call")
    return f"{counted(about['ranks'], 'rank')}, {about['mpi']}, {calls}"


def _read(folder: Path) -> dict[str, Ranks]:
    """The ranks of each program."""
    found: dict[str, Ranks] = {}
    for program, rank, kinds, calls in program_calls.read(
        folder, (KINDS, CALLS), _CALL, "hpcomm diff", "fingerprint"
    ):
        calls = calls[: len(calls) if calls["kind"].max(initial=0) < len(kinds) else 0]
        found.setdefault(program, {})[rank] = Rank(kinds, calls)
    return found


def _called(program: str) -> str:
    return f"program '{program}'" if program else "a program without a name"


# -- as many ranks ---------------------------------------------------------------------------------------
class _Differs(NamedTuple):
    """The first difference of a rank; in this order they may have caused one another.

    Attributes:
        before: how many calls of all ranks it has made before; is_shared: whether this is one.
        takes: whether what it gave is the same.
    """

    before: int
    is_shared: bool
    takes: bool
    n: int
    rank: int


def _first(a: Ranks, b: Ranks) -> str:
    """What is to be said of the first difference; empty: there is none."""
    lacking = a.keys() ^ b.keys()
    if lacking:
        return f"{named(lacking)} made no call in {'A' if lacking & b.keys() else 'B'}"
    found = sorted(each for rank in a if (each := _differs(rank, a[rank], b[rank])) is not None)
    if not found:
        return ""
    first = found[0]
    x, y, n = a[first.rank], b[first.rank], first.n
    near = [each for each in found if each[:2] == first[:2]]
    if not first.is_shared:  # of messages, that one alone
        near = [each for each in near if each[:4] == first[:4] and a[each.rank].kind(n) == x.kind(n)]
    of = f"call {n + 1} of {named({each.rank for each in near})}"
    return _told(of, (x.words(n), y.words(n)), _why(x, y, n, near), x.words(n - 1) if n else "")


def _told(of: str, both: tuple[str, str], why: str, last: str) -> str:
    rows = [("A", both[0]), ("B", both[1]), ("why", why), ("equal", f"up to {last or 'the start'}")]
    return "\n".join([f"first difference: {of}", *(f"  {name:6} {text}" for name, text in rows)])


def _differs(rank: int, a: Rank, b: Rank) -> _Differs | None:
    n = min(len(a.calls), len(b.calls))
    numbers = {words: i for i, words in enumerate({*map(_signature, a.kinds), *map(_signature, b.kinds)})}
    x, y = (
        np.array([numbers[_signature(kind)] for kind in run.kinds])[run.calls["kind"][:n]] for run in (a, b)
    )
    alike = (
        (x == y) & (a.calls["given"][:n] == b.calls["given"][:n]) & (a.calls["got"][:n] == b.calls["got"][:n])
    )
    at = int(np.argmin(alike)) if not alike.all() else n
    if at == len(a.calls) == len(b.calls):
        return None
    longer = a if at < len(a.calls) else b
    is_shared = longer.shared()
    of = "got" if _is_own(longer.kind(at)) else "given"
    takes = at == n or bool(a.calls[of][at] == b.calls[of][at])
    return _Differs(int(is_shared[:at].sum()), bool(is_shared[at]), takes, at, rank)


def _is_own(kind: dict[str, Any]) -> bool:
    """Whether what is written as got is the rank's own elements, and as given what lies around them, too."""
    return str(kind.get("call")).startswith(("Halo.", "Field.update_halo(", "Link.put(", "Program.put("))


def _signature(kind: dict[str, Any]) -> tuple[str, ...]:
    return kind.get("call", ""), kind.get("on", "")


def _why(a: Rank, b: Rank, n: int, near: list[_Differs]) -> str:
    x, y = a.kind(n), b.kind(n)
    if not (x and y):
        return "a run that ended early, or a request that was not waited for" if x or y else ""
    if _signature(x) != _signature(y):
        return "other calls"
    givers = {each.rank for each in near if not each.takes}
    if givers:
        return f"{named(givers)} gave other values: look before this call"
    if _is_own(x):
        return "other elements in the halo"
    of = " out of the same" if a.calls[n]["given"] else ""
    return f"other values came{of}: from another rank, in another order, by a race, by what MPI does"


# -- another number of ranks -----------------------------------------------------------------------------
def _first_of_all(a: Ranks, b: Ranks) -> str:
    """The same of the calls that all ranks make, whose results are put together."""
    (x, there), (y, others) = _together(a), _together(b)
    n = min(len(there), len(others))
    print(f"other numbers of ranks: compared are dtypes and values of {n} calls that all ranks make;")
    print("not compared: shapes, messages, and what hangs on the cut: scan, all_to_all, objects of each rank")
    at = next((i for i in range(n) if there[i][1:] != others[i][1:]), n)
    if at == len(there) == len(others):
        return ""
    numbers = (calls[at][0] if at < len(calls) else sys.maxsize for calls in (there, others))
    both = x.words(next(numbers)), y.words(next(numbers))
    why = "other calls" if at == n or there[at][1] != others[at][1] else "other values came"
    last = x.words(there[at - 1][0]) if at else ""
    return _told(f"call {at + 1} of those that all ranks make", both, why, last)


def _together(ranks: Ranks) -> tuple[Rank, list[tuple[int, str, int]]]:
    """A rank, and (number there, words without shapes, what all got) of the calls that all ranks make."""
    each = [np.flatnonzero(rank.shared()) for _, rank in sorted(ranks.items())]
    first, *others = (rank for _, rank in sorted(ranks.items()))
    found = []
    for i, n in enumerate(each[0][: min(map(len, each))]):
        kind, got = first.kind(n), int(first.calls[n]["got"])
        if kind["how"] == "parts":
            got += sum(int(rank.calls[its[i]]["got"]) for rank, its in zip(others, each[1:], strict=True))
        found.append((int(n), _OF_SIZE.sub("", kind["call"]), got % 2**64))
    return first, found
