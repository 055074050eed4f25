"""What all tests over MPI share: the communicator under test and the agreement of the ranks after each test.

Run:  hpcomm run -n 3 python -m pytest --with-mpi tests/mpi
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Generator, Iterator
from functools import partial
from typing import Any

import pytest

pytest.register_assert_rewrite("contract")

from agreement import Agreement  # noqa: E402
from mpi4py import MPI  # noqa: E402
from steady import Alarm  # noqa: E402

import hpcomm  # noqa: E402
from hpcomm.node import native  # noqa: E402

_TEST_S = float(os.environ.get("TEST_S", "40"))  # one test on one rank; a hang is found by this
_PEER_S = float(os.environ.get("TEST_PEER_S", "20"))  # how long a rank that is done waits for the others
_AGREEMENT: list[Agreement] = []
_IN_USE: list[hpcomm.Communicator] = []  # the communicator of the session
_ABANDONED: list[hpcomm.Communicator] = []  # those of before a failure: ranks may be out of step on them


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--with-mpi") and not _AGREEMENT:
        _AGREEMENT.append(Agreement(MPI.COMM_WORLD, _PEER_S, os.dup(2)))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("mpi") is None:
            item.add_marker(pytest.mark.mpi)
        if item.get_closest_marker("core") and (lack := native.missing()):
            item.add_marker(pytest.mark.skip(reason=lack.why))
        if item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(_TEST_S))


def pytest_collection_finish(session: pytest.Session) -> None:
    if _AGREEMENT:
        _AGREEMENT[0].compare("passed", "the list " + " ".join(item.nodeid for item in session.items))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """One failure is everybody's: agree once about set-up and body, once about tear-down."""
    report = yield
    if _AGREEMENT and (report.when != "setup" or report.outcome != "passed"):
        phase = "tear-down of " if report.when == "teardown" else ""
        verdicts = _AGREEMENT[0].compare(report.outcome, phase + item.nodeid, report.longreprtext[-1400:])
        if len({verdict.outcome for verdict in verdicts}) > 1 and report.outcome != "failed":
            others = [verdict for verdict in verdicts if verdict.outcome != report.outcome]
            told = "\n".join(
                f"{verdict.outcome} on rank {verdict.rank}:\n{verdict.text}" for verdict in others
            )
            report.longrepr = f"{report.outcome} on rank {MPI.COMM_WORLD.rank}, but {told}"
            report.outcome = "failed"
        if report.outcome == "failed":
            _ABANDONED.extend(_IN_USE)
            _IN_USE.clear()  # the next test has a new duplicate
    return report


def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> bool | None:
    """A test that takes too long ends the job with the stacks of all ranks, not of one."""
    if not _AGREEMENT or settings.timeout is None or settings.timeout <= 0:
        return None
    why = f"{item.nodeid} took longer than {settings.timeout} s"
    item.stash[_TIMER] = Alarm(settings.timeout, partial(_AGREEMENT[0].end_job, why))
    return True


def pytest_timeout_cancel_timer(item: pytest.Item) -> bool | None:
    timer = item.stash.get(_TIMER, None)
    if timer is None:
        return None
    timer.cancel()
    return True


_TIMER = pytest.StashKey[Alarm]()


@pytest.fixture(scope="session", autouse=True)
def one_torch_thread() -> None:
    """Ranks share the cores of one machine; threads of torch below each would fight over them."""
    if torch := sys.modules.get("torch"):  # loading it takes longer than many a file of tests
        torch.set_num_threads(1)


@pytest.fixture
def comm() -> hpcomm.Communicator:
    """The communicator under test: all ranks, at the default check, made anew after a failure."""
    if not _IN_USE:
        _IN_USE.append(hpcomm.Communicator(MPI.COMM_WORLD, name="test"))
    return _IN_USE[0]


@pytest.fixture
def own_comm() -> Iterator[hpcomm.Communicator]:
    """A communicator for one test alone, closed behind it."""
    with hpcomm.Communicator(MPI.COMM_WORLD, name="own") as comm:
        yield comm


@pytest.fixture
def together(request: pytest.FixtureRequest) -> Callable[..., None]:
    """together(example, body): run body; a failure on one rank fails this example on every rank."""

    def run(example: object, body: Callable[[], None]) -> None:
        error: BaseException | None = None
        try:
            body()
        except Exception as caught:
            error = caught
        _AGREEMENT[0].together(request.node.name, repr(example), error)

    return run
