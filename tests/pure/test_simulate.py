"""The simulator against an independent one that goes message by message, and against what is known."""

from __future__ import annotations

import json
import time
import tracemalloc
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import hpcomm
from hpcomm.__main__ import main
from hpcomm.machine import Machine, lower_bound, machine, machines
from hpcomm.schedule.cost.max_plus_powers import _power
from hpcomm.schedule.registry import algorithms, build, verbs
from hpcomm.schedule.stream import COPY, Schedule
from hpcomm.simulate import predict, simulate
from hpcomm.tools import fit, sim

UNEVEN = Machine(
    "uneven", node=3, pod=2, overhead=0.3e-6, latency=(0.5e-6, 2e-6, 3.7e-6), per_byte=(1e-10, 3e-10, 4e-10),
    nic_per_byte=2.1e-10, uplink_per_byte=1.3e-10, reduce_per_byte=0.7e-10, base=1e-6,
)  # fmt: skip
MACHINES = [
    UNEVEN,
    replace(UNEVEN, pod=0, nic_per_byte=0.0),
    replace(UNEVEN, node=1, pod=0, latency=(2e-6,) * 3, per_byte=(3e-10,) * 3),
    replace(UNEVEN, node=2, pod=0, overhead=0.0, nic_per_byte=1e-9),
    replace(UNEVEN, node=4, pod=0, per_byte=(1e-9, 1e-9, 1e-9)),
]
SHAPES = [(p, b) for p in (1, 2, 3, 5, 6, 8, 12, 13, 18) for b in (8.0, 50_000.0, 4e6)]
# all_reduce among verbs of one slot; the others in fewer shapes


def reference(schedule: Schedule, on: Machine, nbytes: float) -> float:
    """The same model, one message and one event at a time, in plain Python."""
    p, chunk = schedule.size, nbytes / schedule.chunks
    clock = [0.0] * p
    free: dict[Any, float] = {}

    def place(rank: int) -> tuple[int, int]:
        node = rank // on.node
        return node, node // on.pod if on.pod else 0

    for t in range(schedule.iterations):
        messages: dict[tuple[int, int], list[float]] = {}
        for s, k in schedule.active(t):
            source, dest = s.ends(k, p)
            for row in range(s.rows):
                a, b = int(source[row]), int(dest[row])
                size = len(s.chunks(k, row)[0]) * chunk
                how = int(np.broadcast_to(s.reduce, source.shape)[row]) != COPY
                if a != b:
                    entry = messages.setdefault((a, b), [0.0, 0.0])
                    entry[0] += size
                    entry[1] += size if how else 0.0
        messages = dict(sorted(messages.items()))  # by rank of the senders, then of the receivers
        passing: dict[Any, float] = {}
        ways: dict[tuple[int, int], list[Any]] = {}
        for (a, b), (size, _) in messages.items():
            (na, pa), (nb, pb) = place(a), place(b)
            ways[a, b] = [("nic out", na), ("nic in", nb)] if na != nb else []
            ways[a, b] += [("up", pa), ("down", pb)] if pa != pb else []
            for link in ways[a, b]:
                passing[link] = passing.get(link, 0.0) + size
        port, done = list(clock), list(clock)
        arrivals: dict[int, list[tuple[float, float, float]]] = {}
        for (a, b), (size, reduced) in messages.items():
            level = len(ways[a, b]) // 2
            rates = {"nic": on.nic_per_byte, "up": on.uplink_per_byte, "down": on.uplink_per_byte}
            head = port[a] + on.overhead
            tail = head + max((passing[w] * rates[w[0].split()[0]] for w in ways[a, b]), default=0.0)
            port[a] += on.overhead + size * on.per_byte[level]
            done[a] = max(done[a], port[a], tail)
            take = on.overhead + size * on.per_byte[level] + reduced * on.reduce_per_byte
            late = tail + on.latency[level] + on.overhead
            arrivals.setdefault(b, []).append((head + on.latency[level], take, late))
        for b, line in arrivals.items():
            free = clock[b]
            for ready, take, late in line:
                free = max(free, ready) + take
                done[b] = max(done[b], free, late)
        clock = done
    return max(clock) + on.base


