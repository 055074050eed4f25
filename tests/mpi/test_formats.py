"""Fields in HDF5 files and zarr stores: readable by h5py and zarr alone, from any ranks to any others."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mpi4py import MPI
from test_fields import DTYPES, dtype_of, filled, fits, partitions, plain, steady, values
from test_io import folder, small_files

import hpcomm
from hpcomm import Field, Partition, Points, checkpoint, hdf5, io, zarr
from hpcomm.fields.own_part import from_host, on_host

pytestmark = [pytest.mark.few, pytest.mark.three, pytest.mark.once]

__all__ = ["folder"]  # the fixture
Together = Callable[[object, Callable[[], None]], None]
MODULES = {"hdf5": hdf5, "zarr": zarr}
LIBRARIES = {"hdf5": "h5py", "zarr": "zarr"}
KINDS = ["hdf5", "hdf5 in chunks", "zarr"]
WORLD = MPI.COMM_WORLD


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    name = LIBRARIES[request.param.split()[0]]
    pytest.importorskip(name, reason=f"{name} is not installed")
    return request.param


def save(kind: str, fields: Any, path: Path, chunks: Any = True) -> None:
    if kind == "hdf5":
        hdf5.save(fields, path)
    elif kind == "zarr":
        zarr.save(fields, path, chunks=chunks)
    else:
        hdf5.save(fields, path, chunks=chunks, compression="gzip")


def alone(kind: str, path: Path, name: str) -> np.ndarray:
    """The whole as the library by itself reads it."""
    if kind == "zarr":
        import zarr as library

        return np.asarray(library.open(path, mode="r")[name][...])
    import h5py

    with h5py.File(path, "r") as file:
        return np.asarray(file[name][...])


@settings(steady, max_examples=10)
@given(st.data())
@pytest.mark.timeout(60)
def test_what_some_ranks_save_others_load(
    comm: Any, together: Together, folder: Path, kind: str, data: Any
) -> None:
    source = fits(comm, data.draw(partitions(partial=False)))
    target = fits(comm, data.draw(partitions(source.shape, partial=False)))
    dtype = data.draw(st.sampled_from(DTYPES))
    chunks = data.draw(st.one_of(st.just(True), st.just([2] * source.ndim)))

    def body() -> None:
        path = folder / "x"
        whole = values(source.shape, dtype)
        writers = comm.split(0 if comm.rank < source.size else 1)
        if comm.rank < source.size:
            save(kind, filled(writers, source, dtype, halo=1, name="T", unit="K"), path, chunks)
        comm.barrier()
        if dtype != "torch.bfloat16" and comm.rank == 0:
            assert alone(kind, path, "T").shape == whole.shape
            assert (alone(kind, path, "T") == whole).all()
        readers = comm.split(0 if comm.rank < target.size else 1)
        if comm.rank < target.size:
            field = Field(readers, target, dtype=dtype_of(dtype), halo=2, name="T")
            MODULES[kind.split()[0]].read_into(field, path)
            assert (plain(field.inner) == whole[field.box.slices()]).all()
        comm.barrier()
        writers.close()
        readers.close()

    together((source, target, dtype, chunks), body)


def test_several_fields_and_points_share_a_file(comm: Any, folder: Path, kind: str) -> None:
    order = np.random.default_rng(0).permutation(11)
    points = Points((11, 2), [order[r :: comm.size] for r in range(comm.size)])
    fields = [
        filled(comm, points, "float32", name="p"),
        filled(comm, Partition((5, 4), {"x": comm.size}, (None, "x")), "float64", name="T", unit="K"),
        Field(comm, Partition((), {"copy": comm.size}), name="time"),
        filled(comm, Partition((0, 3), {"x": comm.size}), "float64", name="nothing"),
    ]
    fields[2].inner[...] = 1
    path = folder / "all"
    for _ in range(2):  # the second time over the first
        save(kind, fields, path)
    assert [p.name for p in folder.iterdir()] == ["all"]
    module = MODULES[kind.split()[0]]
    if comm.rank == 0:
        for field in fields:
            assert (alone(kind, path, field.name) == values(field.shape, "float64")).all()
    back = module.load(path, comm, "p", points)
    assert (back.inner == fields[0].inner).all()
    field = module.load(path, comm.mesh(y=1, x=-1), "T", halo=1)
    assert (field.all_gather() == values((5, 4), "float64")).all()
    assert (field.name, field.unit, field.dtype) == ("T", "K", np.float64)
    assert module.load(path, comm, "time", Partition((), {"copy": comm.size})).array == 1
    field.inner[...] = -1
    with pytest.raises(hpcomm.TransportError, match=r"rank 0: it holds the .*: name one"):
        module.load(path, comm)
    with pytest.raises(hpcomm.TransportError, match=r"has no .* 'q', but .*T"):
        module.load(path, comm, "q")
    with pytest.raises(hpcomm.LayoutError, match=r"holds shape \(5, 4\), the field has"):
        module.read_into(Field(comm, (4, 5), name="T"), path)
    with pytest.raises(hpcomm.DtypeError, match="holds float64, the field int16"):
        module.read_into(Field(comm, (5, 4), dtype="int16"), path, "T")
    with pytest.raises(hpcomm.TransportError, match=r"No such|unable to"):
        module.load(folder / "elsewhere", comm)
    with pytest.raises(hpcomm.UsageError, match="fields are called"):
        save(kind, [field, field], path)
    if comm.size > 1:
        summands = Partition((4,), {"dp": comm.size}, (None,), partial=["dp"])
        with pytest.raises(hpcomm.LayoutError, match="partial"):
            save(kind, Field(comm, summands, name="s"), path)


def test_a_full_disk_leaves_what_was_there(comm: Any, folder: Path, kind: str) -> None:
    noise = np.random.default_rng(comm.rank)
    field = Field(comm, (64, 64), name="T")
    field.inner[...] = 7
    save(kind, field, folder / "x")
    field.inner[...] = noise.random(field.inner.shape)  # which no compression makes smaller
    comm.barrier()
    with small_files(4000), pytest.raises(hpcomm.TransportError, match=r"save of .* failed on rank \d"):
        save(kind, field, folder / "x")
    comm.barrier()
    assert [p.name for p in folder.iterdir()] == ["x"]
    MODULES[kind.split()[0]].read_into(field, folder / "x")
    assert (field.inner == 7).all()


def test_places_of_small_chunks_find_room_before_anything_is_written(comm: Any, folder: Path) -> None:
    """They take more than the elements. Parallel HDF5 on Open MPI crashes where it finds the disk full."""
    pytest.importorskip("h5py")
    field = Field(comm, (64, 64), name="T")
    with small_files(100_000), pytest.raises(hpcomm.TransportError, match="bytes are needed"):
        hdf5.save(field, folder / "x", chunks=(1, 1))
    comm.barrier()
    assert not any(folder.iterdir())
    hdf5.save(field, folder / "x", chunks=(1, 1))
    hdf5.read_into(field, folder / "x")


def test_a_mode_adds_to_a_file_or_refuses_as_h5py_does(comm: Any, folder: Path) -> None:
    h5py = pytest.importorskip("h5py")
    path = folder / "x.h5"
    one, two, three = (Field(comm, (6, 4), name=name) for name in ("one", "two", "three"))
    for i, field in enumerate((one, two, three)):
        field.inner[...] = i + field.indices[0]
    with pytest.raises(hpcomm.TransportError, match="No such file"):
        hdf5.save(one, path, mode="r+")
    hdf5.save(one, path, mode="a")
    hdf5.save(two, path, mode="r+", chunks=True, compression="gzip")
    hdf5.save(three, path, mode="a", chunks=(2, 4))
    for mode, words in (("a", "it has 'two' already"), ("x", "it is there already"), ("w-", "there already")):
        with pytest.raises(hpcomm.TransportError, match=words):
            hdf5.save([two], path, mode=mode)
    with pytest.raises(hpcomm.UsageError, match="the mode is 'wa'") as told:
        hdf5.save(two, path, mode="wa")
    assert told.value.hint == "one of w, a, r+, x, w-"
    room, more = path.stat().st_size + (1 << 14), Field(comm, (60, 40), name="more")
    comm.barrier()
    with small_files(room), pytest.raises(hpcomm.TransportError, match="save of"):
        hdf5.save(more, path, mode="a")
    comm.barrier()
    assert [p.name for p in folder.iterdir()] == ["x.h5"]
    for i, name in enumerate(("one", "two", "three")):
        found = hdf5.load(path, comm, name)
        assert (found.inner == i + found.indices[0]).all()
    with h5py.File(path, "r") as file:
        assert sorted(file) == ["one", "three", "two"]
    comm.barrier()
    hdf5.save(two, path)
    assert hdf5.load(path, comm).name == "two"


def test_compressed_chunks_are_made_by_all_and_written_as_they_are(comm: Any, folder: Path) -> None:
    """Also where a chunk is at the edge, no filter makes it smaller, and a rank has none."""
    h5py = pytest.importorskip("h5py")
    field = Field(comm, (7, 5), name="T")
    field.inner[...] = values((7, 5), "float64")[field.box.slices()]  # type: ignore[union-attr]
    for chunks in ((3, 2), (7, 5), (1, 1), True):
        hdf5.save([field, Field(comm, (7, 5), name="zeros")], folder / "x", chunks=chunks, compression="gzip")
        with h5py.File(folder / "x", "r") as file:
            assert file["T"].compression == "gzip"
            assert np.array_equal(file["T"][...], values((7, 5), "float64"))
            assert not file["zeros"][...].any()
        comm.barrier()


def cut_file(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@pytest.mark.parametrize("spoil", [cut_file, Path.unlink])
def test_a_damaged_store_is_refused_and_the_field_stays(
    comm: Any, folder: Path, kind: str, spoil: Callable[[Path], Any]
) -> None:
    path = folder / "x"
    field = filled(comm, Partition((6, 4), {"x": comm.size}, (None, "x")), "float64", name="T")
    field.inner[...] = 0 if kind == "zarr" else field.inner  # zarr by itself would leave such chunks away
    save(kind, field, path, chunks=[3, 4])
    if comm.rank == 0:
        spoil(path / "T" / "c" / "1" / "0" if kind == "zarr" else path)
    comm.barrier()
    field.inner[...] = -1
    with pytest.raises(hpcomm.TransportError, match=r"load of .*x failed on rank 0"):
        MODULES[kind.split()[0]].read_into(field, path)
    assert (field.inner == -1).all()


class Killed(BaseException):
    """Nobody cleans up after it, as after a signal."""


def die_at(step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this process be killed at a deed to the file system; in the middle of it, if it takes several."""
    deeds = iter(range(1000))

    def mortal(real: Callable[..., Any]) -> Callable[..., Any]:
        def act(path: Path, *args: Any, **options: Any) -> Any:
            if next(deeds) == step:
                if real is rmtree and (inner := sorted(Path(path).rglob("c*"))):
                    rmtree(inner[0]) if inner[0].is_dir() else inner[0].unlink()
                raise Killed
            return real(path, *args, **options)

        return act

    rmtree = shutil.rmtree
    monkeypatch.setattr(shutil, "rmtree", mortal(rmtree))
    for name in ("mkdir", "rename", "replace", "unlink", "stat"):
        monkeypatch.setattr(Path, name, mortal(getattr(Path, name)))


