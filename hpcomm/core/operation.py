"""Operation descriptor: one communication as an object, a Call.

Verbs make a Call, the agreement compares its signature, observers look at it, a transport carries it out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from mpi4py import MPI

    from .comm import Comm


def _nothing(status: MPI.Status | None) -> None:
    return None


class Arguments(NamedTuple):
    """What a collective verb is called with.

    op: None where the verb does not reduce; exact: sums of floats are, whatever the number of ranks.
    """

    verb: str
    x: Any
    out: Any
    op: Any = None
    root: int = 0
    exact: bool = False


class Carrier:
    """Who carries out a call: now, in the background, or many times. None: one function of MPI's does that.

    Attributes:
        run: carries it out now; is_core: which the native core does, and compares the ranks' calls itself.
        stages: makes the generator that a Request drives.
        prepare: makes what a plan has in place of persistent requests of MPI.
        settle: lets the ranks choose a path, all together, without carrying the call out; None: there is
            nothing to choose. chosen: that path (path_choice.Choice).
    """

    settle: Callable[[], Any] | None = None
    chosen: Any = None

    def __init__(
        self,
        run: Callable[[], None] | None = None,
        stages: Callable[[], Any] | None = None,
        prepare: Callable[[], Any] | None = None,
        is_core: bool = False,
    ) -> None:
        self.run, self.stages, self.prepare, self.is_core = run, stages, prepare, is_core


BY_MPI = Carrier()


class Call:
    """One communication in words; str(call) serves messages.

    Attributes:
        comm, verb, root: as the user gave them.
        mpi: the communicator of MPI's that carries it.
        peer, tag: dest or source of a message, and its tag.
        send, recv: (contiguous array, elements per rank, MPI type), MPI.IN_PLACE or None.
        op: MPI's operator.
        moves: the verb whose MPI function carries the bytes, where it is not the call's own (ssend).
        fill: copies x into the memory that travels, where that is not x itself; done once already.
        beside: what the ranks do besides, all together, once they have agreed about the call.
        carrier: who carries it out.
        finish: what is left to do when the bytes have arrived; returns the result.
        fold: how what travels is reduced here, in the order of ranks, if it is (rank_order.Fold).
        after: what the call leaves on a device, if it has to do with one (device/staging.After).
        give: all that finish does, where nothing has to be done to the bytes; else None.
        code, count: head of the signature and number of elements (see signature.py); code 0: a message,
            of which only two ranks know.
        look: the Buffer that str(call) speaks of.
    """

    __slots__ = (
        "after", "beside", "carrier", "code", "comm", "count", "fill", "finish", "fold", "give", "look",
        "moves", "mpi", "op", "peer", "recv", "root", "send", "tag", "verb",
    )  # fmt: skip

    def __init__(self, comm: Comm, verb: str, *, peer: int = 0, tag: int = 0, code: int = 0) -> None:
        self.comm = comm
        self.mpi = comm.mpi_handle
        self.verb = verb
        self.root = 0
        self.peer = peer
        self.tag = tag
        self.code = code
        self.count = 0
        self.send: Any = None
        self.recv: Any = None
        self.op: Any = None
        self.moves = ""
        self.fill: Callable[[], None] | None = None
        self.beside: Callable[[Call], None] | None = None
        self.carrier = BY_MPI
        self.finish: Callable[[MPI.Status | None], Any] = _nothing
        self.give: Callable[[], Any] | None = None
        self.fold: Any = None
        self.after: Any = None
        self.look: Any = ""

    def again(self) -> Call:
        """The same call, to be carried out in another way."""
        made = Call(self.comm, self.verb, code=self.code)
        made.root, made.count, made.look = self.root, self.count, self.look
        return made

    def then_fill(self, step: Callable[[], object]) -> None:
        """Do step now, and at each start of a plan after what is done there already."""
        first = self.fill

        def fill() -> None:
            if first is not None:
                first()
            step()

        step()
        self.fill = fill

    def let_go(self) -> None:
        """Forget how it was carried out, once it was: that holds the call, and so its arrays, in a circle."""
        self.carrier, self.finish = BY_MPI, _nothing

    @property
    def agreed(self) -> int:
        """What ranks agree about besides code: the number of elements, and which dtype if that is opaque.

        The number is that of all elements where two groups cut into unequal blocks.
        """
        blocks = self.comm.size if self.verb == "reduce_scatter" and self.comm.is_inter else 1
        dtype = getattr(self.look, "dtype", None)
        return self.count * blocks + (0 if dtype is None else dtype.checksum)

    def __str__(self) -> str:
        if self.verb in ("send", "recv"):
            end = "dest" if self.verb == "send" else "source"
            return f"{self.verb}({self.look}, {end}={self.peer}, tag={self.tag})"
        return f"{self.verb}({self.look})"


class Observer(Protocol):
    """Who looks on, see Communicator.observe."""

    def before(self, call: Call, /) -> object: ...
    def after(self, call: Call, /) -> object: ...
