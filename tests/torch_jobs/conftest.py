"""The fixture `job` of tests/mpi_jobs, for jobs that use torch.distributed."""

import importlib.util
from pathlib import Path

_spec = importlib.util.spec_from_file_location(
    "conftest_of_mpi_jobs", Path(__file__).parents[1] / "mpi_jobs" / "conftest.py"
)
_shared = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_shared)

job = _shared.job
