"""Fast lanes through the one door.

For the arrays that come a million times (plain, contiguous, of a type MPI knows) a lane is the whole
call in one function: every check that the careful way makes, on that kind of array, and straight to
MPI. On any doubt it returns NotImplemented and the careful way takes over, which also says what is
wrong. A communicator finds its lanes at comm._lanes[verb][operator][type][dtype]; while an observer is
attached, or after close(), it has none.

A lane is composed as text, of the verb's own lines and of fragments that say how to look at an array of
this kind and how the ranks agree, and compiled. For a function that called others for these parts
would cost 60 ns for each of them, where 500 are all that a call may cost.
"""

from __future__ import annotations

import sys
from bisect import bisect_left
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import lru_cache, partial
from types import CodeType, MappingProxyType
from typing import TYPE_CHECKING, Any

from .errors import HpcommError
from .observe.board import LINE
from .short import FIRST, MARK, MOST
from .signature import VERBS, head, marked

if TYPE_CHECKING:
    from .communicator import Communicator
    from .dtypes import Dtype

__all__ = ["NO_LANES", "chosen", "detour", "find"]

Lane = Callable[..., Any]
NO_LANES: Mapping[Any, Any] = MappingProxyType({})  # of a communicator that is watched, or closed

_STACKS = ("gather", "all_gather")  # the result has a block for each rank,
_CUTS = ("scatter", "reduce_scatter", "all_to_all")  # x has
_ROOTED = ("gather", "scatter", "reduce")
_FOLDS = ("all_reduce", "reduce", "reduce_scatter", "scan")


def detour(*arguments: Any) -> Any:
    """No lane: take the careful way."""
    return NotImplemented


def find(comm: Communicator, verb: str, op: Any, x: Any, algorithm: str | None = None) -> Lane:
    """The lane for arrays like x, kept from now on; detour if there is none.

    algorithm: that of its smallest sizes; larger ones it leaves to chosen().
    """
    if comm._lanes is NO_LANES:
        return detour
    if algorithm is not None:
        return _choose(comm, verb, op, x, algorithm, smallest=True)
    if verb == "barrier":
        lane = comm._lanes[verb] = detour if comm.is_inter else _compose(comm, verb, _BARRIER, {}, {})
        return lane
    make = _maker(comm, verb, op, x)
    if make is None:
        return detour
    lane = detour if comm.is_inter else make(comm, verb, op, x.dtype)
    comm._lanes.setdefault(verb, {}).setdefault(op, {}).setdefault(type(x), {})[x.dtype] = lane
    return lane


def _maker(comm: Communicator, verb: str, op: Any, x: Any) -> Callable[..., Lane] | None:
    """What makes lanes for arrays like x; None: there are none."""
    if comm._lanes is NO_LANES or (type(op) is not str if verb in _FOLDS else op is not None):
        return None  # and of operators, a new lambda every time must not be kept for ever
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    if numpy is not None and type(x) is numpy.ndarray:
        return _numpy
    return _torch if torch is not None and type(x) is torch.Tensor else None


def chosen(comm: Communicator, verb: str, op: Any, x: Any, algorithm: str) -> Lane:
    """The lane of algorithm="tuned" or "mpi:..." for arrays like x and of its size, chosen once for all."""
    try:
        limits, lanes = comm._lanes[algorithm, verb]
        return lanes[bisect_left(limits, x.nbytes)][op][type(x)][x.dtype]  # type: ignore[no-any-return]
    except (KeyError, AttributeError, TypeError):
        return _choose(comm, verb, op, x, algorithm)


