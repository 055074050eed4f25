"""Communicator: ranks that can talk.

The verbs live in collectives.py, p2p.py, objects.py, ragged.py and persistent.py; here is what makes,
divides and ends communicators.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import partial
from itertools import count
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NoReturn

from .._lazy import MPI, once
from ..agree import agreement, runtime
from ..agree.message_kinds import Kinds
from ..agree.one_thread import CallGuard
from ..core.closing import ClosedByAll
from ..core.html import sheet
from ..core.outstanding import Outstanding, free
from ..errors import UsageError, where
from ..node import segment
from . import (
    collectives,
    extremes,
    groups,
    objects,
    p2p,
    persistent,
    pickling,
    probes,
    ragged,
    reductions,
    sendrecv,
    shared_array,
    spawned,
    windows,
)
from .block_channel import channel
from .carriers import Carriers
from .direct import NO_DIRECT, ByLibrary
from .dissemination import inside
from .dropped import Children, Groups, let_go
from .known_messages import KnownReceive, KnownSend, forget
from .meeting import exchange_settings, least
from .mpi4py_names import Mpi4pyNames, fill_names, spelt
from .pickling import encode
from .timeouts import Order, Timeout

if TYPE_CHECKING:
    from ..agree.partners import Partners
    from ..core.operation import Observer
    from ..core.request import Request
    from ..node._native import core
    from ..node.call_log import CallLog, CallLogs
    from ..node.segment import Region
    from .payload import Payload


class Communicator(Mpi4pyNames, ClosedByAll):
    """A group of ranks that can send messages to each other.

    Made from an mpi4py communicator. That one is duplicated, so that messages of hpcomm never meet the
    program's own. Collective over its ranks.

    Attributes:
        rank, size: this rank's number among the ranks of this communicator, and how many there are.
        name: shown in errors.
        mpi: the mpi4py communicator that this one uses, for what only MPI can do.
        is_inter, remote_size: whether it joins two groups, and how many ranks the other one has.
        check: level of agreement checking: "off", "light" or "full" (see docs/errors.md).
        order: of reductions of floats, "rank" or "fast" (see docs/reproducible.md).
        timeout: seconds after which a blocking verb or a wait raises WaitTimeoutError; None: for ever.

    gpu= forces a path for device arrays, here and on all communicators made of this one: see docs/gpu.md.

    On an inter-communicator the verbs mean what MPI says. all_reduce gives each group the other group's
    result. If a verb has a root, the root itself passes root=hpcomm.ROOT, and the other ranks of its group
    pass hpcomm.PROC_NULL. The ranks of the other group pass the root's rank.
    """

    home: tuple[Children, int] | None = None  # what has made it, and its number there
    carriers: Carriers  # none of MPI's once it is closed
    is_duplicate = False  # of what has made it
    has_foreigners = False  # ranks of another job
    remote_size = 0
    tag_base = 0  # a number by chance, the same on all ranks (blocks.making)
    observers: tuple[Observer, ...] = ()
    disagreed = ""  # why other ranks may have gone on to other calls
    timeout_s: float | None = None
    is_fast = False  # MPI's own order of reductions, see order
    begun: int = 0  # collective calls that two groups have begun together
    both: MPI.Intracomm | None = None  # both groups, where they compare their calls
    call_logs: CallLogs | None = None  # of the ranks on this node
    node_regions: Mapping[int, Region] = MappingProxyType({})  # records of the other ranks on this node
    # The native core's collectives, if all ranks are on one node; what verbs try first (direct.py):
    node: core.Node | None = None
    direct: Any = NO_DIRECT
    devices: Any = None  # for arrays on devices, if some rank may have one (dispatch.py)
    exchange_channel: list[Any] | None = None  # for planned exchanges, once there is one (fields/exchange.py)
    kept_schedules: Any = None  # what own schedules keep (transport.scheduled), once there are any
    ranks_by_node: Any = None  # what reductions in their order go by (transport/rank_order.py)
    partners: Partners | None = None  # on a link: who of the other program has ended,
    patience_s: float | None = None  # and how long a blocking call may wait for it

    # What not every communicator needs:
    children = once(lambda comm: Children())
    grouped = once(lambda comm: Groups())
    call_numbers = once(lambda comm: count())  # of calls in which ranks pass on what is for others
    outstanding = once(lambda comm: Outstanding())  # calls in the background, and plans
    call_guard = once(CallGuard)  # which thread of this rank makes a collective call

    def __init__(
        self, mpi: MPI.Comm, name: str | None = None, check: str | None = None, *, gpu: str | None = None,
        pickler: object = None,
    ) -> None:  # fmt: skip
        if not isinstance(mpi, MPI.Comm) or mpi == MPI.COMM_NULL:
            what = f"{mpi!r} is no communicator of mpi4py"
            hint = "its dup() makes another one" if isinstance(mpi, Communicator) else "MPI.COMM_WORLD, say"
            raise UsageError(what, where("Communicator", None), hint)
        groups.require_known(check, gpu)
        pickler = pickling.chosen(pickler)
        runtime.start()
        settings = groups.Settings(check, gpu, pickler)
        groups.mapped(None, "Communicator", lambda: self.adopt(mpi.Dup(), name, settings))

    def adopt(
        self, mpi: MPI.Comm | None, name: str | None, settings: groups.Settings = groups.INHERITED,
        plain: bool = False, parent: Communicator | None = None,
    ) -> None:  # fmt: skip
        """Become the owner of mpi, which nobody else uses; None: of a duplicate of parent's, within a node.

        plain: the other group is a program without hpcomm, which makes the two duplicates and no more.
        parent: one that has all ranks of mpi.
        """
        level, gpu, pickler = groups.require_known(settings.check, settings.gpu), *settings[1:]
        twin = parent if mpi is None else None
        self.name: str = name or "comm"
        if mpi is not None:
            mpi.Set_errhandler(MPI.ERRORS_RETURN)
            self.carriers = Carriers(mpi, mpi.Dup(), self.name)
            self.rank, self.size, self.is_inter = mpi.Get_rank(), mpi.Get_size(), mpi.Is_inter()
            if self.is_inter:
                self.remote_size = mpi.remote_size  # type: ignore[attr-defined]
            else:
                self.has_foreigners = segment.has_foreigners(mpi)
        elif twin is not None:
            self.rank, self.size, self.is_inter = twin.rank, twin.size, False
            self.has_foreigners, self.is_duplicate = twin.has_foreigners, True
        self.pickler = pickler if parent else pickler or pickling.chosen(None)
        self._gpu = gpu
        self.asked_check = level  # what was asked for, and is again of communicators made of this one,
        if level == "light" and self.has_foreigners:
            level = "full"  # ranks of two jobs see no records of each other's
        self.compared = "off" if plain or self.size == 1 else level  # and what all can do
        self.near_ranks: list[int] = [self.rank]  # on this node,
        self.noting: list[int] = []  # and who else notes calls there, the next one first
        self.to_itself: list[Request[object]] = []  # messages of this rank that nobody waits for
        self.known_sends: dict[object, KnownSend] = {}
        self.known_receives: dict[object, KnownReceive] = {}
        may_have_devices, may_use_spare = (False, False) if plain else exchange_settings(self, level, twin)
        if twin is not None:
            self.carriers = twin.children.take(may_use_spare, self.name) or twin.carriers.duplicate(self.name)
        carrier = self.carriers.plain
        # What follows the headers of objects and ragged arrays, apart from both:
        self.block_channel = channel(carrier, parent, may_have_devices, self.is_duplicate)
        # For what ranks pass on:
        self.inner_comm = self.block_channel if plain else inside(carrier, self.block_channel)
        if may_have_devices:
            from ..transport.device.dispatch import DeviceDispatch

            self.devices = DeviceDispatch(self, gpu)
            if self.node is not None:
                self.node.most = self.devices.eager  # above that, ranks first tell where their arrays lie
        fill_names(self)
        self.go_direct()
        runtime.note(self)

    @property
    def encode(self) -> Callable[[Any], Payload]:
        """What pickles an object."""
        return partial(encode, pickler=self.pickler) if self.pickler else encode

    @property
    def check(self) -> str:
        return self.agreement.level

    @property
    def mpi(self) -> MPI.Comm:
        """The mpi4py communicator underneath.

        Whoever has it may send on it, unseen by hpcomm: so from the first look at it on, messages of this
        rank may have elements of any type.
        """
        if self.message_kinds is not None:
            self.message_kinds.open()
        return self.mpi_handle

    timeout, order = Timeout(), Order()
    # -- the verbs --------------------------------------------------------------------------------
    broadcast = collectives.broadcast
    reduce = reductions.reduce
    all_reduce = reductions.all_reduce
    gather = collectives.gather
    all_gather = collectives.all_gather
    scatter = collectives.scatter
    reduce_scatter = reductions.reduce_scatter
    reduce_scatter_ragged = reductions.reduce_scatter_ragged
    all_to_all = collectives.all_to_all
    scan = reductions.scan
    exscan = reductions.exscan
    barrier = collectives.barrier
    all_reduce_loc = extremes.all_reduce_loc

    send = p2p.send
    recv = p2p.recv
    isend = p2p.isend
    irecv = p2p.irecv
    sendrecv = sendrecv.sendrecv
    probe = probes.probe
    iprobe = probes.iprobe
    probe_object = probes.probe_object
    iprobe_object = probes.iprobe_object
    batch_isend_irecv = p2p.batch_isend_irecv
    send_object = objects.send_object
    recv_object = objects.recv_object
    isend_object = objects.isend_object
    irecv_object = objects.irecv_object
    sendrecv_object = objects.sendrecv_object
    broadcast_object = objects.broadcast_object
    gather_object = objects.gather_object
    all_gather_object = objects.all_gather_object
    scatter_object = objects.scatter_object
    all_to_all_object = objects.all_to_all_object
    reduce_object = objects.reduce_object
    all_reduce_object = objects.all_reduce_object
    send_ragged = ragged.send_ragged
    recv_ragged = ragged.recv_ragged
    isend_ragged = ragged.isend_ragged
    irecv_ragged = ragged.irecv_ragged
    broadcast_ragged = ragged.broadcast_ragged
    gather_ragged = ragged.gather_ragged
    all_gather_ragged = ragged.all_gather_ragged
    scatter_ragged = ragged.scatter_ragged
    all_to_all_ragged = ragged.all_to_all_ragged
    plan = persistent.plan

    # -- mpi4py's spellings of the same ------------------------------------------------------------
    bcast = spelt("bcast", collectives.broadcast)
    allreduce = spelt("allreduce", reductions.all_reduce)
    allgather = spelt("allgather", collectives.all_gather)
    alltoall = spelt("alltoall", collectives.all_to_all)
    reduce_scatter_block = reductions.reduce_scatter
    Barrier = collectives.barrier

    def Get_rank(self) -> int:  # noqa: N802  the spelling is the point
        return self.rank

    def Get_size(self) -> int:  # noqa: N802
        return self.size

    def Get_name(self) -> str:  # noqa: N802
        return self.name

    def Split(self, color: int = 0, key: int = 0) -> Communicator | MPI.Comm:  # noqa: N802
        """As split, but who is in no part (MPI.UNDEFINED) gets MPI.COMM_NULL, as of mpi4py."""
        return self.split(None if color == MPI.UNDEFINED else color, key) or MPI.COMM_NULL

    def Dup(self) -> Communicator:  # noqa: N802
        return self.dup()

    def Free(self) -> None:  # noqa: N802
        self.close()

    def Abort(self, errorcode: int = 1) -> None:  # noqa: N802
        """End the whole job at once with this exit status."""
        runtime.abort("Abort was called", errorcode)

    # -- more communicators ------------------------------------------------------------------------
    split = groups.split
    split_node = groups.split_node
    shared_array = shared_array.shared_array
    window = windows.window
    counter = windows.counter
    pool = groups.pool
    spawn = spawned.spawn
    group = groups.group
    dup = groups.dup
    create_intercomm = groups.create_intercomm
    bytewise_min = least
    merge = groups.merge

    mesh = groups.mesh
    cart = groups.cart
    graph = groups.graph
    as_process_group = groups.as_process_group

    def derive(
        self, mpi: MPI.Comm | None, name: str, settings: groups.Settings = groups.INHERITED,
        kind: type[Communicator] | None = None,
    ) -> Communicator:  # fmt: skip
        """One of mpi's ranks, which are some of this one's; None: of the same ranks, all of a node."""
        made = object.__new__(kind or Communicator)
        made.is_fast = self.is_fast
        check, gpu, pickler = settings
        settings = groups.Settings(check or self.asked_check, gpu or self._gpu, pickler or self.pickler)
        made.adopt(mpi, name, settings, parent=self)
        if self.timeout_s is not None:
            made.timeout = self.timeout_s
        return made

    # -- the end -------------------------------------------------------------------------------------
    def close(self) -> None:
        """Give the communicator back to MPI. Collective. A second close does nothing.

        Calls that are under way on it may still be waited for; its plans can no longer be started.
        """
        if self.is_closed:
            return
        for request in self.to_itself:
            request.wait()
        self.to_itself.clear()
        self.leave_direct()
        self.node = self.watched = self.message_kinds = None  # their memory may be another one's soon
        if runtime.end_notices is not None:
            runtime.end_notices.forget(self)
        if self.call_logs is not None:
            self.call_logs.close()
        if self.exchange_channel is not None:
            self.exchange_channel[0].Free()
            if self.exchange_channel[2] is not None:
                self.exchange_channel[2].close()
        if self.devices is not None:
            self.devices.close()
        if self.partners is not None:
            self.partners.part()
        left = [self.block_channel, let_go(self)]
        left += [each for each in (self.inner_comm, self.both) if each not in (None, self.block_channel)]
        if self.disagreed or self.kept_schedules is not None or "outstanding" in vars(self):
            self.outstanding.close(left, self.kept_schedules, bool(self.disagreed))
        else:
            free(left)

    def lose_mpi(self) -> None:
        """Have no carriers any more."""
        self.mpi_handle = self.object_comm = nothing = type(self.carriers.plain)()
        self.carriers = Carriers(nothing, nothing, self.name)

    def forget_mpi(self) -> None:
        """Be as after close(): MPI is finalized."""
        self.lose_mpi()
        self.leave_direct()
        self.outstanding.forget_mpi(self.to_itself)

    @property
    def is_closed(self) -> bool:
        return not self.carriers.plain

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        """Messages to this rank itself have nobody else to take note of their end; MPI is freed later."""
        if not is_finalizing():  # an argument, because globals may have gone by now
            for request in getattr(self, "to_itself", ()):
                if runtime.may_call_mpi():  # Python collects garbage in any thread
                    request.done()
            if self.home is not None and not self.is_closed:
                self.home[0].drop(self.home[1], self)

    def __reduce__(self) -> NoReturn:
        raise UsageError(
            f"communicator '{self.name}' cannot be pickled or copied: it is one of this process only",
            hint="dup() makes another one on all ranks; leave it out of what is sent (__getstate__)",
        )

    def __repr__(self) -> str:
        if self.is_closed:
            return f"<Communicator '{self.name}', closed>"
        return f"<Communicator '{self.name}', rank {self.rank} of {self.size}>"

    def _repr_html_(self) -> str:
        if self.is_closed:
            return sheet(f"Communicator '{self.name}'", [("state", "closed")])
        other = [("other group", f"{self.remote_size} ranks")] if self.is_inter else []
        ranks = [("this rank", f"{self.rank} of {self.size}"), *other]
        return sheet(f"Communicator '{self.name}'", [*ranks, ("compared", self.check)])

    # -- looking on ----------------------------------------------------------------------------------
    def observe(self, observer: Observer) -> Callable[[], None]:
        """Call observer.before(call) and observer.after(call) at every call. Returns a function to stop.

        While there is an observer, calls take the general path, which costs some microseconds.
        """
        self.check_open("observe")
        if not all(callable(getattr(observer, name, None)) for name in ("before", "after")):
            raise UsageError(
                f"{observer!r} is no observer", where("observe", self), "before(call), after(call)"
            )
        self.observers = (*self.observers, observer)
        self.leave_direct()

        def stop() -> None:
            self.observers = tuple(o for o in self.observers if o is not observer)
            self.go_direct()

        return stop

    # -- for the verbs -------------------------------------------------------------------------------
    check_open = groups.check_open

    @once
    def mpi_handle(self) -> MPI.Comm:
        """Once it was asked for, something may have been sent there."""
        return self.carriers.plain

    @once
    def object_comm(self) -> MPI.Comm:
        return self.carriers.objects

    def fall_out(self, why: str = "are out of step since they disagreed about a call") -> None:
        """Make no collective call any more: it could meet another one of the other ranks."""
        if not self.disagreed:
            self.disagreed = why
            self.agreement.depart()
        self.leave_direct()

    def leave_direct(self) -> None:
        """Let all calls take the general path from now on."""
        self.direct = NO_DIRECT
        forget(self)

    def go_direct(self) -> None:
        """Let calls take the direct path again, if nothing speaks against it."""
        if self.observers or self.is_closed or self.disagreed:
            return
        by_library = not self.is_inter and self.timeout_s is None
        self.direct = self.node or (ByLibrary(self) if by_library else NO_DIRECT)

    def move_on(self) -> None:
        """Let MPI work on what is under way; nothing once another thread has closed this communicator."""
        from ..transport import mpi as transport

        if mpi := self.carriers.plain:  # on which nothing is sent: a duplicate stays unused
            transport.move_on(mpi)

    def last_call(self) -> int:
        """The number of the last call that this rank has come to, where others see it."""
        assert self.watched is not None
        return self.watched[0].last_call()

    def check_one_group(self, verb: str) -> None:
        self.check_open(verb)
        if self.is_inter:
            raise UsageError(
                f"{verb} needs one group of ranks", hint="comm.merge() makes one of two"
            ).located(verb, self)

    def keep_request(self, request: Request[object]) -> None:
        """Own a request that nobody waits for: a message to this rank itself."""
        self.to_itself = [kept for kept in self.to_itself if not kept.done()]
        self.to_itself.append(request)

    @once
    def watched(self) -> tuple[CallLog, list[tuple[int, Region, CallLog]]] | None:
        """This rank's call log, and of the others on this node that note calls, the next one first: rank,
        record, log; None: there is nobody to compare with."""
        assert self.block_channel is not None  # an AttributeError while the ranks meet: the watchdog looks
        if self.call_logs is None or not self.noting or self.compared == "off":
            return None
        order, logs, regions = self.near_ranks, self.call_logs, self.node_regions
        return logs.mine, [(rank, regions[rank], logs[order.index(rank)]) for rank in self.noting]

    @once
    def message_kinds(self) -> Kinds | None:
        """Of elements in messages within the node."""
        if self.watched is None or self.devices is not None:
            return None
        own, peers = self.watched
        return Kinds(self, own.kinds, {rank: log.kinds for rank, _, log in peers})

    @once
    def agreement(self) -> agreement.Agreement:
        """How the ranks find out that they make the same call."""
        if self.is_inter:
            made = agreement.between(self, self.both) if self.both else agreement.counted(self)
        elif self.compared == "full":
            made = agreement.full(self, self.object_comm, self.watched[0] if self.watched else None)
        elif self.watched is None or segment.current is None:
            made = agreement.off()
        else:
            made = agreement.light(self, *self.watched)
        is_seen = self.compared == "off" or self.has_foreigners or len(self.near_ranks) == self.size
        return made if runtime.end_notices is None else runtime.end_notices.count(self, made, is_seen)
