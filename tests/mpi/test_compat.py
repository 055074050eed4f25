"""hpcomm.compat: mpi4py's own surface, carried out and checked by hpcomm."""

from __future__ import annotations

import array
import ctypes
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from mpi4py import MPI as THEIRS

import hpcomm
from hpcomm.compat import MPI

pytestmark = pytest.mark.few

_HANDLE = ctypes.c_uint32 if THEIRS._sizeof(THEIRS.Comm) == 4 else ctypes.c_uint64


def _capsule(what: str, result: Any) -> Any:
    """A function of Python's in C that says something of a capsule."""
    given = [ctypes.py_object, ctypes.c_char_p] if what == "Pointer" else [ctypes.py_object]
    return ctypes.PYFUNCTYPE(result, *given)((f"PyCapsule_Get{what}", ctypes.pythonapi))


@pytest.fixture(scope="module")
def comm() -> Any:
    """mpi4py's surface over a communicator of these tests' own."""
    return MPI.COMM_WORLD.Dup()


def test_it_is_a_communicator_of_mpi4py(comm: Any) -> None:
    assert isinstance(comm, THEIRS.Intracomm)
    assert isinstance(comm, MPI.Comm)
    assert (comm.Get_rank(), comm.size) == (comm.communicator.rank, comm.communicator.size)
    assert MPI.DOUBLE is THEIRS.DOUBLE
    assert MPI.Status is THEIRS.Status
    assert {"COMM_WORLD", "Win", "File", "of"} <= set(dir(MPI))
    assert comm.Get_attr(MPI.TAG_UB) > 0
    assert MPI.COMM_SELF.Get_size() == 1


SPECS = {
    "array": lambda x: x,
    "list": lambda x: [x, MPI.DOUBLE],
    "string": lambda x: (x, "d"),
    "count": lambda x: [x, x.size],
    "count and type": lambda x: [x, x.size, MPI.DOUBLE],
    "displacement": lambda x: [np_base(x), (x.size, 1), MPI.DOUBLE],
    "bytes": lambda x: [x.view("u1"), MPI.BYTE],
    "Fortran": lambda x: x.reshape(2, -1).T,
    "torch": lambda x: torch.from_numpy(x),
    "memory": lambda x: [memoryview(x), MPI.DOUBLE],
}


def np_base(x: Any) -> Any:
    """The array of which x is all but the first element."""
    return x.base


def made(n: int, value: float) -> Any:
    return np.full(n + 1, float(value))[1:]


@pytest.mark.parametrize("name", SPECS)
def test_a_buffer_may_be_given_in_every_way_of_mpi4pys(comm: Any, name: str) -> None:
    spec = SPECS[name]
    x = made(4, comm.rank)
    comm.Bcast(spec(x), root=comm.size - 1)
    assert (x == comm.size - 1).all()
    x, y = made(4, comm.rank), made(4, -1)
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    request = comm.Irecv(spec(y), left, 3)
    comm.Send(spec(x), right, 3)
    status = MPI.Status()
    request.Wait(status)
    assert (y == left).all()
    assert (status.source, status.tag, status.Get_count(MPI.DOUBLE)) == (left, 3, 4)
    assert request == MPI.REQUEST_NULL
    assert not request


def test_collectives_do_what_mpi4py_says(comm: Any) -> None:
    p, r = comm.size, comm.rank
    x, out = np.arange(2.0) + r, np.empty((p, 2))
    total = np.arange(2.0) * p + sum(range(p))
    comm.Allgather(x, out)
    assert (out == np.arange(2.0) + np.arange(p)[:, None]).all()
    whole = np.zeros((p, 2)) + r
    comm.Gather(whole[r] if r else MPI.IN_PLACE, whole if r == 0 else None, root=0)
    assert r or (whole == np.arange(p)[:, None]).all()
    part = np.empty(2)
    comm.Scatter([out, 2, MPI.DOUBLE] if r == 0 else None, part, root=0)
    assert (part == np.arange(2.0) + r).all()
    y = np.empty(2)
    comm.Allreduce([x, MPI.DOUBLE], [y, MPI.DOUBLE], MPI.SUM)
    assert (y == total).all()
    comm.Reduce(x, y if r == 0 else None, op=MPI.MAX, root=0)
    assert r or (y == np.arange(2.0) + p - 1).all()
    z = x.copy()
    comm.Allreduce(MPI.IN_PLACE, z)
    assert (z == total).all()
    comm.Scan(x, z)
    assert (z == np.arange(2.0) * (r + 1) + sum(range(r + 1))).all()
    z[:] = -1
    comm.Exscan(x, z)
    assert (z == (np.arange(2.0) * r + sum(range(r)) if r else -1)).all()
    each, got = np.arange(p) + 10 * r, np.empty(p, int)
    comm.Alltoall(each, got)
    assert (got == r + 10 * np.arange(p)).all()
    got = np.empty(1, int)
    comm.Reduce_scatter_block(each, got)
    assert got[0] == p * r + 10 * sum(range(p))
    comm.Reduce_scatter(each, got, [1] * p)
    assert got[0] == p * r + 10 * sum(range(p))


