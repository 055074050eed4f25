"""Buffer specifications of mpi4py, [buf, count, type] and the like, as flat arrays for hpcomm's verbs.

Elements of a type that numpy has too become a view of the program's own memory. Those of any other datatype
(a column, a struct) are packed by MPI into memory of their own, and unpacked when they have been received:

    [buf, (count, displ), type] ── view, or pack ──> Part.array ── a verb ──> Part.array ── store ──> buf
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from contextlib import suppress
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
    store: Callable[[object], object] | None = None

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
            self.store(got)


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
    """The elements as they lie in memory; None: only MPI can find them, or says what is wrong."""
    array = _whole(spec)
    if array is not None:
        return array
    try:
        found = _spec(spec)
        flat = _elements(found)
    except (AttributeError, BufferError, ConfigError, KeyError, TypeError, ValueError):
        return None
    return None if flat is None else _part(found, flat, 1).array


def part(spec: Block, blocks: int = 1) -> Part:
    """What a specification says of this rank's memory.

    Args:
        blocks: how many ranks have a block there; a count is of one of them.
    """
    array = _whole(spec)
    if array is not None and len(array) % blocks == 0:
        return Part(array)
    found = _spec(spec)
    return _part(found, _elements(found), blocks)


def _part(spec: _Spec, flat: NpArray | None, blocks: int) -> Part:
    displ = index(spec.displ or 0)
    if spec.count is not None:
        return _piece(spec, flat, index(spec.count) * blocks, displ)
    count = _entries(spec, flat) - displ
    if count % blocks:
        raise ValueError(f"message: {count} entries are not a multiple of {blocks} blocks")
    return _piece(spec, flat, count, displ)


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
    found = _spec(spec, many=True)
    flat, counts = _elements(found), found.count
    if counts is None:
        entries = _entries(found, flat)
        counts = [entries // blocks + (entries % blocks > r) for r in range(blocks)]
    sizes = _each(counts, blocks, "counts", lambda count, rank: count)
    if found.displ is None:
        places = [sum(sizes[:r]) for r in range(blocks)]
    else:
        places = _each(found.displ, blocks, "displacements", lambda displ, rank: displ * rank)
    return [_piece(found, flat, n, at) for n, at in zip(sizes, places, strict=True)]


def _piece(spec: _Spec, flat: NpArray | None, count: int, displ: int) -> Part:
    """Some elements of a buffer. flat: all of them, if numpy has their type."""
    if flat is not None:
        if displ < 0 or count < 0 or (displ + count > len(flat) and count):
            raise ValueError(f"message: {count} entries from {displ} on are not in a buffer of {len(flat)}")
        return Part(flat[displ : displ + count])
    kind = MPI.BYTE if spec.kind is None else spec.kind
    if spec.buf is None and not count:
        return Part(np.empty(0, element(kind) or np.uint8))
    return _packed([spec.buf, (count, displ), spec.kind], count * kind.Get_size(), kind)


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
    if not 2 <= len(spec) <= 4:
        raise ValueError("message: expecting 2 to 4 items")
    buf, *more = spec
    kind = more.pop() if len(more) > 1 or isinstance(more[0], (MPI.Datatype, str)) else None
    if len(more) == 1 and isinstance(more[0], tuple if many else (tuple, list)):
        count, displ = more[0]
    else:
        count, displ = (*more, None, None)[:2]
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


def _flat(buf: Any) -> NpArray:
    """buf as it lies in memory, as an array of one axis."""
    if not hasattr(buf, "reshape"):
        try:
            buf = np.asarray(memoryview(buf))  # bytes, say, or MPI.Alloc_mem's
        except TypeError:
            return _foreign(buf)
    if not isinstance(buf, np.ndarray):
        is_contiguous = buf.is_contiguous() if hasattr(buf, "is_contiguous") else buf.flags.c_contiguous
    elif not (is_contiguous := buf.flags.c_contiguous):
        buf, is_contiguous = buf.T, buf.flags.f_contiguous
    if not is_contiguous:
        raise LayoutError(
            "the buffer is not contiguous",
            hint="numpy.ascontiguousarray(x); hpcomm's own calls take it as it is",
        )
    return cast("NpArray", buf.reshape(-1))


def _foreign(buf: Any) -> NpArray:
    """Memory of another library's object, on a device or on the host, of which numpy knows fewer types."""
    cuda = getattr(buf, "__cuda_array_interface__", None)
    if cuda is None and not hasattr(buf, "__dlpack__"):
        raise TypeError(f"message: expecting buffer or list/tuple, not {buf!r}") from None
    is_here = cuda is None and buf.__dlpack_device__()[0] == _ON_HOST
    if not is_here:
        with suppress(ConfigError):  # without a driver nothing lies on a device, whatever it says
            as_buffer(buf)
            return cast("NpArray", buf)
    memory = np.asarray(memoryview(cast("Any", MPI.buffer.frombuffer(buf))))
    return memory.view(_dtype_of(buf, None if is_here else -1) if cuda is None else cuda["typestr"])


def _dtype_of(buf: Any, stream: int | None) -> np.dtype[np.generic]:
    """The element type of a DLPack tensor. stream: -1 on a device, for who does not look at elements."""
    capsule = buf.__dlpack__(stream=stream)
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    code, bits, lanes, _ = ctypes.string_at(pointer(capsule, b"dltensor") + _DTYPE_AT, 4)
    return np.dtype(f"{'c' if lanes == 2 else _DLPACK_KINDS.get(code, 'V')}{bits * lanes // 8}")


def _elements(spec: _Spec) -> NpArray | None:
    """All elements of a buffer, where they lie; None: they are nowhere, or only MPI can find them."""
    if spec.buf is None or spec.buf is MPI.BOTTOM or not spec.is_plain:
        return None
    flat = _flat(spec.buf)
    kind = None if spec.kind is None else element(spec.kind)
    return flat if kind is None else _retyped(flat, kind, is_exact=spec.count is None)


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


def _entries(spec: _Spec, flat: NpArray | None) -> int:
    """How many elements, or values of a datatype, a whole buffer has."""
    if flat is not None or spec.buf is None or spec.kind is None:
        return 0 if flat is None else len(flat)
    nbytes, extent = _flat(spec.buf).nbytes, spec.kind.Get_extent()[1]
    if extent <= 0 or nbytes % extent:
        raise ValueError(f"message: buffer length {nbytes} is not a multiple of datatype extent {extent}")
    return nbytes // extent


def _packed(there: BufSpec, nbytes: int, kind: MPI.Datatype) -> Part:
    """Values of any datatype, packed; MPI knows alone where they lie."""
    array, alone = np.empty(nbytes, np.uint8), _alone()
    here: BufSpec = [array, MPI.BYTE]
    alone.Sendrecv(there, 0, 0, here, 0, 0)
    basic = _basic(kind)
    flat = array if basic is None else array.view(basic)
    return Part(flat, lambda got: alone.Sendrecv(here, 0, 0, there, 0, 0))


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
