"""Calls under way: waiting, asking, giving up, awaiting, and what happens when nobody waits."""

from __future__ import annotations

import asyncio
import ctypes
import os
import re
import signal
import sys
import threading
import time
import weakref
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from mpi4py import MPI
from steady import steady_time

import hpcomm
from hpcomm.transport import progress
from hpcomm.transport.single_request import Collective

pytestmark = pytest.mark.few

WAIT_S = 30


def ring(comm: Any) -> tuple[int, int]:
    return (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size


def line() -> str:
    """`test_requests.py:41` of the caller, as messages name it."""
    frame = sys._getframe(1)
    return f"test_requests.py:{frame.f_lineno}"


def test_waiting_twice_gives_the_same_result_twice(comm: Any) -> None:
    request = comm.all_reduce(np.ones(3), async_op=True)
    first = request.wait()
    assert request.wait() is first
    assert request.wait(timeout=0) is first
    assert request.result is first
    assert first.tolist() == [comm.size] * 3


def test_the_result_is_none_until_somebody_has_waited(comm: Any) -> None:
    left, right = ring(comm)
    request = comm.irecv(np.zeros(1), left, tag=1)
    assert request.result is None
    assert not request.done()
    comm.barrier()
    comm.isend(np.ones(1), right, tag=1).wait(timeout=WAIT_S)
    request.wait(timeout=WAIT_S)
    assert request.result.tolist() == [1.0]


def test_done_never_blocks_and_turns_true(comm: Any) -> None:
    left, right = ring(comm)
    request = comm.irecv(np.zeros(1), left, tag=2)
    started = steady_time()
    assert [request.done() for _ in range(100)] == [False] * 100
    assert steady_time() - started < 5
    comm.barrier()
    send = comm.isend(np.ones(1), right, tag=2)
    deadline = steady_time() + WAIT_S
    while not request.done():
        assert steady_time() < deadline
    assert request.done()
    assert request.wait().tolist() == [1.0]
    send.wait(timeout=WAIT_S)


def test_asking_alone_moves_a_call_of_several_stages_to_its_end(comm: Any) -> None:
    x = np.full(300_000, comm.rank, np.float64)
    request = comm.all_gather_ragged(x, async_op=True)
    deadline = steady_time() + WAIT_S
    while not request.done():
        assert steady_time() < deadline
    assert [a[-1] for a in request.wait()] == list(range(comm.size))


def test_synchronize_is_completion(comm: Any) -> None:
    request = comm.all_reduce(np.ones(3), async_op=True)
    assert request.synchronize() is None
    assert request.done()
    assert request.result.tolist() == [comm.size] * 3


def test_a_request_tells_what_it_is_and_where_it_began(comm: Any) -> None:
    request, born = comm.all_reduce(np.ones(3), async_op=True), line()
    assert "all_reduce" in repr(request)
    assert born in repr(request)
    request.wait(timeout=WAIT_S)
    assert "complete" in repr(request)


# -- timeouts ------------------------------------------------------------------------------------


def test_a_timeout_says_what_waited_for_how_long_and_where_it_began(comm: Any) -> None:
    left, right = ring(comm)
    request, born = comm.irecv(np.zeros(2), left, tag=3), line()
    started = time.monotonic()
    with pytest.raises(hpcomm.WaitTimeoutError) as caught:
        request.wait(timeout=0.2)
    waited_s = time.monotonic() - started
    assert waited_s >= 0.2
    assert isinstance(caught.value, TimeoutError)
    text = str(caught.value)
    assert "recv" in text
    assert "0.2 s" in text
    assert born in text
    assert "try:" in text
    comm.barrier()
    comm.isend(np.ones(2), right, tag=3).wait(timeout=WAIT_S)
    assert request.wait(timeout=WAIT_S).tolist() == [1.0, 1.0]  # still valid: waited for again


def test_a_collective_that_one_rank_joins_late_times_out_and_then_completes(own_comm: Any) -> None:
    if own_comm.rank == 0:
        for other in range(1, own_comm.size):
            own_comm.recv_object(other)
    request = own_comm.all_reduce(np.ones(2), async_op=True)
    if own_comm.rank:
        with pytest.raises(hpcomm.WaitTimeoutError):
            request.wait(timeout=0.05)
        own_comm.send_object("gave up once", 0)
    assert request.wait(timeout=WAIT_S).tolist() == [own_comm.size] * 2


@pytest.mark.core
def test_who_comes_to_a_call_late_has_not_made_another_one_though_it_has_begun_more(own_comm: Any) -> None:
    """A long call in the background waits for those before it. What goes by MPI begins at once."""
    if own_comm.size == 1:
        return
    last, given = own_comm.size - 1, np.arange(3) if own_comm.rank == 0 else None
    if own_comm.rank != last:
        own_comm.recv_object(last)
    some = own_comm.all_reduce(np.ones(2), async_op=True)
    many = own_comm.all_gather(np.full(100_000, own_comm.rank), async_op=True)
    if own_comm.rank == last:
        words = own_comm.broadcast_ragged(given, async_op=True)
        for other in range(last):
            own_comm.send_object("has begun all", other)
        ctypes.PyDLL(None).usleep(
            200_000
        )  # keeps Python's lock: nothing moves on here. The others look each ms
    assert many.wait()[:, -1].tolist() == list(range(own_comm.size))
    if own_comm.rank != last:
        words = own_comm.broadcast_ragged(given, async_op=True)
    assert some.wait().tolist() == [own_comm.size] * 2
    assert words.wait().tolist() == [0, 1, 2]


@pytest.mark.parametrize("timeout", [np.float32(0.001), np.int64(0)], ids=repr)
def test_a_timeout_may_be_a_number_of_numpy(comm: Any, timeout: Any) -> None:
    left, right = ring(comm)
    request = comm.irecv(np.zeros(1), left, tag=4)
    with pytest.raises(hpcomm.WaitTimeoutError):
        request.wait(timeout=timeout)
    comm.barrier()
    comm.isend(np.ones(1), right, tag=4).wait(timeout=WAIT_S)
    request.wait(timeout=WAIT_S)


def test_several_threads_may_wait_for_one_request(comm: Any) -> None:
    left, right = ring(comm)
    for k in range(20):
        request = comm.irecv(np.zeros(2000), left, tag=k)
        found: list[Any] = []
        threads = [threading.Thread(target=lambda: found.append(request.wait()[0])) for _ in range(2)]  # noqa: B023
        threads.append(threading.Thread(target=lambda: found.append(request.wait(timeout=WAIT_S)[0])))  # noqa: B023
        for thread in threads:
            thread.start()
        time.sleep(0.002)
        comm.isend(np.full(2000, float(k)), right, tag=k).wait(timeout=WAIT_S)
        for thread in threads:
            thread.join(WAIT_S)
        assert found == [k] * 3


def interrupted(wait: Any, send: Any) -> None:
    """Wait, if the interrupt leaves time for that: it is seen when the message has come."""
    threading.Timer(0.3, send).start()
    threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT)).start()
    wait()


