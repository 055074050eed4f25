"""Is `algorithm="tuned"` ever slower than the MPI library's default? Tunes, then compares anew.

    python benchmarks/tuned.py        # 2 ranks; the MPI of this Python

Writes benchmarks/results/tuned_<mpi>.{json,txt}: per operation and size, also sizes that were not tuned for,
us, medians of rounds that alternate between both. Then what a schedule of hpcomm takes for 8 bytes, beside
the default.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
VERBS = ("all_reduce", "broadcast", "all_gather", "reduce_scatter")
TUNED, CHECKED = "8,8k,64k,1M", (8, 512, 8 << 10, 64 << 10, 256 << 10, 1 << 20)
ROUNDS, OWN = 31, "recursive_doubling"


def measure(out: str) -> None:
    """On every rank: default and tuned by turns."""
    import hpcomm
    from hpcomm.tools import tune
    from hpcomm.transport import mpi_control_variables
    from hpcomm.transport.scheduled import comm_cache

    comm, rows = hpcomm.world, []
    for verb in VERBS:
        for nbytes in CHECKED:
            arrays = tune._arrays(comm, verb, nbytes)
            calls = {name: tune._call(comm, verb, name, *arrays) for name in ("", "tuned")}
            seconds = tune._in_turns(comm, calls, list(calls), ROUNDS)
            choice = comm_cache.own(comm.context).choices(verb).name(nbytes) or "default"
            row = {"verb": verb, "bytes": nbytes, "choice": choice}
            rows.append(row | {"default": seconds[""], "tuned": seconds["tuned"]})
    arrays = tune._arrays(comm, "all_reduce", 8)
    calls = {name: tune._call(comm, "all_reduce", name, *arrays) for name in ("", OWN)}
    plain = comm.dup()
    plain.context.node = None  # so that MPI's own function is called
    plain.context.go_direct()
    calls["mpi"] = tune._call(plain, "all_reduce", "", *arrays)
    own = tune._in_turns(comm, calls, list(calls), ROUNDS)
    if comm.rank == 0:
        Path(out).write_text(
            json.dumps({"mpi": mpi_control_variables.vendor(), "ranks": comm.size, "rows": rows, "own": own})
        )


def table(found: dict) -> str:
    lines = [f"{found['mpi']}, {found['ranks']} ranks, us, medians of {ROUNDS}", ""]
    lines.append(f"{'operation':16s}{'bytes':>9s}{'default':>10s}{'tuned':>10s}{'ratio':>7s}  choice")
    for row in found["rows"]:
        default, tuned = row["default"] * 1e6, row["tuned"] * 1e6
        line = f"{row['verb']:16s}{row['bytes']:9d}{default:10.1f}{tuned:10.1f}{tuned / default:7.2f}"
        lines.append(f"{line}  {row['choice']}")
    own, mpi, default = (found["own"][name] * 1e6 for name in (OWN, "mpi", ""))
    lines += [
        "",
        f"all_reduce of 8 bytes by {OWN} {own:.1f}, by MPI's own choice {mpi:.1f}: +{own - mpi:.1f}",
    ]
    lines[-1] += f"; hpcomm's default {default:.1f} (hpcomm/node/_native)"
    return "\n".join(lines)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        kept, out = Path(folder) / "table.json", Path(folder) / "out.json"
        os.environ.update(HPCOMM_TUNED=str(kept), PYTHONPATH=str(ROOT))
        hpcomm = [sys.executable, "-m", "hpcomm"]
        words = ["tune", "--ranks", "2", "--verb", ",".join(VERBS), "--bytes", TUNED, "--no-model"]
        subprocess.run([*hpcomm, *words], check=True, timeout=300)
        job = ["run", "-n", "2", "python", str(Path(__file__).resolve()), "--rank", str(out)]
        subprocess.run([*hpcomm, *job], check=True, timeout=200)
        found = json.loads(out.read_text())
    print(text := table(found))
    path = ROOT / "benchmarks/results" / f"tuned_{found['mpi']}"
    path.with_suffix(".txt").write_text(text + "\n")
    path.with_suffix(".json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--rank"]:
        measure(sys.argv[2])
    else:
        argparse.ArgumentParser(description=__doc__).parse_args()  # it takes no other words than --help
        main()
