"""Mistakes of users that end in an exception of Python's own: a note says what hpcomm has instead."""

from __future__ import annotations

import re
from collections.abc import Callable
from linecache import getline
from types import TracebackType
from typing import Any

Hook = Callable[[type[BaseException], BaseException, TracebackType | None], Any]

_TO_ROOT = ("reduce", "gather", "reduce_object", "gather_object", "reduce_ragged", "gather_ragged")
_ARGUMENTS = {  # that a verb of ours does not have, and users of others give
    "root": "{verb} has no root: every rank gets the result; comm.reduce and comm.gather have one",
    "group": "a group is a communicator here: comm.group(ranks) makes one, whose {verb} it is",
    "axis": "{verb} works over ranks; numpy's own works over the axes of an array",
}
_ARGUMENTS["dst"] = _ARGUMENTS["dest"] = _ARGUMENTS["root"]
_ARGUMENTS["comm"] = _ARGUMENTS["communicator"] = _ARGUMENTS["group"]
_ARGUMENTS["dim"] = _ARGUMENTS["axis"]


def noting(hook: Hook) -> Hook:
    """A hook for exceptions that adds such a note first."""

    def noted(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if isinstance(error, (AttributeError, TypeError)) and (note := _note(str(error), trace)):
            error.add_note(f"hpcomm: {note}")
        hook(kind, error, trace)

    return noted


def _note(text: str, trace: TracebackType | None) -> str:
    code, line = None, ""  # in which it happened
    while trace is not None:
        code = trace.tb_frame.f_code
        line, trace = getline(code.co_filename, trace.tb_lineno), trace.tb_next
    names = {*code.co_names} if code else set()
    if text == "'int' object is not callable":
        name = next((name for name in ("rank", "size") if f".{name}()" in line), "")
        return name and f"{name} is a number: comm.{name}, without ()"
    if re.search("'(Request|StreamRequest|Message|Collective|OfNode)'", text):  # and the short ways to it
        return (
            "with async_op=True, and of isend and irecv, the result is what wait() of their Request returns"
        )
    if "'NoneType'" in text and (verb := next((each for each in _TO_ROOT if each in names), "")):
        return f"{verb} returns its result at root and None elsewhere; all_{verb} returns it on every rank"
    if argument := re.search(r"(\w+)\(\) got an unexpected keyword argument '(\w+)'", text):
        from ..core.signature import VERBS

        verb, name = argument.groups()
        return _ARGUMENTS.get(name, "").format(verb=verb) if verb in VERBS else ""
    return ""
