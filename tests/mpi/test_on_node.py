"""Collectives among ranks of one node: by the native core where it is, and right on every way."""

from __future__ import annotations

import random
import time
import warnings
from array import array
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from contract import BY_NAME, VERBS, Verb, call
from mpi4py import MPI

import hpcomm
from hpcomm.agree import doing
from hpcomm.node import native, segment

pytestmark = [pytest.mark.once, pytest.mark.mpi(min_size=2)]
WORLD = MPI.COMM_WORLD
SHORT = (0, 1, 6, 7, 525, 526, 527)  # of float64: beside the arrival, in a cell, longer
LONG = (2049, 40_001, 140_000)  # in one piece, in several
DTYPES = ("float64", "float32", "int8", "complex64", "bool", "int64", "uint8", "float64")
FORMS: list[Callable[[Any], Any]] = [
    np.copy,
    lambda x: torch.from_numpy(x.copy()),
    lambda x: np.repeat(x, 2, axis=-1)[..., ::2],
    lambda x: torch.from_numpy(x[..., ::-1].copy()).flip(-1),
    lambda x: array(x.dtype.char, x.tobytes()) if x.ndim == 1 and x.dtype.char in "dfblB" else x.copy(),
    lambda x: np.asfortranarray(x),
]


@pytest.fixture
def comm(request: pytest.FixtureRequest) -> Iterator[hpcomm.Communicator]:
    level = getattr(request, "param", "light")
    check = "off" if level == "off" or (level == "mixed" and WORLD.rank == 0) else "light"
    with hpcomm.Communicator(WORLD, name="near", check=check) as made:
        if level == "direct" and made.context.node is not None:
            made.context.node.direct_from = 0
        yield made


LEVELS = pytest.mark.parametrize("comm", ["light", "off", "mixed"], indirect=True)


def calls(comm: Any) -> int:
    """How many calls this rank has made by the native core."""
    return 0 if comm.context.node is None else comm.context.node.number


def needs_core(comm: Any) -> None:
    if comm.context.node is None:
        pytest.skip("no native core here")


def given_by(comm: Any, verb: Verb, n: int, dtype: str, turn: int = 0) -> list[Any]:
    """What each rank brings: n elements, or n for each rank."""
    shape = (comm.size, n) if verb.stacked else (n,)
    each = np.arange(np.prod(shape, dtype=int)).reshape(shape) * 7 + turn
    return [((each + 3 * rank) % 11).astype(dtype) for rank in range(comm.size)]


def is_same(found: Any, expected: Any) -> bool:
    if expected is None or found is None:
        return found is expected
    flat = np.asarray(found)
    return flat.dtype == expected.dtype and np.array_equal(flat.reshape(-1), expected.reshape(-1))


@pytest.mark.parametrize("comm", ["light", "off", "direct"], indirect=True)
@pytest.mark.parametrize("verb", VERBS, ids=str)
def test_every_length_and_form_gives_the_definition(comm: Any, verb: Verb) -> None:
    """Ranks bring different forms, and want results in different places: all meet in the same call."""
    longest = (530_000,) if verb.name == "broadcast" else ()
    begun, wrong = calls(comm), []
    for turn, n in enumerate((*SHORT, *LONG, *longest)):
        for once in range(4 if n < 3000 else 2):
            dtype, root = DTYPES[(turn + once) % len(DTYPES)], (turn + once) % comm.size
            given = given_by(comm, verb, n, dtype)
            expected = verb.expected(given, comm.rank, root)
            x = FORMS[(turn + once * comm.rank) % len(FORMS)](given[comm.rank])
            in_place, place = verb.same_shape and (once + comm.rank) % 3 == 2, None
            if in_place:
                place = x
            elif (once + comm.rank) % 3 and expected is not None and not isinstance(x, array):
                place = FORMS[(turn + once + comm.rank) % 4](np.ones_like(expected))
            found = call(comm, verb, x, root, place, "blocking")
            if not is_same(found, expected) or (
                place is not None and found is not place and found is not None
            ):
                wrong.append((n, dtype, once, found, expected))
            if not in_place and not is_same(x, given[comm.rank]):
                wrong.append((n, dtype, once, "x has changed"))
    assert not wrong
    assert comm.context.node is None or calls(comm) > begun


