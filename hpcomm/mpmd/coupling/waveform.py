"""Waveforms: fields of an implicit coupling over a whole time window, put and taken at any times within it.

    begin   s1        s2      end      put at the giver's own steps, the last one at the end of the window
      |-----o---------o--------o
      |---------x--------------x       taken at any time: linear between what was put
                g1            g2

What holds at the begin is what held at the end of the window before. What was put travels when the end is
put, one message after the other; the first value of a message says how many are left. A repeated window
begins again (waveform iteration: Rüth, Uekermann, Mehl, Birken, Monge & Bungartz 2021).
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from ...core.types import AnyArray
from ...errors import UsageError
from ..coupled_field import Field, host
from ..link_context import LinkContext
from ..spec.spec_file import FieldSpec
from .components import IncomingVector, OutgoingVector, Vector
from .coupler import Incoming, Outgoing
from .coupling_clock import NEAR


class Sample(NamedTuple):
    """What holds at a time, in seconds."""

    time: float
    values: AnyArray


def between(samples: Iterable[Sample], t: float) -> AnyArray:
    """What holds at time t, linear between samples, of which one is at t or later, and one at t or before."""
    for older, newer in pairwise(samples):
        if t <= newer.time:
            share: Any = (t - older.time) / (newer.time - older.time)
            return newer.values if share == 1.0 else (1.0 - share) * older.values + share * newer.values
    raise ValueError(f"no samples around {t}")


def within(side: Outgoing | Incoming, t: float) -> float:
    """t, within the window that a side is in; its ends exactly."""
    begin, end = side.schedule.window(side.version)
    near, verb = NEAR * (end - begin), side.verb
    if not begin - near < t < end + near:
        said = side.schedule.clock.said
        what = f"{verb} of {side.field.name!r} at {said(t)}"
        what += f", but the window is from {said(begin)} to {said(end)}"
        raise UsageError(what, verb, "times within the window that windows() repeats")
    return begin if t < begin + near else end if t > end - near else t


class OutgoingWaveform(Outgoing):
    """The giver's side.

    Attributes:
        samples: what was put in this window.
        is_held: what is put is sent by whoever accelerates it.
    """

    is_held = False

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.samples: list[Sample] = []
        self.version = self.schedule.first()

    def put(self, t: float | None) -> bool:
        """Add the field's values as those of time t; whether that ends the window."""
        self.check(t)
        assert t is not None  # by check
        begin, end = self.schedule.window(self.version)
        t = within(self, t)
        if t <= (self.samples[-1].time if self.samples else begin):
            what = f"{self.field.name!r} is put at {self.schedule.clock.said(t)} a second time, or backwards"
            raise UsageError(what, "put", "at the end of each step, the last one at the end of the window")
        self._look()
        self.samples.append(Sample(t, np.array(host(self.field.values))))
        if t == end and not self.is_held:
            self.send(self.samples)
        return t == end

    def send(self, samples: list[Sample]) -> None:
        """Let these go, the last one at the end of the window."""
        if self._turns is not None:
            self._turns.reserve(len(samples))
        for left, (t, values) in zip(reversed(range(len(samples))), samples, strict=True):
            self._send(values, (float(left), t))

    def repeat(self) -> None:
        """Before an iteration."""
        self.samples = []

    def end_iteration(self) -> None:
        """Refuse one in which the end of the window was not put."""
        end = self.schedule.window(self.version)[1]
        if not self.samples or self.samples[-1].time != end:
            said = self.schedule.clock.said(end)
            what = f"{self.field.name!r} has not been put at the end of the window, {said}"
            raise UsageError(what, "windows", "link.put(field, time) after each step of the window")

    def end_window(self) -> None:
        """Go on to the next one."""
        self._joined = self.samples[-1].values  # which a restart knows, too
        self.version += 1

    def at_begin(self) -> Sample:
        """What holds at the begin of the window."""
        values = np.array(host(self.field.values)) if self._joined is None else self._joined
        return Sample(self.schedule.time_of(self.version), values)


class IncomingWaveform(Incoming):
    """The taker's side: get(t) is linear between what was put."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.version = self.schedule.first()
        self._samples: list[Sample] = []  # of this iteration; the first one holds at the begin of the window

    def _at(self, t: float) -> None:
        self._set(between(self._here(), within(self, t)))

    def _here(self) -> list[Sample]:
        """This iteration's samples."""
        if not self._samples:
            begin, end = self.schedule.window(self.version)
            if self._newer is None:
                self._newer = np.array(host(self.field.values))
            self._samples, left = [Sample(begin, self._newer)], 1.0
            while left > 0:
                values = self._mapped(self._receive())
                left, t = self._channel.stamp if self.part.rows else (0.0, end)
                if t == begin:
                    self._samples[0] = Sample(begin, values)
                else:
                    self._samples.append(Sample(t, values))
            self._newer = self._samples[0].values
        return self._samples

    def repeat(self) -> None:
        """Before an iteration."""
        self._samples = []

    def end_iteration(self) -> None:
        """Take what this iteration brings, also if nobody has asked for it."""
        self._here()

    def end_window(self) -> None:
        """Go on to the next one."""
        self._newer = self._samples[-1].values
        self.version += 1


def kinds_of(each: FieldSpec, field: Field) -> tuple[type[Outgoing], type[Incoming]]:
    """What carries a field, at its giver and its taker. field: this program's."""
    if each.implicit and each.every is not None:
        return OutgoingWaveform, IncomingWaveform
    return (OutgoingVector, IncomingVector) if isinstance(field, Vector) else (Outgoing, Incoming)


Waveform = OutgoingWaveform | IncomingWaveform


def waveforms(links: Iterable[LinkContext]) -> list[Waveform]:
    """Both sides' of these links."""
    sides = [side for link in links for side in (*link.gives.values(), *link.takes.values())]
    return [side for side in sides if isinstance(side, Waveform)]
