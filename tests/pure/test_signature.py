"""Signatures: what all ranks have to agree about, in one number."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import hpcomm
from hpcomm.core import dtypes, verbs
from hpcomm.core.signature import (
    BACKGROUND,
    LEFT,
    REFUSED,
    ROOT,
    SCHEDULED,
    describe,
    head,
    marked,
    operator,
    signature,
    words_of,
)  # fmt: skip


def test_the_native_core_has_the_same_numbers_of_verbs_and_element_types() -> None:
    native = Path(hpcomm.__file__).parent / "node/_native"
    header, table = (native / "node.h").read_text(), (native / "verbs.h").read_text()  # which setup.py writes
    numbers = re.search(r"NO_VERB, (.*), VERBS", table)[1].split(", ")
    assert [head(verb[3:].lower()) for verb in numbers] == [*range(1, len(numbers) + 1)]
    assert re.findall(r'"(\w+)"', table) == [verb[3:].lower() for verb in numbers]
    sets = {name: re.findall(r"BY_(\w+)", its) for name, its in re.findall(r"enum { (\w+) = (.*) };", table)}
    assert len(sets) > 8
    assert {name: {verb.lower() for verb in its} for name, its in sets.items()} == {
        name: getattr(verbs, name) for name in sets
    }
    names = re.search(r"enum \{ BOOL = 1, (.*?), DTYPES \}", header)[1].replace("LONG_DOUBLE", "longdouble")
    words = {"I": "int", "U": "uint", "F": "float", "BF": "bfloat", "C": "complex"}
    core = [re.sub("^[A-Z]+", lambda found: words[found[0]], name) for name in names.split(", ")]
    assert ["bool", *core] == [*dtypes.BY_NAME][: len(core) + 1]


@pytest.mark.parametrize("many", [4096, 4097, 65_537, (1 << 20) - 1])
@pytest.mark.parametrize("count", [0, 1, 9_000_000, (1 << 31) - 1])
def test_roots_that_differ_never_look_the_same(many: int, count: int) -> None:
    """Also beyond the 12 bits that stand together, and whatever the number of elements."""
    rooted = {
        root: signature(head("reduce", 1, 13, root), count) for root in (0, many & 0xFFF, many, many - 1)
    }
    assert len(set(rooted.values())) == len(rooted)
    assert all(0 <= each < 1 << 63 for each in rooted.values())
    assert signature(head("reduce", 1, 13, many), count + 1) != rooted[many]
    assert len({each & ~ROOT for each in rooted.values()}) <= len(rooted)


def test_long_lengths_differ_and_are_never_taken_for_short_ones() -> None:
    long = [signature(0, count + 4) for count in (0, 2**30, 2**31, 2**31 + 2**30, 2**32)]
    assert len({*long}) == len(long)
    assert max(long) < 1 << 63
    assert signature(0, 2**30 - 1) < min(long[1:])
    assert (
        describe(signature(head("broadcast", dtype=2), 2**31 + 4))
        == "broadcast(int8, 2**30 elements or more, root=0)"
    )


def test_the_algorithm_of_a_call_changes_only_the_bits_of_its_root() -> None:
    codes = {marked(0, algorithm) for algorithm in ("ring", "tree", "double_tree", "recursive_doubling")}
    assert len(codes) == 4
    assert all(SCHEDULED <= code < BACKGROUND and not code & ~(SCHEDULED | ROOT) for code in codes)


def test_a_root_among_many_ranks_can_be_read_back() -> None:
    said = describe(signature(head("broadcast", dtype=0, root=70_000), 0), 100_000)
    assert said == "broadcast(root=70000)"
    assert describe(signature(head("gather_object", root=5), 0), 8) == "gather_object(root=5)"


def test_a_code_says_what_was_asked_for() -> None:
    code = head("reduce", op=4, dtype=12, root=3)
    nothing = {"op": None, "root": None, "order": None, "async_op": False}
    assert words_of("reduce", code) == {**nothing, "op": "max", "root": 3}
    assert words_of("all_reduce", head("all_reduce", op=31) | SCHEDULED) == {
        **nothing, "op": "a function", "order": "fast",
    }  # fmt: skip
    assert words_of("barrier", head("barrier") | SCHEDULED | BACKGROUND) == {**nothing, "async_op": True}
    assert (operator(code), operator(head("scan", op=11))) == ("op='max'", "op=a function")


def test_what_is_no_call_is_none_of_a_verb() -> None:
    assert "refuses" in describe(REFUSED)
    assert "out of step" in describe(LEFT)
    calls = {head(verb, op, 1, 0) for verb in ("barrier", "all_reduce", "scan") for op in range(11)}
    assert not calls & {REFUSED, LEFT}
    assert "async_op=True" in describe(signature(head("scan", 0, 13), 7) | BACKGROUND)
    assert "async_op" not in describe(signature(head("scan", 0, 13), 7))
