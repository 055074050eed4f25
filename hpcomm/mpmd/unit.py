"""Units of fields, by pint: checked before the start, and a factor and an offset afterwards."""

from __future__ import annotations

from functools import lru_cache

from ..errors import ConfigError

__all__ = ["conversion"]


@lru_cache(maxsize=1)
def _registry() -> object:
    try:
        import pint
    except ImportError:
        raise ConfigError(
            "units need pint", hint="pip install 'hpcomm[mpmd]', or leave the units out"
        ) from None
    return pint.UnitRegistry()


def conversion(source: str, target: str) -> tuple[float, float]:
    """(factor, offset) such that factor * x + offset is in target what x is in source.

    Raises:
        ConfigError: a unit does not exist, or the two measure different things.

    Example:
        >>> conversion("degC", "K")
        (1.0, 273.15)
    """
    if source == target:
        return 1.0, 0.0
    registry = _registry()
    import pint

    try:
        at = [registry.Quantity(x, source).to(target).magnitude for x in (0.0, 1.0)]  # type: ignore[attr-defined]
    except pint.errors.UndefinedUnitError as error:
        raise ConfigError(
            f"there is no unit {error.unit_names}", hint="as pint writes it: 'W/m^2', 'degC', 'K'"
        ) from None
    except pint.errors.DimensionalityError:
        raise ConfigError(
            f"{source!r} does not convert to {target!r}", hint="units of the same kind on both sides"
        ) from None
    except Exception as error:  # pint's parser raises whatever it meets
        raise ConfigError(f"{source!r} to {target!r}: {error}", hint="as pint writes it: 'W/m^2'") from None
    return float(at[1] - at[0]) if at[0] else float(at[1]), float(at[0])
