"""What operations on objects and ragged arrays share: agreement, observers, error texts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import index
from typing import Any, NamedTuple, TypeVar

from ..._lazy import MPI
from ...agree.agreement import refused
from ...core.operation import Call
from ...core.patience import patience
from ...core.present import calling, messaging
from ...core.request import (
    Request,
    Stages,
    note_collective,
    note_comparison,
    note_message,
    note_rounds,
    rounds_under_way,
)
from ...core.signature import BACKGROUND, head
from ...core.status import Status
from ...core.types import AnyStatus
from ...core.verbs import RAGGED, ROOT_SENDS, TABLE
from ...errors import HpcommError, UsageError, placed
from ...node.present import enter, leave
from ...transport.late import transport
from ...transport.matching import add_tag, fill, is_root, peer_rank, source_and_tag, tag_number
from ..context import Context
from ..verbs.direct import NO_DIRECT
from ..verbs.timeouts import waited
from . import payload_transport
from .payload import DevicePayload, Payload, pooled, refusal

T = TypeVar("T")


def addressed(
    comm: Context, verb: str, encode: Callable[[T], Payload], x: T, dest: int, tag: int
) -> tuple[Payload, int, int]:
    """What to send, and receiver and tag as MPI takes them."""
    try:
        known = type(dest) is int and type(tag) is int and (dest, tag) in comm.known.payloads
        if not known:
            comm.check_open(verb)
            dest, tag = peer_rank(comm, dest, "dest"), tag_number(comm, tag, sending=True)
        made = encode(x)
    except HpcommError as error:
        raise placed(error, verb, comm) from error.__cause__
    if not known:
        if comm.message_kinds is not None:
            comm.message_kinds.payloads.note(verb, x, dest, tag)
        add_tag(comm.known.payloads, (dest, tag))
    return made, dest, tag


def receive(
    comm: Context, verb: str, source: int | None, tag: int | None, status: AnyStatus | None,
    decode: Callable[[Payload, int], T],
) -> T | None:  # fmt: skip
    """Wait for a payload; what decode makes of it and its sender, None from hpcomm.PROC_NULL."""
    peer, number = source_and_tag(comm, verb, source, tag)
    if patience(comm) is not None or comm.observers or rounds_under_way:  # one may have asked for it before
        with messaging(comm, verb, None, peer, number):
            return waited(comm, ireceive(comm, verb, source, tag, status, decode))  # type: ignore[no-any-return]
    try:
        enter(comm, verb, None, peer, number)
        got, seen = payload_transport.receive(comm, peer, number)
        if status is not None:
            fill(status, seen)
        return None if got is None else decode(got, seen.Get_source())
    except (MPI.Exception, HpcommError) as error:
        raise _failure(comm, verb, error, peer, number) from error.__cause__
    finally:
        leave()


def ireceive(
    comm: Context, verb: str, source: int | None, tag: int | None, status: AnyStatus | None,
    decode: Callable[[Payload, int], T],
) -> Request[T | None]:  # fmt: skip
    """The same in the background."""
    peer, number = source_and_tag(comm, verb, source, tag)
    status = Status() if status is None else status

    def stages() -> Stages:
        got, seen = yield from payload_transport.ireceive(comm, peer, number)
        fill(status, seen)
        return None if got is None else decode(got, seen.Get_source())

    coming = in_background(comm, verb.replace("irecv", "recv"), stages(), peer, number)
    request = Request(f"{verb}(source={source}, tag={tag})", coming, status)
    note_message(request, comm, verb, peer, number)
    note_rounds(request)
    return request


def in_background(comm: Context, verb: str, stages: Stages, peer: int, tag: int) -> Stages:
    """The stages of a message, noted as under way, with observers looking on and errors in our words."""
    watched = shown(comm, verb, stages, peer=peer, tag=tag)
    return comm.outstanding.begin(transport.in_our_words(comm, verb, watched))


def isend(comm: Context, verb: str, packed: Payload, peer: int, tag: int, sync: bool) -> Request[None]:
    """Begin to send a payload."""
    call, verb = f"{verb}(dest={peer}, tag={tag})", verb.replace("isend", "send")
    stages = payload_transport.isend(comm, packed, peer, tag, sync)
    request = Request(call, in_background(comm, verb, stages, peer, tag))
    note_message(request, comm, verb, peer, tag)
    return request


def send(comm: Context, verb: str, packed: Payload, peer: int, tag: int, sync: bool) -> None:
    """The same, and return when what was packed may be changed."""
    to_self = peer == comm.rank and not (comm.is_inter or sync)  # it would wait for itself
    # Others may be under way that dest needs before this one, or arrays on devices follow it.
    in_stages = rounds_under_way or type(packed) is DevicePayload
    if to_self or in_stages or patience(comm) is not None or comm.observers:
        with messaging(comm, verb, None, peer, tag):
            request = isend(comm, verb, packed, peer, tag, sync)
            comm.keep_request(request) if to_self else waited(comm, request)
        return
    try:
        enter(comm, verb, None, peer, tag)
        payload_transport.send(comm, packed, peer, tag, sync)
    except (MPI.Exception, HpcommError) as error:
        raise _failure(comm, verb, error, peer, tag) from error.__cause__
    finally:
        leave()


def _failure(
    comm: Context, verb: str, error: MPI.Exception | HpcommError, peer: int, tag: int
) -> HpcommError:
    """What ended a message, in hpcomm's words."""
    ours = (
        placed(error, verb, comm) if isinstance(error, HpcommError) else transport.failure(error, verb, comm)
    )
    ours.during = ours.during or str(messaging(comm, verb, None, peer, tag))
    return ours


