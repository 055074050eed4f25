"""`hpcomm sim --fit`: calibrates the simulator on this machine by a ping-pong of 2 ranks.

`hpcomm sim --fit here.json` starts three jobs: one to measure, two to compare predictions with what ranks
and sizes that were not measured take. The times of messages are those of the ping-pong, with straight lines
between them, since eager and announced messages do not lie on one. What a round costs beyond its message is
the difference between two rounds and one; reducing and copying are measured in memory of one rank.

Ranks that share cores are predicted to take turns and to lose nothing; what they lose in fact depends on how
the MPI library waits, and is stated apart.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

from .._lazy import MPI, np
from ..communicator.communicator import Communicator
from ..errors import ConfigError
from ..job.command_line import check_file, table
from ..job.cores import usable_cores
from ..schedule.cost.machine_model import machine
from ..schedule.cost.simulator import predict

FITTED = (8, *(k << 10 for k in (1, 4, 8, 32, 128, 512, 1024, 4096)))  # bytes of the ping-pong
CHECKED = (512, 16 << 10, 256 << 10, 2 << 20)  # bytes on which nothing was fitted
ALGORITHMS = ("ring", "recursive_doubling", "double_tree")
LIMIT_S = 120
_JOB = """
import json, hpcomm
from hpcomm.tools import {}
found = {}(*{!r})
if hpcomm.world.rank == 0:
    with open({!r}, "w") as out:
        json.dump(found, out)
