"""Numbers on an app's command line, refused with its usage where they make no sense."""

from __future__ import annotations

import argparse

from hpcomm.errors import UsageError
from hpcomm.sim import numbers

__all__ = ["moderate", "nbytes", "positive"]


def positive(text: str) -> int:
    """A whole number from 1."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is no number from 1")
    return number


def moderate(text: str) -> float:
    """A positive number that is far from the ends of what float64 holds."""
    number = float(text)
    if not 1e-100 <= number <= 1e100:
        raise argparse.ArgumentTypeError(f"{text} is no number between 1e-100 and 1e100")
    return number


def nbytes(text: str) -> int:
    """A size such as 8, 64k or 1M."""
    try:
        (number,) = numbers(text)
    except (UsageError, ValueError):
        raise argparse.ArgumentTypeError(f"{text!r} is no size such as 8, 64k or 1M") from None
    return number