def _choose(comm: Communicator, verb: str, op: Any, x: Any, algorithm: str, smallest: bool = False) -> Lane:
    make = _maker(comm, verb, op, x)
    if not isinstance(algorithm, str):
        return detour  # which refuses it
    if make is None or comm.is_inter or algorithm in VERBS:  # those are keys of their own in comm._lanes
        return detour
    from .transport import controls, mpi, scheduled, tuned

    one = tuned.Choices.of([(0, algorithm)])
    choices = scheduled.own(comm).choices(verb) if algorithm == "tuned" else one
    blocks = comm.size if verb in _CUTS else 1
    limits, lanes = comm._lanes.setdefault(
        (algorithm, verb), ([n * blocks for n in choices.limits], [{} for _ in choices.names])
    )
    which = 0 if smallest else bisect_left(limits, x.nbytes)
    name, by = choices.names[which], None
    theirs = None if name is None else name.removeprefix("mpi:")
    if name is not None and theirs != name and theirs in controls.choices(verb):
        by = scheduled.by_library(comm, verb, theirs, mpi.NAMES[verb])
    elif verb == "all_reduce" and make is _numpy and name is not None and theirs == name:
        from . import dtypes, reduction

        with suppress(HpcommError):  # the careful way meets it again, and says where
            by = scheduled.by_schedule(comm, name, x.dtype, reduction.resolve(op, dtypes.from_numpy(x.dtype)))
    most = choices.limits[which] if which < len(choices.limits) else sys.maxsize
    known = by is not None or name is None
    lane = make(comm, verb, op, x.dtype, (by, algorithm, most)) if known else detour
    home = comm._lanes.setdefault(algorithm, {}).setdefault(verb, {}) if smallest else lanes[which]
    home.setdefault(op, {}).setdefault(type(x), {})[x.dtype] = lane
    return lane


# -- the verbs ---------------------------------------------------------------------------------------
# @name x, y stands for a fragment, in which X is x and Y is y.

_BARRIER = """
def lane():
    mine = code
    @call function()
"""

_ALL_REDUCE = """
def lane(x, out):
    global last_n, mine, laid, places  # the last call's, mostly this one's too
    if out is x:
        @writable x
        @spec x
        @sign
        @short x, x
        @call function(IN_PLACE, x_spec, operator)
        return x
    @readable x
    @spec x
    if out is None:
        @new out, x
    else:
        @same out, x
        @writable_too out
        @same_size out, x
        @apart x, out
    @spec out
    @apart_in_memory x, out
    @sign
    @short_apart x, out
    @call function(x_spec, out_spec, operator)
    return out
"""

# Small ones among ranks of a node: see short.py.
_SHORT = f"""
if {FIRST} <= mine < end:
    @flat
    if mine != laid:
        laid, places = mine, known.get(mine)
        if places is None:
            places = known[mine] = places_of(mine >> 32)
    elements, line, others, fold = places[flip()]
    i = step()
    if not i % {LINE}:
        turn()
    ring[i] = mine
    flag = mine | i << {MARK}
    elements[:] = X_flat
    line[0] = flag
    for other in others:
        if other[0] != flag:
            look(other, flag, mine)
    fold(Y_flat)
    return Y
"""

_BROADCAST = """
def lane(x, root):
    if type(root) is not int or not 0 <= root < p:
        return NotImplemented
    @writable x
    @spec x
    @sign
    @call function(x_spec, root)
    return x
"""

_SEND = """
def lane(x, dest, tag):
    if type(dest) is not int or not 0 <= dest < p or dest == rank:
        return NotImplemented
    if type(tag) is not int or not 0 <= tag <= last_tag:
        return NotImplemented
    @readable x
    @spec x
    @call function(x_spec, dest, tag)
    return None
"""

_RECV = """
def lane(x, source, tag):
    if tag is None:
        tag = ANY_TAG
    elif type(tag) is not int:
        return NotImplemented
    if type(source) is not int or not 0 <= source < p:
        return NotImplemented
    @writable x
    @spec x
    status = Status()
    @call function(x_spec, source, tag, status)
    @length x
    return x
"""


