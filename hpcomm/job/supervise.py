"""Supervision of a job: runs its launcher, and leaves nothing behind when it ends, however it ends.

Killing a launcher is not enough: ranks live in sessions of their own and may outlive it. So every process of
the job inherits a mark in its environment (HPCOMM_JOB), and is found by that. Killed ranks leave the files of
their shared memory in /dev/shm, which may be small. A launcher's word is not enough either: MPICH's sometimes
says 0 after an interrupt. Open MPI's sometimes never ends: after an abort two of its threads may wait for
each other (PRRTE 3.0.14).

    start ──> wait for the launcher
                ├─ it ends with 0 ──────────> status 0; 1 if some rank ended without MPI_Finalize
                ├─ it ends with a failure ──> kill what is left of the job, remove its files ──> its status
                ├─ its time is up ──────────> ranks tell where they are ──────────┐
                ├─ SIGTERM, Ctrl-C ─────────> to the ranks, which have --grace ───┤
                └─ another one that ends ───> pass it on to the launcher ─────────┤
                                                                                  v
                       give the launcher 3 s ──> SIGTERM, 3 s ──> SIGKILL ──> kill every marked process
                       ──> remove its files ──> status 124, or 128 + number of the signal

    beside it: SIGUSR1 and SIGUSR2 go on to the ranks
    beside it, a thread: all ranks have ended and the launcher waits for itself ──> kill the launcher
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NoReturn

from . import mpi_shared_memory, own_files, survive, tracebacks, variables
from .launcher import (
    FIRST,
    LOCKED_S,
    PRRTE,
    above,
    below,
    children_of,
    environ_of,
    forget,
    is_above_rank,
    is_locked,
    launcher_of,
    name_of,
    parent_of,
    say,
    say_to,
    send,
    wait_for,
)
from .process_role import RANKS, who_has

if TYPE_CHECKING:
    from .program_watch import Watch

LIVING = "HPCOMM_LIVING"  # a folder of this host, where each rank has a file until it ends well: its name,
# and in a second line the status of one that fails alone (survive.py)
MARK = "HPCOMM_JOB"  # holds the marks of all jobs that a process belongs to, outermost first
TIMED_OUT = 124  # as timeout(1) has it
GRACE_S = 3.0  # a launcher gets that long for each polite request to end
_LOOK_S = 1.0
_WATCH_S = 0.1  # between two looks at the programs of a spec
LEAVE_S = 30.0  # that ranks have after SIGTERM, if the user says nothing else
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_BARE = (signal.SIGKILL, signal.SIGTERM)  # as MPICH's launcher gives the end by a signal
_HANDED_ON = (signal.SIGUSR1, signal.SIGUSR2)
_TRIES = 50  # to start a launcher whose job shares no files with another one
Tell = Callable[[float], object]
_PDEATHSIG = 1  # of prctl(2): which signal a process gets when its parent dies
_is_asked = False  # to end the job; else it may be started again
_held: list[int] = []  # signals to end that came before we could end the job
# Says on stderr where a launcher's ranks are, and returns the processes that have told it (tools/where.py).
tell_ranks: Callable[[int], Collection[int]] | None = None


def settings(environ: Mapping[str, str]) -> dict[str, str]:
    """What to add to a job's environment: its mark, and that Python prints its stacks when aborted.

    And a home, without which Open MPI does not start: system services have none.
    """
    mark = f"{os.getpid()}-{time.time_ns()}"
    outer = environ.get(MARK)
    added = {MARK: f"{outer},{mark}" if outer else mark}
    if "HOME" not in environ:
        home = os.path.expanduser("~")  # noqa: PTH111  of whom the system does not know, too
        added["HOME"] = home if home.startswith("/") else "/"
    return added if "PYTHONFAULTHANDLER" in environ else {**added, "PYTHONFAULTHANDLER": "1"}


class EndedBySignalError(Exception):
    """Somebody asked this process to end."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def supervise(
    command: list[str],
    added: Mapping[str, str],
    timeout_s: float | None = None,
    watch: Watch | None = None,
    files: Mapping[str, str] = MappingProxyType({}),
    grace_s: float | None = None,
) -> int:
    """Run a launcher's command for at most timeout_s seconds, if that is given; the job's exit status.

    A signal that ends us ends the job too.

    Args:
        added: to the environment.
        watch: over the programs of a spec, whose ranks have supervisors. Else ranks leave notes in a folder.
        files: what to write first, name: content; a word of command that is such a name becomes its path.
        grace_s: seconds for ranks to end when we are asked to by SIGTERM; None: LEAVE_S.
    """
    outer = {*variables.OWN} - {MARK, "HPCOMM_TOLD"}  # what is said of a job that has started this one
    environ = {name: value for name, value in os.environ.items() if name not in outer} | {**added}
    environ |= settings(environ)
    mark = environ[MARK].rpartition(",")[2]
    with own_files.folder(environ) as folder:
        for name, content in files.items():
            (folder / name).write_text(content)
        words = [str(folder / word) if word in files else word for word in command]
        tell = partial(tracebacks.say, folder, programs=watch.spec.world_ranks() if watch else {})
        environ[LIVING] = str(folder)
        launcher, said = _heard(words, environ, tell, 1 if watch else 2)
        take = watch.take if watch else None
        readers = {file: tracebacks.read(folder, file, fd, take) for fd, file in said.items()}
        try:
            with _handing_on(launcher, mark):
                status, why = _end_of(launcher, mark, timeout_s, grace_s or LEAVE_S, watch)
        finally:
            for file, reader in readers.items():
                reader.join(GRACE_S)
                if not reader.is_alive():  # else something of the job holds the other end
                    os.close(file)
            tell(0.0)
        if watch is None:
            if status == TIMED_OUT:
                say(f"hpcomm run: {why}")
            return _judged(launcher.returncode, mark, folder) if status is None else status
        watch.word = why or watch.word
        if status is None and members(mark):
            end(launcher, mark)
        mpi_shared_memory.remove_noticed()
        return watch.judged(launcher.returncode, status)


