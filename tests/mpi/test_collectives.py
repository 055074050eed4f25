"""The collectives over the MPI library itself, and what the contract does not say about them."""

from __future__ import annotations

import array as stdlib_array
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from arrays import bits, make, plain_of
from contract import BY_NAME, VERBS, Contract, Verb, agrees, call, given_by_all

import hpcomm


class TestOverTheMpiLibrary(Contract):
    """The native transport."""


@pytest.mark.few
class TestWithEveryCallCheckedByAllRanks:
    """check="values", which includes "full", changes no result."""

    @pytest.fixture
    def comm(self) -> Any:
        from mpi4py import MPI

        with hpcomm.Communicator(MPI.COMM_WORLD, name="values", check="values") as comm:
            yield comm

    @pytest.mark.parametrize("verb", VERBS, ids=str)
    @pytest.mark.parametrize("time", ["blocking", "async"])
    def test_a_verb_gives_what_its_definition_says(self, comm: Any, verb: Verb, time: str) -> None:
        wrong = []
        for root in range(comm.size if verb.rooted else 1):
            given = given_by_all(comm, verb, "numpy", "sliced", "float32")
            x = make("numpy", "float32", "sliced", given[comm.rank])
            result = call(comm, verb, x, root, None, time)
            wrong.append(agrees(result, verb.expected(given, comm.rank, root), "numpy", "float32"))
        assert [line for line in wrong if line] == []


class TestWithNoCallChecked(TestWithEveryCallCheckedByAllRanks):
    """check="off" changes no result either."""

    @pytest.fixture
    def comm(self) -> Any:
        from mpi4py import MPI

        with hpcomm.Communicator(MPI.COMM_WORLD, name="off", check="off") as comm:
            yield comm


def test_broadcast_fills_a_template_of_nothing_when_out_is_given(comm: Any) -> None:
    root = comm.size - 1
    out = np.zeros(4)
    x = np.arange(4.0) if comm.rank == root else None
    y = comm.broadcast(x, root=root, out=out)
    assert y is out
    assert out.tolist() == [0.0, 1.0, 2.0, 3.0]


def test_broadcast_leaves_the_template_alone(comm: Any) -> None:
    x = np.full(3, comm.rank)
    y = comm.broadcast(x, root=0)
    assert y.tolist() == [0, 0, 0]
    assert x.tolist() == [comm.rank] * 3


def test_scatter_needs_no_x_where_out_is_given(comm: Any) -> None:
    out = np.zeros(2, np.int16)
    x = np.arange(2 * comm.size, dtype=np.int16).reshape(comm.size, 2) if comm.rank == 0 else None
    y = comm.scatter(x, root=0, out=out)
    assert y is out
    assert out.tolist() == [2 * comm.rank, 2 * comm.rank + 1]


@pytest.mark.parametrize("time", ["blocking", "async"])
def test_all_gather_concatenates_into_an_out_with_a_longer_first_axis(comm: Any, time: str) -> None:
    out = np.zeros((comm.size * 2, 3))
    y = call(comm, BY_NAME["all_gather"], np.full((2, 3), comm.rank + 1.0), 0, out, time)
    assert y is out
    assert out[:, 0].tolist() == [rank + 1.0 for rank in range(comm.size) for _ in range(2)]


@pytest.mark.parametrize("time", ["blocking", "async"])
def test_reduce_scatter_takes_blocks_concatenated_along_the_first_axis(comm: Any, time: str) -> None:
    out = np.zeros((2, 3))
    x = np.repeat(np.arange(comm.size * 2.0), 3).reshape(comm.size * 2, 3)
    y = call(comm, BY_NAME["reduce_scatter"], x, 0, out, time)
    assert y is out
    assert out[:, 0].tolist() == [comm.size * 2.0 * comm.rank, comm.size * (2.0 * comm.rank + 1)]


