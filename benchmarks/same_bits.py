"""How many elements of a sum have other bits where they travel in another array: hpcomm, gloo, MPI itself.

    hpcomm run -n 4 python benchmarks/same_bits.py [--save]

The same numbers are summed over the ranks as one array, and as parts of it, of many lengths and at many
places. An element counts if it has other bits in a part than in the whole. All ways of hpcomm are held
against the whole of its blocking all_reduce, and those of MPI against that of MPI_Allreduce.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from measure import library, machine, save, say

import hpcomm

WHOLE = 1_000_000
LENGTHS = [1, 3, 10, 100, 1000, 3001, 10_000, 65_536, 400_000]
DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16}


def ways() -> dict[str, Callable[[torch.Tensor], torch.Tensor]]:
    """What sums a tensor over the ranks."""
    world, gloo = hpcomm.world, dist.new_group(backend="gloo")

    def planned(x: torch.Tensor) -> torch.Tensor:
        with world.plan("all_reduce", x) as plan:
            return plan()

    def by_torch(x: torch.Tensor, group: Any) -> torch.Tensor:
        dist.all_reduce(y := x.clone(), group=group)
        return y

    def by_mpi(x: torch.Tensor) -> torch.Tensor:
        world.mpi.Allreduce(x.numpy(), (y := torch.empty_like(x)).numpy())
        return y

    def later(x: torch.Tensor) -> torch.Tensor:
        world.mpi.Iallreduce(x.numpy(), (y := torch.empty_like(x)).numpy()).Wait()
        return y

    return {
        "hpcomm": world.all_reduce,
        "hpcomm, async_op=True": lambda x: world.all_reduce(x, async_op=True).wait(),
        "hpcomm, a plan": planned,
        "hpcomm, by torch": lambda x: by_torch(x, None),
        "gloo": lambda x: by_torch(x, gloo),
        "MPI": by_mpi,
        "MPI, Iallreduce": later,
    }


def bits(x: torch.Tensor) -> torch.Tensor:
    return x.contiguous().view(
        torch.int64 if x.itemsize == 8 else torch.int32 if x.itemsize == 4 else torch.int16
    )


def differing(way: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor, whole: torch.Tensor) -> float:
    """The share of elements, over all parts."""
    wrong = elements = 0
    for n in LENGTHS:
        for low in range(0, WHOLE - n, max(n, WHOLE // 7) + 1):
            wrong += int((bits(way(x[low : low + n])) != bits(whole[low : low + n])).sum())
            elements += n
    return wrong / elements


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--save", action="store_true", help="keep the table under benchmarks/results")
    arguments = parser.parse_args()
    dist.init_process_group("mpi")
    rng = np.random.default_rng(dist.get_rank())
    given = torch.from_numpy(rng.standard_normal(WHOLE) * 10.0 ** rng.integers(-3, 4, WHOLE))
    lines = [f"{'way':24}" + "".join(f"{name:>12}" for name in DTYPES)]
    rows: list[dict[str, Any]] = []
    say(machine() + f", {dist.get_world_size()} ranks\n{lines[0]}")
    all_ways = ways()
    for name, way in all_ways.items():
        found: dict[str, Any] = {}
        for dtype, kind in DTYPES.items():
            if not (name.startswith("MPI") and dtype == "bfloat16"):  # which MPI has no type for
                x = given.to(kind)
                found[dtype] = differing(way, x, all_ways[name.partition(",")[0]](x))
        shares = [f"{found[dtype]:12.1%}" if dtype in found else f"{'-':>12}" for dtype in DTYPES]
        lines.append(f"{name:24}" + "".join(shares))
        rows.append({"way": name} | found)
        say(lines[-1])
    if arguments.save and dist.get_rank() == 0:
        save(f"same_bits_{library()}_{dist.get_world_size()}", "\n".join(lines), rows)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
