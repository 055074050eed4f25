"""Levels of checking, each of which includes those before it (docs/errors.md)."""

from __future__ import annotations

LEVELS = ("off", "light", "full", "values", "strict")


def depth(level: str) -> int:
    """How far beyond "light" a level goes: 0 where ranks do not compare each call before it begins."""
    return max(0, LEVELS.index(level) - 1)
