"""One law of order: an element of a sum has the same bits whatever way the call takes (order_law.py)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from functools import reduce
from typing import Any

import numpy as np
import pytest
import torch
from arrays import COMPLEX, FLOATS, HALVES
from mpi4py import MPI
from order_law import differing, given, law, nodes_of

import hpcomm
from hpcomm import regrid
from hpcomm.grids import remap
from hpcomm.node import segment
from hpcomm.transport import rank_order
from hpcomm.transport.scheduled import ordered_blocks

SIZES = (1, 1003)
# All by the core, where there is one; and the two ways beside it, on one node and on several
WAYS = ("core", "gathered", "parts", "gathered on 2 nodes", "parts on 2 nodes", "parts on 3 nodes")


def sliced(x: Any) -> Any:
    wide = (
        torch.zeros(2 * len(x), dtype=x.dtype)
        if isinstance(x, torch.Tensor)
        else np.zeros(2 * len(x), x.dtype)
    )
    wide[::2] = x
    return wide[::2]


def shifted(x: Any) -> Any:
    """x at another address, one element behind the beginning of its memory."""
    wide = (
        torch.zeros(len(x) + 1, dtype=x.dtype)
        if isinstance(x, torch.Tensor)
        else np.zeros(len(x) + 1, x.dtype)
    )
    wide[1:] = x
    return wide[1:]


def planned(comm: Any, x: Any, op: str) -> Any:
    plan = comm.plan("all_reduce", x, op=op)
    plan()
    result = plan()
    plan.close()
    return result


def crossed(comm: Any, x: Any, op: str) -> Any:
    """Two at once, waited for in another order."""
    first, second = comm.all_reduce(x, op, async_op=True), comm.all_reduce(x, op, async_op=True)
    second.wait()
    return first.wait()


TO_ALL: dict[str, Callable[[Any, Any, str], Any]] = {
    "blocking": lambda comm, x, op: comm.all_reduce(x, op),
    "in place": lambda comm, x, op: comm.all_reduce(x, op, out=x),
    "sliced": lambda comm, x, op: comm.all_reduce(sliced(x), op),
    "shifted": lambda comm, x, op: comm.all_reduce(shifted(x), op),
    "async": lambda comm, x, op: comm.all_reduce(x, op, async_op=True).wait(),
    "async in place": lambda comm, x, op: comm.all_reduce(x, op, out=x, async_op=True).wait(),
    "async sliced": lambda comm, x, op: comm.all_reduce(sliced(x), op, out=sliced(x), async_op=True).wait(),
    "two at once": crossed,
    "plan": planned,
}


@pytest.fixture(params=WAYS)
def way(request: Any, comm: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A communicator whose calls take one way; the background takes the second or third one in any case."""
    if request.param == "core":
        yield comm
        return
    for limit in ("ORDER_GATHERED", "ORDER_GATHERED_FAR"):
        monkeypatch.setattr(rank_order, limit, 1 << 30 if "gathered" in request.param else 0)
    if "nodes" in request.param:
        many = int(request.param.split()[-2])
        monkeypatch.setattr(segment, "ranks_here", lambda mpi: nodes_of(mpi.size, many)[mpi.rank % many])
    for limit in ("ORDER_PIECE", "ORDER_PREFIX"):
        monkeypatch.setattr(ordered_blocks, limit, 2000)
    for limit in ("ORDER_EXCHANGED", "ORDER_TO_ROOT"):  # the short ones of three nodes, and for a root
        monkeypatch.setattr(ordered_blocks, limit, 1000)
    monkeypatch.setattr(ordered_blocks, "ORDER_KEPT", 4500)  # the longer half of what is given goes in pieces
    with comm.dup(check="full") as apart:  # which has no core
        yield apart


def order_of(comm: Any) -> list[list[int]]:
    """The ranks by their nodes, as a call on comm learns it."""
    nodes = rank_order.nodes_of(comm.context)
    nodes.meet(comm.context.mpi_handle)
    nodes.Wait()
    return nodes.groups


@pytest.mark.parametrize("op", ["sum", "avg", "prod"])
def test_an_element_of_a_sum_has_the_same_bits_whatever_way_the_call_takes(way: Any, op: str) -> None:
    wrong, nodes = {}, order_of(way)
    for dtype in (*FLOATS, *COMPLEX):
        for n in SIZES:
            xs = [given(dtype, n, rank) for rank in range(way.size)]
            wanted, x = law(op, xs, nodes), xs[way.rank]
            for name, made in TO_ALL.items():
                wrong[name, dtype, n] = differing(
                    made(way, x[:] if name == "blocking" else x + 0, op), wanted
                )
            for later in (False, True):
                wrong["reduce", dtype, n, later] = reduced(way, x, op, later, wanted)
                wrong["reduce_scatter", dtype, n, later] = scattered(way, x, op, later, wanted)
    assert {name: count for name, count in wrong.items() if count} == {}


