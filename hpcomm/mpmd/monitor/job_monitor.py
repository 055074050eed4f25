"""Job monitor: passes on the output of a job of several programs, judges its end, ends it as a whole.

    this process ── mpirun / mpiexec / srun ──┬── rank_supervisor.py ── python ocean.py
                 <─ lines, and who has ended ─┴── rank_supervisor.py ── python atmosphere.py

MPI ends a job when a rank is killed or ends with a status. It does not when one ends with 0 too early, and
then the others wait for ever. So each rank's supervisor says when its program has ended, and this is the
rule: a program that has ended while others still run has ended the job.
"""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import threading
import time
from typing import IO, TYPE_CHECKING, NamedTuple

from ...job import mpi_shared_memory, own_files, supervise
from ..coupling_progress import AT, DONE, JOINED

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ..spec.spec_file import JobSpec

MARK = "\x1e"  # begins a line that a supervisor says to us
GRACE_S = 5.0  # between the end of a program and that of the others
FAILED_S = 2.0  # the same where it has failed: enough for the others to say so too
FINAL_S = 1.0  # for MPI_Finalize where one rank will never come to it
FAILED = 1
_DRAWN = (-signal.SIGTERM, 14)  # by a launcher; by Open MPI itself, when a connection is closed


class End(NamedTuple):
    """How a rank has ended; of several, the least is to be blamed.

    Attributes:
        is_drawn: as ranks do that another one's failure takes along; but also one that a user ends so.
        when: by the clock of its host.
        status: negative: the signal.
        heard: by our clock.
    """

    is_drawn: bool
    when: float
    status: int
    heard: float


