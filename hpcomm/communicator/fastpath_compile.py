"""Compiler of fast paths: source text of lines and named fragments becomes a function.

In a text `@name x, y` stands for the fragment of that name, in which X is x and Y is y, and which may hold
others; `@call f(x)` for a call of MPI, with what the ranks do around it to agree.
"""

from __future__ import annotations

from functools import lru_cache
from types import CodeType

__all__ = ["PLAIN_CALL", "Source", "compiled"]

PLAIN_CALL = "CALL"  # nothing is around it
_CALL = """try:
    AROUND
except MPIError as error:
    raise failure(error, verb, comm) from None"""


@lru_cache(maxsize=256)
def compiled(
    verb: str, body: str, fragments: tuple[tuple[str, str], ...], around: str
) -> tuple[CodeType, Source]:
    """What defines the function `fast`, and its text; fragments: by name; around: of an Agreement."""
    known = dict(fragments)
    if around == PLAIN_CALL and not known.get("within"):
        known["sign"] = ""
    source = Source("\n".join(_expanded(body, known, around)) + "\n")
    return compile(source.text, f"{__file__}:{verb}-{hash(source.text) & 0xFFFFFFFF:08x}", "exec"), source


def _expanded(text: str, known: dict[str, str], around: str) -> list[str]:
    """The lines of a text with those of fragments in place of their names."""
    lines = []
    for line in text.strip().splitlines():
        word, _, rest = line.strip().partition(" ")
        if not word.startswith("@"):
            lines.append(line)
            continue
        if word == "@call":
            text = _CALL.replace("AROUND", around.strip().replace("\n", "\n    ")).replace("CALL", rest)
        else:
            x, _, y = rest.partition(", ")
            text = known[word[1:]].replace("X", x).replace("Y", y)
        margin = line[: len(line) - len(line.lstrip())]
        lines += [margin + part for part in _expanded(text, known, around) if part]
    return lines


class Source:
    """Shows tracebacks and debuggers what a fast path looks like, as the loader of a module would."""

    def __init__(self, text: str) -> None:
        self.text = text

    def get_source(self, name: str) -> str:
        return self.text
