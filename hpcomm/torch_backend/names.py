"""torch.distributed's names, untyped: what its stubs say of them differs between versions."""

from __future__ import annotations

from typing import Any

import torch.distributed as _dist
from torch._C import _distributed_c10d
from torch.distributed import distributed_c10d

__all__ = ["c10d", "dist", "options"]

dist: Any = _dist
c10d: Any = distributed_c10d
options: Any = _distributed_c10d
