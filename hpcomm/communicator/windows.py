"""Windows: memory of every rank that the others read and write directly, comm.window(shape, dtype).

MPI's one-sided communication (passive target): each rank has an array, and a call names a rank and a
place in its array. A counter is a window of one number: comm.counter(), by which ranks take the next piece
of work.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from importlib import import_module
from math import prod
from threading import get_ident
from typing import TYPE_CHECKING, Any, TypeGuard, cast
from zlib import crc32

from .._lazy import MPI, NDArray, np
from ..agree.agreement import refusing
from ..core.closing import ClosedByAll
from ..core.patience import Pause
from ..core.present import polling
from ..errors import (
    DtypeError,
    HpcommError,
    LayoutError,
    MismatchError,
    UsageError,
    WaitTimeoutError,
    counted,
    located,
    placed,
    where,
)
from ..node.present import enter, leave
from ..transport.late import buffer, dtypes, prepare, transport
from .making.groups import agreed, mapped
from .shared_array import MOST, shape_of
from .shell import Shell, watched
from .verbs.collectives import Collectives
from .window_places import HEAD, Places, rank_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ..core.types import AnyArray
    from . import strict
    from .communicator import Communicator
else:
    from .._lazy import LazyModule

    strict = LazyModule("hpcomm.communicator.strict")

_OPERATORS = {name: name.upper() for name in ("sum", "prod", "min", "max", "band", "bor", "bxor", "replace")}
# Narrower ones some libraries add with saturation; of half types MPI knows nothing.
_ATOMIC = ("int32", "int64", "uint32", "uint64", "float32", "float64")


@watched
class Window(ClosedByAll):
    """An array on each rank of comm, which all of them read and write. comm.window(shape, dtype) makes it.

    Attributes:
        comm: its ranks.
        shape, dtype: of the array on each rank; if shapes differ, shape is that on this rank.

    `at=` names a place: a numpy index of one element or of a contiguous block, such as 3, (3, 0) or
    slice(2, 5). None is the whole array. While a rank writes a place, no other rank may use it. Exceptions
    are accumulate, fetch_and_add and compare_and_swap, which are atomic for each element. lock() keeps
    others away for several calls.
    """

    def __init__(
        self,
        comm: Communicator,
        mpi: MPI.Win,
        dtype: object,
        array: AnyArray,
        shapes: NDArray[Any] | None,
    ) -> None:
        self._record, self._as_tensor = dtypes.parse(dtype)
        self.comm, self.shape, self.dtype = comm, array.shape, self._record.name
        self._mpi: MPI.Win | None = mpi
        self._array, self._shapes = array, shapes
        self._numpy = dtypes.numpy_dtype(self._record)
        self._plain = (array.dtype,) if array.dtype == self._numpy else ()
        self._kind = transport.native(self._record) if self.dtype in _ATOMIC else None
        self._places = Places(array, shapes, comm.size)
        self._held: set[tuple[int, int]] = set()  # ranks whose lock a thread of this rank has, and the thread

    def shape_of(self, rank: int) -> tuple[int, ...]:
        """The shape of the array on rank."""
        self._rank("shape_of", rank)
        return self.shape if self._shapes is None else tuple(self._shapes[rank].tolist())

    @property
    def array(self) -> Any:
        """This rank's own part, a numpy array. After fence() it shows what others have written."""
        self._open("array")
        return self._array.view(self._numpy)

    @property
    def tensor(self) -> Any:
        """The same memory as a torch tensor."""
        self._open("tensor")
        torch = import_module("torch")
        return torch.from_numpy(self._array).view(dtypes.torch_dtype(self._record))

    def put(self, x: object, rank: int, at: object = None) -> None:
        """Write x to a place of rank. x may be changed at once. It has arrived after flush() or fence()."""
        mpi, target, block = self._place("put", rank, at)
        data = self._given("put", x, block.shape)
        self._told("put", mpi.Put, [data, MPI.BYTE], rank, target, then=(mpi.Flush_local, rank))

    def get(self, rank: int, at: object = None, out: object = None) -> Any:
        """Read a place of rank into out, or into a new array (a tensor if the window's dtype is
        torch's)."""
        mpi, target, block = self._place("get", rank, at)
        done = mpi.Flush, rank
        if self._is_plain(out, block.shape) and out.flags.writeable:
            self._told("get", mpi.Get, [out, MPI.BYTE], rank, target, then=done)
            return out
        with located("get", self.comm):
            look = None if out is None else prepare.buffer_of(out, "out")
        look = look or buffer.empty(block.shape, self._record, torch=self._as_tensor)
        self._check("get", look, block.shape, "out")
        if look.frozen:
            raise LayoutError(f"out {look.frozen}", where("get", self.comm), "an array of its own")
        direct = look.array.flags.c_contiguous
        data = look.array if direct else np.empty(block.shape, block.dtype)
        self._told("get", mpi.Get, [data, MPI.BYTE], rank, target, then=done)
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
        done = mpi.Flush_local, rank
        self._told("accumulate", mpi.Accumulate, [data, self._kind], rank, target, operator, then=done)

    def fetch_and_add(self, value: object, rank: int, at: object = None) -> Any:
        """Add value to one element of rank, atomically. Returns its old value, a Python number."""
        return self._fetch("fetch_and_add", value, rank, at, "sum")

    def compare_and_swap(self, compare: object, value: object, rank: int, at: object = None) -> Any:
        """Write value to one element of rank if it equals compare, atomically. Returns its old value.

        Same as MPI_Compare_and_swap.

        Raises:
            DtypeError: the window's dtype is not one of int32, int64, uint32 and uint64.
        """
        verb = "compare_and_swap"
        if self._record.kind == "f":
            hint = "a window of int32, int64, uint32 or uint64"
            raise DtypeError(f"MPI swaps integers, not {self.dtype}", where(verb, self.comm), hint)
        self._operator(verb, "replace")
        mpi, target, block = self._element(verb, rank, at)
        data, expected = self._given(verb, value, ()), self._given(verb, compare, ())
        before, kind = np.empty((), block.dtype), self._kind
        parts = [[each, 1, kind] for each in (data, expected, before)]
        self._told(verb, mpi.Compare_and_swap, *parts, rank, target, then=(mpi.Flush, rank))
        return before.item()

    @contextmanager
    def lock(self, rank: int | None = None, *, shared: bool = False) -> Iterator[None]:
        """Have the array of rank, or those of all ranks, for this rank alone: `with window.lock(rank):`.

        At the end of the block, all that was written in it has arrived. It keeps away only those who lock,
        too. Same as MPI_Win_lock, MPI_Win_lock_all.

        Args:
            shared: beside others that give shared=True, as to read.

        Raises:
            UsageError: this thread has that lock already.
            WaitTimeoutError: others had it for comm.timeout seconds.

        Example:
            >>> with window.lock(0):
            ...     window.put(2 * window.get(0), 0)
        """
        mpi = self._open("lock")
        ranks = range(self.comm.size) if rank is None else [self._rank("lock", rank)]
        mine = get_ident()
        if twice := [each for each in ranks if (each, mine) in self._held]:
            what, hint = f"this thread has the lock of rank {twice[0]} already", "one lock() for the block"
            raise UsageError(what, where("lock", self.comm), hint)
        taken: list[int] = []
        try:
            for each in ranks:  # everybody in this order, so that nobody waits in a circle
                self._take(mpi, each, shared)
                self._held.add((each, mine))
                taken.append(each)
            self._told("lock", mpi.Sync)  # what others wrote into this rank's own array
            yield
        finally:
            for each in taken:
                self._told("lock", mpi.Sync)
                self._told("lock", mpi.Flush, each)
                # An own lock is -1 - rank, shared ones are how many: so one is added, or taken.
                self._word(mpi, each, -1 if shared else self.comm.rank + 1)
                self._held.discard((each, mine))

    def _take(self, mpi: MPI.Win, rank: int, shared: bool) -> None:
        begin, pause, found, before = time.monotonic(), Pause(), 0, 0
        limit = self.comm.timeout

        def who() -> str:
            return f"rank {-1 - before}" if before < 0 else f"{counted(before, 'rank')}, shared,"

        with polling(lambda: f"lock({rank}, held by {who().rstrip(',')})", self.comm.context):
            while True:
                if shared:
                    found = max(found, 0)  # how many share it, as far as is known
                before = self._word(mpi, rank, found + 1 if shared else -1 - self.comm.rank, found)
                if before == found:
                    return
                found = before if shared else 0
                if limit is not None and time.monotonic() - begin >= limit:
                    what = f"{who()} had the lock of rank {rank} for {limit:g} s"
                    raise WaitTimeoutError(what, where("lock", self.comm), "a shorter block; comm.timeout")
                pause.sleep()

    def _word(self, mpi: MPI.Win, rank: int, value: int, compare: int | None = None) -> int:
        """What the word of a rank's lock was; then value is added, or put in the place of compare."""
        data, before = np.array(value, np.int64), np.empty((), np.int64)
        parts = [data, 1, MPI.INT64_T], [before, 1, MPI.INT64_T]
        if compare is None:
            self._told("lock", mpi.Fetch_and_op, *parts, rank, 0, MPI.SUM)
        else:
            expected = [np.array(compare, np.int64), 1, MPI.INT64_T]
            self._told("lock", mpi.Compare_and_swap, parts[0], expected, parts[1], rank, 0)
        self._told("lock", mpi.Flush, rank)
        return int(before)

    def _element(self, verb: str, rank: int, at: object) -> tuple[MPI.Win, int, AnyArray]:
        """As _place, of one element."""
        mpi, target, block = self._place(verb, rank, at)
        if block.size != 1:
            what = f"at={at!r} means {block.size} elements of {self.shape_of(rank)}"
            raise LayoutError(what, where(verb, self.comm), "the index of one element")
        return mpi, target, block

    def _fetch(self, verb: str, value: object, rank: int, at: object, op: str) -> Any:
        operator = self._operator(verb, "sum") if op == "sum" else MPI.NO_OP
        mpi, target, block = self._element(verb, rank, at)
        data, before = self._given(verb, value, ()), np.empty((), block.dtype)
        kind = self._kind
        parts = [data, 1, kind], [before, 1, kind]
        self._told(verb, mpi.Fetch_and_op, *parts, rank, target, operator, then=(mpi.Flush, rank))
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
        return f"<Window {self.dtype} {self.shape} on each of {counted(self.comm.size, 'rank')}{closed}>"

    # -- arguments -----------------------------------------------------------------------------------
    def _open(self, verb: str) -> MPI.Win:
        self.comm.context.check_open(verb)
        if self._mpi is None:
            raise UsageError("this window is closed", where(verb, self.comm), "use it before close()")
        return self._mpi

    def _rank(self, verb: str, rank: object) -> int:
        with located(verb, self.comm):
            return rank_of(rank, self.comm.size)

    def _place(self, verb: str, rank: object, at: object) -> tuple[MPI.Win, int, AnyArray]:
        """The window, at which byte of it a place begins, and the same block of this rank's own array."""
        mpi = self._open(verb)
        try:
            return mpi, *self._places.find(rank, at)
        except HpcommError as error:
            raise placed(error, verb, self.comm) from None

    def _given(self, verb: str, x: object, shape: tuple[int, ...]) -> AnyArray:
        """x as a contiguous array of the window's elements; a number fits any dtype that holds it."""
        if isinstance(x, (bool, int, float, complex)) and self._record.kind in "biufc":
            try:
                made = np.asarray(x, self._numpy)
            except (OverflowError, TypeError) as error:
                hint = "a number that it holds"
                raise DtypeError(f"{x!r} is no {self.dtype}: {error}", where(verb, self.comm), hint) from None
            if (self._record.kind == "b" or (type(x) is not int and self._record.kind in "iu")) and made != x:
                what = f"{x!r} is no {self.dtype}"
                raise DtypeError(what, where(verb, self.comm), "a window of another dtype")
            x = made
        if self._is_plain(x, shape):
            return x
        with located(verb, self.comm):
            look = buffer.as_buffer(x)
        self._check(verb, look, shape, "x")
        return np.ascontiguousarray(look.array).reshape(shape)

    def _is_plain(self, x: object, shape: tuple[int, ...]) -> TypeGuard[AnyArray]:
        """Whether x is an array of numpy's that lies as a place of this shape does."""
        return type(x) is np.ndarray and x.dtype in self._plain and x.shape == shape and x.flags.c_contiguous

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

    def _told(
        self,
        verb: str,
        function: Callable[..., object],
        *arguments: Any,
        then: tuple[Callable[[int], object], int] | None = None,
    ) -> None:
        try:
            enter(None, verb, None, None, None)
            function(*arguments)
            if then is not None:
                then[0](then[1])
        except MPI.Exception as error:
            raise transport.failure(error, verb, self.comm.context) from None
        finally:
            leave()


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


