"""What a module keeps to itself, `x._name`, is read by itself alone."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "hpcomm"

# (file, names, why): what has no public name where it comes from
REASONS = [
    ("torch_backend/", {"_world", "_get_default_group", "_MPI_AVAILABLE"}, "torch keeps its groups there"),
    (
        "torch_backend/",
        {"_new_process_group_helper", "_register_process_group"},
        "so does a backend of torch's",
    ),
    ("torch_backend/", {"_unregister_process_group"}, "the same, at its end"),
    (
        "torch_backend/profile.py",
        {
            "_profiler_enabled",
            "_record_function_enter_new",
            "_RecordFunction",
            "_record_function_with_args_enter",
            "_record_function_with_args_exit",
            "_call_end_callbacks_on_jit_fut",
        },
        "torch's profiler offers backends nothing else",
    ),
    ("device/library.py", {"_type_"}, "ctypes documents that name for what a pointer points to"),
    ("job/exit_hooks.py", {"_run_exitfuncs"}, "exit handlers run before ours in no other way"),
]
OF_NAMED_TUPLES = {"_replace", "_asdict", "_fields", "_make"}  # public, by Python's documentation
MODULES = {"os", "sys", "ctypes"}  # os._exit, sys._getframe


def foreign(source: str) -> list[tuple[int, str]]:
    """Lines and names of `x._name` where no class or function of this source has that name."""
    tree = ast.parse(source)
    own = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id in ("self", "cls")
    }
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            own.add(node.name)
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        own.update(target.id for target in targets if isinstance(target, ast.Name))
    found = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.Attribute) or not node.attr.startswith("_") or node.attr.startswith("__"):
            continue
        if isinstance(node.value, ast.Name) and node.value.id in MODULES:
            continue
        if node.attr not in own | OF_NAMED_TUPLES:
            found.append((node.lineno, node.attr))
    return found


def is_known(file: str, name: str) -> bool:
    return any(file.startswith(where) and name in names for where, names, _ in REASONS)


def test_private_names_of_others_are_read_for_a_reason_only() -> None:
    found = [
        (str(path.relative_to(PACKAGE)), line, name)
        for path in PACKAGE.rglob("*.py")
        for line, name in foreign(path.read_text())
    ]
    assert [each for each in found if not is_known(each[0], each[2])] == []
    assert len(found) <= 40


@pytest.mark.parametrize("line", ["comm._mine = 1", "print(f(comm)._mine)", "comm.a._mine()"])
def test_the_guard_itself_sees_foreign_names(line: str) -> None:
    assert foreign(line) == [(1, "_mine")]
    assert foreign(f"class A:\n def f(self):\n  self._mine = 1\n{line}") == []


# What tells variables or the name of a function that runs: renaming one would silence a reader.
_OF_FRAMES = {"f_locals", "f_back", "co_varnames", "co_names", "co_name", "_current_frames"}
_MAY_READ = {
    "errors.py": ({"f_back"}, "the program's own line"),
    "job/exit_hooks.py": ({"f_back"}, "whether Python itself asks for the code of a SystemExit"),
    "agree/present_calls.py": ({"_current_frames", "co_name"}, "the program's own lines"),
    "agree/mistakes.py": ({"co_names"}, "names that the program's own code has used"),
    "transport/progress.py": ({"_current_frames"}, "whether a thread runs code of hpcomm's"),
    "communicator/program_calls.py": ({"f_back", "co_name"}, "the program's own line"),
    "torch_backend/install.py": ({"f_back", "f_locals", "co_name"}, "torch drops arguments"),
}


def test_no_code_reads_the_variables_of_a_function_that_runs() -> None:
    found = {}
    for path in PACKAGE.rglob("*.py"):
        nodes = ast.walk(ast.parse(path.read_text()))
        names = {node.attr for node in nodes if isinstance(node, ast.Attribute)} & _OF_FRAMES
        if names:
            found[str(path.relative_to(PACKAGE))] = names
    assert found == {path: names for path, (names, _) in _MAY_READ.items()}
