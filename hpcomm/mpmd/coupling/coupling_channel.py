"""Persistent messages of a coupling: one per partner rank, for all fields that go there together.

Between a field that lies consecutively and its partner nothing is copied; everything else is packed into
memory that the channel keeps. The requests are persistent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

import numpy as np

from ..._lazy import MPI, NDArray
from ...agree import survival
from ...core.types import AnyArray
from ...errors import PeerFailedError, WaitTimeoutError, where
from ..coupled_field import Field, Load, check_values, gather, length, scatter, width_of
from ..route.coupled_route import Selection
from .coupling_clock import Clock
from .on_device import Share
from .wire import Lane, Part, Wire

HEADER = 16  # bytes: number of the coupling time, and the time itself
_LARGE_PAGE = 1 << 21  # bytes
_COPIED = 64 << 10  # bytes of a message that is sooner copied than waited for


class Channel:
    """One direction of one or several fields over a link.

    Args:
        sends: whether this side sends.
        stamps: how times are said, with one of which messages begin; None: they do not.

    Attributes:
        lends: whether what is sent travels from its own memory, which must not change meanwhile.
    """

    def __init__(
        self, lane: Lane, parts: Sequence[Part], *, sends: bool, stamps: Clock | None = None
    ) -> None:
        self.wire, self._tag, self.timeout_s, self._direct = self._lane = lane
        self.parts = parts
        self.sends = sends
        self.stamp = (-1.0, -1.0)
        self._stamps, self._stamped = stamps, stamps is not None
        self._by_rank: dict[int, list[tuple[Part, Selection]]] = {}  # what goes to each, or comes from there
        for part in parts:
            for rank, rows in part.rows:
                self._by_rank.setdefault(rank, []).append((part, rows))
        self._made_for: list[tuple[Field | Load, Any]] | None = None
        self._requests: list[MPI.Prequest] = []
        self._launch: Callable[[], Any]
        self._test: Callable[[], bool]
        self._copies: list[Callable[[], Any]] = []
        self._heads: list[NDArray[np.float64]] = []
        self._shares: list[Share] = []
        self._under_way = self._has_failed = False
        self.lends = False

    def start(self) -> None:
        """Begin: packs and sends, or readies to receive; waits for the last start of this channel first."""
        if self._under_way:
            self.finish()
        if self._made_for is None or any(field.values is not values for field, values in self._made_for):
            self._prepare()
        if self.sends:
            for head in self._heads:
                head[:] = self.stamp
            for copy in self._copies:
                copy()
        self._launch()
        for share in self._shares:
            share.start()
        self._under_way = True

    def finish(self) -> None:
        """Wait until what was begun is complete: it has been taken, or a receiver has it in its fields."""
        if not self._under_way:
            return
        if not self._test():
            self.wire.wait(self._test, self._judge)
        self._under_way = False
        for share in self._shares:
            share.finish()
        if not self.sends:
            for copy in self._copies:
                copy()
            if self._heads:
                self.stamp = (float(self._heads[0][0]), float(self._heads[0][1]))

    def settle(self) -> None:
        """At the end of this program: wait until it is taken, or its taker has ended, too."""
        if self._under_way:
            ranks, gone = self._by_rank.keys(), self.wire.gone
            self.wire.wait(lambda: self._test() or not ranks.isdisjoint(gone()), self._judge)
            self._under_way = False

    @property
    def names(self) -> str:
        return ", ".join(repr(part.field.name) for part in self.parts)

    def _prepare(self) -> None:
        for field in (part.field for part in self.parts):  # in each turn's channel: any may see them first
            if isinstance(field, Field):
                check_values(field, field.values)
        self.free()
        self._made_for = [(part.field, part.field.values) for part in self.parts]
        # A send that is complete when it is buffered would hide from every deadline that nobody takes it.
        make = self.wire.mpi.Ssend_init if self.sends else self.wire.mpi.Recv_init
        for rank, every in sorted(self._by_rank.items()):
            here = []
            for part, rows in every:
                if goes_aboard(self.wire, part, rank, rows):
                    self._shares.append(Share(self._lane, rank, part, rows, sends=self.sends))
                    self.lends |= self._shares[-1].lends
                else:
                    here.append((part, rows))
            if not here and not self._stamped:
                continue
            memory = self._own_memory(here)
            if memory is None:
                memory = self._packed(here)
            made = make([memory, MPI.BYTE], rank + self.wire.shift, self._tag)
            self._requests.append(cast("MPI.Prequest", made))  # mpi4py says less of Ssend_init
        self._set_launch()

    def _set_launch(self) -> None:
        """Choose what begins all messages, and what looks whether they have ended."""
        requests, shares = self._requests, self._shares
        self._launch = partial(MPI.Prequest.Startall, requests)
        self._test = partial(MPI.Request.Testall, requests)
        if shares:
            self._test = lambda: MPI.Request.Testall(requests) and all(share.done() for share in shares)
        elif len(requests) == 1:  # a list of one costs half a microsecond each time
            self._launch, self._test = requests[0].Start, requests[0].Test
        if survival.tells:
            self._launch, self._test = map(self._until_death, (self._launch, self._test))

    def _until_death(self, function: Callable[[], Any]) -> Callable[[], bool]:
        """function, that is false from the death of a partner on: who waits for it then learns of that."""

        def done() -> bool:
            try:
                return not self._has_failed and function() is not False
            except MPI.Exception:
                if self._by_rank.keys().isdisjoint(self.wire.gone()):
                    raise
                self._has_failed = True
                return False

        return done

    def _own_memory(self, here: list[tuple[Part, Selection]]) -> NDArray[np.uint8] | None:
        """The bytes of the values themselves, if they are all that travels and lie consecutively."""
        if len(here) != 1:
            return None
        part, rows = here[0]
        values = part.field.values
        if not (self._direct and isinstance(rows, slice) and isinstance(values, np.ndarray)):
            return None
        if self._stamped or not values.flags.c_contiguous or values.dtype != part.dtype:
            return None
        memory = values[rows].reshape(-1).view(np.uint8)
        if self.sends and memory.nbytes <= _COPIED:
            return None
        self.lends |= self.sends
        return memory

    def _packed(self, here: list[tuple[Part, Selection]]) -> NDArray[np.uint8]:
        """Memory for a message, and what copies into it or out of it."""
        counts = [length(rows) * width_of(part.field) * part.dtype.itemsize for part, rows in here]
        starts = np.cumsum([HEADER if self._stamped else 0, *(-(-count // 16) * 16 for count in counts[:-1])])
        memory = _memory(int(starts[-1]) + sum(counts[-1:]))  # no more: the other end may not pack
        if self._stamped:
            self._heads.append(memory[:HEADER].view(np.float64))
        for (part, rows), start, count in zip(here, starts[: len(here)], counts, strict=True):
            view = memory[start : start + count].view(part.dtype).reshape(length(rows), *part.field.shape)
            self._copies.append(self._copier(part.field.values, rows, view))
        return memory

    def _copier(self, values: object, rows: Selection, view: AnyArray) -> Callable[[], object]:
        """What fills view from rows of values, or those from view; numpy's arrays with nothing in between."""
        if type(values) is not np.ndarray or values.dtype != view.dtype:
            return partial(gather if self.sends else scatter, values, rows, view)
        if not self.sends:
            return partial(values.__setitem__, rows, view)
        if isinstance(rows, slice):
            return partial(np.copyto, view, values[rows])
        return partial(values.take, rows, 0, view, "clip")

    def _judge(self, waited_s: float) -> None:
        """Raise if this wait can bring nothing more."""
        verb, wire = "put" if self.sends else "get", self.wire
        lost = wire.lost() & self._by_rank.keys()
        if lost and not self._test():
            last = ""
            if self._stamps is not None and self.stamp[0] >= 0:
                last = f"; the last that came was of time {self._stamps.said(self.stamp[1])}"
            raise PeerFailedError(
                f"{verb} of {self.names} needs rank {min(lost)} of program '{wire.peer}',"
                f" which has ended{last}",
                where(verb, wire.comm),
                f"look at what '{wire.peer}' printed; both programs must go on to the same time",
                sorted(lost),
            )
        if waited_s > self.timeout_s:
            raise WaitTimeoutError(
                f"{verb} of {self.names} waited {waited_s:.0f} s for program '{wire.peer}'",
                where(verb, wire.comm),
                "look at what the other program does, or at the network; timeout of the field if it is slow",
            )

    def free(self) -> None:
        """Give the requests back."""
        for request in self._requests:
            request.Free()
        self._requests, self._copies, self._heads, self._shares, self.lends = [], [], [], [], False


