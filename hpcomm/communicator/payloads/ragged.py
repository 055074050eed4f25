"""Operations on arrays whose shape and dtype the receivers do not know (MPI's v-variants).

Each rank may bring another shape, dtype and array library; arrays arrive as what was sent: tensors
as tensors (as numpy arrays where torch is not installed), arrays on devices on the current device of their
library where there is one, everything else as numpy arrays. Small arrays travel in one round.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Sequence
from typing import Any, overload

from ..._lazy import NDArray, loaded, np
from ...core.buffer import DeviceBuffer, Shape
from ...core.request import Request
from ...core.types import AnyStatus, Array, ArrayLike, Later, Now, Scalar
from ...errors import DtypeError, UsageError
from ...transport.late import buffer, dtypes
from ..shell import Shell
from .payload import ARRAY, DevicePayload, OnDevice, Payload, check_came
from .payload_agreement import (
    Form,
    addressed,
    collective,
    ireceive,
    isend,
    receive,
    send,
)

_ON_DEVICE = "device"  # in place of a library: the block is an array


class Ragged(Shell):
    """Verbs of arrays whose shapes the receivers do not know."""

    @overload
    def send_ragged(
        self, x: ArrayLike, dest: int, tag: int = ..., *, async_op: Now = ..., sync: bool = ...
    ) -> None: ...
    @overload
    def send_ragged(
        self, x: ArrayLike, dest: int, tag: int = ..., *, async_op: Later, sync: bool = ...
    ) -> Request[None]: ...
    def send_ragged(
        self, x: ArrayLike, dest: int, tag: int = 0, *, async_op: bool = False, sync: bool = False
    ) -> Request[None] | None:
        """Send x with its shape and dtype; recv_ragged takes it.

        async_op, sync: see send.
        """
        comm = self.context
        going = addressed(comm, "send_ragged", encode, x, dest, tag)
        return (isend if async_op else send)(comm, "send_ragged", *going, sync)

    def isend_ragged(self, x: ArrayLike, dest: int, tag: int = 0, *, sync: bool = False) -> Request[None]:
        """Begin to send x with its shape and dtype; x must not change before the request is complete.

        sync: see isend.
        """
        comm = self.context
        going = addressed(comm, "isend_ragged", encode, x, dest, tag)
        return isend(comm, "isend_ragged", *going, sync)

    # fmt: off
    @overload
    def recv_ragged(
        self, source: int | None = ..., tag: int | None = ..., *, status: AnyStatus | None = ...,
        async_op: Now = ...,
    ) -> Any: ...
    @overload
    def recv_ragged(
        self, source: int | None = ..., tag: int | None = ..., *, status: AnyStatus | None = ...,
        async_op: Later,
    ) -> Request[Any]: ...
    # fmt: on
    def recv_ragged(
        self,
        source: int | None = None,
        tag: int | None = None,
        *,
        status: AnyStatus | None = None,
        async_op: bool = False,
    ) -> object:
        """Receive an array without knowing its shape and dtype.

        source, tag, status, async_op: see recv.
        """
        take = ireceive if async_op else receive
        return take(self.context, "recv_ragged", source, tag, status, decode)

    def irecv_ragged(self, source: int | None = None, tag: int | None = None) -> Request[Any]:
        """Begin to receive an array without knowing its shape and dtype; None for any source or tag."""
        return ireceive(self.context, "irecv_ragged", source, tag, None, decode)

    @overload
    def broadcast_ragged(
        self, x: NDArray[Scalar], root: int = ..., *, async_op: Now = ...
    ) -> NDArray[Scalar]: ...
    @overload
    def broadcast_ragged(
        self, x: NDArray[Scalar], root: int = ..., *, async_op: Later
    ) -> Request[NDArray[Scalar]]: ...
    @overload
    def broadcast_ragged(self, x: Array | None = ..., root: int = ..., *, async_op: Now = ...) -> Array: ...
    @overload
    def broadcast_ragged(
        self, x: Array | None = ..., root: int = ..., *, async_op: Later
    ) -> Request[Array]: ...
    def broadcast_ragged(
        self, x: ArrayLike | None = None, root: int = 0, *, async_op: bool = False
    ) -> object:
        """Give every rank root's array, whatever its shape and dtype; x is ignored elsewhere.

        async_op=True gives a Request.
        """
        return collective(self.context, "broadcast", _RAGGED, x, async_op, root)

    @overload
    def gather_ragged(
        self, x: NDArray[Scalar], root: int = ..., *, async_op: Now = ...
    ) -> list[NDArray[Scalar]] | None: ...
    @overload
    def gather_ragged(
        self, x: NDArray[Scalar], root: int = ..., *, async_op: Later
    ) -> Request[list[NDArray[Scalar]] | None]: ...
    @overload
    def gather_ragged(self, x: Array, root: int = ..., *, async_op: Now = ...) -> list[Array] | None: ...
    @overload
    def gather_ragged(self, x: Array, root: int = ..., *, async_op: Later) -> Request[list[Array] | None]: ...
    def gather_ragged(self, x: ArrayLike, root: int = 0, *, async_op: bool = False) -> object:
        """Collect arrays of any shapes and dtypes in a list on root; None elsewhere.

        async_op=True gives a Request.
        """
        return collective(self.context, "gather", _RAGGED, x, async_op, root)

    @overload
    def all_gather_ragged(self, x: NDArray[Scalar], *, async_op: Now = ...) -> list[NDArray[Scalar]]: ...
    @overload
    def all_gather_ragged(self, x: NDArray[Scalar], *, async_op: Later) -> Request[list[NDArray[Scalar]]]: ...
    @overload
    def all_gather_ragged(self, x: Array, *, async_op: Now = ...) -> list[Array]: ...
    @overload
    def all_gather_ragged(self, x: Array, *, async_op: Later) -> Request[list[Array]]: ...
    def all_gather_ragged(self, x: ArrayLike, *, async_op: bool = False) -> object:
        """Collect arrays of any shapes and dtypes in a list on every rank.

        async_op=True gives a Request.

        Example (3 ranks):
            >>> [a.shape for a in comm.all_gather_ragged(np.ones(comm.rank))]
            [(0,), (1,), (2,)]
        """
        return collective(self.context, "all_gather", _RAGGED, x, async_op)

    @overload
    def scatter_ragged(
        self, xs: Sequence[NDArray[Scalar]], root: int = ..., *, async_op: Now = ...
    ) -> NDArray[Scalar]: ...
    @overload
    def scatter_ragged(
        self, xs: Sequence[NDArray[Scalar]], root: int = ..., *, async_op: Later
    ) -> Request[NDArray[Scalar]]: ...
    @overload
    def scatter_ragged(
        self, xs: Sequence[Array] | None = ..., root: int = ..., *, async_op: Now = ...
    ) -> Array: ...
    @overload
    def scatter_ragged(
        self, xs: Sequence[Array] | None = ..., root: int = ..., *, async_op: Later
    ) -> Request[Array]: ...
    def scatter_ragged(
        self, xs: Sequence[ArrayLike] | None = None, root: int = 0, *, async_op: bool = False
    ) -> object:
        """Give each rank one array of root's list, which has one for each rank; others pass None.

        async_op=True gives a Request.
        """
        return collective(self.context, "scatter", _RAGGED, xs, async_op, root)

    @overload
    def all_to_all_ragged(
        self, xs: Sequence[NDArray[Scalar]], *, async_op: Now = ...
    ) -> list[NDArray[Scalar]]: ...
    @overload
    def all_to_all_ragged(
        self, xs: Sequence[NDArray[Scalar]], *, async_op: Later
    ) -> Request[list[NDArray[Scalar]]]: ...
    @overload
    def all_to_all_ragged(self, xs: Sequence[Array], *, async_op: Now = ...) -> list[Array]: ...
    @overload
    def all_to_all_ragged(self, xs: Sequence[Array], *, async_op: Later) -> Request[list[Array]]: ...
    def all_to_all_ragged(self, xs: Sequence[ArrayLike], *, async_op: bool = False) -> object:
        """Send array j of the list to rank j; receive a list with one from every rank.

        async_op=True gives a Request.
        """
        return collective(self.context, "all_to_all", _RAGGED, xs, async_op)


def encode(x: object) -> Payload:
    """An array with its shape, dtype and library."""
    look = buffer.as_buffer(x)
    if isinstance(look, buffer.DeviceBuffer):
        return _from_device(look)
    name = _described(look.array.dtype) if look.dtype.kind == "o" else look.dtype.name
    torch = loaded("torch")
    library = "torch" if torch is not None and isinstance(x, torch.Tensor) else "numpy"
    flat = np.ascontiguousarray(look.array).reshape(-1).view(np.uint8)
    return [memoryview(_description(look.shape, library, name)), flat.data]


def _described(dtype: np.dtype[np.generic]) -> str:
    """A dtype that has no name of ours, in words that make it again."""
    descr = np.lib.format.dtype_to_descr(dtype)
    if np.lib.format.descr_to_dtype(descr) != dtype:
        raise DtypeError(f"numpy has no words for dtype {dtype}", hint="the call's _object form")
    return repr(descr)


def _description(shape: Shape, library: str, name: str) -> bytes:
    return ARRAY + struct.pack(f"<q{len(shape)}q", len(shape), *shape) + f"{library};{name}".encode()


def _from_device(look: DeviceBuffer) -> Payload:
    """It arrives on a device where the same library has one, else on the host."""
    from . import device_payload

    text = _description(look.shape, _ON_DEVICE, look.dtype.name)
    return DevicePayload([memoryview(text), device_payload.block_of(look)])


def decode(got: Payload, rank: int | None = None) -> Any:
    """The array in a payload, of that rank, living in the memory that was received into."""
    text = bytes(got[0])
    if not text.startswith(ARRAY):
        check_came(text, rank)
        whose = "" if rank is None else f" from rank {rank}"
        raise UsageError(
            f"an object arrived{whose} where an array was expected",
            hint="recv_object for what send_object sends",
        )
    at = len(ARRAY)
    (ndim,) = struct.unpack_from("<q", text, at)
    shape = struct.unpack_from(f"<{ndim}q", text, at + 8)
    library, name = text[at + 8 + 8 * ndim :].decode().split(";", 1)
    if library == _ON_DEVICE:
        return got[1]
    flat = np.frombuffer(got[1], np.uint8) if len(got[1]) else np.empty(0, np.uint8)
    if name not in dtypes.BY_NAME:
        import ast

        return flat.view(np.lib.format.descr_to_dtype(ast.literal_eval(name))).reshape(shape)
    record = dtypes.BY_NAME[name]
    if library == "torch" and "torch" in sys.modules:
        torch = sys.modules["torch"]
        if not flat.size:
            return torch.empty(shape, dtype=dtypes.torch_dtype(record))
        return torch.from_numpy(flat).view(dtypes.torch_dtype(record)).reshape(shape)
    return flat.view(dtypes.numpy_dtype(record)).reshape(shape)


def _copied(x: object, own: Payload) -> Any:
    """This rank's own array: what comes back must not be the memory that went out."""
    from . import device_payload

    blocks = (
        device_payload.copied(b) if isinstance(b, OnDevice) else memoryview(bytearray(b)) for b in own[1:]
    )
    return decode([own[0], *blocks])


_RAGGED = Form("_ragged", encode, decode, _copied)
