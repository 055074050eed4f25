"""All variables of the environment that hpcomm reads, in one list."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import NamedTuple

from ..errors import ConfigError

PREFIX = "HPCOMM_"


class Variable(NamedTuple):
    """own: hpcomm sets it, for processes that it starts; default: what holds where it is not set."""

    name: str
    values: str
    default: str
    what: str
    own: bool = False


VARIABLES = (
    Variable(
        "HPCOMM_CHECK", "off, light, full, values, strict", "light", "how much ranks compare of their calls",
    ),
    Variable(
        "HPCOMM_DETERMINISTIC", "1", "unset",
        "sums of torch's groups and of fields do not depend on the number of ranks",
    ),
    Variable(
        "HPCOMM_FINGERPRINT", "a folder", "none", "where ranks write 16 bytes for each call (hpcomm diff)",
    ),
    Variable(
        "HPCOMM_GPU", "auto, off, nccl, ipc, direct, schedule, pipeline", "auto",
        "which way arrays of a GPU go",
    ),
    Variable(
        "HPCOMM_INIT_TIMEOUT", "seconds", "60; 30 with several hosts",
        "how much later one program of a job may start than another",
    ),
    Variable("HPCOMM_NCCL", "path of a library", "torch's, or nvidia-nccl's", "which NCCL is loaded"),
    Variable("HPCOMM_NODE", "on, off", "on", "whether the node core serves ranks of one node"),
    Variable("HPCOMM_ORDER", "rank, fast", "rank", "in which order floats are reduced (comm.order)"),
    Variable(
        "HPCOMM_PICKLER", "name of a module", "pickle", "what pickles objects, such as cloudpickle",
    ),
    Variable(
        "HPCOMM_SECRET", "a word, the same for all ranks", "none",
        "part of the secret by which ranks of torchrun authenticate each other over nodes, under MPICH",
    ),
    Variable("HPCOMM_STALL", "seconds", "30", "how long a call waits before a report of who waits for whom"),
    Variable(
        "HPCOMM_STALL_DIR", "a folder", "the working directory", "where hpcomm-stall-JOB.json is written"
    ),
    Variable("HPCOMM_SURVIVE", "1", "unset", "the job goes on when a rank is killed (hpcomm run --survive)"),
    Variable("HPCOMM_TIMEOUT", "seconds", "no limit", "how long a call may wait before the job ends"),
    Variable(
        "HPCOMM_TRACE", "a folder", "none", "where ranks write when each call began and ended (hpcomm report)"
    ),
    Variable("HPCOMM_TRACEBACK", "once, full", "once", "how often hpcomm run prints one of several ranks"),
    Variable(
        "HPCOMM_TUNED", "path of a JSON file", "in the user's cache", "the table of algorithm=\"tuned\""
    ),
    Variable("HPCOMM_DEVICE", "cpu, gpu", "", "the device that the spec gives this program", True),
    Variable(
        "HPCOMM_IS_RANK", "process, when it began, rank", "",
        "distinguishes a rank from its child processes", True,
    ),
    Variable("HPCOMM_JOB", "identifiers, with commas", "", "the jobs that this process belongs to", True),
    Variable("HPCOMM_LIVING", "a folder", "", "where each rank has a file until it ends well", True),
    Variable("HPCOMM_MEMBER", "1, 2, ...", "", "this program's number in its ensemble", True),
    Variable("HPCOMM_ON_FAILURE", "end, continue", "", "whether the job ends with this program", True),
    Variable("HPCOMM_PROGRAM", "a name", "", "this program's, in a job of several", True),
    Variable("HPCOMM_PROGRAMS", "ocean=0-1 air=2-2", "", "who takes part, with which ranks", True),
    Variable("HPCOMM_PROGRESS", "a file descriptor", "", "where a program reports its progress", True),
    Variable("HPCOMM_RECORD", "a folder", "", "where exchanges are kept (--record)", True),
    Variable("HPCOMM_REPLAY", "a folder", "", "where exchanges are read from (--only)", True),
    Variable("HPCOMM_SENT", "1", "", "ranks of other hosts send tracebacks to hpcomm run", True),
    Variable("HPCOMM_SPEC", "path of a spec", "", "of this job", True),
    Variable("HPCOMM_TOLD", "rank/size/port", "", "which of torch's variables hpcomm has set", True),
)  # fmt: skip
OWN = tuple(each.name for each in VARIABLES if each.own)


def seconds(name: str) -> float | None:
    """A time that the user has set; None: there is none.

    Raises:
        ConfigError: it is no number of seconds.
    """
    said = os.environ.get(name)
    if not said:
        return None
    try:
        found = float(said)
    except ValueError:
        found = 0.0
    if not 0 < found < float("inf"):
        raise ConfigError(f"{name} is {said!r}", hint="a number of seconds above 0, or leave it away")
    return found


def unknown(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Variables that are set, begin with HPCOMM_, and say nothing: with the name that is near, or ""."""
    known = {each.name for each in VARIABLES}
    strange = sorted(name for name in environ if name.startswith(PREFIX) and name not in known)
    if not strange:
        return {}
    from difflib import get_close_matches

    yours = [each.name.removeprefix(PREFIX) for each in VARIABLES if not each.own]
    near = {name: get_close_matches(name.removeprefix(PREFIX), yours, 1) for name in strange}
    return {name: PREFIX + found[0] if found else "" for name, found in near.items()}


def warn() -> None:
    """Say on stderr which variables are set and not known."""
    for name, near in unknown().items():
        hint = f"{near}, or hpcomm env" if near else "hpcomm env lists those that there are"
        print(f"hpcomm: nothing reads the variable {name}\n  try:   {hint}", file=sys.stderr)
