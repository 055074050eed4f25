"""mpi4py's methods that a Communicator does not have: each name says what does the same."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from typing import Any, TypeVar

from .._lazy import MPI, np
from ..agree.agreement import refused
from ..core.signature import VERBS
from ..errors import UsageError, where

Verb = TypeVar("Verb", bound=Callable[..., Any])

_TWINS = {  # mpi4py's spellings, of what no alias serves: buffers are given there, and nothing is returned
    "Allgather": "all_gather", "Allgatherv": "all_gather_ragged", "Allreduce": "all_reduce",
    "Alltoall": "all_to_all", "Alltoallv": "all_to_all_ragged", "Alltoallw": "all_to_all_ragged",
    "Bcast": "broadcast", "Exscan": "exscan", "Gather": "gather", "Gatherv": "gather_ragged",
    "Ibarrier": "barrier", "Irecv": "irecv", "Isend": "isend", "Recv": "recv", "Reduce": "reduce",
    "Reduce_scatter": "reduce_scatter", "Reduce_scatter_block": "reduce_scatter", "Scan": "scan",
    "Scatter": "scatter", "Scatterv": "scatter_ragged", "Send": "send", "Sendrecv": "sendrecv",
    "Ssend": "send", "ssend": "send_object", "issend": "isend_object",
}  # fmt: skip


def spelt(name: str, verb: Verb) -> Verb:
    """A verb under mpi4py's own name for objects, which there returns what all gave, in lists. So it takes
    arrays alone, and numbers where the result is the same."""

    @wraps(verb)
    def alias(comm: Any, x: Any = None, *more: Any, **named: Any) -> Any:
        if not _means_the_same(name, x):
            own = verb.__name__
            error = UsageError(
                f"{name} was given a {type(x).__name__}, which mpi4py takes as an object",
                hint=f"comm.{own}_object(...) takes any object; comm.{own}(...) arrays and numbers; "
                f"MPI.of(comm).{name} of hpcomm.compat is as mpi4py has it",
            )
            raise refused(comm.context, name, error)
        return verb(comm, x, *more, **named)

    return alias  # type: ignore[return-value]  # it takes the same


def also(verb: Verb) -> Verb:
    """A verb under another spelling; traces and fingerprints see the call of its own name."""

    @wraps(verb)
    def alias(comm: Any, *given: Any, **named: Any) -> Any:
        return getattr(comm, verb.__name__)(*given, **named)

    return alias  # type: ignore[return-value]  # it takes the same


def _means_the_same(name: str, x: object) -> bool:
    if x is None or isinstance(x, (array, memoryview)):
        return True
    if hasattr(x, "shape") and not isinstance(x, np.generic):
        return True
    number = isinstance(x, (int, float, complex)) or (isinstance(x, np.generic) and x.dtype.kind in "iufc")
    return name == "allreduce" and number


# Spellings of mpi4py's and American ones, which Python should not propose in place of a misspelt name
_ALIASES = frozenset({
    "allgather", "allreduce", "alltoall", "bcast", "reduce_scatter_block",
    "neighbor_all_gather", "neighbor_all_gather_ragged", "neighbor_all_to_all", "neighbor_all_to_all_ragged",
})  # fmt: skip
_are_filled = False


class _Elsewhere:
    """A name of mpi4py's: asking for it is an error."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, comm: Any, kind: type) -> Any:
        if comm is not None:
            with suppress(AttributeError):
                return getattr(super(Mpi4pyNames, comm), self._name)  # of another base of a subclass
        raise AttributeError(_what_to_use(self._name, comm), name=self._name, obj=comm)


class Mpi4pyNames:
    """A base of Communicator. It has no __getattr__: CPython caches no method of a class that has one."""

    def __dir__(self) -> list[str]:
        own = {*vars(self)}.union(*(vars(kind) for kind in type(self).__mro__ if kind is not Mpi4pyNames))
        return [
            name
            for name in super().__dir__()
            if name not in _ALIASES
            and (name in own or not isinstance(vars(Mpi4pyNames).get(name), _Elsewhere))
        ]


def fill_names(comm: Mpi4pyNames) -> None:
    """Once MPI is there, whose names they are, and comm has its own attributes."""
    global _are_filled
    if not _are_filled:
        for name in {*dir(MPI.Intracomm), *dir(MPI.Intercomm)}.difference(dir(comm)):
            if not name.startswith("_"):
                setattr(Mpi4pyNames, name, _Elsewhere(name))
        _are_filled = True


_OF_MODULE = {  # what other libraries have in their module, and users ask for there
    "init": "nothing: hpcomm.world is there when it is first used",
    "finalize": "nothing: all ends at the exit of the program",
    "rank": "hpcomm.world.rank", "size": "hpcomm.world.size", "comm_world": "hpcomm.world",
    "mpi": "hpcomm.world, or hpcomm.compat.MPI, which is as mpi4py's",
    "init_process_group": 'torch.distributed.init_process_group("mpi"), or hpcomm.world, which needs none',
}  # fmt: skip
_ALIKE = {"initialize": "init", "shutdown": "finalize", "world_size": "size", "comm": "comm_world"}


def of_module(name: str) -> str:
    """What to try in place of hpcomm.NAME, or ""."""
    word = name.lower().removeprefix("get_").removeprefix("is_")
    word = _ALIKE.get(word, word)
    hint = _OF_MODULE.get(word, "")
    if not hint and name in VERBS:
        hint = f"hpcomm.world.{name}(...)"
    return hint and f"\n  try:   {hint}"


def _what_to_use(name: str, comm: Any) -> str:
    base, hint = name.removesuffix("_init"), ""
    word = base[1:].capitalize() if base[:1] == "I" and base[1:].capitalize() in _TWINS else base
    if (twin := _TWINS.get(word)) is not None:
        given = "..., sync=True" if word.endswith("send") and word != "Send" else "..."
        if base != name:
            hint = f'comm.plan("{twin}", ...)'
        elif word == base:
            hint = f"comm.{twin}({given})"
        else:
            hint = f"comm.{twin}({given}, async_op=True)"
        hint += " takes any object; " if twin.endswith("_object") else " takes and returns arrays; "
    own = f"MPI.of(comm).{name} of hpcomm.compat is as mpi4py has it, comm.mpi.{name} mpi4py's own"
    return f"a Communicator has no {name}\n  where: {where(name, comm)}\n  try:   {hint}{own}"
