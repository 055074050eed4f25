"""Buffers: every array is looked at once, here, and is a numpy view of its own memory from then on.

`as_buffer(x)` knows numpy, torch, the buffer protocol, DLPack, `__cuda_array_interface__` and plain numbers;
nothing behind it knows an array library. A Buffer also knows how to make another array of the same kind, so
results come back as what went in. Memory on a device has no numpy view: its Buffer says where it lies.
"""

from __future__ import annotations

import array as stdlib_array
import math
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .._lazy import LazyModule, NDArray, loaded, np
from ..errors import GRADIENT_FORM, DtypeError, LayoutError, UsageError
from . import dtypes, result_memory
from .dtypes import Dtype

if TYPE_CHECKING:
    from types import ModuleType

    from torch import Tensor

    from ..device import arrays
    from ..device.arrays import Place
    from .types import AnyArray
else:
    arrays = LazyModule("hpcomm.device.arrays")

Shape = tuple[int, ...]
_WORK = 10_000  # effort that an exact test for overlap may cost


class Buffer:
    """One look at one array.

    array: numpy view of the very memory, in the storage type of dtype, with the array's shape and strides
    dtype: what the elements are
    make: shape -> Buffer of the same kind and dtype, freshly allocated, C order
    give: () -> what the user gets back once the memory is filled
    frozen: why nothing may be received here, or None
    device: "cpu", "cuda:0", ...
    """

    __slots__ = ("array", "device", "dtype", "frozen", "give", "make")
    array: NDArray[Any]

    def __init__(
        self,
        array: AnyArray,
        dtype: Dtype,
        make: Callable[[Shape], Buffer],
        give: Callable[[], Any],
        frozen: str | None = None,
    ) -> None:
        self.array, self.dtype, self.make, self.give, self.frozen = array, dtype, make, give, frozen
        self.device = "cpu"

    @property
    def shape(self) -> Shape:
        return self.array.shape

    @property
    def size(self) -> int:
        return self.array.size

    @property
    def nbytes(self) -> int:
        return self.array.nbytes

    @property
    def place(self) -> Place | None:
        """Where on a device the array lies; None for the host's memory."""
        return None

    @property
    def stream(self) -> int | None:
        """The current stream of the array's library, if the array lies on a device."""
        return None

    def wrap(self, array: AnyArray) -> Any:
        """A storage array as an array of this buffer's kind: what a user's own operator is given."""
        other = self.make(array.shape)
        other.array[...] = array
        return other.give()

    def __str__(self) -> str:
        return f"{self.dtype} {self.shape}"


class DeviceBuffer(Buffer):
    """One look at one array on a device. Its elements are out of the host's reach: .array raises."""

    def __init__(self, x: object, seen: Place) -> None:
        self._place = seen
        self.dtype = seen.dtype
        self.device = seen.name
        self.frozen = "is read-only" if seen.readonly else None
        if seen.strides is not None and self.frozen is None:
            self.frozen = "does not lie in C order on its device"
        self.give = lambda: x

        def make(shape: Shape) -> Buffer:
            if seen.make is None:
                what = f"hpcomm does not know how to make another {type(x).__name__}"
                raise LayoutError(what, hint="give out=")
            return as_buffer(seen.make(shape))

        self.make = make

    @property
    def array(self) -> NDArray[Any]:  # type: ignore[override]
        hint = "x.cpu() for torch, cupy.asnumpy(x); docs/gpu.md says which operations take device arrays"
        raise LayoutError(f"x lies on {self.device}, and this moves host memory only", hint=hint)

    @property
    def shape(self) -> Shape:
        return self._place.shape

    @property
    def size(self) -> int:
        return math.prod(self._place.shape)

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    @property
    def place(self) -> Place:
        return self._place

    @property
    def stream(self) -> int:
        return self._place.stream()

    def packed(self) -> Place:
        """The elements in C order: as they lie, or copied so by a kernel of the array's library."""
        if self._place.strides is None:
            return self._place
        if self._place.pack is None:
            raise LayoutError(
                f"x does not lie in C order on {self.device}, and no kernel of {type(self.give()).__name__} "
                "is known to pack it",
                hint="give a contiguous array",
            )
        made = arrays.place(self._place.pack())
        assert made is not None
        return made


