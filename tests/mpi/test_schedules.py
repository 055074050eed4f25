"""Own schedules over real MPI: arrays, operators, plans and what is refused; see test_interpreted.py, too."""

from __future__ import annotations

import math
import tracemalloc
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from contract import holds_everyone
from interpreted import interpret_values
from test_interpreted import given, shape

import hpcomm
from hpcomm.core.verbs import ROOTED
from hpcomm.node import segment
from hpcomm.schedule.registry import algorithms, build, register, verbs
from hpcomm.schedule.stream import AFTER, Schedule, Stream
from hpcomm.transport.scheduled import comm_cache, schedule_channels, schedule_transport

KNOWN = {verb: algorithms(verb) for verb in verbs()}  # without those that tests register


@pytest.mark.parametrize("name", algorithms("all_reduce"))
def test_every_kind_of_array_dtype_and_operator_is_right(comm: Any, name: str) -> None:
    p, r = comm.size, comm.rank
    ranks = np.arange(p)
    half = comm.all_reduce(np.full(5, r + 1, np.float16), "avg", algorithm=name)
    assert half.dtype == np.float16
    assert (half == (p + 1) / 2).all()
    tensor = comm.all_reduce(torch.arange(8.0)[::2] + r, algorithm=name)
    assert tensor.tolist() == [4.0 * i / 2 * p + ranks.sum() for i in range(4)]
    assert (
        comm.all_reduce(torch.full((3,), r + 1.0, dtype=torch.bfloat16), "max", algorithm=name).tolist()
        == [p] * 3
    )
    assert comm.all_reduce(np.array([r == 0, False]), algorithm=name).tolist() == [True, False]
    assert comm.all_reduce(np.int8(r + 1), "prod", algorithm=name) == math.factorial(p)
    assert comm.all_reduce(2 ** np.arange(3) + r, "bor", algorithm=name)[0] == np.bitwise_or.reduce(1 + ranks)
    z = np.array([1 + 1j * r])
    assert comm.all_reduce(z, out=z, algorithm=name) is z
    assert z[0] == p + 1j * ranks.sum()


def test_background_calls_may_be_waited_for_in_any_order(comm: Any) -> None:
    names = algorithms("all_reduce")
    requests = [
        comm.all_reduce(np.full(9, i + comm.rank), algorithm=names[i % len(names)], async_op=True)
        for i in range(24)
    ]
    ranks = sum(range(comm.size))
    order = reversed(requests) if comm.rank % 2 else requests
    assert all(request.wait(timeout=60) is not None for request in order)
    assert [int(request.result[0]) for request in requests] == [i * comm.size + ranks for i in range(24)]


@pytest.mark.parametrize("apart", [False, True], ids=["one communicator", "two"])
@pytest.mark.parametrize("name", ["recursive_doubling", "deterministic"])
def test_a_blocking_call_moves_on_what_is_in_the_background(comm: Any, apart: bool, name: str) -> None:
    """Rank 0 blocks in the second call while the others wait for its part of the first one."""
    other = comm.dup() if apart else comm
    x, keywords = np.arange(5.0), {"algorithm": name} if name != "deterministic" else {name: True}
    request = comm.all_reduce(x, algorithm="ring", async_op=True)
    if comm.rank:
        request.wait(timeout=60)
    found = other.all_reduce(x + 1, **keywords)
    assert found.tolist() == ((x + 1) * comm.size).tolist()
    assert request.wait(timeout=60).tolist() == (x * comm.size).tolist()
    if apart:
        other.close()