@pytest.mark.parametrize("name", algorithms("all_reduce"))
@pytest.mark.parametrize("on", MACHINES, ids=lambda m: f"{m.node}-{m.pod}-{m.nic_per_byte:g}")
def test_the_simulator_agrees_with_one_that_goes_message_by_message(name: str, on: Machine) -> None:
    for p, nbytes in SHAPES[::2] if on.pod else SHAPES[1::3]:
        schedule = build("all_reduce", f"{name}:chunks=6" if name == "double_tree" else name, p)
        found = simulate(schedule, on, nbytes)
        assert found.seconds == pytest.approx(reference(schedule, on, nbytes), rel=1e-12), (p, nbytes)


@pytest.mark.parametrize("verb", [verb for verb in verbs() if verb != "all_reduce"])
def test_so_it_does_for_every_verb(verb: str) -> None:
    for name in algorithms(verb):
        for on, p, nbytes in ((UNEVEN, 18, 3e4), (MACHINES[3], 8, 8.0), (MACHINES[2], 12, 1e6)):
            schedule = build(verb, name, p)
            want = reference(schedule, on, nbytes)
            assert simulate(schedule, on, nbytes).seconds == pytest.approx(want, rel=1e-12), (name, p)


@pytest.mark.parametrize(("verb", "name", "most"), [
    ("all_reduce", "ring", 0), ("all_gather", "ring", 0), ("barrier", "ring", 0),
    ("broadcast", "scatter_ring", 6), ("reduce", "ring_gather", 6),
    ("all_gather", "pairwise", 46), ("reduce_scatter", "pairwise", 46), ("all_to_all", "pairwise", 46),
    ("broadcast", "ring", 0), ("broadcast", "ring:chunks=9", 0), ("reduce", "ring:chunks=12", 0),
    ("scan", "ring:chunks=7", 0), ("exscan", "ring:chunks=7", 1), ("scatter", "pairwise", 0),
    ("gather", "pairwise", 0), ("all_reduce", "hierarchical:node=20,outer=tree", 4),
    ("all_reduce", "double_tree:chunks=100", 60),
])  # fmt: skip
@pytest.mark.parametrize("on", [
    UNEVEN, replace(UNEVEN, node=1, pod=0), replace(UNEVEN, node=3, pod=4, nic_per_byte=0.0),
    replace(UNEVEN, node=7, pod=0, overhead=0.0),
], ids=lambda m: f"{m.node}-{m.pod}-{m.nic_per_byte:g}")  # fmt: skip
def test_closed_forms_give_every_rank_what_iterations_one_by_one_do(
    verb: str, name: str, most: int, on: Machine
) -> None:
    """Where nodes divide the ranks and where they do not."""
    for p in (60, 61):
        if "node=20" in name and p % 20:
            continue
        schedule = build(verb, name, p)
        for size in (8.0, 1e6):
            want = simulate(schedule, on, size, trace=True)
            found = simulate(schedule, on, size)
            assert found.finish == pytest.approx(want.finish, rel=1e-12)
            assert found.stepped <= most, (p, size)


def random_machine(rng: np.random.Generator) -> Machine:
    """Nodes and pods of 1 to 5, anything between quick and slow, nothing at all in one of five places."""

    def some(low: float, high: float) -> float:
        return 10 ** rng.uniform(low, high) if rng.random() < 0.8 else 0.0

    return Machine(
        "random", node=int(rng.integers(1, 6)), pod=int(rng.choice([0, 0, 2, 3])), overhead=some(-8, -5),
        latency=tuple(some(-7, -4) for _ in range(3)), per_byte=tuple(some(-11, -8) for _ in range(3)),
        nic_per_byte=some(-11, -8), uplink_per_byte=some(-11, -8), reduce_per_byte=some(-11, -9),
    )  # fmt: skip


