"""Neighbour collectives of arrays whose shapes the receivers do not know: as those of ragged.py."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Any, overload

from ..._lazy import MPI, NDArray, np
from ...agree.agreement import refusing
from ...core.operation import Call, Carrier
from ...core.present import calling
from ...core.request import Pending, Request, Stages, note_rounds
from ...core.signature import head
from ...core.types import Array, ArrayLike, Later, Now, Spec
from ...errors import UsageError
from ...transport import progress
from ...transport.late import dtypes, transport
from ..making.groups import Channel, channel
from ..mpi4py_names import also
from ..payloads import device_payload, payload_transport, ragged
from ..payloads.payload import Opened, Payload, headed
from ..shell import Shell
from .collectives import carry_out
from .timeouts import waited


class RaggedNeighbours(Shell):
    """A rank's neighbours, and the verbs for their ragged arrays."""

    sources: tuple[int, ...] = ()
    destinations: tuple[int, ...] = ()

    @overload
    def neighbour_all_gather_ragged(self, x: Array, *, async_op: Now = ...) -> list[Array | None]: ...
    @overload
    def neighbour_all_gather_ragged(self, x: Array, *, async_op: Later) -> Request[list[Array | None]]: ...
    def neighbour_all_gather_ragged(self, x: ArrayLike, *, async_op: bool = False) -> object:
        """Collect the array of every source, of any shape and dtype; None where nobody is.

        Same as MPI_Neighbor_allgatherv, without counts. async_op=True gives a Request.
        """
        n = len(self.destinations)
        return self._neighbours_ragged("neighbour_all_gather_ragged", [x] * n, n, async_op)

    @overload
    def neighbour_all_to_all_ragged(
        self, xs: Sequence[Array], *, async_op: Now = ...
    ) -> list[Array | None]: ...
    @overload
    def neighbour_all_to_all_ragged(
        self, xs: Sequence[Array], *, async_op: Later
    ) -> Request[list[Array | None]]: ...
    def neighbour_all_to_all_ragged(self, xs: Sequence[ArrayLike], *, async_op: bool = False) -> object:
        """Send array i of the list to destinations[i]; receive one of any shape from every source.

        Same as MPI_Neighbor_alltoallv, without counts. Where a destination is nobody the array goes nowhere.
        async_op=True gives a Request.
        """
        return self._neighbours_ragged("neighbour_all_to_all_ragged", xs, len(self.destinations), async_op)

    neighbor_all_gather_ragged = also(neighbour_all_gather_ragged)  # as MPI spells it
    neighbor_all_to_all_ragged = also(neighbour_all_to_all_ragged)

    # -- how ------------------------------------------------------------------------------------------
    def _outward(self) -> Iterable[int]:
        """The places of destinations in the order in which two ranks that are neighbours twice pair them."""
        return range(len(self.destinations))

    def _begun(self, name: str, ends: tuple[Spec, Spec]) -> list[Pending]:
        return [getattr(self.context.mpi_handle, name)(*ends)]

    def _neighbours_ragged(self, verb: str, xs: Sequence[ArrayLike], n: int, async_op: bool) -> object:
        """First everybody says how long its blocks are, then they travel: one message for each pair."""
        comm = self.context
        with calling(comm, verb, async_op=async_op):
            is_later = async_op or comm.timeout_s is not None
            got = carry_out(self._ragged_call(verb, xs, n, is_later), is_later)
            if is_later:
                note_rounds(got)
            return got if async_op else waited(comm, got)

    def _ragged_call(self, verb: str, xs: Sequence[ArrayLike], n: int, is_later: bool) -> Call:
        comm = self.context
        with refusing(verb, comm):
            comm.check_open(verb)
            if not isinstance(xs, (list, tuple)) or len(xs) != n:
                raise UsageError(
                    f"{verb} wants a list of {n} arrays", hint="one for each of comm.destinations"
                )
            packed_parts = [ragged.encode(x) for x in xs]
        call, arrived = Call(comm, verb, code=head(verb)), list[Any]()
        by = channel(comm) if is_later else None

        def stages() -> Stages:
            arrived.extend((yield from self._blocks_of_all(packed_parts, by)))
            return call.finish(None)

        def under_way() -> Stages:
            return transport.in_our_words(comm, verb, stages())

        call.carrier = Carrier(lambda: progress.drive(under_way()), under_way)
        call.finish = lambda _: arrived
        return call

    def _blocks_of_all(self, packed_parts: list[Payload], by: Channel | None) -> Stages:
        """by: what the blocks go by in the background; None: MPI waits for all."""
        going, moving = payload_transport.loaded(self.context, packed_parts, lambda i: [self.destinations[i]])
        headers = [headed(made, sys.maxsize).header for made in going if made is not None]
        pieces = [np.frombuffer(header, np.uint8) for header in headers]
        inboxes = self._posted(pieces) if by is None else (yield from self._begun_ragged(pieces, by))
        got: list[Any] = [Opened(inbox.data).blocks if inbox.nbytes else None for inbox in inboxes]
        for i, (made, rank) in enumerate(zip(got, self.sources, strict=True)):
            if self.context.devices is not None and made and device_payload.has_device_arrays(made):
                got[i] = progress.Moving(device_payload.unload(self.context, made, rank))
        yield [*(each for each in got if isinstance(each, progress.Moving)), *moving]
        return [_arrived(made) for made in got]

    def _posted(self, pieces: list[NDArray[np.uint8]]) -> list[NDArray[np.uint8]]:
        """What comes from each source, where piece i goes to destination i; empty where nobody is."""
        if self.context.size == 1:
            return self._pieces_to_itself(pieces)
        lengths, coming = self._lengths(pieces)
        mpi: Any = self.context.mpi_handle
        mpi.Neighbor_alltoall([lengths, 1, MPI.INT64_T], [coming, 1, MPI.INT64_T])
        inboxes = [np.empty(int(length), np.uint8) for length in coming[:, 0]]
        with _Scattered(pieces) as going, _Scattered(inboxes) as received:
            mpi.Neighbor_alltoallw(going.spec, received.spec)
        return inboxes

    def _begun_ragged(self, pieces: list[NDArray[np.uint8]], by: Channel) -> Stages:
        """The same in the background.

        Blocks are plain messages under the call's own number: ranks may wait for two such calls in
        different orders, in which MPI's Ineighbor_alltoallw would meet others.
        """
        if self.context.size == 1:
            return self._pieces_to_itself(pieces)
        lengths, coming = self._lengths(pieces)
        ends = (lengths, 1, MPI.INT64_T), (coming, 1, MPI.INT64_T)
        yield self._begun("Ineighbor_alltoall", ends)
        inboxes = [np.empty(int(length), np.uint8) for length in coming[:, 0]]
        going = [(pieces[i], self.destinations[i]) for i in self._outward()]
        coming_in = zip(inboxes, self.sources, strict=True)
        yield [
            *(by.mpi.Irecv(_whole(box), peer, by.number) for box, peer in coming_in if box.nbytes),
            *(by.mpi.Isend(_whole(x), peer, by.number) for x, peer in going if peer != MPI.PROC_NULL),
        ]
        return inboxes

    def _pieces_to_itself(self, pieces: list[NDArray[np.uint8]]) -> list[NDArray[np.uint8]]:
        """On one rank, as in _to_itself."""
        pairs = zip(self.sources, self._outward(), strict=True)
        return [pieces[i] if source != MPI.PROC_NULL else np.empty(0, np.uint8) for source, i in pairs]

    def _lengths(self, pieces: list[NDArray[np.uint8]]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Those of the pieces, and room for those of what comes."""
        lengths = np.array([piece.nbytes for piece in pieces], np.int64).reshape(-1, 1)
        return lengths, np.zeros((len(self.sources), 1), np.int64)


def _whole(piece: NDArray[np.uint8]) -> Spec:
    return transport.message(piece, piece.nbytes, dtypes.BY_NAME["uint8"])


def _arrived(made: Any) -> Any:
    """The array in a payload, which may still be moving."""
    if isinstance(made, progress.Moving):
        made.Wait()
        made = made.result
    return made and ragged.decode(made)


class _Scattered:
    """Blocks anywhere in memory as one argument of Alltoallw; blocks past 2 GiB are single elements."""

    def __init__(self, blocks: Sequence[NDArray[np.uint8]]) -> None:
        self._types = [transport.contiguous(MPI.BYTE, block.nbytes).Commit() for block in blocks]
        addresses = [MPI.Get_address(block) if block.nbytes else 0 for block in blocks]
        self.spec = [MPI.BOTTOM, ([1] * len(blocks), addresses), self._types]

    def __enter__(self) -> _Scattered:
        return self

    def __exit__(self, *error: object) -> None:
        for kind in self._types:
            kind.Free()
