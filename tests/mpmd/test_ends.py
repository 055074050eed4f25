"""A program that ends while another one waits for it ends the job, by name, within seconds."""

import os
import re
import signal
import subprocess
import sys
from textwrap import dedent

import pytest
from processes import finish
from steady import steady_time

from hpcomm.job.installation import find_mpi
from hpcomm.job.supervise import kill_members, members, settings

ENDS = {
    "an exception": ("raise ValueError('lost')", "lost"),
    "exit 3": ("sys.exit(3)", ""),
    "exit 0": ("sys.exit(0)", "ocean"),
    "a signal": ("os.kill(os.getpid(), signal.SIGKILL)", ""),
    "no Finalize": (
        "sys.stdout.flush(); os._exit(0)",
        "of 'ocean': leaves by os._exit(0) at program_0.py:",
    ),
    "an early Finalize": ("MPI.Finalize(); os._exit(0)", "ocean"),
}
WAITS = {
    "a receive": "link.comm.recv(np.zeros(1), source=0)",
    "a collective": "link.comm.all_reduce(np.zeros(1))",
    "an object": "link.comm.recv_object(0)",
    "a background wait": "link.comm.irecv(np.zeros(1), 0).wait()",
}
OCEAN = """
import os, signal, sys, time
import hpcomm
{before}
me = hpcomm.join("ocean")
from mpi4py import MPI
me.link("air").comm.barrier()
{end}
"""
AIR = """
import numpy as np
import hpcomm
me = hpcomm.join("air")
link = me.link("ocean")
link.comm.barrier()
{wait}
print("went on")
"""
PAIRS = [(end, wait) for i, end in enumerate(ENDS) for j, wait in enumerate(WAITS) if (i + j) % 4 == 0]


def judge(done, seconds, words):
    assert done.returncode not in (0, 124), done
    assert seconds < 25  # and not a time limit
    assert "went on" not in done.stdout
    assert words in done.stderr


BOTH = """
[program.ocean]
command = "python fails.py"
ranks = 3
[program.air]
command = "python fails.py"
ranks = 2
"""
FAILS = """
import os
import hpcomm
me = hpcomm.join()
if me.name in os.environ["FAIL"]:
    me.comm.all_reduce([1])
me.link("air" if me.name == "ocean" else "ocean").comm.barrier()
"""


def test_what_the_ranks_of_a_program_fail_by_is_said_once(spec, tmp_path):
    more = {"HPCOMM_TRACEBACK": "once", "FAIL": "ocean"}
    said = spec(BOTH, files={"fails.py": FAILS}, expect="failure", env=more).stderr
    assert re.search(r"\[ocean 0-2\] Traceback .*\n  File .*fails.py", said), said
    assert re.search(
        r"  \.\.\. \d+ frames of hpcomm .*\nhpcomm.errors.*\n.*'ocean' \(ranks 0-2 of 3\)", said
    ), said
    assert (said.count("Traceback"), said.count("so the job does")) == (1, 1), said

    more["FAIL"] = "ocean air"
    options = ("--files", str(tmp_path / "all"))
    said = spec(BOTH, *options, expect="failure", env=more).stderr
    assert sorted(re.findall(r"\[(.*)\] Traceback", said)) == ["air 0-1", "ocean 0-2"], said
    for rank in range(3):
        kept = (tmp_path / "all" / f"ocean.{rank}.err").read_text()
        assert f"(rank {rank} of 3)" in kept
        assert "/hpcomm/core/buffer.py" in kept


@pytest.mark.parametrize(("end", "wait"), PAIRS)
def test_without_a_spec(programs, end, wait):
    statement, words = ENDS[end]
    start = steady_time()
    done = programs(
        [(2, OCEAN.format(before="", end=statement)), (1, AIR.format(wait=WAITS[wait]))],
        expect=None,
        timeout=70,
    )
    judge(done, steady_time() - start, words)


def test_by_the_launcher_alone_a_job_that_a_program_leaves_without_finalize_has_failed(tmp_path):
    """MPICH's launcher calls that a good end; a forked child may leave so."""
    mpi = find_mpi()
    forks = "if os.fork() == 0: os._exit(0)\nos.wait()\nos._exit(0)"
    for name, source in (("ocean", OCEAN.format(before="", end=forks)), ("air", AIR)):
        (tmp_path / f"{name}.py").write_text(source.format(wait=WAITS["a receive"]))
    words = ["--oversubscribe", "--allow-run-as-root"] if mpi.vendor == "openmpi" else []
    programs = ["-n", "2", sys.executable, "ocean.py", ":", "-n", "1", sys.executable, "air.py"]
    done = finish([mpi.launcher, *words, *programs], 30, tmp_path)
    judge(done, 0, "of 'ocean': leaves by os._exit(0)")


