"""Reports of calls that differ: a line for each of a few ranks, and few lines for any number."""

from functools import reduce
from types import SimpleNamespace

import pytest

from hpcomm.agree.differences import Call, Other, alone, joined, refusers, rows
from hpcomm.agree.doing import Doing

SUM, BARRIER = Call("all_reduce(float64[8], sum)"), Call("barrier()")


def all_of(calls):
    """As a tree of ranks joins them: neighbours first."""
    found = [{call: alone(rank)} for rank, call in enumerate(calls)]
    while len(found) > 1:
        found = [reduce(joined, found[i : i + 2]) for i in range(0, len(found), 2)]
    return found[0]


def test_a_few_ranks_have_a_line_each():
    assert rows(all_of([SUM, BARRIER, SUM]), " here") == [
        f"  rank 0 here: {SUM.text}",
        f"  rank 1 here: {BARRIER.text}",
        f"  rank 2 here: {SUM.text}",
    ]


@pytest.mark.parametrize("size", [17, 1000])
def test_of_many_ranks_equal_calls_have_one_line(size):
    calls = [SUM] * size
    calls[5] = BARRIER
    assert rows(all_of(calls)) == [f"  ranks 0-4, 6-{size - 1}: {SUM.text}", f"  rank 5: {BARRIER.text}"]


def test_ranks_in_no_order_and_calls_that_all_differ_stay_short():
    lines = rows(all_of([SUM, BARRIER] * 500))
    assert len(lines) == 2
    assert lines[0].endswith(", 30 and 484 more: " + SUM.text)
    lines = rows(all_of([Call(f"all_reduce(float64[{rank}])") for rank in range(1000)]))
    assert len(lines) == 17
    assert "and" not in lines[0]
    assert lines[-1].startswith("  ranks 16-999: other calls")


def test_a_rank_that_refuses_is_named_however_many_there_are():
    calls = [Call(f"all_reduce(float64[{rank}])") for rank in range(1000)]
    calls[777] = Call("all_reduce(text)", "all_reduce(text) refused: DtypeError")
    found = all_of(calls)
    assert refusers(found) == [777]
    assert "  rank 777: all_reduce(text) refused: DtypeError" in rows(found)


@pytest.mark.parametrize(
    ("doing", "row"),
    [
        (
            Doing("rank 0", 1, "all_reduce(x) at a.py:8", comm="world", verb="all_reduce"),
            "scatter(y), and has gone on to all_reduce(x) at a.py:8",
        ),
        (Doing("rank 0", 1, "scatter(x) at a.py:5", comm="world", verb="scatter"), "scatter(x) at a.py:5"),
        # which may have made it
        (Doing("rank 0", 1, "mean(x) at a.py:5", comm="world", verb="mean"), "mean(x) at a.py:5"),
        (Doing("rank 0", 1, "in hpcomm, at a.py:9"), "scatter(y), and is in hpcomm, at a.py:9"),
    ],
)
def test_a_rank_in_another_call_has_gone_on_to_that(doing, row):
    region = SimpleNamespace(ended=False)
    assert Other(region, "scatter(y)", verb="scatter").row(doing) == row
