"""Calls in torch's profile, with the names and shapes that other backends give: `mpi:all_reduce`."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch

__all__ = ["recorded", "recording"]

recording: Callable[[], bool] = torch.autograd._profiler_enabled  # type: ignore[attr-defined]


def recorded(verb: str, tensors: Any) -> Callable[[], None]:
    """Begin a record; calling what is returned ends it.

    It ends on a thread of its own, because a profile takes a record for asynchronous, as c10d's are, if it
    ends elsewhere than it began.
    """
    handle = torch.autograd._record_function_with_args_enter(f"mpi:{verb}", *tensors)  # type: ignore[attr-defined]

    def end() -> None:
        ending = threading.Thread(
            target=torch.autograd._record_function_with_args_exit,  # type: ignore[attr-defined]
            args=(handle,),
        )
        ending.start()
        ending.join()

    return end
