"""Calls on arrays in host memory: what travels, where it lands, and what is done to it then."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from mpi4py import MPI

from .._lazy import LazyModule, NDArray
from ..agree.differences import open_node
from ..core import buffer, reduction
from ..core.buffer import Buffer, Shape
from ..core.comm import Comm
from ..core.dtypes import Dtype
from ..core.operation import Call, Carrier
from ..core.reduction import Reduction
from ..core.request import Stages
from ..core.signature import BACKGROUND, head
from ..core.types import AnyArray
from ..core.verbs import GATHERING, INPUT_BLOCKS, OUTPUT_BLOCKS, PREFIXES, ROOTED
from ..errors import HpcommError, UsageError, where
from ..node import native
from . import mpi as transport
from . import rank_order, single_request

if TYPE_CHECKING:
    from .scheduled import ordered_blocks
else:
    ordered_blocks = LazyModule("hpcomm.transport.scheduled.ordered_blocks")


def on_hosts(
    call: Call,
    send: Buffer | None,
    recv: Buffer | None,
    reduce: Reduction | None,
    in_order: bool = True,
    waits: bool = True,
) -> Call:
    """What is to be done on these arrays in host memory; call says the rest.

    in_order: floats are reduced in the order of ranks; else somebody else says in which.
    waits: nothing else happens until it is over.
    """
    block, dtype = call.count, call.look.dtype
    if reduce is None:
        return _move(call, send, recv, block)
    if send is None:  # the root of another group gives nothing
        send = recv
    assert send is not None
    if reduce.function is not None:
        return _reduce_here(call, send, recv, reduce, waits)
    if reduce.exact:
        return _reduce_in_order(call, send, recv, reduce, waits)
    if in_order and rank_order.applies(call.comm, reduce, dtype):
        if rank_order.is_too_long(call.comm, send.nbytes, waits):
            return _reduce_there(call, send, recv, block, reduce)
        return _reduce_in_order(call, send, recv, reduce, waits)
    return _reduce_there(call, send, recv, block, reduce)


_CORE_DTYPES = {*range(1, 17)} - {14}  # codes of the element types that the native core knows; no long double


def core_knows(dtype: Dtype) -> bool:
    """Whether the native core takes such elements as they are. Of others it moves the bytes."""
    return dtype.code in _CORE_DTYPES


def core_word(dtype: Dtype, agreed: int) -> int:
    """What tells the core of the elements: their type; of others than it knows also what ranks compare."""
    return dtype.code if core_knows(dtype) else (agreed << 1 | 1) << 8 | dtype.code


def core_takes(dtype: Dtype, reduce: Reduction | None) -> bool:
    """Whether the native core carries out calls on such elements: the same on all ranks."""
    if reduce is None:
        return True
    plain = reduce.op.factor is None and reduce.function is None and reduce.op.mpi is None
    return core_knows(dtype) and plain


def by_core(call: Call, send: Buffer | None, recv: Buffer | None, reduce: Reduction | None) -> Call:
    """By the native core, on contiguous arrays: x itself and out itself, where they are.

        x ── pack, if strided ──> packed ── core ──> received ── finish, if out is strided ──> out

    The core takes these on every rank. Which memory x and out may have in common: see _move.
    """
    native.know_arrays()  # as of a rank that has loaded numpy only now, for a number
    comm, verb, dtype = call.comm, call.verb, call.look.dtype
    if send is not None and recv is not None and not _core_may_share(call, send, recv):
        buffer.refuse_overlap(send, recv)
    received = None if recv is None else aligned(recv.array, filled=False)
    packed = None if send is None else aligned(send.array, filled=True)
    is_known = core_knows(dtype)
    elements = core_word(dtype, call.agreed)
    length = call.count if is_known else call.count * dtype.itemsize

    def shaped(array: AnyArray | None, blocks: frozenset[str]) -> AnyArray | None:
        if array is None:
            return None
        flat = array if is_known else array.reshape(-1).view(np.uint8)
        return flat.reshape((comm.size, length) if verb in blocks else (length,))

    x, out = shaped(packed, INPUT_BLOCKS), shaped(received, OUTPUT_BLOCKS)
    how = () if reduce is None else (reduce.op.name,)
    root = (int(call.root),) if verb in ROOTED else ()

    def carry() -> None:
        done = getattr(open_node(comm, verb), verb)(x, *how, *root, out, elements)
        if done is NotImplemented:  # no room for long calls, as all ranks know by now
            again = call.again()
            comm.agreement.enter(call.code, call.agreed)
            transport.run(on_hosts(again, _like(packed, call.look), _like(received, call.look), reduce))
            comm.agreement.leave()

    def stages() -> Stages:
        going = of_node(call, (x, reduce and reduce.op.name, root[0] if root else None, out), elements)
        if going is not None:
            return going
        both = _like(packed, call.look), _like(received, call.look)
        again = on_hosts(call.again(), *both, reduce, waits=False)
        leave = comm.agreement.late(call.code | BACKGROUND, call.agreed)
        return _at_last(transport.background(again), leave, call)

    call.carrier = Carrier(carry, stages, is_core=True)
    _deliver(call, recv, received)
    return call


def of_node(call: Call, given: tuple[Any, ...], code: int | None = None) -> Stages | None:
    """A call in the background by the native core; None: it has no room for long calls, as all ranks know."""
    going = open_node(call.comm, call.verb).begin(head(call.verb), *given, code)
    if going is NotImplemented:
        return None
    if going.moves:
        single_request.keep_moving(going)
    return _at_last(_one(going), lambda: None, call)


def _one(going: Any) -> Stages:
    yield [going]
    single_request.has_ended(going)


def _at_last(stages: Stages, leave: Callable[[], None], call: Call) -> Stages:
    yield from stages
    leave()
    return call.finish(None)


def _like(array: AnyArray | None, like: Buffer) -> Buffer | None:
    return None if array is None else buffer.Buffer(array, like.dtype, like.make, lambda: None)


def aligned(array: AnyArray, filled: bool) -> AnyArray:
    """An array as the core takes it: itself, or one beside it, filled with its elements or empty."""
    if array.flags.c_contiguous and array.flags.aligned:
        return array
    return array.copy() if filled else np.empty(array.shape, array.dtype)


def _core_may_share(call: Call, send: Buffer, recv: Buffer) -> bool:
    """Whether x and out have memory in common in a way that needs no copy."""
    comm, verb = call.comm, call.verb
    if verb in GATHERING:
        return recv.array.flags.c_contiguous and _is_block(recv, send, comm.rank, comm.size)
    if verb == "scatter":
        return send.array.flags.c_contiguous and _is_block(send, recv, comm.rank, comm.size)
    return send is recv or buffer.same_memory(send.array, recv.array)


def _packed(call: Call, array: AnyArray, widen: Callable[[AnyArray], AnyArray] | None = None) -> AnyArray:
    """The array in one piece, or what widen makes of it; which call fills anew if it is a copy."""
    if widen is not None:
        wide = widen(array)
        call.fill = lambda: np.copyto(wide, widen(array))
        return wide
    packed = np.ascontiguousarray(array)
    if not np.may_share_memory(packed, array):
        call.fill = _filler(packed, array)
    return packed


def _filler(memory: AnyArray, array: AnyArray) -> Callable[[], None]:
    return lambda: np.copyto(memory, array.reshape(memory.shape))


def _move(call: Call, send: Buffer | None, recv: Buffer | None, block: int) -> Call:
    """Verbs that carry elements unchanged.

    MPI reads and writes contiguous memory. So x may have to be packed before (call.fill) and the result
    unpacked from another array afterwards (received; _deliver):

        x ── fill, if strided ──> packed ── MPI ──> received ── finish, if out is strided ──> out
    """
    if call.verb == "broadcast":
        return _broadcast(call, send, recv, block)
    received = None
    if send is not None:
        call.send = transport.spec(_packed(call, send.array), block, send.dtype)
    if recv is not None:
        received = buffer.landing(recv)
        call.recv = transport.spec(received, block, recv.dtype)
    if send is not None and recv is not None and buffer.overlap(send.array, recv.array):
        _share(call, send, recv, block)
    _deliver(call, recv, received)
    if call.verb == "all_gather" and send is not None and received is not None:
        _gather_by_nodes(call, send, received)
    return call


def _gather_by_nodes(call: Call, send: Buffer, received: AnyArray) -> None:
    """Let blocks cross to each node once, where MPI's own would send them more often."""
    if not rank_order.is_gathered_by_nodes(call.comm, send.nbytes):
        return
    own = received.reshape(call.comm.size, -1)[call.comm.rank]
    if call.send is not MPI.IN_PLACE:
        call.then_fill(_filler(own, send.array))
    ordered_blocks.ordered_call(call, rank_order.Unchanged(call.comm), own, received)


