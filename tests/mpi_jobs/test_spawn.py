"""Spawned ranks: they talk to those who have started them, and one of them that fails ends all."""

import re
import subprocess
import sys

import pytest

from hpcomm.job.installation import find_mpi

OPENMPI = find_mpi().vendor == "openmpi"
SPAWN = ["--spawn"]

WORKER = """
import os, sys
import numpy as np
import hpcomm

parent, comm = hpcomm.parent(), hpcomm.world
print(f"worker {comm.rank} of {comm.size}: {sys.argv[1:]} in {os.path.basename(os.getcwd())}\\n", end="")
END
assert parent.remote_size == int(sys.argv[1]), parent
assert parent.all_reduce(np.arange(6.0)[::2]).tolist() == [0, parent.remote_size, 2.0 * parent.remote_size]
assert parent.all_gather_object("w") == ["p"] * parent.remote_size
with parent.merge(high=True) as both:
    assert both.all_reduce(1) == comm.size + parent.remote_size
parent.barrier()
"""
PARENT = """
import os, sys
import numpy as np
import hpcomm

comm, x = hpcomm.world, np.arange(3.0)
assert hpcomm.parent() is None
os.chdir("here")
for name, ranks in [("first", 1), ("second", 2)]:
    with comm.spawn(["../worker.py", str(comm.size)], ranks, name=name) as new:
        END
        assert new.all_reduce(x).tolist() == [0, 2.0 * ranks, 4.0 * ranks]
        assert new.all_gather_object("p") == ["w"] * ranks
        with new.merge() as both:
            assert both.all_reduce(1) == comm.size + ranks
        new.barrier()
assert comm.all_reduce(1) == comm.size
print("went on\\n", end="")
"""


@pytest.fixture
def programs(tmp_path):
    """programs(parent, worker): write both with what they do after the spawn; the parent's path."""
    (tmp_path / "here").mkdir()

    def write(parent="", worker="", others=PARENT):
        (tmp_path / "worker.py").write_text(WORKER.replace("END", worker))
        (tmp_path / "parent.py").write_text(others.replace("END", parent or "pass"))
        return ["python", "parent.py"]

    return write


@pytest.mark.parametrize("ranks", [pytest.param(1, marks=pytest.mark.once), 2])
def test_spawned_ranks_talk_to_those_who_have_started_them(job, programs, monkeypatch, tmp_path, ranks):
    monkeypatch.chdir(tmp_path)
    said = job(ranks, programs(), options=SPAWN).stdout.splitlines()
    assert said.count("went on") == ranks
    assert sorted(line for line in said if "worker" in line) == sorted(
        f"worker {rank} of {size}: ['{ranks}'] in here" for rank, size in ((0, 1), (0, 2), (1, 2))
    )


FAILURES = {  # in the parent, in the worker; what is said
    "a worker raises": ("", "if comm.size == 2: raise ValueError('bad')", "ValueError: bad"),
    "a worker is killed": ("", "if comm.rank == 1: os.kill(os.getpid(), 9)", ""),
    "the parent raises": ("if comm.rank == 1: raise ValueError('bad')", "", "ValueError: bad"),
    "a worker has gone": (
        "if ranks == 2: new.recv(x, 0)",
        "if comm.size == 2: sys.exit()",
        "waits for rank 0 of program 'second', which has ended",
    ),
}


@pytest.mark.parametrize("failure", FAILURES)
def test_a_rank_that_fails_on_either_side_ends_all(job, programs, monkeypatch, tmp_path, failure):
    monkeypatch.chdir(tmp_path)
    parent, worker, told = FAILURES[failure]
    second_alone = PARENT.replace('("first", 1), ', "")
    done = job(2, programs(parent, worker, second_alone), timeout=20, expect=None, options=SPAWN)
    assert done.returncode not in (0, 124), done.stderr
    assert told in done.stderr
    assert "went on" not in done.stdout


def test_the_sides_of_merged_ranks_are_compared(job, programs, monkeypatch, tmp_path):
    """By default, too: they see no call logs of each other's."""
    monkeypatch.chdir(tmp_path)
    with_them = "with new.merge() as both:\n    both.all_reduce(x)".replace("\n", "\n            ")
    beside = "with parent.merge(high=True) as both: both.split(0).barrier()"
    done = job(2, programs(with_them, beside), timeout=20, expect=None, options=SPAWN)
    assert done.returncode not in (0, 124), done.stderr
    assert "ranks disagree about call #1 on 'world->first+'" in done.stderr
    assert re.search(r"rank 2: split\(color=0.*worker.py:", done.stderr)


def test_who_has_given_its_part_may_end_before_others_come(job):
    code = """
        import sys, time
        import hpcomm
        comm, parent = hpcomm.world, hpcomm.parent()
        if parent is None:
            with comm.spawn(__file__, 2) as new:
                got = new.gather_object(None, hpcomm.PROC_NULL if comm.rank else hpcomm.ROOT)
                print(f"got {got}\\n", end="")
        else:
            time.sleep(2.5 * comm.rank)
            parent.gather_object(comm.rank, 0)
    """
    assert "got [0, 1]" in job(2, code, timeout=20, options=SPAWN).stdout


REFUSED = """
    import sys
    import hpcomm
    comm = hpcomm.world
    for program, ranks in (("nowhere.py", 2), (__file__, 0), (__file__, True), (3, 1), (["-m"], 1), LAST):
        try:
            comm.spawn(program, ranks)
        except hpcomm.HpcommError as error:
            print(f"{type(error).__name__}: {error.what.splitlines()[0]}\\n", end="", flush=True)
"""


def test_what_cannot_be_spawned_is_refused_on_all_ranks(job):
    code = REFUSED.replace("LAST", "(__file__, 2)" if OPENMPI else "(None, 1)")
    said = job(2, code, env={"OMPI_MCA_btl": "^tcp"}).stdout
    for told in (
        "ConfigError: there is no file nowhere.py",
        "UsageError: 0 is no number of ranks",
        "UsageError: True is no number of ranks",
        "UsageError: 3 is no program of Python",
        "UsageError: ['-m'] is no program of Python",
        *["ConfigError: OMPI_MCA_btl=^tcp leaves Open MPI nothing but the shared memory"] * OPENMPI,
    ):
        assert said.count(told) == 2, said


@pytest.mark.core
def test_ranks_that_spawn_different_numbers_are_told(job):
    done = job(2, REFUSED.replace("LAST", "(__file__, 1 + comm.rank)"), expect=None, options=SPAWN)
    assert "MismatchError: ranks disagree about call" in done.stdout


@pytest.mark.parametrize(
    ("timeout", "words"),
    [
        (60, "nobody has started this job, which starts no further ranks"),
        (-1, "timeout must be a number of seconds above 0, not -1"),
    ],
)
def test_a_job_of_no_launcher_cannot_spawn_and_no_job_in_no_time(timeout, words):
    code = f"import hpcomm; hpcomm.world.spawn({__file__!r}, 1, timeout={timeout})"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert words in done.stderr


def test_ranks_that_do_not_come_end_the_job(job):
    code = """
        import sys
        import hpcomm
        sys.executable = "/bin/false"
        hpcomm.world.spawn(__file__, 1, timeout=1)
    """
    done = job(2, code, timeout=20, expect=None, options=SPAWN)
    assert done.returncode not in (0, 124)
    assert OPENMPI or "are not there after 1 s" in done.stderr
