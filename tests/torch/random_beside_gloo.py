"""Random programs of messages, by these groups and by gloo: both give the same.

    python tests/torch/random_beside_gloo.py [-n 3] [--programs 200] [--seed 1] [--mpi]

Starts n ranks by torchrun without MPI, or by hpcomm run. All draw the same programs: phases of messages of
random ends, sizes, tags and dtypes, waited for in an order of each rank's own, from anybody, in batches, in
turn, as objects, with collectives between. A program that gives something else is shown; status 1.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

ROOT = Path(__file__).resolve().parents[2]
DTYPES = (torch.float32, torch.bfloat16, torch.int64, torch.uint8)
SIZES = (0, 1, 3, 100, 1_000, 4_096, 20_000)
Found = list[tuple[str, Any]]  # what a rank has received, and what for


class Letter(NamedTuple):
    """A message; spare: how many elements the tensor that receives it has more."""

    number: int
    source: int
    dest: int
    tag: int
    n: int
    spare: int
    dtype: torch.dtype

    def tensor(self) -> torch.Tensor:
        return (torch.arange(self.n) * 7 + self.number * 11 + self.source).remainder(251).to(self.dtype)

    def room(self) -> torch.Tensor:
        return torch.full((self.n + self.spare,), 255, dtype=torch.int64).to(self.dtype)


class Program:
    """What one seed draws, run on a group. All ranks draw the same; own is this rank's order of things."""

    def __init__(self, seed: int, group: Any) -> None:
        self.common, self.own = random.Random(seed), random.Random(seed * 1000 + dist.get_rank())
        self.group, self.rank, self.size = group, dist.get_rank(), dist.get_world_size()
        self.found: Found = []
        self.letters = 0

    def run(self) -> Found:
        phases: tuple[Callable[[], None], ...] = (
            self.exchange, self.exchange, self.exchange_around, self.from_anybody, self.in_turn, self.batch,
            self.objects,
        )  # fmt: skip
        for _ in range(self.common.randint(1, 4)):
            self.common.choice(phases)()
        return self.found

    def drawn(self, most: int, tags: int = 3) -> list[Letter]:
        return [self.letter(tags) for _ in range(self.common.randint(1, most))]

    def letter(self, tags: int) -> Letter:
        source, dest = self.common.sample(range(self.size), 2)
        tag, n, spare = self.common.randrange(tags), self.common.choice(SIZES), self.common.choice((0, 0, 2))
        self.letters += 1
        return Letter(self.letters, source, dest, tag, n, spare, self.common.choice(DTYPES))

    def mine(self, letters: list[Letter]) -> Iterator[tuple[Letter, str]]:
        """This rank's ends in an order of its own, but those of one source, dest and tag in theirs."""
        ends = [(each, "send" if self.rank == each.source else "recv") for each in letters
                if self.rank in (each.source, each.dest)]  # fmt: skip
        waiting: dict[Any, list[tuple[Letter, str]]] = {}
        for each, way in ends:
            waiting.setdefault((each[1:4], way), []).append((each, way))
        while waiting:
            key = self.own.choice([*waiting])
            yield waiting[key].pop(0)
            if not waiting[key]:
                del waiting[key]

    def begun(self, letters: list[Letter]) -> list[Any]:
        works = []
        for each, way in self.mine(letters):
            x = each.tensor() if way == "send" else each.room()
            begin: Any = dist.isend if way == "send" else dist.irecv
            other = each.dest if way == "send" else each.source
            works.append((begin(x, other, group=self.group, tag=each.tag), x))
            if way == "recv":
                self.found.append((f"{each}", x))
        self.own.shuffle(works)
        return works

    def exchange(self) -> None:
        for work, _ in self.begun(self.drawn(16)):
            work.wait()

    def exchange_around(self) -> None:
        """Messages that are under way during collectives."""
        works = self.begun(self.drawn(10))
        x = torch.arange(5.0) + self.rank
        dist.all_reduce(x, group=self.group)
        dist.barrier(self.group)
        self.found.append(("all_reduce", x))
        for work, _ in works:
            work.wait()

    def from_anybody(self) -> None:
        """Who is first is open: those of one source come in their order, and all of them come."""
        dest, tag = self.common.randrange(self.size), 10 + self.common.randrange(3)
        counts = [self.common.randint(0, 4) if rank != dest else 0 for rank in range(self.size)]
        n = self.common.choice((1, 100, 20_000))
        if self.rank != dest:
            works = [
                dist.isend(torch.full((n,), i + 100 * self.rank), dest, group=self.group, tag=tag)
                for i in range(counts[self.rank])
            ]
            for work in works:
                work.wait()  # type: ignore[union-attr]
            return
        came: dict[int, list[int]] = {}
        for _ in range(sum(counts)):
            x = torch.zeros(n, dtype=torch.int64)
            source = dist.recv(x, group=self.group, tag=tag)
            assert x[0] == x[-1]
            came.setdefault(source, []).append(int(x[0]))
        self.found.append(("anybody", sorted(came.items())))

    def in_turn(self) -> None:
        """Blocking calls, in one order of all ranks."""
        for each in self.drawn(10):
            if self.rank == each.source:
                dist.send(each.tensor(), each.dest, group=self.group, tag=each.tag)
            elif self.rank == each.dest:
                x = each.room()
                source = dist.recv(x, each.source, group=self.group, tag=each.tag)
                self.found.append((f"{each} from {source}", x))

    def batch(self) -> None:
        operations = []
        for each, way in self.mine(self.drawn(8)):
            x = each.tensor() if way == "send" else each.room()
            what: Any = dist.isend if way == "send" else dist.irecv
            other = each.dest if way == "send" else each.source
            operations.append(dist.P2POp(what, x, other, self.group, each.tag))
            if way == "recv":
                self.found.append((f"{each}", x))
        for work in dist.batch_isend_irecv(operations) if operations else ():
            work.wait()

    def objects(self) -> None:
        for each in self.drawn(3):
            said: list[Any] = [each.number, {"n": each.n, "who": [each.source] * each.tag}]
            if self.rank == each.source:
                dist.send_object_list(said, each.dest, group=self.group)
            elif self.rank == each.dest:
                got: list[Any] = [None, None]
                dist.recv_object_list(got, each.source, group=self.group)
                self.found.append(("objects", got))


