"""Shell: what the verbs are methods of."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TypeVar

from .context import Context

Kind = TypeVar("Kind", bound=type)
FINGERPRINT, TRACE = "HPCOMM_FINGERPRINT", "HPCOMM_TRACE"
kinds: list[type] = []  # classes whose methods a program calls
watchers: list[Callable[[type], None]] = []  # to wrap those of each


def watched(kind: Kind) -> Kind:
    """The same class; where fingerprints or a trace are asked for, calls of its methods are written down."""
    if not kinds and os.environ.get(FINGERPRINT):
        from .fingerprint import watch

        watchers.append(watch)
    if not kinds and (folder := os.environ.get(TRACE)):
        from .trace import trace

        trace(folder).begin()
    kinds.append(kind)
    for each in watchers:
        each(kind)
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
