"""Which ranks can never go on, by what they say that they do."""

from __future__ import annotations

import random
from typing import Any

import pytest

from hpcomm.agree.blocked import ELSEWHERE
from hpcomm.agree.doing import ANY, Doing, Message, known
from hpcomm.core.present import NONE
from hpcomm.node.segment import ANSWER_BYTES
from hpcomm.watch.stuck import PATIENT_S, circles, stuck


def computing() -> Doing:
    return Doing("rank", 1, "not in a call of hpcomm")


def waiting(*needs: int, **more: Any) -> Doing:
    return Doing("rank", 1, "all_reduce()", PATIENT_S, needs)._replace(**more)


def send(to: int, tag: int = 0, comm: int = 7, apart: bool = False, **more: Any) -> Doing:
    return waiting(to, messages=(Message(comm, True, apart, to, tag),), **more)


def recv(by: int, tag: int = 0, comm: int = 7, apart: bool = False, **more: Any) -> Doing:
    return waiting(by, messages=(Message(comm, False, apart, by, tag),), **more)


def recv_any(others: list[int], **more: Any) -> Doing:
    return waiting(*others, is_any=True, messages=(Message(7, False, False, ANY, 0),), **more)


def several(*of: Message, is_any: bool = False, **more: Any) -> Doing:
    """In wait_all or wait_any of these messages."""
    return waiting(*(each.peer for each in of), is_any=is_any, messages=of, **more)


def r(by: int, tag: int = 0) -> Message:
    return Message(7, False, False, by, tag)


def s(to: int, tag: int = 0) -> Message:
    return Message(7, True, False, to, tag)


def counted(*needs: int, call: int = 1, root: int = ELSEWHERE, **more: Any) -> Doing:
    """In a collective call of communicator 7, which is one of several hosts."""
    return waiting(*needs, **{"counted": (7, call, root), "counts": ((7, call),), **more})


def planned(*needs: int) -> Doing:
    """In a plan of communicator 7, in which others are only seen."""
    return waiting(*needs, is_any=True, counted=(7, NONE, ELSEWHERE), verb="all_reduce")


