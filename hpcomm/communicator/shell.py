"""Shell: what the verbs are methods of."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .context import Context


class Shell:
    """A base of Communicator. Its subclasses have the verbs, which work on the context."""

    def __init__(self, context: Context) -> None:
        self.context = context
