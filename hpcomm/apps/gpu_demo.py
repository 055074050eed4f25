"""Transfer paths between two ranks of this machine, and how fast each is.

    python -m hpcomm run -n 2 python -m hpcomm.apps.gpu_demo [--most BYTES] [--plot FILE.png]

Both ranks send at once, arrays of random numbers into arrays of NaN. With a GPU: naive (pageable copies and
raw MPI), then every path, and what hpcomm chooses itself; of a path that cannot be taken here it says why.
Without a GPU it says what is missing, and measures the host.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

import hpcomm

from .. import Communicator, ConfigError
from ..core.types import ArrayLike
from . import _library
from ._arguments import positive
from ._picture import draw_bandwidths, require_picture
from ._report import Parser, Report, sleep_until_all

Row = tuple[str, int, float, str]  # path, bytes, GB/s, which way hpcomm went
PATHS = ["pipeline", "ipc", "direct", "nccl"]  # which messages may take
SIZES = [4 << 10, 256 << 10, 2 << 20, 16 << 20, 128 << 20]
SPAN_S = 0.2  # measuring one size takes about so long at most
Swap = Callable[[Any, Any], None]  # (what goes out, what comes in)
Contenders = dict[str, tuple[Communicator, Swap]]


def naive(comm: Communicator, peer: int, library: _library.Library) -> Swap:
    """What one writes without hpcomm."""

    def swap(x: ArrayLike, out: Any) -> None:
        received = np.empty(out.shape, np.float32)
        comm.mpi.Sendrecv(library.here(x), peer, 0, received, peer, 0)
        out[:] = library.there(received)
        library.synchronize()

    return swap


def by(comm: Communicator, peer: int, library: _library.Library) -> Swap:
    def swap(x: ArrayLike, out: ArrayLike) -> None:
        comm.sendrecv(x, dest=peer, source=peer, out=out)
        library.synchronize()

    return swap


def seconds(comm: Communicator, swap: Swap, x: object, out: object) -> float:
    """Of one exchange: the median, of as many as fit into the span on rank 0."""
    times: list[float] = []
    while comm.mpi.bcast(len(times) < 3 or (sum(times) < SPAN_S and len(times) < 300)):
        comm.mpi.Barrier()
        start = time.perf_counter()
        swap(x, out)
        times.append(time.perf_counter() - start)
    return float(np.median(times))


def numbers(rank: int, nbytes: int) -> NDArray[np.float32]:
    return np.random.default_rng(rank).standard_normal(nbytes // 4, np.float32)


def refusal(comm: Communicator, swap: Swap, library: _library.Library, nbytes: int) -> str:
    """Why messages of so many bytes cannot take the path that comm is forced to, or ""."""
    x = library.there(numbers(comm.rank, nbytes))
    try:
        swap(x, library.there(np.empty(nbytes // 4, np.float32)))
    except ConfigError as error:
        return error.what
    return ""


def way(comm: Communicator, peer: int, out: ArrayLike) -> str:
    """How hpcomm explains what it has just done."""
    with comm.plan("recv", out=out, source=peer) as plan:
        return plan.explain().partition("): ")[2]


def contenders(
    pair: Communicator, library: _library.Library, on_device: bool, nbytes: int
) -> tuple[Contenders, dict[str, str]]:
    """The paths that messages of so many bytes can take here; and why they cannot take others."""
    peer = (pair.rank + 1) % pair.size
    if not on_device:
        return {"host": (pair, by(pair, peer, library))}, {}
    found: Contenders = {"naive": (pair, naive(pair, peer, library))}
    refused = {}
    for setting in [*PATHS, "auto"]:
        with_it = pair.dup(name=setting, gpu=setting)
        swap = by(with_it, peer, library)
        refused[setting] = refusal(with_it, swap, library, nbytes) if setting in PATHS else ""
        if not refused[setting]:
            found[setting] = with_it, swap
    return found, refused


def measured(
    contenders: Contenders, library: _library.Library, sizes: list[int]
) -> tuple[list[Row], list[str]]:
    """How fast each is; and which messages arrived changed."""
    rows, wrong = [], []
    for name, (comm, swap) in contenders.items():
        peer = (comm.rank + 1) % comm.size
        for nbytes in sizes:
            x = library.there(numbers(comm.rank, nbytes))
            out = library.there(np.full(nbytes // 4, np.nan, np.float32))
            swap(x, out)
            if not np.array_equal(library.here(out), numbers(peer, nbytes)):
                wrong.append(f"{name}: {nbytes} bytes from rank {peer} arrived changed")
            rate = nbytes / seconds(comm, swap, x, out) / 1e9
            rows.append((name, nbytes, rate, "" if name == "naive" else way(comm, peer, out)))
    return rows, wrong


def tell_ways(report: Report, rows: list[Row], refused: dict[str, str]) -> None:
    """How messages went by each path, or why they could not."""
    taken = {name: why for name, _, _, why in rows if why}
    taken |= {name: f"not here: {why}" for name, why in refused.items() if why}
    report.say("".join(f"\n{name}: {why}\n" for name, why in taken.items()).rstrip("\n"), why=taken)


def main(argv: list[str] | None = None) -> int:
    parser = Parser("gpu_demo", "paths of device arrays, and their speed")
    parser.add_argument("--most", type=positive, default=SIZES[-1], help="bytes of the largest message")
    parser.add_picture("--plot", "draw the bandwidths")
    options = parser.parse_args(argv)
    if options.most < SIZES[0]:
        parser.error(f"argument --most: the smallest message has {SIZES[0]} bytes")
    require_picture(parser, options.picture)
    sizes = [size for size in SIZES if size <= options.most]  # short ones are staged, whatever the path
    library, missing = _library.find()
    world = hpcomm.world
    report = Report(world, options.json)
    on_device = any(world.mpi.allgather(library.on_device))
    pair = Communicator(MPI.COMM_WORLD.Split(0 if world.rank < 2 else 1), name="pair")
    rows: list[Row] = []
    wrong: list[str] = []
    refused: dict[str, str] = {}
    if world.rank < 2:
        found, refused = contenders(pair, library, on_device, sizes[-1])
        rows, wrong = measured(found, library, sizes)
    sleep_until_all(world)
    if world.rank == 0:
        pair_of = f"{library.name} arrays between ranks 0 and {min(1, world.size - 1)} of {world.size}"
        report.say("\n".join([pair_of, *(f"no GPU is used: {what}" for what in missing), ""]), no_gpu=missing)
        rates = [row[:3] for row in rows]
        report.table("paths", {"path": "", "bytes": "", "GB/s each way": ".3f"}, rates)
        tell_ways(report, rows, refused)
        if options.picture:
            draw_bandwidths(rates, options.picture)
            report.say(f"\ndrawn: {options.picture}", picture=options.picture)
    return report.verdict(wrong, "\nEvery message arrived as it was sent.")


if __name__ == "__main__":
    sys.exit(main())
