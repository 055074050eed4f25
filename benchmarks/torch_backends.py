"""torch.distributed over MPI and over gloo: five collectives, messages, from 8 B to 64 MiB, and a DDP step.

    hpcomm run -n 2 python benchmarks/torch_backends.py [--save] [--quick]

Both backends are groups of one job and take turns. "floor" is torch's own dispatch: a process group that
does nothing. "direct" is the group's own send and recv, without torch's dispatch. "raw" is mpi4py's Send and
Recv. "hidden" is the part of a background all-reduce that matrix
products, or a wait, cover.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from measure import alternate, difference, machine, median, ratio, save, size_name
from mpi4py import MPI
from torch import nn

from hpcomm.torch_backend.work import Work  # brings "mpi" where the package is not installed

SIZES = [8, 512, 4 << 10, 32 << 10, 256 << 10, 2 << 20, 16 << 20, 64 << 20]
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
Calls = dict[str, Callable[[], Any]]
DIRECT = "direct"
BESIDE = ["floor", DIRECT, "raw"]  # columns of messages


class Nothing(dist.ProcessGroup):
    """A process group whose calls do nothing: what torch itself costs."""

    def __init__(self) -> None:
        super().__init__(dist.get_rank(), dist.get_world_size())
        self._done = Work()
        world = dist.distributed_c10d._world
        world.pg_map[self] = (dist.Backend("mpi"), None)
        world.pg_group_ranks[self] = {r: r for r in range(self.size())}
        world.pg_names[self] = "nothing"

    def allreduce(self, tensors: Any, opts: Any = None) -> Any:
        return self._done

    broadcast = allreduce

    def send(self, tensors: Any, peer: int, tag: int = 0) -> Any:
        return self._done

    recv = send

    def all_gather_single(self, out: Any, x: Any, opts: Any = None) -> Any:
        return self._done

    _allgather_base = reduce_scatter_single = _reduce_scatter_base = all_gather_single

    def all_to_all_single(self, out: Any, x: Any, a: Any, b: Any, opts: Any = None) -> Any:
        return self._done

    alltoall_base = all_to_all_single


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--save", action="store_true", help="keep table and plot under benchmarks/results")
    parser.add_argument("--quick", action="store_true", help="fewer sizes and rounds")
    parser.add_argument("--only", default="", help="patterns with this in their names; nothing is kept")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("mpi")
    ranks = dist.get_world_size()
    groups = {
        "mpi": dist.group.WORLD,
        "gloo": dist.new_group(list(range(ranks)), backend="gloo"),
        "floor": Nothing(),
    }
    rounds, sizes = (5, SIZES[::3]) if arguments.quick else (9, SIZES)
    rows: list[dict[str, Any]] = []
    lines = [
        machine(),
        f"{ranks} ranks, torch {torch.__version__}, medians of {rounds} alternated rounds, us",
    ]
    say(*lines)
    for pattern, make in PATTERNS.items():
        if arguments.only not in pattern:
            continue
        groups = groups | ({"direct": DIRECT, "raw": None} if pattern == "send_recv" else {})
        for name, dtype in DTYPES.items():
            head = f"\n{pattern} {name}\n{'':>8} {'mpi':>10} {'gloo':>10} {'gloo/mpi':>9} {'mpi - floor':>12}"
            head += f" {'floor':>8} {'direct':>8} {'raw':>8}" * ("raw" in groups)
            say(head)
            lines.append(head)
            for nbytes in sorted({*sizes, 1 << 10}) if DIRECT in groups else sizes:
                row = measured(make, nbytes, dtype, ranks, groups, rounds)
                lines.append(shown(row))
                say(lines[-1])
                rows.append({"pattern": pattern, "dtype": name, "ranks": ranks} | row)
    overlaps = (hidden(rounds, where) for where in ("core", "elsewhere"))
    for text, row in () if arguments.only else (step(groups, rounds), *overlaps):
        say(text)
        lines.append(text)
        rows.append(row)
    if arguments.save and not arguments.only and dist.get_rank() == 0:
        library = "mpich" if "MPICH" in MPI.Get_library_version() else "openmpi"
        save(f"torch_{library}_{ranks}", "\n".join(lines), rows)
        plot(rows, f"torch_{library}_{ranks}")
    dist.destroy_process_group()


def say(*lines: str) -> None:
    if dist.get_rank() == 0:
        print(*lines, sep="\n", flush=True)


def measured(
    make: Callable[..., Callable[[], Any]],
    nbytes: int,
    dtype: torch.dtype,
    ranks: int,
    groups: dict[str, Any],
    rounds: int,
) -> dict[str, Any]:
    n = max(nbytes // dtype.itemsize, 1)
    calls = {name: make(n, dtype, ranks, group) for name, group in groups.items()}
    times = alternate(calls, rounds, span=0.005 if nbytes < 1 << 20 else 0.02)
    return {
        "bytes": nbytes,
        **{name: median(found) for name, found in times.items()},
        "ratio": ratio(times["gloo"], times["mpi"]),
        "above_floor": difference(times["mpi"], times["floor"]),
    }


def shown(row: dict[str, Any]) -> str:
    return (
        f"{size_name(row['bytes']):>8} {row['mpi']:10.1f} {row['gloo']:10.1f} {row['ratio']:8.1f}x "
        f"{row['above_floor']:+12.1f}" + "".join(f" {row[name]:8.1f}" for name in BESIDE if "raw" in row)
    )


def all_reduce(n: int, dtype: torch.dtype, ranks: int, group: Any) -> Callable[[], Any]:
    x = torch.zeros(n, dtype=dtype)
    return lambda: dist.all_reduce(x, group=group)


def async_all_reduce(n: int, dtype: torch.dtype, ranks: int, group: Any) -> Callable[[], Any]:
    x = torch.zeros(n, dtype=dtype)
    return lambda: dist.all_reduce(x, group=group, async_op=True).wait()


def broadcast(n: int, dtype: torch.dtype, ranks: int, group: Any) -> Callable[[], Any]:
    x = torch.zeros(n, dtype=dtype)
    return lambda: dist.broadcast(x, 0, group=group)


def all_gather_into_tensor(n: int, dtype: torch.dtype, ranks: int, group: Any) -> Callable[[], Any]:
    """n elements in all, as for the others."""
    part = max(n // ranks, 1)
    x, out = torch.zeros(part, dtype=dtype), torch.zeros(part * ranks, dtype=dtype)
    gather = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
    return lambda: gather(out, x, group=group)


def reduce_scatter(n: int, dtype: torch.dtype, ranks: int, group: Any) -> Callable[[], Any]:
    part = max(n // ranks, 1)
    x, out = torch.zeros(part * ranks, dtype=dtype), torch.zeros(part, dtype=dtype)
    scatter = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)
    return lambda: scatter(out, x, group=group)


def all_to_all(n: int, dtype: torch.dtype, ranks: int, group: Any) -> Callable[[], Any]:
    part = max(n // ranks, 1)
    x, out = torch.zeros(part * ranks, dtype=dtype), torch.zeros(part * ranks, dtype=dtype)
    return lambda: dist.all_to_all_single(out, x, group=group)


def send_recv(n: int, dtype: torch.dtype, ranks: int, group: Any) -> Callable[[], Any]:
    """Between each even rank and the next one: there, and back. group None: raw mpi4py."""
    pair = dist.group.WORLD
    x, rank, world = torch.zeros(n, dtype=dtype), dist.get_rank(), MPI.COMM_WORLD
    peer, memory = rank ^ 1, x.view(torch.uint8).numpy()

    def there_and_back() -> None:
        for sends in (True, False) if rank < peer else (False, True):
            if peer >= ranks:
                continue
            if group is None:
                (world.Send if sends else world.Recv)(memory, peer)
            elif group == DIRECT:
                (pair.send if sends else pair.recv)([x], peer, 0).wait()
            else:
                (dist.send if sends else dist.recv)(x, peer, group=group)

    return there_and_back


PATTERNS = {
    "all_reduce": all_reduce,
    "async_all_reduce": async_all_reduce,
    "broadcast": broadcast,
    "all_gather_into_tensor": all_gather_into_tensor,
    "reduce_scatter": reduce_scatter,
    "all_to_all": all_to_all,
    "send_recv": send_recv,
}


def step(groups: dict[str, Any], rounds: int) -> tuple[str, dict[str, Any]]:
    """A DDP step of a model of about 10 million parameters."""
    x, y = torch.randn(16, 1024), torch.randn(16, 1024)
    calls: Calls = {}
    for name in ("mpi", "gloo"):
        torch.manual_seed(1)
        net = nn.Sequential(*[layer for _ in range(9) for layer in (nn.Linear(1024, 1024), nn.ReLU())])
        calls[name] = _training(nn.parallel.DistributedDataParallel(net, process_group=groups[name]), x, y)
        count = sum(p.numel() for p in net.parameters())
    times = alternate(calls, rounds, span=0.2)
    found = {name: median(each) for name, each in times.items()} | {
        "ratio": ratio(times["gloo"], times["mpi"])
    }
    text = (
        f"\nDDP step, {count / 1e6:.1f} million parameters: mpi {found['mpi'] / 1e3:.1f} ms, "
        f"gloo {found['gloo'] / 1e3:.1f} ms, gloo/mpi {found['ratio']:.2f}x"
    )
    return text, {"pattern": "ddp", "parameters": count} | found


def _training(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> Callable[[], Any]:
    optimiser = torch.optim.SGD(model.parameters(), 0.01)

    def once() -> None:
        optimiser.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimiser.step()

    return once


def hidden(rounds: int, where: str) -> tuple[str, dict[str, Any]]:
    """How much of an 8 MiB all-reduce a computation of at least its length hides.

    where: "core", the computation is matrix products on the rank's own core, which the transfer needs too
    if there is no other; "elsewhere", it is a wait, as for an accelerator.
    """
    x, a = torch.zeros(2 << 20), torch.randn(512, 512)

    def compute() -> None:
        if where == "elsewhere":
            time.sleep(products * 1e-3)
            return
        for _ in range(products):
            torch.mm(a, a)

    def together() -> None:
        work = dist.all_reduce(x, async_op=True)
        compute()
        work.wait()

    products = 1
    once = time.perf_counter()
    compute()
    dist.all_reduce(x)
    once = time.perf_counter()
    dist.all_reduce(x)
    transfer = time.perf_counter() - once
    once = time.perf_counter()
    compute()
    longest = torch.tensor([2 * transfer / (time.perf_counter() - once)], dtype=torch.float64)
    dist.all_reduce(longest, dist.ReduceOp.MAX)
    products = int(longest.item()) + 1
    calls: Calls = {"transfer": lambda: dist.all_reduce(x), "compute": compute, "together": together}
    times = alternate(calls, rounds, span=0.1)
    parts = [
        1 - (both - alone) / transfer
        for both, alone, transfer in zip(times["together"], times["compute"], times["transfer"], strict=True)
    ]
    part = sorted(parts)[len(parts) // 2]
    found = {name: median(each) for name, each in times.items()}
    what = "matrix products" if where == "core" else "a wait, as for an accelerator"
    text = (
        f"8 MiB all_reduce behind {what}: "
        f"transfer {found['transfer'] / 1e3:.1f} ms, "
        f"compute {found['compute'] / 1e3:.1f} ms, together {found['together'] / 1e3:.1f} ms: "
        f"{100 * part:.0f} % of it hidden"
    )
    return text, {"pattern": f"hidden, {where}", "part": part} | found


def plot(rows: list[dict[str, Any]], name: str) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt
    from measure import RESULTS

    figure, axes = plt.subplots(1, len(PATTERNS), figsize=(18, 4), sharey=True)
    for axis, pattern in zip(axes, PATTERNS, strict=True):
        for dtype, line in zip(DTYPES, ("-", "--"), strict=True):
            found = [row for row in rows if row["pattern"] == pattern and row.get("dtype") == dtype]
            for backend, colour in (("mpi", "tab:blue"), ("gloo", "tab:orange")):
                axis.loglog(
                    [row["bytes"] for row in found],
                    [row[backend] for row in found],
                    line,
                    color=colour,
                    label=f"{backend} {dtype}",
                )
        axis.set_title(pattern)
        axis.set_xlabel("bytes")
    axes[0].set_ylabel("microseconds a call")
    axes[0].legend()
    figure.tight_layout()
    figure.savefig(RESULTS / f"{name}.png", dpi=80)


if __name__ == "__main__":
    main()