def test_all_gather_of_torch_concatenates_too(comm: Any) -> None:
    out = torch.zeros(comm.size * 2, dtype=torch.bfloat16)
    comm.all_gather(torch.full((2,), comm.rank + 1, dtype=torch.bfloat16), out=out)
    assert out.tolist() == [rank + 1.0 for rank in range(comm.size) for _ in range(2)]


@pytest.mark.parametrize("number", [3, 2.5, 1 + 2j], ids=["int", "float", "complex"])
def test_a_python_number_comes_back_as_a_python_number(comm: Any, number: complex) -> None:
    total = comm.all_reduce(number)
    assert type(total) is type(number)
    assert total == number * comm.size


@pytest.mark.parametrize("number", [3, 2.5, 1 + 2j, True], ids=["int", "float", "complex", "bool"])
def test_gathered_python_numbers_come_back_as_an_array(comm: Any, number: complex) -> None:
    assert np.array_equal(comm.all_gather(number), [number] * comm.size)


@pytest.mark.parametrize("dtype", [np.int8, np.uint64, np.float16, np.float32, np.complex64, np.bool_])
def test_a_numpy_number_comes_back_as_a_numpy_number_of_its_dtype(comm: Any, dtype: Any) -> None:
    total = comm.all_reduce(dtype(1))
    assert type(total) is dtype
    assert total == dtype(1 if dtype is np.bool_ else comm.size)


def test_bytes_go_out_though_nothing_can_be_received_in_them(comm: Any) -> None:
    assert comm.broadcast(b"hello", root=0) == b"hello"
    assert comm.all_gather(b"ab") == b"ab" * comm.size


def test_gathered_one_axis_kinds_come_back_one_after_the_other(comm: Any) -> None:
    ranks = range(comm.size)
    assert comm.all_gather(bytearray([comm.rank, 9])) == bytearray(b for rank in ranks for b in (rank, 9))
    doubles = comm.all_gather(stdlib_array.array("d", [comm.rank, 0.5]))
    assert doubles == stdlib_array.array("d", [v for rank in ranks for v in (rank, 0.5)])


class Interface:
    """An array that shows its memory by __array_interface__ alone."""

    def __init__(self, array: np.ndarray) -> None:
        self.__array_interface__ = array.__array_interface__
        self.array = array


def test_memory_may_be_shown_by_the_array_interface(comm: Any) -> None:
    x = Interface(np.arange(6.0)[::2])
    assert comm.all_reduce(x).tolist() == [0.0, 2.0 * comm.size, 4.0 * comm.size]
    assert comm.all_reduce(x, out=x) is x
    assert x.array.tolist() == [0.0, 2.0 * comm.size, 4.0 * comm.size]


def test_a_subclass_of_ndarray_is_taken_as_its_numbers(comm: Any) -> None:
    with pytest.warns(PendingDeprecationWarning):
        x = np.matrix([[1.0, 2.0]])
    assert np.array_equal(comm.all_reduce(x), [[comm.size, 2.0 * comm.size]])


def test_a_torch_parameter_is_taken_as_its_numbers(comm: Any) -> None:
    weight = torch.nn.Linear(2, 1).weight
    with torch.no_grad():
        weight.fill_(2.0)
        assert comm.all_reduce(weight).tolist() == [[2.0 * comm.size] * 2]


def test_a_lazily_conjugated_tensor_arrives_conjugated(comm: Any) -> None:
    x = torch.tensor([1 + 2j, 3 - 1j]).conj()
    assert comm.all_reduce(x).tolist() == [comm.size * (1 - 2j), comm.size * (3 + 1j)]
    imaginary = torch.tensor([1 + 2j]).conj().imag  # carries torch's negative bit
    assert comm.all_reduce(imaginary).tolist() == [-2.0 * comm.size]


@pytest.mark.parametrize("dtype", ["S5", "U3", "datetime64[s]", "timedelta64[ms]"])
def test_elements_without_arithmetic_can_be_moved(comm: Any, dtype: str) -> None:
    x = np.array([comm.rank + 1, 7]).astype(dtype)
    expected = np.stack([np.array([rank + 1, 7]).astype(dtype) for rank in range(comm.size)])
    y = comm.all_gather(x)
    assert y.dtype == x.dtype
    assert np.array_equal(y, expected)


