"""Units of fields, by pint: checked before the start, then a factor and an offset."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from ...errors import ConfigError, did_you_mean
from ...job.optional_packages import load
from ..spec.spec_file import FieldSpec

_SPELLING = "as pint writes it: 'W/m^2', 'degC', 'K'"


@lru_cache(maxsize=1)
def _registry() -> Any:
    hint = "pip install 'hpcomm[mpmd]', or leave the units out"
    return load("pint", "units need pint", None, hint).UnitRegistry()


def check(name: str) -> None:
    """That name is a unit."""
    registry = _registry()
    import pint

    try:
        registry.parse_units(name)
    except pint.errors.UndefinedUnitError as error:
        missing = error.unit_names if isinstance(error.unit_names, str) else error.unit_names[0]
        hint = did_you_mean(missing, registry, _SPELLING)
        raise ConfigError(f"there is no unit {missing!r}", hint=hint) from None
    except Exception as error:  # pint's parser raises whatever it meets
        reason = f": {error}" if str(error) else ""
        raise ConfigError(f"{name!r} is no unit{reason}", hint=_SPELLING) from None


def conversion(source: str | None, target: str | None) -> tuple[float, float]:
    """(factor, offset) such that factor * x + offset is in target what x is in source; None: as it is.

    Example:
        >>> conversion("degC", "K")
        (1.0, 273.15)
    """
    if not source or not target or source == target:
        return 1.0, 0.0
    check(source)
    check(target)
    registry = _registry()
    import pint

    try:
        at = [registry.Quantity(x, source).to(target).magnitude for x in (0.0, 1.0)]
    except pint.errors.DimensionalityError:
        what = f"{source!r} does not convert to {target!r}"
        raise ConfigError(what, hint="units of the same kind on both sides") from None
    except Exception as error:  # as of units with an offset in a product
        raise ConfigError(f"{source!r} to {target!r}: {error}", hint=_SPELLING) from None
    return float(at[1] - at[0]) if at[0] else float(at[1]), float(at[0])


def conversion_of(each: FieldSpec) -> tuple[float, float]:
    """(factor, offset) from the unit of a field's giver to that of its taker."""
    return conversion(each.source_unit, each.target_unit)
