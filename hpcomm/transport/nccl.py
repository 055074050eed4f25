"""Collectives by NCCL, where each rank has a GPU of its own."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from mpi4py import MPI

from ..device.nccl import DTYPES, OPS
from ..errors import HpcommError

if TYPE_CHECKING:
    from ..device.driver import Device
    from ..dtypes import Dtype
    from ..request import Stages
    from .arena import Arena, Card

__all__ = ["ByNccl", "fact", "join", "lack", "refuses"]

_SHARING = 23000  # the version from which ranks may share a GPU, if NCCL_MULTI_RANK_GPU_ENABLE=1


def fact(device: Device) -> int | str:
    """The version of NCCL here, or why there is none."""
    try:
        return device.nccl().version  # type: ignore[no-any-return]
    except HpcommError as error:
        return error.what[:120]


def lack(cards: list[Card]) -> str:
    """Why these ranks cannot use NCCL together, or "". The same on all ranks."""
    if len(cards) == 1:
        return "there is one rank only"
    versions = [card.facts["nccl"] for card in cards]
    for rank, version in enumerate(versions):
        if isinstance(version, str):
            return f"rank {rank}: {version}"
        if version != versions[0]:
            return f"rank 0 has NCCL {versions[0]}, rank {rank} {version}"
    seen: dict[bytes, int] = {}
    shares = versions[0] >= _SHARING and all(card.facts["nccl_shares"] for card in cards)
    for rank, card in enumerate(cards):
        if card.device in seen and not shares:
            return f"ranks {seen[card.device]} and {rank} share a GPU"
        seen[card.device] = rank
    return ""


def shares() -> bool:
    """Whether NCCL was told that ranks may share a GPU."""
    return os.environ.get("NCCL_MULTI_RANK_GPU_ENABLE") == "1"


def refuses(verb: str, op: str | None, dtype: Dtype) -> str:
    """Why NCCL has no such collective, or ""."""
    if verb in ("scan", "exscan"):
        return f"NCCL has no {verb}"
    if op is None or (op == "SUM" and dtype.kind == "c"):
        return ""
    if op not in OPS or dtype.name not in DTYPES:
        return f"NCCL has no {op.lower()} of {dtype}"
    return ""


def join(channel: Any, arena: Arena) -> Stages:
    """Make a group of NCCL's of all ranks; returns (the group or None, why there is none), alike on all."""
    library = arena.device.nccl()
    unique = bytearray(library.unique() if arena.rank == 0 else 128)
    yield [channel.Ibcast([unique, MPI.BYTE], 0)]
    joining = _Thread(lambda: library.group(bytes(unique), arena.size, arena.rank))
    yield [joining]
    fine = bytearray([joining.why == ""])
    yield [channel.Iallreduce(MPI.IN_PLACE, [fine, MPI.BYTE], MPI.BAND)]
    if fine[0]:
        return joining.result, ""
    return None, joining.why or "another rank could not join the group"


class ByNccl:
    """How a collective goes on in an arena by NCCL."""

    def __init__(self, arena: Arena, group: Any, verb: str, slots: int, op: str | None, dtype: Dtype,
                 root: int) -> None:  # fmt: skip
        self.arena, self.group, self.verb = arena, group, verb
        self.op, self.dtype, self.root = op, dtype, root
        self.capacity = max(1, arena.nbytes // (slots * dtype.itemsize))

    def move(self, count: int) -> Stages:
        arena = self.arena
        self.group.carry(self.verb, arena.work, count, self.dtype, self.op, self.root, arena.stream)
        return
        yield


class _Thread:
    """Work that blocks, in a thread; waited for as an MPI request is."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self.result: Any = None
        self.why = ""

        def run() -> None:
            try:
                self.result = work()
            except HpcommError as error:
                self.why = error.what

        self._thread = threading.Thread(target=run, daemon=True, name="hpcomm joins NCCL")
        self._thread.start()

    def Test(self, status: Any = None) -> bool:  # noqa: N802  as MPI.Request has it
        return not self._thread.is_alive()
