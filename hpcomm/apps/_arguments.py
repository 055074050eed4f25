"""Numbers on an app's command line, refused with its usage where they make no sense."""

from __future__ import annotations

import argparse
import math

__all__ = ["finite", "positive"]


def positive(text: str) -> int:
    """A whole number from 1."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is no number from 1")
    return number


def finite(text: str) -> float:
    """A positive number small enough to be squared, as a length or a width."""
    number = float(text)
    if not 0 < number < math.sqrt(1.7e308):
        raise argparse.ArgumentTypeError(f"{text} is no number between 0 and 1e154")
    return number
