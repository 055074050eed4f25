"""Shell: what the verbs are methods of."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .context import Context


class Shell:
    """A base of Communicator. Its subclasses have the verbs, which work on the context.

    Where only a context is at hand, `Objects(context)` has the verbs of Objects.
    """

    __slots__ = ("context",)  # which Python finds quicker than in a dictionary

    def __init__(self, context: Context) -> None:
        self.context = context
