"""Memory that objects are received into is used again, but never while somebody still looks at it."""

import threading

import numpy as np

from hpcomm.communicator.payloads import payload

NBYTES = 1 << 20


def place(view):
    return np.frombuffer(view, np.uint8).ctypes.data


def test_memory_is_used_again_only_when_nobody_looks_at_it():
    first = payload.pooled(NBYTES)
    array = np.frombuffer(first, np.float64)[3:5]  # holds the memory by its base alone
    was = place(first)
    del first
    assert place(payload.pooled(NBYTES)) != was
    del array
    assert place(payload.pooled(NBYTES)) == was


def test_threads_never_get_the_same_memory():
    gate = threading.Barrier(4)
    got = []

    def take():
        for _ in range(200):
            gate.wait()
            mine = payload.pooled(NBYTES)
            got.append(place(mine))
            gate.wait()
            assert got[-4:].count(place(mine)) == 1
            gate.wait()
            del mine

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(got) == 800
    assert all(len(set(got[i : i + 4])) == 4 for i in range(0, 800, 4))
