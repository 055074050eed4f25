"""The runner of all tests counts rightly, and takes whatever hangs, dies or stays behind for a failure."""

import importlib.util
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "run.py"


@pytest.fixture
def runner(tmp_path, monkeypatch):
    spec = importlib.util.spec_from_file_location("hpcomm_tests_run", SOURCE)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    monkeypatch.setattr(sys, "path", list(sys.path))
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "LOGS", tmp_path)
    monkeypatch.setattr(module, "GRACE_S", 0.5)
    return module


def outcome(runner, code, limit_s=30.0):
    step = runner.Step("a step", [sys.executable, "-c", code], limit_s)
    [(_, counts, _)] = runner.run([[step]], time.monotonic() + 60)
    return (counts["passed"], counts["failed"], counts["skipped"]), (step.logs / "log").read_text()


@pytest.mark.parametrize(
    ("line", "passed", "failed", "skipped"),
    [
        ("12 passed in 0.31s", 12, 0, 0),
        ("== 2 failed, 10 passed, 3 skipped, 1 deselected in 61.02s (0:01:01) ==", 10, 2, 3),
        ("1 passed, 2 errors in 1.00s", 1, 2, 0),
        ("5 passed, 1 xfailed, 4 warnings in 1.00s", 5, 0, 1),
        ("no tests ran in 0.01s", 0, 0, 0),
        ("Killed", 0, 0, 0),
    ],
)
def test_counts_are_pytests(runner, line, passed, failed, skipped):
    counts = runner.counts(f"7 passed in 3.00s is what a test printed\n....\n{line}\n")
    if "passed" in line:
        assert (counts["passed"], counts["failed"], counts["skipped"]) == (passed, failed, skipped)
    assert runner.counts(line) == Counter(passed=passed, failed=failed, skipped=skipped)


def test_a_step_that_passes_counts_its_tests(runner):
    assert outcome(runner, "print('3 passed, 1 skipped in 0.10s')")[0] == (3, 0, 1)


def test_steps_keep_what_python_compiles(runner, monkeypatch):
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    code = "import sys; print(f'{2 - sys.dont_write_bytecode} passed in 0.10s')"
    assert outcome(runner, code)[0] == (2, 0, 0)


def test_a_step_that_counts_well_but_ends_badly_has_failed(runner):
    assert outcome(runner, "print('3 passed in 0.10s'); raise SystemExit(1)")[0] == (3, 1, 0)


def test_what_needs_no_second_mpi_runs_in_the_first_environment_only(runner):
    beside = runner.steps({"openmpi": "python-a", "mpich": "python-b"})
    jobs = {step.name: step.command for lanes in beside for lane in lanes for step in lane}
    chosen = "not (hosts or slurm or large) and not timed"
    assert chosen in jobs["openmpi, jobs"]
    assert f"{chosen} and not once" in jobs["mpich, jobs"]


def test_a_step_without_tests_has_failed(runner):
    assert outcome(runner, "print('no tests ran in 0.01s')")[0] == (0, 1, 0)


def test_a_step_that_hangs_is_ended_with_its_stack(runner):
    counts, log = outcome(runner, "def hangs():\n import time; time.sleep(60)\nhangs()", limit_s=2)
    assert counts == (0, 1, 0)
    assert "in hangs" in log
    assert "ended after" in log


@pytest.mark.parametrize(("hangs", "passed"), [("time.sleep(60)", 1), ("os._exit(1)", 0)])
def test_of_tests_beside_each_other_one_that_hangs_or_ends_its_process_fails(runner, tmp_path, hangs, passed):
    (tmp_path / "test_sample.py").write_text(
        "import os, time, pytest\n"
        f"@pytest.mark.timeout(1)\ndef test_bad(): {hangs}\n"
        "def test_good(): time.sleep(0.1)\n"
    )
    pytest_s = [sys.executable, "-m", "pytest", "-v", "-n", "1", *runner.BESIDE, "-c", "/dev/null"]
    step = runner.Step("a step", [*pytest_s, str(tmp_path)], 100.0)
    [(_, counts, seconds)] = runner.run([[step]], time.monotonic() + 100)
    assert (counts["passed"], counts["failed"]) == (passed, 1)
    assert seconds < 90
    assert [what.rpartition("::")[2] for what in runner.failed(step)] == ["test_bad"]


def test_the_last_lines_name_what_failed(runner):
    quiet = "tests/a.py::test_a PASSED   [ 50%]\n"
    outcome(runner, f"print({quiet!r} + 'tests/a.py::test_b[x y] Fatal Python error: Aborted')")
    step = runner.Step("a step", [], 1.0)
    assert runner.failed(step) == ["ended in tests/a.py::test_b[x y]"]
    beside = "".join(f"tests/a.py::test_{letter}@memory \n" for letter in "abc")
    (step.logs / "log").write_text(f"{beside}[gw1] [ 3%] PASSED tests/a.py::test_b@memory \n")
    assert runner.failed(step) == ["ended in tests/a.py::test_a", "ended in tests/a.py::test_c"]
    (step.logs / "log").write_text(f"{quiet}FAILED tests/a.py::test_c - AssertionError\n1 failed in 1.00s\n")
    assert runner.failed(step) == ["tests/a.py::test_c"]
    (step.logs / "log").write_text("")
    assert runner.failed(step) == ["no single test"]


def test_a_step_that_leaves_processes_behind_has_failed(runner):
    code = (
        "import subprocess, sys;"
        "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(99)'], start_new_session=True);"
        "print('3 passed in 0.10s')"
    )
    counts, log = outcome(runner, code)
    assert counts == (3, 1, 0)
    assert "left behind: " in log
    assert "time.sleep(99)" in log


STEPS = [
    *("a, 1 rank", "a, 2 ranks", "a, 3 ranks", "a, 4 ranks", "a, 5 ranks"),
    "a, 2 ranks, no core",
    *("a, torch, 4 ranks", "a, timed", "a, jobs", "a, hosts"),
    *("b, 2 ranks", "b, 3 ranks, no core"),
    *("b, timed", "b, jobs", "b, hosts"),
]


def test_the_first_environment_tries_all_numbers_of_ranks_and_others_those_that_may_differ(runner):
    beside = list(runner.steps({"a": "python-a", "b": "python-b"}))
    steps = [step for lanes in beside for lane in lanes for step in lane]
    assert Counter(step.name for step in steps) == Counter(["pure", *STEPS])
    assert all(step.command[0] == f"python-{step.name[0]}" for step in steps if step.name != "pure")


def test_lanes_go_side_by_side(runner, tmp_path):
    code = """
import sys, time
from pathlib import Path
Path(sys.argv[1]).touch()
while not Path(sys.argv[2]).exists():
    time.sleep(0.01)
print("3 passed in 0.10s")
"""
    files = [str(tmp_path / "first"), str(tmp_path / "second")]
    steps = [
        runner.Step(name, [sys.executable, "-c", code, *words], 30.0)
        for name, words in (("one", files), ("other", files[::-1]))
    ]
    done = runner.run([[step] for step in steps], time.monotonic() + 60)
    assert sorted((step.name, counts["passed"], counts["failed"]) for step, counts, _ in done) == [
        ("one", 3, 0),
        ("other", 3, 0),
    ]


def test_no_two_files_of_tests_share_a_name():
    """pytest imports them by their names alone: two of one name are not collected in one call."""
    others = "conftest.py", "sitecustomize.py"  # which have other rules
    names = Counter(path.name for path in SOURCE.parent.rglob("*.py") if path.name not in others)
    assert [name for name, count in names.items() if count > 1] == []
