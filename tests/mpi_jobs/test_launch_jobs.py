"""hpcomm run with the MPI at hand: jobs start, share what cores there are, and end wholly."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from textwrap import dedent

import pytest
from steady import steady_time

from hpcomm.job.installation import find_mpi
from hpcomm.job.supervise import kill_members, members, settings

ROOT = Path(__file__).parents[2]
STUCK = r"""
    from mpi4py import MPI
    import sys
    import time

    def waits_for_rank_1():
        MPI.COMM_WORLD.recv(source=1)

    def forgets_to_send():
        time.sleep(1000)

    sys.stdout.write("up\n")
    sys.stdout.flush()
    forgets_to_send() if MPI.COMM_WORLD.rank == 1 else waits_for_rank_1()
"""
TIME_INIT = """
    import mpi4py
    mpi4py.rc.initialize = False
    from mpi4py import MPI
    from time import perf_counter

    start = perf_counter()
    MPI.Init()
    seconds = perf_counter() - start
    if MPI.COMM_WORLD.rank == 0:
        print(seconds)
    MPI.Finalize()
"""


@pytest.mark.parametrize("n", [1, 4])
def test_ranks_see_one_another(job, n):
    code = (
        "from mpi4py import MPI; w = MPI.COMM_WORLD; all_ = w.gather((w.rank, w.size)); all_ and print(all_)"
    )
    assert job(n, code).stdout == f"{[(rank, n) for rank in range(n)]}\n"


def test_python_as_a_command_is_this_python(job):
    assert job(1, ["python", "-c", "import sys; print(sys.executable)"]).stdout == f"{sys.executable}\n"


def test_several_programs_share_a_world(job, tmp_path):
    for name in ("a", "b"):
        source = "from mpi4py import MPI; w = MPI.COMM_WORLD; mine = w.Get_attr(MPI.APPNUM), '" + name + "'\n"
        (tmp_path / name).write_text(source + "if (all_ := w.gather(mine)): print(all_)")
    done = job(1, ["python", str(tmp_path / "a"), ":", "-n", "2", "python", str(tmp_path / "b")])
    assert done.stdout == "[(0, 'a'), (1, 'b'), (1, 'b')]\n"


def test_variables_reach_every_rank(job):
    code = "import os; from mpi4py import MPI; a = MPI.COMM_WORLD.gather(os.environ['A']); a and print(*a)"
    assert job(2, code, options=["-x", "A=deep blue"]).stdout == "deep blue deep blue\n"


TORCHRUN = """
    import os
    kinds = ("", "LOCAL_", "GROUP_", "ROLE_")
    numbers = [os.environ[kind + name] for kind in kinds for name in ("RANK", "WORLD_SIZE")]
    numbers += [os.environ[f"TORCHELASTIC_{name}"] for name in ("RESTART_COUNT", "MAX_RESTARTS")]
    numbers += [os.environ["ROLE_NAME"]]
    import hpcomm
    assert hpcomm.world.rank == int(numbers[0])
    print(*numbers, os.environ["MASTER_ADDR"], 1024 < int(os.environ["MASTER_PORT"]), flush=True)
"""


def test_ranks_have_what_torchrun_sets(job):
    """Before MPI is up, and before any module of ours is loaded."""
    lines = sorted(job(3, TORCHRUN).stdout.splitlines())
    assert lines == [f"{rank} 3 {rank} 3 0 1 {rank} 3 0 0 default 127.0.0.1 True" for rank in range(3)]


@pytest.mark.parametrize("supervision", [[], ["--timeout", "50"]])
def test_the_status_of_the_ranks_is_the_jobs(supervision):
    code = "from mpi4py import MPI; import sys; MPI.Finalize(); sys.exit(7)"
    command = [sys.executable, "-m", "hpcomm", "run", "-n", "2", *supervision, "python", "-c", code]
    assert subprocess.run(command, capture_output=True, timeout=60, cwd=ROOT).returncode == 7


@pytest.mark.timed
def test_bringing_mpi_up_does_not_sleep(job):
    """Open MPI, left alone, sleeps for a second; the best of three, because the machine may be busy."""
    assert min(float(job(2, TIME_INIT).stdout) for _ in range(3)) < 0.9


LIMITS_S = (3, 12, 48)  # on a busy machine ranks have not begun when the first is over


def test_a_job_that_hangs_is_ended_with_the_stack_of_every_rank(job):
    for limit_s in LIMITS_S:
        start = steady_time()
        done = job(3, STUCK, timeout=limit_s, expect=124)
        assert steady_time() - start < limit_s + 12
        if done.stderr.count("waits_for_rank_1") == 2:
            break
    assert done.stderr.count("waits_for_rank_1") == 2
    assert done.stderr.count("forgets_to_send") == 1
    assert f"the job had not ended after {limit_s} s, so it was ended" in done.stderr


HELD = r"""
    import re, threading
    from numpy import zeros
    from hpcomm import world

    def waits_for_rank_1():
        world.recv(zeros(1), source=1)

    def holds_the_interpreter_lock():
        re.match("(a+)+b", "a" * 60)

    world.barrier()
    if world.rank == 2:
        threading.Thread(target=threading.Event().wait, name="quiet", daemon=True).start()
    holds_the_interpreter_lock() if world.rank == 1 else waits_for_rank_1()
