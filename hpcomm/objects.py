"""Python objects: pickled, but the arrays inside travel straight from and into their memory.

Objects are unpickled by the receiver, so talk only to ranks you trust: those of your own job.
Two tensors that share storage arrive as two separate tensors.
"""

from __future__ import annotations

import copyreg
import functools
import operator
import pickle
import sys
from collections.abc import Callable, Sequence
from io import BytesIO
from typing import TYPE_CHECKING, Any

from . import parcel
from .call import Call
from .errors import HpcommError, PeerFailedError, RankError, UsageError
from .p2p import Status, _fill, _peer, _sender, _tag
from .parcel import Parcel
from .request import Request, Stages
from .signature import BACKGROUND, head

if TYPE_CHECKING:
    from mpi4py import MPI

    from .communicator import Communicator
    from .transport import mpi as transport
else:
    from .lazy import LazyModule

    MPI = LazyModule("mpi4py.MPI")
    transport = LazyModule("hpcomm.transport.mpi")

__all__ = [
    "all_gather_object",
    "all_reduce_object",
    "all_to_all_object",
    "broadcast_object",
    "gather_object",
    "irecv_object",
    "isend_object",
    "recv_object",
    "reduce_object",
    "scatter_object",
    "send_object",
    "sendrecv_object",
]

_OUT_OF_BAND = 2048  # bytes from which an array is not copied into the pickle
_REUSED = 64 << 10  # bytes of a pickle up to which it is copied out of its file


def send_object(comm: Communicator, obj: Any, dest: int, tag: int = 0) -> None:
    """Send any Python object to dest, arrays in it straight from their memory. Same as mpi4py's send."""
    peer, number, made = _addressed(comm, "send_object", obj, dest, tag)
    if peer == comm.rank and not comm.is_inter:  # would wait for itself
        comm._keep(Request("send_object", parcel.isend(comm, made, peer, number)))
    else:
        at_once(comm, "send_object", lambda: parcel.send(comm, made, peer, number), peer, number)


def isend_object(comm: Communicator, obj: Any, dest: int, tag: int = 0) -> Request:
    """Begin to send obj; arrays in it must not change before the request is complete."""
    peer, number, made = _addressed(comm, "isend_object", obj, dest, tag)
    stages = shown(comm, "send_object", parcel.isend(comm, made, peer, number), peer=peer, tag=number)
    return Request(f"isend_object(dest={dest}, tag={tag})", stages)


def recv_object(
    comm: Communicator, source: int | None = None, tag: int | None = None, *, status: Any = None
) -> Any:
    """Receive an object of any size.

    Args:
        source, tag: None for any.
        status: a Status that is filled.
    """
    return receive(comm, "recv_object", source, tag, status, decode)


def irecv_object(comm: Communicator, source: int | None = None, tag: int | None = None) -> Request:
    """Begin to receive an object of any size; nobody needs to know how large it is."""
    return ireceive(comm, "irecv_object", source, tag, Status(), decode)


def sendrecv_object(
    comm: Communicator,
    obj: Any,
    dest: int,
    source: int | None = None,
    sendtag: int = 0,
    recvtag: int | None = None,
    *,
    status: Any = None,
) -> Any:
    """Send obj to dest and receive another from source at once, without deadlock."""
    peer, number, made = _addressed(comm, "sendrecv_object", obj, dest, sendtag)
    going = Request("sendrecv_object", parcel.isend(comm, made, peer, number))
    try:
        return receive(comm, "sendrecv_object", source, recvtag, status, decode)
    finally:
        going.wait()


def broadcast_object(comm: Communicator, obj: Any = None, root: int = 0, *, async_op: bool = False) -> Any:
    """Give every rank root's object; on root it is returned as it is. Same as mpi4py's bcast.

    On an inter-communicator the other group gets it, and root's has None.
    """
    is_root = check_root(comm, "broadcast_object", root)

    def stages() -> Stages:
        made, failed = _wrapped([obj] if is_root else [])
        got = yield from parcel.broadcast(comm, made[0] if made else None, root, not async_op)
        if failed:
            raise failed
        if comm.is_inter and root < 0:
            return None
        return obj if is_root else decode(got)

    return collective(comm, "broadcast_object", root, stages(), async_op)


