"""Imports run downwards only, as docs/design.md draws the layers.

The section "Layers" there holds a fenced list; its top line is the lowest layer. A line names modules
of hpcomm by their paths without .py (`transport/mpi`), or a folder with a slash behind it (`observe/`)
for all modules in it; anything behind `#` is a comment. A module may import modules of lower lines and
of its own line.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "hpcomm"
DESIGN = ROOT / "docs" / "design.md"


def modules() -> list[str]:
    """Every module of hpcomm by its path: `buffer`, `transport/mpi`, `observe/__init__`."""
    return sorted(path.relative_to(PACKAGE).with_suffix("").as_posix() for path in PACKAGE.rglob("*.py"))


def layers(text: str) -> list[list[str]]:
    """The lines of the fenced list in the section "Layers", lowest first."""
    section = re.search(r"^#+ Layers\b.*?^```\w*\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert section is not None, 'docs/design.md has no section "Layers" with a fenced list'
    lines = [line.split("#")[0].replace(",", " ").split() for line in section.group(1).splitlines()]
    return [[name.removesuffix(".py") for name in line] for line in lines if line]


def height(module: str, lines: list[list[str]]) -> int:
    """The line of module: its own name counts before its folder's."""
    for i, line in enumerate(lines):
        if module in line:
            return i
    for i, line in enumerate(lines):
        if any(name.endswith("/") and module.startswith(name) for name in line):
            return i
    raise LookupError(module)


def imports(path: Path, everything: list[str]) -> dict[str, int]:
    """Modules of hpcomm that the file at path imports when it runs, and where; not under TYPE_CHECKING."""
    package = path.relative_to(PACKAGE).parent.parts
    found: dict[str, int] = {}
    for node in _run(ast.parse(path.read_text())):
        for name in _names(node, package):
            for candidate in ("/".join(name), "/".join((*name, "__init__")), "/".join(name[:-1])):
                if candidate in everything:
                    found.setdefault(candidate, node.lineno)
                    break
    return found


def _run(tree: ast.AST) -> list[ast.Import | ast.ImportFrom]:
    """All imports below tree, in functions too, but not those for the type checker."""
    found: list[ast.Import | ast.ImportFrom] = []
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            found.append(node)
        elif isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            for other in node.orelse:
                found += _run(ast.Module([other], []))
        else:
            found += _run(node)
    return found


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
    missing = []
    for module in modules():
        try:
            height(module, lines)
        except LookupError:
            missing.append(module)
    assert missing == []
    named = [name for line in lines for name in line]
    assert sorted(set(named)) == sorted(named), "a module stands in two layers"


def test_no_layer_names_a_module_that_is_not_there(lines: list[list[str]]) -> None:
    everything = modules()
    ghosts = [
        name
        for line in lines
        for name in line
        if not (name in everything or (name.endswith("/") and any(module.startswith(name) for module in everything)))
    ]
    assert ghosts == []


def test_imports_run_downwards_only(lines: list[list[str]]) -> None:
    everything = modules()
    upwards = []
    for module in everything:
        for imported, lineno in imports(PACKAGE / f"{module}.py", everything).items():
            if height(imported, lines) > height(module, lines):
                upwards.append(f"hpcomm/{module}.py:{lineno} imports {imported}, which stands above it")
    assert upwards == []


def test_the_guard_itself_sees_an_import_that_runs_upwards(tmp_path: Path) -> None:
    """A guard that cannot fail guards nothing."""
    text = "## Layers\n\n```\nerrors          # lowest\nbuffer dtypes\nobserve/ communicator\n```\n"
    assert layers(text) == [["errors"], ["buffer", "dtypes"], ["observe/", "communicator"]]
    assert height("observe/check", layers(text)) == 2
    everything = ["errors", "buffer", "communicator", "observe/check", "observe/__init__"]
    source = (
        "from __future__ import annotations\nimport hpcomm.buffer\nfrom typing import TYPE_CHECKING\n"
        "if TYPE_CHECKING:\n    from ..communicator import Communicator\n"
        "def late():\n    from ..errors import where\n    from . import check\n    from hpcomm.communicator import Communicator\n"
    )
    path = PACKAGE / "observe" / "check.py"
    found = _found_in(source, path, everything, tmp_path)
    assert found == {"buffer": 2, "errors": 7, "observe/check": 8, "communicator": 9}


def _found_in(source: str, path: Path, everything: list[str], tmp_path: Path) -> dict[str, int]:
    class Standing(type(tmp_path)):  # type: ignore[misc]
        """A path in the package whose text is source."""

        def read_text(self, *arguments: object, **keywords: object) -> str:
            return source

    return imports(Standing(path), everything)
