"""Pictures of schedules: every view is drawn, and a trace has every message."""

from __future__ import annotations

import json
from typing import Any
from xml.etree import ElementTree

import pytest

from hpcomm.__main__ import main
from hpcomm.machine import machine
from hpcomm.schedule import registry
from hpcomm.schedule.registry import algorithms, build, verbs
from hpcomm.simulate import predict, simulate
from hpcomm.tools import draw
from hpcomm.tools.draw import chrome_trace, critical_way, occupancy

pytest.importorskip("matplotlib")

VIEWS = [
    ["double_tree", "--ranks", "14"],
    ["tree", "--ranks", "9"],
    ["ring", "--ranks", "6"],
    ["circulant", "--ranks", "6"],
    ["swing", "--ranks", "8", "--view", "time"],
    ["recursive_doubling", "--ranks", "80", "--view", "time"],
    ["ring,double_tree", "--ranks", "16", "--view", "cost"],
    ["ring,hierarchical:inner=pat,outer=ring", "--ranks", "16", "--view", "winners"],
    ["hierarchical:node=4", "--ranks", "16", "--view", "winners"],  # not for all numbers up to 16
]


@pytest.mark.parametrize("words", VIEWS, ids=lambda words: "-".join(words).replace("--", ""))
def test_every_view_is_drawn(words: list[str], tmp_path: Any) -> None:
    out = tmp_path / "x.svg"
    assert main(["draw", *words, "-o", str(out)]) == 0
    root = ElementTree.parse(out).getroot()
    assert root.tag.endswith("svg")
    assert len(list(root.iter("{http://www.w3.org/2000/svg}path"))) > 5


def test_the_same_picture_is_the_same_file(tmp_path: Any) -> None:
    for name in ("a", "b"):
        assert main(["draw", "double_tree", "--ranks", "6", "-o", str(tmp_path / f"{name}.svg")]) == 0
    first, second = ((tmp_path / f"{name}.svg").read_text() for name in ("a", "b"))
    assert [line for line in first.splitlines() if "dc:date" not in line] == [
        line for line in second.splitlines() if "dc:date" not in line
    ]


def test_a_trace_has_every_message(tmp_path: Any) -> None:
    out = tmp_path / "ring.json"
    assert main(["draw", "ring", "--ranks", "5", "-o", str(out)]) == 0
    assert json.loads(out.read_text())["traceEvents"]
    found = simulate(build("all_reduce", "ring", 5), machine("cluster"), 100.0, trace=True)
    events = [event for event in chrome_trace(found)["traceEvents"] if event.get("ph") == "X"]
    assert len(events) >= len(found.messages) == 5 * 8


def arrows(figure: Any) -> set[tuple[Any, ...]]:
    """(from, to) of all arrows."""
    axes = figure.axes[0]
    found = {(tuple(note.xyann), tuple(note.xy)) for note in axes.texts if getattr(note, "arrow_patch", None)}
    draw.pyplot().close(figure)
    return found


def test_a_tree_has_an_arrow_from_everyone_the_way_that_x_goes() -> None:
    for name in ("tree", "ring", "bine"):
        for verb, root in (("broadcast", 3), ("reduce", 3), ("all_reduce", 0)):
            if verb != "all_reduce" or name == "tree":
                found = arrows(draw.schedule_picture(build(verb, name, 11, root)))
                lower = [a if verb == "reduce" else b for a, b in found]
                assert sorted(int(rank) for rank, _ in lower) == [r for r in range(11) if r != root]
                upwards = [b[1] > a[1] for a, b in found]
                assert all(upwards) if verb == "reduce" else not any(upwards)
    plain, cut = (
        arrows(draw.schedule_picture(build("all_reduce", f"tree{c}", 9))) for c in ("", ":chunks=3")
    )
    assert plain == cut


@pytest.mark.parametrize("verb", verbs())
def test_what_is_no_tree_and_no_ring_is_drawn_message_by_message(verb: str) -> None:
    for name in algorithms(verb):
        schedule = build(verb, name, 6)
        figure = draw.schedule_picture(schedule)
        if figure.axes[0].get_xlabel() != "iteration":
            draw.pyplot().close(figure)
            assert verb == "barrier" or name in ("tree", "ring", "double_tree", "bine")
            assert (verb, name) not in (("all_reduce", "bine"), ("broadcast", "scatter_ring"))
            continue
        pairs = set()
        for s in schedule.streams:
            for k in range(s.active):
                ends = (end.tolist() for end in s.ends(k, 6))
                pairs |= {(s.begin + k * s.every, a, b) for a, b in zip(*ends, strict=True) if a != b}
        assert {(round(a[0] - 0.1), a[1], b[1]) for a, b in arrows(figure)} == pairs


