"""Buffer specifications of mpi4py, [buf, count, type] and the like, as flat arrays for hpcomm's verbs.

Elements of a type that numpy has too become a view of the program's own memory. Those of any other datatype
(a column, a struct) are packed by MPI into memory of their own, and unpacked when they have been received:

    [buf, (count, displ), type] ── view, or pack ──> Part.array ── a verb ──> Part.array ── store ──> buf
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import lru_cache
from operator import index
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
from mpi4py import MPI

from ..core.buffer import as_buffer
from ..errors import ConfigError, LayoutError, MismatchError

if TYPE_CHECKING:
    from mpi4py.typing import BufSpec, BufSpecB, BufSpecV

    from ..core.types import NpArray

    Block = BufSpec | BufSpecB | None

_ON_HOST = 1  # DLPack's numbers: of a device,
_DLPACK_KINDS = {0: "i", 1: "u", 2: "f", 5: "c", 6: "b"}  # of kinds of elements,
_DTYPE_AT = 20  # and where in a DLTensor these stand: behind an address, a device and the number of axes


class Part(NamedTuple):
    """Elements of one message: array, contiguous and of one axis; store brings what came to its place."""

    array: NpArray
    store: Callable[[], object] | None = None

    def put(self, got: NpArray, source: int) -> None:
        """Place elements that have come from a rank.

        Raises:
            MismatchError: they are others, or not as many as were said.
        """
        if got.size != self.array.size or (got.size and got.dtype != self.array.dtype):
            raise MismatchError(
                f"{got.size} elements of {got.dtype} have come from rank {source}, and {self.array.size} of "
                f"{self.array.dtype} were expected",
                hint="give the same counts and datatypes on both sides",
            )
        self.array[...] = got
        if self.store is not None:
            self.store()


class _Spec(NamedTuple):
    """A specification taken apart; count and displ are sequences where there is one for each rank."""

    buf: Any
    count: Any = None
    displ: Any = None
    kind: MPI.Datatype | None = None

    @property
    def is_plain(self) -> bool:
        """Whether its elements are of a type that numpy has too."""
        return self.kind is None or element(self.kind) is not None


def element(kind: MPI.Datatype) -> np.dtype[np.generic] | None:
    """numpy's name for a datatype of MPI's; None: it has none, as what a program has made."""
    return _named(kind.handle) if kind.is_predefined else None


def typed(spec: Block) -> bool:
    """Whether its elements are of a type that numpy has too, so that hpcomm may compute with them."""
    return _whole(spec) is not None or _spec(spec).is_plain


def plain(spec: Block) -> NpArray | None:
    """The elements as they lie in memory; None: only MPI can find them, or they are nowhere."""
    array = _whole(spec)
    if array is not None:
        return array
    found = _spec(spec)
    is_absent = found.buf is None or found.buf is MPI.BOTTOM
    return None if is_absent or not found.is_plain else _view(found, 1)


def part(spec: Block, blocks: int = 1) -> Part:
    """What a specification says of this rank's memory.

    Args:
        blocks: how many ranks have a block there; a count is of one of them.
    """
    array = _whole(spec)
    if array is not None and len(array) % blocks == 0:
        return Part(array)
    found = _spec(spec)
    if found.buf is None and not found.count:
        kind = None if found.kind is None else element(found.kind)
        return Part(np.empty(0, np.uint8 if kind is None else kind))
    if found.is_plain:
        return Part(_view(found, blocks))
    count = _entries(found) if found.count is None else index(found.count) * blocks
    return _packed(found, count, index(found.displ or 0))


def _whole(spec: object) -> NpArray | None:
    """The elements of the usual specifications, without taking them apart: x, or [x, the type of x]."""
    if type(spec) is np.ndarray:
        return spec.reshape(-1) if spec.flags.c_contiguous else None
    if isinstance(spec, (list, tuple)) and len(spec) == 2 and type(spec[0]) is np.ndarray:
        x, kind = spec
        if isinstance(kind, MPI.Datatype) and x.dtype == element(kind) and x.flags.c_contiguous:
            return cast("NpArray", x.reshape(-1))
    return None


def parts(spec: BufSpecV | None, blocks: int) -> list[Part]:
    """The same for each rank, of a specification with a count for each: [buf, (counts, displs), type]."""
    buf, counts, displs, kind = _spec(spec, many=True)
    whole = _Spec(buf, kind=kind)
    flat = _view(whole, 1) if buf is not None and whole.is_plain else None
    if counts is None:
        entries = _entries(whole) if flat is None else len(flat)
        counts = [entries // blocks + (entries % blocks > r) for r in range(blocks)]
    sizes = _each(counts, blocks, "counts", lambda count, rank: count)
    if displs is None:
        places = [sum(sizes[:r]) for r in range(blocks)]
    else:
        places = _each(displs, blocks, "displacements", lambda displ, rank: displ * rank)
    return [_piece(whole, flat, n, at) for n, at in zip(sizes, places, strict=True)]


def _piece(whole: _Spec, flat: NpArray | None, count: int, displ: int) -> Part:
    """Some elements of a whole buffer. flat: all of them, if numpy has their type."""
    if flat is not None:
        return Part(_cut(flat, displ, count))
    return Part(np.empty(0, np.uint8)) if whole.buf is None else _packed(whole, count, displ)


def _each(given: Any, blocks: int, name: str, of_one: Callable[[int, int], int]) -> list[int]:
    if np.ndim(given) == 0:
        return [of_one(index(given), rank) for rank in range(blocks)]
    found = [int(each) for each in given]
    if len(found) != blocks:
        raise ValueError(f"{len(found)} {name} for {blocks} ranks")
    return found


def _spec(spec: object, many: bool = False) -> _Spec:
    """spec taken apart as mpi4py does it; many: a list is one of counts, and only a tuple has displacements.

    Raises:
        ValueError: it is none. KeyError: there is no such type.
    """
    if not isinstance(spec, (list, tuple)):
        return _Spec(spec)
    buf, count, displ, kind = None, None, None, None
    if len(spec) == 2:
        buf, count = spec
        if isinstance(count, (MPI.Datatype, str)):
            count, kind = None, count
    elif len(spec) == 3:
        buf, count, kind = spec
    elif len(spec) == 4:
        buf, count, displ, kind = spec
    else:
        raise ValueError("message: expecting 2 to 4 items")
    if len(spec) < 4 and isinstance(count, tuple if many else (tuple, list)):
        count, displ = count
    return _Spec(buf, count, displ, _by_code(kind) if isinstance(kind, str) else kind)


def _by_code(code: str) -> MPI.Datatype:
    try:
        return MPI.Datatype.fromcode(code)
    except ValueError as error:
        raise KeyError(str(error)) from None  # as mpi4py does


@lru_cache(maxsize=256)
def _named(handle: int) -> np.dtype[np.generic] | None:
    """Of a predefined datatype, whose handle stays the same."""
    kind = MPI.Datatype.fromhandle(handle)
    try:
        found = np.dtype(kind.tocode())
    except (TypeError, ValueError):  # a pair of a number and a place, or nothing at all
        return None
    if found.kind == "S":
        return np.dtype(np.uint8)
    if found.kind == "U":
        return np.dtype(np.uint32)
    return found if found.itemsize == kind.Get_size() else None


def _flat(buf: Any, as_bytes: bool = False) -> NpArray:
    """buf as it lies in memory, as an array of one axis; as_bytes: its element type does not matter."""
    if isinstance(buf, np.ndarray):
        if buf.flags.f_contiguous and not buf.flags.c_contiguous:
            return cast("NpArray", buf.T.reshape(-1))
        is_contiguous = buf.flags.c_contiguous
    elif not hasattr(buf, "reshape"):
        return _foreign(buf, as_bytes)
    else:
        is_contiguous = buf.is_contiguous() if hasattr(buf, "is_contiguous") else buf.flags.c_contiguous
    if not is_contiguous:
        raise LayoutError(
            "the buffer is not contiguous",
            hint="numpy.ascontiguousarray(x); hpcomm's own verbs take it as it is",
        )
    return cast("NpArray", buf.reshape(-1))


def _foreign(buf: Any, as_bytes: bool) -> NpArray:
    """Memory of what is no array, such as bytes, MPI.Alloc_mem's, or another library's object."""
    try:
        return np.asarray(memoryview(buf)).reshape(-1)
    except TypeError:
        by_address = getattr(buf, "__cuda_array_interface__", None)
        if by_address is None and not hasattr(buf, "__dlpack__"):
            raise TypeError(f"message: expecting buffer or list/tuple, not {buf!r}") from None
    if by_address is not None or buf.__dlpack_device__()[0] != _ON_HOST:
        try:
            as_buffer(buf)
            return cast("NpArray", buf)
        except ConfigError:  # without a driver nothing lies on a device, whatever it says
            pass
    memory = np.asarray(memoryview(cast("Any", MPI.buffer.frombuffer(buf))))
    if as_bytes:
        return memory
    return memory.view(_dtype_of(buf) if by_address is None else by_address["typestr"])


def _dtype_of(buf: Any) -> np.dtype[np.generic]:
    """The element type of a DLPack tensor; numpy's own look at it knows fewer."""
    capsule = buf.__dlpack__()
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    code, bits, lanes, _ = ctypes.string_at(pointer(capsule, b"dltensor") + _DTYPE_AT, 4)
    return np.dtype(f"{'c' if lanes == 2 else _DLPACK_KINDS[code]}{bits * lanes // 8}")


