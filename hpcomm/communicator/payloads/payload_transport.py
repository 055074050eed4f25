"""Transport of payloads, from rank to rank and in collectives.

First everybody exchanges headers of fixed size. What fits is in the header, so small data travel in one
round. What does not fit follows block by block, straight from and into its memory, in pieces that any MPI
takes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from ..._lazy import MPI
from ...core.limits import EAGER_OBJECT, HEADER
from ...core.request import Stages
from ...transport.late import transport
from ...transport.matching import Arrival
from ...transport.progress import Moving
from ..making.block_channel import Blocks, passing_tag
from .dissemination import descend, is_many, share_out
from .payload import (  # fmt: skip
    DevicePayload,
    Headed,
    Opened,
    Payload,
    are_whole,
    comes_alone,
    cut,
    headed,
    lengths_after,
    name_tag,
    only_block,
    room,
    tag_of,
)

if TYPE_CHECKING:
    from ..context import Context
    from . import device_payload
else:
    from ..._lazy import LazyModule

    device_payload = LazyModule("hpcomm.communicator.payloads.device_payload")

_NUMBERS = 0x7FFF  # of calls of one communicator that may be under way, as tags of any MPI


def run(stages: Stages) -> Any:
    """Carry out all stages now."""
    try:
        pending = next(stages)
        while True:
            MPI.Request.Waitall([each for each in pending if isinstance(each, MPI.Request)])
            for each in pending:
                if isinstance(each, Moving):
                    each.Wait()
            pending = stages.send([])
    except StopIteration as end:
        return end.value


def send(comm: Context, packed: Payload, dest: int, tag: int, sync: bool = False) -> None:
    """Send payload to dest: one message if it is small, else a header and its parts.

    sync: return only when dest has begun to receive it.
    """
    made = headed(packed, EAGER_OBJECT)
    mpi = comm.object_comm
    (mpi.Ssend if sync else mpi.Send)((made.header, MPI.BYTE), dest, tag)
    if made.tag >= 0:
        for piece in made.parts:
            comm.block_channel.Send((piece, MPI.BYTE), dest, made.tag)


def isend(comm: Context, packed: Payload, dest: int, tag: int, sync: bool = False) -> Stages:
    """The same in the background."""
    moving: list[Moving] = []
    if type(packed) is DevicePayload:
        packed, moving = device_payload.load(comm, packed, [dest])
    made = headed(packed, EAGER_OBJECT)
    mpi = comm.object_comm
    first = (mpi.Issend if sync else mpi.Isend)((made.header, MPI.BYTE), dest, tag)
    yield [first, *_begun(comm, made.parts, made.tag, [dest]), *moving]


def _begun(comm: Context, pieces: list[memoryview], tag: int, ranks: Sequence[int]) -> list[MPI.Request]:
    """What follows a header, on its way to some ranks."""
    return [comm.block_channel.Isend([piece, MPI.BYTE], rank, tag) for rank in ranks for piece in pieces]


_buffers: list[memoryview] = []  # where incoming messages are received; more than one where threads receive


def receive(comm: Context, source: int, tag: int) -> tuple[Payload | None, MPI.Status]:
    """Receive a payload, None from hpcomm.PROC_NULL, and who sent it."""
    try:
        buffer = _buffers.pop()
    except IndexError:
        buffer = memoryview(bytearray(EAGER_OBJECT))
    status = MPI.Status()
    comm.object_comm.Recv((buffer, MPI.BYTE), source, tag, status)  # quicker than to ask for its length first
    if source == MPI.PROC_NULL:
        return None, status
    header = bytearray(buffer[: status.count])
    _buffers.append(buffer)
    if (alone := only_block(memoryview(header))) is not None:
        return [alone], status
    source = status.source
    opened = Opened(header)
    pieces = cut(opened.to_come)
    if len(pieces) == 1:  # the usual one; MPI is quicker to receive than to wait for requests
        comm.block_channel.Recv((pieces[0], MPI.BYTE), source, opened.tag)
    elif opened.tag >= 0:
        run(_fetch(opened, partial(_take, comm, source)))
    packed = opened.blocks
    if comm.devices is not None:
        packed = run(_unloaded(comm, packed, source))
    return packed, status


def ireceive(comm: Context, source: int, tag: int) -> Stages:
    """The same in the background."""
    arrival = Arrival(comm.object_comm, source, tag)
    yield [arrival]
    if source == MPI.PROC_NULL:
        return None, arrival.status
    header = bytearray(arrival.status.count)
    arrival.message.Recv((header, MPI.BYTE))
    source = arrival.status.source
    opened = Opened(header)
    yield from _fetch(opened, partial(_take, comm, source))
    return (yield from _unloaded(comm, opened.blocks, source)), arrival.status


def _unloaded(comm: Context, packed: Payload, source: int) -> Stages:
    """A payload that has come, with what follows it for devices."""
    if comm.devices is not None and device_payload.has_device_arrays(packed):
        coming = Moving(device_payload.unload(comm, packed, source))
        yield [coming]
        packed = coming.result
    return packed


def _fetch(opened: Opened, take: Callable[[list[memoryview], int], Stages]) -> Stages:
    """Receive the parts that follow a header, by take, which fills pieces with what comes under a tag."""
    lengths = opened.lengths_to_come()
    if lengths is not None:
        yield from take([memoryview(lengths)], opened.tag)
        opened.take_lengths(lengths)
    if pieces := cut(opened.to_come):
        yield from take(pieces, opened.tag)


def _take(comm: Context, source: int, pieces: list[memoryview], tag: int) -> Stages:
    yield [comm.block_channel.Irecv([piece, MPI.BYTE], source, tag) for piece in pieces]


# Between two groups (an inter-communicator) headers go from all ranks of one to those of the other; a root is
# given as a rank there, MPI.ROOT at itself, and MPI.PROC_NULL at those beside it, who have nothing to do.


def _partners(comm: Context) -> Sequence[int]:
    """The ranks whose payloads come from elsewhere."""
    if comm.is_inter:
        return range(comm.remote_size)
    return [r for r in range(comm.size) if r != comm.rank]


def _room(comm: Context) -> int:
    """Bytes of a header where each rank gives or gets one of all ranks."""
    return room(max(comm.size, comm.remote_size))


def _headers(comm: Context, nbytes: int) -> bytearray:
    """Room for a header of each rank, those of the other group if there are two."""
    return bytearray(nbytes * (comm.remote_size if comm.is_inter else comm.size))


# Each takes what this rank gives: payloads for all, one, or none.


def broadcast(comm: Context, made: Sequence[Payload], root: int, blocking: bool) -> Stages:
    """Give every rank root's payload; None beside the root of another group."""
    mpi, packed = comm.object_comm, made[0] if made else None
    [going], moving = loaded(comm, [packed], lambda _: _partners(comm))
    nbytes = _room(comm) if comm.is_inter else HEADER
    mine = headed(going, nbytes, True) if going is not None else Headed(bytearray(nbytes))
    yield from _header_to_all(comm, mine.header, root, blocking)
    if root == MPI.PROC_NULL:
        return None
    blocking = blocking and not comm.is_inter  # those beside the root do not know how many pieces there are
    give = partial(_give_blocking, mpi, root) if blocking else partial(_give, comm, root)
    if packed is None:
        opened = Opened(mine.header)
        yield from _fetch(opened, give)
        return (yield from _unloaded(comm, opened.blocks, root))
    if mine.tag >= 0:
        yield from give(mine.parts, mine.tag)
    yield moving
    return packed


