"""Launcher of a job, seen from its ranks: which process it is, on which host, and what it was told.

    mpirun, on h1 ─┬─ rank 0              Open MPI's launcher is the parent of its host's ranks,
                   └─ ssh ─> prted, on h2 ─── rank 1         elsewhere a daemon of its own is;
    mpiexec ─┬─ hydra_pmi_proxy ─── rank 0         MPICH's keeps a proxy for each host.
             └─ ssh ─> hydra_pmi_proxy, on h2 ─── rank 1

Reads /proc (Linux; what it cannot read is empty). Needs the standard library only.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import select
import stat
import sys
import time
from itertools import pairwise
from typing import TYPE_CHECKING

from . import variables

if TYPE_CHECKING:
    import pathlib
    import subprocess
    from collections.abc import Mapping, Sequence
else:
    from .._lazy import LazyModule

    pathlib, subprocess = LazyModule("pathlib"), LazyModule("subprocess")

_EXEC_S = 1.0  # also where a program's file is read from afar
_SIGNALS_S = 0.1  # between two looks for signals
LOCKED_S = 3.0  # a launcher without ranks that waits for a lock of its own for so long waits for ever
HYDRA = ("mpiexec", "mpirun", "mpiexec.hydra")
PRRTE = ("prterun", "prted", "mpirun", "mpiexec", "prte")  # Open MPI's launcher and its daemons
SLURM = "slurmstepd"
_FOLDERS = ("PRTE_MCA_prte_tmpdir_base", "TMPDIR", "TEMP", "TMP")  # variables of where it keeps its own
_SUPERVISOR = ["-m", "hpcomm.job.rank_supervisor"]
_LAUNCHERS = (*PRRTE, "orterun", "orted", "hydra_pmi_proxy", SLURM)
FIRST = "first"  # a file of a job, on its launcher's host: the status of the first rank that has failed
# MPICH's launcher kills the others at once and names nobody, so a rank runs under a shell that does.
# A shell that is asked to end, with all processes of the rank's session, is silent: who asked knows why.
# Where a rank leaves before MPI is up, with a failure, that launcher lets the others wait in MPI_Init. hpcomm
# leaves a file of a rank in which it was up and that has failed: then it ends the job itself.
_NAMING = "; ".join(
    (
        "trap asked=1 HUP INT QUIT ABRT USR1 USR2 TERM",
        '(exec "$@")',
        "status=$? here=$HPCOMM_LIVING",
        '[ -d "$here" ] && : > "$here/.left-$PMI_RANK"',
        "how='was ended by signal '$((status - 128))",
        'if [ $status -gt 128 ]; then [ -z "$asked" ] && name=$(kill -l $status 2>/dev/null) || exit $status',
        'else set -- "$here/$PMI_RANK-"*',
        '[ $status -gt 0 ] && [ -d "$here" ] && [ ! -e "$1" ] || exit $status',
        'for _ in 1 2 3 4 5 6 7 8 9; do sleep 0.2; set -- "$here"/.left-*',
        '[ -z "$asked" ] && [ $# -lt ${MPI_LOCALNRANKS:-$PMI_SIZE} ] || exit $status; done',
        'name=TERM how="ended with status $status while others ran, before it used hpcomm"; fi',
        f'[ -d "$here" ] && (set -C; echo $status > "$here/{FIRST}") 2>/dev/null',
        '[ $status -gt 128 ] && how="$how (SIG$name)"',
        'echo "hpcomm run: rank $PMI_RANK on $(uname -n) $how" >&2',
        "trap - $name; ulimit -c 0; kill -$name $$; exit $status",
    )
)
_BECOMING = 'exec "$@"'
_SHELL, _END = ("/bin/sh", "-c"), "rank"  # and the word between the shell's commands and the rank's
_CALL = "import sys; sys.path.insert(0, sys.argv[1]); from hpcomm.{0} import main; main(sys.argv[2:])"


def launcher_of(pid: int) -> int:
    """The process that has started this rank, over whatever it is wrapped in; 0: none is known."""
    while pid > 1 and name_of(pid) not in _LAUNCHERS:
        pid = parent_of(pid)
    return pid if pid > 1 else 0


def reader_of(pid: int) -> int:
    """The process that has the end of what this rank says: its supervisor, or its launcher; 0: none."""
    launcher = launcher_of(pid)
    while pid != launcher and words_of(pid)[1:3] != _SUPERVISOR:
        pid = parent_of(pid) if pid > 1 else launcher
    return pid


def line_of(launcher: int) -> list[str]:
    """The words that a user started it with, if they are known on this host.

    MPICH's launcher keeps them one process further up, Slurm's anywhere, the daemons of both MPIs not.
    """
    name = name_of(launcher)
    if name == SLURM:
        jobs = (environ_of(child).get("SLURM_JOB_ID", "") for child in children_of(launcher))
        return _srun_of(next(jobs, ""))
    if name == "hydra_pmi_proxy":
        launcher = parent_of(launcher)
        return words_of(launcher) if name_of(launcher) in HYDRA else []
    return [] if name in ("prted", "orted") else words_of(launcher)


def _srun_of(job: str) -> list[str]:
    """The words of a job's srun, if it is on this host and the only one; its multi-prog file by full path."""
    found = {}
    for process in filter(is_ours, pathlib.Path("/proc").glob("[0-9]*")):
        pid = int(process.name)
        if name_of(pid) == "srun" and environ_of(pid).get("SLURM_JOB_ID") == job:
            words = words_of(pid)
            if "--multi-prog" in words:
                words[-1] = os.path.realpath(f"/proc/{pid}/cwd/{words[-1]}")
            found[tuple(words)] = words  # it forks
    return found.popitem()[1] if len(found) == 1 else []


