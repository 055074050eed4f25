"""Pictures of schedules: every view is drawn, and a trace has every message."""

from __future__ import annotations

import json
from typing import Any
from xml.etree import ElementTree

import pytest

from hpcomm.__main__ import main
from hpcomm.draw import chrome_trace
from hpcomm.schedule.registry import build
from hpcomm.simulate import machine, simulate

pytest.importorskip("matplotlib")

VIEWS = [
    ["double_tree", "--ranks", "14"],
    ["tree", "--ranks", "9"],
    ["ring", "--ranks", "6"],
    ["circulant", "--ranks", "6"],
    ["swing", "--ranks", "8", "--view", "time"],
    ["recursive_doubling", "--ranks", "80", "--view", "time"],
    ["ring,double_tree", "--ranks", "16", "--view", "cost"],
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
