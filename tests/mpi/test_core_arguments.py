"""The node core takes what the general path takes, never more: then that says what is wrong.

Direct calls of MPI may take less.
"""

from __future__ import annotations

import itertools
import pickle
import tracemalloc
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from hpcomm.communicator.verbs import collectives
from hpcomm.communicator.verbs.direct import ByLibrary
from hpcomm.core.operation import Arguments
from hpcomm.errors import HpcommError
from hpcomm.transport import prepare

core = pytest.importorskip("hpcomm.node._native.core")
pytestmark = [
    pytest.mark.few,
    pytest.mark.three,
    pytest.mark.once,
    pytest.mark.mpi(min_size=2),
]  # one rank alone does not ask the core

REDUCTIONS = ["reduce", "all_reduce", "reduce_scatter", "scan", "exscan"]
ROOTED = ["broadcast", "reduce", "gather", "scatter"]
VERBS = [*REDUCTIONS, "broadcast", "gather", "scatter", "all_gather", "all_to_all"]


class CameError(Exception):
    """A call of the core that would have gone on to the others."""


@pytest.fixture
def node(comm: Any) -> Any:
    """As many ranks as comm has, of which only this one is there."""

    def hook(*args: Any) -> None:
        raise CameError

    core.know_numpy(np)
    segment = core.Segment(1 << 20)
    segment.unlink()
    node = core.Node(segment, segment.reserve(comm.size), comm.rank, hook, 0)
    yield node
    node.close()


def core_takes(node: Any, verb: str, x: Any, out: Any, op: Any, root: Any) -> bool:
    given = [x, *[op] * (verb in REDUCTIONS), *[root] * (verb in ROOTED), out]
    try:
        return getattr(node, verb)(*given) is not NotImplemented
    except CameError:
        return True


def package_takes(comm: Any, verb: str, x: Any, out: Any, op: Any, root: Any) -> bool:
    try:
        prepare.compose_call(comm.context, Arguments(verb, x, out, op, root), blocking=True)
    except HpcommError:
        return False
    return True


class OneCall(ByLibrary):
    """Direct calls of MPI that would have gone on to the others."""

    def _carry(self, *call: Any) -> object:
        raise CameError


def differing(comm: Any, node: Any, cases: Any) -> list[str]:
    """Where the core takes less or more than the package; or where direct calls of MPI take more."""
    wrong, library = [], OneCall(comm.context)
    for verb, x, out, op, root in cases:
        ours, theirs = (
            takes(where, verb, x, out, op, root)
            for takes, where in ((core_takes, node), (package_takes, comm))
        )
        ours = ours or (not theirs and core_takes(library, verb, x, out, op, root))
        if ours != theirs:
            seen = [getattr(a, "shape", a) for a in (x, out)]
            wrong.append(f"{verb} of {seen}, op {op}, root {root!r}: core {ours}, package {theirs}")
    return wrong


def test_shapes(comm: Any, node: Any) -> None:
    p = comm.size
    shapes = [(), (0,), (1,), (p,), (4,), (2, 2), (4, p), (2 * p,), (p, 4), (2 * p, 2), (p, 0), (p, 2, 2)]
    shapes += [(1, 4), (1, p, 4), (p, p, 4), (p * p, 4), (1, 1)]
    arrays = [None, *(np.zeros(shape) for shape in shapes)]
    outs = [None, *(np.zeros(shape) for shape in shapes)]
    assert differing(comm, node, itertools.product(VERBS, arrays, outs, ["sum"], [p - 1])) == []


def test_memory_in_common(comm: Any, node: Any) -> None:
    p = comm.size
    memory = np.zeros((p + 1, 4))
    views = [memory[:p], memory[1:], *memory, memory[:p].reshape(-1), memory[:1], memory[p - 1 :][:1]]
    assert differing(comm, node, itertools.product(VERBS, views, views, ["sum"], [0])) == []


def test_operators_roots_and_element_types(comm: Any, node: Any) -> None:
    names = [
        "sum",
        "avg",
        "prod",
        "min",
        "max",
        "band",
        "bor",
        "bxor",
        "land",
        "lor",
        "nonsense",
        "premul_sum",
    ]
    arrays = [np.zeros((comm.size, 2), t) for t in ("?", "i4", "u1", "f2", "f8", "c8", ">f8", "M8[s]", "S4")]
    wrong = differing(comm, node, itertools.product(VERBS, arrays, [None], names, [0]))
    assert [line for line in wrong if "core True" in line] == []
    x = np.zeros((comm.size, 2))
    roots = [-1, 0, comm.size - 1, comm.size, 1 << 40, True, False, 0.0, None, "0"]
    assert differing(comm, node, itertools.product(ROOTED, [x], [None], ["sum"], roots)) == []
    readonly, small = np.zeros((comm.size, 2)), x.astype("f4")
    readonly.flags.writeable = False
    outs = [readonly, small, x]
    assert differing(comm, node, itertools.product(VERBS, [x, readonly], outs, ["sum"], [0])) == []