"""


def test_ranks_of_a_job_that_hangs_say_where_they_are_by_rank_in_the_program_s_lines(job):
    for limit_s in LIMITS_S:
        said = job(3, HELD, timeout=limit_s, expect=124).stderr
        if "rank 1 gives no answer; its threads:\nFatal" in said and said.count("    waits for") == 2:
            break
    for rank, thread in ((0, ""), (2, r"    in thread quiet:\n(    .*\n)+")):
        stack = thread + r"    <module> at .*\n    waits_for_rank_1 at .*\n"
        assert re.search(rf"  rank {rank}: recv\(.*source=1\) at .*\n    waits .*\n{stack}", said), said
    assert "in holds_the_interpreter_lock" in said.partition("rank 1 gives no answer; its threads:\n")[2]


SPEAKS = """
    import sys
    from mpi4py import MPI
    rank = MPI.COMM_WORLD.rank
    print("first", flush=True)
    sys.stderr.write("no end of line")
    MPI.COMM_WORLD.Barrier()
    sys.exit(3 * (MPI.COMM_WORLD.size == 1))  # of several it kills the others
"""


def test_what_ranks_print_is_told_apart(job, tmp_path):
    options = ["--label", "--output", str(tmp_path / "logs")]
    job(1, SPEAKS, expect=3, options=options)
    said = job(2, SPEAKS, expect=0, options=options)
    for rank in (0, 1):
        assert f"[{rank}] first\n" in said.stdout
        assert f"[{rank}] no end of line\n" in said.stderr
        assert sorted((tmp_path / "logs" / f"rank-{rank}").read_text().split("\n")[:2]) == [
            "first",
            "no end of line",
        ]


@pytest.mark.skipif(find_mpi().vendor != "openmpi", reason="MPICH's files have random names")
def test_the_hash_that_is_reserved_is_the_one_in_the_names_of_open_mpis_files(job):
    code = """
        from mpi4py import MPI
        import os, re
        from hpcomm.job.mpi_shared_memory import family
        number = family(os.environ["PMIX_NAMESPACE"].rpartition("@")[0])
        named = set(re.findall(r"/dev/shm/sm_segment[.]\\S+[.](\\w+)[.]\\d+", open("/proc/self/maps").read()))
        print(named == {f"{number << 16 | 1:x}"}, flush=True)
    """
    assert job(2, code).stdout.split() == ["True"] * 2


def test_a_job_that_was_ended_leaves_no_shared_memory_behind(job):
    code = """
        from mpi4py import MPI
        import pathlib, time
        MPI.COMM_WORLD.Barrier()
        if MPI.COMM_WORLD.rank == 0:
            lines = pathlib.Path("/proc/self/maps").read_text().splitlines()
            print(*{line.split()[-1] for line in lines if "/dev/shm/" in line}, flush=True)
        time.sleep(1000)
    """
    said = (job(2, code, timeout=limit_s, expect=124).stdout.split() for limit_s in LIMITS_S)
    segments = next(filter(None, said), [])
    assert segments
    assert not [segment for segment in segments if Path(segment).exists()]


@pytest.mark.parametrize("end", ["sys.exit(3)", "hpcomm.world.Abort(3)"])
def test_nor_does_one_that_a_rank_ends(job, end):
    code = f"""
        import hpcomm, pathlib, sys, time
        hpcomm.world.barrier()
        lines = pathlib.Path("/proc/self/maps").read_text().splitlines()
        if hpcomm.world.rank == 0:
            print(*{{line.split()[-1] for line in lines if "/dev/shm/" in line}}, flush=True)
        hpcomm.world.barrier()
        if hpcomm.world.rank == 1:
            {end}
        time.sleep(1000)
    """
    segments = job(2, code, expect=3).stdout.split()
    assert segments
    assert not [segment for segment in segments if Path(segment).exists()]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGKILL])
def test_a_signal_ends_every_rank(tmp_path, number):
    source = tmp_path / "stuck.py"
    source.write_text(dedent(STUCK))
    environ = {**os.environ, **settings(os.environ)}
    mark = environ["HPCOMM_JOB"].rpartition(",")[2]
    # Those that wait in mpi4py go on after SIGTERM and Ctrl-C, with a core each, for as long as they may.
    command = [sys.executable, "-m", "hpcomm", "run", "-n", "3", "--grace", "1", "python", str(source)]
    process = subprocess.Popen(
        command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT
    )
    try:
        for _ in range(3):
            assert process.stdout.readline() == "up\n"
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
        deadline = steady_time() + 5
        while members(mark) and steady_time() < deadline:
            time.sleep(0.05)
        assert process.returncode == (-number if number == signal.SIGKILL else 128 + number), out + err
        assert members(mark) == [], out + err
    finally:
        kill_members(mark)


def test_nothing_of_a_failed_job_is_left(job):
    """Not even what a rank has started in a session of its own, which its launcher does not find."""
    code = """
        import subprocess, sys, hpcomm
        quiet = {name: subprocess.DEVNULL for name in ("stdin", "stdout", "stderr")}
        print(subprocess.Popen(["sleep", "1000"], start_new_session=True, **quiet).pid, flush=True)
        hpcomm.world.barrier()
        if hpcomm.world.rank == 1:
            sys.exit(3)
        hpcomm.world.barrier()
    """
    children = job(2, code, expect=3).stdout.split()
    assert len(children) == 2
    assert not [child for child in children if is_alive(child)]


def is_alive(process):
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_what_a_killed_launcher_left_does_not_keep_a_later_one_of_its_number_from_starting(tmp_path, job):
    """Numbers come round again; Open MPI's launcher would say that a thread of its failed to start."""
    with subprocess.Popen(["true"]) as latest:
        numbers = range(latest.pid + 1, latest.pid + 1000)
    for number in numbers:
        left = tmp_path / f"ompi.{number}"
        left.mkdir(0o700)
        (left / "pmix.vm.tool").touch()
    job(1, ["python", "-c", "pass"], env={"TMPDIR": str(tmp_path)})


