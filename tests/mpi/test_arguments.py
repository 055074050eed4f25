"""Calls that cannot be right are refused on the rank that makes them, in words that say what to do.

All ranks make the same mistake here, and after each the communicator still works.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from mpi4py import MPI

import hpcomm

pytestmark = [pytest.mark.few, pytest.mark.three]


@pytest.fixture(autouse=True)
def still_works(comm: Any) -> Iterator[None]:
    """A refused call leaves nothing behind: the next one is right."""
    yield
    assert comm.all_reduce(1) == comm.size


def three_lines(error: hpcomm.HpcommError, verb: str, comm: Any) -> str:
    """The template: what, where (verb, communicator, rank, the caller's line), try. Returns what."""
    what, where, hint = str(error).split("\n")
    assert where.startswith(
        f"  where: {verb} on communicator 'test' (rank {comm.rank} of {comm.size}) at test_arguments.py:"
    )
    assert hint.startswith("  try:   ")
    assert len(hint) > 12
    return what


ROOTED = ["broadcast", "reduce", "gather", "scatter"]


@pytest.mark.parametrize("verb", ROOTED)
@pytest.mark.parametrize("root", [-1, 99, "size"])
def test_a_root_that_does_not_exist_is_told_which_ranks_do(comm: Any, verb: str, root: Any) -> None:
    root = comm.size if root == "size" else root
    with pytest.raises(hpcomm.RankError) as caught:
        getattr(comm, verb)(np.ones(comm.size), root=root)
    assert str(root) in three_lines(caught.value, verb, comm)
    assert str(comm.size - 1) in str(caught.value.hint)


@pytest.mark.parametrize("verb", ROOTED)
@pytest.mark.parametrize("root", [0.0, "0", None, True, [0]], ids=repr)
def test_a_root_that_is_no_whole_number_is_a_rank_error(comm: Any, verb: str, root: Any) -> None:
    with pytest.raises(hpcomm.RankError) as caught:
        getattr(comm, verb)(np.ones(comm.size), root=root)
    assert repr(root) in three_lines(caught.value, verb, comm)


@pytest.mark.parametrize("check", ["light", "full"])
def test_a_root_may_be_a_number_of_numpy(comm: Any, check: str) -> None:
    with hpcomm.Communicator(comm.mpi, name=comm.name, check=check) as own:
        assert own.broadcast(np.ones(2), root=np.int64(0)).tolist() == [1.0, 1.0]


P2P: dict[str, Callable[[Any, Any], Any]] = {
    "send": lambda comm, rank: comm.send(np.ones(1), rank),
    "isend": lambda comm, rank: comm.isend(np.ones(1), rank),
    "recv": lambda comm, rank: comm.recv(np.ones(1), rank),
    "irecv": lambda comm, rank: comm.irecv(np.ones(1), rank),
    "probe": lambda comm, rank: comm.probe(rank),
    "iprobe": lambda comm, rank: comm.iprobe(rank),
    "probe_object": lambda comm, rank: comm.probe_object(rank),
    "iprobe_object": lambda comm, rank: comm.iprobe_object(rank),
    "send_object": lambda comm, rank: comm.send_object("x", rank),
    "recv_object": lambda comm, rank: comm.recv_object(rank),
    "send_ragged": lambda comm, rank: comm.send_ragged(np.ones(1), rank),
    "recv_ragged": lambda comm, rank: comm.recv_ragged(rank),
}


@pytest.mark.parametrize("rank", [99, -7, "size"])
@pytest.mark.parametrize("verb", P2P)
def test_a_peer_that_does_not_exist_is_told_which_ranks_do(comm: Any, verb: str, rank: Any) -> None:
    rank = comm.size if rank == "size" else rank
    with pytest.raises(hpcomm.RankError) as caught:
        P2P[verb](comm, rank)
    assert str(rank) in caught.value.what
    assert str(comm.size - 1) in str(caught.value)
    assert "test_arguments.py:" in str(caught.value.where)


@pytest.mark.parametrize("rank", [1.0, "1", None], ids=repr)
@pytest.mark.parametrize("verb", ["send", "isend", "send_object"])
def test_a_peer_that_is_no_whole_number_is_a_rank_error(comm: Any, verb: str, rank: Any) -> None:
    with pytest.raises(hpcomm.RankError):
        P2P[verb](comm, rank)


@pytest.mark.parametrize("tag", [-5, 2**40, "a", 1.5], ids=repr)
def test_a_tag_that_cannot_be_sent_is_refused(comm: Any, tag: Any) -> None:
    for kind in (np.ones(1), bytearray(1)):
        with pytest.raises(hpcomm.UsageError) as caught:
            comm.send(kind, (comm.rank + 1) % comm.size, tag=tag)
        assert repr(tag) in str(caught.value)


ALL_VERBS = [
    "broadcast",
    "reduce",
    "all_reduce",
    "gather",
    "all_gather",
    "scatter",
    "reduce_scatter",
    "all_to_all",
    "scan",
    "exscan",
]


@pytest.mark.parametrize("async_op", [False, True], ids=["blocking", "async"])
@pytest.mark.parametrize("verb", ALL_VERBS)
def test_an_out_of_another_shape_is_told_both_shapes(comm: Any, verb: str, async_op: bool) -> None:
    with pytest.raises(hpcomm.LayoutError) as caught:
        _on_root(comm, verb, np.ones((comm.size, 2)), out=np.zeros((5, 7, 3)), async_op=async_op)
    what = three_lines(caught.value, verb, comm)
    shapes = {
        "gather": f"({comm.size}, {comm.size}, 2)",
        "all_gather": f"({comm.size}, {comm.size}, 2)",
        "scatter": "(2,)",
        "reduce_scatter": "(2,)",
    }
    assert "(5, 7, 3)" in what
    assert shapes.get(verb, f"({comm.size}, 2)") in what


@pytest.mark.parametrize("verb", ALL_VERBS)
def test_an_out_of_another_dtype_is_told_both_dtypes(comm: Any, verb: str) -> None:
    expected = {
        "gather": (comm.size, comm.size, 2),
        "all_gather": (comm.size, comm.size, 2),
        "scatter": (2,),
        "reduce_scatter": (2,),
    }
    out = np.zeros(expected.get(verb, (comm.size, 2)), np.float64)
    with pytest.raises(hpcomm.DtypeError) as caught:
        _on_root(comm, verb, np.ones((comm.size, 2), np.int32), out=out)
    what = three_lines(caught.value, verb, comm)
    assert "float64" in what
    assert "int32" in what


@pytest.mark.parametrize("verb", ALL_VERBS)
def test_a_read_only_out_is_refused(comm: Any, verb: str) -> None:
    x = np.ones((comm.size, 2))
    x.flags.writeable = False
    with pytest.raises(hpcomm.LayoutError, match="out is read-only") as caught:
        _on_root(comm, verb, x, out=x)
    three_lines(caught.value, verb, comm)


def test_an_out_whose_elements_share_a_place_is_refused(comm: Any) -> None:
    for stride in (0, 4):
        out = np.lib.stride_tricks.as_strided(np.zeros(4), (4,), (stride,))
        with pytest.raises(hpcomm.LayoutError, match="share a place"):
            comm.all_reduce(np.ones(4), out=out)
    with pytest.raises(hpcomm.LayoutError, match="share a place"):
        comm.all_reduce(torch.ones(4), out=torch.zeros(1).expand(4))


def test_numbers_that_are_none_are_refused_by_the_call_that_takes_them(comm: Any) -> None:
    for call in (
        lambda: comm.recv(dtype="f8", shape=-1),
        lambda: comm.recv(dtype="f8", shape=(1.5,)),
        lambda: comm.irecv(dtype="f8", shape="3"),
        lambda: comm.group([0.5]),
        lambda: comm.group("0"),
        lambda: comm.group(0),
        lambda: comm.split(0, key="a"),
        lambda: comm.split(2**40),
        lambda: comm.batch_isend_irecv([3]),
    ):
        with pytest.raises(
            hpcomm.UsageError, match=r"no shape|no ranks|no whole|is not from 0 to|a batch of 3"
        ):
            call()


def test_an_out_of_a_class_of_its_own_is_what_comes_back(comm: Any) -> None:
    for kind in (np.memmap, np.matrix, np.recarray):
        out = np.ones((2, 2)).view(kind)
        assert comm.all_reduce(out, out=out) is out
        assert comm.all_reduce(np.ones((2, 2)), out=out) is out
        assert out.tolist() == [[comm.size] * 2] * 2


@pytest.mark.parametrize("verb", ["all_reduce", "all_gather", "broadcast"])
def test_a_tensor_whose_memory_is_gone_is_refused(comm: Any, verb: str) -> None:
    x = torch.ones(comm.size)
    x.untyped_storage().resize_(0)
    with pytest.raises(hpcomm.LayoutError, match="freed") as caught:
        getattr(comm, verb)(x)
    three_lines(caught.value, verb, comm)
    with pytest.raises(hpcomm.LayoutError, match=r"torch\.func") as caught:
        torch.vmap(lambda x: getattr(comm, verb)(x))(torch.ones(2, comm.size))
    three_lines(caught.value, verb, comm)


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("verb", ["reduce", "all_reduce", "scan", "exscan"])
def test_ints_whose_result_might_not_fit_are_refused(comm: Any, verb: str) -> None:
    most = 2**63 - 1
    for op, x in [("sum", most // comm.size + 1), ("prod", -(2**32)), (hpcomm.premul_sum(2), 2**62)]:
        with pytest.raises(hpcomm.DtypeError, match="might not fit into 64 bits") as caught:
            getattr(comm, verb)(x, op)
        three_lines(caught.value, verb, comm)
        assert "premul" not in caught.value.hint
    assert comm.all_reduce(-(most // comm.size)) == -(most // comm.size) * comm.size
    assert comm.all_reduce(most, "max") == most
    assert comm.all_reduce(3, "prod") == 3**comm.size


OVERLAPPING = ["reduce", "all_reduce", "scan", "exscan", "all_to_all", "broadcast"]


@pytest.mark.parametrize("kind", ["numpy", "torch"])
@pytest.mark.parametrize("verb", OVERLAPPING)
def test_an_out_that_overlaps_x_in_part_is_refused(comm: Any, verb: str, kind: str) -> None:
    memory: Any = np.zeros(3 * comm.size) if kind == "numpy" else torch.zeros(3 * comm.size)
    x, out = memory[: 2 * comm.size], memory[comm.size :]
    with pytest.raises(hpcomm.LayoutError, match="overlap") as caught:
        _on_root(comm, verb, x, out=out)
    three_lines(caught.value, verb, comm)


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_neighbours_in_memory_are_apart_and_one_element_in_common_is_not(comm: Any, kind: str) -> None:
    memory: Any = np.zeros(8) if kind == "numpy" else torch.zeros(8)
    for low, high in ((memory[:4], memory[4:]), (memory[4:], memory[:4])):
        for _ in range(3):
            assert comm.all_reduce(low, out=high) is high
    for low, high in ((memory[:4], memory[3:7]), (memory[3:7], memory[:4])):
        with pytest.raises(hpcomm.LayoutError, match="overlap"):
            comm.all_reduce(low, out=high)


def unowned(at: int, n: int) -> Any:
    """n float64 somewhere in memory, as compiled code may give them out: without a base that owns them."""
    core = np._core if hasattr(np, "_core") else np.core
    api = ctypes.pythonapi.PyCapsule_GetPointer
    api.restype, api.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    table = ctypes.cast(api(core._multiarray_umath._ARRAY_API, None), ctypes.POINTER(ctypes.c_void_p))
    kinds = (ctypes.c_int, ctypes.c_void_p, ctypes.c_int, *[ctypes.c_void_p] * 2, *[ctypes.c_int] * 2)
    new = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object, *kinds, ctypes.c_void_p)(table[93])
    shape = (ctypes.c_ssize_t * 1)(n)
    made = new(np.ndarray, 1, ctypes.addressof(shape), np.dtype(np.float64).num, None, at, 8, 0x501, None)
    assert made.base is None
    return made


@pytest.mark.parametrize("verb", OVERLAPPING)
def test_overlapping_arrays_of_compiled_code_that_name_no_owner_are_refused(comm: Any, verb: str) -> None:
    memory = np.zeros(3 * comm.size)
    at = memory.ctypes.data
    x, out = unowned(at, 2 * comm.size), unowned(at + 8 * comm.size, 2 * comm.size)
    with pytest.raises(hpcomm.LayoutError, match="overlap"):
        _on_root(comm, verb, x, out=out)


@pytest.mark.mpi(min_size=2)
def test_a_part_of_out_that_is_no_block_is_no_x_of_an_all_gather(comm: Any) -> None:
    out = np.zeros((comm.size, 3))
    for _ in range(2):
        comm.all_gather(np.ones(3), out=out)
        with pytest.raises(hpcomm.LayoutError, match="overlap"):
            comm.all_gather(out.reshape(-1)[1:4], out=out)


@pytest.mark.mpi(min_size=2)
def test_sendrecv_refuses_an_out_that_overlaps_x_in_part(comm: Any) -> None:
    memory, right = np.zeros(9), (comm.rank + 1) % comm.size
    at = memory.ctypes.data
    for x, out in ((memory[:6], memory[3:]), (unowned(at, 6), unowned(at + 24, 6))):
        with pytest.raises(hpcomm.LayoutError, match="overlap"):
            comm.sendrecv(x, right, right, out=out)


def test_a_reversed_view_of_x_as_out_overlaps(comm: Any) -> None:
    x = np.arange(6.0)
    with pytest.raises(hpcomm.LayoutError, match="overlap"):
        comm.all_reduce(x, out=x[::-1])


def test_interleaved_views_do_not_overlap(comm: Any) -> None:
    memory = np.arange(6.0)
    comm.all_reduce(memory[::2], out=memory[1::2])
    assert memory.tolist() == [0, 0, 2, 2.0 * comm.size, 4, 4.0 * comm.size]


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("verb", ["scatter", "reduce_scatter", "all_to_all"])
def test_a_first_axis_that_is_not_the_number_of_ranks_is_told_what_it_should_be(comm: Any, verb: str) -> None:
    with pytest.raises(hpcomm.LayoutError) as caught:
        _on_root(comm, verb, np.ones((comm.size + 1, 2)))
    what = three_lines(caught.value, verb, comm)
    assert f"({comm.size + 1}, 2)" in what
    assert str(comm.size) in what.replace(f"({comm.size + 1}, 2)", "")


@pytest.mark.parametrize("verb", ["scatter", "reduce_scatter", "all_to_all"])
def test_a_zero_dimensional_x_has_no_blocks(comm: Any, verb: str) -> None:
    with pytest.raises(hpcomm.LayoutError, match=r"shape \(\)"):
        _on_root(comm, verb, np.array(1.0))


@pytest.mark.parametrize("verb", ALL_VERBS)
def test_foreign_byte_order_is_refused(comm: Any, verb: str) -> None:
    with pytest.raises(hpcomm.DtypeError, match="byte order") as caught:
        _on_root(comm, verb, np.ones((comm.size, 2), np.dtype(np.float64).newbyteorder()))
    three_lines(caught.value, verb, comm)


@pytest.mark.parametrize("verb", ALL_VERBS)
def test_an_array_of_objects_is_sent_to_the_object_verbs(comm: Any, verb: str) -> None:
    with pytest.raises(hpcomm.DtypeError, match="objects") as caught:
        _on_root(comm, verb, np.array([[None, {}]] * comm.size))
    three_lines(caught.value, verb, comm)
    assert "_object" in str(caught.value.hint)


@pytest.mark.parametrize("x", [{"a": 1}, [1, 2], "text", object(), {1}], ids=lambda x: type(x).__name__)
def test_what_is_no_array_is_sent_to_the_object_verbs(comm: Any, x: Any) -> None:
    with pytest.raises(hpcomm.UsageError, match=type(x).__name__) as caught:
        comm.all_reduce(x)
    three_lines(caught.value, "all_reduce", comm)
    assert "_object" in str(caught.value.hint)


@pytest.mark.parametrize("verb", [verb for verb in ALL_VERBS if verb not in ("broadcast", "scatter")])
def test_a_missing_x_is_a_usage_error(comm: Any, verb: str) -> None:
    with pytest.raises(hpcomm.UsageError) as caught:
        getattr(comm, verb)(None)
    three_lines(caught.value, verb, comm)


@pytest.mark.parametrize("verb", ["broadcast", "scatter"])
def test_neither_x_nor_out_is_a_usage_error(comm: Any, verb: str) -> None:
    with pytest.raises(hpcomm.UsageError) as caught:
        getattr(comm, verb)()
    three_lines(caught.value, verb, comm)


def test_memory_that_was_released_is_refused(comm: Any) -> None:
    x = memoryview(bytearray(3))
    x.release()
    with pytest.raises(hpcomm.LayoutError, match="released") as caught:
        comm.all_reduce(x)
    three_lines(caught.value, "all_reduce", comm)


def test_a_masked_array_would_lose_its_mask(comm: Any) -> None:
    with pytest.raises(hpcomm.LayoutError, match="mask") as caught:
        comm.all_reduce(np.ma.masked_array([1.0, 2.0], mask=[True, False]))
    assert "filled" in str(caught.value.hint)


@pytest.mark.parametrize("size", [1, 2])
def test_a_sparse_tensor_is_refused(comm: Any, size: int) -> None:
    for _ in range(2):
        comm.all_reduce(torch.eye(size))  # also by the function that this leaves
        with pytest.raises(hpcomm.LayoutError, match="sparse") as caught:
            comm.all_reduce(torch.eye(size).to_sparse())
        assert "to_dense" in str(caught.value.hint)


@pytest.mark.filterwarnings("ignore:torch.ao.quantization")
@pytest.mark.filterwarnings("ignore:.*quantize:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.*quantize:UserWarning")
def test_a_quantized_tensor_is_refused(comm: Any) -> None:
    x = torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8)
    with pytest.raises(hpcomm.DtypeError, match="quantized"):
        comm.all_gather(x)


def test_a_tensor_without_memory_is_refused(comm: Any) -> None:
    with pytest.raises(hpcomm.LayoutError, match="meta"):
        comm.all_reduce(torch.ones(3, device="meta"))


def test_a_lazy_view_cannot_receive(comm: Any) -> None:
    out = torch.zeros(2, dtype=torch.complex64).conj()
    with pytest.raises(hpcomm.LayoutError, match="conjugate"):
        comm.all_reduce(torch.ones(2, dtype=torch.complex64), out=out)


def test_a_number_cannot_receive(comm: Any) -> None:
    with pytest.raises(hpcomm.LayoutError, match="number"):
        comm.all_reduce(1.0, out=2.0)
    with pytest.raises(hpcomm.LayoutError, match="out"):
        comm.broadcast(b"abc", out=b"abc")


def test_an_integer_past_64_bits_is_refused(comm: Any) -> None:
    with pytest.raises(hpcomm.DtypeError, match="64 bits"):
        comm.all_reduce(2**70)


@pytest.mark.parametrize("dtype", ["int8", "int64", "uint8", "bool"])
def test_the_average_of_integers_is_refused_with_a_way_out(comm: Any, dtype: str) -> None:
    with pytest.raises(hpcomm.DtypeError) as caught:
        comm.all_reduce(np.ones(2, dtype), "avg")
    assert dtype in three_lines(caught.value, "all_reduce", comm)
    assert "float64" in str(caught.value.hint)


def test_an_operator_on_bits_of_floats_points_to_land_and_lor(comm: Any) -> None:
    with pytest.raises(hpcomm.DtypeError, match="float32") as caught:
        comm.all_reduce(np.ones(2, np.float32), "band")
    three_lines(caught.value, "all_reduce", comm)
    assert "land" in str(caught.value.hint)


def test_complex_numbers_have_no_order(comm: Any) -> None:
    with pytest.raises(hpcomm.DtypeError, match="complex") as caught:
        comm.all_reduce(np.ones(2, complex), "min")
    three_lines(caught.value, "all_reduce", comm)


@pytest.mark.parametrize("verb", ["scan", "exscan"])
def test_a_prefix_has_no_average(comm: Any, verb: str) -> None:
    with pytest.raises(hpcomm.UsageError, match="average") as caught:
        getattr(comm, verb)(np.ones(2), "avg")
    three_lines(caught.value, verb, comm)


def test_records_can_be_moved_but_not_reduced(comm: Any) -> None:
    x = np.zeros(2, [("a", np.int32), ("b", np.float32)])
    with pytest.raises(hpcomm.DtypeError, match="reduced") as caught:
        comm.all_reduce(x)
    assert caught.value.hint


def test_eight_bit_floats_can_be_moved_but_not_reduced(comm: Any) -> None:
    with pytest.raises(hpcomm.DtypeError, match="float8_e4m3fn"):
        comm.all_reduce(torch.zeros(2).to(torch.float8_e4m3fn))


def test_an_error_is_raised_by_the_call_itself_and_not_by_wait(comm: Any) -> None:
    with pytest.raises(hpcomm.RankError):
        comm.broadcast(np.ones(1), root=99, async_op=True)


def test_an_unknown_keyword_is_a_type_error(comm: Any) -> None:
    with pytest.raises(TypeError):
        comm.all_reduce(np.ones(1), group=None)


def _on_root(comm: Any, verb: str, x: Any, **keywords: Any) -> Any:
    """The call with this rank as root, so that every rank meets the root's checks."""
    if verb in ROOTED:
        keywords["root"] = comm.rank
    return getattr(comm, verb)(x, **keywords)


def said(call: Callable[[], Any]) -> str:
    with pytest.raises((hpcomm.HpcommError, AttributeError)) as caught:
        call()
    return str(caught.value)


def test_hints_name_the_verb_that_takes_what_was_given(comm: Any) -> None:
    assert "recv_object" in said(lambda: comm.recv(source=0))
    assert "broadcast_object" in said(lambda: comm.broadcast({"a": 1}))
    other = (comm.rank + 1) % comm.size  # all ranks refuse it, so all count it
    assert comm.size == 1 or "broadcast_object" in said(lambda: comm.broadcast(None, root=other))
    assert "isend_object" in said(lambda: comm.isend({}, 0))
    assert "gather_object" in said(lambda: comm.gather(["a"]))
    assert "all_gather_object" in said(lambda: comm.scan(["a"]))
    text = said(lambda: comm.all_reduce(np.ones(2), MPI.MAXLOC))
    assert '"maxloc"' in text
    assert "comm.mpi" in text


def test_mpi4pys_verbs_of_buffers_name_their_twin_and_are_not_there(comm: Any) -> None:
    hints = {
        "Allreduce": "comm.all_reduce(...)", "Bcast": "comm.broadcast(...)", "Send": "comm.send(...)",
        "Iallreduce": "comm.all_reduce(..., async_op=True)", "Gatherv": "comm.gather_ragged(...)",
        "Allreduce_init": 'comm.plan("all_reduce", ...)', "Ssend": "comm.mpi.Ssend",
    }  # fmt: skip
    for name, hint in hints.items():
        text = said(lambda name=name: getattr(comm, name))
        assert hint in text
        assert f"comm.mpi.{name}" in text
        assert f"MPI.of(comm).{name} of hpcomm.compat" in text
        assert "test_arguments.py" in text
        assert not hasattr(comm, name)
    assert "has no attribute 'nosuch'" in said(lambda: comm.nosuch)
    assert "Split" in dir(comm)
    assert "Allreduce" not in dir(comm)
    assert not hasattr(hpcomm.Communicator, "Allreduce")

    class Mixed:
        def Reduce(self) -> int:  # noqa: N802
            return 5

    class Own(hpcomm.Communicator, Mixed):
        def Gather(self) -> int:  # noqa: N802
            return 6

    with Own(comm.mpi) as own:
        assert own.Reduce() == 5
        assert own.Gather() == 6
        assert {"Reduce", "Gather"} <= {*dir(own)}
        assert not hasattr(own, "Bcast")


VERBS = ["all_reduce", "all_gather", "all_to_all", "reduce_scatter", "scan"]  # all ranks receive alike
XS: dict[str, Callable[[int], Any]] = {
    "numbers": lambda p: np.arange(2.0 * p),
    "blocks": lambda p: np.zeros((p, 3), np.int16),
    "nothing": lambda p: np.zeros((p, 0)),
    "one": lambda p: np.float32(3),
    "int": lambda p: 7,
    "long int": lambda p: 1 << 70,
    "bool": lambda p: True,
    "None": lambda p: None,
    "text": lambda p: "abc",
    "bytes": lambda p: b"abcd",
    "list": lambda p: [1.0, 2.0],
    "objects": lambda p: np.array([{}, 1], object),
    "dates": lambda p: np.zeros(p, "M8[s]"),
    "big-endian": lambda p: np.zeros(p, ">f8"),
    "strided": lambda p: np.zeros((p, 4))[:, ::2],
    "readonly": lambda p: np.broadcast_to(np.ones(1), (p, 2)),
    "tensor": lambda p: torch.zeros(p, 2, dtype=torch.bfloat16),
    "meta": lambda p: torch.zeros(p, 2, device="meta"),
    "sparse": lambda p: torch.eye(2).to_sparse(),
}
OPS: list[Any] = [
    "sum",
    "max",
    "avg",
    "band",
    "maxloc",
    "plus",
    "",
    None,
    3,
    lambda a, b: a,
    np.add,
    MPI.SUM,
    MPI.MAXLOC,
]


# No shrinking, no database: all ranks go through the same calls. See test_properties.py.
@settings(
    max_examples=120, phases=[Phase.generate], suppress_health_check=list(HealthCheck), derandomize=True
)
@given(
    st.sampled_from(VERBS),
    st.sampled_from(sorted(XS)),
    st.one_of(st.none(), st.sampled_from(sorted(XS))),
    st.sampled_from(range(len(OPS))),
)
def test_any_arguments_are_taken_or_refused_in_words(
    comm: Any, together: Any, verb: str, x: str, out: str | None, op: int
) -> None:
    keywords: dict[str, Any] = {"out": XS[out](comm.size)} if out else {}
    if not verb.startswith("all_g") and verb != "all_to_all":
        keywords["op"] = OPS[op]

    def body() -> None:
        refused = None
        try:
            getattr(comm, verb)(XS[x](comm.size), **keywords)
        except hpcomm.HpcommError as error:
            refused = error
        assert refused is None or refused.hint
        assert comm.all_reduce(1) == comm.size

    together((verb, x, out, op), body)
