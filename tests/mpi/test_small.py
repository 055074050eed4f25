"""Small collectives among ranks of a node, which go by places that are there from the beginning."""

from __future__ import annotations

import errno
import math
import os
import random
import time
import warnings
from array import array
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from mpi4py import MPI

import hpcomm
from hpcomm.core.dtypes import BY_NAME
from hpcomm.core.reduction import resolve
from hpcomm.core.signature import VERB, VERBS, head
from hpcomm.node import node_collectives, segment
from hpcomm.node.arrival_flags import NUMBERS, is_wanted
from hpcomm.node.segment import PLACE, _pairs

DTYPES = ("float64", "float32", "int8", "uint16", "int64", "complex64")
OPS = {"sum": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum, "bxor": np.bitwise_xor}
MOST = PLACE - 8  # bytes that go this way


@pytest.fixture
def comm(monkeypatch: pytest.MonkeyPatch, request: Any) -> Iterator[hpcomm.Communicator]:
    """A communicator all of whose small calls go this way, whether or not it pays."""
    monkeypatch.setattr(
        node_collectives, "_SMALL_BY", {MPI.get_vendor()[0]: ("barrier", *node_collectives._VERBS)}
    )
    level = getattr(request, "param", "light")
    with hpcomm.Communicator(MPI.COMM_WORLD, name="small", check=level) as made:
        yield made


BOTH = pytest.mark.parametrize("comm", ["light", "off"], indirect=True)


