"""The jobs of this user that have ranks on this host, looked at by a process that is no rank of theirs.

The memory that ranks share has no name any more, but each of them has it open: /proc/PID/fd leads there. A
segment says where the records of its ranks begin; of a file that is none of ours, or of another version,
nothing is read. Its ranks are asked as they ask each other, and need not help but for their watchdogs. One of
them asks those of other hosts by MPI. Where that is silent, the same is done there, started by ssh.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from ..agree import doing
from ..agree.doing import Doing
from ..core.patience import until
from ..errors import counted, in_package, named
from ..job.launcher import above, environ_of, memory_of, read_of, stat_of
from ..job.process_role import who_has
from ..node import native, segment

_ANSWER_S = 0.7  # for ranks to answer: they look five times a second
_SPY_S = 5.0  # for py-spy to read a stack, which takes a tenth of a second
_PROC = Path("/proc")
_STATES = {"T": "stopped", "t": "in a debugger", "D": "in the kernel (I/O)", "R": "running", "Z": "ended"}


class Rank(NamedTuple):
    """A rank as the system sees it, and as it tells itself.

    Attributes:
        pid: 0: it is not known, or of another host.
        state: a word of the system's; "": it sleeps, as who waits does.
        core_s: seconds of processor time; nbytes: of memory.
        doing: None where it has not answered.
        stack: of the program's code, the innermost line last.
        name: its rank; of one that says nothing as its launcher has told it, and its process.
        host: its name, if that is another one.
    """

    pid: int
    state: str
    core_s: float
    nbytes: int
    doing: Doing | None
    has_ended: bool
    stack: tuple[str, ...]
    name: str
    host: str = ""

    @property
    def who(self) -> str:
        """Its name and host."""
        return self.name + f" ({self.host})" * bool(self.host)

    @property
    def words(self) -> str:
        """What it does, as far as it or the system says."""
        if self.has_ended:
            return "has ended"
        if self.doing is None:
            return f"no answer: {self.state or 'in code that holds the interpreter lock'}"
        return self.doing.words

    @property
    def waited_s(self) -> float:
        return 0.0 if self.doing is None else self.doing.waited_s


class Job(NamedTuple):
    """A job, and what is known of its ranks.

    Attributes:
        pids: of its ranks on this host.
        lack: why nothing can be said of them, or "".
        unseen: lines about hosts and ranks that do not answer.
        host: where it was looked at, if that is another one.
    """

    pids: list[int]
    ranks: list[Rank]
    lack: str = ""
    unseen: tuple[str, ...] = ()
    host: str = ""


def jobs(of: int | None = None) -> list[Job]:
    """Those that this user may look at, the oldest first.

    Args:
        of: a process of the job, or one that has started it, such as `hpcomm run`; None: all jobs.
    """
    found = {}
    for file, (links, pids) in sorted(_segments().items(), key=lambda each: min(each[1][1])):
        if of is None or of in pids or any(of in above(pid) for pid in pids):
            found[file] = _job(links, sorted(pids))
    return [job for job in found.values() if job.pids]


def jobs_of(record: list[dict[str, Any]], host: str) -> list[Job]:
    """Those that a process on another host has seen and told as JSON."""
    found = []
    for job in record:
        for rank in job["ranks"]:
            rank["doing"] = rank["doing"] and Doing.of(json.dumps([*rank["doing"].values()]))
            rank["stack"] = tuple(rank["stack"])
        ranks = [Rank(**rank) for rank in job["ranks"]]
        found.append(Job(job["pids"], ranks, job["lack"], tuple(job["unseen"]), host))
    return found


def whole(jobs: list[Job]) -> list[Job]:
    """The same, each job once: several of its hosts were looked at, or share one /proc as containers do."""
    found: list[Job] = []
    for job in jobs:
        near = [rank._replace(host=job.host) for rank in job.ranks if not rank.host]
        own = {_place(rank) for rank in near if rank.doing}
        same = next((each for each in found if not own.isdisjoint(map(_place, each.ranks))), None)
        if same is None:
            found.append(job._replace(ranks=[*near, *(rank for rank in job.ranks if rank.host)]))
        else:
            same.ranks[:] = [*(rank for rank in same.ranks if _place(rank) not in own), *near]
            same.pids.extend(() if job.host else job.pids)
    return found


def _place(rank: Rank) -> tuple[str, int, str] | None:
    return rank.doing and (rank.doing.host, rank.doing.pid, rank.doing.who)


def _segments() -> dict[int, tuple[list[Path], set[int]]]:
    """By the number of its file: how each segment is reached, and the processes that have it."""
    found: dict[int, tuple[list[Path], set[int]]] = {}
    for folder in _PROC.glob("[0-9]*/fd"):
        with suppress(OSError):  # it has ended, or is another user's
            for link in folder.iterdir():
                with suppress(OSError):
                    if os.readlink(link).startswith("/dev/shm/hpcomm-"):  # noqa: PTH115
                        links, pids = found.setdefault(link.stat().st_ino, ([], set()))
                        links.append(link)
                        pids.add(int(folder.parent.name))
    return found


def _job(links: list[Path], pids: list[int]) -> Job:
    module = native.core()
    if module is None:
        return Job(pids, [], "there is no node core here, by which jobs are looked at")
    try:
        regions = _regions(module, links)
    except OSError as error:
        lack = "it runs another version of hpcomm" if error.errno == errno.EPROTO else str(error)
        return Job(pids, [], lack)
    for region in regions:
        region.look()
    said = doing.ask(regions, _ANSWER_S)
    by_mark = {_inner_pid(pid): pid for pid in pids}
    ranks = []
    for region, told in zip(regions, said, strict=True):
        pid, gone = by_mark.get(region.mark[0], 0), region.gone
        stack = () if gone else _stack(pid) if told is None else told.stack
        name = (who_has(environ_of(pid)) or "a rank") if told is None else told.who
        unknown = f" (process {pid})" * (told is None and pid > 0)
        ranks.append(Rank(*_process(pid), told, gone, stack, name + unknown))
    far, unseen = _of_other_hosts([*zip(regions, said, strict=True)], by_mark)
    return Job(pids if ranks else [], [*ranks, *far], unseen=unseen)


def _of_other_hosts(
    here: list[tuple[segment.Region, Doing | None]], by_mark: dict[int, int]
) -> tuple[list[Rank], tuple[str, ...]]:
    """The ranks there, by one here that can ask them, and lines about those that do not answer."""
    beside = [(region, told.elsewhere) for region, told in here if told is not None and told.elsewhere]
    for region, _ in beside:
        said = _asked_for_others(region, by_mark.get(region.mark[0], 0))
        if said:
            far = [Doing.of(text) for text in said.values() if text]
            ranks = [
                Rank(0, "", each.core_s, each.nbytes, each, False, each.stack, each.who, each.host)
                for each in far
            ]
            silent = [int(rank) for rank, text in said.items() if not text]
            lines = [f"{named(silent)} of other hosts: no answer by MPI"] if silent else []
            return ranks, (*here[0][0].note.splitlines(), *lines)
    return [], tuple(f"{counted(n, 'rank')} of other hosts: not asked by MPI" for _, n in beside[:1])


def _asked_for_others(region: segment.Region, pid: int) -> dict[str, str]:
    """What ranks of other hosts have said to this process, by their numbers; nothing if it does not tell."""
    question = region.ask_for_others()
    if not until(lambda: region.others_answered >= question, _ANSWER_S + doing.OTHERS_S):
        return {}
    try:
        return dict(json.loads((_PROC / f"{pid}/fd/{region.others_file}").read_text()))
    except (OSError, ValueError):  # it has ended meanwhile, or is asked again
        return {}


def _regions(module: Any, links: list[Path]) -> list[segment.Region]:
    """The records of a job's ranks, by the memory that one has open; none: all have ended meanwhile."""
    for link in links:
        try:
            file = os.open(link, os.O_RDWR)
        except OSError:  # this rank has ended meanwhile
            continue
        try:
            return segment.records_of(module.Segment(os.fstat(file).st_size, None, file))
        finally:
            os.close(file)
    return []