def test_records_can_be_moved(comm: Any) -> None:
    record = np.dtype([("where", np.float64, 3), ("id", np.int32)])
    x = np.zeros(2, record)
    x["where"], x["id"] = comm.rank, comm.rank + 10
    y = comm.all_gather(x)
    assert y.dtype == record
    assert y["id"][:, 1].tolist() == [rank + 10 for rank in range(comm.size)]
    assert y["where"][:, 0, 2].tolist() == list(range(comm.size))


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2"])
def test_eight_bit_floats_can_be_moved(comm: Any, name: str) -> None:
    x = torch.tensor([comm.rank, -2.0]).to(getattr(torch, name))
    y = comm.all_gather(x)
    assert y.dtype is x.dtype
    assert y.float().tolist() == [[float(rank), -2.0] for rank in range(comm.size)]
    z = comm.all_gather(np.array([comm.rank, -2.0]).astype(getattr(ml_dtypes, name)))
    assert z.dtype.name == name
    assert z.astype(float).tolist() == [[float(rank), -2.0] for rank in range(comm.size)]


def test_long_doubles_keep_their_digits(comm: Any) -> None:
    x = np.array([1], np.longdouble) / 3
    y = comm.all_reduce(x, "max")
    assert y.dtype == np.longdouble
    assert y[0] == x[0]


def test_not_a_number_infinities_and_minus_zero_arrive_bit_for_bit(comm: Any) -> None:
    x = np.array([np.nan, np.inf, -np.inf, -0.0, 5e-324])
    assert bits(comm.broadcast(x, root=0)) == bits(x)
    halves = torch.tensor([float("nan"), float("inf"), -0.0, 1e-40]).to(torch.bfloat16)
    assert bits(comm.broadcast(halves, root=comm.size - 1)) == bits(halves)


def test_out_may_be_a_strided_view_and_only_its_own_elements_change(comm: Any) -> None:
    wide = np.full((4, 6), -1.0)
    out = wide[::2, 1::3]
    comm.all_reduce(np.ones((2, 2)), out=out)
    assert np.array_equal(out, np.full((2, 2), float(comm.size)))
    assert wide.sum() == -20 + 4 * comm.size


def test_out_may_be_a_strided_torch_view_and_only_its_own_elements_change(comm: Any) -> None:
    wide = torch.full((4, 6), -1.0)
    out = wide[::2, 1::3]
    assert comm.all_reduce(torch.ones(2, 2), out=out) is out
    assert wide.sum().item() == -20 + 4 * comm.size


def test_out_may_be_another_view_of_the_same_elements_as_x(comm: Any) -> None:
    x = np.full(3, 2.0)
    view = x[:]
    assert comm.all_reduce(x, out=view) is view
    assert x.tolist() == [2.0 * comm.size] * 3


def test_out_may_be_of_another_kind_than_x(comm: Any) -> None:
    out = np.zeros(3, np.float32)
    assert comm.all_reduce(torch.ones(3), out=out) is out
    assert out.tolist() == [comm.size] * 3


def test_memory_may_be_a_file_on_disk(comm: Any, tmp_path: Any) -> None:
    mapped = np.memmap(tmp_path / "x", np.float64, "w+", shape=(5,))
    mapped[:] = comm.rank
    comm.all_reduce(mapped, "max", out=mapped)
    assert mapped.tolist() == [comm.size - 1] * 5


def test_an_empty_array_of_any_verb_is_an_empty_array(comm: Any) -> None:
    for verb in VERBS:
        x = np.empty((comm.size, 0) if verb.stacked else (0, 2))
        y = call(comm, verb, x, 0, None, "blocking")
        assert y is None or y.size == 0, verb


ALIASES = [
    ("allreduce", "all_reduce"),
    ("bcast", "broadcast"),
    ("allgather", "all_gather"),
    ("alltoall", "all_to_all"),
]


