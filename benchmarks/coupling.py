"""What moving a field between two programs costs, and planning it.

    hpcomm run -n 2 python benchmarks/coupling.py a [--save] : -n 2 python benchmarks/coupling.py b
    (--quick, given to both, takes fewer sizes and rounds; --planning plans alone)

Three ways take turns: `link.exchange()`; point-to-point written by hand with mpi4py, its indices known; and
by the roots (gather, send, scatter). Blocks: both programs own consecutive points, the second in the opposite
order of ranks. Scattered: points dealt out at random. Of planning these, CPU is time of the
processor, and MiB the most memory that the whole process of a rank has meanwhile.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from measure import alternate, machine, median, ratio, save
from mpi4py import MPI

import hpcomm
from hpcomm.mpmd.route import coupled_route

SIZES = [1_000, 10_000, 100_000, 1_000_000]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("program", choices=["a", "b"])
    parser.add_argument("--save", action="store_true")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--planning", action="store_true")
    options = parser.parse_args()
    me = hpcomm.join(options.program)
    if me.peers != (("b",) if me.name == "a" else ("a",)):
        sys.exit("start two programs, a and b, as the first lines of this file say")
    sizes = SIZES[:2] if options.quick else SIZES
    cases = [(kind, total) for kind in ("blocks", "scattered") for total in sizes if not options.planning]
    fields = [declare(me, kind, total) for kind, total in cases]
    m, n = (len(me.ranks[name]) for name in ("a", "b"))
    names = f"{'':10}{'points':>10}{'exchange':>12}{'by hand':>12}{'ratio':>8}{'by roots':>12}{'ratio':>8}"
    lines, rows = [f"{m} ranks to {n}"], []
    if cases:
        lines = [f"{lines[0]}, float64, microseconds (medians of alternated rounds)", names]
    for (kind, total), field in zip(cases, fields, strict=True):
        times = alternate(contenders(me, field, total), 9 if options.quick else 31, span=0.05)
        hand, roots = ratio(times["exchange"], times["hand"]), ratio(times["roots"], times["exchange"])
        us = {name: median(each) for name, each in times.items()}
        lines.append(
            f"{kind:10}{total:10d}{us['exchange']:12.1f}{us['hand']:12.1f}{hand:8.2f}{us['roots']:12.1f}{roots:8.2f}"
        )
        rows.append({"kind": kind, "points": total, **us, "to_hand": hand, "roots_to_exchange": roots})
    more, planned = planning(me, options.quick)
    text = "\n".join([*lines, "", *more])
    if MPI.COMM_WORLD.rank == 0:
        print(machine(), text, sep="\n\n", flush=True)
        if options.save:
            library = "mpich" if "MPICH" in MPI.Get_library_version() else "openmpi"
            name = "coupling_planning" if options.planning else "coupling"
            save(f"{name}_{library}_{m}_{n}", text, [*rows, *planned])


def points_of(me: Any, kind: str, total: int, chunk: int = 1) -> Any:
    """The points of this rank: a's in order, b's in the opposite one."""
    size, rank = me.comm.size, me.comm.rank if me.name == "a" else me.comm.size - 1 - me.comm.rank
    if kind == "blocks":
        return np.arange(total * rank // size, total * (rank + 1) // size)
    order = np.random.default_rng(1 if me.name == "a" else 2).permutation(total // chunk)
    mine = np.array_split(order, size)[rank]
    return (mine[:, None] * chunk + np.arange(chunk)).ravel()


def declare(me: Any, kind: str, total: int) -> Any:
    points = points_of(me, kind, total)
    values = np.sin(points) if me.name == "a" else np.zeros(len(points))
    declare_one = me.gives if me.name == "a" else me.takes
    return declare_one(f"{kind}_{total}", values, points)


def contenders(me: Any, field: Any, total: int) -> dict[str, Any]:
    me.connect()
    link = me.link(me.peers[0])
    only = _alone(link, field)
    expected = np.sin(field.points)
    ways = {"exchange": only, "hand": by_hand(me, link, field), "roots": by_roots(me, field, total)}
    for name, way in ways.items():
        if me.name == "b":
            field.values[:] = -9
        way()
        assert np.array_equal(field.values, expected), name
    return ways


def _alone(link: Any, field: Any) -> Any:
    """link.exchange() of this field only."""
    from hpcomm.mpmd.coupling.coupling_channel import Channel, Turns
    from hpcomm.mpmd.coupling.wire import Lane

    sends = field.name in link.gives
    side = link.gives[field.name] if sends else link.takes[field.name]

    def channel() -> Channel:
        return Channel(Lane(link.context.wire, 3), [side.part], sends=sends)

    together = (None, Turns(channel, 2)) if sends else (channel(), None)

    def exchange() -> None:
        link.context.together = together
        link.exchange()

    return exchange


def by_hand(me: Any, link: Any, field: Any) -> Any:
    """Isend and Irecv on MPI.COMM_WORLD, with the same indices."""
    world, there = MPI.COMM_WORLD, me.ranks[link.peer]
    sends = field.name in link.gives
    rows = (link.gives if sends else link.takes)[field.name].part.rows
    boxes = [field.values[where] if isinstance(where, slice) else np.empty(len(where)) for _, where in rows]

    def move() -> None:
        if sends:
            for (_, where), box in zip(rows, boxes, strict=True):
                if not isinstance(where, slice):
                    np.take(field.values, where, out=box, mode="clip")
            MPI.Request.Waitall(
                [world.Isend(box, there[r], 7) for (r, _), box in zip(rows, boxes, strict=True)]
            )
        else:
            MPI.Request.Waitall(
                [world.Irecv(box, there[r], 7) for (r, _), box in zip(rows, boxes, strict=True)]
            )
            for (_, where), box in zip(rows, boxes, strict=True):
                if not isinstance(where, slice):
                    field.values[where] = box

    return move


def by_roots(me: Any, field: Any, total: int) -> Any:
    """Gatherv, one message, Scatterv; the roots know everybody's points."""
    world, comm = MPI.COMM_WORLD, me.comm.mpi
    counts = np.array(comm.allgather(len(field.points)))
    points = comm.gather(field.points)
    order = np.concatenate(points) if comm.rank == 0 else None
    packed, whole = np.empty(total), np.empty(total)
    peer = me.ranks[me.peers[0]][0]

    def move() -> None:
        if me.name == "a":
            comm.Gatherv(field.values, [packed, counts] if comm.rank == 0 else None)
            if comm.rank == 0:
                whole[order] = packed
                world.Send(whole, peer, 8)
        else:
            if comm.rank == 0:
                world.Recv(whole, peer, 8)
                np.take(whole, order, out=packed)
            comm.Scatterv([packed, counts] if comm.rank == 0 else None, field.values)

    return move


