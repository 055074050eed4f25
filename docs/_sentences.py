"""Length of the sentences of pages: python docs/_sentences.py [PAGE ...]   (all pages if none is named)

A row for each page: how many sentences, the median and the longest in words, how many have more than 25.
With one page, those are printed. Code, tables, headings and link targets are left out; an item of a list is a
sentence.
"""

import re
import sys
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parents[1]
LONG = 25  # words

_LEFT_OUT = [
    re.compile(r"^(`{3,}).*?^\1`*$", re.M | re.S),  # blocks
    re.compile(r"^\s*(?:\|.*|#.*|\(.*\)=|---)$", re.M),  # tables, headings, anchors
]
_ITEM = re.compile(r"^\s*(?:[-*]|\d+\.) ", re.M)
_LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
_CODE = re.compile(r"`[^`]*`")
_END = re.compile(r"(?<=[.!?])(?<!e\.g\.)(?<!i\.e\.)[\"')*]*\s+(?=\S|$)|\n\s*\n")


def sentences(text: str) -> list[str]:
    """The sentences of a page, each in one line."""
    for pattern in _LEFT_OUT:
        text = pattern.sub("\n\n", text)
    text = _LINK.sub(r"\1", _ITEM.sub("\n\n", text))
    text = _CODE.sub(lambda code: code[0].replace(" ", "\N{NO-BREAK SPACE}").replace(".", "_"), text)
    return [" ".join(re.split(r"[ \n]+", each.strip())) for each in _END.split(text) if each.strip()]


def words(sentence: str) -> int:
    """How many; a piece of code is one."""
    return sum(re.search(r"\w", word) is not None for word in sentence.split(" "))


def main(names: list[str]) -> None:
    pages = [Path(name) for name in names] or sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
    print(f"{'page':32} sentences median longest  >{LONG}")
    for page in pages:
        if "_made" in page.parts:
            continue
        counts = [words(each) for each in sentences(page.read_text(encoding="utf-8"))]
        if counts:
            name = page.resolve().relative_to(ROOT).as_posix()
            over = sum(count > LONG for count in counts)
            print(f"{name:32} {len(counts):9} {median(counts):6g} {max(counts):7} {over:4}")
    if len(names) == 1:
        for each in sentences(pages[0].read_text(encoding="utf-8")):
            if words(each) > LONG:
                print(f"\n{words(each)}: {each}")


if __name__ == "__main__":
    main(sys.argv[1:])