def test_ctrl_c_in_a_wait_loses_no_message(comm: Any) -> None:
    if comm.size == 1:
        pytest.skip("waits for another rank")
    left, right = ring(comm)
    for k in range(2):
        x = np.zeros(3)
        request = comm.irecv(x, left, tag=k)
        before = signal.signal(
            signal.SIGINT, signal.default_int_handler
        )  # a job in the background ignores it
        try:
            with pytest.raises(KeyboardInterrupt):
                interrupted(request.wait, partial(comm.send, np.full(3, k + 1.0), right, k))
        finally:
            signal.signal(signal.SIGINT, before)
        assert request.wait(timeout=WAIT_S) is x
        assert x.tolist() == [k + 1] * 3
        comm.barrier()
    assert comm.sendrecv(np.ones(3), right, source=left).tolist() == [1] * 3


class RaisedInHandlerError(Exception):
    pass


@pytest.mark.parametrize("is_complete", [False, True], ids=["before its result", "behind its result"])
def test_a_handler_that_raises_as_a_result_is_made_gives_no_wrong_one(comm: Any, is_complete: bool) -> None:
    """A reduction in place cannot be made twice."""
    x = np.ones(3)

    def handle(number: int, frame: object) -> None:
        raise RaisedInHandlerError

    class Ends(Collective):
        def _arrived(self, seen: Any) -> None:
            super()._arrived(seen)
            if is_complete and going:
                going.clear()
                signal.raise_signal(signal.SIGUSR1)

    def finish() -> Any:
        if not is_complete:
            signal.raise_signal(signal.SIGUSR1)
        return x

    before, going = signal.signal(signal.SIGUSR1, handle), [True]
    try:
        request = Ends(comm.context, "all_reduce", x, MPI.COMM_SELF.Ibarrier(), lambda: None, finish)
        with pytest.raises(RaisedInHandlerError):
            request.wait()
    finally:
        signal.signal(signal.SIGUSR1, before)
    if is_complete:
        assert request.wait() is x
    else:
        with pytest.raises(hpcomm.TransportError, match="while the result was being made"):
            request.wait()