Given = tuple[Any, dict[str, Any]]  # x and the keywords of a call


def at_an_odd_address(x: Any) -> Any:
    odd = np.ndarray(x.shape, x.dtype, bytearray(x.nbytes + 17), 1)
    odd[...] = x
    return odd


def elsewhere(x: Any, words: dict[str, Any], verb: Verb, lay: Callable[[Any], Any]) -> Given:
    """The same call with an out that lies so."""
    room = lay(np.ones_like(words["place"])) if words["place"] is not None else None
    return x, words | ({} if room is None else {"out": room})


# Why the core takes no direct call of one rank, by the functions of module.c that find it, and such a call:
REASONS: dict[str, Callable[[Any, dict[str, Any], Verb], Given]] = {
    "say: the operator is no word": lambda x, w, v: (x, w | {"op": MPI.SUM} if v.reduces else w),
    "say: the root is no int": lambda x, w, v: (x, w | {"root": np.int64(w["root"])} if v.rooted else w),
    "look_at: x of another library": lambda x, w, v: (memoryview(x), w),
    "look_at: x has steps": lambda x, w, v: (np.repeat(x, 2, axis=-1)[..., ::2], w),
    "look_at: x at an odd address": lambda x, w, v: (at_an_odd_address(x), w),
    "look_at: x of another class": lambda x, w, v: (x.view(type("Own", (np.ndarray,), {})), w),
    "look_at: out has steps": lambda x, w, v: elsewhere(
        x, w, v, lambda o: np.repeat(o, 2, axis=-1)[..., ::2]
    ),
    "look_at: out at an odd address": lambda x, w, v: elsewhere(x, w, v, at_an_odd_address),
    "look_at: out of another library": lambda x, w, v: elsewhere(x, w, v, torch.from_numpy),
    "prepare: no x": lambda x, w, v: (
        (None, w | {"out": x}) if v.name == "broadcast" and w["beside"] else (x, w)
    ),
    "shape_of_result: blocks in a row": lambda x, w, v: (
        (x.reshape(-1), w | {"out": np.ones_like(w["place"])})
        if v.name in ("scatter", "reduce_scatter")
        else (x, w)
    ),
    "has_shape: blocks in a row": lambda x, w, v: elsewhere(
        x, w, v, lambda o: o.reshape(-1) if v.name in ("gather", "all_gather") else o
    ),
    "may_share: all of x": lambda x, w, v: (
        x,
        w | {"out": x[...]} if v.same_shape and v.name != "reduce" else w,
    ),
    "array_like: a large new result": lambda x, w, v: (x, w),
}


@pytest.mark.parametrize("comm", ["light", pytest.param("off", marks=pytest.mark.few)], indirect=True)
@pytest.mark.parametrize("reason", REASONS)
def test_the_core_carries_out_a_call_on_all_ranks_or_on_none(comm: Any, reason: str) -> None:
    """Whatever one rank brings, all come to the same call of the core."""
    needs_core(comm)
    wrong = []
    for verb in VERBS:
        for turn, n in enumerate((0, 3, 700) if reason[:10] != "array_like" else (530_000,)):
            root, odd = turn % comm.size, (turn + 1) % comm.size
            given = given_by(comm, verb, n, "float64")
            expected = verb.expected(given, comm.rank, root)
            x, words = given[comm.rank].copy(), {"root": root, "place": expected, "beside": root != comm.rank}
            if comm.rank == odd:
                x, words = REASONS[reason](x, words, verb)
            elif "array_like" in reason and expected is not None:
                words["out"] = np.ones_like(expected)
            keywords = {
                k: words[k] for k in ("op", "root", "out") if k in words and (k != "root" or verb.rooted)
            }
            begun = calls(comm)
            found = getattr(comm, verb.name)(x, **keywords)
            made = comm.all_gather_object(calls(comm) - begun)
            if set(made) != {1} or not is_same(found, expected):
                wrong.append((verb.name, n, made, found))
    assert not wrong