def _out_of_place(verb: str, folds: bool) -> str:
    """Every other collective, from one plain array into another.

    Shapes as compose.py has them, but only the stacked form: block r is x[r] or out[r].
    """
    last = (", operator" if folds else "") + (", root" if verb in _ROOTED else "")
    lines = ["def lane(x, out, root):", "    if type(root) is not int or not 0 <= root < p or x is out:"]
    lines += ["        return NotImplemented", "    shape = x.shape"]
    if verb in _CUTS:
        lines += ["    if not shape or shape[0] != p:", "        return NotImplemented"]
    lines += ["    @readable x", "    @spec x"]
    if verb in _STACKS:
        lines += ["    shape = (p, *shape)"]
    elif verb in ("scatter", "reduce_scatter"):
        lines += ["    shape = shape[1:]"]
    if verb in ("gather", "reduce"):
        lines += ["    if rank != root:", "        @sign", f"        @call function(x_spec, None{last})"]
        lines += ["        return None"]
    lines += [
        "    if out is None:",
        "        out = empty(shape, dtype=dtype)",
        "        @made out",
        "    else:",
    ]
    lines += ["        if type(out) is not type(x) or out.dtype is not dtype or out.shape != shape:"]
    lines += ["            return NotImplemented", "        @writable_too out", "        @apart x, out"]
    lines += ["    @spec out", "    @apart_in_memory x, out", "    @sign"]
    if verb == "scatter":  # on the others x only told the shape
        lines += ["    if rank != root:", "        x_spec = None"]
    lines += [f"    @call function(x_spec, out_spec{last})", "    return out"]
    return "\n".join(lines)


# -- how to look at an array of numpy ------------------------------------------------------------------

_NUMPY = {
    # n: elements, of one block if there is one for each rank
    "readable": "n = X.size CUT\nif n > most or not X.flags.c_contiguous:\n    return NotImplemented",
    "writable": "n = X.size\nif n > most or not X.flags.carray:\n    return NotImplemented",
    "writable_too": "if not X.flags.carray:\n    return NotImplemented",
    "same": """
if type(X) is not ndarray or X.dtype is not dtype or X.size != n:
    return NotImplemented
if X.ndim != Y.ndim or (X.ndim != 1 and X.shape != Y.shape):
    return NotImplemented
""",
    "same_size": "",
    "apart": "if (X.base is not None or Y.base is not None) and may_share_memory(X, Y):\n"
    "    return NotImplemented",
    "apart_in_memory": "",
    "new": "X = empty(Y.shape, dtype)",  # empty_like would keep the order of Y's axes
    "made": "",
    "spec": "X_spec = (X, n, kind)",
    "sign": "mine = n << 32 | code",
    "sign_all_reduce": "if n != last_n:\n    last_n, mine = n, n << 32 | code",
    "sign_rooted": "mine = n << 32 | codes[root]",
    "flat": "X_flat = X if X.ndim == 1 else X.reshape(-1)",
    "length": "if status.count != n * itemsize:\n    check_length(comm, 'recv', status, n * itemsize)",
}


def _numpy(comm: Communicator, verb: str, op: Any, dtype: Any, by: Any = None) -> Lane:
    import numpy as np

    from . import dtypes

    names = {
        "dtype": dtype,
        "empty": np.empty,
        "may_share_memory": np.may_share_memory,
        "most": min(_most(comm, dtype.itemsize), by[2] if by else sys.maxsize) // max(dtype.itemsize, 1),
        "ndarray": np.ndarray,
    }
    return _make(comm, verb, op, dtypes.from_numpy, dtype, _NUMPY, names, by)


# -- and at a tensor -------------------------------------------------------------------------------------
# mpi4py takes microseconds to look into a tensor, and a tenth of one for an address. Windows are what it
# wants to know of an address, kept because the same memory comes again and again.

_TORCH = {
    "readable": """
try:
    if not X.is_cpu:
        return NotImplemented
    X_size = X.nbytes
    if not X.is_contiguous() or X_size > most or (X_size < least and (not X_size or X.is_neg())):
        return NotImplemented
except RuntimeError:  # sparse tensors have neither
    return NotImplemented
""",
    "same": """
if type(X) is not tensor or X.dtype is not dtype or X.dim() != Y.dim():
    return NotImplemented
""",
    "same_size": "if X_size != Y_size or (X.dim() != 1 and X.shape != Y.shape):\n    return NotImplemented",
    "apart": "",
    "apart_in_memory": "if X_at < Y_at + Y_size and Y_at < X_at + X_size:\n    return NotImplemented",
    "new": "X = empty_like(Y)\nX_size = Y_size",
    "made": "X_size = X.nbytes",
    "spec": """
X_at = X.data_ptr()
X_seen = windows_X.get(X_at)
if X_seen is None or X_seen[0] != X_size:
    X_seen = window_X(X_at, X_size)
X_spec = X_seen[1]
""",
    "sign": "mine = x_seen[2] | code",
    "sign_all_reduce": "mine = x_seen[2] | code",
    "sign_rooted": "mine = x_seen[2] | codes[root]",
    "flat": "X_flat = X_seen[3]",
    "length": "if status.count != X_size:\n    check_length(comm, 'recv', status, X_size)",
}
_TORCH["writable"] = _TORCH["writable_too"] = _TORCH["readable"]