def _view(spec: _Spec, blocks: int) -> NpArray:
    """Elements of a type that numpy has, where they lie."""
    flat = _flat(spec.buf, spec.kind is not None)
    if spec.kind is not None:
        kind = element(spec.kind)
        assert kind is not None
        flat = _retyped(flat, kind, is_exact=spec.count is None)
    if spec.count is None and spec.displ is None:
        if len(flat) % blocks:
            raise ValueError(f"message: {len(flat)} entries are not a multiple of {blocks} blocks")
        return flat
    first = index(spec.displ or 0)
    return _cut(flat, first, len(flat) - first if spec.count is None else index(spec.count) * blocks)


def _retyped(flat: Any, kind: np.dtype[np.generic], is_exact: bool) -> Any:
    """The same memory as elements of kind. is_exact: nothing may be left over at its end."""
    if not isinstance(flat, np.ndarray):
        look = as_buffer(flat)
        if look.dtype.mpi is not None and np.dtype(look.dtype.storage) == kind:
            return flat
        flat = look.array
    if flat.dtype == kind:
        return flat
    if flat.nbytes % kind.itemsize and is_exact:
        raise ValueError(f"message: buffer length {flat.nbytes} is not a multiple of extent {kind.itemsize}")
    return flat.view(np.uint8)[: flat.nbytes // kind.itemsize * kind.itemsize].view(kind)


def _cut(flat: NpArray, first: int, count: int) -> NpArray:
    if first < 0 or count < 0 or (first + count > len(flat) and count):
        raise ValueError(f"message: {count} entries from {first} on are not in a buffer of {len(flat)}")
    return flat[first : first + count]


def _entries(spec: _Spec) -> int:
    """How many of a datatype's there are, where no count is given."""
    assert spec.kind is not None
    nbytes = 0 if spec.buf is None else _flat(spec.buf, True).nbytes
    extent = spec.kind.Get_extent()[1]
    if extent <= 0 or nbytes % extent:
        raise ValueError(f"message: buffer length {nbytes} is not a multiple of datatype extent {extent}")
    return nbytes // extent - index(spec.displ or 0)


def _packed(spec: _Spec, count: int, displ: int) -> Part:
    """Elements of any datatype, packed; MPI knows alone where they lie."""
    kind = spec.kind
    assert kind is not None
    array = np.empty(count * kind.Get_size(), np.uint8)
    there: BufSpec = [spec.buf, (count, displ), kind]
    here: BufSpec = [array, MPI.BYTE]
    alone = _alone()
    alone.Sendrecv(there, 0, 0, here, 0, 0)
    return Part(_of_basic(array, kind), lambda: alone.Sendrecv(here, 0, 0, there, 0, 0))


def _of_basic(array: NpArray, kind: MPI.Datatype) -> NpArray:
    basic = _basic(kind)
    return array if basic is None else array.view(basic)


def _basic(kind: MPI.Datatype) -> np.dtype[np.generic] | None:
    """The one type that all elements of a datatype are of; None: there are several, or numpy has it not."""
    if kind.is_predefined:
        return element(kind)
    inside = [_basic(each) for each in kind.Get_contents()[3]]
    return inside[0] if len(set(inside)) == 1 else None


@lru_cache(maxsize=1)
def _alone() -> MPI.Intracomm:
    """A communicator of this rank's own, on which MPI packs and unpacks."""
    return MPI.COMM_SELF.Dup()
