"""Verbs between two groups: what each group gives, the other receives."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import numpy as np
import order_law
import pytest
import torch

import hpcomm
from hpcomm.agree.partners import Partners
from hpcomm.communicator.payloads import dissemination

pytestmark = pytest.mark.mpi(min_size=2)
WAIT_S = 30
ROOTED = ("broadcast", "gather", "scatter")
NOTHING = SimpleNamespace(wait=lambda timeout: None)


@pytest.fixture(params=["light", "full"])
def halves(comm: Any, request: pytest.FixtureRequest) -> Iterator[tuple[Any, Any, list[int], list[int]]]:
    """(inter-communicator, own half, world ranks here, world ranks there); the halves are unequal at 3."""
    color = comm.rank % 2
    groups = [[rank for rank in range(comm.size) if rank % 2 == c] for c in (0, 1)]
    with comm.dup(check=request.param) as whole, whole.split(color) as half:
        inter = half.create_intercomm(0, comm, groups[1 - color][0], name="bridge")
        yield inter, half, groups[color], groups[1 - color]
        inter.close()


def test_an_intercommunicator_knows_both_its_groups(halves: Any, comm: Any) -> None:
    inter, half, here, there = halves
    assert inter.is_inter
    assert (inter.rank, inter.size, inter.remote_size) == (half.rank, len(here), len(there))
    assert inter.name == "bridge"


def test_who_hears_that_another_rank_ends_tells_it_of_its_own_end(halves: Any) -> None:
    inter, _, here, there = halves
    partners = Partners(inter.context, "the others")
    while 0 not in here and len(partners.gone()) < len(there):  # these end last
        time.sleep(0.01)
    partners.part()


def test_of_large_groups_what_is_for_all_is_passed_on_within_each(
    comm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of more than 16 ranks in one: nobody sends to each rank of the other one."""
    monkeypatch.setattr(dissemination, "FEW", 0)
    is_odd = comm.rank > 0  # one rank, and all others
    there = [*range(1, comm.size)] if not is_odd else [0]
    blocks = [np.full(300, float(i)) for i in range(200)]  # whose lengths need a message
    with comm.split(is_odd) as half, half.create_intercomm(0, comm, there[0]) as inter:
        sent = [[comm.rank, blocks], [comm.rank, np.ones(comm.rank * LARGE)], comm.rank]
        asked = [inter.all_gather_object(each, async_op=True) for each in sent]
        for request in asked[:: -1 if comm.rank % 2 else 1]:
            request.wait(timeout=WAIT_S)
        assert [rank for rank, _ in asked[0].result] == there
        assert all(
            np.array_equal(a, b) for _, got in asked[0].result for a, b in zip(got, blocks, strict=True)
        )
        assert [(rank, x.sum()) for rank, x in asked[1].result] == [(r, r * LARGE) for r in there]
        assert asked[2].result == there
        assert [len(x) for x in inter.all_gather_ragged(np.ones(comm.rank * LARGE))] == [
            r * LARGE for r in there
        ]
        for has_root in (True, False):
            root = (hpcomm.ROOT if inter.rank == 0 else hpcomm.PROC_NULL) if is_odd == has_root else 0
            one = blocks if root == hpcomm.ROOT else None
            got = [inter.broadcast_object(one, root), inter.broadcast_object(one, root, async_op=True).wait()]
            assert got == [None, None] if is_odd == has_root else [len(x) for x in got] == [200, 200]


@pytest.mark.parametrize("time", ["blocking", "async"])
def test_all_reduce_and_all_gather_give_what_the_other_group_gave(halves: Any, comm: Any, time: str) -> None:
    inter, _, _, there = halves
    results = []
    for verb in ("all_reduce", "all_gather"):
        for x in (np.full(2, comm.rank), torch.full((2,), comm.rank, dtype=torch.bfloat16)):
            result = getattr(inter, verb)(x, async_op=time == "async")
            results.append(result.wait(timeout=WAIT_S) if time == "async" else result)
    assert results[0].tolist() == [sum(there)] * 2
    assert results[1].tolist() == [sum(there)] * 2
    assert results[2].tolist() == [[rank] * 2 for rank in there]
    assert results[3].tolist() == [[rank] * 2 for rank in there]


