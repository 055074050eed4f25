"""Messages and all_reduce of CUDA arrays, path by path, against host memory, naive staging and torch gloo.

    hpcomm run -n 2 python benchmarks/gpu.py [--max MiB] [--budget s] [--save]     (-n 4: all_reduce only)

Ranks may share a GPU. A cell is the median time in us and GB/s, one way for messages; "!" where random data
did not arrive, checked in memory that held something else; "-" where a path is not there, for the reason that
is said below. Up to the size in the first line all paths are one, staged. Then: how much of a kernel's time a
transfer beside it hides, 1 is all of the shorter one. --save keeps the table, and with matplotlib a picture,
under benchmarks/results.
"""

from __future__ import annotations

import argparse
import importlib
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from measure import RESULTS, save
from mpi4py import MPI

import hpcomm
from hpcomm.core.limits import DEVICE_EAGER
from hpcomm.device import driver
from hpcomm.transport.device import ipc

WORLD = MPI.COMM_WORLD
RANK, RANKS, PEER = WORLD.rank, WORLD.size, WORLD.rank ^ 1
SIZES = (8, 4 << 10, 64 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20, 256 << 20)
Move = Callable[[Any], Any]  # works on an array in place; may return another one, which is the result


def library() -> Any:
    """CuPy, else torch with CUDA."""
    driver.driver()  # says why, if there is none
    try:
        return importlib.import_module("cupy")
    except ImportError:
        torch = importlib.import_module("torch")
        if not torch.cuda.is_available():
            raise SystemExit("there is neither CuPy nor a torch with CUDA here") from None
        return torch


XP: Any = library()


def there(x: Any) -> Any:
    return XP.asarray(x) if XP.__name__ == "cupy" else XP.from_numpy(x).cuda()


def here(x: Any) -> Any:
    return x if isinstance(x, np.ndarray) else x.get() if hasattr(x, "get") else x.cpu().numpy()


def synchronize() -> None:
    XP.cuda.Stream.null.synchronize() if XP.__name__ == "cupy" else XP.cuda.synchronize()


def comm(path: str) -> hpcomm.Communicator:
    return hpcomm.Communicator(WORLD, name=path, gpu=path)


@contextmanager
def through_the_slab(always: bool) -> Iterator[None]:
    kept, ipc.IPC_DIRECT = ipc.IPC_DIRECT, 1 << 60 if always else ipc.IPC_DIRECT
    try:
        yield
    finally:
        ipc.IPC_DIRECT = kept


def messages() -> dict[str, tuple[Move, Move]]:
    """Row -> (send, recv)."""
    auto, pipeline = comm("auto"), comm("pipeline")

    def by(made: hpcomm.Communicator, slab: bool = False) -> tuple[Move, Move]:
        def send(x: Any) -> None:
            with through_the_slab(slab):
                made.send(x, dest=PEER)

        return send, lambda x: made.recv(x, source=PEER)

    def naive(x: Any) -> None:
        host = np.empty(x.shape, np.float32)
        WORLD.Recv(host, PEER)
        x[:] = there(host)

    return {
        "host to host": by(auto),
        "naive staging": (lambda x: WORLD.Send(here(x), PEER), naive),
        "pipeline": by(pipeline),
        "ipc, slab": by(auto, slab=True),
        "ipc, opened itself": by(auto),
        "direct": by(comm("direct")),
        "nccl": by(comm("nccl")),
    }


def reductions() -> dict[str, Move]:
    """Row -> all_reduce in place."""
    rows: dict[str, Move] = {"host arrays": (made := comm("auto")).all_reduce}
    rows["auto"] = lambda x: made.all_reduce(x, out=x)
    for path in ("pipeline", "schedule", "ipc", "direct", "nccl"):
        rows[path] = (lambda other: lambda x: other.all_reduce(x, out=x))(comm(path))
    if (gloo := torch_gloo()) is not None:
        rows["torch gloo"] = gloo
    return rows


def torch_gloo() -> Move | None:
    """all_reduce of CUDA tensors by torch's own staging, where torch has CUDA and gloo."""
    try:
        torch = importlib.import_module("torch")
        dist = importlib.import_module("torch.distributed")
    except ImportError:
        return None
    if not (torch.cuda.is_available() and dist.is_gloo_available()):
        return None
    port = WORLD.bcast(20_000 + os.getpid() % 20_000)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=RANK, world_size=RANKS)

    def move(x: Any) -> Any:
        tensor = x if isinstance(x, torch.Tensor) else torch.as_tensor(x, device="cuda")
        dist.all_reduce(tensor)

    return move


