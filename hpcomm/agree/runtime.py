"""Life of a process in a job: MPI comes up at first use, and a failing rank ends the job.

MPI leaves the others waiting for ever when one rank dies of an exception. So, from the first use of MPI
through hpcomm on:

    running ── program ends well ───────────────────────────────────────> MPI_Finalize
       │
       └─ uncaught exception, or SystemExit with a failure:
          print it, mark this rank as failed, wait 1 s
             ├─ all other ranks end too ──> everybody's own exit status counts
             └─ some do not ──────────────> MPI_Abort with this rank's status
"""

from __future__ import annotations

import faulthandler
import io
import os
import sys
import threading
import time
import weakref
from contextlib import redirect_stderr, suppress
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, TextIO

from ..core.limits import EXIT_S, GRACE_S
from ..core.present import is_own
from ..errors import ConfigError, HpcommError, UsageError
from ..job import exit_hooks, process_role, variables
from ..node import segment
from . import mistakes

if TYPE_CHECKING:
    from collections.abc import Callable

    from mpi4py import MPI

    from ..core.comm import Comm
    from ..node.segment import NodeSegment
    from .end_notices import EndNotices
    from .heartbeat import Heartbeat

    Hook = Callable[[type[BaseException], BaseException, TracebackType | None], Any]

end_notices: EndNotices | None = None  # where there are others
farewells: list[Callable[[], None]] = []  # to call when this rank ends well
at_abort: list[Callable[[], None]] = []  # to call when this rank ends the job
looks: list[Callable[[], None]] = []  # to call now and then from the watchdog
_failed: Exception | None = None  # why it could not be started
_farewell: MPI.Intracomm | None = None  # its own communicator: whoever ends by failure meets the others here
_has_sentinel = False
_has_foreigners = False  # programs of other jobs, which ours goes on without
_life = ""  # the file that `hpcomm run` sees until this rank ends well
_name = ""  # of this rank, for messages
status = 0  # with which this rank ends, once it fails
uncaught: tuple[BaseException, TracebackType | None] | None = None  # what ends it, and where that was raised
_exit: tuple[int, float] | None = None  # the status of the SystemExit that ends Python, and since when
_process = 0  # that is this rank: its forked children are not
_end_process = os._exit  # count_hasty_exits replaces it


def start(everybody: MPI.Intracomm | None = None, name: str = "") -> None:
    """Bring MPI up once (collective over everybody, by default the world): hooks, node segment, watchdog.

    Args:
        everybody: the ranks that use hpcomm, where a job has others too.
        name: this rank's, for messages.

    Raises:
        ConfigError: mpi4py was told not to bring MPI up, and nobody did. UsageError: MPI has been finalized.
    """
    global _failed, _farewell, _name, _process
    from mpi4py import MPI

    if MPI.Is_finalized():
        raise UsageError(
            "MPI has been finalized", hint="MPI.Finalize() after the last use of hpcomm, or not at all"
        )
    if _failed is not None:
        raise _failed.with_traceback(None)
    if _farewell is not None:
        return
    if not MPI.Is_initialized():
        what = "MPI has not been started: mpi4py.rc.initialize, or MPI4PY_RC_INITIALIZE, says not to."
        raise ConfigError(
            what, hint="MPI.Init_thread() before hpcomm's first use, or leave that setting alone"
        )
    process_role.check_process("hpcomm")
    process_role.check_launcher(MPI.COMM_WORLD.size, MPI.get_vendor()[0])
    process_role.mark(MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size)
    if MPI.COMM_WORLD.rank == 0:
        variables.warn()
    everybody = MPI.COMM_WORLD if everybody is None else everybody
    _name, _process = name or f"rank {MPI.COMM_WORLD.rank}", os.getpid()
    exit_hooks.last(_stop_progress)  # as the last of ours: what ends before may wait for messages to go
    try:
        _farewell = everybody.Dup()
        _remove_segments()
        _hurry_to_launcher()
        sys.excepthook = mistakes.noting(sys.excepthook)
        if MPI.COMM_WORLD.size > 1:
            _watch(_farewell)
        os.register_at_fork(after_in_child=_be_no_rank)
    except BaseException as error:  # parts of it cannot be done again
        what = f"hpcomm's first use was interrupted by {type(error).__name__}"
        _failed = error if isinstance(error, Exception) else HpcommError(what, hint="start the job again")
        raise


