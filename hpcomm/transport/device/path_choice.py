"""Choice of the path of device arrays, and why better ones were refused. Pure.

For a collective all ranks choose alike from what all know; for a message its receiver does, and answers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

__all__ = ["COLLECTIVE", "MESSAGE", "PATHS", "Choice", "choose", "choose_message"]

COLLECTIVE = ("nccl", "ipc", "direct", "schedule", "pipeline")  # best first
MESSAGE = ("ipc", "direct", "nccl", "pipeline")
PATHS = ("auto", *COLLECTIVE)
MEANS = {
    "nccl": "NCCL",
    "ipc": "an own schedule, all messages from device to device",
    "direct": "the MPI library, on device memory",
    "schedule": "an own schedule with reductions on the device, some messages through pinned memory",
    "pipeline": "the MPI library on pieces in pinned memory",
}

ON_COPIES = "an own schedule on copies in host memory"


class Choice(NamedTuple):
    """path: the best one that is not refused, or ""; refused: why each better one was; means: in words."""

    path: str
    refused: Mapping[str, str]
    means: str = ""

    def __str__(self) -> str:
        whys = "; ".join(f"{name}: refused, {why}" for name, why in self.refused.items())
        return f"{self.path} ({self.means or MEANS[self.path]})" + (f"; {whys}" if whys else "")


def choose(
    forced: str, verb: str, *, all_on_devices: bool, reduces: bool, kernels: str, converts: str,
    pairs: Sequence[str], nccl: str, direct: str, named: bool = False,
) -> Choice:  # fmt: skip
    """Choose.

    Args:
        forced: "auto", or the only path that the user wants.
        kernels: why op cannot reduce on devices on some rank, or "".
        converts: why x cannot be brought there into the form in which op reduces it, or "".
        pairs: of each rank, why it cannot copy from some other one's memory, or "".
        nccl, direct: why that cannot carry this call, or "".
        named: the user names an own schedule; "pipeline" then is that schedule on copies in host memory.
    """
    unopened = next((f"rank {r} cannot copy from {why}" for r, why in enumerate(pairs) if why), "")
    hosts = "" if all_on_devices else "some ranks bring arrays in host memory"
    ours = "algorithm= names an own schedule" if named else ""
    lacks = {
        "nccl": ours or hosts or nccl or converts,
        "ipc": hosts or converts or kernels or unopened,
        "direct": ours or hosts or direct or converts,
        "schedule": hosts
        or converts
        or kernels
        or ("" if reduces or named or forced == "schedule" else f"{verb} reduces nothing"),
        "pipeline": "",
    }
    found = _first(COLLECTIVE, lacks, forced)
    return found._replace(means=ON_COPIES) if named and found.path == "pipeline" else found


def choose_message(forced: str, **lacks: str) -> Choice:
    """Choose for a message; lacks: path -> why it cannot carry it, or ""."""
    return _first(MESSAGE, lacks, "auto" if forced == "schedule" else forced)


def _first(paths: Sequence[str], lacks: Mapping[str, str], forced: str) -> Choice:
    refused: dict[str, str] = {}
    for name in paths:
        why = lacks.get(name, "") if forced in ("auto", name) else f"{forced} is forced"
        if not why:
            return Choice(name, refused)
        refused[name] = why
    return Choice("", refused)
