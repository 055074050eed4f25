"""Life of a process in a job: a failing rank ends the job. watch/start_up.py begins it.

MPI leaves the others waiting for ever when one rank dies of an exception. So, from the first use of MPI
through hpcomm on:

    running ── program ends well ───────────────────────────────────────> MPI_Finalize
       │
       └─ uncaught exception, or SystemExit with a failure:
          print it, mark this rank as failed, wait 1 s
             ├─ all other ranks end too ──> everybody's own exit status counts
             └─ some do not ──────────────> job_ends.py ends them, with this rank's status
"""

from __future__ import annotations

import faulthandler
import gc
import io
import os
import signal
import sys
import threading
import time
import warnings
import weakref
from collections import Counter
from contextlib import redirect_stderr, suppress
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, TextIO

from ..core.limits import EXIT_S, GRACE_S
from ..core.present import is_own
from ..errors import ConfigError, line_number, source_line, where
from ..job import exit_hooks, process_role
from ..job.launcher import FIRST
from ..job.survive import ENDED
from ..node import segment

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..core.comm import Comm
    from .end_notices import EndNotices
    from .job_ends import ByMPI, ByRecords

    Hook = Callable[[type[BaseException], BaseException, TracebackType | None], Any]

end_notices: EndNotices | None = None  # where there are others
farewells: list[Callable[[], None]] = []  # to call when this rank ends well
at_abort: list[Callable[[], None]] = []  # to call when this rank ends the job
looks: list[Callable[[], None]] = []  # to call now and then from the watchdog
job: ByMPI | ByRecords | None = None  # once this rank has begun
has_foreigners = False  # programs of other jobs, which ours goes on without
_life = ""  # the file that `hpcomm run` sees until this rank ends well
_sends = False  # whether it takes tracebacks from what its launcher writes
name = ""  # of this rank, for messages
status = 0  # with which this rank ends, once it fails
uncaught: tuple[BaseException, TracebackType | None] | None = None  # what ends it, and where that was raised
_exit: tuple[int, float] | None = None  # the status of the SystemExit that ends Python, and since when
process = 0  # that is this rank: its forked children are not
_end_process = os._exit  # count_hasty_exits replaces it


def has_threads() -> bool:
    """Whether MPI lets several threads call it; else none of ours does, but for MPI_Abort."""
    from mpi4py import MPI

    return MPI.Query_thread() == MPI.THREAD_MULTIPLE


def may_call_mpi() -> bool:
    """Whether the calling thread may call MPI, by the level that MPI has been started at."""
    from mpi4py import MPI

    if MPI.Query_thread() < MPI.THREAD_SERIALIZED:
        return MPI.Is_thread_main()
    return has_threads() or not is_own(threading.current_thread())


def need_threads(what: str) -> None:
    """Refuse, by a ConfigError, what cannot do without a thread that calls MPI."""
    if not has_threads():
        raise ConfigError(
            f"{what} needs a thread that calls MPI, and MPI has been started for one thread at a time",
            hint='leave mpi4py.rc.thread_level at "multiple", or MPI.Init_thread(MPI.THREAD_MULTIPLE)',
        )


def started() -> bool:
    """Whether start has run."""
    return job is not None


_HANGING_S = 2.0  # until a rank that MPI cannot end ends itself
_LAST_S = 4.0  # for another thread of this rank to end it
_HEARD_S = 0.1  # for the launcher to read what was said: MPICH's drops what is left when the abort comes
ending: int | None = None  # the thread that is ending the job


def abort(text: str, status: int = 1) -> None:
    """Say text on stderr and end the job, from whichever thread."""
    global ending
    ending = threading.get_ident()
    if sys.stderr is sys.__stderr__ or not _is_left(
        _as_said(text)
    ):  # pytest keeps what is said, and loses it
        say(text)
    _abort(status)


