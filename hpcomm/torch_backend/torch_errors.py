"""Errors as torch.distributed's users catch them, and the error about torch itself."""

from __future__ import annotations

from functools import lru_cache

from ..errors import ConfigError, HpcommError, where

_NEWEST = (2, 15)  # torch on which the tests have run; the oldest is 2.6


def as_torch(error: HpcommError, call: str = "", group: str = "") -> HpcommError:
    """The same error, which is also a dist.DistBackendError (and so a RuntimeError).

    Args:
        call, group: torch's words for where it happened, where it was raised by a verb of a Communicator.
    """
    from .names import dist

    if isinstance(error, dist.DistError):
        return error
    if call:
        found = error.where if error.where and " at " in error.where else where(call, None)
        _, at, line = found.rpartition(" at ")
        error.where = f"{call} on {group}{at}{line if at else ''}"
    both = _both(type(error))  # type: ignore[arg-type]  # classes can be hashed
    made: HpcommError = both(error.what, error.where, error.hint)
    made.__dict__.update(error.__dict__)
    return made


@lru_cache(maxsize=32)
def _both(kind: type[HpcommError]) -> type:
    from .names import dist

    def reduce(error: HpcommError) -> tuple[object, ...]:
        """How to pickle what has no name of its own: a Future does so with what it raises."""
        return _again, (kind, error.what, error.where, error.hint, error.__dict__)

    return type(
        kind.__name__, (kind, dist.DistBackendError), {"__module__": kind.__module__, "__reduce__": reduce}
    )


def _again(kind: type[HpcommError], what: str, where: str | None, hint: str | None, rest: object) -> object:
    made = _both(kind)(what, where, hint)  # type: ignore[arg-type]
    made.__dict__.update(rest)
    return made


def is_unknown() -> bool:
    """Whether this torch is newer than those that the tests have run on."""
    return is_since(_NEWEST[0], _NEWEST[1] + 1)


def is_since(major: int, minor: int) -> bool:
    """Whether this torch is of that version or a later one."""
    import torch  # here: torch, once it is imported, asks for the backend, which needs this module

    return tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (major, minor)


def moved(what: str) -> ConfigError:
    """The error where this torch is not as expected."""
    import torch

    major, minor = _NEWEST
    return ConfigError(
        f"torch {torch.__version__} {what}: its interface for backend 'mpi' has changed",
        "init_process_group",
        f"pip install -U hpcomm, or torch>=2.6,<{major}.{minor + 1}",
    )
