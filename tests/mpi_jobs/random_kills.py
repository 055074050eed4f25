"""Kill a random rank of a job at a random moment, many times; see that the job ends soon and says who it was.

python tests/mpi_jobs/random_kills.py                     # 25 kills; minutes, so not in CI
python tests/mpi_jobs/random_kills.py --kills 100 --seed 3 --by mpirun --by "hpcomm run"

The jobs are of the MPI of this Python. Each has three ranks, which reduce arrays and send each other messages
for ever. One is killed from outside by a signal, or leaves by os._exit: while Python starts, while MPI comes
up, or at work. A line for each kill; status 1 if one of the jobs went on, ended well or named nobody.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
from steady import steady_time  # noqa: E402

from hpcomm.job import installation  # noqa: E402
from hpcomm.job.launcher import environ_of, name_of, words_of  # noqa: E402

RANKS = 3
LAUNCHERS = ["mpirun", "hpcomm run", "torchrun"]  # ranks of the last one do without MPI
LIMIT_S = 10.0  # for the job to end in
STARTS_S = 60.0  # for the rank to be there
MARK = "HPCOMM_TEST_KILL"
NUMBERS = ("PMI_RANK", "OMPI_COMM_WORLD_RANK", "RANK")
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV)
NUMPY = """
from hpcomm import world as comm
import numpy as np
x, y = np.ones(1000), np.empty(1000)
right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
print("at work", flush=True)
begin()
while True:
    comm.all_reduce(x)
    going = comm.isend(x, right)
    comm.recv(y, left)
    going.wait()
    comm.all_gather_object(comm.rank)
"""
TORCH = """
import torch, torch.distributed as dist
import hpcomm.torch_backend
dist.init_process_group("mpi")
x, y = torch.ones(1000), torch.empty(1000)
rank, size = dist.get_rank(), dist.get_world_size()
print("at work", flush=True)
begin()
while True:
    dist.all_reduce(x.clone())
    going = dist.isend(x, (rank + 1) % size)
    dist.recv(y, (rank - 1) % size)
    going.wait()
    dist.barrier()
"""
LEAVES = """
import os, threading
def begin(is_at_work=True):
    rank = next(os.environ[name] for name in {numbers} if name in os.environ)
    if {leaves} and int(rank) == {rank} and is_at_work == {at_work}:
        threading.Timer({after_s}, lambda: os._exit({status})).start()
