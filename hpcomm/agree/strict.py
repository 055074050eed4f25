"""The level "strict": what a rank can tell of its own memory, messages and requests. It may be slow.

    what it finds                                        how, and who says so
    arrays written to while a request has them           checksums at the beginning and the end; wait() raises
    sends that only MPI's buffers save                   sends are synchronous (MPI_Ssend): those ranks wait,
                                                         and a report about a circle of waits names them
    requests never waited for, messages never received   looked for at the end of each rank, which says so

A communicator of this level has an observer, so that all calls take the general path, and what it has under
way is a Strict. Nothing of this is in the way of other levels.

A receive in the background gets its message in memory of its own, and the array has it at the end. So what
the program reads there too early is always the old, and what it writes there is seen.
"""

from __future__ import annotations

import gc
from collections import Counter
from typing import TYPE_CHECKING, Any

from .._lazy import MPI, np
from ..core.checksum import of_elements
from ..core.operation import Call
from ..core.outstanding import Begun, Outstanding
from ..core.request import Request
from ..errors import UsageError, calling_frame, source_line, where
from . import runtime

if TYPE_CHECKING:
    from ..core.comm import Comm

_MOST = 20  # lines that a rank says at its end


def look_on(comm: Comm) -> None:
    """Let a new communicator be of this level."""
    carriers = comm.carriers = comm.carriers._replace(
        plain=_synchronous(comm.carriers.plain), objects=_synchronous(comm.carriers.objects)
    )
    strict: Any = Strict()
    vars(comm).update(mpi_handle=carriers.plain, object_comm=carriers.objects, outstanding=strict)
    comm.observers = (strict,)
    if _say_what_is_left not in runtime.farewells:
        runtime.farewells.insert(0, _say_what_is_left)  # the last of them


class Strict(Outstanding):
    """What one communicator has under way; looks on at all of its calls."""

    def before(self, call: Call) -> None:
        """Look at a call that is to be carried out."""

    def after(self, call: Call) -> None:
        """Look at one that is complete."""

    def begin(self, stages: Begun, call: object = None) -> Begun:
        if isinstance(call, Call) and call.after is None and call.carrier.stages is None:
            _compare_memory(call)
        return super().begin(stages)


def _compare_memory(call: Call) -> None:
    """Let a call in the background find out at its end whether the program has written to its arrays."""
    if call.peer == MPI.PROC_NULL:
        return
    frame = calling_frame()
    began = "?" if frame is None else source_line(frame.f_code, frame.f_lineno)
    gives = call.send is not None or (call.verb == "broadcast" and call.root == call.comm.rank)
    given = getattr(call.look, "array", None) if gives else None
    into = call.recv[0] if type(call.recv) is tuple else None
    if type(into) is not np.ndarray or not into.size or not into.flags.writeable:
        into = None
    looked_at = [] if given is None or (into is not None and np.may_share_memory(given, into)) else [given]
    if into is not None:
        looked_at.append(call.look.array if call.verb == "recv" else into)
    held, scratch, finish = [*map(of_elements, looked_at)], None if into is None else into.copy(), call.finish
    if scratch is not None:
        call.recv = (scratch, *call.recv[1:])

    def compare_and_finish(status: MPI.Status | None) -> Any:
        was_changed = held != [*map(of_elements, looked_at)]
        if into is not None and scratch is not None:
            np.copyto(into, scratch)
        result = finish(status)
        call.let_go()
        if was_changed:
            what = f"an array of {call}, started at {began}, was written to before that was complete"
            raise UsageError(what, where(call.verb, call.comm), "write to it after wait(), or give a copy")
        return result

    call.finish, call.give = compare_and_finish, None


def _synchronous(mpi: MPI.Comm) -> MPI.Comm:
    """The same communicator of MPI's, whose sends return when they are received."""
    kind = type(mpi)
    if issubclass(kind, Synchronous):
        return mpi
    made: MPI.Comm = type(kind.__name__, (Synchronous, kind), {"plain": kind})(mpi)
    return made


class Synchronous:
    """What a communicator of MPI's has in place of sends; those of a rank to itself stay as they are."""

    rank: int
    plain: Any

    def Send(self, buf: Any, dest: int, tag: int = 0) -> None:  # noqa: N802  as MPI.Comm has it
        (self.plain.Send if dest == self.rank else self.plain.Ssend)(self, buf, dest, tag)

    def Isend(self, buf: Any, dest: int, tag: int = 0) -> MPI.Request:  # noqa: N802
        going: MPI.Request = (self.plain.Isend if dest == self.rank else self.plain.Issend)(
            self, buf, dest, tag
        )
        return going

    def Dup(self, info: Any = None) -> MPI.Comm:  # noqa: N802
        made: MPI.Comm = self.plain(self.plain.Dup(self, info) if info else self.plain.Dup(self))
        return made


def _say_what_is_left() -> None:
    """Say at the end of this rank which requests nobody has waited for, and what was not received."""
    left: Counter[str] = Counter()
    for each in gc.get_objects():  # as agree/doing.py does
        if issubclass(type(each), Request) and each.is_under_way and each.waits_for is not None:
            comm = each.waits_for[0]
            if _is_strict(comm) and not any(each is own for own in comm.to_itself):
                left[f"{each.call} on '{comm.name}', started at {each.birth}, was never waited for"] += 1
    for comm in runtime.living():
        if _is_strict(comm) and not comm.is_closed:
            for mpi in (comm.carriers.plain, comm.carriers.objects):
                if (message := comm.carriers.unreceived(mpi)) is not None:
                    left[_untaken(comm, *message)] += 1
    if left:
        rows = [f"{what}{f' ({n} times)' if n > 1 else ''}" for what, n in left.items()]
        more = [f"and {len(rows) - _MOST} more"] if len(rows) > _MOST else []
        runtime.say("\n  ".join(["at the end of this rank", *rows[:_MOST], *more]))


def _untaken(comm: Comm, source: int, tag: int) -> str:
    sent = ""
    if comm.message_kinds is not None and source in comm.near.regions:
        first = comm.message_kinds.sent(source, tag)[1]
        sent = f"; its first send of this sort: {first}" if first else ""
    return f"a message of rank {source} with tag {tag} on '{comm.name}' was never received{sent}"


def _is_strict(comm: Any) -> bool:
    return getattr(comm, "settings", None) is not None and comm.settings.check == "strict"
