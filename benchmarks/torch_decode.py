"""A decode step of a transformer in tensor parallel over two ranks: what its sums wait, beside gloo.

    hpcomm run -n 2 python benchmarks/torch_decode.py [--save]

Each block splits its heads and its hidden layer among the ranks (Megatron's cut), so that every block sums
twice over the ranks: batch x 2048 numbers of float32, 8 KiB for one sequence and 256 KiB for 32. One step
makes one token for each sequence. "floor" is a step that sums nothing. "waits" is the time inside
all_reduce of the rank that comes last, so that it waits for the backend alone; "with imbalance" is the
time of the slower rank, which waits for the other as well. Both backends are groups of one job, by turns.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from measure import machine, need_two_ranks, save, say, size_name
from torch import nn

WIDTH, HEADS, HIDDEN, BLOCKS, PAST = 2048, 16, 4096, 2, 64
BATCHES = [1, 2, 4, 8, 16, 32]


class Block(nn.Module):
    """One rank's half of the heads and of the hidden layer; `total` sums over the ranks."""

    def __init__(self, ranks: int) -> None:
        super().__init__()
        self.heads, mine = HEADS // ranks, WIDTH // ranks
        self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.queries = nn.Linear(WIDTH, 3 * mine, bias=False)
        self.out = nn.Linear(mine, WIDTH, bias=False)
        self.up = nn.Linear(WIDTH, HIDDEN // ranks, bias=False)
        self.down = nn.Linear(HIDDEN // ranks, WIDTH, bias=False)

    def forward(self, x: torch.Tensor, past: torch.Tensor, total: Callable[[torch.Tensor], None]) -> Any:
        batch = len(x)
        q, k, v = self.queries(self.before(x)).view(batch, 3, self.heads, -1).unbind(1)
        keys = torch.cat([past[0, :batch], k.unsqueeze(2)], 2)
        values = torch.cat([past[1, :batch], v.unsqueeze(2)], 2)
        found = nn.functional.scaled_dot_product_attention(q.unsqueeze(2), keys, values)
        part = self.out(found.reshape(batch, -1))
        total(part)
        x = x + part
        part = self.down(nn.functional.gelu(self.up(self.between(x))))
        total(part)
        return x + part


class Step:
    """A decode step whose sums go through one group; keeps what it waits inside each."""

    def __init__(self, blocks: list[Block], past: torch.Tensor, x: torch.Tensor, group: Any) -> None:
        self.blocks, self.past, self.x, self.group = blocks, past, x, group
        self.waited: list[float] = []
        self.result = x

    def total(self, x: torch.Tensor) -> None:
        if self.group is not None:
            begin = time.perf_counter()
            dist.all_reduce(x, group=self.group)
            self.waited.append(time.perf_counter() - begin)

    def __call__(self) -> None:
        x = self.x
        for block in self.blocks:
            x = block(x, self.past, self.total)
        self.result = x


def measured(steps: dict[str, Step], rounds: int, calls: int) -> dict[str, float]:
    """Medians over alternated turns, microseconds a step."""
    found: dict[str, list[list[float]]] = {name: [] for name in steps}
    for _ in range(rounds):
        for name, step in steps.items():
            step()
            step.waited.clear()
            dist.barrier()
            begin = time.perf_counter()
            for _ in range(calls):
                step()
            took = time.perf_counter() - begin
            each = torch.tensor([took, sum(step.waited), *step.waited], dtype=torch.float64)
            longest, shortest = each.clone(), each
            dist.all_reduce(longest, dist.ReduceOp.MAX)
            dist.all_reduce(shortest, dist.ReduceOp.MIN)
            rows = [longest[0], shortest[2:].sum(), longest[1]]
            found[name].append([float(row) * 1e6 / calls for row in rows])
    return {
        f"{name}{what}": sorted(each[i] for each in rows)[rounds // 2]
        for name, rows in found.items()
        for i, what in enumerate(("", "_waits", "_with_the_others"))
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--save", action="store_true", help="keep the table under benchmarks/results")
    parser.add_argument("--rounds", type=int, default=15)
    arguments = parser.parse_args()
    need_two_ranks("torch_decode")
    torch.set_num_threads(1)
    dist.init_process_group("mpi")
    ranks = dist.get_world_size()
    groups = {"mpi": dist.group.WORLD, "gloo": dist.new_group(list(range(ranks)), backend="gloo")}
    torch.manual_seed(dist.get_rank())
    blocks = [Block(ranks) for _ in range(BLOCKS)]
    past = torch.randn(2, max(BATCHES), HEADS // ranks, PAST, WIDTH // HEADS)
    lines = [f"{BLOCKS} blocks of width {WIDTH}, float32, medians of {arguments.rounds} rounds, us a step"]
    lines.append(f"{'batch':>5} {'a sum':>8} {'floor':>9} {'mpi':>9} {'gloo':>9} {'mpi waits':>10} "
                 f"{'gloo waits':>10} {'mpi/gloo':>9} {'with imbalance':>17}")  # fmt: skip
    say(machine())
    say("\n".join(lines))
    rows: list[dict[str, Any]] = []
    with torch.inference_mode():
        for batch in BATCHES:
            torch.manual_seed(1)
            x = torch.randn(batch, WIDTH)
            steps = {name: Step(blocks, past, x, group) for name, group in {"floor": None, **groups}.items()}
            row = measured(steps, arguments.rounds, calls=10)
            if not torch.equal(steps["mpi"].result, steps["gloo"].result):
                raise SystemExit("the two backends gave different sums")  # two summands have one order
            row["ratio"] = row["mpi_waits"] / row["gloo_waits"]
            row["ratio_with_the_others"] = row["mpi_with_the_others"] / row["gloo_with_the_others"]
            lines.append(
                f"{batch:5} {size_name(4 * batch * WIDTH):>8} {row['floor']:9.1f} {row['mpi']:9.1f} "
                f"{row['gloo']:9.1f} {row['mpi_waits']:10.1f} {row['gloo_waits']:10.1f} {row['ratio']:9.2f} "
                f"{row['ratio_with_the_others']:17.2f}"
            )
            say(lines[-1])
            rows.append({"batch": batch, "bytes": 4 * batch * WIDTH} | row)
    if arguments.save and dist.get_rank() == 0:
        save("torch_decode", "\n".join(lines), rows)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
