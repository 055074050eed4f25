"""Leaves of a value, and their checksums: arrays, plain values, and the parts of containers and objects."""

from __future__ import annotations

import copyreg
import struct
from collections.abc import Callable, Iterable, Iterator
from operator import methodcaller
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any, NamedTuple
from zlib import crc32

from ..._lazy import loaded, np
from ...agree.values import crc_of, flat
from ...core.types import AnyArray
from ...errors import LayoutError, UsageError
from ...transport.late import buffer, host_copy

_NAMED = (type, FunctionType, BuiltinFunctionType, ModuleType)
_BITS: dict[type, Callable[[Any], bytes]] = {
    float: lambda x: struct.pack("d", x),
    complex: lambda x: struct.pack("2d", x.real, x.imag),
    str: lambda x: x.encode("utf-8", "surrogatepass"),
    bytes: lambda x: x,
    **{kind: lambda x: repr(x).encode() for kind in (bool, int, type(None), type(...), range, slice)},
}


class Leaf(NamedTuple):
    """A part of a value that has no parts. Containers are leaves, too, as far as their kind goes.

    Attributes:
        path: to it, in words of Python, such as ['layer1'][0].
        kind: its type; of an array dtype and shape, whatever library it is of.
        value: itself.
        crc: of kind and bytes. NaNs with the same bits are equal, 0.0 and -0.0 are not.
    """

    path: str
    kind: str
    value: Any
    crc: int


def leaves(x: object, path: str = "", around: tuple[int, ...] = ()) -> Iterator[Leaf]:
    """All leaves of x, in an order that depends on their names alone.

    Args:
        around: ids of what x is part of.

    Raises:
        UsageError: x, or a part of it, cannot be looked into.
    """
    if type(x) in _BITS:
        yield _leaf(path, type(x).__name__, x, _BITS[type(x)](x))
    elif isinstance(x, _NAMED):
        yield _leaf(path, f"{type(x).__name__} {getattr(x, '__module__', '')}.{x.__name__}", x)
    elif id(x) in around:
        yield _leaf(path, "what it is part of", x)
    elif (found := _array(x)) is not None:
        kind, array = found
        if array.dtype.hasobject:
            yield _leaf(path, kind, x)
            yield from leaves(array.reshape(-1).tolist(), f"{path}.flat", (*around, id(x)))
        else:
            yield Leaf(path, kind, x, crc_of(array, crc32(kind.encode())))
    else:
        yield _leaf(path, type(x).__qualname__, x)
        around = (*around, id(x))
        for name, part in _parts(x, path, around):
            yield from leaves(part, path + name, around)


def crc_of_all(found: Iterable[Leaf]) -> int:
    """The checksum of a value that has these leaves."""
    whole = 0
    for leaf in found:
        whole = crc32(f"{leaf.path} {leaf.crc}".encode(), whole)
    return whole


def _leaf(path: str, kind: str, value: object, data: bytes = b"") -> Leaf:
    return Leaf(path, kind, value, crc32(data, crc32(kind.encode())))


def _array(x: Any) -> tuple[str, AnyArray] | None:
    """What an array is called, and its elements in memory of the host; None: x is no array."""
    if isinstance(x, np.ndarray) and (x.dtype.hasobject or x.dtype.names or not x.dtype.isnative):
        return f"{x.dtype} {x.shape}", x
    is_array = isinstance(x, (np.ndarray, np.generic, bytearray, memoryview))
    if not is_array and not any(hasattr(x, each) for each in ("__dlpack__", "__cuda_array_interface__")):
        return None
    try:
        look = buffer.as_buffer(buffer.detached(x))
    except LayoutError:  # sparse, masked: its parts are compared
        return None
    array = host_copy.to_host(look) if isinstance(look, buffer.DeviceBuffer) else look.array
    return f"{look.dtype} {tuple(look.shape)}", array


def array_of(leaf: Leaf) -> AnyArray | None:
    """The elements of a leaf that is an array, with a dtype that numpy compares."""
    found = None if type(leaf.value) in _BITS else _array(leaf.value)
    return None if found is None or found[1].dtype.hasobject else flat(found[1])


def _parts(x: Any, path: str, around: tuple[int, ...]) -> Iterator[tuple[str, object]]:
    """What a container or an object consists of: (how Python names it, itself)."""
    torch = loaded("torch")
    if callable(state := getattr(x, "state_dict", None)):  # a torch module, an optimizer
        yield from _parts(dict(state()), path, around)
    elif torch is not None and isinstance(x, torch.Generator):
        yield ".get_state()", x.get_state()
    elif type(x) in (list, tuple):
        yield from ((f"[{i}]", each) for i, each in enumerate(x))
    elif isinstance(x, dict):
        yield from _by_name(x.items(), "[{}]", around)
    elif isinstance(x, (set, frozenset)):  # a name says all of those that have parts
        yield from _by_name(
            ((each, each if type(each) in _BITS else type(each)) for each in x), "{{{}}}", around
        )
    else:
        yield from _reduced(x, path, around)


def _by_name(
    pairs: Iterable[tuple[object, object]], form: str, around: tuple[int, ...]
) -> Iterator[tuple[str, object]]:
    """Values by their keys, in the order of the names of these, of which several may have the same."""
    found: dict[str, list[object]] = {}
    for key, value in pairs:
        found.setdefault(form.format(_name(key, around)), []).append(value)
    for name, values in sorted(found.items()):
        if len(values) > 1:
            values.sort(key=lambda each: crc_of_all(leaves(each, "", around)))
        yield from ((f"{name}#{i}" if i else name, each) for i, each in enumerate(values))


def _name(key: object, around: tuple[int, ...]) -> str:
    """A key in words; of one whose repr may differ between ranks, such as an address, type and checksum."""
    if type(key) is tuple:
        return f"({', '.join(_name(each, around) for each in key)})"
    if type(key) in _BITS:
        return repr(key)
    return f"{type(key).__name__} {crc_of_all(leaves(key, '', around)):08x}"


def _reduced(x: object, path: str, around: tuple[int, ...]) -> Iterator[tuple[str, object]]:
    """What pickle would write of an object. Its bytes would depend on which parts are one and the same."""
    try:
        found = copyreg.dispatch_table.get(type(x), methodcaller("__reduce_ex__", 4))(x)
    except Exception as error:
        told = f"a {type(x).__name__}{f' at {path}' if path else ''} cannot be compared: {error}"
        raise UsageError(told, hint="compare its arrays, or a dict of what counts") from None
    if isinstance(found, str):
        yield "", found
        return
    _, arguments, state, items, pairs = (*found, None, None, None)[:5]
    yield ".__reduce_ex__(4)[1]", arguments  # an attribute may be called args
    if isinstance(state, dict):
        for name, each in _by_name(state.items(), "{}", around):
            yield "." + name.strip("'"), each
    else:
        yield ".__getstate__()", state
    yield from ((f"[{i}]", each) for i, each in enumerate(items or ()))
    yield from _by_name(pairs or (), "[{}]", around)