class Form(NamedTuple):
    """What tells collectives of objects from those of ragged arrays.

    Attributes:
        suffix: of the verbs.
        encode: makes a payload; None: as the communicator does.
        decode: what a payload of a rank holds.
        own: what a rank gets of its own, of that and its payload; None: that itself.
        refused: why this rank refuses its part. It makes the call all the same, for those who wait.
    """

    suffix: str
    encode: Callable[[Any], Payload] | None
    decode: Callable[[Payload, int | None], Any]
    own: Callable[[Any, Payload], Any] | None
    refused: HpcommError | None = None


def collective(comm: Context, verb: str, form: Form, brought: Any, async_op: bool, root: Any = 0) -> Any:
    """Carry out verb, now or in the background.

    brought: what this rank gives, if it gives: one, or a list with one for each rank.
    """
    name, row = verb + form.suffix, TABLE[verb]
    is_root = check_root(comm, name, root) if row.root else False
    root = index(root)
    items: Sequence[Any] = []
    if is_root if row.root == "sends" else root >= 0:  # else the other group gives
        items, wrong = each_of(comm, name, brought) if row.x_blocks else ([brought], None)
        form = form if wrong is None else form._replace(refused=wrong)
    x = items[0] if len(items) == 1 and form.suffix == "_ragged" else None
    words = root if row.root else None
    if async_op or comm.timeout_s is not None or not _may_share(comm):
        with calling(comm, name, x, root=words, async_op=async_op):
            return _collective(comm, verb, form, root, items, async_op)
    try:  # by the core, where to note it in Python would take a third of the time
        enter(comm, name, x, None, words)
        return _collective(comm, verb, form, root, items, False)
    except HpcommError as error:
        error.during = error.during or str(calling(comm, name, x, root=words))
        raise
    finally:
        leave()


