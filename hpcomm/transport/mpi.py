"""MPI library as a transport: run(call) now, start(call) in the background, prepare(call) for later.

One table of names serves blocking (`Allreduce`), nonblocking (`Iallreduce`) and persistent
(`Allreduce_init`) calls, since their arguments are the same. Counts past what a C int holds are cut
here, because not every MPI takes them.
"""

from __future__ import annotations

import re
from functools import lru_cache, partial
from typing import Any

from mpi4py import MPI

from .._lazy import np
from ..agree import message_kinds, runtime, survival
from ..core.buffer import Buffer, as_buffer, detached
from ..core.comm import Comm
from ..core.dtypes import Dtype
from ..core.limits import BACKGROUND_COPIED
from ..core.operation import Call
from ..core.request import Request, Stages, abandon
from ..core.types import AnyArray, Spec
from ..core.verbs import REDUCTIONS, TABLE
from ..errors import HpcommError, MismatchError, TransportError, placed, where
from . import guarded_receive
from .between_groups import have_counted
from .matching import Ends
from .progress import StreamRequest

_NAMES = {verb: row.mpi for verb, row in TABLE.items()} | {"recv": "Recv", "send": "Send"}
_IN_PLACE = ("all_reduce", "all_gather", "scan", "exscan")  # those where all ranks are, or none

_CUT = re.compile(r"truncated; (\d+) bytes received but buffer size is (\d+)")  # MPICH's words

_BLOCK = 1 << 30  # elements that a derived type counts together
largest_count = 2**31 - 1  # elements in one MPI call; a C int, whatever the library could do beyond


def run(call: Call) -> Any:
    """Carry out call with the library's blocking function; return its result."""
    status = MPI.Status() if call.verb == "recv" else None
    try:
        if call.carrier.run is not None:
            call.carrier.run()
        else:
            by_library(call, status)
    except MPI.Exception as error:
        nbytes = 0 if status is None else call.look.nbytes
        raise failure(error, call.verb, call.comm, status, nbytes) from None
    return call.finish(status)


def function_of(comm: Comm, verb: str) -> str:
    """The name of MPI's blocking function for a verb.

    On one rank all_to_all is all_gather: a copy. For the first MPICH 5 sends itself a message there, which
    a receive of any tag that the program has begun on this communicator would take.
    """
    alone = verb == "all_to_all" and comm.size == 1 and not comm.is_inter
    return "Allgather" if alone else _NAMES.get(verb) or verb.capitalize()


def by_library(call: Call, status: MPI.Status | None = None) -> None:
    """Let the library move what a call says, and do no more."""
    mpi = call.mpi
    for name, arguments in pieces(call):
        if name == "Recv":
            part, source, tag = arguments
            guarded_receive.receive(mpi, part, source, tag, status)
        else:
            getattr(mpi, name)(*arguments if status is None else (*arguments, status))


def swap(
    mpi: MPI.Comm,
    ends: Ends,
    part: Spec,
    into: Spec,
    status: MPI.Status,
    x: object,
) -> None:
    """Send part, whose memory is that of x, and receive into another one at once.

    Not by Sendrecv: with itself Open MPI 5.0 cuts a message that is too long without a word.
    """
    going: Any = None
    try:
        going = mpi.Isend(part, ends.dest, ends.sendtag)
        guarded_receive.receive(mpi, into, ends.source, ends.recvtag, status)
        going.Wait()
    except BaseException:
        abandon(going, x)  # its receiver may still come for it
        raise


def start(call: Call) -> Request[Any]:
    """Begin call; the request finishes it."""
    stages = stages_of(call)
    call.comm.outstanding.begin(stages, call)
    return Request(call, stages) if call.after is None else StreamRequest(call, stages, call.after)


def prepare(call: Call) -> list[MPI.Prequest]:
    """Persistent requests for call, or what is used like them, to be started many times."""
    try:
        if call.carrier.prepare is not None:
            return [call.carrier.prepare()]
        return [getattr(call.mpi, f"{name}_init")(*arguments) for name, arguments in pieces(call, False)]
    except MPI.Exception as error:
        raise failure(error, call.verb, call.comm) from None


def stages_of(call: Call) -> Stages:
    """What is to be waited for until call is complete."""
    return background(call) if call.carrier.stages is None else call.carrier.stages()


def background(call: Call) -> Stages:
    """The stages of call: one, over the library's nonblocking function."""
    mpi = call.mpi
    mpi_error = MPI.Exception  # a local name: when the interpreter ends, globals go first
    try:
        statuses = yield [
            getattr(mpi, f"I{name.lower()}")(*arguments) for name, arguments in pieces(call, waits=False)
        ]
    except mpi_error as error:
        raise failure(error, call.verb, call.comm) from None
    return call.finish(statuses[0] if statuses else None)