def _broadcast(call: Call, send: Buffer | None, recv: Buffer | None, block: int) -> Call:
    """One array for both: x is copied into it on the root."""
    received = None if recv is None else buffer.landing(recv)
    if send is not None:
        if recv is None:  # root of an inter-communicator
            received = np.empty(send.shape, send.array.dtype)
        elif send is not recv and not buffer.same_memory(send.array, recv.array):
            buffer.refuse_overlap(send, recv)
        if received is not None and not buffer.same_memory(received, send.array):
            call.then_fill(_filler(received, send.array))
    call.recv = None if received is None else transport.spec(received, block, call.look.dtype)
    _deliver(call, recv, received)
    return call


def _share(call: Call, send: Buffer, recv: Buffer, block: int) -> None:
    """x and out overlap. Three cases are right, one with a copy; all others are refused:

    all_to_all in place, one's own block of a gathered array, and one's own block of a scattered one.
    """
    comm, verb = call.comm, call.verb
    if verb == "all_to_all" and buffer.same_memory(send.array, recv.array):
        copy = send.array.copy()  # a plan fills it anew at each start
        call.fill = _filler(copy, send.array)
        call.send = transport.spec(copy, block, send.dtype)
    elif verb == "all_to_all" or comm.is_inter or not _core_may_share(call, send, recv):
        buffer.refuse_overlap(send, recv)
    elif verb == "scatter":
        call.recv = MPI.IN_PLACE
    else:
        call.send = MPI.IN_PLACE


