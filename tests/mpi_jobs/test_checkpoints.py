"""Checkpoints in jobs of their own: ranks that die while saving, a disk that is full, files past 2 GiB."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

SAVE = """
import os, signal, sys
import numpy as np
from hpcomm import Field, checkpoint, world as comm
folder, how = sys.argv[1], sys.argv[2]
field = Field(comm, (300, 500), name="T")
for step in (1, 2, 3):
    field.inner[...] = step + field.indices[0]
    if step == 3 and how != "well":
        victim = comm.size - 1 if how != "publish" else 0
        from hpcomm.fields.files import checkpoints, npy
        place, name = {"data": (npy, "move"), "manifest": (checkpoints, "_entry"),
                       "publish": (checkpoints, "_publish")}[how]
        real = getattr(place, name)
        def die(*args, **options):
            if comm.rank == victim:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*args, **options)
        setattr(place, name, die)
    checkpoint.save(folder, [field], step)
"""

LOAD = """
import sys
import numpy as np
from hpcomm import Field, checkpoint, world as comm
field = Field(comm.mesh(y=1, x=-1), (300, 500), name="T")
found = checkpoint.load(sys.argv[1], [field])
assert (field.inner == found.step + field.indices[0]).all()
if comm.rank == 0:
    print("loaded step", found.step)
checkpoint.save(sys.argv[1], [field], 9)
"""


@pytest.mark.once
@pytest.mark.parametrize("how", ["data", "manifest", "publish"])
def test_a_rank_killed_while_saving_leaves_the_last_good_checkpoint(
    how: str, job: Any, tmp_path: Path
) -> None:
    (tmp_path / "save.py").write_text(SAVE)
    (tmp_path / "load.py").write_text(LOAD)
    folder = tmp_path / "cp"
    job(3, ["python", str(tmp_path / "save.py"), str(folder), how], expect=None, timeout=60)
    names = {path.name for path in folder.iterdir() if path.name.startswith("step")}
    assert names == {"step-00000001", "step-00000002"}
    done = job(2, ["python", str(tmp_path / "load.py"), str(folder)])
    assert "loaded step 2" in done.stdout
    left = {path.name for path in folder.iterdir()}
    assert left == {*names, "step-00000009"}, "what the dead job had begun is cleared away"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MiB, where this user may mount one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)], capture_output=True, check=False
    )
    if made.returncode:
        pytest.skip("only root may mount a small file system")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


FULL = """
import importlib, os, shutil, sys
from importlib.util import find_spec
import numpy as np
import hpcomm
from hpcomm import Field, checkpoint, world as comm
small, large = Field(comm, (100, 100), name="T"), Field(comm, (600, 600), name="T")
small.inner[...] = 7
checkpoint.save(sys.argv[1], [small], 1)
for collective in (True, False):
    try:
        hpcomm.io.save(large, sys.argv[1] + "/T.npy", collective=collective)
    except hpcomm.TransportError as error:
        told = str(error)
    else:
        raise SystemExit("a full disk went unnoticed")
try:
    checkpoint.save(sys.argv[1], [large], 2)
except hpcomm.TransportError as error:
    if comm.rank == comm.size - 1:
        print(error)
small.inner[...] = 0
assert checkpoint.load(sys.argv[1], [small]).step == 1
assert (small.inner == 7).all()
large.inner[...] = np.random.default_rng(comm.rank).random(large.inner.shape)  # not compressible
hdf5 = {"chunks": (50, 600), "compression": "gzip"}
for kind, options in (("hdf5", {}), ("hdf5", hdf5), ("hdf5", hdf5 | {"compression": None}), ("zarr", {})):
    if find_spec("h5py" if kind == "hdf5" else "zarr") is None:
        continue
    module, path = importlib.import_module(f"hpcomm.{kind}"), sys.argv[1] + f"/T.{kind}"
    module.save(small, path)
    try:
        module.save(large, path, **options)
    except hpcomm.TransportError as error:
        assert f"save of {path} failed on rank" in str(error), error
    else:
        raise SystemExit("a full disk went unnoticed")
    small.inner[...] = 0
    module.read_into(small, path)
    assert (small.inner == 7).all()
    comm.barrier()
    if comm.rank == 0:
        os.remove(path) if kind == "hdf5" else shutil.rmtree(path)
    comm.barrier()