def gather_object(comm: Communicator, obj: Any, root: int = 0, *, async_op: bool = False) -> Any:
    """Collect the objects of all ranks in a list on root; None elsewhere."""
    is_root = check_root(comm, "gather_object", root)

    def stages() -> Stages:
        made, failed = _wrapped([obj])
        got = yield from parcel.gather(comm, made[0], root, not async_op)
        if failed:
            raise failed
        return _decode_all(got, own_place(comm), obj) if is_root else None

    return collective(comm, "gather_object", root, stages(), async_op)


def all_gather_object(comm: Communicator, obj: Any, *, async_op: bool = False) -> Any:
    """Collect the objects of all ranks in a list on every rank."""

    def stages() -> Stages:
        made, failed = _wrapped([obj])
        got = yield from parcel.all_gather(comm, made[0], not async_op)
        if failed:
            raise failed
        return _decode_all(got, own_place(comm), obj)

    return collective(comm, "all_gather_object", 0, stages(), async_op)


def scatter_object(
    comm: Communicator, objs: Sequence[Any] | None = None, root: int = 0, *, async_op: bool = False
) -> Any:
    """Give each rank its own of root's objects, a list as long as there are ranks; None elsewhere."""
    is_root = check_root(comm, "scatter_object", root)
    if is_root:
        check_list(comm, "scatter_object", objs)

    def stages() -> Stages:
        made, failed = _wrapped(objs if is_root and objs is not None else [])
        got = yield from parcel.scatter(comm, made or None, root, not async_op)
        if failed:
            raise failed
        if got is None:  # at the root of another group, or beside it
            return None
        return objs[root] if is_root and objs is not None else decode(got)

    return collective(comm, "scatter_object", root, stages(), async_op)


def all_to_all_object(comm: Communicator, objs: Sequence[Any], *, async_op: bool = False) -> Any:
    """Send object j of the list to rank j; receive a list with one from every rank."""
    check_list(comm, "all_to_all_object", objs)

    def stages() -> Stages:
        made, failed = _wrapped(objs)
        got = yield from parcel.all_to_all(comm, made, not async_op)
        if failed:
            raise failed
        own = own_place(comm)
        return _decode_all(got, own, objs[own] if own >= 0 else None)

    return collective(comm, "all_to_all_object", 0, stages(), async_op)


def reduce_object(comm: Communicator, obj: Any, op: Any = "sum", root: int = 0) -> Any:
    """Fold the objects of all ranks in rank order on root; None elsewhere.

    Args:
        op: function f(a, b) -> c, or "sum" (+), "prod" (*), "min", "max", "land",
            "lor", "band", "bor", "bxor"; of pairs (value, place), "minloc" and "maxloc".
    """
    fold = _python_op(comm, "reduce_object", op)
    got = gather_object(comm, obj, root)
    return None if got is None else _fold(fold, got, own_place(comm))


def all_reduce_object(comm: Communicator, obj: Any, op: Any = "sum") -> Any:
    """Fold the objects of all ranks in rank order on every rank; op as reduce_object has it."""
    fold = _python_op(comm, "all_reduce_object", op)
    return _fold(fold, all_gather_object(comm, obj), own_place(comm))


def _fold(op: Callable[[Any, Any], Any], objs: list[Any], rank: int) -> Any:
    """Fold in rank order; op may change its first argument, so this rank's own object is copied."""
    if rank >= 0:
        objs[rank] = pickle.loads(pickle.dumps(objs[rank], 5))
    return functools.reduce(op, objs)


_PICKLED = 0x80  # how every pickle begins,
_FAILED = b"\x94cannot be pickled: "  # and this none