def _is_block(whole: Buffer, part: Buffer, rank: int, p: int) -> bool:
    """Whether part is whole[rank] itself, as when each rank's shard lives inside the gathered array."""
    return (
        buffer.same_memory(whole.array.reshape(p, -1)[rank], part.array.reshape(-1))
        and part.array.flags.c_contiguous
    )


def _deliver(call: Call, recv: Buffer | None, received: AnyArray | None) -> None:
    """Finish call by giving recv back, filled from where the bytes have landed."""

    def finish(status: MPI.Status | None) -> object:
        if recv is None:
            return None
        if received is not recv.array:
            recv.array[...] = received
        return recv.give()

    call.finish = finish
    if recv is None or received is recv.array:
        call.give = recv.give if recv is not None else lambda: None


def _reduce_there(call: Call, send: Buffer, recv: Buffer | None, block: int, reduce: Reduction) -> Call:
    """Reductions by the MPI library.

        x ── up, or pack ──> travelling ── MPI ──> received ── down ──> out ── finish (avg, in place)

    received is out itself where nothing has to be converted or unpacked. Then, and if the operator has no
    `finish`, the call leaves nothing to do (call.give), so requests and plans of it are cheap.
    """
    comm = call.comm
    in_place = recv is not None and (send is recv or buffer.same_memory(send.array, recv.array))
    if not in_place:
        buffer.refuse_overlap(send, recv)
    call.op = reduce.mpi()
    kind = getattr(MPI, reduce.mpi_type)
    received: NDArray[Any] | None = None
    travelling = _packed(call, send.array, reduce.widen)
    if recv is not None:
        lies_plain = recv.array.flags.c_contiguous and (recv.array.size > 0 or send is recv)
        is_plain = reduce.widen is None and lies_plain
        received = recv.array if is_plain else np.empty(recv.shape, travelling.dtype)
        call.recv = (received, block, kind)
        in_place = in_place and is_plain
    if not in_place:
        call.send = (travelling, block, kind)
    elif comm.is_inter:  # where MPI knows of no such thing
        copy = travelling.copy()
        call.fill = _filler(copy, send.array)
        call.send = (copy, block, kind)
    else:
        call.send = MPI.IN_PLACE
    _deliver_reduced(call, recv, received, reduce)
    return call


