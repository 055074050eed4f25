"""Algorithms are proved before they are carried out, priced or drawn, and by a command of their own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hpcomm.__main__ import main
from hpcomm.schedule import registry
from hpcomm.schedule.assured import assured, evidence, work
from hpcomm.schedule.cost.machine_model import PRESETS
from hpcomm.schedule.interpret import ScheduleError
from hpcomm.schedule.registry import build
from hpcomm.transport.scheduled.proved import proved

OWN = """
import numpy as np
from hpcomm.errors import UsageError
from hpcomm.schedule.registry import register
from hpcomm.schedule.stream import AFTER, Schedule, Stream

def both_ways(p, first):
    others, hub = np.arange(first, p), np.zeros(max(0, p - first), int)
    return Schedule("all_reduce", p, (Stream(others, hub, reduce=AFTER), Stream(hub, others, begin=1, end=2)))

@register("own_star", "all_reduce")
def star(p):
    return both_ways(p, 1)

@register("own_pairs", "all_reduce")
def pairs(p):
    if p % 2:
        raise UsageError("odd numbers of ranks do not pair")
    return both_ways(p, 1)

@register("own_broadcast", "broadcast")
def down(p):
    return Schedule("broadcast", p, (Stream(np.zeros(p - 1, int), np.arange(1, p)),))
"""
WRONG = """
@register("own_wrong", "all_reduce")
def wrong(p):
    return both_ways(p, 2)
"""


@pytest.fixture
def file(tmp_path: Path) -> Any:
    """file(text) -> its name; what it registers is forgotten afterwards."""
    known = {verb: dict(names) for verb, names in registry._MADE.items()}

    def write(text: str) -> str:
        (tmp_path / "own.py").write_text(text)
        return str(tmp_path / "own.py")

    yield write
    for verb, names in registry._MADE.items():
        for name in set(names) - set(known[verb]):
            del names[name]
    build.cache_clear()
    evidence.cache_clear()
    proved.cache_clear()


def test_prove_says_where_algorithms_of_a_file_are_right(file: Any, capsys: Any) -> None:
    assert main(["prove", file(OWN)]) == 0
    out = capsys.readouterr().out
    assert "all_reduce by own_star: right on 1, 2, 3, 4," in out
    assert "on 64, proved: rounds 2, at least 6" in out
    assert "all_reduce by own_pairs: right on 2, 4, 6, 8, 12," in out
    assert "it is not for 1, 3, 5, 7, 9, 15, 17, 31, 33: odd numbers of ranks do not pair" in out
    assert "broadcast by own_broadcast: right on" in out


def test_prove_says_where_an_algorithm_is_wrong(file: Any, capsys: Any) -> None:
    assert main(["prove", file(OWN + WRONG), "--ranks", "5,1,6"]) == 1
    done = capsys.readouterr()
    assert "own_star: right on 5, 1, 6" in done.out
    assert "all_reduce by own_wrong: wrong on 5 ranks" in done.err
    assert "lacks a contribution at the end" in done.err


@pytest.mark.parametrize(("text", "words"), [
    ("x = 1", "registers no such algorithm"),
    ("x = 1\nx.y", "own.py, line 2 does not run: AttributeError"),
    ("x = (", "does not run: SyntaxError"),
])  # fmt: skip
def test_a_file_that_proves_nothing_is_refused(file: Any, capsys: Any, text: str, words: str) -> None:
    assert main(["prove", file(text)]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize("words", [
    "sim all_reduce --ranks 8 --algorithm",
    "sim all_reduce --ranks 100000 --algorithm",
    "draw -o x.svg --ranks 8",
    "draw -o x.json --ranks 8",
    "draw -o x.svg --view steps --ranks 8",
    "draw -o x.svg --view time --ranks 8",
    "draw -o x.svg --view cost --ranks 8",
    "draw -o x.svg --view winners --ranks 8",
])  # fmt: skip
def test_a_wrong_algorithm_is_neither_priced_nor_drawn(
    file: Any, capsys: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([*words.split(), "own_wrong", "--load", file(OWN + WRONG)]) == 2
    done = capsys.readouterr()
    assert "ScheduleError: rank 0, iteration 2, chunk 0: " in done.err
    assert not done.out
    assert not (tmp_path / words.split()[2]).exists()


@pytest.mark.parametrize(
    "words", ["sim all_reduce --algorithm", *(f"draw -o x.svg --view {v}" for v in ("messages", "cost"))]
)
def test_an_algorithm_is_proved_as_it_would_run_on_the_machine(
    file: Any, capsys: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    nodewise = """
@register("own_nodewise", "all_reduce")
def nodewise(p, node=1):
    return both_ways(p, node)
"""
    known = json.loads((PRESETS / "cluster.json").read_text())
    machine = tmp_path / "m.json"
    machine.write_text(json.dumps({**known, "node": 2, "nodewise": ["own_nodewise"]}))
    registry.load(file(OWN + nodewise))
    command = [*words.split(), "own_nodewise", "--ranks", "8"]
    assert main(command) == 0
    assert main([*command, "--machine", str(machine)]) == 2
    assert "by 'own_nodewise:node=2' on 8 ranks" in capsys.readouterr().err


def test_what_is_too_large_is_proved_on_fewer_ranks_also_before_it_is_carried_out(file: Any) -> None:
    large = """
@register("own_wrong", "all_reduce")
def wrong(p):
    return build("all_reduce", "ring", p) if p > 96 else both_ways(p, 2)
"""
    registry.load(file(OWN + "from hpcomm.schedule.registry import build\n" + large))
    assert work(build("all_reduce", "own_wrong", 24576)) > 1e8
    for way in (assured, proved):
        with pytest.raises(ScheduleError, match="on 2 ranks"):
            way("all_reduce", "own_wrong", 24576, 0)
    known = evidence("all_reduce", "hierarchical:node=6", 24576)
    assert known.sizes[-1] == 96
    assert {12, 18, 24, 36} <= {*known.sizes}
    assert evidence("all_reduce", "ring", 24576).sizes[-1] == 96
    assert evidence("all_reduce", "tree", 24576).words == "proved by fingerprints"


@pytest.mark.parametrize(("words", "said"), [
    ("sim --ranks 99999999999", "99,999,999,999 ranks are too many"),
    ("sim --bytes 9" + "9" * 5000, "is no number"),
    ("draw ring --ranks 99999999999 -o x.svg", "99,999,999,999 ranks are too many"),
    ("draw ring --ranks 5000 -o x.svg", "on 5,000 ranks sends 49,990,000 messages"),
])  # fmt: skip
def test_more_than_can_be_simulated_or_drawn_is_refused_at_once(capsys: Any, words: str, said: str) -> None:
    assert main(words.split()) == 2
    assert said in capsys.readouterr().err
