"""What operations on objects and ragged arrays share: agreement, observers, error texts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, TypeVarTuple

from ..agree.agreement import refused
from ..core.operation import Call
from ..core.request import Request, Stages, StagesOf
from ..core.signature import BACKGROUND, head
from ..errors import HpcommError, RankError, UsageError
from ..transport.matching import fill, source_and_tag
from . import payload_transport
from .payload import Payload, refusal

if TYPE_CHECKING:
    from mpi4py import MPI

    from ..core.types import AnyStatus
    from ..transport import mpi as transport
    from .communicator import Communicator
else:
    from .._lazy import LazyModule

    MPI = LazyModule("mpi4py.MPI")
    transport = LazyModule("hpcomm.transport.mpi")

__all__ = [
    "at_once", "check_root", "collective", "each_of", "given", "ireceive", "isend", "own_place", "receive",
]  # fmt: skip

T = TypeVar("T")
Given = TypeVarTuple("Given")


def own_place(comm: Communicator) -> int:
    """Where this rank's own stands among what all ranks give; -1: that is the other group's."""
    return -1 if comm.is_inter else comm.rank


def receive(
    comm: Communicator, verb: str, source: int | None, tag: int | None, status: AnyStatus | None,
    decode: Callable[[Payload, int], T],
) -> T | None:  # fmt: skip
    """Wait for a payload; what decode makes of it and its sender, None from hpcomm.PROC_NULL."""
    peer, number = source_and_tag(comm, verb, source, tag)

    def action() -> T | None:
        got, seen = payload_transport.receive(comm, peer, number)
        if status is not None:
            fill(status, seen)
        return None if got is None else decode(got, seen.Get_source())

    return at_once(comm, verb, peer, number, action)


def ireceive(
    comm: Communicator, verb: str, source: int | None, tag: int | None, status: AnyStatus,
    decode: Callable[[Payload, int], T],
) -> Request[T | None]:  # fmt: skip
    """The same in the background."""
    peer, number = source_and_tag(comm, verb, source, tag)

    def stages() -> Stages:
        got, seen = yield from payload_transport.ireceive(comm, peer, number)
        fill(status, seen)
        return None if got is None else decode(got, seen.Get_source())

    coming = in_background(comm, verb.replace("irecv", "recv"), stages(), peer, number)
    request = Request(f"{verb}(source={source}, tag={tag})", coming, status)
    request.needs(comm, source)
    request.in_rounds()
    return request


def in_background(comm: Communicator, verb: str, stages: Stages, peer: int, tag: int) -> Stages:
    """The stages of a message, noted as under way, with observers looking on and errors in our words."""
    watched = shown(comm, verb, stages, peer=peer, tag=tag)
    return comm.outstanding.begin(transport.in_our_words(comm, verb, watched))


def isend(comm: Communicator, call: str, packed: Payload, peer: int, tag: int) -> Request[None]:
    """Begin to send a payload; call: in words, such as isend_object(dest=1, tag=0)."""
    verb = call.partition("(")[0].replace("isend", "send")
    request = Request(
        call, in_background(comm, verb, payload_transport.isend(comm, packed, peer, tag), peer, tag)
    )
    request.needs(comm, peer)
    return request


def at_once(
    comm: Communicator, verb: str, peer: int, tag: int, action: Callable[[*Given], T], *arguments: *Given
) -> T:
    """Carry out a message now, with the observers looking on and errors in hpcomm's words."""
    try:
        if not comm.observers:
            return action(*arguments)
        result: T = payload_transport.run(
            shown(comm, verb, _one_stage(action, *arguments), peer=peer, tag=tag)
        )
        return result
    except MPI.Exception as error:
        raise transport.failure(error, verb, comm) from None
    except HpcommError as error:
        raise error.located(verb, comm) from error.__cause__


def _one_stage(action: Callable[[*Given], T], *arguments: *Given) -> StagesOf[T]:
    yield []
    return action(*arguments)


def collective(comm: Communicator, verb: str, root: int, stages: Stages, async_op: bool) -> Any:
    """Agree with the other ranks about verb, then carry out its stages now or in the background."""
    try:
        comm.check_open(verb)
    except HpcommError as error:
        raise error.located(verb, comm) from None
    code = head(verb, root=root)
    if async_op:
        with comm.call_guard:
            leave = comm.agreement.late(code | BACKGROUND, 0)
            stages = transport.in_our_words(comm, verb, shown(comm, verb, stages, leave))
            request = Request(f"{verb}()", comm.outstanding.begin(stages))
        request.needs_all(comm)
        request.in_rounds()
        return request
    watched = bool(comm.observers)
    with comm.call_guard:
        comm.agreement.enter(code, 0)
        try:
            result = payload_transport.run(
                shown(comm, verb, stages, comm.agreement.leave) if watched else stages
            )
        except MPI.Exception as error:
            raise transport.failure(error, verb, comm) from None
        except HpcommError as error:
            raise error.located(verb, comm) from error.__cause__
        if not watched:
            comm.agreement.leave()
    return result


def shown(
    comm: Communicator, verb: str, stages: Stages, leave: Callable[[], None] | None = None, **fields: int
) -> Stages:
    """The same stages with the observers looking on, and leave() at the end."""
    if not comm.observers and leave is None:
        return (yield from stages)
    call = Call(comm, verb, **fields)
    observers = comm.observers
    for observer in observers:
        observer.before(call)
    result = yield from stages
    if leave is not None:
        leave()
    for observer in observers:
        observer.after(call)
    return result


def check_root(comm: Communicator, verb: str, root: int) -> bool:
    """Whether this rank is root, which must be a rank of comm; of the other group, if there are two."""
    is_rank = not isinstance(root, bool) and hasattr(root, "__index__")
    if comm.is_inter:
        if not (is_rank and (root in (MPI.ROOT, MPI.PROC_NULL) or 0 <= root < comm.remote_size)):
            from ..transport.prepare import no_remote_root

            raise refused(comm, verb, no_remote_root(comm, root))
        return bool(root == MPI.ROOT)
    if not (is_rank and 0 <= root < comm.size):
        what, hint = f"root {root!r} is no rank of '{comm.name}'", f"a rank from 0 to {comm.size - 1}"
        raise refused(comm, verb, RankError(what, hint=hint))
    return bool(comm.rank == root)


def given(
    encode: Callable[[T], Payload], items: Sequence[T], failed: HpcommError | None = None
) -> tuple[list[Payload], HpcommError | None]:
    """A payload for each of items, and what this rank is to raise when the others have theirs.

    Who waits for what cannot be sent, or for anything where the call failed before, is sent the reason.
    """
    if failed is not None:
        return [refusal(failed)] * len(items), failed
    made = []
    for item in items:
        try:
            made.append(encode(item))
        except HpcommError as error:
            failed = error
            made.append(refusal(error))
    return made, failed


def each_of(comm: Communicator, verb: str, items: Any) -> tuple[Sequence[Any], UsageError | None]:
    """items with one for each rank; if they are none, so many of nothing, and the error."""
    ranks = comm.remote_size if comm.is_inter else comm.size
    if hasattr(items, "__len__") and len(items) == ranks:
        return items, None
    found = f"{len(items)} items" if hasattr(items, "__len__") else f"a {type(items).__name__}"
    return [None] * ranks, UsageError(
        f"{verb} needs a list with one item for each of {ranks} ranks, not {found}",
        hint="[item for rank 0, item for rank 1, ...]",
    )
