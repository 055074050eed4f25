"""Pools of workers."""

from __future__ import annotations

import os
import threading
import time
from concurrent.futures import BrokenExecutor
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


def gives_a_lock(x: int) -> Any:
    return threading.Lock()


def test_what_a_task_returns_but_cannot_be_pickled_names_the_line_that_submitted_it(comm: Any) -> None:
    with comm.pool() as pool:
        if pool:
            tasks = [pool.submit(gives_a_lock, 1)]
            mapped, spread = pool.map(gives_a_lock, [1]), pool.starmap(gives_a_lock, [(1,)])
            worker = min(1, comm.size - 1)
            for ask in (tasks[0].result, lambda: next(mapped), lambda: next(spread)):
                with pytest.raises(hpcomm.UsageError, match="cannot be pickled") as caught:
                    ask()
                text = str(caught.value)
                assert (
                    f"what gives_a_lock returned on rank {worker} of '{comm.name}'" in text or comm.size > 2
                )
                assert "where: pool at test_pools.py:" in text
    with pytest.raises(hpcomm.UsageError, match="gives_a_lock or what belongs to it cannot be pickled"):
        hpcomm.self_.pool(initializer=gives_a_lock, initargs=(threading.Lock(),))


def doubled(x: Any) -> Any:
    return x * 2


def test_a_task_loses_no_gradient(comm: Any) -> None:
    """A tensor with a history would arrive as a leaf without it; pickled by cloudpickle, too."""
    torch = pytest.importorskip("torch")
    leaf = torch.ones(3, requires_grad=True)
    with comm.pool() as pool:
        if pool:
            for ask in (
                lambda: pool.submit(len, leaf * 2),
                lambda: pool.submit(lambda x: len(x), leaf * 2),
                lambda: pool.submit(doubled, leaf).result(20),
                lambda: pool.submit(lambda x: x * 2, leaf).result(20),
                lambda: next(pool.map(doubled, [leaf])),
            ):
                with pytest.raises(
                    hpcomm.UsageError, match=r"cannot be pickled: x needs a gradient"
                ) as caught:
                    ask()
                assert "x.detach()" in str(caught.value)
            came = pool.submit(np.asarray, (leaf * 2).detach()).result(20)
            assert came.tolist() == [2.0] * 3
            assert pool.submit(torch.clone, leaf.detach()).result(20).tolist() == [1.0] * 3
            assert pool.submit(list, [leaf]).result(20)[0].requires_grad  # a leaf comes as a leaf


_licence: list[str] = []


def take_licence(*words: str) -> None:
    if "none" in words:
        raise OSError("no licence")
    _licence.extend(words)


def show_licence(_: int) -> list[str]:
    return _licence


def test_each_worker_calls_the_initializer_before_its_first_task(comm: Any) -> None:
    with comm.pool(initializer=take_licence, initargs=("of", "root")) as pool:
        if pool:
            assert pool.num_workers == pool._max_workers == max(comm.size - 1, 1)
            assert list(pool.map(show_licence, range(9))) == [["of", "root"]] * 9
    _licence.clear()


def test_a_pool_whose_initializer_fails_is_broken_and_says_why(comm: Any, capfd: Any) -> None:
    with comm.pool(initializer=take_licence, initargs=("none",)) as pool:
        if pool:
            with pytest.raises(BrokenExecutor, match="initializer failed"):
                pool.submit(square, 1).result()
            with pytest.raises(BrokenExecutor, match="the pool takes no tasks: initializer failed"):
                pool.submit(square, 1)
    said = f"the pool's initializer failed on rank {comm.rank} of '{comm.name}'"
    assert (said in (told := capfd.readouterr().err)) == (pool is None or comm.size == 1)
    assert ("OSError: no licence" in told) == (said in told)
    with pytest.raises(hpcomm.UsageError, match="initializer is a int, which cannot be called"):
        hpcomm.self_.pool(initializer=3)


def test_late_results_are_a_timeout_and_progress_is_told(comm: Any, capsys: Any) -> None:
    with comm.pool() as pool:
        if pool:
            with pytest.raises(hpcomm.WaitTimeoutError, match="of 1 tasks are not done after"):
                list(pool.map(time.sleep, [0.8], timeout=0.05))
            list(pool.map(square, range(4), progress=True))
            pool.shutdown()
            assert "pool: 4 of 4 tasks" in capsys.readouterr().err
            with pytest.raises(hpcomm.UsageError, match="takes no tasks"):
                pool.submit(square, 1)
    assert comm.all_reduce(1) == comm.size


def test_a_root_that_does_not_exist_is_a_rank_error_of_pools(own_comm: Any) -> None:
    with pytest.raises(hpcomm.RankError, match="root 9 is no rank"):
        own_comm.pool(9)
