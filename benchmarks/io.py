"""Writing and reading a field against raw MPI-IO of the same bytes: 2 ranks.

    hpcomm run -n 2 python benchmarks/io.py [--save] [--folder FOLDER] [--mebibytes 256]

By hand: File.Open, Write_at_all or Read_at_all of each rank's rows, Close. For blocks: a file view of a
subarray, and Write_all. The data begins behind a header as long as that of a .npy file. Neither side waits
for the disk (no
sync). "read": into a field that is there, and stays as it was if that fails. "load": into a new one. By hand
both read into new memory. "write": where no file is. "replace": over an older file, by hand too under
another name and renamed. ext4 then writes the data to the disk at once, which takes longer than writing to
memory.
HDF5 and zarr in chunks: by hand rank 0 has the whole and writes it alone by h5py; in zarr each rank writes
its rows. Each rank reads its rows by either library.
The checkpoint adds checksums, a manifest and a sync, and is listed with what it writes per second. By hand
np.fromfile reads each rank's rows.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import zarr
from measure import alternate, library, machine, median, need_two_ranks, ratio, save, say
from mpi4py import MPI

from hpcomm import Field, Partition, checkpoint, hdf5, io
from hpcomm import world as comm
from hpcomm import zarr as zarrs

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
    field = named(Field(comm, Partition((n, 4096), {"p": 2}, ("p", None))))
    field.inner[...] = 1.0
    for name, pair in in_chunks(field, folder):
        row = report(name, alternate(pair, options.rounds, span=0), n * 4096 * 8)
        text.append(row.pop("line"))
        rows.append(row)
    times = alternate({"hpcomm": lambda: checkpoint.save(folder / "c", [field], 1, keep=1)}, 3, span=0)
    took = median(times["hpcomm"])
    text.append(f"{'checkpoint':>24} {'':>10} {took / 1e3:>12.1f} {n * 4096 * 8 / took / 1e3:>14.2f}")
    say(text[-1])
    pair = {
        "raw": lambda: np.fromfile(folder / "x.npy", count=n * 2048, offset=HEADER + comm.rank * n * 2048 * 8)
    }
    pair["hpcomm"] = lambda: checkpoint.load(folder / "c", [field])
    rows.append(report("load checkpoint", alternate(pair, options.rounds, span=0), n * 4096 * 8))
    text.append(rows[-1].pop("line"))
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


Pair = dict[str, Callable[[], Any]]


def in_chunks(field: Field, folder: Path) -> Iterator[tuple[str, Pair]]:
    """Chunks of rows, and squares; in HDF5, and in zarr."""
    n, rows = field.shape[0], slice(field.box.start[0], field.box.start[0] + field.box.shape[0])  # type: ignore[union-attr]
    whole = np.ones(field.shape)

    def alone(chunks: tuple[int, int]) -> None:
        if comm.rank == 0:
            with h5py.File(folder / "raw.h5", "w") as file:
                file.create_dataset("x", data=whole, chunks=chunks)
        comm.mpi.Barrier()

    def by_h5py() -> Any:
        with h5py.File(folder / "x.h5") as file:
            return file["x"][rows]

    for chunks, name in (((n // 8, 4096), "rows"), ((256, 256), "squares")):
        yield (
            f"HDF5, {name}",
            {
                "raw": partial(alone, chunks),
                "hpcomm": partial(hdf5.save, field, folder / "x.h5", chunks=chunks),
            },
        )
        load = partial(hdf5.load, folder / "x.h5", comm, whole=field.partition)
        yield f"load HDF5, {name}", {"raw": by_h5py, "hpcomm": load}
    chunks = n // 8, 4096

    def rows_of_zarr() -> None:
        gone(folder / "raw.zarr")
        if comm.rank == 0:
            zarr.create_array(folder / "raw.zarr", shape=field.shape, chunks=chunks, dtype="f8")
        comm.mpi.Barrier()
        zarr.open_array(folder / "raw.zarr", mode="r+")[rows] = field.inner
        comm.mpi.Barrier()

    yield (
        "zarr, rows",
        {"raw": rows_of_zarr, "hpcomm": partial(zarrs.save, field, folder / "x.zarr", chunks=chunks)},
    )
    yield (
        "load zarr, rows",
        {
            "raw": lambda: zarr.open_array(folder / "raw.zarr", mode="r")[rows],
            "hpcomm": partial(zarrs.load, folder / "x.zarr", comm, whole=field.partition),
        },
    )


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
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
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
