"""Pools of workers: comm.pool(), a concurrent.futures.Executor over the ranks, on mpi4py.futures.

mpi4py moves tasks and results. What is here packs them, so that a failure tells which rank it was on, and
what cannot be pickled is told where it was submitted.
"""

from __future__ import annotations

import io
import pickle
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future, as_completed
from functools import cache, partial
from itertools import islice
from operator import index
from types import TracebackType
from typing import Any, ParamSpec, TypeVar

from ..agree import runtime
from ..agree.agreement import refused, refusing
from ..errors import HpcommError, RankError, UsageError, WaitTimeoutError, where
from ..transport.late import buffer
from .communicator import Communicator
from .payloads.pickling import Ways

P = ParamSpec("P")
T = TypeVar("T")
_LINES = 10  # of progress


class TaskTraceback(Exception):  # noqa: N818  the cause of an exception, as a text
    """Where a task has failed: the traceback on its rank."""


class PoolShutError(UsageError, RuntimeError):
    """The pool takes no tasks any more: a RuntimeError, too, as of every Executor."""


class PoolBrokenError(PoolShutError, BrokenExecutor):
    """The initializer has failed on a worker."""


class Pool(Executor):
    """Workers that carry out tasks. `with comm.pool() as pool` gives it to the root.

    Attributes:
        num_workers: how many there are.
    """

    def __init__(self, inner: Any, progress: bool, num_workers: int) -> None:
        self._inner, self._progress = inner, progress
        self.num_workers = self._max_workers = num_workers  # as mpi4py's and Python's executors spell it
        inner.Future = _Future

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Let a worker call fn(*args, **kwargs).

        Raises:
            UsageError: the task cannot be pickled, or the pool has ended (then also a RuntimeError).
        """
        line = where("pool", None)
        task = _packed((fn, args, kwargs), f"{_named(fn, args)} or what belongs to it", line)
        try:
            begun: Future[T] = self._inner.submit(_run, task, (_named(fn, args), line))
        except RuntimeError as error:
            kind = PoolBrokenError if isinstance(error, BrokenExecutor) else PoolShutError
            raise kind(f"the pool takes no tasks: {error}", where("submit", None)) from None
        return begun

    def map(
        self,
        fn: Callable[..., T],
        *iterables: Iterable[object],
        timeout: float | None = None,
        chunksize: int = 1,
        ordered: bool = True,
        progress: bool | None = None,
        **unknown: object,
    ) -> Iterator[T]:
        """The results of fn for the items, as Python's map. Tasks begin at once.

        Args:
            timeout: seconds from now until the last result.
            chunksize: items of one task.
            ordered: False: results as they come.
            progress: print on stderr how many tasks are done; None: as comm.pool() was told.

        Raises:
            WaitTimeoutError: results are late.
        """
        if unknown or index(chunksize) < 1:
            what = f"map has no {', '.join(unknown)}" if unknown else f"chunksize is {chunksize}"
            raise UsageError(what, where("map", None), "timeout, ordered, progress, and chunksize from 1")
        items = zip(*iterables, strict=False)
        chunks = iter(lambda: tuple(islice(items, chunksize)), ())
        tasks = [self.submit(_each, fn, chunk) for chunk in chunks]
        if self._progress if progress is None else progress:
            shown = _Progress(len(tasks))
            for task in tasks:
                task.add_done_callback(shown.count)
        return _results(tasks, timeout, ordered)

    def starmap(self, fn: Callable[..., T], items: Iterable[Iterable[object]], **how: Any) -> Iterator[T]:
        """map, whose items are the arguments of a call each; how: as map takes it."""
        return self.map(partial(_spread, fn), items, **how)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more tasks. Wait for those already given, or cancel those that have not begun."""
        self._inner.shutdown(wait, cancel_futures=cancel_futures)


