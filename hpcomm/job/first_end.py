"""Name of the rank that ends first by a signal, where MPICH's launcher names none.

Hydra kills all ranks as soon as the connection of one breaks, and reports any of them. Only a process that is
no rank sees in which order they ended. The first rank of a node starts one, which sleeps in the kernel and
ends with the ranks. Each rank holds a pipe for it. Linux closes what has the highest number first, so that
the pipe breaks before Hydra's connection. It writes to Hydra's own stderr: on a busy machine Hydra may end
before it passes on what it is told.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from select import EPOLLIN, epoll
from struct import Struct

from .launcher import HYDRA, call, environ_of, is_supervised, launcher_of, name_of, parent_of, voice_of

_FLAGS = Struct("qq")  # ended, failed: how a rank's record begins
_HIGH = 512  # above the connection's number


def hold() -> int:
    """The number of this rank's pipe, for life; 0: nobody watches, as Hydra has not started this rank, or
    others name those that are killed."""
    launcher = launcher_of(os.getpid())
    if name_of(launcher) != "hydra_pmi_proxy" or _is_named(launcher):
        return 0
    read, write = os.pipe()
    try:
        return fcntl.fcntl(write, fcntl.F_DUPFD_CLOEXEC, _HIGH)
    except OSError:  # a limit
        return 0
    finally:
        os.close(read)
        os.close(write)


def _is_named(proxy: int) -> bool:
    """Whether `hpcomm run` names the ranks of this proxy; a plain mpiexec may run inside of its job, too."""
    if "HPCOMM_SPEC" in os.environ or "HPCOMM_JOB" not in os.environ:
        return "HPCOMM_SPEC" in os.environ
    hydra = parent_of(proxy)
    return name_of(hydra) not in HYDRA or is_supervised(hydra)


def watch(file: int, at: int, nbytes: int, ranks: Sequence[tuple[int, int]]) -> None:
    """Start the process, if all ranks of the node hold a pipe.

    Args:
        file, at, nbytes: where their records are, one behind the other.
        ranks: process and pipe of each.
    """
    opened: list[int] = []
    names: list[str] = []
    with suppress(AttributeError, KeyError, OSError):  # an old system, or a rank in another container
        queue = epoll()  # of ours: it lists ends in their order also before the process looks
        for process, pipe in ranks:
            names.append(f"rank {environ_of(process)['PMI_RANK']} (process {process})")
            opened.append(os.open(f"/proc/{process}/fd/{pipe}", os.O_RDONLY | os.O_NONBLOCK))
            opened.append(os.pidfd_open(process))  # its children may hold the pipe, too
        for each in opened:
            queue.register(each, EPOLLIN)
        files = queue.fileno(), file, *opened
        words = call("job.first_end", f"{at}", f"{nbytes}", *map(str, files), *names)
        hydra = parent_of(launcher_of(os.getpid()))
        no, said = subprocess.DEVNULL, voice_of(hydra) if name_of(hydra) in HYDRA else None
        opened += [] if said is None else [said]
        # A session of its own, or it would be killed with us.
        left = subprocess.Popen(
            words, stdin=no, stdout=no, stderr=said, start_new_session=True, pass_fds=files
        )
        left.returncode = 0  # nobody waits for it
    for each in opened:
        os.close(each)


def main(words: Sequence[str]) -> None:
    """AT NBYTES QUEUE FILE (PIPE PIDFD)... NAME...: say which of them ends first, if it does not itself."""
    at, nbytes, queue, file = map(int, words[:4])
    n = (len(words) - 4) // 3
    ranks = {int(each): i // 2 for i, each in enumerate(words[4 : 4 + 2 * n])}
    names, ends, living = words[4 + 2 * n :], epoll.fromfd(queue), set(range(n))

    def has_said(i: int) -> bool:
        return any(_FLAGS.unpack(os.pread(file, _FLAGS.size, at + i * nbytes)))

    while living:
        [(each, _)] = ends.poll(maxevents=1)  # the first one first
        ends.unregister(each)
        i = ranks[each]
        living.discard(i)
        if not has_said(i):
            if not any(map(has_said, range(n))):
                what = f"{names[i]} on {os.uname().nodename} was the first to end, by a signal or MPI_Abort"
                print(f"hpcomm: {what}", file=sys.stderr, flush=True)
            return
