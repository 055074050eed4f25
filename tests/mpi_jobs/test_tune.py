"""The tuner: what it measures becomes a table, which all ranks follow alike; the library's own algorithms."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
from processes import finish

from hpcomm.__main__ import main
from hpcomm.tools import tune
from hpcomm.tools.tune import confirmed, fastest
from hpcomm.transport.scheduled.tuned import Choices

RANKS = """
    import numpy as np
    import hpcomm
    from hpcomm.transport import mpi_control_variables as controls
    from hpcomm.transport.scheduled import comm_cache as kept

    comm = hpcomm.world
    p, x = comm.size, np.arange(5.0) + comm.rank
    total = np.arange(5.0) * p + p * (p - 1) / 2
    names = controls.choices("all_reduce")
    assert len(names) >= 5 and controls.vendor() in ("openmpi", "mpich"), names
    for name in names:
        assert np.array_equal(comm.all_reduce(x, algorithm=f"mpi:{name}"), total), name
        assert np.array_equal(comm.all_reduce(x), total)
    y, every = np.arange(4.0) + comm.rank, np.arange(p)[:, None] + np.arange(4.0)
    blocks = np.arange(4.0 * p).reshape(p, 4) + comm.rank
    expected = {
        "broadcast": (y, every[0]), "reduce": (y, every.sum(0)),
        "all_gather": (y, every), "gather": (y, every),
        "scan": (y, every[: comm.rank + 1].sum(0)), "exscan": (y, every[: comm.rank].sum(0)),
        "scatter": (blocks, np.arange(4.0) + 4 * comm.rank),
        "reduce_scatter": (blocks, (np.arange(4.0) + 4 * comm.rank) * p + p * (p - 1) / 2),
        "all_to_all": (blocks, every + 4 * comm.rank),
    }
    for verb, (given, want) in expected.items():
        assert controls.choices(verb), verb
        for name in controls.choices(verb):
            try:
                found = getattr(comm, verb)(given, algorithm=f"mpi:{name}")
            except hpcomm.TransportError:
                assert name == "two_proc" and p != 2, (verb, name)
                continue
            nothing = (verb in ("reduce", "gather") and comm.rank) or (verb == "exscan" and not comm.rank)
            assert nothing or np.array_equal(found, want), (verb, name, found)
    if p == 3:  # which addition comes last tells the algorithms apart: one for each third, or one for all
        kind = np.asarray
        if comm.rank == 0:
            from torch import from_numpy as kind  # takes two seconds of each rank that loads it
        for n, order in ((3000, {0, 1, 2}), (12_000, None), (3000, {0, 1, 2})):
            xs = np.random.default_rng(n).normal(size=(3, n))
            ways = [(xs[i - 2] + xs[i - 1]) + xs[i] for i in range(3)]
            apart = np.repeat(xs[comm.rank], 2)[::2]  # strided: the careful way must choose alike
            for given in (xs[comm.rank].copy(), apart, kind(xs[comm.rank].copy())):
                found = np.asarray(comm.all_reduce(given, algorithm="tuned")).reshape(3, -1)
                lasts = [
                    [i for i in range(3) if np.array_equal(ways[i].reshape(3, -1)[third], found[third])]
                    for third in range(3)
                ]
                assert all(len(each) == 1 for each in lasts), lasts
                kinds = {each[0] for each in lasts}
                assert kinds == order if order else len(kinds) == 1, (n, lasts)
    for wrong in ("mpi:auto", "mpi:ignore", "mpi:99", "mpi:rong"):
        try:
            comm.all_reduce(x, algorithm=wrong)
        except hpcomm.UsageError as error:
            assert "mpi:" + names[0] in str(error)
        else:
            raise AssertionError(wrong)
    found = comm.all_reduce(x, algorithm="tuned")
    assert np.array_equal(found, total)
    assert np.array_equal(comm.all_reduce(x, algorithm="tuned", async_op=True).wait(), total)
    big = np.ones(97_000)  # short of what works in its result, which is not kept
    assert np.array_equal(comm.all_reduce(big, algorithm="tuned"), big * p)
    assert comm.all_reduce("abc"[comm.rank % 3] == "a", op=lambda a, b: a | b, algorithm="tuned")
    if p == 3:
        assert comm.all_reduce(kind(x), algorithm="tuned").tolist() == total.tolist()
    assert np.array_equal(comm.all_reduce(x, out=x.copy(), algorithm="mpi:" + names[2]), total)
    ran = [key[1] for key in kept.own(comm.context)._kept]
    with controls.forced("all_reduce", names[1]):
        now = controls._handle(controls._variable("all_reduce")).read()
    assert now == controls._values("all_reduce")[names[1]] > 0
    print(f"{comm.rank} {sorted(set(ran))}")
