"""Writing and reading a field against raw MPI-IO of the same bytes: 2 ranks.

    hpcomm run -n 2 python benchmarks/io.py [--save] [--folder FOLDER] [--mebibytes 256]

By hand: File.Open, Write_at_all or Read_at_all of each rank's rows, Close. For blocks: a file view of a
subarray, and Write_all. The data begins behind a header as long as that of a .npy file. Neither side waits
for the disk (no
sync). "read": into a field that is there, and stays as it was if that fails. "load": into a new one. By hand
both read into new memory. "write": where no file is. "replace": over an older file, by hand too under
another name and renamed. ext4 then writes the data to the disk at once, which takes longer than writing to
memory.
The checkpoint adds checksums, a manifest and a sync, and is listed with what it writes per second.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from measure import alternate, library, machine, median, need_two_ranks, ratio, save, say
from mpi4py import MPI

from hpcomm import Field, Partition, checkpoint, io
from hpcomm import world as comm

HEADER = 128  # bytes before the numbers of a .npy file


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--save", action="store_true", help="keep the table under benchmarks/results")
    parser.add_argument("--folder", help="where to write; default: a temporary folder")
    parser.add_argument("--mebibytes", type=int, default=128, help="of the whole field")
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    need_two_ranks("io")
    folder = Path(comm.broadcast_object(comm.rank or tempfile.mkdtemp(dir=options.folder)))
    n = int((options.mebibytes << 20) / 8 / 4096)
    head = f"{'':>24} {'raw, ms':>10} {'hpcomm, ms':>12} {'hpcomm, GB/s':>14} {'speed to raw':>14}"
    text = [f"{options.mebibytes} MiB of float64 (median of {options.rounds} alternated rounds)", head]
    say("\n".join([machine(), *text]))
    rows = []
    for split in (("p", None), (None, "p")):
        field = Field(comm, Partition((n, 4096), {"p": 2}, split))
        field.inner[...] = 1.0
        name = "rows" if split[0] else "columns"
        for deed in ("write", "replace", "read", "load"):
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
            save(f"io_{library()}", "\n".join(text), rows)


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
    def act() -> None:
        if deed == "write":
            gone(path)
        if deed == "read":
            io.read_into(field, path)
        elif deed == "load":
            io.load(path, comm, field.partition)
        else:
            io.save(field, path)

    return act


def gone(path: Path) -> None:
    if comm.rank == 0:
        path.unlink(missing_ok=True)
    comm.mpi.Barrier()


def raw(field: Field, path: Path, deed: str) -> Callable[[], None]:
    """As one writes it by hand."""
    assert field.box is not None
    data = np.ascontiguousarray(field.inner)
    rows = field.box.shape[1] == field.shape[1]
    box = field.box
    kind = MPI.DOUBLE.Create_subarray(list(field.shape), list(box.shape), list(box.start)).Commit()
    begin = HEADER + field.box.start[0] * field.shape[1] * 8
    beside = path.with_suffix(".part")

    def act() -> None:
        writing = deed not in ("read", "load")
        if deed == "write":
            gone(path)
        mode = MPI.MODE_WRONLY | MPI.MODE_CREATE if writing else MPI.MODE_RDONLY
        file = MPI.File.Open(comm.mpi, str(beside if deed == "replace" else path), mode)
        target = data if writing else np.empty_like(data)
        if rows:
            (file.Write_at_all if writing else file.Read_at_all)(begin, target)
        else:
            file.Set_view(HEADER, MPI.DOUBLE, kind)
            (file.Write_all if writing else file.Read_all)(target)
        file.Close()
        if deed == "replace":
            if comm.rank == 0:
                beside.replace(path)
            comm.mpi.Barrier()

    return act


if __name__ == "__main__":
    main()
