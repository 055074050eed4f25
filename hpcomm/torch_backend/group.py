"""The process group: torch.distributed's calls, each carried out by a verb of a Communicator.

A blocking call is carried out by its caller while nothing is queued; a background call, and all that
comes after it, by the group's worker, in order. Before each collective call the ranks meet at the gate.
"""

from __future__ import annotations

import threading
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import lru_cache, partial
from typing import Any

import torch

from .. import dtypes, reduction
from ..communicator import Communicator
from ..errors import ConfigError, HpcommError, LayoutError
from ..signature import head, signature
from . import monitor, moves, rendezvous
from .errors import as_torch, is_unknown, moved
from .far import Far
from .gate import Gate
from .names import c10d, dist, options
from .near import carrier
from .profile import recorded, recording
from .work import JointWork, MessageWork, QueuedWork, Work
from .worker import Poller, Worker

__all__ = ["ProcessGroupMPI", "create", "make"]

_DRAIN_S = 5.0  # that the end of a group waits for what is still queued, and for the other ranks
_making: list[dict[str, Any]] = []  # what the group that torch is just making is to be; innermost last


def make(before: Callable[..., Any], names: dict[str, Any], options: dict[str, Any]) -> Any:
    """Let torch make a group by its own function `before`, with MPI up and its questions answered."""
    comm = rendezvous.world()
    ranks = names["ranks"]
    size, rank, store = names["group_size"], names["group_rank"], names["store"]
    if not ranks and size == -1:  # init_process_group("mpi"): torch leaves all three to MPI
        size, rank = comm.size, comm.rank
        store = dist.PrefixStore("default_pg", rendezvous.store(comm))
    elif not ranks and (size, rank) != (comm.size, comm.rank):
        raise ConfigError(
            f"torch was told rank {rank} of {size}, MPI says rank {comm.rank} of {comm.size}",
            "init_process_group",
            "leave rank and world_size away, or give MPI's",
        )
    told = {**names, **options, "group_size": size, "group_rank": rank, "store": store}
    _making.append(told)
    try:
        made = before(
            size, rank, ranks, names["backend"], store, names["group_name"],
            **{**options, "backend_options": None},
        )  # fmt: skip
    except (AttributeError, TypeError, RuntimeError) as error:
        if isinstance(error, HpcommError) or not is_unknown():
            raise
        raise moved(f"says {error}") from error
    finally:
        _making.pop()
    return made


def create() -> ProcessGroupMPI:
    """The group that torch is just making; called by its members."""
    told = _making[-1]
    world = rendezvous.world()
    ranks = [int(r) for r in told["ranks"]]
    name = str(told["group_name"])
    with _watched(ranks, name):
        return ProcessGroupMPI(_communicator(world, ranks, name), told)


@contextmanager
def _watched(ranks: list[int], name: str) -> Iterator[None]:
    """While a group of these ranks of the default group is made: see watch."""
    group = c10d.GroupMember.WORLD
    carrier = Far(group.comm, group.gate) if isinstance(group, ProcessGroupMPI) else None
    if carrier is not None:
        carrier.call, carrier.needs = (0, group.seconds, lambda: f"making group '{name}'"), ranks
        carrier.inside = time.monotonic()
    try:
        yield
    finally:
        if carrier is not None:
            carrier.done()


def _communicator(world: Communicator, ranks: list[int], name: str) -> Communicator:
    if ranks:
        # not by its name: torch counts each rank's own groups in the names of those that members make
        return world.group(_as_mpi(ranks, world), name=name, tag=zlib.crc32(repr(ranks).encode()) & 0x7FFF)
    return world.group(range(world.size), name=name)


def _as_mpi(ranks: list[int], world: Communicator) -> list[int]:
    """torch's global ranks as ranks of the job: the same numbers, because make() and env:// see to that."""
    wrong = [rank for rank in ranks if not 0 <= rank < world.size]
    if wrong or c10d._get_default_group().rank() != world.rank:
        raise ConfigError(
            f"torch's rank {c10d._get_default_group().rank()} is rank {world.rank} of the MPI job",
            "new_group",
            "give torch the ranks that MPI has: init_process_group(rank=..., world_size=...)",
        )
    return ranks


@lru_cache(maxsize=4096)
def _head(verb: str, op: Any, dtype: Any, root: int) -> int:
    """The head of a call's signature; refuses what the operator cannot do before any rank commits."""
    record = dtypes.from_torch(dtype)
    fold = reduction.resolve(op, record).code if op is not None else 0
    return head(verb, fold, record.code, root)


