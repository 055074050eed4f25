"""Fields in files: readable by numpy, from any number of ranks to any other, never half-read."""

from __future__ import annotations

import json
import resource
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_fields import DTYPES, dtype_of, filled, fits, partitions, plain, steady, values

import hpcomm
from hpcomm import Field, Partition, Points, checkpoint
from hpcomm.fields.files import npy
from hpcomm.fields.files.checkpoints import checksum

pytestmark = pytest.mark.few

Together = Callable[[object, Callable[[], None]], None]


@pytest.fixture
def folder(comm: Any, tmp_path: Path) -> Iterator[Path]:
    """One folder for all ranks."""
    shared = comm.broadcast_object(tmp_path)
    comm.barrier()
    yield shared
    comm.barrier()


@contextmanager
def small_files(nbytes: int) -> Iterator[None]:
    """The kernel refuses to let files of this process grow, as a full disk would."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, hard))
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@settings(steady, max_examples=25)
@given(st.data())
@pytest.mark.timeout(60)
def test_what_some_ranks_save_others_load(comm: Any, together: Together, folder: Path, data: Any) -> None:
    source = fits(comm, data.draw(partitions(partial=False)))
    target = fits(comm, data.draw(partitions(source.shape, partial=False)))
    dtype = data.draw(st.sampled_from(DTYPES))
    collective = data.draw(st.booleans())

    def body() -> None:
        path = folder / "x.npy"
        whole = values(source.shape, dtype)
        writers = comm.split(0 if comm.rank < source.size else 1)
        if comm.rank < source.size:
            field = filled(writers, source, dtype, halo=1)
            npy.save(field, path, collective=collective)
            one = checksum(field)
        comm.barrier()
        if dtype != "torch.bfloat16" and comm.rank == 0:
            assert (np.load(path) == whole).all()
            assert np.load(path).shape == source.shape
        readers = comm.split(0 if comm.rank < target.size else 1)
        if comm.rank < target.size:
            field = Field(readers, target, dtype=dtype_of(dtype), halo=2)
            npy.read_into(field, path, collective=collective)
            assert (plain(field.inner) == whole[field.box.slices()]).all()
            again = checksum(field)
            assert comm.rank >= source.size or again == one
        comm.barrier()
        writers.close()
        readers.close()

    together((source, target, dtype, collective), body)


def test_points_lie_in_the_file_by_global_index(comm: Any, folder: Path) -> None:
    order = np.random.default_rng(0).permutation(20)
    owned = [order[comm.size - 1 - r :: comm.size] for r in range(comm.size)]
    field = filled(comm, Points((20, 3), owned), "float32")
    npy.save(field, folder / "p.npy")
    if comm.rank == 0:
        assert (np.load(folder / "p.npy") == values((20, 3), "float32")).all()
    back = npy.load(folder / "p.npy", comm, field.partition)
    assert (back.inner == field.inner).all()
    rows = npy.load(folder / "p.npy", comm)
    assert checksum(rows) == checksum(field)


def test_raw_numbers_lie_at_their_offset(comm: Any, folder: Path) -> None:
    path = folder / "raw"
    if comm.rank == 0:
        path.write_bytes(b"h" * 7 + b"x" * 48 + b"tail")
    comm.barrier()
    field = filled(comm, Partition((2, 3), {"p": comm.size}, (None, "p")), "float64")
    for collective in (True, False):
        npy.write_raw(field, path, offset=7, collective=collective)
        if comm.rank == 0:
            data = path.read_bytes()
            assert data[:7] == b"h" * 7
            assert data[55:] == b"tail"
            assert (np.frombuffer(data[7:55]).reshape(2, 3) == values((2, 3), "float64")).all()
        back = Field(comm, (2, 3))
        npy.read_raw(back, path, offset=7, collective=collective)
        assert (back.all_gather() == values((2, 3), "float64")).all()
    with pytest.raises(hpcomm.TransportError, match="cut off"):
        npy.read_raw(back, path, offset=12)
    for move in (npy.read_raw, npy.write_raw):
        with pytest.raises(hpcomm.UsageError, match="the offset is -5"):
            move(back, path, -5)


def test_places_past_four_gibibytes_and_data_in_several_pieces(
    comm: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a sparse file, which takes no room, and with pieces that are smaller than a C int allows."""
    path, far = folder / "raw", (5 << 30) + 3
    field = filled(comm, Partition((9, 7), {"p": comm.size}, (None, "p")), "float64")
    for piece in (1 << 30, 40):
        monkeypatch.setattr(npy, "_PIECE", piece)
        for collective in (True, False):
            npy.write_raw(field, path, far, collective=collective)
            back = Field(comm, (9, 7))
            npy.read_raw(back, path, far, collective=collective)
            assert (back.all_gather() == values((9, 7), "float64")).all()
            comm.barrier()
    assert path.stat().st_blocks * 512 < 1 << 20


