"""Mistakes of people who come from mpi4py, torch and numpy: told what happened, where, and what to do.

Those that end in an exception of Python's own, or end the job, are in tests/mpi_jobs/test_misuse.py.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

import hpcomm

pytestmark = pytest.mark.few

A, B = np.ones(2), np.ones(3)
RECORDS = np.zeros(2, [("a", "f8"), ("b", "i4")])
NAN = np.ma.masked_array([1.0, 2.0], [0, 1])
Call = Callable[[Any], object]
Case = tuple[Call, str, str]  # what is called on a communicator; words of what happened; words of the hint


def table() -> Any:
    return pytest.importorskip("pandas").DataFrame({"a": B})


MISTAKES: dict[str, Case] = {
    "root of too many": (lambda c: c.broadcast(B, root=5), "root 5 is no rank of 'test'", "a rank from 0 to"),
    "negative root": (lambda c: c.broadcast(A, root=-1), "root -1 is no rank", "a rank from 0 to"),
    "negative dest": (lambda c: c.send(A, dest=-9), "dest -9 is no rank of 'test'", "a rank from 0 to"),
    "dest of float": (lambda c: c.send(A, dest=1.0), "dest must be a rank, not 1.0", "a rank from 0 to"),
    "negative tag": (lambda c: c.send(A, 0, tag=-5), "tag -5 cannot be sent", "a number from 0 to"),
    "huge tag": (lambda c: c.send(A, 0, tag=2**40), "tag 1099511627776 cannot", "a number from 0 to"),
    "list": (lambda c: c.all_reduce([1, 2, 3]), "list is not an array", "numpy.asarray(x) for numbers, all_"),
    "list of arrays": (lambda c: c.scatter([A] * c.size), "list is not an array", "numpy.stack(x) for array"),
    "table": (lambda c: c.all_reduce(table()), "DataFrame is not an array", "numpy.asarray(x) for numb"),
    "text": (lambda c: c.send("hello", 0), "str is not an array", "send_object, which takes any Python obj"),
    "dict": (lambda c: c.broadcast({"a": 1}), "dict is not an array", "broadcast_object, which takes any"),
    "set": (lambda c: c.all_reduce({1, 2}), "set is not an array", "all_reduce_object, which takes any"),
    "None": (lambda c: c.all_reduce(None), "all_reduce needs x here", "the array that this rank contrib"),
    "x elsewhere": (lambda c: c.scatter(None, root=c.rank), "scatter needs x here", "say by root= whi"),
    "an object None": (lambda c: c.bcast(None, root=c.rank), "broadcast needs x", "broadcast_object takes"),
    "huge int": (lambda c: c.all_reduce(2**62), "might not fit into 64 bits", "all_reduce_object(x, 'sum')"),
    "too huge": (lambda c: c.all_reduce(2**70), "not fit into 64 bits", "all_reduce_object, which takes int"),
    "object array": (lambda c: c.all_reduce(np.array([1, "a"], object)), "holds Python obj", "all_reduce_ob"),
    "masked array": (lambda c: c.all_reduce(NAN), "whose mask would be lost", "x.filled(value)"),
    "times": (lambda c: c.all_reduce(np.ones(2, "m8[s]")), "moved but not reduced", "x.view('int64') for ti"),
    "strings": (lambda c: c.all_reduce(np.array(["a"])), "moved but not reduced", "only numbers have operat"),
    "records": (lambda c: c.all_reduce(RECORDS), "moved but not", "one field at a time: numpy.ascontiguousa"),
    "out of another shape": (lambda c: c.all_reduce(B, out=np.empty(4)), "out has shape (4,)", "the shape ("),
    "out of ints": (lambda c: c.all_reduce(B, out=np.empty(3, int)), "out is int64, x is", "the dtype float"),
    "out is a list": (lambda c: c.all_reduce(A, out=[0, 0]), "out: list is not an array", "only arrays can "),
    "out of recv a list": (lambda c: c.recv([0], 0), "out: list is not an array", "only arrays can be f"),
    "out of sendrecv a list": (lambda c: c.sendrecv(A, 0, out=[0]), "out: list is not", "only arrays can be"),
    "read-only out": (lambda c: c.all_reduce(A, out=np.broadcast_to(A[:1], 2)), "out is read-only", "can be"),
    "source first": (lambda c: c.recv(0), "out is a number", "the array that receives comes first; source=0"),
    "source first, later": (lambda c: c.irecv(np.int64(0)), "out is a number", "recv_object"),
    "dtype first": (lambda c: c.recv("float64", 0), "out: str is not an array", "dtype='float64' by name"),
    "recv of what": (lambda c: c.recv(source=0), "recv without out needs to know", "recv_object for what se"),
    "dtype misspelt": (lambda c: c.recv(dtype="flaot64", source=0), "'flaot64' is no dtype", "such as 'floa"),
    "blocks": (lambda c: c.scatter(A[:0], root=c.rank), "first axis of x must be the number", "scatter_ragg"),
    "mean": (lambda c: c.all_reduce(A, "mean"), "there is no operator 'mean'", "op='avg'"),
    "SUM": (lambda c: c.all_reduce(A, "SUM"), "there is no operator 'SUM'", "op='sum'"),
    "maximum": (lambda c: c.all_reduce(A, "maximum"), "there is no operator 'maximum'", "op='max'"),
    "bool average": (lambda c: c.all_reduce(A > 0, "avg"), "the average of bool values", "float64 first"),
    "int average": (lambda c: c.all_reduce(3, "avg"), "the average of int64 values", "op='sum' and div"),
    "complex max": (lambda c: c.all_reduce(1j, "max"), "complex numbers have no max", "reduce abs(x)"),
    "mesh of more": (lambda c: c.mesh(y=c.size + 1), "does not hold", "-1 stands for as many as are left"),
    "name as key": (lambda c: c.split(0, "even"), "key 'even' is no whole number", "name=... names the part"),
    "name as color": (lambda c: c.split("red"), "color 'red' is no whole number", "None leaves this rank ou"),
    "negative color": (lambda c: c.split(-1), "color -1 is not from 0 to", "None leaves this rank out"),
    "huge key": (lambda c: c.split(0, 2**31), "key 2147483648 is not from", "a whole number from"),
    "key of a node": (lambda c: c.split_node(key=0.5), "key 0.5 is no whole number", "by which the part is "),
    "plan of mpi4py's": (lambda c: c.plan("allreduce", A), "cannot be planned", "did you mean 'all_reduce'?"),
    "timeout of text": (lambda c: setattr(c, "timeout", "30"), "must be a number of sec", "None: for ever"),
    "lambda": (lambda c: c.gather_object(lambda: 1), "a function cannot be pickled", "pickler=cloudpickle"),
    "mpi4py's verb": (lambda c: c.Allreduce(A, B), "a Communicator has no Allreduce", "comm.all_reduce(...)"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_told_what_happened_where_and_what_to_do(comm: Any, mistake: str) -> None:
    if comm.size < 2 and mistake == "huge int":
        pytest.skip("fits where nobody adds to it")
    call, what, hint = MISTAKES[mistake]
    with pytest.raises((hpcomm.UsageError, AttributeError)) as caught:
        call(comm)
    happened, where, to_do = str(caught.value).split("\n")
    assert what in happened
    assert " at test_mistakes.py:" in where
    assert hint in to_do
    assert comm.all_reduce(1) == comm.size


def test_a_closed_communicator_says_which_and_where(comm: Any) -> None:
    mine = comm.dup("mine")
    mine.close()
    with pytest.raises(hpcomm.UsageError) as caught:
        mine.all_reduce(A)
    happened, where, to_do = str(caught.value).split("\n")
    assert happened == "communicator 'mine' is closed"
    assert f"all_reduce on communicator 'mine' (rank {comm.rank} of {comm.size}) at test_mist" in where
    assert to_do.endswith("use it before close()")


def test_tensors_and_sparse_matrices_that_cannot_be_sent_say_what_can(comm: Any) -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(hpcomm.UsageError) as caught:
        comm.all_reduce(torch.ones(2, requires_grad=True))
    assert "try:   hpcomm.differentiable.all_reduce" in str(caught.value)
    sparse = pytest.importorskip("scipy.sparse")
    with pytest.raises(hpcomm.UsageError, match="all_reduce_object, which takes any Python object"):
        comm.all_reduce(sparse.eye(3).tocsr())


@pytest.mark.parametrize("form", ["", "_object", "_ragged"])
def test_a_receive_of_another_tag_names_the_one_that_is_there(own_comm: Any, form: str) -> None:
    comm, room = own_comm, () if form else (np.empty(2),)
    send, recv, irecv = (getattr(comm, f"{verb}{form}") for verb in ("send", "recv", "irecv"))
    send(A, comm.rank, 3)
    coming = irecv(*room, comm.rank, 7)
    words = f"a message of tag 3 from rank {comm.rank} is there, which it does not take: the same tag"
    with pytest.raises(hpcomm.WaitTimeoutError, match=words):
        coming.wait(timeout=0.02)
    assert coming.cancel()
    comm.timeout = 0.02
    with pytest.raises(hpcomm.WaitTimeoutError, match=words):
        getattr(comm, f"recv{form}")(*room, comm.rank, 7)
    comm.timeout = None
    recv(*room, comm.rank, 3)


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("count", [4, 1000, 7000])  # below what no receive in the background guards
def test_a_message_that_is_too_long_is_told_with_both_lengths(own_comm: Any, count: int) -> None:
    comm, words = own_comm, rf"from rank 0 \(tag 4\) has {8 * count} bytes, .* {8 * (count - 1)}\n"
    if count > 1000 and MPI.get_vendor()[0] == "MPICH":
        words = rf"from rank 0 \(tag 4\) (is longer than|has {8 * count} bytes, ).* {8 * (count - 1)}"
    for call in (comm.recv, lambda *given: comm.irecv(*given).wait()):
        for turn in range(1, 4):  # the others are of a known kind, whose status is kept
            if comm.rank == 0:
                comm.send(np.ones(count - (turn == 1)), 1, 4)
            elif comm.rank == 1 and turn == 1:
                call(np.empty(count - 1), 0, 4)
            elif comm.rank == 1:
                with pytest.raises(hpcomm.MismatchError, match=words) as caught:
                    call(np.empty(count - 1), 0, 4)
                assert "recv(dtype=...) takes any length" in str(caught.value.hint)
    with pytest.raises(hpcomm.MismatchError, match=words) if comm.rank == 1 else nullcontext():
        if comm.rank < 2:
            comm.sendrecv(np.ones(count), 1 - comm.rank, out=np.empty(count - comm.rank), sendtag=4)


@pytest.mark.parametrize("differ", ["shape", "dtype", "gathered"])
def test_ranks_that_differ_are_told_both_calls(own_comm: Any, differ: str) -> None:
    comm = own_comm
    if comm.size < 2:
        pytest.skip("needs another rank")
    x = np.ones(3, "f4" if comm.rank and differ == "dtype" else "f8")
    x = np.ones(3 + comm.rank) if differ != "dtype" else x
    with pytest.raises(hpcomm.MismatchError) as caught:
        comm.all_gather(x) if differ == "gathered" else comm.all_reduce(x)
    text = str(caught.value)
    assert "rank 0: all_" in text, text  # also if it has been told before, and has left its call
    assert "try:   make the same call on every rank" in text
    assert ("all_gather_ragged takes arrays" in text) == (differ == "gathered")


def test_truth_values_of_numpy_are_colors(comm: Any) -> None:
    first = np.arange(comm.size)[comm.rank] < 1
    for color in (first, np.asarray(first), bool(first), np.int8(first)):
        with comm.split(color, key=np.bool_(True)) as part:
            assert part.size == (1 if first else comm.size - 1)
            assert part.name == f"test/{int(first)}"


@pytest.fixture
def checked(comm: Any) -> Any:
    with comm.dup("checked", check="full") as made:
        yield made


def test_small_integers_that_wrap_around_are_warned_of_once_per_place(checked: Any) -> None:
    """Whichever way a rank's array takes; what was computed is as ever, and nobody waits for who raises."""
    c, wide = checked, 127 // checked.size + 1
    if c.size < 2:
        pytest.skip("nothing is added")
    x = np.full((c.size, 4), wide, np.int8)
    mine = x[:, ::2] if c.rank else np.ascontiguousarray(x[:, ::2])
    words = r"a {} of {} in {} on 'checked' wraps around: .*; x.astype\('int64'\) has room"
    for verb, ranks in {"all_reduce": 0, "reduce": 0, "reduce_scatter": 0, "scan": c.size - 1}.items():
        for later in (False, True):
            call = getattr(c, verb)
            if c.rank != ranks:
                call(mine, async_op=True).wait() if later else call(mine)
                continue
            with pytest.warns(RuntimeWarning, match=words.format("sum", "int8", verb)):
                got = call(mine, async_op=True).wait() if later else call(mine)
            assert got.ravel()[0] == wide * c.size - 256
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("default")
        for _ in range(3):
            c.all_reduce(np.uint16(65535))
        c.all_reduce(np.full(2, 2**31, np.uint32), "prod")
    words_seen = ["a sum of uint16", "a prod of uint32"] if c.rank == 0 else []
    assert [str(each.message).partition(" in ")[0] for each in seen] == words_seen


def test_integers_that_fit_are_not_warned_of(checked: Any) -> None:
    """Warnings are errors here. The largest of each is too much, but not where they meet."""
    c = checked
    x = np.zeros(c.size, np.int8)
    x[c.rank] = 127
    assert c.all_reduce(x).tolist() == [127] * c.size
    assert c.all_reduce(np.array([-128 if c.rank == 0 else 0], np.int8)).tolist() == [-128]
    assert c.all_reduce(np.full(2, 100, np.int8), "max").tolist() == [100, 100]
    assert c.all_reduce(np.full((0, 3), 100, np.int8)).shape == (0, 3)
