"""Fields over ranks: halos and redistribution are what their definitions by global index say."""

from __future__ import annotations

import gc
import math
import sys
import weakref
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import hpcomm
import hpcomm.checkpoint
from hpcomm import Field, Halo, Partition, Points, Redistribution
from hpcomm.fields import numbers

sys.path.insert(0, str(Path(__file__).parents[1] / "pure"))
from test_partition import partitions

Together = Callable[[object, Callable[[], None]], None]

steady = settings(
    max_examples=40,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
DTYPES = ["float32", "float64", "complex128", "int16", "bool", "torch.bfloat16", "torch.float32"]


def dtype_of(name: str) -> Any:
    return getattr(torch, name.removeprefix("torch.")) if name.startswith("torch.") else name


def values(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Different numbers at every place, which all dtypes hold."""
    n = int(np.prod(shape))
    return (np.arange(1, n + 1) % 251).reshape(shape).astype("f8").astype(bool if dtype == "bool" else "f8")


def plain(x: Any) -> np.ndarray:
    return x.to(torch.float64).numpy() if isinstance(x, torch.Tensor) else np.asarray(x)


def fits(comm: Any, partition: Partition) -> Partition:
    """The same partition with its largest mesh axis cut down until the ranks suffice."""
    mesh = dict(partition.mesh)
    while np.prod(list(mesh.values()), dtype=int) > comm.size:
        name = max(mesh, key=lambda n: mesh[n])
        mesh[name] -= 1
    return Partition(partition.shape, mesh, partition.split, {}, partition.partial)


def filled(comm: Any, partition: Any, dtype: str, **options: Any) -> Field:
    field = Field(comm, partition, dtype=dtype_of(dtype), **options)
    box = field.box.slices() if isinstance(partition, Partition) else partition.owned[comm.rank]
    here = torch.from_numpy(values(field.shape, dtype)[box])
    field.inner[...] = here if dtype.startswith("torch.") else here.numpy()
    return field


@steady
@given(partitions(partial=False), st.lists(st.integers(0, 3), min_size=3, max_size=3), st.data())
@pytest.mark.timeout(60)
def test_halos_hold_what_the_whole_has_there(
    comm: Any, together: Together, partition: Partition, widths: list[int], data: Any
) -> None:
    partition = fits(comm, partition)
    members = list(range(partition.size))
    rings = [a for a in range(partition.ndim) if data.draw(st.booleans())]
    dtype = data.draw(st.sampled_from(DTYPES))
    width = widths[: partition.ndim]
    if comm.rank >= partition.size:
        together((partition, width, rings, dtype), lambda: None)
        return

    def body() -> None:
        some = comm.group(members)
        one = filled(some, partition, dtype, halo=width, periodic=rings)
        two = filled(some, partition, "int64", halo=width, periodic=rings)
        expected = [np.asarray(plain(f.array)).copy() for f in (one, two)]
        for f, array in zip((one, two), expected, strict=True):
            whole = values(partition.shape, dtype if f is one else "int64")
            grown = one.box.grown(one.halo)
            for index in np.ndindex(array.shape):
                at = [i + o for i, o in zip(index, grown.start, strict=True)]
                if one.box.size and all(
                    0 <= i < n or a in rings for a, (i, n) in enumerate(zip(at, partition.shape, strict=True))
                ):
                    array[index] = whole[tuple(np.mod(at, partition.shape))]
        both = Halo(one, two)
        for _ in range(2):
            both.start()
            both.wait()
            assert (plain(one.array) == expected[0]).all()
            assert (plain(two.array) == expected[1]).all()
        both.close()
        some.close()

    together((partition, width, rings, dtype), body)


def test_a_redistribution_says_how_many_elements_leave_this_rank(comm: Any) -> None:
    size = comm.size
    rows, columns = (
        Partition((4 * size, 6 * size), {"p": size}, split) for split in (("p", None), (None, "p"))
    )
    assert Redistribution(comm, rows, rows).elements_sent == 0
    assert Redistribution(comm, rows, columns).elements_sent == 4 * 6 * (size - 1)
    starts = Points((2 * size, 3), [range(2 * r, 2 * r + 2) for r in range(size)])
    ends = Points((2 * size, 3), [range(2 * r, 2 * r + 2) for r in reversed(range(size))])
    stays = 2 * comm.rank == size - 1
    assert Redistribution(comm, starts, ends).elements_sent == (0 if stays else 6)


def test_a_rank_that_is_not_in_the_target_gets_none_from_each_call(comm: Any) -> None:
    rows, whole = Partition((4 * comm.size,), {"p": comm.size}), Partition((4 * comm.size,), {})
    move, x, out = Redistribution(comm, rows, whole), np.ones(4), np.empty(4 * comm.size)
    for _ in range(3):
        assert (move(x, out=out) is None) == (comm.rank != 0)
    move.close()


@steady
@given(st.data())
@pytest.mark.timeout(60)
def test_redistribution_between_any_two_partitions_keeps_the_whole(
    comm: Any, together: Together, data: Any
) -> None:
    source = data.draw(partitions())
    target = fits(comm, data.draw(partitions(source.shape)))
    source = fits(comm, source)
    origins = data.draw(st.permutations(range(comm.size)))[: source.size]
    tos = data.draw(st.permutations(range(comm.size)))[: target.size]
    dtype = data.draw(st.sampled_from(["float32", "complex128", "int64", "torch.float64"]))

    def body() -> None:
        whole = values(source.shape, dtype)
        x = None
        if comm.rank in origins:
            me = origins.index(comm.rank)
            share = whole[source.box(me).slices()] * (1 + source.summand(me))
            x = Field(hpcomm.self_, share.shape, dtype=dtype_of(dtype)).array
            x[...] = torch.from_numpy(share) if dtype.startswith("torch.") else share
        before = None if x is None else plain(x).copy()
        move = Redistribution(comm, source, target, origins, tos)
        s = source.summands
        for _ in range(2):
            got = move(x, dtype=dtype_of(dtype))
            assert (got is None) == (comm.rank not in tos)
            if got is not None:
                me = tos.index(comm.rank)
                expected = whole[target.box(me).slices()] * (s * (s + 1) // 2)
                if target.summand(me):
                    expected = np.zeros_like(expected)
                assert plain(got).shape == expected.shape
                assert (plain(got) == expected).all()
        assert before is None or (plain(x) == before).all()
        move.close()

    together((source, target, origins, tos, dtype), body)


@steady
@given(st.integers(0, 12), st.data())
def test_points_are_gathered_exchanged_and_given_back(
    comm: Any, together: Together, n: int, data: Any
) -> None:
    owner = np.array(data.draw(st.lists(st.integers(0, comm.size - 1), min_size=n, max_size=n)), int)
    order = np.array(data.draw(st.permutations(range(n))), int)
    owned = [order[owner[order] == r] for r in range(comm.size)]
    ghosts = [order[owner[order] == (r + 1) % comm.size] if comm.size > 1 else [] for r in range(comm.size)]

    def body() -> None:
        field = filled(comm, Points((n, 2), owned, ghosts), "float32")
        whole = values((n, 2), "float32")
        field.update_halo()
        here = np.concatenate([owned[comm.rank], np.asarray(ghosts[comm.rank], int)]).astype(int)
        assert (field.array == whole[here]).all()
        assert (field.all_gather() == whole).all()
        at_root = field.gather(comm.size - 1)
        assert (at_root is None) == (comm.rank != comm.size - 1)
        assert field.sum() == whole.sum()
        rows = field.redistribute(Partition((n, 2), {"p": comm.size}, ("p", None)))
        assert (rows.inner == whole[rows.box.slices()]).all()
        back = Field(comm, field.partition, dtype="float32")
        rows.redistribute(back)
        assert (back.inner == field.inner).all()
        assert (
            Field(comm, field.partition, dtype="float32").scatter(at_root, comm.size - 1).inner == back.inner
        ).all()

    together((n, owned), body)


@pytest.fixture
def field(comm: Any) -> Field:
    mesh = comm.mesh(y=-1, x=2 if comm.size == 4 else 1)
    made = Field(mesh, (5, 7), halo=1, dtype="float32", name="T", unit="K")
    made.inner[...] = 10 * made.indices[0] + made.indices[1]
    return made


WHOLE = 10.0 * np.arange(5)[:, None] + np.arange(7)


def test_a_round_trip_through_one_rank_gives_back(comm: Any, field: Field) -> None:
    whole = field.gather(root=comm.size - 1)
    assert (whole is None) == (comm.rank != comm.size - 1)
    other = Field(field.comm, field.partition, dtype="float32").scatter(whole, root=comm.size - 1)
    assert (other.all_gather() == WHOLE).all()
    assert other.all_gather().dtype == np.float32
    with pytest.raises(hpcomm.DtypeError, match="float64"):
        other.scatter(np.ones((5, 7)))


def test_reductions_are_over_the_whole_and_count_copies_once(comm: Any, field: Field) -> None:
    assert field.sum() == WHOLE.sum()
    assert field.mean() == WHOLE.mean()
    assert (field.min(), field.max()) == (0.0, 46.0)
    assert field.norm() == pytest.approx(np.linalg.norm(WHOLE), rel=1e-14)
    assert field.dot(field) == pytest.approx((WHOLE**2).sum(), rel=1e-14)
    copies = Field(comm, Partition((3,), {"copy": comm.size}, (None,)), dtype="int32")
    copies.inner[...] = [1, 2, 3]
    assert copies.sum() == 6
    assert copies.max() == 3
    summands = Field(comm, Partition((3,), {"dp": comm.size}, (None,), partial=["dp"]), dtype="int32")
    summands.inner[...] = [1, 2, 3]
    if comm.size > 1:
        with pytest.raises(hpcomm.LayoutError, match="partial"):
            summands.sum()
        with pytest.raises(hpcomm.LayoutError, match="partial"):
            summands.update_halo()
    whole = summands.redistribute(Partition((3,), {"p": comm.size}))
    assert whole.all_gather().tolist() == [comm.size * i for i in (1, 2, 3)]


@pytest.mark.parametrize(
    "key", [np.s_[1:4:2, 3], np.s_[...], np.s_[-1], np.s_[:, 2:2], np.s_[0, 1], np.s_[..., 6]]
)
def test_a_slice_by_global_index_is_the_wholes(field: Field, key: Any) -> None:
    got = field[key]
    assert np.shape(got) == WHOLE[key].shape
    assert (got == WHOLE[key]).all()
    changed = WHOLE.copy()
    changed[key] = -WHOLE[key]
    field[key] = -WHOLE[key]
    assert (field.all_gather() == changed).all()
    changed[key] = 7
    field[key] = 7
    assert (field[...] == changed).all()


def test_points_are_sliced_by_global_index(comm: Any) -> None:
    order = np.random.default_rng(1).permutation(9)
    points = Points((9, 3), [order[r :: comm.size] for r in range(comm.size)])
    for dtype in ("float32", "torch.float32"):
        field = filled(comm, points, dtype)
        whole = values((9, 3), "float32")
        for key in (np.s_[1:8:3], np.s_[4], np.s_[..., 1], np.s_[::2, 1:], np.s_[3:3]):
            assert np.shape(field[key]) == whole[key].shape
            assert (plain(field[key]) == whole[key]).all()
            whole[key] *= -1
            field[key] = torch.from_numpy(whole[key]) if dtype.startswith("torch.") else whole[key]
            assert (plain(field.all_gather()) == whole).all()
        field[2:4] = 7
        assert (plain(field[2:4]) == 7).all()


def test_a_field_lies_on_a_grid_as_on_a_mesh(comm: Any) -> None:
    grid = comm.cart((-1, 2 if comm.size == 4 else 1), periodic=(False, True))
    mesh = comm.mesh(axis0=grid.shape[0], axis1=grid.shape[1], periodic="axis1")
    on_grid, on_mesh = (Field(ranks, (7, 5), dtype="int64", halo=1) for ranks in (grid, mesh))
    for field in (on_grid, on_mesh):
        field.inner[...] = 10 * field.indices[0] + field.indices[1]
        field.update_halo()
    assert on_grid.partition == on_mesh.partition
    assert on_grid.periodic == on_mesh.periodic == (1,)
    assert (on_grid.array == on_mesh.array).all()
    grid.close()
    mesh.close()


def test_a_number_is_a_field_without_axes(comm: Any) -> None:
    field = Field(comm, Partition((), {"r": comm.size}), halo=())
    field[...] = 3
    field.update_halo()
    whole = field.gather()
    assert whole is None if comm.rank else whole.shape == () and whole == 3
    assert (field.sum(), field[()], field.all_gather()) == (3, 3, 3)
    assert field.redistribute(Partition((), {"q": comm.size})).inner == 3


def test_a_partial_field_is_refused_by_what_needs_its_values(comm: Any, tmp_path: Path) -> None:
    if comm.size == 1:
        pytest.skip("one rank alone holds the sum already")
    field = Field(comm, Partition((3,), {"dp": comm.size}, (None,), partial=["dp"]), name="g")
    for deed in (
        lambda: field[0],
        lambda: field + 1,
        lambda: hpcomm.io.save(field, tmp_path / "x"),
        lambda: hpcomm.io.write_raw(field, tmp_path / "x"),
        lambda: hpcomm.checkpoint.save(tmp_path, [field]),
    ):
        with pytest.raises(hpcomm.LayoutError, match="is partial"):
            deed()


def test_torch_fields_slice_too(comm: Any) -> None:
    field = Field(comm, (6, 2), dtype=torch.bfloat16)
    field[1:5, :] = torch.arange(8).reshape(4, 2).to(torch.bfloat16)
    assert field[2].tolist() == [2.0, 3.0]
    assert field[2].dtype == torch.bfloat16
    assert (field.sum(), field.max()) == (28.0, 7.0)


@pytest.mark.parametrize("dtype", ["float64", "int16", "torch.float32", "torch.bfloat16"])
def test_values_of_any_kind_are_set_or_refused(comm: Any, dtype: str) -> None:
    field = Field(comm, (6, 4), dtype=dtype_of(dtype), halo=1)
    due = np.zeros((6, 4))
    rows = np.arange(8.0).reshape(2, 4)
    values: list[Any] = [7, np.float32(3), [1, 2, 3, 4], rows, rows[:, :1], rows.astype("f2")]
    for value in [*values, torch.from_numpy(rows), torch.ones(4, dtype=torch.bfloat16)]:
        field[1:5:3] = value
        due[1:5:3] = np.asarray(value.float()) if isinstance(value, torch.Tensor) else value
        assert (plain(field.gather()) == due).all() if comm.rank == 0 else field.gather() is None
    for shape in ((3, 3), (2, 4, 1)):
        for value in (np.ones(shape), torch.ones(shape)):
            with pytest.raises(hpcomm.LayoutError, match="does not broadcast to") as caught:
                field[1:5:3] = value
            assert "setting a slice on communicator" in str(caught.value)
    for value in (1j, np.ones(4, complex)):
        with pytest.raises(hpcomm.DtypeError, match="the value is complex128"):
            field[0] = value
    for value in ("x", None):
        with pytest.raises(hpcomm.UsageError, match="setting a slice"):
            field[0] = value


def test_what_does_not_fit_is_said(comm: Any, field: Field) -> None:
    with pytest.raises(hpcomm.LayoutError, match="index 5 is not on axis 0"):
        field[5]
    with pytest.raises(hpcomm.LayoutError, match="3 indices for 2 axes"):
        field[0, 0, 0]
    with pytest.raises(hpcomm.LayoutError, match="not positive"):
        field[::-1]
    for key in (1.5, True, [0], slice(0.0, 2), (..., ...), np.ones((5, 7), bool)):
        with pytest.raises(hpcomm.LayoutError, match=r"an index of axis \d is of type"):
            field[key]
    with pytest.raises(hpcomm.LayoutError, match="not in the same partition"):
        field.dot(Field(comm, Partition((5, 7), {"p": comm.size}, (None, "p")) if comm.size > 1 else (1, 7)))
    with pytest.raises(hpcomm.DtypeError, match="'f9' is no dtype"):
        Field(comm, (3,), dtype="f9")
    with pytest.raises(hpcomm.LayoutError, match=f"the communicator has {comm.size}"):
        Field(comm, Partition((3,), {"p": comm.size + 1}))
    with pytest.raises(hpcomm.LayoutError, match="array has shape"):
        Field(comm, (3,), array=np.ones((9, 9)))
    with pytest.raises(hpcomm.UsageError, match="needs a field"):
        Halo()
    for wrong in (np.ones(3), [field]):
        with pytest.raises(hpcomm.UsageError, match="what Halo was given is of type") as caught:
            Halo(wrong)
        assert "array=x" in str(caught.value)
    with pytest.raises(hpcomm.UsageError, match="what is to hold the field is of type tuple"):
        Field((5, 7), comm)
    with pytest.raises(hpcomm.UsageError, match="dot multiplies by is of type"):
        field.dot(field.array)
    with pytest.raises(hpcomm.LayoutError, match="x is float64"):
        field.scatter(np.ones((2, 2)))
    with pytest.raises(hpcomm.DtypeError, match="x is float64"):
        field.scatter(np.ones((5, 7)))
    with pytest.raises(hpcomm.RankError, match="use ranks -1 to"):
        field.gather(root=-1)
    with pytest.raises(hpcomm.RankError, match="the communicator has"):
        Redistribution(comm, Partition(3, {"p": comm.size + 1}), Partition(3, {}))
    with pytest.raises(hpcomm.UsageError, match="a partition is of type Field"):
        Redistribution(comm, field, field)
    move = Redistribution(comm, Partition(8, {"p": comm.size}), Partition(8, {"p": comm.size}))
    with pytest.raises(hpcomm.LayoutError, match="this rank holds"):
        move(np.ones(99))
    x = np.ones(move.source_shape)
    with pytest.raises(hpcomm.LayoutError, match="overlap"):
        move(x, out=x)
    with pytest.raises(hpcomm.DtypeError, match="x holds float64"):
        move(x, out=np.ones(move.target_shape, "f4"))


def test_an_exchange_says_how_it_is_misused(comm: Any, field: Field) -> None:
    halo = Halo(field)
    with pytest.raises(hpcomm.UsageError, match="was not started"):
        halo.wait()
    halo.start()
    with pytest.raises(hpcomm.UsageError, match="not waited for"):
        halo.start()
    halo.wait(timeout=60)
    assert "halo exchange:" in halo.explain()
    for timeout in (None, None, 10, None):  # the first call is made step by step, later ones are not
        halo(timeout)
    halo.start()
    with pytest.raises(hpcomm.UsageError, match="not waited for"):
        halo()
    halo.wait()
    halo()
    halo()
    halo.close()
    for call in (halo.start, halo):
        with pytest.raises(hpcomm.UsageError, match="is closed"):
            call()
    if comm.size > 1:
        late = Halo(field)
        if comm.rank == 0:
            comm.barrier()
            late()
        else:
            if comm.rank == 1:
                late.start()
                with pytest.raises(hpcomm.WaitTimeoutError, match="not complete after"):
                    late.wait(timeout=0.05)
            comm.barrier()
            if comm.rank != 1:
                late.start()
            late.wait()


def test_a_closed_communicator_is_said(comm: Any, tmp_path: Path) -> None:
    own = comm.dup()
    field = Field(own, (4, 3), halo=1, name="T")
    own.close()
    for deed in (
        field.update_halo,
        lambda: Halo(field),
        lambda: hpcomm.io.save(field, tmp_path / "x"),
        lambda: hpcomm.checkpoint.save(tmp_path, field),
    ):
        with pytest.raises(hpcomm.UsageError, match="is closed"):
            deed()


def test_several_fields_travel_in_one_message_and_small_faces_are_not_copied(comm: Any) -> None:
    mesh = comm.mesh(y=1, x=-1)
    fields = [Field(mesh, (4, 8), halo=1, dtype=d) for d in ("float32", "int64", "int8")]
    one, all_together = Halo(fields[0]), Halo(*fields)
    neighbours = (comm.rank > 0) + (comm.rank < comm.size - 1)
    assert one.messages == all_together.messages == 2 * neighbours  # one each way
    assert " 0 bytes gathered" in all_together.explain()
    one.close()
    all_together.close()


def test_arrays_live_no_longer_than_those_who_use_them(comm: Any) -> None:
    gc.disable()  # it does not know how large they are, and may come late
    try:
        field = Field(comm, (4 * comm.size, 300), halo=(1, 0), periodic=[0])
        for _ in range(3):
            field.update_halo()
        turned = field.redistribute(Partition(field.shape, {"p": comm.size}, (None, "p")))
        halo = Halo(turned)
        halo()
        halo.close()
        left = [weakref.ref(each.array) for each in (field, turned)]
        del field, turned, halo
        assert [array() is None for array in left] == [True, True]
    finally:
        gc.enable()


def test_many_exchanges_of_one_communicator_do_not_mix(comm: Any) -> None:
    fields = [Field(comm, (8,), halo=1, periodic=[0], dtype="int64") for _ in range(3)]
    for i, field in enumerate(fields):
        field.inner[...] = 100 * i + field.indices[0]
    halos = [Halo(field) for field in fields]
    for i in (2, 0, 1) if comm.rank % 2 else (0, 1, 2):
        halos[i].start()
    for halo in halos:
        halo.wait()
    for i, field in enumerate(fields):
        if field.box.size:
            assert field.array[0] == 100 * i + (field.box.start[0] - 1) % 8


@pytest.mark.few
@pytest.mark.parametrize("whole", [(1 << 40, 1 << 40), (1 << 62,), (1 << 33, 1 << 13)], ids=str)
def test_a_field_that_finds_no_room_says_how_much_it_needs(comm: Any, whole: tuple[int, ...]) -> None:
    with pytest.raises(
        hpcomm.LayoutError, match="elements, which this rank would hold, find no room"
    ) as told:
        hpcomm.Field(comm, whole)
    assert told.value.hint == "a smaller whole or dtype, or more ranks"


SCATTERED = np.random.default_rng(5).standard_normal((13, 17)) * 10.0 ** np.random.default_rng(6).integers(
    -30, 30, (13, 17)
)
WIDE = {"f": np.float64, "c": np.complex128, "i": np.int64, "b": np.int64}


@pytest.mark.few
@pytest.mark.parametrize("dtype", ["float64", "float32", "complex128", "int16", "bool"])
def test_numbers_of_a_field_are_numpys_whatever_the_partition(
    comm: Any, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And exact sums are one number, to the last bit: that of math.fsum."""
    monkeypatch.setattr(numbers, "PIECE", 20)
    ties = np.random.default_rng(7).integers(-3, 3, (13, 17))
    whole = (SCATTERED if dtype[0] == "f" else SCATTERED * (1 - 2j) if dtype[0] == "c" else ties).astype(
        dtype
    )
    wide = whole.astype(WIDE[whole.dtype.kind])
    rows = [np.random.default_rng(1).permutation(13)[r :: comm.size] for r in range(comm.size)]
    p = {"p": comm.size}
    cuts = (("p", None), (None, "p"), (None, None))
    for part in (*(Partition((13, 17), p, cut) for cut in cuts), Points((13, 17), rows)):
        field = Field(comm, part, dtype=dtype).scatter(whole)
        exact = field.sum(deterministic=True)
        if dtype[0] == "c":
            assert exact == complex(math.fsum(wide.real.ravel()), math.fsum(wide.imag.ravel()))
        else:
            assert exact == (math.fsum(wide.ravel()) if dtype[0] == "f" else wide.sum())
            assert (field.argmin(), field.argmax()) == (whole.argmin(), whole.argmax())
        assert field.mean(deterministic=True) == exact / whole.size
        squares = (abs(wide).astype(np.float64) ** 2).ravel()
        assert field.norm(deterministic=True) == math.sqrt(math.fsum(squares))
        assert np.isclose(field.norm(), math.sqrt(math.fsum(squares)), rtol=1e-14)
        assert np.isclose(field.dot(field, deterministic=True), np.vdot(wide, wide), rtol=1e-14)
        assert np.isclose(np.var(field), wide.var(), rtol=1e-12)
        assert np.isclose(field.std(ddof=1, deterministic=True), wide.std(ddof=1), rtol=1e-12)


@pytest.mark.few
def test_numbers_of_a_field_at_the_ends_of_floats(comm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    field = Field(comm, (4, 4))
    exact = partial(field.sum, deterministic=True)
    assert (exact(), field.argmax()) == (0, 0)
    field.inner[...] = 5e-324
    assert exact() == 16 * 5e-324
    field.inner[...] = 0.1
    monkeypatch.setenv("HPCOMM_DETERMINISTIC", "1")
    assert (field.sum(), field.mean()) == (math.fsum([0.1] * 16), math.fsum([0.1] * 16) / 16)
    field.inner[...] = -1e308
    assert exact() == -np.inf
    field[0, 1] = np.inf
    assert (exact(), field.argmax()) == (np.inf, 1)
    field[2, 1] = field[3, 0] = np.nan
    assert np.isnan(exact())
    assert (field.argmin(), field.argmax()) == (9, 9)  # as numpy: the first that is no number
    assert Field(comm, Partition((), {"copy": comm.size})).argmax() == 0
    for verb in ("min", "max", "argmin", "argmax"):  # as numpy
        with pytest.raises(hpcomm.UsageError, match="has no elements"):
            getattr(Field(comm, (0, 3)), verb)()
    for verb in ("min", "argmax"):
        with pytest.raises(hpcomm.DtypeError, match=f"complex numbers have no {verb[-3:]}"):
            getattr(Field(comm, (3,), dtype=complex), verb)()
