"""What any transport must do: every collective as its definition says, on every array.

A transport passes when a test class that inherits from Contract passes with a `comm` fixture over it.
Definitions are plain numpy over what all ranks gave, which every rank can compute from seeds.
"""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, reduce
from typing import Any

import numpy as np
import pytest
import torch
from arrays import (
    DTYPES,
    INPUT_ONLY,
    KINDS,
    LAYOUTS,
    ONE_AXIS,
    attributes,
    bits,
    dtype_of,
    exists,
    kind_of,
    make,
    plain_of,
    plain_values,
    settled,
    shape_of,
)

import hpcomm

Given = list[np.ndarray]


@dataclass(frozen=True)
class Verb:
    """One collective and its definition.

    expected: (what all ranks gave, rank, root) -> what rank gets, or None
    stacked: x is (p, *block); same_shape: the result has x's shape, so that out=x makes sense
    rooted: takes root=; from_root: only root's x counts, the others' is a template
    """

    name: str
    expected: Callable[[Given, int, int], np.ndarray | None]
    stacked: bool = False
    same_shape: bool = False
    rooted: bool = False
    from_root: bool = False
    reduces: bool = False

    def __str__(self) -> str:
        return self.name


def folded(given: Sequence[np.ndarray]) -> np.ndarray:
    """The sum over the ranks as the dtype has it: of truth values, whether any is true."""
    if given[0].dtype == bool:
        return reduce(np.logical_or, given)
    return np.asarray(reduce(np.add, given))


def zero_like(x: np.ndarray) -> np.ndarray:
    return np.zeros_like(x)


VERBS = (
    Verb("broadcast", lambda given, rank, root: given[root], same_shape=True, rooted=True, from_root=True),
    Verb(
        "reduce",
        lambda given, rank, root: folded(given) if rank == root else None,
        same_shape=True,
        rooted=True,
        reduces=True,
    ),
    Verb("all_reduce", lambda given, rank, root: folded(given), same_shape=True, reduces=True),
    Verb("gather", lambda given, rank, root: np.stack(given) if rank == root else None, rooted=True),
    Verb("all_gather", lambda given, rank, root: np.stack(given)),
    Verb("scatter", lambda given, rank, root: given[root][rank], stacked=True, rooted=True, from_root=True),
    Verb("reduce_scatter", lambda given, rank, root: folded(given)[rank], stacked=True, reduces=True),
    Verb(
        "all_to_all",
        lambda given, rank, root: np.stack([x[rank] for x in given]),
        stacked=True,
        same_shape=True,
    ),
    Verb("scan", lambda given, rank, root: folded(given[: rank + 1]), same_shape=True, reduces=True),
    Verb(
        "exscan",
        lambda given, rank, root: folded(given[:rank]) if rank else zero_like(given[0]),
        same_shape=True,
        reduces=True,
    ),
)
BY_NAME = {verb.name: verb for verb in VERBS}
OUTS = ("no out", "out", "out=x")
TIMES = ("blocking", "async")

Case = tuple[Verb, str, str, str, str, str]  # verb, kind, layout, dtype, out, time


def makes_sense(case: Case) -> bool:
    verb, kind, layout, dtype, out, _ = case
    if not exists(kind, dtype, layout):
        return False
    if out == "out=x" and (not verb.same_shape or layout in INPUT_ONLY):
        return False
    if verb.stacked and kind in ONE_AXIS and layout == "empty":
        return False  # no first axis of p without a shape
    return not (verb.stacked and layout == "transposed" and kind == "dlpack")  # the suite cannot build it


@lru_cache(maxsize=1)
def cases() -> list[Case]:
    """Every (verb, kind, layout, out) and every pair of anything else at least once; alike on all ranks."""
    names = sorted(itertools.product(range(len(VERBS)), KINDS, LAYOUTS, DTYPES, OUTS, TIMES))
    every = [case for v, *rest in names if makes_sense(case := (VERBS[v], *rest))]
    random.Random(1).shuffle(every)
    chosen: list[Case] = []
    covers = [(case, _covers(case)) for case in every]
    covered: set[tuple[Any, ...]] = set()
    for least in (9, 6, 3, 1):
        for case, adds in covers:
            new = adds - covered
            if len(new) >= least:
                chosen.append(case)
                covered |= new
    return sorted(chosen, key=lambda case: (VERBS.index(case[0]), *case[1:]))