def test_by_the_launcher_alone_a_killed_rank_of_the_world_is_told_to_be_which_program(tmp_path):
    mpi = find_mpi()
    if mpi.vendor != "openmpi":
        pytest.skip("MPICH's launcher tells a process id")
    for name, source in (("ocean", OCEAN.format(before="", end=ENDS["a signal"][0])), ("air", AIR)):
        (tmp_path / f"{name}.py").write_text(source.format(wait=WAITS["a receive"]))
    words = ["--oversubscribe", "--allow-run-as-root"]
    programs = ["-n", "1", sys.executable, "air.py", ":", "-n", "2", sys.executable, "ocean.py"]
    done = finish([mpi.launcher, *words, *programs], 30, tmp_path)
    judge(done, 0, "'ocean' ranks 1-2 (")
    assert "exited on\nsignal 9" in done.stderr


def test_of_many_ranks_two_are_told_of_an_end_and_the_others_ask_them(programs):
    """As of more than 64; a node segment, which tells the same, is shut here.

    A rank that has given its part of a call and ended is not missed in it.
    """
    few = (
        "import time\nimport hpcomm\nimport numpy as np\nfrom hpcomm.agree import letters\nletters.FEW = 1\n"
    )
    ocean = f"""{few}
me = hpcomm.join("ocean")
comm = me.link("air").comm
comm.barrier()
time.sleep(2.5 * (1 - me.comm.rank))
comm.gather_object(me.comm.rank, 2)
"""
    air = f"""{few}
me = hpcomm.join("air")
link = me.link("ocean")
link.comm.context.partners._regions.clear()
link.comm.barrier()
got = link.comm.gather_object(None, hpcomm.ROOT if me.comm.rank == 2 else hpcomm.PROC_NULL)
if me.comm.rank == 2:
    print("got", got, flush=True)
    link.comm.recv(np.zeros(1), source=0)
time.sleep(30)
"""
    done = programs([(2, ocean), (3, air)], expect="failure")
    assert "got [0, 1]" in done.stdout, done
    assert "waits for rank 0 of program 'ocean', which has ended" in done.stderr, done
    assert "rank 2 of 'air'" in done.stderr, done


LAKE = """
#include "hpcomm.h"
#include <string.h>
#include <sys/wait.h>
int main(int argc, char **argv) {
  MPI_Init(&argc, &argv);
  hpcomm_init("ocean", NULL);
  MPI_Barrier(hpcomm_link("air"));
  if (argc > 1 && !strcmp(argv[1], "_exit")) {
    if (fork() == 0) _exit(0);
    waitpid(-1, NULL, 0);
    _exit(0);
  }
  if (argc > 1) MPI_Finalize();
  return 0;
}
"""
LAKE_ENDS = {
    "": "ocean: leaves without MPI_Finalize, which ends the job",
    "_exit": "ocean: leaves without MPI_Finalize, which ends the job",
    "MPI_Finalize": "waits for rank 0 of program 'ocean', which has ended",
}


def test_by_the_launcher_alone_a_c_program_that_ends_while_another_waits_has_failed(tmp_path, in_c):
    mpi = find_mpi()
    in_c(LAKE, "lake")
    (tmp_path / "air.py").write_text(AIR.format(wait=WAITS["a receive"]))
    words = ["--oversubscribe", "--allow-run-as-root"] if mpi.vendor == "openmpi" else []
    for end, said in LAKE_ENDS.items():
        lake = [str(tmp_path / "lake"), *filter(None, [end])]
        programs = ["-n", "1", *lake, ":", "-n", "1", sys.executable, "air.py"]
        done = finish([mpi.launcher, *words, *programs], 30, tmp_path)
        judge(done, 0, said)


def test_before_init_without_a_spec_the_others_cannot_come_up_and_say_whom_they_miss(programs):
    start = steady_time()
    done = programs([(1, AIR.format(wait="")), (2, "raise SystemExit(0)")], expect=None, timeout=70)
    judge(done, steady_time() - start, "of the world (")
    assert re.search(r"ranks 1-2 of the world \(.*program_1\.py\) have ended before MPI was up", done.stderr)


