"""Dropped communicators: closed when all ranks have dropped them without a close()

To free one is collective, and Python's garbage goes at another time on each rank. So a dropped one is kept,
and closed when the one that it was made of makes more: there all ranks say which they still have. Members of
a group, and two groups that are joined, do so when they make another one of the same ranks, on that.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from ..._lazy import once
from ...core.comm import Comm
from ...core.request import birth
from .carriers import Carriers, Spare

Like: TypeAlias = "tuple[object, ...]"  # a verb and its arguments here; (): carriers are not kept
DUP: Like = ("dup",)


class Kept(NamedTuple):
    """like: a call, the same on each rank if what it makes is; spare: what one such has left."""

    like: Like = ()
    spare: Spare | None = None


NONE_KEPT = Kept()
NOTHING = -1  # in place of a number
_HELD, _CLOSED, _DROPPED = range(3)  # by this rank; dropped: or it never had it
_SPARES = 4  # calls of one communicator whose carriers are kept
_FEW = 8  # that may be open or dropped before ranks ask each other, which takes as long as a small all_reduce
_MANY = 64  # after so many Python is asked to look for garbage: a communicator's functions point back at it


class Children:
    """What one communicator has made, by number: the same on all its ranks, also on those in no part.

    Attributes:
        spares: of those that were closed, by the call that makes such; the oldest first.
    """

    _is_over = False

    def __init__(self) -> None:
        self.spares: dict[Like, Spare] = {}
        self._known: set[int] = set()  # that are not closed
        self._closed: set[int] = set()  # those of _open that the program has closed
        self._dropped: dict[int, Comm] = {}
        self._open: list[int] = []  # numbers of those that some rank may still have
        self._next = 0
        self._room = _FEW

    def begin(self, comm: Comm) -> None:
        """For another one, on all ranks of comm: now and then close those that nobody has any more."""
        if len(self._open) >= self._room:
            if len(self._open) >= _MANY:
                gc.collect()
            self.sweep(comm)
            self._room = _FEW + 2 * len(self._open)
        self._open.append(self._next)
        self._next += 1

    def sweep(self, comm: Comm) -> None:
        """Close those that nobody has any more, and what they have made and nobody has; on all ranks.

        What one has made stays where some rank has closed that itself: all its ranks would have to be here.
        """
        if not self._open:
            return
        states = comm.bytewise_min(bytes(map(self._state, self._open)))
        gone = {number: state for number, state in zip(self._open, states, strict=True) if state != _HELD}
        self._open = [number for number in self._open if number not in gone]
        self._closed.difference_update(gone)
        for number, state in gone.items():
            if (child := self._dropped.pop(number, None)) is not None:
                if state == _DROPPED:
                    child.life.children.sweep(child)
                child.close()

    def add(self, child: Comm) -> None:
        """Note what was made last."""
        child.life.home = self, self._next - 1
        self._known.add(self._next - 1)

    def drop(self, number: int, child: Comm) -> None:
        """Keep a child that its program has dropped; in whatever call Python says so."""
        self._dropped[number] = child

    def is_dropped(self, number: int) -> bool:
        """Whether its program has dropped it, and it is not closed."""
        return number in self._dropped

    def forget(self, number: int) -> None:
        """Its program has closed it."""
        self._known.discard(number)
        if number in self._open:
            self._closed.add(number)

    def keep(self, spare: Spare, like: Like) -> None:
        """Keep the carriers of a closed one, which was made by such a call."""
        if self._is_over or like in self.spares:
            spare.give_up()
            return
        if len(self.spares) >= _SPARES:
            self.spares.pop(next(iter(self.spares))).give_up()
        self.spares[like] = spare

    def take(self, tell: Callable[[bytes], list[bytes]], like: Like) -> Spare | None:
        """What is kept for such a call, if all ranks have kept the same; else free it. On all ranks.

        Ranks that close two duplicates in another order each have those of another one.
        """
        spare = self.spares.get(like)
        said = (NOTHING if spare is None else spare.number).to_bytes(8, "little", signed=True)
        heard = tell(said)
        if spare is not None:
            del self.spares[like]
            if heard.count(said) < len(heard):
                spare.give_up()
                return None
        return spare

    def end(self) -> None:
        """Their parent is closed."""
        self._is_over = True
        while self.spares:
            self.spares.popitem()[1].give_up()

    def _state(self, number: int) -> int:
        """What has become of it here: held also while this rank does not know that it has been dropped."""
        if number in self._dropped:
            child = self._dropped[number]
            is_held = child.disagreed or not all(request.done() for request in child.to_itself)
        else:
            is_held = number in self._known  # also while Python is about to drop it
        return _HELD if is_held else _CLOSED if number in self._closed else _DROPPED


class Groups:
    """Of one communicator, those that some of its ranks have made, or with others: a list for each sort."""

    def __init__(self) -> None:
        self._children: dict[tuple[int, bytes], Children] = {}

    def note(self, group: Comm, sort: tuple[int, bytes]) -> None:
        """Note a new one, and close those that none of its ranks has any more.

        Args:
            sort: the same for those with the same ranks, which all of them make in the same order.
        """
        children = self._children.setdefault(sort, Children())
        children.begin(group)
        children.add(group)


class Life:
    """What has made a communicator, and what that has made.

    Attributes:
        home: the children among which it is, and its number there; None: nothing of ours has made it.
        like: the call that has made it, if the next one may have its carriers: the same on each of its ranks.
        born: the program's line that made it, as core.request.birth has it.
    """

    home: tuple[Children, int] | None = None
    children = once(lambda life: Children())
    groups = once(lambda life: Groups())

    def __init__(self, like: Like) -> None:
        self.like = like
        self.born = birth(None)

    @property
    def is_dropped(self) -> bool:
        """Whether its program has it no more, and only its parent does."""
        return self.home is not None and self.home[0].is_dropped(self.home[1])

    def end(self, comm: Comm, carriers: Carriers, is_unused: bool) -> Carriers | Spare:
        """comm is being closed: what is to be freed of its carriers. is_unused: nothing was sent there."""
        if "children" in vars(self):
            self.children.end()
        if self.home is None:
            return carriers
        siblings, number = self.home
        siblings.forget(number)
        if not (self.like and is_unused):
            return carriers
        spare = Spare(comm, carriers, number)
        siblings.keep(spare, self.like)
        return spare
