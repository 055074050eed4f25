"""A program that calls everything public, for type checkers only: nobody runs it.

`assert_type` says what a right call gives. Wrong calls stand in wrong_calls.py.
"""

from __future__ import annotations

from typing import Any, assert_type

import numpy as np
import torch
from mpi4py import MPI
from numpy.typing import NDArray

import hpcomm
from hpcomm import Communicator, Plan, Request, Status, wait_all, wait_any
from hpcomm.core.operation import Call

Floats = NDArray[np.float64]
comm: Communicator = hpcomm.world


def arrays_come_back_as_they_went_in(x: Floats, t: torch.Tensor, out: Floats) -> None:
    assert_type(comm.broadcast(x), Floats)
    assert_type(comm.broadcast(t, root=1), torch.Tensor)
    assert_type(comm.broadcast(out=out), Floats)
    assert_type(comm.broadcast(None, src=1, out=t), torch.Tensor)
    assert_type(comm.reduce(x), Floats | None)
    assert_type(comm.reduce(t, "max", dst=1), torch.Tensor | None)
    assert_type(comm.all_reduce(x), Floats)
    assert_type(comm.all_reduce(x, "min", out=x), Floats)
    assert_type(comm.all_reduce(t, "avg", deterministic=True), torch.Tensor)
    assert_type(comm.all_reduce(1.5), float)
    assert_type(comm.all_reduce(np.float32(1)), np.float32)
    assert_type(comm.all_reduce(bytearray(8)), bytearray)
    assert_type(comm.gather(x), Floats | None)
    assert_type(comm.gather(t), torch.Tensor | None)
    assert_type(comm.all_gather(x), Floats)
    assert_type(comm.all_gather(t, out=t), torch.Tensor)
    assert_type(comm.all_gather(1), NDArray[np.generic])
    assert_type(comm.scatter(x, root=0), Floats)
    assert_type(comm.scatter(t), torch.Tensor)
    assert_type(comm.scatter(out=x), Floats)
    assert_type(comm.reduce_scatter(x, "sum"), Floats)
    assert_type(comm.reduce_scatter(t, out=t), torch.Tensor)
    assert_type(comm.all_to_all(x), Floats)
    assert_type(comm.all_to_all(t), torch.Tensor)
    assert_type(comm.scan(x), Floats)
    assert_type(comm.exscan(t, "prod"), torch.Tensor)
    assert_type(comm.barrier(), None)
    assert_type(comm.all_reduce_loc(x, "min")[0], Floats)
    assert_type(comm.same(x, "weights"), Floats)
    assert_type(comm.bcast(x), Floats)
    assert_type(comm.allreduce(t), torch.Tensor)


def shapes_are_not_taken_over_where_they_change() -> None:
    row = np.ones(3)
    ranks, n = comm.all_gather(row).shape
    assert_type(comm.all_reduce(row), np.ndarray[tuple[int], np.dtype[np.float64]])
    assert ranks + n


def in_the_background(x: Floats, t: torch.Tensor) -> None:
    assert_type(comm.broadcast(x, async_op=True), Request[Floats])
    assert_type(comm.all_reduce(t, async_op=True), Request[torch.Tensor])
    assert_type(comm.reduce(x, async_op=True).wait(), Floats | None)
    assert_type(comm.all_gather(x, async_op=True).wait(1.5), Floats)
    assert_type(comm.gather(t, async_op=True).wait(), torch.Tensor | None)
    assert_type(comm.scatter(x, async_op=True).wait(), Floats)
    assert_type(comm.reduce_scatter(x, async_op=True).wait(), Floats)
    assert_type(comm.all_to_all(t, async_op=True).wait(), torch.Tensor)
    assert_type(comm.scan(x, async_op=True).result, Floats | None)
    assert_type(comm.exscan(x, async_op=True).done(), bool)
    assert_type(comm.barrier(async_op=True), Request[None])
    assert_type(wait_all([comm.all_reduce(x, async_op=True), comm.scan(x, async_op=True)]), list[Floats])
    assert_type(wait_any([comm.all_reduce(t, async_op=True)], timeout=1), tuple[int, torch.Tensor])


async def awaited(x: Floats) -> None:
    assert_type(await comm.all_reduce(x, async_op=True), Floats)


def operators_and_algorithms(x: Floats, op: str, name: str) -> None:
    comm.all_reduce(x, hpcomm.premul_sum(0.5))
    comm.all_reduce(x, MPI.SUM)
    comm.all_reduce(x, torch.distributed.ReduceOp.SUM)
    comm.all_reduce(x, lambda a, b: np.hypot(a, b))
    comm.all_reduce(x, np.maximum)
    comm.all_reduce(x, max)
    comm.all_reduce(x, hpcomm.Op(op))
    comm.all_reduce(x, algorithm="ring")
    comm.all_reduce(x, algorithm="tuned")
    comm.all_reduce(x, algorithm=hpcomm.Algorithm("double_tree:chunks=16"))
    comm.broadcast(x, algorithm=hpcomm.Algorithm(name))