def test_one_array_at_both_ends_of_a_reduction_is_in_place(comm: Any) -> None:
    """As mpi4py has it from 4.2 on."""
    p, r = comm.size, comm.rank
    wanted = {"Reduce": p if r == 0 else 1, "Allreduce": p, "Scan": r + 1, "Exscan": r or 1}
    for name, each in wanted.items():
        for later in ("", "I"):
            x = np.ones(3)
            begun = getattr(comm, later + (name.lower() if later else name))(x, x)
            assert begun is None or begun.Wait()
            assert (x == each).all(), later + name
    for how in (lambda x: x, lambda x: [x, MPI.DOUBLE]):
        x = np.arange(2.0 * p)
        comm.Reduce_scatter_block(how(x), how(x))
        assert (x[:2] == p * (2.0 * r + np.arange(2))).all()


def test_v_variants_bring_blocks_of_any_length_to_any_place(comm: Any) -> None:
    p, r = comm.size, comm.rank
    counts = [i + 1 for i in range(p)]
    gaps = [sum(counts[:i]) + i for i in range(p)]
    whole = np.full(sum(counts) + p, -1.0)
    mine = np.full(r + 1, float(r))
    into = [whole, (counts, gaps), MPI.DOUBLE]
    calls = {
        "Allgatherv": lambda: comm.Allgatherv(mine, into),
        "Iallgatherv": lambda: comm.Iallgatherv(mine, [whole, counts, gaps, MPI.DOUBLE]).Wait(),
        "Gatherv": lambda: comm.Gatherv(mine, into if r == 0 else None, root=0),
    }
    for name, call in calls.items():
        whole[:] = -1
        call()
        if name != "Gatherv" or r == 0:
            for i in range(p):
                assert (whole[gaps[i] : gaps[i] + counts[i]] == i).all()
                assert whole[gaps[i] + counts[i]] == -1
    part = np.empty(r + 1)
    comm.Scatterv([whole, counts, gaps, MPI.DOUBLE] if r == 0 else None, part)
    assert (part == r).all()
    ones, back = np.arange(sum(counts), dtype="i4"), np.empty(p * (r + 1), "i4")
    comm.Alltoallv([ones, counts], [back, r + 1])
    assert back.reshape(p, -1).tolist() == [list(range(sum(range(r + 1)), sum(range(r + 2))))] * p
    if p > 1:
        with pytest.raises(hpcomm.MismatchError, match="were expected"):
            comm.Allgatherv(mine, [np.empty(2 * p), [2] * p])


def test_a_column_arrives_in_a_plain_array_and_back(comm: Any) -> None:
    """Datatypes of the program's own on one side, plain elements on the other."""
    grid = np.arange(12.0).reshape(3, 4) + 100 * comm.rank
    column = MPI.DOUBLE.Create_vector(3, 1, 4).Commit()
    y = np.empty(3)
    comm.Bcast([grid, 1, column] if comm.rank == 0 else y, root=0)
    assert comm.rank == 0 or (y == [0, 4, 8]).all()
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    request = comm.Irecv(y, left)
    comm.Send([grid, 1, column], right)
    request.Wait()
    assert (y == np.arange(0, 12, 4.0) + 100 * left).all()
    into = np.zeros((3, 4))
    narrow = column.Create_resized(0, 8).Commit()
    comm.Gather(y, [into, 1, narrow] if comm.rank == 0 else None)
    if comm.rank == 0 and comm.size <= 4:
        assert (into[:, 0] == y).all()
    pairs = np.zeros(2, [("a", "f8"), ("b", "i4")])
    pairs["b"] = comm.rank
    record = MPI.Datatype.Create_struct([1, 1], [0, 8], [MPI.DOUBLE, MPI.INT])
    record = record.Create_resized(0, 12).Commit()
    comm.Bcast([pairs, 2, record], root=comm.size - 1)
    assert (pairs["b"] == comm.size - 1).all()
    for each in (column, narrow, record):
        each.Free()


