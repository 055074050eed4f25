"""Planner: plans fields for the other programs of a job, and saves them, where none of them is in Python.

In a spec:

    [program.planner]
    command = "python -m hpcomm.mpmd.planner"
    ranks = 1
"""

from __future__ import annotations

import os
import time

from .guest import GuestContext
from .join import NAME, join
from .restart import Restart

_PAUSE_S = 0.05


def main() -> None:
    """Plan with the others, and save and restore for them until they have ended."""
    me = join(os.environ.get(NAME, "planner"))
    me.connect()
    links = [link for peer in me.peers if (link := me.link(peer)).couples]
    shared = {link.peer: link.context for link in links}
    guests = [link for link in shared.values() if isinstance(link, GuestContext)]
    is_over = False
    while not is_over:
        time.sleep(_PAUSE_S)
        ended = all(len(link.ended()) == link.size for link in links)
        asks = any(link.is_asking() for link in guests)
        asks, is_over = me.comm.broadcast_object((asks, ended and not asks))  # as the first rank sees it
        if asks:
            Restart(me.comm, shared, guests[0].clock).serve()


if __name__ == "__main__":
    main()