@pytest.mark.parametrize("check", ["light", "off"])
def test_where_long_calls_find_no_room_they_go_by_mpi_on_all_ranks(
    monkeypatch: pytest.MonkeyPatch, check: hpcomm.communicator.Check
) -> None:
    core, whole = native.core(), segment.current
    if core is None or whole is None:
        pytest.skip("no native core here")
    node = WORLD.Split_type(MPI.COMM_TYPE_SHARED)
    room = 5 * WORLD.size * core.UNIT  # the communicator itself has room there
    small = segment.opened(segment.telling(node), node.rank, room)
    node.Free()
    monkeypatch.setattr(segment, "current", whole._replace(shared=small))
    wrong = []
    with hpcomm.Communicator(WORLD, name="cramped", check=check) as comm:
        monkeypatch.undo()
        for turn, (verb, n) in enumerate((verb, n) for n in (60_000, 3) for verb in VERBS):
            given = given_by(comm, verb, n, "float64")
            begun = calls(comm)
            found = call(comm, verb, given[comm.rank], turn % comm.size, None, "blocking")
            made = comm.all_gather_object(calls(comm) - begun)
            due = turn == 0 or n == 3  # the first long one is where they learn it
            if set(made) != {due} or not is_same(found, verb.expected(given, comm.rank, turn % comm.size)):
                wrong.append((verb.name, n, made, found))
    assert not wrong


@pytest.mark.parametrize("way", ["reduce_knows", "a function", "premul_sum", "longdouble", "most"])
def test_what_the_signature_keeps_from_the_core_is_kept_on_all_ranks(comm: Any, way: str) -> None:
    needs_core(comm)
    mine = np.arange(600.0) + comm.rank
    ops = {"a function": lambda a, b: a + b, "premul_sum": hpcomm.premul_sum(1.0)}
    if way == "most":
        comm.context.node.most = 100  # as where ranks may have devices
    x = mine.astype("longdouble") if way == "longdouble" else mine > 5 if way == "reduce_knows" else mine
    x = np.repeat(x, 2)[::2] if comm.rank == 0 else x
    op = "prod" if way == "reduce_knows" else ops.get(way, "sum")
    begun = calls(comm)
    found = comm.all_reduce(x, op)
    made = comm.all_gather_object(calls(comm) - begun)
    assert len(set(made)) == 1, made
    total = comm.size * np.arange(600.0) + sum(range(comm.size))
    expected = np.arange(600) > 5 if way == "reduce_knows" else total
    assert np.array_equal(np.asarray(found, expected.dtype), expected)


@pytest.mark.parametrize("n", [1, 700, 70_001])
@pytest.mark.parametrize("form", FORMS[:2])
def test_a_block_may_lie_in_the_whole(comm: Any, form: Any, n: int) -> None:
    p, r = comm.size, comm.rank
    for root in range(p):
        for name in ("all_gather", "gather"):
            verb = BY_NAME[name]
            given, whole = given_by(comm, verb, n, "float32"), form(np.zeros((p, n), np.float32))
            whole[r] = form(given[r])
            found = call(comm, verb, whole[r], root, whole, "blocking")
            assert is_same(found, verb.expected(given, r, root))
        whole = form(given_by(comm, BY_NAME["scatter"], n, "float32")[r])
        comm.scatter(whole, out=whole[r], root=root)
        assert is_same(whole[r], given_by(comm, BY_NAME["scatter"], n, "float32")[root][r])


@pytest.mark.parametrize("n", [1, 700, 50_000])
def test_new_results_have_memory_of_their_own(comm: Any, n: int) -> None:
    p, r = comm.size, comm.rank
    mine = np.arange(1.0 * p * n).reshape(p, n) + r
    frozen, tensor = mine.copy(), torch.from_numpy(mine.copy())
    frozen.setflags(write=False)
    for x in (frozen, tensor):
        for verb in VERBS:
            y = call(comm, verb, x, 0, None, "blocking")
            if y is not None:
                assert type(y) is (np.ndarray if x is frozen else torch.Tensor)
                y *= 0
            assert np.array_equal(x, mine), verb


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_halves_are_rounded_once_in_every_reduction(comm: Any, dtype: torch.dtype) -> None:
    p, r = comm.size, comm.rank
    for n in (1, 5, 700, 9000):
        given = (torch.randn(p, p, n, generator=torch.Generator().manual_seed(n)) * 100).to(dtype)
        total = given[0].float()
        for each in given[1:]:
            total = total + each.float()
        for op, exact in (("sum", total), ("avg", total / p), ("max", given.float().amax(0))):
            due = exact.to(dtype)
            assert torch.equal(comm.all_reduce(given[r], op), due)
            assert torch.equal(comm.reduce_scatter(given[r], op), due[r])
            found = comm.reduce(given[r], op, root=p - 1)
            assert torch.equal(found, due) if r == p - 1 else found is None


