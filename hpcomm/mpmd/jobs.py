"""Connection of two jobs that were started apart: one accepts, the other connects, by a file.

    job of the ocean                                     job of the atmosphere
    accept(me, "sea.port")  ── name, MPI, port ──> file  connect(me, "sea.port")
                            <── who is there ──── .hello
                            ── come, or why not ─> .answer
    MPI_Comm_accept <══════════════════════════════════> MPI_Comm_connect

MPI's own pair knows neither names nor deadlines and waits for ever; so the first ranks meet by files, and
only then do all ranks call MPI. Both jobs see the folder of the file.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from socket import gethostname
from typing import Any, NamedTuple

from .._lazy import MPI
from ..agree.deadline import within
from ..errors import ConfigError, HpcommError, UsageError, WaitTimeoutError
from ..job import own_files
from ..watch import start_up
from .link import Link
from .link_context import LinkContext
from .program import Program, admit

_LOOK_S = 0.05
_MPI_S = 30.0  # both are there by then: MPI needs much less
_ENTRY = {"hpcomm": int, "name": str, "library": str, "programs": list, "port": str, "on": str, "tcp": bool}
_ANSWER = {"error": str}
_OURS = {"hpcomm": int}  # that of any version
_FITTING = "a name of its own for each program, and the same MPI for both jobs"


class Meeting(NamedTuple):
    """What the first rank of a program found: the other program, and MPI's port."""

    peer: str
    port: str


def accept(me: Program, path: Path | str, *, timeout: float = 60.0) -> Link:
    """Wait for a program of another job, which connects by the same path. Collective over this program.

    Afterwards me.link(its name) returns the same link. It takes fields like any other.

    Args:
        path: a new file in a folder that both jobs see. It is made here and removed afterwards.
        timeout: seconds to wait for the other program.

    Raises:
        ConfigError: this MPI cannot join jobs, or the programs' names or MPIs do not fit together.
        WaitTimeoutError: no program came.

    Example (mpirun -n 2 python ocean.py, and in another terminal mpirun -n 1 python atmosphere.py):
        >>> air = jobs.accept(hpcomm.join("ocean"), "sea.port")
    """
    return _joined(me, Path(path), timeout, is_host=True)


def connect(me: Program, path: Path | str, *, timeout: float = 60.0) -> Link:
    """Connect to a program of another job that waits in accept(path). Collective over this program."""
    return _joined(me, Path(path), timeout, is_host=False)


def _joined(me: Program, path: Path, timeout_s: float, *, is_host: bool) -> Link:
    verb = "accept" if is_host else "connect"
    library = MPI.Get_library_version().split("\n")[0].rstrip("\0 ")
    if library.startswith("Open MPI"):
        what = "Open MPI cannot join jobs that were started apart: its MPI_Comm_connect waits for ever"
        hint = "start both programs in one job (mpirun a : b, or hpcomm run SPEC.toml), or use MPICH for both"
        raise ConfigError(what, verb, hint)
    if me.is_connected:
        what = f"'{me.name}' has put or got fields already"
        raise UsageError(what, verb, f"{verb} before the first of them")
    is_first = me.comm.rank == 0
    port = MPI.Open_port() if is_host and is_first else ""
    try:
        entry = {"hpcomm": 1, "name": me.name, "library": library, "programs": list(me.ranks), "port": port}
        entry |= {"on": gethostname(), "tcp": "tcp" not in os.environ.get("UCX_TLS", "").partition("^")[2]}
        found: Any = meet_by_file(path, entry, timeout_s, is_host=is_host) if is_first else None
        found = me.comm.broadcast_object(found)
        if isinstance(found, HpcommError):
            raise found
        start_up.expect_foreigners()
        late = f"'{found.peer}' was at {path}, but MPI has not joined the jobs within {_MPI_S:g} s"
        join = me.comm.context.mpi_handle.Accept if is_host else me.comm.context.mpi_handle.Connect  # type: ignore[attr-defined]
        with within(_MPI_S, f"{verb}: {late}"):
            inter = join(found.port, MPI.INFO_NULL, 0)
    finally:
        if port:
            MPI.Close_port(port)
    return admit(me, LinkContext.over(me.name, found.peer, me.comm, inter))


# -- the meeting, without MPI --------------------------------------------------------------------------


def meet_by_file(
    path: Path, entry: dict[str, object], timeout_s: float, *, is_host: bool
) -> Meeting | HpcommError:
    """Find the other program at path, or the error that every rank raises.

    Args:
        entry: what a job says of itself: name, library, programs of the job; of a host also MPI's port.
    """
    deadline = time.monotonic() + timeout_s
    try:
        return _host(path, entry, deadline) if is_host else _guest(path, entry, deadline)
    except HpcommError as error:
        return error
    except OSError as error:
        verb = "accept" if is_host else "connect"
        return ConfigError(f"no meeting at {path}: {error}", verb, "a folder that both jobs can write")


