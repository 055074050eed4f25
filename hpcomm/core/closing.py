"""Closing: `with` for what all ranks close together."""

from __future__ import annotations

from abc import abstractmethod
from types import TracebackType
from typing import Self


class ClosedByAll:
    """Its close() is collective: so it is not called while an error passes, when others may never come."""

    @abstractmethod
    def close(self) -> None:
        """End it, on all ranks."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
