"""Operations on Python objects: pickled, but arrays inside travel from and into their own memory."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias, TypeVar, overload

from ...core.patience import patience
from ...core.present import calling
from ...core.request import Request
from ...core.types import AnyStatus, Later, Now
from ...errors import UsageError
from ...transport.late import reduction
from ..context import Context
from ..shell import Shell
from ..verbs.timeouts import waited
from . import payload_transport
from .payload_agreement import (
    Form,
    addressed,
    collective,
    ireceive,
    isend,
    receive,
    send,
)
from .pickling import copied, decode

_OBJECTS = Form("_object", None, decode, None)
T = TypeVar("T")
ObjectOperator: TypeAlias = (
    Callable[..., object]
    | Literal["sum", "prod", "min", "max", "band", "bor", "bxor", "land", "lor", "minloc", "maxloc"]
)


class Objects(Shell):
    """Verbs of Python objects."""

    @overload
    def send_object(
        self, obj: object, dest: int, tag: int = ..., *, async_op: Now = ..., sync: bool = ...
    ) -> None: ...
    @overload
    def send_object(
        self, obj: object, dest: int, tag: int = ..., *, async_op: Later, sync: bool = ...
    ) -> Request[None]: ...
    def send_object(
        self, obj: object, dest: int, tag: int = 0, *, async_op: bool = False, sync: bool = False
    ) -> Request[None] | None:
        """Send any Python object to dest, arrays in it straight from their memory. Same as mpi4py's send.

        async_op, sync: see send.
        """
        comm = self.context
        going = addressed(comm, "send_object", comm.encode, obj, dest, tag)
        return (isend if async_op else send)(comm, "send_object", *going, sync)

    def isend_object(self, obj: object, dest: int, tag: int = 0, *, sync: bool = False) -> Request[None]:
        """Begin to send obj; arrays in it must not change before the request is complete.

        sync: see isend.
        """
        comm = self.context
        going = addressed(comm, "isend_object", comm.encode, obj, dest, tag)
        return isend(comm, "isend_object", *going, sync)

    # fmt: off
    @overload
    def recv_object(
        self, source: int | None = ..., tag: int | None = ..., *, status: AnyStatus | None = ...,
        async_op: Now = ...,
    ) -> Any: ...
    @overload
    def recv_object(
        self, source: int | None = ..., tag: int | None = ..., *, status: AnyStatus | None = ...,
        async_op: Later,
    ) -> Request[Any]: ...
    # fmt: on
    def recv_object(
        self,
        source: int | None = None,
        tag: int | None = None,
        *,
        status: AnyStatus | None = None,
        async_op: bool = False,
    ) -> object:
        """Receive an object of any size.

        source, tag, status, async_op: see recv.
        """
        take = ireceive if async_op else receive
        return take(self.context, "recv_object", source, tag, status, decode)

    def irecv_object(self, source: int | None = None, tag: int | None = None) -> Request[Any]:
        """Begin to receive an object of any size; nobody needs to know how large it is.

        It makes progress while this rank waits for or asks any request, and in send_object and recv_object.
        """
        return ireceive(self.context, "irecv_object", source, tag, None, decode)

    def sendrecv_object(
        self,
        obj: object,
        dest: int,
        source: int | None = None,
        sendtag: int = 0,
        recvtag: int | None = None,
        *,
        status: AnyStatus | None = None,
    ) -> Any:
        """Send obj to dest and receive another from source at once, without deadlock."""
        comm = self.context
        made, peer, number = addressed(comm, "sendrecv_object", comm.encode, obj, dest, sendtag)
        going = Request("sendrecv_object", payload_transport.isend(comm, made, peer, number))
        if patience(comm) is not None:
            result = receive(comm, "recv_object", source, recvtag, status, decode)
            waited(comm, going)
            return result
        try:
            return receive(comm, "sendrecv_object", source, recvtag, status, decode)
        finally:
            going.wait()

    @overload
    def broadcast_object(self, obj: T | None = ..., root: int = ..., *, async_op: Now = ...) -> T: ...
    @overload
    def broadcast_object(self, obj: T | None = ..., root: int = ..., *, async_op: Later) -> Request[T]: ...
    def broadcast_object(self, obj: object = None, root: int = 0, *, async_op: bool = False) -> object:
        """Give every rank root's object; on root it is returned as it is. Same as mpi4py's bcast.

        async_op=True gives a Request. On an inter-communicator the other group gets it, and root's has None.
        """
        return collective(self.context, "broadcast", _OBJECTS, obj, async_op, root)

    @overload
    def gather_object(self, obj: T, root: int = ..., *, async_op: Now = ...) -> list[T] | None: ...
    @overload
    def gather_object(self, obj: T, root: int = ..., *, async_op: Later) -> Request[list[T] | None]: ...
    def gather_object(self, obj: object, root: int = 0, *, async_op: bool = False) -> object:
        """Collect the objects of all ranks in a list on root; None elsewhere.

        async_op=True gives a Request.
        """
        return collective(self.context, "gather", _OBJECTS, obj, async_op, root)

    @overload
    def all_gather_object(self, obj: T, *, async_op: Now = ...) -> list[T]: ...
    @overload
    def all_gather_object(self, obj: T, *, async_op: Later) -> Request[list[T]]: ...
    def all_gather_object(self, obj: object, *, async_op: bool = False) -> object:
        """Collect the objects of all ranks in a list on every rank. async_op=True gives a Request."""
        return collective(self.context, "all_gather", _OBJECTS, obj, async_op)

    @overload
    def scatter_object(
        self, objs: Sequence[T] | None = ..., root: int = ..., *, async_op: Now = ...
    ) -> T: ...
    @overload
    def scatter_object(
        self, objs: Sequence[T] | None = ..., root: int = ..., *, async_op: Later
    ) -> Request[T]: ...
    def scatter_object(
        self, objs: Sequence[object] | None = None, root: int = 0, *, async_op: bool = False
    ) -> object:
        """Give each rank one object of root's list, which has one for each rank; others pass None.

        async_op=True gives a Request.
        """
        return collective(self.context, "scatter", _OBJECTS, objs, async_op, root)

    @overload
    def all_to_all_object(self, objs: Sequence[T], *, async_op: Now = ...) -> list[T]: ...
    @overload
    def all_to_all_object(self, objs: Sequence[T], *, async_op: Later) -> Request[list[T]]: ...
    def all_to_all_object(self, objs: Sequence[object], *, async_op: bool = False) -> object:
        """Send object j of the list to rank j; receive a list with one from every rank.

        async_op=True gives a Request.
        """
        return collective(self.context, "all_to_all", _OBJECTS, objs, async_op)

    def reduce_object(self, obj: T, op: ObjectOperator = "sum", root: int = 0) -> T | None:
        """Reduce the objects of all ranks in rank order on root; None elsewhere.

        Args:
            op: function f(a, b) -> c, or "sum" (+), "prod" (*), "min", "max", "land", "lor", "band", "bor",
                "bxor". Or Python's sum, min, max, any and all. For pairs (value, place) also "minloc" and
                "maxloc".
        """
        comm = self.context
        reduce, form = _python_op(op)
        with calling(comm, "reduce_object", op=op, root=root):
            got: list[T] | None = collective(comm, "gather", form, obj, False, root)
        return None if got is None else _reduce(comm, reduce, got)

    def all_reduce_object(self, obj: T, op: ObjectOperator = "sum") -> T:
        """Reduce the objects of all ranks in rank order on every rank; op as reduce_object has it."""
        comm = self.context
        reduce, form = _python_op(op)
        with calling(comm, "all_reduce_object", op=op):
            got: list[T] = collective(comm, "all_gather", form, obj, False)
        return _reduce(comm, reduce, got)


def _reduce(comm: Context, op: Callable[[T, T], T], objs: list[T]) -> T:
    """Reduce in rank order; op may change its first argument, so this rank's own object is copied."""
    if not comm.is_inter:
        rank = comm.rank
        objs[rank] = copied(objs[rank], comm.settings.pickler)
    return functools.reduce(op, objs)


def _python_op(op: object) -> tuple[Callable[[T, T], T], Form]:
    """The function for op, and what this rank does: where op is none it refuses its part."""
    known: dict[str, Callable[[Any, Any], Any]] = {
        "sum": operator.add,
        "prod": operator.mul,
        "min": min,
        "max": max,
        "band": operator.and_,
        "bor": operator.or_,
        "bxor": operator.xor,
        "land": lambda a, b: bool(a and b),
        "lor": lambda a, b: bool(a or b),
        "minloc": min,
        "maxloc": lambda a, b: a if (a[0], b[1]) > (b[0], a[1]) else b,  # of equal values the first place
    }
    op = (reduction.name_of_function(op) if callable(op) else None) or op
    if callable(op):
        return op, _OBJECTS
    if isinstance(op, str) and op in known:
        return known[op], _OBJECTS
    what, hint = f"objects have no operator {op!r}", f"a function f(a, b), or one of {', '.join(known)}"
    return operator.add, _OBJECTS._replace(refused=UsageError(what, hint=hint))