def command_of(rank: int, line: Sequence[str]) -> str:
    """What a launcher's command line `-n 1 python a.py : -n 3 python b.py` starts as this rank.

    Or Slurm's multi-prog file, of lines such as `0,2-3 python a.py`, `* python b.py`.
    """
    if "--multi-prog" in line:
        return _multi_prog(rank, line[-1]) or " ".join(line)
    first, is_srun = 0, line[0].endswith("srun")
    for words in programs_of(line[1:]):
        count, command = _counted(words, is_srun)
        if count is None:
            break
        first += count
        if rank < first:
            is_ours = (*command[:2],) == _SHELL and command[3:4] == [_END]
            return " ".join(command[4:] if is_ours else command)
    return " ".join(line)


def _counted(words: Sequence[str], is_srun: bool) -> tuple[int | None, Sequence[str]]:
    """How many ranks a program is started as, if that is said, and its command."""
    options = ["-n", "-np", "-c"]
    if is_srun:  # to which -c is a number of cores, and -n2 one word
        options, words = ["-n"], re.sub(r"(?<!\S)-n(?=\d+ )", "-n ", " ".join(words)).split(" ")
    at = next((i for i, word in enumerate(words[:-1]) if word in options), None)
    if at is None or not words[at + 1].isdecimal():
        return None, words
    return int(words[at + 1]), words[at + 2 :]


def programs_of(words: Sequence[str]) -> list[list[str]]:
    """The words of each program, of which launchers want colons between them."""
    parts: list[list[str]] = [[]]
    for word in words:
        if word == ":":
            parts.append([])
        else:
            parts[-1].append(word)
    return parts


def begun(command: Sequence[str], first: str, names: bool) -> tuple[str, ...]:
    """What runs command as a rank, after the shell's commands `first`; see command_of().

    Args:
        names: for MPICH's launcher: name the rank if a signal ends it.
    """
    return (*_SHELL, f"{first}; {_NAMING if names else _BECOMING}", _END, *command)


def is_above_rank(pid: int, supervises: bool) -> bool:
    """Whether it is a shell of ours, above a rank; supervises: or a supervisor, which passes SIGTERM on."""
    words = words_of(pid)
    is_shell = (*words[:2],) == _SHELL and words[3:4] == [_END]
    return is_shell or (supervises and words[1:3] == _SUPERVISOR)


def _multi_prog(rank: int, file: str) -> str:
    try:
        rows = [line.split(None, 1) for line in pathlib.Path(file).read_text().splitlines()]
    except OSError:
        return ""
    for ranks, command in (row for row in rows if len(row) == 2):
        for part in ranks.split(","):
            first, _, last = part.partition("-")
            if part == "*" or (first.isdecimal() and int(first) <= rank <= int(last or first)):
                return command
    return ""


def call(module: str, *words: str) -> list[str]:
    """The words that run main(words) of a module of hpcomm; without what a Python's start costs."""
    root = str(pathlib.Path(__file__).parents[2])
    return [sys.executable, "-I", "-S", "-c", _CALL.format(module), root, *words]


def prrte_of(space: str) -> tuple[str, int]:
    """Host and process of Open MPI's launcher, of a job called `prterun-node-7-1234@1`; else ("", 0)."""
    found = re.fullmatch(r"[^-]+-(.+)-(\d+)@\d+", space)
    return (found[1], int(found[2])) if found else ("", 0)