_AllreduceOptions, _strided = options.AllreduceOptions, torch.strided
_NO_OPERATOR = -1
_SAYS_LATER = hasattr(options.AllreduceOptions(), "asyncOp")  # torch 2.6 does not


# most elements, the function for so few, head of the signature, operator
_Way = tuple[int, Callable[..., bool], int, str | None]
_NO_WAY: _Way = (-1, lambda *_: False, 0, None)


class ProcessGroupMPI(dist.ProcessGroup):  # type: ignore[misc]
    """A process group of torch.distributed over a Communicator of its own.

    Attributes:
        comm: the Communicator.
        seconds: how long a call waits for the other ranks.
        label, where: for messages.
    """

    def __init__(self, comm: Communicator, told: dict[str, Any]) -> None:
        super().__init__(comm.rank, comm.size)
        self.comm = comm
        self._rank, self._size = comm.rank, comm.size
        self._set_group_name(str(told["group_name"]))
        self._set_group_desc(str(told.get("group_desc") or "undefined"))
        self._told = told
        self._key = comm.broadcast_object(self._group_name)  # in the store; names may differ between ranks
        timeout = told.get("timeout") or c10d.default_pg_timeout
        self.seconds = timeout.total_seconds()
        self.gate = Gate(comm, self.label, self.get_group_store)
        self._by = carrier(comm, self.gate)
        self._turn = threading.Lock()  # held by whoever makes collective calls
        self.worker = Worker(f"hpcomm-{self._group_name}")
        self._poller = Poller(f"hpcomm-{self._group_name}-messages")
        self._calls = 0
        self._ways: dict[tuple[str, int, torch.dtype, int], _Way] = {}
        self.barriers = 0  # monitored ones
        self._together: list[Work] | None = None  # of a coalescing manager
        self._finished = Work()
        self._recent: deque[Work] = deque(maxlen=256)
        self._detail = dist.get_debug_level() == dist.DebugLevel.DETAIL
        self._inner: Any = None  # torch's own group for devices of other backends
        self._devices = self._register_others()
        self._plain = self._plainly = _SAYS_LATER and self._inner is None and not self._detail

    # -- what torch asks of a group ----------------------------------------------------------------
    def rank(self) -> int:
        return self._rank

    def size(self) -> int:
        return self._size

    getRank, getSize = rank, size  # noqa: N815  what C++ asks for

    def getBackendName(self) -> str:  # noqa: N802
        return "mpi"

    name = _get_backend_name = getBackendName

    def _set_group_name(self, name: str) -> None:
        self._group_name = name
        self.label = "world" if name in ("0", "") else name

    def getGroupName(self) -> str:  # noqa: N802
        return self._group_name

    def _set_group_desc(self, desc: str) -> None:
        self._group_desc = desc

    def getGroupDesc(self) -> str:  # noqa: N802
        return self._group_desc

    setGroupName, setGroupDesc = _set_group_name, _set_group_desc  # noqa: N815
    group_name = pg_name = property(getGroupName)
    group_desc = property(getGroupDesc)

    @property
    def where(self) -> str:
        return f"process group '{self.label}' (rank {self._rank} of {self._size})"

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device(kind) for kind in self._devices]

    def _get_backend(self, device: torch.device) -> Any:
        """What serves device: this group itself, or torch's own backend for it."""
        kind = torch.device(device).type
        if kind in self._devices and self._devices[kind] is None:
            return self
        if self._inner is None:
            raise RuntimeError(f"No backend type associated with device type {kind}")
        return self._inner._get_backend(device)

    def _set_default_backend(self, backend: Any) -> None:
        pass

    def _has_hooks(self) -> bool:
        return False

    def _wait_for_pending_works(self) -> None:
        self._drain(self.seconds)

    def _set_sequence_number_for_group(self) -> None:
        pass

    def _get_sequence_number_for_group(self) -> int:
        return self._calls

    def _set_default_timeout(self, timeout: timedelta) -> None:
        self.seconds = timeout.total_seconds()

    set_timeout = _set_default_timeout

    def get_group_store(self) -> Any:
        return dist.PrefixStore(f"{self._key}/", self._told["store"])

    @property
    def supports_splitting(self) -> bool:
        return False

    supports_coalescing = supports_time_estimate = supports_splitting

    def __repr__(self) -> str:
        return f"<ProcessGroupMPI '{self.label}', rank {self._rank} of {self._size}>"

    def _register_others(self) -> dict[str, str | None]:
        """Device types and the backend for each, None for this group; makes torch's backends for others."""
        config = c10d.BackendConfig(c10d.Backend(str(self._told["backend"]))).get_device_backend_map()
        devices = {kind: None if backend == "mpi" else str(backend) for kind, backend in config.items()}
        others = ",".join(f"{kind}:{backend}" for kind, backend in devices.items() if backend is not None)
        if others:
            from .others import inner_group

            self._inner = inner_group(others, self._told, self._rank, self._size)
        return devices

    # -- how a call is carried out -----------------------------------------------------------------
    def _call(
        self,
        verb: str,
        run: Callable[[], None],
        outputs: Any,
        like: torch.Tensor | None = None,
        *,
        op: Any = None,
        root: int = 0,
        count: int | None = None,
        background: bool = True,
        seconds: float = 0.0,
        inputs: Any = None,
    ) -> Work:
        """Meet the other ranks for this call and run it: now, or behind what is queued.

        Args:
            inputs: tensors whose shapes a profile shows; default: like.
            like: tensor that tells dtype, and number of elements where count does not.
        """
        try:
            mine = 0 if like is None else _head(verb, op, like.dtype, root)
            if like is None:
                mine = head(verb, root=root)
            elif self._detail and count in (None, like.numel()):
                count = zlib.crc32(repr(tuple(like.shape)).encode())
            mine = signature(mine, (like.numel() if like is not None else 0) if count is None else count)
        except HpcommError as error:
            raise as_torch(error.located(verb, self.comm)) from None
        self._calls += 1
        told = verb, like, op, root
        deed: Callable[[], None] = partial(
            self._meet_and_run, run, mine, seconds or self.seconds, _words, told
        )
        if recording():
            deed = _ending(
                deed, recorded(verb, inputs if inputs is not None else [] if like is None else [like])
            )
        return self._now_or_later(deed, outputs, partial(_words, *told), background)

    def _meet_and_run(self, run: Callable[[], None], *call: Any) -> None:
        with self._turn:
            self._by.expect(*call)
            try:
                run()
            finally:
                self._by.done()

    def _now_or_later(
        self, deed: Callable[[], None], outputs: Any, words: Callable[[], str], background: bool
    ) -> Work:
        worker = self.worker
        if (not background and not worker.waiting) or worker.is_me():
            try:
                deed()
            except HpcommError as error:
                raise as_torch(error) from None
            return self._keep(Work(outputs))
        work = QueuedWork(self, deed, outputs, words)
        worker.submit(work)
        return self._keep(work)

    def _keep(self, work: Work) -> Work:
        if self._together is not None:
            self._together.append(work)
        if not _SAYS_LATER:  # C++ of torch 2.6 forgets the Python half of a Work that Python does not hold
            self._recent.append(work)
        return work

    # -- collective calls ----------------------------------------------------------------------------
    def allreduce(self, tensors: Any, opts: Any = None, timeout: Any = None) -> Work:
        x = tensors[0]
        if (
            type(opts) is _AllreduceOptions
            and len(tensors) == 1
            and self._shortly("all_reduce", opts, 0, x, x, True)
        ):
            return self._finished
        if isinstance(tensors, torch.Tensor):
            tensors = [tensors]
        opts = _options(opts, options.AllreduceOptions)
        x = tensors[0]
        if self._foreign(x):
            return self._inner.allreduce(tensors, opts)
        op = _operator(opts.reduceOp)
        run = _each([moves.all_reduce(self._by, each, op) for each in tensors])
        count = _count(tensors) if len(tensors) > 1 or x.is_sparse else None
        return self._call(
            "all_reduce", run, tensors, x, op=op, count=count, background=_later(opts), inputs=tensors
        )

    def _shortly(
        self, verb: str, opts: Any, root: int, x: torch.Tensor, out: torch.Tensor, folds: bool = False
    ) -> bool:
        """Make a call on small plain tensors at once, which most are; False where it needs a closer look."""
        if (
            not self._plain
            or opts.asyncOp
            or self.worker.waiting
            or not x.is_cpu
            or x.layout is not _strided
            or recording()
        ):
            return False
        number = hash(opts.reduceOp) if folds else _NO_OPERATOR
        dtype, n = x.dtype, x.numel()
        key = verb, number, dtype, root
        found = self._ways.get(key) or self._find_way(*key)
        if n > found[0] or not x.is_contiguous() or (n < 2 and (not n or x.is_neg())):
            return False
        if out is not x and (
            out.dtype is not dtype or not out.is_cpu or not out.is_contiguous() or out.is_neg()
        ):
            return False
        _, way, code, op = found
        turn = self._turn
        turn.acquire()
        try:
            made = way(x, out, n, code | n << 32, self.seconds, _words, (verb, x, op, root))
        except HpcommError as error:
            raise as_torch(error.located(verb, self.comm)) from None
        finally:
            turn.release()
        self._calls += made
        return made

    def _find_way(self, verb: str, number: int, dtype: torch.dtype, root: int) -> _Way:
        """The short way of a call, for no tensor at all where there is none; kept from now on."""
        op, way = _NAMES.get(number), _NO_WAY
        if op is not None or number == _NO_OPERATOR:
            with suppress(HpcommError):  # _call meets it again
                found = self._by.short(verb, op, dtype, root)
                way = _NO_WAY if found is None else (*found, _head(verb, op, dtype, root), op)
        self._ways[verb, number, dtype, root] = way
        return way

    def allreduce_coalesced(self, tensors: list[torch.Tensor], opts: Any = None) -> Work:
        opts = _options(opts, options.AllreduceCoalescedOptions)
        if self._foreign(tensors[0]):
            return self._inner.allreduce_coalesced(tensors, opts)
        op = _operator(opts.reduceOp)
        run = moves.all_reduce_coalesced(self._by, tensors, op)
        return self._call(
            "all_reduce",
            run,
            tensors,
            tensors[0],
            op=op,
            count=_count(tensors),
            background=_later(opts),
            inputs=tensors,
        )

    def broadcast(self, tensors: Any, opts: Any = None, timeout: Any = None) -> Work:
        if isinstance(tensors, torch.Tensor):
            tensors, opts = [tensors], _rooted(options.BroadcastOptions, opts)
        opts = _options(opts, options.BroadcastOptions)
        if self._foreign(tensors[0]):
            return self._inner.broadcast(tensors, opts)
        root, x = opts.rootRank, tensors[0]
        if len(tensors) == 1 and self._shortly("broadcast", opts, root, x, x):
            return self._finished
        run = _each([moves.broadcast(self._by, x, root) for x in tensors])
        return self._call(
            "broadcast", run, tensors, tensors[0], root=root, count=_count(tensors), background=_later(opts)
        )

    def reduce(self, tensors: Any, opts: Any = None, *more: Any) -> Work:
        if isinstance(tensors, torch.Tensor):
            tensors, opts = [tensors], _rooted(options.ReduceOptions, opts)
            if more:
                opts.reduceOp = more[0]
        opts = _options(opts, options.ReduceOptions)
        if self._foreign(tensors[0]):
            return self._inner.reduce(tensors, opts)
        root, op = opts.rootRank, _operator(opts.reduceOp)
        run = moves.reduce(self._by, tensors[0], op, root)
        return self._call("reduce", run, tensors, tensors[0], op=op, root=root, background=_later(opts))

    def allgather(self, outputs: Any, inputs: Any, opts: Any = None, *more: Any) -> Work:
        if isinstance(inputs, torch.Tensor):
            outputs, inputs = [outputs], [inputs]
        opts = _options(opts, options.AllgatherOptions)
        if self._foreign(inputs[0]):
            return self._inner.allgather(outputs, inputs, opts)
        _check_length("all_gather", "tensor_list", outputs[0], self._size)
        run, count = moves.all_gather(self._by, outputs[0], inputs[0])
        return self._call("all_gather", run, outputs, inputs[0], count=count, background=_later(opts))

    def all_gather_single(self, output: torch.Tensor, x: torch.Tensor, opts: Any = None, *more: Any) -> Work:
        opts = _options(opts, options.AllgatherOptions)
        if self._foreign(x):
            return getattr(self._inner, _spelling("all_gather_single", "_allgather_base"))(output, x, opts)
        if self._shortly("all_gather", opts, 0, x, output):
            return self._finished
        run = moves.all_gather_into(self._by, output, x)
        return self._call("all_gather", run, [output], x, background=_later(opts))

    _allgather_base = all_gather_single

    def all_gather_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Work:
        if self._foreign(inputs[0]):
            return getattr(
                self._inner, _spelling("all_gather_single_coalesced", "allgather_into_tensor_coalesced")
            )(outputs, inputs)
        run = _each([moves.all_gather_into(self._by, o, x) for o, x in zip(outputs, inputs, strict=True)])
        return self._call(
            "all_gather",
            run,
            outputs,
            inputs[0],
            count=_count(inputs),
            background=_later(opts),
            inputs=inputs,
        )

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def allgather_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Work:
        """outputs[rank][i] receives inputs[i] of rank."""
        parts = [
            moves.all_gather(self._by, [outputs[r][i] for r in range(self._size)], x)[0]
            for i, x in enumerate(inputs)
        ]
        return self._call(
            "all_gather",
            _each(parts),
            outputs,
            inputs[0],
            count=_count(inputs),
            background=_later(opts),
            inputs=inputs,
        )

    def gather(self, outputs: Any, inputs: Any, opts: Any = None, *more: Any) -> Work:
        if isinstance(inputs, torch.Tensor):
            outputs, inputs, opts = (
                [outputs] if outputs else [],
                [inputs],
                _rooted(options.GatherOptions, opts),
            )
        opts = _options(opts, options.GatherOptions)
        if self._foreign(inputs[0]):
            return self._inner.gather(outputs, inputs, opts)
        root = opts.rootRank
        here = outputs[0] if outputs and self._rank == root else None
        if self._rank == root:
            _check_length("gather", "gather_list", here or [], self._size)
        run = moves.gather(self._by, here, inputs[0], root)
        return self._call("gather", run, outputs, inputs[0], root=root, background=_later(opts))

    def scatter(self, outputs: Any, inputs: Any, opts: Any = None, *more: Any) -> Work:
        if isinstance(outputs, torch.Tensor):
            outputs, inputs, opts = (
                [outputs],
                [inputs] if inputs else [],
                _rooted(options.ScatterOptions, opts),
            )
        opts = _options(opts, options.ScatterOptions)
        if self._foreign(outputs[0]):
            return self._inner.scatter(outputs, inputs, opts)
        root = opts.rootRank
        here = inputs[0] if inputs and self._rank == root else None
        if self._rank == root:
            _check_length("scatter", "scatter_list", here or [], self._size)
        run = moves.scatter(self._by, outputs[0], here, root)
        return self._call("scatter", run, outputs, outputs[0], root=root, background=_later(opts))

    def reduce_scatter(self, outputs: Any, inputs: Any, opts: Any = None, *more: Any) -> Work:
        if isinstance(outputs, torch.Tensor):
            outputs, inputs = [outputs], [inputs]
        opts = _options(opts, options.ReduceScatterOptions)
        if self._foreign(outputs[0]):
            return self._inner.reduce_scatter(outputs, inputs, opts)
        op = _operator(opts.reduceOp)
        _check_length("reduce_scatter", "input_list", inputs[0], self._size)
        run = moves.reduce_scatter(self._by, outputs[0], inputs[0], op)
        count = _count(inputs[0])
        return self._call(
            "reduce_scatter",
            run,
            outputs,
            outputs[0],
            op=op,
            count=count,
            background=_later(opts),
            inputs=inputs[0],
        )

    def reduce_scatter_single(
        self, output: torch.Tensor, x: torch.Tensor, opts: Any = None, *more: Any
    ) -> Work:
        opts = _options(opts, options.ReduceScatterOptions)
        if self._foreign(x):
            return getattr(self._inner, _spelling("reduce_scatter_single", "_reduce_scatter_base"))(
                output, x, opts
            )
        if self._shortly("reduce_scatter", opts, 0, x, output, True):
            return self._finished
        op = _operator(opts.reduceOp)
        run = moves.reduce_scatter_into(self._by, output, x, op)
        return self._call("reduce_scatter", run, [output], x, op=op, background=_later(opts))

    _reduce_scatter_base = reduce_scatter_single

    def reduce_scatter_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Work:
        opts = _options(opts, options.ReduceScatterOptions)
        op = _operator(opts.reduceOp)
        run = _each(
            [moves.reduce_scatter_into(self._by, o, x, op) for o, x in zip(outputs, inputs, strict=True)]
        )
        return self._call(
            "reduce_scatter", run, outputs, inputs[0], op=op, count=_count(inputs), background=_later(opts)
        )

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def all_to_all_single(
        self,
        output: torch.Tensor,
        x: torch.Tensor,
        output_sizes: Any = None,
        input_sizes: Any = None,
        opts: Any = None,
        *more: Any,
    ) -> Work:
        opts = _options(opts, options.AllToAllOptions)
        if self._foreign(x):
            return getattr(self._inner, _spelling("all_to_all_single", "alltoall_base"))(
                output, x, output_sizes, input_sizes, opts
            )
        if not output_sizes and not input_sizes:
            if x.dim() == 1 and self._shortly("all_to_all", opts, 0, x, output):
                return self._finished
            run, count = moves.all_to_all_single(self._by, output, x), x.numel()
        else:
            run, count = moves.all_to_all_uneven(self._by, output, x, output_sizes, input_sizes), 0
        return self._call("all_to_all", run, [output], x, count=count, background=_later(opts))

    alltoall_base = all_to_all_single

    def alltoall(self, outputs: Any, inputs: Any, opts: Any = None, *more: Any) -> Work:
        opts = _options(opts, options.AllToAllOptions)
        if self._foreign(inputs[0]):
            return self._inner.alltoall(outputs, inputs, opts)
        _check_length("all_to_all", "output_tensor_list", outputs, self._size)
        _check_length("all_to_all", "input_tensor_list", inputs, self._size)
        run = moves.all_to_all(self._by, outputs, inputs)
        return self._call(
            "all_to_all", run, outputs, inputs[0], count=0, background=_later(opts), inputs=inputs
        )

    def barrier(self, opts: Any = None, timeout: Any = None) -> Work:
        opts = _options(opts, options.BarrierOptions)
        given = getattr(opts, "timeout", None)
        seconds = given.total_seconds() if given is not None and given > timedelta(0) else 0.0
        self._poller.finish(0.0)
        return self._call("barrier", _nothing, (), background=_later(opts), seconds=seconds)

    def monitored_barrier(
        self, timeout: timedelta | float | None = None, wait_all_ranks: bool = False
    ) -> None:
        """Meet; rank 0 names those that do not come in time, and all raise. See torch's own."""
        self._drain(self.seconds)
        monitor.meet(self, timeout, wait_all_ranks)

    # -- messages --------------------------------------------------------------------------------------
    def send(self, tensors: list[torch.Tensor], dst: int, tag: int = 0) -> Work:
        x = tensors[0]
        if self._foreign(x):
            return self._inner.send(tensors, dst, tag)
        return self._message("send", x, dst, tag)

    def recv(self, tensors: list[torch.Tensor], src: int, tag: int = 0) -> Work:
        x = tensors[0]
        if self._foreign(x):
            return self._inner.recv(tensors, src, tag)
        return self._message("recv", x, src, tag)

    def recv_anysource(self, tensors: list[torch.Tensor], tag: int = 0) -> Work:
        return self._message("recv", tensors[0], None, tag)

    def _message(self, verb: str, x: torch.Tensor, peer: int | None, tag: int) -> Work:
        try:
            request, give = moves.message(self.comm, verb, x, peer, tag)
        except HpcommError as error:
            raise as_torch(error) from None
        words = (
            f"{verb}({_array(x)}, {'to' if verb == 'send' else 'from'} {'anybody' if peer is None else peer})"
        )
        end = recorded(verb if peer is not None else "recvAnySource", [x]) if recording() else None
        work = MessageWork(self, request, [x], peer, words, give, end)
        if not work.poll():
            self._poller.add(work)
        return self._keep(work)

    # -- several calls as one --------------------------------------------------------------------------
    def _start_coalescing(self, device: Any = None) -> None:
        self._together, self._plain = [], False

    def _end_coalescing(self, device: Any = None) -> Work:
        works, self._together, self._plain = self._together or [], None, self._plainly
        return JointWork(works)

    # -- more groups, and the end ----------------------------------------------------------------------
    def split(
        self,
        split_ranks: list[list[int]],
        timeout: timedelta | None = None,
        pg_options: Any = None,
        group_desc: str | None = None,
        backend: Any = None,
    ) -> Any:
        """torch.distributed.split_group: lists of ranks of this group, each rank in one of them at most."""
        if not split_ranks:
            raise ValueError("split_ranks cannot be None or empty")
        to_global = {mine: outer for outer, mine in c10d._world.pg_group_ranks[self].items()}
        mine = None
        for part in split_ranks:
            made = (
                dist.new_group(
                    [to_global[rank] for rank in sorted(part)],
                    timeout=timeout or timedelta(seconds=self.seconds),
                    backend="mpi",
                    group_desc=group_desc or f"{self._group_desc}:split",
                    use_local_synchronization=True,
                )
                if self._rank in part
                else None
            )
            mine = made if made is not None else mine
        return mine

    def shutdown(self) -> None:
        """Finish what is queued and give the communicator back, if the other ranks do so too."""
        if self.comm._closed:
            return
        if not self.worker.stop(self.seconds if self.gate.failed is None else 0.0):
            return  # a rank that never came holds it up for ever
        self._poller.finish(_DRAIN_S)
        try:
            with self._turn:
                self.gate.meet(head("barrier") | 1 << 40, _DRAIN_S, lambda: "destroy_process_group()")
        except HpcommError:
            return  # freeing is collective; not all have come
        self.gate.close()
        self.comm.close()
        if self._inner is not None:
            self._inner.shutdown()

    def abort(self) -> None:
        """Leave without waiting for anybody."""

    def _drain(self, seconds: float) -> None:
        if self.worker.waiting:
            self._now_or_later(_nothing, (), lambda: "barrier()", True).wait(timedelta(seconds=seconds))

    def _foreign(self, x: torch.Tensor) -> bool:
        """Whether x lies on a device that another backend serves."""
        return self._inner is not None and self._devices.get(x.device.type) is not None