@pytest.mark.parametrize(("alias", "verb"), ALIASES)
def test_a_name_of_mpi4py_is_the_verb_itself(comm: Any, alias: str, verb: str) -> None:
    x = np.full((comm.size, 2), comm.rank + 1)
    assert np.array_equal(getattr(comm, alias)(x), getattr(comm, verb)(x))


OBJECTS = [3, True, 2.5, np.int64(3), np.bool_(True), b"ab", bytearray(b"ab"), "ab", [1, 2], {"a": 1}, (1, 2)]
NUMBERS = (int, float, np.int64)  # of which a reduction is the same in both


@pytest.mark.parametrize(
    "name",
    [
        "bcast",
        "allgather",
        "alltoall",
        "allreduce",
        "gather",
        "scatter",
        "reduce",
        "scan",
        "exscan",
        "send",
        "isend",
        "sendrecv",
    ],
)
def test_a_name_of_mpi4py_takes_arrays_and_refuses_objects_that_would_mean_another_thing(
    comm: Any, name: str
) -> None:
    """Names that torch.distributed has, too, are verbs of their own: numbers and bytes are arrays to them."""
    is_alias = name in dict(ALIASES)
    for x in OBJECTS:
        if name == "allreduce" and isinstance(x, NUMBERS):
            assert comm.allreduce(x) == comm.mpi.allreduce(x)
            continue
        if not is_alias and not isinstance(x, (str, list, dict, tuple)):
            continue
        ends = {
            "send": {"dest": 0},
            "isend": {"dest": 0},
            "sendrecv": {"dest": comm.rank, "source": comm.rank},
        }
        with pytest.raises(hpcomm.UsageError) as caught:
            getattr(comm, name)(x, **ends.get(name, {}))
        assert "_object" in str(caught.value), x
        assert not is_alias or f"MPI.of(comm).{name}" in str(caught.value), x
    if comm.size > 1:
        assert isinstance(comm.bcast(np.ones(2)), np.ndarray)
        with pytest.raises(hpcomm.HpcommError, match=r"refused|as an object"):
            comm.dup(check="full").bcast(np.ones(2) if comm.rank else 3)


def test_short_names_of_mpi4py_are_there(comm: Any) -> None:
    assert comm.Get_rank() == comm.rank
    assert comm.Get_size() == comm.size
    assert comm.Get_name() == comm.name
    assert comm.Barrier() is None