def ways(launcher: int, words: Sequence[str]) -> list[list[str]]:
    """Words that run words on the host of Open MPI's launcher, in the order in which to try: here, or by ssh.

    By what the launcher uses instead of ssh, if it was told so.
    """
    given = words_of(launcher)
    # prterun-h1-1234@0.0;tcp://10.0.0.1,10.1.0.1:47589:24,24
    uri = re.match(r"[^-]+-(.+)-\d+@[^;]*;tcp://([^:]+):", after(given, "prte_hnp_uri"))
    if uri is None:
        return [list(words)]
    import shlex

    ssh = shlex.split(after(given, "plm_ssh_agent").partition(":")[0]) or ["ssh"]
    options = ["-o", "BatchMode=yes", "-o", "ConnectTimeout=5"] if ssh == ["ssh"] else []
    return [[*ssh, *options, host, shlex.join(words)] for host in (uri[1], *uri[2].split(","))]


def takes(file: pathlib.Path) -> bool:
    """Whether we are the first to make file, in a folder that lives as long as a launcher or its daemon."""
    try:
        file.touch(exist_ok=False)
    except OSError:
        return False
    return True


def contact(pid: int) -> pathlib.Path | None:
    """The file, in a folder of the launcher's own, which says where it listens for tools of its user."""
    environ = environ_of(pid)
    for folder in map(environ.get, _FOLDERS):
        for file in pathlib.Path(folder or "/tmp").glob(f"*/pmix.*.tool.{pid}"):
            if is_ours(file) and is_ours(file.parent):
                return file
    return None


def is_ours(file: pathlib.Path | str) -> bool:
    """Whether it is there, our user's, no symbolic link, and no other user may write to it."""
    try:
        about = os.lstat(file)
    except OSError:
        return False
    is_link = stat.S_ISLNK(about.st_mode)
    return about.st_uid == os.geteuid() and not is_link and not about.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def forget(pid: int, environ: Mapping[str, str]) -> None:
    """Remove what Open MPI's launcher of this number left when it was killed, or crashed.

    The next one of that number would not start: "The PMIx server's listener thread failed to start".
    """
    for folder in map(environ.get, _FOLDERS):
        left = os.path.join(folder or "/tmp", f"ompi.{pid}")  # noqa: PTH118  at each start; pathlib is slow
        if is_ours(left):
            import shutil

            shutil.rmtree(left, ignore_errors=True)


def wrong_name(name: str) -> str:
    """What is wrong with the name of a variable that ranks are to have; empty: nothing."""
    if not name or "=" in name or "\0" in name or any(each.isspace() for each in name):
        return f"{name!r} is no name of a variable"
    return f"the variable {name} is hpcomm's own" if name in variables.OWN else ""


def host_and_slots(text: str) -> tuple[str, int] | None:
    """The host and the number of ranks of "host" or "host:4"; None: it is neither."""
    read = re.fullmatch(r"([A-Za-z0-9][A-Za-z0-9._\-\[\],]*)(?::([1-9][0-9]{0,6}))?", text)
    return None if read is None else (read[1], int(read[2] or 1))


def is_supervised(launcher: int) -> bool:
    """Whether it is a child of `hpcomm run`, which looks after it; there may be one further up, too."""
    mark = environ_of(launcher).get("HPCOMM_JOB", "").rpartition(",")[2]
    return mark.partition("-")[0] == str(parent_of(launcher))


def is_locked(pid: int) -> bool:
    """Whether it is Open MPI's launcher, has no living child, and sleeps in a lock, where no event comes.

    PRRTE 3.0.14's does now and then after an abort, and for ever: two of its threads wait for each other. On
    a busy machine the first one may just wait for another, which has no core yet: that one counts as running.
    """
    if read_of(pid, "comm") != "prterun\n" or "futex" not in read_of(pid, "wchan"):
        return False
    states = (
        read_of(pid, f"task/{thread}/stat").rpartition(")")[2].split()[:1] for thread in threads_of(pid)
    )
    if any(state in (["R"], ["D"]) for state in states):
        return False
    return all(stat_of(child)[0] in "0Z" for child in children_of(pid))  # ended, or a zombie