def _deliver_reduced(
    call: Call, recv: Buffer | None, received: NDArray[Any] | None, reduce: Reduction
) -> None:
    """Finish call by giving recv back, from what was reduced."""
    comm = call.comm
    ranks = comm.remote_size if comm.is_inter else comm.size
    is_first = call.verb == "exscan" and comm.rank == 0  # MPI leaves its result undefined
    if recv is None or received is None or not (is_first or reduce.narrow or reduce.finish):
        _deliver(call, recv, received)
        return

    def finish(status: MPI.Status | None) -> object:
        if is_first:
            return _first_of_exscan(recv, reduce)
        if received is not recv.array:
            narrow = reduce.narrow(received, ranks) if reduce.narrow is not None else received
            recv.array[...] = narrow.reshape(recv.shape)
        if reduce.finish is not None:
            reduce.finish(recv.array, ranks)
        return recv.give()

    call.finish = finish


def _first_of_exscan(recv: Buffer, reduce: Reduction) -> object:
    value = reduction.identity(reduce.op, recv.dtype)
    if value is None:
        return None
    recv.array[...] = value
    return recv.give()


def _reduce_here(call: Call, send: Buffer, recv: Buffer | None, reduce: Reduction, waits: bool) -> Call:
    """Reductions by a function of the user's: gather the contributions, reduce them in rank order.

    MPI may combine contributions in any order if an operator commutes, and calls a user's function with
    memory only. So the contributions themselves travel (call.moves: all_gather for all_reduce, and so on).
    """
    comm, verb, block = call.comm, call.verb, call.count
    if recv is not None:
        buffer.refuse_partial(send, recv)
    p = comm.remote_size if comm.is_inter else comm.size
    if verb == "reduce_scatter" and p != comm.size:
        raise UsageError(
            "a function cannot be the op of reduce_scatter between groups of different size",
            hint="all_reduce, and take a block of it",
        )
    packed, gathered = _packed(call, send.array), None
    if recv is not None:
        if np.may_share_memory(packed, recv.array):
            packed = packed.copy()
            call.fill = _filler(packed, send.array)
        gathered = np.empty((p, *recv.shape), packed.dtype)
        call.recv = transport.spec(gathered, block, send.dtype)
    call.moves = rank_order.MOVES[verb]
    call.send = transport.spec(packed, block, send.dtype)
    if waits and comm.node is not None and core_knows(send.dtype):
        call.carrier = Carrier(partial(_gather_by_core, call, packed, gathered))
    until = {"scan": comm.rank + 1, "exscan": comm.rank}.get(verb, p)  # contributions that count here

    def finish(status: MPI.Status | None) -> object:
        if recv is None or gathered is None or until == 0:
            return None
        given, wrap = send.give(), send.wrap
        if waits and type(given) is np.ndarray:  # nobody has this memory later
            wrap = partial(np.ndarray.view, dtype=given.dtype)
        reduced = wrap(gathered[0, ...])  # an array, also of no dimensions
        for rank in range(1, until):
            reduced = reduce.function(reduced, wrap(gathered[rank, ...]))  # type: ignore[misc]
            _check_reduced(comm, verb, reduce, reduced, send, recv.shape)
        recv.array[...] = buffer.as_buffer(reduced).array
        return recv.give()

    call.finish = finish
    return call