def _heard(
    words: list[str], environ: dict[str, str], tell: Tell, first: int
) -> tuple[subprocess.Popen[bytes], dict[int, int]]:
    """The launcher, and the files in which its streams can be read, from the first on: 1 or 2.

    It holds these files, too: if we are killed, it would fail when it says that it ends its ranks.
    """
    pipes = {fd: os.pipe() for fd in range(first, 3)}
    files = {fd: read for fd, (read, _) in pipes.items()}
    streams: dict[str, Any] = {"stdout" if fd == 1 else "stderr": write for fd, (_, write) in pipes.items()}
    if first == 1:
        streams["stdin"] = subprocess.DEVNULL
    try:
        return start(words, environ, tell, pass_fds=[*files.values()], **streams), files
    finally:
        for _, write in pipes.values():
            os.close(write)


def with_restarts(most: int, run: Callable[[tuple[int, int]], int]) -> int:
    """Run a job, and again where it has failed, but not where its time was up or we were asked to end it.

    Args:
        run: is told how often it has run, and most; returns its exit status, as this does.
    """
    for count in range(most + 1):
        status = run((count, most))
        if not status or _is_asked:
            break
        if count < most:
            what = f"the job has ended with status {status}; it is started again ({count + 1} of {most})"
            say(f"hpcomm run: {what}")
    return status


def _end_of(
    launcher: subprocess.Popen[bytes], mark: str, timeout_s: float | None, grace_s: float, watch: Watch | None
) -> tuple[int | None, str]:
    """Wait for the job's end. If we have ended it: with which status, and why, unless watch knows."""
    global _is_asked
    try:
        _raise_signals()
        status = _wait(launcher, timeout_s, watch)
    except subprocess.TimeoutExpired:
        _is_asked = True
        end(launcher, mark, at_once=not _show_ranks(mark))
        return TIMED_OUT, (
            f"the job had not ended after {timeout_s:g} s, so it was ended.\n"
            "  where: the stacks of its ranks are above, if they are Python\n"
            "  try:   a larger --timeout, if it was only slow"
        )
    except EndedBySignalError as ended:
        _is_asked, number = True, ended.number
        is_term = number == signal.SIGTERM  # which is what end() sends
        # A terminal sends SIGINT to the launcher as well: MPICH's hands it on, Open MPI's does not get it.
        is_ours = is_term or (number == signal.SIGINT and name_of(launcher.pid) == "prterun")
        if is_ours and _leaves(launcher, mark, number, grace_s, watch) and is_term:
            return None, ""
        if number != signal.SIGINT and not is_term:
            launcher.send_signal(number)
        end(launcher, mark, at_once=is_ours)
        return 128 + number, f"ended by {signal.Signals(number).name}"
    if status is not None:
        end(launcher, mark, at_once=True)
    return status, ""


def _leaves(
    launcher: subprocess.Popen[bytes], mark: str, number: int, grace_s: float, watch: Watch | None
) -> bool:
    """Hand a signal to end on to the ranks; whether the job ends in time by itself, and by no signal."""
    is_told = hand_on(launcher, mark, number)
    _raise_signals()
    try:
        if is_told:
            _wait(launcher, grace_s, watch)
    except (subprocess.TimeoutExpired, EndedBySignalError):  # a second signal: at once
        return False
    finally:
        _ignore_signals()
    status = launcher.returncode
    return status is not None and 0 <= status < 128 and status not in _BARE