"""


def vendor() -> str:
    code = "from hpcomm.transport import mpi_control_variables as controls; print(controls.vendor())"
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.strip()


@pytest.mark.once
def test_all_ranks_follow_the_table_of_rank_0(job: Any, tmp_path: Any) -> None:
    rows = {"all_reduce": [[8, "recursive_doubling"], [2000, "recursive_doubling"]]}
    rows["all_reduce"] += [[776_000, "ring"], [1 << 20, "ring"]]
    rows["all_reduce"] += [[24_000, "mpi:ring"], [96_000, "mpi:recursive_doubling"]]
    path = tmp_path / "table.json"
    path.write_text(json.dumps({"mpi": vendor(), "ranks": {"3": rows}}))
    done = job(3, RANKS, env={"HPCOMM_TUNED": str(path)})
    for rank in range(3):
        assert f"{rank} ['recursive_doubling', 'ring']" in done.stdout


@pytest.mark.once
def test_a_table_for_other_ranks_leaves_it_to_the_library(job: Any, tmp_path: Any) -> None:
    path = tmp_path / "table.json"
    path.write_text(json.dumps({"mpi": vendor(), "ranks": {"5": {"all_reduce": [[8, "ring"]]}}}))
    assert "1 []" in job(2, RANKS, env={"HPCOMM_TUNED": str(path)}).stdout


@pytest.mark.once
def test_a_table_that_cannot_be_read_is_said_on_all_ranks(job: Any, tmp_path: Any) -> None:
    path = tmp_path / "table.json"
    path.write_text("{")
    code = "import hpcomm; hpcomm.world.all_reduce(1, algorithm='tuned')"
    done = job(2, code, expect=None, env={"HPCOMM_TUNED": str(path)})
    assert done.returncode != 0
    assert "the table of tuned algorithms cannot be read" in done.stderr


@pytest.mark.once
def test_tune_measures_and_keeps_a_table(tmp_path: Any) -> None:
    pytest.importorskip("matplotlib")
    path, chart = tmp_path / "tuned.json", tmp_path / "tuned.svg"
    words = [sys.executable, "-m", "hpcomm", "tune", "--ranks", "2", "--bytes", "8,64k", "--rounds", "3"]
    own = tmp_path / "own.py"
    own.write_text(
        "from hpcomm.schedule.registry import build, register\n"
        "from hpcomm.tools import tune\n"
        "tune.ROUND_S /= 10\n"  # what is measured need not be exact here
        "register('own_of_file', 'all_reduce')(lambda p: build('all_reduce', 'tree', p))\n"
    )
    words += ["--verb", "all_reduce,exscan", "-o", str(path)]
    words += ["--plot", str(chart), "--load", str(own)]
    done = finish(words, 120)
    assert done.returncode == 0, done.stderr
    rows = [line.split()[:2] for line in done.stdout.splitlines()]
    assert ["all_reduce", "65536"] in rows
    assert ["exscan", "65536"] in rows
    kept = json.loads(path.read_text())
    assert [n for n, _ in kept["ranks"]["2"]["all_reduce"]] == [8, 65536]
    names = {r["algorithm"] for r in kept["records"] if r["verb"] == "all_reduce"}
    assert "" in names
    assert {"ring", "own_of_file"} <= names
    assert any(name.startswith("mpi:") for name in names)
    assert sum(r["chosen"] for r in kept["records"]) == 4
    for r in kept["records"]:
        assert r["seconds"] > 0
        assert ("modelled" in r) == (r["algorithm"] != "" and not r["algorithm"].startswith("mpi:"))
    dots = sum("modelled" in r for r in kept["records"])
    assert chart.read_text().count("<use ") >= dots > 20


@pytest.mark.once
@pytest.mark.parametrize(("words", "said"), [
    ("--ranks 0", "0 ranks"), ("--rounds 0", "0 rounds"), ("--verb rong", "'rong' cannot be tuned"),
    ("--plot x.txt", "x.txt is no picture"), ("--load nowhere.py", "there is no file nowhere.py"),
])  # fmt: skip
def test_bad_input_is_refused_before_anything_is_measured(
    words: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["tune", *words.split()]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.once
def test_the_default_stays_unless_another_is_5_per_cent_faster() -> None:
    assert fastest({"": 1.0, "ring": 0.96}) == ""
    assert fastest({"": 1.0, "ring": 0.95, "tree": 0.9}) == "tree"


@pytest.mark.once
def test_a_choice_must_win_round_by_round() -> None:
    """Also where its median is far better, since noise struck the default for a while."""
    steady = {"": [1.0] * 8, "ring": [0.9] * 6 + [1.5] * 2}
    assert confirmed(steady, "ring") == "ring"
    assert confirmed({"": [1.0] * 3 + [9.0] * 5, "ring": [1.4] * 3 + [2.0] * 5}, "ring") == ""


@pytest.mark.once
@pytest.mark.parametrize("wins", [0, 1, 2])
def test_a_choice_is_kept_if_two_more_jobs_choose_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any, wins: int
) -> None:
    asked: list[Any] = []

    def job(ranks: int, function: str, *words: Any, **_: Any) -> Any:
        if function == "tune.confirm":
            asked.append(words[0])
            return [] if len(asked) <= wins else [["broadcast", 8]]
        rows = [
            {"verb": verb, "bytes": 8, "ranks": 2, "algorithm": name, "seconds": 1e-6,
             "chosen": name == "ring", "hopeless": False}
            for verb in ("all_reduce", "broadcast") for name in ("", "ring")
        ]  # fmt: skip
        return {"mpi": "openmpi", "path": "", "records": rows}

    monkeypatch.setattr(tune, "job", job)
    table = tmp_path / "table.json"
    assert tune.main(["--no-model", "-o", str(table)]) == 0
    kept = json.loads(table.read_text())["ranks"]["2"]
    assert kept == {"all_reduce": [[8, "ring"]], "broadcast": [[8, "ring" if wins == 2 else None]]}


@pytest.mark.once
def test_between_sizes_that_chose_differently_the_default_serves() -> None:
    rows: list[tuple[int, str | None]] = [(8, None), (1 << 20, "ring"), (1 << 10, "tree")]
    assert [Choices.of(rows).name(n) for n in (0, 8, 1000, 1024, 1 << 14, 1 << 16, 1 << 30)] == [
        None, None, None, "tree", None, None, "ring"]  # fmt: skip
    assert Choices.of([(8, "ring"), (64, "ring")]).name(9) == "ring"
    assert Choices.of([(8, "ring"), (64, None)]).name(9) is None
    assert Choices.of([]).name(8) is None
    assert Choices.of([(8, None), (64, None), (512, "ring")]).limits == [511]  # nothing to choose below
