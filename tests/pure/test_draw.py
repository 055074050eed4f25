"""Pictures of schedules: every view is drawn, and a trace has every message."""

from __future__ import annotations

import json
import re
import shlex
from base64 import b64decode
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from hpcomm.__main__ import main
from hpcomm.machine import machine
from hpcomm.schedule import registry
from hpcomm.schedule.prove import ending
from hpcomm.schedule.registry import algorithms, build, verbs
from hpcomm.schedule.steps import steps
from hpcomm.simulate import predict, simulate
from hpcomm.tools.canvas import pyplot
from hpcomm.tools.draw import chrome_trace
from hpcomm.tools.draw_messages import schedule_picture, trees
from hpcomm.tools.draw_times import cost, critical_way, occupancy, space_time, winners

pytest.importorskip("matplotlib")

VIEWS = [
    ["double_tree", "--ranks", "14"],
    ["tree", "--ranks", "9"],
    ["ring", "--ranks", "6"],
    ["circulant", "--ranks", "6"],
    ["ring", "--ranks", "4", "--view", "steps"],
    ["pairwise", "--verb", "all_to_all", "--ranks", "3", "--view", "steps"],
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


def arrows(axes: Any) -> set[tuple[Any, ...]]:
    """(from, to) of all arrows."""
    return {(tuple(note.xyann), tuple(note.xy)) for note in axes.texts if getattr(note, "arrow_patch", None)}


def panels(figure: Any) -> list[Any]:
    """Its axes, without colour bars."""
    pyplot().close(figure)
    return [axes for axes in figure.axes if axes.get_label() != "<colorbar>"]


@pytest.mark.parametrize("name", ["tree", "tree:chunks=3", "double_tree", "double_tree:chunks=6"])
def test_a_tree_is_drawn_up_and_down_with_an_arrow_from_or_to_everyone_but_its_root(name: str) -> None:
    schedule = build("all_reduce", name, 11)
    drawn = panels(schedule_picture(schedule))
    assert len(drawn) == 2 * len(trees(schedule)) == (4 if "double" in name else 2)
    for i, axes in enumerate(drawn):
        found = arrows(axes)
        lower = [b if i % 2 else a for a, b in found]
        assert len({*lower}) == len(found) == 10
        assert all((b[1] > a[1]) == (i % 2 == 0) for a, b in found)
        assert ("up" in axes.get_title(), "down" in axes.get_title()) == (i % 2 == 0, i % 2 == 1)
    assert (
        trees(build("all_reduce", "tree", 11))[0].up.keys() == trees(schedule)[0].up.keys()
        or "double" in name
    )


@pytest.mark.parametrize("verb", ["broadcast", "reduce"])
def test_a_tree_of_one_way_is_one_panel(verb: str) -> None:
    for name in ("tree", "ring", "bine"):
        (axes,) = panels(schedule_picture(build(verb, name, 11, 3)))
        found = arrows(axes)
        assert len(found) == 10
        assert all((b[1] > a[1]) == (verb == "reduce") for a, b in found)


@pytest.mark.parametrize("verb", verbs())
def test_what_is_no_tree_and_no_ring_is_drawn_message_by_message(verb: str) -> None:
    for name in algorithms(verb):
        schedule = build(verb, name, 6)
        (axes, *_) = panels(schedule_picture(schedule))
        if axes.get_xlabel() != "step":
            assert name in ("tree", "ring", "double_tree", "bine", "ordered_tree")
            assert (verb, name) not in (("all_reduce", "bine"), ("broadcast", "scatter_ring"))
            continue
        pairs = set()
        for s in schedule.streams:
            for k in range(s.active):
                ends = (end.tolist() for end in s.ends(k, 6))
                pairs |= {(s.begin + k * s.every, a, b) for a, b in zip(*ends, strict=True) if a != b}
        assert {(round(a[0] - 0.6), a[1], b[1]) for a, b in arrows(axes)} == pairs


def test_ranks_are_whole_numbers_and_titles_say_ranks_bytes_and_machine(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures = []
    monkeypatch.setattr("hpcomm.tools.draw.save", lambda figure, _out: figures.append(figure))
    said = {
        "tree": "all_reduce by tree: 5 ranks, 64 KiB, cluster",
        "ring": "all_reduce by ring: 5 ranks, 64 KiB, cluster",
        "swing --bytes 8": "all_reduce by swing: 5 ranks, 8 B, cluster",
        "swing --view time --machine summit": "all_reduce by swing: 5 ranks, 64 KiB, summit",
        "bruck --view time --ranks 80": "all_reduce by bruck: 80 ranks, 64 KiB, cluster",
        "tree --view steps": "all_reduce by tree: 5 ranks, 64 KiB, cluster",
        "ring,tree --view cost": "all_reduce: 5 ranks, cluster, as simulated",
        "ring,tree --view winners": "fastest all_reduce: 2 to 5 ranks, cluster, as simulated",
        "ring --view winners --ranks 1024": "fastest all_reduce: 11 to 1024 ranks, cluster, as simulated",
    }
    for words in said:
        assert main(["draw", *f"--ranks 5 {words}".split(), "-o", str(tmp_path / "x.svg")]) == 0
    for title, figure in zip(said.values(), figures, strict=True):
        figure.canvas.draw()
        texts = [text.get_text() for text in figure.findobj(lambda x: hasattr(x, "get_text"))]
        assert any(text.startswith(title) for text in texts), (title, texts)
        for axes in panels(figure):
            if axes.get_ylabel() == "rank":
                low, high = sorted(axes.get_ylim())
                shown = [tick for tick in axes.get_yticks() if low <= tick <= high]
                assert len(shown) > 3
                assert shown == [round(tick) for tick in shown]


def test_a_colour_is_a_step_in_all_pictures_of_one_algorithm() -> None:
    """As many as there are steps, from messages to times; and what is no step is gray."""
    schedule = build("all_reduce", "swing", 8)
    found = simulate(schedule, machine("cluster"), 1e4, trace=True)
    (messages, *_), (times, *_) = panels(schedule_picture(schedule)), panels(space_time(found))
    steps: dict[int, set[Any]] = {}
    for note in messages.texts:
        steps.setdefault(round(note.xyann[0] + 0.4), set()).add(note.arrow_patch.get_edgecolor())
    assert [len(steps[i]) for i in range(1, 7)] == [1] * 6
    lines = {line.get_color() for line in times.lines if line.get_color() != "black"}
    assert lines == set.union(*steps.values())
    assert len(lines) == 6


def test_an_algorithm_has_one_colour_in_charts_that_compare() -> None:
    names = algorithms("all_reduce")
    (chart,), (map_,) = (
        panels(cost("all_reduce", names, machine("cluster"), 8)),
        panels(winners("all_reduce", names, machine("cluster"), 8)),
    )
    lines = {line.get_label(): line.get_color() for line in chart.lines}
    shown = {line.get_label(): line.get_color() for line in map_.lines}
    assert shown.keys() <= lines.keys()
    assert len(shown) > 1
    assert all(lines[name] == colour for name, colour in shown.items())


def test_the_page_on_ring_and_tree_shows_what_the_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parents[2] / "docs/ring_and_tree.md").read_text(encoding="utf-8")
    shown = re.findall(
        r"^```\nhpcomm (draw \w+ --ranks 4 --view steps)\n```\n\n((?:\|.*\n)+)", page, re.MULTILINE
    )
    assert [words.split()[1] for words, _ in shown] == ["ring", "tree"]
    for words, table in shown:
        assert main(words.split()) == 0
        assert capsys.readouterr().out == table


@pytest.mark.parametrize("verb", verbs())
def test_the_steps_begin_with_x_and_end_with_the_result(verb: str) -> None:
    """Held against the prover, which knows what a verb leaves where."""
    for name in algorithms(verb):
        schedule = build(verb, name, 4)
        found = steps(schedule)
        assert len(found) - 1 == schedule.iterations
        wanted, low, high, place = (
            np.broadcast_to(x, (4, schedule.cells)) for x in ending(schedule, np.arange(4))
        )
        for rank, chunk in np.argwhere(wanted):
            at = rank, chunk
            assert found[-1].held[rank][chunk] == (place[at], tuple(range(low[at], high[at])))
        sent = sum(len(m.chunks) for step in found for m in step.messages if m.source != m.dest)
        assert sent == pytest.approx(schedule.sent().sum() * schedule.chunks)


@pytest.mark.parametrize("kind", ["gif", "html"])
def test_an_animation_is_one_file_that_needs_nothing_else(kind: str, tmp_path: Any) -> None:
    out = tmp_path / f"x.{kind}"
    assert main(["draw", "tree", "--ranks", "3", "--view", "steps", "-o", str(out)]) == 0
    if kind == "gif":
        from PIL import Image

        with Image.open(out) as image:
            assert image.n_frames > 4 * 5  # four steps, with messages on their way in each
        return
    text = out.read_text(encoding="utf-8")
    assert "http" not in text
    (frames,) = re.findall(r"const frames = \[(.*?)\]", text)
    pictures = [b64decode(frame) for frame in frames.replace("'", "").split(", ")]
    assert len(pictures) == 1 + 2 * 4
    assert len({*pictures}) == len(pictures)
    assert all(ElementTree.fromstring(picture).tag.endswith("svg") for picture in pictures)


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
    names = algorithms("all_reduce")
    (axes,) = panels(cost("all_reduce", names, machine("cluster"), 8))
    lines = [(line.get_color(), line.get_linestyle()) for line in axes.lines if line.get_label()[0] != "_"]
    assert len(lines) == len(names) + 1 == len(set(lines))


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
    ("ring --ranks 40 --view steps", "40 ranks, too many to follow step by step"),
    ("double_tree --ranks 4 --bytes 1G --view steps", "chunks, too many to follow"),
    ("ring --view cost -o x.gif", "x.gif is no picture"),
    ("ring -o x.txt", "x.txt is no picture"),
    ("ring -o nowhere/x.svg", "there is no folder nowhere"),
    ("ring -o 'no where/x.svg'", "mkdir -p 'no where'"),
    ("ring -o /proc/x.svg", "/proc/x.svg cannot be written: "),
])  # fmt: skip
def test_bad_input_is_refused_in_one_sentence(
    words: str, said: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["draw", "-o", "x.svg", *shlex.split(words)]) == 2
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