class Watch:
    """Who runs, and who has ended how; fed by the lines of the supervisors."""

    def __init__(self, spec: JobSpec) -> None:
        self.spec = spec
        self.running: dict[str, set[int]] = {}
        self.ended: dict[tuple[str, int], End] = {}  # by program and rank
        self.reached: dict[str, tuple[int, float | None]] = {}  # exchanges, and the model's time
        self.joined: set[tuple[str, int]] = set()
        self.done: dict[tuple[str, int], float] = {}  # when only MPI_Finalize was left
        self.lost: set[tuple[str, int]] = set()  # failed, and others go on without them
        self.is_over = False  # all is done, and the launcher ended; what it says of that is no news
        self.word: str | None = None  # why we have ended the job
        self.started = time.monotonic()
        self._lock = threading.Lock()

    def hear(self, words: Sequence[str]) -> None:
        """`began PROGRAM RANK`, `at PROGRAM RANK EXCHANGES TIME`, `done ...`, `ended ... STATUS WHEN`."""
        with self._lock:
            if self.is_over:
                return
            what, program, rank, *rest = words
            place = program, int(rank)
            if what == "began":
                self.running.setdefault(program, set()).add(int(rank))
            elif what == AT and rank == "0":
                self.reached[program] = int(rest[0]), float(rest[1]) if rest[1:] else None
            elif what == JOINED:
                self.joined.add(place)
            elif what == DONE:
                self.done[place] = time.monotonic()
                if rest != ["0"] and self._may_fail(place):
                    self._lose(place, int(rest[0]))
            elif what == "ended":
                self._end(*place, int(rest[0]), float(rest[1]))

    def _end(self, program: str, rank: int, status: int, when: float) -> None:
        self.running.get(program, set()).discard(rank)
        self.ended[program, rank] = End(status in _DRAWN, when, status, time.monotonic())
        if status and self._may_fail((program, rank)):
            self._lose((program, rank), status)
        if not self.running[program] and not status:
            seconds = time.monotonic() - self.started
            count = f", with {_exchanges(self.reached[program][0])}" if program in self.reached else ""
            print(
                f"hpcomm: program '{program}' has ended after {seconds:.1f} s{count}",
                file=sys.stderr,
                flush=True,
            )

    @property
    def failures(self) -> list[tuple[End, tuple[str, int]]]:
        """Who has ended the job, by what is known: the first one first."""
        return sorted(
            (end, place) for place, end in self.ended.items() if end.status and place not in self.lost
        )

    @property
    def first(self) -> str | None:
        """The sentence about what has ended the job."""
        if self.word or not self.failures:
            return self.word
        end, (program, rank) = self.failures[0]
        ranks = self.spec.programs[program].ranks
        return f"program '{program}' (rank {rank} of {ranks}) {status_words(end.status)}"

    @property
    def status(self) -> int:
        """Of the first failure; 0: none."""
        return self.failures[0][0].status if self.failures else 0

    def _may_fail(self, place: tuple[str, int]) -> bool:
        about = self.spec.programs[place[0]]  # without one that never came, MPI does not come up
        return about.on_failure == "continue" and (place in self.joined or not about.joins)

    def _lose(self, place: tuple[str, int], status: int) -> None:
        """Go on without a rank; MPI, which it may never finalize, may then not end by itself."""
        if place not in self.lost:
            self.lost.add(place)
            who = f"program '{place[0]}' (rank {place[1]}) {status_words(status)}"
            print(f"hpcomm: {who}; the others go on without it", file=sys.stderr, flush=True)

    def progress(self) -> str:
        """`hpcomm: after 20 s: ocean at 3600 of 7200 s (50 %), 12 exchanges; air has ended`."""
        with self._lock:
            told = "; ".join(f"{name} {self._how_far(name)}" for name in self.spec.programs)
            return f"hpcomm: after {time.monotonic() - self.started:.0f} s: {told}"

    def _how_far(self, program: str) -> str:
        ended = sum(name == program for name, _ in self.ended)
        if ended == self.spec.programs[program].ranks:
            return "has ended"
        if program not in self.reached:
            return "runs" if program in self.running else "starts"
        count, at = self.reached[program]
        if at is None:
            return f"has made {_exchanges(count)}"
        until = self.spec.until_s
        whole = f" of {until:g} s ({100 * at / until:.0f} %)" if until else " s"
        return f"at {at:g}{whole}, {_exchanges(count)}"

    def verdict(self) -> str | None:
        """Why the job must be ended now, or None."""
        with self._lock:
            left, now = self._left(), time.monotonic()
            if self.lost and not self.first and self._nobody_works(now - FINAL_S):
                return ""
            patience = FAILED_S if self.first else GRACE_S
            for place, end in self.ended.items():
                if left and now - end.heard > patience and (why := self._due(place, end, left)) is not None:
                    return why
        return None

    def _due(self, place: tuple[str, int], end: End, left: list[str]) -> str | None:
        """Why the programs left must be ended so long after a rank of another one; None: they need not."""
        about = self.spec.programs[place[0]]
        if self.first or (about.joins and about.on_failure == "end"):
            return self.first or self._outlived(place, end.status, left)
        return "" if all(self._is_free(name) for name in left) else None

    def _left(self) -> list[str]:
        """The programs that still run."""
        return sorted(name for name, ranks in self.running.items() if ranks)

    def _outlived(self, place: tuple[str, int], status: int, left: list[str]) -> str:
        """How a rank has ended while other programs still ran."""
        (program, rank), others = place, " and ".join(f"'{name}'" for name in left)
        n = self.spec.programs[program].ranks
        return f"program '{program}' (rank {rank} of {n}) {status_words(status)}, while {others} still ran"

    def _nobody_works(self, since: float) -> bool:
        """Whether all ranks have ended or said before that time that they were done."""
        ends = [end.heard for end in self.ended.values()]
        left = [(program, rank) for program, ranks in self.running.items() for rank in ranks]
        return all(when < since for when in [*ends, *(self.done.get(place, since) for place in left)])

    def explain(self, failed: bool) -> str | None:
        """The sentence about what ended the job, where it did not end well."""
        if not failed:
            return self.first
        ends = sorted((end.when, place, end.status) for place, end in self.ended.items())
        left = self._left()
        killed = [program for _, (program, _), status in ends if status < 0]
        if ends and not ends[0][2] and (killed or (left and not self.first)):
            place, status = ends[0][1:]
            return self._outlived(place, status, sorted({*killed, *left} - {place[0]}))
        return self.first

    def _is_free(self, program: str) -> bool:
        """Whether program may be ended when those that join have ended: it does not."""
        others = self.spec.programs.values()
        return not self.spec.programs[program].joins and any(each.joins for each in others)


def _exchanges(count: int) -> str:
    return f"{count} exchange{'s' * (count != 1)}"