class Workers:
    """The context that comm.pool() returns."""

    _pool: Pool | None = None

    def __init__(
        self,
        comm: Communicator,
        root: int,
        *,
        progress: bool,
        begin: tuple[Callable[..., object] | None, Iterable[object]] = (None, ()),
    ) -> None:
        comm.context.check_one_group("pool")
        if isinstance(root, bool) or not hasattr(root, "__index__") or not 0 <= root < comm.size:
            error = RankError(f"root {root!r} is no rank of '{comm.name}'", hint=f"0 to {comm.size - 1}")
            raise refused(comm.context, "dup", error)
        if comm.size > 1:
            with refusing("dup", comm.context):
                runtime.need_threads("a pool")
        self._comm, self._root, self._progress = comm, index(root), progress
        self._options: dict[str, Any] = {}
        if begin[0] is not None and comm.rank == root:
            with refusing("dup", comm.context):
                self._options["initializer"] = partial(_begin, _initializing(*begin))

    def __enter__(self) -> Pool | None:
        from mpi4py.futures import MPICommExecutor

        global _here
        self._ranks = self._comm.dup(name=f"{self._comm.name}/pool")
        outer, _here = _here, f"rank {self._comm.rank} of '{self._comm.name}'"
        mpi = self._ranks.context.mpi_handle
        self._executor = MPICommExecutor(mpi, self._root, use_pkl5=True, **self._options)  # type: ignore[arg-type]
        inner = self._executor.__enter__()  # workers work in here
        if inner is None:
            _here = outer
            return None
        self._pool = Pool(inner, self._progress, max(self._comm.size - 1, 1))
        return self._pool

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=kind is not None)
            self._executor.__exit__(None, None, None)
        if kind is None:
            self._ranks.close()
        elif self._pool is None and isinstance(error, AttributeError) and hasattr(error, "add_note"):
            error.add_note("comm.pool() gives None to the ranks that work: `if pool:`")


_here = "this rank"


class _Packed:
    """A pickle beside its blocks, which mpi4py sends from their own memory."""

    def __init__(self, data: bytes, blocks: list[pickle.PickleBuffer]) -> None:
        self.data, self.blocks = data, blocks

    def __reduce__(self) -> tuple[object, ...]:
        return _Packed, (self.data, self.blocks)

    def open(self) -> Any:
        return pickle.loads(self.data, buffers=self.blocks)


def _named(fn: Any, args: Sequence[Any]) -> str:
    """What the user's function is called, which map and starmap hand over as an argument."""
    while fn in (_each, _spread):
        fn, args = args[0], ()
        if isinstance(fn, partial):
            fn, args = fn.func, fn.args
    return getattr(fn, "__qualname__", type(fn).__name__)


def _packed(obj: object, what: str, line: str) -> _Packed:
    """obj pickled; by cloudpickle, where it is installed, what pickle cannot (lambdas)."""
    try:
        return _pickled(obj)
    except HpcommError as error:
        raise UsageError(f"{what} cannot be pickled: {error.what}", line, error.hint) from error


def _pickled(obj: object) -> _Packed:
    try:
        return _by(pickle, obj)
    except HpcommError:
        raise
    except Exception as error:  # whatever the object's own way of being pickled raises
        why, hint = error, "send data instead of files or locks"
    try:
        import cloudpickle  # type: ignore[import-untyped]

        return _by(cloudpickle, obj)
    except ImportError:
        hint = "pip install cloudpickle for lambdas and functions within functions"
    except HpcommError:
        raise
    except Exception as error:
        why = error
    raise UsageError(str(why), None, hint)


def _by(module: Any, obj: object) -> _Packed:
    blocks: list[pickle.PickleBuffer] = []
    file = io.BytesIO()
    _pickler(module.Pickler)(file, 5, buffer_callback=blocks.append).dump(obj)
    return _Packed(file.getvalue(), blocks)


@cache
def _pickler(base: Any) -> Any:
    """A class of picklers that know of tensors: these are pickled only if no gradient is lost."""
    return type(base.__name__, (base,), {"dispatch_table": Ways(base, _way_of_tensors)})