def messages(x: Floats, t: torch.Tensor) -> None:
    assert_type(comm.send(x, dest=1), None)
    assert_type(comm.send(t, dst=1, tag=3, async_op=True), Request[None])
    assert_type(comm.isend(x, 1), Request[None])
    wait_all([comm.isend(x, dest=hpcomm.PROC_NULL)])
    assert_type(comm.recv(x, source=0), Floats)
    assert_type(comm.recv(t, async_op=True), Request[torch.Tensor])
    assert_type(comm.recv(dtype=np.float64, shape=(3,)), Floats)
    assert_type(comm.recv(dtype="float64", status=Status()), NDArray[Any])
    assert_type(comm.recv(dtype=float, shape=3, async_op=True), Request[NDArray[Any]])
    assert_type(comm.recv(dtype=torch.float32), torch.Tensor)
    assert_type(comm.recv(dtype=torch.float32, shape=(2, 2), async_op=True), Request[torch.Tensor])
    assert_type(comm.irecv(x), Request[Floats])
    assert_type(comm.irecv(dtype=np.int32, shape=3), Request[NDArray[np.int32]])
    assert_type(comm.irecv(dtype="int32", shape=3), Request[NDArray[Any]])
    assert_type(comm.irecv(dtype=torch.int32), Request[torch.Tensor])
    assert_type(comm.sendrecv(x, 1, 0, out=x), Floats)
    assert_type(comm.sendrecv(t, 1), torch.Tensor)
    assert_type(comm.probe(hpcomm.ANY_SOURCE, hpcomm.ANY_TAG).nbytes, int)
    assert_type(comm.iprobe(), Status | None)
    ops = [hpcomm.P2POp("send", x, 1), hpcomm.P2POp("recv", t, 0, tag=2)]
    assert_type(comm.batch_isend_irecv(ops), list[Request[Any]])
    request = comm.irecv(x)
    if request.status is not None:
        assert_type(request.status.source, int)


def objects(words: list[str]) -> None:
    assert_type(comm.send_object(words, dest=1), None)
    assert_type(comm.send_object(words, 1, async_op=True), Request[None])
    assert_type(comm.isend_object(words, 1), Request[None])
    assert_type(comm.recv_object(), Any)
    assert_type(comm.irecv_object(0).wait(), Any)
    assert_type(comm.sendrecv_object(words, 1, 0), Any)
    assert_type(comm.broadcast_object(words), list[str])
    assert_type(comm.broadcast_object(words if comm.rank == 0 else None), list[str])
    elsewhere: list[int] = comm.broadcast_object()
    mine: int = comm.scatter_object()
    print(elsewhere, mine)
    assert_type(comm.gather_object(1.5), list[float] | None)
    assert_type(comm.all_gather_object("a"), list[str])
    assert_type(comm.all_gather_object("a", async_op=True), Request[list[str]])
    assert_type(comm.scatter_object(words), str)
    assert_type(comm.scatter_object(words if comm.rank == 0 else None), str)
    assert_type(comm.all_to_all_object(words, async_op=True).wait(), list[str])
    assert_type(comm.reduce_object(3, "max"), int | None)
    assert_type(comm.all_reduce_object((1.5, comm.rank), "minloc"), tuple[float, int])


def ragged(x: Floats, t: torch.Tensor) -> None:
    assert_type(comm.send_ragged(x, 1), None)
    assert_type(comm.isend_ragged(t, 1), Request[None])
    assert_type(comm.recv_ragged(0), Any)
    assert_type(comm.irecv_ragged(), Request[Any])
    assert_type(comm.broadcast_ragged(x), Floats)
    assert_type(comm.broadcast_ragged(t if comm.rank == 0 else None), torch.Tensor)
    assert_type(comm.gather_ragged(x), list[Floats] | None)
    assert_type(comm.all_gather_ragged(t), list[torch.Tensor])
    assert_type(comm.all_gather_ragged(x, async_op=True), Request[list[Floats]])
    assert_type(comm.scatter_ragged([x, x]), Floats)
    assert_type(comm.scatter_ragged([t, t] if comm.rank == 0 else None), torch.Tensor)
    assert_type(comm.scatter_ragged([x, x] if comm.rank == 0 else None, async_op=True), Request[Floats])
    elsewhere: Floats = comm.scatter_ragged()
    tensor: torch.Tensor = comm.broadcast_ragged()
    print(elsewhere, tensor)
    assert_type(comm.all_to_all_ragged([t]), list[torch.Tensor])


def plans(x: Floats, t: torch.Tensor) -> None:
    step = comm.plan("all_reduce", x, out=x, op="max", algorithm="ring")
    assert_type(step, Plan[Floats])
    assert_type(step(), Floats)
    assert_type(step.wait(timeout=1), Floats)
    assert_type(comm.plan("all_gather", t), Plan[torch.Tensor])
    assert_type(comm.plan("reduce", x), Plan[Floats | None])
    assert_type(comm.plan("broadcast", out=x), Plan[Floats])
    assert_type(comm.plan("send", x, dest=1), Plan[None])
    assert_type(comm.plan("recv", out=t, source=0), Plan[torch.Tensor])
    assert_type(comm.plan("barrier"), Plan[None])
    with comm.plan("scan", x) as scan:
        assert_type(wait_all([scan]), list[Floats])
        assert_type(scan.explain(), str)