def test_torchs_words_for_ranks_are_taken(comm: Any) -> None:
    last = comm.size - 1
    x = np.array([comm.rank + 1])
    assert comm.broadcast(x, src=last).tolist() == [comm.size]
    reduced = comm.reduce(x, dst=last)
    gathered = comm.gather(x, dst=last)
    scattered = comm.scatter(np.arange(comm.size)[:, None], src=last)
    assert scattered.tolist() == [comm.rank]
    if comm.rank == last:
        assert reduced.tolist() == [comm.size * (comm.size + 1) // 2]
        assert gathered.ravel().tolist() == list(range(1, comm.size + 1))
    else:
        assert reduced is None
        assert gathered is None


def test_a_reduction_with_rounding_is_the_same_on_every_rank(comm: Any) -> None:
    rng = np.random.default_rng(comm.rank)
    for dtype in (np.float32, np.float64):
        x = rng.standard_normal(10_001).astype(dtype)
        everywhere = comm.all_gather(comm.all_reduce(x))
        assert all(bits(row) == bits(everywhere[0]) for row in everywhere)


def test_plain_of_reads_back_what_make_wrote() -> None:
    """The suite's own arrays are what they claim to be."""
    values = np.arange(24.0).reshape(2, 3, 4)
    for kind in ("numpy", "torch", "memoryview", "dlpack"):
        for layout in ("contiguous", "sliced"):
            assert np.array_equal(plain_of(make(kind, "float32", layout, values)), values), (kind, layout)
    assert not make("numpy", "float32", "transposed", values).flags.contiguous
    assert make("numpy", "float32", "negative", values).strides[0] < 0
    assert make("torch", "bfloat16", "repeated", values).stride()[-1] == 0
    assert not make("numpy", "int8", "read_only", values).flags.writeable


@pytest.mark.parametrize("nbytes", [64, 1 << 20])
@pytest.mark.parametrize("verb", ["all_reduce", "scan", "exscan", "all_gather"])
@pytest.mark.parametrize("time", ["blocking", "async", "plan"])
def test_all_ranks_tell_mpi_to_work_in_place_or_none_does(
    own_comm: Any, verb: str, time: str, nbytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each rank gives another kind of out; above 64 KiB Open MPI would take other algorithms on each."""
    from mpi4py import MPI

    from hpcomm.transport import mpi as transport

    told = []
    pieces = transport.pieces

    def seen(*arguments: Any, **options: Any) -> Any:
        calls = pieces(*arguments, **options)
        told.extend(given[0] is MPI.IN_PLACE for _, given in calls)
        return calls

    monkeypatch.setattr(transport, "pieces", seen)
    comm = own_comm
    monkeypatch.setattr(comm.context, "node", None)
    stop = comm.observe(Watching())  # no fast paths
    n, p, r = nbytes // 8, comm.size, comm.rank
    whole = np.zeros((p, n), np.int64)  # of floats MPI reduces none on 3 ranks
    x = whole[r] if verb == "all_gather" else np.zeros(2 * n, int)[::2] if r == 1 else np.zeros(n, int)
    x[...] = r + 1
    out = (None if r == 2 else whole) if verb == "all_gather" else {2: None, 3: np.empty(n, int)}.get(r, x)
    if time == "plan":
        with comm.plan(verb, x, out=out) as plan:
            y = plan()
    else:
        y = getattr(comm, verb)(x, out=out, async_op=time == "async")
        y = y.wait() if time == "async" else y
    stop()
    expected = {
        "all_reduce": p * (p + 1) // 2,
        "scan": (r + 1) * (r + 2) // 2,
        "exscan": r * (r + 1) // 2,
        "all_gather": np.arange(1.0, p + 1)[:, None],
    }
    assert np.array_equal(y, np.broadcast_to(expected[verb], y.shape))
    assert comm.mpi.allgather(told) == [told] * p
    assert len(told) == 1


class Watching:
    def before(self, call: Any) -> None: ...

    def after(self, call: Any) -> None: ...


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_lanes_that_go_to_mpi_copy_into_place_and_leave_x_alone(own_comm: Any, kind: str) -> None:
    own_comm.context.node = None
    own_comm.context.go_direct()
    p, r = own_comm.size, own_comm.rank
    x = np.arange(6.0).reshape(2, 3) + r
    given = torch.from_numpy(x.copy()) if kind == "torch" else x.copy()
    for _ in range(2):
        total = own_comm.all_reduce(given, out=None if r else given * 0)
        parts = own_comm.all_gather(given)
        assert np.array_equal(given, x)
        assert np.array_equal(total, p * (x - r) + p * (p - 1) / 2)
        assert np.array_equal(parts, [x - r + q for q in range(p)])


def test_elements_of_32_bytes_are_gathered_by_any_root(comm: Any) -> None:
    x = (np.arange(1000) + comm.rank).astype(np.clongdouble)
    wanted = np.stack([x - comm.rank + r for r in range(comm.size)])
    for root in range(comm.size):
        got = comm.gather(x, root)
        late = comm.gather(x, root, async_op=True).wait()
        assert comm.rank != root or ((got == wanted).all() and (late == wanted).all())
    with comm.dup(check="full") as apart:  # without the core, where a reduction in the order of ranks gathers
        for root in range(comm.size):
            for y in (x, x[:500]):
                total = apart.reduce(y, root=root)
                assert comm.rank != root or (total == wanted[:, : len(y)].sum(0)).all()