def _torch(comm: Communicator, verb: str, op: Any, dtype: Any, by: Any = None) -> Lane:
    from mpi4py import MPI

    from . import dtypes

    torch = sys.modules["torch"]
    try:
        record = dtypes.from_torch(dtype)
    except HpcommError:
        return detour
    if record.mpi is None or record.kind == "c":  # tensors may be lazy conjugates
        return detour
    kind = getattr(MPI, record.mpi)
    windows_x, window_x = _windows(kind, record, comm.size if verb in _CUTS else 1)
    out_blocks = comm.size if verb in _STACKS or verb == "all_to_all" else 1
    windows_out, window_out = _windows(kind, record, out_blocks)
    names = {
        "dtype": dtype,
        "empty": torch.empty,
        "empty_like": torch.empty_like,
        "least": 2 * record.itemsize,  # a single element may be a lazy negative
        "most": min(
            _most(comm, record.itemsize), by[2] * (comm.size if verb in _CUTS else 1) if by else sys.maxsize
        ),
        "tensor": torch.Tensor,
        "windows_x": windows_x,
        "window_x": window_x,
        "windows_out": windows_out,
        "window_out": window_out,
    }
    return _make(comm, verb, op, dtypes.from_torch, dtype, _TORCH, names, by)


def _most(comm: Communicator, itemsize: int) -> int:
    """Bytes up to which a lane carries an array: what one MPI call takes, in this communicator's way."""
    from .transport import mpi

    largest = mpi.largest_count * itemsize
    return largest if comm._onboard is None else min(largest, comm._onboard.eager)


# bytes, what mpi4py wants, number of elements as signatures have it, a small array as numpy sees it
Window = tuple[int, Any, int, Any]


def _windows(kind: Any, record: Dtype, blocks: int) -> tuple[dict[int, Window], Callable[[int, int], Window]]:
    """Windows by address, and how to make one; blocks: one of so many parts is what a call counts."""
    import numpy as np
    from mpi4py import MPI

    fromaddress = MPI.buffer.fromaddress
    known: dict[int, Window] = {}

    def window(address: int, nbytes: int) -> Window:
        if len(known) > 1000:
            known.clear()
        n, memory = nbytes // record.itemsize // blocks, fromaddress(address, nbytes)
        flat = np.frombuffer(memory, record.storage) if 0 < nbytes <= MOST else None  # type: ignore[call-overload]
        found = known[address] = (nbytes, (memory, n, kind), n << 32, flat)
        return found

    return known, window


# -- putting it together ------------------------------------------------------------------------------


