"""Registry of outstanding operations of a closed communicator, which is freed after the last of them.

MPI must keep a communicator as long as somebody may still wait for a call on it: to wait afterwards crashes
in Open MPI. So close() says that it is no longer wanted, and it is freed then or at a later close.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping
from types import MappingProxyType
from typing import Any, Protocol, TypeVar
from weakref import WeakKeyDictionary

from .._lazy import MPI
from .request import Request, abandon

_FEW = 64
_closed: list[Outstanding] = []  # in the order of their ends


Begun = TypeVar("Begun", bound="Generator[Any, Any, Any]")


class Freed(Protocol):
    """A handle of MPI's."""

    def Free(self) -> None: ...  # noqa: N802  as MPI.Comm has it


class Planned(Protocol):
    """A plan."""

    @property
    def is_under_way(self) -> bool: ...
    @property
    def call(self) -> str: ...
    @property
    def guard(self) -> Any: ...
    def close(self) -> None: ...


class Kept(Protocol):
    """What is prepared, such as own schedules."""

    def close(self) -> None: ...


class Outstanding:
    """The calls in the background and the plans of one communicator.

    Attributes:
        plans, exchanges: those that somebody has, each with what is to be called for it: of a plan to look at
            all there is from now on, given True also to be as after close(), as MPI is finalized; of an
            exchange for that alone.
        requests: of MPI's, also some that were waited for; who adds one sees that they do not outgrow room.
    """

    plans: Mapping[Planned, Callable[..., None]] = MappingProxyType({})
    exchanges: Mapping[Any, Callable[[Any], None]] = MappingProxyType({})

    def __init__(self) -> None:
        self.requests: list[MPI.Request] = []
        self.room = _FEW
        self._calls: list[Any] = []  # generators, also some that are over
        self._room_of_calls = _FEW
        self._left: list[Freed] = []
        self._schedules: Kept | None = None

    def keep_plan(self, plan: Planned, look_again: Callable[..., None]) -> None:
        vars(self).setdefault("plans", WeakKeyDictionary())[plan] = look_again

    def guard(self, call: Any) -> Any:
        """What looks at the arrays of a plan of call, which is not prepared yet (communicator/strict.py)."""

    def keep_exchange(self, exchange: Any, forget: Callable[[Any], None]) -> None:
        vars(self).setdefault("exchanges", WeakKeyDictionary())[exchange] = forget

    def begin(self, stages: Begun, call: object = None) -> Begun:
        """Note a call in the background, and return it. call: what is known of it."""
        if len(self._calls) > self._room_of_calls:
            self._calls = [each for each in self._calls if each.gi_frame]
            self._room_of_calls = _FEW + 2 * len(self._calls)
        self._calls.append(stages)
        return stages

    def sweep(self) -> None:
        """Forget requests that were waited for."""
        self.requests[:] = [each for each in self.requests if each]
        self.room = _FEW + 2 * len(self.requests)

    def forget_mpi(self, kept: list[Request[object]]) -> None:
        """MPI is finalized: nothing can be started any more, and nobody may ask for what is under way.

        kept: messages of a rank to itself.
        """
        for plan, look_again in tuple(self.plans.items()):
            look_again(plan, True)
        for exchange, forget in tuple(self.exchanges.items()):
            forget(exchange)
        abandon(*kept, *self._calls)
        kept.clear()

    def close(self, left: list[Freed], schedules: Kept | None, is_lost: bool) -> None:
        """Free what is left of the communicator, and of earlier ones, as soon as nothing is under way there.

        Args:
            is_lost: never: ranks that disagreed may have left messages, which must not arrive on the next
                communicator of that number.
        """
        self._left, self._schedules = left, schedules
        for plan in tuple(self.plans):
            if not plan.is_under_way:
                plan.close()
        if not is_lost:
            _closed.append(self)
        free(())

    def _is_any(self) -> bool:
        calls = any(each.gi_frame for each in self._calls) or any(self.requests)
        return calls or any(plan.is_under_way for plan in self.plans)

    def _free(self) -> None:
        for plan in tuple(self.plans):
            plan.close()
        if self._schedules is not None:
            self._schedules.close()
        for each in self._left:
            each.Free()


def free(left: Iterable[Freed]) -> None:
    """Free what is left of a communicator on which nothing was begun, and of earlier ones now idle."""
    for mpi in left:
        mpi.Free()
    for each in tuple(_closed):
        if not each._is_any():
            _closed.remove(each)
            each._free()