SPEC = """
    [program.ocean]
    command = "python ocean.py"
    ranks = 2
    [program.air]
    command = "python air.py"
    ranks = 1
"""
EARLY = {
    "before Init": "sys.exit(0)",
    "before Init, with a failure": "sys.exit(3)",
}


# Where launchers may differ. What ends a program else is the same without a spec.
WITH_SPEC = ("exit 3", "a signal", "no Finalize", "before Init")


@pytest.mark.parametrize(
    "end", [*WITH_SPEC, pytest.param("before Init, with a failure", marks=pytest.mark.once)]
)
def test_with_a_spec_the_program_is_named_and_its_status_is_the_jobs(spec, end):
    statement = ENDS[end][0] if end in ENDS else ""
    files = {
        "ocean.py": OCEAN.format(before=EARLY.get(end, ""), end=statement),
        "air.py": AIR.format(wait=WAITS["a receive"]),
    }
    start = steady_time()
    done = spec(SPEC, files=files, expect=None, timeout=70)
    judge(done, steady_time() - start, "ocean")
    if "3" in end or "failure" in end:
        assert done.returncode == 3
        assert "'ocean'" in done.stderr
        assert "with status 3" in done.stderr


def test_a_program_that_ends_while_another_plans_its_fields(programs):
    """The wait is inside the work of a get."""
    start = steady_time()
    done = programs(
        [
            (1, 'import hpcomm\nhpcomm.join("ocean")'),
            (1, AIR.format(wait='me.get(me.takes("sst", np.zeros(1)))').replace("link.comm.barrier()", "")),
        ],
        expect=None,
        timeout=70,
    )
    judge(done, steady_time() - start, "waits for rank 0 of program 'ocean', which has ended")


def test_messages_of_a_program_that_has_ended_are_still_received(programs):
    sender = """
import numpy as np
import hpcomm
me = hpcomm.join("ocean")
for i in range(10):
    me.link("air").comm.send(np.full(3, float(i)), dest=0)
"""
    receiver = """
import time
import numpy as np
import hpcomm
me = hpcomm.join("air")
time.sleep(1.2)
for i in range(10):
    time.sleep(0.05)
    assert me.link("ocean").comm.recv(np.zeros(3), source=0)[0] == i
print("all there")
"""
    assert programs([(1, sender), (1, receiver)]).stdout == "all there\n"


LATE = {
    "a verb": (
        """
        for _ in range(9):  # each in time, though all of them are not
            link.comm.send(np.zeros(1), dest=0)
            time.sleep(0.2)
        """,
        """
        link.deadline_s = 1.5
        for _ in range(9):
            link.comm.recv(np.zeros(1), source=0)
        link.comm.recv_object(0)
        """,
        r"rank 0 of 'air': recv_object\(source=0\) at .* on 'air<->ocean' has waited \d s for the",
    ),
    "a wait in the background": (
        "",
        "link.deadline_s = 1.5\nlink.comm.irecv(np.zeros(1), 0).wait()",
        r"irecv|recv\(.* on 'air<->ocean' has waited \d s for the other program",
    ),
    "planning": (
        """
        me.gives("sst", np.zeros(1))
        hpcomm.mpmd.route.coupled_route.plan = lambda *_: time.sleep(20)
        me.connect()
        """,
        'me.takes("sst", np.zeros(1))\nme.connect(timeout=1.5)',
        r"rank 0 of 'air': connect has not planned the fields with 'ocean' within 1.5 s: look at",
    ),
}
JOINS = """
import time
import numpy as np
import hpcomm
import hpcomm.mpmd.route.coupled_route
me = hpcomm.join({!r})
link = me.link({!r})
"""


@pytest.mark.parametrize("case", LATE)
def test_what_waits_too_long_for_a_living_program_ends_the_job_by_name(programs, case):
    ocean, air, words = LATE[case]
    sources = (
        JOINS.format("ocean", "air") + dedent(ocean) + "time.sleep(20)",
        JOINS.format("air", "ocean") + dedent(air),
    )
    done = programs([(1, source) for source in sources], expect="failure", timeout=15)
    assert re.search(words, done.stderr), done.stderr


