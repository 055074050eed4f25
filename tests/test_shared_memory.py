"""Shared memory is the native core's: no module in Python maps any, or makes arrays of addresses."""

from __future__ import annotations

import ast
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "hpcomm"
MODULES = {"mmap", "shared_memory"}
ATTRIBUTES = {"from_address", "memmove", "memset", "Allocate_shared", "Shared_query"}
MAY = {
    "core/result_memory.py": {"mmap"},  # private memory of large results
    "communicator/trace.py": {"mmap"},  # a file of one rank's records, which nobody else writes
    "device/library.py": {"memmove"},  # structures of CUDA's bindings, in this process
    "device/cuda.py": {"from_address"},  # pinned host memory, the process's own
    # of an array that the program itself writes, where there is no core:
    "communicator/shared_array.py": {"Allocate_shared", "Shared_query"},
}


def ways(tree: ast.AST) -> set[str]:
    """By which a module may come to memory that others write."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {part for name in node.names for part in name.name.split(".")} & MODULES
        elif isinstance(node, ast.ImportFrom) and not node.level:
            named = {*(node.module or "").split("."), *(name.name for name in node.names)}
            found |= named & (MODULES | ATTRIBUTES)
        elif isinstance(node, ast.Attribute):
            found |= {node.attr} & ATTRIBUTES
    return found


def test_no_python_touches_memory_that_ranks_share() -> None:
    modules = {str(path.relative_to(PACKAGE)): path for path in PACKAGE.rglob("*.py")}
    found = {name: ways(ast.parse(path.read_text())) for name, path in modules.items()}
    assert {name: seen for name, seen in found.items() if seen} == MAY


def test_these_ways_are_found() -> None:
    code = "import mmap\nfrom multiprocessing import shared_memory\ndef f(x): return x.from_address(8)"
    assert ways(ast.parse(code)) == {"mmap", "shared_memory", "from_address"}
