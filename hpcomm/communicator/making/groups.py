"""Communicators made of one: split, dup, groups and inter-communicators."""

from __future__ import annotations

import time
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from operator import index
from typing import Any, NamedTuple, TypeVar
from zlib import crc32

from ..._lazy import MPI
from ...agree.agreement import refused, refusing
from ...core.limits import REFUSAL_S
from ...core.present import calling, meeting
from ...core.request import abandon
from ...core.signature import head, signature
from ...errors import HpcommError, PeerFailedError, RankError, UsageError, located, where
from ...transport.late import transport
from ...transport.matching import tag_number
from ..context import Context
from ..payloads.objects import Objects
from ..payloads.pickling import chosen
from ..settings import INHERITED, Settings, require_known
from .block_channel import making, rank_there
from .dropped import DUP, NONE_KEPT, Kept, Like

T = TypeVar("T")

_MOST = 2**31 - 1
_WHY = 1024  # bytes of what a refusal says to the other group
_NAMED = 16  # ranks that are named one by one


def split(comm: Context, color: int | None, key: int, name: str | None) -> Context | None:
    """As Communicator.split."""
    with calling(comm, "split", color=color, key=key):
        return _split(comm, color, key, name)


def _split(comm: Context, color: int | None, key: int, name: str | None) -> Context | None:
    comm.check_open("split")
    if color is not None:
        color = _whole(comm, "split", "color", color, 0, "; None leaves this rank out")
    key = _whole(comm, "split", "key", key, -_MOST, ", by which a part is ordered; name=... names the part")
    like, make = ("split", color, key), comm.carriers.plain.Split
    with agreed(comm, "split", like=like) as kept:
        if color is None:
            mapped(comm, "split", make, MPI.UNDEFINED, key)
            return None
        return made(comm, "split", name or f"{comm.name}/{color}", make, color, key, kept=kept)


def split_node(comm: Context, name: str | None, key: int, by: str) -> Context:
    """As Communicator.split_node."""
    from ...node import domains

    comm.check_open("split_node")
    key = _whole(comm, "split_node", "key", key, -_MOST, ", by which the part is ordered")
    if by != "node" and by not in domains.PARTS:
        hint = f"one of node, {', '.join(domains.PARTS)}"
        raise refused(comm, "split_node", UsageError(f"a node has no part {by!r}", hint=hint))
    name = name or f"{comm.name}/{by}"
    like, make = ("split_node", key), comm.carriers.plain.Split_type
    with agreed(comm, "split_node", None if by == "node" else by, like) as kept:
        node = made(comm, "split_node", name, make, MPI.COMM_TYPE_SHARED, key, kept=kept)
    if by == "node":
        return node
    with node:
        places = Objects(node).all_gather_object(domains.place(by))
        part = split(node, places.index(places[node.rank]), 0, name)
        assert part is not None  # every rank is in one
        return part


def _whole(comm: Context, verb: str, name: str, x: Any, least: int, meaning: str) -> int:
    """x as an int that MPI takes: whole numbers and truth values of any library."""
    try:
        number = int(x) if getattr(getattr(x, "dtype", None), "kind", "") == "b" else index(x)
    except (TypeError, ValueError):
        what = f"{name} {x!r} is no whole number"
    else:
        if least <= number <= _MOST:
            return number
        what = f"{name} {x!r} is not from {least} to {_MOST}"
    raise refused(comm, verb, UsageError(what, hint=f"a whole number from {least} on{meaning}")) from None


def group(comm: Context, ranks: Sequence[int], name: str | None, tag: int) -> Context:
    """As Communicator.group."""
    comm.check_one_group("group")
    try:
        members = [index(r) for r in ranks]
    except TypeError:
        hint = f"numbers from 0 to {comm.size - 1}, such as [0, 1]"
        raise RankError(f"{ranks!r} are no ranks", where("group", comm), hint) from None
    wrong = sorted(r for r, times in Counter(members).items() if not 0 <= r < comm.size or times > 1)
    if wrong or comm.rank not in members:
        what = f"rank {comm.rank} is not in {short_list(members)}"
        if wrong:
            what = f"ranks {short_list(wrong)} are no ranks of '{comm.name}', or named twice"
        hint = f"different ranks from 0 to {comm.size - 1}; only members call group"
        raise RankError(what, where("group", comm), hint)
    with located("group", comm):
        mpi, number = making(comm, tag_number(comm, tag, sending=True))
    everybody = comm.mpi_handle.Get_group()
    some = everybody.Incl(members)
    everybody.Free()
    try:
        with meeting(comm, "group", members):
            name = name or f"{comm.name}{short_list(members)}"
            new = made(comm, "group", name, mpi.Create_group, some, number)
    finally:
        some.Free()
    comm.life.groups.note(new, (tag, array("i", members).tobytes()))
    return new


