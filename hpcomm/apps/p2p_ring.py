"""Around a ring of ranks: a token that grows, arrays that all shift by one, neighbours on both sides.

python -m hpcomm run -n 4 python -m hpcomm.apps.p2p_ring

    0 --> 1 --> 2 --> 3
    ^                 |
    +-----------------+
"""

from __future__ import annotations

import sys

import numpy as np
from numpy.typing import NDArray

import hpcomm

from .. import Communicator
from ..errors import counted
from ._arguments import positive, require_memory
from ._report import Parser, Report

Ints = NDArray[np.int64]


def token(comm: Communicator, left: int, right: int) -> int:
    """Rank 0 sends 0 round the ring, each rank adds its number; every rank returns what came to it.

    One after the other, so only one message is ever under way, and nobody can block anybody. Alone in the
    ring, rank 0 is its own neighbour: hpcomm copies such a message, so that send returns.
    """
    if comm.rank == 0:
        comm.send(np.zeros(1, np.int64), dest=right, tag=1)
    came = comm.recv(source=left, tag=1, dtype="int64")
    if comm.rank > 0:
        comm.send(came + comm.rank, dest=right, tag=1)
    return int(came[0])


def shift(comm: Communicator, x: Ints, left: int, right: int) -> Ints:
    """Everybody sends to the right and receives from the left at once.

    send followed by recv would deadlock as soon as a message is too large to wait in a buffer of MPI's:
    every rank would sit in send. sendrecv does both together.
    """
    shifted: Ints = comm.sendrecv(x, dest=right, source=left)
    return shifted


def both_sides(comm: Communicator, x: Ints, left: int, right: int) -> tuple[Ints, Ints]:
    """Exchange edges with both neighbours; post the receives, then the sends, work, and wait at last.

    The tag says which way an array travels: on two ranks left and right are the same neighbour.
    """
    from_left, from_right = np.empty_like(x), np.empty_like(x)
    requests = [
        comm.irecv(from_left, source=left, tag=2),
        comm.irecv(from_right, source=right, tag=3),
        comm.isend(x, dest=right, tag=2),
        comm.isend(x, dest=left, tag=3),
    ]
    # what needs no neighbour would be computed here, while the arrays travel
    hpcomm.wait_all(requests)
    return from_left, from_right


def main(argv: list[str] | None = None) -> int:
    parser = Parser("p2p_ring", "a token and arrays around a ring of ranks")
    parser.add_argument("--count", type=positive, default=1_000_000, help="elements of the arrays that shift")
    options = parser.parse_args(argv)

    comm = hpcomm.world
    report = Report(comm, options.json)
    require_memory(parser, comm, "--count", 5 * 8 * options.count)
    left, right = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
    mine = np.arange(options.count) + comm.rank
    came = token(comm, left, right)
    shifted = shift(comm, mine, left, right)
    from_left, from_right = both_sides(comm, mine, left, right)

    wrong = []
    expected = sum(range(comm.size)) if comm.rank == 0 else sum(range(comm.rank))
    if came != expected:
        wrong.append(f"the token brought {came} instead of {expected}")
    for what, got, sender in [
        ("shift", shifted, left),
        ("isend/irecv from the left", from_left, left),
        ("isend/irecv from the right", from_right, right),
    ]:
        if not np.array_equal(got, np.arange(options.count) + sender):
            wrong.append(f"{what}: not the array of rank {sender}")

    rows = comm.gather_object([comm.rank, left, right, came, not wrong])
    if rows is not None:
        ranks, count = counted(comm.size, "rank"), options.count
        report.say(f"a ring of {ranks}, arrays of {count} int64\n", count=count)
        report.table(
            "ring", dict.fromkeys(["rank", "left", "right", "token came as", "arrays right"], ""), rows
        )
    return report.verdict(
        wrong, "\nThe token has seen every rank; every array came from the right neighbour."
    )


if __name__ == "__main__":
    sys.exit(main())