def _header_to_all(comm: Context, header: bytearray, root: int, blocking: bool) -> Stages:
    mpi = comm.object_comm
    if blocking or not comm.is_inter:
        return (yield from _collective(mpi, "Bcast", blocking, [header, MPI.BYTE], root))
    # As a scatter, which those beside the root count as well: see transport/between_groups.py
    headers = [bytes(header) * comm.remote_size, len(header), MPI.BYTE] if root == MPI.ROOT else None
    return (
        yield from _collective(
            mpi, "Scatter", False, headers, [header, MPI.BYTE] if root >= 0 else None, root
        )
    )


def _give_blocking(mpi: MPI.Comm, root: int, pieces: list[memoryview], tag: int) -> Stages:
    """Give the pieces that root has to all ranks, which have room for them."""
    for piece in pieces:
        mpi.Bcast([piece, MPI.BYTE], root)
    return
    yield


def _give(comm: Context, root: int, pieces: list[memoryview], tag: int) -> Stages:
    """The same by messages: of many ranks down a tree, at whose top the first rank of another group stands.

    tag: of messages from root itself.
    """
    parts, is_root = comm.block_channel, root == (MPI.ROOT if comm.is_inter else comm.rank)
    if is_many(comm) and not comm.is_inter:
        top, size = parts.place(root) if isinstance(parts, Blocks) else (root, comm.size)
        yield from descend(parts, comm.rank, comm.size, pieces, root, passing_tag(tag, top, size))
    elif is_root:
        yield _begun(comm, pieces, tag, [0] if is_many(comm) else _partners(comm))
    else:
        if comm.rank == 0 or not is_many(comm):
            yield from _take(comm, root, pieces, tag)
        if is_many(comm):
            below = passing_tag(tag, root, comm.remote_size)
            yield from descend(comm.inner_comm, comm.rank, comm.size, pieces, 0, below)


