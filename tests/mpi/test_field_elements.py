"""Fields of any elements: their numbers, comparisons and files; what is refused, all ranks refuse alike."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_io import folder

import hpcomm
from hpcomm import Field, Points, checkpoint, hdf5, io, zarr

pytestmark = [pytest.mark.few, pytest.mark.three]
__all__ = ["folder"]  # the fixture

PADDED = np.dtype({"names": ["a", "b"], "formats": ["i2", "f8"], "offsets": [0, 8], "itemsize": 24})
NESTED = np.dtype([("a", "i2"), ("b", [("x", "f4", (2,))])])
TURNED = np.dtype({"names": ["a", "b"], "formats": ["i2", "i2"], "offsets": [2, 0]})
DATED = np.dtype([("at", "M8[s]"), ("x", "f8")])
DTYPES = ["M8[s]", "m8[ns]", "S3", "U2", "V5", np.dtype([("a", "i2"), ("c", "S3")]), PADDED, NESTED]


def whole_of(dtype: Any, n: int = 7) -> Any:
    """An array of such elements, no two alike in their bytes."""
    made = np.zeros(n, dtype)
    made.view(np.uint8)[...] = np.arange(made.nbytes) % 50 + 48
    if made.dtype.kind == "U":
        made = np.array([chr(48 + i) * 2 for i in range(n)], dtype)
    return made


def made_of(comm: Any, whole: Any, **options: Any) -> Field:
    made = Field(comm, whole.shape, dtype=whole.dtype, name="t", **options)
    raw = f"V{whole.dtype.itemsize}"  # with what lies between components
    made.inner.view(raw)[...] = whole.view(raw)[made.box.slices()]
    return made


def refused(comm: Any, error: type[Exception], deed: Callable[[], object], *words: str) -> None:
    """Every rank refuses, in the same words; and the next call is none the worse."""
    with pytest.raises(error) as caught:
        deed()
    assert type(caught.value) is error
    told = getattr(caught.value, "what", "")
    assert all(word in str(caught.value) for word in words), str(caught.value)
    assert len(set(comm.all_gather_object(told))) == 1


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_what_is_saved_is_loaded(comm: Any, folder: Path, dtype: Any) -> None:
    whole = whole_of(dtype)
    field = made_of(comm, whole, halo=1)  # not in one piece with its rim
    io.save(field, folder / "t.npy")
    assert np.load(folder / "t.npy").tobytes() == whole.tobytes()
    points = Points((7,), [np.arange(7)[::-1][r :: comm.size] for r in range(comm.size)])
    for options in ({}, {"whole": points}):
        again: Any = io.load(folder / "t.npy", comm, **options)
        assert again.dtype == whole.dtype
        assert np.array_equal(again.all_gather(), whole)
    checkpoint.save(folder / "run", [field])
    field.inner[...] = np.zeros(1, dtype)
    checkpoint.load(folder / "run", field)
    assert np.array_equal(field.all_gather(), whole)
    for _ in range(2):
        io.append(field, folder / "steps.npy")
    assert np.array_equal(np.load(folder / "steps.npy"), [whole, whole])


@pytest.mark.once
@pytest.mark.parametrize("order", "CF")
def test_other_byte_orders_and_fortran_order_are_read(comm: Any, folder: Path, order: Any) -> None:
    mixed = np.dtype([("a", ">i2"), ("b", "<i4"), ("c", "S3")])
    for dtype in (mixed, np.dtype(">M8[s]"), np.dtype(">U2"), np.dtype(">f8")):
        whole = np.array(whole_of(dtype.newbyteorder("="), 12).astype(dtype).reshape(4, 3), order=order)
        if comm.rank == 0:
            np.save(folder / "t.npy", whole)
        comm.barrier()
        assert np.array_equal(io.load(folder / "t.npy", comm).all_gather(), whole)


@pytest.mark.once
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", ["hdf5", "hdf5 in chunks", "zarr"])
@pytest.mark.filterwarnings("ignore:The data type")
def test_chunked_files_give_back_what_they_take(comm: Any, folder: Path, kind: str, dtype: Any) -> None:
    module: Any = zarr if kind == "zarr" else hdf5
    pytest.importorskip("zarr" if kind == "zarr" else "h5py")
    whole = whole_of(dtype)
    field = made_of(comm, whole)
    chunks = {"chunks": (2,), "compression": "gzip"} if kind == "hdf5 in chunks" else {}
    if kind == "zarr" and dtype in (PADDED, NESTED):
        words = "field 't' holds", "which a zarr store does not give back"
        refused(comm, hpcomm.DtypeError, lambda: zarr.save(field, folder / "t"), *words)
        assert not (folder / "t").exists()
        return
    module.save(field, folder / "t", **chunks)
    again = module.load(folder / "t", comm)
    assert again.dtype == whole.dtype
    assert np.array_equal(again.all_gather(), whole)
    field.inner[...] = np.zeros(1, dtype)
    module.read_into(field, folder / "t")
    assert np.array_equal(field.all_gather(), whole)


@pytest.mark.once
def test_what_a_kind_of_file_does_not_give_back_is_refused_before_it_is_made(comm: Any, folder: Path) -> None:
    turned = Field(comm, (4,), dtype=TURNED, name="t")
    for save in (io.save, io.append):
        deed = lambda save=save: save(turned, folder / "t.npy")  # noqa: E731
        refused(comm, hpcomm.DtypeError, deed, "which a .npy file does not give back", "component")
    refused(comm, hpcomm.DtypeError, lambda: checkpoint.save(folder / "run", turned), "a .npy file does not")
    dated = Field(comm, (4,), dtype=DATED, name="t")
    hdf5_words = "which an HDF5 file does not give back", "No conversion path"
    refused(comm, hpcomm.DtypeError, lambda: hdf5.save(dated, folder / "t.h5"), *hdf5_words)
    assert not [*folder.iterdir()]
    comm.barrier()
    if comm.rank == 0:
        np.save(folder / "t.npy", np.array([None]), allow_pickle=True)
    comm.barrier()
    refused(comm, hpcomm.TransportError, lambda: io.load(folder / "t.npy", comm), "which no field does")


@pytest.mark.once
def test_an_empty_dataset_is_told(comm: Any, folder: Path) -> None:
    h5py = pytest.importorskip("h5py")
    if comm.rank == 0:
        with h5py.File(folder / "t.h5", "w") as file:
            file["t"] = h5py.Empty("f8")
    comm.barrier()
    refused(
        comm, hpcomm.TransportError, lambda: hdf5.load(folder / "t.h5", comm), "'t' is empty (h5py.Empty)"
    )


@pytest.mark.once
def test_options_that_zarr_does_not_have_are_refused(comm: Any, folder: Path) -> None:
    pytest.importorskip("zarr")
    field: Any = Field(comm, (4,), name="u")
    for option, hint in (("mode", "all fields of a group in one call"), ("shard", "did you mean 'shards'?")):
        deed = lambda option=option: zarr.save(field, folder / "t", **{option: "a"})  # noqa: E731
        refused(comm, hpcomm.UsageError, deed, f"zarr.save has no option '{option}'", hint)
    assert not [*folder.iterdir()]


def test_ranks_that_say_different_things_of_a_file_are_told(comm: Any, folder: Path) -> None:
    field, rank = Field(comm, (4,), name="u"), comm.rank
    io.save(field, folder / "u.npy")
    other = Field(comm, (4,), name=f"u{rank}")
    deeds = {
        "save differ between ranks, first at ['path']": lambda: io.save(field, folder / f"p{rank}.npy"),
        "append differ": lambda: io.append(field, folder / f"p{rank}.npy"),
        "first at ['offset']": lambda: io.write_raw(field, folder / "raw", 8 * rank),
        "read_raw differ": lambda: io.read_raw(field, folder / "u.npy", 8 * rank),
        "load differ": lambda: io.load(folder / f"p{rank}.npy", comm),
        "first at ['step']": lambda: checkpoint.save(folder / "run", field, step=rank),
        "first at ['keep']": lambda: checkpoint.save(folder / "run", field, keep=1 + rank),
        "first at ['field 0']": lambda: checkpoint.save(folder / "run", other),
        "first at ['mode']": lambda: hdf5.save(field, folder / "u.h5", mode="wx"[rank % 2]),
        "first at ['chunks']": lambda: zarr.save(field, folder / "u.zarr", chunks=(1 + rank,)),
        "['path']": lambda: io.save(field, folder / "v.npy" if rank == 0 else None),  # type: ignore[arg-type]
    }
    for words, deed in deeds.items():
        if comm.size > 1:
            refused(comm, hpcomm.MismatchError, deed, words)
    assert [each.name for each in folder.iterdir()] == ["u.npy"] or comm.size == 1
    with pytest.raises(hpcomm.UsageError, match="the path is None"):
        io.save(field, None)  # type: ignore[arg-type]


# -- numbers ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("dtype", ["int64", "uint64", "int8", "bool"])
def test_means_of_whole_numbers_do_not_wrap(comm: Any, dtype: str) -> None:
    field = Field(comm, (5,), dtype=dtype)
    most = 1 if dtype == "bool" else np.iinfo(dtype).max
    field.inner[...] = most - (field.indices[0] % 2).astype(dtype)
    whole = field.all_gather()
    for exact in (False, True):
        assert field.mean(deterministic=exact) == pytest.approx(whole.mean(), rel=1e-15)
        assert field.var(deterministic=exact) == pytest.approx(whole.var(), rel=1e-9)
    assert field.std(ddof=1) == pytest.approx(whole.std(ddof=1), rel=1e-9)


@pytest.mark.parametrize("dtype", ["M8[s]", "m8[ns]"])
@pytest.mark.parametrize("gap", [None, 2])
def test_times_have_the_numbers_that_numpy_gives(comm: Any, dtype: str, gap: int | None) -> None:
    whole = np.array([5, -3, 9, 9, -3], dtype)
    if gap is not None:
        whole[gap] = "NaT"
    field = made_of(comm, whole)
    verbs = ["min", "max", "argmin", "argmax"] + ["sum", "mean"] * (dtype[0] == "m")
    for verb in verbs:
        found, due = getattr(field, verb)(), getattr(whole, verb)()
        assert np.array_equal(found, due, equal_nan=verb[:3] != "arg"), verb
        assert np.asarray(found).dtype == np.asarray(due).dtype


def test_one_time_span_is_its_own_sum(comm: Any) -> None:
    field = Field(comm, (), array=np.array(5, "m8[s]"))
    assert field.sum() == field.mean() == np.timedelta64(5, "s")


VERBS = ["sum", "mean", "var", "std", "norm", "min", "max", "argmin", "argmax", "all", "any"]


@pytest.mark.parametrize("dtype", ["M8[s]", "m8[s]", "S3", "U2", "V5", PADDED, "complex64"], ids=str)
def test_numbers_that_do_not_exist_are_refused_by_all_ranks_alike(comm: Any, dtype: Any) -> None:
    field: Any = Field(comm, (1,), dtype=dtype)  # which one rank holds
    is_time = np.dtype(dtype).kind in "mM"
    exist = ["min", "max", "argmin", "argmax"] * is_time + ["sum", "mean"] * (np.dtype(dtype).kind == "m")
    exist = [verb for verb in VERBS if verb[-3:] not in ("min", "max")] if dtype == "complex64" else exist
    for verb in sorted({*VERBS} - {*exist}):
        words = verb[-3:] if dtype == "complex64" else f"there is no {verb} of "
        refused(comm, hpcomm.DtypeError, getattr(field, verb), words)
    if dtype != "complex64":
        refused(comm, hpcomm.DtypeError, lambda: Field(comm, (1,)).dot(field), "there is no dot of ")


def test_numbers_of_8_bit_floats_are_not_those_of_their_bits(comm: Any) -> None:
    torch = pytest.importorskip("torch")
    field: Any = Field(comm, (4,), dtype=torch.float8_e4m3fn)
    refused(comm, hpcomm.DtypeError, field.sum, "there is no sum of float8_e4m3fn", "field.inner.float()")


# -- comparisons ------------------------------------------------------------------------------------------
@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_comparisons_are_fields_of_truth_values(comm: Any, library: str) -> None:
    torch = pytest.importorskip("torch")
    own = {"like": torch.zeros(1)} if library == "torch" else {"dtype": "float32"}
    u, v = (Field(comm, (6,), **own) for _ in "uv")  # type: ignore[call-overload]
    x, y = np.arange(6.0), np.array([0, 2, 2, 2, 5, np.nan])
    u.scatter(torch.tensor(x).float() if library == "torch" else x.astype("f4"))
    v.scatter(torch.tensor(y).float() if library == "torch" else y.astype("f4"))
    pairs: list[tuple[Any, Any]] = [
        (u == v, x == y), (u != v, x != y), (u < v, x < y), (u <= v, x <= y), (u > v, x > y),
        (u >= v, x >= y),
        (u == 2, x == 2), (u != 2, x != 2), (3 < u, x > 3), (3 >= u, x <= 3),  # noqa: SIM300
    ]  # fmt: skip
    for made, due in pairs:
        assert isinstance(made, Field)
        assert np.asarray(made.all_gather()).dtype == bool
        assert np.array_equal(made.all_gather(), due)
    assert ((u == u).all(), (u == v).all(), (u == v).any(), (u == 9).any()) == (True, False, True, False)
    assert {u: 1, v: 2}[v] == 2
    assert u in [v, u][1:]
    assert len({u, v, u}) == 2
    with pytest.raises(hpcomm.UsageError, match=r"neither true nor false[\s\S]*\.all\(\)"):
        bool(u == v)
    with pytest.raises(hpcomm.LayoutError, match="which part of it is this rank's"):
        u == x  # noqa: B015


def test_records_text_and_times_are_compared(comm: Any) -> None:
    for dtype in DTYPES:
        whole = whole_of(dtype)
        turned = whole[::-1].copy()
        u, v = made_of(comm, whole), made_of(comm, turned)
        assert np.array_equal((u == v).all_gather(), whole == turned)
        assert np.array_equal((u != v).all_gather(), whole != turned)
    assert not (Field(comm, (4,)) == "T").any()
    assert np.all(Field(comm, (), dtype="int32") == 0)
    assert not np.any(Field(comm, (3,)))
