"""Ranks of a node as forked processes, without MPI: for the tests of the node core."""

from __future__ import annotations

import mmap
import os
import pickle
import signal
import threading
import time
import traceback
from contextlib import suppress

from steady import steady_time

from hpcomm.node._native import core


class RankError(AssertionError):
    """A rank has raised what nobody expected."""


class Told:
    """What ranks tell one another beside the core: a count in memory that forked processes share."""

    def __init__(self):
        self._count = mmap.mmap(-1, 8)

    def tell(self, count=1):
        self._count[0] = count

    def count(self):
        return self._count[0]

    def wait(self, count=1):
        while self.count() != count:
            time.sleep(1e-3)


def waits(node):
    """An event that is set as soon as this rank waits in a call of the node; its hook says nothing."""
    seen = threading.Event()
    node.hook = lambda *_: seen.set()
    return seen


def interrupt_when_it_waits(node, and_then=lambda: True):
    """Ctrl-C for this rank, once, while it waits in a call of the node and and_then() is true."""
    signal.signal(signal.SIGALRM, lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    begun = []

    def hook(reason, who, mine, theirs):
        if reason == "waits" and not begun and and_then():
            begun.append(reason)
            signal.setitimer(signal.ITIMER_REAL, 0.01)
        raising(reason, who, mine, theirs)

    node.hook = hook


def raising(reason, ranks, mine, theirs):
    """The hook of most tests: says what the core says."""
    if reason not in ("waits", "message"):
        raise RuntimeError(f"{reason} {ranks}")


def memory(nbytes=1 << 20):
    """A segment without a name, for this process and those that it forks."""
    segment = core.Segment(nbytes)
    segment.unlink()
    return segment


def start(size, body, nbytes=64 << 20, **options):
    """Forks `size` ranks, each of which calls body(node); their pids, and the pipes of what they return."""
    segment = memory(nbytes)
    place = segment.reserve(size)
    ranks = []
    for rank in range(size):
        reading, writing = os.pipe()
        pid = os.fork()
        if not pid:
            os.close(reading)
            _be(rank, size, segment, place, body, writing, options)
        os.close(writing)
        ranks.append((pid, reading))
    return ranks


def _be(rank, size, segment, place, body, writing, options):
    said = None
    try:
        hook = options.pop("hook", raising)
        later = {
            name: options.pop(name) for name in ("direct_from", "synchronous", "timeout") if name in options
        }
        crowded = size > len(os.sched_getaffinity(0))
        node = core.Node(
            segment, place, rank, hook, **{"spins": 0 if crowded else 2000, "direct": True, **options}
        )
        for name, value in later.items():
            setattr(node, name, value)
        said = (True, body(node))
        node.close()
    except BaseException:
        said = (False, traceback.format_exc())
    finally:
        with os.fdopen(writing, "wb") as pipe:
            pickle.dump(said, pipe)
        os._exit(0)


def end(ranks, timeout=30.0):
    """What each rank has returned; None: it was killed. No rank stays behind."""
    try:
        return _ended(ranks, timeout)
    except RankError:
        for pid, _ in ranks:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        raise


def _ended(ranks, timeout):
    results = []
    deadline = steady_time() + timeout
    for rank, (pid, reading) in enumerate(ranks):
        while not os.waitpid(pid, os.WNOHANG)[0]:
            if steady_time() > deadline:
                raise RankError(f"rank {rank} hangs")
            time.sleep(0.002)
        with os.fdopen(reading, "rb") as pipe:
            said = pipe.read()
        if not said:
            results.append(None)
            continue
        fine, result = pickle.loads(said)
        if not fine:
            raise RankError(f"rank {rank}:\n{result}")
        results.append(result)
    return results


def forked(body):
    """Whether body() has ended well in a child of this process."""
    child = os.fork()
    if not child:
        status = 1
        try:
            body()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    return os.waitpid(child, 0)[1] == 0


def together(size, body, **options):
    """body(node) on `size` ranks; what they return."""
    return end(start(size, body, **options))