def in_our_words(comm: Comm, verb: str, stages: Stages) -> Stages:
    """The same stages with MPI's errors as ours, and ours with where they happened."""
    # local names: when the interpreter ends, globals go first
    mpi_error, our_error = MPI.Exception, HpcommError
    try:
        return (yield from stages)
    except mpi_error as error:
        raise failure(error, verb, comm) from None
    except our_error as error:
        raise placed(error, verb, comm) from error.__cause__


def failure(
    error: MPI.Exception, verb: str, comm: Comm | None, seen: MPI.Status | None = None, nbytes: int = 0
) -> HpcommError:
    """MPI's error in our words; the one place where its exceptions are mapped.

    seen: of a receive: what MPI says of the message; nbytes: of the array that is filled.
    """
    kind, text = error.Get_error_class(), error.Get_error_string()
    if kind == MPI.ERR_TRUNCATE:
        if comm is not None and verb in TABLE:
            comm.fall_out()
        return _too_long(verb, comm, text, seen, nbytes)
    if (died := survival.failure(comm, verb, survival.DETECTED_S)) is not None:
        return died
    library = " ".join(MPI.Get_library_version().split(",")[0].splitlines()[0].split())
    if "Too many communicators" in text:
        most = text.partition(" free on")[0].rpartition("/")[2]  # MPICH: (0/2048 free on this process
        count, lines = runtime.kept()
        return TransportError(
            f"{library} has no room for another communicator or window: a rank has {most}, and hpcomm takes "
            f"two or more for each.\n  this rank keeps {count}, made at {lines}",
            where(verb, comm),
            "close() those that are no longer needed; `with comm.split(...) as part:` does",
            kind,
        )
    return TransportError(
        f"{library} failed: {text}",
        where(verb, comm),
        "python -m hpcomm doctor",
        kind,
    )


def check_came(comm: Comm, verb: str, look: Buffer, seen: MPI.Status) -> None:
    """Refuse a message of another element type than look's, or one that does not fill it."""
    message_kinds.match(comm, verb, look, seen.source, seen.tag)
    check_length(comm, verb, seen, look.nbytes)


def check_length(comm: Comm, verb: str, status: MPI.Status, expected: int) -> None:
    """Refuse a message that does not fill its array."""
    if status.Get_source() == MPI.PROC_NULL:
        return
    nbytes = status.Get_elements(MPI.BYTE)
    if nbytes != expected:
        error = _other_length(comm, verb, status, _lengths(nbytes, expected))
        error.lacks, error.nbytes = expected - nbytes, nbytes
        error.source, error.tag = status.Get_source(), status.Get_tag()
        raise error


def _other_length(comm: Comm | None, verb: str, seen: MPI.Status, what: str) -> MismatchError:
    return MismatchError(
        f"the message from rank {seen.Get_source()} (tag {seen.Get_tag()}) {what}",
        where(verb, comm),
        "the same shape and dtype on both ranks; without out, recv(dtype=...) takes any length",
    )


def _lengths(nbytes: int, expected: int) -> str:
    return f"has {nbytes} bytes, the array that receives it {expected}"


def _too_long(
    verb: str, comm: Comm | None, text: str, seen: MPI.Status | None, expected: int
) -> MismatchError:
    """The error for a message that MPI has cut; text: what it says."""
    if seen is None or seen.Get_source() < 0:
        return MismatchError(
            "a message was longer than the array that receives it",
            where(verb, comm),
            "give both ranks the same shape and dtype, or use the _ragged form",
        )
    nbytes = seen.Get_elements(MPI.BYTE)
    if nbytes <= expected and (cut := _CUT.search(text)) is not None:
        nbytes = max(map(int, cut.groups()))  # MPICH 5 has them in the wrong order
    longer = f"is longer than the array that receives it, which has {expected} bytes"
    return _other_length(comm, verb, seen, _lengths(nbytes, expected) if nbytes > expected else longer)


def check_arrived(comm: Comm, verb: str, out: object, seen: MPI.Status) -> None:
    """Refuse a message of another element type than out's, or one that does not fill it."""
    check_came(comm, verb, as_buffer(detached(out)), seen)


@lru_cache(maxsize=1)
def largest_tag() -> int:
    """The largest tag that MPI takes."""
    highest: int = MPI.COMM_WORLD.Get_attr(MPI.TAG_UB)  # type: ignore[assignment]
    return highest


def move_on(mpi: MPI.Comm) -> None:
    """Let MPI work on what is under way: asked for a message that has come, it would only say so."""
    mpi.Iprobe(0, largest_tag())


@lru_cache(maxsize=64)
def native(dtype: Dtype) -> MPI.Datatype | None:
    """The type of MPI's as which elements of dtype are moved; None: as bytes.

    MPICH 5 ends the job where its Gather cuts a message within an element of 32 bytes; two of 16 may be cut.
    """
    if dtype.mpi == "C_LONG_DOUBLE_COMPLEX":
        return MPI.LONG_DOUBLE.Create_contiguous(2).Commit()
    return None if dtype.mpi is None else getattr(MPI, dtype.mpi)


