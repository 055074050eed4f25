"""Requests as mpi4py has them, over requests of hpcomm; both kinds may stand in one list."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import wraps
from operator import itemgetter
from typing import Any, Literal, Self, TypeVar

from mpi4py import MPI

from ..core import patience
from ..core.patience import Pause
from ..core.request import Request as OwnRequest
from ..core.request import abandon
from ..core.waiting import wait_any
from ..errors import MismatchError
from .surface import Like

F = TypeVar("F", bound=Callable[..., object])
Then = Callable[[Any], object]
Statuses = list[MPI.Status] | None


def is_short(error: MismatchError, status: MPI.Status | None) -> bool:
    """Whether a message was only shorter than its array, which MPI allows: status says so to the program."""
    if error.lacks <= 0:
        return False
    note(status, error.source, error.tag, error.nbytes)
    return True


def note(status: MPI.Status | None, source: int, tag: int, nbytes: int) -> None:
    """Tell the program where a message came from."""
    if status is not None:
        status.Set_source(source)
        status.Set_tag(tag)
        status.Set_elements(MPI.BYTE, nbytes)
        status.Set_error(MPI.SUCCESS)


class Request(MPI.Request, metaclass=Like):
    """A request of hpcomm's, or one of MPI's own.

    then: makes of what has come what the program gets, or brings it to its place.
    """

    _under: OwnRequest[object] | None = None
    _then: Then | None = None
    _cancelled = False

    @classmethod
    def over(cls, under: OwnRequest[object], then: Then | None = None) -> Self:
        """The program's handle of a request."""
        made = cls()
        made._under, made._then = under, then
        return made

    def __bool__(self) -> bool:
        return self._under is not None or super().__bool__()

    def __eq__(self, other: object, /) -> bool:
        if self._under is not None or getattr(other, "_under", None) is not None:
            return self is other
        return super().__eq__(other)

    def __ne__(self, other: object, /) -> bool:
        return not self == other

    __hash__ = object.__hash__

    def _take(self, status: MPI.Status | None) -> object:
        """Wait for the end; the handle is null then."""
        under = self._under
        assert under is not None
        try:
            got = None if self._cancelled else under.wait()
        except MismatchError as error:
            self._under = None
            if not is_short(error, status):
                raise
            got = under.result
        self._under = None
        seen = under.status
        if status is not None:
            status.Set_cancelled(self._cancelled)
            if seen is None or self._cancelled:
                note(status, MPI.ANY_SOURCE, MPI.ANY_TAG, 0)
            elif seen.nbytes or seen.source != -1:
                note(status, seen.source, seen.tag, seen.nbytes)
        return None if self._then is None else self._then(got)

    def Wait(self, status: MPI.Status | None = None) -> Literal[True]:  # noqa: N802
        if self._under is None:
            _ask([self], all)
            return super().Wait(status)
        self._take(status)
        return True

    def wait(self, status: MPI.Status | None = None) -> Any:
        if self._under is None:
            _ask([self], all)
            return super().wait(status)
        return self._take(status)

    def Test(self, status: MPI.Status | None = None) -> bool:  # noqa: N802
        return super().Test(status) if self._under is None else self.test(status)[0]

    def test(self, status: MPI.Status | None = None) -> tuple[bool, Any | None]:
        if self._under is None:
            return super().test(status)
        return (True, self._take(status)) if self._is_over() else (False, None)

    def Get_status(self, status: MPI.Status | None = None) -> bool:  # noqa: N802
        if self._under is None:
            return super().Get_status(status)
        return self._is_over()

    get_status = Get_status

    def Cancel(self) -> None:  # noqa: N802
        """Take a receive back whose message has not begun to come; anything else goes on."""
        if self._under is None:
            super().Cancel()
        elif not self._under.done():
            self._cancelled = self._under.cancel()

    cancel = Cancel

    def Free(self) -> None:  # noqa: N802
        """Let it end unseen."""
        if self._under is None:
            super().Free()
        else:
            _freed[:] = [each for each in _freed if not each.done()]
            _freed.append(self._under)
            self._under = None

    def free(self) -> None:
        if self:
            self.Free()

    def _is_over(self) -> bool:
        return self._under is None or self._cancelled or self._under.done()


_freed: list[OwnRequest[object]] = []


def _own(request: MPI.Request) -> OwnRequest[object] | None:
    return getattr(request, "_under", None)


# -- where handlers of signals are to run: between two steps of Python's (core/patience.py) -----------------
def _ask(requests: Sequence[MPI.Request], which: Callable[[Iterator[bool]], bool]) -> None:
    """Ask MPI's own again and again until all, or any, are complete; elsewhere MPI waits for them itself."""
    pause = Pause()
    while (
        patience.is_signalled and any(requests) and not which(each.Get_status() for each in requests if each)
    ):
        pause.sleep()


