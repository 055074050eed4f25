"""Status: where a message came from."""

from __future__ import annotations


class Status:
    """Where a message came from, and its length.

    Attributes:
        source, tag: the rank that sent it, and its tag.
        nbytes: how long it is.
    """

    def __init__(self, source: int = -1, tag: int = -1, nbytes: int = 0) -> None:
        self.source = source
        self.tag = tag
        self.nbytes = nbytes

    def __repr__(self) -> str:
        return f"Status(source={self.source}, tag={self.tag}, nbytes={self.nbytes})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Status) and vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]