def test_a_timeout_of_nothing_is_one_look(comm: Any) -> None:
    left, right = ring(comm)
    request = comm.irecv(np.zeros(1), left, tag=4)
    with pytest.raises(hpcomm.WaitTimeoutError):
        request.wait(timeout=0)
    comm.barrier()
    comm.isend(np.ones(1), right, tag=4).wait(timeout=WAIT_S)
    request.wait(timeout=WAIT_S)


@pytest.mark.parametrize("begin", ["irecv_object", "irecv"])
def test_the_communicators_timeout_counts_for_several_requests(comm: Any, begin: str) -> None:
    left, right = ring(comm)
    own = comm.dup()
    if begin == "irecv":
        late = [own.irecv(np.zeros(1), left, tag=k) for k in range(2)]
    else:
        late = [own.irecv_object(left), own.irecv_object(left)]
    own.timeout = 0.05
    with pytest.raises(hpcomm.WaitTimeoutError, match=r"of 2 requests, was not complete after 0\.05 s"):
        hpcomm.wait_all(late)
    with pytest.raises(hpcomm.WaitTimeoutError, match=r"none of 2 requests was complete after 0\.05 s"):
        hpcomm.wait_any(late)
    own.timeout = None
    own.barrier()
    for k in range(2):
        own.send_object(k, right) if begin == "irecv_object" else own.send(np.ones(1), right, tag=k)
    hpcomm.wait_all(late, timeout=WAIT_S)
    own.close()


def test_an_object_on_its_way_times_out_too(comm: Any) -> None:
    left, right = ring(comm)
    request = comm.irecv_object(left, tag=5)
    with pytest.raises(TimeoutError):
        request.wait(timeout=0.05)
    comm.barrier()
    send = comm.isend_object("late", right, tag=5)
    assert request.wait(timeout=WAIT_S) == "late"
    send.wait(timeout=WAIT_S)


# -- several ---------------------------------------------------------------------------------------


def test_wait_all_gives_results_in_the_order_of_the_requests(comm: Any) -> None:
    left, right = ring(comm)
    receives = [comm.irecv(np.zeros(1), left, tag=i) for i in range(5)]
    sends = [comm.isend(np.full(1, float(i)), right, tag=i) for i in (4, 2, 0, 1, 3)]
    assert [y.item() for y in hpcomm.wait_all(receives, timeout=WAIT_S)] == [0, 1, 2, 3, 4]
    assert hpcomm.wait_all(sends) == [None] * 5
    assert hpcomm.wait_all([]) == []
    assert hpcomm.wait_all(iter(receives))[4].item() == 4


def asked(request: Any) -> None:
    """Poll a request to its end."""
    end = steady_time() + WAIT_S
    while not request.done():
        assert steady_time() < end


async def awaited(request: Any) -> None:
    await request


WAYS: dict[str, Any] = {
    "wait": lambda sent, coming: sent.wait(),
    "wait(timeout)": lambda sent, coming: sent.wait(timeout=WAIT_S),
    "wait_any": lambda sent, coming: hpcomm.wait_any([sent]),
    "wait_all": lambda sent, coming: hpcomm.wait_all([sent, coming]),
    "wait_all(timeout)": lambda sent, coming: hpcomm.wait_all([sent, coming], timeout=WAIT_S),
    "done": lambda sent, coming: asked(sent),
    "await": lambda sent, coming: asyncio.run(awaited(sent)),
}


@pytest.mark.parametrize("way", WAYS)
def test_whoever_waits_for_what_is_sent_receives_objects_meanwhile(own_comm: Any, way: str) -> None:
    left, right = ring(own_comm)
    coming = own_comm.irecv_object(left)
    sent = own_comm.isend_object(bytes(8_000_000 + own_comm.rank), right)
    WAYS[way](sent, coming)
    assert len(coming.wait()) == 8_000_000 + left


