"""Device dispatch: calls whose arrays lie on devices, or could on another rank, and their path.

A communicator of which some rank has a device has one DeviceDispatch. Up to `eager` bytes per rank a call
is one call of the node core or of MPI on pinned memory, so it meets ranks whose arrays are numpy's. Above
that all ranks, wherever their arrays lie, go through here, and first tell each other where that is. If all
lie on devices, the ranks open each other's workspaces, once (workspace.py), and the path is chosen
(path_choice.py). Else the call becomes one MPI call for each piece of columns, through pinned memory.

    block of a rank <= eager ──> _pipeline: one call of the core, or of MPI, on pinned memory
    larger ──> _agree: where are the arrays, same call? ─┬─ all on devices ──> path_choice ──> _mover, columns
                                                        └─ some on hosts  ──> _pipeline, piece by piece
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
from mpi4py import MPI

from ...core.buffer import Buffer, DeviceBuffer
from ...core.comm import Comm
from ...core.dtypes import Dtype
from ...core.limits import DEVICE_EAGER
from ...core.operation import Call
from ...core.request import Stages
from ...core.signature import describe, marked, signature
from ...core.verbs import INPUT_BLOCKS, OUTPUT_BLOCKS
from ...device.driver import watching
from ...errors import ConfigError, MismatchError, UsageError, where
from .. import host_calls, rank_order
from .. import mpi as transport
from ..prepare import Arrays
from ..progress import Thread, Until, drive
from ..scheduled import schedule_transport
from ..scheduled.comm_cache import own
from ..scheduled.proved import proved
from ..scheduled.rounds import TAGS, Rounds, algorithm, fitting
from . import cuda_aware, device_columns, host_copy, nccl_transport
from .device_call import Job, copy_of, on_device, piece_of, refuse
from .device_headers import announced_length
from .device_messages import Messages, carried
from .nccl_transport import ByNccl, refuses
from .path_choice import PATHS, Choice, Facts, choose
from .pipeline import cut
from .staging import After, pieces
from .workspace import Workspace

_SAID = 4096  # bytes of what is said about MPI and device memory
# What each rank says before a large call; what all say is true of the call:
_DEVICE, _HOST, _REDUCES, _CONVERTS, _MET = 1, 2, 4, 8, 16
_TOLD = struct.Struct("=Bqq")  # these, its signature, and the same with all bits turned


class DeviceDispatch:
    """What a communicator has for arrays on devices."""

    def __init__(self, comm: Comm, gpu: str | None = None) -> None:
        self.eager = DEVICE_EAGER
        self._between = comm.is_inter  # groups, which cannot meet: collectives of any size are one MPI call
        self.forced = _forced(comm, gpu)
        self.plain = watching(comm.mpi_handle)
        self.channel = watching(comm.mpi_handle.Dup())
        if not self._between:  # what a piece needs that may be ready late, while other calls go on
            own(comm)
            rank_order.nodes_of(comm).meet(self.channel)
            rank_order.nodes_of(comm).Wait()
        self._line: list[object] = []
        self.workspace: Workspace | None = None
        self._nccl: Any = None
        self._no_nccl = "nobody has met"
        self._direct = dict.fromkeys(cuda_aware.OPERATIONS, "nobody has met")
        self._rank = comm.rank
        self.messages = Messages(comm, self.plain, self.channel, self.forced, self.is_whole)
        self.send, self.recv, self.copy = self.messages.send, self.messages.recv, self.messages.copy
        self.announced, self.length = self.messages.announced, announced_length
        self.look = self.messages.look

    def close(self) -> None:
        drive(self.messages.leave())
        if self.workspace is not None:
            drive(self.workspace.leave(self.channel))
            self._leave_nccl()
            self.workspace = None
        self.channel.Free()

    def takes(self, *looks: Buffer | None, block: int) -> bool:
        """Whether a collective on these arrays, block bytes for each rank, is carried out here."""
        return on_device(*looks) or not self.is_one_call(block)

    def takes_message(self, *looks: Buffer) -> bool:
        """Whether a message from or to these arrays is."""
        return on_device(*looks) or not all(self.is_whole(each.nbytes) for each in looks)

    def follows(self, nbytes: int, ranks: Sequence[int]) -> bool:
        """Whether an array of a payload goes to ranks as a message of its own (device_payload.py)."""
        others = (self._between or self._rank not in ranks) and MPI.PROC_NULL not in ranks
        return others and not self.is_whole(nbytes)

    def is_one_call(self, nbytes: int) -> bool:
        """Whether a collective on so many bytes of each rank is one MPI call."""
        return self.is_whole(nbytes) or self._between

    def is_whole(self, nbytes: int) -> bool:
        """Whether a message of so many bytes is one of MPI's."""
        return nbytes <= self.eager

    # -- explaining ----------------------------------------------------------------------------------

    def explain(self, call: Call) -> str:
        """Which way the bytes of a call take, and why no better one."""
        place, nbytes = call.look.place, call.count * call.look.dtype.itemsize
        here = "x in host memory" if place is None else f"x on {place.name}"
        message = call.verb in ("send", "recv")
        if self.is_whole(call.look.nbytes) if message else self.is_one_call(nbytes):
            why = "between groups always"
            if message or not self._between:
                limit = f"as up to {self.eager} bytes (a guess: docs/gpu.md)"
                why = f"{limit}, so that ranks with host arrays can take part"
            return f"{here}, staged: through pinned memory in one MPI call, {why}"
        if message:
            way = self.messages.paths.get(("to" if call.verb == "send" else "from", call.peer))
            first = f"decided with the other rank at the first message (gpu: {self.forced})"
            return f"{here}, {first if way is None else f'by {way}'}"
        if call.carrier.chosen is None:
            return f"{here}; ranks tell each other at each call where their arrays lie (gpu: {self.forced})"
        return "\n  ".join([f"{here}, by {call.carrier.chosen}", *self._pairs()])

    def _pairs(self) -> list[str]:
        """How messages of schedules come here from each rank, ranks of the same way together."""
        ways: dict[str, list[str]] = {}
        for rank, peer in enumerate(self.workspace.peers if self.workspace is not None else ()):
            if self.workspace is not None and rank != self.workspace.rank:
                way = f"through pinned memory, for it {peer.why}" if peer.why else "device to device"
                ways.setdefault(way, []).append(str(rank))
        return [f"from rank {', '.join(ranks)}: {way}" for way, ranks in ways.items()]

    # -- collectives ---------------------------------------------------------------------------------

    def carry(self, call: Call, arrays: Arrays, blocking: bool, algorithm: str | None = None) -> Call:
        """Let call, on arrays of which some may lie on devices, be carried out here.

        algorithm: an own schedule that the user names, for a large call.
        """
        refuse(call, arrays)
        send, recv, reduce = arrays
        nbytes = call.count * call.look.dtype.itemsize
        large = not self.is_one_call(nbytes)
        node = None if large or not blocking else call.comm.node
        is_core = node is not None and host_calls.core_takes(call.look.dtype, reduce)
        if not is_core and call.comm.timeout_s is not None:  # then it is begun, and waited for
            blocking = False
        call.after = After()
        job = Job(call, arrays, blocking)
        if algorithm is not None:
            job.algorithm = schedule_transport.named(call, algorithm, reduce, nbytes)
            call.code = marked(call.code, algorithm)
            if not on_device(send, recv):  # what is wrong with these, it is known now
                job.here = self._composed(job, send, recv)

        def stages() -> Stages:
            job.begin()  # what the current stream holds now is what counts
            return self._in_turn(self._large(job)) if large else self._pipeline(job, self.plain, call.count)

        call.finish = lambda status: recv.give() if recv is not None else None
        carried(call, stages, is_core=is_core)
        if large:
            call.carrier.settle = lambda: drive(self._in_turn(self._agree(job)))
        return call

    def _large(self, job: Job) -> Stages:
        """A collective of which the ranks first agree about the path."""
        call = job.call
        on_devices = yield from self._agree(job)
        path = job.path if on_devices else "pipeline"
        if job.algorithm is not None and path == "pipeline":
            yield from self._on_copies(job, job.algorithm)
            return
        if not on_devices:
            yield from self._pipeline(job, self.channel, call.count)
            return
        if path == "pipeline":
            p = max(job.blocks_in, job.blocks_out)
            yield from self._pipeline(job, self.channel, cut(call.count, p, call.look.dtype.itemsize))
            return
        # All arrays lie on devices, and a path between devices was chosen. The workspace's stream comes after
        # what the user's streams held when the call was made, and they after it (leave).
        space = self.workspace
        assert space is not None
        for _, event in job.events.values():
            space.device.wait(space.stream, event)
        job.end()
        mover = yield from self._mover(job, path)
        yield from device_columns.carry(job, space, mover)
        for place in job.places():
            if place is not None:
                call.after.leave(space.station, space.stream, place)

    def _on_copies(self, job: Job, algorithm: str) -> Stages:
        """By the schedule that the user names, on copies in host memory of what lies on devices."""
        send, recv, here = job.packed, job.recv, job.here
        x = None if send is None else copy_of(send)
        out = x if recv is job.send else None if recv is None else copy_of(recv)
        up = None
        if recv is not None and recv.place is not None:
            up = host_copy.Upload(recv, job.event("recv"))
        if isinstance(send, DeviceBuffer):
            assert x is not None
            yield from host_copy.down(send, x.array, job.event("send"))
        job.end()
        if here is None:
            here = self._composed(job, x, out)
        elif here.fill is not None:
            here.fill()
        yield from schedule_transport.rounds(here, algorithm, job.reduce, self.channel, TAGS - 1)
        here.finish(None)
        if up is not None:
            assert out is not None
            yield from up.up(out.array, job.call.after)

    def _composed(self, job: Job, x: Buffer | None, out: Buffer | None) -> Call:
        """What the call is where its arrays are these, in host memory."""
        return host_calls.on_hosts(job.call.again(), x, out, job.reduce, in_order=False)

    def _mover(self, job: Job, path: str) -> Stages:
        call, reduce, space = job.call, job.reduce, self.workspace
        assert space is not None
        wide = device_columns.travels(reduce, call.look.dtype)
        name = job.algorithm or algorithm(call.verb, space.size, call.count * wide.itemsize)
        slots = proved(call.verb, name, space.size, call.root).slots
        moved = device_columns.Moved(call.verb, call.root, slots, reduce, wide)
        if path == "nccl":
            return ByNccl(space, self._nccl, moved)
        if path == "direct":
            return cuda_aware.Direct(space, self.channel, moved)
        rounds = Rounds(space, self.channel, job.kernels, name, moved)
        if job.algorithm is not None:
            rounds.capacity = yield from self._most(name, call, wide)
        return rounds

    def _most(self, name: str, call: Call, dtype: Dtype) -> Stages:
        """Elements of a slot at most, so that any schedule's work and temporary fit into all workspaces."""
        assert self.workspace is not None
        mine = fitting(self.workspace, call.verb, name, call.root, dtype.itemsize)
        least = np.array([mine])
        yield [self.channel.Iallreduce(MPI.IN_PLACE, least, MPI.MIN)]
        if not least[0]:
            raise UsageError(
                f"the work memory on the device, {self.workspace.nbytes} bytes, is too small for {name} on "
                f"{self.workspace.size} ranks",
                where(call.verb, call.comm),
                "another algorithm=, or none",
            )
        return int(least[0])

    def _agree(self, job: Job) -> Stages:
        """Choose the path of a call, all ranks together; false: all arrays lie in host memory.

        What each says has its signature in it, so all find out if one makes another call, on any node.
        One all-reduce by "and" does it all: a bit is left only where every rank set it. A signature and its
        complement are both left whole only if all ranks have the same: else some bit is 0 in both.
        """
        call, device = job.call, job.device
        met = self.workspace is not None and (device is None or self.workspace.device is device)
        kind = _DEVICE if device is not None else 0 if on_device(job.send, job.recv) else _HOST
        mine = kind | _REDUCES * (not job.lacks[0]) | _CONVERTS * (not job.lacks[1]) | _MET * met
        signed = signature(call.code, call.agreed)
        told = bytearray(_TOLD.pack(mine, signed, ~signed))
        yield [self.channel.Iallreduce(MPI.IN_PLACE, [told, MPI.BYTE], MPI.BAND)]
        said, both, neither = _TOLD.unpack(told)
        if both ^ neither != -1:  # a bit that is 0 in both: two ranks differ there
            yield from self._disagree(call, signed)
        if said & _HOST:
            return False
        if said & _DEVICE and self.forced != "pipeline" and not said & _MET:
            yield from self._meet(device)
        call.carrier.chosen = choice = self._choice(job, said)
        job.path = choice.path
        return True

    def _choice(self, job: Job, said: int) -> Choice:
        """The path of a call, by what all ranks have said."""
        call, space, reduce = job.call, self.workspace, job.reduce
        op = reduce.mpi_op if reduce is not None else None
        elsewhere = "another rank has no kernel for it"
        chosen = choose(self.forced, call.verb, Facts(
            bool(said & _DEVICE), reduce is not None,
            kernels="" if said & _REDUCES else job.lacks[0] or elsewhere,
            converts="" if said & _CONVERTS else job.lacks[1] or elsewhere,
            pairs=space.whys if space is not None else ["nobody has met"],
            nccl=self._no_nccl or refuses(call.verb, op, device_columns.travels(reduce, call.look.dtype)),
            direct=self._direct[call.verb], named=job.algorithm is not None,
        ))  # fmt: skip
        if not chosen.path:
            raise ConfigError(
                f"{self.forced} is forced, but cannot carry this call: {chosen.refused[self.forced]}",
                where(call.verb, call.comm),
                "gpu='auto' or HPCOMM_GPU=auto, or another path; hpcomm doctor",
            )
        return chosen

    def _disagree(self, call: Call, signed: int) -> Stages:
        """Raise on all ranks, which do not make the same call."""
        all_signed = np.zeros(self.channel.Get_size(), np.int64)
        yield [self.channel.Iallgather(np.array([signed]), all_signed)]
        rows = "".join(f"\n  rank {rank}: {describe(int(each))}" for rank, each in enumerate(all_signed))
        raise MismatchError(
            f"ranks disagree about a large call on '{call.comm.name}'.{rows}",
            where(call.verb, call.comm),
            "make the same call on every rank, in the same order: operator, dtype, number of elements, root",
        )

    def _meet(self, device: Any) -> Stages:
        if self.workspace is not None:
            yield from self.workspace.leave(self.channel)
            self._leave_nccl()
        facts = {"nccl": nccl_transport.fact(device), "nccl_shares": nccl_transport.shares()}
        self.workspace = Workspace(device, self.channel.Get_rank(), self.channel.Get_size(), facts)
        yield from self.workspace.share(self.channel)
        self._no_nccl = nccl_transport.lack(self.workspace.headers)
        if not self._no_nccl and self.forced in ("auto", "nccl"):
            self._nccl, self._no_nccl = yield from nccl_transport.join(self.channel, self.workspace)

        self._direct = yield from self._ask_about_direct()

    def _ask_about_direct(self) -> Stages:
        """What the first rank finds out is so for all: they use one MPI."""
        if self.forced not in ("auto", "direct"):
            return dict.fromkeys(cuda_aware.OPERATIONS, f"{self.forced} is forced")
        asked: dict[str, str] = {}
        if self.channel.Get_rank() == 0:
            asking = Thread(cuda_aware.evidence)
            yield [asking]
            asked = asking.result or dict.fromkeys(cuda_aware.OPERATIONS, asking.why)
        said = bytearray(json.dumps(asked).encode()[:_SAID].ljust(_SAID))
        yield [self.channel.Ibcast([said, MPI.BYTE], 0)]
        return json.loads(said)

    def _leave_nccl(self) -> None:
        if self._nccl is not None:
            self._nccl.close()
            self._nccl = None

    def _pipeline(self, job: Job, mpi: MPI.Comm, piece: int) -> Stages:
        """One MPI call for each piece of columns, through pinned memory where an array lies on a device.

            device to pinned    p0 | p1    | p2    |
            MPI                    | p0    | p1    | p2
            pinned to device               | p0    | p1    | p2

        Each piece is a call of its own on host memory, by the MPI communicator given, or by the core.
        """
        call, verb, in_turn = job.call, job.call.verb, mpi is self.channel
        source, sink, parts = job.source(piece), job.sink(piece), pieces(call.count, piece)
        source.begin(job.event("send"))
        source.bring(*parts[0])
        sink.begin(job.event("recv"))
        job.end()
        for i, (low, high) in enumerate(parts):
            waits = [*source.landed(), *sink.free()]
            if in_turn and waits:
                yield waits
            else:  # so that MPI's call is begun in the order in which the user makes calls
                for each in waits:
                    each.Wait()
            x = piece_of(source, low, high, call, verb in INPUT_BLOCKS)
            out = x if job.is_one else piece_of(sink, low, high, call, verb in OUTPUT_BLOCKS)
            if i + 1 < len(parts):
                source.bring(*parts[i + 1])
            part = call.again()
            part.mpi, part.count = mpi, high - low
            if call.carrier.is_core:
                part = host_calls.by_core(part, x, out, job.reduce)
            else:
                part = host_calls.on_hosts(part, x, out, job.reduce, waits=job.blocking)
            if job.blocking:
                transport.run(part)
            else:
                yield from transport.stages_of(part)
            sink.deliver(low, high)
        source.end()
        sink.end(call.after)

    def _in_turn(self, stages: Stages) -> Stages:
        """Collectives of several MPI calls: one after the other, in the order in which they were made."""
        line, ticket = self._line, object()
        line.append(ticket)
        try:
            if line[0] is not ticket:
                yield [Until(lambda: line[0] is ticket)]
            return (yield from stages)
        finally:
            line.remove(ticket)


def _forced(comm: Comm, asked: str | None) -> str:
    """The path that the user forces, as gpu= or else by the environment; the same on all ranks."""
    said = asked or os.environ.get("HPCOMM_GPU")
    forced = "auto" if not said or said == "off" else said  # off here, and a device on another rank
    known = PATHS.index(forced) if forced in PATHS else -1
    both = comm.bytewise_min(bytes([known + 1, 255 - (known + 1)]))
    if known < 0:
        raise ConfigError(
            f"there is no path {forced!r} for device arrays (gpu=, HPCOMM_GPU)",
            hint=f"off, {', '.join(PATHS)}",
        )
    if both[0] != 255 - both[1]:
        raise MismatchError(
            f"{forced} is forced on rank {comm.rank}, and another path elsewhere (gpu=, HPCOMM_GPU)",
            where("communicator", comm),
            "the same for all ranks",
        )
    return forced