def test_averages(comm: Any) -> None:
    for n in (1, 3, 5000):
        due = np.arange(float(n)) + (comm.size - 1) / 2
        x = np.arange(float(n)) + comm.rank
        np.testing.assert_allclose(comm.all_reduce(x, "avg"), due)
        np.testing.assert_allclose(comm.all_reduce(x * 1j, "avg"), due * 1j)
        np.testing.assert_allclose(comm.reduce_scatter(np.tile(x, (comm.size, 1)), "avg"), due)
        assert comm.all_reduce(x, "avg", out=x) is x
        np.testing.assert_allclose(x, due)


ODD = {  # elements that arithmetic of another kind would make something else of
    "float64": [0.1, -0.0, np.nan, np.inf, 1e308, 1.7e308, 5e-324],
    "float32": [0.1, -0.0, np.nan, np.inf, 3e38, 3.4028235e38, 1e31, 1e-45, 16777216.0, 1.0, 1.0, -1.17e-38],
    "int64": [2**63 - 1, 2**63 - 1, -(2**63), -(2**63), 2**62],
    "uint64": [2**64 - 1, 2**63],
    "int32": [2**31 - 1, -(2**31)],
    "int8": [127, -128],
}


@pytest.mark.parametrize("dtype", ODD)
def test_odd_elements_are_what_numpy_makes_of_them_and_warn_nobody(comm: Any, dtype: str) -> None:
    """From the left in the order of ranks, so with the same bits on every way and length."""
    odd, folds = np.array(ODD[dtype], dtype), {"sum": np.add, "max": np.maximum, "min": np.minimum}
    for op, fold in folds.items():
        for n in (1, 2, 3, 1500, 20_000):
            given = [np.resize(np.roll(odd, -rank * step), n) for rank, step in enumerate((1, 1, 2, 3, 5))]
            expected = given[0]
            with np.errstate(all="ignore"):
                for each in given[1 : comm.size]:
                    expected = fold(expected, each)
            x = given[comm.rank].copy()
            with np.errstate(all="raise"), warnings.catch_warnings():
                warnings.simplefilter("error")
                found = [comm.all_reduce(x, op), comm.all_reduce(x[::-1], op)[::-1]]
                if dtype != "uint64":
                    found.append(comm.all_reduce(torch.from_numpy(x), op).numpy())
                found.append(comm.all_reduce(x, op, out=x))
            for y in found:
                same = (
                    (y == expected) & (np.signbit(y) == np.signbit(expected))
                    if op == "sum"
                    else y == expected
                )
                assert (same | ((y != y) & (expected != expected))).all(), (op, n)
    assert np.geterr()["over"] == "warn"


@pytest.mark.parametrize("dtype", ["uint64", "float64", "float32", "float16", "int8"])
def test_elements_are_moved_bit_for_bit(comm: Any, dtype: str) -> None:
    nbytes = np.dtype(dtype).itemsize
    for pattern in (0x7FF4_0000_0000_0001, 0x7FA0_0001, 0x7D01, 0x80):  # also NaNs that signal
        for n in (1, 9, 3000):
            bits = pattern.to_bytes(8, "little")[:nbytes] * n
            for root in range(comm.size):
                mine = bits if comm.rank == root else bytes(len(bits))
                x, y = (np.frombuffer(bytearray(mine), dtype) for _ in range(2))
                assert comm.broadcast(x, root, out=x).tobytes() == bits
                assert comm.broadcast(y, root).tobytes() == bits
                assert comm.all_gather(y)[root].tobytes() == bits


