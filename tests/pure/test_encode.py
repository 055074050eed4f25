"""One pickler serves many objects: none sees what another one left."""

import copyreg
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcomm.communicator.payloads.payload import Opened, cut, headed
from hpcomm.communicator.payloads.pickling import decode, encode
from hpcomm.core.limits import EAGER_OBJECT
from hpcomm.errors import UsageError


def back(obj):
    return decode(encode(obj))


def test_an_object_may_come_again_changed():
    shared = [1]
    assert back([shared, shared]) == [[1], [1]]
    shared.append(np.arange(1000))
    (first, array), second = back([shared, shared])
    assert first == 1
    assert second == [1, array]
    np.testing.assert_array_equal(array, np.arange(1000))


def test_what_cannot_be_pickled_leaves_nothing_behind():
    for _ in range(2):
        with pytest.raises(UsageError, match="a list cannot be pickled"):
            encode([np.zeros(1000), lambda: None])
        assert back("after") == "after"


def test_whatever_an_object_raises_when_it_is_pickled_is_an_error_of_ours():
    """Others wait for it, and are told only of those."""

    class Broken:
        def __reduce__(self):
            raise ValueError("not this one")

    with pytest.raises(UsageError, match="a Broken cannot be pickled: not this one"):
        encode(Broken())


def test_an_object_may_be_wrapped_while_another_one_is():
    class Outer:
        def __reduce__(self):
            return len, (bytes(encode(["inside"] * 3)[0]),)

    assert back(["before", Outer(), "behind"]) == ["before", len(encode(["inside"] * 3)[0]), "behind"]


class Late:
    pass


def test_a_way_that_is_registered_later_counts(monkeypatch):
    back(1)
    monkeypatch.setattr(copyreg, "dispatch_table", dict(copyreg.dispatch_table))
    copyreg.pickle(Late, lambda late: (str, ("one way",)))
    assert back(Late()) == "one way"
    copyreg.pickle(Late, lambda late: (str, ("another",)))
    assert back(Late()) == "another"


def test_threads_wrap_at_once():
    def many(start):
        return all(back([i, np.full(400, i), {i}])[1][0] == i for i in range(start, start + 300))

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(many, range(0, 8000, 1000)))


@given(st.lists(st.binary(max_size=300), min_size=1, max_size=40), st.sampled_from([128, 256, 1024, None]))
def test_blocks_of_any_lengths_come_as_they_were_whatever_fits_into_the_header(blocks, nbytes):
    """None: the header of a message, which is as long as need be. Of many blocks the lengths do not fit."""
    made = headed([*map(memoryview, blocks)], nbytes or EAGER_OBJECT, nbytes is not None)
    assert nbytes in (None, len(made.header))
    got = Opened(made.header, lambda length: memoryview(bytearray(length)))
    parts = made.parts
    assert (made.tag >= 0) == (got.tag >= 0) == any(part.nbytes for part in parts)
    if (lengths := got.lengths_to_come()) is not None:
        lengths[:] = parts.pop(0)
        got.take_lengths(lengths)
    assert bool(lengths) == bool(made.lengths)
    for place, part in zip(cut(got.to_come), parts, strict=True):
        place[:] = part
    assert [bytes(block) for block in got.blocks] == blocks