def _be_no_rank() -> None:
    """In a child that was forked: all communicators refuse calls, as if they were closed."""
    process_role.fork()
    for each in living():
        each.forget_mpi()


def _watch(everybody: MPI.Intracomm) -> None:
    global end_notices
    _install_hooks()
    _notice_finalize()
    _note_life()
    node_segment = segment.current = segment.open_segment(everybody)
    beat = None
    from .end_notices import EndNotices

    end_notices = EndNotices(everybody, node_segment)
    if end_notices.by_message:
        farewells.insert(0, end_notices.stop)
        farewells.append(end_notices.say)
    if node_segment is None or len(node_segment.regions) < everybody.size:
        from .heartbeat import pulse

        beat = pulse(everybody, node_segment is not None and node_segment.here == 0)
        if beat is not None:
            farewells.append(beat.stop)
    _start_sentinel(node_segment, beat)


def _hurry_to_launcher() -> None:
    """Have what this rank tells Open MPI's launcher sent at once.

    MPI_Finalize ends with two messages (PMIx: forget my events, I am done), and TCP holds the second one
    back until the first is acknowledged, which takes 40 ms (Nagle's algorithm with delayed acknowledgements).
    """
    servers = {uri for name, uri in os.environ.items() if name.startswith("PMIX_SERVER_URI")}
    if not servers or sys.platform != "linux":
        return
    import _socket  # socket itself takes 2 ms at every start

    for number in os.listdir("/proc/self/fd"):  # noqa: PTH208
        with suppress(OSError):  # closed meanwhile, no socket, or one without a peer
            if not os.readlink(f"/proc/self/fd/{number}").startswith("socket:"):  # noqa: PTH115
                continue
            connection = _socket.socket(fileno=os.dup(int(number)))
            try:
                if connection.family in (_socket.AF_INET, _socket.AF_INET6):
                    host, port, *_ = connection.getpeername()
                    if any(host in uri and uri.endswith(f":{port}") for uri in servers):
                        connection.setsockopt(_socket.IPPROTO_TCP, _socket.TCP_NODELAY, 1)
            finally:
                connection.close()


def _start_sentinel(node_segment: NodeSegment | None, beat: Heartbeat | None = None) -> None:
    global _has_sentinel
    from . import watchdog

    if not _has_sentinel:
        _has_sentinel = True
        exit_hooks.keepers.append(watchdog.let_go)
        watchdog.start(node_segment, abort, say, _end_if_late, _patience_s(), beat)


def _patience_s() -> float | None:
    """How long a call may wait, as the user said.

    Raises:
        ConfigError: HPCOMM_TIMEOUT is no number of seconds.
    """
    said = os.environ.get("HPCOMM_TIMEOUT")
    if not said:
        return None
    try:
        seconds = float(said)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise ConfigError(
            f"HPCOMM_TIMEOUT is {said!r}",
            hint="a number of seconds above 0, or leave it away to wait for ever",
        )
    return seconds


def expect_foreigners() -> None:
    """From now on there are programs of another job, which does not end with this one. Collective."""
    global _has_foreigners
    assert _farewell is not None
    _has_foreigners = True
    if segment.current is not None:
        _start_sentinel(segment.current)
    elif _farewell.size == 1:
        _watch(_farewell)


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
    return _farewell is not None