@pytest.mark.parametrize("form", ["object", "ragged"])
def test_a_blocking_send_receives_objects_meanwhile(own_comm: Any, form: str) -> None:
    left, right = ring(own_comm)
    x = np.full(1_000_000, float(own_comm.rank))
    if form == "object":
        coming = own_comm.irecv_object(left)
        own_comm.send_object(x, right)
    else:
        coming = own_comm.recv_ragged(left, async_op=True)
        own_comm.send_ragged(x, right)
    assert coming.wait()[-1] == left


def test_waiting_for_an_array_receives_objects_meanwhile(own_comm: Any) -> None:
    """The sender of the array comes to it only when his object has been received."""
    left, right = ring(own_comm)
    objects, array = own_comm.irecv_object(left, tag=1), own_comm.irecv(np.zeros(1), left, tag=2)
    if own_comm.rank == 0 and own_comm.size > 1:
        sent = own_comm.isend_object(bytes(8_000_000), right, tag=1)
        array.wait()
        sent.wait()
        own_comm.send(np.ones(1), right, tag=2)
    else:
        own_comm.isend_object(bytes(8_000_000), right, tag=1).wait()
        own_comm.send(np.ones(1), right, tag=2)
        array.wait()
    assert len(objects.wait()) == 8_000_000


@pytest.mark.parametrize("source", ["left", None])
def test_the_first_object_is_for_the_first_who_asked(own_comm: Any, source: Any) -> None:
    left, right = ring(own_comm)
    first = own_comm.irecv_object(left if source else None)
    second = own_comm.irecv_object(left)
    with pytest.warns(RuntimeWarning):
        own_comm.irecv_object(left)  # dropped: it takes nothing
    third = own_comm.irecv_object(left, tag=3)
    for k in range(3):
        own_comm.send_object(k, right, tag=3)
    own_comm.barrier()
    assert [each.wait() for each in (third, second, first)] == [2, 1, 0]


def test_an_object_that_can_be_received_waits_for_no_other(own_comm: Any) -> None:
    left, right = ring(own_comm)
    late, soon = own_comm.irecv_object(left, tag=1), own_comm.irecv_object(left, tag=2)
    own_comm.isend_object(bytes(8_000_000), right, tag=2).wait()
    assert hpcomm.wait_any([late, soon])[0] == 1
    own_comm.barrier()
    sent = own_comm.isend_object("late", right, tag=1)
    assert hpcomm.wait_all([late, sent])[0] == "late"


def test_wait_all_has_one_time_limit_for_all(comm: Any) -> None:
    left, right = ring(comm)
    receives = [comm.irecv(np.zeros(1), left, tag=i) for i in range(5)]
    started = steady_time()
    with pytest.raises(hpcomm.WaitTimeoutError):
        hpcomm.wait_all(receives, timeout=0.5)
    assert steady_time() - started < 2.4  # not five times 0.5
    comm.barrier()
    hpcomm.wait_all([comm.isend(np.ones(1), right, tag=i) for i in range(5)], timeout=WAIT_S)
    hpcomm.wait_all(receives, timeout=WAIT_S)


def test_wait_any_gives_whichever_is_complete_and_its_place(comm: Any) -> None:
    left, right = ring(comm)
    receives = [comm.irecv(np.zeros(1), left, tag=i) for i in range(3)]
    with pytest.raises(hpcomm.WaitTimeoutError):
        hpcomm.wait_any(receives, timeout=0.05)
    comm.barrier()
    first = comm.isend(np.full(1, 7.0), right, tag=1)
    index, result = hpcomm.wait_any(receives, timeout=WAIT_S)
    assert index == 1
    assert result.tolist() == [7.0]
    first.wait(timeout=WAIT_S)
    comm.barrier()
    rest = [comm.isend(np.ones(1), right, tag=i) for i in (0, 2)]
    hpcomm.wait_all([*receives, *rest], timeout=WAIT_S)


def test_wait_any_of_nothing_is_an_error(comm: Any) -> None:
    with pytest.raises(hpcomm.UsageError, match="at least one"):
        hpcomm.wait_any([])


