"""Calls in the background by the node core, from Python: their queue, its end, and errors in it."""

import time

import numpy as np
import pytest

core = pytest.importorskip("hpcomm.node._native.core")
pytestmark = pytest.mark.once

import ranks  # noqa: E402

from hpcomm.core.signature import head  # noqa: E402

core.know_numpy(np)
SUM, SPREAD, MEET = head("all_reduce"), head("broadcast"), head("barrier")
SHORT, LONG = 4, 20_000  # elements


told = ranks.Told()


def begin(node, n, value=1.0):
    return node.begin(SUM, np.full(n, value), "sum", None, None, None)


@pytest.mark.parametrize(
    "lengths", [[SHORT] * 10, [LONG] * 3, [SHORT, LONG, LONG, SHORT, SHORT, LONG, SHORT]]
)
@pytest.mark.parametrize("p", [2, 3])
def test_calls_are_begun_at_once_and_end_in_any_order_of_waiting(p, lengths):
    def body(node):
        under_way = [begin(node, n, node.rank + i) for i, n in enumerate(lengths)]
        if node.rank == 0:  # the last one first, and so all of them
            assert not under_way[0].over
            under_way[-1].Wait()
            assert all(each.over for each in under_way)
        for i, each in enumerate(under_way):
            while not each.Test():
                time.sleep(0)
            np.testing.assert_array_equal(each.result, np.full(lengths[i], sum(range(p)) + p * i))

    ranks.together(p, body)


def test_a_rank_that_has_brought_its_data_is_not_needed_any_more():
    told.tell(0)

    def body(node):
        if node.rank == 1:
            node.begin(SPREAD, np.arange(3.0), None, 1, None, None)
            under_way = [begin(node, SHORT, 5.0) for _ in range(3)]
            assert not any(each.moves for each in under_way)
            assert begin(node, SHORT).moves  # one too many: it has not come to it
            told.wait(1)
        else:
            spread = node.begin(SPREAD, np.zeros(3), None, 1, None, None)
            under_way = [begin(node, SHORT, 2.0) for _ in range(3)]
            for each in (spread, *under_way):
                each.Wait()
            assert spread.result.tolist() == [0, 1, 2]
            assert under_way[2].result.tolist() == [7.0] * SHORT
            told.tell(1)
            begin(node, SHORT)
        node.barrier()

    ranks.together(2, body)


def test_a_blocking_call_first_ends_what_is_queued():
    def body(node):
        under_way = [begin(node, n) for n in (SHORT, LONG, SHORT)]
        node.begin(MEET, None, None, None, None, None)
        assert node.all_reduce(np.ones(2), "max").tolist() == [1, 1]
        assert all(each.over and each.result[0] == 3 for each in under_way)

    ranks.together(3, body)


@pytest.mark.parametrize("n", [SHORT, LONG])
def test_ranks_that_begin_different_calls_hear_of_it_and_go_on(n):
    def body(node):
        before = begin(node, SHORT)
        with pytest.raises(RuntimeError, match="mismatch"):  # the later one hears at once
            begin(node, n + node.rank).Wait()
        behind = begin(node, SHORT)
        before.Wait()
        behind.Wait()
        assert behind.result[0] == 2
        node.barrier()

    ranks.together(2, body)


def test_a_call_stays_in_the_queue_after_a_handler_that_raises():
    raised = []
    told.tell(0)

    def hook(reason, who, mine, theirs):
        if reason == "waits" and not raised:
            raised.append(who)
            raise KeyboardInterrupt

    def body(node):
        if node.rank == 0:
            for count, n in ((1, SHORT), (2, LONG)):
                raised.clear()
                going = begin(node, n)
                with pytest.raises(KeyboardInterrupt):
                    going.Wait()
                assert not going.over
                told.tell(count)
                going.Wait()
                assert going.result[0] == 2
        else:
            raised.append(None)
            for count, n in ((1, SHORT), (2, LONG)):
                told.wait(count)
                assert begin(node, n).Wait()
        node.barrier()

    ranks.together(2, body, hook=hook)


def test_what_the_core_does_not_take_is_not_begun():
    def body(node):
        assert node.begin(SUM, np.ones(6)[::2], "sum", None, None, None) is NotImplemented
        assert node.begin(SUM, [1.0], "sum", None, None, None) is NotImplemented
        with pytest.raises(TypeError, match="begin takes"):
            node.begin(SUM)
        assert begin(node, SHORT).Wait()

    ranks.together(2, body)
