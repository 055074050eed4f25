"""Pickling with out-of-band memory: arrays inside an object are left out and travel as blocks.

Objects are unpickled by the receiver, so talk only to ranks you trust: those of your own job.
Two tensors that share storage arrive as two separate tensors.
"""

from __future__ import annotations

import copyreg
import os
import pickle
import sys
from collections.abc import Callable, Mapping
from functools import lru_cache
from importlib import import_module
from types import SimpleNamespace
from typing import Any, Protocol
from zlib import crc32

from ..._lazy import np
from ...core.limits import OUT_OF_BAND
from ...errors import ConfigError, HpcommError, UsageError
from ...transport.late import buffer
from .payload import DevicePayload, OnDevice, Payload, check_came

_PICKLED = 0x80  # how every pickle begins
heard: Callable[[Payload, bool], object] | None = None  # of a trace: is told what is made of objects, or came


class Pickler(Protocol):
    """A module that pickles, as pickle and cloudpickle do; what it makes is read by pickle.loads."""

    __name__: str
    Pickler: Any
    dumps: Any


def chosen(asked: Any) -> Pickler | None:
    """The module that pickles objects: asked, or HPCOMM_PICKLER; None: pickle itself.

    Raises:
        ConfigError: it is no such module, or is not installed.
    """
    asked = asked or os.environ.get("HPCOMM_PICKLER")
    if not asked:
        return None
    if isinstance(asked, str):
        try:
            asked = import_module(asked)
        except ImportError as error:
            raise ConfigError(
                f"the pickler {asked!r} cannot be imported: {error}",
                hint=f"pip install {asked}, on all hosts; or leave HPCOMM_PICKLER and pickler= away",
            ) from None
    if not all(hasattr(asked, name) for name in ("__name__", "Pickler", "dumps")):
        raise ConfigError(
            f"{asked!r} is no pickler: it has no Pickler, or no dumps", hint="a module such as cloudpickle"
        )
    return asked  # type: ignore[no-any-return]


def mark_of(pickler: Pickler | None) -> bytes:
    """Of which all ranks have the same if they have the same pickler: the least, and 255 less the most."""
    return _mark((pickler or pickle).__name__)


@lru_cache(maxsize=8)
def _mark(name: str) -> bytes:
    mark = crc32(name.encode()).to_bytes(4, "little")
    return mark + bytes(255 - each for each in mark)


def encode(obj: object, pickler: Pickler | None = None) -> Payload:
    """Pickle obj, leaving the memory of its larger arrays out.

    Raises:
        UsageError: obj cannot be pickled.
    """
    spare = _spare if pickler is None else _spares.setdefault(pickler, [])
    try:
        mine = spare.pop()
    except IndexError:
        mine = _Wrapping(pickler)
    try:
        made = mine.wrap(obj)
    except Exception as error:  # whatever the object's own way of being pickled raises: others wait for it
        why, hint = (error.what, error.hint) if isinstance(error, HpcommError) else (error, None)
        raise UsageError(
            f"a {type(obj).__name__} cannot be pickled: {why}",
            hint=hint
            or "send data instead of files or locks; name functions at the top of a module, or "
            "comm.dup(pickler=cloudpickle)",
        ) from error
    spare.append(mine)
    if heard is not None:
        heard(made, True)
    return made


def copied(obj: Any, pickler: Pickler | None = None) -> Any:
    """A copy of obj with memory of its own, pickled as what travels."""
    from . import device_payload

    first, *blocks = _Wrapping(pickler).wrap(obj)
    own = [device_payload.copied(x) if isinstance(x, OnDevice) else bytearray(x) for x in blocks]
    return pickle.loads(first, buffers=own)


