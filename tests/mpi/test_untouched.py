"""No call changes the arrays it is given in any attribute, nor holds them once it is over.

For the collectives see contract.py.
"""

from __future__ import annotations

import array as stdlib_array
import gc
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from arrays import attributes, settled

KINDS: dict[str, Callable[[int], Any]] = {
    "numpy": lambda n: np.ones((n, 3)),
    "sliced": lambda n: np.ones((n, 6))[:, ::2],
    "torch": lambda n: torch.ones(n, 3),
    "half": lambda n: torch.ones(n, 3, dtype=torch.bfloat16),
    "transposed": lambda n: torch.ones(3, n).t(),
    "leaf": lambda n: torch.ones(n, 3, requires_grad=True),
    "long": lambda n: torch.ones(n * 100_000),
    "array": lambda n: stdlib_array.array("d", [1.0] * n),
}


def ring(comm: Any) -> tuple[int, int]:
    return (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size


def messages(comm: Any, x: Any, y: Any) -> None:
    right, left = ring(comm)
    comm.sendrecv(x, right, source=left, out=y)
    coming, going = comm.irecv(y, left), comm.isend(x, right)
    coming.wait()
    going.wait()


def in_turn(comm: Any, x: Any, y: Any) -> None:
    if comm.rank == 0 and comm.size > 1:
        comm.send(x, 1)
    elif comm.rank == 1:
        comm.recv(y, 0)


def planned(comm: Any, x: Any, y: Any) -> None:
    with comm.plan("all_reduce", x, out=y) as step:
        step()


def neighbours(comm: Any, x: Any, y: Any) -> None:
    with comm.cart((-1,)) as line:
        line.neighbour_all_gather(x)


def all_over_rounds(comm: Any, x: Any, y: Any) -> None:
    comm.all_reduce(x, out=y, algorithm="ring")
    comm.all_reduce(x, lambda a, b: a, out=y)
    comm.all_reduce(x, out=y, async_op=True).wait()


CALLS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "messages": messages,
    "send and recv": in_turn,
    "objects": lambda comm, x, y: comm.all_gather_object({"x": x, "y": [y]}),
    "ragged": lambda comm, x, y: [comm.all_gather_ragged(x), comm.all_to_all_ragged([x] * comm.size)],
    "ragged broadcast": lambda comm, x, y: comm.broadcast_ragged(x, root=0),
    "neighbours": neighbours,
    "algorithms": all_over_rounds,
}


@pytest.mark.parametrize("kind", KINDS)
def test_no_call_changes_its_arrays_but_in_their_elements(comm: Any, kind: str) -> None:
    wrong = []
    for name, call in CALLS.items():
        x, y = KINDS[kind](comm.size), KINDS[kind](comm.size)
        if kind == "leaf":
            y = y.detach()
        before = attributes(x), attributes(y)
        with torch.no_grad():
            call(comm, x, y)
        wrong += [f"{name}: {line}" for line in settled(before[0], lambda: attributes(x))]  # noqa: B023
        wrong += [f"{name}, filled: {line}" for line in settled(before[1], lambda: attributes(y))]  # noqa: B023
    assert wrong == []


def test_no_plan_changes_its_arrays_but_in_their_elements(comm: Any) -> None:
    given = {
        kind: [make(comm.size), make(comm.size).detach() if kind == "leaf" else make(comm.size)]
        for kind, make in KINDS.items()
    }
    before = {kind: looks(arrays) for kind, arrays in given.items()}
    for x, y in given.values():
        with torch.no_grad():
            planned(comm, x, y)
    del x, y
    gc.collect()  # a plan's own functions hold it
    found = {kind: settled(before[kind], partial(looks, arrays)) for kind, arrays in given.items()}
    assert {kind: lines for kind, lines in found.items() if lines} == {}


def looks(arrays: list[Any]) -> dict[str, Any]:
    """The attributes of several arrays, as those of one."""
    found = [attributes(x) for x in arrays]
    return {f"{i} {name}": value for i, each in enumerate(found) for name, value in each.items()}
