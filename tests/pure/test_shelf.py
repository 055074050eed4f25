"""Slots in shared memory: lent once, given back when nobody looks, refused when there is no more room."""

import gc
import mmap
import os

import numpy as np
import pytest

from hpcomm.shelf import LEAST, SLOTS, Shelves, shelf_bytes, slot_bytes

SLOT = 1 << 20


@pytest.fixture
def two(tmp_path):
    """The same shelves as rank 0 and as rank 1 sees them."""
    file = os.open(tmp_path / "shelves", os.O_RDWR | os.O_CREAT)
    size = 2 * shelf_bytes(SLOT)
    os.ftruncate(file, size)
    yield tuple(Shelves(mmap.mmap(file, size), file, 2, here, SLOT) for here in (0, 1))
    os.close(file)


def block(value, nbytes=LEAST):
    return np.full(nbytes, value, np.uint8).data


def test_a_block_arrives_and_its_slot_serves_again_when_nobody_looks_at_it(two):
    mine, theirs = two
    number = mine.put(block(7))
    got = theirs.take(0, number, LEAST)
    part = np.frombuffer(got, np.uint8)[100:200].view(np.uint16)
    del got
    assert mine.put(block(8)) != number
    np.testing.assert_array_equal(part, 7 * 257)
    del part
    gc.collect()
    assert mine.put(block(9)) == number


def test_a_read_only_look_holds_the_slot_too(two):
    mine, theirs = two
    number = mine.put(block(7))
    seen = memoryview(theirs.take(0, number, LEAST)).toreadonly()
    assert mine.put(block(8)) != number
    assert set(seen) == {7}


def test_both_ranks_fill_their_own_shelf(two):
    one, other = two
    assert (one.put(block(1)), other.put(block(2))) == (0, 0)
    assert set(other.take(0, 0, LEAST)) == {1}
    assert set(one.take(1, 0, LEAST)) == {2}


def test_there_are_so_many_slots_and_a_block_must_fit(two):
    mine, _ = two
    assert mine.put(block(1, SLOT + 1)) == -1
    assert [mine.put(block(1, SLOT)) for _ in range(SLOTS + 1)] == [*range(SLOTS), -1]


def test_without_memory_behind_it_a_slot_is_not_used(two, monkeypatch):
    mine, _ = two

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    assert mine.put(block(1)) == -1
    monkeypatch.undo()
    assert mine.put(block(1)) == 0


def test_what_a_child_looks_at_too_is_never_given_back(two):
    mine, theirs = two
    got = theirs.take(0, mine.put(block(7)), LEAST)
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    del got
    gc.collect()
    assert mine.put(block(8)) == 1


def test_most_of_shared_memory_is_left_to_mpi():
    assert slot_bytes(2, 64 << 20) == 1 << 20  # a container's usual 64 MiB
    assert slot_bytes(2, 32 << 20) == 0
    assert slot_bytes(4, 24 << 30) == 8 << 20
    for ranks in (1, 2, 64, 256, 1000):
        assert slot_bytes(ranks, 1 << 40) * SLOTS * ranks <= 2 << 30
