"""Descriptions of running calls, read from a thread's stack, so that calls need not record anything."""

from __future__ import annotations

import sys
import threading
from contextlib import suppress
from types import FrameType
from typing import TYPE_CHECKING, Any

from .._lazy import LazyModule
from ..core.signature import operator
from ..core.verbs import REDUCTIONS
from ..errors import is_ours, source_line

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ..core.comm import Comm

_SHOWN = ("op", "root", "dest", "source", "tag", "async_op", "algorithm", "deterministic")
_SHOWN_OF = {
    "split": ("color", "key"),
    "create_intercomm": ("local_leader", "remote_leader"),
    "merge": ("high",),
    "cart": ("shape", "periodic", "options"),
    "graph": ("destinations", "sources"),
    "mesh": ("axes", "sizes", "periodic", "order"),
    "sub": ("axes", "names"),
}


def call_frame(
    frame: FrameType | None = None, is_chosen: Callable[[FrameType], bool] | None = None
) -> tuple[FrameType | None, FrameType | None]:
    """The outermost frame of hpcomm (the verb that was called) and the user's frame that called it.

    Args:
        frame: innermost frame; if absent the calling thread's, or the main thread's in one of ours.
        is_chosen: the outermost of those that it is true for, instead; of all, if it is for none.
    """
    if frame is None:
        main = threading.main_thread().ident or 0
        own = not is_own(threading.current_thread())
        frame = sys._getframe(1) if own else sys._current_frames().get(main)
    verb = chosen = None
    while frame is not None and is_ours(frame.f_code):
        if is_chosen is not None and is_chosen(frame):
            chosen = frame
        verb, frame = frame, frame.f_back
    return chosen or verb, frame


def is_own(thread: threading.Thread) -> bool:
    """Whether it is one of hpcomm's, which calls nothing for itself."""
    return thread.name.startswith("hpcomm")


_FUNCTION = 1  # of a code's flags: its variables are not those of a module (inspect.CO_OPTIMIZED)
_IS_FRESH = sys.version_info >= (3, 13)  # f_locals looks at the frame itself, at each name
_reading = threading.RLock()


def names_of(frame: FrameType) -> Mapping[str, Any]:
    """The local variables of a frame, whose thread may be running.

    Until 3.12 a frame has one dict for them, which is brought up to date at each look. An old value that ends
    there may let its thread run on, out of the frame, whose memory then is another's: a segmentation fault.
    So what was seen at the last look is kept beside it, and ends after the next one.
    """
    if _IS_FRESH or not frame.f_code.co_flags & _FUNCTION:
        return frame.f_locals
    with _reading:
        shown = frame.f_locals
        names = dict(shown)
        before = names.pop("(seen before)", None)
        shown["(seen before)"] = names
        del before
    return names


def comm_of(frame: FrameType) -> Comm | None:
    """The communicator that a frame of ours is about: its argument, or whose the function is, or for whom."""
    names = names_of(frame)
    comm: Comm | None = names.get("comm", frame.f_globals.get("comm"))
    if comm is None and hasattr(type(names.get("self")), "agreement"):
        comm = names["self"]
    return comm


def describe_call(frame: FrameType | None = None) -> str:
    """`all_reduce(float32 (3, 5), op='max') at train.py:41`, or where the user's own code is.

    frame: as call_frame has it.
    """
    verb, user = call_frame(frame)
    torchs, user = _before_torch(user)
    end = ""
    if user is None and verb is not None and verb.f_code.co_name == "excepthook":  # see runtime.py
        names = names_of(verb)
        error, trace = names["kind"], names["trace"]
        while trace is not None and trace.tb_next is not None:
            trace = trace.tb_next
        verb, user = (None, None) if trace is None else call_frame(trace.tb_frame)
        end = f", ended by {error.__name__}"
    here = source_line(user.f_code, user.f_lineno) if user else "the end of the program"
    if torchs is not None:
        return f"{_torch_call(torchs)} at {here}{end}"
    if verb is None:
        return f"not in a call of hpcomm, at {here}{end}"
    name = verb.f_code.co_name.replace("__call__", "plan")
    return f"{name}({_arguments(verb)}) at {here}{end}"


def _before_torch(frame: FrameType | None) -> tuple[FrameType | None, FrameType | None]:
    """The function of torch.distributed that was called, if one was, and the frame that called torch.

    Frames of ours stand in between where a group is made.
    """
    found, before = None, frame
    while before is not None:
        module = str(before.f_globals.get("__name__"))
        if module == "torch.distributed.distributed_c10d":
            found = before
        elif module.partition(".")[0] != "torch" and not is_ours(before.f_code):
            break
        before = before.f_back
    return found, before if before is not None else frame


def _torch_call(frame: FrameType) -> str:
    """`all_reduce(float32 (3, 5))`, `new_group([0, 1])`: a function of torch.distributed."""
    names = names_of(frame)
    shown = _array(names["tensor"]) if "tensor" in names else names.get("ranks") or ""
    return f"{frame.f_code.co_name}({shown})"


def owner(frame: FrameType) -> Any:
    """Whose method a frame is in."""
    found = names_of(frame).get("self")
    return None if isinstance(found, LazyModule) else found  # to ask one for anything imports its module


def _arguments(verb: FrameType) -> str:
    parts, names, request = [], names_of(verb), owner(verb)
    if type(request).__name__ in ("Request", "Message"):  # wait() and its kin
        return str(request.call)
    if type(request).__name__ in ("Plan", "_DirectPlan"):
        call = request._call
        return f"{call!s}, {operator(call.code)}" if call.verb in REDUCTIONS else str(call)
    x = names.get("x", names.get("out"))
    if x is not None:
        parts.append(_array(x))
    for name in _SHOWN_OF.get(verb.f_code.co_name, _SHOWN):
        value = names.get(name)
        if not (value is None or value is False or (isinstance(value, (dict, tuple)) and not value)):
            parts.append(f"{name}={_word(value)}")
    return ", ".join(parts)


def _word(value: object) -> str:
    try:
        return getattr(value, "__name__", None) or repr(value)
    except Exception:  # whatever it is, it is described where an error is told
        return f"a {type(value).__name__}"


def _array(x: object) -> str:
    with suppress(Exception):  # whatever it is, as memory that was released
        dtype, shape = getattr(x, "dtype", None), getattr(x, "shape", None)
        if dtype is not None and shape is not None:
            return f"{str(dtype).removeprefix('torch.')} {tuple(shape)}"
    return type(x).__name__
