"""One-sided windows, and counters made of them."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
import torch

import hpcomm


@pytest.mark.parametrize("dtype", ["float64", "int8", "bool", "complex64", "bfloat16", torch.float16])
def test_what_is_put_the_owner_sees_after_a_fence_and_others_get(comm: Any, dtype: Any) -> None:
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    with comm.window((4, 3), dtype) as window:
        assert not window.array.any()
        window.fence()
        strided = np.ones((3, 8), window.array.dtype)[:, ::2].T
        window.put(strided, right)
        window.put(np.zeros_like(strided[0]), right, at=2)
        window.fence()
        expected = np.ones((4, 3))
        expected[2] = 0
        assert (window.array == expected).all()
        assert window.tensor[2].tolist() == [0, 0, 0]
        got = window.get(left, at=slice(1, 3))
        assert isinstance(got, torch.Tensor if dtype is torch.float16 else np.ndarray)
        assert got.tolist() == [[1, 1, 1], [0, 0, 0]]
        assert window.get(comm.rank, at=(3, 2)).tolist() == 1
        out = torch.zeros(3, 4, dtype=getattr(torch, window.dtype)).T
        assert window.get(right, out=out) is out
        assert out.tolist() == expected.tolist()


class Late:
    """MPI's window by the letter of the standard: what was put may travel at a flush, and not before.

    Both MPIs here send at once, also between hosts, so that a missing flush would seldom show.
    """

    def __init__(self, mpi: Any) -> None:
        self._mpi = mpi
        self._late: list[Any] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._mpi, name)

    def Put(self, given: Any, *where: Any) -> None:  # noqa: N802
        self._late.append((self._mpi.Put, [given[0].copy(), *given[1:]], *where))

    def Accumulate(self, given: Any, *where: Any) -> None:  # noqa: N802
        self._late.append((self._mpi.Accumulate, [given[0].copy(), *given[1:]], *where))

    def Flush_local(self, rank: int) -> None:  # noqa: N802
        """All of it was copied."""

    def Flush(self, rank: int) -> None:  # noqa: N802
        self.Flush_all()

    def Flush_all(self) -> None:  # noqa: N802
        for begin, *given in self._late:
            begin(*given)
        self._late.clear()
        self._mpi.Flush_all()


def test_what_the_library_sends_late_has_arrived_after_a_flush_and_after_a_fence(comm: Any) -> None:
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    with comm.window(4) as window:
        window._mpi = Late(window._mpi)
        window.put(np.full(4, comm.rank + 1.0), right)
        window.fence()
        assert window.array.tolist() == [left + 1] * 4
        window.fence()
        window.accumulate(np.ones(1), right, at=slice(1))
        window.put(np.full(1, 9.0), right, at=slice(1, 2))
        window.flush(right)
        comm.barrier()
        assert window.get(comm.rank).tolist() == [left + 2, 9, left + 1, left + 1]
        window.fence()
        window.put(np.zeros(4), right)  # and what is under way at the end
        memory = window.array
        window.fence()
        assert not memory.any()


def test_all_ranks_accumulate_into_one_and_each_addition_counts_once(comm: Any) -> None:
    with comm.window(5, "int64") as window, comm.window((), "float32") as peak:
        for turn in range(20):
            window.accumulate(np.arange(3), 0, at=slice(1, 4))
            before = window.fetch_and_add(2, comm.size - 1, at=4)
            assert before >= 2 * turn
            peak.accumulate(comm.rank + turn, 0, "max")
        window.flush(0)
        window.fence()
        peak.fence()
        if comm.rank == 0:
            assert window.array[1:4].tolist() == [0, 20 * comm.size, 40 * comm.size]
            assert peak.array == comm.size + 18
        assert window.get(comm.size - 1, at=4) == 40 * comm.size
        window.accumulate(np.array([7]), 0, "replace", at=slice(0, 1)) if comm.rank == 0 else None
        window.fence()
        assert window.get(0, 0) == 7


@pytest.mark.parametrize("dtype", ["int64", "uint32", torch.int32])
def test_compare_and_swap_writes_where_the_old_value_is_as_expected(comm: Any, dtype: Any) -> None:
    with comm.window(2, dtype) as window:
        before = window.compare_and_swap(0, comm.rank + 1, 0, at=1)
        assert window.compare_and_swap(99, 5, 0, at=1) != 99  # not as expected: nothing is written
        window.fence()
        all_before = comm.all_gather_object(before)
        assert all_before.count(0) == 1  # one rank was the first
        assert window.get(0).tolist() == [0, all_before.index(0) + 1]
        window.fence()
        for _ in range(30):  # a sum out of it: what every rank adds counts
            seen = int(window.get(0, at=0))
            while (now := window.compare_and_swap(seen, seen + 1, 0, at=0)) != seen:
                seen = now
        window.fence()
        assert window.get(0, at=0) == 30 * comm.size
        with pytest.raises(hpcomm.LayoutError, match="at=None means 2 elements"):
            window.compare_and_swap(0, 1, 0)
    with comm.window((), "int16") as window, pytest.raises(hpcomm.DtypeError, match="is not atomic on int16"):
        window.compare_and_swap(0, 1, 0)


def test_who_has_the_lock_of_a_window_is_alone_with_it_and_readers_share(comm: Any) -> None:
    with comm.window((2, 3)) as window:
        for turn in range(20):
            target = turn % comm.size
            with window.lock(target):  # read, change, write: none is lost
                window.put(window.get(target, 0) + 1, target, 0)
        window.fence()
        total = sum(window.get(rank, (0, 0)).item() for rank in range(comm.size))
        assert total == 20 * comm.size
        with window.lock(shared=True):  # all ranks are inside at once
            comm.barrier()
            with pytest.raises(hpcomm.UsageError, match="this thread has the lock of rank 0 already"):
                window.lock(0).__enter__()
        with pytest.raises(KeyError), window.lock():
            raise KeyError("it is given back")
        for shared in (False, True):
            window.fence()
            if comm.rank == comm.size - 1:
                with window.lock(0, shared=shared):
                    comm.barrier()
                    comm.barrier()
                continue
            comm.barrier()
            window.comm.timeout = 0.05
            who = "1 rank, shared," if shared else f"rank {comm.size - 1}"
            with pytest.raises(hpcomm.WaitTimeoutError, match=f"{who} had the lock of rank 0 for 0.05 s"):
                window.lock(0).__enter__()
            window.comm.timeout = None
            comm.barrier()


def test_windows_whose_lengths_differ_know_the_shape_on_each_rank(comm: Any) -> None:
    shapes = [(rank, 2 + rank % 2) for rank in range(comm.size)]
    with comm.window(shapes[comm.rank], "int32", ragged=True) as window:
        assert window.shape == window.array.shape == shapes[comm.rank]
        last = comm.size - 1
        assert window.shape_of(last) == shapes[last]
        if comm.rank == 0 and last:
            window.put(np.arange(np.prod(shapes[last]), dtype="i4").reshape(shapes[last]), last)
            window.put(-1, last, at=(last - 1, 1))
        window.fence()
        assert window.get(0).shape == shapes[0]
        if last:
            expected = np.arange(np.prod(shapes[last])).reshape(shapes[last])
            expected[last - 1, 1] = -1
            assert window.get(last).tolist() == expected.tolist()
            assert window.get(last, at=-1).tolist() == expected[-1].tolist()
            assert window.fetch_and_add(0, last, at=(last - 1, 0)) == expected[last - 1, 0]
        with pytest.raises(hpcomm.LayoutError, match=r"at=0 is not in an array of shape \(0, 2\)"):
            window.get(0, at=0)
    if comm.size > 1:
        with pytest.raises(hpcomm.MismatchError, match=r"this one for ragged float64 in \d dimensions"):
            comm.window((1,) * (1 + comm.rank // (comm.size - 1)), ragged=True)


def test_a_counter_gives_each_number_to_one_rank_whatever_its_home_does(comm: Any) -> None:
    with comm.counter(start=10) as counter:
        mine = []
        if comm.rank == 0:
            time.sleep(0.1)  # the others go on without it
            while comm.size > 1 and counter.value == 10:  # they are late themselves
                time.sleep(0.01)
        while (number := counter.next()) < 210:
            mine.append(number)
        everybody = comm.all_gather_object(mine)
        assert sorted(number for each in everybody for number in each) == [*range(10, 210)]
        assert comm.size == 1 or len(everybody[0]) < 200
        assert counter.value == 210 + comm.size
        comm.barrier()
        assert counter.add(-5) <= 210 + comm.size


@pytest.mark.parametrize(
    ("call", "error", "what"),
    [
        (lambda w: w.put(np.ones(3), 99), hpcomm.RankError, "there is no rank 99"),
        (lambda w: w.put(np.ones(3), True), hpcomm.RankError, "there is no rank True"),
        (lambda w: w.put(np.ones(3, "f4"), 0, 1), hpcomm.DtypeError, "x is float32, the window float64"),
        (lambda w: w.put(np.ones(2), 0, 1), hpcomm.LayoutError, r"x has shape \(2,\), the place \(3,\)"),
        (lambda w: w.get(0, 4), hpcomm.LayoutError, r"at=4 is not in an array of shape \(4, 3\)"),
        (lambda w: w.get(0, (slice(None), 1)), hpcomm.LayoutError, "is not contiguous"),
        (lambda w: w.get(0, [1, 2]), hpcomm.LayoutError, "is no place of a window"),
        (lambda w: (w.get(0, 1), w.get(0, True)), hpcomm.LayoutError, "at=True is no place of a window"),
        (lambda w: (w.get(0, (1, 0)), w.get(0, (1, 0.0))), hpcomm.LayoutError, "is no place of a window"),
        (lambda w: w.get(0, 1, out=np.ones(4)), hpcomm.LayoutError, "out has shape"),
        (lambda w: w.get(0, 1, out=np.broadcast_to(0.0, 3)), hpcomm.LayoutError, "out "),
        (lambda w: w.accumulate(np.ones(3), 0, "avg", 1), hpcomm.UsageError, "no operator 'avg' for windows"),
        (lambda w: w.accumulate(np.ones(3), 0, "bor", 1), hpcomm.DtypeError, "bor is not atomic on float64"),
        (lambda w: w.fetch_and_add(1, 0, 1), hpcomm.LayoutError, "at=1 means 3 elements"),
        (lambda w: w.compare_and_swap(0, 1, 0, (1, 1)), hpcomm.DtypeError, "MPI swaps integers, not float64"),
        (lambda w: w.lock(99).__enter__(), hpcomm.RankError, "there is no rank 99"),
        (lambda w: w.shape_of(-1), hpcomm.RankError, "there is no rank -1"),
        (lambda w: w.put("x", 0, (1, 1)), hpcomm.HpcommError, "is not an array"),
        (lambda w: w.put(1j, 0, (1, 1)), hpcomm.DtypeError, "1j is no float64"),
    ],
)
def test_what_cannot_be_done_is_refused_and_said(comm: Any, call: Any, error: Any, what: str) -> None:
    with comm.window((4, 3)) as window, pytest.raises(error, match=what) as caught:
        call(window)
    assert "where:" in str(caught.value)
    assert "try:" in str(caught.value)


def test_windows_of_nothing_of_narrow_types_and_closed_ones(comm: Any) -> None:
    with comm.window((0, 4), "int16") as window:
        window.put(np.ones((0, 4), "i2"), 0)
        assert window.get(0).shape == (0, 4)
        with pytest.raises(hpcomm.DtypeError, match="sum is not atomic on int16"):
            window.accumulate(np.ones((0, 4), "i2"), 0)
    with pytest.raises(hpcomm.UsageError, match="this window is closed"):
        window.get(0)
    with comm.window((), "int32") as window, pytest.raises(hpcomm.DtypeError, match=r"1\.5 is no int32"):
        window.put(1.5, 0)


@pytest.mark.mpi(min_size=2)
def test_ranks_that_ask_for_different_windows_are_all_told(comm: Any) -> None:
    with pytest.raises(hpcomm.MismatchError, match="ranks ask for different windows, this one for float64"):
        comm.window(3 + comm.rank // (comm.size - 1))
    with pytest.raises(hpcomm.LayoutError, match="is no shape of an array"):
        hpcomm.self_.window(-1)
    assert comm.all_reduce(1) == comm.size


def test_a_window_larger_than_any_memory_is_refused(comm: Any) -> None:
    for shape in (2**62, (2**31, 2**31, 2**31)):
        with pytest.raises(hpcomm.LayoutError, match="is larger than any memory"):
            comm.window(shape)
    with pytest.raises(hpcomm.LayoutError, match="is no shape") as caught:
        comm.shared_array(-1)
    assert str(caught.value.where).startswith("shared_array on")