@pytest.mark.parametrize("time", ["blocking", "async", "plan"])
def test_in_place_and_by_blocks_the_other_groups_result_arrives(halves: Any, comm: Any, time: str) -> None:
    inter, _, here, there = halves

    def call(verb: str, x: Any, op: Any = "sum", root: int = 0, out: Any = None) -> Any:
        if time == "plan":
            with inter.plan(verb, x, op=op, root=root, out=out) as plan:
                return plan()
        given = {"root": root} if verb == "reduce" else {}
        result = getattr(inter, verb)(x, op, out=out, async_op=time == "async", **given)
        return result.wait(timeout=WAIT_S) if time == "async" else result

    for x in (np.full(2, float(comm.rank)), torch.full((4,), comm.rank)[::2]):
        assert call("all_reduce", x, out=x).tolist() == [sum(there)] * 2
    ours = np.full((len(here), len(there)), 1.0 + comm.rank)  # as many elements as over there
    assert call("reduce_scatter", ours).tolist() == [sum(there) + len(there)] * len(there)
    for op in ("sum", lambda a, b: a + b):
        root = 0 if comm.rank % 2 else hpcomm.ROOT if inter.rank == 0 else hpcomm.PROC_NULL
        x = np.full(2, float(comm.rank)) if root == 0 else None
        out = np.zeros(2) if root == hpcomm.ROOT else None
        if root != hpcomm.PROC_NULL:
            call("reduce", x, op, root, out)
        else:
            call("reduce", np.zeros(2), op, root)
        if out is not None:
            assert out.tolist() == [sum(there)] * 2


@pytest.mark.parametrize("op", ["sum", "avg", "max"])
def test_rooted_calls_in_the_background_do_not_lose_count(halves: Any, comm: Any, op: str) -> None:
    """Ranks beside the root have nothing to do there, and MPI may not count the call."""
    inter, _, _, there = halves
    x = np.arange(6, dtype=np.float16)[::2] + comm.rank
    for last in (0, -1, 0):
        for given in (0, 1):  # the group that has the root
            if comm.rank % 2 == given:
                root = hpcomm.ROOT if inter.rank == last % inter.size else hpcomm.PROC_NULL
            else:
                root = last % inter.remote_size
            out = np.zeros(3, np.float16) if root == hpcomm.ROOT else None
            asked = [
                inter.broadcast(x if root < 0 else x.copy(), root=root, async_op=True),
                inter.reduce(x, op, root=root, out=out, async_op=True),
                inter.broadcast_object([comm.rank, "x" * 5000], root, async_op=True),
                inter.all_gather(x, async_op=True),
            ]
            got = [each.wait(timeout=WAIT_S) for each in asked]
            assert np.array_equal(got[3], [np.arange(0, 6, 2) + r for r in there])
            if root >= 0:
                assert (got[0] - x == there[root] - comm.rank).all()
                assert got[2] == [there[root], "x" * 5000]
            if out is not None:
                parts = np.array([np.arange(0, 6, 2) + r for r in there], float)
                fold = {"sum": np.sum, "avg": np.mean, "max": np.max}[op]
                assert np.array_equal(out, fold(parts, axis=0).astype(np.float16))


@pytest.mark.mpi(min_size=3)
def test_a_function_does_not_scatter_between_unequal_groups(halves: Any) -> None:
    inter, _, here, there = halves
    if len(here) != len(there):
        with pytest.raises(hpcomm.UsageError, match="different size"):
            inter.reduce_scatter(np.ones((len(here), len(there))), lambda a, b: a + b)


def test_a_function_folds_the_other_groups_arrays(halves: Any, comm: Any) -> None:
    inter, _, _, there = halves
    folded = inter.all_reduce(np.array([comm.rank + 1]), lambda a, b: 10 * a + b)
    assert folded.tolist() == [int("".join(str(rank + 1) for rank in there))]


