"""Calls of the program: which methods it calls, from which of its lines, and where that is written down.

Fingerprints and traces wrap these methods. What hpcomm calls for itself is passed on as it is.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import wraps
from inspect import signature
from itertools import count
from operator import index
from pathlib import Path
from threading import Lock
from types import FrameType
from typing import Any
from weakref import WeakKeyDictionary

from .._lazy import MPI, NDArray, loaded, np
from ..core.operation import Call
from ..core.present import calling
from ..core.reduction import named, word_of
from ..core.request import Request
from ..core.signature import NEIGHBOURS
from ..core.signature import words_of as code_words
from ..core.verbs import ROOTED, TABLE
from ..errors import ConfigError, calling_frame, is_ours
from ..node import segment
from ..transport.late import dtypes


def _table(same: str = "", parts: str = "", each: str = "") -> dict[str, str]:
    """How what the ranks get hangs together, by method."""
    named = (("same", same), ("parts", parts), ("each", each))
    return {name: how for how, names in named for name in names.split()}


_VERB = re.compile(rf"(i?send|i?recv|sendrecv|{'|'.join([*TABLE, *NEIGHBOURS])})(_object|_ragged)?")
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")  # of an object in this run
TOGETHER = _table(
    "barrier broadcast same all_gather all_reduce all_reduce_loc broadcast_object all_reduce_object"
    " broadcast_ragged all_gather_ragged",
    "scatter gather reduce reduce_scatter reduce_object",
)
_COUPLED = _table(parts="put get exchange")
METHODS = {  # of other classes than those of verbs
    "Field": _table(
        "all_gather __getitem__ sum mean var std min max argmin argmax norm dot all any",
        "update_halo gather scatter redistribute",
    ),
    "Halo": _table(parts="__call__ wait"),
    "Link": _COUPLED,
    "Plan": _table(each="__call__ start wait"),
    "Program": _COUPLED,
    "Redistribution": _table(each="__call__"),
    "Window": _table(each="put get accumulate fetch_and_add compare_and_swap flush fence"),
}
_PASSING = (  # modules of ours that pass a program's call on
    "hpcomm.compat.", "hpcomm.differentiable.", "hpcomm.communicator.mpi4py_names.",
    "hpcomm.communicator.fingerprint.", "hpcomm.communicator.trace.", "hpcomm.fields.autograd.",
    "hpcomm.fields.numpy_protocol.",
)  # fmt: skip
NOBODY, ROOT = -1, -2  # in place of a rank: MPI.PROC_NULL, MPI.ROOT
GIVEN = ("x", "obj", "xs", "objs")
_WORDS = (int, str, type(None))  # kinds of arguments that can be compared
UNTOLD = ("out", "status", "async_op", "time", "timeout")  # arguments that do not change what comes out


def methods(kind: type) -> Iterator[tuple[str, str, str]]:
    """Methods of a class that a program calls: name, how its results hang together, class or "" for verbs."""
    of = kind.__name__.removeprefix("_Direct")
    own = METHODS.get(of, {})
    for name in own or [name for name in vars(kind) if name in TOGETHER or _VERB.fullmatch(name)]:
        yield name, own.get(name, ""), of if own else ""


def program(frame: FrameType) -> FrameType | None:
    """The frame that calls us, if that is the program's; None: this is a part of another call."""
    at: FrameType | None = frame
    while at is not None and is_ours(at.f_code):
        passes = at.f_code.co_name == "batch_isend_irecv" or f"{at.f_globals['__name__']}.".startswith(
            _PASSING
        )
        at = at.f_back if passes else None
    return at and outside(at)


def outside(frame: FrameType) -> FrameType:
    """The innermost frame of the program from frame outwards, torch's own left out; there is none: frame."""
    at = calling_frame(frame)
    while at is not None and str(at.f_globals.get("__name__")).startswith("torch."):
        at = at.f_back and calling_frame(at.f_back)
    return at or frame


def reader(method: Callable[..., Any]) -> Callable[[tuple[Any, ...], Mapping[str, Any]], dict[str, Any]]:
    """What tells the arguments of a call of method, however it is spelt: by name, in their order.

    What stands for the default is left out.
    """
    own = {each.name: each.default for each in [*signature(method).parameters.values()][1:]}

    def read(args: tuple[Any, ...], words: Mapping[str, Any]) -> dict[str, Any]:
        given = {**dict(zip(own, args, strict=False)), **words}
        for torch_word, names in (("src", ("root", "source")), ("dst", ("root", "dest"))):
            if given.get(torch_word) is not None:
                given.update({name: given.pop(torch_word) for name in names if name in own})
        told = {name: _plain(name, given[name]) for name in own if name in given}
        return {name: x for name, x in told.items() if not (isinstance(x, _WORDS) and x == own[name])}

    return read