class Looker:
    def before(self, call: Call) -> None:
        print(call)

    def after(self, call: Call) -> None:
        print(call)


def communicators(x: Floats) -> None:
    assert_type(comm.split(0), Communicator)
    with comm.split(color=comm.rank % 2) as half:
        assert_type(half.all_reduce(x), Floats)
    assert_type(comm.split(None), Communicator | None)
    assert_type(comm.split_node(key=1), Communicator)
    assert_type(comm.group([0, 1]), Communicator)
    assert_type(comm.dup(check="full"), Communicator)
    assert_type(comm.create_intercomm(0, comm, 1).merge(), Communicator)
    assert_type(comm.mesh(dp=2, tp=-1)["tp"], Communicator)
    assert_type(comm.mesh({"y": 2, "x": -1}, periodic=["x"], order="node").coords, dict[str, int])
    ring = comm.cart((2, -1), periodic=True, reorder=True)
    assert_type(ring.shift(0), tuple[int, int])
    assert_type(ring.neighbour_all_gather(x), Floats)
    assert_type(ring.neighbour_all_gather(ring.rank), NDArray[np.generic])
    assert_type(ring.neighbour_all_to_all(x, out=x, async_op=True), Request[Floats])
    assert_type(comm.graph([0], [0]).neighbour_all_gather_ragged(x), list[Floats | None])
    with comm.shared_array((3, 3)) as shared:
        shared.fence()
        shared.array[0] = 1
    with comm.pool() as pool:
        if pool is not None:
            assert_type(pool.submit(len, "abc").result(), int)
    with comm.spawn(["worker.py", "8"], 2, name="workers") as workers:
        assert_type(workers, Communicator)
    assert_type(hpcomm.parent(), Communicator | None)
    stop = comm.observe(Looker())
    assert_type(stop(), None)
    assert_type(comm.mpi, MPI.Comm)
    comm.timeout = 30
    comm.timeout = None
    with hpcomm.Communicator(MPI.COMM_WORLD, name="mine") as own:
        assert_type(own.is_closed, bool)
    comm.close()


def buffers(x: Floats) -> None:
    assert_type(hpcomm.as_buffer(x).shape, tuple[int, ...])


def fields(t: torch.Tensor) -> None:
    field = hpcomm.Field(comm, (8, 8), halo=1, name="T", unit="K")
    assert_type(field, hpcomm.Field[Floats])
    assert_type(field.inner, Floats)
    assert_type(field.gather(), Floats | None)
    assert_type(field.all_gather(), Floats)
    assert_type(hpcomm.Field(comm, 12), hpcomm.Field[NDArray[np.float64]])
    assert_type(hpcomm.Field(comm, hpcomm.Partition([12], {"r": 2}), like=t).array, torch.Tensor)
    assert_type(hpcomm.Field(comm, hpcomm.Points(4, [[0, 1], [2, 3]])).array, NDArray[np.float64])
    hpcomm.Points((5,), [[0, 4], [1, 2, 3]], ghosts=[[1, 3], [0]])
    assert_type(hpcomm.Field(comm.mesh(y=2, x=2), (8, 8), dtype=np.float32).array, NDArray[np.float32])
    assert_type(hpcomm.Field(comm, hpcomm.Partition((8,), {}), array=t).inner, torch.Tensor)
    assert_type(hpcomm.Field(comm, (8,), like=t).scatter(t), hpcomm.Field[torch.Tensor])
    assert_type(field.redistribute(hpcomm.Partition((8, 8), {})), hpcomm.Field[Floats])
    assert_type(field.norm(deterministic=True), float)
    assert_type(field.mean(), np.float64)
    assert_type(field.sum(deterministic=True), np.float64)
    assert_type(field.dot(field), np.float64)
    assert_type(field.max(), np.float64)
    whole, waves = hpcomm.Field(comm, 8, dtype=np.int32), hpcomm.Field(comm, 8, dtype=np.complex64)
    assert_type(whole.mean(), np.float64)
    assert_type(waves.mean(), np.complex128)
    assert_type(waves.std(), np.float64)
    assert_type(hpcomm.Field(comm, (8,), like=t).mean(), Any)
    assert_type(2 * field - field * field, hpcomm.Field[Floats])
    field[1:3, ...] = 0
    hpcomm.Halo(field)()
    hpcomm.Redistribution(comm, field.partition, field.partition).close()


def programs(x: Floats, t: torch.Tensor) -> None:
    me = hpcomm.join("ocean")
    given, taken = me.gives("heat", x), me.takes("wind", t, mapping="bilinear", every=3600.0)
    me.put(given, time=0.0)
    assert_type(me.get(taken, time=0.0), torch.Tensor)
    link = me.link("atmosphere")
    link.put([given], time=60.0)
    assert_type(link.get(taken), torch.Tensor)
    assert_type(link.ended(), set[int])
    assert_type(me.report(), str)