def _gather_by_core(call: Call, packed: AnyArray, gathered: AnyArray | None) -> None:
    """What the ranks have contributed, by the native core; its verb is not the call's."""
    native.know_arrays()  # as of a rank that has loaded numpy only now
    comm, n = call.comm, call.count
    x = aligned(packed, filled=True).reshape((comm.size, n) if call.moves == "all_to_all" else (n,))
    out = None if gathered is None else gathered.reshape(comm.size, n)
    root = (call.root,) if call.verb == "reduce" else ()
    done = getattr(open_node(comm, call.verb), call.moves)(x, *root, out, call.look.dtype.code)
    if done is NotImplemented:  # no room for long calls, as all ranks know by now
        transport.by_library(call)


def _reduce_in_order(call: Call, send: Buffer, recv: Buffer | None, reduce: Reduction, waits: bool) -> Call:
    """Reductions in the order of ranks, or exact ones: see rank_order.py.

    x ── scale, or pack ──> travelling ── MPI ──> gathered, or blocks ── fold ──> received ──> out
    """
    comm, verb, block = call.comm, call.verb, call.count
    if recv is not None:
        buffer.refuse_partial(send, recv)
    fold = rank_order.Fold(comm, reduce, send.dtype, reduce.exact or verb in PREFIXES)
    travelling = _packed(call, send.array, reduce.widen if fold.is_wide else None)
    is_first = verb == "exscan" and comm.rank == 0
    if not rank_order.is_whole(comm, verb, travelling.nbytes, waits):
        received = None if recv is None else buffer.landing(recv)
        ordered_blocks.ordered_call(call, fold, travelling, received)
        _deliver(call, recv, received)
        if is_first and recv is not None:
            call.finish, call.give = lambda _: _first_of_exscan(recv, reduce), None
        return call
    kind = getattr(MPI, reduce.mpi_type) if fold.is_wide else transport.spec(travelling, block, send.dtype)[2]
    n, mine = block, slice(None)
    call.moves, call.fold = rank_order.MOVES[verb], fold
    if comm.is_inter and verb == "reduce_scatter":  # groups of different size have blocks of different size
        n, mine = travelling.size, slice(comm.rank * block, (comm.rank + 1) * block)
        call.moves = "all_gather"
    call.send = travelling, n, kind
    gathered: AnyArray | None = None
    if recv is not None:
        gathered = np.empty((fold.ranks, n), travelling.dtype)
        call.recv = gathered, n, kind

    def finish(status: MPI.Status | None) -> object:
        if recv is None or gathered is None:
            return None
        if is_first:
            return _first_of_exscan(recv, reduce)
        until = {"scan": comm.rank + 1, "exscan": comm.rank}.get(verb)
        made = fold.total(gathered[:, mine]) if until is None else fold.prefixes(gathered[:until])[-1]
        recv.array[...] = made.reshape(recv.shape)
        return recv.give()

    call.finish = finish
    return call


def _check_reduced(
    comm: Comm, verb: str, reduce: Reduction, made: object, send: Buffer, shape: Shape
) -> None:
    """Refuse what a function made of two arrays if it is not such an array again."""
    try:
        result: Any = buffer.as_buffer(made)
        kept = result.shape == shape and result.dtype == send.dtype
    except HpcommError:
        result, kept = f"a {type(made).__name__}", False
    if not kept:
        raise UsageError(
            f"op {reduce.op} made {result} of {send.dtype} {shape}",
            where(verb, comm),
            "op must keep shape and dtype",
        )
