"""`import hpcomm` starts nothing: no MPI, no array library, no thread, and it is quick."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "hpcomm"
HEAVY = (
    "mpi4py.MPI",
    "torch",
    "cupy",
    "numpy",
    "asyncio",
    "ml_dtypes",
    "matplotlib",
    "sklearn",
    "multiprocessing",
    "h5py",
    "zarr",
)


def python(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "statement",
    [
        "import hpcomm, hpcomm.compat",
        "import hpcomm; dir(hpcomm); hpcomm.__version__",
        "from hpcomm import HpcommError, RankError, WaitTimeoutError",
        "from hpcomm import Communicator, Request, Status, P2POp, premul_sum, wait_all, as_buffer",
        "import hpcomm.__main__",
        "import hpcomm.job.launch",
    ],
)
def test_importing_loads_nothing_heavy(statement: str) -> None:
    said = python(f"import sys; {statement}; print(*[name for name in {HEAVY!r} if name in sys.modules])")
    assert said.split() == []


def test_importing_starts_no_thread_and_changes_no_hook() -> None:
    python(
        "import sys, threading, warnings, signal;"
        "before = sys.excepthook, sys.exit, signal.getsignal(signal.SIGINT);"
        "import hpcomm; from hpcomm import Communicator;"
        "assert threading.active_count() == 1;"
        "assert before == (sys.excepthook, sys.exit, signal.getsignal(signal.SIGINT))"
    )


def test_a_job_that_only_meets_pays_for_nothing_else() -> None:
    """Each of these is milliseconds of every rank's start."""
    slow = ("numpy", "dataclasses", "inspect", "pathlib", "urllib", "tempfile", "subprocess", "asyncio")
    said = python(
        "import sys; before = set(sys.modules);"  # an editable installation loads some of them by itself
        "import hpcomm; hpcomm.world.barrier(); hpcomm.world.split(0).barrier();"
        f"print(*[name for name in {slow!r} if name in set(sys.modules) - before])"
    )
    assert said.split() == []


def test_using_numpy_arrays_loads_no_torch_and_no_cupy() -> None:
    """Under MPI, alone: the whole way of a call."""
    said = python(
        "import sys, numpy as np, hpcomm; c = hpcomm.self_;"
        "c.all_reduce(np.ones(3)); c.all_reduce(np.ones(3, np.float16));"
        "c.all_gather_object({'a': np.ones(2)});"
        "c.all_gather_ragged(np.ones(2)); c.plan('all_reduce', np.ones(2))();"
        "print(*[name for name in ('torch', 'cupy', 'ml_dtypes', 'asyncio') if name in sys.modules])"
    )
    assert said.split() == []


@pytest.mark.parametrize("name", ["torch", "cupy"])
def test_a_device_library_is_imported_by_name_nowhere_at_the_top_of_a_module(name: str) -> None:
    """Elsewhere they are looked up in sys.modules: who uses a tensor has loaded its library."""
    places = [
        f"{path.relative_to(PACKAGE)}:{node.lineno}"
        for path in sorted(PACKAGE.rglob("*.py"))
        if "apps" not in path.parts and not (name == "torch" and "torch_backend" in path.parts)
        for node in top_level_imports(ast.parse(path.read_text()))
        if any(imported.split(".")[0] == name for imported in imported_names(node))
    ]
    assert places == []


def top_level_imports(tree: ast.Module) -> list[ast.Import | ast.ImportFrom]:
    """Imports that run when the module is imported: not in functions, not under TYPE_CHECKING."""
    found: list[ast.Import | ast.ImportFrom] = []
    queue: list[ast.stmt] = list(tree.body)
    while queue:
        node = queue.pop()
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            found.append(node)
        elif isinstance(node, ast.If):
            typing_only = isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
            queue += node.orelse if typing_only else node.body + node.orelse
        elif isinstance(node, (ast.Try, ast.With, ast.ClassDef)):
            queue += node.body
    return found


def imported_names(node: ast.Import | ast.ImportFrom) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [node.module or ""] if node.level == 0 else []


def test_a_call_without_an_algorithm_loads_none() -> None:
    said = python(
        "import sys, hpcomm, numpy as np; hpcomm.self_.all_reduce(np.ones(3, np.float16));"
        "print(*[name for name in sys.modules if 'hpcomm.' in name and '.schedule' in name])"
    )
    assert said.split() == []
