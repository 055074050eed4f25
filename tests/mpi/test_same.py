"""Equal values on all ranks: comm.same, and check="values"."""

from __future__ import annotations

import inspect
import itertools
import random
import re
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

import hpcomm
from hpcomm.communicator.verbs import direct
from hpcomm.errors import MismatchError, PeerFailedError, UsageError


class Node:
    """Something whose repr is its address."""

    def __init__(self, **attributes: object) -> None:
        vars(self).update(attributes)


def circle(first: str, second: str) -> set[Node]:
    """Two that are part of each other."""
    nodes = [Node(name=first), Node(name=second)]
    for node in nodes:
        node.near = set(nodes) - {node}  # type: ignore[attr-defined]
    return set(nodes)


def state(step: int = 1) -> dict[str, Any]:
    """Some of everything, the same on all ranks. step: 1, or -1 for another order in dicts and sets."""
    twice, model = "twi" + str(2), torch.nn.Linear(3, 2)
    keys = [Node(args=[1]), Node(args=[2]), (Node(), frozenset((0, 8)[::step])), 1.5]
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(0.25)
    return {
        "x": np.arange(12.0).reshape(3, 4),
        "nan": np.array([np.nan, 1.0, -0.0]),
        "half": torch.ones(4, dtype=torch.bfloat16),
        "list": [1, 2.5, True, None, "text", b"bytes", 1j, (), {}],
        "model": model,
        "objects": np.array([1, "a"], object),
        "keys": dict([(key, i) for i, key in enumerate(keys)][::step]),
        "twins": dict([(Node(), i) for i in range(3)][::step]),
        "nodes": {Node(args=i) for i in range(20)[::step]} | {frozenset((0, 8)[::step])},
        "circle": circle(*("a", "b")[::step]),
        "attributes": Node(**dict([("x", 1), ("y", 2)][::step])),
        "sparse": torch.eye(3, dtype=torch.complex64).to_sparse(),
        "masked": np.ma.masked_less(np.arange(4.0), 2),
        "seen": {"a", "b", twice},
        "twice": [twice, twice],
        "empty": np.zeros((0, 3)),
        "random": random.Random(1),
        "numpy": np.random.default_rng(1),
        "torch": torch.Generator().manual_seed(1),
    }


def set_bit(x: Any) -> None:
    x["x"].view(np.uint8)[1, 16] ^= 1  # of element (1, 2)


def set_nan(x: Any) -> None:
    x["nan"].view(np.uint64)[0] ^= 1


def drop_key(x: Any) -> None:
    del x["half"]


def put(key: str, value: Any) -> Callable[[Any], None]:
    return lambda x: x.update({key: value})


def change_weight(x: Any) -> None:
    with torch.no_grad():
        x["model"].weight[1, 2] = 0.5


DIFFERENCES = {  # of the last rank; where it is, what it holds there, what the others hold
    "one bit": (set_bit, "['x'][1, 2]", "6.000000000000001 (0x4018000000000001)", "6.0 (0x4018000000000000)"),
    "a NaN's bits": (set_nan, "at ['nan'][0]", "nan (0x7ff8000000000001)", "nan (0x7ff8000000000000)"),
    "the sign of 0": (put("nan", np.array([np.nan, 1.0, 0.0])), "['nan'][2]", "0.0 (0x0000", "-0.0 (0x8000"),
    "a dtype": (put("x", np.ones((3, 4), "f4")), "['x']", "float32 (3, 4)", "float64 (3, 4)"),
    "a shape": (put("empty", np.zeros((0, 4))), "['empty']", "float64 (0, 4)", "float64 (0, 3)"),
    "no key": (drop_key, "['half']", "nothing", "bfloat16 (4,)"),
    "one more key": (put("zz", 1), "['zz']", "int 1", "nothing"),
    "a weight": (change_weight, "['model']['weight'][1, 2]", "0.5 (0x3f000000)", "0.25 (0x3e800000)"),
    "a number": (put("list", [1, 2.25]), "['list'][1]", "float 2.25", "float 2.5"),
    "another type": (put("seen", ["a", "b", "twi2"]), "['seen']", "list", "set"),
    "a key": (put("keys", {(Node(), frozenset((8, 1))): 2}), "['keys'][", "nothing", "int "),
    "a twin": (put("twins", {Node(): 0, Node(): 2, Node(): 5}), "['twins'][Node ", "int ", "int "),
    "an element": (put("nodes", {Node(args=i) for i in range(1, 21)}), "['nodes']{", "", ""),
    "an attribute": (put("attributes", Node(x=1, y=3)), "['attributes'].y", "int 3", "int 2"),
    "one sparse": (put("sparse", 2 * state()["sparse"]), "['sparse'].", "(2+0j) (0x", "(1+0j) (0x"),
    "a random state": (put("random", random.Random(2)), "['random']", "int", "int"),
    "numpy's": (put("numpy", np.random.default_rng(2)), "['numpy']", "", ""),
    "torch's": (put("torch", torch.Generator().manual_seed(2)), "['torch'].get_state()[", "", ""),
}  # fmt: skip


