"""Fast path as a communicator's own method: one function per operation, without a look-up.

What a program calls a million times it mostly calls with arrays of one kind. So the first use of a fast path
gives the communicator a function of its own for that verb: the verb's parameters, a test whether the array is
of that kind, and the lines of the fast path. Anything else goes on to the verb itself, which finds the right
fast path. The function is an attribute of the instance and hides the method. It goes with the fast paths.
"""

from __future__ import annotations

from contextlib import suppress
from functools import WRAPPER_ASSIGNMENTS, lru_cache, partial
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any

from .fastpath_compile import Source

if TYPE_CHECKING:
    from .communicator import Communicator

__all__ = ["fuse", "part"]

_OURS = ("hpcomm.communicator.collectives",)  # whose functions may be hidden; not those of a subclass
_OTHERS = 16  # calls with other arrays, before the function for those takes its place
_NEVER = {  # what a fast path knows nothing of
    "async_op": "async_op",
    "deterministic": "deterministic",
    "algorithm": "algorithm is not None",
}
_TORCHS = ("dst", "src")  # words for the root


def fuse(comm: Communicator, verb: str, op: Any, x: Any, fast: Any) -> None:
    """Let comm's verb be one function, the fast path, for arrays like x."""
    method = getattr(type(comm), verb)
    if method.__module__ not in _OURS:
        return
    code, source = _compiled(verb, method, fast.__globals__["__loader__"].text)
    kind = op, type(x), getattr(x, "dtype", None)
    names = dict(fast.__globals__)
    names.update(
        __loader__=source,
        again=method,
        its_dtype=kind[2],
        its_op=op,
        its_type=kind[1],
        left=_OTHERS,
        turn=partial(_turn, comm, verb),
    )
    exec(code, names)
    function = names[verb]
    for name in WRAPPER_ASSIGNMENTS:
        setattr(function, name, getattr(method, name))
    comm.own_fastpaths.setdefault(verb, {})[kind] = vars(comm)[verb] = function


def part(comm: Communicator, verb: str | None = None) -> None:
    """Let a verb, or all, of comm be methods again; a function that was kept calls the method from now on."""
    for each in tuple(comm.own_fastpaths) if verb is None else (verb,):
        for function in comm.own_fastpaths.pop(each, {}).values():
            function.__globals__["its_type"] = None
        vars(comm).pop(each, None)


def _turn(comm: Communicator, verb: str, op: Any, x: Any) -> int:
    """Turn to the function for arrays like x, if there is one; say how many others it may see."""
    known, kind = comm.own_fastpaths.get(verb), (op, type(x), getattr(x, "dtype", None))
    with suppress(TypeError):  # an op that cannot be hashed
        if known and kind in known:
            vars(comm)[verb] = known[kind]
    return _OTHERS


def _parameters(method: FunctionType) -> tuple[list[str], list[str]]:
    """Names of all but the first, and of those that are given by name only. (inspect is slow to load.)"""
    code = method.__code__
    end = code.co_argcount
    return list(code.co_varnames[1:end]), list(code.co_varnames[end : end + code.co_kwonlyargcount])


@lru_cache(maxsize=256)
def _compiled(verb: str, method: FunctionType, fast: str) -> tuple[CodeType, Source]:
    """What defines the function, called as the verb, and its text."""
    names, by_name = _parameters(method)
    defaults = method.__defaults__ or ()
    first = len(names) - len(defaults)  # that has one
    header = [f"{name}={defaults[i - first]!r}" if i >= first else name for i, name in enumerate(names)]
    if by_name:
        given = method.__kwdefaults__ or {}
        header += ["*", *(f"{name}={given[name]!r}" for name in by_name)]
    again = f"return again({', '.join(['comm', *names, *(f'{name}={name}' for name in by_name)])})"
    names += by_name
    never = [test for name, test in _NEVER.items() if name in names]
    other = [] if verb == "barrier" else ["type(x) is not its_type", "x.dtype is not its_dtype"]
    op = "op" if "op" in names else None
    other += ["op is not its_op"] if op else []
    lines = [f"def {verb}({', '.join(header)}):"]
    if other:
        lines += ["    global left", f"    if {' or '.join(other)}:", "        left -= 1"]
        lines += ["        if not left:", f"            left = turn({op}, x)", f"        {again}"]
    else:
        never += ["its_type is None"]
    lines += [f"    if {' or '.join(never)}:", f"        {again}"] if never else []
    for word in _TORCHS:
        if word in names and "root" in names:
            lines += [f"    if {word} is not None:", f"        root = {word}"]
    head, *body = fast.splitlines()
    lines += ["    root = 0"] if "root" in head and "root" not in names else []
    lines += [line.replace("return NotImplemented", again) for line in body]
    source = Source("\n".join(lines) + "\n")
    return compile(source.text, f"{__file__}:{verb}-{hash(source.text) & 0xFFFFFFFF:08x}", "exec"), source
