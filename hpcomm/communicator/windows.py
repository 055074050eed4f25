"""Windows: memory of every rank that the others read and write directly, comm.window(shape, dtype).

MPI's one-sided communication (passive target): each rank has an array, and a call names a rank and a
place in its array. A counter is a window of one number: comm.counter(), by which ranks take the next piece
of work.
"""

from __future__ import annotations

from operator import index
from typing import TYPE_CHECKING, Any, SupportsIndex, TypeGuard
from zlib import crc32

from ..agree.agreement import refused
from ..core.closing import ClosedByAll
from ..errors import DtypeError, HpcommError, LayoutError, MismatchError, RankError, UsageError, where
from .groups import agreed
from .shared_array import shape_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np
    from mpi4py import MPI
    from numpy.typing import NDArray

    from ..core import buffer, dtypes
    from ..core.types import AnyArray
    from ..transport import mpi as transport
    from .communicator import Communicator
else:
    from .._lazy import LazyModule

    np = LazyModule("numpy")
    MPI = LazyModule("mpi4py.MPI")
    buffer = LazyModule("hpcomm.core.buffer")
    dtypes = LazyModule("hpcomm.core.dtypes")
    transport = LazyModule("hpcomm.transport.mpi")

__all__ = ["Counter", "Window", "counter", "window"]

_OPERATORS = {name: name.upper() for name in ("sum", "prod", "min", "max", "band", "bor", "bxor", "replace")}
# Narrower ones some libraries add with saturation; of half types MPI knows nothing.
_ATOMIC = ("int32", "int64", "uint32", "uint64", "float32", "float64")