def test_requests_of_unlike_sorts_wait_together(comm: Any) -> None:
    left, right = ring(comm)
    requests = [
        comm.all_reduce(torch.ones(2), async_op=True),
        comm.irecv_object(left, tag=1),
        comm.isend_object({"k": comm.rank}, right, tag=1),
        comm.barrier(async_op=True),
        comm.irecv(np.zeros(2), left, tag=2),
        comm.isend(np.ones(2), right, tag=2),
    ]
    total, received, nothing, barrier, array, sent = hpcomm.wait_all(requests, timeout=WAIT_S)
    assert total.tolist() == [comm.size] * 2
    assert received == {"k": left}
    assert array.tolist() == [1.0, 1.0]
    assert (nothing, barrier, sent) == (None, None, None)


# -- asyncio ---------------------------------------------------------------------------------------


def test_a_request_may_be_awaited(comm: Any) -> None:
    async def main() -> Any:
        return await comm.all_reduce(np.ones(2), async_op=True)

    assert asyncio.run(main()).tolist() == [comm.size] * 2


def test_awaiting_leaves_the_loop_to_others(comm: Any) -> None:
    left, right = ring(comm)
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0.001)

    async def send_later() -> None:
        while ticks <= 20:
            await asyncio.sleep(0.001)
        await comm.isend(np.full(1, 5.0), right, tag=6)

    async def main() -> Any:
        ticking = asyncio.create_task(tick())
        result, _ = await asyncio.gather(comm.irecv(np.zeros(1), left, tag=6), send_later())
        ticking.cancel()
        return result

    assert asyncio.run(main()).tolist() == [5.0]
    assert ticks > 20


def test_many_requests_may_be_awaited_at_once(comm: Any) -> None:
    left, right = ring(comm)

    async def main() -> list[Any]:
        receives = [comm.irecv_object(left, tag=i) for i in range(10)]
        sends = [comm.isend_object(i * 1000 * "x", right, tag=i) for i in range(10)]
        return (await asyncio.gather(*receives, *sends))[:10]

    assert [len(text) for text in asyncio.run(main())] == [1000 * i for i in range(10)]


def test_an_await_may_be_bounded_by_asyncio(comm: Any) -> None:
    left, right = ring(comm)
    request = comm.irecv(np.zeros(1), left, tag=7)

    async def main() -> None:
        async def arrival() -> Any:
            return await request

        await asyncio.wait_for(arrival(), timeout=0.1)

    with pytest.raises((TimeoutError, asyncio.TimeoutError)):
        asyncio.run(main())
    comm.barrier()
    comm.isend(np.ones(1), right, tag=7).wait(timeout=WAIT_S)
    assert request.wait(timeout=WAIT_S).tolist() == [1.0]


# -- memory ----------------------------------------------------------------------------------------


def test_a_request_holds_its_arrays_until_it_is_complete(comm: Any) -> None:
    left, right = ring(comm)
    x = np.full(400_000, float(comm.rank))
    place = np.zeros(400_000)
    alive = weakref.ref(x), weakref.ref(place)
    receive = comm.irecv(place, left, tag=8)
    send = comm.isend(x, right, tag=8)
    del x, place
    assert all(ref() is not None for ref in alive)
    assert (receive.wait(timeout=WAIT_S) == left).all()
    send.wait(timeout=WAIT_S)
    assert alive[1]() is receive.result
    del send
    assert alive[0]() is None, "a completed request keeps memory that nobody needs"


@pytest.mark.parametrize("is_strided", [False, True])
def test_nothing_keeps_what_was_waited_for(
    comm: Any, monkeypatch: pytest.MonkeyPatch, is_strided: bool
) -> None:
    """Also where a thread moves calls on, which may look much later."""
    monkeypatch.setattr(progress, "wake", lambda: None)  # it does not look at all
    x, results = np.ones((1 << 17, 2), np.float16)[:, 0], []
    for _ in range(40):
        made = comm.all_reduce(x if is_strided else x.copy(), async_op=True).wait()
        results.append(weakref.ref(made))
        del made
    assert sum(each() is not None for each in results) <= 2  # at which it looks just now, if it was awake