def planning(me: Any, quick: bool) -> tuple[list[str], list[dict[str, Any]]]:
    """Seconds to plan a route, the slowest rank's; of scattered points processor time and memory, too."""
    world, status = MPI.COMM_WORLD, Path("/proc/self/status")
    header = f"{'points':>10}{'blocks':>12}{'rows of 1000':>15}{'scattered':>12}{'CPU':>9}{'MiB':>6}"
    lines = ["planning, seconds", header]
    rows = []
    for total in (10_000, 100_000) if quick else (10_000, 100_000, 1_000_000, 10_000_000):
        seconds = {}
        for kind, chunk in (("blocks", 1), ("rows", 1000), ("scattered", 1)):
            points = points_of(me, "blocks" if kind == "blocks" else "scattered", total, chunk)
            Path("/proc/self/clear_refs").write_text("5")  # the peak is counted anew
            world.Barrier()
            start, own = time.perf_counter(), time.process_time()
            made = coupled_route.plan(
                world, points if me.name == "a" else None, points if me.name == "b" else None
            )
            seconds[kind] = world.allreduce(time.perf_counter() - start, MPI.MAX)
            seconds[f"{kind}_cpu"] = world.allreduce(time.process_time() - own, MPI.MAX)
            peak = int(re.search(r"VmHWM:\s+(\d+)", status.read_text())[1])
            seconds[f"{kind}_mib"] = world.allreduce(peak, MPI.MAX) / 1024
            assert made.lack == (0, -1, 0, -1)
        lines.append(
            f"{total:10d}{seconds['blocks']:12.4f}{seconds['rows']:15.4f}{seconds['scattered']:12.3f}"
            f"{seconds['scattered_cpu']:9.3f}{seconds['scattered_mib']:6.0f}"
        )
        rows.append({"planning": total, **seconds})
    return lines, rows


if __name__ == "__main__":
    main()
