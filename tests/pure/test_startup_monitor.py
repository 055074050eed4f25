"""Who is missing when MPI does not come up, told from what is to be seen of the job on one host."""

import os

import pytest

from hpcomm.errors import ConfigError
from hpcomm.job.launcher import command_of
from hpcomm.job.startup_monitor import LIMIT, Look, away, cause, judge, watched

AIR_AND_OCEAN = ["python air.py", "./ocean 3", "python air.py"]
LINE = ["mpirun", "-x", "A", "-n", "1", "python", "ocean.py", ":", "-np", "2", "--bind-to", "none", "./air"]
LOOKS = {
    "all live": (Look(frozenset({0, 1, 2}), 3, 3), None),
    "one": (
        Look(frozenset({1, 2}), 3, 3),
        "rank 0 of the world (python ocean.py) has ended before MPI was up",
    ),
    "a program": (
        Look(frozenset({0}), 3, 3),
        "ranks 1-2 of the world (--bind-to none ./air) have ended before MPI was up",
    ),
    "of two programs": (
        Look(frozenset({2, 3}), 6, 6),
        "rank 0 of the world (x) and ranks 1, 4-5 of the world (python air.py) have ended",
    ),
    "of a Slurm step": (
        Look(frozenset({4}), 2, 6, frozenset({4, 5})),
        "rank 5 of the world (python air.py) has ended before MPI was up",
    ),
    "of several hosts": (
        Look(frozenset({1}), 2, 5),
        f"1 of the 2 processes of this job on {os.uname().nodename} has ended before MPI was up",
    ),
}


@pytest.mark.parametrize("case", LOOKS)
def test_who_is_missing_is_named(case):
    seen, words = LOOKS[case]
    line = LINE if seen.size == 3 else ["mpiexec", "-n", "1", "x", ":", "-n", "5", "python", "air.py"]
    why = judge(seen, line)
    assert why is words or words in why


def test_those_that_end_for_the_end_of_another_are_not_named():
    some, more, all_, fewer = (Look(frozenset(ranks), 4, 4) for ranks in ([0, 1], [0, 1, 3], range(4), [1]))
    assert [cause(None, some), cause(some, more), cause(more, all_), cause(all_, more)] == [
        some,
        more,
        all_,
        more,
    ]
    assert cause(more, fewer) == more  # rank 0 has ended itself, as it says


def test_the_words_of_srun_and_its_multi_prog_file_name_programs(tmp_path):
    het = ["srun", "-N2", "-c", "4", "-n2", "python", "air.py", ":", "-n", "1", "./ocean"]
    assert [command_of(rank, het) for rank in (1, 2)] == ["python air.py", "./ocean"]
    (tmp_path / "both").write_text("# two\n0,2-3 python air.py\n* ./ocean 3\n")
    both = ["srun", "--multi-prog", str(tmp_path / "both")]
    assert [command_of(rank, both) for rank in range(5)] == [*AIR_AND_OCEAN, "python air.py", "./ocean 3"]
    assert away(Look(frozenset({0}), 1, 5), both) == (
        "ranks 1, 4 of the world (./ocean 3), or ranks 2-3 of the world (python air.py)"
    )
    assert away(Look(frozenset({0}), 1, 5), []) == "ranks 1-4 of the world"


def test_a_launcher_that_was_not_given_numbers_is_shown_whole():
    assert command_of(1, ["mpirun", "python", "a.py"]) == "mpirun python a.py"


def test_the_limit_is_a_number_of_seconds(monkeypatch):
    monkeypatch.setenv(LIMIT, "soon")
    with pytest.raises(ConfigError, match=f"{LIMIT} is 'soon'"), watched():
        pass