CASES: dict[str, tuple[list[Doing], list[int]]] = {
    "nobody waits": ([computing(), computing()], []),
    "one computes": ([waiting(1), computing()], []),
    "two receive first": ([recv(1), recv(0)], [0, 1]),
    "two send first": ([send(1), send(0)], [0, 1]),
    "a long message is under way": ([send(1), recv(0)], []),
    "another tag": ([send(1, tag=3), recv(0, tag=4)], [0, 1]),
    "any tag": ([send(1, tag=3), recv(0, tag=ANY)], []),
    "another communicator": ([send(1, comm=7), recv(0, comm=8)], [0, 1]),
    "an object against an array": ([send(1, apart=True), recv(0)], [0, 1]),
    "a cycle of three": ([recv(1), recv(2), recv(0)], [0, 1, 2]),
    "a barrier against a receive": ([waiting(1), recv(0)], [0, 1]),
    "a receive from itself": ([recv(0)], [0]),
    "a receive from itself of what it has sent": ([recv(0, begun=(Message(7, True, False, 0, 0),))], []),
    "two cycles": ([recv(1), recv(0), waiting(3), waiting(2), waiting(2)], [0, 1, 2, 3, 4]),
    "who waits for a cycle": ([waiting(1), recv(2), recv(1), computing()], [0, 1, 2]),
    "any source, all of them stuck": ([recv_any([1, 2]), recv(2), recv(1)], [0, 1, 2]),
    "any source, one computes": ([recv_any([1, 2]), recv(0), computing()], []),
    "any source, one sends": ([recv_any([1]), send(0)], []),
    "a receive in the background, then a barrier": (
        [send(1), waiting(0, begun=(Message(7, False, False, 0, 0),))], []
    ),
    "a receive in the background of another tag": (
        [send(1), waiting(0, begun=(Message(7, False, False, 0, 5),))], [0, 1]
    ),
    "a send in the background": ([recv(1), waiting(0, begun=(Message(7, True, False, 0, 0),))], []),
    "another thread may serve": ([recv(1), recv(0, others=True)], []),
    "a moment ago it still moved": ([recv(1), recv(0, waited_s=0.1)], []),
    "the other one is elsewhere": ([recv(ELSEWHERE), recv(0)], []),
    "one of several waits back": ([waiting(1, 2), computing(), recv(0)], [0, 2]),
    "one of several is stuck": ([waiting(1, 2), computing(), recv(2)], [0, 2]),
    "nobody is missing any more": ([waiting(is_any=True), waiting()], []),
    "two wait for all of two receives": ([several(r(1), r(1, 1)), several(r(0), r(0, 1))], [0, 1]),
    "two wait for any of two receives": (
        [several(r(1), r(1, 1), is_any=True), several(r(0), r(0, 1), is_any=True)], [0, 1]
    ),
    "two wait for all of two sends": ([several(s(1), s(1)), several(s(0), s(0))], [0, 1]),
    "all, of which one has come": ([several(r(1), r(1, 1)), recv(0, begun=(s(0),))], [0, 1]),
    "any, of which one has come": ([several(r(1), r(1, 1), is_any=True), recv(0, begun=(s(0),))], []),
    "all, of which each has come": ([several(r(1), r(1, 1)), recv(0, begun=(s(0), s(0, 1)))], []),
    "all, of which one is of who computes": ([several(r(1), r(2)), recv(0), computing()], [0, 1]),
    "all, of which what has come is of who waits": (
        [several(r(1), r(2)), recv(0, begun=(s(0),)), computing()], []
    ),
    "any, of which one is of who computes": ([several(r(1), r(2), is_any=True), recv(0), computing()], []),
    "all, of which one is of any rank": ([several(r(ANY), r(1)), recv(0)], [0, 1]),
    "any, of which one is not known": (
        [several(r(1), is_any=True)._replace(needs=(1, ELSEWHERE)), recv(0)], []
    ),
    "a barrier over hosts against a receive": ([counted(1), recv(0, counts=((7, 0),))], [0, 1]),
    "who receives has come to it": ([counted(1), recv(0, counts=((7, 1),))], []),
    "who receives does not say whether it has come": ([counted(1), recv(0)], []),
    "two calls over hosts, one before the other": ([counted(1, call=2), counted(0)], []),
    "crossed communicators": ([counted(1, counts=((7, 1), (8, 0))),
                               counted(0, counted=(8, 1, ELSEWHERE), counts=((7, 0), (8, 1)))], [0, 1]),
    "a broadcast waits for its root": (
        [counted(1, 2, root=1, is_any=True), recv(0, counts=((7, 0),)), computing()], [0, 1]
    ),
    "a broadcast whose root has come": (
        [counted(1, 2, root=1, is_any=True), recv(0, counts=((7, 1),)), computing()], []
    ),
    "a plan against a receive": ([planned(1), recv(0)], [0, 1]),
    "a plan against a receive of one of two others": ([planned(1, 2), recv(0), planned(0, 1)], [0, 1, 2]),
    "a plan, of which one is under way beside a receive": ([planned(1), recv(0, others=True)], []),
    "a plan that who receives may have left, and one computes": ([planned(1, 2), recv(0), computing()], []),
    "a plan that all have begun": ([planned(1), planned(0)], []),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_who_can_never_go_on(case: str) -> None:
    doings, held = CASES[case]
    by_rank = known(dict(enumerate(doings)))
    assert stuck(by_rank) == held
    found = circles(held, by_rank)
    assert bool(found) == bool(held)
    for path in found:
        following = zip(path, [*path[1:], path[0]], strict=True)
        assert all(after in by_rank[rank].needs for rank, after in following)


def test_random_programs_without_a_way_on_are_those_of_a_simulation() -> None:
    """Ranks carry out lists of messages that meet each other, until nobody can move any more."""
    chance = random.Random(1)
    found = 0
    for _ in range(3000):
        size = chance.randint(1, 5)
        plans: list[list[tuple[str, int, int]]] = [[] for _ in range(size)]
        for _ in range(chance.randint(0, 8)):
            one, other, tag = chance.randrange(size), chance.randrange(size), chance.randrange(2)
            if one != other:
                plans[one].insert(chance.randint(0, len(plans[one])), ("send", other, tag))
                plans[other].insert(chance.randint(0, len(plans[other])), ("recv", one, tag))
        moved = True
        while moved:
            moved = False
            for one, plan in enumerate(plans):
                if plan and plan[0][0] == "send" and plans[plan[0][1]][:1] == [("recv", one, plan[0][2])]:
                    plans[plan[0][1]].pop(0)
                    plan.pop(0)
                    moved = True
        # who has come to its end computes for ever, so that it may still be waited for
        doings = {
            rank: (send if plan[0][0] == "send" else recv)(*plan[0][1:]) if plan else computing()
            for rank, plan in enumerate(plans)
        }
        waits = {rank for rank, plan in enumerate(plans) if plan}
        while free := {rank for rank in waits if plans[rank][0][1] not in waits}:
            waits -= free
        assert stuck(doings) == sorted(waits)
        found += bool(waits)
    assert found > 100


def test_what_a_rank_says_fits_its_record_and_comes_back_whole() -> None:
    told = recv(2, begun=(Message(1, True, True, ANY, 4),), stack=("main at a.py:1",))
    assert Doing.of(told.as_text()) == told
    long = told._replace(stack=("x" * 300,) * 100)
    assert Doing.of(long.as_text()).text == told.text
    assert len(long._replace(text="y" * 9999).as_text()) <= ANSWER_BYTES
    assert len(long.as_text()) <= ANSWER_BYTES