def status_words(status: int) -> str:
    """`ended with status 3`, `was killed by SIGKILL`."""
    if status < 0:
        return f"was killed by {signal.Signals(-status).name}"
    return f"ended with status {status}" if status else "ended (status 0)"


def run(
    spec: JobSpec,
    command: Sequence[str],
    environ: Mapping[str, str],
    files: Mapping[str, str],
    timeout_s: float | None = None,
    every_s: float = 0.0,
) -> int:
    """Run the launcher's command in a folder of its own; the job's exit status.

    Args:
        environ: what to add to the environment.
        files: what to write first, name: content; a word of command that is such a name becomes its path.
        every_s: seconds between lines that say how far the programs are; 0: none.
    """
    with own_files.folder() as folder:
        words = list(command)
        for name, content in files.items():
            path = folder / name
            path.write_text(content)
            words = [str(path) if word == name else word for word in words]
        whole = {**os.environ, **environ}
        whole |= supervise.settings(whole)
        return _watched(Watch(spec), words, whole, timeout_s, every_s)


def _watched(
    watch: Watch, command: list[str], environ: dict[str, str], timeout_s: float | None, every_s: float
) -> int:
    mark = environ[supervise.MARK].rpartition(",")[2]
    launcher, held = supervise.start(
        command, environ, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    readers = [_reader(stream, out, watch) for stream, out in ((launcher.stdout, 1), (launcher.stderr, 2))]
    status = None
    try:
        supervise.raise_signals(held)
        status = _until_the_end(launcher, watch, timeout_s, every_s)
    except supervise.EndedBySignalError as ended:
        watch.word = f"ended by {signal.Signals(ended.number).name}"
        status = 128 + ended.number
    if launcher.poll() is None or supervise.members(mark):
        supervise.end(launcher, mark, at_once=status is not None)
    for reader in readers:
        reader.join(supervise.GRACE_S)
    mpi_shared_memory.remove_noticed()
    return _judged(watch, launcher.returncode, status)


def _until_the_end(
    launcher: subprocess.Popen[bytes], watch: Watch, timeout_s: float | None, every_s: float
) -> int | None:
    """Wait; a status if the job must be ended, None if it has ended by itself."""
    deadline = time.monotonic() + (math.inf if timeout_s is None else timeout_s)
    due = time.monotonic() + (every_s or math.inf)
    while launcher.poll() is None:
        time.sleep(0.1)
        if time.monotonic() >= due:
            due += every_s
            print(watch.progress(), file=sys.stderr, flush=True)
        why = watch.verdict()
        if why is not None:
            watch.word = why or watch.word
            watch.is_over = not why
            return (watch.status or FAILED) if why else 0
        if time.monotonic() > deadline:
            watch.word = f"the job had not ended after {timeout_s:g} s, so it was ended"
            return supervise.TIMED_OUT
    return None


def _judged(watch: Watch, launched: int, status: int | None) -> int:
    """The job's exit status, and the sentence that explains it."""
    if status is None:
        # MPICH's mpiexec ends with 0 when it has killed the others of a rank that left without Finalize;
        # their supervisors may be gone before they can say so.
        cut = FAILED if any(watch.running.values()) else 0
        status = watch.status or (0 if _excused(watch) else launched or cut)
    why = watch.explain(bool(status)) or (f"the job ended with status {status}" if status else None)
    if why:
        print(f"hpcomm run: {why}", file=sys.stderr, flush=True)
    return status if status >= 0 else 128 - status


def _excused(watch: Watch) -> bool:
    """Whether only programs have failed that the others may go on without."""
    return not watch.failures and bool(watch.ended) and not any(watch.running.values())


def _reader(stream: IO[bytes] | None, fd: int, watch: Watch) -> threading.Thread:
    """Pass lines on, but for those that are for us."""
    assert stream is not None

    def read() -> None:
        for line in stream:
            at = line.find(MARK.encode())
            if at < 0:
                if not watch.is_over:
                    os.write(fd, line)
                continue
            for part in line[at:].decode(errors="replace").split(MARK)[1:]:
                watch.hear(part.split())
            if at:
                os.write(fd, line[:at] + b"\n")

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    return thread
