"""What type checkers see of hpcomm: mypy and pyright on a program, from a folder of its own.

hpcomm is found as a program's checker finds it, by the installation, which may be editable.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import get_args

import pytest

from hpcomm.core import reduction
from hpcomm.core.types import ALGORITHMS, OPERATORS
from hpcomm.schedule import registry

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PROGRAMS = ("program.py", "wrong_calls.py")
pytestmark = [pytest.mark.once, pytest.mark.timeout(300)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in PROGRAMS:
        shutil.copy(HERE / name, tmp_path)
    return tmp_path


def test_mypy_takes_right_calls_and_refuses_wrong_ones(folder: Path) -> None:
    command = [sys.executable, "-m", "mypy", f"--config-file={ROOT / 'pyproject.toml'}"]
    command += [
        f"--cache-dir={ROOT / '.mypy_cache'}"
    ]  # of `make check`, of use to what has the same settings
    said = subprocess.run([*command, *PROGRAMS], cwd=folder, capture_output=True, text=True)
    assert said.returncode == 0, said.stdout + said.stderr


@pytest.mark.skipif(
    not (shutil.which("node") and find_spec("pyright")), reason="pyright runs by node: both are needed"
)
def test_pyright_takes_right_calls_and_refuses_wrong_ones(folder: Path) -> None:
    settings = {
        "typeCheckingMode": "standard",
        "enableTypeIgnoreComments": False,  # those are mypy's
        "reportUnnecessaryTypeIgnoreComment": True,
    }
    (folder / "pyrightconfig.json").write_text(json.dumps(settings))
    command = [sys.executable, "-m", "pyright", "--pythonpath", sys.executable]
    said = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert said.returncode == 0, said.stdout + said.stderr


def test_literals_are_the_names_that_are_known() -> None:
    assert {*get_args(OPERATORS), "premul_sum"} == {*reduction.NAMES}
    known = {name for verb in registry.verbs() for name in registry.algorithms(verb)}
    assert {*get_args(ALGORITHMS)} == known | {"tuned"}
