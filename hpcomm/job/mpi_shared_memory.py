"""MPI's own files in /dev/shm: which jobs would share theirs, and what killed ranks leave behind.

Open MPI names its files by a hash of 16 bits of its launcher's name. Two jobs of one hash at a time would use
the same files: they crash, or read each other's messages. So `hpcomm run` reserves the hash of its job.

MPICH keeps the name of its file until MPI_Finalize. Whose it is shows in the maps of the processes that use
it, and no longer when they have ended. So `hpcomm run` hears of each new file, and looks at its ranks then.
The files of a job's hosts have one name, followed by the number of the host. Where the launcher's host has no
rank, one of the others is asked to look:

    hpcomm run, on h1 ─┬─ mpiexec ─┬─ ssh h2 hydra_pmi_proxy ─── rank 0
                       │           └─ ssh h3 hydra_pmi_proxy ─── rank 1
                       ├─ ssh h2 python (main) ──> names            as long as the job
                       └─ ssh h2 rm names, ssh h3 rm names          when it has ended by a failure
"""

from __future__ import annotations

import _socket  # socket itself takes 2 ms at every start
import os
import re
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from .launcher import after, below, call, children_of, read_of, words_of

YOUNG_S = 5.0  # a segment that is younger may belong to a job that just comes up
_FOLDER = "/dev/shm"
_SEGMENT = re.compile(_FOLDER + r"/(?:mpich_shm_|sm_segment\.|vader_segment\.)\S+")  # MPICH's, Open MPI's
_MPICH = re.compile(_FOLDER + r"/mpich_shm_\w+")
_MAPPED_S = 5.0  # by then who makes a file has mapped it, also where many share a core
_LOOKS_S = (0.01, 0.2)  # shortest and longest time between two looks at who has
_IN_CREATE = 0x100  # of inotify(7)
_REMOVE_S = 5.0  # for one host to remove a file
_WORD = 0xFFFFFFFF
_noticed: set[Path] = set()
_reserved: list[_socket.socket] = []
_elsewhere: set[tuple[str, ...]] = set()  # what runs a command on another host of the job, in front of it


def reserve() -> Callable[[int], bool]:
    """Keep other jobs, as long as the process lives that calls this, from the names of a job's files.

    Returns:
        What a launcher of Open MPI's calls with its number, before it begins: whether the names are free. No
        other `hpcomm run` of this machine has reserved them, and no job uses them.
    """
    host, mark = _socket.gethostname().partition(".")[0], _socket.socket(_socket.AF_UNIX, _socket.SOCK_DGRAM)
    _reserved.append(mark)

    def is_free(launcher: int) -> bool:
        number = family(f"prterun-{host}-{launcher}")
        try:
            mark.bind(f"\0hpcomm-{os.geteuid()}-{number:x}")  # in the child; the socket is the parent's, too
        except OSError:
            return False
        return not os.path.exists(f"{_FOLDER}/sm_segment.{host}.{os.geteuid()}.{number << 16 | 1:x}.0")  # noqa: PTH110

    return is_free


def family(name: str) -> int:
    """The hash of a launcher's name that Open MPI 5 takes: one-at-a-time (B. Jenkins, 1997), of 16 bits."""
    value = 0
    for byte in name.encode():
        value += byte
        value = value + (value << 10) & _WORD
        value ^= value >> 6
    value = value + (value << 3) & _WORD
    value ^= value >> 11
    value = value + (value << 15) & _WORD
    return (value >> 16 ^ value) & 0xFFFF


def stale_segments() -> dict[Path, int]:
    """Files of our user's that MPI left in /dev/shm and no running process uses, with their bytes."""
    found = {}
    for path in sorted(Path(_FOLDER).glob("*")):
        with suppress(FileNotFoundError):  # its job has just ended
            about = path.lstat()
            is_old = time.time() - about.st_mtime > YOUNG_S
            if _SEGMENT.fullmatch(str(path)) and about.st_uid == os.geteuid() and is_old:
                found[path] = about.st_size
    used = mapped(int(process.name) for process in Path("/proc").glob("[0-9]*"))
    return {path: nbytes for path, nbytes in found.items() if path not in used}


def mapped(pids: Iterable[int]) -> set[Path]:
    """MPI's files in /dev/shm that these processes have mapped."""
    return {Path(name) for pid in pids for name in _SEGMENT.findall(read_of(pid, "maps"))}


