"""The laws for whatever shapes, strides, dtypes and nestings Hypothesis thinks of, the same on all ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from arrays import DTYPES, bits, dtype_of, make, plain_of, plain_values
from contract import BY_NAME, call
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

Together = Callable[[object, Callable[[], None]], None]

# No shrinking and no database: a rank that fails alone must not go its own way; `together` compares examples.
steady = settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)

dims = st.lists(st.integers(0, 5), max_size=4).map(tuple)
dtypes = st.sampled_from(DTYPES)
kinds = st.sampled_from(["numpy", "torch"])
times = st.sampled_from(["blocking", "async"])
steps = st.lists(st.sampled_from([-3, -2, -1, 1, 2, 3]), min_size=4, max_size=4)


def view(
    shape: tuple[int, ...], steps: list[int], order: int, dtype: str, seed: int
) -> tuple[Any, np.ndarray]:
    """A numpy array of shape whose axes run in any order and with any step, and its plain values."""
    axes = np.random.default_rng(order).permutation(len(shape))
    wide = tuple(shape[a] * abs(steps[i]) for i, a in enumerate(axes))
    base = make("numpy", dtype, "contiguous", plain_values(dtype, wide, seed))
    x = base[(*(slice(None, None, step) for step in steps[: len(shape)]), ...)].transpose(np.argsort(axes))
    assert x.shape == shape
    return x, plain_of(x)


def torch_view(x: np.ndarray, dtype: str) -> torch.Tensor:
    """x as tensor, of the same strides where torch allows them."""
    if any(stride < 0 for stride in x.strides):
        x = x.copy()
    if dtype in ("float16", "bfloat16"):
        return torch.from_numpy(x.view(np.int16)).view(getattr(torch, dtype))
    return torch.from_numpy(x)


@steady
@given(
    dims, steps, st.integers(0, 9), dtypes, kinds, st.sampled_from(sorted(BY_NAME)), times, st.integers(0, 3)
)
@pytest.mark.timeout(60)
def test_any_view_goes_through_any_verb_as_its_definition_says(
    comm: Any,
    together: Together,
    shape: Any,
    steps: Any,
    order: int,
    dtype: str,
    kind: str,
    name: str,
    time: str,
    root: int,
) -> None:
    verb = BY_NAME[name]
    root %= comm.size
    whole = (comm.size, *shape) if verb.stacked else shape
    if len(whole) > 4:
        whole = whole[:4]
    built = [view(whole, steps, order, dtype, rank) for rank in range(comm.size)]
    x = built[comm.rank][0] if kind == "numpy" else torch_view(built[comm.rank][0], dtype)
    expected = verb.expected([plain for _, plain in built], comm.rank, root)

    def body() -> None:
        before = bits(x)
        y = call(comm, verb, x, root, None, time)
        assert (y is None) == (expected is None)
        if expected is not None:
            assert dtype_of(y) == dtype
            assert np.array_equal(plain_of(y), expected)
        assert bits(x) == before

    together((whole, steps, order, dtype, kind, name, time, root), body)


@steady
@given(dims, steps, st.integers(0, 9), dtypes, kinds)
def test_any_view_receives_in_place(
    comm: Any, together: Together, shape: Any, steps: Any, order: int, dtype: str, kind: str
) -> None:
    x, _ = view(shape, steps, order, dtype, seed=comm.rank)
    place = x if kind == "numpy" else torch_view(x, dtype)
    others = [view(shape, steps, order, dtype, seed=rank)[1] for rank in range(comm.size)]
    expected = BY_NAME["all_reduce"].expected(others, comm.rank, 0)

    def body() -> None:
        assert comm.all_reduce(place, out=place) is place
        assert np.array_equal(plain_of(place), expected)

    together((shape, steps, order, dtype, kind), body)


@steady
@given(st.lists(st.tuples(dims, dtypes, kinds), min_size=4, max_size=4), times)
def test_any_mixture_of_ragged_arrays_arrives(comm: Any, together: Together, sorts: Any, time: str) -> None:
    given_by = [
        make(kind, dtype, "contiguous", plain_values(dtype, shape, rank))
        for rank, (shape, dtype, kind) in enumerate(sorts)
    ]

    def body() -> None:
        got = comm.all_gather_ragged(given_by[comm.rank], async_op=time == "async")
        for rank, y in enumerate(got.wait(timeout=60) if time == "async" else got):
            assert type(y) is type(given_by[rank])
            assert dtype_of(y) == dtype_of(given_by[rank])
            assert np.array_equal(plain_of(y), plain_of(given_by[rank]))

    together((sorts, time), body)


leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False),
    st.text(max_size=20),
    st.binary(max_size=3000),
)
nested = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=5), inner, max_size=4)
    ),
)


@settings(steady, max_examples=20)  # it takes longer to draw them than to send them
@given(st.lists(nested, min_size=4, max_size=4))
def test_any_nesting_of_objects_arrives_equal(comm: Any, together: Together, objects: list[Any]) -> None:
    def body() -> None:
        mine = objects[comm.rank]
        assert comm.all_gather_object(mine) == objects[: comm.size]
        assert comm.broadcast_object(mine, root=comm.size - 1) == objects[comm.size - 1]
        assert comm.all_to_all_object([mine] * comm.size) == objects[: comm.size]
        left, right = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
        assert comm.sendrecv_object(mine, right, left) == objects[left]

    together(objects, body)


@steady
@given(st.lists(st.integers(0, 6000), min_size=1, max_size=12), st.integers(0, 5))
def test_messages_of_any_sizes_keep_their_order_and_their_tags(
    comm: Any, together: Together, sizes: list[int], seed: int
) -> None:
    left, right = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
    tags = np.random.default_rng(seed).integers(0, 3, len(sizes)).tolist()

    def body() -> None:
        sends = [
            comm.isend(np.full(n, i, np.int32), right, tag)
            for i, (n, tag) in enumerate(zip(sizes, tags, strict=True))
        ]
        for tag in (2, 0, 1):
            for i in [i for i, t in enumerate(tags) if t == tag]:
                y = comm.recv(source=left, tag=tag, dtype=np.int32)
                assert y.tolist() == [i] * sizes[i]
        for request in sends:
            request.wait(timeout=60)

    together((sizes, tags), body)
