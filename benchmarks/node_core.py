"""The node core beside raw mpi4py and hpcomm's present way: all collectives, ranks of one node.

    hpcomm run -n 2 python benchmarks/node_core.py [--verbs all_reduce,...] [--sizes 8,1024,...] [--rounds 9]

bytes: of the longer of x and out, at least 4 for each rank where it has blocks.
Contenders take turns; ratios to raw mpi4py are taken round by round.
"new" is hpcomm without out=: each result is a new array. "torch" and halves are hpcomm on tensors.
"memory" does what an all_reduce cannot do without, alone: what the memory allows.
"pieces" takes pieces for long calls, "direct" reads the others' arrays. Arrays are float32, results go
to arrays that live on.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from statistics import geometric_mean
from typing import Any

import numpy as np
from measure import alternate, library, machine, median, quietest, ratio, size_name
from mpi4py import MPI

import hpcomm
from hpcomm.node._native import core

VERBS = ["all_reduce", "broadcast", "barrier", "reduce", "gather", "all_gather", "scatter", "reduce_scatter"]
VERBS += ["all_to_all", "scan", "exscan"]
WHOLE = {"all_reduce", "broadcast", "barrier", "reduce", "scan", "exscan"}  # x has no block for each rank
SIZES = [8, 1 << 10, 4 << 10, 64 << 10, 256 << 10, 1 << 20, 16 << 20, 64 << 20, 256 << 20]
WORLD = MPI.COMM_WORLD
NEVER = 1 << 62

Contenders = dict[str, Callable[[], Any]]


def nodes() -> dict[str, core.Node]:
    """One that takes the core's own choice of ways, one for each way."""
    segment = core.Segment(256 << 20) if WORLD.rank == 0 else None
    name = WORLD.bcast(segment.name if segment else None)
    segment = segment or core.Segment(256 << 20, name)
    spins = (
        hpcomm.world.context.node.spins if hpcomm.world.context.node else 0
    )  # a rank may be bound to one of several cores
    made = {}
    for name, given in (("core", None), ("pieces", NEVER), ("direct", 0)):
        place = WORLD.bcast(segment.reserve(WORLD.size) if WORLD.rank == 0 else None)
        made[name] = core.Node(
            segment, place, WORLD.rank, None, spins, direct=hpcomm.world.context.node.direct
        )
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
    whole, block, out, part = (np.ones(length, "f4") for length in (n * p, n, n * p, n))
    rows, blocks = whole.reshape(p, n), out.reshape(p, n)
    if nbytes < 4 * p and verb in WHOLE:
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
    found = {"mpi4py": raw[verb]}
    if others & {"hpcomm", "new"}:
        found["hpcomm"] = by_hpcomm(verb, whole, block, out, part)
    if "new" in others and verb != "barrier":
        found["new"] = new_by_hpcomm(verb, whole, block)
    for name, node in ways.items() if "ways" in others else [("core", ways["core"])]:
        found[name] = by_core(verb, node, whole, block, out, part)
    if "torch" in others and verb != "barrier":
        import torch

        found["torch"] = by_hpcomm(verb, *(torch.from_numpy(x).clone() for x in (whole, block, out, part)))
    if "half" in others and verb == "all_reduce":
        import torch

        for dtype in (torch.bfloat16, torch.float16):
            x, y = (torch.ones(max(nbytes // 2, 1), dtype=dtype) for _ in range(2))
            found[str(dtype)[6:]] = by_hpcomm(verb, x, x, y, y)
    if "memory" in others and verb == "all_reduce":
        found["memory"] = by_memory(whole, out)
    return found


def by_memory(x: Any, out: Any) -> Callable[[], Any]:
    """What an all_reduce cannot do without, on own arrays: it reduces a part, and copies the rest."""
    part, other = len(x) // WORLD.size, x.copy()

    def go() -> None:
        for _ in range(WORLD.size - 1):
            np.add(x[:part], other[:part], out=out[:part])
        out[part:] = other[part:]

    return go


def by_hpcomm(verb: str, whole: Any, block: Any, out: Any, part: Any) -> Callable[[], Any]:
    """By the methods of hpcomm's Communicator, results in out or part."""
    here, p = hpcomm.world, WORLD.size
    is_root = [root == here.rank for root in range(p)]
    rows, blocks = (x if verb in WHOLE else x.reshape(p, -1) for x in (whole, out))
    calls: dict[str, Callable[[], Any]] = {
        "all_reduce": lambda: here.all_reduce(whole, out=out),
        "broadcast": in_turn(lambda root: here.broadcast(whole, root=root, out=whole)),
        "barrier": here.barrier,
        "reduce": in_turn(lambda root: here.reduce(whole, root=root, out=out)),
        "gather": in_turn(lambda root: here.gather(block, root=root, out=blocks if is_root[root] else None)),
        "all_gather": lambda: here.all_gather(block, out=blocks),
        "scatter": in_turn(lambda root: here.scatter(rows if is_root[root] else None, root=root, out=part)),
        "reduce_scatter": lambda: here.reduce_scatter(rows, out=part),
        "all_to_all": lambda: here.all_to_all(rows, out=blocks),
        "scan": lambda: here.scan(whole, out=out),
        "exscan": lambda: here.exscan(whole, out=out),
    }
    return calls[verb]


def new_by_hpcomm(verb: str, whole: Any, block: Any) -> Callable[[], Any]:
    """The same, each result in a new array."""
    here, x = hpcomm.world, whole if verb in WHOLE else whole.reshape(WORLD.size, -1)
    if verb in ("gather", "all_gather"):
        x = block
    call = getattr(here, verb)
    if verb in ("broadcast", "reduce", "gather", "scatter"):
        return in_turn(lambda root: call(x, root=root))
    return lambda: call(x)


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
    parser.add_argument("--also", default="", help="hpcomm, new, torch, half, ways, memory: more contenders")
    given = parser.parse_args()
    core.know_numpy(np)
    ways = nodes()
    also = set(given.also.split(","))
    if also & {"torch", "half"}:
        import torch

        core.know_torch(torch)
    if WORLD.rank == 0:
        print(f"{machine()}\n{library()}, {WORLD.size} ranks; us a call (ratio to mpi4py)", flush=True)
    long = []  # ratios of hpcomm to raw
    for verb in given.verbs.split(","):
        for nbytes in [0] if verb == "barrier" else map(int, given.sizes.split(",")):
            calls = contenders(verb, nbytes, ways, also)
            if given.quietest:
                times = {name: [each] for name, each in quietest(calls, given.quietest).items()}
            else:
                times = alternate(calls, given.rounds, given.span)
            if nbytes >= 1 << 20 and "hpcomm" in times:
                long.append(ratio(times["hpcomm"], times["mpi4py"]))
            roots = WORLD.size if verb in ("broadcast", "reduce", "gather", "scatter") else 1
            if WORLD.rank == 0:
                cells = [
                    f"{name} {median(each) / roots:.2f} ({ratio(each, times['mpi4py']):.2f})"
                    for name, each in times.items()
                ]
                print(f"{verb:15s}{size_name(nbytes):>9s}  " + "  ".join(cells), flush=True)
    if WORLD.rank == 0 and long:
        print(f"hpcomm from 1 MiB on: geometric mean {geometric_mean(long):.2f}", flush=True)


if __name__ == "__main__":
    main()