def as_buffer(x: object) -> Buffer:
    """Describe the memory of an array: address, shape, strides, dtype, device and stream.

    Args:
        x: numpy array (any strides), torch tensor, object of `__cuda_array_interface__`, the buffer
            protocol, DLPack or `__array_interface__`, Python or numpy number.

    Raises:
        DtypeError: x has elements that cannot be sent (Python objects, foreign byte order).
        LayoutError: x is masked, sparse or released, or on a device other than CUDA's.
        ConfigError: x is on a device, and CUDA's driver cannot be loaded.
        UsageError: x is not an array, or it needs a gradient, of which autograd would not learn.
    """
    if type(x) is np.ndarray:
        return _numpy(x)
    torch = loaded("torch")
    if torch is not None and isinstance(x, torch.Tensor):
        refuse_gradient(x)
        return _torch(x, torch)
    if isinstance(x, (np.generic, bool, int, float, complex)):
        return _number(x)
    if isinstance(x, np.ndarray):
        return _viewed(x)
    if isinstance(x, Buffer):
        return x
    if (seen := arrays.place(x)) is not None:
        return DeviceBuffer(x, seen)
    if hasattr(x, "__dlpack__") and not isinstance(x, memoryview):
        return _dlpack(x)
    return _buffer_protocol(x)


def refuse_gradient(x: Any) -> None:
    """Raise a UsageError if x, a tensor, needs a gradient, of which autograd would not learn."""
    if x.requires_grad and loaded("torch").is_grad_enabled():
        what = "x needs a gradient, and autograd would not see what is done to it"
        raise UsageError(what, hint=GRADIENT_FORM)


def detached(x: Any) -> Any:
    """x without its gradient: for memory of which autograd need not know, or of which it was asked before."""
    return x.detach() if getattr(x, "requires_grad", False) else x


def empty(shape: Shape, dtype: Dtype, torch: bool = False) -> Buffer:
    """A new array of dtype: a torch tensor, or else numpy's."""
    if torch:
        module = sys.modules["torch"]
        return _torch(module.empty(shape, dtype=dtypes.torch_dtype(dtype)), module)
    return _numpy(np.empty(shape, dtypes.numpy_dtype(dtype)))


def overlap(a: AnyArray, b: AnyArray) -> bool:
    """Whether a and b share an element; when that is too hard to tell, whether their ranges meet."""
    if not np.may_share_memory(a, b):
        return False
    try:
        return np.shares_memory(a, b, max_work=_WORK)  # type: ignore[arg-type]  # the stubs know two values, numpy takes any
    except Exception as error:
        if type(error).__name__ != "TooHardError":  # its home differs between versions of numpy
            raise
        return True


def same_memory(a: AnyArray, b: AnyArray) -> bool:
    """Whether a and b are the same elements in the same order."""
    if a is b:
        return True
    if a.shape != b.shape or a.strides != b.strides or a.dtype != b.dtype or not np.may_share_memory(a, b):
        return False
    return bool(a.__array_interface__["data"][0] == b.__array_interface__["data"][0])


def refuse_overlap(send: Buffer | None, recv: Buffer | None) -> None:
    """Refuse x and out that have an element in common."""
    if send is not None and recv is not None and overlap(send.array, recv.array):
        raise LayoutError("x and out overlap in memory", hint="out=x for in place, or an out of its own")


def refuse_partial(send: Buffer, recv: Buffer) -> None:
    """The same, but for one array that is both."""
    if send is not recv and not same_memory(send.array, recv.array):
        refuse_overlap(send, recv)


def landing(look: Buffer) -> AnyArray:
    """Where MPI writes: the array itself if its elements lie in order, else memory to unpack from."""
    return look.array if look.array.flags.c_contiguous else np.empty(look.shape, look.array.dtype)


def _on_device(device: str) -> LayoutError:
    return LayoutError(
        f"x lies on {device}; hpcomm moves memory of hosts and of CUDA devices", hint="x.cpu() for torch"
    )


_WRITEABLE = 0x400  # numpy's flag: to ask flags.writeable of what broadcast_arrays returns draws a warning


def _frozen(array: AnyArray) -> str | None:
    if not array.flags.num & _WRITEABLE:
        return "is read-only"
    if not array.flags.forc and array.size and _overlaps_itself(array):
        return "overlaps itself: several of its elements share a place in memory"
    return None


