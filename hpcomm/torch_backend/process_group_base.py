"""Base of the process group: how torch sees it, and how its calls are carried out.

process_group.py has the calls themselves. A blocking call is carried out by its caller while nothing is
queued. A background call of the core begins at once (NodeWork); another one, and all that comes after it,
the group's worker thread carries out, in order. Before each collective call the ranks meet in a barrier
(entry_barrier.py).
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from operator import methodcaller
from typing import Any
from zlib import crc32

import torch

from ..communicator import trace
from ..communicator.fingerprint import torch_call
from ..communicator.shell import FINGERPRINT
from ..core.present import saying
from ..core.signature import BACKGROUND, head, signature
from ..errors import HpcommError
from ..job import process_role
from . import rendezvous
from .calls import SAYS_LATER, UNSET, Call, flat, head_of, later, nothing, own_seconds
from .collectives import carrier
from .cuda_streams import Aside, is_onboard
from .entry_barrier import EntryBarrier
from .names import backends, c10d, dist, label
from .profile import recorded, recording
from .ranks import Ranks
from .rendezvous import OURS
from .torch_errors import as_torch
from .work import JointWork, NodeWork, QueuedWork, Work
from .worker import Poller, Worker

_NUMBERS = {
    verb: head(verb) for verb in ("all_reduce", "broadcast", "all_gather", "reduce_scatter", "all_to_all")
}
_DRAIN_S = 5.0  # that the end of a group waits for what is still queued, and for the other ranks
_is_inference = methodcaller("is_inference")


class CommProcessGroup(dist.ProcessGroup):  # type: ignore[misc]
    """What a process group over ranks of its own is, without its calls.

    Attributes:
        comm: its ranks, a Communicator's or others.
        seconds: how long a call waits for the other ranks.
        label, where: for messages.
    """

    def __init__(self, comm: Ranks, told: Mapping[str, Any]) -> None:
        super().__init__(comm.rank, comm.size)
        self.comm = comm
        self._rank, self._size = comm.rank, comm.size
        self._set_group_name(str(told["group_name"]))
        self._set_group_desc(str(told.get("group_desc") or "undefined"))
        self._told = told
        timeout = told.get("timeout") or c10d.default_pg_timeout
        self.seconds = timeout.total_seconds()
        self.entry = EntryBarrier(comm.context, self.get_group_store(), self.seconds)
        self.where = self.entry.where
        self._by = carrier(comm, self.entry)
        self._by.refuse = self.refuse
        self._turn = threading.Lock()  # held by whoever makes collective calls
        self.worker = Worker(f"hpcomm-{self._group_name}")
        self._poller = Poller(f"hpcomm-{self._group_name}-messages")
        self.under_way = self._poller.under_way
        self._calls = 0
        self.barriers = 0  # monitored ones
        self._together: list[Work] | None = None  # of a coalescing manager
        self._recent: deque[Work] = deque(maxlen=256)
        self._detail = dist.get_debug_level() == dist.DebugLevel.DETAIL
        served = backends(told["backend"])
        self._devices = [kind for kind, backend in served.items() if backend in OURS]
        self._backend = served[self._devices[0]]
        self._has_prints, self._is_traced = bool(os.environ.get(FINGERPRINT)), trace.is_on()
        is_watched = self._has_prints or self._is_traced
        needs_more = is_watched or self._detail or self._by.is_exact
        # For calls that need nothing else:
        self._node = self.entry.node if SAYS_LATER and not needs_more else None
        # for messages; a Communicator has ways of its own for those of devices, of which one end may not know
        self._mail = self.entry.node if comm.context.devices is None else None
        self._is_short = not is_watched
        self._sent = Work()  # of all messages that were complete when they were sent

    # -- what torch asks of a group ----------------------------------------------------------------
    def rank(self) -> int:
        return self._rank

    def size(self) -> int:
        return self._size

    getRank, getSize = rank, size  # noqa: N815  what C++ asks for

    def getBackendName(self) -> str:  # noqa: N802
        return self._backend

    name = _get_backend_name = getBackendName

    def _set_group_name(self, name: str) -> None:
        self._group_name = name
        self.label = label(name)

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
    def _device_types(self) -> list[torch.device]:
        return [torch.device(kind) for kind in self._devices]

    def _get_backend(self, device: torch.device) -> object:
        """What serves device: this group itself."""
        if (kind := torch.device(device).type) not in self._devices:
            raise RuntimeError(f"No backend type associated with device type {kind}")
        return self

    def _set_default_backend(self, backend_type: object) -> None:
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
        self.entry.limit(self.seconds)

    def set_timeout(self, timeout: timedelta) -> None:
        self._set_default_timeout(timeout)

    def get_group_store(self) -> dist.Store:
        # not by its name, which may differ between ranks, and be that of a group before
        return dist.PrefixStore(f"{self.comm.context.tag_base:x}/", self._told["store"])

    @property
    def supports_splitting(self) -> bool:
        return False

    supports_coalescing = supports_time_estimate = supports_splitting

    def __repr__(self) -> str:
        return f"<ProcessGroupMPI '{self.label}', rank {self._rank} of {self._size}>"

    # -- how a call is carried out -----------------------------------------------------------------
    def _by_core(self, opts: Any, verb: str, x: torch.Tensor, out: torch.Tensor, how: Any = None) -> Any:
        """Have the core make a call on plain tensors, which most are: None, or in the background a Work.

        NotImplemented: look closer. how: the operator, or the root.
        """
        if self._node is None or self.worker.waiting or self._together is not None:
            return NotImplemented
        if opts.timeout > UNSET or self.entry.failed is not None or recording() or process_role.forked:
            return NotImplemented
        if opts.asyncOp:
            return self._begun_by_core(verb, x, out, how)
        with self._turn:
            if how is None:
                made = getattr(self._node, verb)(x, out)
            else:
                made = getattr(self._node, verb)(x, how, out)
        self._calls += made is not NotImplemented
        return made if made is NotImplemented else None

    def _begun_by_core(self, verb: str, x: torch.Tensor, out: torch.Tensor, how: Any) -> Any:
        op, root = (None, how) if verb == "broadcast" else (how, None)
        try:
            with self._turn:
                going = self._node.begin(_NUMBERS[verb], x, op, root, out, None)  # type: ignore[union-attr]
        except HpcommError as error:
            return Work([out], as_torch(error, verb, self.where))
        if going is NotImplemented:
            return going
        self._calls += 1
        work = NodeWork(self, (verb, x, how), out, going)
        if going.moves:
            self._poller.add(work)
        return work

    def _call(
        self,
        call: Call,
        run: Callable[[], None],
        outputs: object,
        inputs: Any = None,
        others: Sequence[object] = (),
    ) -> Work:
        """Meet the other ranks for this call and run it: now, or behind what is queued.

        Args:
            inputs: tensors whose shapes a profile shows; default: call.like.
            others: tensors that take part beside call.like, inputs and outputs.
        """
        like = [] if call.like is None else [call.like]
        inputs = like if inputs is None else inputs
        if process_role.forked:
            self._refuse_child(call)
        try:
            mine = self._signature(call)
        except HpcommError as error:
            self.refuse()
            raise as_torch(error, str(call), self.where) from None
        self._calls += 1
        tensors = [*like, *flat(outputs)]
        if any(map(_is_inference, tensors)):
            run = torch.inference_mode()(run)  # the worker, which may fill them there only, is not in it
        say = partial(str, call)
        if self._has_prints:
            run = torch_call(self.comm, call.verb, call.root, say(), (inputs, flat(outputs)), run)
        if self._is_traced:
            run = trace.torch_call(self.comm, call.verb, call.root, say(), inputs, run)
        deed: Callable[[], None] = partial(self._meet_and_run, run, mine, own_seconds(call.opts), say)
        if (end := self._recorded(call.verb, inputs)) is not None:
            deed = _ending(deed, end)
        touched = [*tensors, *inputs, *others] if mine & BACKGROUND else []
        return self._now_or_later(deed, outputs, say, later(call.opts), touched)

    def _recorded(self, verb: str, tensors: Sequence[torch.Tensor]) -> Callable[[], None] | None:
        """What ends the record of a call in torch's profile, if there is one."""
        return recorded(f"{self._backend}:{verb}", tensors) if recording() else None

    def _signature(self, call: Call) -> int:
        """What all ranks compare; refuses what cannot be done before any of them commits."""
        verb, like, op, root, count, _ = call
        if isinstance(count, list):
            several = len(count) > 1
            count = 0 if verb == "all_to_all" else crc32(repr(count).encode()) if several else count[0]
        if like is None:
            return signature(head(verb, root=root), count or 0)
        mine, n = head_of(verb, op, like.dtype, root), like.numel()
        if self._detail and count in (None, n):
            count = crc32(repr(tuple(like.shape)).encode())
        # which these groups do not compare: all ranks' tensors lie alike
        return signature(mine, n if count is None else count) | BACKGROUND * is_onboard(like)

    def _meet_and_run(
        self, run: Callable[[], None], mine: int, seconds: float, say: Callable[[], str]
    ) -> None:
        """seconds: for this call; 0.0: the group's."""
        with saying(say, self.comm.context), self._turn:
            self.entry.limit(seconds or self.seconds)
            try:
                self._by.expect(mine, say)
                if self._detail:
                    self._by.arrive()  # shapes are compared, too
                run()
                self._by.done(True)
            except BaseException:
                self._by.done(False)
                raise
            finally:
                self.entry.limit(self.seconds)

    def _refuse_child(self, call: Call) -> None:
        try:
            process_role.check_process("")
        except HpcommError as error:
            raise as_torch(error, str(call), self.where) from None

    def refuse(self) -> None:
        """Tell the others, when it is its turn, that this rank does not make a call that it was asked for."""

        def deed() -> None:
            with self._turn:
                self.entry.refuse()

        self._now_or_later(deed, (), lambda: "a call that it refuses", self.worker.waiting > 0)

    def _now_or_later(
        self,
        deed: Callable[[], None],
        outputs: object,
        words: Callable[[], str],
        background: bool,
        touched: Sequence[Any] = (),
    ) -> Work:
        worker = self.worker
        if (not background and not worker.waiting) or worker.is_me():
            try:
                deed()
            except HpcommError as error:
                raise as_torch(error, words(), self.where) from None
            return self._keep(Work(outputs))
        work = QueuedWork(self, deed, outputs, words, Aside(touched) if touched else None)
        worker.submit(work)
        return self._keep(work)

    def _keep(self, work: Work) -> Work:
        if self._together is not None:
            self._together.append(work)
        if not SAYS_LATER:  # C++ of torch 2.6 forgets the Python half of a Work that Python does not hold
            self._recent.append(work)
        return work

    # -- several calls as one --------------------------------------------------------------------------
    def _start_coalescing(self, device_type: object = None) -> None:
        self._together = []

    def _end_coalescing(self, device_type: object = None) -> Work:
        works, self._together = self._together or [], None
        return JointWork(works)

    # -- more groups, and the end ----------------------------------------------------------------------
    def split(
        self,
        split_ranks: list[list[int]] | None = None,
        timeout: timedelta | None = None,
        pg_options: object = None,
        group_desc: str | None = None,
        backend: object = None,
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
                    backend=backend or self._backend,
                    pg_options=pg_options,
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
        if self.comm.is_closed:
            return
        if c10d.GroupMember.WORLD is self:
            rendezvous.end()
        if not self.worker.stop(self.seconds if self.entry.failed is None else 0.0):
            return  # a rank that never came holds it up for ever
        self._poller.finish(_DRAIN_S)
        try:
            with saying(lambda: "destroy_process_group()", self.comm.context), self._turn:
                self.entry.limit(_DRAIN_S)
                self.entry.come(head("barrier") | 1 << 40)
        except HpcommError:
            return  # freeing is collective; not all have come
        self.entry.close()
        self.comm.close()

    def abort(self) -> None:
        """Leave without waiting for anybody."""

    def _drain(self, seconds: float) -> None:
        if self.worker.waiting:
            self._now_or_later(nothing, (), lambda: "barrier()", True).wait(timedelta(seconds=seconds))


def _ending(deed: Callable[[], None], end: Callable[[], None]) -> Callable[[], None]:
    def run() -> None:
        try:
            deed()
        finally:
            end()

    return run
