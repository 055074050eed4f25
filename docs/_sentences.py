"""Length of the sentences of the documents: python docs/_sentences.py [PAGE ...]   (all if none is named)

A row for each page: how many sentences, the median and the longest in words, how many have more than 25; then
the same of the sentences in cells of tables. The last rows are the docstrings that the API pages show.
With one page (docs/reference/NAME.md: its docstrings) those of more than 25 words are printed. Code, headings
and link targets are left out; an item of a list is a sentence.
"""

import importlib
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parents[1]
REFERENCE = ROOT / "docs/reference"
LONG = 25  # words

_BLOCK = re.compile(r"^(`{3,}).*?^\1`*$", re.M | re.S)
_ROW = re.compile(r"^\s*\|(.*)\|\s*$", re.M)
_NO_TEXT = re.compile(r"^\s*(?:#.*|\(.*\)=|---)$", re.M)  # headings, anchors
_ITEM = re.compile(r"^\s*(?:[-*]|\d+\.) ", re.M)
_LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
_CODE = re.compile(r"`[^`]*`")
_END = re.compile(r"(?<=[.!?])(?<!e\.g\.)(?<!i\.e\.)[\"')*]*\s+(?=\S|$)|\n\s*\n")
_DIRECTIVE = re.compile(r"^\.\. auto(\w+):: ([\w.]+)(?:\(\))?\n((?: {3}.*\n)*)", re.M)
_EXAMPLE = re.compile(r"^( *)>>>.*\n(?:\1.*\S.*\n?)*|::\n(?:\n| +.*\n?)*", re.M)
_ENTRY = re.compile(r"^ *(?:[A-Z][a-z]+:$|[\w, `*.]+?: )", re.M)  # a section of a docstring, or a name in it


def sentences(text: str) -> list[str]:
    """The sentences of a page that are in no table, each in one line."""
    for pattern in (_BLOCK, _ROW, _NO_TEXT):
        text = pattern.sub("\n\n", text)
    return _split(_ITEM.sub("\n\n", text))


def of_tables(text: str) -> list[str]:
    """The sentences in the cells of a page's tables."""
    rows = _ROW.findall(_BLOCK.sub("\n\n", text))
    cells = [cell for row in rows for cell in re.split(r"(?<!\\)\|", row) if re.search(r"[^\W\d]", cell)]
    return [each for cell in cells for each in _split(cell)]


def of_docstring(text: str) -> list[str]:
    """The sentences of a docstring; what is said of each argument is one at least."""
    return _split(_ITEM.sub("\n\n", _ENTRY.sub("\n\n", _EXAMPLE.sub("\n\n", text + "\n"))))


def _split(text: str) -> list[str]:
    text = _LINK.sub(r"\1", text)
    text = _CODE.sub(lambda code: code[0].replace(" ", "\N{NO-BREAK SPACE}").replace(".", "_"), text)
    return [" ".join(re.split(r"[ \n]+", each.strip())) for each in _END.split(text) if each.strip()]


def words(sentence: str) -> int:
    """How many; a piece of code is one."""
    return sum(re.search(r"\w", word) is not None for word in sentence.split(" "))


def docstrings(page: Path) -> Iterator[tuple[str, str]]:
    """Name and docstring of all that an API page shows."""
    for kind, name, options in _DIRECTIVE.findall(page.read_text(encoding="utf-8")):
        if kind == "summary":
            continue
        thing = found(name)
        yield name, inspect.getdoc(thing) or ""
        if wanted := re.search(r":members:(.*(?:\n {4,}.*)*)", options):
            shown = re.findall(r"\w+", wanted[1]) or members(thing)
            for member in shown:
                yield f"{name}.{member}", inspect.getdoc(getattr(thing, member)) or ""


def members(thing: object) -> list[str]:
    """The public names of a module."""
    names: list[str] = getattr(thing, "__all__", None) or [name for name in dir(thing) if name[0] != "_"]
    return [name for name in names if callable(getattr(thing, name))]


def found(name: str) -> object:
    """What a directive names."""
    full = name if name.startswith("hpcomm.") else f"hpcomm.{name}"
    module, left = full, list[str]()
    while True:
        try:
            thing = importlib.import_module(module)
            break
        except ModuleNotFoundError:
            module, _, last = module.rpartition(".")
            left.insert(0, last)
    for each in left:
        thing = getattr(thing, each)
    return thing


def figures(texts: list[str]) -> str:
    """How many, median, longest, how many long ones."""
    counts = [words(each) for each in texts] or [0]
    return f"{len(texts):9} {median(counts):6g} {max(counts):7} {sum(count > LONG for count in counts):4}"


def main(names: list[str]) -> None:
    """Print a row for each page; of a single one its long sentences, too."""
    pages = [Path(name) for name in names] or sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
    print(f"{'':32} sentences median longest  >{LONG}    tables median longest  >{LONG}")
    everything: list[tuple[str, str]] = []
    for page in pages:
        if "_made" in page.parts:
            continue
        text, name = page.read_text(encoding="utf-8"), page.resolve().relative_to(ROOT).as_posix()
        print(f"{name:32} {figures(sentences(text))} {figures(of_tables(text))}")
        everything += [(name, each) for each in (*sentences(text), *of_tables(text))]
    for page in pages:
        if page.resolve().parent == REFERENCE:
            shown = [(name, each) for name, text in docstrings(page) for each in of_docstring(text)]
            print(f"{'docstrings of ' + page.stem:32} {figures([each for _, each in shown])}")
            everything += shown
    if len(names) == 1:
        for name, each in everything:
            if words(each) > LONG:
                print(f"\n{name}\n{words(each)}: {each}")


if __name__ == "__main__":
    main(sys.argv[1:])