def _plain(name: str, x: Any) -> Any:
    """An argument in one of its spellings."""
    if x is None or name in GIVEN:
        return x
    with suppress(Exception):  # what is wrong with it, the call itself says
        if name in ("root", "source", "dest"):
            return _end(index(x))
        if name in ("tag", "sendtag", "recvtag"):
            return None if index(x) < 0 else index(x)
        if name == "op":
            return word_of(named(x))
        if name == "dtype":
            return dtypes.parse(x)[0].name
        if name == "shape":
            return (index(x),) if hasattr(x, "__index__") else tuple(map(index, x))
    return x


def _end(rank: int) -> int | None:
    """A rank; None: any. Those of no rank have other numbers in other MPI libraries."""
    return rank if rank >= 0 else {MPI.ANY_SOURCE: None, MPI.PROC_NULL: NOBODY}.get(rank, ROOT)


def planned(plan: Any) -> dict[str, Any]:
    """The arguments of the call that a plan makes."""
    call: Call = plan._call
    ends = {"send": ("x", "dest", call.peer), "recv": ("out", "source", call.peer)}
    x, end, rank = ends.get(call.verb, ("x", "root", call.root))
    return {
        x: call.look or None,
        "op": code_words(call.verb, call.code)["op"],
        end: _end(rank) if call.verb in ends or call.verb in ROOTED else None,
        "tag": call.tag if call.verb in ends else None,
    }


def ranks_of(x: Any, of: str) -> Any:
    """The ranks that make a call of x."""
    return x.waits_for[0] if of == "Plan" else x.local if of == "Link" else x.comm if of else x.context


def end_of(given: Mapping[str, Any]) -> int | None:
    """The root, or the other rank of a message; None: there is none."""
    ends = (given.get(name) for name in ("root", "source", "dest"))
    return next((end for end in ends if type(end) is int), None)


def words_of(of: str, self: Any, name: str, given: Mapping[str, Any]) -> str:
    """A call in words: what has to be alike in both runs."""
    if of == "Plan":
        return f"plan of {words_of('', self, self._call.verb, planned(self))}"
    if of in ("Halo", "Link", "Program"):
        fields = ", ".join(f"{each.name} {each.dtype}" for each in fields_of(self, name, given))
        return f"{of}.{name}({fields})"
    said = {key: x for key, x in given.items() if key not in UNTOLD}
    x = next((said.pop(each) for each in GIVEN if said.get(each) is not None), given.get("out"))
    told = calling(None, f"{of}.{name}" if of else name, self if of == "Field" else x)
    told.x = "str" if isinstance(told.x, str) else told.x  # a value, and not a word of the call
    of_fields = {key: f"{x.dtype} {x.shape}" for key, x in said.items() if hasattr(x, "own_checksum")}
    told.words = {**said, **of_fields}  # some have the names of its own arguments
    return _ADDRESS.sub("", str(told))


def fields_of(self: Any, name: str, given: Mapping[str, Any]) -> list[Any]:
    """The fields that a call moves."""
    if name in ("put", "get"):
        fields = next(iter(given.values()))
        return [*fields] if isinstance(fields, (list, tuple)) else [fields]
    if name == "exchange":
        links = [self.link(peer) for peer in self.peers] if hasattr(self, "peers") else [self]
        return [each.field for link in links for each in (*link.gives.values(), *link.takes.values())]
    return [self] if name == "update_halo" else getattr(self, "fields", [])


# -- calls in the background ---------------------------------------------------------------------------
_under_way: WeakKeyDictionary[Request[Any], list[Callable[[Any, int, FrameType], None]]] = WeakKeyDictionary()
_waited: set[type] = set()


