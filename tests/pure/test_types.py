"""What type checkers say of programs: right ones pass, and misspelt names do not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("mypy")

ROOT = Path(__file__).parents[2]
RIGHT = """
import numpy as np
import hpcomm
from hpcomm import Points, world

with world.split(color=world.rank % 2) as half:
    x = half.all_reduce(np.ones(3))
outside = world.split(None)
assert outside is None
Points((5,), [[0, 4], [1, 2, 3]], ghosts=[[1, 3], [0]])
hpcomm.wait_all([world.isend(x, dest=hpcomm.PROC_NULL)])
"""
WRONG = """
import hpcomm
from hpcomm import wrld

hpcomm.nothing
hpcomm.wait_al([])
hpcomm.world.split("a")
"""


@pytest.mark.timeout(300)
def test_right_programs_pass_and_misspelt_names_do_not(tmp_path: Path) -> None:
    """As `make check` has them checked, whose cache this uses: without it, it takes half a minute."""
    (tmp_path / "right.py").write_text(RIGHT, encoding="utf-8")
    (tmp_path / "wrong.py").write_text(WRONG, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", tmp_path / "right.py", tmp_path / "wrong.py"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        cwd=ROOT,
    )
    said = done.stdout + done.stderr
    assert "right.py" not in said
    for fault in ('no attribute "wrld"', 'no attribute "nothing"', 'no attribute "wait_al"', "No overload"):
        assert fault in said