class Ways(dict[type, Any]):
    """How types are pickled: some in a way of our own, all else as the pickler, or copyreg, says.

    Args:
        pickler: a class of picklers. What it says stands in its table; pickle's own has none.
        own: gives the way of a type, or None.
    """

    def __init__(self, pickler: Any, own: Callable[[type], Callable[[Any], object] | None]) -> None:
        others: Any = getattr(pickler, "dispatch_table", None)  # of pickle's a descriptor
        self.of_pickler = hasattr(others, "get")
        self._others: Mapping[type, object] | None = others if self.of_pickler else None
        self._own = own

    def get(self, kind: type, default: object = None) -> Any:  # a pickler in Python asks so
        try:
            return self[kind]
        except KeyError:
            return default

    def __missing__(self, kind: type) -> object:
        way = self._own(kind)
        if way is None:
            return (copyreg.dispatch_table if self._others is None else self._others)[kind]
        self[kind] = way
        return way


def _way_of_arrays(kind: type) -> Callable[[Any], object] | None:
    if kind is getattr(sys.modules.get("numpy"), "ndarray", None):
        return _take_array_apart
    if kind is getattr(sys.modules.get("torch"), "Tensor", None):
        return _take_tensor_apart
    from ...device.libraries import LIBRARIES

    is_known = any(kind is getattr(sys.modules.get(name), its.array, None) for name, its in LIBRARIES.items())
    return _take_device_array_apart if is_known else None


class _Wrapping:
    """A pickler for many objects, one after the other: making one costs more than pickling a little thing."""

    def __init__(self, pickler: Pickler | None = None) -> None:
        make: Any = (pickler or pickle).Pickler
        self._blocks: list[Any] = []
        self._written: list[Any] = []  # one piece of bytes, mostly
        self._is_laden = False
        ways = Ways(make, _way_of_arrays)
        if ways.of_pickler:  # cloudpickle's table is read where a pickler is made, and not again
            make = type(make.__name__, (make,), {"dispatch_table": ways})
        self._pickler = make(SimpleNamespace(write=self._written.append), 5, buffer_callback=self._keeps_in)
        if not ways.of_pickler:
            self._pickler.dispatch_table = ways

    def _keeps_in(self, buffer: pickle.PickleBuffer) -> bool:
        raw = buffer.raw()
        if raw.nbytes < OUT_OF_BAND:
            if type(raw.obj) is not OnDevice:
                return True
            self._blocks.append(raw.obj)
            self._is_laden = True
            return False
        self._blocks.append(raw)
        return False

    def wrap(self, obj: object) -> Payload:
        written, blocks = self._written, self._blocks
        self._is_laden = False
        self._pickler.dump(obj)
        self._pickler.clear_memo()  # or the next one would point at what this one holds
        made: Payload = [memoryview(written[0] if len(written) == 1 else b"".join(written)), *blocks]
        if self._is_laden:
            made = DevicePayload(made)
        written.clear()
        blocks.clear()
        return made


_spares: dict[Any, list[_Wrapping]] = {}  # of other picklers
_spare: list[_Wrapping] = []  # more than one where threads, or objects that send while they are pickled


def decode(got: Payload, rank: int | None = None) -> Any:
    """The object in a payload, of that rank; its arrays live in the memory that was received into.

    Raises:
        PeerFailedError: its rank refused to send it.
        UsageError: it is an array of send_ragged, or cannot be unpickled here.
    """
    first = got[0]
    if first[0] != _PICKLED:
        check_came(first, rank)
        whose = "" if rank is None else f" from rank {rank}"
        what = f"an array of send_ragged arrived{whose} where an object was expected"
        raise UsageError(what, hint="recv_ragged for what send_ragged sends")
    if heard is not None:
        heard(got, False)
    try:
        return pickle.loads(first, buffers=got[1:])
    except (HpcommError, MemoryError):
        raise
    except Exception as error:
        whose = "that came" if rank is None else f"of rank {rank}"
        raise UsageError(
            f"the object {whose} cannot be unpickled here: {type(error).__name__}: {error}",
            hint="define its class in a module that both ranks import, not in one rank's program",
        ) from error