def test_a_collective_in_the_background_reads_x_where_it_lies(comm: Any) -> None:
    x = np.full(200_000, 1.0)
    request = comm.all_reduce(x, async_op=True)
    del x
    junk = [np.full(200_000, 9.0) for _ in range(3)]
    assert (request.wait(timeout=WAIT_S) == comm.size).all()
    assert all((y == 9.0).all() for y in junk)


def test_a_request_dropped_unfinished_is_warned_about_with_the_line_of_its_birth(comm: Any) -> None:
    left, right = ring(comm)
    request, born = comm.irecv(np.zeros(4), left, tag=9), line()
    with pytest.warns(RuntimeWarning, match=re.escape(born)) as caught:
        del request
    assert "recv" in str(caught[0].message)
    comm.isend(np.ones(4), right, tag=9).wait(timeout=WAIT_S)
    comm.barrier()


def test_memory_of_a_dropped_receive_is_not_given_to_somebody_else(comm: Any) -> None:
    left, right = ring(comm)
    request = comm.irecv(np.zeros(50_000), left, tag=10)
    with pytest.warns(RuntimeWarning):
        del request
    junk = [np.zeros(50_000) for _ in range(10)]
    comm.barrier()
    comm.isend(np.full(50_000, 13.0), right, tag=10).wait(timeout=WAIT_S)
    comm.barrier()
    assert all((y == 0.0).all() for y in junk)


@pytest.mark.parametrize("make", [lambda n: np.arange(float(n)), lambda n: torch.arange(float(n))])
def test_what_a_dropped_send_is_to_send_is_not_given_to_somebody_else(comm: Any, make: Any) -> None:
    """MPI may know an address only, so nothing of its own keeps the array."""
    if comm.size == 1:
        pytest.skip("a message to this rank itself may be complete at once")
    left, right = ring(comm)
    n = 1 << 20
    x = make(n)
    kept = weakref.ref(x)
    with pytest.warns(RuntimeWarning):
        comm.isend(x, right, tag=8)
    del x
    assert kept() is not None
    y = make(n) * 0
    comm.recv(y, left, tag=8)
    assert bool((y == make(n)).all())
    comm.barrier()


def test_a_request_dropped_complete_is_silent(comm: Any, recwarn: pytest.WarningsRecorder) -> None:
    comm.all_reduce(np.ones(2), async_op=True).wait(timeout=WAIT_S)
    request = comm.barrier(async_op=True)
    while not request.done():
        pass
    del request
    assert [w for w in recwarn.list if w.category is RuntimeWarning] == []


def test_an_error_that_wait_raised_is_raised_again(own_comm: Any) -> None:
    left, right = ring(own_comm)
    receive = own_comm.irecv(np.zeros(5), left)
    own_comm.isend(np.ones(3), right).wait(timeout=WAIT_S)
    for _ in range(2):
        with pytest.raises(hpcomm.MismatchError):
            receive.wait(timeout=WAIT_S)
    assert receive.done()
    with pytest.raises(hpcomm.MismatchError):
        hpcomm.wait_all([receive])


def test_an_error_in_an_awaited_request_reaches_the_awaiter(own_comm: Any) -> None:
    left, right = ring(own_comm)

    async def main() -> None:
        send = own_comm.isend(np.ones(3), right)
        try:
            await own_comm.irecv(np.zeros(5), left)
        finally:
            await send

    with pytest.raises(hpcomm.MismatchError):
        asyncio.run(main())


def test_a_message_may_be_asked_for_before_it_is_waited_for(comm: Any) -> None:
    if comm.size == 1:
        pytest.skip("a rank alone has nobody to hear from")
    x = np.arange(3.0) + comm.rank
    request = comm.irecv(np.empty(3), source=(comm.rank - 1) % comm.size)
    assert not request.done()
    with pytest.raises(hpcomm.WaitTimeoutError, match=r"recv\(float64 \(3,\), source="):
        request.wait(timeout=0.001)
    comm.barrier()
    sent = comm.isend(x, (comm.rank + 1) % comm.size)
    assert request.wait()[0] == request.wait()[0] == (comm.rank - 1) % comm.size
    assert request.status == hpcomm.Status((comm.rank - 1) % comm.size, 0, 24)
    while not sent.done():
        pass
    assert sent.wait() is None


