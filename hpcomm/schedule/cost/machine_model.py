"""Machine models as data: LogGP with ports and shared links.

LogGP (Alexandrov, Ionescu, Schauser and Scheiman 1995): L is latency, o and g overhead, G per_byte, here by
level of the machine (node, pod, system). simulator.py says what a message takes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from ...core.types import NpArray
from ...errors import ConfigError

PRESETS = Path(__file__).parent / "machines"

_RENAMED = {"fold_per_byte": "reduce_per_byte is its name now"}


@dataclass(frozen=True)
class Machine:
    """A machine as data. Times are in seconds, or in seconds per byte where the name says so.

    Attributes:
        node: ranks per node.
        pod: nodes per pod; 0: no pods.
        overhead: time once per message.
        latency, per_byte: one value for each level: node, pod, system.
        nic_per_byte, uplink_per_byte: of the link that a node's ranks, a pod's nodes share; 0: not shared.
        reduce_per_byte: to combine two operands.
        base: time once per collective.
        curve: measured (bytes, seconds) of messages, in place of per_byte, with straight lines between.
        copy_per_byte: to copy x into the memory that a schedule works on, and back.
        cores: more ranks than cores take turns; 0: they never do.
        families: other values for single algorithms, by name.
        nodewise: algorithms that distinguish nodes (their parameter node).
        sources: where each value comes from.
    """

    name: str
    about: str = ""
    node: int = 1
    pod: int = 0
    overhead: float = 0.0
    latency: tuple[float, ...] = (0.0, 0.0, 0.0)
    per_byte: tuple[float, ...] = (0.0, 0.0, 0.0)
    nic_per_byte: float = 0.0
    uplink_per_byte: float = 0.0
    reduce_per_byte: float = 0.0
    base: float = 0.0
    curve: tuple[tuple[float, float], ...] = ()
    copy_per_byte: float = 0.0
    cores: int = 0
    families: dict[str, dict[str, Any]] = field(default_factory=dict)
    nodewise: tuple[str, ...] = ()
    sources: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        wrong = [name for name, is_right in _RIGHT.items() if not is_right(getattr(self, name))]
        if wrong:
            raise ConfigError(
                f"machine {self.name!r}: {wrong[0]} is {getattr(self, wrong[0])!r:.200}",
                hint="numbers from 0 on, node from 1; latency and per_byte one for node, pod and system each",
            )
        for family, values in self.families.items():
            if not isinstance(values, dict) or not values.keys() <= {f.name for f in fields(Machine)}:
                raise ConfigError(
                    f"machine {self.name!r}: the family {family!r} is {values!r:.200}",
                    hint="values of a machine by name",
                )
            self.running(family)

    def running(self, algorithm: str) -> Machine:
        """The machine with its values for one algorithm."""
        return replace(self, **self.families.get(algorithm.partition(":")[0], {}), families={})

    def port(self, nbytes: NpArray, level: NpArray) -> NpArray:
        """Seconds that a port is busy with a message of this size, at this level."""
        if not self.curve:
            return np.asarray(self.overhead + nbytes * np.asarray(self.per_byte)[level])
        size, seconds = np.array(self.curve).T
        beyond = np.maximum(nbytes - size[-1], 0) * self.per_byte[0]
        return np.asarray(self.overhead + np.interp(nbytes, size, seconds) + beyond)

    @property
    def group(self) -> int:
        """Number of ranks of a pod, or of a node if there are no pods."""
        return self.node * max(1, self.pod)

    def links(self) -> list[tuple[str, int, float]]:
        """Links that ranks share: (name, by how many ranks, seconds per byte), from the node up."""
        nic = [("nic", self.node, self.nic_per_byte)]
        return nic + [("uplink", self.group, self.uplink_per_byte)] * bool(self.pod)


def machines() -> list[str]:
    """Names of the machines that come with hpcomm."""
    return sorted(path.stem for path in PRESETS.glob("*.json"))


def machine(name: str) -> Machine:
    """A machine by name, or from a JSON file.

    Raises:
        ConfigError: there is no such machine, or the file has unknown entries.
    """
    path = PRESETS / f"{name}.json"
    if not path.exists():
        path = Path(name)
    if not path.is_file():
        raise ConfigError(
            f"there is no machine {name!r}", hint=f"one of {', '.join(machines())}, or a JSON file"
        )
    try:
        given: dict[str, Any] = dict(json.loads(path.read_text()))
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise ConfigError(
            f"{path} is no machine: {error}", hint="a JSON object, as hpcomm/schedule/cost/machines have it"
        ) from None
    unknown = set(given) - {f.name for f in fields(Machine)}
    if unknown:
        raise ConfigError(
            f"{path}: a machine has no {', '.join(sorted(unknown))}",
            hint=_RENAMED.get(min(unknown), "see Machine in hpcomm/machine.py"),
        )
    values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in given.items()}
    return Machine(**{"name": path.stem} | values)


def _number(value: object, least: float) -> bool:
    """Whether it is one, not below least; whole, if that is."""
    kind = int if isinstance(least, int) else (int, float)
    return isinstance(value, kind) and not isinstance(value, bool) and least <= value < math.inf


def _time(value: object) -> bool:
    return _number(value, 0.0)


def _list(value: object, many: int | None, is_right: Callable[[Any], bool]) -> bool:
    """Whether it is a list, of so many values, that are all right."""
    return isinstance(value, (tuple, list)) and many in (None, len(value)) and all(map(is_right, value))


def _of(kind: type) -> Callable[[object], bool]:
    return lambda value: isinstance(value, kind)


_RIGHT: dict[str, Callable[[object], bool]] = {  # whether a value of a machine is right
    "node": lambda value: _number(value, 1), "pod": lambda value: _number(value, 0),
    "cores": lambda value: _number(value, 0), "overhead": _time, "nic_per_byte": _time,
    "uplink_per_byte": _time, "reduce_per_byte": _time, "base": _time, "copy_per_byte": _time,
    "latency": lambda value: _list(value, 3, _time), "per_byte": lambda value: _list(value, 3, _time),
    "curve": lambda value: _list(value, None, lambda pair: _list(pair, 2, _time)),
    "families": _of(dict), "sources": _of(dict), "name": _of(str), "about": _of(str),
    "nodewise": lambda value: isinstance(value, (tuple, list)),
}  # fmt: skip


def lower_bound(verb: str, ranks: int, nbytes: float, on: Machine) -> float:
    """Lower bound in seconds for any algorithm: the larger of latency and volume over the best link."""
    level = 0 if ranks <= on.node else 1
    rounds = (ranks - 1).bit_length()
    volume = {
        "all_reduce": 2 * (ranks - 1) / ranks,
        "broadcast": 1.0,
        "reduce": 1.0,
        "scan": 1.0,
        "barrier": 0.0,
    }
    least = volume.get(verb, ranks - 1.0) if ranks > 1 else 0.0
    hop = 2 * on.overhead + min(on.latency[: level + 1])
    return on.base + max(rounds * hop, least * nbytes * min(on.per_byte[: level + 1]))
