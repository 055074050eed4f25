"""Imports run downwards only, those for types too, as docs/design.md draws the layers.

The section "Layers" there holds a fenced list; its top line is the lowest layer. A line names folders of
the package (`transport`), or modules of its root (`errors`); anything behind `#` is a comment. A module may
import modules of lower lines and of its own line. `hpcomm/__init__.py` is the front door above them all;
those of the folders below import nothing.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Container, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "hpcomm"
DESIGN = ROOT / "docs" / "design.md"
LONGEST = 500  # lines of a file
LARGEST_CIRCLE = 6  # modules that import one another


def modules() -> list[str]:
    """Every module of hpcomm but the front doors: `buffer`, `transport.mpi`, `__main__`."""
    paths = [path.relative_to(PACKAGE).with_suffix("") for path in PACKAGE.rglob("*.py")]
    return sorted(".".join(path.parts) for path in paths if path.name != "__init__")


def layers(text: str) -> list[list[str]]:
    """The lines of the fenced list in the section "Layers", lowest first."""
    section = re.search(r"^#+ Layers\b.*?^```\w*\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert section is not None, 'docs/design.md has no section "Layers" with a fenced list'
    lines = [line.split("#")[0].replace(",", " ").split() for line in section.group(1).splitlines()]
    return [line for line in lines if line]


def height(module: str, lines: list[list[str]]) -> int:
    """The line of module, -1 if it has none: its own name counts before its folder's."""
    for i, line in enumerate(lines):
        if module in line:
            return i
    for i, line in enumerate(lines):
        if any(module.startswith(f"{name}.") for name in line):
            return i
    return -1


def imports(path: Path, everything: list[str]) -> dict[str, int]:
    """Modules of hpcomm that the file at path imports, at which line: for types and in functions, too."""
    package = path.relative_to(PACKAGE).parent.parts
    found: dict[str, int] = {}
    known = {*everything}
    for line, name in _imported(ast.parse(path.read_text()), package):
        module = _module(name, known)
        if module:
            found.setdefault(module, line)
    return found


def _module(name: tuple[str, ...], everything: Container[str]) -> str | None:
    """The module that a path means: itself, or the one that the last part is a name in."""
    return next((each for each in (".".join(name), ".".join(name[:-1])) if each in everything), None)


def _imported(tree: ast.AST, package: tuple[str, ...]) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Line and path inside hpcomm of all that is imported anywhere below tree."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            for name in _names(node, package):
                yield node.lineno, name
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "LazyModule":
            assert isinstance(node.args[0], ast.Constant)
            stem, *rest = str(node.args[0].value).split(".")
            if stem == "hpcomm":
                yield node.lineno, tuple(rest)


def _names(node: ast.Import | ast.ImportFrom, package: tuple[str, ...]) -> list[tuple[str, ...]]:
    """Paths inside hpcomm that an import may mean: `from ..errors import where` -> ("errors", "where")."""
    if isinstance(node, ast.Import):
        names = [tuple(alias.name.split(".")) for alias in node.names]
        return [name[1:] for name in names if name[0] == "hpcomm" and len(name) > 1]
    stem = tuple((node.module or "").split(".")) if node.module else ()
    if node.level == 0:
        if stem[:1] != ("hpcomm",):
            return []
        stem = stem[1:]
    else:
        stem = (*package[: len(package) - node.level + 1], *stem)
    return [(*stem, alias.name) for alias in node.names]


@pytest.fixture(scope="module")
def lines() -> list[list[str]]:
    return layers(DESIGN.read_text())


def test_every_module_stands_in_one_layer(lines: list[list[str]]) -> None:
    assert [module for module in modules() if height(module, lines) < 0] == []
    named = [name for line in lines for name in line]
    assert sorted(set(named)) == sorted(named), "a module stands in two layers"


def test_no_layer_names_a_module_that_is_not_there(lines: list[list[str]]) -> None:
    everything = modules()
    named = [name for line in lines for name in line]
    assert [
        name for name in named if not any(f"{module}.".startswith(f"{name}.") for module in everything)
    ] == []


def test_imports_run_downwards_only(lines: list[list[str]]) -> None:
    everything = modules()
    upwards = []
    for module in everything:
        path = PACKAGE / f"{module.replace('.', '/')}.py"
        for imported, lineno in imports(path, everything).items():
            if height(imported, lines) > height(module, lines):
                upwards.append(f"{module}, line {lineno}, imports {imported}, which stands above it")
    assert upwards == []


