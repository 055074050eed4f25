"""Messages of a coupling, prepared once: one per partner rank, with all fields that go there together.

Between a field that lies consecutively and its partner nothing is copied; everything else is packed into
memory that the channel keeps. The requests are persistent.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..errors import PeerFailedError, WaitTimeoutError, where
from .field import Field, gather, host, scatter, width_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mpi4py import MPI
    from numpy.typing import NDArray

    from .link import Link
    from .route import Selection

__all__ = ["HEADER", "Channel", "Part"]

HEADER = 16  # bytes: number of the coupling time, and the time itself
_SPINS = 20
_LOOK_S = 0.2  # between looks at whether the partners still live


class Part(NamedTuple):
    """A field's share in a channel: its rows for each partner rank, and the dtype that travels."""

    field: Field
    rows: list[tuple[int, Selection]]
    dtype: np.dtype[Any]


class Channel:
    """One direction of one or several fields over a link.

    Args:
        sends: whether this side sends.
        stamped: whether messages begin with the time.
        direct: whether values may travel from, or into, their own memory.
    """

    def __init__(
        self,
        link: Link,
        parts: Sequence[Part],
        tag: int,
        *,
        sends: bool,
        stamped: bool = False,
        direct: bool = False,
    ) -> None:
        self.link = link
        self.parts = parts
        self.sends = sends
        self.stamp = (-1.0, -1.0)
        self._stamped = stamped
        self._direct = direct
        self._tag = tag
        self._made_for: list[Any] = []
        self._requests: list[MPI.Prequest] = []
        self._copies: list[Callable[[], None]] = []
        self._heads: list[NDArray[np.float64]] = []
        self._under_way = False

    def start(self) -> None:
        """Begin: packs and sends, or readies to receive; waits for the last start of this channel first."""
        if self._under_way:
            self.finish()
        if (
            any(a is not b.field.values for a, b in zip(self._made_for, self.parts, strict=False))
            or not self._made_for
        ):
            self._prepare()
        if self.sends:
            for head in self._heads:
                head[:] = self.stamp
            for copy in self._copies:
                copy()
        for request in self._requests:
            request.Start()
        self._under_way = True

    def finish(self) -> None:
        """Wait until what was begun is complete; a receiver then has it in its fields.

        Raises:
            WaitTimeoutError: the link's deadline is over.
            PeerFailedError: the other program has ended.
        """
        if not self._under_way:
            return
        self._wait()
        self._under_way = False
        if not self.sends:
            for copy in self._copies:
                copy()
            if self._heads:
                self.stamp = (float(self._heads[0][0]), float(self._heads[0][1]))

    @property
    def names(self) -> str:
        return ", ".join(repr(part.field.name) for part in self.parts)

    def _prepare(self) -> None:
        from mpi4py import MPI

        self.free()
        self._made_for = [part.field.values for part in self.parts]
        make = self.link.wire.Send_init if self.sends else self.link.wire.Recv_init
        for rank in sorted({rank for part in self.parts for rank, _ in part.rows}):
            here = [(part, rows) for part in self.parts for r, rows in part.rows if r == rank]
            memory = self._own_memory(here)
            if memory is None:
                memory = self._packed(here)
            self._requests.append(make([memory, MPI.BYTE], rank + self.link.shift, self._tag))

    def _own_memory(self, here: list[tuple[Part, Selection]]) -> NDArray[np.uint8] | None:
        """The bytes of the values themselves, if they are all that travels and lie consecutively."""
        part, rows = here[0]
        values = part.field.values
        if not (
            self._direct and len(here) == 1 and isinstance(rows, slice) and isinstance(values, np.ndarray)
        ):
            return None
        if self._stamped or not values.flags.c_contiguous or values.dtype != part.dtype:
            return None
        return values[rows].reshape(-1).view(np.uint8)

    def _packed(self, here: list[tuple[Part, Selection]]) -> NDArray[np.uint8]:
        """Memory for a message, and what copies into it or out of it."""
        counts = [_count(rows) * width_of(part.field) * part.dtype.itemsize for part, rows in here]
        starts = np.cumsum([HEADER if self._stamped else 0, *(-(-count // 16) * 16 for count in counts)])
        memory = np.zeros(int(starts[-1]), np.uint8)
        if self._stamped:
            self._heads.append(memory[:HEADER].view(np.float64))
        for (part, rows), start, count in zip(here, starts, counts, strict=False):
            view = memory[start : start + count].view(part.dtype).reshape(_count(rows), *part.field.shape)
            self._copies.append(self._copier(part.field, rows, view))
        return memory

    def _copier(self, field: Field, rows: Selection, view: NDArray[Any]) -> Callable[[], None]:
        if self.sends:
            return lambda: gather(field.values, rows, view)
        return lambda: scatter(field.values, rows, view)

    def _wait(self) -> None:
        from mpi4py import MPI

        test, requests = MPI.Request.Testall, self._requests
        for _ in range(_SPINS):
            if test(requests):
                return
        started = looked = time.monotonic()
        while not test(requests):
            os.sched_yield()  # no sleep: large messages move by these very calls
            for _ in range(_SPINS):
                if test(requests):
                    break
            now = time.monotonic()
            if now - looked > _LOOK_S:
                looked = now
                self._judge(now - started)
        self.link.waited_s += time.monotonic() - started

    def _judge(self, waited_s: float) -> None:
        """Raise if this wait can bring nothing more."""
        verb = "put" if self.sends else "get"
        gone = self.link.ended()
        lost = gone & {rank for part in self.parts for rank, _ in part.rows}
        if lost and not self.link.comm.mpi.Iprobe() and not all(r.Test() for r in self._requests):
            last = f"; the last that came was of time {self.stamp[1]:g} s" if self.stamp[1] >= 0 else ""
            raise PeerFailedError(
                f"{verb} of {self.names} needs rank {min(lost)} of program '{self.link.peer}',"
                f" which has ended{last}",
                where(verb, self.link.comm),
                f"look at what '{self.link.peer}' printed; both programs must go on to the same time",
                sorted(lost),
            )
        if waited_s > self.link.timeout_s:
            raise WaitTimeoutError(
                f"{verb} of {self.names} waited {waited_s:.0f} s for program '{self.link.peer}'",
                where(verb, self.link.comm),
                "look at what the other program does, or at the network; timeout of the field if it is slow",
            )

    def free(self) -> None:
        """Give the requests back."""
        if self._under_way:
            self._wait()
            self._under_way = False
        for request in self._requests:
            request.Free()
        self._requests, self._copies, self._heads, self._made_for = [], [], [], []


def _count(rows: Selection) -> int:
    return rows.stop - rows.start if isinstance(rows, slice) else len(rows)


def memory_of(field: Field) -> NDArray[Any]:
    """A field's values as a numpy array in host memory (a view, if they are there)."""
    values = field.values
    return host(values.cpu() if hasattr(values, "is_cuda") and values.is_cuda else values)
