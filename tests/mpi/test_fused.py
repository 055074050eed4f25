"""A communicator's own functions for verbs: what they do is what the methods do."""

from __future__ import annotations

import inspect
from array import array
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from mpi4py import MPI

import hpcomm
from hpcomm.communicator.fastpath_instance import _OTHERS
from hpcomm.node.arrival_flags import is_wanted

PLAIN = (
    "all_reduce", "reduce", "broadcast", "gather", "all_gather", "scatter", "reduce_scatter", "all_to_all",
    "scan", "exscan", "barrier",
)  # fmt: skip
KINDS = [
    lambda values: np.array(values),
    lambda values: np.array(values, np.float32),
    lambda values: torch.tensor(values),
    lambda values: np.array([values], np.int64),
]


@pytest.fixture
def comm() -> Iterator[hpcomm.Communicator]:
    with hpcomm.Communicator(MPI.COMM_WORLD, name="fused") as made:
        yield made


def own(comm: Any, verb: str) -> Any:
    """The function that the communicator has for a verb; None: it calls the method."""
    return vars(comm).get(verb)


def call(comm: Any, verb: str) -> None:
    x = np.ones((comm.size, 2))
    {"barrier": comm.barrier, "broadcast": lambda: comm.broadcast(x, out=x)}.get(
        verb, lambda: getattr(comm, verb)(x)
    )()


@pytest.mark.parametrize("verb", PLAIN)
def test_a_verb_that_found_its_lane_is_a_function_of_the_communicator(comm: Any, verb: str) -> None:
    assert own(comm, verb) is None
    call(comm, verb)
    assert own(comm, verb) is not None
    call(comm, verb)
    method, parameters = getattr(hpcomm.Communicator, verb), inspect.signature(own(comm, verb)).parameters
    assert own(comm, verb).__doc__ == method.__doc__
    assert list(parameters.values()) == list(inspect.signature(method).parameters.values())[1:]


def test_arrays_of_all_kinds_come_in_any_order(comm: Any) -> None:
    order = np.random.default_rng(5).integers(0, len(KINDS), 200)
    for i, which in enumerate([*order, *([0] * 50), *([2] * 50), *order]):
        x = KINDS[which]([float(comm.rank), float(i)])
        op = "max" if i % 7 == 0 else "sum"
        total = comm.all_reduce(x, op=op)
        assert type(total) is type(x)
        assert total.dtype == x.dtype
        each = [comm.size - 1, i] if op == "max" else [sum(range(comm.size)), i * comm.size]
        assert total.reshape(-1).tolist() == each
        root = i % comm.size
        assert comm.broadcast(x, root, out=x) is x
        assert x.reshape(-1).tolist() == [root, i]


@pytest.mark.parametrize("n", [1, 3, 50_000])
@pytest.mark.parametrize("kind", ["numpy", "read-only", "tensor", "of a gradient"])
def test_a_broadcast_into_a_new_array_goes_the_quick_way(
    comm: Any, monkeypatch: pytest.MonkeyPatch, kind: str, n: int
) -> None:
    for turn in range(2 * comm.size):
        if turn == comm.size:  # when ways of the node are found
            monkeypatch.setattr(hpcomm.communicator.collectives, "careful", None)
        root, mine = turn % comm.size, np.arange(2.0 * n).reshape(2, n) + comm.rank
        x = mine if kind in ("numpy", "read-only") else torch.from_numpy(mine.copy())
        if kind == "read-only":
            x.setflags(write=False)
        elif kind == "of a gradient":
            x.requires_grad_()
        y = comm.broadcast(x, root)
        assert type(y) is type(x)
        assert y.tolist() == (mine - comm.rank + root).tolist()
        assert not getattr(y, "requires_grad", False)
        assert x.tolist() == mine.tolist()
        y *= 0  # memory of its own, also on root
        assert x.tolist() == mine.tolist()


def test_some_broadcast_in_place_and_others_into_new_arrays_or_given_ones(comm: Any) -> None:
    for turn in range(9):
        root, x = turn % comm.size, np.full(5, comm.rank + 10.0 * turn)
        out = [x, None, np.empty(5)][(comm.rank + turn) % 3]
        y = comm.broadcast(x, root, out=out)
        assert out is None or y is out
        assert y.tolist() == [root + 10.0 * turn] * 5


def test_the_function_for_the_arrays_that_come_takes_its_place(comm: Any) -> None:
    some, others = np.ones(3), torch.ones(3)
    comm.all_reduce(others, out=others)
    comm.all_reduce(some, out=some)
    first = own(comm, "all_reduce")
    for _ in range(_OTHERS - 1):
        comm.all_reduce(others, out=others)
    assert own(comm, "all_reduce") is first
    comm.all_reduce(others, out=others)
    assert own(comm, "all_reduce") is not first
    assert own(comm, "all_reduce").__globals__["its_type"] is torch.Tensor


@pytest.mark.mpi(min_size=2)
def test_words_of_torch_are_understood(comm: Any) -> None:
    for turn in range(3):
        x = np.array([turn + 10.0 * comm.rank])
        if comm.rank == 0:
            comm.send(x, dst=1)
            comm.isend(x + 1, dst=1).wait()
        elif comm.rank == 1:
            y = np.zeros(1)
            assert comm.recv(y, src=0).tolist() == [turn]
            assert comm.irecv(y, src=0).wait().tolist() == [turn + 1]
        assert comm.broadcast(x, src=1, out=x).tolist() == [turn + 10]
        assert comm.broadcast(x, 0, src=1, out=x).tolist() == [turn + 10]  # as the method has it