_LAST_S = 2.0  # until a rank that MPI cannot end ends itself
_HEARD_S = 0.1  # for the launcher to read what was said: MPICH's drops what is left when the abort comes
ending: int | None = None  # the thread that is ending the job


def abort(text: str, status: int = 1) -> None:
    """Say text on stderr and end the job, from whichever thread."""
    global ending
    ending = threading.get_ident()
    say(text)
    _abort(status)


def say(text: str) -> None:
    """Say text on stderr, as this rank's."""
    from mpi4py import MPI

    _write(sys.stderr, f"\nhpcomm: {_name or f'rank {MPI.COMM_WORLD.rank}'}: {text}\n")


def _stand_still_if_ending() -> None:
    """Wait for the end if another thread is ending the job."""
    if ending not in (None, threading.get_ident()):
        time.sleep(2 * _LAST_S)


def _abort(status: int) -> None:
    global ending
    from mpi4py import MPI

    ending = threading.get_ident()
    if segment.current is not None:
        segment.current.mine.fail()
    status = status & 255 or 1  # what a process can say, and never that all is well
    sys.stdout.flush()
    sys.stderr.flush()
    if _has_foreigners and may_call_mpi():
        say_end()
    time.sleep(_HEARD_S)
    if os.environ.get("HPCOMM_ON_FAILURE") == "continue":  # this program ends, and the job goes on
        os._exit(status)
    while at_abort:
        at_abort.pop()()
    if "OMPI_COMM_WORLD_SIZE" in os.environ:
        from ..job import terminate

        terminate.leave()
    with suppress(OSError), open(_life, "a") as note:  # noqa: PTH123
        note.write(f"\n{status}")  # for the launcher that never says it
    # MPI_Abort itself can hang when the library is in a bad state. This waits in no thread of Python's, of
    # which 3.12 starts none any more when the interpreter ends.
    faulthandler.dump_traceback_later(_LAST_S, exit=True, file=open(os.devnull, "w"))  # noqa: SIM115, PTH123
    MPI.COMM_WORLD.Abort(status)
    _end_process(status)  # MPICH returns where no launcher of its own started this rank


def _remove_segments() -> None:
    """Take the names of MPICH's files in /dev/shm away: it leaves them there when a rank is killed.

    All ranks have them open once any has come out of MPI_Init, and nobody opens them again.
    """
    if os.environ.get("MPI_LOCALRANKID", "0") != "0" or "OMPI_COMM_WORLD_SIZE" in os.environ:
        return
    with suppress(OSError), open("/proc/self/maps", "rb") as maps:  # noqa: PTH123
        for line in maps:
            if b"/dev/shm/mpich_shm_" in line:
                with suppress(OSError):  # it has gone
                    os.unlink(line.split()[5])  # noqa: PTH108