def test_types_that_the_core_does_not_know_go_by_mpi(comm: Any) -> None:
    for n in (1, 3000):
        x = np.arange(n, dtype=np.longdouble) + comm.rank
        np.testing.assert_array_equal(comm.broadcast(x, 1), x - comm.rank + 1)
        np.testing.assert_array_equal(comm.all_reduce(x, "max"), x - comm.rank + comm.size - 1)
        moments = np.arange(n).astype("datetime64[s]")
        np.testing.assert_array_equal(comm.all_gather(moments)[-1], moments)


@pytest.mark.parametrize("offset", [1, 4])
@pytest.mark.parametrize("dtype", ["float64", "complex64", "complex128"])
def test_where_an_array_lies_and_how_many_axes_it_has_is_its_ranks_own_affair(
    comm: Any, dtype: str, offset: int
) -> None:
    for n in (1, 5, 3000):
        for verb in VERBS:
            given = given_by(comm, verb, n, dtype)
            x = given[comm.rank].copy()
            if comm.rank == 0:
                memory = np.zeros(x.nbytes + offset, np.uint8)
                x = np.frombuffer(memory.data, dtype, offset=offset).reshape(x.shape)
                x[...] = given[0]
            elif comm.rank == 1:
                x = x.reshape(*x.shape[:-1], *(1,) * 20, n)
            found = call(comm, verb, x, 1, x if verb.same_shape else None, "blocking")
            assert is_same(found, verb.expected(given, comm.rank, 1)), (verb, n)


class Nobody:
    def before(self, call: Any) -> None: ...

    def after(self, call: Any) -> None: ...


def late(chance: random.Random, share: float) -> None:
    if chance.random() < share:
        time.sleep(chance.random() * 3e-3)


@LEVELS
def test_any_calls_follow_each_other_while_ranks_come_late(comm: Any) -> None:
    """A random program, the same on all ranks, whose ranks sleep at other times: old data would be seen."""
    same_for_all, own = random.Random(11), random.Random(comm.rank)
    stop, plan_in = (lambda: None), np.zeros(3)
    plan = comm.plan("all_reduce", plan_in, out=np.empty(3))
    for turn in range(250):
        verb = same_for_all.choice(VERBS)
        n, root = (
            same_for_all.choice((0, 1, 2, 7, 300, 1100, 2300, 20_000)),
            same_for_all.randrange(comm.size),
        )
        how = same_for_all.random()
        given = given_by(comm, verb, n, "float64", turn)
        late(own, 0.05)
        x = FORMS[own.choice((0, 0, 1, 2, 3))](given[comm.rank])
        place = x if verb.same_shape and own.random() < 0.3 else None
        found = call(comm, verb, x, root, place, "async" if how < 0.1 else "blocking")
        assert is_same(found, verb.expected(given, comm.rank, root)), (turn, verb, n)
        if how > 0.95:
            comm.barrier()
        elif how > 0.9:
            plan_in[:] = turn + comm.rank
            assert (plan() == turn * comm.size + sum(range(comm.size))).all()
        elif how > 0.85:
            assert (comm.all_reduce(np.ones(n + 1), algorithm="ring") == comm.size).all()
        if turn % 50 == 20 * (comm.rank + 1) % 50:
            stop()
            stop = comm.observe(Nobody())  # on some ranks only
        elif turn % 50 == 45:
            stop()
    stop()
    plan.close()


@LEVELS
def test_who_waits_for_nobody_may_run_ahead(comm: Any) -> None:
    """As far as it may; others are late now and then, and still find what was laid there for them."""
    for turn in range(120):
        n = (1, 700, 4000)[turn % 3]
        x = np.full(n, float(turn if comm.rank == 0 else -1))
        if comm.rank and turn % 40 == 7:
            time.sleep(3e-3)
        form = x if turn % 4 else x[::-1]
        comm.broadcast(form, root=0, out=form)
        assert (x == turn).all(), turn
    for turn in range(6):
        for i in range(50):
            found = comm.gather(np.array([float(i + comm.rank)]), root=turn % comm.size)
            assert found is None or found[:, 0].tolist() == [i + rank for rank in range(comm.size)]
        if comm.rank == turn % comm.size:
            time.sleep(0.01)
        assert comm.all_reduce(np.array([turn])).tolist() == [turn * comm.size]