@pytest.mark.parametrize("verb", PLAIN)
def test_a_function_that_was_kept_knows_that_the_communicator_is_closed(verb: str) -> None:
    comm = hpcomm.Communicator(MPI.COMM_WORLD, name="closed early")
    call(comm, verb)
    kept = own(comm, verb)
    comm.close()
    assert own(comm, verb) is None
    x = np.ones((comm.size, 2))
    with pytest.raises(hpcomm.UsageError, match="'closed early' is closed"):
        kept() if verb == "barrier" else kept(x, out=x) if verb == "broadcast" else kept(x)


@pytest.mark.parametrize("verb", PLAIN)
def test_an_observer_sees_calls_of_functions_that_were_kept(comm: Any, verb: str) -> None:
    call(comm, verb)
    kept, seen = getattr(comm, verb), []

    class Look:
        def before(self, call: Any) -> None:
            seen.append(call.verb)

        def after(self, call: Any) -> None:
            pass

    stop = comm.observe(Look())
    x = np.ones((comm.size, 2))
    for function in (kept, getattr(comm, verb)):
        function() if verb == "barrier" else function(x, out=x) if verb == "broadcast" else function(x)
    assert seen == [verb, verb]
    stop()
    call(comm, verb)
    assert seen == [verb, verb]
    assert own(comm, verb) is not None


def test_what_a_subclass_does_is_not_hidden() -> None:
    class Counting(hpcomm.Communicator):
        calls = 0

        def all_reduce(self, *args: Any, **kwargs: Any) -> Any:
            self.calls += 1
            return super().all_reduce(*args, **kwargs)

    with Counting(MPI.COMM_WORLD, name="counting") as comm:
        for _ in range(3):
            assert comm.all_reduce(np.ones(2)).tolist() == [comm.size] * 2
            comm.barrier()
        assert comm.calls == 3
        assert own(comm, "all_reduce") is None
        assert own(comm, "barrier") is not None


def test_arguments_that_no_lane_knows_go_on_to_the_method(comm: Any) -> None:
    x = np.arange(4.0)
    for _ in range(2):
        assert comm.all_reduce(x).tolist() == (x * comm.size).tolist()
        assert comm.all_reduce(x, async_op=True).wait().tolist() == (x * comm.size).tolist()
        assert comm.all_reduce(x, deterministic=True).tolist() == (x * comm.size).tolist()
        assert comm.all_reduce(x, algorithm="ring").tolist() == (x * comm.size).tolist()
        assert comm.all_reduce(x, op=np.maximum).tolist() == x.tolist()
        assert comm.all_reduce(array("d", [1.0, 2.0])).tolist() == [comm.size, 2 * comm.size]
        assert comm.all_reduce(x[::2]).tolist() == (x[::2] * comm.size).tolist()
        with pytest.raises(hpcomm.UsageError, match="no algorithm 'rung'"):
            comm.all_reduce(x, algorithm="rung")
        with pytest.raises(hpcomm.UsageError, match="in its own way"):
            comm.all_reduce(x, deterministic=True, algorithm="ring")
        big = np.array([1e16, 1.0, -1e16])[[comm.rank % 3]]
        exact = float(sum([10**16, 1, -(10**16)][r % 3] for r in range(comm.size)))
        assert comm.all_reduce(big, deterministic=True).tolist() == [exact]
        comm.barrier(async_op=True).wait()
        comm.barrier()
        with pytest.raises(hpcomm.RankError):
            comm.broadcast(x, comm.size, out=x)
        with pytest.raises(hpcomm.UsageError, match="'summ'"):
            comm.all_reduce(x, op="summ")


def test_a_call_says_where_it_was_made_from_though_no_method_ran(comm: Any) -> None:
    left, right = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
    for _ in range(2):
        request, line = comm.irecv(np.zeros(2), left, tag=5), inspect.currentframe().f_lineno  # type: ignore[union-attr]
        assert request.birth == f"test_fused.py:{line}"
        comm.send(np.ones(2), right, tag=5)
        request.wait()


@pytest.mark.mpi(min_size=2)
@pytest.mark.skipif(not is_wanted(), reason="calls do not go through shared memory here")
def test_functions_that_know_old_memory_of_the_node_go_with_it(comm: Any) -> None:
    short, long = np.ones(2000), np.ones(1_000_000)
    for _ in range(2):  # the first one takes memory
        comm.all_reduce(short)
    kept = own(comm, "all_reduce")
    assert kept is not None
    assert comm.all_reduce(long).sum() == comm.size * long.size  # for which there was not enough
    assert own(comm, "all_reduce") is not kept
    for function in (kept, comm.all_reduce, kept):
        assert (function(short) == comm.size).all()
        assert (function(long) == comm.size).all()
    assert kept.__globals__["its_type"] is None


@pytest.mark.parametrize("built_for", ["", "cuda", "none that is here"])
def test_tensors_that_are_not_in_the_hosts_memory_are_refused_after_those_that_are(
    comm: Any, built_for: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A torch built for no device is not asked at every call where a tensor lies."""

    def current() -> torch.device | None:
        return torch.device(built_for) if built_for else None  # a RuntimeError, as of torch 2.6, for the last

    monkeypatch.setattr(torch.accelerator, "current_accelerator", current)
    comm.all_reduce(torch.ones(3))
    assert ("is_cpu" in own(comm, "all_reduce").__globals__["__loader__"].text) == bool(built_for)
    with pytest.raises(hpcomm.LayoutError, match="meta"):
        comm.all_reduce(torch.ones(3, device="meta"))