def _wrapped(objs: Sequence[Any]) -> tuple[list[Parcel], UsageError | None]:
    """A parcel for each object; what cannot be pickled becomes a word to its receiver, and an error."""
    made, failed = [], None
    for obj in objs:
        try:
            made.append(encode(obj))
        except UsageError as error:  # noqa: PERF203  the loop is over ranks
            failed = error
            made.append(Parcel(_FAILED + error.what.encode()))
    return made, failed


def encode(obj: Any) -> Parcel:
    """Pickle obj, leaving the memory of its larger arrays out.

    Raises:
        UsageError: obj cannot be pickled.
    """
    try:
        mine = _spare.pop()
    except IndexError:
        mine = _Wrapping()
    try:
        made = mine.wrap(obj)
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise UsageError(
            f"a {type(obj).__name__} cannot be pickled: {error}",
            hint="send data instead of functions, files or locks; name functions at the top of a module",
        ) from error
    _spare.append(mine)
    return made


class _Wrapping:
    """A pickler for many objects, one after the other: making one costs more than pickling a little thing."""

    def __init__(self) -> None:
        self._blocks: list[Any] = []
        self._table: dict[type, Any] = {}
        self._own: dict[type, Any] = {}
        self._renew()

    def _renew(self) -> None:
        self._file = BytesIO()
        self._pickler = pickle.Pickler(self._file, 5, buffer_callback=self._keeps_in)
        self._pickler.dispatch_table = self._table

    def _keeps_in(self, buffer: pickle.PickleBuffer) -> bool:
        raw = buffer.raw()
        if raw.nbytes < _OUT_OF_BAND:
            return True
        self._blocks.append(raw)
        return False

    def wrap(self, obj: Any) -> Parcel:
        if len(self._own) < 2:
            if (numpy := sys.modules.get("numpy")) is not None:
                self._own[numpy.ndarray] = _take_array_apart
            if (torch := sys.modules.get("torch")) is not None:
                self._own[torch.Tensor] = _take_tensor_apart
        self._table.update(copyreg.dispatch_table)
        self._table.update(self._own)
        file = self._file
        self._pickler.dump(obj)
        blocks, self._blocks = self._blocks, []
        if file.tell() > _REUSED:
            self._renew()
            return Parcel(file.getbuffer(), blocks)
        made = Parcel(file.getvalue(), blocks)
        self._pickler.clear_memo()  # or the next one would point at what this one holds
        file.seek(0)
        file.truncate()
        return made


_spare: list[_Wrapping] = []  # more than one where threads, or objects that send while they are pickled


def decode(got: Parcel) -> Any:
    """The object in a parcel; its arrays live in the memory that was received into.

    Raises:
        PeerFailedError: the sender could not pickle it.
        UsageError: it is an array of send_ragged.
    """
    first = got.blocks[0]
    if first[0] != _PICKLED:
        text = bytes(first)
        if text.startswith(_FAILED):
            what = text.removeprefix(_FAILED).decode()
            raise PeerFailedError(f"no object came: on its rank {what}", hint="look at that rank's own error")
        raise UsageError("an array of send_ragged arrived where an object was expected", hint="recv_ragged")
    return pickle.loads(first, buffers=got.contents)


def own_place(comm: Communicator) -> int:
    """Where this rank's own stands among what all ranks give; -1: that is the other group's."""
    return -1 if comm.is_inter else comm.rank


def _decode_all(got: list[Parcel], rank: int, own: Any) -> list[Any]:
    return [own if r == rank else decode(p) for r, p in enumerate(got)]


def _take_array_apart(array: Any) -> tuple[Any, ...]:
    """How a plain array is pickled; numpy's own way takes three times as long."""
    if array.dtype.kind not in "biufc" or not array.flags.c_contiguous or array.dtype.metadata:
        reduced: tuple[Any, ...] = array.__reduce_ex__(5)
        return reduced
    return _put_array_together, (pickle.PickleBuffer(array), array.dtype.str, array.shape)


