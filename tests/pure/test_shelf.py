"""Slots in shared memory: lent once, given back when nobody looks, refused when there is no more room."""

import gc
import mmap
import os
import threading

import numpy as np
import pytest

from hpcomm.core.limits import BLOCK_LEAST
from hpcomm.errors import PeerFailedError
from hpcomm.node import blocks
from hpcomm.node.blocks import SLOTS, BlockPool, shelf_bytes, slot_bytes

SLOT = 1 << 20


@pytest.fixture
def two(tmp_path):
    """The same shelves as rank 0 and as rank 1 sees them."""
    file = os.open(tmp_path / "shelves", os.O_RDWR | os.O_CREAT)
    size = 2 * shelf_bytes(SLOT)
    os.ftruncate(file, size)
    yield tuple(BlockPool(mmap.mmap(file, size), file, 2, here, SLOT) for here in (0, 1))
    os.close(file)


def block(value, nbytes=BLOCK_LEAST, line=0):
    """Bytes of one value that begin so far from the beginning of a cache line."""
    room = np.empty(nbytes + 128, np.uint8)
    room = room[(line - room.ctypes.data) % 64 :][:nbytes]
    room[:] = value
    return room.data


def put(shelves, what):
    number = shelves.lend(what)
    if number >= 0:
        shelves.fill(number, what)
    return number


def test_a_block_arrives_and_its_slot_serves_again_when_nobody_looks_at_it(two):
    mine, theirs = two
    number = put(mine, block(7))
    got = theirs.take(0, number, BLOCK_LEAST)
    part = np.frombuffer(got, np.uint8)[100:200].view(np.uint16)
    del got
    assert put(mine, block(8)) != number
    np.testing.assert_array_equal(part, 7 * 257)
    del part
    gc.collect()
    assert put(mine, block(9)) == number


def test_a_read_only_look_holds_the_slot_too(two):
    mine, theirs = two
    number = put(mine, block(7))
    seen = memoryview(theirs.take(0, number, BLOCK_LEAST)).toreadonly()
    assert put(mine, block(8)) != number
    assert set(seen) == {7}


def test_both_ranks_fill_their_own_shelf(two):
    one, other = two
    assert (put(one, block(1)), put(other, block(2))) == (0, 0)
    assert set(other.take(0, 0, BLOCK_LEAST)) == {1}
    assert set(one.take(1, 0, BLOCK_LEAST)) == {2}


def test_there_are_so_many_slots_and_a_block_must_fit(two, monkeypatch):
    mine, _ = two
    monkeypatch.setattr(blocks, "_NEAR", 0.0)
    assert put(mine, block(1, SLOT + 1)) == -1
    assert [put(mine, block(1, SLOT)) for _ in range(SLOTS + 1)] == [*range(SLOTS), -1]


@pytest.mark.parametrize("line", [0, 3, 16, 40, 63])
@pytest.mark.parametrize("is_near", [True, False])
def test_a_block_stands_to_cache_lines_as_in_its_own_memory_or_beside_that(two, monkeypatch, line, is_near):
    """In steps of 16 bytes, so that elements of any type may be read there, and a whole slot may be full."""
    mine, theirs = two
    monkeypatch.setattr(blocks, "_NEAR", 0.0 if is_near else np.inf)
    put(mine, block(99, SLOT))  # and dropped at once
    theirs.take(0, 0, SLOT)
    places = [put(mine, block(value, SLOT, line)) for value in range(SLOTS)]
    assert [place % SLOTS for place in places] == [*range(SLOTS)]
    got = [np.frombuffer(theirs.take(0, place, SLOT), np.uint8) for place in places]
    assert {each.ctypes.data % 64 for each in got} == {(line // 16 * 16 + 16 * (not is_near)) % 64}
    assert [set(each) for each in got] == [{value} for value in range(SLOTS)]


def test_without_memory_behind_it_a_slot_is_not_used(two, monkeypatch):
    mine, _ = two

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    assert put(mine, block(1)) == -1
    monkeypatch.undo()
    assert put(mine, block(1)) == 0


def test_what_a_child_looks_at_too_is_never_given_back(two):
    mine, theirs = two
    got = theirs.take(0, put(mine, block(7)), BLOCK_LEAST)
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    del got
    gc.collect()
    assert put(mine, block(8)) == 1


def test_a_borrower_waits_until_a_slot_is_filled(two):
    mine, theirs = two
    number = mine.lend(block(7))
    got = theirs.take(0, number, BLOCK_LEAST)
    later = threading.Timer(0.05, mine.fill, (number, block(7)))
    later.start()
    theirs.wait(0, number)
    assert set(got) == {7}
    later.join()


def test_who_is_stopped_while_filling_a_slot_says_so(two, monkeypatch):
    mine, theirs = two
    number = mine.lend(block(7))
    theirs.take(0, number, BLOCK_LEAST)

    def interrupted(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(blocks.np, "copyto", interrupted)
        with pytest.raises(KeyboardInterrupt):
            mine.fill(number, block(7))
    with pytest.raises(PeerFailedError, match="the sender was stopped while it copied its array"):
        theirs.wait(0, number)


def test_nobody_waits_for_a_slot_whose_owner_has_ended(two, monkeypatch):
    mine, theirs = two
    number = mine.lend(block(7))
    monkeypatch.setattr(theirs, "_gone", lambda owner: owner == 0)
    monkeypatch.setattr("hpcomm.node.blocks.BLOCK_CHECK_S", 0.0)
    with pytest.raises(PeerFailedError):
        theirs.wait(0, number)


def test_a_slot_that_is_dropped_before_it_is_full_is_not_lent_again_meanwhile(two):
    mine, theirs = two
    number = mine.lend(block(7))
    theirs.take(0, number, BLOCK_LEAST)  # and dropped at once
    gc.collect()
    assert mine.lend(block(7)) != number


def test_most_of_shared_memory_is_left_to_mpi():
    assert slot_bytes(2, 64 << 20) == 1 << 20  # a container's usual 64 MiB
    assert slot_bytes(2, 32 << 20) == 0
    assert slot_bytes(4, 24 << 30) == 8 << 20
    for ranks in (1, 2, 64, 256, 1000):
        assert slot_bytes(ranks, 1 << 40) * SLOTS * ranks <= 2 << 30