def short_list(ranks: list[int]) -> str:
    """`[0, 1]`, or the first and the last of many."""
    return str(ranks) if len(ranks) <= _NAMED else f"[{ranks[0]}, {ranks[1]}, ... {ranks[-1]}]"


def dup(
    comm: Context, name: str | None = None, check: str | None = None, *, gpu: str | None = None,
    pickler: object = None,
) -> Context:  # fmt: skip
    """As Communicator.dup."""
    comm.check_open("dup")
    settings = INHERITED
    if check or gpu or pickler is not None:
        with refusing("dup", comm):
            require_known(check or comm.settings.check, gpu)
            settings = Settings(check, gpu, None if pickler is None else chosen(pickler))
    with agreed(comm, "dup", like=DUP) as kept:
        make = comm.carriers.plain.Dup if comm.node is None else None
        name = name or f"{comm.name}.dup"
        return made(comm, "dup", name, make, settings=settings, kept=kept)


def create_intercomm(
    comm: Context, local_leader: int, peer: Context, remote_leader: int, tag: int, name: str | None
) -> Context:
    """As Communicator.create_intercomm."""
    comm.check_one_group("create_intercomm")
    carrier, there = None, MPI.ANY_SOURCE
    try:
        if not isinstance(peer, Context):
            what, hint = f"peer is {peer!r}, no Communicator", "hpcomm.world, if both groups are parts of it"
            raise UsageError(what, hint=hint)
        peer.check_open("create_intercomm")
        carrier = making(peer, tag_number(peer, tag, sending=True))
        _check_leader(remote_leader, peer)
        there = rank_there(peer, index(remote_leader))
        _check_leader(local_leader, comm)
        with agreed(comm, "create_intercomm", local_leader=local_leader, remote_leader=remote_leader):
            why = _swapped(*carrier, there) if comm.rank == local_leader else None
            why = Objects(comm).broadcast_object(why, local_leader)
            if why:
                carrier = None
                what = f"rank {remote_leader} of '{peer.name}' refused its part of create_intercomm: {why}"
                hint = "look at that rank's own error"
                raise PeerFailedError(what, where("create_intercomm", comm), hint, [index(remote_leader)])
            create = comm.mpi_handle.Create_intercomm  # type: ignore[attr-defined]
            name = name or f"{comm.name}<->"
            new = made(comm, "create_intercomm", name, create, local_leader, carrier[0], there, carrier[1])
    except UsageError as error:
        error = refused(comm, "create_intercomm", error)
        if carrier is not None and comm.rank == (local_leader if _is_rank(local_leader, comm) else 0):
            _tell(*carrier, there, error.what)
        raise error from None
    except HpcommError as error:
        if carrier is not None and comm.rank == local_leader:
            _tell(*carrier, there, error.what)
        raise
    theirs = bytearray(8)  # the mark of what the other group has made it of
    own = comm.tag_base.to_bytes(8, "little")
    new.mpi_handle.Allreduce([own, MPI.UINT8_T], [theirs, MPI.UINT8_T], MPI.MIN)
    comm.life.groups.note(new, (-1, bytes(theirs)))
    return new


def _is_rank(leader: object, its: Context) -> bool:
    return hasattr(leader, "__index__") and 0 <= index(leader) < its.size


def _check_leader(leader: object, its: Context) -> None:
    if not _is_rank(leader, its):
        what = f"leader {leader!r} is no rank of '{its.name}'"
        raise RankError(what, hint=f"a rank from 0 to {its.size - 1}")


def _swapped(mpi: MPI.Comm, number: int, there: int) -> str:
    """Why the other group refuses to be joined; "": it does not. Its leader hears that this one comes."""
    said = bytearray(_WHY)
    mpi.Isend([b"", MPI.BYTE], there, number).Free()
    mpi.Recv([said, MPI.BYTE], there, number)
    return said.rstrip(b"\0").decode(errors="ignore")