def test_what_is_equal_passes_and_is_returned(comm: Any) -> None:
    x = state(-1 if comm.rank % 2 else 1)
    if comm.rank % 2:
        x = dict(reversed(x.items()))
        x["half"] = x["half"].clone()
        x["x"] = torch.from_numpy(x["x"].T.copy()).T  # a tensor of other strides
        x["twice"] = ["".join(["twi", "2"]), "twi2"]
    assert comm.same(x, "state") is x
    long = np.full(4, 1.5, "g")
    if np.finfo("g").nmant == 63:  # on x86, where six bytes only fill up each element
        long.view(np.uint8).reshape(4, 16)[:, 10:] = comm.rank
    assert comm.same(long) is long
    for each in (3, np.float32(2), "text", None, [], range(3), np.linalg.norm, hpcomm, slice(2)):
        assert comm.same(each) is each


@pytest.mark.parametrize("kind", DIFFERENCES)
def test_a_difference_is_named_on_every_rank_with_who_holds_what(comm: Any, kind: str) -> None:
    change, at, there, here = DIFFERENCES[kind]
    x, last = state(), comm.size - 1
    if comm.rank == last:
        change(x)
    if comm.size == 1:
        assert comm.same(x) is x
        return
    with pytest.raises(MismatchError) as caught:
        comm.same(x, what="weights")
    text = str(caught.value)
    first = "rank 0 holds" if last == 1 else f"ranks 0-{last - 1} hold"
    assert text.startswith("weights differ between ranks, first at ")
    assert at in text.splitlines()[0], text
    assert re.search(rf"\n  {first} {re.escape(here)}.* at test_same.py:\d+\n", text), text
    assert re.search(rf"\n  rank {last} holds {re.escape(there)}.* at test_same.py:\d+\n", text), text
    assert (
        f"where: same on communicator '{comm.name}' (rank {comm.rank} of {comm.size}) at test_same.py:"
        in text
    )
    comm.same(1)  # the ranks are in step


@pytest.mark.few
def test_the_first_of_many_elements_is_found_and_groups_stay_apart(comm: Any) -> None:
    x = np.zeros((300, 1000), "f4")
    x[123, 456 + comm.rank] = x[-1, 0] = 1.0
    if comm.size == 1:
        return
    with pytest.raises(MismatchError) as caught:
        comm.same(x)
    assert str(caught.value).startswith(
        "values differ between ranks, first at [123, 456].\n  rank 0 holds 1.0"
    )
    assert all(f"rank {rank} holds 0.0 (0x00000000)" in str(caught.value) for rank in range(1, comm.size))


@pytest.mark.few
def test_what_cannot_be_compared_is_refused_and_the_others_are_told(comm: Any) -> None:
    with pytest.raises(UsageError, match=r"a lock at \['a'\] cannot be compared"):
        comm.same({"a": threading.Lock()})
    circle: list[Any] = []
    circle.append(circle)
    comm.same(circle)
    if comm.size == 1 or comm.check == "off":
        return
    part = comm.dup("part")
    with pytest.raises(UsageError if comm.rank == 0 else PeerFailedError, match="lock"):
        part.same(threading.Lock() if comm.rank == 0 else 1)


# -- check="values" ----------------------------------------------------------------------------------


@pytest.fixture
def checked(own_comm: Any) -> Iterator[Any]:
    with own_comm.dup("checked", check="values") as made:
        assert made.check == ("values" if made.size > 1 else "off")
        yield made


def flip(comm: Any, monkeypatch: pytest.MonkeyPatch, which: int = 1) -> None:
    """Let the last rank get another bit in the result of the which-th call from now on."""
    called, finished = itertools.count(1), direct._finished

    def wrong(*given: Any) -> Any:
        result = finished(*given)
        if next(called) == which and comm.rank == comm.size - 1:
            result.view(np.uint8).reshape(-1)[0] ^= 1
        return result

    monkeypatch.setattr(direct, "_finished", wrong)


def told(comm: Any, begin: Callable[[], object]) -> str:
    """What begin raises on every rank."""
    with pytest.raises(MismatchError) as caught:
        begin()
    comm.barrier()  # the ranks are in step, and what has been told is over
    return str(caught.value)