def voice_of(pid: int) -> int | None:
    """A launcher's own stderr: it may end before it passes on what it is told. None: ours, which it reads.

    It is on another host, or its stderr is a socket, or a file, where what two write would lie in one place.
    """
    try:
        its = os.open(f"/proc/{pid}/fd/2", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError:
        return None
    if stat.S_ISREG(os.fstat(its).st_mode):
        os.close(its)
        return None
    os.set_blocking(its, True)
    return its


def send(pids: Sequence[int], number: int) -> None:
    """Send a signal to those that have not ended just now."""
    for pid in pids:
        with contextlib.suppress(OSError):
            os.kill(pid, number)


def wait_for(process: subprocess.Popen[bytes], timeout_s: float | None = None) -> int:
    """Wait for the end of a process that we have started; its status. Signals are handled meanwhile.

    Popen.wait() does not always handle them: not one that comes between Python's own look and the system's
    wait, nor one that the system gives to another thread.

    Raises:
        TimeoutExpired: of subprocess.
    """
    until, poll, fd = time.monotonic() + (math.inf if timeout_s is None else timeout_s), select.poll(), -1
    with contextlib.suppress(AttributeError, OSError):  # no such file here: its end is seen a little later
        poll.register(fd := os.pidfd_open(process.pid), select.POLLIN)
    try:
        while (status := process.poll()) is None:
            if (left := until - time.monotonic()) <= 0:
                raise subprocess.TimeoutExpired(process.args, timeout_s or 0.0)
            poll.poll(1000 * min(left, _SIGNALS_S))
    finally:
        if fd >= 0:
            os.close(fd)
    return status


def say(text: str) -> None:
    """Write text to our own stderr, at once."""
    print(text, file=sys.stderr, flush=True)


def say_to(pid: int, text: str) -> None:
    """Write text to its stderr; nowhere if it has ended, or that is no pipe or file."""
    with contextlib.suppress(OSError):
        its = os.open(f"/proc/{pid}/fd/2", os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK | os.O_NOCTTY)
        try:
            os.write(its, text.encode())
        finally:
            os.close(its)


def after(words: Sequence[str], option: str) -> str:
    """The word behind option; "" if there is none."""
    return next((b for a, b in pairwise(words) if a == option), "")


def name_of(pid: int) -> str:
    """`prted` of `/opt/bin/prted --daemonize`; slurmstepd calls itself `slurmstepd: [12.0]`."""
    return pathlib.Path(words_of(pid)[0]).name.partition(":")[0]


def words_of(pid: int) -> list[str]:
    return _given_to(pid, "cmdline").rstrip("\0").split("\0")


def environ_of(pid: int) -> dict[str, str]:
    return dict(item.split("=", 1) for item in _given_to(pid, "environ").split("\0") if "=" in item)


def _given_to(pid: int, name: str) -> str:
    """Its cmdline or environ. Both are empty while it becomes another program: it is waited for."""
    until = time.monotonic() + _EXEC_S
    while not (given := read_of(pid, name)) and _is_in_exec(pid) and time.monotonic() < until:
        time.sleep(0.001)
    return given or read_of(pid, name)


def _is_in_exec(pid: int) -> bool:
    """Whether it has a stack for its words in proc(5)'s stat, and these are not all there."""
    arg_start, *_, env_end = stat_of(pid)[45:49]
    return arg_start != "0" and env_end == "0"


def parent_of(pid: int) -> int:
    return int(stat_of(pid)[1])


def began_of(pid: int) -> int:
    """When it began, in ticks since the machine did; 0 if it has ended. No two of one number are alike."""
    return int(stat_of(pid)[19])


def below(pid: int) -> list[int]:
    """Its children, theirs and so on."""
    return [each for child in children_of(pid) for each in (child, *below(child))]


def above(pid: int) -> list[int]:
    """Its parent, the parent of that and so on."""
    found = []
    while (pid := parent_of(pid)) > 0:
        found.append(pid)
    return found


def stat_of(pid: int | str) -> list[str]:
    """The words of proc(5)'s stat, from the state behind the name on; zeros if it has ended."""
    return read_of(pid, "stat").rpartition(")")[2].split() or 50 * ["0"]


def memory_of(pid: int | str) -> int:
    """Bytes of memory that it has; 0: it has ended."""
    return int(stat_of(pid)[21]) * os.sysconf("SC_PAGE_SIZE")


def children_of(pid: int) -> list[int]:
    """Its children, those of all its threads; none if it has ended, also meanwhile."""
    return [
        int(word) for thread in threads_of(pid) for word in read_of(pid, f"task/{thread}/children").split()
    ]


def threads_of(pid: int) -> list[str]:
    """Their numbers; none if it has ended."""
    try:
        return os.listdir(f"/proc/{pid}/task")  # noqa: PTH208  glob fails where a process ends meanwhile
    except OSError:
        return []


def read_of(pid: int | str, name: str) -> str:
    """A file of /proc; nothing if the process has ended, or is somebody else's."""
    try:
        with open(f"/proc/{pid}/{name}", "rb") as file:  # noqa: PTH123  pathlib costs a rank's start 2 ms
            return file.read().decode(errors="replace")
    except OSError:
        return ""
