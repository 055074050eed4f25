"""Pages begin with words for their reader, specs with the schema for their editor; words are the field's."""

import ast
import importlib.util
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "docs"))
import _benchmarks  # noqa: E402
import _pages  # noqa: E402
from _sentences import REFERENCE, docstrings, found  # noqa: E402

PAGES = [page for page in (ROOT / "docs").rglob("*.md") if "_made" not in page.parts]
FOLDERS = [ROOT / folder / "README.md" for folder in ("apps", "hpcomm/apps", "mpmd_configs")]

_CODE = re.compile(r"^(`{3,}).*?^\1`*$|`[^`]*`", re.M | re.S)
_FORMER = re.compile(r"(?<![\w.])(?:verbs?|summands?)\b(?!:)", re.I)  # "verb:" is the name of an argument


def test_every_page_begins_with_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which says for whom it is: no code, table or heading stands before it, only a picture may."""
    assert len(PAGES) > 40
    texts = {str(page): page.read_text("utf-8") for page in [*PAGES, *FOLDERS, ROOT / "CHANGELOG.md"]}
    monkeypatch.setattr(_pages, "help_of", str)
    texts |= {make.__name__: make() for make in (_pages.command_line, _pages.spec, _pages.changelog)}
    texts |= {path.stem: _pages.app(path) for path in _pages.APPS.glob("[a-z]*.py")}
    texts |= {name: _benchmarks.page(name, []) for name in _benchmarks.by_program()}
    begins = re.compile(r"# .+\n\n(```{image}(?s:.*?)```\n\n)?(For|If) ")
    assert [page for page, text in texts.items() if not begins.match(text)] == []


def test_specs_name_the_schema_where_editors_look_for_it() -> None:
    specs = [*(ROOT / "mpmd_configs").glob("*.toml")]
    assert specs
    for spec in specs:
        word, _, path = spec.read_text(encoding="utf-8").partition("\n")[0].partition(" ")
        assert word == "#:schema", spec
        assert (spec.parent / path).samefile(ROOT / "hpcomm/job/spec/spec.json"), spec


def former(text: str) -> list[str]:
    """Lines of a text that name an operation, or a partial sum, as the code does and the field does not."""
    plain = _CODE.sub(lambda code: "\n" * code[0].count("\n"), text)
    return [line for line in plain.splitlines() if _FORMER.search(line)]


def test_former_words_are_found_outside_of_code() -> None:
    text = "the verbs of a\ncomm.verbs\n```\na verb\n```\n`verb`, verb: its name,\nSummands"
    assert former(text) == ["the verbs of a", "Summands"]


def test_pages_and_changes_say_operation_and_partial_sum() -> None:
    written = [*(ROOT / "changelog.d").glob("*.md"), *ROOT.glob("*.md"), *PAGES, *FOLDERS]
    assert {page.name: lines for page in written if (lines := former(page.read_text("utf-8")))} == {}


def test_errors_hints_and_helps_say_operation_and_partial_sum() -> None:
    """They are the strings of more than one word that are no docstrings."""
    wrong = []
    for path in (ROOT / "hpcomm").rglob("*.py"):
        source, docs = path.read_text(encoding="utf-8"), set[ast.expr]()
        for node in ast.walk(ast.parse(source)) if _FORMER.search(source) else ():
            if isinstance(node, ast.Expr):
                docs.add(node.value)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in docs:
                text = re.sub(r"\{\w+\}", "", node.value)  # names for str.format
                wrong += [(path.name, line) for line in former(text) if " " in text]
    assert wrong == []


def test_public_docstrings_say_operation_and_partial_sum() -> None:
    assert {name: lines for name, text in documented() if (lines := former(text))} == {}


def documented() -> Iterator[tuple[str, str]]:
    """Names and docstrings of the reference, and of all public members of its classes."""
    for page in REFERENCE.glob("*.md"):
        if page.stem == "torch" and not importlib.util.find_spec("torch"):
            continue
        for name, text in docstrings(page):
            yield name, text
            if inspect.isclass(thing := found(name)):
                shown = [member for member in dir(thing) if member[0] != "_"]
                yield from ((f"{name}.{each}", inspect.getdoc(getattr(thing, each)) or "") for each in shown)
