"""Writing and reading a field against raw MPI-IO of the same bytes: 2 ranks.

    hpcomm run -n 2 python benchmarks/io.py [--save] [--folder FOLDER] [--mebibytes 256]

By hand: File.Open, Write_at_all or Read_at_all of each rank's rows, Close, and for blocks a file view of a
subarray and Write_all. Neither side waits for the disk (no sync), and both write a fresh file each time.
The checkpoint adds checksums, a manifest and a sync, and is listed with what it writes per second.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from measure import alternate, machine, median, ratio, save
from mpi4py import MPI

from hpcomm import Field, Partition, checkpoint, io
from hpcomm import world as comm


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--save", action="store_true", help="keep the table under benchmarks/results")
    parser.add_argument("--folder", help="where to write; default: a temporary folder")
    parser.add_argument("--mebibytes", type=int, default=128, help="of the whole field")
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    if comm.size != 2:
        sys.exit("this benchmark compares two ranks: hpcomm run -n 2 python benchmarks/io.py")
    folder = Path(comm.broadcast_object(tempfile.mkdtemp(dir=options.folder)))
    n = int((options.mebibytes << 20) / 8 / 4096)
    head = f"{'':>24} {'raw, ms':>10} {'hpcomm, ms':>12} {'hpcomm, GB/s':>14} {'speed to raw':>14}"
    text = [f"{options.mebibytes} MiB of float64 (median of {options.rounds} alternated rounds)", head]
    say("\n".join([machine(), *text]))
    rows = []
    for split in (("p", None), (None, "p")):
        field = Field(comm, Partition((n, 4096), {"p": 2}, split))
        field.inner[...] = 1.0
        name = "rows" if split[0] else "columns"
        for deed in ("write", "read"):
            pair = {"raw": raw(field, folder / "raw", deed), "hpcomm": ours(field, folder / "x.npy", deed)}
            times = alternate(pair, options.rounds, span=0)
            row = report(f"{deed} {name}", times, n * 4096 * 8)
            text.append(row.pop("line"))
            rows.append(row)
    times = alternate({"hpcomm": lambda: checkpoint.save(folder / "c", [named(field)], 1, keep=1)}, 3, span=0)
    took = median(times["hpcomm"])
    text.append(f"{'checkpoint':>24} {'':>10} {took / 1e3:>12.1f} {n * 4096 * 8 / took / 1e3:>14.2f}")
    say(text[-1])
    comm.barrier()
    if comm.rank == 0:
        shutil.rmtree(folder)
        if options.save:
            library = "mpich" if "MPICH" in MPI.Get_library_version() else "openmpi"
            save(f"io_{library}", "\n".join(text), rows)


def say(text: str) -> None:
    if comm.rank == 0:
        print(text, flush=True)


def report(label: str, times: dict[str, list[float]], nbytes: int) -> dict[str, Any]:
    row = {"deed": label, "raw_ms": median(times["raw"]) / 1e3, "hpcomm_ms": median(times["hpcomm"]) / 1e3}
    row["speed"] = round(ratio(times["raw"], times["hpcomm"]), 3)
    rate = nbytes / median(times["hpcomm"]) / 1e3
    line = f"{label:>24} {row['raw_ms']:>10.1f} {row['hpcomm_ms']:>12.1f} {rate:>14.2f} {row['speed']:>14.2f}"
    say(line)
    return row | {"line": line}


def named(field: Field) -> Field:
    field.name = "x"
    return field


def ours(field: Field, path: Path, deed: str) -> Callable[[], Any]:
    if deed == "write":
        return lambda: io.save(field, path)
    return lambda: io.read_into(field, path)


def raw(field: Field, path: Path, deed: str) -> Callable[[], None]:
    """As one writes it by hand, into a fresh file."""
    assert field.box is not None
    data = np.ascontiguousarray(field.inner)
    rows = field.box.shape[1] == field.shape[1]
    box = field.box
    kind = MPI.DOUBLE.Create_subarray(list(field.shape), list(box.shape), list(box.start)).Commit()
    begin = field.box.start[0] * field.shape[1] * 8

    def act() -> None:
        writing = deed == "write"
        if writing and comm.rank == 0:
            path.unlink(missing_ok=True)
        if writing:
            comm.mpi.Barrier()
        mode = MPI.MODE_WRONLY | MPI.MODE_CREATE if writing else MPI.MODE_RDONLY
        file = MPI.File.Open(comm.mpi, str(path), mode)
        target = data if writing else np.empty_like(data)
        if rows:
            (file.Write_at_all if writing else file.Read_at_all)(begin, target)
        else:
            file.Set_view(0, MPI.DOUBLE, kind)
            (file.Write_all if writing else file.Read_all)(target)
        file.Close()

    return act


if __name__ == "__main__":
    main()
