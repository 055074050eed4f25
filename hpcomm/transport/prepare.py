"""Preparation: from the arguments of a collective to a Call; all checks that one rank can make."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

from .._lazy import LazyModule
from ..core import buffer, reduction
from ..core.operation import Arguments, Call
from ..core.signature import SCHEDULED, head, marked
from ..core.verbs import (
    GATHERING,
    INPUT_BLOCKS,
    PREFIXES,
    REDUCTIONS,
    ROOT_RECEIVES,
    ROOT_SENDS,
    ROOTED,
    SCATTERING,
)
from ..errors import DtypeError, HpcommError, LayoutError, UsageError
from .host_calls import by_core, core_takes, on_hosts
from .matching import is_root

if TYPE_CHECKING:
    from ..agree import wrapping
    from ..core.buffer import Buffer, Shape
    from ..core.comm import Comm
    from ..core.reduction import Reduction
    from .device import host_copy
else:
    host_copy = LazyModule("hpcomm.transport.device.host_copy")
    wrapping = LazyModule("hpcomm.agree.wrapping")


class Arrays(NamedTuple):
    """What this rank gives and where it receives, None for nothing, and how that is reduced, if it is."""

    send: Buffer | None
    recv: Buffer | None
    reduce: Reduction | None


def compose_call(
    comm: Comm, given: Arguments, blocking: bool, hosts: bool = False, algorithm: str | None = None,
    later: bool = False,
) -> Call:  # fmt: skip
    """Look at the arrays, check all that one rank can check, and say what is to be done as a Call.

    Args:
        blocking: the caller waits for it: with a deadline, unless the core carries it, as for the background.
        later: it begins at once in the background, and is no plan.
        hosts: all ranks know that the hosts' messages carry it, as where an algorithm is named: of an array
            on a device a copy takes part.
        algorithm: but this one can move large arrays from device to device; the call has `after`, then.
    """
    call, arrays = _described(comm, given)
    send, recv, reduce = arrays
    devices, nbytes = comm.devices, call.count * call.look.dtype.itemsize
    hosts = hosts or given.exact
    if not hosts:
        if devices is not None and devices.takes(send, recv, block=nbytes):
            return devices.carry(call, arrays, blocking)  # type: ignore[no-any-return]
        node = comm.node if blocking else comm.background_node if later else None
        if node is not None and core_takes(call.look.dtype, reduce):
            return by_core(call, send, recv, reduce)
        if comm.is_fast and reduce is not None:
            call.code |= SCHEDULED
    if devices is None:  # no rank of comm has a device
        return on_hosts(call, send, recv, reduce, not hosts, blocking and comm.timeout_s is None)
    return _beside_devices(call, arrays, blocking, hosts, algorithm)


def _described(comm: Comm, given: Arguments) -> tuple[Call, Arrays]:
    """The call in words, and its arrays; all that one rank can check is right."""
    verb, x, out, op, root = given.verb, given.x, given.out, given.op, given.root
    sends, receives = _roles(comm, verb, root)
    if type(x) is bool and verb in REDUCTIONS:
        x = reduction.counted(x, op)
    send, recv = _looked(verb, x, out, receives)
    template = send if sends else send or recv
    if template is None:
        raise UsageError(f"{verb} needs x here", hint=_needs_x(verb, sends))
    shape, block = _geometry(comm, verb, send, recv)
    if recv is not None:
        _check_out(verb, send, recv, shape)
    elif receives:
        recv = template.make(shape)
    call, reduce, op_code = Call(comm, verb), None, 0
    call.root, call.look, call.count = int(root), template, block  # it may be one of numpy
    if verb in REDUCTIONS:
        reduce = _reduction(call, x, op, send)
        op_code = reduce.code
    call.code = head(verb, op_code, template.dtype.code, call.root)
    if given.exact:
        assert reduce is not None
        reduce = _exact(call, reduce)
    gives = sends or verb not in ROOT_SENDS  # between two groups MPI ignores what it need not read
    return call, Arrays(send if gives else None, recv, reduce)


def _looked(verb: str, x: object, out: object, receives: bool) -> tuple[Buffer | None, Buffer | None]:
    """x and out as Buffers, one and the same if they are one array."""
    send = buffer_of(x, "x") if x is not None and x is not out else None
    recv = buffer_of(out, "out", verb == "broadcast") if out is not None and receives else None
    if x is not None and x is out:
        send = recv or buffer_of(x, "x")
    return send, recv


def _reduction(call: Call, x: object, op: Any, send: Buffer | None) -> Reduction:
    comm, verb, dtype = call.comm, call.verb, call.look.dtype
    reduce = reduction.resolve(op, dtype)
    if type(x) is int:
        reduction.check_whole(x, reduce.op, comm.remote_size if comm.is_inter else comm.size)
    if verb in PREFIXES and comm.is_inter:
        raise UsageError(
            f"{verb} has no meaning between two groups", hint="comm.merge() makes one group of them"
        )
    if verb in PREFIXES and reduce.op.name == "avg":
        raise UsageError(
            f"{verb} has no average", hint="op='sum', then divide by the number of ranks reduced"
        )
    if dtype.kind in "iu" and comm.compared == "full" and comm.devices is None:
        wrapping.see_to(call, send, reduce)
    return reduce


def _exact(call: Call, reduce: Reduction) -> Reduction:
    """The same where sums do not depend on the number of ranks."""
    if call.comm.is_inter:
        raise UsageError("deterministic=True needs one group of ranks", hint="comm.merge() makes one of two")
    if reduce.op.mpi is not None:
        raise UsageError("deterministic=True reduces by operators with a name", hint="a named op")
    if reduce.mpi_op == "SUM" and "LONG_DOUBLE" in reduce.mpi_type:
        raise DtypeError(f"deterministic=True has no sums of {call.look.dtype}", hint="float64 or complex128")
    call.code = marked(call.code, "deterministic")
    return reduce._replace(exact=reduce.function is None)


def _beside_devices(call: Call, arrays: Arrays, blocking: bool, hosts: bool, algorithm: str | None) -> Call:
    """Where host memory is to carry it, whatever the arrays are: the call runs on copies there.

    But a large call under a schedule's name meets ranks whose arrays are on devices, so it goes their way.
    """
    send, recv, reduce = arrays
    devices, plain = call.comm.devices, reduce is None or reduce.function is None
    if algorithm is not None and plain and not devices.is_one_call(call.count * call.look.dtype.itemsize):
        return devices.carry(call, arrays, blocking, algorithm)  # type: ignore[no-any-return]
    given = None if send is None else host_copy.beside(send, filled=True)
    taken = given if recv is send else None if recv is None else host_copy.beside(recv, filled=False)
    return host_copy.renewed(
        on_hosts(call, given, taken, reduce, not hosts, blocking and call.comm.timeout_s is None),
        given,
        taken,
    )


def _roles(comm: Comm, verb: str, root: int) -> tuple[bool, bool]:
    """Whether this rank gives an array, and whether it receives one."""
    if verb not in ROOTED:
        return True, True
    here, there = is_root(comm, root), root >= 0
    return (here, there) if verb in ROOT_SENDS else (there, here)


def buffer_of(x: Any, name: str, fills_leaf: bool = False) -> Buffer:
    """as_buffer(x), whose errors call it by name.

    fills_leaf: x may be a leaf of autograd, such as a model's parameter, which has no history to lose.
    """
    try:
        made = buffer.as_buffer(buffer.detached(x) if fills_leaf and getattr(x, "is_leaf", False) else x)
        made.give = (lambda: x) if fills_leaf else made.give
        return made
    except HpcommError as error:
        if name != "x":
            if error.what.endswith(" is not an array"):
                error.hint = "numpy.empty of the result's shape and dtype: only arrays can be filled"
            error.what = (
                error.what.replace("x ", f"{name} ", 1)
                if error.what.startswith("x ")
                else f"{name}: {error.what}"
            )
        raise


def _needs_x(verb: str, sends: bool) -> str:
    if not sends and verb in ROOT_RECEIVES:  # the root of another group
        return f"give out=, or x with the shape and dtype that the others give, or use {verb}_object"
    if sends and verb in ROOT_SENDS:
        return (
            "this rank is the root: give x here, or say by root= which rank has it; "
            f"{verb}_object takes any object, None too"
        )
    if sends or verb not in ROOT_SENDS:
        return "give the array that this rank contributes"
    return (
        f"give out=, or x with the shape and dtype that root has, or use {verb}_ragged, which carries both, "
        f"or {verb}_object, which takes any Python object"
    )


def _geometry(comm: Comm, verb: str, send: Buffer | None, recv: Buffer | None) -> tuple[Shape, int]:
    """Shape of the result, and elements per rank (the same on all ranks)."""
    p = comm.remote_size if comm.is_inter else comm.size
    if verb in GATHERING:
        if send is None:  # root of an inter-communicator: only out tells
            assert recv is not None
            return recv.shape, recv.size // max(p, 1)
        return (p, *send.shape), send.size
    if verb in INPUT_BLOCKS and send is not None:
        ranks = comm.size if verb == "reduce_scatter" else p
        return _blocks(verb, send, recv, ranks)
    look = send or recv
    assert look is not None
    return look.shape, look.size


def _blocks(verb: str, send: Buffer, recv: Buffer | None, p: int) -> tuple[Shape, int]:
    shape = send.shape
    if shape and shape[0] == p:
        return (shape if verb == "all_to_all" else shape[1:]), send.size // p
    if recv is not None and shape and shape[0] % p == 0:  # out says that the blocks lie one after the other
        rows = (shape[0] // p, *shape[1:])
        return (shape if verb == "all_to_all" else rows), send.size // p
    raise LayoutError(
        f"the first axis of x must be the number of ranks, {p}; x has shape {shape}",
        hint=f"x.reshape({p}, ...), or {verb}_ragged where blocks differ",
    )


def _check_out(verb: str, send: Buffer | None, recv: Buffer, shape: Shape) -> None:
    if recv.frozen:
        raise LayoutError(f"out {recv.frozen}", hint="give an array that can be written, or leave out= away")
    if send is None:
        return
    if recv.dtype != send.dtype:
        raise DtypeError(f"out is {recv.dtype}, x is {send.dtype}", hint=f"give out the dtype {send.dtype}")
    if recv.shape != shape and recv.shape != _joined(verb, shape):
        raise LayoutError(
            f"out has shape {recv.shape}, the result has shape {shape}", hint=f"give out the shape {shape}"
        )


def _joined(verb: str, shape: Shape) -> Shape:
    """The shape of stacked blocks when they lie one after the other along the first axis."""
    if verb in GATHERING:
        return (math.prod(shape[:2]), *shape[2:])
    if verb in SCATTERING:
        return (1, *shape)
    return shape
