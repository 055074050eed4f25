"""Modules of lower layers that the public operations load at first use: most jobs need few of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._lazy import LazyModule

if TYPE_CHECKING:
    from ..agree import wrapping
    from ..core import buffer, dtypes, reduction
    from . import host_calls, prepare, rank_order, single_request
    from . import mpi as transport
    from .device import host_copy, staging
    from .scheduled import ordered_blocks, schedule_transport
else:
    buffer = LazyModule("hpcomm.core.buffer")
    dtypes = LazyModule("hpcomm.core.dtypes")
    reduction = LazyModule("hpcomm.core.reduction")
    wrapping = LazyModule("hpcomm.agree.wrapping")
    host_calls = LazyModule("hpcomm.transport.host_calls")
    prepare = LazyModule("hpcomm.transport.prepare")
    rank_order = LazyModule("hpcomm.transport.rank_order")
    transport = LazyModule("hpcomm.transport.mpi")
    single_request = LazyModule("hpcomm.transport.single_request")
    host_copy = LazyModule("hpcomm.transport.device.host_copy")
    staging = LazyModule("hpcomm.transport.device.staging")
    ordered_blocks = LazyModule("hpcomm.transport.scheduled.ordered_blocks")
    schedule_transport = LazyModule("hpcomm.transport.scheduled.schedule_transport")

__all__ = [
    "buffer",
    "dtypes",
    "host_calls",
    "host_copy",
    "ordered_blocks",
    "prepare",
    "rank_order",
    "reduction",
    "schedule_transport",
    "single_request",
    "staging",
    "transport",
    "wrapping",
]  # fmt: skip
