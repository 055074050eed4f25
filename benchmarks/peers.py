"""Where peers are silently wrong: mpi4py, gloo and hpcomm in the same calls, each in a job of its own.

    python benchmarks/peers.py [--save]

A job that has not ended after 20 s hangs. What is shown is what rank 0 got, or the error that ended the job.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any

LIMIT_S = 20


def bf16_ones(do: Any) -> Any:
    import torch

    return do.all_reduce(torch.ones(4, dtype=torch.bfloat16))


def f16_ones(do: Any) -> Any:
    import torch

    return do.all_reduce(torch.ones(4, dtype=torch.float16))


def strided(do: Any) -> Any:
    import torch

    return do.all_reduce(torch.arange(8.0)[::2])


def unsigned(do: Any) -> Any:
    import torch

    return do.all_reduce(torch.tensor([40000, 5], dtype=torch.uint16))


def integer_average(do: Any) -> Any:
    import torch

    return do.all_reduce(torch.tensor([3 + do.rank]), "avg")


def different_operators(do: Any) -> Any:
    import torch

    return do.all_reduce(torch.full((2,), do.rank + 3.0), "max" if do.rank else "sum")


def swapped_order(do: Any) -> Any:
    import torch

    first, second = torch.full((2,), 1.0), torch.full((2,), 10.0)
    pair = (first, second) if do.rank == 0 else (second, first)
    ops = ("sum", "prod") if do.rank == 0 else ("prod", "sum")
    return [do.all_reduce(x, op) for x, op in zip(pair, ops, strict=True)]


def different_dtypes(do: Any) -> Any:
    import torch

    return do.all_reduce(torch.ones(2, dtype=torch.float32 if do.rank else torch.int32))


def different_roots(do: Any) -> Any:
    import torch

    x = torch.full((2,), do.rank + 5.0)
    do.broadcast(x, do.rank)
    do.barrier()
    return x


def reduce_against_broadcast(do: Any) -> Any:
    import torch

    x = torch.ones(2)
    return do.broadcast(x, 0) if do.rank else do.all_reduce(x)


def exception_on_one_rank(do: Any) -> Any:
    import torch

    if do.rank:
        raise ValueError("boom")
    return do.all_reduce(torch.ones(2))


CASES: dict[str, tuple[Callable[[Any], Any], str]] = {
    "sum of bfloat16 ones": (bf16_ones, "[2, 2, 2, 2]"),
    "sum of float16 ones": (f16_ones, "[2, 2, 2, 2]"),
    "sum of arange(8.)[::2]": (strided, "[0, 4, 8, 12]"),
    "sum of uint16": (unsigned, "[14464, 10]"),
    "average of integers": (integer_average, "an error"),
    "SUM here, MAX there": (different_operators, "an error"),
    "two calls in swapped order": (swapped_order, "an error"),
    "int32 here, float32 there": (different_dtypes, "an error"),
    "two broadcast roots": (different_roots, "an error"),
    "all_reduce against broadcast": (reduce_against_broadcast, "an error"),
    "exception on one rank": (exception_on_one_rank, "an error"),
}


class Mpi4py:
    def __init__(self) -> None:
        from mpi4py import MPI

        self.mpi, self.comm, self.rank = MPI, MPI.COMM_WORLD, MPI.COMM_WORLD.rank

    def all_reduce(self, x: Any, op: str = "sum") -> Any:
        y = x.clone()
        if op == "avg":
            raise LookupError("no such operator")
        self.comm.Allreduce(x, y, {"sum": self.mpi.SUM, "max": self.mpi.MAX, "prod": self.mpi.PROD}[op])
        return y

    def broadcast(self, x: Any, root: int) -> Any:
        self.comm.Bcast(x, root)
        return x

    def barrier(self) -> None:
        self.comm.Barrier()


class Gloo:
    def __init__(self) -> None:
        import torch.distributed as dist
        from mpi4py import MPI

        self.rank = MPI.COMM_WORLD.rank
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": os.environ["PEERS_PORT"]}
        dist.init_process_group("gloo", rank=self.rank, world_size=2)
        self.dist = dist

    def all_reduce(self, x: Any, op: str = "sum") -> Any:
        ops = self.dist.ReduceOp
        self.dist.all_reduce(x, {"sum": ops.SUM, "max": ops.MAX, "prod": ops.PRODUCT, "avg": ops.AVG}[op])
        return x

    def broadcast(self, x: Any, root: int) -> Any:
        self.dist.broadcast(x, root)
        return x

    def barrier(self) -> None:
        self.dist.barrier()


class Hpcomm:
    def __init__(self) -> None:
        import hpcomm

        self.comm, self.rank = hpcomm.world, hpcomm.world.rank

    def all_reduce(self, x: Any, op: str = "sum") -> Any:
        return self.comm.all_reduce(x, op)

    def broadcast(self, x: Any, root: int) -> Any:
        return self.comm.broadcast(x, root, out=x)

    def barrier(self) -> None:
        self.comm.barrier()


CONTENDERS = {"mpi4py": Mpi4py, "gloo": Gloo, "hpcomm": Hpcomm}


def play(case: str, contender: str) -> None:
    """One case, inside a job of two ranks."""
    do = CONTENDERS[contender]()
    result = CASES[case][0](do)
    if do.rank == 0:
        print("GOT", show(result), flush=True)


def show(result: Any) -> str:
    if isinstance(result, list):
        return " then ".join(show(part) for part in result)
    return "[" + ", ".join(f"{v:.4g}" if abs(v) > 1e6 else f"{v:g}" for v in result.double().tolist()) + "]"


def ask(case: str, contender: str) -> str:
    """The job's answer in a few words."""
    import socket

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        environ = {**os.environ, "PEERS_PORT": str(free.getsockname()[1])}
    command = [
        sys.executable,
        "-m",
        "hpcomm",
        "run",
        "-n",
        "2",
        "--timeout",
        str(LIMIT_S),
        "python",
        __file__,
    ]
    job = subprocess.run(
        [*command, "--play", case, contender], env=environ, capture_output=True, text=True, check=False
    )
    if got := re.search(r"GOT (.*)", job.stdout):
        return got[1]
    if job.returncode == 124:
        return "hangs"
    named = re.findall(r"^(?:[\w.]*\.)?(\w*(?:Error|Exception))\b", job.stderr, re.MULTILINE)
    return f"error: {named[-1] if named else f'status {job.returncode}'}"


