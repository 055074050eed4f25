"""Every algorithm is proved, and what is broken in one is found."""

from __future__ import annotations

import ast
import inspect
import itertools
import random
import re
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from interpreted import interpret_values

import hpcomm
from hpcomm.core.verbs import ROOTED
from hpcomm.schedule import butterfly, hierarchy, registry, ring, tree
from hpcomm.schedule.combine import reverse, sequence, turn
from hpcomm.schedule.exact import exact_sum
from hpcomm.schedule.prove import ScheduleError, keeps_order, prove
from hpcomm.schedule.rank_program import edges, program
from hpcomm.schedule.registry import algorithms, build, cut, named, parameters, register, verbs
from hpcomm.schedule.stream import AFTER, COPY, Schedule, Stream
from hpcomm.schedule.tree import binary_tree, two_trees

PRIMES = [67, 71, 73, 79, 83, 89, 97, 101, 103, 107, 109, 113, 127]
SIZES = [*range(1, 65), *PRIMES, 128, 129]
EVERY = [(verb, name) for verb in verbs() for name in algorithms(verb)]
PIPELINED = [
    ("all_reduce", "double_tree"),
    ("all_reduce", "tree"),
    ("broadcast", "double_tree"),
    ("reduce", "double_tree"),
    ("broadcast", "ring"),
    ("reduce", "ring"),
    ("scan", "ring"),
    ("exscan", "ring"),
]
OPTIMAL_ROUNDS = ("circulant", "bruck", "pat")


def messages(schedule: Schedule, turn: int = 0) -> set[tuple[int, ...]]:
    """What travels, chunk by chunk: (iteration, source, dest, chunk there, chunk here, how).

    turn: so many ranks further around the circle, and with each rank the chunks of its own block.
    """
    p, found = schedule.size, set()
    cells, move = schedule.cells, turn * schedule.chunks if schedule.slots > 1 else 0
    for s in schedule.streams:
        for k in range(s.active):
            source, dest = s.ends(k, p)
            how = np.broadcast_to(s.reduce, source.shape).tolist()
            for row, (a, b) in enumerate(zip(source.tolist(), dest.tolist(), strict=True)):
                ends = s.begin + k * s.every, (a + turn) % p, (b + turn) % p
                for there, here in zip(*s.chunks(k, row), strict=True):
                    found.add((*ends, (int(there) + move) % cells, (int(here) + move) % cells, how[row]))
    return found


@pytest.mark.parametrize(("verb", "name"), EVERY)
def test_an_algorithm_is_right_at_every_number_of_ranks(verb: str, name: str) -> None:
    for p in SIZES:
        proof = prove(build(verb, name, p))
        assert proof.exact
        assert proof.sent >= proof.least_sent - 1e-9
        assert proof.rounds >= proof.least_rounds or p == 1


