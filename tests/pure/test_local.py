"""Schedules between threads of one process, to 32 of them, bit for bit as the interpreter."""

from __future__ import annotations

import numpy as np
import pytest
from interpreted import interpret_values
from local_threads import run

from hpcomm.schedule.registry import algorithms, build, verbs


@pytest.mark.parametrize("name", algorithms("all_reduce"))
@pytest.mark.parametrize("p", [1, 2, 3, 5, 8, 13, 32])
def test_threads_compute_what_the_interpreter_computes(name: str, p: int) -> None:
    schedule = build("all_reduce", name, p)
    given = [np.random.default_rng(r).normal(size=77) * 10.0 ** (r % 4 * 3) for r in range(p)]
    expected = interpret_values(schedule, given, np.add)
    for x in given:
        x.setflags(write=False)
    for found, want in zip(run(schedule, given), expected, strict=True):
        assert found.tobytes() == want.tobytes()


@pytest.mark.parametrize("verb", [verb for verb in verbs() if verb != "all_reduce"])
def test_every_verb_runs_between_threads(verb: str) -> None:
    for name in algorithms(verb):
        for p in (6, 32):
            schedule = build(verb, name, p)
            given = [np.random.default_rng(r).integers(0, 99, schedule.slots * 5) for r in range(p)]
            expected = interpret_values(schedule, given, np.add)
            for found, want in zip(run(schedule, given), expected, strict=True):
                assert np.array_equal(found, want)
