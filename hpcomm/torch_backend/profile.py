"""Calls in torch's profiler, with the names and shapes that other backends give: `mpi:all_reduce`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch.futures import Future

from .calls import SAYS_LATER

recording: Callable[[], bool] = torch.autograd._profiler_enabled  # type: ignore[attr-defined]


def recorded(name: str, tensors: Sequence[torch.Tensor]) -> Callable[[], None]:
    """Begin a record; calling what is returned ends it.

    It ends on a thread of its own, because a profile takes a record for asynchronous, as c10d's are, if it
    ends elsewhere than it began. torch 2.6 must be told so by a future, and learns no shapes.
    """
    over = Future[None]()
    if not SAYS_LATER:  # torch 2.6 loses what ends on other threads
        handle = torch.ops.profiler._record_function_enter_new(name, None)
        torch.ops.profiler._call_end_callbacks_on_jit_fut._RecordFunction(handle, over)
        exit_ = partial(over.set_result, None)
    else:
        handle = torch.autograd._record_function_with_args_enter(name, *tensors)  # type: ignore[attr-defined]
        exit_ = partial(torch.autograd._record_function_with_args_exit, handle)  # type: ignore[attr-defined]

    def end() -> None:
        ending = threading.Thread(target=exit_)
        ending.start()
        ending.join()

    return end