@pytest.fixture
def calls(comm: Any, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The lengths that were laid on small places, each once or a few times."""
    if comm.size == 1 or not is_wanted():
        pytest.skip("one rank, or a processor without this way")
    assert comm.node_collectives.small is not None, "others have taken all places, and not given them back"
    seen: list[int] = []
    make, turns = node_collectives.NodeCollectives._make, node_collectives.NodeCollectives.turns

    def noted(self: Any, tables: Any, code: int, count: int, dtype: Any) -> Any:
        if tables is self.small:
            seen.append(count)
        return make(self, tables, code, count, dtype)

    def noted_turns(self: Any, code: int, count: int, dtype: Any, mine: int) -> Any:
        seen.append(count)
        return turns(self, code, count, dtype, mine)

    monkeypatch.setattr(node_collectives.NodeCollectives, "_make", noted)
    monkeypatch.setattr(node_collectives.NodeCollectives, "turns", noted_turns)
    return seen


def parts(comm: Any, n: int, dtype: str) -> list[Any]:
    return [((np.arange(n) * 7 + 3 * rank) % 11 + 1).astype(dtype) for rank in range(comm.size)]


def folded(op: str, given: list[Any]) -> Any:
    result = given[0]
    for each in given[1:]:
        result = OPS[op](result, each)
    return result


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", OPS)
def test_lengths_around_the_limit_give_the_definition(
    comm: Any, calls: list[int], op: str, dtype: str
) -> None:
    kind = np.dtype(dtype).kind
    if op not in {"f": ("sum", "prod", "min", "max"), "c": ("sum",)}.get(kind, tuple(OPS)):
        return
    most = MOST // np.dtype(dtype).itemsize
    for n in (1, 2, most - 1, most, most + 1):
        given = parts(comm, n, dtype)
        expected = folded(op, given)
        for _ in range(3):
            x = given[comm.rank].copy()
            np.testing.assert_array_equal(comm.all_reduce(x, op), expected)
            np.testing.assert_array_equal(x, given[comm.rank])
            assert comm.all_reduce(x, op, out=x) is x
            np.testing.assert_array_equal(x, expected)
    assert set(calls) == {1, 2, most - 1, most}


ODD = {  # elements that arithmetic of another kind would make something else of
    "float64": [0.1, -0.0, np.nan, np.inf, 1e308, 1.7e308, 5e-324],
    "float32": [0.1, -0.0, np.nan, np.inf, 3e38, 3.4028235e38, 1e31, 1e-45, 16777216.0, 1.0, 1.0, -1.17e-38],
    "int64": [2**63 - 1, 2**63 - 1, -(2**63), -(2**63), 2**62],
    "uint64": [2**64 - 1, 2**63],
    "int32": [2**31 - 1, -(2**31)],
    "int8": [127, -128],
}


@pytest.mark.parametrize("shape", [(), (1,), (1, 1, 1), (2,), (1, 2), (3,)])
@pytest.mark.parametrize("dtype", ODD)
def test_a_few_elements_are_what_numpy_makes_of_them(
    comm: Any, calls: list[int], dtype: str, shape: tuple[int, ...]
) -> None:
    odd, count = np.array(ODD[dtype], dtype), math.prod(shape)
    for first in range(len(odd)):
        given = [
            np.resize(np.roll(odd, -first - rank * step), count).reshape(shape)
            for rank, step in enumerate((1, 1, 2, 3, 5)[: comm.size])
        ]
        with np.errstate(all="ignore"):
            expected = folded("sum", given)
        with np.errstate(all="raise"):
            for x in (given[comm.rank].copy(), torch.from_numpy(given[comm.rank].copy())):
                zeros = np.zeros_like if isinstance(x, np.ndarray) else torch.zeros_like
                for _ in range(2):
                    bits_are(comm.all_reduce(x), expected)
                    bits_are(comm.all_reduce(x, out=zeros(x)), expected)
                bits_are(comm.all_reduce(x, out=x), expected)


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_any_few_floats_are_rounded_as_numpy_rounds_them(
    comm: Any, calls: list[int], dtype: str, count: int
) -> None:
    rng = np.random.default_rng(count)
    nbytes = np.dtype(dtype).itemsize
    for _ in range(1000):
        near = rng.integers(0, 256, (comm.size, count, nbytes), np.uint8)
        near[:, :, -1], near[:, :, -2] = near[0, 0, -1], near[0, 0, -2]  # exponents of which sums are inexact
        near[:, :, -1] ^= rng.integers(0, 2, (comm.size, count), np.uint8) << 7
        given = list(near.view(dtype)[..., 0])
        with np.errstate(all="ignore"):
            expected = np.asarray(folded("sum", given))
        x = given[comm.rank].copy()
        bits_are(comm.all_reduce(torch.from_numpy(x)), expected)
        bits_are(comm.all_reduce(x, out=x), expected)


@pytest.mark.parametrize("dtype", ["uint64", "float64", "uint32", "float32", "uint16", "float16", "int8"])
def test_a_single_element_is_broadcast_bit_for_bit(comm: Any, calls: list[int], dtype: str) -> None:
    nbytes = np.dtype(dtype).itemsize
    for pattern in (0x7FF4_0000_0000_0001, 0x7FA0_0001, 0x7D01, 0x80, 0):  # also NaNs that signal
        bits = pattern.to_bytes(8, "little")[:nbytes]
        for root in range(comm.size):
            given = bits if comm.rank == root else bytes(nbytes)
            x, y, t = (np.frombuffer(bytearray(given), dtype) for _ in range(3))
            assert comm.broadcast(x, root, out=x).tobytes() == bits
            assert comm.broadcast(y, root).tobytes() == bits
            t = torch.from_numpy(t)
            assert comm.broadcast(t, root, out=t).numpy().tobytes() == bits


def bits_are(x: Any, expected: Any) -> None:
    """The same shape and bits, but for those of NaNs."""
    x, expected = np.asarray(x), np.asarray(expected)
    assert x.shape == expected.shape
    alike = [
        a.tobytes() == b.tobytes() or (a != a and b != b) for a, b in zip(x.flat, expected.flat, strict=True)
    ]
    assert all(alike), (x, expected)


def test_ranks_bring_the_same_elements_in_any_form(comm: Any, calls: list[int]) -> None:
    """Strided, of another library, of several axes, from Python, with an observer: all meet on one way."""
    given = parts(comm, 6, "float64")
    expected = sum(given)
    mine = given[comm.rank]
    strided = np.zeros((6, 2))[:, 0]
    strided[:] = mine
    forms = [mine, strided, torch.from_numpy(mine.copy()), torch.from_numpy(mine.copy()).flip(0).flip(0)]
    for turn in range(2 * len(forms)):
        x = forms[(turn + comm.rank) % len(forms)]
        np.testing.assert_array_equal(np.asarray(comm.all_reduce(x)), expected)
    x = mine.reshape(2, 3)
    np.testing.assert_array_equal(comm.all_reduce(x, out=np.empty((2, 3))), expected.reshape(2, 3))
    np.testing.assert_array_equal(comm.all_reduce(np.array(2.5)), 2.5 * comm.size)
    assert comm.all_reduce(comm.rank + 0.5) == sum(rank + 0.5 for rank in range(comm.size))
    assert set(calls) == {1, 6}


def test_lengths_whose_signature_looks_short_are_none(comm: Any) -> None:
    if comm.size > 1:
        code = head("all_reduce", resolve("sum", BY_NAME["int8"]).code, BY_NAME["int8"].code)
        assert [comm.node_collectives.takes(code, n) for n in (0, 1, 3, (1 << 31) + 3)] == [
            False,
            True,
            True,
            True,
        ]
        assert comm.node_collectives.small_end(code) == MOST + 1


def test_averages_go_it_with_care(comm: Any, calls: list[int]) -> None:
    expected = [i + (comm.size - 1) / 2 for i in range(3)]
    assert comm.all_reduce(np.arange(3.0) + comm.rank, "avg").tolist() == expected
    assert calls == [3]


def test_factors_and_calls_in_the_background_stay_with_mpi(comm: Any, calls: list[int]) -> None:
    comm.all_reduce(np.ones(3), hpcomm.premul_sum(0.5))
    comm.all_reduce(np.ones(3), async_op=True).wait()
    assert calls == []


def test_sums_past_the_largest_number_warn_nobody(comm: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        x = np.array([1.7e308, np.inf if comm.rank else -np.inf, np.nan])
        y = comm.all_reduce(x)
    if comm.size > 1:
        assert np.isinf(y[0])
        assert np.isnan(y[1:]).all()
    assert np.geterr()["over"] == "warn"


def test_a_rank_may_run_ahead_and_others_come_late(comm: Any) -> None:
    """Calls that wait for nobody lie between, more than the ring remembers; so do long waits."""
    for turn in range(6):
        for i in range(150):
            comm.broadcast(np.array([float(i)]), root=turn % comm.size)
        if comm.rank == turn % comm.size:
            time.sleep(0.03)
        for i in range(5):
            x = np.array([float(turn), i * (comm.rank + 1.0)])
            ranks = comm.size
            assert comm.all_reduce(x).tolist() == [turn * ranks, i * ranks * (ranks + 1) / 2]


def test_mpi_moves_on_while_a_rank_waits(comm: Any) -> None:
    """A large message needs its sender's MPI until it is received; then only its receiver comes along."""
    if comm.size == 1:
        return
    n, right, left = 700_000, (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    going = comm.isend(np.full(n, comm.rank + 1.0), right) if comm.rank % 2 == 0 else None
    if left % 2 == 0:
        np.testing.assert_array_equal(comm.recv(np.empty(n), left), np.full(n, left + 1.0))
    assert comm.all_reduce(np.ones(1)).tolist() == [comm.size]
    if going is not None:
        going.wait()


def test_communicators_that_follow_each_other_do_not_see_old_flags(comm: Any) -> None:
    for turn in range(_pairs(comm.size) + 10):
        with comm.dup() as other:
            x = np.array([turn + comm.rank])
            assert other.all_reduce(x).tolist() == [turn * comm.size + sum(range(comm.size))]
            assert other.broadcast(x, root=turn % comm.size).tolist() == [turn + turn % comm.size]


@BOTH
@pytest.mark.parametrize("between", [0, *range(1, NUMBERS + 1), 63])
def test_a_flag_of_long_ago_is_not_taken_for_todays(comm: Any, between: int) -> None:
    """So many calls lie between, on this way and on others, that numbers and places come again."""
    for turn in range(1, 6):
        if comm.rank == turn % comm.size:
            time.sleep(2e-3)
        assert comm.all_reduce(np.array([turn])).tolist() == [turn * comm.size]
        for i in range(between):
            comm.barrier()
            if i < NUMBERS:
                x = np.array([turn + i + comm.rank])
                assert comm.broadcast(x, root=i % comm.size).tolist() == [turn + i + i % comm.size]


@BOTH
def test_a_place_is_not_laid_on_while_somebody_reads_from_it(comm: Any) -> None:
    """The root runs ahead as far as it may, by fast paths and with care; others are late now and then."""
    for turn in range(150):
        x = np.full(700, float(turn if comm.rank == 0 else -1))
        if comm.rank and turn % 40 == 7:
            time.sleep(2e-3)
        form = x if turn % 3 else x[::-1]
        comm.broadcast(form, root=0, out=form)
        assert (x == turn).all(), turn


@BOTH
def test_any_small_verbs_follow_each_other_while_ranks_come_late(comm: Any) -> None:
    """A random program, the same on all ranks, whose ranks sleep at other times: old data would be seen."""
    same_for_all, own = random.Random(11), random.Random(comm.rank)
    p = comm.size
    for turn in range(300):
        verb = same_for_all.choice(node_collectives._VERBS)
        n, root = same_for_all.choice((1, 2, 7, 300, 800)), same_for_all.randrange(p)
        if own.random() < 0.03:
            time.sleep(own.random() * 3e-3)
        has_rows = verb in ("scatter", "all_to_all", "reduce_scatter")
        brought = [np.arange(p * n if has_rows else n) % 5 + 10.0 * r + turn for r in range(p)]
        brought = [each.reshape(p, n) for each in brought] if has_rows else brought
        x: Any = brought[comm.rank].copy()
        form = own.random()
        if form < 0.6:
            x = torch.from_numpy(x) if form < 0.3 else np.repeat(x, 2, axis=-1)[..., ::2]
        rooted = {"root": root} if verb in ("broadcast", "gather", "scatter", "reduce") else {}
        found = getattr(comm, verb)(x, **rooted)
        if verb in ("gather", "reduce") and comm.rank != root:
            assert found is None
            continue
        whole = np.stack(brought)
        if verb in ("all_reduce", "reduce", "reduce_scatter"):
            expected = whole.sum(axis=0)
            expected = expected[comm.rank] if has_rows else expected
        elif verb in ("broadcast", "scatter"):
            expected = whole[root][comm.rank] if has_rows else whole[root]
        else:
            expected = whole[:, comm.rank] if has_rows else whole
        np.testing.assert_array_equal(np.asarray(found), expected, err_msg=f"{turn} {verb} {n}")


class Nobody:
    def before(self, call: Any) -> None: ...

    def after(self, call: Any) -> None: ...


@BOTH
def test_ranks_that_are_watched_go_the_same_way(comm: Any) -> None:
    stop = comm.observe(Nobody()) if comm.rank == 0 else lambda: None
    for turn in range(6):
        comm.barrier()
        x = np.full(3, float(comm.rank + turn))
        assert (comm.broadcast(x, root=turn % comm.size) == turn % comm.size + turn).all()
        assert comm.all_reduce(np.ones(2)).tolist() == [comm.size] * 2
    stop()
    comm.barrier()


def test_small_broadcasts_of_all_kinds(comm: Any, calls: list[int]) -> None:
    dtypes = ("bool", "int8", "float16", "float32", "complex128", "longdouble")
    for root in range(comm.size):
        for dtype in dtypes:
            for n in (1, 3, MOST // np.dtype(dtype).itemsize):
                due = (np.arange(n) % 7 + root).astype(dtype)
                x = due.copy() if comm.rank == root else np.zeros(n, dtype)
                for _ in range(3):
                    assert comm.broadcast(x, root, out=x) is x
                np.testing.assert_array_equal(x, due)
        t = torch.full((5, 7), float(comm.rank), dtype=torch.bfloat16)
        for _ in range(3):
            assert comm.broadcast(t, root, out=t) is t
        assert bool((t == root).all())
    empty = np.zeros((0, 3))
    assert comm.broadcast(empty, 0, out=empty) is empty
    assert comm.all_reduce(empty, out=empty) is empty
    assert set(calls) == {1, 3, 35, *(MOST // np.dtype(dtype).itemsize for dtype in dtypes)}


@pytest.mark.parametrize("root", [-1, 99, 1.0, "0"])
def test_roots_that_are_none_are_refused_by_lanes_too(comm: Any, root: Any) -> None:
    for x in (np.ones(3), torch.ones(3)):
        for _ in range(3):
            comm.broadcast(x, 0, out=x)
        with pytest.raises(hpcomm.HpcommError, match="root"):
            comm.broadcast(x, root, out=x)


WRONG = {
    "dtype": lambda comm: comm.all_reduce(np.ones(2, np.float32 if comm.rank == 0 else np.float64)),
    "verb": lambda comm: comm.all_reduce(np.ones(2)) if comm.rank == 0 else comm.broadcast(np.ones(2), 1),
    "root": lambda comm: comm.broadcast(np.ones(2), int(comm.rank == 0)),
    "length": lambda comm: comm.broadcast(np.ones(2 + (comm.rank == 0)), 0),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_ranks_that_disagree_about_small_calls_are_told(calls: list[int], wrong: str) -> None:
    """A root may have gone on before another came: it is told at its next call."""
    with hpcomm.Communicator(MPI.COMM_WORLD, name="small") as comm:
        for _ in range(3):
            comm.all_reduce(np.ones(2))
            comm.broadcast(np.ones(2), 0)
        with pytest.raises(hpcomm.MismatchError, match="small"):  # noqa: PT012
            WRONG[wrong](comm)
            comm.all_reduce(np.ones(2))


@pytest.mark.parametrize("make", [np.ones, torch.ones])
def test_of_two_roots_the_later_one_is_told_at_once(calls: list[int], make: Any) -> None:
    """No root waits for the other, so only a look at the other's call can tell."""
    world = MPI.COMM_WORLD
    if world.size != 2:
        pytest.skip("others would be told as well")
    with hpcomm.Communicator(world, name="small") as comm:
        x = make(2)
        for _ in range(3):
            comm.broadcast(x, 0, out=x)
        if comm.rank == 0:
            comm.broadcast(x, 0, out=x)
            world.Barrier()
        else:
            world.Barrier()
            with pytest.raises(hpcomm.MismatchError, match="small"):
                comm.broadcast(x, 1, out=x)
    world.Barrier()


def test_without_checks_ranks_that_disagree_go_on_as_with_mpi(calls: list[int]) -> None:
    with hpcomm.Communicator(MPI.COMM_WORLD, check="off") as comm:
        for _ in range(3):
            x = np.full(2, 3.0)
            comm.all_reduce(x, "sum" if comm.rank else "prod", out=x)
            assert x.tolist() == ([3.0 * comm.size] * 2 if comm.rank else [3.0**comm.size] * 2)
            comm.broadcast(np.ones(2 + comm.rank), 0)
    assert set(calls) >= {2}


def test_ranks_that_check_at_different_levels_meet(calls: list[int]) -> None:
    level = "off" if MPI.COMM_WORLD.rank == 0 else "light"
    with hpcomm.Communicator(MPI.COMM_WORLD, check=level) as comm:
        for n in (2, 5000):
            for _ in range(3):
                assert comm.all_reduce(np.ones(n))[-1] == comm.size
                assert comm.broadcast(np.full(n, comm.rank), 1)[-1] == 1
                comm.barrier()
    assert 2 in calls


def test_only_what_pays_goes_this_way(calls: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    seen: set[str] = set()
    limits = node_collectives.NodeCollectives._find_limits

    def noted(self: Any, code: int) -> Any:
        found = limits(self, code)
        if found[0] == 1:
            seen.add(VERBS[code & VERB])
        return found

    monkeypatch.setattr(node_collectives.NodeCollectives, "_find_limits", noted)
    few = {"all_reduce", "broadcast"}
    more = few | {"reduce", "gather", "all_gather", "scatter", "all_to_all"}
    for check in ("light", "off"):
        seen.clear()
        with hpcomm.Communicator(MPI.COMM_WORLD, check=check) as other:
            for verb in node_collectives._VERBS:
                has_rows = verb in ("scatter", "all_to_all", "reduce_scatter")
                getattr(other, verb)(np.ones((other.size, 2) if has_rows else 2))
        assert seen == (more if MPI.get_vendor()[0] == "MPICH" else few)


def test_where_there_is_no_memory_for_places_mpi_carries_the_calls(
    calls: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(file: int, start: int, length: int) -> None:
        if length >= PLACE:
            raise OSError(errno.ENOSPC, "No space left on device")

    if MPI.COMM_WORLD.rank == 0:
        monkeypatch.setattr(os, "posix_fallocate", full)
    free = len(segment.current._free_places) if segment.current else 0
    with hpcomm.Communicator(MPI.COMM_WORLD) as other:
        assert other.node_collectives is not None
        assert other.node_collectives.small is None
        assert other.all_reduce(np.ones(2)).tolist() == [other.size] * 2
    assert segment.current is not None
    assert len(segment.current._free_places) == free
    assert calls == []


def test_who_has_no_places_goes_another_way(calls: list[int]) -> None:
    """One rank of them is enough; it may have spent them on others."""
    node_segment = segment.current
    assert node_segment is not None
    spent = node_segment._free_places.copy() if MPI.COMM_WORLD.rank == 0 else None
    if spent is not None:
        node_segment._free_places.clear()
    with hpcomm.Communicator(MPI.COMM_WORLD) as other:
        assert other.node_collectives is not None
        assert other.node_collectives.small is None
        np.testing.assert_array_equal(other.all_reduce(np.ones(2)), [other.size] * 2)
        np.testing.assert_array_equal(other.all_reduce(np.ones(2000)), [other.size] * 2000)
    if spent is not None:
        node_segment._free_places.extend(spent)
    assert calls == []
    with hpcomm.Communicator(MPI.COMM_WORLD) as other:
        np.testing.assert_array_equal(other.all_reduce(np.ones(2)), [other.size] * 2)
    assert set(calls) == {2}


@pytest.mark.parametrize("kind", ["numpy", "buffer", "torch"])
def test_tuned_goes_it_where_the_default_is_best(
    comm: Any, calls: list[int], kind: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setenv("HPCOMM_TUNED", str(tmp_path / "none.json"))
    x = [1.5, comm.rank]
    given = {"numpy": np.array, "buffer": partial(array, "d"), "torch": torch.tensor}[kind](x)
    total = np.array([1.5 * comm.size, sum(range(comm.size))])
    for _ in range(3):
        assert np.array_equal(np.asarray(comm.all_reduce(given, algorithm="tuned")), total)
    assert calls, "it went another way"
    one = calls.copy()
    found = comm.all_reduce(given, algorithm="ring")
    assert np.array_equal(np.asarray(found), total)
    assert calls == one


@BOTH
def test_who_leaves_does_not_take_from_whom_it_leaves_behind(comm: Any) -> None:
    """Places are used again after close(), but not while another rank is still in its last call there."""
    if comm.size < 3 or comm.node_collectives is None:
        pytest.skip("takes two ranks that go on without the first")
    world, others = MPI.COMM_WORLD, range(1, comm.size)
    x = np.full(4, 2.0**comm.rank)
    with hpcomm.Communicator(world, name="left", check=comm.check) as left:
        if left.rank == 0:
            flags = left.node_collectives.small.flags
            looks = flags.look

            def late(line: Any, flag: int, mine: int) -> None:
                """Its own numbers are there; the others come, fold, and go on."""
                flags.look = looks
                for rank in others:
                    world.send("come", rank)
                for rank in others:
                    world.recv(source=rank)
                looks(line, flag, mine)

            flags.look = late
            got = left.all_reduce(x)
        else:
            world.recv(source=0)
            got = left.all_reduce(x)
            left.close()
            for _ in range(2 * _pairs(comm.size)):
                with comm.group(others) as group:
                    group.all_reduce(x + 100)
            world.send("gone", 0)
    assert got.tolist() == [2**comm.size - 1] * 4
