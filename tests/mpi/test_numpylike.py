"""What numpy's functions do with a field."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import hpcomm
from hpcomm import Field

pytestmark = pytest.mark.once


@pytest.fixture
def field(comm: Any) -> Field:
    mesh = comm.mesh(y=-1, x=2 if comm.size == 4 else 1)
    made = Field(mesh, (5, 7), halo=1, dtype="float32", name="T", unit="K")
    made.inner[...] = 10 * made.indices[0] + made.indices[1]
    return made


def test_numpy_sees_what_a_rank_owns_and_its_functions_work_on_the_whole(comm: Any, field: Field) -> None:
    field.inner[...] = field.indices[0] * 7 + field.indices[1]
    own = np.asarray(field)
    assert (field.ndim, field.size, np.shape(field), np.ndim(field)) == (2, 35, (5, 7), 2)
    assert own.dtype == field.dtype == np.float32
    assert np.shares_memory(own, field.array)
    assert np.array_equal(own, field.inner)
    assert not np.shares_memory(np.array(field), field.array)
    assert np.asarray(field, "float64").dtype == np.float64
    with pytest.raises(ValueError, match="without a copy"):
        np.asarray(field, "int32", copy=False)
    assert (np.sum(field), np.max(field), np.mean(field)) == (595, 34, 17)
    assert np.linalg.norm(field) == pytest.approx(np.linalg.norm(np.arange(35.0)))
    roots = np.sqrt(field)
    assert isinstance(roots, Field)
    assert np.array_equal(roots.inner, np.sqrt(own))
    assert np.array_equal(np.multiply(2, np.add(field, roots)).inner, 2 * (own + np.sqrt(own)))
    assert np.add(field, 1, out=field) is field
    assert field.sum() == 630
    whole, part = np.divmod(field, 4)
    assert np.array_equal(whole.inner * 4 + part.inner, field.inner)


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_operators_make_fields_of_this_ranks_elements(comm: Any, field: Field, kind: str) -> None:
    x: Any = field.inner.copy()
    if kind == "torch":
        x = torch.from_numpy(x)
        field = Field(comm, field.partition, halo=1, like=x, name="T", unit="K")
        field.inner[...] = x
    field.update_halo()
    rim = field.array[:1].tolist()
    other = 2 * field + 1 - field / 4
    y = 2 * x + 1 - x / 4
    made = {
        "product": (field * other, x * y), "quotient": (field / other, x / y), "power": (field**2, x**2),
        "turned": (1 - (3 / other) ** 2, 1 - (3 / y) ** 2), "signs": (abs(-field), abs(-x)),
        "base": (2 ** (field / 64), 2 ** (x / 64)),
    }  # fmt: skip
    for case, (found, due) in made.items():
        assert type(found.array) is type(field.array), case
        assert found.dtype == field.dtype, case
        assert (found.name, found.unit, found.array.shape) == ("T", "", field.owned_shape), case
        assert found.inner.tolist() == due.tolist(), case
    same = field
    field += other
    field *= 2
    field -= 3
    field /= other
    field **= 1
    assert field is same
    assert field.inner.tolist() == (((x + y) * 2 - 3) / y).tolist()
    assert field.array[:1].tolist() == rim
    with pytest.raises(hpcomm.LayoutError, match="not in the same partition"):
        field * Field(comm, (5, 8), like=x)
    with pytest.raises(hpcomm.LayoutError, match="which part of it is this rank's"):
        field * np.ones((5, 7))
    stranger = Field(comm, field.partition, like=torch.zeros(1) if kind == "numpy" else np.zeros(1))
    with pytest.raises(
        hpcomm.UsageError, match=r"torch\.multiply|two fields whose arrays are of one library"
    ):
        field * stranger


REFUSED_BY_NUMPY = {
    "iteration": (lambda f: list(f), "is not iterated.*\n.*\n.*field.inner"),
    "containment": (lambda f: 3 in f, "is not iterated"),
    "another function": (lambda f: np.cumsum(f), "numpy.cumsum does not work on <Field T"),
    "an axis": (lambda f: np.sum(f, axis=0), "numpy.sum does not work"),
    "a reduction by hand": (lambda f: np.add.reduce(f), "numpy.add.reduce does not work"),
    "an array": (lambda f: np.add(f, np.ones(7)), "which part of it is this rank's"),
    "from the left": (lambda f: np.ones((5, 7)) * f, "which part of it is this rank's"),
    "another partition": (lambda f: np.add(f, Field(f.comm, (5, 8))), "not in the same partition"),
    "a kind that loses": (
        lambda f: np.sqrt(f, out=Field(f.comm, f.partition, dtype="int32")),
        "gives float32",
    ),
}


@pytest.mark.parametrize("case", REFUSED_BY_NUMPY)
def test_what_numpy_cannot_do_with_a_field_is_said_without_a_call(field: Field, case: str) -> None:
    call, words = REFUSED_BY_NUMPY[case]
    with pytest.raises(hpcomm.UsageError, match=words):
        call(field)
    if field.comm.rank == 0:  # nobody waits for the others
        with pytest.raises(hpcomm.UsageError, match=words):
            call(field)


def test_numpy_sees_halves_as_numbers(comm: Any) -> None:
    for kind in (torch.float16, torch.bfloat16):
        field = Field(comm, (6, 2), dtype=kind)
        field.inner[...] = 1.5
        assert np.asarray(field).tolist() == [[1.5, 1.5]] * len(field.inner)
        with pytest.raises(hpcomm.UsageError, match=r"torch\.sqrt"):
            np.sqrt(field)