@pytest.mark.parametrize("verb", ["all_reduce", "broadcast", "all_gather"])
def test_a_result_that_differs_is_told_at_the_next_call(
    checked: Any, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    comm, x = checked, np.ones(3)
    comm.all_reduce(x)
    flip(comm, monkeypatch)
    line = inspect.currentframe().f_lineno + 1  # type: ignore[union-attr]
    getattr(comm, verb)(x)
    if comm.size == 1:
        return
    text = told(comm, comm.barrier)
    more = {"all_reduce": ", op='sum'", "broadcast": ", root=0"}.get(verb, "")
    first = "rank 0 holds" if comm.size == 2 else f"ranks 0-{comm.size - 2} hold"
    assert text.startswith(f"{verb} gave the ranks of 'checked' different values.\n  {first} ")
    rows = re.findall(r"hold\w* ([0-9a-f]{8}): (.*)", text)
    assert [row[1] for row in rows] == [f"{verb}(float64, 3 elements{more}) at test_same.py:{line}"] * 2
    assert rows[0][0] != rows[1][0]
    assert f"\n  rank {comm.size - 1} holds " in text
    assert f"where: barrier on communicator 'checked' (rank {comm.rank} of {comm.size})" in text


def test_results_in_the_background_are_compared_when_all_have_waited(
    checked: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    comm, x = checked, np.ones(3)
    flip(comm, monkeypatch)
    first, second = comm.all_reduce(x, async_op=True), comm.broadcast(x, async_op=True)
    if comm.rank % 2:
        second.wait()  # on some ranks only
    comm.barrier()
    first.wait()  # here the bit of the last rank changes, if it has not waited for the second before
    second.wait()
    if comm.size > 1:
        text = told(comm, lambda: comm.all_reduce(x))
        assert re.match(f"{'all_reduce' if comm.size % 2 else 'broadcast'} gave the ranks of 'checked'", text)


def test_the_general_path_and_functions_are_compared_too(checked: Any) -> None:
    comm = checked
    x = torch.ones(4)[::2]
    comm.all_reduce(x, lambda a, b: a + b + (comm.rank == 0))  # one that is not the same on all ranks
    if comm.size > 1:
        text = told(comm, lambda: comm.all_gather(x))
        assert "rank 0 holds " in text
        assert "all_reduce(float32, 2 elements, op=a function) at test_same.py:" in text


def test_equal_results_of_all_kinds_pass(checked: Any) -> None:
    comm = checked
    for x in (np.full(3, np.nan), torch.ones(2, dtype=torch.bfloat16), np.ones(()), np.ones((4, 6))[:, ::2]):
        comm.all_reduce(x), comm.broadcast(x), comm.all_gather(x), comm.all_reduce(x, async_op=True).wait()
    assert comm.all_reduce(1) == comm.size
    comm.all_gather_ragged(np.ones((comm.rank, 2))), comm.broadcast_ragged(np.ones((3, 2)).T)
    comm.all_gather_ragged(np.ones(comm.rank), async_op=True).wait()
    comm.broadcast_object({comm.rank: 1}), comm.all_gather_object(comm.rank)
    comm.reduce(np.ones(2)), comm.scan(np.ones(2)), comm.scatter(np.ones((comm.size, 2)))
    comm.all_reduce(np.ones(2), deterministic=True), comm.all_reduce(np.ones(2), algorithm="ring")
    with comm.plan("all_reduce", np.ones(2)) as plan:
        plan.start()
        plan.wait()
    with comm.dup() as part, comm.split(comm.rank % 2) as half:
        assert part.check == comm.check
        half.all_reduce(np.array(comm.rank))
        part.barrier()
    comm.barrier()


def test_bytes_that_only_fill_up_elements_do_not_count(checked: Any) -> None:
    comm, x = (
        checked,
        np.zeros(3, np.dtype({"names": ["a", "b"], "formats": ["i1", ("g", 2)], "offsets": [3, 16]})),
    )
    x.view(np.uint8)[...] = comm.rank
    x["a"], x["b"] = 1, 0.5
    for each in (x, x["b"].copy(), x[::2]):
        comm.same(each)
        comm.all_reduce(each, lambda a, b: a)
    comm.barrier()
    if comm.size > 1:
        x["b"][1, 0] += comm.rank
        with pytest.raises(MismatchError, match=r"first at \[1\]"):
            comm.same(x)


def test_a_call_that_differs_comes_before_values_that_do(
    checked: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    comm, x = checked, np.ones(3)
    if comm.size == 1:
        return
    flip(comm, monkeypatch)
    comm.all_reduce(x)
    with pytest.raises(MismatchError, match="ranks disagree about call #2"):
        comm.all_reduce(x, "max" if comm.rank else "min")
    assert told(comm, comm.barrier).startswith("all_reduce gave")


@pytest.mark.few
def test_levels_that_differ_are_refused(own_comm: Any) -> None:
    if own_comm.size > 1:
        with pytest.raises(MismatchError, match=r"check='(values|full)' on rank ., and another"):
            own_comm.dup(check="full" if own_comm.rank else "values")


@pytest.mark.few
def test_two_groups_compare_calls_only(own_comm: Any) -> None:
    if own_comm.size > 1:
        odd = own_comm.rank % 2
        with (
            own_comm.split(odd) as half,
            half.create_intercomm(0, own_comm, 1 - odd) as both,
            both.dup(check="values") as made,
        ):
            assert made.check == "full"
            assert made.all_reduce(np.ones(1)) == made.remote_size
            with pytest.raises(UsageError, match="same needs one group of ranks"):
                made.same(1)
