"""VirtualRanks: ranks of several programs as threads of the processes of one, that plan together.

Planning is collective over both programs of a link, and a program without Python cannot take part. So each
process plays itself and some ranks of that program, each in a thread. What they say to each other meets in
one call of MPI by the processes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any, TypeVar

from .._lazy import MPI, np
from ..core.types import AnyArray, Ints

T = TypeVar("T")


class VirtualRanks:
    """All ranks of both programs.

    Args:
        comm: of the processes.
        players: which rank of comm plays each; where they are fewer than its ranks, the first ones do.
    """

    def __init__(self, comm: MPI.Intracomm, players: Sequence[int]) -> None:
        self.comm, self.players = comm, players
        self._mine = [rank for rank, player in enumerate(players) if player == comm.rank]
        self._meeting = threading.Barrier(len(self._mine), self._exchange)
        self._said: dict[int, tuple[Mapping[int, Any], Any]] = {}
        self._heard: dict[int, dict[int, Any]] = {}
        self._all: dict[int, Any] = {}

    def play(self, parts: Mapping[int, Callable[[VirtualRank], T]]) -> dict[int, T]:
        """What each part of this process's ranks returns. Collective over the processes.

        Raises:
            Exception: what the first of them has raised.
        """
        if not self._mine:
            return {}
        comm = self.comm
        if (count := len({*self.players})) < comm.size:  # who plays nobody is in no meeting
            self.comm = comm.Create_group(comm.Get_group().Incl(range(count)))
        try:
            return self._played(parts)
        finally:
            if self.comm is not comm:
                self.comm.Free()
                self.comm = comm

    def _played(self, parts: Mapping[int, Callable[[VirtualRank], T]]) -> dict[int, T]:
        done: dict[int, T] = {}
        wrong: list[Exception] = []

        def run(rank: int) -> None:
            try:
                done[rank] = parts[rank](VirtualRank(self, rank))
            except threading.BrokenBarrierError:
                pass  # another one has raised
            except Exception as error:
                wrong.append(error)
                self._meeting.abort()

        threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in self._mine]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if wrong:
            self._meeting.reset()
            raise wrong[0]
        return done

    def meet(self, rank: int, parts: Mapping[int, Any], to_all: Any) -> tuple[dict[int, Any], dict[int, Any]]:
        """Say something to some ranks, and to all; what some, and all, have said, by their ranks."""
        self._said[rank] = parts, to_all
        self._meeting.wait()
        return self._heard.get(rank, {}), self._all

    def _exchange(self) -> None:
        """Carried out by one thread, while all others wait."""
        out: list[Any] = [({}, {}) for _ in range(self.comm.size)]
        for source, (parts, to_all) in self._said.items():
            for each in out:
                each[1][source] = to_all
            for dest, part in parts.items():
                out[self.players[dest]][0].setdefault(dest, {})[source] = part
        self._heard, self._all = {}, {}
        for some, all_ in self.comm.alltoall(out):
            self._all |= all_
            for dest, its in some.items():
                self._heard.setdefault(dest, {}).update(its)


class VirtualRank:
    """One rank: what planning calls of MPI.Intracomm."""

    def __init__(self, all_ranks: VirtualRanks, rank: int) -> None:
        self._ranks, self.rank, self.size = all_ranks, rank, len(all_ranks.players)

    def allgather(self, x: Any) -> list[Any]:
        said = self._ranks.meet(self.rank, {}, x)[1]
        return [said[rank] for rank in range(self.size)]

    def bcast(self, x: Any, root: int = 0) -> Any:
        return self.allgather(x if self.rank == root else None)[root]

    def allreduce(self, x: Any, op: Any = None) -> Any:
        return reduce(MPI.SUM if op is None else op, self.allgather(x))

    def Allgather(self, x: AnyArray, out: AnyArray) -> None:  # noqa: N802
        out.reshape(self.size, -1)[...] = [np.ravel(each) for each in self.allgather(x)]

    def Allreduce(self, _: Any, x: AnyArray, op: Any = None) -> None:  # noqa: N802
        """In place."""
        joins = (MPI.SUM, np.add), (MPI.MAX, np.maximum), (MPI.MIN, np.minimum)
        join = next(join for each, join in joins if op in (None, each))
        x[...] = reduce(join, self.allgather(x.copy()))

    def Alltoall(self, x: Ints, out: Ints) -> None:  # noqa: N802
        self._fill(dict(enumerate(x)), out)

    def Alltoallv(self, send: Sequence[AnyArray], recv: Sequence[AnyArray]) -> None:  # noqa: N802
        pieces = np.split(np.ravel(send[0]), np.cumsum(send[1])[:-1])
        self._fill(dict(enumerate(pieces)), recv[0])

    def _fill(self, parts: Mapping[int, Any], out: AnyArray) -> None:
        got = self._ranks.meet(self.rank, parts, None)[0]
        out.reshape(-1)[...] = np.concatenate([np.atleast_1d(got[rank]) for rank in range(self.size)])

    def exchange_sparse(self, parts: Mapping[int, T]) -> list[T]:
        """As grids.sparse_exchange."""
        got = self._ranks.meet(self.rank, parts, None)[0]
        return [got[rank] for rank in sorted(got)]
