"""hpcomm's errors as torch.distributed's users catch them: RuntimeError, dist.DistBackendError."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from ..errors import HpcommError

__all__ = ["as_torch"]


def as_torch(error: HpcommError) -> HpcommError:
    """The same error, which is also a dist.DistBackendError (and so a RuntimeError)."""
    from .names import dist

    if isinstance(error, dist.DistError):
        return error
    both = _both(type(error))  # type: ignore[arg-type]  # classes can be hashed
    made: HpcommError = both(error.what, error.where, error.hint)
    made.__dict__.update(error.__dict__)
    return made


@lru_cache(maxsize=32)
def _both(kind: type[HpcommError]) -> Any:
    from .names import dist

    return type(kind.__name__, (kind, dist.DistBackendError), {"__module__": kind.__module__})