class Turns:
    """Channels of the same fields that are sent through by turns: a giver may be ahead of its taker.

    Args:
        make: gives a channel.
        ahead: how many puts may be under way before the next one waits for the first of them.
    """

    def __init__(self, make: Callable[[], Channel], ahead: int) -> None:
        self._make = make
        self._channels = [make() for _ in range(ahead)]

    def reserve(self, count: int) -> None:
        """Let so many be under way."""
        self._channels[:0] = [self._make() for _ in range(count - len(self._channels))]

    def start(self, stamp: tuple[float, float] = (-1.0, -1.0)) -> None:
        """Send; waits until the channel whose turn it is has been received from."""
        channel = self._channels[0]
        channel.stamp = stamp
        channel.start()
        if not channel.lends:
            self._channels.append(self._channels.pop(0))

    def finish(self) -> None:
        """Wait until the fields may be changed."""
        if self._channels[0].lends:
            self._channels[0].finish()

    def settle(self) -> None:
        """At the end of this program: wait until all is taken, or its takers have ended, too."""
        for channel in self._channels:
            channel.settle()


def _memory(nbytes: int) -> NDArray[np.uint8]:
    """Zeroed memory for a message; a large one begins where a large page of the system does.

    Ranks of one host copy through page tables: 8 MB take 340 us from aligned memory, else 420 to 650.
    """
    if nbytes < _LARGE_PAGE:
        return np.zeros(nbytes, np.uint8)
    whole = np.zeros(nbytes + _LARGE_PAGE, np.uint8)
    skipped = -whole.ctypes.data % _LARGE_PAGE
    return whole[skipped : skipped + nbytes]


def goes_aboard(wire: Wire, part: Part, rank: int, rows: Selection) -> bool:
    """Whether rows travel as a message of an array; the partner, who knows as much, says the same."""
    carrier, nbytes = wire.carrier, length(rows) * width_of(part.field) * part.dtype.itemsize
    if carrier is None or rank not in part.device_side:
        return False
    return not carrier.context.devices.is_one_call(nbytes)