@pytest.mark.skipif(WORLD.size > 1, reason="a rank by itself")
@pytest.mark.parametrize("name", ["npy", "hdf5", "zarr", "checkpoint"])
def test_who_is_killed_while_saving_leaves_the_old_or_the_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Killed at one step after the other."""
    if name in LIBRARIES:
        pytest.importorskip(LIBRARIES[name], reason=f"{LIBRARIES[name]} is not installed")
    field = Field(hpcomm.self_, (6, 4), name="T")
    path = tmp_path / "x"
    save, load = {
        "npy": (lambda: io.save(field, path), lambda: io.read_into(field, path)),
        "hdf5": (lambda: hdf5.save(field, path), lambda: hdf5.read_into(field, path)),
        "zarr": (lambda: zarr.save(field, path, chunks=(3, 4)), lambda: zarr.read_into(field, path)),
        "checkpoint": (
            lambda: checkpoint.save(path, [field], keep=1, sync=False), lambda: checkpoint.load(path, [field])
        ),
    }[name]  # fmt: skip
    field.inner[...] = 0
    save()
    left = sorted(tmp_path.iterdir())
    for step in range(100):
        field.inner[...] = step + 1
        with monkeypatch.context() as patch:
            die_at(step, patch)
            try:
                save()
            except Killed:
                killed = True
            else:
                killed = False
        field.inner[...] = -1
        load()
        assert (field.inner == field.inner[0, 0]).all()
        assert field.inner[0, 0] in ((step, step + 1) if killed else (step + 1,))
        field.inner[...] = step + 1
        save()
        assert sorted(tmp_path.iterdir()) == left, "what the dead left is cleared away"
        if not killed:
            break
    assert 2 < step < 99


def test_files_of_others_are_read_piece_by_piece(comm: Any, folder: Path) -> None:
    """Big-endian numbers, in a group, which no field holds as they are."""
    h5py = pytest.importorskip("h5py", reason="h5py is not installed")
    whole = values((6, 4), "float64")
    if comm.rank == 0:
        with h5py.File(folder / "x.h5", "w") as file:
            file["run/u"] = whole.astype(">f8")
            file["run/names"] = ["a", "b"]
    comm.barrier()
    field = hdf5.load(folder / "x.h5", comm, "run/u")
    assert (field.all_gather() == whole).all()
    assert field.name == "u"
    with pytest.raises(hpcomm.TransportError, match="which no field does"):
        hdf5.load(folder / "x.h5", comm, "run/names")
    assert f"HDF5 {h5py.version.hdf5_version}" in hdf5.explain()


@pytest.mark.parametrize("chunks", [(3, 2), (7, 5), (1, 1), True])
def test_chunks_are_written_where_hdf5_will_look_for_them_also_behind_a_block_of_others(
    comm: Any, folder: Path, chunks: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By all ranks at once: only rank 0 opens the file by HDF5."""
    h5py = pytest.importorskip("h5py")
    if comm.rank == 0:
        with h5py.File(folder / "x", "w", userblock_size=1024) as file:
            file["before"] = np.arange(1000)
    comm.barrier()
    field = Field(comm, (7, 5), name="T")
    field.inner[...] = values((7, 5), "float64")[field.box.slices()]  # type: ignore[union-attr]
    with monkeypatch.context() as patched:
        if comm.rank:
            patched.setattr(h5py, "File", None)
        hdf5.save(field, folder / "x", mode="a", chunks=chunks)
    with h5py.File(folder / "x", "r") as file:
        assert (file["before"][...] == np.arange(1000)).all()
        assert (file["T"][...] == values((7, 5), "float64")).all()
        assert file["T"].chunks == (chunks if chunks is not True else file["T"].chunks)