def test_operators_that_hpcomm_lacks_go_to_mpi(comm: Any) -> None:
    x, y = np.array([comm.rank, 7], "i4"), np.empty(2, "i4")
    comm.Allreduce([x, 1, MPI.TWOINT], [y, 1, MPI.TWOINT], MPI.MAXLOC)
    assert y.tolist() == [comm.size - 1, 7]
    own = MPI.Op.Create(lambda a, b, kind: np.copyto(np.frombuffer(b, "i4"), np.frombuffer(a, "i4")), False)
    comm.Allreduce(x, y, own)
    assert y[1] == 7
    own.Free()
    comm.Allreduce(np.array([comm.rank > 0]), z := np.empty(1, bool), MPI.LXOR)
    assert z[0] == (comm.size - 1) % 2


def test_objects_go_as_with_mpi4py_and_probe_finds_them(comm: Any) -> None:
    p, r = comm.size, comm.rank
    right, left = (r + 1) % p, (r - 1) % p
    request = comm.isend({"from": r, "x": np.arange(3)}, right, 5)
    status = MPI.Status()
    comm.Probe(MPI.ANY_SOURCE, 5, status)
    assert status.source == left
    assert status.Get_count(MPI.BYTE) > 0
    assert comm.iprobe(left, 5)
    got = comm.recv(source=left, tag=5, status=status)
    assert (got["from"], got["x"].tolist(), status.Get_tag()) == (left, [0, 1, 2], 5)
    assert request.wait() is None
    coming = [comm.irecv(source=left, tag=tag) for tag in range(3)]
    going = [comm.isend(tag, right, tag) for tag in range(3)]
    assert MPI.Request.waitall(coming) == [0, 1, 2]
    MPI.Request.Waitall(going)
    assert comm.sendrecv(r, right, source=left) == left
    assert comm.bcast("x" if r == 0 else None) == "x"
    assert comm.allgather(r) == list(range(p))
    assert comm.gather(r, root=0) == (list(range(p)) if r == 0 else None)
    assert comm.scatter([str(i) for i in range(p)] if r == 0 else None) == str(r)
    assert comm.alltoall([r] * p) == list(range(p))
    assert comm.allreduce(r) == sum(range(p))
    assert comm.allreduce((r, "a"), op=MPI.MINLOC) == (0, "a")
    assert comm.reduce([r], op=MPI.SUM) == (list(range(p)) if r == 0 else None)
    assert comm.scan(1, op=MPI.SUM) == r + 1
    assert comm.exscan(1) == (r or None)
    assert comm.recv(source=MPI.PROC_NULL) is None


def test_a_wait_for_one_of_mpis_own_lets_objects_come(comm: Any) -> None:
    """Its message cannot go before the other rank's receive of an object moves on, which has waited, too."""
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    coming = comm.irecv(source=left, tag=5)
    going = comm.issend(comm.rank, right, 5)
    going.Wait()
    assert coming.wait() == left


def test_requests_of_both_kinds_stand_in_one_list(comm: Any) -> None:
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    y = np.zeros((3, 2))
    requests = [
        comm.Irecv(y[0], left, 0),
        comm.Irecv(y[1], left, 1),
        comm.Issend(np.full(2, 7.0), right, 0),  # MPI's own
        comm.Isend(np.full(2, 8.0), right, 1),
    ]
    statuses: list[Any] = []
    seen = set()
    while (i := MPI.Request.Waitany(requests)) != MPI.UNDEFINED:
        seen.add(i)
    assert seen == {0, 1, 2, 3}
    assert y[:2].tolist() == [[7, 7], [8, 8]]
    requests = [comm.Iallreduce(np.ones(2), y[2]), comm.Ibarrier()]
    while not MPI.Request.Testall(requests, statuses):
        pass
    assert (y[2] == comm.size).all()
    assert len(statuses) == 2
    never = comm.Irecv(y[0], left, 99)
    assert never.Test() is False
    never.Cancel()
    never.Wait(status := MPI.Status())
    assert status.Is_cancelled()
    steady = comm.Recv_init(y[0], left, 4), comm.Send_init(np.full(2, 9.0), right, 4)
    MPI.Prequest.Startall(list(steady))
    MPI.Request.Waitall(list(steady))
    assert (y[0] == 9).all()
    for each in steady:
        each.Free()


