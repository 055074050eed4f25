"""Pools of workers."""

from __future__ import annotations

import os
import time
from typing import Any

import numpy as np
import pytest

import hpcomm


def square(x: float) -> float:
    return x * x


def fail(x: int) -> int:
    raise ValueError(f"no {x}")


def test_results_come_in_order_or_as_they_are_done(comm: Any) -> None:
    root = comm.size - 1
    with comm.pool(root) as pool:
        assert (pool is not None) == (comm.rank == root)
        if pool:
            assert list(pool.map(square, range(20), chunksize=3)) == [i * i for i in range(20)]
            assert sorted(pool.map(square, range(9), ordered=False)) == [i * i for i in range(9)]
            assert list(pool.starmap(pow, [(2, 3), (3, 2)], chunksize=2)) == [8, 9]
            assert pool.submit(lambda x: x + 1, 4).result(20) == 5  # by cloudpickle
            array = np.arange(300_000.0)
            assert np.array_equal(pool.submit(np.negative, array).result(20), -array)
            pids = set(pool.map(lambda i: os.getpid(), range(9)))
            assert (os.getpid() in pids) == (comm.size == 1)
            pool.shutdown()
            with pytest.raises(RuntimeError, match="takes no tasks"):  # as every Executor
                pool.submit(square, 1)
    assert comm.all_reduce(1) == comm.size


def test_a_task_that_raises_gives_its_traceback_with_its_rank(comm: Any) -> None:
    with comm.pool() as pool:
        if pool:
            with pytest.raises(ValueError, match="no 3") as caught:
                pool.submit(fail, 3).result(20)
            text = str(caught.value.__cause__)
            assert f"of '{comm.name}'" in text
            assert ("on rank 0" in text) == (comm.size == 1)
            assert 'raise ValueError(f"no {x}")' in text
            with pytest.raises(hpcomm.UsageError, match="cannot be pickled"):
                pool.submit(square, (i for i in range(3)))
            assert list(pool.map(square, [2])) == [4]
    assert comm.all_reduce(1) == comm.size


def test_late_results_are_a_timeout_and_progress_is_told(comm: Any, capsys: Any) -> None:
    with comm.pool() as pool:
        if pool:
            with pytest.raises(hpcomm.WaitTimeoutError, match="of 1 tasks are not done after"):
                list(pool.map(time.sleep, [0.3], timeout=0.05))
            list(pool.map(square, range(4), progress=True))
            pool.shutdown()
            assert "pool: 4 of 4 tasks" in capsys.readouterr().err
            with pytest.raises(hpcomm.UsageError, match="takes no tasks"):
                pool.submit(square, 1)
    assert comm.all_reduce(1) == comm.size


def test_a_root_that_does_not_exist_is_a_rank_error_of_pools(own_comm: Any) -> None:
    with pytest.raises(hpcomm.RankError, match="root 9 is no rank"):
        own_comm.pool(9)
