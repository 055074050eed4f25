"""check="strict": each kind of mistake is named with rank, call and line, and a right program is not.

What is said at the end of a rank is in mpi_jobs/test_mismatch.py.
"""

from __future__ import annotations

import gc
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

import hpcomm
from hpcomm.agree import runtime
from hpcomm.communicator import strict as levels

pytestmark = pytest.mark.few


@pytest.fixture
def strict(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setattr(levels, "_warned", set())
    with hpcomm.Communicator(MPI.COMM_WORLD, name="strict", check="strict") as comm:
        yield comm


def ring(comm: Any) -> tuple[int, int]:
    return (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size


BEGINNINGS: dict[str, Callable[[Any, Any], Any]] = {
    "send": lambda comm, x: comm.isend(x, ring(comm)[1]),
    "recv": lambda comm, x: comm.irecv(x, ring(comm)[0]),
    "all_reduce": lambda comm, x: comm.all_reduce(x, async_op=True),
    "all_gather": lambda comm, x: comm.all_gather(np.ones(3), out=x, async_op=True),
    "broadcast": lambda comm, x: comm.broadcast(x, async_op=True),
}


@pytest.mark.parametrize("verb", BEGINNINGS)
@pytest.mark.parametrize("is_strided", [False, True], ids=["plain", "strided"])
def test_an_array_written_to_while_a_request_has_it_is_named_with_both_lines(
    strict: Any, verb: str, is_strided: bool
) -> None:
    shape = (strict.size, 3) if verb == "all_gather" else (3,)
    x = np.zeros((2, *shape))[::2][0] if is_strided else np.zeros(shape)
    left, right = ring(strict)
    begun, born = BEGINNINGS[verb](strict, x), BEGINNINGS[verb].__code__.co_firstlineno
    if strict.rank == 0:
        x[...] = 7
    others = {"send": lambda: strict.recv(np.empty(3), left), "recv": lambda: strict.send(np.ones(3), right)}
    if strict.size > 1 or verb == "recv":
        others.get(verb, lambda: None)()
    elif verb == "send":
        strict.recv(np.empty(3), left)
    if strict.rank:
        begun.wait()
        return
    waited = sys._getframe().f_lineno + 2
    with pytest.raises(hpcomm.UsageError, match="was written to before") as caught:
        begun.wait()
    text = str(caught.value)
    assert f"an array of {verb}(float64" in text
    assert f"started at test_strict.py:{born}" in text
    assert f"{verb} on communicator 'strict' (rank 0 of {strict.size}) at test_strict.py:{waited}" in text


PLANS: dict[str, Callable[[Any, Any], Any]] = {
    "send": lambda comm, x: comm.plan("send", x, dest=ring(comm)[1]),
    "recv": lambda comm, x: comm.plan("recv", out=x, source=ring(comm)[0]),
    "all_reduce": lambda comm, x: comm.plan("all_reduce", x),
    "all_reduce in place": lambda comm, x: comm.plan("all_reduce", x, out=x),
    "all_gather": lambda comm, x: comm.plan("all_gather", np.ones(3), out=x),
    "broadcast": lambda comm, x: comm.plan("broadcast", x),
}


@pytest.mark.parametrize("verb", PLANS)
def test_an_array_written_to_while_a_plan_has_it_is_named_with_both_lines(strict: Any, verb: str) -> None:
    """At the start that it happened in; what comes is not seen before the end, and the plan goes on."""
    x = np.zeros((strict.size, 3) if verb == "all_gather" else 3)
    left, right = ring(strict)
    others = {
        "send": lambda: strict.irecv(np.empty(3), left),
        "recv": lambda: strict.isend(np.ones(3), right),
    }
    other = others.get(verb, lambda: strict.barrier(async_op=True))
    with PLANS[verb](strict, x) as plan:
        for turn in range(3):
            x[...], going = turn, other()
            started = sys._getframe().f_lineno + 1
            plan.start()
            strict.barrier()  # so that it may be complete
            assert (x == turn).all()
            if turn != 1 or strict.rank:
                got = plan.wait()
                if verb.startswith("all_reduce") and turn != 1:
                    assert got.tolist() == [turn * strict.size] * 3
            else:
                x[...] = 7
                with pytest.raises(hpcomm.UsageError, match="was written to before") as caught:
                    plan.wait()
                text = str(caught.value)
                assert f"an array of {verb.partition(' ')[0]}(float64" in text
                assert f"started at test_strict.py:{started}" in text
            going.wait()


def test_two_rows_of_one_array_are_two_arrays(strict: Any) -> None:
    """A halo in the background: only what a request has must be left alone."""
    left, right = ring(strict)
    field = np.full((6, 4), float(strict.rank))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(3):
            requests = [
                strict.irecv(field[0], left, tag=1),
                strict.irecv(field[-1], right, tag=2),
                strict.isend(field[1], right, tag=1),
                strict.isend(field[-2], left, tag=2),
                strict.isend(field[1], right, tag=3),
                strict.irecv(np.empty(4), left, tag=3),
            ]
            field[2:-2, :] += 0
            field[2:-2, 1:3] *= 1
            hpcomm.wait_all(requests)
    assert (field[0] == left).all()
    assert (field[-1] == right).all()
    column = strict.irecv(field[:, 0], left)
    strict.send(np.arange(6.0), right)
    field[:, 1:] = 5
    assert column.wait().tolist() == list(range(6))
    torn = strict.irecv(field[:, 0], left, tag=9)
    assert torn.cancel()
    assert field[:, 0].tolist() == list(range(6))


def test_everything_goes_as_at_other_levels(strict: Any) -> None:
    left, right = ring(strict)
    n = strict.size
    assert strict.check == ("strict" if n > 1 else "off")
    with strict.dup() as twin, strict.dup(check="light") as plain:
        assert type(plain.mpi) is MPI.Intracomm
        assert type(twin.mpi) is not MPI.Intracomm
        got = twin.irecv_object()
        twin.send_object({"from": strict.rank}, right)
        assert got.wait() == {"from": left}
        assert twin.sendrecv(np.full(2, strict.rank), right, left).tolist() == [left] * 2
        assert twin.sendrecv_object(strict.rank, right, left) == left
        assert twin.all_reduce(np.arange(4), async_op=True).wait().tolist() == [n * i for i in range(4)]
        assert twin.all_gather_object(strict.rank) == list(range(n))
        assert twin.all_gather_ragged(np.ones(strict.rank))[-1].tolist() == [1.0] * (n - 1)
        with (
            twin.plan("send", np.ones(2), dest=right) as out,
            twin.plan("recv", np.empty(2), source=left) as into,
        ):
            out.start(), into.start()
            out.wait()
            assert into.wait().tolist() == [1.0, 1.0]
        mine = np.ones(4)[::2]
        twin.send(mine, strict.rank)  # to itself: copied
        mine[...] = 2
        assert twin.recv(np.empty(2), strict.rank).tolist() == [1.0, 1.0]
        halves = twin.split(strict.rank % 2)
        assert halves.all_reduce(1) == halves.size
        halves.close()
        rows = memoryview(np.zeros(6, "i2"))[::2]  # strided, which nothing takes a checksum of
        assert twin.broadcast(rows, out=rows) is rows


def test_no_array_is_kept_behind_its_call(strict: Any) -> None:
    """Not until Python collects garbage."""
    x, small, held = np.ones(3), np.ones(3, "i2"), sys.getrefcount
    before = held(x), held(small)
    gc.disable()
    try:
        strict.all_reduce(small)
        strict.all_reduce(small, async_op=True).wait()
        with strict.plan("all_reduce", x) as plan:
            plan()
        del plan
        until = time.monotonic() + 10  # the watchdog may hold what this rank waits in
        while (held(x), held(small)) != before and time.monotonic() < until:
            time.sleep(1e-3)
        assert (held(x), held(small)) == before
    finally:
        gc.enable()


@pytest.mark.once
@pytest.mark.few
@pytest.mark.three
def test_communicators_that_are_kept_are_counted_by_line(
    own_comm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before MPI has no room; those closed or dropped do not count."""
    gc.collect()
    few = max(own_comm.all_gather_object(runtime.kept()[0])) + 20  # other tests leave some on one rank only
    for name in ("_MANY", "_look_at"):
        monkeypatch.setattr(runtime, name, few)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for _ in range(few + 1):
            own_comm.dup("passing").close()
        for _ in range(few):
            own_comm.dup("dropped")
        assert not seen
        here = f"test_strict.py:{sys._getframe().f_lineno + 1}"
        many = [own_comm.dup("kept") for _ in range(2 * few)]
    said = [str(each.message) for each in seen]
    assert bool(said) == (own_comm.rank == 0)
    assert all("rank 0 of 'kept' keeps " in text and f"made at {here} (" in text for text in said)
    assert f"{here} ({2 * few})" in runtime.kept()[1]
    for each in many:
        each.close()
    assert here not in runtime.kept(1000)[1]


def test_a_send_is_complete_when_it_is_received(strict: Any) -> None:
    left, right = ring(strict)
    going = [strict.isend(np.ones(2), right, tag=5), strict.isend_object("small", right)]
    for _ in range(5):
        strict.barrier()
        assert strict.size == 1 or not any(each.done() for each in going)
    strict.barrier()
    assert strict.recv(np.empty(2), left, tag=5).tolist() == [1.0, 1.0]
    assert strict.recv_object(left) == "small"
    hpcomm.wait_all(going)


def told(seen: list[warnings.WarningMessage]) -> list[str]:
    return [str(each.message) for each in seen if each.category is RuntimeWarning]


@pytest.mark.parametrize("form", ["", "_object"])
@pytest.mark.parametrize("waits", [True, False], ids=["recv", "irecv"])
def test_a_receive_of_any_source_that_two_messages_fit_is_warned_about_once(
    strict: Any, form: str, waits: bool
) -> None:
    x = (np.ones(1),) if not form else ()
    senders = range(1, strict.size)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        going = [getattr(strict, f"isend{form}")(np.ones(1), 0, tag=3)] if strict.rank else []
        for sender in senders if not strict.rank else ():
            getattr(strict, f"probe{form}")(source=sender, tag=3)  # so that all are there
        here = sys._getframe().f_lineno + 3
        for _ in senders if not strict.rank else ():
            if waits:
                getattr(strict, f"recv{form}")(*x, source=None)
            else:
                getattr(strict, f"irecv{form}")(*x, source=None).wait()
        hpcomm.wait_all(going)
        for sender in senders:  # by name
            if strict.rank == 0:
                getattr(strict, f"recv{form}")(*x, source=sender, tag=4)
            elif strict.rank == sender:
                getattr(strict, f"send{form}")(np.ones(1), 0, tag=4)
        for _ in senders:  # or from one alone
            if strict.rank == 0:
                getattr(strict, f"recv{form}")(*x, source=None, tag=5)
                strict.send_object("next", 1)
            elif strict.rank == 1:
                getattr(strict, f"send{form}")(np.ones(1), 0, tag=5)
                strict.recv_object(0)
    if strict.rank or strict.size < 3:
        assert not told(seen)
        return
    [text] = told(seen)
    assert [each.lineno for each in seen] == [here if waits else here + 2]
    assert "on 'strict' (rank 0 of" in text
    assert "those of ranks 1 and 2 are there" in text


@pytest.mark.parametrize(
    "accesses", ["put put", "put get", "accumulate put", "get get", "accumulate accumulate"]
)
def test_two_ranks_that_use_one_place_of_a_window_between_fences_are_named(
    strict: Any, accesses: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime, "living", lambda: [strict.context])  # those of other tests are not strict
    first, second = accesses.split()
    call = {
        "put": lambda window: window.put(np.ones(2), 0, slice(1, 3)),
        "get": lambda window: window.get(0, slice(2, 4)),
        "accumulate": lambda window: window.accumulate(np.ones(3), 0, at=slice(0, 3)),
    }
    with warnings.catch_warnings(record=True) as seen, strict.window(4) as window:
        warnings.simplefilter("always")
        if strict.rank < 2:
            call[(first, second)[strict.rank]](window)
        window.fence()
    if strict.rank or strict.size == 1 or first == second != "put":
        assert not told(seen)
        return
    [text] = told(seen)
    lines = {name: f"test_strict.py:{each.__code__.co_firstlineno}" for name, each in call.items()}
    assert f"{first} of rank 0 at {lines[first]}" in text
    assert f"{second} of rank 1 at {lines[second]} use the same memory of rank 0" in text


def test_windows_used_in_order_are_not_blamed(strict: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a fence, a message, a barrier, a lock, an atomic operation; or each rank its own part."""
    monkeypatch.setattr(runtime, "living", lambda: [strict.context])
    right = ring(strict)[1]
    with warnings.catch_warnings(), strict.window(4, "int64") as window, strict.counter() as counter:
        warnings.simplefilter("error")
        window.put(np.full(4, strict.rank), right)
        window.fence()
        assert window.get(strict.rank).tolist() == [ring(strict)[0]] * 4
        window.fence()
        for rank in range(strict.size):  # one after the other, by barriers
            if rank == strict.rank:
                window.put(np.full(4, rank), 0)
                window.flush()
            strict.barrier()
        window.fence()
        with window.lock(0):
            window.put(window.get(0) + 1, 0)
        window.fence()
        window.put(counter.next(), 0, counter.next() % 4) if strict.rank == 0 else None
        window.fence()
        if strict.rank == 0:
            window.put(7, right, 0)
            window.flush()
            strict.send_object("go", right)
        if strict.rank == 1 % strict.size:
            assert strict.recv_object(0) == "go"
            assert window.get(strict.rank, 0) == 7
        window.fence()
