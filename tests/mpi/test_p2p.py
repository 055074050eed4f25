"""Messages from one rank to another: arrays of every kind, order, matching, length, peers that are nobody."""

from __future__ import annotations

import array as stdlib_array
import time
from types import SimpleNamespace
from typing import Any

import array_api_strict
import numpy as np
import pytest
import torch
from arrays import (
    DTYPES,
    KINDS,
    LAYOUTS,
    ONE_AXIS,
    bits,
    dtype_of,
    exists,
    kind_of,
    make,
    plain_of,
    plain_values,
    shape_of,
)
from steady import steady_time

import hpcomm
from hpcomm.transport.matching import Arrival

pytestmark = pytest.mark.few

WAIT_S = 30


def ring(comm: Any) -> tuple[int, int]:
    """The ranks to the left and to the right; with one rank both are itself."""
    return (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size


ARRAYS = [
    (kind, layout, dtype)
    for kind in KINDS
    for layout in LAYOUTS
    for i, dtype in enumerate(DTYPES)
    if exists(kind, dtype, layout) and (i + LAYOUTS.index(layout)) % 3 == 0
]


@pytest.mark.parametrize("kind", KINDS)
def test_an_array_arrives_as_it_was_sent(comm: Any, kind: str) -> None:
    for other, layout, dtype in ARRAYS:
        if other == kind:
            send_around(comm, kind, layout, dtype)


def send_around(comm: Any, kind: str, layout: str, dtype: str) -> None:
    left, right = ring(comm)
    shape = shape_of(kind, layout)
    given = [plain_values(dtype, shape, rank, layout) for rank in range(comm.size)]
    x = make(kind, dtype, layout, given[comm.rank])
    before = bits(x)
    place = make(
        kind, dtype, "contiguous" if layout in ("read_only", "repeated") else layout, given[comm.rank] * 0
    )
    request = comm.isend(x, right, tag=3)
    got = comm.recv(place, left, tag=3)
    assert request.wait(timeout=WAIT_S) is None
    assert got is place
    assert np.array_equal(plain_of(got), given[left].reshape(-1) if kind in ONE_AXIS else given[left])
    assert bits(x) == before
    again = comm.sendrecv(x, right, left)
    assert (kind_of(again), dtype_of(again)) == (kind, dtype)
    assert np.array_equal(plain_of(again), plain_of(got))


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("count", [0, 1, 1000, 100_000, 2_000_000])
def test_blocking_send_and_recv_meet_at_every_size(comm: Any, count: int) -> None:
    x = np.arange(count, dtype=np.float64)
    if comm.rank == 0:
        assert comm.send(x, 1) is None
    if comm.rank == 1:
        out = np.empty(count)
        assert comm.recv(out, 0) is out
        assert np.array_equal(out, x)


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("kind", ["numpy", "strided", "torch"])
def test_a_synchronous_send_ends_only_when_its_receiver_has_come(comm: Any, kind: str) -> None:
    x: Any = {"numpy": np.arange(3), "strided": np.arange(6)[::2], "torch": torch.arange(3)}[kind]
    for count in range(2):  # the second is of a known kind
        if comm.rank == 0:
            request = comm.isend(x, 1, sync=True)
            assert not request.done()
            comm.send_object("it is under way", 1)
            comm.recv(np.empty(0), 1)
            assert not request.done()
            comm.send_object("go on", 1)
            request.wait()
            comm.send(x, 1, sync=True)
            comm.send(x, hpcomm.PROC_NULL, sync=True)
            later = comm.send(x, 1, async_op=True, sync=True)
            comm.timeout = 0.05
            with pytest.raises(hpcomm.WaitTimeoutError, match=r"send\(.*, dest=1, tag=2\) was not complete"):
                comm.send(x, 1, 2, sync=True)
            comm.timeout = None
            comm.send_object("go on", 1)
            later.wait()
        elif comm.rank == 1:
            comm.recv_object(0)
            comm.send(np.empty(0), 0)
            comm.recv_object(0)
            for _ in range(2):
                assert (
                    comm.recv(np.empty(3, x.dtype) if kind == "numpy" else x + 1, 0, 0).tolist() == x.tolist()
                )
            comm.recv_object(0)
            for tag in (0, 2):
                assert comm.recv(dtype="int64", source=0, tag=tag).tolist() == x.tolist(), count


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("form", ["object", "ragged"])
@pytest.mark.parametrize("count", [3, 100_000])  # in the header, and behind it
def test_a_synchronous_send_of_any_size_ends_only_when_its_receiver_has_come(
    comm: Any, form: str, count: int
) -> None:
    x = np.arange(count)
    send, isend, recv = (getattr(comm, f"{verb}_{form}") for verb in ("send", "isend", "recv"))
    if comm.rank == 0:
        request = isend(x, 1, 3, sync=True)
        comm.send_object("it is under way", 1)
        comm.recv(np.empty(0), 1)
        assert not request.done()
        comm.send_object("take it", 1)
        request.wait()
        send(x, 1, 4, sync=True)
        send(x, hpcomm.PROC_NULL, sync=True)
        comm.timeout = 0.05
        with pytest.raises(hpcomm.WaitTimeoutError, match=rf"send_{form}\(dest=1, tag=5\) was not complete"):
            getattr(comm, f"send_{form}")(x, 1, 5, sync=True)
        comm.timeout = None
        later = send(x, 1, 6, async_op=True, sync=True)
        assert not later.done()
        comm.send_object("go on", 1)
        later.wait()
    elif comm.rank == 1:
        comm.recv_object(0, 0)
        comm.send(np.empty(0), 0)
        comm.recv_object(0, 0)
        for tag in (3, 4):
            assert np.array_equal(recv(0, tag), x)
        comm.recv_object(0, 0)
        for tag in (5, 6):
            assert np.array_equal(recv(0, tag), x)


def test_a_synchronous_send_to_oneself_takes_a_receive_begun_before(comm: Any) -> None:
    coming = comm.irecv(np.empty(2), comm.rank)
    comm.send(np.ones(2), comm.rank, sync=True)
    assert coming.wait().tolist() == [1, 1]
    for form, count in (("object", 2), ("ragged", 100_000)):
        coming = getattr(comm, f"irecv_{form}")(comm.rank)
        getattr(comm, f"send_{form}")(np.ones(count), comm.rank, sync=True)
        assert coming.wait().tolist() == [1] * count


@pytest.mark.mpi(min_size=2)
def test_torch_tensors_meet_blocking_too(comm: Any) -> None:
    if comm.rank == 0:
        comm.send(torch.arange(8.0)[::2], 1)
        comm.send(torch.arange(8.0), 1)
    if comm.rank == 1:
        wide = torch.full((8,), -1.0)
        comm.recv(wide[1::2], 0)
        assert wide.tolist() == [-1, 0, -1, 2, -1, 4, -1, 6]
        assert comm.recv(torch.empty(8), 0).tolist() == list(range(8))


@pytest.mark.mpi(min_size=2)
def test_what_was_sent_from_one_kind_may_be_received_in_another(comm: Any) -> None:
    if comm.rank == 0:
        comm.send(torch.arange(4, dtype=torch.int32), 1)
    if comm.rank == 1:
        out = stdlib_array.array("i", [0] * 4)
        comm.recv(out, 0)
        assert list(out) == [0, 1, 2, 3]


# -- without out ---------------------------------------------------------------------------------


def test_recv_without_out_takes_a_dtype_and_gives_one_axis_of_what_came(comm: Any) -> None:
    left, right = ring(comm)
    request = comm.isend(np.arange(5 + comm.rank, dtype=np.int16), right)
    y = comm.recv(source=left, dtype=np.int16)
    request.wait(timeout=WAIT_S)
    assert y.dtype == np.int16
    assert y.tolist() == list(range(5 + left))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", np.float32, torch.bfloat16, torch.float32], ids=str)
def test_a_dtype_may_be_spelt_in_words_or_as_numpy_or_torch_has_it(comm: Any, dtype: Any) -> None:
    left, right = ring(comm)
    name = str(dtype).removeprefix("torch.") if not isinstance(dtype, type) else dtype.__name__
    x = torch.tensor([[1.0, 2.0], [3.0, float(comm.rank)]], dtype=getattr(torch, name))
    request = comm.isend(x, right)
    y = comm.recv(source=left, dtype=dtype, shape=(2, 2))
    request.wait(timeout=WAIT_S)
    assert kind_of(y) == ("torch" if isinstance(dtype, torch.dtype) else "numpy")
    assert dtype_of(y) == name
    assert plain_of(y).tolist() == [[1.0, 2.0], [3.0, float(left)]]


@pytest.mark.mpi(min_size=2)
def test_recv_without_out_from_anybody_takes_each_messages_own_length(comm: Any) -> None:
    if comm.rank:
        comm.send(np.full(comm.rank * 3, comm.rank), 0, tag=comm.rank)
    else:
        lengths = {}
        for _ in range(1, comm.size):
            status = hpcomm.Status()
            y = comm.recv(dtype="int64", status=status)
            assert y.tolist() == [status.source] * len(y)
            assert (status.tag, status.nbytes) == (status.source, len(y) * 8)
            lengths[status.source] = len(y)
        assert lengths == {rank: rank * 3 for rank in range(1, comm.size)}


def test_recv_by_a_dtype_with_fields_keeps_them(comm: Any) -> None:
    kind = np.dtype([("a", "f4"), ("b", "i8")])
    x = np.zeros(3, kind)
    x["b"] = 2, 3, 4
    request = comm.isend(x, comm.rank)
    got = comm.recv(dtype=kind, source=comm.rank)
    request.wait()
    assert got.dtype == kind
    assert got["b"].tolist() == [2, 3, 4]


def test_recv_with_neither_out_nor_dtype_says_what_is_missing(comm: Any) -> None:
    with pytest.raises(hpcomm.UsageError) as caught:
        comm.recv(source=comm.rank)
    assert "dtype" in str(caught.value)
    assert "recv on communicator" in str(caught.value.where)


# -- matching ------------------------------------------------------------------------------------


def test_messages_between_two_ranks_keep_their_order(comm: Any) -> None:
    left, right = ring(comm)
    requests = [comm.isend(np.array([i]), right) for i in range(50)]
    seen = [int(comm.recv(np.zeros(1, int), left)[0]) for _ in range(50)]
    hpcomm.wait_all(requests, timeout=WAIT_S)
    assert seen == list(range(50))


def test_a_tag_picks_its_message_out_of_those_that_wait(comm: Any) -> None:
    left, right = ring(comm)
    requests = [comm.isend(np.array([tag]), right, tag) for tag in (1, 2, 3)]
    seen = [int(comm.recv(np.zeros(1, int), left, tag)[0]) for tag in (3, 1, 2)]
    hpcomm.wait_all(requests, timeout=WAIT_S)
    assert seen == [3, 1, 2]


def test_many_receives_may_be_posted_before_anything_is_sent(comm: Any) -> None:
    left, right = ring(comm)
    places = [np.zeros(3, np.int32) for _ in range(200)]
    receives = [comm.irecv(place, left, tag=i) for i, place in enumerate(places)]
    sends = [comm.isend(np.full(3, i, np.int32), right, tag=i) for i in reversed(range(200))]
    results = hpcomm.wait_all(receives, timeout=WAIT_S)
    hpcomm.wait_all(sends, timeout=WAIT_S)
    assert all(result is place for result, place in zip(results, places, strict=True))
    assert [int(place[2]) for place in places] == list(range(200))


@pytest.mark.parametrize("tag", [0, 1, 32767])
def test_any_source_and_any_tag_tell_who_it_was(comm: Any, tag: int) -> None:
    _, right = ring(comm)
    request = comm.isend(np.full(2, comm.rank), right, tag)
    status = hpcomm.Status()
    y = comm.recv(np.zeros(2, int), status=status)
    request.wait(timeout=WAIT_S)
    left = ring(comm)[0]
    assert y.tolist() == [left, left]
    assert (status.source, status.tag, status.nbytes) == (left, tag, 16)


def test_any_source_is_the_default_and_may_be_said(comm: Any) -> None:
    left, right = ring(comm)
    request = comm.isend(np.array([7]), right, tag=5)
    y = comm.recv(np.zeros(1, int), hpcomm.ANY_SOURCE, hpcomm.ANY_TAG)
    request.wait(timeout=WAIT_S)
    assert y.tolist() == [7]
    assert left in range(comm.size)


def test_torchs_words_for_peers_are_taken(comm: Any) -> None:
    left, right = ring(comm)
    request = comm.isend(torch.ones(2), dst=right)
    assert comm.recv(torch.zeros(2), src=left).tolist() == [1.0, 1.0]
    request.wait(timeout=WAIT_S)
    receive = comm.irecv(torch.zeros(2), src=left)
    comm.isend(torch.ones(2), dst=right).wait(timeout=WAIT_S)
    assert receive.wait(timeout=WAIT_S).tolist() == [1.0, 1.0]


@pytest.mark.mpi(min_size=2)
def test_send_takes_torchs_dst(comm: Any) -> None:
    if comm.rank == 0:
        comm.send(np.ones(1), dst=1)
    if comm.rank == 1:
        assert comm.recv(np.zeros(1), src=0).tolist() == [1.0]


def test_the_status_of_a_request_tells_who_it_was(comm: Any) -> None:
    left, right = ring(comm)
    receive = comm.irecv(np.zeros(4, np.float32))
    comm.isend(np.ones(4, np.float32), right, tag=9).wait(timeout=WAIT_S)
    receive.wait(timeout=WAIT_S)
    assert (receive.status.source, receive.status.tag, receive.status.nbytes) == (left, 9, 16)


def test_irecv_without_out_takes_a_dtype(comm: Any) -> None:
    left, right = ring(comm)
    receive = comm.irecv(source=left, dtype=np.float64)
    send = comm.isend(np.full(2 + comm.rank, 1.5), right)
    y = receive.wait(timeout=WAIT_S)
    send.wait(timeout=WAIT_S)
    assert y.tolist() == [1.5] * (2 + left)
    assert (receive.status.source, receive.status.tag, receive.status.nbytes) == (left, 0, 8 * (2 + left))


# -- length --------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["recv", "irecv", "sendrecv"])
@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_a_message_shorter_than_its_place_is_an_error(own_comm: Any, how: str, kind: str) -> None:
    left, right = ring(own_comm)
    short: Any = np.ones(3) if kind == "numpy" else torch.ones(3, dtype=torch.float64)
    place: Any = np.zeros(5) if kind == "numpy" else torch.zeros(5, dtype=torch.float64)
    with pytest.raises(hpcomm.MismatchError) as caught:
        _exchange(own_comm, how, short, place, left, right)
    assert "24" in str(caught.value) or "3" in caught.value.what
    assert "40" in str(caught.value) or "5" in caught.value.what
    assert caught.value.hint


@pytest.mark.parametrize("how", ["recv", "irecv", "sendrecv"])
def test_a_message_longer_than_its_place_is_an_error(own_comm: Any, how: str) -> None:
    left, right = ring(own_comm)
    with pytest.raises(hpcomm.MismatchError) as caught:
        _exchange(own_comm, how, np.ones(9), np.zeros(5), left, right)
    assert "longer" in caught.value.what or "72 bytes" in caught.value.what
    assert caught.value.hint


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("beyond", [1, 100_000])
@pytest.mark.parametrize("n", [0, 3, 600, 5000, 20_000])
@pytest.mark.parametrize("how", ["recv", "any source", "status", "irecv", "sendrecv", "plan"])
@pytest.mark.parametrize("kind", ["numpy", "bfloat16"])
def test_nothing_is_written_behind_a_place_that_is_too_short(
    own_comm: Any, kind: str, how: str, n: int, beyond: int
) -> None:
    """Open MPI's own receives write all of a message of more than 4 KiB there."""
    left, right = ring(own_comm)
    dtype = torch.bfloat16 if kind == "bfloat16" else torch.float64
    if kind != "numpy":
        n = n or 3  # an empty tensor has no memory
    comm = own_comm
    if how in ("irecv", "plan") and n * dtype.itemsize >= 64 << 10:  # where it may cost too much
        comm = hpcomm.Communicator(own_comm.mpi, check="full")
    tensor = torch.full((n + beyond + 10,), 9, dtype=dtype)
    whole = tensor.numpy() if kind == "numpy" else tensor
    x: Any = np.ones(n + beyond) if kind == "numpy" else torch.ones(n + beyond, dtype=dtype)
    with pytest.raises(hpcomm.MismatchError):
        _exchange(comm, how, x, whole[:n], left, right)
    assert bool((tensor[n:] == 9).all())
    _exchange(comm, how, x[:n], whole[:n], left, right)
    assert bool((tensor[:n] == 1).all())
    if comm is not own_comm:
        comm.close()


@pytest.mark.parametrize("n", [3, 1000, 5000, 100_000])
def test_sendrecv_of_nobody_leaves_its_place_as_it_is(comm: Any, n: int) -> None:
    for stride in (1, 2):
        for status in (None, hpcomm.Status()):
            whole = np.full(stride * n, 9.0)
            place = whole[::stride]
            comm.sendrecv(np.ones(n), hpcomm.PROC_NULL, hpcomm.PROC_NULL, out=place, status=status)
            assert (whole == 9).all()
            comm.sendrecv(place, hpcomm.PROC_NULL, hpcomm.PROC_NULL, out=place, status=status)
            assert (whole == 9).all()
            np.full(n, 5.0)  # and is freed: what is made anew may lie there


@pytest.mark.mpi(min_size=2)
def test_receives_of_very_many_lengths_are_all_guarded(own_comm: Any) -> None:
    if own_comm.rank == 0:
        for n in range(1, 4200):
            own_comm.send(bytearray(n), 1)
        own_comm.send(bytearray(200_000), 1)
    elif own_comm.rank == 1:
        place = np.full(200_000, 9, np.uint8)
        for n in range(1, 4200):
            own_comm.recv(place[:n], 0)
        place[:] = 9
        with pytest.raises(hpcomm.MismatchError):
            own_comm.recv(place[:5000], 0)
        assert (place[5000:] == 9).all()


@pytest.mark.mpi(min_size=3)
def test_of_two_messages_that_wait_the_one_that_is_looked_at_is_received(own_comm: Any) -> None:
    """Open MPI looks for messages from anybody in turn."""
    short, place = 8192, np.full(40_000, 9.0)
    if own_comm.rank == 0:
        own_comm.barrier()
        for turn in range(8):
            heard = 0
            for _ in range(2):
                place[:] = 9
                try:
                    own_comm.recv(place[:short], tag=turn)
                    heard += 1
                except hpcomm.MismatchError:
                    pass
                assert (place[short:] == 9).all()
            assert heard == 1
    else:
        lengths = {1: short, 2: 2 * short}
        sent = [
            own_comm.isend(np.ones(lengths[own_comm.rank]), 0, tag=turn)
            for turn in range(8)
            if own_comm.rank in lengths
        ]
        own_comm.barrier()
        hpcomm.wait_all(sent, timeout=WAIT_S)


def _exchange(comm: Any, how: str, x: Any, place: Any, left: int, right: int) -> None:
    if how == "sendrecv":
        comm.sendrecv(x, right, left, out=place)
        return
    send = comm.isend(x, right)
    try:
        if how == "recv":
            comm.recv(place, left)
        elif how == "any source":
            comm.recv(place)
        elif how == "status":
            comm.recv(place, left, status=hpcomm.Status())
        elif how == "plan":
            with comm.plan("recv", out=place, source=left) as plan:
                plan()
        else:
            comm.irecv(place, left).wait(timeout=WAIT_S)
    finally:
        send.wait(timeout=WAIT_S)


@pytest.mark.mpi(min_size=2)
def test_recv_by_dtype_of_bytes_that_are_no_whole_elements_is_an_error(own_comm: Any) -> None:
    if own_comm.rank == 0:
        own_comm.send(bytearray(7), 1)
    if own_comm.rank == 1:
        with pytest.raises(hpcomm.MismatchError) as caught:
            own_comm.recv(source=0, dtype=np.float32)
        assert "7" in str(caught.value)
    own_comm.barrier()


@pytest.mark.mpi(min_size=2)
def test_recv_of_another_number_of_elements_than_shape_says_is_an_error(own_comm: Any) -> None:
    if own_comm.rank == 0:
        own_comm.send(np.ones(7), 1)
    if own_comm.rank == 1:
        with pytest.raises(hpcomm.MismatchError):
            own_comm.recv(source=0, dtype=np.float64, shape=(2, 3))
    own_comm.barrier()


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("looks", ["before", "after"])
@pytest.mark.parametrize("way", ["wait", "done", "timeout"])
def test_the_status_of_a_request_is_filled_whoever_looks_when(own_comm: Any, way: str, looks: str) -> None:
    left, right = ring(own_comm)
    for n in (0, 3, 20_000):
        request = own_comm.irecv(np.zeros(n), left, tag=7)
        early = request.status if looks == "before" else None
        sent = own_comm.isend(np.ones(n), right, tag=7)
        if way == "done":
            while not request.done():
                pass
        elif way == "timeout":
            request.wait(timeout=WAIT_S)
        assert request.wait().tolist() == [1.0] * n
        assert request.wait() is request.result
        assert request.status == hpcomm.Status(left, 7, 8 * n)
        assert early is None or early is request.status
        assert sent.wait() is None
        assert sent.status is None


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("n", [2, 4, 20_000])
def test_a_message_of_another_length_is_an_error_of_irecv_too(own_comm: Any, n: int) -> None:
    left, right = ring(own_comm)
    for _ in range(2):
        request = own_comm.irecv(np.zeros(n + 1 if n < 4 else n), left, tag=3)
        sent = own_comm.isend(np.ones(n - (n >= 4)), right, tag=3)
        for _ in range(2):
            with pytest.raises(hpcomm.MismatchError):
                request.wait()
        sent.wait()


# -- sendrecv ------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 1_000_000])
def test_a_ring_of_sendrecv_does_not_deadlock_at_any_size(comm: Any, count: int) -> None:
    left, right = ring(comm)
    status = hpcomm.Status()
    y = comm.sendrecv(np.full(count, comm.rank, np.int32), right, left, sendtag=4, recvtag=4, status=status)
    assert y.shape == (count,)
    assert (y == left).all()
    assert (status.source, status.tag, status.nbytes) == (left, 4, 4 * count)


def test_sendrecv_receives_into_out(comm: Any) -> None:
    left, right = ring(comm)
    out = np.zeros((2, 2))
    assert (
        comm.sendrecv(np.full((2, 2), comm.rank), right, left, out=out.astype(int)).tolist()
        == [[left] * 2] * 2
    )
    assert comm.sendrecv(np.full((2, 2), float(comm.rank)), right, left, out=out) is out
    assert out.tolist() == [[left] * 2] * 2


@pytest.mark.parametrize("count", [3, 8192, 1_000_000])
@pytest.mark.parametrize("is_view", [False, True])
def test_sendrecv_in_place_replaces_x(comm: Any, count: int, is_view: bool) -> None:
    left, right = ring(comm)
    x = np.full(count, comm.rank)
    x = x[:] if is_view else x
    for turn in range(5):  # what is sent is what was there, however soon the other message comes
        assert comm.sendrecv(x, right, left, out=x) is x
        assert (x == (comm.rank - turn - 1) % comm.size).all()


@pytest.mark.mpi(min_size=2)
def test_what_sendrecv_sends_is_right_though_what_it_receives_is_refused(own_comm: Any) -> None:
    x = np.full(300_000, 5.0)
    if own_comm.rank == 0:
        with pytest.raises(hpcomm.MismatchError):
            own_comm.sendrecv(x, 1, 1, out=np.zeros(10))
        del x
        junk = np.full(300_000, -1.0)
        own_comm.recv(np.zeros(1), 1)
        assert (junk == -1.0).all()
    elif own_comm.rank == 1:
        own_comm.send(np.zeros(20), 0)
        time.sleep(0.05)
        assert (own_comm.recv(np.empty(300_000), 0) == 5.0).all()
        own_comm.send(np.zeros(1), 0)


def test_sendrecv_into_an_overlapping_out_is_refused(comm: Any) -> None:
    left, right = ring(comm)
    x = np.zeros(6)
    with pytest.raises(hpcomm.LayoutError, match="overlap"):
        comm.sendrecv(x[:4], right, left, out=x[2:])


# -- probe ---------------------------------------------------------------------------------------


def test_probe_tells_what_waits_without_taking_it(comm: Any) -> None:
    left, right = ring(comm)
    request = comm.isend(np.ones(6, np.int16), right, tag=8)
    status = comm.probe(left, 8)
    assert (status.source, status.tag, status.nbytes) == (left, 8, 12)
    assert comm.probe().nbytes == 12
    y = comm.recv(np.zeros(status.nbytes // 2, np.int16), status.source, status.tag)
    request.wait(timeout=WAIT_S)
    assert y.tolist() == [1] * 6


def test_iprobe_says_none_when_nothing_waits_and_never_blocks(comm: Any) -> None:
    left, right = ring(comm)
    assert comm.iprobe(left, 11) is None
    comm.barrier()
    request = comm.isend(np.ones(2), right, tag=11)
    deadline = steady_time() + WAIT_S
    while (status := comm.iprobe(left, 11)) is None:
        assert steady_time() < deadline
    assert (status.source, status.tag, status.nbytes) == (left, 11, 16)
    comm.recv(np.zeros(2), left, 11)
    request.wait(timeout=WAIT_S)
    assert comm.iprobe() is None


def test_a_probe_of_objects_sees_them_and_ragged_arrays_and_no_plain_ones(own_comm: Any) -> None:
    comm, (left, right) = own_comm, ring(own_comm)
    assert comm.iprobe_object() is None
    comm.barrier()
    going = [
        comm.isend(np.ones(1), right, 8),
        comm.isend_object({"a": np.ones(100_000)}, right, 4),
        comm.isend_ragged(np.ones((2, 3)), right, 5),
    ]
    seen = comm.probe_object()
    assert (seen.source, seen.tag) == (left, 4)
    status = hpcomm.Status()
    assert comm.recv_object(seen.source, seen.tag, status=status)["a"].sum() == 100_000
    assert status == seen
    deadline = steady_time() + WAIT_S
    while (sight := comm.iprobe_object(left)) is None:
        assert steady_time() < deadline
    assert sight.tag == 5
    assert comm.recv_ragged(sight.source, sight.tag).shape == (2, 3)
    assert comm.iprobe_object() is None
    assert comm.probe().tag == 8
    comm.recv(np.empty(1), left, 8)
    comm.barrier()
    coming = comm.irecv_object(left, 4)  # the first is for it, and not for a probe that comes later
    going += [comm.isend_object(each, right, 4) for each in ("first", "second")]
    assert comm.probe_object(left, 4).tag == 4
    assert comm.recv_object(left, 4) == "second"
    assert coming.wait(WAIT_S) == "first"
    for each in going:
        each.wait(timeout=WAIT_S)
    assert comm.iprobe_object(hpcomm.PROC_NULL).source == comm.probe_object(hpcomm.PROC_NULL).source


# -- nobody and oneself --------------------------------------------------------------------------


def test_messages_to_nobody_go_nowhere_and_from_nobody_change_nothing(comm: Any) -> None:
    assert comm.send(np.ones(3), hpcomm.PROC_NULL) is None
    assert comm.isend(np.ones(3), hpcomm.PROC_NULL).wait(timeout=WAIT_S) is None
    place = np.full(3, 5.0)
    status = hpcomm.Status()
    assert comm.recv(place, hpcomm.PROC_NULL, status=status) is place
    assert status.source == hpcomm.PROC_NULL
    assert status.nbytes == 0
    assert comm.irecv(place, hpcomm.PROC_NULL).wait(timeout=WAIT_S) is place
    assert place.tolist() == [5.0] * 3


def test_an_open_chain_shifts_with_nobody_at_its_ends(comm: Any) -> None:
    left = comm.rank - 1 if comm.rank else hpcomm.PROC_NULL
    right = comm.rank + 1 if comm.rank + 1 < comm.size else hpcomm.PROC_NULL
    out = np.array([-1])
    comm.sendrecv(np.array([comm.rank]), right, left, out=out)
    assert out.tolist() == [comm.rank - 1]


@pytest.mark.parametrize("count", [1, 500_000])
def test_a_rank_may_write_to_itself(comm: Any, count: int) -> None:
    receive = comm.irecv(np.zeros(count), comm.rank, tag=2)
    comm.send(np.ones(count), comm.rank, tag=2)
    assert receive.wait(timeout=WAIT_S).sum() == count
    assert comm.sendrecv(np.full(count, 2.0), comm.rank, comm.rank).sum() == 2 * count


# -- batches -------------------------------------------------------------------------------------


def test_a_batch_of_sends_and_receives_runs_as_one(comm: Any) -> None:
    left, right = ring(comm)
    y, z = np.zeros(2), torch.zeros(3)
    operations = [
        hpcomm.P2POp("send", np.full(2, float(comm.rank)), right, tag=1),
        hpcomm.P2POp("recv", y, left, tag=1),
        hpcomm.P2POp("recv", z, right, tag=2),
        hpcomm.P2POp("send", torch.full((3,), 10.0 + comm.rank), left, tag=2),
    ]
    requests = hpcomm.batch_isend_irecv(comm, operations)
    results = hpcomm.wait_all(requests, timeout=WAIT_S)
    assert len(requests) == 4
    assert results[1] is y
    assert results[2] is z
    assert y.tolist() == [left] * 2
    assert z.tolist() == [10.0 + right] * 3


def test_a_batch_may_be_asked_of_the_communicator_and_hold_large_arrays(comm: Any) -> None:
    left, right = ring(comm)
    place = np.zeros(400_000)
    requests = comm.batch_isend_irecv(
        [hpcomm.P2POp("send", np.full(400_000, comm.rank + 1.0), right), hpcomm.P2POp("recv", place, left)]
    )
    hpcomm.wait_all(requests, timeout=WAIT_S)
    assert place.sum() == 400_000 * (left + 1.0)


def test_a_batch_takes_torchs_functions_for_its_words(comm: Any) -> None:
    left, right = ring(comm)
    y = torch.zeros(1)
    comm_ops = [
        hpcomm.P2POp(torch.distributed.isend, torch.ones(1), right),
        hpcomm.P2POp(torch.distributed.irecv, y, left),
    ]
    hpcomm.wait_all(comm.batch_isend_irecv(comm_ops), timeout=WAIT_S)
    assert y.item() == 1.0


def test_a_batch_may_come_one_by_one(comm: Any) -> None:
    left, right = ring(comm)
    words = [("send", np.full(2, comm.rank), right), ("recv", np.empty(2, int), left)]
    requests = comm.batch_isend_irecv(hpcomm.P2POp(*each) for each in words)
    assert hpcomm.wait_all(requests, timeout=WAIT_S)[1].tolist() == [left] * 2
    with pytest.raises(hpcomm.UsageError, match="a batch of None"):
        comm.batch_isend_irecv(None)


def test_an_empty_batch_gives_no_requests(comm: Any) -> None:
    assert comm.batch_isend_irecv([]) == []


def test_a_batch_with_a_mistake_in_it_sends_nothing_at_all(own_comm: Any) -> None:
    _, right = ring(own_comm)
    operations = [hpcomm.P2POp("send", np.ones(1), right), hpcomm.P2POp("recv", np.ones(1), 99)]
    with pytest.raises(hpcomm.RankError):
        own_comm.batch_isend_irecv(operations)
    own_comm.barrier()
    assert own_comm.iprobe() is None


def test_a_batch_with_a_mistake_in_it_leaves_no_receive_behind(own_comm: Any) -> None:
    left, right = ring(own_comm)
    place = np.zeros(1)
    with pytest.raises(hpcomm.RankError):
        own_comm.batch_isend_irecv([hpcomm.P2POp("recv", place, left), hpcomm.P2POp("send", np.ones(1), 99)])
    request = own_comm.isend(np.full(1, 7.0), right)
    assert own_comm.recv(np.zeros(1), left).tolist() == [7.0]
    request.wait(timeout=WAIT_S)
    assert place.tolist() == [0.0]


@pytest.mark.parametrize("word", ["isned", "broadcast", "", None], ids=repr)
def test_a_batch_knows_send_and_recv_only(comm: Any, word: Any) -> None:
    with pytest.raises(hpcomm.UsageError, match="send"):
        comm.batch_isend_irecv([hpcomm.P2POp(word, np.ones(1), comm.rank)])


# -- places that cannot receive ------------------------------------------------------------------


def test_a_place_that_cannot_be_written_is_refused_before_anything_moves(comm: Any) -> None:
    frozen = np.zeros(3)
    frozen.flags.writeable = False
    for place in (frozen, b"abc", 1.0):
        with pytest.raises(hpcomm.LayoutError):
            comm.recv(place, comm.rank)
        with pytest.raises(hpcomm.LayoutError):
            comm.irecv(place, comm.rank)


def test_an_array_api_place_receives(comm: Any) -> None:
    left, right = ring(comm)
    place = array_api_strict.zeros(3)
    request = comm.isend(np.full(3, comm.rank + 0.5), right)
    assert comm.recv(place, left) is place
    request.wait(timeout=WAIT_S)
    assert plain_of(place).tolist() == [left + 0.5] * 3


@pytest.mark.mpi(min_size=2)
def test_memory_of_a_send_may_be_freed_by_its_owner_while_it_is_under_way(comm: Any) -> None:
    """The request holds the array: dropping the name is not dropping the memory."""
    if comm.rank == 0:
        request = comm.isend(np.full(600_000, 3.0), 1)
        junk = [np.full(600_000, 9.0) for _ in range(5)]
        comm.barrier()
        request.wait(timeout=WAIT_S)
        assert len(junk) == 5
    else:
        comm.barrier()
        if comm.rank == 1:
            assert (comm.recv(np.zeros(600_000), 0) == 3.0).all()


@pytest.mark.mpi(min_size=2)
def test_a_strided_send_takes_its_values_at_the_call(comm: Any) -> None:
    """Blocking send: x may be overwritten as soon as send returns."""
    if comm.rank == 0:
        x = np.arange(10.0)
        comm.send(x[::2], 1)
        x[:] = -1
    if comm.rank == 1:
        assert comm.recv(np.zeros(5), 0).tolist() == [0, 2, 4, 6, 8]


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("check", ["light", "full"])
def test_messages_do_not_count_among_the_collectives_that_all_must_call(check: str) -> None:
    """Ranks send and receive different numbers of messages, of every sort; only collectives are compared."""
    from mpi4py import MPI

    with hpcomm.Communicator(MPI.COMM_WORLD, name="counted", check=check) as comm:
        for x in (np.arange(4.0), np.arange(8.0)[::2], torch.ones(2, dtype=torch.bfloat16), bytearray(3)):
            if comm.rank == 0:
                comm.send(x, 1)
                comm.isend(x, 1).wait(timeout=WAIT_S)
                comm.send_object("x", 1)
                comm.send_ragged(x, 1)
            if comm.rank == 1:
                comm.recv(dtype=dtype_of(x), source=0)
                comm.irecv(dtype=dtype_of(x), source=0).wait(timeout=WAIT_S)
                assert comm.recv_object() == "x"
                comm.recv_ragged()
            comm.barrier()
            assert comm.all_reduce(1) == comm.size


# -- isolation -----------------------------------------------------------------------------------


def test_a_users_own_mpi4py_messages_never_meet_ours(comm: Any) -> None:
    from mpi4py import MPI

    left, right = ring(comm)
    world = MPI.COMM_WORLD
    theirs = world.Isend(np.full(1, 100 + comm.rank), right, tag=1)
    ours = comm.isend(np.full(1, comm.rank), right, tag=1)
    mine = comm.recv(np.zeros(1, int), left, tag=1)
    assert mine.tolist() == [left]
    assert comm.iprobe() is None
    foreign = np.zeros(1, int)
    world.Recv(foreign, left, tag=1)
    assert foreign.tolist() == [100 + left]
    theirs.Wait()
    ours.wait(timeout=WAIT_S)


def test_two_communicators_of_the_same_ranks_do_not_meet(comm: Any, own_comm: Any) -> None:
    left, right = ring(comm)
    requests = [comm.isend(np.array([1]), right), own_comm.isend(np.array([2]), right)]
    assert own_comm.recv(np.zeros(1, int), left).tolist() == [2]
    assert comm.recv(np.zeros(1, int), left).tolist() == [1]
    hpcomm.wait_all(requests, timeout=WAIT_S)


def test_a_users_own_barrier_and_ours_do_not_meet(comm: Any) -> None:
    """Half of the ranks call them in one order, half in the other; nonblocking, so that this may be."""
    from mpi4py import MPI

    if comm.rank % 2:
        first: Any = comm.barrier(async_op=True)
        theirs = MPI.COMM_WORLD.Ibarrier()
    else:
        theirs = MPI.COMM_WORLD.Ibarrier()
        first = comm.barrier(async_op=True)
    first.wait(timeout=WAIT_S)
    theirs.Wait()
    assert comm.all_reduce(1) == comm.size


def test_a_failure_of_mpi_in_a_receive_of_unknown_length_is_ours(
    own_comm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: Any) -> None:
        raise MPI.Exception(MPI.ERR_OTHER)

    from mpi4py import MPI

    monkeypatch.setattr(Arrival, "Wait", fail)
    monkeypatch.setattr(Arrival, "Test", fail)
    left, _ = ring(own_comm)
    with monkeypatch.context() as at_once:
        at_once.setattr(own_comm.context, "mpi_handle", SimpleNamespace(Mprobe=fail))
        with pytest.raises(hpcomm.TransportError, match=r"(?s)failed: .*where: recv"):
            own_comm.recv(dtype="float64", source=left)
    for receive in (
        lambda: own_comm.irecv(dtype="float64", source=left).wait(timeout=WAIT_S),
        lambda: own_comm.irecv_object(left).wait(),
    ):
        with pytest.raises(hpcomm.TransportError, match=r"(?s)failed: .*where: recv") as caught:
            receive()
        assert caught.value.error_class == MPI.ERR_OTHER


@pytest.mark.parametrize("n", [3, 5000])
def test_a_message_is_for_the_first_receive_begun_that_can_take_it(own_comm: Any, n: int) -> None:
    """Also where that one knows no length, of which MPI hears only when the message is there."""
    comm, kind = own_comm, "float64"
    if comm.size == 1:
        pytest.skip("a rank alone has nobody to hear from")
    for turn in range(3):
        comm.recv(np.empty(n), 1) if comm.rank == 0 else comm.rank > 1 or comm.send(
            np.ones(n), 0
        )  # fast paths
        comm.barrier()
        if comm.rank == 1:
            going = [comm.isend(np.full(n, float(i)), 0, tag=i % 2) for i in range(10)]
            for request in going:
                request.wait()
        elif comm.rank == 0:
            first = comm.irecv(dtype=kind, source=1, tag=1)  # takes 1
            second = comm.irecv(dtype=kind, source=None)  # 0
            assert comm.recv(np.empty(n), 1)[0] == 2
            third = comm.irecv(np.empty(n)[::1], 1)
            fourth = comm.irecv(dtype=kind, source=1, tag=1)
            status = hpcomm.Status()
            assert comm.recv(np.empty((n, 2))[:, 0], 1, tag=1, status=status)[0] == 7
            assert (status.tag, status.nbytes) == (1, 8 * n)
            assert [r.wait()[0] for r in (first, second, third, fourth)] == [1, 0, 3, 5]
            fifth = comm.irecv(dtype=kind, source=1)
            assert comm.sendrecv(np.empty(0), hpcomm.PROC_NULL, 1, out=np.empty(n))[0] == 6
            sixth = comm.irecv(dtype=kind, source=1, tag=0)
            with pytest.raises(hpcomm.MismatchError, match=f"has {8 * n} bytes"):
                comm.recv(np.empty(n + 1), 1)
            assert (fifth.wait()[0], sixth.wait()[0]) == (4, 8), turn


def test_a_message_that_another_receive_has_found_for_it_is_not_asked_for_again(own_comm: Any) -> None:
    comm = own_comm
    if comm.size == 1:
        pytest.skip("a rank alone has nobody to hear from")
    if comm.rank == 1:
        comm.send(np.full(3, 10.0), 0, tag=1)
        comm.barrier()
        comm.send(np.full(3, 20.0), 0, tag=1)
    elif comm.rank == 0:
        first = comm.irecv(dtype="float64", source=1, tag=1)
        arrival, second = first._pending[0], Arrival(comm.mpi, 1, 1)
        while arrival.message is None:
            assert not second.Test()  # which finds the message, and leaves it to the first
        comm.barrier()
        assert first.wait()[0] == 10
        y = np.empty(3)
        assert second.Wait()
        second.message.Recv(y)
        assert y[0] == 20
    else:
        comm.barrier()


@pytest.mark.parametrize("dtype", ["S", "U", "V0"])
@pytest.mark.parametrize("shape", [None, 2])
def test_a_dtype_without_a_length_is_refused(comm: Any, dtype: str, shape: Any) -> None:
    with pytest.raises(hpcomm.DtypeError, match="does not say how long an element is") as caught:
        comm.recv(source=comm.rank, dtype=dtype, shape=shape)
    assert caught.value.where


def test_sendrecv_of_halves_keeps_their_dtype_beside_a_receive_that_is_waiting(own_comm: Any) -> None:
    """It goes in two parts then, of which one packs what is strided."""
    left, right = ring(own_comm)
    waiting = own_comm.irecv(dtype="float64", source=left, tag=None)
    going = own_comm.isend(np.ones(1), right, tag=1)
    x = (torch.arange(6, dtype=torch.bfloat16) + own_comm.rank).reshape(2, 3).T
    assert torch.equal(own_comm.sendrecv(x, right, left, 4, 4), x - own_comm.rank + left)
    assert waiting.wait() == 1
    going.wait()
