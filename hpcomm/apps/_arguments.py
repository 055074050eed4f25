"""Numbers on an app's command line, refused with its usage where they make no sense."""

from __future__ import annotations

import argparse
import os

from hpcomm import Communicator
from hpcomm.errors import UsageError
from hpcomm.sim import numbers

__all__ = ["bins", "moderate", "nbytes", "positive", "require_memory"]

_MOST_BINS = 1_000_000


def positive(text: str) -> int:
    """A whole number from 1."""
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is no whole number from 1")
    return number


def bins(text: str) -> int:
    """A number of bins of a histogram that somebody might still look at."""
    number = positive(text)
    if number > _MOST_BINS:
        raise argparse.ArgumentTypeError(f"{text} is more than {_MOST_BINS}")
    return number


def moderate(text: str) -> float:
    """A positive number that is far from the ends of what float64 holds."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
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


def require_memory(parser: argparse.ArgumentParser, comm: Communicator, option: str, needed: int) -> None:
    """End the program with a sentence, on every rank alike, when its arrays do not fit into some node.

    Collective.

    Args:
        option: what decides about their size.
        needed: bytes that this rank holds at once, with the arrays that it is checked by.
    """
    with comm.split_node() as node:
        on_node = sum(node.all_gather_object(needed))
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for needs, has in comm.all_gather_object((on_node, there)):
        if needs > has:
            parser.error(
                f"argument {option}: takes {_gigabytes(needs)} on a node that has {_gigabytes(has)}: "
                "take a smaller number"
            )


def _gigabytes(nbytes: int) -> str:
    return f"{nbytes // 10**9} GB"
