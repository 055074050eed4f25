"""Untyped names of torch.distributed, whose stubs differ between versions; and a group's name."""

from __future__ import annotations

from typing import Any

import torch.distributed as _dist
from torch._C import _distributed_c10d
from torch.distributed import distributed_c10d

dist: Any = _dist
c10d: Any = distributed_c10d
options: Any = _distributed_c10d


def backends(words: object) -> dict[str, str]:
    """Which backend serves which type of device, by what init_process_group was told."""
    found = c10d.BackendConfig(c10d.Backend(str(words))).get_device_backend_map()
    return {kind: str(backend) for kind, backend in found.items()}


def label(group_name: str) -> str:
    """What messages call a group: torch's own name for the first is "0"."""
    return "world" if group_name in ("0", "") else group_name
