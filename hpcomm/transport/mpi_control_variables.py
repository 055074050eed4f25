"""MPI_T by ctypes: the MPI library's own algorithms, chosen through its control variables.

mpi4py has no binding for MPI_T, so the functions are taken from the library that it has loaded. Open MPI
reads `coll_tuned_<verb>_algorithm` when a communicator is made, which then keeps it; MPICH reads
`MPIR_CVAR_<VERB>_INTRA_ALGORITHM` at every call. A value outside the enumeration ends the job there, so
only names that the library itself lists are written.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

from ..errors import UsageError
from ..job.installation import loaded_library

_SHORT = {
    "all_reduce": "allreduce",
    "broadcast": "bcast",
    "reduce": "reduce",
    "all_gather": "allgather",
    "all_to_all": "alltoall",
    "reduce_scatter": "reduce_scatter_block",
    "gather": "gather",
    "scatter": "scatter",
    "scan": "scan",
    "exscan": "exscan",
}
_DYNAMIC = "coll_tuned_use_dynamic_rules"
_EAGER, _HEADER = "btl_tcp_eager_limit", 256  # headers count, too: some tens of bytes
_TEXT = 8192  # bytes for a description
_NEITHER = ("ignore", "auto", "ccl")  # no algorithms, or not in every build


def choices(verb: str) -> list[str]:
    """Names of the library's algorithms for verb, in its words; empty where none can be chosen."""
    return [name for name in _values(verb) if name not in _NEITHER]


def vendor() -> str:
    """`openmpi`, `mpich` or "": whose variables there are."""
    if _DYNAMIC in _variables():
        return "openmpi"
    return "mpich" if "MPIR_CVAR_ALLREDUCE_INTRA_ALGORITHM" in _variables() else ""


@contextmanager
def forced(verb: str, name: str) -> Iterator[None]:
    """Within it the library uses this algorithm: MPICH at once, Open MPI on communicators made there."""
    values = _values(verb)
    if name not in values or name in _NEITHER:
        known = ", ".join(choices(verb)) or "no algorithm= with mpi: under this library"
        raise UsageError(f"the MPI library has no algorithm {name!r} for {verb}", hint=f"one of {known}")
    wanted = {_variable(verb): values[name]}
    if vendor() == "openmpi":
        wanted[_DYNAMIC] = 1
    before = {variable: _handle(variable).read() for variable in wanted}
    _write(wanted)
    try:
        yield
    finally:
        _write(before)


def _write(values: dict[str, int]) -> None:
    for variable, value in values.items():
        _handle(variable).write(value)


def unannounced_bytes() -> int:
    """Bytes that Open MPI sends over TCP without asking the receiver first; 0: not known, or no TCP."""
    if _EAGER not in _variables() or any(Path("/sys/class/infiniband").glob("*")):
        return 0
    return max(0, _handle(_EAGER).read() - _HEADER)


def _variable(verb: str) -> str:
    short = _SHORT.get(verb, "")
    if vendor() == "openmpi":
        return f"coll_tuned_{short}_algorithm"
    return f"MPIR_CVAR_{short.upper()}_INTRA_ALGORITHM"


@lru_cache
def _values(verb: str) -> dict[str, int]:
    """The enumeration of the variable for verb."""
    found = _variables().get(_variable(verb)) if verb in _SHORT and vendor() else None
    if found is None:
        return {}
    _, enumeration, description = found
    if vendor() == "openmpi":
        return _items(enumeration) if enumeration else {}
    lines = [re.match(r"(\w+)\s+- ", line) for line in description.splitlines()[1:]]
    return {line[1]: i for i, line in enumerate(lines) if line}  # the list is in the order of the values


@lru_cache
def _library() -> Any:
    """The MPI that this process has loaded, its tool interface started; None where it cannot be found."""
    from mpi4py import MPI  # noqa: F401  loads it

    path = loaded_library()
    if path is None:
        return None
    library, provided = ctypes.CDLL(path), ctypes.c_int()
    return library if library.MPI_T_init_thread(3, ctypes.byref(provided)) == 0 else None


@lru_cache
def _variables() -> dict[str, tuple[int, int | None, str]]:
    """Every control variable: (index, its enumeration if it has one, description)."""
    library, found = _library(), {}
    if library is None:
        return {}
    count = ctypes.c_int()
    library.MPI_T_cvar_get_num(ctypes.byref(count))
    for i in range(count.value):
        name, text = ctypes.create_string_buffer(256), ctypes.create_string_buffer(_TEXT)
        sizes = ctypes.c_int(256), ctypes.c_int(_TEXT)
        kind, enumeration = ctypes.c_void_p(), ctypes.c_void_p()
        level, bind, scope = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
        failed = library.MPI_T_cvar_get_info(
            i, name, ctypes.byref(sizes[0]), ctypes.byref(level), ctypes.byref(kind),
            ctypes.byref(enumeration), text, ctypes.byref(sizes[1]), ctypes.byref(bind), ctypes.byref(scope),
        )  # fmt: skip
        if not failed:
            found[name.value.decode()] = (i, enumeration.value, text.value.decode(errors="replace"))
    return found


def _items(enumeration: int) -> dict[str, int]:
    library, count, name = _library(), ctypes.c_int(), ctypes.create_string_buffer(256)
    size, value, found = ctypes.c_int(256), ctypes.c_int(), {}
    handle = ctypes.c_void_p(enumeration)
    if library.MPI_T_enum_get_info(handle, ctypes.byref(count), name, ctypes.byref(size)):
        return {}
    for i in range(count.value):
        size.value = 256
        library.MPI_T_enum_get_item(handle, i, ctypes.byref(value), name, ctypes.byref(size))
        found[name.value.decode()] = value.value
    return found


class _Handle:
    """One control variable, which counts as small integers do on a little-endian machine."""

    def __init__(self, index: int) -> None:
        self.handle, count = ctypes.c_void_p(), ctypes.c_int()
        _library().MPI_T_cvar_handle_alloc(index, None, ctypes.byref(self.handle), ctypes.byref(count))

    def read(self) -> int:
        value = ctypes.c_int64(0)
        _library().MPI_T_cvar_read(self.handle, ctypes.byref(value))
        return value.value

    def write(self, value: int) -> None:
        if _library().MPI_T_cvar_write(self.handle, ctypes.byref(ctypes.c_int64(value))):
            raise UsageError("the MPI library lets no algorithm be chosen", hint="leave mpi: away")


@lru_cache
def _handle(variable: str) -> _Handle:
    return _Handle(_variables()[variable][0])
