"""Calls of NVIDIA's libraries: by NVIDIA's own Python bindings where they are installed, else by ctypes.

Both give what a function returns and what it writes through pointers:

    library.functions["cuMemAlloc_v2"](nbytes)  ->  (0, address)

Structures go in and come out as bytes, handles and addresses as numbers. A function that failed may give its
status alone.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from importlib.metadata import version
from typing import Any, NamedTuple

from ..errors import ConfigError

_TEXT = 128  # bytes of a text that a function writes
_NUMBER, _POINTER = type(ctypes.c_int), type(ctypes.POINTER(ctypes.c_int))
_OLDEST_NCCL4PY = "0.6"  # before, it had other signatures

Function = Callable[..., tuple[Any, ...]]  # of inputs; gives status and outputs


class Library(NamedTuple):
    """The functions of a library by their names in C. by: whose way that is."""

    by: str
    functions: Mapping[str, Function]


def loaded(path: str, signatures: Mapping[str, Sequence[Any]], lack: str, hints: tuple[str, str]) -> Library:
    """By ctypes. What has a pointer's type in a signature is written by the function.

    Args:
        lack: what is said if there is no library. hints: what helps then, and if it lacks a function.
    """
    try:
        found = ctypes.CDLL(path)
    except OSError as error:
        raise ConfigError(f"{lack}: {error}", hint=hints[0]) from None
    functions: dict[str, Function] = {}
    for name, arguments in signatures.items():
        function = getattr(found, name, None)
        if function is None:
            raise ConfigError(f"{path} has no {name}", hint=hints[1])
        function.argtypes, function.restype = arguments, ctypes.c_int
        functions[name] = _with_outputs(function, arguments)
    if "ncclGetErrorString" in functions:  # it has no status
        found.ncclGetErrorString.restype = ctypes.c_char_p
        functions["ncclGetErrorString"] = lambda *given: (0, found.ncclGetErrorString(*given))
    return Library(f"ctypes, {path}", functions)


def _with_outputs(function: Any, arguments: Sequence[Any]) -> Function:
    """The function, which makes room for what it writes, and returns that, too."""
    written = {i: kind for i, kind in enumerate(map(_written, arguments)) if kind is not None}
    structures = [(i, kind) for i, kind in enumerate(arguments) if issubclass(kind, ctypes.Structure)]

    def call(*given: Any) -> tuple[Any, ...]:
        outputs = [(i, kind()) for i, kind in written.items()]
        passed = [*given]
        for i, output in outputs:
            passed.insert(i, output if isinstance(output, ctypes.Array) else ctypes.byref(output))
        for i, kind in structures:
            passed[i] = kind.from_buffer_copy(passed[i])
        return function(*passed), *(_plain(output) for _, output in outputs)

    def call_for_a_number(*given: Any) -> tuple[Any, ...]:  # the same, quicker
        output = written[0]()
        return function(ctypes.byref(output), *given), output.value or 0

    is_simple = [*written] == [0] and not structures and isinstance(written[0], _NUMBER)
    if not written and not structures:
        return lambda *given: (function(*given),)
    return call_for_a_number if is_simple else call


def _written(argument: Any) -> Any:
    """The type of what a function writes through this argument; None: it reads it."""
    if argument is ctypes.c_char_p:
        return ctypes.c_char * _TEXT
    return argument._type_ if isinstance(argument, _POINTER) else None


def _plain(output: Any) -> Any:
    if isinstance(output, ctypes.Structure):
        return bytes(output)
    return 0 if output.value is None else output.value


def bound_cuda(names: Iterable[str]) -> Library | None:
    """These functions of CUDA's driver by cuda-bindings; None: that is not here, or finds no driver."""
    try:
        from cuda.bindings import driver
    except ImportError:
        return None

    def handle(kind: Any, raw: bytes) -> Any:
        new = kind()
        ctypes.memmove(new.getPtr(), raw, len(raw))
        return new

    nbytes = {driver.CUuuid: 16, driver.CUipcMemHandle: 64, driver.CUipcEventHandle: 64}
    first = {  # what a function wants in the place of a number, or of bytes
        "cuPointerGetAttribute": driver.CUpointer_attribute,
        "cuGetErrorName": driver.CUresult,
        "cuGetErrorString": driver.CUresult,
        "cuIpcOpenMemHandle_v2": partial(handle, driver.CUipcMemHandle),
        "cuIpcOpenEventHandle": partial(handle, driver.CUipcEventHandle),
    }

    def plain(output: Any) -> Any:
        if size := nbytes.get(type(output)):
            return ctypes.string_at(output.getPtr(), size)
        return output if isinstance(output, bytes) else int(output)

    def bound(name: str) -> Function:
        function, convert = getattr(driver, name.removesuffix("_v2")), first.get(name)

        def call(*given: Any) -> tuple[Any, ...]:
            if convert is not None:
                given = convert(given[0]), *given[1:]
            status, *outputs = function(*given)
            return (int(status),) if status else (0, *map(plain, outputs))

        return call

    with suppress(RuntimeError):  # no driver, as ctypes will say
        functions = {name: bound(name) for name in names}
        functions["cuInit"](0)
        return Library(f"cuda-bindings {version('cuda-bindings')}", functions)
    return None


def bound_nccl(names: Iterable[str]) -> Library | None:
    """These functions of NCCL by nccl4py; None: that is not here, is too old, or finds no NCCL."""
    try:
        from nccl.bindings import nccl

        release = version("nccl4py")
    except ImportError:
        return None
    if [*map(int, release.split(".")[:2])] < [*map(int, _OLDEST_NCCL4PY.split("."))]:
        return None

    def bound(name: str) -> Function:
        function = getattr(nccl, re.sub("([A-Z])", r"_\1", name[len("nccl") :])[1:].lower())

        def call(*given: Any) -> tuple[Any, ...]:
            if name == "ncclCommInitRank":
                given = given[0], nccl.UniqueId.from_buffer(given[1]), given[2]
            try:
                output = function(*given)
            except nccl.NCCLError as error:
                return (int(error.status),)
            output = bytes(memoryview(output)) if name == "ncclGetUniqueId" else output
            return (0,) if output is None else (0, output)

        return call

    with suppress(RuntimeError):
        functions = {name: bound(name) for name in names}
        functions["ncclGetVersion"]()
        return Library(f"nccl4py {release}", functions)
    return None