@pytest.mark.parametrize(
    "number",
    [
        pytest.param(signal.SIGTERM, marks=pytest.mark.once),
        signal.SIGINT,
        pytest.param(signal.SIGQUIT, marks=pytest.mark.once),
    ],
)
def test_a_signal_to_a_spec_ends_every_program(tmp_path, number):
    (tmp_path / "stuck.py").write_text(
        "import sys, time, hpcomm\nhpcomm.join(sys.argv[1])\nprint('up', flush=True)\ntime.sleep(1000)\n"
    )
    (tmp_path / "two.toml").write_text(
        "[program.a]\ncommand = 'python stuck.py a'\nranks = 1\n"
        "[program.b]\ncommand = 'python stuck.py b'\nranks = 2\n"
    )
    environ = {**os.environ, **settings(os.environ)}
    mark = environ["HPCOMM_JOB"].rpartition(",")[2]
    process = subprocess.Popen(
        [sys.executable, "-m", "hpcomm", "run", "two.toml"],
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=tmp_path,
    )
    try:
        while "up" not in (line := process.stdout.readline()):
            assert line, process.wait()
        process.send_signal(number)
        out, _ = process.communicate(timeout=60)
        assert process.returncode == 128 + number, out
        assert f"ended by {number.name}" in out
        assert members(mark) == [], out
    finally:
        kill_members(mark)


def test_a_spec_whose_time_is_up_shows_the_stack_of_every_rank(spec):
    text = "[program.a]\ncommand = 'python stuck.py'\nranks = 2\njoins = false\n"
    source = "import time\ndef sleeps():\n    time.sleep(1000)\nsleeps()\n"
    for limit_s in (2, 8, 32):  # on a busy machine ranks have not begun when the first is over
        done = spec(text, "--timeout", str(limit_s), files={"stuck.py": source}, expect=124)
        assert f"the job had not ended after {limit_s} s, so it was ended." in done.stderr
        if (shown := [f"[a {rank}]   File" in done.stderr for rank in (0, 1)]) == [True, True]:
            break
    assert shown == [True, True], done.stderr


def test_a_spec_whose_job_fails_is_started_again_as_often_as_it_may(spec):
    text = "[program.a]\ncommand = 'python fails.py'\nranks = 1\njoins = false\n"
    source = "import os, sys\nprint('count', os.environ['TORCHELASTIC_RESTART_COUNT'])\nsys.exit(3)\n"
    done = spec(text, "--restarts", "1", files={"fails.py": source}, expect=3)
    assert [line for line in done.stdout.splitlines() if "count" in line] == ["[a] count 0", "[a] count 1"]
    assert done.stderr.count("it is started again (1 of 1)") == 1, done.stderr


FLUX = """
    [program.air]
    command = "python air.py"
    ranks = 1
    [program.sea]
    command = "python sea.py"
    ranks = 1
    [[field]]
    name = "flux"
    from = "air"
    to = "sea"
    every = 4
"""
STOPS = """
    import time
    import numpy as np
    import hpcomm
    me = hpcomm.join()
    me.put(me.gives("flux", np.zeros(3)), 0)
    time.sleep(1000)
"""
GETS = """
    import numpy as np
    import hpcomm
    me = hpcomm.join()
    flux = me.takes("flux", np.zeros(3))
    for now in (0, 4, 8):
        me.get(flux, now)
"""
GET = r"get\('flux', 4 s\) with program 'air' at sea.py:\d"


def test_a_program_that_waits_for_a_field_says_for_which_of_whom_and_for_when(spec):
    for limit_s in (4, 8, 32):  # on a busy machine they have not begun when the first is over
        options = ("--timeout", str(limit_s))
        done = spec(FLUX, *options, files={"air.py": STOPS, "sea.py": GETS}, expect=124)
        if "with program" in done.stderr:
            break
    assert re.search(GET, done.stderr), done.stderr
    assert "has waited" not in done.stderr  # as in any step of a model


def test_a_wait_for_a_field_is_reported_and_ended_where_that_is_asked_for(spec):
    files = {"air.py": STOPS, "sea.py": GETS}
    done = spec(FLUX, "--stall", "4", files=files, env={"HPCOMM_STALL": "2"}, expect="failure")
    for seconds in (2, 4):
        says = rf"sea.*: {GET} on '.*' has waited {seconds} s\n"
        others = "meanwhile .*air.*: not in a call of hpcomm, in .* at air.py:7"
        assert re.search(f"{says}.*{others}", done.stderr, re.DOTALL), done.stderr
    assert "--stall 4 (HPCOMM_TIMEOUT) ends the job" in done.stderr
