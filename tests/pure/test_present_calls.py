"""The present call of a thread, as data that other threads read."""

from __future__ import annotations

import gc
import importlib
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from hpcomm.agree import present_calls
from hpcomm.agree.present_calls import call_of, describe_call
from hpcomm.core import present as general
from hpcomm.core.present import MESSAGE, calling, messaging, saying, several, waiting
from hpcomm.core.verbs import receives
from hpcomm.core.waiting import wait_all
from hpcomm.errors import UsageError
from hpcomm.node import present

COMM: Any = SimpleNamespace(name="any")


@pytest.fixture(params=["core", "without"])
def noted(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """node/present.py, by the native core and without it."""
    own = importlib.util.find_spec("hpcomm.node._native.core")
    if request.param == "core" and (own is None or os.environ.get("HPCOMM_NODE") == "off"):
        pytest.skip("there is no native core here")
    if request.param == "without":
        names = {name: getattr(present, f"_{name}") for name in ("enter", "leave", "present")}
        monkeypatch.setattr(present_calls, "present", names["present"])
        yield SimpleNamespace(**names)
    else:
        yield present


def test_the_outermost_call_is_what_a_thread_is_doing() -> None:
    assert call_of() is None
    with calling(None, "wait_all"), calling(COMM, "all_reduce", np.ones(3), op="sum") as inner:
        outermost = call_of()
        assert outermost is not None
        assert outermost.verb == "wait_all"
        assert call_of(of_comm=True) is inner
        assert describe_call().startswith("wait_all() at test_present_calls.py:")
    assert call_of() is None
    assert not general.innermost


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (calling(COMM, "barrier", async_op=False, algorithm=None), "barrier()"),
        (calling(COMM, "all_reduce", np.ones((3, 5), "f4"), op=max), "all_reduce(float32 (3, 5), op=max)"),
        (calling(COMM, "split", color=0, key=-1), "split(color=0, key=-1)"),
        (calling(COMM, "broadcast", [1, 2], root=1), "broadcast(list, root=1)"),
        (messaging(COMM, "send", np.ones(2), 1, 0), "send(float64 (2,), dest=1, tag=0)"),
        (messaging(COMM, "recv", None, -1, None), "recv()"),
        (messaging(COMM, "sendrecv", None, 0, 7, dest=1), "sendrecv(dest=1, source=0, tag=7)"),
        (saying(lambda: "all_gather(list of 2)"), "all_gather(list of 2)"),
    ],
)  # fmt: skip
def test_a_call_says_what_was_given(call: calling, words: str) -> None:
    assert str(call) == words


def stack_beside(name: str, program: Callable[[Callable[[], None]], None], most: int) -> tuple[str, ...]:
    """The stack while a thread of this name is in program, which stops in the function that it is given."""
    begun, over = threading.Event(), threading.Event()

    def stop() -> None:
        begun.set()
        over.wait()

    thread = threading.Thread(target=program, args=[stop], name=name)
    thread.start()
    begun.wait()
    stack = present_calls.program_stack(most)
    over.set()
    thread.join()
    return stack


def test_who_looks_at_a_stack_keeps_nothing_of_it() -> None:
    kept = []

    def program(stop: Callable[[], None]) -> None:
        array = np.ones(3)
        kept.append(weakref.ref(array))
        stop()

    gc.disable()
    try:
        stack_beside("of the program", program, 100)
        assert kept[0]() is None
    finally:
        gc.enable()


def test_a_stack_begins_with_the_program_and_not_with_what_has_called_it() -> None:
    def program(stop: Callable[[], None]) -> None:
        stop()

    stack = stack_beside("of the program", program, 100)
    first = stack[stack.index("in thread of the program:") + 1]  # threading, which has called it, is left out
    assert first.startswith("program at test_present_calls.py:")
    assert stack[-1].startswith("stack_beside at test_present_calls.py:")


def test_a_wait_is_for_what_its_request_has_noted() -> None:
    request = SimpleNamespace(waits_for=(COMM, 3, MESSAGE, "irecv_object", 5), call="irecv_object(source=3)")
    wait = waiting(request, ends=True)
    assert (wait.comm, wait.peer, wait.number, wait.verb, wait.tag, wait.ends) == (
        COMM, 3, MESSAGE, "irecv_object", 5, True,
    )  # fmt: skip
    assert str(wait) == "wait(irecv_object(source=3))"