@pytest.mark.parametrize(("verb", "name"), [(v, n) for v, n in EVERY if v in ROOTED])
def test_every_root_is_right(verb: str, name: str) -> None:
    """Root r has the schedule of root 0, proved above, with all ranks renamed (combine.turn).

    No verb tells ranks apart but by root and by whose block it is, so it needs no proof of its own. That it
    is a renaming is shown message by message, and that it is right outright where p is small.
    """
    for p in (2, 3, 5, 6, 8, 9):
        for root in range(p):
            assert prove(build(verb, name, p, root)).exact
    if "root" in parameters(verb, name):
        return
    for p in (*range(2, 10), 31, 64):
        for root in range(1, p) if p < 10 else (p // 3,):
            other = build(verb, name, p, root)
            assert other.root == root
            assert messages(other) == messages(build(verb, name, p), root)


def test_a_tree_that_keeps_order_gives_any_root_what_it_gave_rank_0() -> None:
    for p in SIZES[1:]:
        straight = build("reduce", "ordered_tree", p).streams
        for root in range(1, p):
            *rows, last = build("reduce", "ordered_tree", p, root).streams
            pairs = zip(rows, straight, strict=True)
            assert all(np.array_equal(x, y) for r, s in pairs for x, y in zip(r[:6], s[:6], strict=True))
            assert (last.source, last.dest, last.reduce, last.begin) == ([0], [root], COPY, len(straight))


@pytest.mark.parametrize("p", [2, 3, 7, 64, 100, 129])
def test_the_bounds_are_reached_by_those_that_claim_it(p: int) -> None:
    least = (p - 1).bit_length()
    for name in OPTIMAL_ROUNDS:
        proof = prove(build("all_gather", name, p))
        assert proof.rounds == least
        assert proof.sent == pytest.approx(p - 1)
        proof = prove(build("all_reduce", name, p))
        assert proof.rounds == 2 * least
        assert proof.sent == pytest.approx(2 * (p - 1) / p) == proof.least_sent
        assert proof.reduced == pytest.approx((p - 1) / p) == proof.least_reduced
    ring = prove(build("all_reduce", "ring", p))
    assert ring.rounds == 2 * (p - 1)
    assert ring.sent == pytest.approx(ring.least_sent)
    assert prove(build("all_reduce", "double_tree:chunks=16", p)).sent <= 2.0 + 1e-9


@pytest.mark.parametrize(("node", "inner", "outer"), [
    (4, "ring", "ring"), (4, "circulant", "double_tree"), (3, "tree", "ring"), (2, "pat", "rabenseifner"),
    (6, "bruck", "swing"), (1, "ring", "recursive_doubling"), (12, "pairwise", "tree"),
    (4, "tree", "hierarchical"),
])  # fmt: skip
def test_any_two_algorithms_make_a_hierarchy(node: int, inner: str, outer: str) -> None:
    prove(build("all_reduce", f"hierarchical:node={node},inner={inner},outer={outer}", 12))
    prove(build("all_reduce", f"hierarchical:node={node},inner={inner},outer={outer}", 36))


@pytest.mark.parametrize("chunks", [2, 4, 10])
def test_pipelines_are_right_with_any_number_of_chunks(chunks: int) -> None:
    for p in (2, 5, 6, 13):
        for verb, name in PIPELINED:
            prove(build(verb, f"{name}:chunks={chunks}", p))
        prove(build("all_reduce", f"double_tree:chunks={chunks},node={2 if p % 2 == 0 else 1}", p))


@pytest.mark.parametrize(("verb", "name"), EVERY)
def test_an_algorithm_says_what_it_does_and_what_it_costs(verb: str, name: str) -> None:
    text = inspect.cleandoc(registry._MADE[verb][name].__doc__ or "")  # as Python 3.13 keeps it
    assert text.startswith(f"{verb}: ")
    assert "Cost: " in text
    assert re.search(r"(19|20)\d\d|folklore", text), "no source"
    assert re.search(r"^ {4,}.*(->|<-|---| \| )", text, re.M) or "double_tree" in name, "no drawing"


@pytest.mark.parametrize("part", [ring, tree, butterfly, hierarchy, registry], ids=lambda part: part.__name__)
def test_an_algorithm_is_no_longer_than_13_lines(part: Any) -> None:
    for function in ast.parse(Path(part.__file__).read_text()).body:
        if not isinstance(function, ast.FunctionDef) or not isinstance(function.returns, ast.Name):
            continue
        if function.returns.id == "Schedule" and function.name != "build":
            lines = [s for s in function.body if not isinstance(getattr(s, "value", 0), ast.Constant)]
            assert (lines[-1].end_lineno or 0) - lines[0].lineno < 13, function.name


def test_chunks_may_move_at_the_receiver_alone() -> None:
    s = Stream(0, 1, end=3, dest_chunk_step=2)
    assert [[int(x[0]) for x in s.starts(k)] for k in range(3)] == [[0, 0], [0, 2], [0, 4]]


def test_a_ring_over_100_000_ranks_is_two_streams() -> None:
    ring = build("all_reduce", "ring", 100_000)
    assert len(ring.streams) == 2
    assert ring.iterations == 2 * 99_999


def test_the_double_tree_spans_and_every_rank_is_a_leaf_once() -> None:
    for p in (*range(2, 200), 999, 1000, 1023, 1024, 1025, 65536, 99_999, 100_000):
        leaves = np.zeros(p, bool)
        for parent, depth in two_trees(p):
            roots = np.flatnonzero(parent < 0)
            assert roots.size == 1, p
            others = np.flatnonzero(parent >= 0)
            children = np.bincount(parent[others], minlength=p)
            assert children.max() <= 2, p
            assert (depth[others] == depth[parent[others]] + 1).all(), p  # so every way up ends at the root
            assert depth[roots[0]] == 0
            assert depth.max() <= (p - 1).bit_length(), p
            leaves |= children == 0
        assert leaves.all(), p


def test_the_binary_tree_is_in_order() -> None:
    up, _ = binary_tree(11)
    assert up.tolist() == [2, 4, 2, 8, 6, 4, 6, 0, 10, 8, 10]
    assert keeps_order(build("all_reduce", "tree", 13))
    assert not keeps_order(build("all_reduce", "ring", 13))
    assert keeps_order(build("all_reduce", "recursive_doubling", 13))


def mutated(schedule: Schedule, chance: random.Random) -> Schedule:
    """The schedule with one thing wrong."""
    streams = list(schedule.streams)
    i = chance.randrange(len(streams))
    s = streams[i]
    source = np.array(np.atleast_1d(s.source))
    dest = np.array(np.broadcast_to(np.atleast_1d(s.dest), source.shape))
    first, into = (np.array(part) for part in s.starts(0))
    row = chance.randrange(s.rows)
    kinds = ["drop", "dest", "source", "early", "how", "short"] + ["chunk"] * (schedule.cells > 1)
    kind = chance.choice(kinds)
    s = s._replace(
        source=source,
        dest=dest,
        chunk=first,
        dest_chunk=into,
        dest_chunk_step=s.chunk_step if s.dest_chunk_step is None else s.dest_chunk_step,
    )
    if kind == "drop":
        keep = np.arange(s.rows) != row
        whole = {k: getattr(s, k)[keep] if np.ndim(getattr(s, k)) else getattr(s, k) for k in s._fields}
        s = Stream(**whole)
    elif kind in ("dest", "source"):
        ends = dest if kind == "dest" else source
        ends[row] = (ends[row] + chance.randrange(1, schedule.size)) % schedule.size
    elif kind == "chunk":
        into[row] = (into[row] + chance.randrange(1, schedule.cells)) % min(s.modulus, schedule.cells)
    elif kind == "early":
        s = s._replace(begin=s.begin + 1, end=s.end + 1)
    elif kind == "how":
        how = np.array(np.broadcast_to(s.reduce, s.rows))
        how[row] = AFTER if how[row] == COPY else COPY
        s = s._replace(reduce=how)
    else:
        s = s._replace(end=s.begin + (s.active - 1) * s.every)
    streams[i] = s
    return replace(schedule, streams=tuple(streams))


def right(schedule: Schedule) -> bool:
    """By the definition itself: random numbers through the interpreter of values."""
    p = schedule.size
    rng = np.random.default_rng(7)
    given = [rng.integers(1, 1 << 40, schedule.cells) for _ in range(p)]
    try:
        memory = interpret_values(schedule, given, np.add)
    except (IndexError, ValueError):
        return False
    return all(np.array_equal(m, sum(given)) for m in memory)


@pytest.mark.parametrize("name", ["ring", "circulant", "double_tree", "rabenseifner", "swing", "tree"])
def test_random_mutations_of_schedules_are_caught(name: str) -> None:
    """Every mutation that gives a wrong sum is refused, by sets and by fingerprints."""
    chance, caught = random.Random(name), 0
    for _ in range(40):
        broken = mutated(build("all_reduce", name, chance.choice([5, 6, 8])), chance)
        wrong = not right(broken)
        for exact in (True, False):
            try:
                prove(broken, exact=exact)
            except ScheduleError:
                caught += 1
            else:
                assert not wrong, broken
    assert caught > 50


@pytest.mark.parametrize(("verb", "name"), EVERY)
def test_fingerprints_refuse_what_sets_refuse_at_the_end(verb: str, name: str) -> None:
    """One row of any algorithm taken away, its receiver changed, or its chunk: both judge alike.

    Only sets see two contributions meet that never get into a result; so where they say that one would count
    twice on the way, fingerprints may pass what is right at the end.
    """
    chance = random.Random(verb + name)
    for _ in range(12):
        whole = build(verb, name, chance.choice([5, 6, 8]))
        broken = mutated(replace(whole, streams=tuple(s for s in whole.streams if s.active)), chance)
        judged = []
        for exact in (True, False):
            try:
                prove(broken, exact=exact)
            except ScheduleError as error:
                judged.append(str(error))
            else:
                judged.append("")
        assert bool(judged[0]) == bool(judged[1]) or "twice" in judged[0] or "reduced" in judged[0], judged


def test_a_broken_schedule_is_refused_with_rank_iteration_and_chunk() -> None:
    ring = build("all_reduce", "ring", 4)
    later = ring.streams[1]._replace(begin=4, end=7)
    twice = replace(ring, streams=(ring.streams[0]._replace(end=4), later))
    with pytest.raises(
        ScheduleError, match=r"rank \d, iteration 3, chunk \d: a contribution would count"
    ) as caught:
        prove(twice)
    assert (caught.value.rank, caught.value.iteration, caught.value.chunk) == (0, 3, 3)
    assert "all_reduce by 'ring' on 4 ranks" in str(caught.value.where)
    early = build("broadcast", "tree", 4)
    s = early.streams
    early = replace(early, streams=(s[0]._replace(begin=1, end=2), s[1]._replace(begin=0, end=1)))
    with pytest.raises(ScheduleError, match="has not arrived yet"):
        prove(early)
    ones = np.array([1, 2])
    both = Schedule("broadcast", 3, (Stream([0, 0], ones), Stream([0], [1])))
    with pytest.raises(ScheduleError, match="two messages into one chunk"):
        prove(both)
    with pytest.raises(ScheduleError, match="there are only 1 chunks"):
        prove(Schedule("broadcast", 2, (Stream([0], [1], chunk=1),)))
    with pytest.raises(ScheduleError, match="no such rank"):
        prove(Schedule("broadcast", 2, (Stream([0], [9]),)))


@pytest.mark.parametrize("how", [COPY, AFTER])
@pytest.mark.parametrize("p", [2, 40])
def test_a_message_with_the_same_chunk_twice_is_refused(p: int, how: int) -> None:
    """The second piece would land on the first: lost if copied, counted twice if reduced."""
    others, hub = np.arange(1, p), np.zeros(p - 1, int)
    up = Stream(others, hub, width=2, reduce=AFTER)
    down = Stream(hub, others, count=2, stride=1, begin=1, end=2)
    prove(Schedule("all_reduce", p, (up, down), chunks=2))
    for wrong in (down._replace(dest_stride=0, reduce=how), down._replace(modulus=1, reduce=how)):
        with pytest.raises(ScheduleError, match="iteration 1, chunk 0: one message has a chunk twice"):
            prove(Schedule("all_reduce", p, (up, wrong), chunks=2))


def test_chunks_beyond_the_last_are_seen_in_every_iteration() -> None:
    """Here only in the middle one, where chunk 2 of rank 0 would be taken for chunk 0 of rank 1."""
    away = Stream([0], [2], chunk=0, chunk_step=2, modulus=4, end=3, dest_chunk=0, dest_chunk_step=0)
    with pytest.raises(ScheduleError, match="rank 0, iteration 2, chunk 2: there are only 2 chunks"):
        prove(
            Schedule(
                "broadcast", 3, (Stream([0, 0], [1, 2], width=2), away._replace(begin=1, end=4)), chunks=2
            )
        )


def test_a_schedule_with_windows_of_chunks_cannot_be_turned() -> None:
    apart = Schedule("scatter", 4, (Stream([0], [1], chunk=0, offset=1, modulus=1),), slots=4)
    with pytest.raises(
        hpcomm.UsageError,
        match=r"windows of chunks cannot be turned(\n  where: .*)?\n  try:   a parameter root",
    ):
        turn(apart, 1)
    assert turn(apart, 0) is apart


def test_4096_ranks_are_proved_by_fingerprints() -> None:
    proof = prove(build("all_reduce", "ring", 4096))
    assert not proof.exact
    assert proof.rounds == 2 * 4095
    tracemalloc.start()
    try:
        prove(build("all_to_all", "bruck", 2048))
        assert tracemalloc.get_traced_memory()[1] < 150e6  # 480e6 at 4096
    finally:
        tracemalloc.stop()
    broken = build("all_reduce", "circulant", 4096)
    s = broken.streams[3]
    dest = np.array(s.dest)
    dest[17] += 1
    with pytest.raises(ScheduleError):
        prove(replace(broken, streams=(*broken.streams[:3], s._replace(dest=dest), *broken.streams[4:])))


@pytest.mark.parametrize(("verb", "name"), EVERY)
def test_any_count_is_cut_without_overflow(verb: str, name: str) -> None:
    """A dry run of all ranks at 3 Gi elements and one: all that is sent is received, and lies in memory."""
    count, p = 3 * 2**30 + 1, 6
    schedule = build(verb, cut(verb, name, 8 * count), p)
    bounds = edges(schedule, count)
    assert bounds[-1] == schedule.slots * count
    assert (np.diff(bounds) >= count // schedule.chunks).all()
    parts = [program(schedule, rank, count) for rank in range(p)]
    sent, received = (
        sorted(
            (t, *((part.rank, m.peer) if side == "sends" else (m.peer, part.rank)), m.high - m.low)
            for part in parts
            for t, round_ in enumerate(part.rounds)
            for m in getattr(round_, side)
        )
        for side in ("sends", "recvs")
    )
    assert sum(n for *_, n in sent) == sum(n for *_, n in received) >= count
    pairs = [sorted((a, b, n) for _, a, b, n in flow) for flow in (sent, received)]
    assert pairs[0] == pairs[1]
    for part in parts:
        for round_ in part.rounds:
            for m in (*round_.sends, *round_.recvs):
                assert 0 <= m.low < m.high <= (part.room if m.staged else schedule.slots * count)


def test_reversal_turns_all_gather_into_reduce_scatter() -> None:
    gather = build("all_gather", "ring", 7)
    prove(reverse("reduce_scatter", gather))
    prove(sequence("all_reduce", reverse("reduce_scatter", gather), gather, slots=1, chunks=7))


def test_an_algorithm_of_the_users_gets_everything() -> None:
    @register("star_of_test", "all_reduce")
    def star(p: int) -> Schedule:
        """all_reduce: everyone to rank 0 and back."""
        others = np.arange(1, p)
        up = Stream(others, np.zeros_like(others), reduce=AFTER)
        return Schedule(
            "all_reduce", p, (up, Stream(np.zeros_like(others), others, begin=1, end=2)) if p > 1 else ()
        )

    try:
        assert prove(build("all_reduce", "star_of_test", 9)).rounds == 2
        from hpcomm.machine import machine
        from hpcomm.simulate import predict

        assert predict("all_reduce", "star_of_test", 9, 8, machine("cluster")).seconds > 0
    finally:
        del registry._MADE["all_reduce"]["star_of_test"]


def test_a_name_stands_for_one_schedule() -> None:
    """What has been built, proved and prepared from the first one would go on running."""
    with pytest.raises(
        hpcomm.UsageError,
        match=r"an algorithm 'ring' already(\n  where: .*)?\n  try:   another name, as 'ring_2'",
    ):
        register("ring", "all_reduce")(lambda p: Schedule("all_reduce", p, ()))
    assert build("all_reduce", "ring", 5).iterations == 8


def test_an_unknown_algorithm_or_parameter_is_refused_with_what_there_is() -> None:
    with pytest.raises(
        hpcomm.UsageError,
        match=r"no algorithm 'rong' for all_reduce(\n  where: .*)?\n  try:   one of ring, tree",
    ):
        build("all_reduce", "rong", 4)
    with pytest.raises(hpcomm.UsageError, match="ring for all_reduce has no such parameter: size=3"):
        build("all_reduce", "ring:size=3", 4)
    with pytest.raises(
        hpcomm.UsageError, match=r"7 ranks do not divide into nodes of 2(\n  where: .*)?\n  try:   node=1"
    ):
        build("all_reduce", "hierarchical:node=2", 7)
    for name in ("tree", "double_tree"):
        with pytest.raises(hpcomm.UsageError, match=r"12 ranks do not divide into nodes of 5"):
            build("all_reduce", f"{name}:node=5", 12)
    with pytest.raises(
        hpcomm.UsageError, match=r"no algorithms for 'all_redoce'(\n  where: .*)?\n  try:   one of all_gather"
    ):
        named("all_redoce", "all")
    for value in ("x", "0", "-3", "1.5", ""):
        with pytest.raises(
            hpcomm.UsageError,
            match=rf"chunks is '{value}'(\n  where: .*)?\n  try:   a whole number, 1 or more",
        ):
            build("all_reduce", f"double_tree:chunks={value}", 4)
    with pytest.raises(
        hpcomm.UsageError, match=r"no such parameter: root=1(\n  where: .*)?\n  try:   ordered_tree alone"
    ):
        build("reduce", "ordered_tree:root=1", 4)
    for p, root in ((0, 0), (-1, 0), (4, 4), (4, -1)):
        with pytest.raises(hpcomm.UsageError, match=f"{p} ranks have no rank {root}"):
            build("broadcast", "tree", p, root)


@pytest.mark.parametrize(
    ("definition", "word"),
    [
        (lambda: Stream([0], [1], fold=AFTER), "'reduce'"),  # type: ignore[call-arg]
        (lambda: Stream([0], [1])._replace(march=1), "'source_step'"),  # type: ignore[call-arg]
        (lambda: Stream([0], [1]).into, "'dest_chunk'"),  # type: ignore[attr-defined]
    ],
)
def test_a_definition_with_an_earlier_word_is_told_the_present_one(definition: Any, word: str) -> None:
    register("earlier_of_test", "all_reduce")(lambda p: Schedule("all_reduce", p, (definition(),)))
    try:
        with pytest.raises(hpcomm.UsageError, match=rf"(?s)a Stream has no .*try: .*{word}"):
            build("all_reduce", "earlier_of_test", 2)
    finally:
        del registry._MADE["all_reduce"]["earlier_of_test"]


def test_a_function_that_returns_no_schedule_for_these_ranks_is_refused() -> None:
    made: list[Any] = [None, build("all_reduce", "ring", 5)]
    register("none_of_test", "all_reduce")(lambda p: made[p - 2])
    try:
        for p in (0, 1):
            with pytest.raises(hpcomm.UsageError, match=f"returned no schedule for {p + 2} ranks"):
                build("all_reduce", "none_of_test", p + 2)
    finally:
        del registry._MADE["all_reduce"]["none_of_test"]


def test_names_on_a_command_line_may_have_parameters() -> None:
    assert named("barrier", "all") == algorithms("barrier")
    assert named("all_reduce", "ring,hierarchical:node=4,inner=pat,tree:chunks=2") == [
        "ring", "hierarchical:node=4,inner=pat", "tree:chunks=2"]  # fmt: skip
    assert named("all_reduce", "ring;hierarchical:node=4,inner=pat") == [
        "ring",
        "hierarchical:node=4,inner=pat",
    ]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_exact_sum_is_that_of_fsum_whatever_the_order(dtype: type) -> None:
    import math

    rng = np.random.default_rng(1)
    for trial in range(60):
        p, wide = int(rng.integers(1, 9)), 12 * (trial % 3)
        x = (rng.normal(size=(p, 40)) * 10.0 ** rng.integers(-wide, wide + 1, (p, 40))).astype(dtype)
        if p > 2 and trial % 2:
            x[-1] = -x[0]
        found = exact_sum(x)
        if dtype is np.float64:
            assert (found == [math.fsum(column) for column in x.T]).all()
        assert (found == exact_sum(x[rng.permutation(p)])).all()
        assert (found == exact_sum(np.concatenate([x, np.zeros((3, 40), dtype)]))).all()
    odd = np.array([[np.inf, np.nan, 1.0, 0.0], [1.0, 1.0, -1.0, -0.0]], dtype)
    assert np.array_equal(exact_sum(odd), odd.sum(0), equal_nan=True)
    most = np.finfo(dtype).max
    for order in itertools.permutations([-most, -most, np.inf]):
        assert exact_sum(np.array(order, dtype)[:, None]) == np.inf


def test_the_page_of_algorithms_has_every_one_with_its_rounds_and_volume() -> None:
    page = (Path(__file__).parents[2] / "docs/algorithms.md").read_text()
    for verb, name in EVERY:
        few, many = (prove(build(verb, name, p)) for p in (7, 64))
        row = f"| {verb} | `{name}` | {few.rounds} / {many.rounds} | {few.sent:.3g} / {many.sent:.3g} |"
        assert row in page, row