def timed(step: Callable[[], Any], budget: float) -> float:
    """Median time of step, which all ranks do together, the slowest rank's."""
    times: list[float] = []
    while len(times) < 5 or (sum(times) < budget and len(times) < 1000):
        synchronize()
        WORLD.Barrier()
        start = time.perf_counter()
        step()
        synchronize()
        times.append(WORLD.allreduce(time.perf_counter() - start, MPI.MAX))
    return sorted(times)[len(times) // 2]


def message(send: Move, recv: Move, n: int, host: bool, budget: float) -> tuple[float, bool]:
    data = np.random.default_rng(n).standard_normal(n).astype(np.float32)
    x = data.copy() if RANK == 0 else np.full(n, np.nan, np.float32)
    x = x if host else there(x)
    (send if RANK == 0 else recv)(x)
    right = WORLD.allreduce(bool((here(x) == data).all()), MPI.LAND)
    first, second = (send, recv) if RANK == 0 else (recv, send)
    return timed(lambda: (first(x), second(x)), budget) / 2, right


def reduction(move: Move, n: int, host: bool, budget: float) -> tuple[float, bool]:
    parts = [np.random.default_rng((n, r)).integers(-99, 99, n).astype(np.float32) for r in range(RANKS)]
    x = parts[RANK].copy() if host else there(parts[RANK])
    got = move(x)
    right = bool((here(x if got is None else got) == sum(parts)).all())
    x *= 0
    return timed(lambda: move(x), budget), WORLD.allreduce(right, MPI.LAND)


def hidden(path: str, n: int, budget: float) -> float:
    """(kernel + transfer - both together) / the shorter one."""
    made, x, work = comm(path), there(np.ones(n, np.float32)), there(np.ones(1 << 20, np.float32))

    def kernel() -> None:
        nonlocal work
        for _ in range(turns):
            work *= 1

    def transfer() -> Any:
        return made.all_reduce(x, "max", out=x, async_op=True)

    turns = 1
    alone = timed(lambda: transfer().wait(), budget)
    while timed(kernel, 0) < alone and turns < 1 << 16:
        turns *= 2
    busy = timed(kernel, budget)

    def both() -> None:
        request = transfer()
        kernel()
        request.wait()

    return (alone + busy - timed(both, budget)) / max(min(alone, busy), 1e-9)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--max", type=int, default=256, help="MiB of the largest message")
    parser.add_argument("--budget", type=float, default=0.5, help="seconds for a cell")
    parser.add_argument("--save", action="store_true", help="keep the table under benchmarks/results")
    options = parser.parse_args()
    sizes = [size for size in SIZES if size <= options.max << 20]
    curves: dict[str, list[float]] = {}
    name = driver.driver().device(0).name
    lines = [f"{RANKS} ranks, {name}, float32, us / GB/s; staged up to {DEVICE_EAGER} bytes"]
    whys: dict[str, str] = {}
    lines.append(f"{'':28s}" + "".join(f"{size:>18d}" for size in sizes))

    def row(name: str, cell: Callable[[int], tuple[float, bool]]) -> None:
        line = f"{name:28s}"
        curves[name] = []
        for size in sizes:
            try:
                took, right = cell(size // 4)
            except hpcomm.ConfigError as error:  # on all ranks: the path cannot be forced here
                whys[name] = error.what
                line += f"{'-':>17s} "
                continue
            curves[name].append(size / took / 1e9)
            line += f"{took * 1e6:10.1f}/{size / took / 1e9:6.1f}{' ' if right else '!'}"
        lines.append(line)

    if RANKS == 2:
        for name, (send, recv) in messages().items():
            host = name == "host to host"
            row(f"message, {name}", lambda n, s=send, r=recv, h=host: message(s, r, n, h, options.budget))  # type: ignore[misc]
    for name, move in reductions().items():
        host = name == "host arrays"
        row(f"all_reduce, {name}", lambda n, m=move, h=host: reduction(m, n, h, options.budget))  # type: ignore[misc]
    lines += [
        f"hidden beside a kernel, {path}: {hidden(path, sizes[-1] // 4, options.budget):.2f}"
        for path in ("auto", "pipeline")
    ]
    lines += [f"-  {name}: {why}" for name, why in whys.items()]
    if RANK == 0:
        print("\n".join(lines), flush=True)
        if options.save:
            keep("\n".join(lines), curves, sizes)


def keep(text: str, curves: dict[str, list[float]], sizes: list[int]) -> None:
    name = f"gpu_{RANKS}"
    save(name, text, [{"row": each, "bytes": sizes, "GB/s": speeds} for each, speeds in curves.items()])
    try:
        plt = importlib.import_module("matplotlib.pyplot")
    except ImportError:
        return
    kinds = [kind for kind in ("message", "all_reduce") if any(row.startswith(kind) for row in curves)]
    figure, panels = plt.subplots(1, len(kinds), figsize=(6 * len(kinds), 5), sharey=True, squeeze=False)
    for axes, kind in zip(panels[0], kinds, strict=True):
        for row, speeds in curves.items():
            if row.startswith(kind) and len(speeds) == len(sizes):
                axes.loglog(sizes, speeds, marker="o", label=row.removeprefix(f"{kind}, "))
        axes.set(title=f"{kind}, {RANKS} ranks", xlabel="bytes", ylabel="GB/s")
        axes.legend(fontsize="small")
    figure.tight_layout()
    figure.savefig(RESULTS / f"{name}.png", dpi=120)


if __name__ == "__main__":
    main()