class Windows(Shell):
    """What makes windows."""

    def window(
        self, shape: int | Sequence[int], dtype: object = "float64", *, ragged: bool = False
    ) -> Window:
        """An array of zeros on each rank, which all ranks read and write.

        Its operations are put, get, accumulate, fetch_and_add and so on. Collective. The memory
        comes from the MPI library. close() frees it.

        Args:
            shape, dtype: the same on every rank; a torch dtype makes get() return tensors.
            ragged: the lengths of shape may differ from rank to rank, and be 0; window.shape_of(rank) tells
                them.

        Raises:
            LayoutError, DtypeError: shape or dtype is not possible.
            MismatchError: the ranks give different ones; on all of them.

        Example (the ranks of a ring):
            >>> with comm.window(3) as window:
            ...     window.put(np.full(3, comm.rank), (comm.rank + 1) % comm.size)
            ...     window.fence()
            ...     left = window.array.copy()
        """
        comm = self.context
        comm.check_one_group("window")
        with refusing("window", comm):
            lengths = shape_of(shape)
            record, _ = dtypes.parse(dtype)
            storage = np.dtype(record.storage)
            nbytes = prod(lengths) * storage.itemsize
            if nbytes >= MOST:
                what = f"a window of {nbytes} bytes is larger than any memory"
                raise LayoutError(what, hint="fewer elements: shape is that of each rank's array")
        with agreed(comm, "window"):
            said = f"ragged {record} in {len(lengths)} dimensions" if ragged else f"{record} {lengths}"
            mark = crc32(said.encode()).to_bytes(4, "little")
            heard = comm.bytewise_min(mark + bytes(255 - byte for byte in mark))
            if any(low + high != 255 for low, high in zip(heard[:4], heard[4:], strict=True)):
                hint = "the same shape and dtype on every rank, or ragged=True for lengths that differ"
                raise MismatchError(
                    f"ranks ask for different windows, this one for {said}", where("window", comm), hint
                )
            if MPI.get_vendor()[0] == "MPICH":  # which ends in a segmentation fault where there are no more
                mapped(comm, "window", comm.mpi_handle.Dup).Free()
            try:
                mpi = MPI.Win.Allocate(HEAD + nbytes, 1, comm=comm.mpi_handle)  # type: ignore[arg-type]
            except MPI.Exception as error:
                raise transport.failure(error, "window", comm) from None
        mpi.Set_errhandler(MPI.ERRORS_RETURN)
        memory: Any = mpi.tomemory()
        np.frombuffer(memory, np.uint8).fill(0)
        array = np.frombuffer(memory, storage, prod(lengths), HEAD).reshape(lengths)
        mpi.Lock_all()
        shapes = Collectives(comm).all_gather(np.array(lengths, np.int64)) if ragged else None
        is_strict = comm.settings.check == "strict"
        kind: type[Window] = type("Window", (strict.Accesses, Window), {}) if is_strict else Window
        made = kind(cast("Communicator", self), mpi, dtype, array, shapes)
        made.fence()
        return made

    def counter(self, start: int = 0) -> Counter:
        """A number that begins at start and that all ranks count up: each call of next() gets another one.

        Collective. So work goes to whoever is ready for more:

            >>> with comm.counter() as counter:
            ...     while (i := counter.next()) < len(tasks):
            ...         work(tasks[i])
        """
        comm = self.context
        made = Counter(self.window((), "int64"))
        if comm.rank == 0 and start:
            made.add(start)
        made._window.fence()
        return made