def test_few_modules_import_one_another_in_a_circle() -> None:
    """For types and in functions, too: who reads one of a circle has to read them all."""
    everything = modules()
    graph = {m: {*imports(PACKAGE / f"{m.replace('.', '/')}.py", everything)} - {m} for m in everything}
    reach = {module: reachable(module, graph) for module in everything}
    circles = {
        frozenset(other for other in reach[module] if module in reach[other]) | {module} for module in reach
    }
    assert [sorted(circle) for circle in circles if len(circle) > LARGEST_CIRCLE] == []


def reachable(module: str, graph: dict[str, set[str]]) -> set[str]:
    """What module imports, and what that imports, and so on."""
    found, ahead = set[str](), [module]
    while ahead:
        for other in graph[ahead.pop()] - found:
            found.add(other)
            ahead.append(other)
    return found


def test_few_files_stand_in_the_root_and_every_layer_is_a_folder(lines: list[list[str]]) -> None:
    """The rest of the root are doors: public names of modules further down."""
    root = [path.stem for path in PACKAGE.glob("*.py")]
    assert len(root) <= 12, root
    assert [name for line in lines for name in line if "." in name] == []


def test_files_are_short() -> None:
    """A file holds one idea; what has grown past this has two."""
    lines = {str(path.relative_to(PACKAGE)): path.read_text().count("\n") for path in PACKAGE.rglob("*.py")}
    assert {path: count for path, count in lines.items() if count > LONGEST} == {}


def test_the_front_door_of_a_folder_imports_nothing() -> None:
    doors = [path for path in PACKAGE.rglob("__init__.py") if path.parent != PACKAGE]
    assert [path for path in doors if imports(path, modules())] == []


def test_the_readme_of_a_folder_has_a_line_for_each_of_its_files(lines: list[list[str]]) -> None:
    """And names no file that is not there: whoever adds, moves or removes one says what it is."""
    folders = [name for line in lines for name in line if (PACKAGE / name).is_dir()]
    wrong = []
    for name in folders:
        folder = PACKAGE / name
        told = re.findall(r"^\| `([\w/]+\.py)` \|", (folder / "README.md").read_text(), re.MULTILINE)
        there = [path for path in folder.rglob("*.py") if path.name != "__init__.py"]
        wrong += [f"{name}/{file}" for file in {str(each.relative_to(folder)) for each in there} ^ set(told)]
    assert sorted(wrong) == []


def test_documents_name_files_of_the_package_that_are_there() -> None:
    """Paths such as `hpcomm/core/buffer.py`; in READMEs of folders and docs/design.md short ones, too.

    And limits as `core.limits.NAME`.
    """
    limits = re.findall(r"^([A-Z]\w+)", (PACKAGE / "core" / "limits.py").read_text(), re.MULTILINE)
    there = [str(path.relative_to(ROOT)) for path in PACKAGE.rglob("*.py")]
    readmes = [*PACKAGE.rglob("README.md"), DESIGN]
    wrong = []
    for path in [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *PACKAGE.rglob("*.md")]:
        text = path.read_text()
        names = re.findall(r"hpcomm/[\w/]+\.py\b", text)
        if path in readmes:
            names += re.findall(r"`((?:\w+/)*\w+\.py)`", text)
        for name in names:
            if name.startswith(("tests/", "benchmarks/")):
                continue
            if not any(f"/{each}".endswith(f"/{name}") for each in there):
                wrong.append(f"{path.relative_to(ROOT)}: {name}")
        named = re.findall(r"core\.limits\.(\w+)", text)
        wrong += [f"{path.relative_to(ROOT)}: core.limits.{name}" for name in named if name not in limits]
    assert wrong == []


def test_the_guard_itself_sees_every_import_that_runs() -> None:
    """A guard that cannot fail guards nothing."""
    text = "## Layers\n\n```\nerrors          # lowest\nbuffer dtypes\nobserve, communicator\n```\n"
    assert layers(text) == [["errors"], ["buffer", "dtypes"], ["observe", "communicator"]]
    assert height("observe.check", layers(text)) == 2
    assert height("lanes", layers(text)) == -1
    source = """
import hpcomm.buffer
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    from ..request import Request
else:
    dtypes = LazyModule("hpcomm.dtypes")
def late():
    from ..errors import where
    from . import check
    from hpcomm.communicator import Communicator
"""
    everything = ["errors", "buffer", "dtypes", "request", "communicator", "observe.check"]
    found = {_module(name, everything): line for line, name in _imported(ast.parse(source), ("observe",))}
    expected = {"buffer": 2, "request": 5, "dtypes": 7, "errors": 9, "observe.check": 10, "communicator": 11}
    assert found == expected
