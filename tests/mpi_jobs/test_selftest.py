"""`hpcomm selftest` finds nothing where all is well, and says on which rank something is wrong."""

import pytest

FAULTY = """
import sys
import numpy as np
from hpcomm import world
from hpcomm.communicator.communicator import Communicator
from hpcomm.__main__ import main
scan = Communicator.scan
Communicator.scan = lambda comm, x: scan(comm, x) + (comm.rank == 1)
sys.exit(main(["selftest"]))
"""


def test_selftest_passes_on_several_ranks_and_on_one(job):
    for n in (3, 1):
        done = job(n, ["python", "-m", "hpcomm", "selftest"])
        first, last = done.stdout.strip().split("\n")
        assert first.startswith("hpcomm ")
        assert f"{n} rank" in first
        assert last.endswith(" checks on each rank: all passed")


@pytest.mark.once
def test_selftest_says_what_is_wrong_where(job):
    done = job(2, FAULTY, expect=1)
    assert "rank 1: scan of 1000 elements gave another result than it should" in done.stdout
    assert "rank 0:" not in done.stdout
    assert "1 of 2 ranks found faults" in done.stdout