def later(request: Request[Any], ended: Callable[[Any, int, FrameType], None]) -> None:
    """Call ended(result, since, who) when request was first waited for: since when, and by which frame."""
    _under_way.setdefault(request, []).append(ended)
    if (kind := type(request)) in _waited:
        return
    _waited.add(kind)
    wait, awaited = kind.wait, kind.__await__

    def told(self: Request[Any], result: Any, since: int, frame: FrameType) -> Any:
        for ended in _under_way.pop(self, ()):
            ended(result, since, frame)
        return result

    @wraps(wait)
    def waits(self: Request[Any], timeout: float | None = None) -> Any:
        since = time.monotonic_ns()
        return told(self, wait(self, timeout), since, sys._getframe(1))

    @wraps(awaited)
    def stages(self: Request[Any]) -> Any:
        since = time.monotonic_ns()
        return told(self, (yield from awaited(self)), since, sys._getframe(1))

    setattr(kind, "wait", waits)  # noqa: B010
    setattr(kind, "__await__", stages)  # noqa: B010


# -- what is written -----------------------------------------------------------------------------------
class Rows:
    """The files of this rank in a folder: lines of JSON, of which each has a number, and records beside them.

    The first line says what the rank is. what: of the files, for errors.
    """

    def __init__(self, comm: Any, folder: str, endings: tuple[str, str], what: str, **more: object) -> None:
        self._rows, self._at, self._what = dict[Any, int](), 0, what
        self.numbers = count()  # of calls
        stem, about = whose(comm)
        self._folder = Path(folder)
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._lines, self.records = (
                os.open(self._folder / f"{stem}{end}", os.O_CREAT | os.O_TRUNC | os.O_RDWR, 0o666)
                for end in endings
            )
        except OSError as error:
            raise self.unwritable(error) from error
        self._say({**about, **more})

    def row(self, key: Any, about: Callable[[], dict[str, Any]]) -> int:
        """The number of a line, from 1 on; about: its words, when it first comes."""
        with alone:
            if key not in self._rows:
                self._say(about())
                self._rows[key] = len(self._rows) + 1
            return self._rows[key]

    def _say(self, about: dict[str, Any]) -> None:
        line = json.dumps(about).encode() + b"\n"
        self.put(self._lines, line, self._at)
        self._at += len(line)

    def put(self, file: int, data: bytes, at: int) -> None:
        try:
            os.pwrite(file, data, at)
        except OSError as error:
            raise self.unwritable(error) from error

    def unwritable(self, error: OSError) -> ConfigError:
        hint = f"a folder that can be written, with room, for hpcomm run --{self._what}"
        return ConfigError(f"{self._what}s cannot be written in {self._folder}: {error.strerror}", hint=hint)


def read(
    folder: Path, endings: tuple[str, str], record: np.dtype[Any], command: str, option: str
) -> list[tuple[str, int, list[dict[str, Any]], NDArray[Any]]]:
    """What Rows has written: program, rank, lines and records of each rank, in their order.

    What was not written to its end is left away. Errors name the command, and the option that writes it.
    """
    found = []
    try:
        for path in folder.glob(f"*{endings[0]}"):
            program, _, rank = path.name.removesuffix(endings[0]).rpartition(".")
            if lines := [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]]:
                records = np.fromfile(path.with_suffix(endings[1]), record)
                found.append((program, int(rank), lines, records))
    except (OSError, ValueError, KeyError) as error:
        raise ConfigError(f"{folder} cannot be read: {error}", command, "run it again") from error
    if not found:
        raise nothing(folder, command, option)
    return sorted(found, key=lambda each: each[:2])


def nothing(folder: Path, command: str, option: str) -> ConfigError:
    """That there is none."""
    what = f"{folder} has no {option}s" if folder.is_dir() else f"there is no folder {folder}"
    return ConfigError(what, command, f"hpcomm run --{option} {shlex.quote(str(folder))} ...")


alone = Lock()


def whose(comm: Any) -> tuple[str, dict[str, Any]]:
    """The program and rank that this process is, and what is to be said of the run."""
    rank, size, library, program = comm.rank, comm.size, "no MPI", os.environ.get("HPCOMM_PROGRAM", "")
    if loaded("mpi4py.MPI") is not None and MPI.Is_initialized():
        library = " ".join(MPI.Get_library_version().split(",")[0].splitlines()[0].split())
        if MPI.COMM_WORLD.size >= size:
            rank, size = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
        if MPI.Comm.Get_parent() != MPI.COMM_NULL:
            program = "spawned"
    elif segment.current is not None:  # of a job without MPI, which is on one node
        rank, size = segment.current.here, len(segment.current.regions)
    spans = dict(each.split("=") for each in os.environ.get("HPCOMM_PROGRAMS", "").split())
    if program in spans:
        first, last = map(int, spans[program].split("-"))
        rank, size = rank - first, last - first + 1
    return f"{program}.{rank}" if program else str(rank), {"ranks": size, "mpi": library}