def test_an_average_divides_by_the_other_groups_ranks(halves: Any, comm: Any) -> None:
    inter, _, _, there = halves
    assert inter.all_reduce(np.array([float(comm.rank)]), "avg").tolist() == [sum(there) / len(there)]
    half = torch.tensor([float(comm.rank)], dtype=torch.float16)
    assert inter.all_reduce(half, "avg").tolist() == [sum(there) / len(there)]


@pytest.mark.parametrize("sender", [0, 1])
def test_broadcast_and_scatter_go_from_one_root_to_the_other_group(
    halves: Any, comm: Any, sender: int
) -> None:
    inter, half, _, there = halves
    x = np.arange(3.0) + 5
    if comm.rank % 2 == sender:
        root = hpcomm.ROOT if half.rank == 0 else hpcomm.PROC_NULL
        assert inter.broadcast(x, root=root) is None
        blocks = np.arange(len(there) * 2.0).reshape(len(there), 2)
        assert inter.scatter(blocks, root=root) is None
    else:
        assert inter.broadcast(np.zeros(3), root=0).tolist() == x.tolist()
        out = np.zeros(2)
        assert inter.scatter(root=0, out=out) is out
        assert out.tolist() == [2.0 * half.rank, 2.0 * half.rank + 1]


@pytest.mark.parametrize("time", ["blocking", "async", "plan"])
@pytest.mark.parametrize("dtype", ["float32", "complex64", "bfloat16"])
def test_sums_are_in_the_order_of_the_other_groups_ranks(comm: Any, dtype: str, time: str) -> None:
    """One rank, and all others: three of them, or more, which MPI would add up in orders of its own."""
    here, there = [0], [*range(1, comm.size)]
    if comm.rank:
        here, there = there, here
    with comm.split(comm.rank > 0) as part:
        inter = part.create_intercomm(0, comm, there[0])
    for n in (5, 3000):
        total = n * len(here) * len(there)
        theirs, nodes = [order_law.given(dtype, total, rank) for rank in there], [[*range(len(there))]]
        wanted = order_law.law("sum", theirs, nodes)
        x = order_law.given(dtype, total, comm.rank)
        for verb in ("all_reduce", "reduce_scatter"):
            given = x.reshape(len(here), -1) if verb == "reduce_scatter" else x
            if time == "plan":
                with inter.plan(verb, given) as plan:
                    found = plan()
            else:
                found = getattr(inter, verb)(given, async_op=time == "async")
            found = found.wait(timeout=WAIT_S) if time == "async" else found
            mine = wanted.reshape(len(here), -1)[inter.rank] if verb == "reduce_scatter" else wanted
            assert order_law.differing(found, mine) == 0
        reduced = inter.reduce(x, root=0 if comm.rank else hpcomm.ROOT)
        assert reduced is None if comm.rank else order_law.differing(reduced, wanted) == 0
        average = inter.all_reduce(x, "avg")
        assert order_law.differing(average, order_law.law("avg", theirs, nodes)) == 0
    inter.close()


@pytest.mark.parametrize("receiver", [0, 1])
def test_reduce_and_gather_go_to_one_root_of_the_other_group(halves: Any, comm: Any, receiver: int) -> None:
    inter, half, _, there = halves
    x = np.full(2, comm.rank + 1.0)
    if comm.rank % 2 == receiver:
        root = hpcomm.ROOT if half.rank == 0 else hpcomm.PROC_NULL
        reduced = inter.reduce(np.zeros(2), root=root)
        gathered = inter.gather(
            np.zeros(2), root=root, out=np.zeros((len(there), 2)) if half.rank == 0 else None
        )
        if half.rank == 0:
            assert reduced.tolist() == [sum(there) + len(there)] * 2
            assert gathered.tolist() == [[rank + 1.0] * 2 for rank in there]
        else:
            assert reduced is None
            assert gathered is None
    else:
        assert inter.reduce(x, root=0) is None
        assert inter.gather(x, root=0) is None


