"""MPI comes up only with all processes of a job: this sees that one has ended before, and ends the job.

    mpirun, prted, hydra_pmi_proxy ─┬─ python ocean.py        has ended: MPI_Init of the others never does
                                    └─ python atmosphere.py   in MPI_Init, where no thread of Python's runs
                                         └─ this file         so a process of its own looks at the others

It sees the processes of its own host (Linux; launchers of Open MPI and MPICH), and otherwise keeps a
deadline. Run as a script it needs the standard library only: it starts in 15 ms.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

__all__ = ["Look", "command_of", "judge", "watched"]

INIT_S = 60.0  # MPI comes up within that, or the job ends
GRACE_S = 2.0  # for a launcher that ends the job by itself, or still starts others
_LOOK_S = 0.5
_RANKS = ("OMPI_COMM_WORLD_RANK", "PMI_RANK")
_SIZES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
_LOCAL_SIZES = ("OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")  # processes of the job on this host
_LAUNCHERS = ("prterun", "prted", "mpirun", "mpiexec", "orterun", "orted", "hydra_pmi_proxy")  # have ranks


@contextlib.contextmanager
def watched() -> Iterator[None]:
    """Within, this process is killed, and so its job ended, where MPI cannot come up any more."""
    words = [sys.executable, "-I", "-S", __file__, str(os.getpid())]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as watcher:
        try:
            yield
        finally:
            watcher.kill()


class Look(NamedTuple):
    """What is to be seen of a job on this host: the ranks that live, of how many here, of how many in all."""

    ranks: frozenset[int]
    here: int
    size: int


def judge(seen: Look, line: Sequence[str]) -> str | None:
    """The sentence about the processes that are missing; None if all live. line: the launcher's words."""
    lost = seen.here - len(seen.ranks)
    if lost <= 0:
        return None
    if seen.here == seen.size:
        ranks = sorted(set(range(seen.size)) - seen.ranks)
        who = " and ".join(f"rank {rank} of the world ({command_of(rank, line)})" for rank in ranks[:3])
        who += f" and {lost - 3} more" if lost > 3 else ""
    else:
        who = f"{lost} of the {seen.here} processes of this job on {os.uname().nodename}"
    return f"{who} {'has' if lost == 1 else 'have'} ended before MPI was up"


def command_of(rank: int, line: Sequence[str]) -> str:
    """What a launcher's command line `-n 1 python a.py : -n 3 python b.py` starts as this rank."""
    parts: list[list[str]] = [[]]
    for word in line[1:]:
        parts = [*parts, []] if word == ":" else [*parts[:-1], [*parts[-1], word]]
    first = 0
    for words in parts:
        at = next((i for i, word in enumerate(words[:-1]) if word in ("-n", "-np", "-c")), None)
        if at is None or not words[at + 1].isdecimal():
            break
        first += int(words[at + 1])
        if rank < first:
            return " ".join(words[at + 2 :])
    return " ".join(line)


# -- the watcher's own process -------------------------------------------------------------------------


def main(pid: int) -> None:
    """Watch over a rank that brings MPI up; end with it, or end it."""
    launcher = _launcher_of(pid)
    deadline = time.monotonic() + INIT_S
    last, since = None, time.monotonic()
    while not select.select([0], [], [], _LOOK_S)[0]:  # its end closes the pipe
        now, seen = time.monotonic(), _look(pid, launcher)
        if seen != last:
            last, since = seen, now
        place = sorted(seen.ranks).index(_rank(pid)) if seen else 0  # so that not all speak at once
        why = judge(seen, _line_of(launcher)) if seen and now - since > GRACE_S + place else None
        if now > deadline:
            why = f"MPI has not come up within {INIT_S:g} s: it waits for processes that have not begun it"
        if why:
            os.write(2, f"hpcomm: {why}, so the job ends\n".encode())
            os.kill(pid, signal.SIGKILL)
            return


def _look(pid: int, launcher: int) -> Look | None:
    environ = _environ(pid)
    name, here, size = (_first(environ, names) for names in (_RANKS, _LOCAL_SIZES, _SIZES))
    if not (launcher and name and here and size):
        return None
    ranks = (_environ(child).get(name, "") for child in _children(launcher))
    living = frozenset(int(rank) for rank in ranks if rank.isdecimal())
    return Look(living, int(environ[here]), int(environ[size])) if _rank(pid) in living else None


def _launcher_of(pid: int) -> int:
    """The process that has started this rank, over whatever it is wrapped in; 0: none is known."""
    while pid > 1 and Path(_words(pid)[0]).name not in _LAUNCHERS:
        pid = _parent(pid)
    return pid if pid > 1 else 0


def _line_of(launcher: int) -> list[str]:
    """The words that a user started it with; MPICH's keeps them one process further up."""
    words = _words(launcher)
    return _words(_parent(launcher)) if words[0].endswith("hydra_pmi_proxy") else words


def _words(pid: int) -> list[str]:
    return _read(pid, "cmdline").rstrip("\0").split("\0")


def _rank(pid: int) -> int:
    environ = _environ(pid)
    return int(environ.get(_first(environ, _RANKS), "0"))


def _first(environ: Mapping[str, str], names: Sequence[str]) -> str:
    return next((name for name in names if environ.get(name, "").isdecimal()), "")


def _environ(pid: int) -> dict[str, str]:
    return dict(item.split("=", 1) for item in _read(pid, "environ").split("\0") if "=" in item)


def _parent(pid: int) -> int:
    rest = _read(pid, "stat").rpartition(")")[2].split()
    return int(rest[1]) if rest else 0


def _children(pid: int) -> list[int]:
    """Its children, those of all its threads."""
    threads = Path(f"/proc/{pid}/task").glob("*")
    return [int(word) for thread in threads for word in _read(pid, f"task/{thread.name}/children").split()]


def _read(pid: int, name: str) -> str:
    """A file of /proc; nothing if the process has ended, or is somebody else's."""
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes().decode(errors="replace")
    except OSError:
        return ""


if __name__ == "__main__":
    main(int(sys.argv[1]))
