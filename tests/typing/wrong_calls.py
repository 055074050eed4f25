"""Calls that type checkers must refuse: where one passed, the comment beside it would be the error."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

import hpcomm
from hpcomm import Communicator, Request, wait_any

Floats = NDArray[np.float64]
comm: Communicator = hpcomm.world


def operators_and_algorithms(x: Floats, word: str) -> None:
    comm.all_reduce(x, "summ")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
    comm.reduce(x, "maximum")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
    comm.scan(x, word)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
    comm.reduce_scatter(x, 3)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportCallIssue]
    comm.all_reduce_object(1, "avg")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    comm.all_reduce_loc(x, "minimum")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    comm.all_reduce(x, algorithm="rign")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
    comm.broadcast(x, algorithm=word)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
    comm.barrier(algorithm="mpi:tree")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]


def arrays(x: Floats, t: torch.Tensor) -> None:
    comm.all_reduce("text")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
    comm.all_gather([1.0, 2.0])  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportCallIssue]
    comm.broadcast()  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    comm.recv(source=0)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    comm.irecv()  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    comm.send({"a": 1}, dest=1)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
    comm.isend(x, "1")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    comm.sendrecv(x)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    comm.scatter_object({1: "a"})  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]


def results(x: Floats, t: torch.Tensor) -> None:
    tensor: torch.Tensor = comm.all_reduce(x)  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
    array: Floats = comm.all_reduce(t)  # type: ignore[arg-type]  # pyright: ignore[reportAssignmentType]
    now: Floats = comm.all_reduce(x, async_op=True)  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
    ints: NDArray[np.int32] = comm.all_gather(x)  # type: ignore[arg-type]  # pyright: ignore[reportAssignmentType]
    parts: Floats = comm.recv(dtype=torch.float64)  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
    mean: str = hpcomm.Field(comm, 8).mean()  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
    whole: Floats = comm.gather(x)  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
    comm.reduce(x).sum()  # type: ignore[union-attr]  # pyright: ignore[reportOptionalMemberAccess]
    request: Request[torch.Tensor] = comm.scan(x, async_op=True)  # type: ignore[call-overload]  # pyright: ignore[reportAssignmentType]
    print(comm.barrier(async_op=True).wait().shape)  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
    wait_any(comm.barrier(async_op=True))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    print(comm.irecv(x).status.source)  # type: ignore[union-attr]  # pyright: ignore[reportOptionalMemberAccess]
    print(tensor, array, now, ints, parts, mean, whole, request)


def plans_and_batches(x: Floats) -> None:
    comm.plan("all_redcue", x)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportCallIssue]
    comm.plan("all_reduce_object", x)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportCallIssue]
    comm.plan("barrier", x)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportCallIssue]
    print(comm.plan("send", x)().shape)  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
    hpcomm.P2POp("sned", x, 1)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    comm.batch_isend_irecv([x])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]


def communicators(x: Floats) -> None:
    comm.Allreduce(x)  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
    comm.al_reduce(x)  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
    comm.cart((2, 2), periodc=True)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    comm.mesh(y=2, order="nodes")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    print(comm.split(None).rank)  # type: ignore[union-attr]  # pyright: ignore[reportOptionalMemberAccess]
    comm.observe(print)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    comm.timeout = "30"  # type: ignore[assignment]  # pyright: ignore[reportAttributeAccessIssue]
    comm.split("a")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportCallIssue]
    from hpcomm import wrld  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]

    print(wrld)
    hpcomm.wait_al([])  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
    print(hpcomm.wrold)  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]


def fields(x: Floats, t: torch.Tensor) -> None:
    field = hpcomm.Field(comm, (8, 8))
    inner: torch.Tensor = field.inner  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
    field.gather().sum()  # type: ignore[union-attr]  # pyright: ignore[reportOptionalMemberAccess]
    hpcomm.Field(comm, (8,), dtype=np.float32, array=x)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    me = hpcomm.join("ocean")
    got: Floats = me.get(me.takes("wind", t))  # type: ignore[arg-type]  # pyright: ignore[reportAssignmentType]
    print(inner, got)
