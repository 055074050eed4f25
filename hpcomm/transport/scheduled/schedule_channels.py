"""Rounds of MPI messages, prepared for many times or made when needed; and those under way.

Whoever waits for one of them here, blocking or not, progresses all that are in the background in this
process: other ranks may wait for them in another order, or on another communicator. In other calls that
block, the thread of progress.py does so.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from mpi4py import MPI

from ...core.request import Stages
from ...core.turn import Turn
from ...core.types import NpArray
from .. import progress
from .executor import Executor

Messages = list[tuple[int, NpArray]]  # (peer, memory)

LARGEST = 1 << 30  # bytes of one MPI message: what counts of 32 bits hold, well aligned
under_way: list[Running] = []


class Lasting:
    """A channel whose rounds are prepared once and started many times, under one tag.

    Args:
        most: bytes that one message to or from a peer may have; longer ones travel in pieces.
    """

    def __init__(self, mpi: MPI.Comm, tag: int, most: Callable[[int], int]) -> None:
        self.mpi, self.tag, self.most = mpi, tag, most

    def prepare(self, sends: Messages, recvs: Messages) -> _Round:
        mpi, tag = self.mpi, self.tag
        made = [mpi.Recv_init(data, peer, tag) for peer, data in pieces(recvs, self.most)]
        made += [mpi.Send_init(data, peer, tag) for peer, data in pieces(sends, self.most)]
        starts = [request.Start for request in made]

        def begin() -> list[MPI.Prequest]:
            for start in starts:
                start()
            return made

        return _Round(begin, made)


class Passing(Lasting):
    """A channel whose rounds are made when their turn comes: for calls in the background, and long ones."""

    def prepare(self, sends: Messages, recvs: Messages) -> _Round:
        def begin() -> list[MPI.Request]:
            made = [self.mpi.Irecv(data, peer, self.tag) for peer, data in pieces(recvs, self.most)]
            return made + [self.mpi.Isend(data, peer, self.tag) for peer, data in pieces(sends, self.most)]

        return _Round(begin)


class _Round:
    """The messages of a round. begin: starts them; prepared: those requests of it that last.

    Starts and waits one by one: Startall and Waitall make lists for MPI first, which costs more.
    """

    def __init__(
        self, begin: Callable[[], Sequence[MPI.Request]], prepared: Sequence[MPI.Request] = ()
    ) -> None:
        self.begin, self.prepared = begin, prepared
        self.pending: Sequence[MPI.Request] = ()

    def start(self) -> None:
        self.pending = self.begin()

    def wait(self) -> None:
        wait_all(self.pending)


class Running:
    """Rounds in the background; waits as an MPI request does."""

    def __init__(self, rounds: Stages) -> None:
        self.rounds, self._turn = rounds, Turn()
        self.error: Exception | None = None  # of whoever moved it on last
        self.pending: list[Any] | None = next(rounds, None)
        under_way.append(self)
        progress.wake()

    def Test(self, status: object = None) -> bool:  # noqa: N802  as MPI.Request has it
        advance()
        if self.error is not None:
            raise self.error
        return self.pending is None

    def Wait(self, status: object = None) -> None:  # noqa: N802
        while not self.Test():  # MPI's own waiting may keep the thread from moving on what a peer waits for
            os.sched_yield()

    def advance(self) -> None:
        """Begin the next rounds as long as the messages of the last one are there."""
        self._turn.take(self._begin_next)

    def _begin_next(self) -> None:
        try:
            while self.pending is not None and all(each.Test() for each in self.pending):
                self.pending = next(self.rounds, None)
        except Exception as error:  # for the one who waits for it
            self.error, self.pending = error, None
        finally:
            if self.pending is None and self in under_way:
                under_way.remove(self)


def advance() -> None:
    """Move on all that is in the background, without waiting."""
    for each in tuple(under_way):
        each.advance()


progress.beside(under_way, advance)


def wait_all(requests: Sequence[MPI.Request]) -> None:
    """Wait for several requests of MPI."""
    while under_way and not MPI.Request.Testall(requests):
        advance()
    for request in requests:
        request.Wait()


def background(executor: Executor) -> Stages:
    """The rounds of an executor one at a time, each as the MPI requests to wait for."""
    for before, exchange, after in executor.rounds:
        for step in before:
            step()
        requests = exchange.begin()
        if requests:
            yield requests
        for step in after:
            step()
    for step in executor.last:
        step()


def pieces(messages: Messages, most: Callable[[int], int]) -> Iterator[tuple[int, list[object]]]:
    """(peer, what mpi4py wants to know): each message in pieces of at most so many bytes, in order."""
    for peer, view in messages:
        data, step = view.view(np.uint8), most(peer)
        if 0 < data.nbytes <= step:
            yield peer, [data, data.nbytes, MPI.BYTE]
            continue
        for low in range(0, data.nbytes, step):
            piece = data[low : low + step]
            yield peer, [piece, piece.nbytes, MPI.BYTE]


def release(executor: Executor) -> None:
    """Free the requests that were prepared for an executor; it has no rounds any more."""
    for _, exchange, _ in executor.rounds:
        for request in exchange.prepared:
            request.Free()
    executor.rounds = []