def _ending(deed: Callable[[], None], end: Callable[[], None]) -> Callable[[], None]:
    def run() -> None:
        try:
            deed()
        finally:
            end()

    return run


def _nothing() -> None:
    pass


def _each(runs: list[Callable[[], None]]) -> Callable[[], None]:
    if len(runs) == 1:
        return runs[0]

    def run() -> None:
        for each in runs:
            each()

    return run


def _count(tensors: Any) -> int:
    return sum(0 if x.is_sparse else x.numel() for x in tensors)


def _later(opts: Any) -> bool:
    """Whether the caller goes on at once. Who does not say waits later, as C++ and torch 2.6 do."""
    return not _SAYS_LATER or bool(opts.asyncOp)


def _options(opts: Any, kind: Any) -> Any:
    """Options as c10d makes them; an operator alone where a user calls the group itself."""
    if type(opts) is kind:
        return opts
    if opts is None:
        return kind()
    if isinstance(opts, (dist.ReduceOp, dist.ReduceOp.RedOpType)):
        made = kind()
        made.reduceOp = dist.ReduceOp(opts)
        return made
    return opts


def _rooted(kind: Any, root: Any) -> Any:
    if isinstance(root, int):
        made = kind()
        made.rootRank = root
        return made
    return root


def _spelling(new: str, old: str) -> str:
    return new if hasattr(dist.ProcessGroup, new) else old