@pytest.mark.parametrize("name", ["ring", "rabenseifner", "double_tree"])
def test_long_all_reduces_that_work_in_out_meet_those_that_cannot(
    own_comm: Any, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Ranks whose `out` lies scattered, is that of torch, or is x itself; with others under way meanwhile."""
    comm = own_comm
    monkeypatch.setattr(schedule_transport, "SCHEDULE_IN_OUT", 1 << 10)
    for n in (300 * comm.size, 5000):
        x = given("all_reduce", comm.rank, comm.size, n)
        parts = [given("all_reduce", r, comm.size, n) for r in range(comm.size)]
        schedule = build("all_reduce", schedule_transport.cut("all_reduce", name, x.nbytes), comm.size)
        expected = interpret_values(schedule, np.stack(parts), np.add)[comm.rank]
        for turn in range(4):
            kind = (comm.rank + turn) % 4
            into = [None, np.empty(2 * n)[::2], x.copy()][turn % 3]
            given_x = into if turn % 3 == 2 else x
            before = comm.all_reduce(given_x, out=into, algorithm=name, async_op=True)
            if kind == 3:
                found = torch.from_numpy(x.copy())
                assert comm.all_reduce(found, out=found, algorithm=name) is found
            else:
                out = [np.empty(n), np.empty(2 * n)[::2], x.copy()][kind]
                found = comm.all_reduce(out if kind == 2 else x, out=out, algorithm=name)
                assert found is out
            assert np.asarray(found).tobytes() == expected.tobytes(), (n, kind)
            assert before.wait().tobytes() == expected.tobytes()
    assert not own_comm.context.kept_schedules._kept  # nothing was copied through memory of its own


def test_long_messages_travel_in_pieces(comm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocking, in the background and planned: the same bits, whatever one message may hold."""
    x = np.random.default_rng(comm.rank).normal(size=1003)
    for name in ("ring", "double_tree:chunks=4", "circulant"):
        want = comm.all_reduce(x, algorithm=name).tobytes()
        apart = comm.dup()
        mine = comm_cache.own(apart.context)
        monkeypatch.setattr(mine, "most", lambda peer: 100 + peer // 9)
        assert apart.all_reduce(x, algorithm=name).tobytes() == want
        assert apart.all_reduce(x, algorithm=name, async_op=True).wait(timeout=60).tobytes() == want
        step = apart.plan("all_reduce", x, algorithm=name)
        assert step().tobytes() == want
        step.close()
        (executor,) = mine._kept.values()
        if comm.size > 1:
            assert len(executor.rounds[0][1].prepared) > 4
        apart.close()


def test_what_may_stop_for_ever_between_hosts_is_refused(comm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule_transport.mpi_control_variables, "vendor", lambda: "openmpi")
    monkeypatch.setattr(schedule_transport.mpi_control_variables, "unannounced_bytes", lambda: 1 << 16)
    with comm.dup() as near, comm.dup() as apart:
        assert near.all_reduce(np.ones(2), algorithm="ring", async_op=True).wait()[0] == comm.size
        monkeypatch.setattr(segment, "ranks_here", lambda mpi: [mpi.rank])
        if comm.size > 1:
            for refused in (
                lambda: apart.all_reduce(np.ones(2), algorithm="ring", async_op=True),
                lambda: apart.barrier(algorithm="tree", async_op=True),
                lambda: apart.plan("all_reduce", np.ones(2), algorithm="ring"),
            ):
                with pytest.raises(hpcomm.UsageError, match="may stop for ever in the background"):
                    refused()
        assert apart.all_reduce(np.ones(2), algorithm="ring")[0] == comm.size


def test_only_what_leaves_the_node_is_cut_by_what_travels_unannounced(
    comm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the least of all ranks, so that both ends cut alike; not at all where one of them does not know."""
    monkeypatch.setattr(comm_cache.mpi_control_variables, "vendor", lambda: "openmpi")
    monkeypatch.setattr(comm_cache.mpi_control_variables, "unannounced_bytes", lambda: 1000 + comm.rank)

    def most() -> list[int]:
        apart = comm.dup()
        apart.context.near.regions = {
            peer: apart.context.near.regions.get(peer)
            for peer in range(comm.size)
            if peer % 2 == comm.rank % 2
        }
        found = [comm_cache.own(apart.context).most(peer) for peer in range(comm.size)]
        apart.close()
        return found

    whole = comm_cache.LARGEST
    is_far = [peer % 2 != comm.rank % 2 for peer in range(comm.size)]
    assert most() == [1000 if far else whole for far in is_far]
    monkeypatch.setattr(comm_cache.mpi_control_variables, "unannounced_bytes", lambda: 1000 * (comm.rank > 0))
    assert most() == [whole] * comm.size


def test_messages_beyond_2_gib_travel_in_pieces_that_mpi_can_count() -> None:
    """On memory that only seems to be there: one byte, told to be 5 GiB and 3."""
    long = np.broadcast_to(np.zeros(1, np.uint8), 5 * 2**30 + 3)
    made = list(schedule_channels.pieces([(7, long), (2, long[:9])], lambda peer: schedule_channels.LARGEST))
    assert [(peer, n) for peer, (_, n, _) in made] == [(7, 2**30)] * 5 + [(7, 3), (2, 9)]
    assert all(data.nbytes == n < 2**31 for _, (data, n, _) in made)


def test_the_executor_cuts_x_as_the_simulator_does(own_comm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule_transport, "SCHEDULE_IN_OUT", 1 << 40)  # executors are kept, to be looked at
    from hpcomm.machine import machine
    from hpcomm.simulate import predict

    for verb, name in (("all_reduce", "double_tree"), ("broadcast", "ring"), ("reduce", "double_tree")):
        for nbytes in (8, 1 << 19, 3 << 19):
            getattr(own_comm, verb)(np.zeros(nbytes // 4, np.float32), algorithm=name)
            ran = next(reversed(own_comm.context.kept_schedules._kept))[1]
            guess = predict(verb, name, own_comm.size, nbytes, machine("cluster"))
            assert ran == guess.schedule.name


@pytest.mark.parametrize("name", algorithms("barrier"))
def test_a_barrier_holds_everyone(comm: Any, name: str) -> None:
    assert holds_everyone(comm, lambda: comm.barrier(algorithm=name))
    assert comm.barrier(algorithm=name, async_op=True).wait(timeout=60) is None


def test_functions_fold_in_the_order_of_ranks(comm: Any) -> None:
    x = (
        np.array([[1.0, comm.rank + 1.0], [0.0, 1.0]])
        if comm.rank % 2
        else np.array([[0.0, -1.0], [1.0, 0.0]])
    )
    plain = comm.all_reduce(x, lambda a, b: a @ b)
    for name in ("ring", "tree", "circulant", "double_tree"):
        assert np.array_equal(comm.all_reduce(x, lambda a, b: a @ b, algorithm=name), plain)


def test_an_mpi_operator_that_does_not_commute_needs_an_algorithm_that_keeps_order(comm: Any) -> None:
    from mpi4py import MPI

    def left(a: Any, b: Any, _: Any) -> None:
        bb = np.frombuffer(b, np.float64)
        bb[:] = np.frombuffer(a, np.float64)

    op = MPI.Op.Create(left, commute=False)
    x = np.full(4, comm.rank + 10.0)
    for name in ("tree", "recursive_doubling"):
        assert comm.all_reduce(x, op, algorithm=name).tolist() == [10.0] * 4
    if comm.size > 2:
        with pytest.raises(
            hpcomm.UsageError, match=r"ring does not keep the order of ranks(.|\n)*try: .*tree"
        ):
            comm.all_reduce(x, op, algorithm="ring")
    op.Free()


@pytest.mark.parametrize("wire", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", ["ring", "tree", "recursive_doubling", "double_tree", "rabenseifner"])
def test_narrower_on_the_wire_is_alike_on_all_ranks_and_near(comm: Any, name: str, wire: str) -> None:
    x = np.linspace(1, 2, 100, dtype=np.float32) * (comm.rank + 1)
    y = comm.all_reduce(x, algorithm=f"{name}:wire={wire}")
    assert y.dtype == np.float32
    everybody = comm.all_gather(y)
    assert all(np.array_equal(everybody[0], other) for other in everybody)
    near = {"float16": 2e-3, "bfloat16": 2e-2}[wire] * comm.size
    np.testing.assert_allclose(y, comm.all_reduce(x), rtol=near)
    if comm.size > 1:
        assert np.array_equal(y, torch.tensor(y).to(getattr(torch, wire)).float().numpy())
    with pytest.raises(hpcomm.UsageError, match=f"wire={wire} narrows float32 only"):
        comm.all_reduce(np.ones(3), algorithm=f"{name}:wire={wire}")


def test_deterministic_gives_the_exact_sum_rounded_once(comm: Any) -> None:
    p = comm.size
    parts = [np.random.default_rng(r).normal(size=101) * 10.0 ** (7 * (r % 3)) for r in range(p)]
    found = comm.all_reduce(parts[comm.rank], deterministic=True)
    assert found.tolist() == [math.fsum(column) for column in zip(*parts, strict=True)]
    turned = comm.all_reduce(parts[(comm.rank + 1) % p], deterministic=True, async_op=True).wait(timeout=60)
    assert turned.tobytes() == found.tobytes()
    assert (
        comm.all_reduce(np.float32(0.1), "avg", deterministic=True)
        == np.float32(math.fsum([np.float32(0.1)] * p)) / p
    )
    assert comm.all_reduce(np.arange(3) + comm.rank, "max", deterministic=True).tolist() == [p - 1, p, p + 1]


@pytest.mark.parametrize("later", [False, True])
def test_deterministic_takes_little_memory_beside_long_arrays(comm: Any, later: bool) -> None:
    most = 16 << 20
    for _ in range(20):  # where ranks wait for long, other threads look into it, which takes memory as well
        x = np.full(3_000_001, 0.1 + comm.rank, np.float32)
        tracemalloc.start()
        try:
            made = comm.all_reduce(x, out=x, deterministic=True, async_op=later)
            if later:
                made.wait()
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        if is_little := bool(comm.all_reduce(int(peak < most), "min")):
            break
    assert is_little, peak
    total = np.float32(math.fsum(np.float32(0.1 + r) for r in range(comm.size)))
    assert (x == total).all()


def test_deterministic_does_not_depend_on_the_number_of_ranks(comm: Any) -> None:
    """The same numbers, spread over any ranks so that each one's own part is exact."""
    rows = np.array([[2.0**60, 1.0], [-(2.0**60), 2.0**-40], [3.0, 0.1], [2.0**-52, 1e16], [0.0, 0.0]])
    mine = np.zeros(2)
    for column in (0, 1):  # all of a column on one rank only where the sum of its own numbers is exact
        for i, value in enumerate(rows[:, column]):
            if i % min(comm.size, 4) == comm.rank and mine[column] == 0:
                mine[column] = value
    total = [math.fsum(column) for column in comm.all_gather(mine).T]
    assert comm.all_reduce(mine, deterministic=True).tolist() == total
    with pytest.raises(hpcomm.UsageError, match="in its own way"):
        comm.all_reduce(mine, deterministic=True, algorithm="ring")
    for code in "gG":
        with pytest.raises(hpcomm.DtypeError, match="has no sums of"):
            comm.all_reduce(mine.astype(code), deterministic=True)


def test_ones_own_algorithm_runs_by_name(comm: Any) -> None:
    @register("star_over_mpi", "all_reduce")
    def star(p: int) -> Schedule:
        others = np.arange(1, p)
        up = Stream(others, np.zeros_like(others), reduce=AFTER)
        down = Stream(np.zeros_like(others), others, begin=1, end=2)
        return Schedule("all_reduce", p, (up, down) if p > 1 else ())

    assert comm.all_reduce(np.ones(3), algorithm="star_over_mpi").tolist() == [comm.size] * 3
    if comm.size > 1:

        @register("wrong_over_mpi", "all_reduce")
        def wrong(p: int) -> Schedule:
            return Schedule("all_reduce", p, (Stream([1], [0], reduce=AFTER),))

        with pytest.raises(hpcomm.HpcommError, match="lacks a contribution"):
            comm.all_reduce(np.ones(3), algorithm="wrong_over_mpi")


def test_an_unknown_algorithm_is_refused_before_anybody_waits(comm: Any) -> None:
    with pytest.raises(hpcomm.UsageError, match="no algorithm 'rung' for all_reduce") as caught:
        comm.all_reduce(np.ones(3), algorithm="rung")
    assert "test_schedules.py" in str(caught.value.where)
    comm.barrier()
    with pytest.raises(hpcomm.UsageError, match="no algorithm 'barrier' for all_reduce"):
        comm.all_reduce(np.ones(3), algorithm="barrier")
    for name, said in (
        (7, "algorithm=7 is no name"),
        ("", "no algorithm ''"),
        ("tree:chunks=x", "chunks is 'x'"),
    ):
        with pytest.raises(hpcomm.UsageError, match=said):
            comm.all_reduce(np.ones(3), algorithm=name)
    with pytest.raises(hpcomm.UsageError, match="no algorithm 'rung' for barrier") as caught:
        comm.barrier(algorithm="rung")
    assert "test_schedules.py" in str(caught.value.where)
    assert comm.all_reduce(1) == comm.size


def test_repeated_calls_reuse_what_was_prepared(own_comm: Any) -> None:
    for i in range(30):
        assert own_comm.all_reduce(np.full(4, i), algorithm="circulant")[0] == i * own_comm.size
    assert len(own_comm.context.kept_schedules._kept) == 1
    for n in range(40):
        own_comm.all_reduce(np.ones(n + 1), algorithm="ring")
    assert len(own_comm.context.kept_schedules._kept) <= 16
    for n in (0, 39, 3, 20):  # some have given way since, and are made again
        assert own_comm.all_reduce(np.full(n + 1, 2.0), algorithm="ring").tolist() == [
            2.0 * own_comm.size
        ] * (n + 1)


@pytest.mark.parametrize("verb", verbs())
def test_a_plan_by_an_algorithm_gives_what_its_verb_gives_each_time(own_comm: Any, verb: str) -> None:
    """Bit for bit, without and with out, alone and with timeout; and the plan frees what it prepared."""
    p, wrong = own_comm.size, []
    for name in KNOWN[verb]:
        for n, root in ((0, 0), (7, p - 1), (1000, 0)):
            x = np.zeros(shape(verb, p, n))
            keywords: dict[str, Any] = {"root": root} if verb in ROOTED else {}
            arguments = () if verb == "barrier" else (x,)
            out = x if verb in ("all_reduce", "broadcast", "scan") and n == 7 else None
            step = own_comm.plan(verb, *arguments, out=out, algorithm=name, **keywords)
            for turn in range(3):
                x[...] = given(verb, own_comm.rank + 10 * turn, p, n)
                expected = getattr(own_comm, verb)(*arguments, algorithm=name, **keywords)
                found = step(timeout=60) if turn == 1 else step()
                same = found is expected is None or found.tobytes() == expected.tobytes()
                if not same or (out is not None and found is not out):
                    wrong.append((name, n, root, turn, found, expected))
            step.close()
    assert wrong == []
    assert not schedule_channels.under_way


@pytest.mark.parametrize(
    "op",
    ["avg", "max", hpcomm.premul_sum(2), lambda a, b: a - b],
    ids=["avg", "max", "premul_sum", "function"],
)
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_a_plan_by_an_algorithm_takes_any_operator_and_layout(comm: Any, op: Any, dtype: str) -> None:
    x = np.zeros(12, dtype)[::2]
    step = comm.plan("all_reduce", x, op=op, algorithm="recursive_doubling")
    for turn in range(3):
        x[...] = np.arange(6) + comm.rank + turn
        assert step().tobytes() == comm.all_reduce(x, op, algorithm="recursive_doubling").tobytes()
    step.close()


def test_plans_by_algorithms_and_calls_in_the_background_may_be_under_way_at_once(comm: Any) -> None:
    """And be waited for in any order, by each rank in another one."""
    x, y = np.ones(3), np.full(5, 2.0)
    one = comm.plan("all_reduce", x, algorithm="ring")
    two = comm.plan("all_reduce", y, algorithm="tree")
    three = comm.plan("all_reduce", y, algorithm="tree")
    for _ in range(5):
        one.start()
        two.start()
        request = comm.all_reduce(y, algorithm="ring", async_op=True)
        three.start()
        waits = [one.wait, two.wait, three.wait, request.wait]
        found = {i: waits[i]() for i in np.roll(range(4), comm.rank).tolist()}
        assert [found[i][0] for i in range(4)] == [comm.size, 2 * comm.size, 2 * comm.size, 2 * comm.size]
    assert "own schedule ring" in one.explain()
    for step in (one, two, three):
        step.close()
    with pytest.raises(hpcomm.UsageError, match="closed"):
        one()


def test_what_no_plan_can_choose_is_refused(comm: Any) -> None:
    mistakes: list[tuple[str, Any]] = [
        (
            "algorithm='tuned' cannot be planned",
            lambda: comm.plan("all_reduce", np.ones(1), algorithm="tuned"),
        ),
        ("'mpi:ring' cannot be", lambda: comm.plan("all_reduce", np.ones(1), algorithm="mpi:ring")),
        ("send has no algorithm", lambda: comm.plan("send", np.ones(1), dest=0, algorithm="ring")),
        ("no algorithm 'rung'", lambda: comm.plan("all_reduce", np.ones(1), algorithm="rung")),
    ]
    for words, call in mistakes:
        with pytest.raises(hpcomm.UsageError, match=words) as caught:
            call()
        assert "test_schedules.py:" in str(caught.value.where)
    assert comm.all_reduce(1) == comm.size


@pytest.mark.once
def test_requests_that_are_kept_have_tags_that_no_call_has(own_comm: Any) -> None:
    """Or a call in the background, after many others, would take their messages."""
    mine, tags = comm_cache.own(own_comm.context), []

    def make(channel: Any) -> Any:
        tags.append(channel.tag)
        return SimpleNamespace(rounds=[])  # an executor without messages

    mine.executor("first", make)
    assert tags[0] not in {mine.tag() for _ in range(70_000)}
