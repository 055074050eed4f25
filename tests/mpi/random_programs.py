"""Run many random programs: hpcomm run -n 3 python tests/mpi/random_programs.py --programs 500 --seed 1

Each seed is a program: collectives, messages, objects, plans and communicators in any order, blocking and in
the background, on arrays of any kind (random_writer.py), held against plain numpy (random_model.py). What
gives something wrong is printed, with how to run it alone; what raises or does not end ends the job, too.
Without a launcher, --shrink leaves away calls as long as it still fails:

    python tests/mpi/random_programs.py --shrink -n 3 --seed 17
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import re
import subprocess
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Iterable
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))
from random_steps import Flags, Program
from random_writer import program

LIMIT_S = 60.0  # one program
LENGTH = 14  # calls, at most


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seed", type=int, default=1, help="of the first program")
    parser.add_argument("--programs", type=int, default=1, help="how many, one seed after the other")
    parser.add_argument("--length", type=int, default=LENGTH, help="calls in a program, at most")
    parser.add_argument("--without", default="", help="of rounds,mixed,inter: what not to do (see Flags)")
    parser.add_argument("--only", default="", help="numbers of the calls to make, as in 3,4,7")
    parser.add_argument("--limit", type=float, default=LIMIT_S, help="seconds for one program")
    parser.add_argument("--show", action="store_true", help="print the programs")
    parser.add_argument("--shrink", action="store_true", help="find the calls that are needed to fail")
    parser.add_argument("-n", type=int, default=2, help="ranks, for --shrink")
    given = parser.parse_args(words)
    return shrink(given) if given.shrink else run(given)


def flags_of(without: str) -> Flags:
    return Flags(**dict.fromkeys(filter(None, without.split(",")), False))


def chosen(given: argparse.Namespace, seed: int, size: int) -> Program:
    made = program(seed, size, flags_of(given.without), given.length)
    return made.only(map(int, given.only.split(","))) if given.only else made


def run(given: argparse.Namespace) -> int:
    """All programs, on this rank of the job."""
    import torch
    from mpi4py import MPI
    from random_runner import Runner

    import hpcomm

    torch.set_num_threads(1)
    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", ".* wraps around")  # they do, where check is "full"
    world = hpcomm.Communicator(MPI.COMM_WORLD, name="world")
    start, failed = time.monotonic(), 0
    for seed in range(given.seed, given.seed + given.programs):
        made = chosen(given, seed, world.size)
        if given.show and world.rank == 0:
            print(f"# seed {seed}\n{made}", flush=True)
        runner = Runner(made, world)
        alarm = threading.Timer(given.limit, give_up, (given, made, runner))
        alarm.daemon = True
        alarm.start()
        try:
            problems = runner.run()
        except BaseException:
            text = f"rank {world.rank} at {runner.now}\n{traceback.format_exc()}"
            tell(given, made, world.rank, [text, *runner.problems])
            time.sleep(0.5)  # another rank may have more to say
            MPI.COMM_WORLD.Abort(1)
        finally:
            alarm.cancel()
            alarm.join()  # it holds the program's tensors, which no thread can let go when Python ends
        told = [each for rank in MPI.COMM_WORLD.allgather(problems) for each in rank]
        if told:
            failed += 1
            if world.rank == 0:
                tell(given, made, 0, told)
    if world.rank == 0:
        print(f"{given.programs} programs, {failed} failed, {time.monotonic() - start:.1f} s", flush=True)
    return 1 if failed else 0


def give_up(given: argparse.Namespace, made: Program, runner: object) -> None:
    """A program that does not end: say where this rank is, and end the job."""
    rank = getattr(runner, "rank", -1)
    tell(given, made, rank, [f"rank {rank} is still at {getattr(runner, 'now', None)}"])
    faulthandler.dump_traceback(all_threads=True)
    time.sleep(3)  # for the other ranks to say so too
    os._exit(3)


def again(seed: int, size: int, *options: str) -> str:
    """How to run a program alone."""
    return " ".join([f"hpcomm run -n {size} python tests/mpi/random_programs.py --seed {seed}", *options])


def tell(given: argparse.Namespace, made: Program, rank: int, problems: Iterable[str]) -> None:
    options = [f"--without {given.without}"] * bool(given.without)
    options += [f"--length {given.length}"] * (given.length != LENGTH)
    text = (
        f"\nPROGRAM {made.seed} failed on {made.size} ranks; alone: {again(made.seed, made.size, *options)}\n"
    )
    text += "\n".join(problems)
    if rank == 0:
        text += f"\nThe program:\n{made}"
    print(text, flush=True)


def shrink(given: argparse.Namespace) -> int:
    """Leave calls away, half of them, a quarter and so on, as long as the program still fails."""
    made = chosen(given, given.seed, given.n)
    kept = sorted({step.key for step in made.steps if step.verb != "wait"})
    if not fails(given, kept):
        print(f"program {given.seed} does not fail alone")
        return 0
    chunk = max(1, len(kept) // 2)
    while True:
        for at in range(0, len(kept), chunk):
            rest = kept[:at] + kept[at + chunk :]
            if rest and fails(given, rest):
                print(f"{len(rest)} calls still fail: {rest}", flush=True)
                kept = rest
                break
        else:
            if chunk == 1:
                break
            chunk = max(1, chunk // 2)
    print(f"--only {','.join(map(str, kept))}\n{chosen(given, given.seed, given.n).only(kept)}")
    return 0


def fails(given: argparse.Namespace, kept: list[int]) -> bool:
    """Whether the program fails with these calls alone."""
    words = ["run", "-n", str(given.n), "--timeout", "60", sys.executable, __file__]
    options = {"seed": given.seed, "length": given.length, "limit": 10, "only": ",".join(map(str, kept))}
    words += [word for name, value in options.items() for word in (f"--{name}", str(value))]
    words += ["--without", given.without] if given.without else []
    done = subprocess.run([sys.executable, "-m", "hpcomm", *words], capture_output=True, text=True)
    return not re.search(r"^1 programs, 0 failed", done.stdout, re.M) or done.returncode != 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