def test_factors_functions_and_named_algorithms_go_other_ways(comm: Any) -> None:
    begun, x = calls(comm), np.ones(5000)
    assert comm.all_reduce(x, hpcomm.premul_sum(0.5))[0] == comm.size / 2
    assert comm.all_reduce(x, algorithm="ring")[0] == comm.size
    assert comm.all_reduce(x, deterministic=True)[0] == comm.size
    assert calls(comm) == begun
    assert comm.all_reduce(x, async_op=True).wait()[0] == comm.size
    comm.barrier(async_op=True).wait()
    assert comm.all_reduce(x, lambda a, b: a + b)[0] == comm.size  # whose arrays the core gathers
    assert calls(comm) == begun + 3


def test_tuned_meets_whatever_each_rank_brings(comm: Any, monkeypatch: Any, tmp_path: Any) -> None:
    monkeypatch.setenv("HPCOMM_TUNED", str(tmp_path / "none.json"))
    total = np.array([1.5 * comm.size, sum(range(comm.size))])
    for turn in range(4):
        x = FORMS[(turn + comm.rank) % 4](np.array([1.5, comm.rank]))
        assert np.array_equal(np.asarray(comm.all_reduce(x, algorithm="tuned")), total)


def test_a_timeout_leaves_calls_with_the_core(comm: Any) -> None:
    for seconds in (20, None, 20, None):
        comm.timeout = seconds
        begun = calls(comm)
        assert comm.all_reduce(np.ones(3)).tolist() == [comm.size] * 3
        assert comm.broadcast(np.full(3000, comm.rank), 1)[-1] == 1
        comm.barrier()
        assert comm.all_reduce(np.ones(3)[::2]).tolist() == [comm.size] * 2
        assert comm.all_reduce(np.ones(3, np.longdouble)).tolist() == [comm.size] * 3  # MPI's
        assert calls(comm) == begun + 4 * (comm.context.node is not None)


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("kind", [np.float64, np.longdouble])  # by the core, by MPI
def test_who_does_not_come_in_time_may_come_later(own_comm: Any, kind: Any) -> None:
    x, last = np.ones(3, kind), own_comm.size - 1
    own_comm.timeout = 0.1 if own_comm.rank != last else 30
    if own_comm.rank == last:
        time.sleep(0.5)
        assert own_comm.all_reduce(x)[0] == own_comm.size
    else:
        with pytest.raises(hpcomm.WaitTimeoutError, match=r"(?s)all_reduce.*comm\.timeout"):
            own_comm.all_reduce(x)
    own_comm.timeout = 30
    assert own_comm.all_reduce(2 * x)[0] == 2 * own_comm.size