def _overlaps_itself(array: AnyArray) -> bool:
    """Whether two elements share memory; when that is too hard to tell, whether they might."""
    axes = sorted((abs(s), n) for s, n in zip(array.strides, array.shape, strict=True) if n > 1)
    reach = array.itemsize
    for stride, n in axes:
        if stride < reach:
            break
        reach += stride * (n - 1)
    else:
        return False
    if array.size > _WORK:
        return True
    places = np.zeros(1, np.int64)
    for stride, n in axes:
        places = np.add.outer(places, stride * np.arange(n)).reshape(-1)
    return bool((np.diff(np.sort(places)) < array.itemsize).any())


def _stored(array: AnyArray, dtype: Dtype) -> AnyArray:
    """The same memory in the type that dtype is stored in."""
    return array.view(dtype.storage) if dtype.kind in "hq" else array


def _numpy(x: AnyArray) -> Buffer:
    dtype = dtypes.from_numpy(x.dtype)
    own = x.dtype
    return Buffer(
        _stored(x, dtype), dtype, lambda shape: _numpy(result_memory.empty(shape, own)), lambda: x, _frozen(x)
    )


def _check_tensor(x: Tensor, torch: ModuleType) -> None:
    """Refuse a tensor whose elements do not lie in memory as strides say."""
    if x.is_nested:
        raise LayoutError("x is a nested tensor", hint="x.to_padded_tensor(0.0), or each of x.unbind()")
    if x.layout is not torch.strided:
        raise LayoutError(f"x is a {x.layout} tensor", hint="x.to_dense()")
    if x.is_quantized:
        raise DtypeError("x is a quantized tensor, whose scale would be lost", hint="x.dequantize()")
    if type(x).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
        what = f"x is a {type(x).__name__}, which owns no memory of its own"
        raise LayoutError(what, hint="x.to_local(), or a plain tensor")


def _torch(x: Tensor, torch: ModuleType) -> Buffer:
    if not x.is_cpu:
        if (seen := arrays.place(x)) is not None:
            return DeviceBuffer(x, seen)
        raise _on_device(str(x.device))
    _check_tensor(x, torch)
    dtype = dtypes.from_torch(x.dtype)
    lazy = x.is_conj() or x.is_neg()  # memory holds the conjugate or the negative of what the user sees
    plain = x.detach().resolve_conj().resolve_neg() if lazy else x
    strides = tuple(step * dtype.itemsize for step in plain.stride())
    array = tensor_memory(plain, dtype.storage, tuple(plain.shape), strides)
    frozen = "is a lazy conjugate or negative" if lazy else _frozen(array)

    return Buffer(array, dtype, lambda shape: _torch(result_memory.like(x, shape), torch), lambda: x, frozen)


class _Memory:
    """What numpy asks for an array; it holds the tensor whose memory that is."""

    __slots__ = ("__array_interface__", "tensor")

    def __init__(self, tensor: object, interface: dict[str, object]) -> None:
        self.tensor, self.__array_interface__ = tensor, interface


def tensor_memory(x: Tensor, storage: str, shape: Shape, strides: Shape | None = None) -> AnyArray:
    """The memory of a torch tensor of the host, which the array keeps.

    x.numpy() would leave a mark on it: its storage could never be resized again, as FSDP does.
    """
    try:
        address = x.data_ptr()
    except RuntimeError:
        what = "x stands for a tensor inside torch.func or torch.compile, and owns no memory"
        hint = "make the call outside of vmap, grad and jvp; for gradients see hpcomm.differentiable"
        raise LayoutError(what, hint=hint) from None
    if not address and x.numel():
        raise LayoutError("x has no memory: its storage was freed, or never made", hint="x.clone() before")
    interface = {
        "version": 3, "data": (address, False), "typestr": storage, "shape": shape, "strides": strides,
    }  # fmt: skip
    return np.asarray(_Memory(x, interface))


def _number(x: complex | np.generic) -> Buffer:
    array = np.asarray(x)
    if isinstance(x, np.generic):  # numpy.float64 is a float as well
        return _scalar(array, lambda filled: filled[()])
    if array.dtype.hasobject or (type(x) is int and array.dtype.kind == "u"):
        what = f"{x} does not fit into 64 bits"
        raise DtypeError(what, hint="the call's _object form, which takes ints of any size")
    return _scalar(array, lambda filled: filled.item() if filled.ndim == 0 else filled)


def _scalar(array: AnyArray, give: Callable[[AnyArray], object]) -> Buffer:
    """A number: 0-d on the way out; what comes back is a number again, or an array if there are several."""
    look = _numpy(array)

    def make(shape: Shape) -> Buffer:
        made = _scalar(np.empty(shape, array.dtype), give)
        made.frozen = None
        return made

    return Buffer(look.array, look.dtype, make, lambda: give(array), "is a number, not a place to receive in")