def _way_of_tensors(kind: type) -> Callable[[Any], object] | None:
    return _take_tensor_apart if kind is getattr(sys.modules.get("torch"), "Tensor", None) else None


def _take_tensor_apart(tensor: Any) -> object:
    """As torch does it, which makes a leaf of what autograd knows the history of."""
    if tensor.grad_fn is not None:
        buffer.refuse_gradient(tensor)
    return tensor.__reduce_ex__(5)


def _initializing(initializer: object, initargs: Iterable[object]) -> _Packed:
    if not callable(initializer):
        what = f"initializer is a {type(initializer).__name__}, which cannot be called"
        raise UsageError(what, where("pool", None), "a function that each worker calls first")
    named = f"{_named(initializer, ())} or what belongs to it"
    return _packed((initializer, tuple(initargs), {}), named, where("pool", None))


def _begin(task: _Packed) -> None:
    """Call the initializer on a worker; mpi4py does not tell why that fails."""
    try:
        fn, args, kwargs = task.open()
        fn(*args, **kwargs)
    except BaseException:
        sys.stderr.write(f"the pool's initializer failed on {_here}:\n{traceback.format_exc()}")
        raise


def _run(task: _Packed, told: tuple[str, str]) -> tuple[bool, _Packed, str]:
    """Carry out a task on a worker: whether it went well, result or exception, and where that was raised.

    told: the function's name, and where it was submitted.
    """
    name, line = told
    try:
        fn, args, kwargs = task.open()
        result = fn(*args, **kwargs)
        return True, _packed(result, f"what {name} returned on {_here}", line), ""
    except BaseException as error:
        text = f"on {_here}:\n{''.join(traceback.format_exception(error))}"
        try:
            packed = _packed(error, "the exception", line)
            packed.open()
        except Exception:  # it can only be told
            packed = _packed(RuntimeError(f"{type(error).__name__}: {error}"), "", line)
        return False, packed, text


def _spread(fn: Callable[..., T], arguments: Iterable[object]) -> T:
    return fn(*arguments)


def _each(fn: Callable[..., T], chunk: tuple[tuple[object, ...], ...]) -> list[T]:
    return [fn(*items) for items in chunk]


class _Future(Future[Any]):
    """One whose result comes as _run gives it."""

    def set_result(self, result: tuple[bool, _Packed, str]) -> None:
        is_well, packed, text = result
        try:
            value = packed.open()
        except Exception as error:
            self.set_exception(error)
            return
        if is_well:
            super().set_result(value)
        else:
            value.__cause__ = TaskTraceback(text)
            self.set_exception(value)


def _results(tasks: list[Future[list[T]]], timeout: float | None, ordered: bool) -> Iterator[T]:
    end = None if timeout is None else time.monotonic() + timeout

    def left() -> float | None:
        return None if end is None else max(0.0, end - time.monotonic())

    def given() -> Iterator[T]:
        try:
            for task in tasks if ordered else as_completed(tasks, left()):
                yield from task.result(left())
        except TimeoutError as error:
            if all(task.done() for task in tasks):
                raise  # a task's own
            waiting = sum(not task.done() for task in tasks)
            what = f"{waiting} of {len(tasks)} tasks are not done after {timeout} s"
            raise WaitTimeoutError(what, where("map", None), "a longer timeout=") from error
        finally:
            for task in tasks:
                task.cancel()

    return given()


class _Progress:
    """Lines on stderr, some in all."""

    def __init__(self, total: int) -> None:
        self._total, self._done, self._since = total, 0, time.monotonic()

    def count(self, task: Future[Any]) -> None:
        self._done += 1
        if self._done * _LINES // self._total > (self._done - 1) * _LINES // self._total:
            seconds = time.monotonic() - self._since
            sys.stderr.write(f"pool: {self._done} of {self._total} tasks, {seconds:.1f} s\n")