def _put_array_together(block: Any, dtype: str, shape: tuple[int, ...]) -> Any:
    import numpy as np

    return np.frombuffer(block, dtype).reshape(shape) if len(block) else np.empty(shape, dtype)


def _take_tensor_apart(tensor: Any) -> tuple[Any, ...]:
    """How a plain CPU tensor is pickled: its elements as a block, not its storage as a file."""
    torch = sys.modules["torch"]
    plain = tensor.is_cpu and tensor.layout is torch.strided and not tensor.is_quantized
    if not plain or tensor.grad_fn is not None or tensor.__dict__:
        reduced: tuple[Any, ...] = tensor.__reduce_ex__(5)
        return reduced
    flat = tensor.detach() if tensor.requires_grad else tensor
    if flat.is_conj() or flat.is_neg() or not flat.is_contiguous():
        flat = flat.resolve_conj().resolve_neg().contiguous()
    block = pickle.PickleBuffer(_bytes_of(flat)) if flat.numel() else b""
    name = str(tensor.dtype).removeprefix("torch.")
    return _put_tensor_together, (block, name, tuple(tensor.shape), tensor.requires_grad)


def _bytes_of(flat: Any) -> Any:
    """A contiguous tensor's memory as something that Python can look into."""
    try:
        return flat.numpy()
    except TypeError:  # a type that numpy has no name for, as bfloat16
        return flat.view(-1).view(sys.modules["torch"].uint8).numpy()


def _put_tensor_together(block: Any, dtype: str, shape: tuple[int, ...], requires_grad: bool) -> Any:
    import torch  # the sender had one

    kind = getattr(torch, dtype)
    if len(block) == 0:
        tensor = torch.empty(shape, dtype=kind)
    else:
        memory = block if not memoryview(block).readonly else bytearray(block)
        tensor = torch.frombuffer(memory, dtype=kind)
        tensor = tensor if len(shape) == 1 else tensor.view(shape)
    return tensor.requires_grad_() if requires_grad else tensor


def _python_op(comm: Communicator, verb: str, op: Any) -> Callable[[Any, Any], Any]:
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
    if callable(op):
        return op  # type: ignore[no-any-return]
    if isinstance(op, str) and op in known:
        return known[op]
    raise UsageError(
        f"objects have no operator {op!r}", hint=f"a function f(a, b), or one of {', '.join(known)}"
    ).located(verb, comm)


def _addressed(comm: Communicator, verb: str, obj: Any, dest: Any, tag: Any) -> tuple[int, int, Parcel]:
    """Receiver and tag as MPI takes them, and what to send."""
    try:
        comm._check_open(verb)
        return _peer(comm, dest, "dest"), _tag(comm, tag, sending=True), encode(obj)
    except HpcommError as error:
        raise error.located(verb, comm) from error.__cause__


def receive(
    comm: Communicator, verb: str, source: Any, tag: Any, status: Any, decode: Callable[[Parcel], Any]
) -> Any:
    """Wait for a parcel; what decode makes of it, None from hpcomm.PROC_NULL."""
    peer, number = _sender(comm, verb, source, tag)

    def action() -> Any:
        got, seen = parcel.receive(comm, peer, number)
        if status is not None:
            _fill(status, seen)
        return None if got is None else decode(got)

    return at_once(comm, verb, action, peer, number)


def ireceive(
    comm: Communicator, verb: str, source: Any, tag: Any, status: Any, decode: Callable[[Parcel], Any]
) -> Request:
    """The same in the background."""
    peer, number = _sender(comm, verb, source, tag)

    def stages() -> Stages:
        got, seen = yield from parcel.ireceive(comm, peer, number)
        _fill(status, seen)
        return None if got is None else decode(got)

    coming = shown(comm, verb.replace("irecv", "recv"), stages(), peer=peer, tag=number)
    request = Request(f"{verb}(source={source}, tag={tag})", coming, status)
    request.needs(comm, source)
    return request