def test_a_wait_for_several_requests_is_another_one_after_each_of_them() -> None:
    first, last = (
        SimpleNamespace(waits_for=needs, call=f"recv(source={source})")
        for source, needs in ((1, None), (2, (COMM, 2, MESSAGE, "recv", 5)))
    )
    asked = SimpleNamespace(requests=[first, last], is_any=False)
    wait = several("wait_all", asked, ends=False)
    before = wait.noted
    assert (wait.comm, wait.ends, str(wait)) == (COMM, False, "wait_all(recv(source=1) and 1 more)")
    asked.requests = [first]
    wait.note()
    assert wait.noted not in (None, before)
    assert (wait.comm, str(wait)) == (None, "wait_all(recv(source=1))")


def test_a_message_that_was_known_is_noted_until_it_ends(noted: Any) -> None:
    x = np.ones(4)
    for tag in (3, 4):
        noted.enter(COMM, "recv", x, 1, tag)
        found = call_of()
        assert found is not None
        assert (found.comm, found.verb, found.number) == (COMM, "recv", MESSAGE)
        assert (found.peer, found.tag) == (1, tag)
        again = call_of()
        assert again is not None
        assert again.noted == found.noted
        noted.enter(COMM, "recv", x, 1, tag)
        following = call_of()
        assert following is not None
        assert following.noted != found.noted
        noted.leave()
        assert call_of() is None
        noted.leave()


def test_another_thread_reads_it(noted: Any) -> None:
    def beside() -> None:
        noted.enter(COMM, "send", np.ones(2), 1, 0)
        there.set()
        go_on.wait(20)
        noted.leave()

    there, go_on = threading.Event(), threading.Event()
    thread = threading.Thread(target=beside)
    thread.start()
    assert there.wait(20)
    assert call_of() is None
    assert describe_call(thread.ident).startswith(
        "send(float64 (2,), dest=1, tag=0) at test_present_calls.py:"
    )
    go_on.set()
    thread.join()
    assert call_of(thread.ident) is None


def test_code_of_a_library_that_we_call_is_not_the_programs_line() -> None:
    begun, over = threading.Lock(), threading.Lock()
    begun.acquire()
    over.acquire()
    source, space = "def wait():\n    begun.release()\n    over.acquire()", {"begun": begun, "over": over}
    eval(compile(source, threading.__file__, "exec"), space)
    request: Any = SimpleNamespace(wait=space["wait"], _call=None)
    thread = threading.Thread(target=lambda: wait_all([request]))
    thread.start()
    begun.acquire()
    said = describe_call(thread.ident)
    over.release()
    thread.join()
    assert said.startswith("in hpcomm, at test_present_calls.py:"), said


def test_a_stack_says_what_another_thread_calls() -> None:
    def call(stop: Callable[[], None]) -> None:
        with calling(COMM, "barrier"):
            stop()

    stack = stack_beside("of calls", call, 9)
    assert "in thread of calls: barrier()" in stack


def test_who_waits_for_threads_at_its_end_is_in_no_call_of_hpcomm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(present_calls, "is_ours", lambda code: True)
    monkeypatch.setattr(present_calls, "calling_frame", lambda frame: None)
    assert present_calls.describe_call() == "not in a call of hpcomm, at the end of the program"


def test_an_array_is_held_no_longer_than_its_call(noted: Any) -> None:
    class Array(np.ndarray[Any, Any]):
        gone = False

        def __del__(self) -> None:
            type(self).gone = True

    x = np.ones(2).view(Array)
    Array.gone = False
    noted.enter(COMM, "send", x, 1, 0)
    del x
    assert not Array.gone
    noted.leave()
    assert Array.gone


def test_an_error_knows_the_call_that_it_has_ended() -> None:
    with pytest.raises(UsageError) as told, calling(COMM, "scan", np.ones(1)), calling(COMM, "all_gather"):
        raise UsageError("wrong")
    assert told.value.during == "scan(float64 (1,))"


@pytest.mark.parametrize(
    ("verb", "of_objects"),
    [("recv", False), ("irecv", False), ("probe_object", True), ("recv_ragged", True), ("sendrecv", False),
     ("send", None), ("all_gather_object", None), ("", None)],
)  # fmt: skip
def test_a_verb_tells_what_it_receives(verb: str, of_objects: bool | None) -> None:
    assert receives(verb) is of_objects