def in_one_piece(hook: Hook) -> Hook:
    """A hook for exceptions that says what hook does at once: launchers mix what ranks say line by line."""

    def whole(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        said = io.StringIO()
        with redirect_stderr(said):
            hook(kind, error, trace)
        _write(sys.stderr, said.getvalue())

    return whole


def _install_hooks() -> None:
    previous_hook = in_one_piece(sys.excepthook)

    def excepthook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        global uncaught
        _stand_still_if_ending()  # the cause has been said; what comes of the end is no news
        previous_hook(kind, error, trace)
        _show_captured()
        if not (sys.flags.interactive or hasattr(sys, "ps1")):
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


def _end_if_late() -> None:
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
        from mpi4py import MPI

        lines = captured.getvalue().splitlines()
        captured.seek(0)
        captured.truncate()
        _write(sys.__stderr__, "".join(f"[rank{MPI.COMM_WORLD.rank}]: {line}\n" for line in lines))


def _write(stream: TextIO | None, text: str) -> None:
    """Write at once: a launcher mixes what ranks say piece by piece, as Python does with a traceback."""
    if stream is not None:
        stream.write(text)
        stream.flush()


def _at_exit() -> None:
    _stand_still_if_ending()
    if _exit is not None and _exit[0]:
        _leave(_exit[0])
    elif os.getpid() != _process:
        _leave(0)
    say_end()


def say_end() -> None:
    """Let the others know that this rank makes no more calls; the second time does nothing."""
    if os.getpid() != _process:
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
        from mpi4py import MPI

        if os.getpid() == here and not MPI.Is_finalized():  # and no forked child
            abort(f"leaves by os._exit({status}), without MPI_Finalize, which ends the job", status or 1)
        leave(status)

    os._exit = leave_noted


def _notice_finalize() -> None:
    """MPI_Finalize may wait for the others; the first thing it does is to delete what COMM_SELF carries."""
    from mpi4py import MPI

    key = MPI.Comm.Create_keyval(delete_fn=lambda comm, key, value: _forget_mpi())
    MPI.COMM_SELF.Set_attr(key, True)


_noted: dict[int, weakref.ref[Comm]] = {}


def note(comm: Comm) -> None:
    """Know of a communicator as long as it lives."""
    if end_notices is not None:
        end_notices.know(comm)
    key = id(comm)
    _noted[key] = weakref.ref(comm, lambda _: _noted.pop(key, None))


def living() -> list[Comm]:
    """The communicators of this rank, whichever thread asks."""
    return [comm for reference in list(_noted.values()) if (comm := reference()) is not None]


def _stop_progress() -> None:
    """Let no thread of ours call MPI any more."""
    progress = sys.modules.get("hpcomm.transport.progress")
    if progress is not None:
        progress.stop()


def _forget_mpi() -> None:
    """MPI is finalized: whoever calls it afterwards would be aborted."""
    say_end()
    _stop_progress()
    for each in living():
        each.forget_mpi()


def _note_life() -> None:
    """Leave a file for `hpcomm run` until this rank ends well: MPICH's launcher says 0 in any case."""
    global _life
    from mpi4py import MPI

    folder = os.environ.pop("HPCOMM_LIVING", None)  # jobs that this rank starts are others
    if folder and os.path.isdir(folder):  # noqa: PTH112  not on other hosts; pathlib costs 5 ms at every start
        _life = f"{folder}/{MPI.COMM_WORLD.rank}-{os.getpid()}"  # there may be spawned ones, too
        try:
            with open(_life, "w") as note:  # noqa: PTH123
                note.write(_name)
        except OSError as error:
            raise ConfigError(
                f"{_life} cannot be written: {error.strerror}.",
                hint="set TMPDIR to a folder of this host that takes files",
            ) from None
        farewells.append(partial(_remove, _life))


def _remove(file: str) -> None:
    with suppress(FileNotFoundError):
        os.unlink(file)  # noqa: PTH108


def _leave(code: int) -> None:
    """End this rank by failure: together with all others if they end too, else by ending the job."""
    global status
    from mpi4py import MPI

    status = code
    sys.stdout.flush()
    sys.stderr.flush()
    if os.getpid() != _process:  # a forked child: it is no rank, and MPI_Finalize would wait in it for ever
        os._exit(status & 255)
    if MPI.Is_finalized() or _farewell is None:
        return
    if segment.current is not None:
        segment.current.mine.fail()
    if os.environ.get("HPCOMM_ON_FAILURE") == "continue":  # the spec lets the others go on
        say_end()
        return
    meeting = _farewell.Ibarrier()
    deadline = time.monotonic() + GRACE_S
    while not meeting.Test():
        if time.monotonic() > deadline:
            print(f"hpcomm: {_name} ends with status {code}, so the job does", file=sys.stderr, flush=True)
            if "HPCOMM_PROGRAM" in os.environ:  # a supervisor passes that on; MPICH kills it at once
                time.sleep(0.5)
            _abort(code)
        time.sleep(0.01)
    if _has_foreigners:  # MPI_Finalize would wait for them
        _abort(code)
