"""The doctor on the MPI at hand, and on some that are broken on purpose."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hpcomm.installation import VENDORS, find_mpi

ROOT = Path(__file__).parents[2]


def doctor(*words, **environ):
    return subprocess.run(
        [sys.executable, "-m", "hpcomm", "doctor", *words],
        env={**os.environ, "PYTHONPATH": str(ROOT), **environ},
        capture_output=True,
        text=True,
        timeout=100,
    )


def test_a_working_mpi_is_healthy_and_known_by_name():
    done = doctor("--json")
    report = json.loads(done.stdout)
    assert (done.returncode, report["healthy"]) == (0, True), report["findings"]
    found = find_mpi()
    assert report["mpi"]["vendor"] == VENDORS[found.vendor]
    assert report["launcher"] == {"path": found.launcher, "vendor": VENDORS[found.vendor]}
    assert (report["mpi"]["size"], report["mpi"]["started"]) == (2, 2)
    assert report["mpi"]["threads"] == "multiple"
    assert Path(report["mpi"]["library"]).is_file()
    assert isinstance(report["mpi"]["reads_memory_of_peers"], bool)
    assert report["packages"]["mpi4py"]


def test_the_text_says_the_same_to_people():
    text = doctor().stdout
    assert VENDORS[find_mpi().vendor] in text
    assert find_mpi().launcher in text
    assert text.endswith("\nhealthy\n")


@pytest.mark.parametrize("n", [1, 3])
def test_under_a_launcher_rank_0_shows_who_is_where(job, n):
    done = job(n, ["python", "-m", "hpcomm", "doctor", "--json"])
    report = json.loads(done.stdout)  # one rank spoke, and only one
    assert (report["mpi"]["size"], report["mpi"]["started"]) == (n, n)
    [node] = report["nodes"]
    assert node["ranks"] == list(range(n))
    assert ("ranks share" in str(report["findings"])) == (n > node["cores"])


def test_a_missing_library_is_a_problem_with_a_next_step():
    done = doctor("--json", MPI4PY_LIBMPI="/nowhere/libmpi.so")
    problems = [entry for entry in json.loads(done.stdout)["findings"] if entry["level"] == "problem"]
    assert done.returncode == 1
    assert "MPI does not come up" in problems[0]["what"]
    assert "/nowhere/libmpi.so" in problems[0]["what"]
    assert "pip install" in problems[0]["hint"]


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("import os; os.abort()", "exit status"),
        ("raise RuntimeError('cannot load MPI library')", "cannot load MPI library"),
    ],
)
def test_an_mpi_that_crashes_does_not_take_the_doctor_along(tmp_path, code, said):
    (tmp_path / "mpi4py").mkdir()
    (tmp_path / "mpi4py" / "__init__.py").write_text(code)
    done = doctor(PYTHONPATH=f"{tmp_path}{os.pathsep}{ROOT}")
    assert done.returncode == 1
    assert "problem: MPI does not come up: " in done.stdout
    assert said in done.stdout