def _host(path: Path, entry: dict[str, Any], deadline: float) -> Meeting:
    hello, answer = _beside(path)
    for old, kinds in ((path, _OURS), (hello, _OURS), (answer, _ANSWER)):
        _read(old, kinds, "accept")  # which refuses what no earlier job can have left
    for old in (hello, answer):
        old.unlink(missing_ok=True)
    _write(path, entry)
    try:
        late = f"nobody has connected at {path}", "accept", "start the other job, too"
        guest = _await(lambda: _read(hello, _ENTRY, "accept"), deadline, *late)
        error = _why_not(entry, guest)
        _write(answer, {"error": error})
    finally:
        path.unlink(missing_ok=True)
    if error:
        raise ConfigError(error, "accept", _FITTING)
    return Meeting(guest["name"], entry["port"])


def _guest(path: Path, entry: dict[str, object], deadline: float) -> Meeting:
    hello, answer = _beside(path)
    late = f"nobody accepts at {path}", "connect", "start the other job, too"
    host = _await(lambda: _read(path, _ENTRY, "connect"), deadline, *late)
    _read(answer, _ANSWER, "connect")  # for it is removed at the end
    late = f"somebody else is connecting at {path}", "connect", "a path of its own for each pair of jobs"
    _await(lambda: _write(hello, entry, is_new=True), deadline, *late)
    try:
        late = f"{path} is there, but nobody answers", "connect", "remove it, if an earlier job has left it"
        error = _await(lambda: _read(answer, _ANSWER, "connect"), deadline, *late)["error"]
    finally:
        for ours in (hello, answer):
            ours.unlink(missing_ok=True)
    if error:
        raise ConfigError(error, "connect", _FITTING)
    return Meeting(host["name"], host["port"])


def _why_not(host: dict[str, Any], guest: dict[str, Any]) -> str:
    """Why two programs cannot be joined; "" if they can."""
    if guest["library"] != host["library"]:
        return f"'{host['name']}' has {host['library']}, and '{guest['name']}' {guest['library']}"
    if host.get("on") != guest.get("on") and not (host["tcp"] and guest["tcp"]):
        places = f"'{host['name']}' is on {host['on']} and '{guest['name']}' on {guest['on']}"
        return f"{places}: `hpcomm run` on one host needs --spawn to let ranks use the network"
    same = set(host["programs"]) & set(guest["programs"])
    return f"both jobs have a program '{min(same)}'" if same else ""


def _beside(path: Path) -> tuple[Path, Path]:
    return path.with_name(f"{path.name}.hello"), path.with_name(f"{path.name}.answer")


def _write(path: Path, what: dict[str, object], is_new: bool = False) -> bool:
    """Write a file that is there as a whole or not at all; whether it was, where it has to be new."""
    draft = path.with_name(f"{path.name}.{os.urandom(8).hex()}")  # which nobody can have put a link at
    made = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(made, "w", encoding="utf-8") as file:
        json.dump(what, file)
    try:
        if is_new:
            path.hardlink_to(draft)
            draft.unlink()
        else:
            draft.replace(path)
    except FileExistsError:
        draft.unlink()
        return False
    return True


def _read(path: Path, kinds: Mapping[str, type], verb: str) -> dict[str, Any] | None:
    """What _write has written; None if there is nothing yet. kinds: of its values. verb: for errors.

    Raises:
        ConfigError: it is something else, or somebody else's: whoever answers gets our messages.
    """
    try:
        found: Any = json.loads(own_files.read(path))
    except FileNotFoundError:
        return None
    except PermissionError as error:
        hint = "both jobs are one user's; take a folder of your own"
        raise ConfigError(str(error), verb, hint) from None
    except (ValueError, RecursionError):
        found = None
    said: dict[str, Any] = found if isinstance(found, dict) else {}
    is_whole = all(isinstance(said.get(key), kinds[key]) for key in kinds)
    if not is_whole or not all(isinstance(name, str) for name in said.get("programs", ())):
        raise ConfigError(f"{path} is something else than a port of hpcomm's", verb, "another path")
    return said


def _await(look: Callable[[], object], deadline: float, what: str, verb: str, hint: str) -> Any:
    """What look() returns as soon as that is something."""
    began = time.monotonic()
    while not (found := look()):
        if time.monotonic() > deadline:
            raise WaitTimeoutError(f"{what}; waited {time.monotonic() - began:.0f} s", verb, hint)
        time.sleep(_LOOK_S)
    return found
