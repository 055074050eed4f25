"""All ranks compare how a test went, on a communicator of their own and within a deadline.

A test that fails on one rank only would leave the others waiting for messages that never come, or
would let the next test begin out of step. So after every test each rank tells its outcome to all:
one failure fails the test everywhere. When a rank does not come, the stacks of all ranks on this
machine are printed and the job ends.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import socket
import sys
import threading
import time
import zlib
from dataclasses import dataclass

from mpi4py import MPI
from steady import steady_time

_TEXT = 1536
_FIELD = _TEXT + 64


@dataclass(frozen=True)
class Verdict:
    """How a test went on one rank."""

    rank: int
    outcome: str
    name: str
    text: str


class Agreement:
    """A private communicator of all ranks and the process ids behind it."""

    def __init__(self, world: MPI.Intracomm, deadline_s: float, stderr_fd: int) -> None:
        self._comm = world.Dup()
        self._deadline_s = deadline_s
        self._stderr_fd = stderr_fd
        self._waiting = ""  # what this rank has to say while it waits for the others
        faulthandler.register(signal.SIGUSR1, file=stderr_fd, all_threads=True)
        everyone = self._comm.allgather((socket.gethostname(), os.getpid()))
        here = socket.gethostname()
        self._pids = [pid for host, pid in everyone if host == here and pid != os.getpid()]

    def compare(self, outcome: str, name: str, text: str = "") -> list[Verdict]:
        """Tell the others, and learn from them, how the test called name went.

        Ends the job when somebody does not answer in time, or runs another test.
        """
        mine = bytearray(_FIELD)
        head = f"{outcome} {zlib.crc32(name.encode())}\n{text}"
        mine[: len(head.encode()[:_FIELD])] = head.encode()[:_FIELD]
        every = bytearray(_FIELD * self._comm.size)
        request = self._comm.Iallgather([mine, MPI.BYTE], [every, MPI.BYTE])
        self._waiting = f"{name}: {outcome} here, and not every rank came to say how it went.\n{text}"
        self._wait(request)
        self._waiting = ""
        verdicts = []
        for rank in range(self._comm.size):
            field = bytes(every[rank * _FIELD : (rank + 1) * _FIELD]).rstrip(b"\0").decode(errors="replace")
            first, _, rest = field.partition("\n")
            said, crc = first.split()
            if int(crc) != zlib.crc32(name.encode()):
                self.end_job(f"rank {rank} runs another test than rank {self._comm.rank}, which runs {name}")
            verdicts.append(Verdict(rank, said, name, rest))
        return verdicts

    def together(self, name: str, example: str, error: BaseException | None) -> None:
        """Raise on every rank when error is set on any: for the examples of a property, which are drawn anew.

        Raises:
            AssertionError: a rank failed, or the ranks drew different examples.
        """
        text = "" if error is None else f"{type(error).__name__}: {error}"
        verdicts = self.compare("passed" if error is None else "failed", f"{name} {example}", text)
        failed = [f"rank {v.rank}: {v.text}" for v in verdicts if v.outcome != "passed"]
        if failed:
            raise AssertionError(f"{name} with {example}\n" + "\n".join(failed)) from error

    def end_job(self, why: str) -> None:
        """Print why and the stacks of all ranks on this machine, then end the job."""
        self._say(
            f"\n===== rank {self._comm.rank} of {self._comm.size} ends the job: {why}\n{self._waiting}\n"
        )
        faulthandler.dump_traceback(self._stderr_fd, all_threads=True)
        for pid in self._pids:
            self._say(f"===== asking process {pid} for its stack\n")
            try:
                os.kill(pid, signal.SIGUSR1)
            except ProcessLookupError:
                self._say(f"===== process {pid} has ended already\n")
            time.sleep(0.2)
        time.sleep(1.0)  # for the launcher to read all that: on a busy machine it is late
        sure = threading.Timer(3.0, os._exit, (1,))  # Abort may wait for a lock that a hanging call holds
        sure.daemon = True
        sure.start()
        sys.stdout.flush()
        self._comm.Abort(1)

    def _wait(self, request: MPI.Request) -> None:
        until, polls = 0.0, 0
        while not request.Test():
            polls += 1
            if polls % 64 == 0:
                until = until or steady_time() + self._deadline_s
                if steady_time() >= until:
                    self.end_job(f"waited {self._deadline_s:g} s for the others")
            time.sleep(0 if polls < 100 else 0.0002)

    def _say(self, text: str) -> None:
        os.write(self._stderr_fd, text.encode())
