"""What all tests of torch.distributed over MPI share: one world group, and the agreement of tests/mpi.

Run:  hpcomm run -n 3 python -m pytest --with-mpi tests/torch
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import hpcomm.torch_backend  # noqa: F401  where the package is not installed, no entry point loads it

_MPI_TESTS = Path(__file__).parents[1] / "mpi"
sys.path.insert(0, str(_MPI_TESTS))
_spec = importlib.util.spec_from_file_location("conftest_of_mpi", _MPI_TESTS / "conftest.py")
assert _spec is not None
assert _spec.loader is not None
_shared = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_shared)

pytest_configure = _shared.pytest_configure
pytest_collection_finish = _shared.pytest_collection_finish
pytest_timeout_set_timer = _shared.pytest_timeout_set_timer
pytest_timeout_cancel_timer = _shared.pytest_timeout_cancel_timer
pytest_runtest_makereport = _shared.pytest_runtest_makereport
one_torch_thread = _shared.one_torch_thread

WAIT = timedelta(seconds=60)  # for other ranks; longer than a machine stands still now and then
_trouble: list[str] = []


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    _shared.pytest_collection_modifyitems(items)
    for item in items:  # torch 2.13 spells all_gather_into_tensor all_gather_single; both must work
        item.add_marker(pytest.mark.filterwarnings("ignore:.*deprecated. Please use:FutureWarning"))


@pytest.hookimpl(trylast=True)
def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.outcome == "failed":
        _trouble.append(report.nodeid)


@pytest.fixture(scope="session", autouse=True)
def _end() -> Iterator[None]:
    yield
    if dist.is_initialized():
        dist.destroy_process_group()


@pytest.fixture(autouse=True)
def world() -> dist.ProcessGroup:
    """The default group; made anew after a failure, because ranks may be out of step on the old one."""
    if _trouble and dist.is_initialized():
        dist.destroy_process_group()
    _trouble.clear()
    if not dist.is_initialized():
        dist.init_process_group("mpi", timeout=WAIT)
    group = dist.group.WORLD
    assert group is not None
    return group


@pytest.fixture
def rank() -> int:
    return dist.get_rank()


@pytest.fixture
def size() -> int:
    return dist.get_world_size()


@pytest.fixture
def seed(rank: int) -> None:
    torch.manual_seed(rank)
