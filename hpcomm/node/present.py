"""The present call of a thread where it must cost next to nothing: the core notes it (_native/present.c).

    enter(comm, verb, x, peer, tag), leave()    around a message that is one call of MPI;
                 peer of sendrecv: source, dest, the tag that it sends
    present()    by thread: such a message, and the core's own call under way, or None:
                 (comm, verb, x, peer, tag, count), (node, verb, x, operator, root, count)

Without the core messages are noted here. All other calls: core/present.py.
"""

from __future__ import annotations

import os
from itertools import count
from threading import get_ident
from typing import Any

_messages: dict[int, tuple[Any, ...]] = {}
_counts = count()


def _enter(comm: Any, verb: str, x: Any, peer: Any, tag: int | None) -> None:
    _messages[get_ident()] = comm, verb, x, peer, tag, next(_counts)


def _leave() -> None:
    _messages.pop(get_ident(), None)


def _present() -> dict[int, tuple[tuple[Any, ...] | None, tuple[Any, ...] | None]]:
    return {thread: (message, None) for thread, message in [*_messages.items()]}


try:
    if os.environ.get("HPCOMM_NODE") == "off":
        raise ImportError
    from ._native.core import enter as enter
    from ._native.core import leave as leave
    from ._native.core import present as present
except ImportError:
    enter, leave, present = _enter, _leave, _present