def differences(ours: Found, theirs: Found) -> list[str]:
    """Where two runs of one program differ."""
    if len(ours) != len(theirs):
        return [f"{len(ours)} things were received, and {len(theirs)} by gloo"]
    same = torch.equal
    return [
        f"{what}: {x} and by gloo {y}"
        for (what, x), (_, y) in zip(ours, theirs, strict=True)
        if not (same(x, y) if isinstance(x, torch.Tensor) else x == y)
    ]


def differing(seed: int, group: Any, gloo: Any) -> list[str]:
    """Run a program by both; where this rank's results differ."""
    return differences(Program(seed, group).run(), Program(seed, gloo).run())


def as_rank(first: int, programs: int) -> int:
    if "TORCHELASTIC_RUN_ID" in os.environ:
        sys.modules["mpi4py.MPI"] = None  # type: ignore[assignment]
    import hpcomm.torch_backend  # noqa: F401  where the package is not installed

    torch.set_num_threads(1)
    dist.init_process_group("hpcomm", timeout=timedelta(seconds=60))
    gloo = dist.new_group(backend="gloo", timeout=timedelta(seconds=60))
    wrong = things = 0
    for seed in range(first, first + programs):
        ours = Program(seed, dist.group.WORLD)
        found = differences(ours.run(), Program(seed, gloo).run())
        wrong, things = wrong + bool(found), things + len(ours.found)
        for each in found:
            print(f"program {seed}, rank {dist.get_rank()}: {each}", flush=True)
    total = torch.tensor([wrong, things])
    dist.all_reduce(total)
    if dist.get_rank() == 0:
        print(f"{programs} programs, {int(total[1])} results, {int(total[0])} differ from gloo's", flush=True)
    dist.destroy_process_group()
    return int(total[0] > 0)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("-n", type=int, default=3)
    parser.add_argument("--programs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--mpi", action="store_true", help="by hpcomm run")
    parser.add_argument("--as-rank", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.as_rank:
        return as_rank(given.seed, given.programs)
    start = ["torch.distributed.run", "--standalone", "--nproc-per-node", str(given.n)]
    if given.mpi:
        start = ["hpcomm", "run", "-n", str(given.n), "python"]
    words = ["--as-rank", "--programs", str(given.programs), "--seed", str(given.seed)]
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, "-m", *start, __file__, *words]
    return subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
