"""Global fixers: what a mapping makes gets the integral of what was given (conserve).

The giver's ranks add up its values times areas, and the first of them sends the sum along with the values.
The taker's ranks do the same with what they have made of these. Sums are exact, and rounded once, so they do
not depend on the number of ranks.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..._lazy import NDArray
from ...communicator.communicator import Communicator
from ...core.types import AnyArray
from ...fields.numbers import PIECE, exact_sums
from ..coupled_field import Load, host
from .wire import Part


class Fixer:
    """One side's end of a field with such. Its methods are collective over the program.

    Args:
        how: "global" adds the same to all points; "glbpos" multiplies all, so no sign changes.
        part: of the field whose values are added up.
        area: (points,): what counts of each.
        ranks: of the other program that the sum goes to, or comes from.

    Attributes:
        part: the giver's integral, of each number per point, as it travels.
    """

    def __init__(
        self, how: str, local: Communicator, part: Part, area: NDArray[np.float64], ranks: Sequence[int]
    ) -> None:
        self._how, self._local, self.area = how, local, area
        field = part.field
        dtype = np.result_type(part.dtype, np.float64)
        whole = Load(f"integral of {field.name}", np.zeros((1, *field.shape), dtype))
        self.part = Part(whole, [(rank, slice(0, 1)) for rank in ranks], dtype)

    def give(self, values: object) -> None:
        """Add up what is to be sent."""
        self.part.field.values[0] = self._sums(host(values))[0].reshape(self.part.field.shape)

    def fix(self, made: AnyArray) -> AnyArray:
        """What was made, (points, ...), with the integral that came. Values that are nan stay so."""
        given = self.part.field.values.reshape(-1)
        mine, area = self._sums(made)
        wide: AnyArray = made.reshape(len(made), -1).astype(given.dtype)
        more = np.divide(given - mine, area, out=np.zeros_like(given), where=area != 0)
        if self._how == "glbpos":
            factor = np.divide(given, mine, out=np.ones_like(given), where=mine != 0)
            wide, more = wide * factor, np.where(mine != 0, 0, more)
        return np.asarray((wide + more).reshape(made.shape))

    def _sums(self, values: AnyArray) -> tuple[AnyArray, AnyArray]:
        """(integrals of the numbers of a point, areas of those that are no nan), over all ranks."""
        kind, area = self.part.dtype, self.area[:, None]
        flat = values.reshape(len(area), int(np.prod(self.part.field.shape, dtype=np.int64))).astype(kind)
        there = ~np.isnan(flat)
        terms = np.concatenate([area * np.where(there, flat, 0), area * there], axis=1).astype(kind)
        columns = terms.view(np.float64).T
        pieces = ([*columns[:, low : low + PIECE]] for low in range(0, len(area), PIECE))
        sums: AnyArray = np.array(exact_sums(self._local, pieces, len(columns)), np.float64).view(kind)
        mine, counted = np.split(sums, 2)
        return mine, counted
