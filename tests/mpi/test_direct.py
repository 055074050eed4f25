"""Direct calls by MPI, as across nodes: what the general path gives, or left to it."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import hpcomm
from hpcomm.communicator.verbs.collectives import careful
from hpcomm.communicator.verbs.direct import ByLibrary
from hpcomm.core.operation import Arguments

pytestmark = [pytest.mark.few, pytest.mark.mpi(min_size=2)]
P = "p"
CALLS = {
    "broadcast": (3,), "reduce": (3,), "all_reduce": (3,), "gather": (3,), "all_gather": (3,),
    "scatter": (P, 3), "reduce_scatter": (P, 3), "all_to_all": (P, 3),
}  # fmt: skip
REDUCES, ROOTED = ("reduce", "all_reduce", "reduce_scatter"), ("broadcast", "scatter", "reduce", "gather")


@pytest.fixture
def comm(own_comm: Any) -> Any:
    own_comm.context.node = None
    own_comm.context.go_direct()
    assert type(own_comm.context.direct) is ByLibrary
    return own_comm


def arguments(comm: Any, verb: str, root: int, out: Any) -> tuple[Any, ...]:
    return (*["sum"] * (verb in REDUCES), *[root] * (verb in ROOTED), out)


@pytest.mark.parametrize("dtype", ["f8", "i4", "c8", "?"])
@pytest.mark.parametrize("verb", CALLS)
def test_a_direct_call_gives_what_the_general_path_gives(comm: Any, verb: str, dtype: str) -> None:
    shape = tuple(comm.size if n == P else n for n in CALLS[verb])
    x = (np.arange(np.prod(shape)).reshape(shape) * (comm.rank + 1)).astype(dtype)
    kept, root = x.copy(), comm.size - 1
    given = Arguments(verb, x, None, "sum" if verb in REDUCES else None, root)
    expected = careful(comm.context, given, False)
    into = None if expected is None else np.empty_like(expected)
    for out in (None, into):
        if verb == "broadcast" and out is not None:
            out = x.copy()  # in place is what it takes
            done = comm.context.direct.broadcast(out, root, out)
        else:
            done = getattr(comm.context.direct, verb)(x, *arguments(comm, verb, root, out))
        if done is NotImplemented:  # on all ranks alike: all bring the same
            assert dtype in ("c8", "?"), verb
            continue
        np.testing.assert_array_equal(done, expected)
        assert out is None or done is out
    assert np.array_equal(x, kept)


@pytest.mark.parametrize("n", [0, 2, 3])
@pytest.mark.parametrize("verb", ["gather", "all_gather", "scatter", "reduce_scatter", "all_to_all"])
def test_blocks_may_lie_one_after_the_other(comm: Any, verb: str, n: int) -> None:
    """Along the first axis, where there is an out."""
    p, blocks = comm.size, np.array([1.0, comm.rank + 2])[np.arange(comm.size * n * 3) % 2]
    stacked = blocks.reshape(p, n, 3)
    x = stacked[comm.rank] if verb.endswith("gather") else stacked
    expected = getattr(comm, verb)(x, **{"root": p - 1} if verb in ROOTED else {})
    shapes = [(p, n, 3), (p * n, 3)] if verb.endswith(("gather", "all")) else [(n, 3), (1, n, 3)]
    for out in map(np.empty, shapes):
        given = x if verb.endswith("gather") else x.reshape(p * n, 3)
        if verb == "all_to_all" and out.ndim == 3 and p * n != p:
            assert comm.context.direct.all_to_all(given, out) is NotImplemented  # out is as x
            continue
        done = getattr(comm.context.direct, verb)(given, *arguments(comm, verb, p - 1, out))
        if expected is None:
            assert done is None
        else:
            assert done is out
            np.testing.assert_array_equal(out.reshape(expected.shape), expected)


@pytest.mark.parametrize("op", ["sum", "max"])
@pytest.mark.parametrize("verb", CALLS)
@pytest.mark.parametrize("later", [False, True])
def test_ranks_of_both_paths_meet(comm: Any, verb: str, op: str, later: bool) -> None:
    for n, dtype in itertools.product((3, 70_001), ("f8", "f4", "c8", "i2")):
        if verb not in REDUCES or op != "max" or dtype != "c8":
            check_meeting(comm, verb, op, later, n, dtype)


def check_meeting(comm: Any, verb: str, op: str, later: bool, n: int, dtype: str) -> None:
    """Some ranks give an array that is not contiguous, which only the core takes directly."""
    shape = tuple(comm.size if k == P else n for k in CALLS[verb])
    numbers = np.random.default_rng(n + comm.rank).standard_normal((*shape, 2)) * 100
    x, root = numbers.astype(dtype)[..., 0], comm.size - 1
    assert not x.flags.c_contiguous
    given = [*[op] * (verb in REDUCES), *[root] * (verb in ROOTED)]
    expected = getattr(comm, verb)(x, *given)
    for is_odd in (False, True):
        mine = np.ascontiguousarray(x) if comm.rank % 2 == is_odd else x
        kept = mine.copy()
        for _ in range(2):
            made = getattr(comm, verb)(mine, *given, async_op=later)
            np.testing.assert_array_equal(made.wait() if later else made, expected)
        assert np.array_equal(mine, kept)
        if verb in ("broadcast", "all_reduce"):
            made = getattr(comm, verb)(mine, *given, out=mine, async_op=later)
            assert (made.wait() if later else made) is mine
            np.testing.assert_array_equal(mine, expected)
            mine[...] = kept


@pytest.mark.parametrize("verb", CALLS)
def test_what_is_not_plain_is_left_to_the_general_path(comm: Any, verb: str) -> None:
    shape = tuple(comm.size if n == P else n for n in CALLS[verb])
    shared = np.broadcast_to(np.ones(1), (*shape[:-1], 6))
    readonly = np.ones(shape)
    readonly.flags.writeable = False
    for x, out in ((shared, None), (memoryview(b"abc"), None), (np.ones(shape), readonly)):
        if out is None or verb not in ("reduce", "gather") or comm.rank == 0:
            assert getattr(comm.context.direct, verb)(x, *arguments(comm, verb, 0, out)) is NotImplemented
    if verb in ROOTED:
        for root in (-1, comm.size, True, 0.0, None):
            assert (
                getattr(comm.context.direct, verb)(np.ones(3), *arguments(comm, verb, root, None))
                is NotImplemented
            )
    with pytest.raises(hpcomm.UsageError):
        getattr(comm, verb)(None)