def _stack(pid: int) -> tuple[str, ...]:
    """That of the main thread of a process that does not answer, if py-spy is here and may read it."""
    spy = shutil.which("py-spy") or shutil.which("py-spy", path=Path(sys.executable).parent)
    if spy is None or not pid:
        return ()
    command = [spy, "dump", "--nonblocking", "--json", "--pid", str(pid)]  # else it stops what it looks at
    try:
        told = subprocess.run(command, capture_output=True, timeout=_SPY_S, check=True).stdout
        frames = min(json.loads(told), key=lambda thread: thread["os_thread_id"] or pid)["frames"]
    except (OSError, ValueError, subprocess.SubprocessError):
        return ()
    own = [each for each in frames if not in_package(each["filename"])]
    return tuple(f"{each['name']} at {Path(each['filename']).name}:{each['line']}" for each in reversed(own))


def _inner_pid(pid: int) -> int:
    """Its number in its own container."""
    for line in read_of(pid, "status").splitlines():
        if line.startswith("NSpid:"):
            return int(line.split()[-1])
    return pid


def _process(pid: int) -> tuple[int, str, float, int]:
    """What the system knows of it, as Rank begins."""
    fields = stat_of(pid)
    core_s = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return (
        pid if int(fields[19]) else 0,
        _STATES.get(fields[0], ""),
        core_s,
        memory_of(pid),
    )
