"""algorithms_demo says how sure it is, and predicts nothing where the model fails or times are unsteady."""

from __future__ import annotations

from typing import Any

import pytest

from hpcomm.apps.algorithms_demo import CHECKS, Model, Timed, doubts, fitted, rows_of, told
from hpcomm.machine import machine
from hpcomm.schedule.registry import algorithms

NBYTES, P = 1 << 18, 4
NAMES = [("all_reduce", name) for name in algorithms("all_reduce")] + [*CHECKS[1:], ("barrier", "tree")]


def of_model(model: Model, spread: float = 0.05) -> tuple[dict[Any, Timed], dict[Any, float]]:
    """Times of a machine that is as the model has it, and what the model says of them."""
    room = 5 * NBYTES  # x and p blocks
    fit = {
        "copy": model.copy * 4 * NBYTES,
        "reduce": model.machine.reduce_per_byte * NBYTES,
        "short": model.predict("broadcast", "tree", P, 1, 0),
        "longer": model.predict("broadcast", "scatter_ring", P, 1, 0),
        "large": model.predict("all_gather", "ring", P, NBYTES, room),
        "barrier": model.predict("barrier", "bruck", P, 1, 0),
    }
    predicted = {name: model.predict(*name, P, 1 if name[0] == "barrier" else NBYTES, room) for name in NAMES}
    times = {name: Timed(seconds, spread) for name, seconds in predicted.items()}
    return {**times, **{("fit", name): Timed(seconds, spread) for name, seconds in fit.items()}}, predicted


@pytest.fixture
def model() -> Model:
    from dataclasses import replace

    on = replace(machine("cluster"), base=2e-5, reduce_per_byte=1e-10, per_byte=(4e-10,) * 3)
    return Model(on, 1e-10, 5e-6)


def test_the_model_that_is_fitted_is_the_one_that_the_times_come_from(model: Model) -> None:
    times, predicted = of_model(model)
    found = fitted(times, P, NBYTES)
    again = {
        name: found.predict(*name, P, 1 if name[0] == "barrier" else NBYTES, 5 * NBYTES) for name in NAMES
    }
    assert again == {name: pytest.approx(seconds, rel=0.1) for name, seconds in predicted.items()}
    assert doubts(times, again, 1) == []
    rows = rows_of(times, again, P, sure=True)
    assert all(row[-1] is not None for row in rows)
    assert f"{len(rows)} predictions: off by" in told(rows, [])


def test_nothing_is_predicted_where_the_model_fails_on_calls_it_was_not_fitted_to(model: Model) -> None:
    times, predicted = of_model(model)
    times["all_gather", "tree"] = Timed(times["all_gather", "tree"].seconds * 2, 0.05)
    (why,) = doubts(times, predicted, 1)
    assert why == "the model is off by -50% on all_gather by tree"
    rows = rows_of(times, predicted, P, sure=False)
    assert all(row[-2:] == [None, None] for row in rows)
    assert told(rows, [why]).splitlines() == ["No predictions:", f"  {why}"]


def test_nothing_is_predicted_where_times_are_unsteady(model: Model) -> None:
    times, predicted = of_model(model, spread=0.6)
    assert doubts(times, predicted, 1) == ["the same call differs by 60% from pass to pass"]
    times, predicted = of_model(model)
    (why,) = doubts(times, predicted, 10000)
    assert why.startswith("10000 ranks share ")
    times["all_reduce", "tree"] = Timed(times["all_reduce", "tree"].seconds, 0.6)  # one alone
    assert doubts(times, predicted, 1) == []
    rows = rows_of(times, predicted, P, sure=True)
    assert [row[1] for row in rows if row[-1] is None] == ["tree"]
