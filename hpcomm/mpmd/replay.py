"""A program alone, against what was recorded of its partners: it takes from files, its puts go nowhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import numpy as np

from .clock import Schedule
from .coupling import Taking

if TYPE_CHECKING:
    from .field import Field
    from .link import Link
    from .record import Recorder
    from .spec import FieldSpec, JobSpec

__all__ = ["Absent", "connect"]


class Absent:
    """A link to a program that is only recorded."""

    def __init__(self, name: str, peer: str) -> None:
        self.name, self.peer = name, peer
        self.gives: dict[str, Any] = {}
        self.takes: dict[str, Any] = {}
        self.is_plain = False

    def _connect(self) -> None:
        """Replaced by the program's."""

    def put(self, fields: Any, time: float | None = None) -> None:
        """Nobody is there."""
        self._connect()

    def get(self, fields: Any, time: float | None = None) -> Any:
        """What came then."""
        self._connect()
        values = None
        for field in fields if isinstance(fields, (list, tuple)) else (fields,):
            values = self.takes[field.name].get(time)
        return values

    def exchange(self, time: float | None = None) -> None:
        """Get all that this program takes."""
        self._connect()
        for taking in self.takes.values():
            taking.get(time)


def connect(
    links: dict[str, Link],
    gives: dict[str, Field],
    takes: dict[str, tuple[Field, FieldSpec]],
    spec: JobSpec | None,
    name: str,
    recorder: Recorder,
) -> None:
    """Take every field from its file."""
    for absent in links.values():
        link = cast("Any", absent)
        for each in spec.fields if spec else ():
            if (each.source, each.target) == (name, link.peer) and each.name in gives:
                link.gives[each.name] = None
            elif (each.source, each.target) == (link.peer, name) and each.name in takes:
                link.takes[each.name] = _from_file(takes[each.name][0], recorder)


def _from_file(field: Field, recorder: Recorder) -> Taking:
    return Taking(
        None,
        field,
        [(0, slice(0, len(field.points)))],
        Schedule(),
        0,
        dtype=np.dtype(field.dtype),
        recorder=recorder,
    )