def _collective(comm: Context, verb: str, form: Form, root: int, items: Sequence[Any], async_op: bool) -> Any:
    name = verb + form.suffix
    made, failed = given(form.encode or comm.encode, items, form.refused)
    here = -1 if comm.is_inter else comm.rank

    def of_rank(rank: int, got: Payload) -> Any:
        if rank != here:
            return form.decode(got, rank)
        mine = rank if len(items) > 1 else 0
        return items[mine] if form.own is None else form.own(items[mine], made[mine])

    def taken(got: Any) -> Any:
        if failed is not None:
            raise failed
        if verb not in ROOT_SENDS:
            return None if got is None else [of_rank(rank, its) for rank, its in enumerate(got)]
        if comm.is_inter:  # below 0: at the root of another group, or beside it
            return None if root < 0 else form.decode(got, None)
        return of_rank(root, got)

    if async_op or (comm.timeout_s is not None and not _may_share(comm)):
        request = _begun(comm, verb, name, root, made, taken)
        return request if async_op else waited(comm, request)

    def stages() -> Stages:
        yield []
        return taken(_carried(comm, verb, name, root, made))

    try:
        if comm.observers:
            found = payload_transport.run(shown(comm, name, stages()))
        else:
            found = taken(_carried(comm, verb, name, root, made))
    except MPI.Exception as error:
        raise transport.failure(error, name, comm) from None
    except HpcommError as error:
        raise placed(error, name, comm) from error.__cause__
    if comm.values is not None and form.suffix == "_ragged":
        comm.values.hold(verb, found)
    return found


_NUMBERS = {verb: head(verb) for verb in RAGGED}  # of verbs, as the native core has them, too


def _may_share(comm: Context) -> bool:
    """Whether the native core may carry payloads."""
    return comm.node is not None and comm.devices is None and comm.node.direct


def _carried(comm: Context, verb: str, name: str, root: int, made: list[Payload]) -> Any:
    """What has come to this rank, as payload_transport has it: by the native core, or else by MPI."""
    way, code = comm.direct, head(name, root=root)
    if way is NO_DIRECT:
        comm.check_open(name)
        way = comm.node or way
    if comm.devices is None:
        with comm.call_guard:
            got = way.share(_NUMBERS[verb], root, code, made, pooled)
        if got is not NotImplemented:
            if verb in ROOT_SENDS:
                return got[root]
            is_for_others = verb == "gather" and comm.rank != root
            return None if is_for_others else got
    comm.check_open(name)
    if comm.timeout_s is not None:
        return waited(comm, _begun(comm, verb, name, root, made, lambda got: got))
    with comm.call_guard:
        comm.agreement.enter(code, 0)
        got = payload_transport.run(getattr(payload_transport, verb)(comm, made, root, True))
        comm.agreement.leave()
    return got


def _begun(
    comm: Context, verb: str, name: str, root: int, made: list[Payload], taken: Callable[[Any], Any]
) -> Request[Any]:
    """The same in the background, by MPI."""

    def stages() -> Stages:
        return taken((yield from getattr(payload_transport, verb)(comm, made, root, False)))

    comm.check_open(name)
    with comm.call_guard:
        leave = comm.agreement.late(head(name, root=root) | BACKGROUND, 0)
        if comm.values is not None and name.endswith("_ragged"):
            taken = comm.values.later(verb, taken)
        under_way = transport.in_our_words(comm, name, shown(comm, name, stages(), leave))
        request = Request(f"{name}()", comm.outstanding.begin(under_way))
    note_comparison(request, leave)
    note_collective(request, comm, name)
    note_rounds(request)
    return request


def shown(
    comm: Context, verb: str, stages: Stages, leave: Callable[[], None] | None = None, **fields: int
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


def check_root(comm: Context, verb: str, root: int) -> bool:
    """Whether this rank is root, which must be a rank of comm; of the other group, if there are two."""
    try:
        return is_root(
            comm, root if type(root) in (int, bool) or not hasattr(root, "__index__") else index(root)
        )
    except HpcommError as error:
        raise refused(comm, verb, error) from None


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


def each_of(comm: Context, verb: str, items: Any) -> tuple[Sequence[Any], UsageError | None]:
    """items with one for each rank; if they are none, so many of nothing, and the error."""
    ranks = comm.remote_size if comm.is_inter else comm.size
    if hasattr(items, "__len__") and len(items) == ranks:
        return items, None
    found = f"{len(items)} items" if hasattr(items, "__len__") else f"a {type(items).__name__}"
    return [None] * ranks, UsageError(
        f"{verb} needs a list with one item for each of {ranks} ranks, not {found}",
        hint="[item for rank 0, item for rank 1, ...]",
    )