def in_turns(verb: str, mpi: MPI.Comm, *given: Any, status: MPI.Status | None = None, **named: Any) -> None:
    """What mpi4py's blocking Send, Ssend, Recv or Sendrecv does.

    After a handler that raises, a receive is taken back; memory of what goes on is kept.
    """
    of_receive = {} if status is None else {"status": status}
    try:
        begin = getattr(mpi, background(verb)) if patience.is_signalled else None
        going = begin and Request(begin(*given, **named))
    except NotImplementedError:  # Isendrecv, by an older MPI
        going = None
    if going is None:
        getattr(mpi, verb)(*given, **named, **of_receive)
        return
    seen = MPI.Status()
    try:
        going.Wait(status)
    except MPI.Exception:  # such as of a message that is too long
        raise
    except BaseException as raised:
        if verb == "Recv":
            going.Cancel()
            going.Wait(seen)
        if not seen.Is_cancelled():
            patience.note_interrupted(raised, verb, verb == "Recv")
            abandon(going, given, named)
        raise


def background(verb: str) -> str:
    """mpi4py's name of the same in the background, or of a probe that does not wait."""
    return f"I{verb.lower()}" if verb[0].isupper() else f"i{verb}"


# -- several at once -----------------------------------------------------------------------------------
def _ended(requests: Sequence[MPI.Request], which: Sequence[int], statuses: Statuses) -> list[object]:
    """Wait for those at these places, hpcomm's first: while these wait, MPI moves its own on."""
    seen = [MPI.Status() for _ in which]
    results: list[Any] = [None] * len(which)
    for at in sorted(range(len(which)), key=lambda at: _own(requests[which[at]]) is None):
        results[at] = requests[which[at]].wait(seen[at])
    if statuses is not None:
        statuses[: len(seen)] = seen
    return results


def _over(requests: Sequence[MPI.Request]) -> Iterator[int]:
    """The places of those that are complete and that nobody has waited for."""
    return (i for i, each in enumerate(requests) if each and each.Get_status())


def _some(requests: Sequence[MPI.Request]) -> list[int]:
    """Wait until some are complete: which."""
    own = [under for each in requests if (under := _own(each)) is not None]
    pause = Pause()
    while not (ready := list(_over(requests))):
        if len(own) == sum(map(bool, requests)):
            with suppress(MismatchError):  # who takes the request hears of it
                wait_any(own)
        else:
            pause.sleep()
    return ready


def _takes_both(taken: Callable[[Any], object]) -> Callable[[F], F]:
    """What is below is what mpi4py's function of this name does with a list that has requests of hpcomm's.

    taken: what of its result the function returns whose name begins with a capital.
    """

    def note(mixed: F) -> F:
        name = mixed.__name__[1:]
        _set(name, mixed, lambda got: got)
        _set(name.capitalize(), mixed, taken)
        return mixed

    return note


def _set(name: str, mixed: Callable[..., object], taken: Callable[[Any], object]) -> None:
    theirs = getattr(MPI.Request, name)

    @wraps(theirs)
    def function(requests: Sequence[MPI.Request], *more: object, **named: object) -> object:
        if any(_own(each) is not None for each in requests):
            return taken(mixed(requests, *more, **named))
        if name.startswith(("wait", "Wait")):
            _ask(requests, all if name.endswith("all") else any)
        return theirs(requests, *more, **named)

    setattr(Request, name, staticmethod(function))


@_takes_both(lambda got: True)
def _waitall(requests: Sequence[MPI.Request], statuses: Statuses = None) -> list[object]:
    return _ended(requests, range(len(requests)), statuses)


@_takes_both(itemgetter(0))
def _testall(requests: Sequence[MPI.Request], statuses: Statuses = None) -> tuple[bool, list[object] | None]:
    return (True, _waitall(requests, statuses)) if _get_status_all(requests) else (False, None)


@_takes_both(itemgetter(0))
def _waitany(requests: Sequence[MPI.Request], status: MPI.Status | None = None) -> tuple[int, object]:
    i = _some(requests)[0]
    return i, requests[i].wait(status)


@_takes_both(itemgetter(slice(2)))
def _testany(requests: Sequence[MPI.Request], status: MPI.Status | None = None) -> tuple[int, bool, object]:
    i, is_over = _get_status_any(requests)
    return i, is_over, requests[i].wait(status) if is_over else None


@_takes_both(itemgetter(0))
def _waitsome(requests: Sequence[MPI.Request], statuses: Statuses = None) -> tuple[list[int], list[object]]:
    ready = _some(requests)
    return ready, _ended(requests, ready, statuses)


@_takes_both(itemgetter(0))
def _testsome(requests: Sequence[MPI.Request], statuses: Statuses = None) -> tuple[list[int], list[object]]:
    ready = _get_status_some(requests)
    return ready, _ended(requests, ready, statuses)


@_takes_both(lambda got: got)
def _get_status_all(requests: Sequence[MPI.Request], statuses: Statuses = None) -> bool:
    return all(each.Get_status() for each in requests)


@_takes_both(lambda got: got)
def _get_status_any(requests: Sequence[MPI.Request], status: MPI.Status | None = None) -> tuple[int, bool]:
    i = next(_over(requests), None)
    return (MPI.UNDEFINED, False) if i is None else (i, True)


@_takes_both(lambda got: got)
def _get_status_some(requests: Sequence[MPI.Request], statuses: Statuses = None) -> list[int]:
    return list(_over(requests))