@pytest.mark.parametrize(("verb", "name"), [
    ("all_reduce", "ring"), ("all_gather", "ring"), ("reduce_scatter", "ring"), ("barrier", "ring"),
    ("scan", "ring"), ("scan", "ring:chunks=4"), ("exscan", "ring"), ("exscan", "ring:chunks=3"),
    ("broadcast", "ring:chunks=3"), ("reduce", "ring:chunks=2"), ("all_to_all", "pairwise"),
])  # fmt: skip
def test_rings_and_chains_cost_what_their_messages_do_on_any_machine(verb: str, name: str) -> None:
    rng = np.random.default_rng(5)
    for _ in range(12):
        on, p, nbytes = random_machine(rng), int(rng.integers(1, 80)), 10 ** rng.uniform(0, 9)
        schedule = build(verb, name, p)
        found, want = simulate(schedule, on, nbytes), simulate(schedule, on, nbytes, trace=True)
        assert found.stepped <= 1 + (verb == "all_to_all") * p
        assert found.seconds == pytest.approx(want.seconds, rel=1e-12), (p, nbytes, on)
        units = {"rank": 1} | {kind: unit for kind, unit, _ in on.links()}
        sent = {kind: np.zeros(p) for kind in units}
        for _, a, b, size, *_ in want.messages:
            for kind, unit in units.items():
                sent[kind][a // unit] += size * (a // unit != b // unit)
        for kind, total in sent.items():
            assert found.load[kind] == pytest.approx((total.max(), total.sum())), (kind, p, on)


@pytest.mark.parametrize("verb", [verb for verb in verbs() if "ring" in algorithms(verb)])
@pytest.mark.parametrize("where", ["cluster", "dgx_pods"])
def test_a_ring_takes_longer_in_proportion(verb: str, where: str) -> None:
    whole = machine(where).group
    times = [predict(verb, "ring", n * 100 * whole, 0, machine(where)).seconds for n in (1, 2, 50)]
    assert times[2] == pytest.approx(times[0] + 49 * (times[1] - times[0]), rel=1e-9)


def test_circles_are_found_whatever_clocks_they_begin_with() -> None:
    """The closed form for circles against its definition, iteration by iteration; several laps, too."""
    rng = np.random.default_rng(3)
    for n in (1, 3, 6, 20):
        time, hop = rng.uniform(0, 9, (2, 7)), rng.uniform(1, 4, (2, 7))
        own = rng.choice([0.5, 1.5, 6.0], (2, 7))
        want = time
        for _ in range(n):
            want = np.maximum(want + own, np.roll(want, 1, 1) + hop)
        found, left = time, n
        while left:
            found = _power(found, hop, own, np.unique(own), min(left, 6))
            left -= min(left, 6)
        assert found == pytest.approx(want, rel=1e-13)


@pytest.mark.parametrize("verb", verbs())
def test_no_algorithm_is_simulated_step_by_step_on_many_ranks(verb: str) -> None:
    """Few steps that are arrays over all ranks, so that 100,000 take less than 3 seconds."""
    for algorithm in algorithms(verb):
        for ranks, nbytes in (
            (24_576, 8),
            (20_002, 16 << 20),
        ):  # nodes of 6: as many as there are, and a rest
            found = predict(verb, algorithm, ranks, nbytes, machine("summit"))
            assert found.stepped <= 100, (algorithm, ranks)


@pytest.mark.parametrize(("verb", "name"), [
    ("all_reduce", "rabenseifner"), ("all_gather", "pairwise"), ("reduce_scatter", "pairwise"),
    ("broadcast", "ring:chunks=3"), ("all_reduce", "double_tree:chunks=4"), ("gather", "pairwise"),
])  # fmt: skip
def test_loads_and_the_critical_path_are_those_of_the_messages(verb: str, name: str) -> None:
    p = 40
    schedule = build(verb, name, p)
    found = simulate(schedule, UNEVEN, 1200.0, trace=True)
    out, nic, up = np.zeros(p), np.zeros(14), np.zeros(7)
    for _, a, b, nbytes, begin, end in found.messages:
        assert end > begin
        out[a] += nbytes
        if a // 3 != b // 3:
            nic[a // 3] += nbytes
        if a // 6 != b // 6:
            up[a // 6] += nbytes
    for kind, sent in (("rank", out), ("nic", nic), ("uplink", up)):
        assert found.load[kind] == pytest.approx((sent.max(), sent.sum())), kind
    assert [t for t, _ in found.path] == sorted({t for t, _ in found.path})
    assert found.path[-1][1] == int(found.finish.argmax())


@pytest.mark.parametrize(("ranks", "ring_us", "tree_us"), [
    (96, 178, 128), (384, 657, 156), (1536, 2677, 180), (6144, 10767, 209),
])  # fmt: skip
def test_nvidias_chart_of_summit_comes_out_within_6_per_cent(
    ranks: int, ring_us: float, tree_us: float
) -> None:
    on = machine("summit")
    assert predict("all_reduce", "ring", ranks, 8, on).seconds == pytest.approx(ring_us * 1e-6, rel=0.06)
    for tree in ("tree", "double_tree"):
        assert predict("all_reduce", tree, ranks, 8, on).seconds == pytest.approx(tree_us * 1e-6, rel=0.06)


def test_the_ratio_at_24576_gpus_is_about_180() -> None:
    on = machine("summit")
    ratio = (
        predict("all_reduce", "ring", 24576, 8, on).seconds
        / predict("all_reduce", "double_tree", 24576, 8, on).seconds
    )
    assert ratio == pytest.approx(180, rel=0.03)
    calibrated = [key for key, text in on.sources.items() if "CALIBRATED" in text]
    assert calibrated == ["base"]


@pytest.mark.parametrize("name", ["ring", "double_tree", "recursive_doubling"])
def test_100_000_ranks_need_little_memory(name: str) -> None:
    tracemalloc.start()
    try:
        found = predict("all_reduce", name, 100_000, 8, machine("cluster"))
        assert tracemalloc.get_traced_memory()[1] < 300e6
    finally:
        tracemalloc.stop()
    assert found.seconds > lower_bound("all_reduce", 100_000, 8, machine("cluster"))


def test_every_machine_names_where_its_figures_come_from() -> None:
    for name in machines():
        assert machine(name).sources
        assert predict("all_reduce", "ring", 48, 1e6, machine(name)).seconds > 0
    with pytest.raises(
        hpcomm.ConfigError, match=r"no machine 'sumit'(\n  where: .*)?\n  try:   one of cluster"
    ):
        machine("sumit")


def test_a_machine_file_with_a_word_too_many_is_refused(tmp_path: Any) -> None:
    (tmp_path / "m.json").write_text(json.dumps({"name": "m", "latence": 1}))
    with pytest.raises(hpcomm.ConfigError, match="a machine has no latence"):
        machine(str(tmp_path / "m.json"))
    (tmp_path / "m.json").write_text(json.dumps({"name": "m", "fold_per_byte": 0}))
    with pytest.raises(hpcomm.ConfigError, match=r"no fold_per_byte(?s:.*)reduce_per_byte is its name now"):
        machine(str(tmp_path / "m.json"))


@pytest.mark.parametrize(("text", "said"), [
    ("[1]", "is no machine"), ('{"node"', "is no machine"), ('{"node": "4"}', "machine 'm': node is '4'"),
    ('{"node": 0}', "node is 0"), ('{"overhead": -1e-6}', "overhead is -1e-06"),
    ('{"latency": [1e-6]}', r"latency is \(1e-06,\)"), ('{"pod": 1.5}', "pod is 1.5"),
])  # fmt: skip
def test_a_machine_file_with_a_wrong_value_is_refused(tmp_path: Any, text: str, said: str) -> None:
    (tmp_path / "m.json").write_text(text)
    with pytest.raises(hpcomm.ConfigError, match=said):
        machine(str(tmp_path / "m.json"))


POINTS = [
    {"bytes": n, "seconds": t, "reduce": 1e-10, "copy": 2e-10, "one_round": 4e-6, "two_rounds": 5.5e-6}
    for n, t in ((8, 1e-6), (1024, 2e-6), (4096, 9e-6), (8192, 11e-6))
]


def test_a_fit_goes_through_what_was_measured_with_straight_lines_between(tmp_path: Any) -> None:
    """By hand: a round, what the message takes beyond it, its reduction, the copies of x, turns on cores."""
    (tmp_path / "here.json").write_text(json.dumps(fit.fitted(POINTS) | {"cores": 2}))
    on = machine(str(tmp_path / "here.json"))
    for nbytes, beyond in ((8, 0.0), (1024, 1e-6), (2560, 4.5e-6), (8192, 10e-6), (16384, 14e-6)):
        want = 4e-6 + beyond + (1e-10 + 2e-10) * nbytes
        found = predict("all_reduce", "recursive_doubling", 2, nbytes, on)
        assert found.seconds == pytest.approx(want, rel=1e-9), nbytes
    alone = predict("all_reduce", "ring", 3, 600, replace(on, cores=3)).seconds
    assert predict("all_reduce", "ring", 3, 600, on).seconds == pytest.approx(1.5 * alone)


def test_a_fit_says_how_far_off_it_is_apart_where_ranks_share_cores(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def job(ranks: int, function: str, limit_s: int) -> list[dict[str, Any]]:
        if function == "fit.pingpong":
            return POINTS
        seconds = predict("all_reduce", "ring", ranks, 512, machine(str(tmp_path / "m.json"))).seconds
        return [{"algorithm": "ring", "ranks": ranks, "bytes": 512, "seconds": seconds / (ranks - 1)}]

    monkeypatch.setattr(fit, "job", job)
    monkeypatch.setattr(fit, "usable_cores", lambda: 2)
    assert main(["sim", "--fit", str(tmp_path / "m.json")]) == 0
    said = capsys.readouterr().out
    assert "  2 ranks, a core each: 0%, largest 0%" in said
    assert "  3 ranks, sharing 2 cores: 100%, largest 100%" in said


def test_sim_prints_a_table_and_json(capsys: pytest.CaptureFixture[str]) -> None:
    asked = "sim all_reduce --algorithm ring,tree,double_tree --ranks 24576 --bytes 8 --machine summit"
    words = asked.split()
    begin = time.process_time()
    assert main(words) == 0
    assert time.process_time() - begin < 60
    out = capsys.readouterr().out
    assert "NCCL 2.4.8, src/init.cc" in out
    assert "CALIBRATED" in out
    assert main([*words, "--json"]) == 0
    records = json.loads(capsys.readouterr().out)
    assert [r["algorithm"] for r in records] == ["ring", "tree", "double_tree"]
    assert all({"algorithm", "ranks", "bytes", "seconds"} <= set(r) for r in records)
    assert records[0]["seconds"] / records[2]["seconds"] == pytest.approx(180, rel=0.03)
    assert sim.numbers("8,64k,1M") == [8, 65536, 1 << 20]
    for wrong, said in (
        ("--ranks many", "'many' is no number"),
        ("--ranks 0", "0 ranks have no rank 0"),
        ("--bytes -1", "'-1' is no number"),
        ("all_redoce", "no algorithms for 'all_redoce'"),
        ("--algorithm rong", "no algorithm 'rong' for all_reduce"),
        ("--fit nowhere/here.json", "there is no folder nowhere"),
    ):
        assert main(["sim", *wrong.split()]) == 2
        assert said in capsys.readouterr().err
