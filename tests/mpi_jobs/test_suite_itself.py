"""The MPI suite's own net: a failure on one rank is everybody's, and a hang ends the job with all stacks."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import run
import steady

from hpcomm.job.supervise import members, settings

SUITE = Path(__file__).parents[1] / "mpi"


# No rank's limits begin before all have loaded what they need.
HEAD = """
import time
import numpy as np
import pytest
from mpi4py import MPI
from hpcomm.agree import runtime
runtime.GRACE_S = 30  # by the clock, for the other rank to say what it has seen
MPI.COMM_WORLD.Barrier()
"""


@pytest.fixture
def suite(job: Any, tmp_path: Path) -> Any:
    """suite(source, test_s=40, peer_s=4): the run of these tests on two ranks, as the MPI suite does it."""

    def run(source: str, test_s: float = 40, peer_s: float = 4) -> Any:
        for path in (SUITE / "conftest.py", SUITE / "agreement.py", SUITE.parent / "steady.py"):
            shutil.copy(path, tmp_path)
        test = tmp_path / "test_sample.py"
        test.write_text(HEAD + source)
        haste = {"TEST_PEER_S": str(peer_s), "TEST_S": str(test_s)}
        options = ["-p", "no:cacheprovider", "-c", "/dev/null", "--color=no", "--with-mpi"]
        command = ["python", "-m", "pytest", *options, str(test)]
        return job(2, command, timeout=100, expect=None, env=haste)

    return run


ONE_SIDED = """
from hypothesis import HealthCheck, Phase, given, settings, strategies as st

@pytest.fixture
def before(comm):
    assert comm.rank == 0, "set-up fails on rank 1"

@pytest.fixture
def behind(comm):
    yield
    assert comm.rank == 0, "tear-down fails on rank 1"

def test_body(comm):
    assert comm.rank == 0, "the body fails on rank 1"

def test_set_up(before):
    pass

def test_tear_down(behind):
    pass

def test_skip(comm):
    if comm.rank:
        pytest.skip("only rank 1 skips")

steady = settings(derandomize=True, database=None, deadline=None, phases=[Phase.generate])

@settings(steady, suppress_health_check=list(HealthCheck))
@given(st.integers(0, 100))
def test_property(comm, together, n):
    def body():
        assert n < 50 or comm.rank == 0, "the example fails on rank 1"
    together(n, body)

def test_next(comm):
    assert comm.all_reduce(1) == comm.size
"""


@pytest.mark.once
def test_what_fails_on_one_rank_fails_everywhere_and_the_next_test_starts_clean(suite: Any) -> None:
    done = suite(ONE_SIDED)
    assert done.returncode == 1
    for name in ("body", "set_up", "tear_down", "skip", "property"):  # a line of the summary from each rank
        # not bound to the start of a line: the lines of two ranks run together now and then
        assert len(re.findall(rf"(?:FAILED|ERROR) \S*::test_{name}\b", done.stdout)) >= 2, name
    assert not re.search(r"^(?:FAILED|ERROR) \S*::test_next", done.stdout, re.MULTILINE)
    assert "passed on rank 0, but failed on rank 1:" in done.stdout
    assert "passed on rank 0, but skipped on rank 1:" in done.stdout
    assert "rank 1: AssertionError: the example fails on rank 1" in done.stdout


@pytest.mark.once
def test_a_test_that_takes_too_long_ends_the_job_with_all_stacks(suite: Any) -> None:
    done = suite(
        """
def test_slow(comm):
    time.sleep(1000)
""",
        test_s=2,
    )
    assert done.returncode not in (0, 124)
    assert "test_slow took longer than 2" in done.stderr
    assert "in test_slow" in done.stderr


@pytest.mark.once
def test_a_machine_that_stands_still_takes_nothing_of_the_limits(suite: Any) -> None:
    done = suite(
        """
import os, subprocess

def test_held(comm):
    ranks = " ".join(str(pid) for pid in comm.all_gather_object(os.getpid()))
    if comm.rank == 0:
        hold = f"sleep 0.3; kill -STOP {ranks}; sleep 10; kill -CONT {ranks}"
        subprocess.Popen(["sh", "-c", hold])
        begin = time.monotonic()
        time.sleep(0.6)
        assert time.monotonic() - begin > 8, "it was not held"
""",
        test_s=8,
        peer_s=6,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("1 passed") == 2


@pytest.mark.once
def test_ranks_that_run_different_tests_are_found_out(suite: Any) -> None:
    done = suite("""
@pytest.mark.parametrize("n", range(1 + MPI.COMM_WORLD.rank))
def test_many(n): pass
""")
    assert done.returncode not in (0, 124)
    assert "runs another test" in done.stderr


BREAKS = """
import os, signal

def test_one(comm):
    assert comm.all_reduce(1) == comm.size

def test_left(comm):
    if comm.rank == 0:
        raise ValueError("rank 0 left")
    comm.recv(np.zeros(1), 0)

def test_killed(comm):
    if comm.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    comm.barrier()

def test_wrong(comm):
    assert comm.rank == 1

def test_next(comm):
    assert comm.all_reduce(1) == comm.size
"""


@pytest.mark.once
def test_a_step_goes_on_behind_each_test_that_ends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "tests" / "mpi"
    folder.mkdir(parents=True)
    (tmp_path / "pytest.ini").write_text("[pytest]")
    for path in ("run.py", "conftest.py", "steady.py", "mpi/conftest.py", "mpi/agreement.py"):
        shutil.copy(SUITE.parent / path, tmp_path / "tests" / path)
    (folder / "test_sample.py").write_text(HEAD + BREAKS)
    monkeypatch.setattr(run, "ROOT", tmp_path)
    monkeypatch.setattr(run, "LOGS", tmp_path / "logs")
    step = run.on_ranks(run.Step("sample", [], 90, 2), sys.executable, str(folder))
    environ = {**os.environ, **settings(os.environ), "TEST_PEER_S": "2"}
    outcome = run.run_one(step, environ, steady.steady_time() + 100)
    assert outcome == {"passed": 2, "failed": 3, "skipped": 0}, (step.logs / "rank-0").read_text()
    broken = [f"ended in tests/mpi/test_sample.py::test_{name}" for name in ("killed", "left")]
    assert run.failed(step) == [*broken, "tests/mpi/test_sample.py::test_wrong"]
    said = "".join((step.logs / name).read_text() for name in ("log", "rank-0", "rank-1"))
    assert "ValueError: rank 0 left" in said
    assert "rank 0 of 2 ends the job" in said
    assert "not every rank came" in said
    assert "in test_left" in said  # the stack of rank 1, which sits in recv
    assert not members(run.mark_of(environ))


@pytest.mark.once
def test_limits_go_slower_beside_other_work(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    load = tmp_path / "loadavg"
    load.write_text("0.5 0.5 0.5 1/126 1")
    monkeypatch.setattr(steady, "_LOAD", load)
    cores = len(os.sched_getaffinity(0))
    for running, part in ((0, 1.0), (cores, 1.0), (10 * cores, 0.1)):
        (tmp_path / "new").write_text(f"0.5 0.5 0.5 {running}/126 1")
        (tmp_path / "new").rename(load)  # somebody looks all the time
        begin, since = time.monotonic(), steady.steady_time()
        time.sleep(0.4)
        passed, clock = steady.steady_time() - since, time.monotonic() - begin
        assert passed <= part * clock + 0.1
        assert passed >= part * min(0.4, clock) - steady.held_s() - 0.1
    subprocess.run(["sleep", "0.5"], check=True, timeout=0.3)  # 0.05 s of that clock