NUMPYS = ["?", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8", "g", "c8", "c16", "G"]
BITS = {"torch.bfloat16": "u2", "torch.float8_e4m3fn": "u1", "torch.float16": "f2"}  # in files
LAYOUTS = ["npy", "raw", "checkpoint", "hdf5", "chunks", "gzip", "zarr", "zarr in chunks"]


def numbers(dtype: str) -> np.ndarray:
    """Values with fractions, signs and imaginary parts, as far as the dtype has them."""
    x = np.arange(35.0).reshape(7, 5) * 3 - 40.5
    kind = np.dtype(dtype).kind
    x = x % 2 > 1 if kind == "b" else np.abs(x) if kind == "u" else x * (1 - 2j) if kind == "c" else x
    return x.astype(dtype)


def write(layout: str, field: Field, path: Path) -> None:
    if layout in ("npy", "raw"):
        (io.save if layout == "npy" else io.write_raw)(field, path)
    elif layout == "checkpoint":
        checkpoint.save(path, field)
    elif layout.startswith("zarr"):
        zarr.save(field, path, chunks=(2, 3) if "chunks" in layout else True)
    else:
        ways: dict[str, Any] = {"hdf5": {}, "chunks": {"chunks": (2, 3)}, "gzip": {"compression": "gzip"}}
        hdf5.save(field, path, **ways[layout])


def read_alone(layout: str, path: Path, dtype: np.dtype) -> np.ndarray:
    if layout == "raw":
        return np.fromfile(path, dtype).reshape(7, 5)
    if layout in ("npy", "checkpoint"):
        return np.load(path if layout == "npy" else path / "step-00000000" / "u.npy")
    return alone("zarr" if layout.startswith("zarr") else "hdf5", path, "u")


def read(layout: str, field: Field, path: Path) -> None:
    if layout in ("npy", "raw"):
        (io.read_into if layout == "npy" else io.read_raw)(field, path)
    elif layout == "checkpoint":
        checkpoint.load(path, field)
    else:
        MODULES["zarr" if layout.startswith("zarr") else "hdf5"].read_into(field, path)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.filterwarnings("ignore::zarr.errors.UnstableSpecificationWarning")
def test_every_dtype_goes_through_every_layout(comm: Any, folder: Path, layout: str) -> None:
    """Numpy, h5py and zarr by themselves read what was written, and it comes back."""
    pytest.importorskip("zarr" if layout.startswith("zarr") else "h5py")
    for number, dtype in enumerate([*NUMPYS, *BITS]):
        if layout.startswith("zarr") and dtype in "gG":
            continue  # which zarr does not have
        path, stored = folder / f"{layout}{number}", np.dtype(BITS.get(dtype, dtype))
        whole = numbers(stored.str)
        field = Field(comm, (7, 5), dtype=dtype_of(dtype), name="u")
        from_host(field, whole[field.box.slices()].view(field.look.dtype.storage))
        write(layout, field, path)
        comm.barrier()
        found = read_alone(layout, path, stored)
        assert found.dtype == stored, (layout, dtype)
        assert np.array_equal(found, whole), (layout, dtype)
        other = Field(comm, (7, 5), dtype=dtype_of(dtype), name="u")
        read(layout, other, path)
        assert np.array_equal(on_host(other), on_host(field)), (layout, dtype)


@pytest.mark.parametrize("chunks", [None, (2, 3)])
@pytest.mark.parametrize("dtype", ["M8[s]", "m8[ms]", "U3", "S4", [("a", "f8"), ("b", "i4")]])
def test_dates_text_and_records_come_back_in_a_new_field(
    comm: Any, folder: Path, dtype: Any, chunks: Any
) -> None:
    pytest.importorskip("h5py")
    field = Field(comm, (4, 5), dtype=np.dtype(dtype), name="T")
    texts = [(i, i) if isinstance(dtype, list) else i for i in range(field.inner.size)]
    field.inner[...] = np.array(texts, "i8" if str(dtype)[0] in "mM" else dtype).reshape(field.inner.shape)
    hdf5.save(field, folder / "x", chunks=chunks)
    assert (hdf5.load(folder / "x", comm).inner == field.inner).all()


def test_every_dtype_in_any_byte_order_is_read_as_its_library_reads_it(comm: Any, folder: Path) -> None:
    """What numpy, h5py and zarr have written, in every layout that they know."""
    h5py, library = pytest.importorskip("h5py"), pytest.importorskip("zarr")
    for number, dtype in enumerate(NUMPYS):
        for order in "<>" if dtype in ("?", "f2", "c8", "g") else ">":
            kind = np.dtype(dtype).newbyteorder(order)
            whole, stem = numbers(dtype).astype(kind), f"{number}{'be' if order == '>' else 'le'}"
            if comm.rank == 0:
                np.save(folder / f"{stem}.npy", whole)
                np.save(folder / f"{stem}f.npy", np.asfortranarray(whole))
                if dtype not in "gG":
                    for version in (2, 3):
                        made = library.create_array(
                            folder / f"{stem}.zarr{version}", data=whole, zarr_format=version, chunks=(3, 2)
                        )
                        assert np.array_equal(made[...], whole)
                with h5py.File(folder / f"{stem}.h5", "w", userblock_size=512) as file:
                    for name, options in {"a": {}, "b": {"chunks": (3, 2)}, "c": {"compression": 1}}.items():
                        file.create_dataset(name, data=whole, **options)
            comm.barrier()
            fields = [io.load(folder / f"{stem}{f}.npy", comm) for f in ("", "f")]
            if (dtype, order) != ("G", ">"):  # which h5py itself does not read as it was written
                fields += [hdf5.load(folder / f"{stem}.h5", comm, name) for name in "abc"]
            if dtype not in "gG":
                fields += [zarr.load(folder / f"{stem}.zarr{version}", comm) for version in (2, 3)]
            for field in fields:
                assert field.dtype == np.dtype(dtype), (dtype, order)
                assert np.array_equal(field.all_gather(), whole), (dtype, order)


def test_integers_of_odd_precision_are_read_as_h5py_reads_them(comm: Any, folder: Path) -> None:
    """Bits that begin at the third one of more: as whole bytes they would be other numbers."""
    h5py = pytest.importorskip("h5py")
    kinds = "STD_I16LE 12", "STD_I16BE 12", "STD_U16LE 9", "STD_U32BE 24", "STD_I64BE 40", "STD_U8LE 5"
    layouts = "", "chunked", "gzip"
    if comm.rank == 0:
        with h5py.File(folder / "x.h5", "w") as file:
            for each, layout in product(kinds, layouts):
                name, bits = each.split()
                whole = (np.arange(35) % 30 - 9 * ("I" in name)).reshape(7, 5)
                kind, how = getattr(h5py.h5t, name).copy(), h5py.h5p.create(h5py.h5p.DATASET_CREATE)
                kind.set_precision(int(bits))
                kind.set_offset(3)
                if layout:
                    how.set_chunk((3, 2))
                if layout == "gzip":
                    how.set_deflate(1)
                path, space = f"{each} {layout}".encode(), h5py.h5s.create_simple((7, 5))
                h5py.Dataset(h5py.h5d.create(file.id, path, kind, space, how))[...] = whole
                assert np.array_equal(file[path][...], whole)
    comm.barrier()
    for each, layout in product(kinds, layouts):
        whole = (np.arange(35) % 30 - 9 * ("I" in each)).reshape(7, 5)
        found = hdf5.load(folder / "x.h5", comm, f"{each} {layout}").all_gather()
        assert np.array_equal(found, whole), (each, layout)


def test_a_dataset_behind_a_link_is_found(comm: Any, folder: Path) -> None:
    h5py = pytest.importorskip("h5py")
    whole = values((6, 4), "float64")
    if comm.rank == 0:
        with h5py.File(folder / "data.h5", "w") as file:
            file["run/u"] = whole
        with h5py.File(folder / "links.h5", "w") as file:
            file["run"] = h5py.ExternalLink("data.h5", "/run")
            file["u"] = h5py.ExternalLink("data.h5", "/run/u")
            file["soft"] = h5py.SoftLink("/u")
            file["lost"] = h5py.ExternalLink("gone.h5", "/u")
        with h5py.File(folder / "one.h5", "w") as file:
            file["u"] = h5py.ExternalLink("data.h5", "/run/u")
    comm.barrier()
    for name in ("u", "/u", "soft", "run/u"):
        field = hdf5.load(folder / "links.h5", comm, name)
        assert (field.all_gather() == whole).all()
        assert field.name == name.rpartition("/")[2]
    assert (hdf5.load(folder / "one.h5", comm).all_gather() == whole).all()
    with pytest.raises(hpcomm.TransportError, match=r"'lost' is a link to '/u' in gone.h5, where nothing is"):
        hdf5.load(folder / "links.h5", comm, "lost")
    with pytest.raises(hpcomm.TransportError, match="it has no dataset 'run', but lost, soft, u"):
        hdf5.load(folder / "links.h5", comm, "run")


def test_a_folder_of_something_else_is_not_replaced(comm: Any, folder: Path) -> None:
    pytest.importorskip("zarr", reason="zarr is not installed")
    if comm.rank == 0:
        (folder / "thesis").mkdir()
        (folder / "thesis" / "chapter1").write_text("dear")
    comm.barrier()
    with pytest.raises(hpcomm.TransportError, match="something else is there"):
        zarr.save(Field(comm, (4,), name="T"), folder / "thesis")
    comm.barrier()
    assert (folder / "thesis" / "chapter1").read_text() == "dear"
    with pytest.raises(hpcomm.LayoutError, match=r"chunks .* do not fit"):
        zarr.save(Field(comm, (4,), name="T"), folder / "x", chunks=(2, 2))


@pytest.mark.parametrize("name", ["hdf5", "zarr"])
def test_what_is_not_installed_is_said_with_the_extra(
    comm: Any, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setitem(sys.modules, LIBRARIES[name], None)
    with pytest.raises(hpcomm.ConfigError, match=rf"pip install 'hpcomm\[{name}\]'"):
        MODULES[name].save(Field(comm, (4,), name="T"), "nowhere")
    with pytest.raises(hpcomm.ConfigError, match=rf"pip install 'hpcomm\[{name}\]'"):
        MODULES[name].load("nowhere", comm)
