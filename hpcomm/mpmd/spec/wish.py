"""Wish: a field as a program declares it, with the words of a spec, checked as one of a spec is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..._lazy import np
from ...errors import ConfigError
from ...job.spec.calendar import Duration
from ...job.spec.schema import FIELD, misfit
from .spec_file import FieldSpec, misfit_of_options, stacked


def wished(name: str, program: str, options: Mapping[str, Any]) -> FieldSpec:
    """The field that program takes; options: by the keys of a spec.

    Raises:
        ConfigError: one of them is not valid.
    """
    whose = f"field {name!r}"
    found = {key: each.item() if isinstance(each, np.generic) else each for key, each in options.items()}
    found |= stacked(found, "takes", whose)
    for key, value in found.items():
        skipped = key in ("mapping", "then") or (key, value) == ("every", None)
        if not skipped and (wrong := misfit(key, value, FIELD["properties"][key])):
            raise ConfigError(f"{whose}: {wrong[0]}", "takes", wrong[1])
    every, lag = found["every"], found["lag"]
    try:
        found |= {"every": None if every is None else Duration.of(every), "lag": Duration.of(lag)}
    except ConfigError as error:
        raise ConfigError(f"{whose}: {error.what}", "takes", error.hint) from None
    made = FieldSpec(name, "", program, timeout_s=found.pop("timeout"), **found)
    if misuse := misfit_of_options(made):
        raise ConfigError(f"{whose} has {misuse[1]}", "takes", misuse[2])
    _check_times(made, whose)
    return made


def _check_times(made: FieldSpec, whose: str) -> None:
    if made.every is None and (made.lag.seconds or made.time != "instant"):
        raise ConfigError(f"{whose}: time and lag need every", "takes", "every=3600.0")
    if made.every is not None and not made.every.fits(made.lag):
        what = f"{whose}: lag = {made.lag.said(False)} is no multiple of every = {made.every.said(False)}"
        raise ConfigError(what, "takes", "lag=every")