def say(text: str) -> None:
    """Say text on stderr, as this rank's."""
    _write(sys.stderr, f"\n{_as_said(text)}")


def _as_said(text: str) -> str:
    return f"hpcomm: {name or f'rank {process_role.world_rank()}'}: {text}\n"


def _stand_still_if_ending() -> None:
    """Wait for the end if another thread is ending the job."""
    if ending not in (None, threading.get_ident()):
        time.sleep(_LAST_S)


def _abort(status: int) -> None:
    global ending
    ending = threading.get_ident()
    if segment.current is not None:
        segment.current.mine.failed = 1
    status = status & 255 or 1  # what a process can say, and never that all is well
    sys.stdout.flush()
    sys.stderr.flush()
    if has_foreigners and may_call_mpi():
        say_end()
    time.sleep(_HEARD_S)
    if os.environ.get("HPCOMM_ON_FAILURE") == "continue":  # this program ends, and the job goes on
        os._exit(status)
    while at_abort:
        at_abort.pop()()
    _note_first(status)
    follow(status)


def follow(status: int) -> NoReturn:
    """End the job with a status, or with that of another rank, which has ended it and said why."""
    global ending
    ending = threading.get_ident()
    sys.stdout.flush()
    sys.stderr.flush()
    (abort_by_mpi if job is None else job.abort)(status)  # None: it is still connecting programs
    _end_process(status)


def abort_by_mpi(status: int) -> None:
    """End all ranks; MPICH returns where no launcher of its own started this one."""
    from mpi4py import MPI

    if "OMPI_COMM_WORLD_SIZE" in os.environ:
        from ..job import terminate

        terminate.leave()
    # MPI_Abort itself can hang when the library is in a bad state. This waits in no thread of Python's, of
    # which 3.12 starts none any more when the interpreter ends.
    faulthandler.dump_traceback_later(_HANGING_S, exit=True, file=open(os.devnull, "w"))  # noqa: SIM115, PTH123
    MPI.COMM_WORLD.Abort(status)