def at_once(comm: Communicator, verb: str, action: Callable[[], Any], peer: int, tag: int) -> Any:
    """Carry out a message now, with the observers looking on and errors in hpcomm's words."""
    try:
        if not comm._observers:
            return action()
        return parcel.run(shown(comm, verb, _one_stage(action), peer=peer, tag=tag))
    except MPI.Exception as error:
        raise transport.failure(error, verb, comm) from None
    except HpcommError as error:
        raise error.located(verb, comm) from error.__cause__


def _one_stage(action: Callable[[], Any]) -> Stages:
    yield []
    return action()


def guarded(comm: Communicator, verb: str, stages: Stages) -> Any:
    """Carry out stages now, with errors in hpcomm's words."""
    return parcel.run(_translated(comm, verb, stages))


def collective(comm: Communicator, verb: str, root: int, stages: Stages, async_op: bool) -> Any:
    """Agree with the other ranks about verb, then carry out its stages now or in the background."""
    try:
        comm._check_open(verb)
    except HpcommError as error:
        raise error.located(verb, comm) from None
    code = head(verb, root=root)
    if async_op:
        leave = comm._agreement.late(code | BACKGROUND, 0)
        request = Request(f"{verb}()", _translated(comm, verb, shown(comm, verb, stages, leave)))
        request.needs_all(comm)
        return request
    comm._agreement.enter(code, 0)
    return guarded(comm, verb, shown(comm, verb, stages, comm._agreement.leave))


def shown(
    comm: Communicator, verb: str, stages: Stages, leave: Callable[[], None] | None = None, **fields: Any
) -> Stages:
    """The same stages with the observers looking on, and leave() at the end."""
    if not comm._observers and leave is None:
        return (yield from stages)
    call = Call(comm, verb, **fields)
    observers = comm._observers
    for observer in observers:
        observer.before(call)
    result = yield from stages
    if leave is not None:
        leave()
    for observer in observers:
        observer.after(call)
    return result


def _translated(comm: Communicator, verb: str, stages: Stages) -> Stages:
    """The same stages with MPI's errors in our words."""
    mpi_error, our_error = (
        MPI.Exception,
        HpcommError,
    )  # local names: when the interpreter ends, globals go first
    try:
        return (yield from stages)
    except mpi_error as error:
        raise transport.failure(error, verb, comm) from None
    except our_error as error:
        raise error.located(verb, comm) from error.__cause__


def check_root(comm: Communicator, verb: str, root: Any) -> bool:
    """Whether this rank is root, which must be a rank of comm; of the other group, if there are two."""
    is_rank = not isinstance(root, bool) and hasattr(root, "__index__")
    if comm.is_inter:
        if not (is_rank and (root in (MPI.ROOT, MPI.PROC_NULL) or 0 <= root < comm.remote_size)):
            from .compose import no_remote_root

            raise no_remote_root(comm, root).located(verb, comm)
        return bool(root == MPI.ROOT)
    if not (is_rank and 0 <= root < comm.size):
        raise RankError(
            f"root {root!r} is no rank of '{comm.name}'", hint=f"a rank from 0 to {comm.size - 1}"
        ).located(verb, comm)
    return bool(comm.rank == root)


def check_list(comm: Communicator, verb: str, items: Any) -> None:
    """Refuse anything but a sequence with one item for each rank."""
    ranks = comm.remote_size if comm.is_inter else comm.size
    if items is None or not hasattr(items, "__len__") or len(items) != ranks:
        found = (
            "None"
            if items is None
            else f"{len(items)} items"
            if hasattr(items, "__len__")
            else type(items).__name__
        )
        raise UsageError(
            f"{verb} needs a list with one item for each of {ranks} ranks, not {found}",
            hint="[item for rank 0, item for rank 1, ...]",
        ).located(verb, comm)