"""


def report(path: str, as_json: bool = False) -> int:
    """Measure, write the machine to path, print its errors; returns the exit status."""
    check_file(Path(path))
    points = job(2, "fit.pingpong", limit_s=LIMIT_S)
    on = fitted(points)
    Path(path).write_text(json.dumps(on, indent=1) + "\n")
    here = machine(path)
    rows = [row for ranks in (2, 3) for row in job(ranks, "fit.collectives", limit_s=LIMIT_S)]
    for row in rows:
        found = predict("all_reduce", row["algorithm"], row["ranks"], row["bytes"], here)
        row["predicted"] = found.seconds
        row["error"] = found.seconds / row["seconds"] - 1
    if as_json:
        print(json.dumps({"machine": on, "points": points, "checked": rows}, indent=1))
        return 0
    print(f"{path}: overhead + latency {(on['latency'][0] + 2 * on['overhead']) * 1e6:.2f} us,")
    print(f"  {1e-9 / on['per_byte'][0]:.2f} GB/s, reduce {1e-9 / on['reduce_per_byte']:.2f} GB/s\n")
    header = ("algorithm", "ranks", "bytes", "measured us", "predicted us", "error")
    cells = [
        (*(row[key] for key in header[:3]), *(f"{row[key] * 1e6:.1f}" for key in ("seconds", "predicted")),
         f"{row['error']:+.0%}")
        for row in rows
    ]  # fmt: skip
    print(table(header, cells, rule=False))
    print("\nmedian error on sizes and ranks it was not fitted to:")
    for ranks in dict.fromkeys(row["ranks"] for row in rows):
        off = sorted(abs(row["error"]) for row in rows if row["ranks"] == ranks)
        how = "a core each" if ranks <= on["cores"] else f"sharing {on['cores']} cores"
        print(f"  {ranks} ranks, {how}: {off[len(off) // 2]:.0%}, largest {off[-1]:.0%}")
    return 0


def fitted(points: list[dict[str, Any]]) -> dict[str, Any]:
    """A machine from (bytes, seconds) of one way of a ping-pong, and what else pingpong() measured."""
    first, before, last = points[0], points[-2], points[-1]
    start = max(first["seconds"], first["two_rounds"] - first["one_round"])
    share = start / 4  # what of it is overhead at each end cannot be seen in a ping-pong
    slope = (last["seconds"] - before["seconds"]) / (last["bytes"] - before["bytes"])
    return {
        "name": "here",
        "about": "fitted to a ping-pong of 2 ranks on this machine",
        "overhead": share,
        "latency": [2 * share] * 3,
        "per_byte": [max(slope, 1e-13)] * 3,
        "curve": [[point["bytes"], max(0.0, point["seconds"] - first["seconds"])] for point in points],
        "reduce_per_byte": first["reduce"],
        "copy_per_byte": first["copy"],
        "cores": usable_cores(),
        "base": max(0.0, first["one_round"] - start),
        "sources": {
            "curve, per_byte": "hpcomm sim --fit: a ping-pong; per_byte between its last two sizes",
            "overhead, latency": "hpcomm sim --fit: one round more of an all_reduce of 8 bytes on 2 ranks",
            "base": "hpcomm sim --fit: an all_reduce of 8 bytes on 2 ranks, less its round",
            "reduce_per_byte, copy_per_byte": "hpcomm sim --fit: numpy on arrays of 256 KiB",
        },
    }


def job(ranks: int, function: str, *arguments: object, limit_s: int) -> Any:
    """What a job of so many ranks finds.

    Args:
        function: `fit.pingpong`: of a module of this folder; all ranks call it with arguments. What it finds
            on rank 0 counts, and can be said in JSON.
    """
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "found.json"
        code = _JOB.format(function.partition(".")[0], function, arguments, str(out))
        command = [sys.executable, "-m", "hpcomm", "run", "-n", str(ranks), "--timeout", str(limit_s)]
        done = subprocess.run(
            [*command, "python", "-c", code], capture_output=True, text=True, check=False, timeout=2 * limit_s
        )
        if done.returncode or not out.exists():
            raise ConfigError(f"the job of {ranks} ranks failed: {done.stderr[-800:]}", hint="hpcomm doctor")
        return json.loads(out.read_text())


def pingpong() -> list[dict[str, Any]]:
    """On 2 ranks: one way of a message, by size, and the time to reduce one byte of float64."""
    import hpcomm

    comm, rows = hpcomm.world, []
    mpi = comm.context.mpi_handle
    for nbytes in FITTED:
        x = np.zeros(nbytes, np.uint8)
        there, back = mpi.Send_init(x, 1 - comm.rank), mpi.Recv_init(x, 1 - comm.rank)
        turns = (there, back) if comm.rank == 0 else (back, there)
        rows.append({"bytes": nbytes, "seconds": _median(comm, partial(_take_turns, turns)) / 2})
    a, b, c = np.ones((3, 1 << 15))

    def copy() -> None:
        b[:] = a
        c[:] = b

    extra = {
        "reduce": _median(comm, lambda: np.add(a, b, out=a)) / a.nbytes,
        "copy": _median(comm, copy) / a.nbytes,
    }
    two = np.ones(2)
    for name, algorithm in (("one_round", "recursive_doubling"), ("two_rounds", "ring")):
        extra[name] = _median(comm, partial(comm.all_reduce, two, out=two, algorithm=algorithm))
    return [row | extra for row in rows]


def _take_turns(requests: Iterable[MPI.Prequest]) -> None:
    """As the executor does it: persistent requests."""
    for request in requests:
        request.Start()
        request.Wait()


def collectives() -> list[dict[str, Any]]:
    """On any ranks: own schedules at sizes on which nothing was fitted."""
    import hpcomm

    comm, rows = hpcomm.world, []
    for nbytes in CHECKED:
        for name in ALGORITHMS:
            x, out = np.ones(nbytes // 8), np.empty(nbytes // 8)
            call = partial(comm.all_reduce, x, out=out, algorithm=name)
            row = {"algorithm": name, "ranks": comm.size, "bytes": nbytes}
            rows.append({**row, "seconds": _median(comm, call)})
    return rows


def seconds_of(comm: Communicator, call: Callable[[], object], repeats: int) -> float:
    """Seconds of one call, the slowest rank's, when it is made that often."""
    comm.context.mpi_handle.Barrier()
    begin = time.perf_counter()
    for _ in range(repeats):
        call()
    return float(comm.context.mpi_handle.allreduce((time.perf_counter() - begin) / repeats, MPI.MAX))


def _median(comm: Communicator, call: Callable[[], object], rounds: int = 15) -> float:
    """Seconds of one call, the slowest rank's, the median of several rounds."""
    call()
    repeats = max(1, min(200, int(2e-3 / max(seconds_of(comm, call, 1), 1e-7))))
    return sorted(seconds_of(comm, call, repeats) for _ in range(rounds))[rounds // 2]
