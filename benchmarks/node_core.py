"""The node core beside raw mpi4py and hpcomm's present way: all collectives, ranks of one node.

    hpcomm run -n 2 python benchmarks/node_core.py [--verbs all_reduce,...] [--sizes 8,1024,...] [--rounds 9]

bytes: of the longer of x and out, at least 4 for each rank where it has blocks.
Contenders take turns; ratios to raw mpi4py are taken round by round.
"new" is hpcomm without out=: each result is a new array.
"pieces" takes pieces for long calls, "direct" reads the others' arrays. Arrays are float32, results go
to arrays that live on.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import numpy as np
from measure import alternate, library, machine, median, quietest, ratio, size_name
from mpi4py import MPI

import hpcomm
from hpcomm.node._native import core

VERBS = ["all_reduce", "broadcast", "barrier", "reduce", "gather", "all_gather", "scatter", "reduce_scatter"]
VERBS += ["all_to_all", "scan", "exscan"]
SIZES = [8, 1 << 10, 4 << 10, 64 << 10, 256 << 10, 1 << 20, 16 << 20, 64 << 20]
WORLD = MPI.COMM_WORLD
NEVER = 1 << 62

Contenders = dict[str, Callable[[], Any]]


def nodes() -> dict[str, core.Node]:
    """One that takes the core's own choice of ways, one for each way."""
    segment = core.Segment(256 << 20) if WORLD.rank == 0 else None
    name = WORLD.bcast(segment.name if segment else None)
    segment = segment or core.Segment(256 << 20, name)
    spins = hpcomm.world.node.spins if hpcomm.world.node else 0  # a rank may be bound to one of several cores
    made = {}
    for name, given in (("core", None), ("pieces", NEVER), ("direct", 0)):
        place = WORLD.bcast(segment.reserve(WORLD.size) if WORLD.rank == 0 else None)
        made[name] = core.Node(segment, place, WORLD.rank, None, spins)
        made[name].direct_from = made[name].direct_from if given is None else given
    WORLD.Barrier()
    if WORLD.rank == 0:
        segment.unlink()
    return made


def in_turn(call: Callable[[int], Any]) -> Callable[[], Any]:
    """Each rank is the root once."""

    def go() -> None:
        for root in range(WORLD.size):
            call(root)

    return go