def test_halves_that_are_multiplied_first_come_to_a_root_as_halves(way: Any) -> None:
    """Whoever reduces them."""
    for dtype, n in itertools.product(HALVES, SIZES):
        xs = [given(dtype, n, rank) for rank in range(way.size)]
        wanted = law("sum", [x.float() * 0.5 for x in xs], order_of(way)).to(xs[0].dtype)
        for root, later in itertools.product(range(way.size), (False, True)):
            got = ended(way.reduce(xs[way.rank], hpcomm.premul_sum(0.5), root=root, async_op=later))
            assert way.rank != root or differing(got, wanted) == 0, (dtype, n, root, later)


@pytest.mark.parametrize("op", ["min", "max"])
def test_the_sign_of_zero_of_an_extreme_is_that_of_the_later_rank(way: Any, op: str) -> None:
    wrong = {}
    for dtype in FLOATS:
        for n in SIZES:
            xs = [np.random.default_rng([n, r]).choice([0.0, -0.0, 1.0, -1.0], n) for r in range(way.size)]
            wanted = reduce(getattr(np, f"{op}imum"), [xs[r] for ranks in order_of(way) for r in ranks])
            x, wanted = (as_dtype(each, dtype) for each in (xs[way.rank], wanted))
            for later in (False, True):
                for verb, given_x in (("all_reduce", x), ("reduce_scatter", tiled(x, way.size))):
                    got = ended(getattr(way, verb)(given_x, op, async_op=later))
                    wrong[verb, dtype, n, later] = differing(got, wanted)
    assert {name: count for name, count in wrong.items() if count} == {}


def as_dtype(x: np.ndarray, dtype: str) -> Any:
    return torch.from_numpy(x).to(getattr(torch, dtype)) if dtype in HALVES else x.astype(dtype)


def tiled(x: Any, many: int) -> Any:
    return torch.stack([x] * many) if isinstance(x, torch.Tensor) else np.stack([x] * many)


def test_an_exact_sum_is_one_number_whatever_way_the_call_takes(way: Any) -> None:
    """Whichever rank has what, on any nodes, in pieces of any length."""
    wrong = {}
    for n in SIZES:
        xs = [given("float64", n, rank) for rank in range(way.size)]
        wanted = np.array([math.fsum(column) for column in zip(*xs, strict=True)])
        for turned in (0, 1):
            x = xs[(way.rank + turned) % way.size]
            for later in (False, True):
                for name, made in {"plain": x, "sliced": sliced(x), "in place": x + 0}.items():
                    out = made if name == "in place" else None
                    got = ended(way.all_reduce(made, out=out, async_op=later, deterministic=True))
                    wrong[n, turned, later, name] = differing(got, wanted)
    assert {name: count for name, count in wrong.items() if count} == {}


def test_one_operator_has_no_memory_of_another_one(way: Any) -> None:
    """Which reduces the same elements in another type."""
    for dtype in ("int32", "float32", "bool"):
        for n in SIZES:
            xs = [(np.arange(n) * (r + 300)).astype(dtype) for r in range(way.size)]
            for op, wanted in {"lor": np.any(xs, axis=0).astype(dtype), "sum": np.sum(xs, axis=0)}.items():
                got = way.all_reduce(xs[way.rank], op, deterministic=True)
                assert np.array_equal(got, wanted.astype(dtype)), (dtype, n, op)


def ended(made: Any) -> Any:
    return made.wait() if isinstance(made, hpcomm.Request) else made


def reduced(comm: Any, x: Any, op: str, later: bool, wanted: Any) -> int:
    root = comm.size - 1
    result = ended(comm.reduce(x, op, root=root, async_op=later))
    return differing(result, wanted) if comm.rank == root else 0


def scattered(comm: Any, x: Any, op: str, later: bool, wanted: Any) -> int:
    """Each rank has its part of each array beside others' parts."""
    return differing(ended(comm.reduce_scatter(tiled(x, comm.size), op, async_op=later)), wanted)


def test_prefixes_have_the_bits_of_the_same_law(way: Any) -> None:
    wrong = {}
    for dtype in (*FLOATS, *COMPLEX):
        for n in SIZES:
            xs = [given(dtype, n, rank) for rank in range(way.size)]
            for verb, until in (("scan", way.rank + 1), ("exscan", way.rank)):
                wanted = law("sum", xs[:until], nodes_of(until, 1)) if until else xs[0] * 0
                for later, out in ((False, None), (True, None), (False, xs[way.rank] + 0)):
                    x = xs[way.rank] if out is None else out
                    got = ended(getattr(way, verb)(x, "sum", out=out, async_op=later))
                    lost = differing(got, wanted) if until else float(abs(got).sum())
                    wrong[verb, dtype, n, later, out is None] = lost
    assert {name: count for name, count in wrong.items() if count} == {}