def gather(comm: Context, made: Sequence[Payload], root: int, blocking: bool) -> Stages:
    """Collect all payloads on root: a list there, None elsewhere; None where the other group gives."""
    mpi, packed = comm.object_comm, made[0] if made else [memoryview(b"")]
    is_root = root == MPI.ROOT if comm.is_inter else mpi.rank == root
    gives = root >= 0  # not the root of another group, nor those beside it
    [going], moving = loaded(comm, [packed], lambda _: [root] if gives and not is_root else [])
    assert going is not None
    nbytes = _room(comm)
    mine = headed(going, nbytes, True)
    headers = _headers(comm, nbytes) if is_root else None
    yield from _collective(
        mpi,
        "Gather",
        blocking,
        [mine.header, MPI.BYTE] if gives else None,
        [headers, nbytes, MPI.BYTE] if is_root else None,
        root,
    )
    if not is_root:
        yield [*(_begun(comm, mine.parts, mine.tag, [root]) if gives else ()), *moving]
        return None
    assert headers is not None
    return (yield from _open_all(comm, headers, packed, [], []))


def all_gather(comm: Context, made: Sequence[Payload], root: int, blocking: bool) -> Stages:
    """Collect all payloads everywhere; there is no root."""
    mpi, nbytes, [packed] = comm.object_comm, _room(comm), made
    [going], moving = loaded(comm, [packed], lambda _: _partners(comm))
    assert going is not None
    mine = headed(going, nbytes, True)
    headers, is_large = _headers(comm, nbytes), is_many(comm)
    if is_large and not comm.is_inter:
        name_tag(mine.header)
    number = next(comm.call_numbers) & _NUMBERS if is_large else -1  # calls begin in one order everywhere
    yield from _collective(mpi, "Allgather", blocking, [mine.header, MPI.BYTE], [headers, nbytes, MPI.BYTE])
    sends = []
    if mine.tag >= 0 and (comm.is_inter or not is_large):
        ranks = [comm.rank * comm.remote_size // comm.size] if is_large else _partners(comm)  # see share_out
        sends = _begun(comm, mine.parts, mine.tag, ranks)
    arrive = partial(_spread, comm, memoryview(headers), mine, number) if is_large else None
    return (yield from _open_all(comm, headers, packed, sends, moving, arrive))


def _spread(
    comm: Context,
    headers: memoryview,
    mine: Headed,
    number: int,
    sends: list[MPI.Request],
) -> Stages:
    """Receive what follows the headers of all ranks; returns what gives the payload of a rank.

    mine: this rank's own.
    """
    nbytes = len(mine.header)
    at = range(0, len(headers), nbytes)
    same: dict[Any, Any] = {}  # mostly all ranks' are
    after = [same.setdefault(each := lengths_after(headers, a), each) for a in at]
    tags = partial(tag_of, headers, nbytes)
    if any(unsaid for unsaid, _ in after):  # some lengths are not in the header
        told = [(8 * unsaid,) if unsaid else () for unsaid, _ in after]
        said = yield from share_out(comm, mine.lengths, told, tags, number)
        after = [(0, tuple(said(r)[0].cast("q"))) if told[r] else each for r, each in enumerate(after)]
    lengths = [known for _, known in after]
    arrived = yield from share_out(comm, mine.blocks, lengths, tags, number)
    if sends:
        yield sends

    def payload_of(r: int) -> Payload:
        blocks: Payload = arrived(r)
        if comes_alone(headers, at[r]):  # as most do
            return blocks
        coming = iter(blocks)
        opened = Opened(headers[at[r] : at[r] + nbytes], memory=lambda _: next(coming))
        return opened.blocks or blocks

    return payload_of


def scatter(comm: Context, packed_parts: Sequence[Payload], root: int, blocking: bool) -> Stages:
    """Give each rank its own of root's payloads; None beside, and at, the root of another group."""
    mpi = comm.object_comm
    nbytes = _room(comm)
    header = bytearray(nbytes)
    headers = None
    made: list[Headed] = []
    going, moving = loaded(comm, packed_parts, partial(_receivers, comm))
    if packed_parts:
        made = [headed(packed, nbytes, True) for packed in going if packed is not None]
        headers = b"".join(bytes(each.header) for each in made)
    yield from _collective(
        mpi,
        "Scatter",
        blocking,
        None if headers is None else [headers, nbytes, MPI.BYTE],
        [header, MPI.BYTE] if root >= 0 else None,
        root,
    )
    if root == MPI.PROC_NULL:
        return None
    if not packed_parts:
        opened = Opened(header)
        yield from _fetch(opened, partial(_take, comm, root))
        return (yield from _unloaded(comm, opened.blocks, root))
    yield [*_send_parts(comm, made), *moving]
    return None if comm.is_inter else packed_parts[root]


def all_to_all(comm: Context, packed_parts: Sequence[Payload], root: int, blocking: bool) -> Stages:
    """Send payload j to rank j, receive one from every rank; there is no root."""
    mpi, nbytes = comm.object_comm, _room(comm)
    going, moving = loaded(comm, packed_parts, partial(_receivers, comm))
    made = [headed(packed, nbytes, True) for packed in going if packed is not None]
    headers = _headers(comm, nbytes)
    joined = b"".join(bytes(each.header) for each in made)
    name = transport.function_of(comm, "all_to_all")
    yield from _collective(mpi, name, blocking, [joined, nbytes, MPI.BYTE], [headers, nbytes, MPI.BYTE])
    own = None if comm.is_inter else packed_parts[mpi.rank]
    return (yield from _open_all(comm, headers, own, _send_parts(comm, made), moving))


def _receivers(comm: Context, rank: int) -> list[int]:
    """Whom what a rank is given goes to: itself, but for this one."""
    return [rank] if comm.is_inter or rank != comm.rank else []


def loaded(
    comm: Context, packed_parts: Sequence[Payload | None], receivers: Callable[[int], Sequence[int]]
) -> tuple[list[Payload | None], list[Moving]]:
    """Payloads as they travel, i to receivers(i), and what follows them from devices."""
    going, moving = list(packed_parts), []
    for i, packed in enumerate(packed_parts):
        if type(packed) is DevicePayload:
            ranks = receivers(i)
            going[i], more = device_payload.load(comm, packed, ranks) if ranks else ([memoryview(b"")], [])
            moving += more
    return going, moving


def _send_parts(comm: Context, made: list[Headed]) -> list[MPI.Request]:
    going = [(each, r) for r, each in enumerate(made) if each.tag >= 0]
    return [
        request for each, r in going for request in _begun(comm, each.parts, each.tag, _receivers(comm, r))
    ]


def _open_all(
    comm: Context,
    headers: bytearray,
    own: Payload | None,
    sends: list[MPI.Request],
    moving: list[Moving],
    arrive: Callable[[list[MPI.Request]], Stages] | None = None,
) -> Stages:
    """Open the headers of all ranks and receive what follows them: the payloads, one after the other.

    Args:
        own: this rank's, in one group.
        arrive: what receives the parts, waits for sends, and gives the payloads, where parts do not come from
            their ranks.
    """
    view, nbytes = memoryview(headers), _room(comm)
    waits = sends or moving or type(own) is DevicePayload
    if not waits and are_whole(headers, nbytes):  # as most often
        return ([only_block(view, at)] for at in range(0, len(headers), nbytes))
    of = yield from (arrive or partial(_fetch_all, comm, view, nbytes))(sends)
    ranks, me = range(len(headers) // nbytes), -1 if own is None or comm.is_inter else comm.rank
    got = (own if r == me else of(r) for r in ranks)
    return got if comm.devices is None else (yield from _unloaded_all(comm, [*got], me, moving))


def _unloaded_all(comm: Context, got: list[Any], me: int, moving: list[Moving]) -> Stages:
    """The payloads of all ranks, with what follows them for devices; this rank's own as it is."""
    coming = {
        r: Moving(device_payload.unload(comm, packed, r))
        for r, packed in enumerate(got)
        if r != me and device_payload.has_device_arrays(packed)
    }
    if moving or coming:
        yield [*moving, *coming.values()]
    return [coming[r].result if r in coming else packed for r, packed in enumerate(got)]


def _fetch_all(comm: Context, headers: memoryview, nbytes: int, sends: list[MPI.Request]) -> Stages:
    """The same from each of them."""
    mpi = comm.block_channel
    opened = {r: Opened(headers[r * nbytes : (r + 1) * nbytes]) for r in _partners(comm)}
    lengths = {r: data for r, o in opened.items() if (data := o.lengths_to_come()) is not None}
    if lengths:
        yield [mpi.Irecv([data, MPI.BYTE], r, opened[r].tag) for r, data in lengths.items()]
        for r, data in lengths.items():
            opened[r].take_lengths(data)
    waits = [mpi.Irecv([piece, MPI.BYTE], r, o.tag) for r, o in opened.items() for piece in cut(o.to_come)]
    if sends or waits:
        yield [*sends, *waits]
    return lambda r: opened[r].blocks


def _collective(mpi: MPI.Comm, name: str, blocking: bool, *arguments: object) -> Stages:
    """Stage one of a collective: the blocking function where nobody waits in the background, it is faster."""
    if blocking:
        getattr(mpi, name)(*arguments)
    else:
        yield [getattr(mpi, f"I{name.lower()}")(*arguments)]
    return None