def test_what_only_the_general_path_takes(comm: Any, node: Any) -> None:
    class Own(np.ndarray):
        pass

    x = np.zeros((comm.size, 4))
    unaligned = np.frombuffer(bytes(8 * x.size + 1), np.uint8)[1:].view("f8").reshape(x.shape)
    others = [
        x.view(Own),
        np.broadcast_to(x[:, :1], x.shape),
        x.data,
        bytes(8),
        1.5,
        np.float64(1),
        [1.0],
        unaligned,
        x.astype("g"),
    ]
    for verb, other in itertools.product(VERBS, others):
        assert not core_takes(node, verb, other, None, "sum", 0)
    for op in (sum, max, np.add, True, 0, None, ["sum"], comm):
        assert not core_takes(node, "all_reduce", x, None, op, 0)


def test_arrays_of_unusual_make(comm: Any, node: Any) -> None:
    """What is read in an array's own fields, and what the buffer protocol has to say."""
    x = np.arange(comm.size * 2.0).reshape(comm.size, 2)
    fixed, bytes_ = x.copy(), np.zeros(x.nbytes + 1, np.uint8)
    fixed.setflags(write=False)
    takes = [x, pickle.loads(pickle.dumps(x)), x.astype(np.longlong), x.astype("=f8"), x.copy(), fixed]
    takes += [x.astype("f8", order="F")[:, :1], np.broadcast_to(x, x.shape)]  # in order all the same
    leaves = [x.astype(">f8"), bytes_[1:].view(float).reshape(x.shape), x.view(np.matrix), np.float64(1)]
    leaves += [x.astype(np.longdouble).view("V16"), x.astype("O"), np.broadcast_to(x[:, :1], x.shape)]
    if comm.size > 1:
        takes += [x[:, ::2], x.T, x[::-1]]
    for x in takes:
        assert core_takes(node, "all_reduce", x, None, "sum", 0)
    for x in leaves:
        assert not core_takes(node, "all_reduce", x, None, "sum", 0)
    assert not core_takes(node, "all_reduce", takes[0], fixed, "sum", 0)


@pytest.mark.parametrize("alike", [True, False])
def test_arrays_that_do_not_lie_in_order_are_not_copied(comm: Any, node: Any, alike: bool) -> None:
    n = 1000 * comm.size
    lying = [np.ones((n, 400))[:, ::2], np.ones((200, n)).T][alike or comm.rank % 2]
    x, out = lying, np.zeros((n, 200), order="F") if alike else np.zeros((n, 400))[:, 1::2]
    room = np.empty((2 * comm.size, 400), order="F")[:, ::2]
    calls = {
        "all_reduce": lambda: comm.all_reduce(x, out=out),
        "reduce": lambda: comm.reduce(x, out=out, root=comm.size - 1),
        "broadcast": lambda: comm.broadcast(x, out=out),
        "gather": lambda: comm.gather(x[: n // comm.size], out=out),
        "scatter": lambda: comm.scatter(x, out=out[: n // comm.size]),
        "scan": lambda: comm.scan(x, out=out),
        "all_to_all": lambda: comm.all_to_all(x, out=out),
    }
    comm.all_reduce(room, out=room)
    for verb, call in calls.items():
        tracemalloc.start()
        call()
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert most < (x.nbytes >> 4 if comm.size > 1 else 3 * x.nbytes), verb


def test_odd_arrays_reach_the_core_in_another_form(own_comm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the general path, which takes several times as long."""
    comm = own_comm
    if comm.context.node is None:
        pytest.skip("no node core")
    monkeypatch.delattr(collectives, "_prepared")
    p, ranks = comm.size, np.arange(float(own_comm.size))
    assert (comm.all_reduce(1.5), comm.all_reduce(2), comm.scan(1)) == (1.5 * p, 2 * p, comm.rank + 1)
    assert isinstance(comm.all_reduce(2, "max"), int)
    assert comm.broadcast(comm.rank, root=1) == 1
    assert comm.all_gather(float(comm.rank)).tolist() == ranks.tolist()
    halves = np.ones(3, ml_dtypes.bfloat16)
    assert comm.all_reduce(halves).tolist() == [p] * 3
    assert comm.all_gather(halves).dtype == halves.dtype
    wide = np.arange(8.0)
    for x in (wide[::2], wide.reshape(2, 4).T, wide.astype(np.float16)[::2]):
        x, out = x.copy("K") if x.ndim > 1 else x, np.zeros((*x.shape, 2), x.dtype)[..., 0]
        expected = (x * p).tolist()
        assert comm.all_reduce(x).tolist() == expected
        assert comm.all_reduce(x, out=out) is out
        assert out.tolist() == expected
        assert (comm.reduce(x, root=1, out=out) is out) == (comm.rank == 1)
    inner = wide[::2]
    assert comm.all_reduce(inner, out=inner).tolist() == [0, 2 * p, 4 * p, 6 * p]
    assert wide.tolist() == [0, 1, 2 * p, 3, 4 * p, 5, 6 * p, 7]
    for wrong in (np.broadcast_to(np.zeros(1), (4,)), wide[1:5], np.zeros(4, np.float32)):
        with pytest.raises(NameError, match="_prepared"):  # the general path, which says what is wrong
            comm.all_reduce(wide[:4], out=wrong)