@pytest.mark.mpi(min_size=2)
def test_who_does_not_come_in_time_is_named_with_what_it_does_instead(
    own_comm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs_core(own_comm)
    monkeypatch.setattr(doing, "_AT_A_FAILURE_S", 30.0)  # for its answer, on a busy machine
    last = own_comm.size - 1
    if own_comm.rank != last:
        own_comm.timeout = 0.1
        row = rf"waited 0\.1 s for ranks? .*\n  rank {last}: not in a call of hpcomm, .* at test_on_node\.py"
        with pytest.raises(hpcomm.WaitTimeoutError, match=f"(?s){row}"):
            own_comm.barrier()
    WORLD.Barrier()
    own_comm.timeout = 30
    if own_comm.rank == last:
        own_comm.barrier()  # which the others have begun
    own_comm.barrier()


@pytest.mark.filterwarnings("ignore:ComplexHalf")
def test_halves_with_a_sign_still_to_be_applied(comm: Any) -> None:
    x = torch.tensor([1 + 2j, 3 - 4j], dtype=torch.complex64).to(torch.complex32).conj().imag
    assert x.is_neg()
    assert x.dtype == torch.float16
    assert comm.all_reduce(x).tolist() == [-2 * comm.size, 4 * comm.size]


OF_ONE = ("broadcast", "gather", "all_gather")  # a rank brings one object, not one for each
SIZES = (0, 100, 1000, 5000, 40_000)  # bytes of blocks: with the arrival, or read where they are


def payload(comm: Any, verb: str, kind: str, sizes: tuple[int, ...], rank: int) -> Any:
    """What a rank brings to verb_kind."""

    def one(to: int) -> Any:
        if kind == "ragged":
            return np.full((sum(sizes) // 8, 1 + rank), 10 * rank + to)
        return {"text": "x" * sizes[0], "arrays": [np.full(n // 8, 10.0 * rank + to) for n in sizes]}

    return one(0) if verb in OF_ONE else [one(to) for to in range(comm.size)]


@pytest.mark.parametrize("kind", ["object", "ragged"])
def test_objects_and_ragged_arrays_go_by_the_core(comm: Any, kind: str) -> None:
    """One call each, but for the first, which learns whether ranks may read each other's memory."""
    comm.all_gather_object(None)
    for turn, n in enumerate(SIZES):
        for many in (1, 3, 100) if n < 2000 else (1, 3):
            sizes, root, begun = (n,) * many, turn % comm.size, calls(comm)
            for verb in (*OF_ONE, "scatter", "all_to_all"):
                everybodys = [payload(comm, verb, kind, sizes, r) for r in range(comm.size)]
                mine, words = everybodys[comm.rank], {}
                if verb not in ("all_gather", "all_to_all"):
                    words = {"root": root}
                got = getattr(comm, f"{verb}_{kind}")(mine, **words)
                want = {
                    "broadcast": everybodys[root],
                    "gather": everybodys if comm.rank == root else None,
                    "all_gather": everybodys,
                    "scatter": everybodys[root][comm.rank] if verb == "scatter" else None,
                    "all_to_all": [each[comm.rank] for each in everybodys] if verb == "all_to_all" else None,
                }[verb]
                np.testing.assert_equal(got, want)
            if comm.context.node is not None and comm.context.node.direct:
                assert calls(comm) == begun + 5


def test_where_nobody_may_read_others_memory_objects_go_by_mpi(own_comm: Any) -> None:
    needs_core(own_comm)

    class Without:
        """A core that has found that out."""

        direct, timeout = False, 0

        def share(self, *arguments: Any) -> object:
            return NotImplemented

        def __getattr__(self, name: str) -> Any:
            return getattr(own_comm.context.near.node, name)

    own_comm.context.node = own_comm.context.direct = Without()
    begun, x = calls(own_comm), np.arange(3000.0)
    assert [each[0] for each in own_comm.all_gather_object((own_comm.rank, x))] == [*range(own_comm.size)]
    own_comm.timeout = 30
    assert (own_comm.broadcast_ragged(x if own_comm.rank == 1 else None, 1) == x).all()
    assert calls(own_comm) == begun


def test_objects_may_come_late_as_arrays_may(own_comm: Any) -> None:
    last = own_comm.size - 1
    own_comm.all_gather_object(None)
    own_comm.timeout = 0.1 if own_comm.rank != last else 30
    if own_comm.rank == last:
        time.sleep(0.5)
        assert own_comm.all_gather_object(7) == [7] * own_comm.size
    else:
        with pytest.raises(hpcomm.WaitTimeoutError, match=r"(?s)all_gather_object.*comm\.timeout"):
            own_comm.all_gather_object(7)
    own_comm.timeout = 30
    assert own_comm.all_gather_object(own_comm.rank) == [*range(own_comm.size)]
    assert own_comm.all_reduce_object(1) == own_comm.size


def test_no_operator_and_no_root_are_refused_in_the_background_as_well(comm: hpcomm.Communicator) -> None:
    """Where nothing is said, the core has sum and rank 0."""
    x: Any = np.ones((comm.size, 2))
    nothing: Any = None
    for later in (False, True):
        for verb in ("all_reduce", "reduce", "reduce_scatter", "scan", "exscan"):
            with pytest.raises(hpcomm.UsageError, match="op is a NoneType"):
                getattr(comm, verb)(x, nothing, async_op=later)
        for verb in ("broadcast", "gather", "scatter"):
            with pytest.raises(hpcomm.RankError, match="root None"):
                getattr(comm, verb)(x, nothing, async_op=later)
    assert comm.all_reduce(1) == comm.size