class Window(ClosedByAll):
    """An array on each rank of comm, which all of them read and write. comm.window(shape, dtype) makes it.

    Attributes:
        comm: its ranks.
        shape, dtype: of the array on each rank.

    `at=` names a place: a numpy index of one element or of a contiguous block, such as 3, (3, 0) or
    slice(2, 5). None is the whole array. While a rank writes a place, no other rank may use it. Exceptions
    are accumulate and fetch_and_add, which are atomic for each element.
    """

    def __init__(
        self, comm: Communicator, mpi: MPI.Win, record: dtypes.Dtype, array: AnyArray, as_tensor: bool
    ) -> None:
        self.comm, self.shape, self.dtype = comm, array.shape, record.name
        self._mpi: MPI.Win | None = mpi
        self._record, self._array, self._as_tensor = record, array, as_tensor

    @property
    def array(self) -> Any:
        """This rank's own part, a numpy array. After fence() it shows what others have written."""
        self._open("array")
        return self._array.view(dtypes.numpy_dtype(self._record))

    @property
    def tensor(self) -> Any:
        """The same memory as a torch tensor."""
        import importlib

        self._open("tensor")
        torch = importlib.import_module("torch")
        return torch.from_numpy(self._array).view(dtypes.torch_dtype(self._record))

    def put(self, x: object, rank: int, at: object = None) -> None:
        """Write x to a place of rank. x may be changed at once. It has arrived after flush() or fence()."""
        mpi, target, block = self._place("put", rank, at)
        data = self._given("put", x, block.shape)
        self._told("put", mpi.Put, [data, MPI.BYTE], rank, (target, block.nbytes, MPI.BYTE))
        self._told("put", mpi.Flush_local, rank)

    def get(self, rank: int, at: object = None, out: object = None) -> Any:
        """Read a place of rank into out, or into a new array (a tensor if the window's dtype is
        torch's)."""
        mpi, target, block = self._place("get", rank, at)
        try:
            look = buffer.as_buffer(out) if out is not None else None
        except HpcommError as error:
            raise error.located("get", self.comm) from None
        if look is None:
            look = buffer.empty(block.shape, self._record, torch=self._as_tensor)
        self._check("get", look, block.shape, "out")
        if look.frozen:
            raise LayoutError(f"out {look.frozen}", where("get", self.comm), "an array of its own")
        direct = look.array.flags.c_contiguous
        data = look.array if direct else np.empty(block.shape, block.dtype)
        self._told("get", mpi.Get, [data, MPI.BYTE], rank, (target, block.nbytes, MPI.BYTE))
        self._told("get", mpi.Flush, rank)
        if not direct:
            look.array[...] = data
        return look.give() if out is None else out

    def accumulate(self, x: object, rank: int, op: str = "sum", at: object = None) -> None:
        """Reduce x into a place of rank, atomically for each element. "replace" writes atomically.

        Args:
            op: "sum", "prod", "min", "max", "band", "bor", "bxor" or "replace". min and max treat NaN as
                the MPI library does.

        Raises:
            DtypeError: the window's dtype is not one of int32, int64, uint32, uint64, float32 and float64.
        """
        operator = self._operator("accumulate", op)
        mpi, target, block = self._place("accumulate", rank, at)
        data = self._given("accumulate", x, block.shape)
        kind = transport.native(self._record)
        there = target, block.size, kind
        self._told("accumulate", mpi.Accumulate, [data, block.size, kind], rank, there, operator)
        self._told("accumulate", mpi.Flush_local, rank)

    def fetch_and_add(self, value: object, rank: int, at: object = None) -> Any:
        """Add value to one element of rank, atomically. Returns its old value, a Python number."""
        return self._fetch("fetch_and_add", value, rank, at, "sum")

    def _fetch(self, verb: str, value: object, rank: int, at: object, op: str) -> Any:
        operator = self._operator(verb, "sum") if op == "sum" else MPI.NO_OP
        mpi, target, block = self._place(verb, rank, at)
        if block.size != 1:
            raise LayoutError(
                f"at={at!r} means {block.size} elements of {self.shape}",
                where(verb, self.comm),
                "the index of one element",
            )
        data, before = self._given(verb, value, ()), np.empty((), block.dtype)
        kind = transport.native(self._record)
        self._told(verb, mpi.Fetch_and_op, [data, 1, kind], [before, 1, kind], rank, target, operator)
        self._told(verb, mpi.Flush, rank)
        return before.item()

    def flush(self, rank: int | None = None) -> None:
        """Wait until all that this rank wrote has arrived, on one rank or on all."""
        mpi = self._open("flush")
        if rank is None:
            self._told("flush", mpi.Flush_all)
        else:
            self._told("flush", mpi.Flush, self._rank("flush", rank))

    def fence(self) -> None:
        """Make what any rank has written visible to all. Collective."""
        mpi = self._open("fence")
        self._told("fence", mpi.Flush_all)
        self._told("fence", mpi.Sync)
        self.comm.barrier()
        self._told("fence", mpi.Sync)

    def close(self) -> None:
        """Free the memory. `array` and `tensor` must not be used any more. Collective."""
        if self._mpi is None:
            return
        self.fence()
        mpi, self._mpi = self._mpi, None
        self._told("close", mpi.Unlock_all)
        self._told("close", mpi.Free)

    def __repr__(self) -> str:
        closed = ", closed" if self._mpi is None else ""
        return f"<Window {self.dtype} {self.shape} on each of {self.comm.size} ranks{closed}>"

    # -- arguments -----------------------------------------------------------------------------------
    def _open(self, verb: str) -> MPI.Win:
        self.comm.check_open(verb)
        if self._mpi is None:
            raise UsageError("this window is closed", where(verb, self.comm), "use it before close()")
        return self._mpi

    def _rank(self, verb: str, rank: object) -> int:
        if not _is_number(rank) or not 0 <= index(rank) < self.comm.size:
            raise RankError(
                f"there is no rank {rank!r}", where(verb, self.comm), f"0 to {self.comm.size - 1}"
            )
        return index(rank)

    def _place(self, verb: str, rank: object, at: object) -> tuple[MPI.Win, int, AnyArray]:
        """The window, at which byte of it a place begins, and the same block of this rank's own array."""
        mpi = self._open(verb)
        self._rank(verb, rank)
        parts = at if isinstance(at, tuple) else () if at is None else (at,)
        if not all(isinstance(part, slice) or _is_number(part) for part in parts):
            hint = "an index such as 3, (3, 0) or slice(2, 5)"
            raise LayoutError(f"at={at!r} is no place of a window", where(verb, self.comm), hint)
        try:
            block: NDArray[Any] = self._array[(*parts, ...)]
        except (IndexError, TypeError) as error:
            what = f"at={at!r} is not in an array of shape {self.shape}: {error}"
            raise LayoutError(what, where(verb, self.comm), "an index from 0 on, within that") from None
        if not block.flags.c_contiguous:
            what, hint = f"at={at!r} of {self.shape} is not contiguous", "several calls, one for each block"
            raise LayoutError(what, where(verb, self.comm), hint)
        begins = block.__array_interface__["data"][0] - self._array.__array_interface__["data"][0]
        return mpi, begins if block.size else 0, block

    def _given(self, verb: str, x: object, shape: tuple[int, ...]) -> AnyArray:
        """x as a contiguous array of the window's elements; a number fits any dtype that holds it."""
        if isinstance(x, (bool, int, float, complex)) and self._record.kind in "biufc":
            try:
                made = np.asarray(x, dtypes.numpy_dtype(self._record))
            except (OverflowError, TypeError) as error:
                hint = "a number that it holds"
                raise DtypeError(f"{x!r} is no {self.dtype}: {error}", where(verb, self.comm), hint) from None
            if self._record.kind in "biu" and made != x:
                what = f"{x!r} is no {self.dtype}"
                raise DtypeError(what, where(verb, self.comm), "a window of another dtype")
            x = made
        try:
            look = buffer.as_buffer(x)
        except HpcommError as error:
            raise error.located(verb, self.comm) from None
        self._check(verb, look, shape, "x")
        return np.ascontiguousarray(look.array).reshape(shape)

    def _check(self, verb: str, look: buffer.Buffer, shape: tuple[int, ...], name: str) -> None:
        if look.place is not None:
            what, hint = f"{name} lies on {look.device}", "a copy on the host: x.cpu()"
            raise LayoutError(what, where(verb, self.comm), hint)
        if look.dtype != self._record:
            what = f"{name} is {look.dtype}, the window {self.dtype}"
            raise DtypeError(what, where(verb, self.comm), "give both the same dtype")
        if look.shape != shape:
            what = f"{name} has shape {look.shape}, the place {shape}"
            raise LayoutError(
                what, where(verb, self.comm), "give both the same shape (at= chooses the place)"
            )

    def _operator(self, verb: str, op: object) -> MPI.Op:
        if not isinstance(op, str) or op not in _OPERATORS:
            hint = f"one of {', '.join(_OPERATORS)}"
            raise UsageError(f"there is no operator {op!r} for windows", where(verb, self.comm), hint)
        is_float = self._record.kind == "f"
        if self.dtype not in _ATOMIC or (is_float and op.startswith("b")):
            what = f"{op} is not atomic on {self.dtype}"
            raise DtypeError(what, where(verb, self.comm), f"a window of one of {', '.join(_ATOMIC)}")
        operator: MPI.Op = getattr(MPI, _OPERATORS[op])
        return operator

    def _told(self, verb: str, function: Callable[..., object], *arguments: object) -> None:
        try:
            function(*arguments)
        except MPI.Exception as error:
            raise transport.failure(error, verb, self.comm) from None