def test_the_background_needs_no_other_call_of_hpcomm_to_go_on(own_comm: Any) -> None:
    """A rank that is inside MPI itself, or waits for nothing of hpcomm's, keeps nobody waiting for ever."""
    n = 1 << 18
    x = np.full(n, 0.1 * (own_comm.rank + 1), np.float32)
    request = own_comm.all_reduce(x, async_op=True)
    mpi, word = own_comm.mpi, np.zeros(1)
    if own_comm.rank == 0 and own_comm.size > 1:
        mpi.Recv(word, 1)
        assert word[0] == 1
    result, ranks = request.wait(), [*range(own_comm.size)]
    if own_comm.rank == 1:
        mpi.Send(np.ones(1), 0)
    assert result[0] == law("sum", [np.full(1, 0.1 * (r + 1), np.float32) for r in ranks], [ranks])[0]


def test_the_order_of_mpi_is_taken_where_all_ranks_say_so(
    own_comm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with own_comm.dup(check="full") as comm:
        assert comm.order == "rank"
        comm.order = "fast"
        with comm.dup() as child:
            assert child.order == "fast"
        x = np.full(5, comm.rank + 0.1)
        for made in (comm.all_reduce(x), comm.all_reduce(x[::2], async_op=True).wait()):
            assert np.allclose(made, sum(r + 0.1 for r in range(comm.size)))
        with pytest.raises(hpcomm.UsageError, match="there is no order 'slow'"):
            comm.order = "slow"
        if comm.size > 1:
            comm.order = "rank" if comm.rank == 0 else "fast"
            with pytest.raises(hpcomm.MismatchError, match="order='fast'"):
                comm.all_reduce(x)
    monkeypatch.setenv("HPCOMM_ORDER", "fast")
    with hpcomm.Communicator(MPI.COMM_SELF) as alone:
        assert alone.order == "fast"
    monkeypatch.setenv("HPCOMM_ORDER", "slow")
    with pytest.raises(hpcomm.ConfigError, match="there is no order 'slow'"):
        hpcomm.Communicator(MPI.COMM_SELF)


@pytest.mark.three
@pytest.mark.parametrize("mapping", ["idw", "bilinear", "rbf", "conservative2"])
def test_mapped_values_have_the_same_bits_however_both_grids_are_cut(comm: Any, mapping: str) -> None:
    pytest.importorskip("scipy")
    source, target = regrid.LatLon(9, 18), regrid.Gaussian(8, 16)
    whole = regrid.weights(source, target, mapping)
    values = given("float64", 9 * 18, 0)
    wanted = whole.apply(values[whole.sources])
    wrong = {}
    for givers in range(1, comm.size):
        is_giver = comm.rank < givers
        rng, many = np.random.default_rng(givers), givers if is_giver else comm.size - givers
        cut = np.array_split(rng.permutation(9 * 18 if is_giver else 8 * 16), many)
        points = np.sort(cut[comm.rank - (0 if is_giver else givers)])
        grid = source if is_giver else target
        found = remap.weights_between(comm.mpi, grid, points, is_giver, mapping, 4)
        if found is not None:
            wrong[givers] = differing(found.apply(values[found.sources]), wanted[points])
    assert {name: count for name, count in wrong.items() if count} == {}


@pytest.mark.three
def test_the_first_call_between_nodes_may_be_in_the_background(
    comm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which ranks share a node is asked at the first call; the next ones know it."""
    nodes = nodes_of(comm.size, 2)
    monkeypatch.setattr(segment, "ranks_here", lambda mpi: nodes[mpi.rank % 2])
    xs = [given("float64", 5, rank) for rank in range(comm.size)]
    with comm.dup(check="full") as apart:
        for _ in range(2):
            got = apart.all_reduce(xs[comm.rank], async_op=True).wait()
            assert differing(got, law("sum", xs, nodes)) == 0


@pytest.mark.three
def test_what_is_too_long_for_the_background_between_nodes_is_said(
    comm: Any, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Under Open MPI, whose threads do not go together over TCP."""
    monkeypatch.setattr(segment, "ranks_here", lambda mpi: nodes_of(mpi.size, 2)[mpi.rank % 2])
    monkeypatch.setattr(rank_order, "ORDER_BACKGROUND", 1000)
    x = given("float64", 1000, comm.rank)
    with comm.dup(check="full") as apart:
        first = apart.all_reduce(x, async_op=True).wait()
        again = apart.all_reduce(x, async_op=True).wait()
        kept = apart.all_reduce(x)
    assert np.allclose(first, kept)
    assert np.array_equal(first, again)
    said = capfd.readouterr().err.count("in Open MPI's order")
    assert said == (comm.rank == 0 and comm.size > 2 and MPI.get_vendor()[0] == "Open MPI")
