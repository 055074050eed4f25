"""`hpcomm selftest`: a quick check of all operations, on the ranks that it is started with.

hpcomm run -n 4 python -m hpcomm selftest

Every rank knows what the others bring, so each one works out all results alone and compares.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..communicator.communicator import Communicator
from ..core.verbs import INPUT_BLOCKS, OUTPUT_BLOCKS, ROOT_RECEIVES, ROOT_SENDS, ROOTED, TABLE
from ..errors import counted
from ..job.command_line import Command

Cases = Iterator[tuple[str, Any, Any]]  # what was called, its result, what it should be
parser = partial(Command, "hpcomm selftest", "Check all operations on the ranks that it is started with.")
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
    for part, n in product((_collectives, _messages, _objects, _later), SIZES):
        for name, found, wanted in part(comm, n):
            total += 1
            if not _is_same(found, wanted):
                wrong.append(f"{name} of {n} elements gave another result than it should")
    told = comm.gather_object(wrong)
    if told is not None:
        library = load_mpi("hpcomm selftest").Get_library_version().split("\n")[0].split(",")[0].strip("\0")
        ranks = counted(comm.size, "rank")
        core = ", by the node core" if comm.context.node is not None else ""
        print(f"hpcomm {__version__}, {library}, {ranks}{core}")
        for rank, faults in enumerate(told):
            print(*(f"rank {rank}: {fault}" for fault in faults), sep="\n", end="\n" if faults else "")
        bad = sum(map(bool, told))
        print(
            f"{bad} of {comm.size} ranks found faults" if bad else f"{total} checks on each rank: all passed"
        )
    return WRONG if comm.all_reduce(bool(wrong), "lor") else 0


def _is_same(found: Any, wanted: Any) -> bool:
    if isinstance(wanted, list):
        return len(found) == len(wanted) and all(map(_is_same, found, wanted))
    return bool(np.array_equal(found, wanted)) if isinstance(wanted, np.ndarray) else found == wanted


def _of(rank: int, n: int) -> NDArray[np.float64]:
    """What a rank brings: whole numbers, so that sums are exact in any order."""
    return np.arange(n, dtype=float) % 97 + rank


def given(verb: str, rank: int, p: int, n: int) -> NDArray[np.float64]:
    """A rank's x: n elements, or so many for each rank, all of them whole numbers."""
    return np.stack([_of(rank + 7 * i, n) for i in range(p)]) if verb in INPUT_BLOCKS else _of(rank, n)


def expected(verb: str, rank: int, p: int, n: int, root: int = 0) -> Any:
    """What numpy makes of everybody's x; None where this rank receives nothing."""
    if verb == "barrier" or (verb in ROOT_RECEIVES and rank != root):
        return None
    xs = np.stack([given(verb, r, p, n) for r in range(p)])
    mine = xs[:, rank] if verb in INPUT_BLOCKS else xs
    if verb in OUTPUT_BLOCKS:
        return mine
    if verb in ROOT_SENDS:
        return mine[root]
    return mine[: {"scan": rank + 1, "exscan": rank}.get(verb, p)].sum(0)


def _collectives(comm: Communicator, n: int) -> Cases:
    p, rank, root = comm.size, comm.rank, comm.size - 1
    for verb in TABLE:
        words: dict[str, Any] = {"root": root} if verb in ROOTED else {}
        if verb == "scatter" and rank != root:
            words["out"] = np.empty(n)
        elif verb != "barrier":
            words["x"] = given(verb, rank, p, n)
        yield verb, getattr(comm, verb)(**words), expected(verb, rank, p, n, root)
    x = given("all_reduce", rank, p, n)
    yield "all_reduce in place", comm.all_reduce(x, "max", out=x), given("all_reduce", p - 1, p, n)


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
