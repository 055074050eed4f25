"""What all tests have in common."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import pytest_timeout
from hypothesis import settings
from steady import Alarm

# The same examples on every machine and rank; a failure prints how to run it again.
settings.register_profile("hpcomm", deadline=None, derandomize=True, print_blob=True, database=None)
settings.load_profile("hpcomm")

# With it, ranks of a job that print at one time mix parts of their lines.
os.environ.pop("PYTHONUNBUFFERED", None)
os.environ.setdefault("HPCOMM_STALL_DIR", os.devnull)  # no files

# What each rank says is to be seen here; tests of what is said once set it themselves.
os.environ["HPCOMM_TRACEBACK"] = "full"
os.environ["PYTEST_ADDOPTS"] = "-p no:pytest_isolate_mpi"  # of what tests start: see pyproject.toml

_FOLDER = pytest.StashKey[str]()

gc.disable()  # until all has been loaded, of which nothing is to be freed


def pytest_addoption(parser: pytest.Parser) -> None:
    told = "leave out the tests that this file names, and note in it those that begin"
    parser.addoption("--begun", type=Path, help=told)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """A run that a test ended goes on behind it."""
    begun = config.getoption("--begun", None)
    if begun is not None and begun.exists():
        names = set(begun.read_text().splitlines())
        items[:] = [item for item in items if item.nodeid not in names]
    if begun is not None:
        config.pluginmanager.register(_Note(begun))


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Collections leave aside what stays to the end: torch, and thousands of tests."""
    gc.freeze()
    gc.enable()


class _Note:
    """Notes each test that begins."""

    def __init__(self, begun: Path) -> None:
        self._begun = begun

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        with self._begun.open("a") as file:
            file.write(nodeid + "\n")


def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> bool | None:
    """Limits go by what the machine gives, not by the clock."""
    if not settings.timeout or settings.timeout <= 0:
        return None
    act = partial(pytest_timeout.timeout_timer, item, settings)
    if settings.method == "signal":
        signal.signal(signal.SIGALRM, lambda *_: pytest_timeout.timeout_sigalrm(item, settings))
        act = partial(os.kill, os.getpid(), signal.SIGALRM)
    item.cancel_timeout = Alarm(settings.timeout, act).cancel  # type: ignore[attr-defined]
    return True


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