@pytest.mark.parametrize(
    "name", ["ring", "double_tree:chunks=8", "tree", "swing", "hierarchical:node=4,inner=tree"]
)
def test_the_critical_path_is_one_line_to_the_end(name: str) -> None:
    found = simulate(build("all_reduce", name, 24), machine("summit"), 1e6, trace=True)
    way = critical_way(found)
    times = [time for time, _ in way]
    assert times == pytest.approx(sorted(times))
    assert times[-1] == pytest.approx(max(found.finish))
    assert [a for _, a in way[1:-1:2]] == [b for _, b in way[2::2]]  # each begins where the one before ended


def test_the_occupancy_map_has_all_the_time_that_messages_take() -> None:
    for name in ("ring", "double_tree"):
        found = predict("all_reduce", name, 100, 1e5, machine("cluster"))
        found = simulate(found.schedule, machine("cluster"), 1e5, trace=True)
        image, span = occupancy(found)
        row = [sum(r * 64 // 100 == i for r in range(100)) for i in range(64)]
        total = sum(float(image[i].sum()) * row[i] for i in range(64)) * span / image.shape[1]
        assert total == pytest.approx(sum(end - begin for *_, begin, end in found.messages))
        if name == "ring":
            assert image == pytest.approx(1.0)  # everyone always sends one


def test_lines_of_a_chart_can_be_told_apart() -> None:
    figure = draw.cost("all_reduce", algorithms("all_reduce"), machine("cluster"), 8)
    lines = [
        (line.get_color(), line.get_linestyle())
        for line in figure.axes[0].lines
        if line.get_label()[0] != "_"
    ]
    draw.pyplot().close(figure)
    assert len(lines) == len(algorithms("all_reduce")) + 1 == len(set(lines))


def test_what_is_timed_is_what_the_simulator_predicts(
    tmp_path: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """In as many chunks, and with nodes apart."""
    words = ["draw", "double_tree", "--ranks", "12", "--bytes", "2M", "--machine", "summit"]
    assert main([*words, "-o", str(tmp_path / "x.json")]) == 0
    assert "all_reduce by double_tree:node=6,chunks=8, 12 ranks" in capsys.readouterr().out
    events = json.loads((tmp_path / "x.json").read_text())["traceEvents"]
    end = max(event["ts"] + event["dur"] for event in events if event["ph"] == "X")
    predicted = predict("all_reduce", "double_tree", 12, 2 << 20, machine("summit")).seconds
    assert end * 1e-6 + machine("summit").base == pytest.approx(predicted)


@pytest.mark.parametrize(("words", "said"), [
    ("rong --ranks 8", "no algorithm 'rong' for all_reduce"),
    ("ring --ranks 0", "0 ranks have no rank 0"),
    ("ring --verb broadcast --ranks 8 --root 9", "8 ranks have no rank 9"),
    ("ring --machine nowhere", "no machine 'nowhere'"),
    ("ring --view time --bytes -4", "'-4' is no number"),
    ("all --verb nothing", "no algorithms for 'nothing'"),
    ("ring,tree", "2 algorithms in one picture"),
    ("ring --load nowhere.py", "there is no file nowhere.py"),
    ("ring -o x.txt", "x.txt is no picture"),
    ("ring -o nowhere/x.svg", "there is no folder nowhere"),
    ("ring -o /proc/x.svg", "/proc/x.svg cannot be written: "),
])  # fmt: skip
def test_bad_input_is_refused_in_one_sentence(
    words: str, said: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["draw", "-o", "x.svg", *words.split()]) == 2
    assert said in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_an_algorithm_out_of_a_file_is_drawn_and_simulated(
    tmp_path: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    own = tmp_path / "own.py"
    own.write_text(
        "from hpcomm.schedule.registry import build, register\n"
        "@register('own_of_file', 'all_reduce')\n"
        "def own(p, least=2):\n"
        "    return build('all_reduce', 'tree', p)\n"
    )
    try:
        words = ["own_of_file", "--ranks", "8", "--load", str(own), "-o", str(tmp_path / "x.svg")]
        assert main(["draw", *words]) == 0
        del registry._MADE["all_reduce"]["own_of_file"]
        words = ["--algorithm", "own_of_file:least=3,tree", "--ranks", "8", "--load", str(own), "--json"]
        capsys.readouterr()
        assert main(["sim", "all_reduce", *words]) == 0
        first, second = json.loads(capsys.readouterr().out)
        assert first["algorithm"] == "own_of_file:least=3"
        assert first["seconds"] == second["seconds"] > 0
    finally:
        registry._MADE["all_reduce"].pop("own_of_file", None)
