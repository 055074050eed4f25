"""Plans: prepared once, started many times, each time with what the arrays hold then."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest
import torch
from arrays import bits, make, plain_of, plain_values
from contract import VERBS, Verb, agrees, given_by_all, room_for, roots

import hpcomm

pytestmark = pytest.mark.few

WAIT_S = 30
SORTS = [
    ("numpy", "float64", "contiguous"),
    ("numpy", "int16", "sliced"),
    ("numpy", "float16", "contiguous"),
    ("numpy", "bool", "contiguous"),
    ("numpy", "complex64", "zero_d"),
    ("numpy", "float32", "empty"),
    ("torch", "float32", "contiguous"),
    ("torch", "bfloat16", "transposed"),
    ("bytearray", "uint8", "contiguous"),
]


@pytest.mark.parametrize(("kind", "dtype", "layout"), SORTS)
@pytest.mark.parametrize("verb", VERBS, ids=str)
def test_a_plan_gives_what_its_verb_gives_each_time_it_is_started(
    comm: Any, verb: Verb, kind: str, dtype: str, layout: str
) -> None:
    outs = ["no out", "out", "out=x"] if verb.same_shape else ["no out", "out"]
    wrong = [
        f"{out}, root {root}: {line}"
        for out in outs
        for root in roots(comm, verb)
        for line in trial(comm, verb, kind, dtype, layout, out, root)
    ]
    assert wrong == []


def trial(comm: Any, verb: Verb, kind: str, dtype: str, layout: str, out: str, root: int) -> list[str]:
    """One plan, started three times with new contents; what was wrong."""
    given = given_by_all(comm, verb, kind, layout, dtype)
    x = make(kind, dtype, layout, given[comm.rank])
    place = room_for(verb.expected(given, comm.rank, root), kind, layout, dtype)
    place = {"no out": None, "out": place, "out=x": x}[out]
    wrong: list[str] = []
    step = comm.plan(verb.name, x, out=place, **({"root": root} if verb.rooted else {}))
    for turn in range(3):
        given = given_by_all(comm, verb, kind, layout, dtype, seed=10 * root + turn)
        expected = verb.expected(given, comm.rank, root)
        fill(x, make(kind, dtype, layout, given[comm.rank]))
        if turn:
            result = step()
        else:
            wrong.append("" if step.start() is None else "start returns something")
            result = step.wait()
        wrong.append(agrees(result, expected, kind, dtype))
        if place is not None and expected is not None and result is not place:
            wrong.append(f"turn {turn}: the result is not the very object given as out")
    step.close()
    return [line for line in wrong if line]


def fill(x: Any, values: Any) -> None:
    """Put values where x lies, whatever library x is of."""
    if isinstance(x, bytearray):
        x[:] = values
    else:
        x[...] = values


def test_a_plan_of_barrier_is_one(comm: Any) -> None:
    step = comm.plan("barrier")
    for _ in range(3):
        assert step() is None
    step.close()


@pytest.mark.parametrize("count", [4, 300_000])
@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_plans_of_send_and_recv_carry_what_x_holds_at_each_start(comm: Any, kind: str, count: int) -> None:
    left, right = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
    x: Any = np.zeros(count) if kind == "numpy" else torch.zeros(count, dtype=torch.bfloat16)
    y: Any = np.zeros(count) if kind == "numpy" else torch.zeros(count, dtype=torch.bfloat16)
    receive = comm.plan("recv", out=y, source=left, tag=4)
    send = comm.plan("send", x, dest=right, tag=4)
    for turn in range(3):
        x[...] = 10 * turn + comm.rank
        receive.start()
        send.start()
        assert receive.wait(timeout=WAIT_S) is y
        assert send.wait(timeout=WAIT_S) is None
        assert (plain_of(y) == 10 * turn + left).all()
    receive.close()
    send.close()


def test_a_planned_receive_of_a_shorter_message_is_an_error(own_comm: Any) -> None:
    left, right = (own_comm.rank - 1) % own_comm.size, (own_comm.rank + 1) % own_comm.size
    receive = own_comm.plan("recv", out=np.zeros(5), source=left)
    receive.start()
    own_comm.isend(np.ones(3), right).wait(timeout=WAIT_S)
    with pytest.raises(hpcomm.MismatchError, match="24"):
        receive.wait()
    receive.close()


def test_a_planned_receive_takes_no_message_of_a_receive_of_unknown_length(comm: Any) -> None:
    """MPI would let it overtake one that looks at its message first."""
    out = np.zeros(3)
    with comm.plan("recv", out=out, source=comm.rank, tag=5) as plan:
        for first in (1, 2):
            earlier = comm.irecv(dtype=int, source=comm.rank, tag=5)
            plan.start()
            comm.isend(np.full(first, first), comm.rank, 5).wait()
            comm.isend(np.full(3, 7.0), comm.rank, 5).wait()
            assert plan.wait().tolist() == [7.0] * 3
            assert earlier.wait().tolist() == [first] * first
        plan.start()  # nothing is before it: MPI's own again
        comm.send(np.ones(3), comm.rank, 5)
        assert plan.wait().tolist() == [1.0] * 3


def test_plans_to_and_from_nobody_change_nothing(comm: Any) -> None:
    place = np.full(3, 7.0)
    with comm.plan("recv", out=place, source=hpcomm.PROC_NULL) as receive:
        assert receive() is place
        assert place.tolist() == [7.0] * 3
    with comm.plan("send", place, dest=hpcomm.PROC_NULL) as send:
        send()


@pytest.mark.parametrize(
    "op",
    ["max", "avg", "band", lambda a, b: b, hpcomm.premul_sum(2)],
    ids=["max", "avg", "band", "function", "premul_sum"],
)
def test_a_plan_takes_any_operator(comm: Any, op: Any) -> None:
    dtype = np.int32 if op == "band" else np.float32
    x, y = np.zeros(3, dtype), np.zeros(3, dtype)
    step = comm.plan("all_reduce", x, op=op, out=y)
    for turn in range(1, 4):
        x[:] = turn * (comm.rank + 1)
        assert step() is y
        assert np.array_equal(y, comm.all_reduce(x, op))
    step.close()


@pytest.mark.parametrize("verb", VERBS, ids=str)
def test_ranks_whose_arrays_lie_differently_may_share_a_plan(comm: Any, verb: Verb) -> None:
    """Contiguous here and strided there: neither knows of the other, and the calls must still match."""
    layout = ("contiguous", "sliced", "fortran", "negative")[comm.rank % 4]
    kind = "torch" if comm.rank == 2 else "numpy"
    root = comm.size - 1
    given = given_by_all(comm, verb, kind, layout, "float32")
    expected = verb.expected(given, comm.rank, root)
    x = make(kind, "float32", layout, given[comm.rank])
    place = None if comm.rank == 0 else room_for(expected, kind, layout, "float32")
    step = comm.plan(verb.name, x, out=place, **({"root": root} if verb.rooted else {}))
    wrong = [agrees(step(timeout=60), expected, kind, "float32") for _ in range(2)]
    step.close()
    assert [line for line in wrong if line] == []


def test_a_plan_leaves_x_alone(comm: Any) -> None:
    x = plain_values("float64", (4,), comm.rank)
    before = bits(x)
    step = comm.plan("all_reduce", x)
    step()
    step()
    assert bits(x) == before
    step.close()


def test_a_plan_says_which_way_it_takes_and_why(comm: Any) -> None:
    x = np.ones(6)
    straight = comm.plan("all_reduce", x, out=np.ones(6))
    strided = comm.plan("all_reduce", x[::2])
    half = comm.plan("all_reduce", x.astype(np.float16))
    own = comm.plan("all_reduce", x, op=lambda a, b: b)
    assert "persistent" in straight.explain()
    assert "not a persistent" not in straight.explain()
    assert "not contiguous" in strided.explain()
    assert "float16" in half.explain()
    assert "function" in own.explain() or "fold" in own.explain()
    assert straight.explain() in repr(straight)
    for step in (straight, strided, half, own):
        assert "all_reduce" in step.explain()
        step.close()


def test_two_plans_may_be_under_way_at_once(comm: Any) -> None:
    x, y = np.ones(3), np.full(3, 2.0)
    one, two = comm.plan("all_reduce", x), comm.plan("all_reduce", y)
    for _ in range(3):
        one.start()
        two.start()
        assert two.wait().tolist() == [2.0 * comm.size] * 3
        assert one.wait().tolist() == [comm.size] * 3
    one.close()
    two.close()


@pytest.mark.parametrize("dtype", [np.float64, np.float16], ids=["persistent", "not persistent"])
def test_a_plan_that_others_have_not_started_times_out_and_may_be_waited_for_again(
    comm: Any, dtype: Any
) -> None:
    left, right = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
    receive = comm.plan("recv", out=np.zeros(2), source=left)
    receive.start()
    with pytest.raises(hpcomm.WaitTimeoutError):
        receive.wait(timeout=0.1)
    comm.barrier()
    comm.isend(np.ones(2), right).wait(timeout=WAIT_S)
    assert receive.wait(timeout=WAIT_S).tolist() == [1.0, 1.0]
    receive.close()
    step = comm.plan("all_reduce", np.ones(2, dtype))
    if comm.rank == 0 and comm.size > 1:
        comm.recv_object(1)
    step.start()
    if comm.rank == 1:
        with pytest.raises(hpcomm.WaitTimeoutError) as caught:
            step.wait(timeout=0.2)
        assert "0.2 s" in str(caught.value)
        comm.send_object("now", 0)
    assert step.wait(timeout=WAIT_S).tolist() == [comm.size] * 2
    step.close()


@pytest.mark.parametrize("timeout", ["1", -1, float("nan")], ids=repr)
def test_a_plan_refuses_a_timeout_that_is_no_number_of_seconds(comm: Any, timeout: Any) -> None:
    step = comm.plan("all_reduce", np.ones(2))
    step.start()
    with pytest.raises(hpcomm.UsageError, match="no number of seconds"):
        step.wait(timeout=timeout)
    assert step.wait(timeout=np.float32(WAIT_S)).tolist() == [comm.size] * 2
    step.close()


def test_memory_of_a_plan_dropped_under_way_is_not_given_to_somebody_else(own_comm: Any) -> None:
    left, right = (own_comm.rank - 1) % own_comm.size, (own_comm.rank + 1) % own_comm.size
    receive = own_comm.plan("recv", out=np.zeros(50_000), source=left)
    receive.start()
    with pytest.warns(RuntimeWarning, match="recv.* was dropped"):
        del receive
    junk = [np.zeros(50_000) for _ in range(10)]
    own_comm.barrier()
    own_comm.isend(np.full(50_000, 13.0), right).wait(timeout=WAIT_S)
    own_comm.barrier()
    assert all((y == 0.0).all() for y in junk)


@pytest.mark.parametrize("x", [np.ones(2), np.ones(4)[::2]], ids=["persistent", "not persistent"])
def test_a_closed_plan_cannot_be_started(comm: Any, x: Any) -> None:
    step = comm.plan("all_reduce", x)
    step()
    step.close()
    step.close()
    for begin in (step.start, step):
        with pytest.raises(hpcomm.UsageError, match="closed") as caught:
            begin()
        assert "make a new one" in caught.value.hint


@pytest.mark.parametrize("x", [np.ones(2), np.ones(4)[::2]], ids=["persistent", "not persistent"])
def test_a_plan_says_how_it_is_called(comm: Any, x: Any) -> None:
    with comm.plan("all_reduce", x) as step:
        assert callable(step)
        assert list(inspect.signature(step).parameters) == ["timeout"]
        assert step(timeout=WAIT_S).tolist() == [comm.size] * 2


@pytest.mark.parametrize("x", [np.ones(2), np.ones(4)[::2]], ids=["persistent", "not persistent"])
def test_waiting_for_a_plan_that_was_not_started_is_a_usage_error(comm: Any, x: Any) -> None:
    step = comm.plan("all_reduce", x)
    with pytest.raises(hpcomm.UsageError, match="not started"):
        step.wait()
    assert step().tolist() == [comm.size] * 2
    with pytest.raises(hpcomm.UsageError, match="not started"):
        step.wait()
    step.close()


@pytest.mark.parametrize("x", [np.ones(2), np.ones(4)[::2]], ids=["persistent", "not persistent"])
def test_starting_a_plan_twice_without_waiting_is_a_usage_error(comm: Any, x: Any) -> None:
    step = comm.plan("all_reduce", x)
    step.start()
    with pytest.raises(hpcomm.UsageError, match="wait"):
        step.start()
    assert step.wait().tolist() == [comm.size] * 2
    step.close()


@pytest.mark.parametrize(
    "verb", ["all_gather_object", "broadcast_ragged", "split", "isend", "", None], ids=repr
)
def test_what_cannot_be_planned_says_so(comm: Any, verb: Any) -> None:
    with pytest.raises(hpcomm.UsageError) as caught:
        comm.plan(verb, np.ones(1))
    assert repr(verb) in caught.value.what
    assert caught.value.hint


@pytest.mark.parametrize("verb", ["all_reduce", "send"])
@pytest.mark.parametrize("lazy", [lambda z: z.conj(), lambda z: z.conj().imag], ids=["conj", "neg"])
def test_a_tensor_that_is_computed_when_it_is_read_is_refused(comm: Any, verb: str, lazy: Any) -> None:
    """MPI would read its memory, which does not change with the tensor that it comes from."""
    x = lazy(torch.zeros(3, dtype=torch.complex64))
    with pytest.raises(hpcomm.LayoutError, match="conjugate or negative bit") as caught:
        comm.plan(verb, x, **({"dest": 0} if verb == "send" else {}))
    assert "resolve_conj" in caught.value.hint


def test_mistakes_are_found_when_the_plan_is_made(comm: Any) -> None:
    mistakes: list[tuple[type[Exception], Any]] = [
        (hpcomm.RankError, lambda: comm.plan("broadcast", np.ones(1), root=99)),
        (hpcomm.DtypeError, lambda: comm.plan("all_reduce", np.ones(1, complex), op="min")),
        (hpcomm.LayoutError, lambda: comm.plan("all_reduce", np.ones(3), out=np.ones(4))),
        (hpcomm.RankError, lambda: comm.plan("send", np.ones(1), dest=99)),
        (hpcomm.RankError, lambda: comm.plan("send", np.ones(1))),
        (hpcomm.UsageError, lambda: comm.plan("recv", source=0)),
    ]
    for error, call in mistakes:
        with pytest.raises(error) as caught:
            call()
        assert "plan of" in str(caught.value.where)
        assert "test_plans.py:" in str(caught.value.where)
    assert comm.all_reduce(1) == comm.size


def test_a_thousand_steps_of_one_plan_stay_right(comm: Any) -> None:
    x = np.ones(1)
    step = comm.plan("all_reduce", x, op="max", out=x)
    for i in range(1000):
        x[0] = i + comm.rank
        assert step()[0] == i + comm.size - 1
    step.close()