def _tell(mpi: MPI.Comm, number: int, there: int, why: str) -> None:
    """Tell the other group's leader why this one refuses: the one that is meant, or that comes soon."""
    end, seen = time.monotonic() + REFUSAL_S, MPI.Status()
    while there == MPI.ANY_SOURCE and time.monotonic() < end:
        if mpi.Iprobe(there, number, seen):
            there = seen.source
        time.sleep(1e-3)
    if there != MPI.ANY_SOURCE:
        text, taken = why.encode()[:_WHY], bytearray(_WHY)
        abandon(text, mpi.Isend([text, MPI.BYTE], there, number), mpi.Irecv([taken, MPI.BYTE], there, number))


def merge(comm: Context, high: bool, name: str | None) -> Context:
    """As Communicator.merge."""
    comm.check_open("merge")
    if not comm.is_inter:
        what, hint = "merge needs an inter-communicator", "create_intercomm makes one"
        raise UsageError(what, where("merge", comm), hint)
    merge = comm.mpi_handle.Merge  # type: ignore[attr-defined]
    with agreed(comm, "merge", high=high):
        return made(comm, "merge", name or f"{comm.name}+", merge, high)


@contextmanager
def agreed(comm: Context, verb: str, what: object = None, like: Like = (), **words: object) -> Iterator[Kept]:
    """While all ranks of comm make something by verb, and name the same what; gives what made takes.

    Where the native core has them all, it begins when all have come: then none is inside MPI yet when
    another one refuses its part.

    Args:
        like: the call, on each rank the same if what it makes is, for made; (): that makes all anew.
        words: arguments of verb, for messages.

    Raises:
        MismatchError: another rank makes another call, or names something else. PeerFailedError: refuses it.
    """
    code, mark, agreement = head(verb), crc32(repr(what).encode()), comm.agreement
    with calling(comm, verb, **words), comm.call_guard:
        spare, children = None, comm.life.children
        if comm.node is not None:
            spare = children.take(partial(comm.node.tell, signature(code, mark)), like)
        if spare is None:
            agreement.enter(code, mark)  # who has left meanwhile stands in the call log
        children.begin(comm)
        yield Kept(like if comm.node is not None else (), spare)
        if spare is None:
            agreement.leave()


def made(
    comm: Context,
    verb: str,
    name: str,
    make: Callable[..., MPI.Comm] | None,
    *arguments: object,
    settings: Settings = INHERITED,
    kept: Kept = NONE_KEPT,
) -> Context:
    """One of what is kept, as agreed gives it, or that MPI makes by make(*arguments), or a duplicate within a
    node (None)."""
    mpi = None if make is None or kept.spare else mapped(comm, verb, make, *arguments)
    new: Context = mapped(comm, verb, comm.derive, mpi, name, settings, kept)
    if verb not in ("group", "create_intercomm"):  # not all of its ranks are comm's, or the reverse
        comm.life.children.add(new)
    return new


def mapped(comm: Context | None, verb: str, make: Callable[..., T], *arguments: object) -> T:
    """make(*arguments); MPI has room for so many communicators only."""
    try:
        return make(*arguments)
    except MPI.Exception as error:
        from ...transport.mpi import failure

        raise failure(error, verb, comm) from None


class Channel(NamedTuple):
    """A communicator for planned exchanges, so that their messages never meet the user's.

    mpi: for exchanges alone; carrier: for those of arrays on devices, if a rank may have such."""

    mpi: MPI.Comm
    number: int
    carrier: Context | None


def channel(comm: Context, peek: bool = False) -> Channel:
    """Duplicates of comm for exchanges alone, and a number that tells this exchange from the others.

    The first use of a communicator is collective; closing it closes the duplicates. With peek no number is
    taken.
    """
    if comm.exchange_channel is None:
        try:
            with meeting(comm, "a planned exchange"):
                made = comm.mpi_handle.Dup()
        except MPI.Exception as error:
            raise transport.failure(error, "a planned exchange", comm) from None
        made.Set_errhandler(MPI.ERRORS_RETURN)
        carrier = None if comm.devices is None else dup(comm, f"{comm.name}.exchange", "off")
        comm.exchange_channel = [made, 0, carrier]
    if not peek:
        comm.exchange_channel[1] += 1
    return Channel(comm.exchange_channel[0], comm.exchange_channel[1] % 32768, comm.exchange_channel[2])