def _covers(case: Case) -> set[tuple[Any, ...]]:
    verb, kind, layout, dtype, out, time = case
    pairs = set(itertools.combinations(((i, str(value)) for i, value in enumerate(case)), 2))
    return pairs | {(verb.name, kind, layout, out), (verb.name, kind, dtype), (verb.name, out, time)}


def spell(case: Case) -> str:
    return "-".join(str(part) for part in case)


def given_by_all(comm: Any, verb: Verb, kind: str, layout: str, dtype: str, seed: int = 0) -> Given:
    """What every rank puts in, as plain values."""
    shape = shape_of(kind, layout)
    if verb.stacked:
        shape = (comm.size,) if kind in ONE_AXIS or layout == "zero_d" else (comm.size, *shape)
    return [plain_values(dtype, shape, 1000 * seed + rank, layout) for rank in range(comm.size)]


def call(comm: Any, verb: Verb, x: Any, root: int, out: Any, time: str) -> Any:
    """The call itself, with only the keywords that the case needs."""
    keywords: dict[str, Any] = {"root": root} if verb.rooted else {}
    if out is not None:
        keywords["out"] = out
    if time == "async":
        return getattr(comm, verb.name)(x, async_op=True, **keywords).wait(timeout=60)
    return getattr(comm, verb.name)(x, **keywords)


def room_for(expected: np.ndarray | None, kind: str, layout: str, dtype: str) -> Any:
    """An array to receive in, full of a value that must vanish."""
    if expected is None:
        return None
    layout = "contiguous" if layout in (*INPUT_ONLY, "zero_d", "empty") else layout
    junk = np.ones(expected.shape) * 7 if dtype != "bool" else np.ones(expected.shape, bool)
    if kind == "dlpack" or (expected.ndim == 0 and layout == "sliced"):
        layout = "contiguous"
    return make(kind, dtype, layout, junk.reshape(-1) if kind in ONE_AXIS else junk)


def agrees(result: Any, expected: np.ndarray | None, kind: str, dtype: str) -> str:
    """Why result is not expected, or ''."""
    if expected is None:
        return "" if result is None else f"expected None, got {result!r}"
    if kind_of(result) != kind:
        return f"expected {kind}, got {kind_of(result)} ({type(result).__name__})"
    if dtype_of(result) != dtype:
        return f"expected elements of {dtype}, got {dtype_of(result)}"
    got = plain_of(result)
    wanted = expected.reshape(-1) if kind in ONE_AXIS else expected
    if got.shape != wanted.shape:
        return f"expected shape {wanted.shape}, got {got.shape}"
    return "" if np.array_equal(got, wanted) else f"expected {wanted.tolist()}, got {got.tolist()}"


def roots(comm: Any, verb: Verb) -> Iterator[int]:
    yield from range(comm.size if verb.rooted else 1)


def trial(comm: Any, case: Case, root: int) -> list[str]:
    """Make one call and say what was wrong with it; nothing, if all was right."""
    verb, kind, layout, dtype, out, time = case
    given = given_by_all(comm, verb, kind, layout, dtype, seed=root)
    expected = verb.expected(given, comm.rank, root)
    x = make(kind, dtype, layout, given[comm.rank])
    before = bits(x)
    place = {"no out": None, "out": room_for(expected, kind, layout, dtype), "out=x": x}[out]
    seen = attributes(x), attributes(place)
    try:
        result = call(comm, verb, x, root, place, time)
    except hpcomm.HpcommError as error:
        return [str(error)]
    wrong = [agrees(result, expected, kind, dtype)]
    if place is not None and expected is not None and result is not place:
        wrong.append("the result is not the very object given as out")
    if place is not x and bits(x) != before:
        wrong.append("x has changed")
    del result
    wrong += settled(seen[0], lambda: attributes(x)) + settled(seen[1], lambda: attributes(place))
    return [line for line in wrong if line]