def test_a_message_may_be_shorter_than_its_buffer_but_not_longer(comm: Any) -> None:
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    y, status = np.full(5, -1.0), MPI.Status()
    comm.Sendrecv(np.arange(2.0), right, 1, y, left, 1, status)
    assert y.tolist() == [0, 1, -1, -1, -1]
    assert status.Get_count(MPI.DOUBLE) == 2
    request = comm.Irecv(y, MPI.ANY_SOURCE, MPI.ANY_TAG)
    comm.Send(np.arange(3.0), right, 6)
    request.Wait(status)
    assert (status.source, status.tag, status.Get_elements(MPI.DOUBLE)) == (left, 6, 3)
    going = comm.Isend(array.array("d", [1, 2, 3]), right)
    with pytest.raises(hpcomm.MismatchError, match=r"longer|has 24 bytes"):
        comm.Recv(y[:2], left)
    going.Wait()
    x = np.full(2, float(comm.rank))
    comm.Sendrecv_replace(x, right, 0, left)
    assert (x == left).all()


def test_communicators_that_are_made_are_checked_too(comm: Any) -> None:
    part = comm.Split(comm.rank % 2, -comm.rank)
    assert part.communicator.name == f"{comm.communicator.name}.split"
    assert part.allreduce(1) == part.size
    assert part.allgather(comm.rank) == sorted(part.allgather(comm.rank), reverse=True)
    part.Free()
    assert comm.Split(MPI.UNDEFINED if comm.rank else 0) == (
        MPI.COMM_NULL if comm.rank else pytest.approx
    ) or (comm.rank == 0)
    grid = comm.Create_cart([comm.size], periods=[True], reorder=False)
    assert isinstance(grid, MPI.Cartcomm)
    assert isinstance(grid, MPI.Intracomm)
    assert grid.Get_coords(comm.rank) == [comm.rank]
    source, dest = grid.Shift(0, 1)
    assert grid.sendrecv(comm.rank, dest, source=source) == source
    got = np.empty(2, int)
    grid.Neighbor_allgather(np.array([comm.rank]), got)
    assert got.tolist() == [(comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size]
    assert grid.Sub([False]).Get_size() == 1
    graph = comm.Create_dist_graph_adjacent([source], [dest])
    assert graph.neighbor_allgather(comm.rank) == [source]
    group = comm.Get_group().Incl([0])
    if comm.rank == 0:
        assert comm.Create_group(group).allgather(5) == [5]
    node = comm.Split_type(MPI.COMM_TYPE_SHARED)
    assert node.bcast(node.size) == node.size
    assert MPI.of(hpcomm.self_).allreduce(3) == 3
    assert MPI.of(THEIRS.COMM_WORLD).allreduce(1) == comm.size


def test_other_parts_of_mpi4py_take_the_communicator(comm: Any, tmp_path_factory: Any) -> None:
    window = MPI.Win.Allocate(8, comm=comm)
    np.frombuffer(window.tomemory(), "i8")[:] = 0
    comm.Barrier()
    window.Lock(0)
    window.Fetch_and_op(np.ones(1, "i8"), np.empty(1, "i8"), 0, op=MPI.SUM)
    window.Unlock(0)
    comm.Barrier()
    if comm.rank == 0:
        assert np.frombuffer(window.tomemory(), "i8")[0] == comm.size
    comm.Barrier()
    window.Free()


def test_c_code_takes_it_and_what_it_makes_of_the_handle_is_known(comm: Any) -> None:
    """As a library in C or Cython does: mpi4py's C functions, and those of MPI, on the handle."""
    api = {}
    for name, result, given in (
        ("Get", ctypes.c_void_p, ctypes.py_object),
        ("New", ctypes.py_object, _HANDLE),
    ):
        capsule = THEIRS.__pyx_capi__[f"PyMPIComm_{name}"]
        address = _capsule("Pointer", ctypes.c_void_p)(capsule, _capsule("Name", ctypes.c_char_p)(capsule))
        api[name] = ctypes.PYFUNCTYPE(result, given)(address)
    address = api["Get"](comm)
    assert address == THEIRS._addressof(comm)
    handle = _HANDLE.from_address(address)
    assert handle.value == THEIRS._handleof(comm) % 2 ** (8 * ctypes.sizeof(_HANDLE))
    rank, library = ctypes.c_int(-1), ctypes.CDLL(THEIRS.__file__)
    library.MPI_Comm_rank.argtypes = _HANDLE, ctypes.c_void_p
    assert library.MPI_Comm_rank(handle, ctypes.byref(rank)) == 0
    assert rank.value == comm.rank
    grid = comm.Create_cart([comm.size])
    for mpi in (comm, grid):
        raw = api["New"](mpi.handle)
        assert type(raw) is getattr(THEIRS, type(mpi).__name__)
        assert type(mpi).__module__ == THEIRS.__name__  # petsc4py takes no other
        assert isinstance(raw, type(mpi))  # for a program that asks
        for again in (type(mpi)(raw), MPI.Comm.f2py(mpi.py2f()), MPI.Comm.fromhandle(mpi.handle)):
            assert type(again) is type(mpi)
            assert again == mpi
            assert again.communicator is mpi.communicator
            assert again.allreduce(1) == comm.size
    handle = grid.handle
    grid.Free()
    with pytest.raises(hpcomm.UsageError, match=r"has no Communicator|is closed"):
        again.Barrier()
    foreign = THEIRS.COMM_SELF.Dup()  # of which hpcomm knows nothing
    assert type(MPI.Comm.fromhandle(foreign.handle)) is THEIRS.Intracomm
    foreign.Free()


class _Mine(MPI.Intracomm):
    """A program's own class."""


def test_a_communicator_of_mpis_own_is_pickled_by_its_name(comm: Any) -> None:
    again = pickle.loads(pickle.dumps(MPI.COMM_WORLD))
    assert again is MPI.COMM_WORLD
    second = pickle.loads(pickle.dumps(MPI.Intracomm(MPI.COMM_WORLD)))
    assert second == again
    assert second.communicator is again.communicator
    for kind in MPI.Intracomm, MPI.Request, _Mine:
        assert pickle.loads(pickle.dumps(kind)) is kind
    with pytest.raises(ValueError, match="cannot serialize"):
        pickle.dumps(comm)


def test_ranks_that_disagree_are_told(own_comm: hpcomm.Communicator) -> None:
    comm = MPI.of(own_comm)
    if own_comm.context.node is None:
        pytest.skip("nobody to disagree with, or no node core: then light ends the job")
    x, y, all_of_them = np.ones(3), np.empty(3), np.empty((comm.size, 3))
    call = (lambda: comm.Allgather(x, all_of_them)) if comm.rank == 0 else (lambda: comm.Allreduce(x, y))
    with pytest.raises(hpcomm.MismatchError, match=r"test_compat\.py"):
        call()


def test_a_timeout_ends_a_wait(own_comm: hpcomm.Communicator) -> None:
    comm = MPI.of(own_comm)
    own_comm.timeout = 0.2
    part = comm.Dup()
    for each in (comm, part):
        for receive in (lambda c=each: c.Recv(np.empty(1), 0, 1), lambda c=each: c.recv(source=0, tag=1)):
            with pytest.raises(hpcomm.WaitTimeoutError):
                receive()
    request = comm.irecv(source=0, tag=2)
    with pytest.raises(hpcomm.WaitTimeoutError):
        MPI.Request.Waitany([request])
    request.Cancel()
    own_comm.timeout = None


def test_what_no_buffer_is_gets_an_error_that_says_so(comm: Any) -> None:
    with pytest.raises(TypeError, match="expecting buffer"):
        comm.Send(7, 0)
    with pytest.raises(hpcomm.LayoutError, match="not contiguous"):
        comm.Send(np.ones((4, 4))[:, 1], 0)
    with pytest.raises(ValueError, match="not in a buffer of 2"):
        comm.Send([np.ones(2), 3, MPI.DOUBLE], 0)
    with pytest.raises(KeyError):
        comm.Send([np.ones(2), "no type"], 0)
    with pytest.raises(hpcomm.RankError, match="no rank"):
        comm.Send(np.ones(2), comm.size)
    with pytest.raises(hpcomm.UsageError, match="has no Communicator"):
        MPI.Intracomm().Barrier()


def test_what_is_no_communicator_or_operator_is_named() -> None:
    for x in ("x", None):
        with pytest.raises(hpcomm.UsageError, match=f"{x!r} is no communicator"):
            MPI.of(x)
    for op in (None, max):
        with pytest.raises(TypeError, match=r"expected mpi4py.MPI.Op, got (NoneType|builtin_function)"):
            MPI.COMM_WORLD.Allreduce(np.ones(2), np.ones(2), op=op)
