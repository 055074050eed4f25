"""`hpcomm selftest`: a quick check of all verbs, on the ranks that it is started with.

hpcomm run -n 4 python -m hpcomm selftest

Every rank knows what the others bring, so each one works out all results alone and compares.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..job.command_line import Command

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from ..communicator.communicator import Communicator

    Cases = Iterator[tuple[str, Any, Any]]  # what was called, its result, what it should be

SIZES = (1, 1000, 100_000)  # elements: in the quick way, by MPI or the core, and in pieces
WRONG = 1  # exit status


def main(words: Sequence[str]) -> int:
    """Carry out the command; returns the exit status."""
    parser().parse_args(list(words))
    from .. import __version__, world
    from ..job.optional_packages import load_mpi

    comm: Communicator = world
    total = 0
    wrong: list[str] = []
    for part in (_collectives, _prefixes, _messages, _objects, _ragged, _later):
        count, faults = _compared(part, comm)
        total, wrong = total + count, wrong + faults
    told = comm.gather_object(wrong)
    if told is not None:
        library = load_mpi("hpcomm selftest").Get_library_version().split("\n")[0].split(",")[0].strip("\0")
        ranks = "1 rank" if comm.size == 1 else f"{comm.size} ranks"
        core = ", by the node core" if comm.node is not None else ""
        print(f"hpcomm {__version__}, {library}, {ranks}{core}")
        for rank, faults in enumerate(told):
            print(*(f"rank {rank}: {fault}" for fault in faults), sep="\n", end="\n" if faults else "")
        bad = sum(map(bool, told))
        print(
            f"{bad} of {comm.size} ranks found faults" if bad else f"{total} checks on each rank: all passed"
        )
    return WRONG if comm.all_reduce(bool(wrong), "lor") else 0


def parser() -> Command:
    """The command's options."""
    return Command("hpcomm selftest", "Check all verbs on the ranks that it is started with.")


def _compared(part: Callable[[Communicator, int], Cases], comm: Communicator) -> tuple[int, list[str]]:
    """How many checks of a part were made, and what was wrong."""
    count, wrong = 0, []
    for n in SIZES:
        for name, found, wanted in part(comm, n):
            count += 1
            if not _is_same(found, wanted):
                wrong.append(f"{name} of {n} elements gave another result than it should")
    return count, wrong


def _is_same(found: Any, wanted: Any) -> bool:
    if isinstance(wanted, list):
        return len(found) == len(wanted) and all(map(_is_same, found, wanted))
    return bool(np.array_equal(found, wanted)) if isinstance(wanted, np.ndarray) else found == wanted


def _of(rank: int, n: int) -> NDArray[np.float64]:
    """What a rank brings: whole numbers, so that sums are exact in any order."""
    return np.arange(n, dtype=float) % 97 + rank


def _collectives(comm: Communicator, n: int) -> Cases:
    p, rank, root = comm.size, comm.rank, comm.size - 1
    every = [_of(i, n) for i in range(p)]
    mine, total, rows = every[rank], np.sum(every, axis=0), np.stack(every)
    blocks = np.stack([every[rank] + 1000 * i for i in range(p)])  # block i is for rank i
    yield "all_reduce", comm.all_reduce(mine), total
    yield "all_reduce in place", comm.all_reduce(x := mine.copy(), "max", out=x), rows.max(0)
    yield "reduce", comm.reduce(mine, root=root), total if rank == root else None
    yield "broadcast", comm.broadcast(every[root].copy() if rank == root else mine.copy(), root), every[root]
    yield "all_gather", comm.all_gather(mine), rows
    yield "gather", comm.gather(mine, root=root), rows if rank == root else None
    yield "scatter", comm.scatter(rows if rank == root else None, root=root, out=np.empty(n)), mine
    yield "all_to_all", comm.all_to_all(blocks), rows + 1000 * rank
    yield "reduce_scatter", comm.reduce_scatter(blocks), total + 1000 * p * rank
    yield "barrier", comm.barrier(), None


def _prefixes(comm: Communicator, n: int) -> Cases:
    until = np.cumsum([_of(i, n) for i in range(comm.size)], axis=0)
    yield "scan", comm.scan(_of(comm.rank, n)), until[comm.rank]
    before = until[comm.rank - 1] if comm.rank else np.zeros(n)
    yield "exscan", comm.exscan(_of(comm.rank, n)), before


def _messages(comm: Communicator, n: int) -> Cases:
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    mine, wanted = _of(comm.rank, n), _of(left, n)
    yield "sendrecv", comm.sendrecv(mine, right, left), wanted
    request = comm.isend(mine, right)
    yield "recv", comm.recv(np.empty(n), left), wanted
    request.wait()
    coming = comm.irecv(np.empty(n), left)
    comm.send(mine, right)
    yield "irecv", coming.wait(), wanted


def _objects(comm: Communicator, n: int) -> Cases:
    thing = {"rank": comm.rank, "x": _of(comm.rank, n)}
    yield "broadcast_object", comm.broadcast_object(thing)["x"], _of(0, n)
    found = comm.all_gather_object(thing)
    yield "all_gather_object", [each["x"] for each in found], [_of(i, n) for i in range(comm.size)]
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    request = comm.isend_object(thing, right)
    yield "recv_object", comm.recv_object(left)["rank"], left
    request.wait()


def _ragged(comm: Communicator, n: int) -> Cases:
    parts = [_of(i, n + i) for i in range(comm.size)]
    yield "all_gather_ragged", comm.all_gather_ragged(parts[comm.rank]), parts


def _later(comm: Communicator, n: int) -> Cases:
    mine, out = _of(comm.rank, n), np.empty(n)
    total = np.sum([_of(i, n) for i in range(comm.size)], axis=0)
    yield "all_reduce in the background", comm.all_reduce(mine, async_op=True).wait(), total
    with comm.plan("all_reduce", mine, out=out) as plan:
        yield "a plan of all_reduce", plan().copy(), total
    if comm.size > 1:
        yield "all_reduce by an own schedule", comm.all_reduce(mine, algorithm="ring"), total
    with comm.split(comm.rank % 2) as part:
        mates = range(comm.rank % 2, comm.size, 2)
        yield "all_reduce of a part", part.all_reduce(mine), np.sum([_of(i, n) for i in mates], axis=0)
