"""What a thread may read of a call in another one."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from hpcomm.agree.call_stack import names_of


class Ends:
    """Notes what runs when it ends."""

    def __init__(self, seen: list[bool]) -> None:
        self.seen = seen

    def __del__(self) -> None:
        self.seen.append("names" in sys._getframe(1).f_locals)


def call(seen: list[bool]) -> Iterator[None]:
    for _ in range(3):
        x = Ends(seen)  # noqa: F841
        yield


@pytest.mark.skipif(sys.version_info >= (3, 13), reason="a frame has no dict of its variables any more")
def test_what_one_look_at_a_frame_found_ends_after_the_next_look_not_in_it() -> None:
    """In it the frame's own thread could run on and leave the frame, whose memory Python still reads."""
    seen: list[bool] = []
    running = call(seen)
    next(running)
    frame = running.gi_frame
    for _ in range(2):
        assert isinstance(names_of(frame)["x"], Ends)
        next(running)
        assert not seen
        assert set(names_of(frame)) == {"seen", "_", "x"}
        assert seen.pop()
