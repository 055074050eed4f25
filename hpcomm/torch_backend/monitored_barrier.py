"""monitored_barrier: a barrier that names the ranks which do not come, by way of the store."""

from __future__ import annotations

import json
from datetime import timedelta

from ..agree import shutdown
from ..errors import WaitTimeoutError
from .process_group_base import CommProcessGroup
from .store_reports import come
from .torch_errors import as_torch

_GRACE_S = 5.0  # that the others give rank 0 to judge beyond the time they were told


def wait_for_all(group: CommProcessGroup, timeout: timedelta | float | None, wait_all_ranks: bool) -> None:
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
    keys, verdict = [f"{prefix}/{rank}" for rank in range(group.size())], f"{prefix}/verdict"
    store.set(keys[group.rank()], "here")
    if group.rank():
        missing = json.loads(store.get(verdict)) if come(store, [verdict], seconds + _GRACE_S) else [0]
    else:
        come(store, keys, seconds)
        missing = [rank for rank, key in enumerate(keys) if not store.check([key])]
        missing = missing if wait_all_ranks else missing[:1]
        store.set(verdict, json.dumps(missing))
    if missing:
        shutdown.remember(group.comm.context, missing)
        raise as_torch(_failed(group, missing, seconds))


def _failed(group: CommProcessGroup, missing: list[int], seconds: float) -> WaitTimeoutError:
    """Programs, and torch's own tests, look for these words."""
    me, who = group.rank(), f"Rank{'s' * (len(missing) > 1)} {', '.join(map(str, missing))}"
    begin = "timed out in monitoredBarrier" if seconds <= 0 else "waited in monitoredBarrier"
    if me:
        begin = "successfully reached monitoredBarrier, but received errors while waiting for send/recv"
        begin += " from rank 0"
    what = f"Rank {me} {begin}: {who} failed to pass monitoredBarrier in {seconds * 1000:.0f} ms"
    return WaitTimeoutError(what, group.where, "look at what those ranks do")
