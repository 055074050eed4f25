"""Whether all ranks hold the same values, and where the first difference is."""

from __future__ import annotations

from typing import TypeVar

from ..._lazy import np
from ...agree.agreement import refusing
from ...agree.differences import Call, alone, holding, joined
from ...agree.values import bits, crc_of
from ...core.types import AnyArray
from ...errors import MismatchError, at_line, demand, where
from ..payloads.objects import Objects
from .collectives import Collectives
from .leaves import Leaf, array_of, crc_of_all, leaves
from .reductions import Reductions

T = TypeVar("T")
_BLOCK = 1 << 13  # elements whose checksum is compared, and that are sent in the end
_SHOWN = 60  # characters of a value


class Same(Collectives, Reductions, Objects):
    """Comparison of values."""

    def same(self, x: T, what: str = "values") -> T:
        """Check that all ranks hold the same values, bit for bit. Collective.

        Of arrays dtype, shape and elements count, not the library: a numpy array and a torch tensor may be
        the same. NaNs with the same bits are equal; 0.0 and -0.0 are not. Of dicts the order does not count.
        Of a torch module or optimizer its state_dict is compared, of any other object what pickle would
        write of it: random states, dataclasses. Functions and types count by their names.

        Args:
            x: array, number, text, or a dict, list, tuple, set or object of these, of any depth.
            what: what it is called in the error.

        Returns:
            x.

        Raises:
            MismatchError: they are not. It says which ranks hold what at the first place that differs.
            UsageError: x holds something that cannot be compared, such as a lock.

        Cost: a checksum (CRC-32) of all values, and an all_reduce of 16 bytes; more only where they differ.

        Example (2 ranks):
            >>> weights = comm.same(comm.broadcast(weights), "weights")
        """
        comm = self.context
        comm.check_one_group("same")
        with refusing("same", comm):
            demand(what, str, "what", "same", 'a text, such as "weights"')
            found = {leaf.path: leaf for leaf in leaves(x)}
        whole = crc_of_all(found.values())
        both = np.array([whole, -whole])
        self.all_reduce(both, "max", both)
        if both[0] != -both[1]:
            raise self._difference(found, what)
        return x

    def _difference(self, found: dict[str, Leaf], what: str) -> MismatchError:
        """The error; all ranks look for the first difference together."""
        path = self._first_path(found)
        leaf, at = found.get(path), ""
        text, crc = ("nothing", 0) if leaf is None else (_text(leaf), leaf.crc)
        kinds = set(self.all_gather_object("" if leaf is None else leaf.kind))
        if len(kinds) == 1 and leaf is not None and (array := array_of(leaf)) is not None:
            element = self._first_element(array)
            at = f"[{', '.join(map(str, np.unravel_index(element, _shape(leaf))))}]" if array.size > 1 else ""
            text = _element(array, leaf, element)
        calls = self.all_reduce_object(
            {Call(f"{text}{at_line()}", str(crc)): alone(self.context.rank)}, joined
        )
        told = f"{what} differ between ranks{f', first at {path}{at}' if path or at else ''}.\n"
        hint = "broadcast those of one rank, or look for what changes them on some ranks only"
        return MismatchError(told + "\n".join(holding(calls)), where("same", self.context), hint)

    def _first_path(self, found: dict[str, Leaf]) -> str:
        """The first leaf that is not the same on all ranks, in the order of rank 0."""
        first = self.broadcast_object([(leaf.path, leaf.crc) for leaf in found.values()])
        order = {path: i for i, (path, _) in enumerate(first)}
        wrong = [
            (i, path) for i, (path, crc) in enumerate(first) if path not in found or found[path].crc != crc
        ]
        wrong += [(len(first), path) for path in found if path not in order]
        nearest = self.all_gather_object(min(wrong, default=(len(first) + 1, "")))
        return min(nearest)[1]

    def _first_element(self, array: AnyArray) -> int:
        """The number of the first element that is not that of rank 0 everywhere."""
        rows = bits(array)
        sums = np.array([crc_of(rows[i : i + _BLOCK]) for i in range(0, len(rows), _BLOCK)], np.uint32)
        block = self._first(self.broadcast(sums) != sums)
        mine = rows[block * _BLOCK : (block + 1) * _BLOCK]
        return block * _BLOCK + self._first((self.broadcast(mine) != mine).any(1))

    def _first(self, differs: AnyArray) -> int:
        """The lowest index at which something differs on some rank."""
        found = np.flatnonzero(differs)
        return int(self.all_reduce(int(found[0]) if found.size else len(differs), "min"))


def _shape(leaf: Leaf) -> tuple[int, ...]:
    return tuple(getattr(leaf.value, "shape", ()) or (len(leaf.value),))


def _text(leaf: Leaf) -> str:
    """A leaf in words: its kind, and of a plain value what it is."""
    told = leaf.kind
    if isinstance(leaf.value, (bool, int, float, complex, str, bytes)) and array_of(leaf) is None:
        told += f" {leaf.value!r}"
    return told if len(told) <= _SHOWN else f"{told[:_SHOWN]}..."


def _element(array: AnyArray, leaf: Leaf, index: int) -> str:
    """An element, with its bits."""
    told = bits(array[index : index + 1])[0, ::-1].tobytes().hex()
    try:
        value = leaf.value.reshape(-1)[index] if hasattr(leaf.value, "reshape") else array[index]
        shown = str(getattr(value, "item", lambda: value)())
    except Exception:  # whatever the array is, its bits are told
        return f"0x{told}"
    return f"{shown} (0x{told})"