def watch() -> int:
    """A file that can be read when something has been made in /dev/shm; -1: the system has none."""
    if sys.platform != "linux":
        return -1
    import ctypes

    libc = ctypes.CDLL(None)
    file: int = libc.inotify_init1(os.O_CLOEXEC)
    return file if file < 0 or libc.inotify_add_watch(file, _FOLDER.encode(), _IN_CREATE) >= 0 else -1


def notice(file: int, launcher: int) -> None:
    """Remember MPICH's files that processes below launcher make. Never returns; file: of watch()."""
    for found in _new(file, lambda: below(launcher)):
        _note(found, launcher)


def ask(launcher: int, mark: str) -> None:
    """Remember what a host of the job tells of MPICH's files, if no rank is here. Returns when it ends."""
    wait_s, longest = _LOOKS_S
    while not (begun := [words_of(child) for child in children_of(launcher)]) or words_of(launcher) in begun:
        time.sleep(wait_s)  # it has begun none, or one is still a copy of itself
        wait_s = min(2 * wait_s, longest)
    if not all(map(_agent, begun)) or after(begun[0], "--launcher") not in ("ssh", "rsh"):
        return
    import shlex

    command = [*_agent(begun[0]), shlex.join(call("job.mpi_shared_memory", mark))]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True) as asked:
        for line in asked.stdout or ():
            _note(map(Path, _MPICH.findall(line)), launcher)


def main(words: Sequence[str]) -> None:
    """MARK: print MPICH's files that this job makes on this host, until the standard input ends."""
    from .supervise import members

    def ranks() -> list[int]:
        return [pid for pid, _ in members(words[0])]

    def end() -> None:
        sys.stdin.read()
        os._exit(0)

    threading.Thread(target=end, daemon=True).start()
    file = watch()
    print(*mapped(ranks()), flush=True)
    for found in _new(file, ranks):
        print(*found, flush=True)


def _note(files: Iterable[Path], launcher: int) -> None:
    _noticed.update(files)
    _elsewhere.update(filter(None, map(_agent, map(words_of, children_of(launcher)))))


def _new(file: int, whose: Callable[[], Iterable[int]]) -> Iterator[set[Path]]:
    """MPICH's new files that processes of whose() have mapped, for ever; file: of watch()."""
    shortest, longest = _LOOKS_S
    there: set[Path] = set()
    unknown: dict[Path, float] = {}  # new files, and until when one of these processes may map them
    wait_s = shortest
    while True:
        if select.select([file], [], [], wait_s if unknown else None)[0]:
            os.read(file, 4096)
            before, there = there, {*Path(_FOLDER).glob("mpich_shm_*")}
            unknown |= dict.fromkeys(there - before, time.monotonic() + _MAPPED_S)
            wait_s = shortest
        if unknown:
            if ours := unknown.keys() & mapped(whose()):
                yield ours
            now = time.monotonic()
            unknown = {path: end for path, end in unknown.items() if path not in ours and now < end}
            wait_s = min(2 * wait_s, longest)


def _agent(words: Sequence[str]) -> tuple[str, ...]:
    """The words `ssh HOST` of `ssh HOST .../hydra_pmi_proxy ...`, to ask nothing; none: they are others."""
    at = next((i for i, word in enumerate(words) if word.strip('"').endswith("hydra_pmi_proxy")), 0)
    batch = ("-o", "BatchMode=yes") if at and Path(words[0]).name == "ssh" else ()
    return (*words[:1], *batch, *words[1:at]) if at else ()


def remove_noticed() -> None:
    """Take away what notice() and ask() have seen of a job that has ended, on all hosts."""
    noticed, agents = tuple(_noticed), tuple(_elsewhere)  # a thread may still add some
    for path in noticed:
        path.unlink(missing_ok=True)
    shared = {str(path).rpartition("_")[0] for path in noticed}
    names = [f"{name}_{host}" for name in shared for host in range(len(agents) + 1)]
    asked = [
        subprocess.Popen(
            [*agent, "rm", "-f", "--", *names], stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        for agent in agents
    ]
    until = time.monotonic() + _REMOVE_S
    for each in asked:
        with suppress(subprocess.TimeoutExpired):  # a host that does not answer: its file stays
            each.wait(max(0.0, until - time.monotonic()))
            continue
        each.kill()