class _Names(dict[Any, "str | None"]):
    """How plain dtypes are called, None of others: numpy makes the name anew whenever it is asked."""

    def __missing__(self, dtype: np.dtype[np.generic]) -> str | None:
        if dtype.kind not in "biufc" or dtype.isbuiltin == 2:  # float8_e5m2 says that it is a float
            return None
        self[dtype] = dtype.str
        return self[dtype]


_names = _Names()


def _take_array_apart(array: Any) -> tuple[object, ...]:
    """How a plain array is pickled; numpy's own way takes three times as long."""
    dtype = array.dtype
    name = _names[dtype]
    if name is None or not array.flags.c_contiguous or dtype.metadata:
        reduced: tuple[Any, ...] = array.__reduce_ex__(5)
        return reduced
    return _put_array_together, (pickle.PickleBuffer(array), name, array.shape)


def _put_array_together(block: bytes | bytearray | memoryview, dtype: str, shape: tuple[int, ...]) -> object:
    import numpy as np

    return np.frombuffer(block, dtype).reshape(shape) if len(block) else np.empty(shape, dtype)


def _take_tensor_apart(tensor: Any) -> tuple[object, ...]:
    """How a plain CPU tensor is pickled: its elements as a block, not its storage as a file."""
    torch = sys.modules["torch"]
    plain = (tensor.is_cpu or tensor.is_cuda) and tensor.layout is torch.strided and not tensor.is_quantized
    if tensor.grad_fn is not None:  # a leaf comes as a leaf, but autograd does not reach beyond a rank
        buffer.as_buffer(tensor)
    if not plain or tensor.grad_fn is not None or tensor.__dict__:
        reduced: tuple[Any, ...] = tensor.__reduce_ex__(5)
        return reduced
    if tensor.is_cuda:
        return _take_device_array_apart(tensor)
    name = str(tensor.dtype).removeprefix("torch.")
    return _put_tensor_together, (_elements(tensor), name, tuple(tensor.shape), tensor.requires_grad)


def _elements(tensor: Any) -> pickle.PickleBuffer | bytes:
    """Those of a CPU tensor as a block, in C order."""
    flat = tensor.detach() if tensor.requires_grad else tensor
    if flat.is_conj() or flat.is_neg() or not flat.is_contiguous():
        flat = flat.resolve_conj().resolve_neg().contiguous()
    if not flat.numel():
        return b""
    memory: Any = buffer.tensor_memory(flat, "u1", (flat.nbytes,))
    return pickle.PickleBuffer(memory)


def _take_device_array_apart(array: Any) -> tuple[object, ...]:
    """How an array on a device is pickled: what stands for its elements as a block; see device_payload.py."""
    from . import device_payload

    try:
        look = buffer.as_buffer(array)
        assert isinstance(look, buffer.DeviceBuffer)
        block = device_payload.block_of(look)
    except HpcommError:  # nothing that hpcomm can move, or is to: its library knows how to pickle it
        reduced: tuple[Any, ...] = array.__reduce_ex__(5)
        return reduced
    return _put_device_array_together, (pickle.PickleBuffer(block), getattr(array, "requires_grad", False))


def _put_device_array_together(array: object, requires_grad: bool) -> object:
    return array.requires_grad_() if requires_grad and hasattr(array, "requires_grad_") else array


# Short names for what is in every pickle of an array: to look for it in its module takes half a microsecond.
copyreg.add_extension(__name__, "_put_array_together", 0x68706361)
copyreg.add_extension(__name__, "_put_tensor_together", 0x68706374)


def _put_tensor_together(
    block: bytes | bytearray | memoryview, dtype: str, shape: tuple[int, ...], requires_grad: bool
) -> object:
    import torch  # the sender had one

    kind = getattr(torch, dtype)
    if len(block) == 0:
        tensor = torch.empty(shape, dtype=kind)
    else:
        memory = block if not memoryview(block).readonly else bytearray(block)
        tensor = torch.frombuffer(memory, dtype=kind)
        tensor = tensor if len(shape) == 1 else tensor.view(shape)
    return tensor.requires_grad_() if requires_grad else tensor