def right(said: str, expected: str) -> bool:
    """Whether an answer will do: the right figures, or an error where there is no right answer."""
    if expected == "an error":
        return said.startswith("error")
    return said == expected or (said.startswith("error") and expected != said)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--play", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--save", action="store_true", help="keep the table under benchmarks/results")
    arguments = parser.parse_args()
    if arguments.play:
        play(*arguments.play)
        return 0
    lines = [f"{'two ranks':30}{'right':>14}" + "".join(f"{name:>30}" for name in CONTENDERS)]
    print(lines[0], flush=True)
    rows = []
    for case, (_, expected) in CASES.items():
        said = {name: ask(case, name) for name in CONTENDERS}
        marks = {name: "" if right(answer, expected) else " !" for name, answer in said.items()}
        lines.append(f"{case:30}{expected:>14}" + "".join(f"{said[n] + marks[n]:>30}" for n in CONTENDERS))
        print(lines[-1], flush=True)
        rows.append({"case": case, "right": expected, **said})
    lines.append(
        "! wrong without a word, or hangs. An error where the figures could have been right is no mark."
    )
    print(lines[-1])
    if arguments.save:
        from measure import save
        from mpi4py import MPI

        save(
            "peers_mpich" if "MPICH" in MPI.Get_library_version() else "peers_openmpi", "\n".join(lines), rows
        )
    wrong = [row["case"] for row in rows if row["hpcomm"].startswith("error") != (row["right"] == "an error")]
    wrong += [row["case"] for row in rows if not right(row["hpcomm"], row["right"])]
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
