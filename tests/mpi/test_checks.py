"""Agreement: a disagreement is told to every rank under "full", and no check ever cries wolf.

What "light" does when ranks disagree ends jobs, so that is tested in mpi_jobs/test_mismatch.py.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from mpi4py import MPI

import hpcomm

pytestmark = pytest.mark.few

WAIT_S = 30


@pytest.fixture
def full() -> Iterator[Any]:
    with hpcomm.Communicator(MPI.COMM_WORLD, name="strict", check="full") as comm:
        yield comm


X = np.ones(6)
DISAGREEMENTS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any], str, str]] = {
    "operator": (lambda c: c.all_reduce(X, "sum"), lambda c: c.all_reduce(X, "max"), "sum", "max"),
    "factor or none": (
        lambda c: c.all_reduce(X),
        lambda c: c.all_reduce(X, hpcomm.premul_sum(2.0)),
        "all_reduce",
        "premul",
    ),
    "function or name": (
        lambda c: c.all_reduce(X),
        lambda c: c.all_reduce(X, lambda a, b: a),
        "all_reduce",
        "all_reduce",
    ),
    "dtype": (lambda c: c.all_reduce(X), lambda c: c.all_reduce(X.astype("f4")), "float64", "float32"),
    "sign": (
        lambda c: c.all_reduce(X.astype("i8")),
        lambda c: c.all_reduce(X.astype("u8")),
        "int64",
        "uint64",
    ),
    "half": (
        lambda c: c.all_gather(torch.ones(6, dtype=torch.float16)),
        lambda c: c.all_gather(torch.ones(6, dtype=torch.bfloat16)),
        "float16",
        "bfloat16",
    ),
    "unit of time": (
        lambda c: c.broadcast(X.astype("m8[s]")),
        lambda c: c.broadcast(X.astype("m8[D]")),
        "timedelta64[s]",
        "timedelta64[D]",
    ),
    "fields": (
        lambda c: c.all_gather(np.zeros(2, "i4,f8")),
        lambda c: c.all_gather(np.zeros(2, "f8,i4")),
        "[('f0', '<i4'), ('f1', '<f8')]",
        "[('f0', '<f8'), ('f1', '<i4')]",
    ),
    "units whose names have one checksum of 7 bits": (
        lambda c: c.broadcast(X.astype("M8[5s]")),
        lambda c: c.broadcast(X.astype("M8[Y]")),
        "datetime64[5s]",
        "datetime64[Y]",
    ),
    "making or calling": (lambda c: c.dup(), lambda c: c.barrier(), "dup()", "barrier()"),
    "what is made": (lambda c: c.split(0), lambda c: c.split_node(), "split(color=0", "split_node()"),
    "shape of a grid": (
        lambda c: c.cart((c.size, 1)),
        lambda c: c.cart((1, c.size)),
        "cart(shape=(1, ",
        ", 1))",
    ),
    "axes": (
        lambda c: c.mesh(a=-1, b=1),
        lambda c: c.mesh(a=-1, c=1),
        "mesh(sizes={'a': -1, 'b': 1}",
        "'c': 1}",
    ),
    "algorithm": (
        lambda c: c.all_reduce(X, algorithm="ring"),
        lambda c: c.all_reduce(X),
        "algorithm='ring')",
        "op='sum') at",
    ),
    "order of folding": (
        lambda c: c.all_reduce(X, deterministic=True),
        lambda c: c.all_reduce(X),
        "deterministic=True)",
        "op='sum') at",
    ),
    "count": (lambda c: c.all_reduce(X), lambda c: c.all_reduce(X[:5]), "(6,)", "(5,)"),
    "root": (lambda c: c.broadcast(X, root=0), lambda c: c.broadcast(X, root=1), "root=0", "root=1"),
    "root of gather": (lambda c: c.gather(X, root=0), lambda c: c.gather(X, root=1), "root=0", "root=1"),
    "verb": (lambda c: c.all_reduce(X), lambda c: c.broadcast(X), "all_reduce", "broadcast"),
    "barrier": (lambda c: c.barrier(), lambda c: c.all_reduce(X), "barrier", "all_reduce"),
    "object or array": (
        lambda c: c.broadcast_object(1),
        lambda c: c.broadcast(X),
        "broadcast_object",
        "broadcast",
    ),
    "object verb": (
        lambda c: c.all_gather_object(1),
        lambda c: c.gather_object(1),
        "all_gather_object",
        "gather_object",
    ),
    "object or ragged": (
        lambda c: c.all_gather_object(1),
        lambda c: c.all_gather_ragged(X),
        "all_gather_object",
        "all_gather_ragged",
    ),
    "background or not": (
        lambda c: c.all_reduce(X),
        lambda c: c.all_reduce(X, async_op=True),
        "all_reduce",
        "async",
    ),
}


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("about", DISAGREEMENTS)
def test_every_rank_learns_of_a_disagreement_before_anything_moves(full: Any, about: str) -> None:
    """The last rank makes the other call; nobody hangs, everybody raises, and the next call is right."""
    one, other, mine, theirs = DISAGREEMENTS[about]
    with pytest.raises(hpcomm.MismatchError) as caught:
        (other if full.rank == full.size - 1 else one)(full)
    text = str(caught.value)
    assert "ranks disagree" in text
    assert "'strict'" in text
    for rank in range(full.size):
        assert f"rank {rank}: " in text
    assert mine in text
    assert theirs in text
    assert "test_checks.py:" in text
    assert about != "root of gather" or "gather_ragged takes" in str(caught.value.hint)
    assert full.all_reduce(1) == full.size


@pytest.mark.mpi(min_size=2)
def test_a_swapped_order_is_found_at_the_first_call_that_differs(full: Any) -> None:
    calls = [lambda: full.all_reduce(np.ones(3)), lambda: full.all_reduce(np.ones(4))]
    with pytest.raises(hpcomm.MismatchError, match="call #1 "):
        calls[full.rank % 2]()
    assert full.all_reduce(1) == full.size


@pytest.mark.core
@pytest.mark.mpi(min_size=2)
def test_after_a_disagreement_that_was_caught_no_collective_call_takes_what_another_left() -> None:
    """rank 0 has gone on, and what it broadcast is still on the way."""
    two = MPI.COMM_WORLD.Split(MPI.COMM_WORLD.rank // 2)  # and the others apart
    with hpcomm.Communicator(two, check="light", name="fallen") as comm:
        if comm.rank == 0 and comm.size > 1:
            comm.broadcast(np.ones(3))
            comm.send(np.full(2, 7.0), 1, tag=5)
        two.Barrier()
        if comm.rank == 1:
            with pytest.raises(hpcomm.MismatchError, match="disagree"):
                comm.broadcast(np.ones(3, np.float32))
            for call in (lambda: comm.broadcast(np.ones(3)), lambda: comm.all_gather_object(1), comm.dup):
                with pytest.raises(hpcomm.MismatchError, match="out of step since they disagreed"):
                    call()
            assert comm.recv(np.empty(2), 0).tolist() == [7.0, 7.0]  # only two ranks know of it
        two.Barrier()
    two.Free()


@pytest.mark.parametrize("level", ["light", "full"])
def test_calls_that_agree_raise_nothing_however_arrays_lie(level: str) -> None:
    """Kind, layout, out and in place may differ from rank to rank; so may what op is called."""
    with hpcomm.Communicator(MPI.COMM_WORLD, check=level) as comm:
        even = comm.rank % 2 == 0
        x: Any = np.ones(6, np.float32) if even else torch.ones(12)[::2]
        for _ in range(3):
            assert comm.all_reduce(x, "sum" if even else MPI.SUM).tolist() == [comm.size] * 6
            out = np.zeros(6, np.float32)
            comm.broadcast(x, out=out if even else None)
            comm.reduce(x, torch.distributed.ReduceOp.MAX if even else "max")
            comm.all_gather(x.reshape(2, 3) if even else x)
            comm.all_reduce(np.ones(4, np.float16), "sum")
            comm.all_reduce(np.ones(2), hpcomm.premul_sum(float(comm.rank)))
            comm.all_reduce(np.ones(2), lambda a, b: a)


def test_a_rank_that_runs_ahead_or_lags_behind_raises_no_false_alarm(own_comm: Any) -> None:
    """The root of a broadcast need not wait for anybody, so it may be hundreds of calls ahead."""
    x = np.zeros(2)
    for i in range(400):
        if own_comm.rank == own_comm.size - 1 and i % 97 == 50:
            time.sleep(0.02)
        x[:] = i if own_comm.rank == 0 else -1
        assert own_comm.broadcast(x, root=0, out=x)[0] == i
        if i % 100 == 99:
            assert (
                own_comm.reduce(np.ones(1), root=own_comm.size - 1) is None
                or own_comm.rank == own_comm.size - 1
            )


def test_more_background_calls_than_the_board_remembers_raise_no_false_alarm(own_comm: Any) -> None:
    for _ in range(3):
        requests = [own_comm.all_reduce(np.full(1, i), async_op=True) for i in range(200)]
        order = requests if own_comm.rank % 2 else requests[::-1]
        hpcomm.wait_all(order, timeout=WAIT_S)
        assert [int(request.result[0]) for request in requests] == [i * own_comm.size for i in range(200)]


def test_background_and_blocking_calls_may_alternate(own_comm: Any) -> None:
    pending = []
    for i in range(50):
        pending.append(own_comm.all_reduce(np.full(1, i), async_op=True))
        assert own_comm.all_reduce(i) == i * own_comm.size
        if i % 7 == own_comm.rank:
            pending[-1].wait(timeout=WAIT_S)
    assert [int(request.wait(timeout=WAIT_S)[0]) for request in pending] == [
        i * own_comm.size for i in range(50)
    ]


def test_a_rank_that_thinks_long_before_its_call_is_no_disagreement() -> None:
    """Longer than the watchdog's patience, so that it looks at a call that others have not reached."""
    with hpcomm.Communicator(MPI.COMM_WORLD, name="slow") as comm:
        if comm.rank == 0:
            time.sleep(0.8)
        assert comm.all_reduce(np.ones(1)).tolist() == [comm.size]
        if comm.rank == comm.size - 1:
            time.sleep(0.6)
        comm.barrier()


def test_communicators_do_not_count_for_each_other(own_comm: Any) -> None:
    with own_comm.split(own_comm.rank % 2) as part:
        for _ in range(1 + own_comm.rank % 2):
            part.all_reduce(1)
    assert own_comm.all_reduce(1) == own_comm.size
