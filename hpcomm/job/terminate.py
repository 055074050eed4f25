"""Termination of a launcher that does not end after its job was aborted.

Open MPI's waits for its daemon on each host, also behind a cut cable; and now and then it locks itself up.
So a rank that aborts leaves this behind, on the launcher's host (over ssh, from another one). MPICH's ends
by itself. Needs the standard library only.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from .launcher import (
    LOCKED_S,
    PRRTE,
    below,
    call,
    contact,
    environ_of,
    forget,
    is_locked,
    is_supervised,
    launcher_of,
    name_of,
    prrte_of,
    say_to,
    send,
    takes,
    ways,
)

GRACE_S = 5.0  # for a launcher that reaches all hosts it takes one second
_ASK_S = 1.0  # between signals; the third one counts for PRRTE
_LOOK_S = 0.1
_LONG_S = 60.0  # whatever keeps a launcher of one host for longer is no lock
_SIGNALS = (signal.SIGTERM, signal.SIGTERM, signal.SIGTERM, signal.SIGKILL)
_ABORTED = "\nhpcomm: the job has been aborted, but its launcher waits for "
_UNREACHED = f"{_ABORTED}a host that does not answer; it is ended, too: look at the network\n"
_LOCKED = f"{_ABORTED}itself; it is ended, too\n"


def leave() -> None:
    """Leave a process that ends the launcher, one for all ranks of this host; none where none is needed."""
    environ = os.environ
    launcher = launcher_of(os.getpid())
    if not launcher or name_of(launcher) not in PRRTE:
        return
    is_alone = environ.get("OMPI_COMM_WORLD_SIZE") == environ.get("OMPI_COMM_WORLD_LOCAL_SIZE")
    if is_alone and is_supervised(launcher):
        return
    if not takes(Path(environ.get("PMIX_SERVER_TMPDIR", "/none"), "hpcomm.terminating")):
        return
    words = call("job.terminate", environ["PMIX_NAMESPACE"], *["alone"] * is_alone)
    with contextlib.suppress(OSError):
        subprocess.Popen(
            ["sh", "-c", " || ".join(map(shlex.join, ways(launcher, words)))],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,  # not ours: the launcher waits for their ends
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )


def main(words: Sequence[str]) -> None:
    """`SPACE`: end the launcher of that job, on this host, if it does not end by itself.

    `SPACE alone`: its only host is this one, so it ends by itself unless it has locked itself up.
    """
    _, pid = prrte_of(words[0])
    if name_of(pid) not in PRRTE:
        raise SystemExit(f"no launcher of {words[0]} here")
    environ = environ_of(pid)
    if words[1:]:
        if _locks(pid):
            say_to(pid, _LOCKED)
            send([pid], signal.SIGKILL)  # its other signals go through the thread that waits
            forget(pid, environ)
        return
    file = contact(pid)
    if file is None or not takes(file.with_name("hpcomm.terminated")) or _ends(pid, GRACE_S):
        return
    say_to(pid, _UNREACHED)  # as our stderr is closed
    agents = below(pid)
    for number in _SIGNALS:
        send([pid], number)
        if _ends(pid, _ASK_S):
            forget(pid, environ)
            break
    # ssh to hosts that do not answer, which holds what the launcher's output goes to
    send(agents, signal.SIGTERM)


def _ends(pid: int, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while name_of(pid) in PRRTE:  # a zombie has no name
        if time.monotonic() > deadline:
            return False
        time.sleep(_LOOK_S)
    return True


def _locks(pid: int) -> bool:
    """Whether it locks itself up before it ends."""
    since, deadline = time.monotonic(), time.monotonic() + _LONG_S
    while not _ends(pid, _LOOK_S) and time.monotonic() < deadline:
        if not is_locked(pid):
            since = time.monotonic()
        elif time.monotonic() - since > LOCKED_S:
            return True
    return False