"""


@pytest.mark.once
def test_a_full_disk_is_said_on_every_rank_and_the_last_checkpoint_stays(job: Any, small_disk: Path) -> None:
    done = job(3, "import hpcomm.io\n" + FULL.replace("sys.argv[1]", repr(str(small_disk))))
    assert "save of" in done.stdout
    assert "failed on rank" in done.stdout
    assert sorted(path.name for path in small_disk.iterdir()) == ["step-00000001"]


PAST_2_GIB = """
import numpy as np
from hpcomm import Field, io, world as comm
path, n = PATH, 4096
held = 2**31 // n
if comm.rank == 0:  # a hole, which takes no room: touching two GiB for the first time takes seconds
    np.lib.format.open_memmap(path, "w+", np.int8, (held, n), version=(2, 0))
comm.barrier()
field = Field(comm, (n,), dtype="int8")
for step in range(2):
    field.inner[...] = 1 + comm.rank + step
    io.append(field, path)
back = Field(comm, (2, n), dtype="int8")
io.read_raw(back, path, offset=2**31 - n + 128)  # its first row in the hole
if comm.rank == 0:
    whole = np.load(path, mmap_mode="r")
    assert whole.shape == (held + 2, n) and not whole[held - 1].any()
    assert [*np.unique(whole[held:], axis=1).T.tolist()] == [[1, 2], [2, 3]]
assert (back.all_gather() == np.repeat([[0, 0], [1, 2]], n // 2, axis=1)).all()
print("past 2 GiB")
"""


@pytest.mark.once
def test_files_past_two_gibibytes(job: Any, tmp_path: Path) -> None:
    """Longer messages to MPI-IO, in pieces: tests/mpi/test_io.py."""
    done = job(2, PAST_2_GIB.replace("PATH", repr(str(tmp_path / "large.npy"))))
    assert done.stdout.count("past 2 GiB") == 2


@pytest.mark.once
def test_numpy_is_all_that_is_needed_to_read(job: Any, tmp_path: Path) -> None:
    job(
        3,
        f"from hpcomm import Field, io, world as c\nf = Field(c, (5, 4)); f.inner[...] = f.indices[0]\n"
        f"io.save(f, {str(tmp_path / 'x.npy')!r})",
    )
    assert (np.load(tmp_path / "x.npy") == np.arange(5)[:, None]).all()


EVERY_FORMAT = """
import sys
import numpy as np
from hpcomm import Field, TransportError, checkpoint, hdf5, io, zarr
from hpcomm import world as comm

u, folder = Field(comm, (2_000_000,), name="u"), sys.argv[1]
row, rows = Field(comm, (100_000,), name="row"), folder + "/rows.npy"  # two of them find room
row.inner[...] = 7
hdf5.save(Field(comm, (5,), name="few"), folder + "/there.h5")
for save in (
    lambda: io.save(u, folder + "/x.npy"),
    lambda: io.save(u, folder + "/x.npy", collective=False),
    lambda: [io.append(row, rows) for _ in range(3)],
    lambda: io.write_raw(u, folder + "/x.raw", 8),
    lambda: checkpoint.save(folder + "/cp", u),
    lambda: hdf5.save(u, folder + "/x.h5"),
    lambda: hdf5.save(u, folder + "/x.h5", chunks=True),
    lambda: hdf5.save(u, folder + "/there.h5", mode="a"),
    lambda: zarr.save(u, folder + "/x.zarr", compressors=None),
):
    try:
        save()
    except TransportError as error:
        print("refused", "No space left on device" in str(error), flush=True)
assert (np.load(rows) == np.full((2, 100_000), 7)).all()
"""


def test_a_full_disk_is_an_error_on_every_rank_whatever_is_saved(job: Any, small_disk: Path) -> None:
    """Where writes of all ranks fail, Open MPI hangs on 3 ranks: the space is reserved before."""
    pytest.importorskip("h5py")
    pytest.importorskip("zarr")
    done = job(3, EVERY_FORMAT.replace("sys.argv[1]", repr(str(small_disk))))
    assert done.stdout.count("refused True") == 3 * 9, done.stdout
