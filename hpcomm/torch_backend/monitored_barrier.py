"""monitored_barrier: a barrier that names the ranks which do not come, by way of the store."""

from __future__ import annotations

import json
import time
from datetime import timedelta
from typing import TYPE_CHECKING

from ..agree import shutdown
from ..errors import WaitTimeoutError, named
from .store_reports import come
from .torch_errors import as_torch

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

    from .process_group import ProcessGroupMPI

_GRACE_S = 5.0  # that the others give rank 0 to judge beyond the time they were told


def wait_for_all(group: ProcessGroupMPI, timeout: timedelta | float | None, wait_all_ranks: bool) -> None:
    """Rank 0 waits for every rank, then says who came; all ranks raise if one did not.

    Args:
        timeout: default: the group's own.
        wait_all_ranks: name all missing ranks, not only the first.

    Raises:
        WaitTimeoutError: with the ranks that did not come.
    """
    seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout or group.seconds
    group.barriers += 1
    store = group.get_group_store()
    prefix = f"monitored_barrier/{group.barriers}"
    if group.rank() != 0:
        store.set(f"{prefix}/{group.rank()}", "here")
        _obey(group, store, prefix, seconds)
        return
    deadline = time.monotonic() + seconds
    missing: list[int] = []
    for rank in range(1, group.size()):
        if not come(store, [f"{prefix}/{rank}"], max(deadline - time.monotonic(), 0.0)):
            missing.append(rank)
            if not wait_all_ranks:
                break
    store.set(f"{prefix}/verdict", json.dumps(missing))
    _judge(group, missing, seconds)


def _obey(group: ProcessGroupMPI, store: Store, prefix: str, seconds: float) -> None:
    missing = [0]
    if come(store, [f"{prefix}/verdict"], seconds + _GRACE_S):
        missing = json.loads(store.get(f"{prefix}/verdict"))
    _judge(group, missing, seconds)


def _judge(group: ProcessGroupMPI, missing: list[int], seconds: float) -> None:
    if missing:
        shutdown.remember(group.comm.context, missing)
        me, who = group.rank(), named(missing, len(missing)).capitalize()
        if me:
            begin = "successfully reached monitoredBarrier, but received errors while waiting for send/recv"
            begin += " from rank 0"
        else:
            begin = "timed out in monitoredBarrier" if seconds <= 0 else "waited in monitoredBarrier"
        raise as_torch(
            WaitTimeoutError(  # programs, and torch's own tests, look for these words
                f"Rank {me} {begin}: {who} failed to pass monitoredBarrier in {seconds * 1000:.0f} ms",
                group.where,
                "look at what those ranks do",
            )
        )
