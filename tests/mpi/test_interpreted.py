"""Every own algorithm over MPI gives bit for bit what the interpreter computes. Also on five ranks.

Nothing here loads torch: what it would take to load that on five ranks is more than these tests take.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from interpreted import interpret_values

from hpcomm.core.verbs import ROOTED
from hpcomm.schedule.registry import algorithms, build, parameters, verbs
from hpcomm.schedule.stream import Schedule

MOVING = [verb for verb in verbs() if verb != "barrier"]
COUNTS = (0, 1, 2, 7, 1000)


def shape(verb: str, p: int, n: int) -> tuple[int, ...]:
    return (p, n) if verb in ("scatter", "reduce_scatter", "all_to_all") else (n,)


def given(verb: str, rank: int, p: int, n: int) -> np.ndarray:
    """Numbers whose sums depend on the order in which they are added."""
    return np.random.default_rng([rank, n]).normal(size=shape(verb, p, n)) * 10.0 ** (rank % 3 * 5)


def memory(schedule: Schedule, x: np.ndarray, rank: int) -> np.ndarray:
    """What the rank's memory holds at first."""
    n = x.size // (schedule.size if x.ndim == 2 else 1)
    work = np.zeros(schedule.slots * n)
    if schedule.verb in ("all_gather", "gather"):
        work[rank * n : (rank + 1) * n] = x
    else:
        work[: x.size] = x.reshape(-1)
    return work


def result(schedule: Schedule, work: np.ndarray, rank: int) -> np.ndarray:
    n = work.size // schedule.slots
    if schedule.verb in ("scatter", "reduce_scatter"):
        return work[rank * n : (rank + 1) * n]
    return work[schedule.size * n :] if schedule.verb == "all_to_all" else work


@pytest.mark.parametrize("verb", MOVING)
def test_every_algorithm_gives_bit_for_bit_what_the_interpreter_computes(comm: Any, verb: str) -> None:
    wrong = []
    p = comm.size
    for name in algorithms(verb):
        for n in COUNTS:
            for root in range(p) if verb in ROOTED else (0,):
                x = given(verb, comm.rank, p, n)
                keywords = {"root": root} if verb in ROOTED else {}
                found = getattr(comm, verb)(x, algorithm=name, **keywords)
                schedule = build(
                    verb, f"{name}:chunks=2" if "chunks" in _takes(verb, name) else name, p, root
                )
                inputs = [memory(schedule, given(verb, r, p, n), r) for r in range(p)]
                if n:
                    expected = result(
                        schedule, interpret_values(schedule, inputs, np.add)[comm.rank], comm.rank
                    )
                else:
                    expected = np.zeros(0)
                holds = (
                    comm.rank == root
                    if verb in ("reduce", "gather")
                    else not (verb == "exscan" and comm.rank == 0)
                )
                if (found is not None) != holds and verb != "exscan":
                    wrong.append((name, n, root, "who gets a result"))
                if holds and found.reshape(-1).tobytes() != expected.tobytes():
                    wrong.append((name, n, root, found, expected))
                background = getattr(comm, verb)(x, algorithm=name, async_op=True, **keywords).wait(
                    timeout=60
                )
                if holds and background.tobytes() != found.tobytes():
                    wrong.append((name, n, root, "in the background"))
    assert wrong == []


def _takes(verb: str, name: str) -> list[str]:
    return parameters(verb, name) if name in ("double_tree", "ring") and verb != "scan" else []