@contextlib.contextmanager
def _handing_on(launcher: subprocess.Popen[bytes], mark: str) -> Iterator[None]:
    """Hand SIGUSR1 and SIGUSR2 on to the ranks meanwhile."""
    for number in _HANDED_ON:
        signal.signal(number, lambda number, _: hand_on(launcher, mark, number))
    try:
        yield
    finally:
        for number in _HANDED_ON:
            signal.signal(number, signal.SIG_IGN)


def hand_on(launcher: subprocess.Popen[bytes], mark: str, number: int) -> bool:
    """Send a signal to the ranks: by the launcher, if it hands it on, as it knows those of other hosts.

    Returns whether anybody is there to get it.

    MPICH's hands on SIGUSR1 alone, and Open MPI's not SIGTERM.
    """
    knows = {"srun": (*_HANDED_ON, signal.SIGTERM), "prterun": _HANDED_ON}.get(name_of(launcher.pid))
    if number in (knows or _HANDED_ON[:1]):
        launcher.send_signal(number)
        return True
    told = _programs(mark, number)
    send(told, number)
    return bool(told)


def _programs(mark: str, number: int) -> list[int]:
    """To whom a signal goes: ranks here, and what of ours stands above them, not their children."""
    ranks = {pid for pid, is_rank in members(mark) if is_rank}
    found, left = [], [pid for pid in ranks if parent_of(pid) not in ranks]
    for pid in left:
        found.append(pid)
        left += children_of(pid) if is_above_rank(pid, number in _HANDED_ON) else []
    return found


def _wait(launcher: subprocess.Popen[bytes], timeout_s: float | None, watch: Watch | None) -> int | None:
    """Wait for the launcher's end; a status if watch says that the job must be ended."""
    if watch is None:
        wait_for(launcher, timeout_s)
        return None
    deadline = time.monotonic() + (math.inf if timeout_s is None else timeout_s)
    while launcher.poll() is None:
        time.sleep(_WATCH_S)
        if (status := watch.look()) is not None:
            return status
        if time.monotonic() > deadline:
            raise subprocess.TimeoutExpired(launcher.args, timeout_s or 0.0)
    return None


def _judged(status: int, mark: str, living: Path) -> int:
    """The exit status of a job whose launcher has ended with this status, by what its ranks have left.

    MPICH's adds the bits of all statuses up, and PRRTE 3.0.14 may crash when it ends a job.
    """
    first = living / FIRST
    if first.exists():
        status = int(first.read_text())
        first.unlink()
    notes = sorted(file.read_text().partition("\n") for file in living.iterdir() if file.name[0] != ".")
    if status:
        kill_members(mark)  # such as children of ranks, in sessions of their own
        mpi_shared_memory.remove_noticed()
    if status == 0 and (survived := survive.judged(living, notes)) is not None:
        return survived
    if status == 0 and (left := [name for name, _, _ in notes]):
        others = f" and {len(left) - 3} more" if len(left) > 3 else ""
        how = "ended without MPI_Finalize; the launcher took that for a good end"
        say(f"hpcomm run: {', '.join(left[:3])}{others} {how}")
        return 1
    return status if status >= 0 else 128 - status


def start(
    command: list[str], environ: dict[str, str], tell: Tell = lambda age_s: None, **streams: Any
) -> subprocess.Popen[bytes]:
    """The launcher, which ends the job if this process is killed and cannot; streams as Popen has them.

    Signals to end are held, until the caller can end the job (_raise_signals).

    tell: prints what ranks have left so long ago, in seconds.
    """
    for number in ENDING:
        signal.signal(number, lambda number, _: _held.append(number))
    try:
        return _started(command, environ, tell, **streams)
    except BaseException:
        _raise_signals()
        raise


def _raise_signals() -> None:
    """Raise EndedBySignalError for a signal to end, from now on and for one that start has held."""
    for number in ENDING:
        signal.signal(number, _raise_ended)
    if _held:
        first = _held[0]
        _held.clear()
        _raise_ended(first, None)


def _raise_ended(number: int, frame: object) -> NoReturn:
    _ignore_signals()  # a second one would come between this one and its cure
    raise EndedBySignalError(number)


def _ignore_signals() -> None:
    for number in ENDING:
        signal.signal(number, signal.SIG_IGN)