def spec(array: AnyArray, count: int, dtype: Dtype) -> Spec:
    """What mpi4py wants to know of a contiguous array; count in elements per rank."""
    kind = native(dtype)
    if kind is not None:
        return array, count, kind
    if dtype.kind == "h":
        return array, count, MPI.UINT16_T
    return array.reshape(-1).view(np.uint8), count * array.dtype.itemsize, MPI.BYTE


def message(array: AnyArray, count: int, dtype: Dtype) -> Spec:
    """spec for a message that no Call describes: of one element where MPI cannot count so many."""
    part = spec(array, count, dtype)
    one: Spec = part if part[1] <= largest_count else _as_one(part)
    return one


def pieces(call: Call, waits: bool = True) -> list[tuple[str, tuple[Any, ...]]]:
    """The MPI calls that make up call: one, unless it is too large for one.

    waits: they are blocking ones.
    """
    if call.comm.is_inter and not waits:
        have_counted(call)
    if call.fold is not None:
        call.fold.meet(call.mpi)
    verb = call.moves or call.verb
    if verb in _IN_PLACE and not call.comm.is_inter:
        _be_alike(call, verb, waits)
    name = function_of(call.comm, verb)
    counts = [part[1] for part in (call.send, call.recv) if type(part) is tuple]
    if not counts or max(counts) <= largest_count:
        return [(name, _arguments(call, call.send, call.recv))]
    return _cut_up(call, verb, name, counts)


def _cut_up(call: Call, verb: str, name: str, counts: list[int]) -> list[tuple[str, tuple[Any, ...]]]:
    """The MPI calls that make up one with more elements than MPI counts."""
    if verb not in REDUCTIONS:
        return [(name, _arguments(call, _as_one(call.send), _as_one(call.recv)))]
    if verb == "reduce_scatter":
        return _reduce_to_each(call, counts[-1])
    return [
        (name, _arguments(call, _cut(call.send, first), _cut(call.recv, first)))
        for first in range(0, counts[0], largest_count)
    ]


def _be_alike(call: Call, verb: str, waits: bool) -> None:
    """Let all ranks work in place, or none, whatever each of them has given as x and out.

    MPI's text demands it, and Open MPI takes another algorithm in place. A copy into place is one that MPI
    would make itself; but for long all_reduces in the background Open MPI has no quick algorithm in place,
    and prefixes would lose what their rank 0 has as out.
    """
    (received, count, kind), own = call.recv, call.comm.rank if verb == "all_gather" else 0
    place = received.reshape(-1)[own * count : (own + 1) * count]
    is_short = count * kind.Get_size() <= BACKGROUND_COPIED
    if verb == "all_gather" or (verb == "all_reduce" and (waits or is_short)):
        if call.send is not MPI.IN_PLACE:
            call.then_fill(partial(np.copyto, place, call.send[0].reshape(-1)))
            call.send = MPI.IN_PLACE
    elif call.send is MPI.IN_PLACE:
        copy = np.empty_like(place)
        call.then_fill(partial(np.copyto, copy, place))
        call.send = copy, count, kind


def _arguments(call: Call, send: object, recv: object) -> tuple[object, ...]:
    verb = call.moves or call.verb
    if verb in ("send", "ssend"):
        return send, call.peer, call.tag
    if verb == "recv":
        return recv, call.peer, call.tag
    return arguments(verb, send, recv, call.op, call.root)


def arguments(verb: str, send: object, recv: object, op: object, root: object) -> tuple[object, ...]:
    """What MPI's function for a collective verb is given."""
    row = TABLE[verb]
    if verb == "broadcast":
        return recv, root
    if verb == "barrier":
        return ()
    return (send, recv, *((op,) if row.reduces else ()), *((root,) if row.root else ()))


def _cut(part: object, first: int) -> object:
    if type(part) is not tuple:
        return part
    array, count, kind = part
    n = min(largest_count, count - first)
    return array.reshape(-1)[first : first + n], n, kind


def _as_one(part: object) -> Any:
    """The same bytes as one element of a derived type."""
    if type(part) is not tuple:
        return part
    array, count, kind = part
    return array, 1, contiguous(kind, count).Commit()


def contiguous(kind: MPI.Datatype, count: int) -> MPI.Datatype:
    """So many elements as one of a derived type, whatever MPI can count; not committed."""
    whole, rest = divmod(count, _BLOCK)
    block = kind.Create_contiguous(_BLOCK)
    made = MPI.Datatype.Create_struct([whole, rest], [0, whole * _BLOCK * kind.Get_size()], [block, kind])
    block.Free()
    return made


def _reduce_to_each(call: Call, count: int) -> list[tuple[str, tuple[object, ...]]]:
    array, _, kind = call.send
    flat = array.reshape(-1)
    comm = call.comm
    pieces: list[tuple[str, tuple[Any, ...]]] = []
    for root in range(comm.size):
        block = (flat[root * count : (root + 1) * count], count, kind)
        recv = call.recv if comm.rank == root else None
        pieces += [
            ("Reduce", (_cut(block, first), _cut(recv, first), call.op, root))
            for first in range(0, count, largest_count)
        ]
    return pieces
