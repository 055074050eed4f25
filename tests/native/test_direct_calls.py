"""Long calls in which ranks reach one another's arrays: who leaves one or is wrong, what others get then."""

import os
import signal
import sys
import threading
import time

import numpy as np
import pytest

core = pytest.importorskip("hpcomm.node._native.core")
pytestmark = pytest.mark.once

import ranks  # noqa: E402

core.know_numpy(np)


def test_what_was_read_of_a_rank_that_has_left_meanwhile_is_given_to_nobody():
    def hook(reason, who, mine, theirs):
        if reason != "waits":
            time.sleep(0.1)  # it takes its time to say that the call fails
            raise RuntimeError(reason)

    stands = ranks.Told()

    def body(node):
        x, out = np.full(30_000, node.rank + 1.0), np.zeros(30_000)

        def call():  # nobody writes to the rank that leaves
            node.reduce(x, "sum", 2, out if node.rank == 2 else None)

        call()
        right = out.copy()
        slow = int(node.broadcast(np.array([os.getpid()]), 1)[0])
        if node.rank == 0:
            ranks.interrupt_when_it_waits(node, stands.count)
            with pytest.raises(KeyboardInterrupt):
                call()
            x[:] = 1000  # it is the program's again
            os.kill(slow, signal.SIGCONT)
            return None
        if node.rank == 2:
            while node.calls()[1][0] < 3:
                time.sleep(1e-3)
            os.kill(slow, signal.SIGSTOP)  # it has come, and has read nothing yet
            stands.tell()
        try:
            call()
        except RuntimeError as error:
            return str(error)
        np.testing.assert_array_equal(out, right)
        return None

    assert ranks.together(3, body, direct_from=0, hook=hook)[1] == "gave up"


def test_only_the_array_that_others_may_write_to_is_kept_and_only_once():
    ended = ranks.Told()

    def body(node):
        x, out = np.ones(30_000), np.ones(30_000)
        node.all_reduce(x, "sum", out)
        if node.rank:
            ended.wait()
            with pytest.raises(RuntimeError, match="gave up"):
                node.all_reduce(x, "sum", out)
            return None
        held = sys.getrefcount(x), sys.getrefcount(out)
        ranks.interrupt_when_it_waits(node)
        with pytest.raises(KeyboardInterrupt):
            node.all_reduce(x, "sum", out)
        ended.tell()
        node.close()
        with pytest.raises(ValueError, match="closed"):
            node.all_reduce(x, "sum", out)
        assert (sys.getrefcount(x), sys.getrefcount(out)) == (held[0], held[1] + 1)
        return None

    ranks.together(2, body, direct_from=0)


def test_nobody_writes_behind_a_shorter_array_where_signatures_are_not_compared():
    def body(node):
        n = 40_000 if node.rank else 30_000
        memory = np.full(40_000, 7.0)
        with pytest.raises(RuntimeError, match="mismatch"):
            node.all_reduce(np.ones(n), "sum", memory[:n])
        node.barrier()
        assert (memory[n:] == 7).all()

    ranks.together(2, body, direct_from=0, checks=False)


@pytest.mark.parametrize("direct_from", [0, 1 << 60])
def test_long_calls_of_two_verbs_are_a_mismatch_where_signatures_are_not_compared(direct_from):
    def body(node):
        n = 60_000
        memory = np.zeros(2 * n, np.uint8)
        call = node.gather if node.rank else node.broadcast
        with pytest.raises(RuntimeError, match="mismatch"):
            call(np.full(n, 7, np.uint8) if node.rank else memory[:n], 0)
        node.barrier()
        assert not memory.any()

    ranks.together(2, body, direct_from=direct_from, checks=False)


def test_whoever_is_still_in_a_call_hears_that_it_was_given_up_though_others_are_two_calls_ahead():
    n = 8 << 20
    stands, first = [], []  # whether rank 1 stands still; how the first long call ended, where it has

    def hook(reason, who, mine, theirs):
        if reason != "waits":
            raise RuntimeError(reason)
        if who == (1,) and stands and not first:
            raise KeyboardInterrupt

    def body(node):
        slow = int(node.broadcast(np.array([os.getpid()]), 1)[0])
        x, out = np.arange(n) + 1.0, np.zeros(n)
        node.all_reduce(out, "sum", out)  # reserves pieces: whoever is stopped meanwhile has not come
        node.barrier()
        if node.rank == 0:
            stopping = threading.Timer(0.01, lambda: stands.append(os.kill(slow, signal.SIGSTOP)))
            going_on = threading.Timer(0.6, os.kill, (slow, signal.SIGCONT))
            stopping.start(), going_on.start()
        try:
            node.all_reduce(x, "sum", out)
            first.append("right" if (out == 2 * x).all() else "wrong")
        except (KeyboardInterrupt, RuntimeError) as error:
            first.append(str(error) or "interrupted")
        node.broadcast(np.zeros(4), 0)  # its root waits for nobody
        again = np.zeros(n)
        node.all_reduce(-x, "sum", again)
        assert (again == -2 * x).all()
        return first[0]

    said = ranks.together(2, body, nbytes=256 << 20, spins=0, hook=hook)
    assert said in (["interrupted", "gave up"], ["interrupted", "right"], ["right", "right"]), said


@pytest.mark.parametrize(("code", "nan"), [(10, 0x7C01), (11, 0x7F81)], ids=["float16", "bfloat16"])
def test_a_half_that_is_not_a_number_has_the_same_bits_in_short_scans_and_in_long_ones(code, nan):
    def body(node):
        x, short = np.full(20_000, nan, np.uint16), slice(0, 1000)
        for verb in (node.scan, node.exscan):
            np.testing.assert_array_equal(
                verb(x, "sum", None, code)[short], verb(x[short], "sum", None, code)
            )

    ranks.together(3, body)