def test_all_to_all_exchanges_blocks_with_every_rank_over_there(halves: Any, comm: Any) -> None:
    inter, half, _, there = halves
    x = np.arange(len(there)) + 100 * comm.rank
    assert inter.all_to_all(x).tolist() == [100 * rank + half.rank for rank in there]


def test_a_barrier_holds_both_groups(halves: Any) -> None:
    inter = halves[0]
    assert inter.barrier() is None
    assert inter.barrier(async_op=True).wait(timeout=WAIT_S) is None


def test_messages_name_ranks_of_the_other_group(halves: Any, comm: Any) -> None:
    inter, half, here, there = halves
    if half.rank < min(len(here), len(there)):
        peer = half.rank
        request = inter.isend(np.full(2, comm.rank), peer, tag=3)
        status = hpcomm.Status()
        assert inter.recv(np.zeros(2, int), status=status).tolist() == [there[peer]] * 2
        request.wait(timeout=WAIT_S)
        assert (status.source, status.tag) == (peer, 3)
        assert inter.sendrecv(np.array([comm.rank]), peer, peer).tolist() == [there[peer]]
        assert inter.sendrecv_object({"r": comm.rank}, peer, peer) == {"r": there[peer]}
        ragged = inter.send_ragged(np.ones(comm.rank), peer, async_op=True)
        assert inter.recv_ragged(peer).shape == (there[peer],)
        ragged.wait(timeout=WAIT_S)


def test_a_rank_that_the_other_group_does_not_have_is_a_rank_error(halves: Any) -> None:
    inter, _, _, there = halves
    for call in (
        lambda: inter.send(np.ones(1), len(there)),
        lambda: inter.broadcast(np.ones(1), root=len(there)),
        lambda: inter.reduce(np.ones(1), root=-7),
        lambda: inter.gather(np.ones(1), root="a"),
    ):
        with pytest.raises(hpcomm.RankError) as caught:
            call()
        assert str(len(there) - 1) in str(caught.value.hint)


@pytest.mark.parametrize("verb", ["scan", "exscan"])
def test_a_prefix_has_no_meaning_between_groups(halves: Any, verb: str) -> None:
    with pytest.raises(hpcomm.UsageError) as caught:
        getattr(halves[0], verb)(np.ones(1))
    assert "merge" in str(caught.value.hint)


LARGE = 3000  # elements: more than a entry holds


@pytest.mark.parametrize("time", ["blocking", "async"])
def test_objects_and_ragged_arrays_come_from_the_other_group(halves: Any, comm: Any, time: str) -> None:
    inter, _, here, there = halves

    def call(verb: str, *args: Any, **options: Any) -> Any:
        result = getattr(inter, verb)(*args, **options, async_op=time == "async")
        return result.wait(timeout=WAIT_S) if time == "async" else result

    mine = {"rank": comm.rank, "x": np.full(LARGE, comm.rank)}
    got = call("all_gather_object", mine)
    assert [(each["rank"], each["x"].sum()) for each in got] == [(r, r * LARGE) for r in there]
    assert [len(x) for x in call("all_gather_ragged", np.ones(comm.rank * LARGE))] == [
        r * LARGE for r in there
    ]
    sent = [(comm.rank, rank) for rank in there]
    assert call("all_to_all_object", sent) == [(rank, comm.rank) for rank in there]
    got = call("all_to_all_ragged", [np.full(rank * LARGE, comm.rank) for rank in there])
    assert [x.tolist() for x in got] == [[rank] * (comm.rank * LARGE) for rank in there]
    root = here[0] == 0  # rank 0 of the world's group has the root, its first rank
    where = {"root": (hpcomm.ROOT if comm.rank == 0 else hpcomm.PROC_NULL) if root else 0}
    first = {"of": np.arange(LARGE)}
    for kind, one in (("object", first["of"]), ("ragged", first["of"])):
        got = call(f"broadcast_{kind}", one if comm.rank == 0 else None, **where)
        assert got is None if root else got.tolist() == one.tolist()
        items = [one[: LARGE - rank] for rank in there] if comm.rank == 0 else None
        got = call(f"scatter_{kind}", items, **where)
        assert got is None if root else len(got) == LARGE - comm.rank
        got = call(f"gather_{kind}", None if root else one[: LARGE - comm.rank], **where)
        assert got is None if comm.rank else [len(x) for x in got] == [LARGE - rank for rank in there]


