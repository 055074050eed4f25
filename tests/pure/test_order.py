"""Races told by vector clocks that are laid out after the run, against sets of what each moment knew."""

from __future__ import annotations

from itertools import combinations

import pytest
from device_model.order import Access, Actor, Moment, Order, Run, races
from hypothesis import given
from hypothesis import strategies as st

ACTORS = ("host", "stream 1", "stream 2")
work = st.tuples(
    st.just("work"), st.sampled_from((0, 1)), st.sampled_from(ACTORS),
    st.sampled_from(("slab", "heap")), st.integers(0, 4), st.integers(1, 4), st.booleans(),
)  # fmt: skip
edge = st.tuples(
    st.just("edge"),
    st.sampled_from((0, 1)),
    st.sampled_from(ACTORS),
    st.integers(0, 9),
    st.sampled_from("ABC"),
)
programs = st.lists(work | edge, min_size=12, max_size=40)


def carry_out(program: list[tuple]) -> tuple[Run, list[tuple[Moment, Moment, str]]]:
    """What two processes note; and each moment in turn with what it learns of, and by which edge."""
    orders = [Order(process) for process in (0, 1)]
    moments: list[Moment] = [(order.host, 0) for order in orders]
    learnt: list[tuple[Moment, Moment, str]] = []
    last: dict[Actor, int] = {order.host: 0 for order in orders}
    for kind, process, name, *rest in program:
        order = orders[process]
        actor = order.host if name == "host" else order.actor(name)
        here = actor, last.get(actor, 0) + 1
        if kind == "work":
            memory, low, length, writes = rest
            host = order.host, last[order.host]
            assert order.step(actor) == here
            learnt.append((here, host, ""))
            order.access(here, memory, low, low + length, writes)
        else:
            before = moments[-1 - rest[0] % len(moments)]
            order.learn(actor, before, rest[1])
            learnt.append((here, before, rest[1]))
        last[actor] = here[1]
        moments.append(here)
    return Run([order.noted for order in orders]), learnt


def known(learnt: list[tuple[Moment, Moment, str]], without: str) -> dict[Moment, set[Moment]]:
    """All moments that each moment comes after."""
    sets: dict[Moment, set[Moment]] = {}
    for here, before, name in learnt:
        own = here[0], here[1] - 1
        sets[here] = {own} | sets.get(own, set())
        if not name or name != without:
            sets[here] |= {before} | sets.get(before, set())
    return sets


def race(a: Access, b: Access, sets: dict[Moment, set[Moment]]) -> bool:
    meet = a.memory == b.memory and a.low < b.high and b.low < a.high and (a.writes or b.writes)
    ordered = a.moment == b.moment or a.moment in sets[b.moment] or b.moment in sets[a.moment]
    return meet and not ordered


@given(programs)
def test_races_are_those_that_sets_of_known_moments_tell_also_without_any_edge(program: list[tuple]) -> None:
    run, learnt = carry_out(program)
    assert run.edges == sorted({name for _, _, name in learnt} - {""})
    for without in ["", *run.edges]:
        sets = known(learnt, without)
        pairs = [(a, b) for a, b in combinations(run._accesses, 2) if race(a, b, sets)]
        told = run.races(without)
        assert {frozenset(each.split(", and ")) for each in told} == {
            frozenset((str(a), str(b))) for a, b in pairs
        }


def test_an_edge_between_processes_orders_and_its_lack_is_told() -> None:
    first, second = Order(0), Order(1)
    stream = first.actor("stream")
    wrote = first.step(stream)
    first.access(wrote, "slab", 0, 8, writes=True)
    second.learn(second.host, wrote, "message")
    second.access(second.step(second.host), "slab", 4, 12, writes=False)
    run = Run([second.noted, first.noted])  # in whatever order they come
    assert run.races() == []
    [told] = run.races(without="message")
    assert "write by stream of process 0" in told
    assert "read by host of process 1" in told


def test_what_was_forgotten_orders_nothing_and_races_with_nothing() -> None:
    order = Order(0)
    stream = order.actor("stream")
    early = order.step(stream)
    order.access(early, "memory", 0, 8, writes=True)
    order.forget()
    order.access(order.step(order.host), "memory", 0, 8, writes=True)
    order.learn(order.host, early, "an event of before")
    assert races([order.noted]) == []


def test_two_that_each_learnt_of_the_others_future_are_refused() -> None:
    first, second = Order(0), Order(1)
    first.learn(first.host, (second.host, 1), "from the second")
    second.learn(second.host, (first.host, 1), "from the first")
    with pytest.raises(AssertionError, match="only later"):
        Run([first.noted, second.noted])
