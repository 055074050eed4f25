"""Who is missing when MPI does not come up, told from what is to be seen of the job on one host."""

import os

import pytest

from hpcomm.errors import ConfigError
from hpcomm.job.launcher import command_of
from hpcomm.mpmd.monitor.host_monitor import hosts_of, placed, told
from hpcomm.mpmd.monitor.startup_monitor import LIMIT, Ended, Look, Nodes, _limit, away, cause, judge

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
    assert away(Look(frozenset({0}), 1, 5), both) == ": ranks 1-4 (./ocean 3), or ranks 2-3 (python air.py)"
    assert away(Look(frozenset({0}), 1, 5), []) == ""


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


HOSTS = {  # mpiexec's words, ranks of each host for 5 of them
    "-hosts h1,h2 -n 5 x": [("h1", (0, 2, 4)), ("h2", (1, 3))],
    "-hosts h1 h2 -n 5 x": [("h1", (0, 2, 4)), ("h2", (1, 3))],  # as mpiexec leaves its words
    "-host h1:2,h2:4 -n 5 x": [("h1", (0, 1)), ("h2", (2, 3, 4))],
    "-hosts h1 2 h2 4 -n 5 x": [("h1", (0, 1)), ("h2", (2, 3, 4))],
    "-hosts h1,h2,h3,h4,h5,h6 -n 5 x": [(f"h{i + 1}", (i,)) for i in range(5)],
    "-f list -n 5 x": [("a", (0, 1)), ("b", (2, 3, 4))],
    "-f list -ppn 3 -n 5 x": [("a", (0, 1, 2)), ("b", (3, 4))],
    "-hosts h1,h2,h1 -n 5 x": [],  # how that is meant is mpiexec's own affair
    "-n 5 x": [],
}


@pytest.mark.parametrize("words", HOSTS)
def test_which_ranks_mpiexec_starts_where(tmp_path, words):
    (tmp_path / "list").write_text("# two\na:2  # fast\n\nb:3\n")
    assert placed(hosts_of(["mpiexec", *words.split()], {}, tmp_path), 5) == HOSTS[words]


def test_the_hosts_of_an_environment_count_too(tmp_path):
    (tmp_path / "list").write_text("a:2\nb:3\n")
    assert hosts_of(["mpiexec", "-n", "5", "x"], {"HYDRA_HOST_FILE": "list"}, tmp_path) == [
        ("a", 2),
        ("b", 3),
    ]


def test_what_the_eye_has_seen_is_said_with_commands():
    line = ["mpiexec", "-n", "1", "./sea", ":", "-n", "5", "./air"]
    said = told([Ended(0, "h1"), Ended(1, "h2")], line)
    first, second = "rank 0 of the world (./sea) on h1", "rank 1 of the world (./air) on h2"
    assert said == f"{first} and {second} have ended before MPI was up"
    assert told([Ended(None, "host 2 of this job")], line).startswith(
        "each process of host 2 of this job has"
    )