def _is_number(part: object) -> TypeGuard[SupportsIndex]:
    return hasattr(part, "__index__") and not isinstance(part, bool)


class Counter(ClosedByAll):
    """A number that all ranks count up. No value is given twice. comm.counter() makes it.

    next() gives 0, 1, 2, ... in the order in which ranks ask. add(n) adds n and gives what it was before.
    """

    def __init__(self, one: Window) -> None:
        self._window = one

    def next(self) -> int:
        """Give the number, and add one."""
        return self.add(1)

    def add(self, n: int) -> int:
        """Add n, and give the number before that."""
        return int(self._window._fetch("add", n, 0, None, "sum"))

    @property
    def value(self) -> int:
        """The number as it is now. Others may add to it meanwhile."""
        return int(self._window._fetch("value", 0, 0, None, "read"))

    def close(self) -> None:
        """Free the counter. Collective."""
        self._window.close()

    def __repr__(self) -> str:
        return f"<Counter of {self._window!r}>"


def window(comm: Communicator, shape: int | Sequence[int], dtype: object = "float64") -> Window:
    """An array of zeros on each rank, which all ranks read and write: put, get, accumulate, fetch_and_add.

    Collective. The memory comes from the MPI library. close() frees it.

    Args:
        shape, dtype: the same on every rank; a torch dtype makes get() return tensors.

    Raises:
        LayoutError, DtypeError: shape or dtype is not possible.
        MismatchError: the ranks give different ones; on all of them.

    Example (the ranks of a ring):
        >>> with comm.window(3) as window:
        ...     window.put(np.full(3, comm.rank), (comm.rank + 1) % comm.size)
        ...     window.fence()
        ...     left = window.array.copy()
    """
    comm.check_one_group("window")
    try:
        lengths = shape_of(shape)
        record, as_tensor = dtypes.parse(dtype)
    except HpcommError as error:
        raise refused(comm, "window", error) from None
    with agreed(comm, "window"):
        said = f"{record} {lengths}"
        mark = crc32(said.encode()).to_bytes(4, "little")
        heard = comm.bytewise_min(mark + bytes(255 - byte for byte in mark))
        if any(low + high != 255 for low, high in zip(heard[:4], heard[4:], strict=True)):
            hint = "the same shape and dtype on every rank"
            raise MismatchError(
                f"ranks ask for different windows, this one for {said}", where("window", comm), hint
            )
        array = np.empty(lengths, record.storage)
        try:
            mpi = MPI.Win.Allocate(array.nbytes, 1, comm=comm.mpi_handle)  # type: ignore[arg-type]
        except MPI.Exception as error:
            raise transport.failure(error, "window", comm) from None
    mpi.Set_errhandler(MPI.ERRORS_RETURN)
    if array.nbytes:
        memory: Any = mpi.tomemory()
        np.frombuffer(memory, np.uint8).fill(0)
        array = np.frombuffer(memory, array.dtype, array.size).reshape(lengths)
    mpi.Lock_all()
    made = Window(comm, mpi, record, array, as_tensor)
    made.fence()
    return made


def counter(comm: Communicator, start: int = 0) -> Counter:
    """A number that begins at start and that all ranks count up: each call of next() gets another one.

    Collective. So work goes to whoever is ready for more:

        >>> with comm.counter() as counter:
        ...     while (i := counter.next()) < len(tasks):
        ...         work(tasks[i])
    """
    made = Counter(window(comm, (), "int64"))
    if comm.rank == 0 and start:
        made.add(start)
    made._window.fence()
    return made
