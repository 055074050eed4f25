"""Start many torchruns, several at once, some with a crash and a restart; count the good, and what they left.

python tests/torch_jobs/many_starts.py            # 50 starts, 4 at once, of 2 ranks; minutes, so not in CI
python tests/torch_jobs/many_starts.py --starts 8 --crash-every 2
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

RANK = """
import os, re, signal
import torch, torch.distributed as dist
import hpcomm.torch_backend
dist.init_process_group("mpi")
memory = re.findall("/dev/shm/(mpich_shm_[0-9a-f]+_0|hpcomm-[0-9a-f-]+)", open("/proc/self/maps").read())
print(f"memory {memory[0]}\\n", end="", flush=True)
dist.all_reduce(x := torch.ones(3))
is_first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
if os.environ["CRASH"] == "1" and os.environ["RANK"] == "1" and is_first:
    os.kill(os.getpid(), signal.SIGKILL)
dist.all_reduce(y := torch.ones(3))
print(f"sum {y[0].item()}\\n", end="", flush=True)
"""


def start(number: int, program: Path, ranks: int, crash_every: int, limit_s: float) -> tuple[bool, set[str]]:
    """Whether a start came to a good end, and the memory it used."""
    crashes = bool(crash_every) and number % crash_every == 0
    words = ["-m", "torch.distributed.run", "--standalone", "--max-restarts", "1", "--nproc-per-node"]
    done = subprocess.run(
        ["timeout", "-k", "5", str(limit_s), sys.executable, *words, str(ranks), str(program)],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "CRASH": str(int(crashes))},
        capture_output=True,
        text=True,
        check=False,
    )
    good = done.returncode == 0 and done.stdout.count(f"sum {ranks}.0") == ranks
    memory = set(re.findall(r"memory (\S+)", done.stdout))
    if not good or len(memory) != 1 + crashes:
        print(f"start {number}: status {done.returncode}\n{done.stdout}{done.stderr}", file=sys.stderr)
    return good, memory


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    for name, default in (("starts", 50), ("at-once", 4), ("ranks", 2), ("crash-every", 10), ("limit", 120)):
        parser.add_argument(f"--{name}", type=int, default=default)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(given.at_once) as pool:
        program = Path(folder, "rank_supervisor.py")
        program.write_text(RANK)
        one = partial(
            start, program=program, ranks=given.ranks, crash_every=given.crash_every, limit_s=given.limit
        )
        found = list(pool.map(one, range(given.starts)))
    names = [name for _, memory in found for name in memory]
    left = [name for name in names if Path("/dev/shm", name).exists()]
    good = sum(good for good, _ in found)
    print(f"{good} of {given.starts} good, {given.at_once} at once")
    print(f"{len(names)} names, {len(set(names))} different")
    print(f"left in /dev/shm: {left or 'nothing'}")
    sys.exit(good != given.starts or bool(left) or len(set(names)) != len(names))


if __name__ == "__main__":
    main()