def test_requests_of_mpi4py_are_refused_and_left_as_they_are(comm: Any) -> None:
    for wait in (hpcomm.wait_all, hpcomm.wait_any):
        theirs, ours = comm.mpi.Ibarrier(), comm.barrier(async_op=True)
        with pytest.raises(hpcomm.UsageError, match="which is no request"):
            wait([theirs, ours])
        ours.wait(timeout=WAIT_S)
        theirs.Wait()


def test_plans_may_be_waited_for_together_but_not_asked(comm: Any) -> None:
    with comm.plan("all_reduce", np.ones(2)) as step:
        step.start()
        with pytest.raises(hpcomm.UsageError, match="wait_any was given <Plan"):
            hpcomm.wait_any([step])
        assert hpcomm.wait_all([step])[0].tolist() == [comm.size] * 2


def test_plans_are_waited_for_together_and_with_requests(own_comm: Any) -> None:
    left, right = (own_comm.rank - 1) % own_comm.size, (own_comm.rank + 1) % own_comm.size
    with own_comm.plan("recv", out=np.zeros(3), source=left, tag=5) as plan:
        plan.start()
        with pytest.raises(
            hpcomm.WaitTimeoutError, match=r"recv\(.*of 1 requests, was not complete after 0.2 s"
        ):
            hpcomm.wait_all([plan], timeout=0.2)
        coming = own_comm.irecv_object(left)
        own_comm.barrier()
        own_comm.send(np.ones(3), right, tag=5)
        own_comm.send_object("text", right)
        got = hpcomm.wait_all([plan, coming], timeout=WAIT_S)
    assert got[0].tolist() == [1.0] * 3
    assert got[1] == "text"


RECEIVES: dict[str, Any] = {  # the first of arrays by the general path, then by the fast one
    "irecv": lambda comm, tag: comm.irecv(np.empty(2), comm.rank, tag),
    "recv": lambda comm, tag: comm.recv(np.empty(2), comm.rank, tag, async_op=True),
    "recv of a dtype": lambda comm, tag: comm.irecv(source=comm.rank, tag=tag, dtype="f8"),
    "irecv_object": lambda comm, tag: comm.irecv_object(comm.rank, tag),
    "recv_ragged": lambda comm, tag: comm.recv_ragged(comm.rank, tag, async_op=True),
}


@pytest.mark.parametrize("verb", RECEIVES)
def test_a_receive_can_be_cancelled_and_no_message_is_lost(own_comm: Any, verb: str) -> None:
    comm, begin, x = own_comm, RECEIVES[verb], np.full(2, 7.0)
    sort = "_object" if "object" in verb else "_ragged" if "ragged" in verb else ""
    send, look = getattr(comm, f"isend{sort}"), comm.iprobe_object if sort else comm.iprobe
    for tag in (1, 2, 3):
        request = begin(comm, tag)
        assert request.cancel() is True
        assert request.done()
        assert request.wait() is None
        assert request.cancel() is False
        going = send(x, comm.rank, tag)  # is for those who ask later
        assert begin(comm, tag).wait(WAIT_S).tolist() == [7, 7]
        going.wait()
        request = begin(comm, tag)
        going = send(x, comm.rank, tag)
        for _ in range(20):
            look(comm.rank, tag)  # brings the message to the receive, though the request has not been asked
        again = begin(comm, tag) if request.cancel() else request
        assert again.wait(WAIT_S).tolist() == [7, 7]
        assert again.status.tag == tag
        assert again.cancel() is False
        going.wait()
    assert going.cancel() is False  # complete
    barrier = comm.barrier(async_op=True)
    assert barrier.cancel() is False
    barrier.wait()
    assert not any(
        each.gi_frame for each in comm.context.outstanding._calls
    )  # or close() would keep the communicator


def test_a_short_message_tells_all_of_itself_also_when_its_receive_is_cancelled(own_comm: Any) -> None:
    comm, x = own_comm, np.empty(2)
    request = comm.irecv(x, comm.rank, 4)
    comm.isend(np.ones(1), comm.rank, 4).wait()
    if request.cancel():  # MPI had not brought it
        request = comm.irecv(x, comm.rank, 4)
    with pytest.raises(hpcomm.MismatchError) as caught:
        request.wait()
    error = caught.value
    assert (error.lacks, error.source, error.tag, error.nbytes) == (8, comm.rank, 4, 8)
    assert x[0] == 1