def test_a_file_that_numpy_wrote_becomes_a_field(comm: Any, folder: Path) -> None:
    whole = np.arange(24, dtype="i2").reshape(4, 6)
    if comm.rank == 0:
        np.save(folder / "c.npy", whole)
    comm.barrier()
    mesh = comm.mesh(y=1, x=-1)
    field = npy.load(folder / "c.npy", mesh, halo=1, name="n")
    assert (field.all_gather() == whole).all()
    assert field.dtype == np.int16
    with pytest.raises(hpcomm.LayoutError, match=r"holds shape \(4, 6\)"):
        npy.load(folder / "c.npy", comm, Partition((4, 7), {"p": comm.size}))
    with pytest.raises(hpcomm.DtypeError, match="holds int16, the field float64"):
        npy.read_into(Field(comm, (4, 6)), folder / "c.npy")
    with pytest.raises(FileNotFoundError, match=r"rank 0: .*No such file") as caught:
        npy.load(folder / "nothing.npy", comm)
    assert isinstance(caught.value, hpcomm.TransportError)


def test_files_in_any_order_of_axes_and_bytes_are_read(comm: Any, folder: Path) -> None:
    mesh = comm.mesh(y=1, x=-1)
    kinds = product([(4, 6), (5, 3, 4), (7,), (3, 0)], "CF", [">c8", "<f4"])
    for number, (shape, order, dtype) in enumerate(kinds):
        whole = (np.arange(np.prod(shape)).reshape(shape) * 3 % 101).astype(dtype)
        path = folder / f"{number}.npy"
        if comm.rank == 0:
            np.save(path, np.asarray(whole, order=order))
        comm.barrier()
        native = np.dtype(dtype).newbyteorder("=")
        rows = np.random.default_rng(1).permutation(shape[0])
        points = Points(shape, [rows[r :: comm.size] for r in range(comm.size)])
        ways = [(comm, None), (comm, points), (mesh if len(shape) > 1 else comm, None)]
        for i, (ranks, partition) in enumerate(ways):
            field = npy.load(
                path, ranks, partition, collective=i != 1, **({} if partition else {"halo": i // 2})
            )
            assert field.dtype == native
            assert np.array_equal(field.all_gather(), whole)
            field.inner[...] = 0
            npy.read_into(field, path)
            assert np.array_equal(field.all_gather(), whole)


def test_a_truncated_file_is_refused_and_the_field_stays(comm: Any, folder: Path) -> None:
    field = filled(comm, Partition((8, 8), {"p": comm.size}, ("p", None)), "float64")
    npy.save(field, folder / "x.npy")
    if comm.rank == 0:
        with (folder / "x.npy").open("r+b") as file:
            file.truncate(300)
    comm.barrier()
    field.inner[...] = -1
    with pytest.raises(hpcomm.TransportError, match=r"has 300 bytes, .* are needed: it was cut off"):
        npy.read_into(field, folder / "x.npy")
    assert (field.inner == -1).all()


def test_a_full_disk_leaves_what_was_there(comm: Any, folder: Path) -> None:
    field = filled(comm, Partition((64, 64), {"p": comm.size}, ("p", None)), "float64", name="T")
    npy.save(field, folder / "T.npy")
    checkpoint.save(folder / "cp", [field], step=1)
    comm.barrier()
    field.inner[...] = 0
    with small_files(9000):
        for collective in (True, False):
            with pytest.raises(hpcomm.TransportError, match=r"save of .* failed on rank \d"):
                npy.save(field, folder / "T.npy", collective=collective)
        with pytest.raises(hpcomm.TransportError, match="save of"):
            checkpoint.save(folder / "cp", [field], step=2)
    comm.barrier()
    assert sorted(p.name for p in folder.iterdir()) == ["T.npy", "cp"]
    assert checkpoint.steps(folder / "cp") == [1]
    assert sorted(p.name for p in (folder / "cp").iterdir()) == ["step-00000001"]
    assert checkpoint.load(folder / "cp", [field]).step == 1
    assert (field.all_gather() == values((64, 64), "float64")).all()
    assert (npy.load(folder / "T.npy", comm).all_gather() == values((64, 64), "float64")).all()


def fields_of(comm: Any) -> list[Field]:
    one = filled(
        comm, Partition((6, 5), {"p": comm.size}, ("p", None)), "float32", name="T", unit="K", halo=1
    )
    two = filled(comm, Partition((7,), {"p": comm.size}), "torch.bfloat16", name="u")
    return [one, two]


def test_a_checkpoint_brings_back_fields_step_and_metadata(comm: Any, folder: Path) -> None:
    fields = fields_of(comm)
    for step in (1, 2, 2, 3):
        made = checkpoint.save(folder, fields, step, {"time": 0.5 * step}, keep=2)
    assert made.name == "step-00000003"
    assert checkpoint.steps(folder) == [2, 3]
    assert sorted(p.name for p in folder.iterdir()) == ["step-00000002.1", "step-00000003"]
    fresh = [
        Field(comm, Partition((6, 5), {"p": comm.size}, (None, "p")), dtype="float32", name="T"),
        Field(comm, Partition((7,), {"p": comm.size}), dtype=torch.bfloat16, name="u"),
    ]
    found = checkpoint.load(folder, fresh)
    assert (found.step, found.metadata) == (3, {"time": 1.5})
    assert (fresh[0].all_gather() == values((6, 5), "float32")).all()
    assert (plain(fresh[1].all_gather()) == values((7,), "float32")).all()
    assert checkpoint.load(folder, fresh[:1], step=2).step == 2
    again = [checkpoint.save(folder, fields, 5, {"time": time}, keep=1).name for time in range(3)]
    assert again == ["step-00000005", "step-00000005.1", "step-00000005.2"]
    assert checkpoint.load(folder, fresh).metadata == {"time": 2}
    with pytest.raises(hpcomm.UsageError, match="no checkpoint of step 7"):
        checkpoint.load(folder, fresh, step=7)
    with pytest.raises(hpcomm.LayoutError, match="no field 'w'"):
        checkpoint.load(folder, [Field(comm, (6, 5), name="w")])
    with pytest.raises(hpcomm.LayoutError, match=r"has shape \(6, 5\)"):
        checkpoint.load(folder, [Field(comm, (5, 6), dtype="float32", name="T")])
    with pytest.raises(hpcomm.DtypeError, match="is float32 in"):
        checkpoint.load(folder, [Field(comm, (6, 5), name="T")])
    with pytest.raises(hpcomm.UsageError, match="fields are called"):
        checkpoint.save(folder, [Field(comm, (6, 5)), Field(comm, (6, 5))])
    with pytest.raises(hpcomm.UsageError, match="load was given an empty list"):
        checkpoint.load(folder, [])
    with pytest.raises(hpcomm.UsageError, match=r"nothing for JSON: .*complex"):
        checkpoint.save(folder, fields, 4, {"z": 1j if comm.rank == 0 else 0})
    for metadata in ([1], {"a": 1, 2: 3}):
        with pytest.raises(hpcomm.UsageError, match="nothing for JSON"):
            checkpoint.save(folder, fields, 4, metadata)  # type: ignore[arg-type]
    for wrong in ({"step": -1}, {"step": 1.5}, {"keep": 0}):
        with pytest.raises(hpcomm.UsageError, match=r"(step|keep) is"):
            checkpoint.save(folder, fields, **wrong)
    for wrong in ({"T": fields[0]}, np.ones(3), [np.ones(3)], "T"):
        for verb in (checkpoint.save, checkpoint.load):
            with pytest.raises(hpcomm.UsageError, match="was given is of type") as caught:
                verb(folder, wrong)
            assert "a Field, or a list of Fields" in str(caught.value)
    one = Field(comm, fields[0].shape, dtype=fields[0].dtype, name="T")
    checkpoint.save(folder / "one", fields[0])  # a field alone
    checkpoint.load(folder / "one", one)
    assert (one.inner == fields[0].inner).all()
    for call in (npy.save, npy.read_into, npy.write_raw, npy.read_raw):
        with pytest.raises(hpcomm.UsageError, match=f"what {call.__name__} was given is of type"):
            call(np.ones(3), folder / "x")
    with pytest.raises(hpcomm.UsageError, match="what is to hold the field is of type int"):
        npy.load(folder / "x", 5)


def spoil_number(path: Path) -> None:
    data = bytearray((path / "T.npy").read_bytes())
    data[-3] ^= 0x40
    (path / "T.npy").write_bytes(bytes(data))


def spoil_order(path: Path) -> None:
    """Two numbers change places: a plain sum would not see it."""
    data = np.load(path / "T.npy")
    data[0, 0], data[5, 4] = data[5, 4], data[0, 0]
    np.save(path / "T.npy", data)


def spoil_length(path: Path) -> None:
    data = (path / "u.npy").read_bytes()
    (path / "u.npy").write_bytes(data[:-1])


def spoil_header(path: Path) -> None:
    data = (path / "T.npy").read_bytes()
    (path / "T.npy").write_bytes(data.replace(b"(6, 5)", b"(5, 5)"))


def spoil_manifest(path: Path) -> None:
    text = (path / "manifest.json").read_text()
    (path / "manifest.json").write_text(text.replace('"step": 2', '"step": 9'))


def lose_manifest(path: Path) -> None:
    (path / "manifest.json").unlink()


@pytest.mark.parametrize(
    "spoil", [spoil_number, spoil_order, spoil_length, spoil_header, spoil_manifest, lose_manifest]
)
def test_a_damaged_checkpoint_is_noticed_and_the_last_good_one_taken(
    comm: Any, folder: Path, spoil: Callable[[Path], None]
) -> None:
    fields = fields_of(comm)
    checkpoint.save(folder, fields, 1)
    path = checkpoint.save(folder, fields, 2)
    if comm.rank == 0:
        spoil(path)
    comm.barrier()
    fields[0].inner[...] = -5
    with pytest.raises(hpcomm.TransportError):
        checkpoint.load(folder, fields, step=2)
    assert (fields[0].inner == -5).all(), "a half-read field"
    if comm.rank == 0:
        with pytest.warns(RuntimeWarning, match="is passed over"):
            found = checkpoint.load(folder, fields)
    else:
        found = checkpoint.load(folder, fields)
    assert found.step == 1
    assert (fields[0].all_gather() == values((6, 5), "float32")).all()
    if comm.rank == 0:
        shutil.rmtree(folder / "step-00000001")
    comm.barrier()
    with pytest.raises(hpcomm.TransportError):
        checkpoint.load(folder, fields)


def test_a_manifest_can_be_read_by_people(comm: Any, folder: Path) -> None:
    path = checkpoint.save(folder, fields_of(comm), 4, {"note": "as it was"}, sync=False)
    told = json.loads((path / "manifest.json").read_text().rpartition("}")[0] + "}")
    assert told["metadata"] == {"note": "as it was"}
    assert told["fields"]["T"] == told["fields"]["T"] | {"shape": [6, 5], "dtype": "float32", "unit": "K"}


def test_a_header_of_garbage_is_an_error_on_every_rank(comm: Any, folder: Path) -> None:
    npy.save(filled(comm, Partition((8, 8), {"p": comm.size}), "float64"), folder / "x.npy")
    good = (folder / "x.npy").read_bytes()
    told = 0
    for at in range(0, 120, 3):
        comm.barrier()
        if comm.rank == 0:
            (folder / "x.npy").write_bytes(good[:at] + b"(" + good[at + 1 :])
        comm.barrier()
        try:
            npy.read_into(Field(comm, (8, 8)), folder / "x.npy")
        except hpcomm.HpcommError:
            told += 1
    assert told > 10


@given(st.integers(0, 2**32), st.sampled_from(["u1", "i2", "f4", "f8", "c16"]), st.data())
def test_every_change_of_one_bit_changes_the_checksum(seed: int, dtype: str, data: Any) -> None:
    field = Field(hpcomm.self_, (5, 3), dtype=dtype)
    raw = np.random.default_rng(seed).integers(0, 256, field.look.array.nbytes, np.uint8)
    field.look.array.reshape(-1).view(np.uint8)[:] = raw
    before = checksum(field)
    bit = data.draw(st.integers(0, raw.size * 8 - 1))
    field.look.array.reshape(-1).view(np.uint8)[bit // 8] ^= 1 << bit % 8
    assert checksum(field) != before


def test_append_adds_entries_that_numpy_reads(comm: Any, folder: Path) -> None:
    path, field = folder / "T.npy", Field(comm, (6, 4), dtype="float32")
    for k in range(12):
        field.inner[...] = k + field.indices[0]
        npy.append(field, path, collective=k % 2 == 0, sync=k == 3)
    expected = np.arange(12)[:, None, None] + np.arange(6)[:, None] + np.zeros(4)
    assert np.array_equal(np.load(path), expected)
    assert (npy.load(path, comm).all_gather() == expected).all()
    with pytest.raises(hpcomm.TransportError, match=r"append of .* float32 \(6, 4\), .* float64 \(6, 5\)"):
        npy.append(Field(comm, (6, 5)), path)
    comm.barrier()
    with small_files(path.stat().st_size), pytest.raises(hpcomm.TransportError, match="append of"):
        npy.append(field, path)
    comm.barrier()
    assert np.array_equal(np.load(path), expected)
    if comm.rank == 0:
        np.save(folder / "own.npy", np.zeros((3, 6, 4), "f4"))  # a header of version 1
    comm.barrier()
    npy.append(field, folder / "own.npy")
    assert np.array_equal(np.load(folder / "own.npy")[2:], [np.zeros((6, 4)), expected[-1]])
