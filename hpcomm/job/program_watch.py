"""Watch over the programs of a job: passes on what they print, and judges by their ends when the job ends.

    this process ── mpirun / mpiexec / srun ──┬── rank_supervisor.py ── python ocean.py
                 <─ lines, and who has ended ─┴── rank_supervisor.py ── python atmosphere.py

MPI ends a job when a rank is killed or ends with a status. It does not when one ends with 0 too early, and
then the others wait for ever. So each rank's supervisor says when its program has ended, and this is the
rule: a program that has ended while others still run has ended the job.
"""

from __future__ import annotations

import math
import re
import signal
import threading
import time
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from ..errors import counted
from .launcher import say
from .progress import AT, DONE, JOINED

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .spec.programs import RunSpec

MARK = "\x1e"  # begins a line that a supervisor says to us
_TOLD = re.compile(rb"(.?)\x1e([^\n\x1e]*)(?:\n|(?=\x1e)|\Z)")
GRACE_S = 5.0  # between the end of a program and that of the others
FAILED_S = 2.0  # the same where it has failed: enough for the others to say so too
FINAL_S = 1.0  # for MPI_Finalize where one rank will never come to it
FAILED = 1
_DRAWN = (-signal.SIGTERM, 14)  # by a launcher; by Open MPI itself, when a connection is closed
_Place = tuple[str, int]  # program and rank


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
    """Who runs, and who has ended how; fed by the lines of the supervisors (take).

    Args:
        every_s: seconds between lines that say how far the programs are; 0: never.
        survives: whether MPI lets others go on when a rank is killed.
    """

    def __init__(self, spec: RunSpec, every_s: float = 0.0, survives: bool = True) -> None:
        self.spec, self._survives = spec, survives
        self.running: set[_Place] = set()
        self.ended: dict[_Place, End] = {}
        self.reached: dict[str, tuple[int, float | None]] = {}  # exchanges, and the model's time
        self.joined: set[_Place] = set()
        self.done: dict[_Place, float] = {}  # when only MPI_Finalize was left
        self.lost: set[_Place] = set()  # failed, and others go on without them
        self.is_over = False  # all is done, and the launcher ended; what it says of that is no news
        self.word: str | None = None  # why we have ended the job
        self.started = time.monotonic()
        self._every_s = every_s or math.inf
        self._due = self.started + self._every_s
        self._lock = threading.Lock()

    def take(self, said: bytes) -> bytes:
        """What of these lines is to be shown, as some are for us."""
        shown = _TOLD.sub(self._heard, said)
        return b"" if self.is_over else shown

    def _heard(self, found: re.Match[bytes]) -> bytes:
        try:
            self.hear(found[2].decode(errors="replace").split())
        except (ValueError, LookupError):  # it is none of ours, or others' words have got into it
            return found[0]
        return found[1] and found[1] + b"\n"

    def hear(self, words: Sequence[str]) -> None:
        """`began PROGRAM RANK`, `at PROGRAM RANK EXCHANGES TIME`, `done ...`, `ended ... STATUS WHEN`."""
        with self._lock:
            if self.is_over:
                return
            what, program, number, *rest = words
            place = program, int(number)
            if what == "began":
                self.running.add(place)
            elif what == AT and number == "0":
                self.reached[program] = int(rest[0]), float(rest[1]) if rest[1:] else None
            elif what == JOINED:
                self.joined.add(place)
            elif what == DONE:
                self.done[place] = time.monotonic()
                self._lose(place, int(rest[0]))
            elif what == "ended":
                self._end(place, int(rest[0]), float(rest[1]))

    def _end(self, place: _Place, status: int, when: float) -> None:
        program = place[0]
        self.running.discard(place)
        self.ended[place] = End(status in _DRAWN, when, status, time.monotonic())
        self._lose(place, status)
        if program not in self._left() and not status:
            seconds = time.monotonic() - self.started
            count = (
                f", with {counted(self.reached[program][0], 'exchange')}" if program in self.reached else ""
            )
            say(f"hpcomm: program '{program}' has ended after {seconds:.1f} s{count}")

    def _lose(self, place: _Place, status: int) -> None:
        """Go on without a rank that may fail. It may never finalize MPI, which may then not end by itself."""
        about = self.spec.programs[place[0]]  # without one that never came, MPI does not come up
        lives_on = place in self.joined and (self._survives or place in self.done)
        may_fail = about.on_failure == "continue" and (lives_on or not about.joins)
        if status and may_fail and place not in self.lost:
            self.lost.add(place)
            say(f"hpcomm: {self._told(place, status)}; the others go on without it")

    # -- whether the job must end --------------------------------------------------------------------------

    def look(self) -> int | None:
        """A status if the job must be ended now. Says how far the programs are when that is due."""
        if time.monotonic() >= self._due:
            self._due += self._every_s
            say(self.progress())
        why = self.verdict()
        if why is None:
            return None
        self.word = why or self.word
        self.is_over = not why
        return (self.status or FAILED) if why else 0

    def verdict(self) -> str | None:
        """Why the job must be ended now, or None."""
        with self._lock:
            left, now = self._left(), time.monotonic()
            if self.lost and not self.first and self._nobody_works(now - FINAL_S):
                return ""
            patience = FAILED_S if self.first else GRACE_S
            for place, end in self.ended.items():
                if (
                    (left or self.first)  # supervisors may stay, so that the launcher does not end
                    and now - end.heard > patience
                    and (why := self._why_end(place, end, left)) is not None
                ):
                    return why
        return None

    def _why_end(self, place: _Place, end: End, left: list[str]) -> str | None:
        """Why the programs left must be ended so long after a rank of another one; None: they need not."""
        about = self.spec.programs[place[0]]
        if self.first or (about.joins and about.on_failure == "end"):
            return self.first or self._outlived(place, end.status, left)
        # Programs that do not join end with those that do, if there are any.
        any_joins = any(each.joins for each in self.spec.programs.values())
        return "" if any_joins and not any(self.spec.programs[name].joins for name in left) else None

    def _nobody_works(self, since: float) -> bool:
        """Whether all ranks have ended or said before that time that they were done."""
        ends = [end.heard for end in self.ended.values()]
        return all(when < since for when in [*ends, *(self.done.get(place, since) for place in self.running)])

    def _left(self) -> list[str]:
        """The programs that still run."""
        return sorted({program for program, _ in self.running})

    # -- what has ended it ---------------------------------------------------------------------------------

    @property
    def failures(self) -> list[tuple[End, _Place]]:
        """Who has ended the job, by what is known: the first one first."""
        return sorted(
            (end, place) for place, end in self.ended.items() if end.status and place not in self.lost
        )

    @property
    def first(self) -> str | None:
        """The sentence about what has ended the job."""
        if self.word or not self.failures:
            return self.word
        end, place = self.failures[0]
        return self._told(place, end.status)

    @property
    def status(self) -> int:
        """Of the first failure; 0: none."""
        return self.failures[0][0].status if self.failures else 0

    def _told(self, place: _Place, status: int) -> str:
        about, rank = self.spec.programs[place[0]], place[1]
        on = f" on {about.hosts[about.place_of(rank)[0]][0]}" if about.hosts else ""
        return f"program '{about.name}' (rank {rank} of {about.ranks}{on}) {status_words(status)}"

    def _outlived(self, place: _Place, status: int, left: list[str]) -> str:
        """How a rank has ended while other programs still ran."""
        return f"{self._told(place, status)}, while {' and '.join(map(repr, left))} still ran"

    def explain(self, failed: bool) -> str | None:
        """The sentence about what ended the job, where it did not end well."""
        ends = sorted((end.when, place, end.status) for place, end in self.ended.items())
        if not failed or not ends or ends[0][2]:
            return self.first
        left, (_, place, status) = self._left(), ends[0]
        killed = [program for _, (program, _), status in ends if status < 0]
        if killed or (left and not self.first):
            return self._outlived(place, status, sorted({*killed, *left} - {place[0]}))
        return self.first

    def judged(self, launched: int, status: int | None) -> int:
        """The job's exit status, after the sentence that explains it.

        Args:
            launched: the launcher's status.
            status: with which the job was ended; None: it has ended by itself.
        """
        if status is None:
            # MPICH's mpiexec ends with 0 when it has killed the others of a rank that left without Finalize;
            # their supervisors may be gone before they can say so.
            cut = FAILED if self.running else 0
            is_excused = self.ended and not self.failures and not self.running  # others go on without it
            status = self.status or (0 if is_excused else launched or cut)
        why = self.explain(bool(status)) or (f"the job ended with status {status}" if status else None)
        if why:
            say(f"hpcomm run: {why}")
        return status if status >= 0 else 128 - status

    # -- progress ------------------------------------------------------------------------------------------

    def progress(self) -> str:
        """`hpcomm: after 20 s: ocean at 3600 of 7200 s (50 %), 12 exchanges; air has ended`. Or dates."""
        with self._lock:
            told, programs = [], self.spec.programs
            for (_, how), some in groupby(
                programs, lambda name: (programs[name].ensemble, self._how_far(name))
            ):
                first, *others = some
                told.append(f"{first} to {others[-1]} {how}" if others else f"{first} {how}")
            return f"hpcomm: after {time.monotonic() - self.started:.0f} s: {'; '.join(told)}"

    def _how_far(self, program: str) -> str:
        ended = sum(name == program for name, _ in self.ended)
        if ended == self.spec.programs[program].ranks:
            return "has ended"
        if program not in self.reached:
            return "runs" if ended or program in self._left() else "starts"
        count, at = self.reached[program]
        if at is None:
            return f"has made {counted(count, 'exchange')}"
        until, dates = self.spec.until_s, self.spec.calendar
        part = f" ({100 * at / until:.0f} %)" if until else ""
        if dates is not None:
            where = dates.said(at) + (f" on the way to {dates.said(until)}" if until else "")
        else:
            where = f"{at:g} of {until:g} s" if until else f"{at:g} s"
        return f"at {where}{part}, {counted(count, 'exchange')}"


def status_words(status: int) -> str:
    """`ended with status 3`, `was killed by SIGKILL`, or by `signal 42`, which has no name."""
    if status < 0:
        names = (each.name for each in signal.Signals if each == -status)
        return f"was killed by {next(names, f'signal {-status}')}"
    return f"ended with status {status}" if status else "ended (status 0)"
