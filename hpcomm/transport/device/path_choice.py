"""Choice of the path of device arrays, and why better ones were refused. Pure.

For a collective all ranks choose alike from what all know; for a message its receiver does, and answers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

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


class Facts(NamedTuple):
    """What all ranks know of a collective. Texts say why something cannot be, "" that it can."""

    all_on_devices: bool
    reduces: bool
    kernels: str  # op reduces on the devices of all ranks
    converts: str  # x can be brought there into the form in which op reduces it
    pairs: Sequence[str]  # of each rank: it can copy from all others' memory
    nccl: str  # NCCL carries this call
    direct: str  # MPI carries it
    named: bool = False  # the user names an own schedule; "pipeline" then is that on copies in host memory


def choose(forced: str, verb: str, facts: Facts) -> Choice:
    """Choose. forced: "auto", or the only path that the user wants."""
    _, reduces, kernels, converts, pairs, nccl, direct, named = facts
    unopened = next((f"rank {r} cannot copy from {why}" for r, why in enumerate(pairs) if why), "")
    hosts = "" if facts.all_on_devices else "some ranks bring arrays in host memory"
    ours = "algorithm= names an own schedule" if named else ""
    pointless = "" if reduces or named or forced == "schedule" else f"{verb} reduces nothing"
    lacks = {
        "nccl": _first_why(ours, hosts, nccl, converts),
        "ipc": _first_why(hosts, converts, kernels, unopened),
        "direct": _first_why(ours, hosts, direct, converts),
        "schedule": _first_why(hosts, converts, kernels, pointless),
    }
    found = _first(COLLECTIVE, lacks, forced)
    return found._replace(means=ON_COPIES) if named and found.path == "pipeline" else found


def _first_why(*whys: str) -> str:
    return next(filter(None, whys), "")


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