def test_a_mismatch_of_launcher_and_library_is_told_before_the_start(tmp_path, job):
    """The library here against a launcher that says it is the other one."""
    from hpcomm.job.installation import find_mpi

    says = {"openmpi": "HYDRA build details:", "mpich": "mpiexec (Open MPI) 5.0.11"}[find_mpi().vendor]
    launcher = tmp_path / "mpiexec"
    launcher.write_text(f'#!/bin/sh\necho "{says}"\n')
    launcher.chmod(0o755)
    done = job(2, "print('ran')", options=["--launcher", str(launcher)], expect=2)
    assert "every rank would believe that it is alone" in done.stderr
    assert done.stdout == ""


@pytest.mark.once
def test_the_launcher_that_the_page_gives_to_a_plugin_of_pytest_starts_ranks() -> None:
    page = (ROOT / "docs/testing.md").read_text(encoding="utf-8")
    launcher, count, options = re.findall(r"^mpi_\w+ = (.+)$", page, re.MULTILINE)
    count = count.replace("hpcomm", f"{sys.executable} -m hpcomm")  # which need not be on the PATH here
    words = [launcher, count, "2", *options.split(), "--dry-run", "python", "-m", "pytest"]  # as it puts them
    done = subprocess.run(words, text=True, capture_output=True, timeout=30)
    assert done.returncode == 0, done.stderr
    assert re.search(r"-n 2 .*python\S* -m pytest$", done.stdout.strip()), done.stdout


def test_an_mpi4py_program_and_what_it_imports_run_over_hpcomm_as_they_are(tmp_path, job):
    (tmp_path / "beside.py").write_text("from mpi4py import MPI")
    code = """
        import sys
        import mpi4py
        rc = mpi4py.rc
        del mpi4py.rc
        assert not hasattr(sys.modules["mpi4py"], "rc")
        mpi4py.rc = rc
        mpi4py.rc.thread_level = "serialized"  # which counts, since MPI is not up yet
        from mpi4py import MPI
        import mpi4py.MPI as same
        from mpi4py.MPI import COMM_WORLD as world, Comm
        from mpi4py.util import pkl5  # of mpi4py's own, over mpi4py's own
        import beside
        import numpy as np
        assert beside.MPI is same is mpi4py.MPI is MPI and world is MPI.COMM_WORLD
        assert isinstance(world, Comm) and MPI.Query_thread() == MPI.THREAD_SERIALIZED
        pkl5.Intracomm(MPI.COMM_SELF).bcast(1)
        sys.modules["double"] = object(); import double  # with no name, as a test may put there
        assert (sys.argv[1:], __name__) == (["-n", "3"], "__main__")
        x = np.ones(3, "f8" if world.rank else "f4")
        world.Allreduce(x, x.copy())
    """
    program = tmp_path / "program.py"
    program.write_text(dedent(code))
    for words in ([program], ["python", "-W", "ignore", program]):
        said = job(2, [*words, "-n", "3"], options=["--check"], expect=1).stderr
        assert "MismatchError: ranks disagree about call #1 on 'world'" in said
        assert "Allreduce on communicator" in said
        assert "at program.py:21" in said
    for words in (["ls"], ["python", "-c", "pass"], ["python"]):
        said = job(2, words, options=["--check"], expect=2).stderr
        assert f"--check is for a program in Python, not for {' '.join(words)!r}" in said
