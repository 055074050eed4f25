"""What grows with the number of ranks, seen where there are many."""

import sys
from pathlib import Path

import pytest
from processes import finish


@pytest.mark.once
def test_nothing_of_a_rank_grows_with_the_number_of_ranks_beyond_what_is_asked():
    """Memory and messages; seconds are for a quiet machine."""
    script = Path(__file__).parents[2] / "benchmarks" / "scale.py"
    done = finish([sys.executable, script, "20000"], 120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "torch: who is missing" in done.stdout
