"""Who is missing when MPI does not come up, told from what is to be seen of the job on one host."""

import os

import pytest

from hpcomm.mpmd.early import Look, command_of, judge

LINE = ["mpirun", "-x", "A", "-n", "1", "python", "ocean.py", ":", "-np", "2", "--bind-to", "none", "./air"]
LOOKS = {
    "all live": (Look(frozenset({0, 1, 2}), 3, 3), None),
    "one": (
        Look(frozenset({1, 2}), 3, 3),
        "rank 0 of the world (python ocean.py) has ended before MPI was up",
    ),
    "a program": (
        Look(frozenset({0}), 3, 3),
        "rank 1 of the world (--bind-to none ./air) and rank 2 of the world (--bind-to none ./air) have",
    ),
    "more than one wants to read": (Look(frozenset({0}), 6, 6), "(python air.py) and 2 more have ended"),
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


def test_a_launcher_that_was_not_given_numbers_is_shown_whole():
    assert command_of(1, ["mpirun", "python", "a.py"]) == "mpirun python a.py"
