"""Schema of specs, and whether a value is as it says: of JSON Schema, the words that spec.json has."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ...errors import did_you_mean

Schema = dict[str, Any]
TEXT = Path(__file__).with_name("spec.json").read_text(encoding="utf-8")
SPEC: Schema = json.loads(TEXT)
JOB, PROGRAMS, _GRIDS, _FIELDS = (SPEC["properties"][each] for each in ("job", "program", "grid", "field"))
PROGRAM, GRID, FIELD = PROGRAMS["additionalProperties"], _GRIDS["additionalProperties"], _FIELDS["items"]
# Of a wait: every clock can add these 30 years to now.
LONGEST_S: float = JOB["properties"]["timeout"]["maximum"]
_TYPES: dict[str, Any] = {"string": str, "integer": int, "number": (int, float), "boolean": bool}
_TYPES |= {"array": (list, tuple), "object": dict}
_FITS: dict[str, Callable[[Any, Any], bool]] = {  # keyword: whether a value of the right type does as it says
    "enum": lambda value, wanted: value in wanted,
    "const": lambda value, wanted: value == wanted,
    "not": lambda value, wanted: not fits(value, wanted),
    "anyOf": lambda value, wanted: any(fits(value, each) for each in wanted),
    "minimum": lambda value, wanted: value >= wanted,
    "exclusiveMinimum": lambda value, wanted: value > wanted,
    "maximum": lambda value, wanted: value <= wanted,
    "pattern": lambda value, wanted: re.fullmatch(wanted, value) is not None,
    "format": lambda value, wanted: value.isprintable(),  # the only one that is used
    "items": lambda value, wanted: all(fits(each, wanted) for each in value),
    "minItems": lambda value, wanted: len(value) >= wanted,
    "maxItems": lambda value, wanted: len(value) <= wanted,
    "uniqueItems": lambda value, wanted: len(set(value)) == len(value),
    "required": lambda value, wanted: value.keys() >= set(wanted),
    "properties": lambda value, wanted: all(fits(value[key], wanted[key]) for key in value.keys() & wanted),
    "additionalProperties": lambda value, wanted: all(fits(each, wanted) for each in value.values()),
}


def fits(value: object, schema: Schema) -> bool:
    """Whether a value is as schema says; all other keywords are for values of its type."""
    wanted = schema.get("type")
    if wanted and (not isinstance(value, _TYPES[wanted]) or isinstance(value, bool) != (wanted == "boolean")):
        return False
    return all(_FITS[word](value, schema[word]) for word in schema if word in _FITS)


def misfit(key: str, value: object, schema: Schema) -> tuple[str, str] | None:
    """Why a value of a key does not fit, and what to write; None: it fits."""
    if fits(value, schema):
        return None
    if "anyOf" in schema and "title" not in schema:  # that of its type, or the first
        of_type = (each for each in schema["anyOf"] if fits(value, {"type": each["type"]}))
        return misfit(key, value, next(of_type, schema["anyOf"][0]))
    if "enum" in schema:
        return f"there is no {key} {value!r}", did_you_mean(value, schema["enum"], wanted(schema))
    for part in _parts(key, value, schema):
        if wrong := misfit(*part):
            return wrong[0], wrong[1] if wrong[1].startswith("did you mean") else example_of(key, schema)
    return f"{key} must be {_told(value, schema)}", example_of(key, schema)


def _told(value: object, schema: Schema) -> str:
    """What a value must be, and is not."""
    most = schema.get("maximum")
    if most is None or not fits(value, {**schema, "maximum": float("inf")}):
        return f"{wanted(schema)}, not {value!r}"
    is_whole = schema["type"] == "integer"
    return f"at most {most:,}, not {value:,}" if is_whole else f"at most {most:g} s, not {value!r}"


def _parts(key: str, value: object, schema: Schema) -> list[tuple[str, object, Schema]]:
    """What a table or list of a key consists of, with how that is called and its schema."""
    if isinstance(value, dict) and schema.get("type") == "object":
        return [(f"{key}.{name}", each, schema["additionalProperties"]) for name, each in value.items()]
    if isinstance(value, list) and "items" in schema:
        called = key if "anyOf" in schema["items"] else f"each of {key}"
        return [(called, each, schema["items"]) for each in value]
    return []


def wanted(schema: Schema) -> str:
    """What a value must be."""
    if "title" in schema:
        return str(schema["title"])
    if "enum" in schema:
        return f"one of {', '.join(schema['enum'])}"
    if "anyOf" in schema:
        return ", or ".join(map(wanted, schema["anyOf"]))
    least = schema.get("minimum")
    words = {"boolean": "true or false", "string": "a text", "array": "a list", "object": "a table"}
    number = "a whole number" if schema["type"] == "integer" else "a number"
    return words.get(schema["type"], number + (f" from {least}" if least is not None else ""))


def example_of(key: str, schema: Schema) -> str:
    """`ranks = 2`, as an example of a right one."""
    listed = schema.get("examples") or schema.get("enum") or [schema.get("default", 1)]
    return f"{key} = {_toml(listed[0])}"


def _toml(value: object) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{name} = {_toml(each)}" for name, each in value.items()) + " }"
    return json.dumps(value)