# by their hash, which is their number: comparing two of them takes pybind 1 us
_NAMES = {
    hash(options.ReduceOp(getattr(options.ReduceOp.RedOpType, name.upper()))): word
    for name, word in {
        "sum": "sum", "avg": "avg", "product": "prod", "min": "min", "max": "max",
        "band": "band", "bor": "bor", "bxor": "bxor",
    }.items()
}  # fmt: skip


def _operator(given: Any) -> Any:
    """torch's ReduceOp in our words; premul_sum keeps its factor."""
    return _NAMES.get(hash(given)) or moves.premul_sum(given)


def _check_length(verb: str, name: str, tensors: Any, size: int) -> None:
    if len(tensors) != size:
        raise as_torch(
            LayoutError(
                f"{name} holds {len(tensors)} tensors, the group has {size} ranks",
                verb,
                "one tensor for each rank of the group",
            )
        )


def _array(x: torch.Tensor) -> str:
    return f"{str(x.dtype).removeprefix('torch.')} {tuple(x.shape)}"


def _words(verb: str, like: torch.Tensor | None, op: Any, root: int) -> str:
    """`broadcast(float32 (3, 5), root=1)`."""
    parts = [] if like is None else [_array(like)]
    parts += [f"op='{op}'"] * (op is not None) + [f"root={root}"] * (
        verb in ("broadcast", "gather", "reduce", "scatter")
    )
    return f"{verb}({', '.join(parts)})"
