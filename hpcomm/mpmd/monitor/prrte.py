"""Process states from Open MPI's launcher: PRRTE answers a tool that asks through PMIx on its host.

It has the state of each rank of the job, on whatever host; the daemons on other hosts know of their own
ranks only. A launcher does not end while a tool is connected to it, and PRRTE 3.0.14 never does after a
second one: so there is one for a job, and it must be closed. Needs the standard library only.
"""

from __future__ import annotations

import ctypes
import os
import re

from ...job.launcher import contact, prrte_of, read_of, takes, words_of
from .startup_monitor import Ended

__all__ = ["Tool"]

_STRING = 3  # pmix_data_type_t
_LIVES = range(1, 16)  # pmix_proc_state_t: from prepared to connected; PRRTE says 0 of what has ended


class Tool:
    """Connected to the launcher of the job called space, on this host; a context manager.

    Raises:
        SystemExit: there is no such launcher, or it does not answer.

    Attributes:
        line: the launcher's words.
        is_first: whether this tool asks; others, on behalf of other ranks, never hear of anything.
    """

    def __init__(self, space: str) -> None:
        self._space = space
        _, pid = prrte_of(space)
        self.line = words_of(pid)
        file, library = contact(pid), re.search(r"/\S*/libpmix\.so\S*", read_of(pid, "maps"))
        if file is None or library is None:
            raise SystemExit(f"no launcher of {space} here")
        self._pmix = ctypes.CDLL(library[0])
        self.is_first = takes(file.with_name("hpcomm.monitor"))
        if self.is_first:
            self._connect(file.read_text().split("\n")[0])

    def _connect(self, uri: str) -> None:
        for name in [name for name in os.environ if name.startswith("PMIX_")]:
            del os.environ[name]  # we are no rank
        me, where = _Process(), _info("pmix.srvr.uri", uri)
        if self._pmix.PMIx_tool_init(ctypes.byref(me), ctypes.byref(where), ctypes.c_size_t(1)):
            raise SystemExit(f"{uri} does not answer")

    def __enter__(self) -> Tool:
        return self

    def __exit__(self, *error: object) -> None:
        if self.is_first:
            self._pmix.PMIx_tool_finalize()

    def ended(self) -> list[Ended]:
        """The ranks that have ended."""
        if not self.is_first:
            return []
        keys = (ctypes.c_char_p * 2)(b"pmix.qry.ptable", None)
        which = _info("pmix.nspace", self._space)
        query = _Query(keys, ctypes.pointer(which), 1)
        answer, count = ctypes.POINTER(_Info)(), ctypes.c_size_t()
        words = ctypes.byref(query), ctypes.c_size_t(1), ctypes.byref(answer), ctypes.byref(count)
        if self._pmix.PMIx_Query_info(*words):  # the launcher ends
            return []
        arrays = [info.value.data.array.contents for info in answer[: count.value]]
        rows = [
            row
            for array in arrays
            for row in ctypes.cast(array.items, ctypes.POINTER(_ProcessInfo))[: array.count]
        ]
        return [
            Ended(row.process.rank, (row.host or b"?").decode(errors="replace"))
            for row in rows
            if row.pid > 0 and row.state not in _LIVES
        ]


def _info(key: str, text: str) -> _Info:
    return _Info(key.encode(), 0, _Value(_STRING, _Data(text=text.encode())))


# -- as pmix_common.h of versions 4 and 5 has them -----------------------------------------------------


class _Process(ctypes.Structure):
    _fields_ = (("space", ctypes.c_char * 256), ("rank", ctypes.c_uint32))


class _Array(ctypes.Structure):
    _fields_ = (("type", ctypes.c_uint16), ("count", ctypes.c_size_t), ("items", ctypes.c_void_p))


class _Data(ctypes.Union):
    _fields_ = (
        ("text", ctypes.c_char_p),
        ("array", ctypes.POINTER(_Array)),
        ("largest", ctypes.c_void_p * 3),
    )


class _Value(ctypes.Structure):
    _fields_ = (("type", ctypes.c_uint16), ("data", _Data))


class _Info(ctypes.Structure):
    _fields_ = (("key", ctypes.c_char * 512), ("flags", ctypes.c_uint32), ("value", _Value))


class _Query(ctypes.Structure):
    _fields_ = (
        ("keys", ctypes.POINTER(ctypes.c_char_p)),
        ("qualifiers", ctypes.POINTER(_Info)),
        ("count", ctypes.c_size_t),
    )


class _ProcessInfo(ctypes.Structure):
    _fields_ = (
        ("process", _Process),
        ("host", ctypes.c_char_p),
        ("program", ctypes.c_char_p),
        ("pid", ctypes.c_int),
        ("status", ctypes.c_int),
        ("state", ctypes.c_uint8),
    )
