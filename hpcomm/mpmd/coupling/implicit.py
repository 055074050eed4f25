"""Implicit coupling: both programs repeat a time window until the values between them converge.

One program, the leader, accelerates: it gives x, gets back the other one's answer, and its own answer to
that is H(x). Wanted is x = H(x).

constant   x + w r                                                  r = H(x) - x
aitken     x + w_k r, with w_k from the last two residuals (Küttler & Wall 2008)
iqn-ils    quasi-Newton with the inverse Jacobian from a least-squares problem over the differences of
           earlier iterations, those of earlier windows included (Degroote, Bathe & Vierendeels 2009)

The vectors are spread over the leader's ranks; each iteration costs one small all-reduce or all-gather.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ...communicator.communicator import Communicator
from ...core.types import Floats
from ...errors import ConfigError, HpcommError
from ..coupled_field import Field, host, scatter
from ..link import Link
from .coupling_clock import is_number

SCHEMES = ("constant", "aitken", "iqn-ils")
_SINGULAR = 1e-10  # columns that others span up to this are left out


class NotConvergedError(HpcommError):
    """A window of an implicit coupling did not converge."""


class Accelerator:
    """The next x from x and H(x).

    Args:
        comm: the ranks that x is spread over.
        scheme: "constant", "aitken" or "iqn-ils".
        relaxation: w of the first iteration; of all, if constant.
        reuse: how many earlier windows iqn-ils keeps the differences of.
    """

    def __init__(
        self, comm: Communicator, scheme: str = "iqn-ils", *, relaxation: float = 0.5, reuse: int = 3
    ) -> None:
        if scheme not in SCHEMES:
            raise ConfigError(f"there is no scheme {scheme!r}", "implicit", f"one of {', '.join(SCHEMES)}")
        if not is_number(relaxation, above=0):
            raise ConfigError(f"relaxation must be above 0, not {relaxation!r}", "implicit", "relaxation=0.5")
        if not isinstance(reuse, int) or reuse < 0:
            raise ConfigError(f"reuse must be a whole number from 0, not {reuse!r}", "implicit", "reuse=3")
        self.comm = comm
        self.scheme = scheme
        self.relaxation = relaxation
        self.reuse = reuse
        self.residuals: list[float] = []  # of this window, relative
        self._factor = relaxation
        self._last: tuple[Floats, Floats] | None = None  # r, H(x)
        self._columns: list[list[tuple[Floats, Floats]]] = [[]]  # (difference of r, of H) by window

    def begin_window(self) -> None:
        """Forget what holds for one window only."""
        self._last = None
        self.residuals = []
        self._factor = self.relaxation if abs(self._factor) < 1e-3 else self._factor
        self._columns = [[], *self._columns][: self.reuse + 1]

    def step(self, x: Floats, answer: Floats) -> Floats:
        """The next x. Notes the relative residual |H(x) - x| / |H(x)|. Collective over comm."""
        r = answer - x
        norms = self._dots((r, r), (answer, answer))
        self.residuals.append(float(np.sqrt(norms[0] / norms[1])) if norms[1] else float(np.sqrt(norms[0])))
        made = getattr(self, f"_{self.scheme.replace('-', '_')}")(x, r, answer)
        self._last = (r.copy(), answer.copy())
        return np.asarray(made)

    def _constant(self, x: Floats, r: Floats, answer: Floats) -> Floats:
        return x + self.relaxation * r

    def _aitken(self, x: Floats, r: Floats, answer: Floats) -> Floats:
        if self._last is not None:
            change = r - self._last[0]
            along, square = self._dots((self._last[0], change), (change, change))
            self._factor = -self._factor * along / square if square else self._factor
        else:
            self._factor = float(np.copysign(min(abs(self._factor), self.relaxation), self._factor))
        return x + self._factor * r

    def _iqn_ils(self, x: Floats, r: Floats, answer: Floats) -> Floats:
        if self._last is not None:
            self._columns[0].insert(0, (r - self._last[0], answer - self._last[1]))
        columns = [pair for window in self._columns for pair in window]
        if not columns:
            return x + self.relaxation * r
        kept, weights = self._least_squares([v for v, _ in columns], -r)
        steps = (weights[i] * columns[k][1] for i, k in enumerate(kept))
        return answer + sum(steps, start=np.zeros_like(answer))

    def _least_squares(self, columns: list[Floats], right: Floats) -> tuple[list[int], Floats]:
        """min |V c - right| over all ranks by a QR decomposition of local ones; newer columns win."""
        local = np.linalg.qr(np.column_stack([*columns, right]), mode="r")
        size = len(columns) + 1
        padded = np.zeros((size, size))
        padded[: len(local)] = local
        stacked = self.comm.all_gather(padded).reshape(-1, size)
        whole = np.asarray(np.linalg.qr(stacked, mode="r"))
        diagonal = np.abs(np.diag(whole))[:-1]
        norms = np.linalg.norm(whole[:, :-1], axis=0)
        kept = [k for k in range(size - 1) if diagonal[k] > _SINGULAR * norms[k] > 0]
        if not kept:
            return [], np.empty(0)
        found = np.linalg.lstsq(whole[:, kept], whole[:, -1], rcond=None)[0]
        return kept, np.asarray(found)

    def _dots(self, *pairs: tuple[Floats, Floats]) -> Floats:
        mine = np.array([float(np.vdot(a, b)) for a, b in pairs])
        return np.asarray(self.comm.all_reduce(mine))


def windows(
    link: Link,
    field: Field | None = None,
    accelerator: Accelerator | None = None,
    *,
    tolerance: float = 1e-6,
    most: int = 50,
    save: Callable[[], object] = lambda: None,
    restore: Callable[[Any], None] = lambda state: None,
) -> Iterator[int]:
    """The iterations of one time window, until it has converged: 1, 2, 3, ...

    The leader names the field x that it gives, and an accelerator, and in each iteration gets, solves and
    puts its answer H(x) into field.values (without putting the field: that is done here). The other
    program gets x, solves, and puts.

    Args:
        tolerance: of |H(x) - x| / |H(x)|; the leader's counts.
        most: iterations before NotConvergedError, on both sides; the leader's counts.
        save: called once, before the first iteration; returns the state of the solver.
        restore: called with that state before every further iteration.

    Example:
        >>> for k in windows(link, temperature, accelerator, save=solver.save, restore=solver.restore):
        ...     link.get(flux)
        ...     temperature.values[:] = solver.step(flux.values)
    """
    if (field is None) != (accelerator is None):
        what = "the leader of an implicit coupling has a field and an accelerator, the other program neither"
        raise ConfigError(what, "windows", "windows(link, field, Accelerator(me.comm))")
    if not is_number(tolerance, above=0) or not isinstance(most, int) or most < 1:
        what = f"tolerance must be above 0, and most from 1, not {tolerance!r} and {most!r}"
        raise ConfigError(what, "windows", "tolerance=1e-6, most=50")
    state = save()
    if field is None or accelerator is None:
        yield from _followed(link, state, restore)
        return
    accelerator.begin_window()
    link.put(field)
    for k in range(1, most + 1):
        x = _vector(field)
        yield k
        following = accelerator.step(x, _vector(field))
        verdict = 1 if accelerator.residuals[-1] < tolerance else 0 if k < most else 2
        link.tell(verdict)
        if verdict:
            break
        made = following.view(complex if field.dtype.kind == "c" else float).astype(field.dtype)
        scatter(field.values, slice(0, len(field.points)), made.reshape(-1, *field.shape))
        link.put(field)
        restore(state)
    if verdict == 2:
        residual = f"|H(x) - x| / |H(x)| is {accelerator.residuals[-1]:.1e}"
        raise _not_converged(link, f"after {most} iterations {residual}")


def _vector(field: Field) -> Floats:
    """A copy of a field's values as real numbers, one behind the other."""
    return np.array(host(field.values), complex if field.dtype.kind == "c" else float).ravel().view(float)


def _followed(link: Link, state: object, restore: Callable[[Any], None]) -> Iterator[int]:
    k = 0
    while True:
        k += 1
        yield k
        verdict = link.hear()
        if verdict == 2:
            raise _not_converged(link, f"'{link.peer}' gave up after {k} iterations")
        if verdict == 1:
            return
        restore(state)


def _not_converged(link: Link, what: str) -> NotConvergedError:
    what = f"the coupling of '{link.name}' and '{link.peer}' did not converge: {what}"
    hint = "a smaller time window, a smaller relaxation, or scheme='iqn-ils'"
    return NotConvergedError(what, "implicit coupling", hint)