def _make(
    comm: Communicator,
    verb: str,
    op: Any,
    record_of: Callable[[Any], Dtype],
    dtype: Any,
    fragments: dict[str, str],
    names: dict[str, Any],
    by: Any = None,
) -> Lane:
    """The lane of a verb, or detour where MPI alone cannot do the whole job.

    by: what is called in place of what would be (None: nothing), the algorithm that the user named, and up to
    how many bytes of x, or of one block.
    """
    from mpi4py import MPI

    try:
        record = record_of(dtype)
        if record.mpi is None:
            return detour
        folding = None if op is None else _folding(op, record)
    except HpcommError:  # the careful way meets the same error and says where
        return detour
    if op is not None and folding is None:
        return detour
    operator, fold = folding or (None, 0)
    names.update(operator=operator, kind=getattr(MPI, record.mpi), itemsize=record.itemsize)
    function, algorithm, _ = by or (None, "", 0)

    def sign(*what: Any) -> int:
        return marked(head(*what), algorithm) if algorithm else head(*what)

    names["code"] = sign(verb, fold, record.code) if verb not in ("send", "recv") else 0
    rooted = verb == "broadcast" or verb in _ROOTED
    if verb == "all_reduce":
        names.update(last_n=-1, laid=-1, places=None)
        fragments = {**fragments, "sign": fragments["sign_all_reduce"], "short": "", "short_apart": ""}
        short, plain = comm._short if function is None else None, head(verb, fold, record.code)
        if short is not None and (end := short.end(plain)):
            flat = fragments["flat"]
            fragments["short"] = _SHORT.replace("@flat", flat).replace("Y", "X")
            fragments["short_apart"] = _SHORT.replace("@flat", f"{flat}\n    {flat.replace('X', 'Y')}")
            names.update(end=end, flip=short.flip, known={}, look=short.look)
            names["places_of"] = partial(short.places, plain)
    if rooted:
        names["codes"] = [sign(verb, fold, record.code, root) for root in range(comm.size)]
        fragments = {**fragments, "sign": fragments["sign_rooted"]}
    if "CUT" in fragments["readable"]:
        cut = "// p" if verb in _CUTS else ""
        fragments = {**fragments, "readable": fragments["readable"].replace("CUT", cut)}
    bodies = {"all_reduce": _ALL_REDUCE, "broadcast": _BROADCAST, "send": _SEND, "recv": _RECV}
    body = bodies.get(verb) or _out_of_place(verb, op is not None)
    names["function"] = function
    return _compose(comm, verb, body, fragments, names)


def _folding(op: Any, record: Dtype) -> tuple[Any, int] | None:
    """MPI's operator and its code in signatures, where MPI alone does the whole job."""
    from . import reduction

    fold = reduction.resolve(op, record)
    if fold.up is not None or fold.finish is not None or fold.fold is not None or fold.op.mpi is not None:
        return None
    return fold.mpi(), fold.code


_PLAIN_CALL = "CALL"
_CALL = """try:
    AROUND
except MPIError as error:
    raise failure(error, verb, comm) from None"""


def _compose(
    comm: Communicator, verb: str, body: str, fragments: dict[str, str], names: dict[str, Any]
) -> Lane:
    from mpi4py import MPI

    from .transport import mpi

    agreed = verb not in ("send", "recv")  # a message: only its two ranks know of it
    around = comm._agreement.around if agreed else _PLAIN_CALL
    names.setdefault("code", head(verb) if agreed else 0)
    names.update(comm._agreement.names)
    names.update(
        ANY_TAG=MPI.ANY_TAG,
        IN_PLACE=MPI.IN_PLACE,
        MPIError=MPI.Exception,
        Status=MPI.Status,
        check_length=mpi.check_length,
        comm=comm,
        failure=mpi.failure,
        function=names.get("function") or getattr(comm.mpi, mpi.NAMES[verb]),
        last_tag=mpi.largest_tag(),
        p=comm.size,
        rank=comm.rank,
        verb=verb,
    )
    code, source = _compiled(verb, body, tuple(fragments.items()), around)
    names.update(__name__=f"lane of {verb}", __loader__=source)
    exec(code, names)
    lane: Lane = names["lane"]
    return lane


@lru_cache(maxsize=256)
def _compiled(
    verb: str, body: str, fragments: tuple[tuple[str, str], ...], around: str
) -> tuple[CodeType, _Source]:
    known = dict(fragments)
    if around == _PLAIN_CALL:
        known["sign"] = ""
    lines = []
    for line in body.strip().splitlines():
        word, _, rest = line.strip().partition(" ")
        if not word.startswith("@"):
            lines.append(line)
            continue
        if word == "@call":
            text = _CALL.replace("AROUND", around.strip().replace("\n", "\n    ")).replace("CALL", rest)
        else:
            x, _, y = rest.partition(", ")
            text = known[word[1:]].replace("X", x).replace("Y", y)
        margin = line[: len(line) - len(line.lstrip())]
        lines += [margin + part for part in text.splitlines() if part]
    source = _Source("\n".join(lines) + "\n")
    return compile(source.text, f"{__file__}:{verb}-{hash(source.text) & 0xFFFFFFFF:08x}", "exec"), source


class _Source:
    """Shows tracebacks and debuggers what a lane looks like, as the loader of a module would."""

    def __init__(self, text: str) -> None:
        self.text = text

    def get_source(self, name: str) -> str:
        return self.text
