"""Present calls: what threads of this process are doing, and where in the program.

What is read stands in core/present.py and node/present.py. A stack is looked at for the program's own line.
"""

from __future__ import annotations

import sys
import threading
from itertools import islice
from linecache import getline
from types import FrameType, TracebackType
from typing import Any

from ..core.present import calling, exchanging, innermost, is_own, looking, messaging, waiting
from ..core.signature import words_of
from ..core.verbs import RAGGED, TABLE
from ..errors import HpcommError, calling_frame, is_ours, source_line
from ..node.channels import end_of
from ..node.present import present
from . import runtime

OUTSIDE = "not in a call of hpcomm,"
_MESSAGES = ("recv", "send")  # of a node
_SHOWN = 60  # characters of what a program does that is in no call of ours
_DEBUGGERS = ("bdb", "pydevd", "_pydevd_bundle.pydevd_frame")
_LIBRARIES = (threading.__file__.rpartition("/")[0] + "/", "<frozen ")
_OF_PAYLOADS = frozenset(f"{verb}_{what}" for verb in RAGGED for what in ("object", "ragged"))


def call_of(thread: int | None = None, of_comm: bool = False) -> calling | None:
    """The outermost call of a thread; by default of this one, or of the main thread in one of ours.

    of_comm: that is a communicator's.
    """
    thread = _whose(thread)
    found = None
    call = _noted(thread, *present().get(thread, (None, None)))
    if call is not None:
        call.outer = innermost.get(thread)
    else:
        call = innermost.get(thread)
    while call is not None:
        if call.comm is not None or not of_comm:
            found = call
        call = call.outer
    return found


def _whose(thread: int | None) -> int:
    if thread is None:
        this = threading.current_thread()
        thread = (threading.main_thread() if is_own(this) else this).ident
    return thread or 0


def _noted(thread: int, message: Any, call: Any) -> calling | None:
    """The call whose fields node/present.py has noted."""
    noted = message or call  # which is made inside it
    if noted is None:
        return None
    owner, verb, x, by, other, count = noted
    if hasattr(owner, "waits_for"):  # a plan's state
        made: calling = waiting(owner, verb)
    elif (end := end_of(owner)) is not None:
        made = exchanging(end[0], verb, None, end[1], None)
    elif noted is call:
        comm = next((comm for comm in runtime.living() if comm.node is owner), None)
        is_message = verb in _MESSAGES
        made = looking(comm, verb, x, by, other) if is_message else calling(comm, verb, x, op=by, root=other)
    elif verb in _OF_PAYLOADS:
        made = calling(owner, verb, x, root=other)
    elif verb in TABLE:
        made = calling(owner, verb, x, **words_of(verb, by))
    elif verb == "sendrecv":
        source, dest, sendtag = by
        made = messaging(owner, verb, x, source, other, dest=dest, sendtag=sendtag or None)
    else:
        made = messaging(owner, verb, x, by, other)
    made.noted = thread, count
    return made


def verb_now() -> str:
    """What the calling thread calls."""
    call = call_of()
    return "a call" if call is None else call.verb


def words_now() -> str:
    """The same with its arguments; of a wait, what it waits for."""
    call = call_of(threading.get_ident())
    return call.what.call if isinstance(call, waiting) else str(call)


def describe_call(thread: int | None = None, verb: str = "") -> str:
    """`all_reduce(float32 (3, 5), op='max') at train.py:41`, or where the program's own code is.

    Args:
        thread: as call_of has it.
        verb: what it calls, where nothing is noted.
    """
    call, frame = call_of(thread), _outside_libraries(sys._current_frames().get(_whose(thread)))
    if call is not None:
        return _placed(str(call), frame and calling_frame(frame))
    if runtime.uncaught is not None:
        return _ended(*runtime.uncaught)
    if frame is not None and is_ours(frame.f_code):
        user = calling_frame(frame)  # none: Python has come to the end of the program, and waits for threads
        return _placed(f"{verb}()" if verb else "in hpcomm," if user else OUTSIDE, user)
    user, doing = (None, "") if frame is None else _of_program(frame)
    return _placed((f"{verb}()" if verb else OUTSIDE) + doing, user)


def _ended(error: BaseException, trace: TracebackType | None) -> str:
    """What an exception has ended that nobody caught."""
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    words = (isinstance(error, HpcommError) and error.during) or OUTSIDE
    return f"{_placed(words, trace and calling_frame(trace.tb_frame))}, ended by {type(error).__name__}"


def _placed(words: str, user: FrameType | None) -> str:
    return f"{words} at {source_line(user.f_code, user.f_lineno) if user else 'the end of the program'}"


def _outside_libraries(frame: FrameType | None) -> FrameType | None:
    """The frame of ours that has called the code of a library that runs, as an import; else frame itself."""
    from traceback import walk_stack

    for each, _ in walk_stack(frame) if frame is not None else ():
        if is_ours(each.f_code):
            return each
        if not _is_library(each.f_code.co_filename):
            break
    return frame


def _of_program(frame: FrameType) -> tuple[FrameType | None, str]:
    """The innermost frame of the program itself, and what it is doing there, as far as that is to be seen."""
    from traceback import walk_stack

    frames = [each for each, _ in walk_stack(frame)]
    own = [each for each in frames if not _is_library(each.f_code.co_filename)]
    if not own:
        return calling_frame(frame), ""
    each = own[0]
    if any(inner.f_globals.get("__name__") in _DEBUGGERS for inner in frames[: frames.index(each)]):
        return each, " in a debugger"
    line, last, begin, end = next(islice(each.f_code.co_positions(), each.f_lasti // 2, None))
    text = getline(each.f_code.co_filename, line or 0).encode()[begin:end].decode(errors="replace")
    if line != last or not text.endswith(")"):  # it is no call, or a long one
        return each, ""
    return each, f" in {text if len(text) <= _SHOWN else text.partition('(')[0] + '(...)'}"


def _is_library(file: str) -> bool:
    """Whether code is Python's own, or installed, or ours."""
    return file.startswith(_LIBRARIES) or "-packages/" in file


def program_stack(most: int) -> tuple[str, ...]:
    """Where the program's own code is, the innermost line last: its other threads, then the main one."""
    from traceback import walk_stack

    frames, told, main = sys._current_frames(), [], threading.main_thread()
    for thread in sorted(threading.enumerate(), key=lambda each: each is main):
        if is_own(thread) or thread.ident not in frames:
            continue
        found = [(each.f_code, n) for each, n in walk_stack(frames[thread.ident]) if not is_ours(each.f_code)]
        own = [i for i, (code, _) in enumerate(found) if not _is_library(code.co_filename)]
        found = found[: own[-1] + 1] if own else found  # without what has called the program, such as pytest
        call = None if thread is main else call_of(thread.ident)
        told += [] if thread is main else [f"in thread {thread.name}:" + f" {call}" * (call is not None)]
        told += [f"{code.co_name} at {source_line(code, n)}" for code, n in reversed(found[:most])]
    frames.clear()  # this one is among them: a circle that would keep what all threads have, till it is found
    return tuple(told)
