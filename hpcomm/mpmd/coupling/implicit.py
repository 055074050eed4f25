"""Implicit coupling: programs repeat a time window until the values between them converge.

serial     One program, the leader, accelerates what it gives: x. The other one solves with x, then the leader
           with the answer, which makes H(x).
parallel   All programs, of two or more, solve at once, with what the others gave an iteration before. All
           accelerate what they give, together: x is spread over the ranks of all.

Wanted is x = H(x). Of the residual r = H(x) - x:

constant   x + w r
aitken     x + w_k r, with w_k from the last two residuals (Küttler & Wall 2008)
iqn-ils    quasi-Newton with the inverse Jacobian from a least-squares problem over the differences of
           earlier iterations, those of earlier windows included (Degroote, Bathe & Vierendeels 2009)
iqn-imvj   the same, but the Jacobian of earlier windows is kept, and changed as little as the differences of
           this one demand (Lindner, Mehl, Scheufele & Uekermann 2015)

Each iteration costs four small all-reduces, and of iqn one all-gather; of iqn-imvj one for each window that
is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from itertools import chain
from typing import Any

import numpy as np

from ..._lazy import MPI
from ...communicator.communicator import Communicator
from ...core.types import AnyArray, Floats
from ...errors import ConfigError, HpcommError
from ..coupled_field import Field, host, scatter
from ..link import Link
from .coupling_clock import is_number
from .waveform import OutgoingWaveform, Sample, between, waveforms

SCHEMES = ("constant", "aitken", "iqn-ils", "iqn-imvj")
_DONE, _GIVEN_UP = 1, 2  # verdicts; 0: once more


class NotConvergedError(HpcommError):
    """A window of an implicit coupling did not converge."""


@dataclass(eq=False, repr=False)
class Accelerator:
    """The next x from x and H(x).

    Args:
        comm: the ranks that x is spread over: me.comm of a serial coupling's leader; me.together(...) of a
            parallel one, the same in all its programs.
        scheme: "constant", "aitken", "iqn-ils" or "iqn-imvj".
        relaxation: w of the first iteration; of all, if constant.
        reuse: how many earlier windows iqn keeps the differences of.
        preconditioner: "residual-sum" weighs several fields by their residuals in this window, so that their
            units do not matter; "none".
        filter_limit: of iqn: a difference is left out if newer ones span it but for this share (QR2).

    Attributes:
        residuals: of each iteration of this window, ``|H(x) - x| / |H(x)|`` of the field where it is largest.
        by_field: of the last iteration, the same for each field, by "program.field".
    """

    comm: Communicator
    scheme: str = "iqn-ils"
    _: KW_ONLY
    relaxation: float = 0.5
    reuse: int = 3
    preconditioner: str = "residual-sum"
    filter_limit: float = 1e-8

    def __post_init__(self) -> None:
        scheme, weighing, limit = self.scheme, self.preconditioner, self.filter_limit
        w, reuse, within = self.relaxation, self.reuse, is_number(limit, above=0) and limit < 1
        whole, is_known = isinstance(reuse, int) and reuse >= 0, weighing in ("residual-sum", "none")
        rules = (
            (scheme in SCHEMES, f"there is no scheme {scheme!r}", f"one of {', '.join(SCHEMES)}"),
            (is_number(w, above=0), f"relaxation must be above 0, not {w!r}", "relaxation=0.5"),
            (whole, f"reuse must be a whole number from 0, not {reuse!r}", "reuse=3"),
            (is_known, f"there is no preconditioner {weighing!r}", "'residual-sum', or 'none'"),
            (within, f"filter_limit must lie between 0 and 1, not {limit!r}", "filter_limit=1e-2"),
        )
        for is_right, what, hint in rules:
            if not is_right:
                raise ConfigError(what, "implicit", hint)
        self.residuals: list[float] = []
        self.by_field: dict[str, float] = {}
        self._factor = self.relaxation
        self._last: tuple[Floats, Floats] | None = None  # r, H(x)
        self._columns: list[list[tuple[Floats, Floats]]] = [[]]  # (difference of r, of H) by window
        self._names: list[str] = []  # of the fields of all ranks
        self._sums: Floats = np.empty(0)  # of the relative residuals of this window's iterations, by name

    def begin_window(self, names: Iterable[str] = ("x",)) -> None:
        """Forget what holds for one window only. Collective over comm. names: of the fields given here."""
        self._last = None
        self.residuals = []
        self._factor = self.relaxation if abs(self._factor) < 1e-3 else self._factor
        self._columns = [[], *self._columns][: self.reuse + 1]
        self._names = sorted({*chain.from_iterable(self.comm.all_gather_object([*names]))})
        self._sums = np.zeros(len(self._names))

    def step(self, x: Mapping[str, Floats], answer: Mapping[str, Floats]) -> dict[str, Floats]:
        """The next x of each field, of the same lengths; notes the residuals. Collective over comm."""
        r = {name: answer[name] - x[name] for name in x}
        squares = np.zeros((2, len(self._names)))
        for name in x:
            squares[:, self._names.index(name)] = (
                np.vdot(r[name], r[name]),
                np.vdot(answer[name], answer[name]),
            )
        norms, whole = np.sqrt(self.comm.all_reduce(squares))
        relative = np.divide(norms, whole, where=whole != 0, out=norms.copy())
        self.by_field = dict(zip(self._names, relative.tolist(), strict=True))
        self.residuals.append(float(np.max(relative, initial=0.0)))
        weights = self._weights(norms)
        spread = [np.full(len(r[name]), weights[self._names.index(name)]) for name in x]
        end = np.cumsum([0, *map(len, spread)])
        made = self._next(*map(_joined, (x.values(), r.values(), answer.values(), spread)))
        return {name: made[a:b] for name, a, b in zip(x, end[:-1], end[1:], strict=True)}

    def _agree(self, limits: Mapping[str, float], is_last: bool) -> int:
        """_DONE if all residuals are below limits; else _GIVEN_UP if one is no number, or is_last.

        Collective over comm. limits: of the fields given here, by the names of begin_window.
        """
        is_done = all(self.by_field[name] < limit for name, limit in limits.items())
        gives_up = is_last or not np.isfinite(self.residuals[-1])
        given_up, more = self.comm.all_reduce(np.array([gives_up and not is_done, not is_done]), "max")
        return _GIVEN_UP if given_up else 0 if more else _DONE

    def _weights(self, norms: Floats) -> Floats:
        """Of each field: what brings them to one size."""
        total = np.sqrt(norms @ norms)
        if self.preconditioner == "none" or not total > 0:
            return np.ones(len(norms))
        self._sums += norms / total
        return np.divide(1.0, self._sums, where=self._sums > 0, out=np.ones(len(norms)))

    def _next(self, x: Floats, r: Floats, answer: Floats, weights: Floats) -> Floats:
        last, self._last = self._last, (r, answer)
        if not np.isfinite(self.residuals[-1]):
            return answer
        if self.scheme == "constant":
            return x + self.relaxation * r
        if self.scheme == "aitken":
            return x + self._aitken(r, last, weights) * r
        self._keep(r, answer, last)
        windows = [[*chain(*self._columns)]] if self.scheme == "iqn-ils" else self._columns
        knows, change = self._applied(-r, windows, weights)
        return answer + change if knows else x + self.relaxation * r

    def _keep(self, r: Floats, answer: Floats, last: tuple[Floats, Floats] | None) -> None:
        """Keep the differences from the last iteration; forget those that do not fit to r.

        Of waveforms that somewhere have another number of steps now nothing is known.
        """
        lengths = [{len(column) for column, _ in window} for window in self._columns]
        lengths.append(set() if last is None else {len(last[0])})
        fits = self.comm.all_reduce(np.array([each <= {len(r)} for each in lengths]), "min")
        self._columns = [each if fit else [] for each, fit in zip(self._columns, fits[:-1], strict=True)]
        if last is not None and fits[-1]:
            self._columns[0].insert(0, (r - last[0], answer - last[1]))

    def _aitken(self, r: Floats, last: tuple[Floats, Floats] | None, weights: Floats) -> float:
        if last is None:  # the last one of the window before, but no more than the first of all
            self._factor = float(np.copysign(min(abs(self._factor), self.relaxation), self._factor))
            return self._factor
        change = (r - last[0]) * weights
        mine = np.array([np.vdot(last[0] * weights, change), np.vdot(change, change)])
        along, square = self.comm.all_reduce(mine)
        self._factor = -self._factor * float(along / square) if square else self._factor
        return self._factor

    def _applied(
        self, right: Floats, windows: Sequence[Sequence[tuple[Floats, Floats]]], weights: Floats
    ) -> tuple[bool, Floats]:
        """The inverse Jacobian times right; whether anything is known of it. Newer windows come first.

        Of what the differences of one window do not span, the older ones tell. That is the multi-vector
        update J + (W - J V) V⁺, without J.
        """
        made, knows = np.zeros_like(right), False
        for columns in filter(None, windows):
            kept, shares = self._least_squares([v * weights for v, _ in columns], right * weights)
            for k, share in zip(kept, shares, strict=True):
                right = right - share * columns[k][0]
                made += share * columns[k][1]
                knows = True
        return knows, made

    def _least_squares(self, columns: list[Floats], right: Floats) -> tuple[list[int], Floats]:
        """min |V c - right| over all ranks, by a QR decomposition of local ones; newer columns win."""
        local = np.linalg.qr(np.column_stack([*columns, right]), mode="r")
        size = len(columns) + 1
        padded = np.zeros((size, size))
        padded[: len(local)] = local
        stacked = self.comm.all_gather(padded).reshape(-1, size)
        whole = np.asarray(np.linalg.qr(stacked, mode="r"))
        kept: list[int] = []
        basis = np.zeros((size, 0))
        for k, column in enumerate(whole.T[:-1]):
            rest = column - basis @ (basis.T @ column)
            rest -= basis @ (basis.T @ rest)  # twice is enough
            norm = np.linalg.norm(rest)
            if norm > self.filter_limit * np.linalg.norm(column):
                kept.append(k)
                basis = np.column_stack([basis, rest / norm])
        if not kept:
            return [], np.empty(0)
        found = np.linalg.lstsq(whole[:, kept], whole[:, -1], rcond=None)[0]
        return kept, np.asarray(found)


def _joined(parts: Iterable[Floats]) -> Floats:
    return np.concatenate([np.empty(0), *parts])


class _Given:
    """A field that is accelerated: its values, or its waveform in this window."""

    def __init__(self, field: Field, links: Sequence[Link]) -> None:
        self.field = field
        self.links = [link for link in links if field.name in link.gives]
        if not self.links:
            what = f"no program of this coupling takes {field.name!r}"
            raise ConfigError(what, "windows", "the links to those that take it")
        sides = [link.gives[field.name] for link in self.links]
        self._waves = [side for side in sides if isinstance(side, OutgoingWaveform)]
        self._begin = Sample(0.0, np.array(host(field.values)))
        self._x = [self._begin]
        for wave in self._waves:
            self._begin = wave.at_begin()
            self._x = [Sample(wave.schedule.window(wave.version)[1], self._begin.values)]

    def put(self, *, first: bool = False) -> None:
        """Send x; at first what held at the end of the window before."""
        for wave in self._waves:
            wave.is_held = True
            wave.send([self._begin] * first + self._x)
        for link in () if self._waves else self.links:
            link.put(self.field)

    def both(self) -> tuple[Floats, Floats]:
        """x and H(x) as real numbers, one behind the other."""
        answer, x = [Sample(0.0, host(self.field.values))], [self._x[0].values]
        if self._waves:
            answer = self._waves[0].samples
            x = [between([self._begin, *self._x], t) for t, _ in answer]
        self._x = answer
        return _vector(x), _vector([values for _, values in answer])

    def set(self, x: Floats) -> None:
        """Set x to such numbers."""
        rows = x.view(complex) if self.field.dtype.kind == "c" else x
        made = rows.astype(self.field.dtype).reshape(len(self._x), *self._begin.values.shape)
        self._x = [Sample(t, values) for (t, _), values in zip(self._x, made, strict=True)]
        if not self._waves:
            scatter(self.field.values, slice(0, len(self.field.points)), made[0])


def _vector(parts: Sequence[AnyArray]) -> Floats:
    """A copy, of complex numbers both parts."""
    whole = np.array(parts)
    return whole.astype(complex if whole.dtype.kind == "c" else float).ravel().view(float)


def windows(
    links: Link | Sequence[Link],
    fields: Field | Sequence[Field] | None = None,
    accelerator: Accelerator | None = None,
    *,
    tolerance: float | Mapping[str, float] = 1e-6,
    most: int = 50,
    save: Callable[[], object] = lambda: None,
    restore: Callable[[Any], None] = lambda state: None,
) -> Iterator[int]:
    """The iterations of one time window, until it has converged: 1, 2, 3, ...

    Whoever accelerates names what it gives, and an accelerator. In each iteration it gets, solves, and sets
    the values of these fields to its answer. What travels is put here. The other side of a serial coupling
    names neither, gets x, solves, and puts.

    Fields with a period (every, time = "linear", implicit = true) are waveforms: the period is the window.
    Both sides get at any time within it, and put after each step, link.put(field, time), also what is
    accelerated. In the first window a taker begins with the values that it has declared.

    Args:
        links: to the other program; of a parallel coupling of more than two, to all others.
        fields: that this program gives, and accelerates.
        tolerance: of ``|H(x) - x| / |H(x)|``, of all fields or by name. Each field must come below it.
        most: iterations before NotConvergedError, in all programs; whoever accelerates counts.
        save: called once, before the first iteration; returns the state of the solver.
        restore: called with that state before every further iteration.

    Raises:
        NotConvergedError: after as many iterations it has not converged; or a residual is no number.

    Example:
        >>> for k in windows(link, temperature, accelerator, save=solver.save, restore=solver.restore):
        ...     link.get(flux)
        ...     temperature.values[:] = solver.step(flux.values)
    """
    links, listed = _roles(links, fields, accelerator)
    limits = _limits(tolerance, most, listed)
    for link in links:
        link.context.connect()
    waves, state = waveforms(link.context for link in links), save()
    iterations = _followed(links[0])
    if accelerator is not None:
        given = {f"{links[0].name}.{field.name}": _Given(field, links) for field in listed}
        below = {name: limits[each.field.name] for name, each in given.items()}
        iterations = _accelerated(links, given, accelerator, below, most)
    for k in iterations:
        if k > 1:
            restore(state)
        for wave in waves:
            wave.repeat()
        yield k
        for wave in waves:
            wave.end_iteration()
    for wave in waves:
        wave.end_window()


def _roles(
    links: Link | Sequence[Link], fields: Field | Sequence[Field] | None, accelerator: Accelerator | None
) -> tuple[list[Link], list[Field]]:
    """The links, and what this program accelerates, as lists; refused where they do not go together."""
    links = [links] if isinstance(links, Link) else [*links]
    if not links or (fields is None) != (accelerator is None):
        what = "the leader of an implicit coupling has a field and an accelerator, the other program neither"
        raise ConfigError(what, "windows", "windows(link, field, Accelerator(me.comm))")
    if fields is None and len(links) != 1:
        what = f"this program names {len(links)} links, and nothing that it accelerates"
        hint = "the link to the leader; or fields and an Accelerator(me.together(...)) in all programs"
        raise ConfigError(what, "windows", hint)
    return links, [fields] if isinstance(fields, Field) else [*(fields or ())]


def _limits(tolerance: float | Mapping[str, float], most: int, given: list[Field]) -> dict[str, float]:
    """The tolerance of each field that is given here."""
    names = [field.name for field in given]
    limits = {**tolerance} if isinstance(tolerance, Mapping) else dict.fromkeys(names or [""], tolerance)
    if wrong := {*names} - {*limits}:
        raise ConfigError(f"tolerance says nothing of {sorted(wrong)}", "windows", "a number for each field")
    is_right = all(is_number(limit, above=0) for limit in limits.values())
    if not is_right or not isinstance(most, int) or most < 1:
        what = f"tolerance must be above 0, and most from 1, not {tolerance!r} and {most!r}"
        raise ConfigError(what, "windows", "tolerance=1e-6, most=50")
    return limits


def _accelerated(
    links: Sequence[Link],
    given: Mapping[str, _Given],
    accelerator: Accelerator,
    limits: Mapping[str, float],
    most: int,
) -> Iterator[int]:
    """limits: of the residuals of what is given; both by "program.field"."""
    is_leader = accelerator.comm.size == links[0].local.size
    accelerator.begin_window(given)
    verdict = k = 0
    while not verdict:
        for each in given.values():
            each.put(first=k == 0)
        yield (k := k + 1)
        x, answer = {}, {}
        for name, each in given.items():
            x[name], answer[name] = each.both()
        made = accelerator.step(x, answer)
        verdict = _noted(links[0], accelerator._agree(limits, k >= most))
        for link in links if is_leader and not links[0].is_recorded else ():
            root = MPI.ROOT if link.local.rank == 0 else MPI.PROC_NULL
            link.comm.broadcast(np.array([verdict]), root=root, async_op=True).wait(timeout=link.timeout_s)
        for name, each in given.items() if not verdict else ():
            each.set(made[name])
    if verdict == _GIVEN_UP:
        rows = ", ".join(f"{r:.1e} of '{name}'" for name, r in accelerator.by_field.items())
        raise _not_converged(links, f"after {k} iterations |H(x) - x| / |H(x)| is {rows}")


def _followed(link: Link) -> Iterator[int]:
    verdict = k = 0
    while not verdict:
        yield (k := k + 1)
        said = None if link.is_recorded else link.comm.broadcast(np.zeros(1, int), root=0, async_op=True)
        verdict = _noted(link, 0 if said is None else int(said.wait(timeout=link.timeout_s)[0]))
    if verdict == _GIVEN_UP:
        raise _not_converged([link], f"'{link.peer}' gave up after {k} iterations")


def _noted(link: Link, verdict: int) -> int:
    """What has become of an iteration: that is recorded; or in a replay what it was then."""
    return verdict if link.recorder is None else link.recorder.verdict(verdict)


def _not_converged(links: Sequence[Link], what: str) -> NotConvergedError:
    all_of = " and ".join(f"'{name}'" for name in (links[0].name, *(link.peer for link in links)))
    what = f"the coupling of {all_of} did not converge: {what}"
    hint = "a smaller time window, a smaller relaxation, or scheme='iqn-ils'"
    return NotConvergedError(what, "implicit coupling", hint)
