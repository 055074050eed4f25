"""Windows, shared arrays and pools in jobs whose ranks do not all come to their close."""

from __future__ import annotations

from textwrap import dedent
from typing import Any

import pytest

DIES = """
import numpy as np
from hpcomm import world as comm

with comm.window(3) as window, comm.counter() as counter:
    window.put(np.ones(3), (comm.rank + 1) % comm.size)
    counter.next()
    if comm.rank == 1:
        {end}
"""
LEFT_OPEN = """
from hpcomm import world as comm

window, counter = comm.window(3), comm.counter()
counter.next()
print(window.get((comm.rank + 1) % comm.size).sum())
"""


@pytest.mark.parametrize(
    "end", ["raise ValueError('rank one is broken')", "import os; os.kill(os.getpid(), 9)"]
)
def test_where_a_rank_dies_nobody_waits_for_it_at_the_close(job: Any, end: str) -> None:
    done = job(3, DIES.format(end=end), expect=None, timeout=30)
    assert done.returncode not in (0, 124)
    assert "rank one is broken" in done.stderr or "kill" in end


TOGETHER = {
    "a shared array": """
        with comm.shared_array(3) as shared:
            shared.array[comm.rank] = 1
            if comm.rank == 1:
                os.kill(os.getpid(), 9)
            shared.fence()
    """,
    "a pool": """
        def die(n):
            if n == 3:
                os.kill(os.getpid(), 9)
            return n
        with comm.pool() as pool:
            if pool:
                print(list(pool.map(die, range(6))))
    """,
}


@pytest.mark.parametrize("what", TOGETHER)
def test_a_rank_that_is_killed_ends_the_job_that_shares_an_array_or_a_pool(job: Any, what: str) -> None:
    code = "import os\nfrom hpcomm import world as comm\n" + dedent(TOGETHER[what])
    done = job(3, code, expect=None, timeout=30)
    assert done.returncode not in (0, 124)
    assert "[0, 1, 2" not in done.stdout


def test_windows_may_be_left_open_at_the_end(job: Any) -> None:
    lines = job(2, LEFT_OPEN).stdout.splitlines()  # MPICH's UCX remarks upon it there
    assert [line for line in lines if "UCX" not in line] == ["0.0", "0.0"]
