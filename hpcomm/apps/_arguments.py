"""Numbers on an app's command line, refused with its usage where they make no sense."""

from __future__ import annotations

import argparse
import os
from contextlib import suppress
from pathlib import Path

from .. import Communicator
from ..errors import UsageError
from ..tools.sim import numbers

_MOST_BINS = 1_000_000


def positive(text: str) -> int:
    """A whole number from 1."""
    with suppress(ValueError):
        if (number := int(text)) >= 1:
            return number
    raise argparse.ArgumentTypeError(f"{text} is no whole number from 1")


def bins(text: str) -> int:
    """A number of bins of a histogram that somebody might still look at."""
    number = positive(text)
    if number > _MOST_BINS:
        raise argparse.ArgumentTypeError(f"{text} is more than {_MOST_BINS}")
    return number


def moderate(text: str) -> float:
    """A positive number that is far from the ends of what float64 holds."""
    with suppress(ValueError):
        if 1e-100 <= (number := float(text)) <= 1e100:
            return number
    raise argparse.ArgumentTypeError(f"{text} is no number between 1e-100 and 1e100")


def nbytes(text: str) -> int:
    """A size such as 8, 64k or 1M."""
    try:
        (number,) = numbers(text)
    except (UsageError, ValueError):
        raise argparse.ArgumentTypeError(f"{text!r} is no size such as 8, 64k or 1M") from None
    return number


def require_folder(parser: argparse.ArgumentParser, comm: Communicator, folder: str) -> None:
    """Make a folder, or end the program with a sentence, on every rank alike. Collective."""
    fault: str | None = None
    if comm.rank == 0:
        try:
            Path(folder).mkdir(parents=True, exist_ok=True)
            fault = None if os.access(folder, os.W_OK | os.X_OK) else "it takes no files"
        except OSError as error:
            fault = error.strerror
    if fault := comm.broadcast_object(fault):
        parser.error(f"no folder to save in: {folder}: {fault}")


def require_memory(parser: argparse.ArgumentParser, comm: Communicator, option: str, needed: int) -> None:
    """End the program with a sentence, on every rank alike, when its arrays do not fit into some node.

    Collective.

    Args:
        option: what decides about their size.
        needed: bytes that this rank holds at once, with the arrays that it is checked by.
    """
    mine = memory_limits()
    with comm.split_node() as node:
        there = node.all_gather_object((needed, mine))
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    bounds = [(sum(needs for needs, _ in there), whole, "a node that has")]
    for group, most in mine.items():
        together = sum(needs for needs, groups in there if group in groups)
        bounds.append((together, most, "a node where this job may have"))
    tightest = max(bounds, key=lambda bound: bound[0] / max(bound[1], 1))
    for needs, has, where in comm.all_gather_object(tightest):
        if needs > has:
            takes = f"takes {_gigabytes(needs)} on {where} {_gigabytes(has)}"
            parser.error(f"argument {option}: {takes}: take a smaller number")


def memory_limits(
    own: Path = Path("/proc/self/cgroup"), mounted: Path = Path("/sys/fs/cgroup")
) -> dict[tuple[int, int], int]:
    """Bytes that control groups of this process may have, as Slurm and containers set them.

    Args:
        own: which groups it is in; mounted: where they are.

    Returns:
        For each group with a limit, by what tells it from others of the same node.
    """
    found: dict[tuple[int, int], int] = {}
    with suppress(OSError):
        for line in own.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers and "memory" not in controllers.split(","):
                continue
            root, name = mounted, "memory.max"
            if controllers:  # of version 1
                root, name = mounted / "memory", "memory.limit_in_bytes"
            group = root / path.lstrip("/")
            for each in (group, *group.parents):
                if each == root.parent:
                    break
                with suppress(OSError, ValueError):  # not seen from here; "max"
                    most = int((each / name).read_text())
                    about = each.stat()
                    found[about.st_dev, about.st_ino] = most
    return found


def _gigabytes(nbytes: int) -> str:
    return f"{nbytes // 10**9} GB" if nbytes >= 10**10 else f"{nbytes / 10**9:.1f} GB"