def test_objects_are_folded_over_the_other_group(halves: Any, comm: Any) -> None:
    inter, _, here, there = halves
    assert inter.all_reduce_object([comm.rank]) == list(there)
    root = (hpcomm.ROOT if comm.rank == 0 else hpcomm.PROC_NULL) if here[0] == 0 else 0
    folded = inter.reduce_object(str(comm.rank), root=root)
    assert folded == ("".join(map(str, there)) if comm.rank == 0 else None)


def test_objects_refuse_wrong_roots_and_lists_between_groups(halves: Any) -> None:
    inter, _, _, there = halves
    with pytest.raises(hpcomm.RankError, match="no rank of the other group"):
        inter.broadcast_object(1, root=len(there))
    with pytest.raises(hpcomm.UsageError, match=f"each of {len(there)} ranks"):
        inter.all_to_all_object([0] * (len(there) + 1))


def test_what_needs_one_group_says_so(halves: Any) -> None:
    inter = halves[0]
    for call in (
        lambda: inter.group([0]),
        lambda: inter.mesh(x=inter.size),
        lambda: inter.cart((inter.size,)),
        lambda: inter.graph([]),
        inter.as_process_group,
    ):
        with pytest.raises(hpcomm.UsageError, match="needs one group of ranks") as caught:
            call()
        assert "merge" in str(caught.value.hint)