def contenders(verb: str, nbytes: int, ways: dict[str, core.Node], others: set[str]) -> Contenders:
    """What does this verb on arrays of so many bytes, by name."""
    p, n = WORLD.size, max(nbytes // 4 // WORLD.size, 1)
    whole, block, out, part = (
        np.ones(n * p, "f4"),
        np.ones(n, "f4"),
        np.ones(n * p, "f4"),
        np.ones(n, "f4"),
    )
    here, rows, blocks = hpcomm.world, whole.reshape(p, n), out.reshape(p, n)
    if nbytes < 4 * p and verb not in ("gather", "all_gather", "reduce_scatter", "all_to_all", "scatter"):
        whole = out = np.ones(max(nbytes // 4, 1), "f4")
        out = whole.copy()
    raw: dict[str, Callable[[], Any]] = {
        "all_reduce": lambda: WORLD.Allreduce(whole, out),
        "broadcast": in_turn(lambda root: WORLD.Bcast(whole, root)),
        "barrier": WORLD.Barrier,
        "reduce": in_turn(lambda root: WORLD.Reduce(whole, out, root=root)),
        "gather": in_turn(lambda root: WORLD.Gather(block, blocks if WORLD.rank == root else None, root)),
        "all_gather": lambda: WORLD.Allgather(block, blocks),
        "scatter": in_turn(lambda root: WORLD.Scatter(rows if WORLD.rank == root else None, part, root)),
        "reduce_scatter": lambda: WORLD.Reduce_scatter_block(rows, part),
        "all_to_all": lambda: WORLD.Alltoall(rows, blocks),
        "scan": lambda: WORLD.Scan(whole, out),
        "exscan": lambda: WORLD.Exscan(whole, out),
    }
    present: dict[str, Callable[[], Any]] = {
        "all_reduce": lambda: here.all_reduce(whole, out=out),
        "broadcast": in_turn(lambda root: here.broadcast(whole, root=root, out=whole)),
        "barrier": here.barrier,
        "reduce": in_turn(lambda root: here.reduce(whole, root=root, out=out)),
        "gather": in_turn(
            lambda root: here.gather(block, root=root, out=blocks if WORLD.rank == root else None)
        ),
        "all_gather": lambda: here.all_gather(block, out=blocks),
        "scatter": in_turn(
            lambda root: here.scatter(rows if WORLD.rank == root else None, root=root, out=part)
        ),
        "reduce_scatter": lambda: here.reduce_scatter(rows, out=part),
        "all_to_all": lambda: here.all_to_all(rows, out=blocks),
        "scan": lambda: here.scan(whole, out=out),
        "exscan": lambda: here.exscan(whole, out=out),
    }
    new: dict[str, Callable[[], Any]] = {
        "all_reduce": lambda: here.all_reduce(whole),
        "broadcast": in_turn(lambda root: here.broadcast(whole, root=root)),
        "reduce": in_turn(lambda root: here.reduce(whole, root=root)),
        "gather": in_turn(lambda root: here.gather(block, root=root)),
        "all_gather": lambda: here.all_gather(block),
        "scatter": in_turn(lambda root: here.scatter(rows, root=root)),
        "reduce_scatter": lambda: here.reduce_scatter(rows),
        "all_to_all": lambda: here.all_to_all(rows),
        "scan": lambda: here.scan(whole),
        "exscan": lambda: here.exscan(whole),
    }
    found = {"mpi4py": raw[verb]} | ({"hpcomm": present[verb]} if others & {"hpcomm", "new"} else {})
    if "new" in others and verb in new:
        found["new"] = new[verb]
    for name, node in ways.items() if "ways" in others else [("core", ways["core"])]:
        found[name] = by_core(verb, node, whole, block, out, part)
    if "torch" in others:
        import torch

        arrays = (torch.from_numpy(x).clone() for x in (whole, block, out, part))
        found["torch"] = by_core(verb, ways["core"], *arrays)
    if "half" in others and verb == "all_reduce":
        import torch

        for dtype in (torch.bfloat16, torch.float16):
            x, y = (torch.ones(max(nbytes // 2, 1), dtype=dtype) for _ in range(2))
            found[str(dtype)[6:]] = lambda x=x, y=y: ways["core"].all_reduce(x, "sum", y)
    return found


def by_core(verb: str, node: core.Node, whole: Any, block: Any, out: Any, part: Any) -> Callable[[], Any]:
    """The same by the core."""
    is_root = [root == node.rank for root in range(node.size)]
    calls: dict[str, Callable[[], Any]] = {
        "all_reduce": lambda: node.all_reduce(whole, "sum", out),
        "broadcast": in_turn(lambda root: node.broadcast(whole, root)),
        "barrier": node.barrier,
        "reduce": in_turn(lambda root: node.reduce(whole, "sum", root, out)),
        "gather": in_turn(lambda root: node.gather(block, root, out if is_root[root] else None)),
        "all_gather": lambda: node.all_gather(block, out),
        "scatter": in_turn(lambda root: node.scatter(whole if is_root[root] else None, root, part)),
        "reduce_scatter": lambda: node.reduce_scatter(whole, "sum", part),
        "all_to_all": lambda: node.all_to_all(whole, out),
        "scan": lambda: node.scan(whole, "sum", out),
        "exscan": lambda: node.exscan(whole, "sum", out),
    }
    if verb != "barrier":
        assert calls[verb]() is not NotImplemented, verb
    return calls[verb]


def main() -> None:
    """Print a line for each verb and size."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--verbs", default=",".join(VERBS))
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)))
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--span", type=float, default=0.006, help="seconds of one turn")
    parser.add_argument("--quietest", type=float, help="instead: seconds of short turns, the best hundredth")
    parser.add_argument("--also", default="", help="hpcomm, new, torch, half, ways: more contenders")
    given = parser.parse_args()
    core.know_numpy(np)
    ways = nodes()
    also = set(given.also.split(","))
    if also & {"torch", "half"}:
        import torch

        core.know_torch(torch)
    if WORLD.rank == 0:
        print(f"{machine()}\n{library()}, {WORLD.size} ranks; us a call (ratio to mpi4py)", flush=True)
    for verb in given.verbs.split(","):
        for nbytes in [0] if verb == "barrier" else map(int, given.sizes.split(",")):
            calls = contenders(verb, nbytes, ways, also)
            if given.quietest:
                times = {name: [each] for name, each in quietest(calls, given.quietest).items()}
            else:
                times = alternate(calls, given.rounds, given.span)
            roots = WORLD.size if verb in ("broadcast", "reduce", "gather", "scatter") else 1
            if WORLD.rank == 0:
                cells = [
                    f"{name} {median(each) / roots:.2f} ({ratio(each, times['mpi4py']):.2f})"
                    for name, each in times.items()
                ]
                print(f"{verb:15s}{size_name(nbytes):>9s}  " + "  ".join(cells), flush=True)


if __name__ == "__main__":
    main()
