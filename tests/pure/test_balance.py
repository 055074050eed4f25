"""The balance report: who is waited for, and which way ranks should move."""

import re
from xml.etree import ElementTree

from hypothesis import given
from hypothesis import strategies as st

from hpcomm.mpmd.report import Row, advice, bars, table


def row(program, ranks, computing_s, waits_for=None):
    waiting = sum((waits_for or {}).values())
    return Row(program, ranks, computing_s + waiting, computing_s, waiting, 0.0, waits_for or {})


def test_the_slow_program_is_the_one_waited_for_and_gets_ranks():
    rows = [row("air", 3, 2.0, {"ocean": 6.0}), row("ocean", 1, 8.0)]
    lines = table(rows, {})
    assert "air waits 6.00 s for ocean" in lines
    assert not any(line.startswith("ocean waits") for line in lines)
    assert lines[-1] == "by computing time 4 ranks would be better dealt out as air 2, ocean 2"
    assert re.search(r"air +3 +8.00 +25 % +75 % +0 %", lines[1])


def test_balanced_programs_are_left_as_they_are():
    assert advice([row("air", 1, 5.0), row("ocean", 3, 5.2)], {}) == "balanced as far as 4 ranks can be"
    assert advice([row("air", 1, 5.0)], {}) == "nothing to balance"


def test_members_of_an_ensemble_get_as_many_ranks_each():
    rows = [row("filter", 6, 1.0), row("ocean_0001", 1, 6.0), row("ocean_0002", 1, 9.0)]
    told = advice(rows, {"ocean_0001": "ocean", "ocean_0002": "ocean"})
    assert told == "by computing time 8 ranks would be better dealt out as filter 2, ocean 3"
    assert advice(rows[1:], {"ocean_0001": "ocean", "ocean_0002": "ocean"}) == "nothing to balance"


@given(st.lists(st.tuples(st.integers(1, 9), st.floats(0.01, 100.0)), min_size=2, max_size=5))
def test_advised_ranks_are_as_many_as_before_and_never_slower(programs):
    rows = [row(f"p{i}", ranks, seconds) for i, (ranks, seconds) in enumerate(programs)]
    told = advice(rows, {})
    ranks = [int(n) for n in re.findall(r"p\d (\d+)", told)] or [row.ranks for row in rows]
    assert sum(ranks) == sum(row.ranks for row in rows)
    assert min(ranks) >= 1
    slowest = max(row.computing_s * row.ranks / n for row, n in zip(rows, ranks, strict=True))
    assert slowest <= max(row.computing_s for row in rows) * (1 + 1e-12)


def test_the_picture_has_a_bar_for_each_part_of_each_program():
    picture = ElementTree.fromstring(bars([row("air", 3, 2.0, {"ocean": 6.0}), row("ocean", 1, 8.0)]))
    wide = [float(each.get("width")) for each in picture.iter("{http://www.w3.org/2000/svg}rect")][:6]
    assert wide == [120.0, 360.0, 0.0, 480.0, 0.0, 0.0]