def holds_everyone(comm: Any, barrier: Callable[[], Any]) -> bool:
    """Whether nobody leaves barrier before the last one, who is late, has come. All on one machine."""
    time.sleep(0.2 * (comm.rank == comm.size - 1))
    came = time.monotonic()  # one clock for all processes of a machine
    assert barrier() is None
    times = comm.all_gather_object((came, time.monotonic()))
    return max(came for came, _ in times) <= min(left for _, left in times)


class Contract:
    """The laws. A subclass gives `comm` over the transport in question."""

    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("verb", VERBS, ids=str)
    def test_a_verb_gives_what_its_definition_says(self, comm: Any, verb: Verb, kind: str) -> None:
        """Every layout and dtype of a kind, all roots; faults are gathered, so that ranks stay in step."""
        wrong = [
            f"{spell(case)}, root {root}: {line}"
            for case in cases()
            if case[:2] == (verb, kind)
            for root in roots(comm, verb)
            for line in trial(comm, case, root)
        ]
        assert wrong == []

    def test_results_share_no_memory_with_x(self, comm: Any) -> None:
        x = np.ones((comm.size, 3))
        for verb in VERBS:
            y = call(comm, verb, x, 0, None, "blocking")
            assert y is None or not np.shares_memory(x, y), verb

    def test_a_torch_result_is_a_plain_tensor_without_gradient(self, comm: Any) -> None:
        x = torch.ones(comm.size, 2, requires_grad=True)
        for verb in VERBS:
            with torch.no_grad():
                y = call(comm, verb, x, 0, None, "blocking")
            assert y is None or (type(y) is torch.Tensor and not y.requires_grad), verb
        assert x.grad is None

    @pytest.mark.parametrize("count", [1, 7, 1000, 40_000, 300_001])
    def test_every_size_of_message_arrives_whole(self, comm: Any, count: int) -> None:
        ranks = range(comm.size)
        given = [np.arange(count, dtype=np.int32) * 3 + rank for rank in ranks]
        root = comm.size - 1
        results = {
            "broadcast": comm.broadcast(given[comm.rank], root=root),
            "all_reduce": comm.all_reduce(given[comm.rank]),
            "all_gather": comm.all_gather(given[comm.rank]),
            "all_to_all": comm.all_to_all(np.stack([given[comm.rank] + 10 * other for other in ranks])),
            "reduce_scatter": comm.reduce_scatter(
                np.stack([given[comm.rank] + 10 * other for other in ranks])
            ),
        }
        expected = {
            "broadcast": given[root],
            "all_reduce": sum(given),
            "all_gather": np.stack(given),
            "all_to_all": np.stack([x + 10 * comm.rank for x in given]),
            "reduce_scatter": sum(x + 10 * comm.rank for x in given),
        }
        wrong = [name for name, y in results.items() if not np.array_equal(y, expected[name])]
        assert wrong == []

    def test_a_thousand_small_calls_in_a_row_stay_in_order(self, comm: Any) -> None:
        seen = [int(comm.all_reduce(np.array([i * (comm.rank + 1)]))[0]) for i in range(1000)]
        total = sum(range(1, comm.size + 1))
        assert seen == [i * total for i in range(1000)]

    def test_barrier_holds_everyone_until_the_last_has_come(self, comm: Any) -> None:
        assert holds_everyone(comm, comm.barrier)
        assert comm.barrier(async_op=True).wait(timeout=60) is None

    def test_many_calls_may_be_under_way_at_once(self, comm: Any) -> None:
        requests = [comm.all_reduce(np.full(5, i + comm.rank), async_op=True) for i in range(40)]
        results = [int(request.wait(timeout=60)[0]) for request in reversed(requests)][::-1]
        ranks = sum(range(comm.size))
        assert results == [i * comm.size + ranks for i in range(40)]