def _started(
    command: list[str], environ: dict[str, str], tell: Tell, **streams: Any
) -> subprocess.Popen[bytes]:
    if sys.platform != "linux":
        return subprocess.Popen(command, env=environ, **streams)
    import ctypes

    prctl, file = ctypes.CDLL(None).prctl, Path(command[0]).resolve()
    is_prrte = file.name in PRRTE and file.with_name("prterun").exists()

    def prepare() -> None:
        prctl(_PDEATHSIG, signal.SIGTERM)
        if is_prrte:  # Ctrl-C would have it kill the ranks before they have run their `finally` blocks
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        forget(os.getpid(), environ)  # of an earlier launcher that had the number which this one has now
        if is_prrte and not (is_free(os.getpid()) or is_last):
            raise ValueError("this job would use the files of another one: try another number")

    made = mpi_shared_memory.watch()
    for tries in range(_TRIES):
        is_free, is_last = mpi_shared_memory.reserve(), tries == _TRIES - 1
        try:
            launcher = subprocess.Popen(command, env=environ, preexec_fn=prepare, **streams)
            break
        except subprocess.SubprocessError:
            if is_last:
                raise
    threading.Thread(target=_free, args=(launcher, tell), daemon=True).start()
    if made >= 0:
        mark = environ[MARK].rpartition(",")[2]
        threading.Thread(target=mpi_shared_memory.notice, args=(made, launcher.pid), daemon=True).start()
        threading.Thread(target=mpi_shared_memory.ask, args=(launcher.pid, mark), daemon=True).start()
    return launcher


def _free(launcher: subprocess.Popen[bytes], tell: Tell) -> None:
    """End a launcher of Open MPI's that has locked itself up after its last child has ended.

    And say what ranks have left in their folder that fail without ending the job.
    """
    locked_s = 0.0
    while launcher.returncode is None:
        time.sleep(_LOOK_S)
        tell(tracebacks.SOON_S)
        locked_s = locked_s + _LOOK_S if is_locked(launcher.pid) else 0.0
        if locked_s >= LOCKED_S and launcher.returncode is None:
            say("hpcomm run: all ranks have ended, but Open MPI's launcher waits for itself; it is ended")
            launcher.kill()  # its other signals go through the thread that waits
            forget(launcher.pid, os.environ)
            return


def end(launcher: subprocess.Popen[bytes], mark: str, at_once: bool = False) -> None:
    """Give the launcher time to end by itself, then ask it to, then kill whatever is left of the job.

    at_once: ask without giving it time.
    """
    _ignore_signals()
    left = mpi_shared_memory.mapped(pid for pid, _ in members(mark))
    for ask in (launcher.poll, launcher.terminate, launcher.kill)[at_once:]:
        ask()
        with contextlib.suppress(subprocess.TimeoutExpired):
            launcher.wait(GRACE_S)
            break
    kill_members(mark)
    forget(launcher.pid, os.environ)
    for segment in left:
        segment.unlink(missing_ok=True)
    mpi_shared_memory.remove_noticed()


def members(mark: str) -> list[tuple[int, bool]]:
    """The processes of a job on this machine: (process id, whether it is a rank or a rank's child)."""
    found = {int(each.name): environ_of(int(each.name)) for each in Path("/proc").glob("[0-9]*")}
    return [
        (pid, any(name in environ for name in RANKS))
        for pid, environ in found.items()
        if mark in environ.get(MARK, "").split(",")
    ]


def _show_ranks(mark: str) -> bool:
    """Say where the ranks are. Those that do not answer print their stacks, and end; whether there are any.

    The launcher sleeps meanwhile: it would kill the others at the first death, before they have
    spoken, and mix their lines. What they say waits for it in their pipes.
    """
    _ignore_signals()
    found = members(mark)
    launchers, ranks = ([pid for pid, is_rank in found if is_rank == which] for which in (False, True))
    told: set[int] = set()
    if tell_ranks is not None and ranks:
        with contextlib.suppress(Exception):  # whatever it is, the job is to be ended
            told.update(tell_ranks(launcher_of(ranks[0])))
    silent = [pid for pid in ranks if told.isdisjoint({pid, *below(pid)}) and told.isdisjoint(above(pid))]
    if not silent:
        return False
    send(launchers, signal.SIGSTOP)
    for pid in silent:
        if parent_of(pid) not in silent:  # else it writes to the same place
            say_to(pid, f"{who_has(environ_of(pid)) or 'a rank'} gives no answer; its threads:\n")
    deadline = time.monotonic() + GRACE_S
    send(silent, signal.SIGABRT)
    while any(map(environ_of, silent)) and time.monotonic() < deadline:
        time.sleep(0.05)
    send(launchers, signal.SIGCONT)
    return True


def kill_members(mark: str) -> None:
    """Kill every process of a job on this machine, and wait until they are gone.

    Also those that they start meanwhile. One that the system does not let go is left after 3 s.
    """
    deadline = time.monotonic() + GRACE_S
    while left := [pid for pid, _ in members(mark) if pid != os.getpid()]:
        send(left, signal.SIGKILL)
        if time.monotonic() > deadline:
            return
        time.sleep(0.01)
