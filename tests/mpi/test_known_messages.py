"""Messages whose like was found right before: what is not like them is still seen."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import hpcomm
from hpcomm.communicator.verbs import p2p, sendrecv

pytestmark = [pytest.mark.few, pytest.mark.mpi(min_size=2)]

FORMS: dict[str, Callable[..., Any]] = {
    "numpy": lambda n, value=0.0: np.full(n, value),
    "torch": lambda n, value=0.0: torch.full((n,), value, dtype=torch.float64),
    "halves": lambda n, value=0.0: torch.full((n,), value, dtype=torch.bfloat16),
}


def ring(comm: Any) -> tuple[int, int]:
    return (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size


@pytest.fixture
def near(own_comm: Any) -> Any:
    """A communicator on which float64 of all forms have gone around, with tag 0 and in every way."""
    left, right = ring(own_comm)
    for form in FORMS.values():
        for _ in range(2):
            coming = own_comm.irecv(form(3), left)
            own_comm.send(form(3, 1.0), right)
            coming.wait()
            own_comm.sendrecv(form(3, 2.0), right, left, out=form(3))
    assert own_comm.context.known.sends
    assert own_comm.context.known.receives
    return own_comm


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("n", [0, 1, 3, 1023, 1024, 1025, 9000])
def test_all_lengths_go_around_with_any_tag(near: Any, form: str, n: int) -> None:
    left, right = ring(near)
    for tag in (0, 7, 32_767, 8):
        x, y = FORMS[form](n, 3.0 + tag), FORMS[form](n)
        going = near.isend(x, right, tag)
        assert near.recv(y, left, tag if n % 2 else None) is y
        going.wait()
        assert near.sendrecv(x, right, left, tag, None, out=FORMS[form](n)).tolist() == x.tolist()
        assert y.tolist() == x.tolist()


def test_what_is_no_plain_array_takes_the_general_path(near: Any) -> None:
    left, right = ring(near)
    whole = np.arange(12.0).reshape(3, 4)
    lazy = torch.tensor([1 + 2j, 3 + 4j], dtype=torch.complex128).conj()
    for x, wanted in (
        (whole.T, whole.T.tolist()),
        (whole[:, 1], whole[:, 1].tolist()),
        (torch.from_numpy(whole).t(), whole.T.tolist()),
        (lazy.imag, [-2.0, -4.0]),
        (lazy.imag[:1], [-2.0]),
    ):
        going = near.isend(x, right)
        y = near.recv(np.zeros(np.shape(wanted)) if isinstance(x, np.ndarray) else torch.zeros_like(x), left)
        going.wait()
        assert y.tolist() == wanted
    strided = np.zeros((4, 3)).T
    going = near.isend(whole, right)
    assert near.recv(strided, left).tolist() == whole.tolist()
    going.wait()


@pytest.mark.parametrize("wrong", [True, 1.0, "1", 99, -7])
def test_what_is_no_rank_or_tag_is_refused(near: Any, wrong: Any) -> None:
    x, (left, right) = np.ones(3), ring(near)
    for call in (lambda: near.send(x, wrong), lambda: near.isend(x, wrong), lambda: near.recv(x, wrong)):
        with pytest.raises(hpcomm.RankError):
            call()
    if wrong not in (True, 99):  # these may be sent
        for tagged in (lambda: near.send(x, right, wrong), lambda: near.irecv(x, left, wrong)):
            with pytest.raises(hpcomm.UsageError, match="tag"):
                tagged()


def test_places_that_cannot_be_filled_are_refused(near: Any) -> None:
    left = ring(near)[0]
    frozen = np.zeros(3)
    frozen.flags.writeable = False
    for place in (
        frozen,
        np.broadcast_to(np.zeros(1), 3),
        torch.zeros(3, device="meta", dtype=torch.float64),
    ):
        with pytest.raises(hpcomm.LayoutError):
            near.recv(place, left)
        with pytest.raises(hpcomm.LayoutError):
            near.irecv(place, left)
    x = np.arange(6.0)
    with pytest.raises(hpcomm.LayoutError, match="overlap"):
        near.sendrecv(x[:4], ring(near)[1], left, out=x[2:])
    t = torch.arange(6.0, dtype=torch.float64)
    with pytest.raises(hpcomm.LayoutError, match="overlap"):
        near.sendrecv(t[:4], ring(near)[1], left, out=t[2:])


@pytest.mark.parametrize("verb", ["recv", "irecv", "sendrecv"])
@pytest.mark.parametrize("n", [2, 4, 5000])
def test_messages_of_another_length_are_errors(near: Any, verb: str, n: int) -> None:
    left, right = ring(near)
    behind = np.full(6000, 9.0)
    if verb == "sendrecv":
        with pytest.raises(hpcomm.MismatchError, match=r"sendrecv on communicator"):
            near.sendrecv(np.ones(n), right, left, out=behind[:3])
    else:
        going = near.isend(np.ones(n), right)
        with pytest.raises(hpcomm.MismatchError):
            near.recv(behind[:3], left) if verb == "recv" else near.irecv(behind[:3], left).wait()
        going.wait()
    assert (behind[3:] == 9).all()


@pytest.mark.parametrize("verb", ["recv", "irecv", "sendrecv"])
def test_elements_of_another_type_are_seen_by_their_tag(near: Any, verb: str) -> None:
    """float64 has come with tag 0 only: what comes with tag 5 is int64 for certain."""
    left, right = ring(near)
    if near.context.message_kinds is None:
        pytest.skip("element types are not compared here")
    going = near.isend(np.ones(3, np.int64), right, 5)
    receive = {
        "recv": lambda: near.recv(np.zeros(3), left),
        "irecv": lambda: near.irecv(np.zeros(3), left).wait(),
        "sendrecv": lambda: near.sendrecv(np.ones(3), hpcomm.PROC_NULL, left, out=np.zeros(3)),
    }[verb]
    with pytest.raises(hpcomm.MismatchError, match="a message of int64 came to an array of float64"):
        receive()
    going.wait()


@pytest.mark.parametrize("why", ["observer", "timeout", "closed"])
def test_what_needs_the_general_path_has_it_at_once(near: Any, why: str) -> None:
    left, right = ring(near)
    seen: list[str] = []

    class Look:
        def before(self, call: Any) -> None:
            seen.append(call.verb)

        def after(self, call: Any) -> None:
            pass

    with near.dup() as comm:
        for _ in range(2):
            going = comm.isend(np.ones(3), right)
            comm.recv(np.zeros(3), left)
            going.wait()
        assert comm.context.known.sends
        if why == "closed":
            comm.close()
            for call in (lambda: comm.send(np.ones(3), right), lambda: comm.irecv(np.ones(3), left)):
                with pytest.raises(hpcomm.UsageError, match="closed"):
                    call()
            return
        stop = comm.observe(Look()) if why == "observer" else None
        if why == "timeout":
            comm.timeout = 0.05
            with pytest.raises(hpcomm.WaitTimeoutError):
                comm.recv(np.zeros(3), left, 77)
            comm.timeout = 30
        assert not comm.context.known.sends
        going = comm.isend(np.ones(3), right)
        comm.recv(np.zeros(3), left)
        going.wait()
        assert not comm.context.known.sends
        assert not comm.context.known.receives
        if stop is not None:
            assert seen == ["send", "recv"]
            stop()
        comm.timeout = None
        going = comm.isend(np.ones(3), right)
        comm.recv(np.zeros(3), left)
        going.wait()
        assert comm.context.known.sends
        assert comm.context.known.receives


def test_very_many_kinds_of_messages_are_not_all_kept(near: Any) -> None:
    left, right = ring(near)
    for tag in range(3000):
        going = near.isend(np.ones(1), right, tag)
        near.recv(np.zeros(1), left, tag)
        going.wait()
    sets = [
        known.tags for known in (*near.context.known.sends.values(), *near.context.known.receives.values())
    ]
    assert max(map(len, sets)) <= 1024


def test_a_request_says_where_its_message_was_begun(near: Any) -> None:
    left, right = ring(near)
    request, line = near.irecv(np.zeros(2), left, tag=5), inspect.currentframe().f_lineno  # type: ignore[union-attr]
    assert request.birth == f"test_known_messages.py:{line}"
    assert request.call == f"recv(float64 (2,), source={left}, tag=5)"
    near.send(np.ones(2), right, tag=5)
    request.wait()
    assert request.status == hpcomm.Status(left, 5, 16)


def test_from_any_source_and_into_new_arrays_are_known_too(
    near: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    left, right = ring(near)
    for turn in range(3):
        going = near.isend(np.full(3, turn), right)
        assert near.recv(np.zeros(3, int)).tolist() == [turn] * 3
        going.wait()
        if turn == 1:
            for module, name in ((p2p, "receive_carefully"), (sendrecv, "_sendrecv_carefully")):
                monkeypatch.delattr(module, name)
    x = np.full(2, float(near.rank))
    assert near.sendrecv(x, right, left).tolist() == [left] * 2
    going = near.isend(x, right, 4)
    made = near.recv(source=left, tag=4, dtype="float64", shape=2)
    assert (made.tolist(), made.dtype) == ([left] * 2, np.float64)
    going.wait()


@pytest.mark.mpi(min_size=3)
def test_from_any_source_another_dtype_is_seen(own_comm: Any) -> None:
    """One rank's messages are known, another one's are not."""
    comm = own_comm
    if comm.context.message_kinds is None:
        pytest.skip("no memory of the node")
    for sender in (1, 1, 1, 2):
        if comm.rank == sender:
            comm.send(np.ones(3, "f8" if sender == 1 else "i8"), 0, 5)
        elif comm.rank == 0 and sender == 1:
            comm.recv(np.zeros(3))
        elif comm.rank == 0:
            with pytest.raises(hpcomm.MismatchError, match="int64"):
                comm.recv(np.zeros(3))
        comm.barrier()
