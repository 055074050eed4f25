"""A communicator as the layers below its class see it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from .._lazy import MPI
from .operation import Observer


class Comm(Protocol):
    """What transports, checks and requests use of a Communicator, whose class stands above them.

    Parts of type Any belong to classes of other layers. communicator.py makes them and says what each is.
    """

    rank: int
    size: int
    name: str
    is_inter: bool
    remote_size: int
    disagreed: str
    asked_check: str
    tag_base: int
    compared: str
    observers: tuple[Observer, ...]
    partners: Any
    patience_s: float | None
    timeout_s: float | None
    is_fast: bool

    node_regions: Mapping[int, Any]
    node: Any
    direct: Any
    block_channel: MPI.Comm

    devices: Any
    exchange_channel: list[Any] | None
    kept_schedules: Any
    ranks_by_node: Any
    begun: int
    plan: Any

    @property
    def mpi_handle(self) -> MPI.Comm: ...
    @property
    def object_comm(self) -> MPI.Comm: ...
    @property
    def check(self) -> str: ...
    @property
    def agreement(self) -> Any: ...
    @property
    def call_guard(self) -> Any: ...
    @property
    def message_kinds(self) -> Any: ...
    @property
    def outstanding(self) -> Any: ...
    @property
    def watched(self) -> tuple[Any, list[tuple[int, Any, Any]]] | None: ...
    @property
    def is_closed(self) -> bool: ...
    def bytewise_min(self, here: bytes) -> bytes: ...
    def check_open(self, verb: str) -> None: ...
    def dup(self, name: str | None = None, check: str | None = None) -> Comm: ...
    def fall_out(self, why: str = ...) -> None: ...
    def forget_mpi(self) -> None: ...
    def last_call(self) -> int: ...
    def move_on(self) -> None: ...