WRONG = {
    "another verb in one group": lambda inter, odd, one: (inter.all_gather if odd else inter.all_reduce)(
        np.zeros(2)
    ),
    "another dtype in one group": lambda inter, odd, one: inter.all_reduce(
        np.zeros(2, "f4" if odd else "f8")
    ),
    "more elements in one group": lambda inter, odd, one: inter.all_gather(np.zeros(2 + odd)),
    "another operator on one rank": lambda inter, odd, one: inter.all_reduce(
        np.zeros(2), "max" if one else "sum"
    ),
    "other totals": lambda inter, odd, one: inter.reduce_scatter(
        np.zeros((inter.size, (3 if odd else 2) * inter.remote_size))
    ),
    "in the background": lambda inter, odd, one: inter.all_reduce(np.zeros(2 + one), async_op=True),
    "two roots": lambda inter, odd, one: inter.broadcast(
        np.zeros(2),
        root=0 if odd else hpcomm.ROOT if inter.rank == inter.size - 1 else hpcomm.PROC_NULL,
    ),
    "objects and arrays": lambda inter, odd, one: (
        inter.all_gather_object(1) if odd else inter.all_gather(np.zeros(1))
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_groups_that_disagree_are_all_told_and_may_go_on(halves: Any, comm: Any, case: str) -> None:
    """But for calls in the background that have begun, as at light."""
    inter, _, _, there = halves
    if case == "two roots" and comm.size < 3:
        pytest.skip("there is one root only")
    with pytest.raises(hpcomm.MismatchError, match="ranks disagree about call #1 on 'bridge'") as told:
        (WRONG[case](inter, comm.rank % 2, comm.rank == 0) or NOTHING).wait(timeout=WAIT_S)
    lines = str(told.value).splitlines()[1 : 2 + len(there)]
    assert lines[0].startswith(f"  rank {inter.rank} here: ")
    assert [line.split(":")[0] for line in lines[1:]] == [f"  rank {r} there" for r in range(len(there))]
    if case == "in the background" and inter.check == "light":
        with pytest.raises(hpcomm.MismatchError, match="are out of step"):
            inter.all_reduce(np.ones(2))
    else:
        assert inter.all_reduce(np.ones(2)).tolist() == [len(there)] * 2


@pytest.mark.core
def test_what_comes_of_an_intercommunicator_is_checked_as_was_asked_for(halves: Any) -> None:
    inter, *_ = halves
    with inter.merge() as merged:
        assert merged.check == inter.check


@pytest.mark.parametrize("halves", ["full"], indirect=True)
def test_beside_the_root_of_a_group_any_array_will_do(halves: Any, comm: Any) -> None:
    inter, *_ = halves
    if comm.rank % 2:
        assert inter.broadcast(np.zeros(3), root=0).tolist() == [0.0, 1.0, 2.0]
    elif inter.rank == 0:
        inter.broadcast(np.arange(3.0), root=hpcomm.ROOT)
    else:
        inter.broadcast(np.zeros(1, np.int8), root=hpcomm.PROC_NULL)


@pytest.mark.parametrize("level", ["off", "light"])
def test_groups_are_compared_as_both_ask_for(comm: Any, level: str) -> None:
    """As programs may, each with a HPCOMM_CHECK of its own."""
    odd = comm.rank % 2
    with comm.split(odd) as plain, plain.dup(check="full" if odd else level) as half:
        inter = half.create_intercomm(0, comm, 1 - odd)
        assert inter.check == level
        assert inter.all_reduce(np.ones(1)).tolist() == [inter.remote_size]
        inter.close()


@pytest.mark.parametrize("op", ["sum", "max", "avg"])
@pytest.mark.parametrize("dtype", ["float64", "float32", "int32", "complex128", "float16"])
def test_arrays_of_two_groups_that_lie_plain_are_reduced_by_one_call(
    halves: Any, comm: Any, dtype: str, op: str
) -> None:
    """Ranks whose arrays lie otherwise, or that observe, meet them there; all get the same bits."""
    if (op, np.dtype(dtype).kind) in (("max", "c"), ("avg", "i")):
        pytest.skip("there is no such reduction")
    inter, _, _, there = halves
    values = [np.random.default_rng(rank).standard_normal(6).astype(dtype) for rank in range(comm.size)]
    x = values[comm.rank]
    spread = np.zeros(12, dtype)
    spread[::2] = x
    out = np.empty(6, dtype)
    direct = inter.context.direct.all_reduce
    is_direct = op != "avg" and dtype != "float16"  # which take more than a call of MPI's
    is_direct &= (inter.check, dtype, op) != ("full", "int32", "sum")  # which is looked at for an overflow
    for i in range(3):
        given = spread[::2] if i == comm.rank % 3 else x
        result = inter.all_reduce(given, op, out=out)
        assert result is out
        want = values[there[0]].copy()
        for rank in there[1:]:
            want = np.maximum(want, values[rank]) if op == "max" else want + values[rank]
        if op == "avg":
            want = want / len(there)
        assert np.allclose(
            out, want, rtol=1e-2 if dtype == "float16" else 1e-12 if dtype != "float32" else 1e-6
        )
        bits = inter.all_gather_object(out.tobytes())
        assert len({*bits}) == 1
    made = direct(x, op, out)
    assert (made is out) == is_direct
    if not is_direct:
        assert made is NotImplemented
    assert direct(x, op, x) is NotImplemented  # in place
    assert np.array_equal(inter.all_reduce(x, op, out=x), out)
    assert inter.barrier() is None


def test_merge_makes_one_group_with_the_high_one_behind(halves: Any, comm: Any) -> None:
    inter, _, here, there = halves
    with inter.merge(high=comm.rank % 2 == 0) as merged:
        evens, odds = (here, there) if comm.rank % 2 == 0 else (there, here)
        assert not merged.is_inter
        assert merged.all_gather(comm.rank).tolist() == odds + evens


def test_merge_of_one_group_is_a_usage_error(comm: Any) -> None:
    with pytest.raises(hpcomm.UsageError, match="inter-communicator"):
        comm.merge()


ONE = np.ones((1, 1))
LISTS = ("scatter_object", "scatter_ragged")


def refusing(inter: Any, verb: str, root: int, bad: bool, **how: Any) -> Any:
    """Call verb with an argument that is refused, or without."""
    call = getattr(inter, verb)
    if verb.startswith(("broadcast", "gather", "scatter", "reduce_object")) or verb == "reduce":
        x = [ONE] * inter.remote_size if verb in LISTS else np.ones((inter.remote_size, 1))
        return call(x if "scatter" in verb else ONE, root=99 if bad else root, **how)
    if verb.startswith("all_to_all_"):
        return call([ONE] * (inter.remote_size + bad), **how)
    if verb in ("all_reduce_object", "plan"):
        given = {"all_reduce_object": (1, "?" if bad else "sum"), "plan": ("all_gather", "a" if bad else ONE)}
        return call(*given[verb])
    if verb in ("dup", "barrier"):
        return call(**{"check" if verb == "dup" else "algorithm": "?" if bad else None}, **how)
    if verb == "split":
        return call(-1 if bad else 0)
    rows = {"all_to_all": inter.remote_size, "reduce_scatter": inter.size}.get(verb, 1)
    x = np.ones((rows, inter.remote_size if verb == "reduce_scatter" else 1))
    wrong: Any = (lambda: 0) if verb == "all_gather_object" else "a"
    return call(wrong if bad else x, **how)


AT_ONCE = ("dup", "split", "plan", "all_reduce_object", "reduce_object")
VERBS = (
    *("all_reduce", "all_gather", "all_to_all", "reduce_scatter", "broadcast", "reduce", "gather", "scatter"),
    *(f"{verb}_{kind}" for kind in ("object", "ragged") for verb in ("all_gather", "all_to_all", *ROOTED)),
    *("barrier", *AT_ONCE),
)


@pytest.mark.parametrize("time", ["blocking", "async"])
def test_what_one_side_refuses_the_other_is_told(halves: Any, comm: Any, time: str) -> None:
    """One rank refuses it, or its whole group: verb by verb in turn."""
    bridge, _, _, _ = halves
    for i, verb in enumerate(VERBS if time == "blocking" else VERBS[: -len(AT_ONCE)]):
        is_bad = comm.rank == 0 or (i % 2 == 0 and comm.rank % 2 == 0)
        inter = bridge.dup(name="bridge") if time == "async" else bridge
        root = 0 if comm.rank % 2 else hpcomm.ROOT if inter.rank == 0 else hpcomm.PROC_NULL

        def call(inter: Any = inter, verb: str = verb, root: int = root, bad: bool = is_bad) -> None:
            made = refusing(inter, verb, root, bad, **({"async_op": True} if time == "async" else {}))
            if time == "async":
                made.wait(timeout=WAIT_S)

        if is_bad:
            with pytest.raises(hpcomm.UsageError):
                call()
        elif comm.rank % 2:
            with pytest.raises(hpcomm.PeerFailedError) as told:
                call()
            assert set(told.value.ranks) <= ({0} if i % 2 else {0, 1}), verb
            assert re.search(r"refused|rank 0", str(told.value)), verb
        else:
            with suppress(hpcomm.PeerFailedError):
                call()
        if time == "blocking":
            assert inter.all_reduce(np.ones(1)).tolist() == [inter.remote_size], verb
        else:
            inter.close()


@pytest.mark.parametrize("wrong", ["there", "here"])
def test_who_refuses_to_join_a_group_tells_the_other_one(comm: Any, wrong: str) -> None:
    odd = comm.rank % 2
    with comm.split(odd) as half:
        leaders = (0, 1 - odd) if odd else (0, 99) if wrong == "there" else (99, 1)
        with pytest.raises(hpcomm.PeerFailedError if odd else hpcomm.RankError, match="leader 99 is no rank"):
            half.create_intercomm(leaders[0], comm, leaders[1])
        with half.create_intercomm(0, comm, 1 - odd) as inter:
            assert inter.all_reduce(np.ones(1)).tolist() == [inter.remote_size]