def _buffer_protocol(x: Any) -> Buffer:
    try:
        view = memoryview(x)
    except TypeError:
        if hasattr(x, "__array_interface__"):
            return _viewed(x)
        raise UsageError(f"{type(x).__name__} is not an array", hint=_instead(x)) from None
    except ValueError as error:
        raise LayoutError(f"x has no memory: {error}", hint="give it before it is released") from None
    try:
        array = np.asarray(view)
    except (ValueError, TypeError):
        raise DtypeError(f"elements of format {view.format!r} have no numpy dtype") from None
    dtype = dtypes.from_numpy(array.dtype)
    frozen = "is read-only" if view.readonly else _frozen(array)
    return Buffer(_stored(array, dtype), dtype, _making(array.dtype, dtype, _handing(x)), lambda: x, frozen)


def _making(
    own: np.dtype[np.generic], dtype: Dtype, hand: Callable[[AnyArray], object]
) -> Callable[[Shape], Buffer]:
    """What makes new arrays, of which the user gets hand(array). It holds no array, itself neither."""

    def make(shape: Shape) -> Buffer:
        filled = np.empty(shape, own)
        return Buffer(_stored(filled, dtype), dtype, _making(own, dtype, hand), lambda: hand(filled))

    return make


def _handing(x: Any) -> Callable[[AnyArray], object]:
    """bytes, bytearray and array.array have one axis: blocks come back one after the other."""
    kind = type(x)
    if isinstance(x, (bytes, bytearray)):
        return lambda filled: kind(filled.tobytes())
    if isinstance(x, stdlib_array.array):
        code = x.typecode
        return lambda filled: stdlib_array.array(code, filled.tobytes())
    return (lambda filled: filled.data) if isinstance(x, memoryview) else (lambda filled: filled)


def _viewed(x: object) -> Buffer:
    """An array of a class of its own, or one that numpy can view; results are plain arrays."""
    if isinstance(x, np.ma.MaskedArray):
        raise _masked("x is", None, "x.filled(value), or send x.mask too")
    look = _numpy(np.asarray(x))
    look.give = lambda: x
    return look


def refuse_masked(x: object, what: str, where: str | None = None) -> None:
    """Refuse numbers of which numpy's masks hide some: numpy.asarray takes what lies under a mask."""
    for part in x if isinstance(x, (list, tuple)) else (x,):
        if isinstance(part, np.ma.MaskedArray) and np.ma.is_masked(part):
            raise _masked(what, where, "leave out what is masked, or x.filled(value)")


def _masked(what: str, where: str | None, hint: str) -> LayoutError:
    return LayoutError(f"{what} a masked array, whose mask would be lost", where, hint)


def _instead(x: object) -> str:
    if isinstance(x, (list, tuple)) and any(hasattr(each, "shape") for each in x):
        return "numpy.stack(x) for arrays of one shape, the call's _object form for anything else"
    if isinstance(x, (list, tuple)) or hasattr(x, "__array__"):
        return "numpy.asarray(x) for numbers, the call's _object form for anything else"
    return "the call's _object form, which takes any Python object"


def _is_narrow(dtype: object) -> bool:
    """Whether it is a dtype that numpy has from ml_dtypes, as jax's bfloat16, which DLPack brings nobody."""
    return isinstance(dtype, np.dtype) and dtypes.from_numpy(dtype).kind in "hq"


def _dlpack(x: Any) -> Buffer:
    if x.__dlpack_device__()[0] != 1:  # kDLCPU
        raise _on_device(f"DLPack device {tuple(x.__dlpack_device__())}")
    wrap = "from_dlpack"
    try:
        array = np.from_dlpack(x)
    except (BufferError, RuntimeError, TypeError) as error:
        if not _is_narrow(getattr(x, "dtype", None)):
            what = f"{type(x).__name__} does not hand over its memory: {error}"
            raise DtypeError(what, hint="numpy.asarray(x)") from None
        array, wrap = np.asarray(x), "asarray"
    dtype = dtypes.from_numpy(array.dtype)
    namespace: Any = getattr(x, "__array_namespace__", lambda: None)()
    hand = getattr(namespace, wrap, lambda filled: filled)
    return Buffer(_stored(array, dtype), dtype, _making(array.dtype, dtype, hand), lambda: x, _frozen(array))
