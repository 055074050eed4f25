"""Shell: what the verbs are methods of."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from .context import Context

Kind = TypeVar("Kind", bound=type)
FINGERPRINT = "HPCOMM_FINGERPRINT"


def watched(kind: Kind) -> Kind:
    """The same class; where fingerprints are asked for, calls of its methods are written down."""
    if os.environ.get(FINGERPRINT):
        from .fingerprint import watch

        watch(kind)
    return kind


class Shell:
    """A base of Communicator. Its subclasses have the verbs, which work on the context.

    Where only a context is at hand, `Objects(context)` has the verbs of Objects.
    """

    __slots__ = ("context",)  # which Python finds quicker than in a dictionary

    def __init_subclass__(cls) -> None:
        watched(cls)

    def __init__(self, context: Context) -> None:
        self.context = context
