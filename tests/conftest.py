"""What all tests have in common."""

from __future__ import annotations

import os
import shutil
import tempfile

import pytest
from hypothesis import settings

# The same examples on every machine and rank; a failure prints how to run it again.
settings.register_profile("hpcomm", deadline=None, derandomize=True, print_blob=True, database=None)
settings.load_profile("hpcomm")

# With it, ranks of a job that print at one time mix parts of their lines.
os.environ.pop("PYTHONUNBUFFERED", None)

_FOLDER = pytest.StashKey[str]()


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """A folder for each rank's temporary files.

    Of those of earlier runs, which pytest keeps in one place and clears away, ranks find some half gone; the
    error ends a job at its very end, with no test named.
    """
    if config.getoption("--with-mpi", False) and config.option.basetemp is None:
        config.stash[_FOLDER] = config.option.basetemp = tempfile.mkdtemp(prefix="hpcomm-tests-")


def pytest_unconfigure(config: pytest.Config) -> None:
    if _FOLDER in config.stash:
        shutil.rmtree(config.stash[_FOLDER], ignore_errors=True)
