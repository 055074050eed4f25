"""Kill a random rank of a job that is to go on, at a random moment, many times; see that it does, rightly.

python tests/mpi_jobs/random_deaths.py                     # 50 kills; minutes, so not in CI
python tests/mpi_jobs/random_deaths.py --kills 5 --seed 3 --kind core

The jobs have four ranks under `hpcomm run --survive`, which needs Open MPI. They count exactly, so that
a step too few or too many shows. What each rank had open is looked for after the end: memory in /dev/shm,
ports where it listened, processes. A line for each kill; status 1 if one of the jobs went wrong.
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
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
from random_kills import end, marked  # noqa: E402
from steady import steady_time  # noqa: E402

RANKS, MARK = 4, "HPCOMM_TEST_KILL"
LIMIT_S = 60.0  # of steady time: for the rank to be there, and for the job to end in
PROGRAM = """
import os, time
import numpy as np
import hpcomm
comm = hpcomm.world
total, step, steps = np.zeros(8, "int64"), 0, {steps}
died = ()

def once(comm):
    {step}

def whole(part):
    '''What all ranks bring of a step: the same, however many they are.'''
    return comm.all_reduce(np.full(part.shape, sum(range(comm.rank, 60, comm.size))) + 0 * part)

print("at work", comm.rank, os.getpid(), flush=True)
while True:
    try:
        total, step = max(comm.all_gather_object((total, step)), key=lambda its: its[1])
        while step < steps or comm.size == {ranks}:
            once(comm)
            total, step = total + whole(total), step + 1
        is_done = True
    except hpcomm.PeerFailedError as error:
        is_done, died = False, error.ranks
        comm.revoke()
    began = time.monotonic()
    if comm.agree(is_done):
        break
    comm = comm.shrink()
    back_s = time.monotonic() - began
assert comm.size == {ranks} - 1 and (total == step * sum(range(60))).all(), (comm.size, step, total)
print(f"right {{died}} {{back_s:.3f}}", flush=True)
"""
RING = "right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size"
KINDS = {
    "core": "comm.all_reduce(np.ones(1000)); comm.broadcast(np.ones(4), 0)",
    "long": "comm.all_reduce(np.ones(300_000)); comm.all_to_all(np.ones((comm.size, 50_000)))",
    "message": f"{RING}; out = comm.isend(np.ones(999), right); comm.recv(np.empty(999), left); out.wait()",
    "object": "comm.all_gather_object('a' * 50_000); comm.broadcast_object({}, 0)",
    "background": "comm.all_reduce(np.ones(2000), async_op=True).wait(); comm.barrier(async_op=True).wait()",
    "between": "time.sleep(0.02)",
}


def listening() -> dict[str, str]:
    """Ports of this host where somebody listens, by the socket."""
    lines = [
        line.split()
        for name in ("tcp", "tcp6")
        for line in Path("/proc/net", name).read_text().splitlines()[1:]
    ]
    return {words[9]: words[1].rpartition(":")[2] for words in lines if words[3] == "0A"}


def held(mark: str) -> tuple[set[str], set[str]]:
    """What the processes of a job have: files in /dev/shm, ports where they listen."""
    files, ports, open_here = set(), set(), listening()
    for pid in marked(mark):
        try:
            maps = Path(f"/proc/{pid}/maps").read_text()
            sockets = [str(each.readlink()) for each in Path(f"/proc/{pid}/fd").iterdir()]
        except OSError:  # it has ended
            continue
        files |= set(re.findall(r"/dev/shm/\S+", maps))
        ports |= {open_here[found] for each in sockets if (found := each.strip("socket:[]")) in open_here}
    return files, ports


def kill(kind: str, rank: int, after_s: float, folder: Path, steps: int = 40) -> tuple[str, str]:
    """What is wrong with how the job has gone on ("" if nothing), and what it said, or how long that took."""
    program, printed = folder / "program.py", folder / "printed"
    program.write_text(PROGRAM.format(steps=steps, ranks=RANKS, step=KINDS[kind]))
    words = [sys.executable, "-m", "hpcomm", "run", "--survive", "-n", str(RANKS), "python", str(program)]
    env = {**os.environ, MARK: str(folder), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    with printed.open("w") as out:
        job = subprocess.Popen(
            words, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
        )
    try:
        since = steady_time()
        while len(pids := dict(re.findall(r"at work (\d+) (\d+)", printed.read_text()))) < RANKS:
            if steady_time() - since > LIMIT_S or job.poll() is not None:
                return "the ranks have not begun", printed.read_text()
            time.sleep(0.01)
        files, ports = held(str(folder))
        time.sleep(after_s)
        if job.poll() is not None:
            return "it ended by itself", printed.read_text()
        os.kill(int(pids[str(rank)]), signal.SIGKILL)
        begin, since = time.monotonic(), steady_time()
        while job.poll() is None and steady_time() - since < LIMIT_S:
            time.sleep(0.01)
        if job.poll() is None:
            return "it has not ended", printed.read_text()
        said, end_s = printed.read_text(), time.monotonic() - begin
        wrong = judged(job.returncode, rank, said, str(folder), files, ports)
        return (
            (wrong, said)
            if wrong
            else ("", f"gone on after {slowest(said):.2f} s, ended after {end_s:.1f} s")
        )
    finally:
        end(job, str(folder))


def slowest(said: str) -> float:
    return max(float(seconds) for seconds in re.findall(r"^right .* ([\d.]+)$", said, re.MULTILINE))


def judged(status: int, rank: int, said: str, mark: str, files: set[str], ports: set[str]) -> str:
    """What is wrong; "": nothing."""
    right = len(re.findall(rf"^right \((?:{rank},)?\) ", said, re.MULTILINE))
    left = [each for each in files if Path(each).exists()]
    left += [f"port {each}" for each in ports & {*listening().values()}]
    left += [f"process {each}" for each in marked(mark)]
    if status or right != RANKS - 1:
        return f"status {status}, {right} ranks right"
    return f"left: {', '.join(left)}" if left else ""


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kind", choices=KINDS, help="default: all of them")
    given = parser.parse_args(words)
    dice, failures = random.Random(given.seed), 0
    for number in range(given.kills):
        kind, rank = given.kind or dice.choice([*KINDS]), dice.randrange(RANKS)
        after_s = dice.uniform(0.0, 1.0)
        with tempfile.TemporaryDirectory(prefix="hpcomm-death-") as folder:
            wrong, said = kill(kind, rank, after_s, Path(folder))
        failures += bool(wrong)
        what = f"{kind}: rank {rank}, {after_s:.2f} s at work"
        print(f"{number}  {what}: {f'WRONG, {wrong}' if wrong else said}", flush=True)
        if wrong:
            print("".join(f"    {line}\n" for line in said.splitlines()[-40:]), end="", flush=True)
    print(f"{given.kills} kills, {failures} wrong")
    return min(failures, 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