begin(False)
"""


class Kill(NamedTuple):
    """A rank, how it ends (a signal, or the status of os._exit), and how long after its start, or at work."""

    by: str
    kind: str
    rank: int
    number: signal.Signals | None
    status: int
    at_work: bool
    after_s: float

    def __str__(self) -> str:
        how = self.number.name if self.number else f"os._exit({self.status})"
        when = f"{self.after_s:.2f} s {'at work' if self.at_work else 'after its start'}"
        return f"{self.by}, {self.kind}: {how} of rank {self.rank}, {when}"


def drawn(dice: random.Random, launchers: list[str]) -> Kill:
    by = dice.choice(launchers)
    kind = "torch" if by == "torchrun" else dice.choice(("numpy", "numpy", "torch"))
    number = dice.choice((*SIGNALS, None))
    # MPICH's own launcher waits for ranks that stand in MPI_Init where one has left before that.
    at_work = dice.random() < 0.5 or (by == "mpirun" and number is None and is_mpich())
    after_s = dice.uniform(0.0, 1.0 if at_work else 2.0 if kind == "numpy" else 6.0)
    return Kill(by, kind, dice.randrange(RANKS), number, dice.randrange(1, 125), at_work, after_s)


def is_mpich() -> bool:
    library = installation.library_folder()
    return library is not None and installation.vendor_in(library) == "mpich"


def command(by: str, program: Path) -> list[str]:
    if by == "torchrun":
        words = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS)]
        return [sys.executable, *words, str(program)]
    if by == "hpcomm run":
        return [sys.executable, "-m", "hpcomm", "run", "-n", str(RANKS), "python", str(program)]
    mpirun = str(Path(sys.prefix, "bin", "mpirun"))
    options = [] if is_mpich() else ["--oversubscribe"]
    return [mpirun, *options, "-n", str(RANKS), sys.executable, str(program)]


def process_of(rank: int, mark: str, program: Path) -> int:
    """The process of a rank, as soon as it runs Python; 0: there is none (yet)."""
    for found in Path("/proc").glob("[0-9]*"):
        pid = int(found.name)
        environ = environ_of(pid)
        if environ.get(MARK) != mark or not name_of(pid).startswith("python"):
            continue
        if str(program) in words_of(pid)[1:3] and str(rank) in [environ.get(name) for name in NUMBERS]:
            return pid
    return 0


def kill(what: Kill, folder: Path) -> tuple[str, str]:
    """What is wrong with how the job ended ("" if nothing), and what it said or how long it took."""
    program, mark, printed = folder / "program.py", str(folder), folder / "printed"
    leaves = LEAVES.format(numbers=NUMBERS, leaves=what.number is None, **what._asdict())
    program.write_text(leaves + (NUMPY if what.kind == "numpy" else TORCH))
    env = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", MARK: mark}
    env["PYTHONPATH"], env["OMP_NUM_THREADS"] = str(ROOT), "1"
    with printed.open("w") as out:
        job = subprocess.Popen(
            command(what.by, program),
            env={**os.environ, **env},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
    try:
        pid, since = 0, steady_time()
        while not pid or (what.at_work and printed.read_text().count("at work") < RANKS):
            pid = pid or process_of(what.rank, mark, program)
            if job.poll() is not None and not pid:
                return "it ended by itself", printed.read_text() + job.communicate()[1]
            if steady_time() - since > STARTS_S:
                return "the rank has not begun", printed.read_text()
            time.sleep(0.01)
        time.sleep(what.after_s)
        if what.number and job.poll() is None:
            os.kill(pid, what.number)
        return judged(what, pid, job, printed)
    finally:
        end(job, mark)


def judged(what: Kill, pid: int, job: subprocess.Popen[str], printed: Path) -> tuple[str, str]:
    """See kill; pid: the rank's process."""
    since = steady_time()
    try:
        said = job.communicate(timeout=LIMIT_S)[1] + printed.read_text()
    except subprocess.TimeoutExpired as error:
        said = (error.stderr or b"").decode(errors="replace") + printed.read_text()
        return f"it had not ended {LIMIT_S:g} s later", said
    if job.returncode == 0:
        return "it ended with status 0", said
    # MPICH's own launcher names nobody, and hpcomm does so once its ranks are up.
    must_name = "at work" in said or ("[mpiexec@" not in said and "BAD TERMINATION" not in said)
    if must_name and not names(said, what.rank, pid):
        return "it names nobody", said
    return "", f"status {job.returncode} after {steady_time() - since:.1f} s"


def names(text: str, rank: int, pid: int) -> bool:
    """Whether the rank is named: by its number, as torchrun and Open MPI do, or by its process."""
    return bool(re.search(rf"rank\s*:?\s*{rank}\b|\[prterun-\S+,\s*{rank}\]|PID {pid}\b", text))


def end(job: subprocess.Popen[str], mark: str) -> None:
    """Kill what is left of a job."""
    for pid in marked(mark):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    job.wait()


def marked(mark: str) -> Iterator[int]:
    for found in Path("/proc").glob("[0-9]*"):
        if environ_of(int(found.name)).get(MARK) == mark:
            yield int(found.name)


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--kills", type=int, default=25)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--by", action="append", choices=LAUNCHERS, help="default: all of them")
    given = parser.parse_args(words)
    dice, failures = random.Random(given.seed), 0
    for number in range(given.kills):
        what = drawn(dice, given.by or LAUNCHERS)
        with tempfile.TemporaryDirectory(prefix="hpcomm-kill-") as folder:
            wrong, said = kill(what, Path(folder))
        failures += bool(wrong)
        print(f"{number}  {what}: {f'WRONG, {wrong}' if wrong else said}", flush=True)
        if wrong:
            print("".join(f"    {line}\n" for line in said.splitlines()[-40:]), end="", flush=True)
    print(f"{given.kills} kills, {failures} wrong")
    return min(failures, 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
