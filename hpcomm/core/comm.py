"""A communicator's context as the layers below its class see it."""

from __future__ import annotations

from typing import Any, Protocol

from .._lazy import MPI
from .operation import Observer


class Comm(Protocol):
    """What transports, checks, requests and the parts of a Context use of it; its class stands above them.

    communicator/context.py says what each attribute is. Those of type Any belong to classes of other layers.
    """

    rank: int
    size: int
    name: str
    settings: Any
    near: Any
    known: Any
    life: Any
    is_inter: bool
    remote_size: int
    disagreed: str
    tag_base: int
    compared: str
    values: Any
    observers: tuple[Observer, ...]
    partners: Any
    patience_s: float | None
    timeout_s: float | None
    is_fast: bool

    node: Any
    direct: Any
    block_channel: Any

    devices: Any
    kept_schedules: Any
    ranks_by_node: Any
    begun: int
    carriers: Any
    inner_comm: Any
    to_itself: list[Any]

    @property
    def mpi_handle(self) -> MPI.Comm: ...
    @property
    def object_comm(self) -> MPI.Comm: ...
    @property
    def check(self) -> str: ...
    @property
    def background_node(self) -> Any: ...
    @property
    def agreement(self) -> Any: ...
    @property
    def call_guard(self) -> Any: ...
    @property
    def message_kinds(self) -> Any: ...
    @property
    def outstanding(self) -> Any: ...
    @property
    def is_closed(self) -> bool: ...
    def ask_again(self) -> None: ...
    def bytewise_min(self, here: bytes) -> bytes: ...
    def check_open(self, verb: str) -> None: ...
    def close(self) -> None: ...
    def fall_out(self, why: str = ...) -> None: ...
    def forget_mpi(self) -> None: ...
    def last_call(self) -> int: ...
    def move_on(self) -> None: ...
