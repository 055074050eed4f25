"""Who is missing when MPI does not come up, told from what is to be seen of the job on one host."""

import os

import pytest

from hpcomm.errors import ConfigError
from hpcomm.mpmd.early import LIMIT, Look, Nodes, _limit, command_of, judge

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


def test_a_launcher_that_was_not_given_numbers_is_shown_whole():
    assert command_of(1, ["mpirun", "python", "a.py"]) == "mpirun python a.py"


def test_a_step_of_slurm_whose_nodes_are_not_all_listed_has_lost_one_after_a_while(tmp_path, monkeypatch):
    rows = tmp_path / "rows"
    (tmp_path / "sstat").write_text(f"#!/bin/sh\ncat {rows}\n")
    (tmp_path / "sstat").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    step = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "1", "SLURM_STEP_NUM_NODES": "3"}
    nodes = Nodes(step, 0.0)
    rows.write_text("7.0|n9|1\n7.1+0|n1|11,12\n7.1+0|n2|13\n7.1+1|n3|14\n")
    assert [nodes.judge(now) for now in (1.0, 10.0, 20.0)] == [None] * 3
    assert nodes.answers
    rows.write_text("7.0|n9|1\n7.1+0|n1|11,12\n7.1+0|n2|13\n")
    assert nodes.judge(30.0) is None  # it may only be late
    assert "on 1 of the 3 nodes of Slurm step 7.1 all processes have ended" in nodes.judge(40.0)
    rows.unlink()
    assert nodes.judge(50.0) is None  # sstat has failed
    assert not nodes.answers
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    assert nodes.judge(60.0) is None
    assert Nodes({}, 0.0).judge(9.0) is None  # no Slurm


def test_the_limit_is_a_number_of_seconds():
    assert [_limit({}), _limit({LIMIT: "2.5"})] == ["", "2.5"]
    with pytest.raises(ConfigError, match="soon is no number of seconds"):
        _limit({LIMIT: "soon"})
