"""What numpy's functions do with a field."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import hpcomm
from hpcomm import Field


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