def in_one_piece(hook: Hook) -> Hook:
    """A hook for exceptions that says what hook does at once: launchers mix what ranks say line by line.

    Or has `hpcomm run` say it, once for all ranks.
    """

    def whole(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        said = io.StringIO()
        with redirect_stderr(said):
            hook(kind, error, trace)
        if not (_is_last_word() and _is_left(said.getvalue())):
            _write(sys.stderr, said.getvalue())

    return whole


def _is_last_word() -> bool:
    """Whether an exception ends this rank and the job; and the program has left stderr as it was."""
    may_fail = "HPCOMM_SURVIVE" in os.environ or os.environ.get("HPCOMM_ON_FAILURE") == "continue"
    return not (may_fail or _is_interactive()) and os.getpid() == process and sys.stderr is sys.__stderr__


def _is_left(text: str) -> bool:
    from ..job import tracebacks  # which no rank needs that ends well

    return tracebacks.leave(_life, text, _sends)


def _is_interactive() -> bool:
    """Whether Python goes on after an exception."""
    return bool(sys.flags.interactive) or hasattr(sys, "ps1")


def install_hooks() -> None:
    previous_hook = in_one_piece(sys.excepthook)

    def excepthook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        global uncaught
        _stand_still_if_ending()  # the cause has been said; what comes of the end is no news
        previous_hook(kind, error, trace)
        _show_captured()
        if not _is_interactive():
            uncaught = error, trace
            _leave(130 if issubclass(kind, KeyboardInterrupt) else 1)

    sys.excepthook = excepthook
    exit_hooks.notice(_note_exit)
    if "HPCOMM_ON_FAILURE" not in os.environ:
        count_hasty_exits()
    exit_hooks.last(_at_exit)


def _note_exit(code: object) -> None:
    """Python ends by a SystemExit of this code: now its threads and its exit handlers come to their end."""
    global _exit
    _exit = exit_hooks.status_of(code), time.monotonic()


def end_if_late() -> None:
    """End the job if this rank has failed by SystemExit, and its threads or its exit handlers do not end."""
    for look in (*looks,):
        look()
    code, since = _exit or (0, 0.0)
    if code and not status and time.monotonic() - since > EXIT_S:
        abort(f"ends with status {code}, but its threads, or what is to be done at its end, do not", code)


def _show_captured() -> None:
    """Print what a hook around ours keeps back for later (torch.distributed's does): the job may end here."""
    captured = sys.stderr
    if isinstance(captured, io.StringIO) and sys.__stderr__ is not None:
        lines = captured.getvalue().splitlines()
        rank = process_role.world_rank() if job is None else job.rank
        captured.seek(0)
        captured.truncate()
        _write(sys.__stderr__, "".join(f"[rank{rank}]: {line}\n" for line in lines))


def _write(stream: TextIO | None, text: str) -> None:
    """Write at once: a launcher mixes what ranks say piece by piece, as Python does with a traceback."""
    if stream is not None:
        stream.write(text)
        stream.flush()


def _at_exit() -> None:
    _stand_still_if_ending()
    if _exit is not None and _exit[0]:
        _leave(_exit[0])
    elif os.getpid() != process:
        _leave(0)
    say_end()


def say_end() -> None:
    """Let the others know that this rank makes no more calls; the second time does nothing."""
    if os.getpid() != process:
        return
    if segment.current is not None:
        segment.current.mine.end(end_notices.begun() if end_notices is not None else b"")
    while farewells:
        farewells.pop()()


def count_hasty_exits() -> None:
    """Let os._exit before MPI_Finalize end the job, with a status that is not 0.

    MPICH's launcher would call that a good end on one host, or give the status of those whom it kills, and
    over several hosts wait for the others for ever. Open MPI's names no rank.
    """
    leave, here = os._exit, os.getpid()

    def leave_noted(status: int) -> NoReturn:
        if os.getpid() == here and not (job is None or job.is_over()):  # and no forked child
            how = "before its end" if process_role.is_without_mpi else "without MPI_Finalize"
            if segment.survives:
                _die(status)
            abort(f"leaves by {where(f'os._exit({status})', None)}, {how}, which ends the job", status or 1)
        leave(status)

    os._exit = leave_noted


def notice_finalize() -> None:
    """MPI_Finalize may wait for the others; the first thing it does is to delete what COMM_SELF carries."""
    from mpi4py import MPI

    key = MPI.Comm.Create_keyval(delete_fn=lambda comm, key, value: _forget_mpi())
    MPI.COMM_SELF.Set_attr(key, True)


_MANY = 500
_look_at = _MANY  # communicators, at which they are counted
_noted: dict[int, weakref.ref[Comm]] = {}


def note(comm: Comm) -> None:
    """Know of a communicator as long as it lives."""
    if end_notices is not None:
        end_notices.know(comm)
    key = id(comm)
    _noted[key] = weakref.ref(comm, lambda _: _noted.pop(key, None))


def look_at_kept(comm: Comm) -> None:
    """After comm was made: warn if the program keeps many, before MPI has no room (MPICH has for 1,000)."""
    global _look_at
    if len(_noted) < _look_at:
        return
    gc.collect()  # a communicator's functions point back at it
    count, lines = kept()
    _look_at = 2 * count if count >= _MANY else max(_MANY, len(_noted) + _MANY // 4)
    if count >= _MANY and comm.rank == 0 and (born := comm.life.born) is not None:
        text = f"rank 0 of '{comm.name}' keeps {count} communicators, made at {lines}; close() frees one"
        warnings.warn_explicit(text, RuntimeWarning, born[0].co_filename, line_number(*born) or 0)


def kept(most: int = 3) -> tuple[int, str]:
    """How many communicators the program keeps, and which lines have made most: `train.py:41 (498)`."""
    born = [each.life.born for each in living() if not each.is_closed and not each.life.is_dropped]
    lines = Counter("?" if at is None else source_line(at[0], line_number(*at)) for at in born)
    return len(born), ", ".join(f"{line} ({n})" for line, n in lines.most_common(most))


def living() -> list[Comm]:
    """The communicators of this rank, whichever thread asks."""
    return [comm for reference in list(_noted.values()) if (comm := reference()) is not None]


def stop_progress() -> None:
    """Let no thread of ours call MPI any more."""
    progress = sys.modules.get("hpcomm.transport.progress")
    if progress is not None:
        progress.stop()


def _forget_mpi() -> None:
    """MPI is finalized: whoever calls it afterwards would be aborted."""
    say_end()
    stop_progress()
    for each in living():
        each.forget_mpi()


def note_life() -> None:
    """Leave a file for `hpcomm run` until this rank ends well: MPICH's launcher says 0 in any case."""
    global _life, _sends
    from mpi4py import MPI

    folder = os.environ.pop("HPCOMM_LIVING", None)  # jobs that this rank starts are others
    _sends = bool(os.environ.pop("HPCOMM_SENT", ""))
    if folder and os.path.isdir(folder):  # noqa: PTH112  not on other hosts; pathlib costs 5 ms at every start
        _life = f"{folder}/{MPI.COMM_WORLD.rank}-{os.getpid()}"  # there may be spawned ones, too
        try:
            with open(_life, "w") as note:  # noqa: PTH123
                note.write(name)
        except OSError as error:
            raise ConfigError(
                f"{_life} cannot be written: {error.strerror}.",
                hint="set TMPDIR to a folder of this host that takes files",
            ) from None
        farewells.append(partial(_remove, _life))


def _remove(file: str) -> None:
    with suppress(FileNotFoundError):
        if segment.survives:
            os.replace(file, os.path.join(os.path.dirname(file), ENDED))  # noqa: PTH105, PTH118, PTH120
            return
        os.unlink(file)  # noqa: PTH108


def _note_first(status: int) -> bool:
    """Tell `hpcomm run` that this rank fails, if it is the first one, as far as is known; whether it is."""
    folder, _, _ = _life.rpartition("/")
    try:
        with open(f"{folder}/{FIRST}" if folder else "", "x") as note:  # noqa: PTH123
            note.write(str(status & 255 or 1))
    except OSError as error:
        return not isinstance(error, FileExistsError)
    return True


def _die(code: int) -> NoReturn:
    """End as a rank that was killed does, which is what MPI notices; the others go on."""
    with suppress(OSError), open(_life, "a") as note:  # noqa: PTH123
        note.write(f"\n{code}")
    while True:
        os.kill(os.getpid(), signal.SIGKILL)


def _leave(code: int) -> None:
    """End this rank by failure: together with all others if they end too, else by ending the job."""
    global status
    status = code
    sys.stdout.flush()
    sys.stderr.flush()
    if os.getpid() != process:  # a forked child: it is no rank, and MPI_Finalize would wait in it for ever
        os._exit(status & 255)
    if job is None or job.is_over():
        return
    if segment.current is not None:
        segment.current.mine.failed = 1
    if os.environ.get("HPCOMM_ON_FAILURE") == "continue":  # the spec lets the others go on
        say_end()
        return
    if segment.survives:
        _die(code)
    is_first, all_end = _note_first(status), job.meeting()
    deadline = time.monotonic() + GRACE_S
    while not all_end():
        if time.monotonic() > deadline:
            if is_first:
                _write(sys.stderr, f"hpcomm: {name} ends with status {code}, so the job does\n")
            if "HPCOMM_PROGRAM" in os.environ:  # a supervisor passes that on; MPICH kills it at once
                time.sleep(0.5)
            _abort(code)
        time.sleep(0.01)
    if has_foreigners:  # MPI_Finalize would wait for them
        _abort(code)
