"""Smaller communicators: even and odd ranks, one for each node, and a group of one's own choice.

    python -m hpcomm run -n 4 python -m hpcomm.apps.groups_demo

Each circle is a Communicator like the world, with ranks that count from 0 and a name that appears in every
error. What happens in one is not seen in the others.
"""

from __future__ import annotations

import platform
import sys

from mpi4py import MPI

import hpcomm

from .. import Communicator
from ._report import Parser, Report


def total(circle: Communicator | None, number: int) -> int | None:
    """The sum of everybody's number within the circle; None for who is not in it."""
    return None if circle is None else int(circle.all_reduce(number))


def place(circle: Communicator | None, number: int | None) -> str:
    """`1 of 2 in 'even': 2`, or a dash for a circle that this rank is not in."""
    return "-" if circle is None else f"{circle.rank} of {circle.size} in '{circle.name}': {number}"


def main(argv: list[str] | None = None) -> int:
    options = Parser("groups_demo", "ranks in smaller circles").parse_args(argv)
    world = hpcomm.world
    report = Report(world, options.json)
    ranks = range(world.size)

    # split: all ranks call; equal colours come together; key orders them, here the highest rank first
    parity = world.rank % 2
    half = world.split(color=parity, key=-world.rank, name="odd" if parity else "even")

    # split_node: those who share memory
    node = world.split_node()

    # group: only its members call, so the other ranks may be busy elsewhere
    ends = sorted({0, world.size - 1})
    outer = world.group(ends, name="ends") if world.rank in ends else None

    sums = [total(half, world.rank), total(node, world.rank), total(outer, world.rank)]
    sharing = world.mpi.Split_type(MPI.COMM_TYPE_SHARED)  # raw mpi4py, to compare with
    expected = [
        sum(rank for rank in ranks if rank % 2 == parity),
        sharing.allreduce(world.rank),
        sum(ends) if world.rank in ends else None,
    ]
    wrong = [
        f"{what}: sum {got} instead of {right}"
        for what, got, right in zip(["even/odd", "node", "ends"], sums, expected, strict=True)
        if got != right
    ]

    places = [place(circle, number) for circle, number in zip((half, node, outer), sums, strict=True)]
    rows = world.gather_object([world.rank, platform.node(), *places])
    if rows is not None:
        report.table("places", dict.fromkeys(["rank", "host", "even/odd", "node", "ends"], ""), rows)
        report.say(
            "\nRead `1 of 2 in 'even': 2` as: rank 1 of 2 there, and the world ranks there add up to 2."
        )
    sharing.Free()
    for circle in (half, node, outer):
        if circle is not None:
            circle.close()
    return report.verdict(wrong, "Every circle added up its own members and nobody else.")


if __name__ == "__main__":
    sys.exit(main())
