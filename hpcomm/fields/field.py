"""Field: one named distributed array, with its partition, its halo and its unit.

T = Field(comm.mesh(y=2, x=2), (512, 512), halo=1, name="T", unit="K")
T.inner[...] = 300.0
T.update_halo()
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Generic, Self, TypeAlias, TypedDict, Unpack, overload

from .._lazy import NDArray, np
from ..communicator.mesh import Mesh, axes_of, ranks_of
from ..communicator.shell import watched
from ..core.partition import Box, Partition, Points, Split
from ..errors import DtypeError, HpcommError, LayoutError, UsageError, demand, located, where
from ..transport.endpoints import memory, set_zero
from ..transport.late import buffer, dtypes, host_copy
from .halo import Halo
from .labelled import Labelled
from .numbers import Numbers
from .numpy_protocol import Arithmetic
from .own_part import A, check_whole, from_host, on_host
from .redistribution import Redistribution
from .routing import Width, halo_width, rings
from .slices import Step, meeting, parse

if TYPE_CHECKING:
    from types import EllipsisType

    from ..communicator.communicator import Communicator
    from ..core.buffer import Buffer
    from ..core.dtypes import Dtype
    from ..core.types import AnyArray, ArrayLike, Scalar

    Key: TypeAlias = int | slice | EllipsisType | tuple[int | slice | EllipsisType, ...]
    Ranks: TypeAlias = Mesh | Communicator
    Whole: TypeAlias = int | Sequence[int] | Partition | Points

    class Options(TypedDict, total=False):
        """What any field may be made with."""

        split: Sequence[Split] | None
        halo: Width
        periodic: bool | Iterable[int] | None
        corners: bool
        name: str
        unit: str


@watched
class Field(Numbers[A], Arithmetic[A], Labelled, Generic[A]):
    """One array spread over ranks.

    Args:
        ranks: a Mesh, a Cart (its axes are axis0, axis1, ...), or another Communicator.
        whole: shape of the whole array, which is cut over the mesh or grid (over other ranks: by rows). Or
            a Partition or Points.
        split: which mesh axis cuts which array axis (see Partition).
        dtype: of the elements ("float64"); a torch dtype makes a tensor.
        halo: how many elements of its neighbours a rank has around its own: a number, one for each axis, or
            (before, after) for each axis. The ends of the whole array have a halo too, for boundary values.
            Only periodic axes fill it.
        periodic: array axes that close to rings, or True for all; default: those that periodic mesh axes cut.
        corners: whether the halo has corners.
        name, unit: for people and files.
        array: this rank's array with its halo, instead of a new one of zeros.
        like: an array; the new one is of its library, dtype and device.

    Arrays may lie on devices (docs/gpu.md), on some ranks or on all. Halos, redistribution, gather and
    scatter move them there; indexing, sums and files go through host memory. Points have host arrays only.

    Attributes:
        array: this rank's array, halo included, as numpy array, tensor or CuPy array.
        inner: the view of it without the halo: what this rank owns.
        box: the global indices of inner (None for Points).
        partition, comm, halo, name, unit, corners: as given.
        periodic: array axes that close to rings.
        look: what hpcomm's own layers know of array; not for programs.

    Raises:
        LayoutError: partition, ranks and array do not fit each other.
    """

    @overload
    def __init__(
        self: Field[NDArray[np.float64]],
        ranks: Ranks,
        whole: Whole,
        *,
        dtype: None = ...,
        **more: Unpack[Options],
    ) -> None: ...
    @overload
    def __init__(
        self: Field[NDArray[Scalar]], ranks: Ranks, whole: Whole, *, dtype: type[Scalar] | np.dtype[Scalar],
        **more: Unpack[Options],
    ) -> None: ...  # fmt: skip
    @overload
    def __init__(
        self: Field[A], ranks: Ranks, whole: Whole, *, array: A, **more: Unpack[Options]
    ) -> None: ...
    @overload
    def __init__(self: Field[A], ranks: Ranks, whole: Whole, *, like: A, **more: Unpack[Options]) -> None: ...
    @overload
    def __init__(
        self: Field[Any], ranks: Ranks, whole: Whole, *, dtype: object, **more: Unpack[Options]
    ) -> None: ...
    def __init__(
        self,
        ranks: Ranks,
        whole: Whole,
        *,
        split: Sequence[Split] | None = None,
        dtype: object = None,
        halo: Width = 0,
        periodic: bool | Iterable[int] | None = None,
        corners: bool = True,
        name: str = "",
        unit: str = "",
        array: object = None,
        like: object = None,
    ) -> None:
        comm = self.comm = ranks_of(ranks, "field")
        for what, text in (("name", name), ("unit", unit)):
            demand(text, str, f"the {what} of the field", "field", f"text: Field({what}='T')")
        self.name, self.unit = name, unit
        self.corners = corners
        with located(f"field {name!r}", comm):
            if not isinstance(whole, (Partition, Points)):
                whole = Partition(whole, axes_of(ranks)[0], split)
            self.partition = whole
            if self.partition.size != comm.size:
                raise LayoutError(
                    f"the partition is over {self.partition.size} ranks, the communicator has {comm.size}",
                    hint="a communicator of as many ranks",
                )
            self.look = _storage(self._set_up(halo, periodic, ranks), dtype, array, like)
            if self.look.place is not None and isinstance(self.partition, Points):
                raise LayoutError("fields of points cannot lie on a device yet", hint="a host array")
        self.array: A = self.look.give()
        self._halo: Halo | None = None

    def _set_up(
        self, halo: Width, periodic: bool | Iterable[int] | None, ranks: Mesh | Communicator
    ) -> tuple[int, ...]:
        """Where the rim lies; the shape of this rank's array with it."""
        self.box: Box | None = None
        if isinstance(self.partition, Points):
            self.halo: Any = 0
            self.periodic: tuple[int, ...] = ()
            own, ghosts = (each[self.comm.rank] for each in (self.partition.owned, self.partition.ghosts))
            return (len(own) + len(ghosts), *self.partition.shape[1:])
        self.halo = halo_width(halo, self.partition.ndim)
        self.box = self.partition.box(self.comm.rank)
        grown = self.box.grown(self.halo)
        self._origin = grown.start
        if periodic is None:
            closed = {*axes_of(ranks)[1]}
            self.periodic = tuple(a for a, names in enumerate(self.partition.axes) if {*names} & closed)
        else:
            self.periodic = rings(periodic, self.partition.ndim)
        return grown.shape

    def __repr__(self) -> str:
        unit = f" [{self.unit}]" if self.unit else ""
        return f"<Field {self.name or '?'}{unit} {self.look.dtype} {self.partition}>"

    # -- neighbours -----------------------------------------------------------------------------------
    def update_halo(self) -> None:
        """Fill the halo with the neighbours' elements. Collective. The first call plans the messages.

        For several fields in one exchange, or work in between: hpcomm.Halo.
        """
        if self._halo is None:
            self._halo = Halo(self)
        self._halo()

    # -- the whole ------------------------------------------------------------------------------------
    def gather(self, root: int = 0) -> A | None:
        """The whole array on root, None elsewhere. Collective."""
        return self._to(Partition(self.shape, {}), [root])

    def all_gather(self) -> A:
        """The whole array on every rank. Collective."""
        if isinstance(self.partition, Points):
            whole = self.look.make(self.shape)
            own = self.look.array[self._own()]
            for indices, part in zip(self.partition.owned, self.comm.all_gather_ragged(own), strict=True):
                whole.array[indices] = part
            gathered: A = whole.give()
            return gathered
        copies = Partition(self.shape, {"copy": self.comm.size}, (None,) * len(self.shape))
        everywhere = self._to(copies, list(range(self.comm.size)))
        assert everywhere is not None
        return everywhere

    def scatter(self, x: ArrayLike | None = None, root: int = 0) -> Self:
        """Fill the field from root's x, which is the whole array. Collective. Returns the field.

        Raises:
            LayoutError, DtypeError: x does not have the field's shape or dtype. Every rank raises.
        """
        look: Buffer | None = None
        wrong = None
        if self.comm.rank == root:
            try:
                look = buffer.as_buffer(x)
                if look.shape != self.shape or look.dtype != self.look.dtype:
                    kind: type[HpcommError] = LayoutError if look.shape != self.shape else DtypeError
                    raise kind(f"x is {look}, the field {self.look.dtype} {self.shape}")
            except HpcommError as error:
                wrong = type(error), error.what
        wrong = self.comm.broadcast_object(wrong, root)
        if wrong:
            raise wrong[0](wrong[1], where("scatter", self.comm), "an array of the whole's shape and dtype")
        move = Redistribution(self.comm, Partition(self.shape, {}), self.partition, [root])
        move(None if look is None else memory(self._beside(look)), out=self._owned())
        move.close()
        return self

    def redistribute(
        self, target: Field[A] | Partition | Points, comm: Communicator | None = None, halo: Width = 0
    ) -> Field[A]:
        """The same values in another partition over the same ranks. Collective.

        For other ranks, or to do it often: hpcomm.Redistribution.

        Args:
            target: a partition, or a field to be filled.
            halo: of the new field.
        """
        if isinstance(target, Field):
            made = target
        else:
            made = Field(
                comm or self.comm, target, like=self.array, halo=halo, name=self.name, unit=self.unit
            )
        move = Redistribution(self.comm, self.partition, made.partition)
        move(self._owned(), out=made._owned())
        move.close()
        return made

    def __getitem__(self, key: Key) -> Any:
        """The elements at global indices (numbers and slices of positive step) on every rank. Collective.

        Raises:
            LayoutError: other indices, or some outside; a partial field.
        """
        check_whole(self, "slicing")
        steps, drop = self._parsed(key)
        whole = self.look.make(tuple(len(range(*s)) for s in steps))
        there = whole.array if whole.place is None else np.empty(whole.shape, whole.dtype.storage)
        own = on_host(self)
        here = meeting(self.partition, steps, self.comm.rank)[0]
        mine = own[here] if self.is_first else np.empty(0, own.dtype)
        for rank, part in enumerate(self.comm.all_gather_ragged(np.asarray(mine, order="C"))):
            if isinstance(self.partition, Points) or self.partition.is_first(rank):
                there[meeting(self.partition, steps, rank)[1]] = part
        if whole.place is not None:
            host_copy.from_host(there, whole)
        result = whole.give()
        return result[tuple(0 if a in drop else slice(None) for a in range(len(steps)))]

    def __setitem__(self, key: Key, value: object) -> None:
        """Set elements at global indices; every rank sets those it owns. Not collective.

        value: a number, or an array that broadcasts to the shape of the slice.

        Raises:
            LayoutError: other indices, some outside, or a value that does not broadcast.
            DtypeError: a value that the field's elements do not hold, as a complex number for float64.
        """
        steps, drop = self._parsed(key)
        mine, there = meeting(self.partition, steps, self.comm.rank)
        lengths = [len(range(*s)) for s in steps]
        with located("setting a slice", self.comm):
            full = self._fitting(value, tuple(n for a, n in enumerate(lengths) if a not in drop))
        piece = full.reshape(lengths)[there]
        if self.look.place is not None:
            own = on_host(self)
            own[mine] = piece
            from_host(self, own)
        elif isinstance(self.array, np.ndarray):
            self.look.array[self._own()][mine] = piece
        else:
            if isinstance(piece, np.ndarray):
                made = self.look.make(piece.shape)
                made.array[...] = piece
                piece = made.give()
            inner: Any = self.inner
            inner[mine] = piece

    def _beside(self, look: Buffer) -> Buffer:
        """A whole array, in the memory that the field is in: of the host, or of its device."""
        if (look.place is None) == (self.look.place is None):
            return look
        there = self.look.make(self.shape)
        if look.place is None:
            host_copy.from_host(look.array, there)
        else:
            there.array[...] = host_copy.to_host(look)  # type: ignore[arg-type]
        return there

    def _fitting(self, value: object, shape: tuple[int, ...]) -> Any:
        """value broadcast to shape: a tensor for a field of host tensors, so that gradients know of it; else
        an array in host memory of the dtype that the field's elements are stored in.
        """
        buffer.refuse_masked(value, "the value is")
        plain = np.asarray(value) if isinstance(value, (list, tuple)) else buffer.detached(value)
        look = buffer.as_buffer(plain)
        _check_kinds(self.look.dtype, look.dtype)
        made: Any
        if self.look.place is None and type(value) is type(self.array) and hasattr(value, "expand"):
            made = value.to(self.dtype)  # type: ignore[attr-defined]  # by positions torch itself does not convert
        else:
            made = _stored(look, self.look.dtype)
        try:
            return made.expand(shape) if hasattr(made, "expand") else np.broadcast_to(made, shape)
        except (RuntimeError, ValueError):
            raise LayoutError(
                f"a value of shape {look.shape} does not broadcast to {shape}",
                hint=f"a number, or an array of shape {shape}",
            ) from None

    def _parsed(self, key: Key) -> tuple[list[Step], set[int]]:
        with located("slicing", self.comm):
            return parse(key, self.shape)

    # -- how ------------------------------------------------------------------------------------------
    def _to(self, target: Partition, ranks: list[int]) -> A | None:
        move = Redistribution(self.comm, self.partition, target, None, ranks)
        made = self.look.make(self.shape) if self.comm.rank in ranks else None
        move(self._owned(), out=None if made is None else memory(made))
        move.close()
        if made is None:
            return None
        given: A = made.give()
        return given


def _storage(shape: tuple[int, ...], dtype: object, array: object, like: object) -> Buffer:
    """A look at array, which is to hold the elements of this rank, or else at a new one of zeros."""
    if sum(given is not None for given in (dtype, array, like)) > 1:
        raise UsageError("a field has its dtype from dtype, array or like", hint="one of them")
    if array is None:
        return _zeros(shape, dtype or "float64", like)
    look = buffer.as_buffer(array)
    frozen = look.frozen if look.place is None else look.place.readonly and look.frozen
    if look.shape != shape or frozen:
        hint = "this rank's box with its halo, to be written; Partition(bounds=...) cuts elsewhere"
        raise LayoutError(f"array {frozen or f'has shape {look.shape}, due is {shape}'}", hint=hint)
    return look


def _check_kinds(dtype: Dtype, given: Dtype) -> None:
    """That a field of dtype holds elements of the dtype that is given."""
    is_complex = given.kind == "c" != dtype.kind
    if is_complex or given.kind == "o" or ("q" in (dtype.kind, given.kind) and given != dtype):
        hint = "value.real" if is_complex else f"a value of {dtype}"
        raise DtypeError(f"the field holds {dtype}, the value is {given}", hint=hint)


def _stored(look: Buffer, dtype: Dtype) -> AnyArray:
    """An array in host memory, its elements as a field of dtype stores them."""
    made = look.array if look.place is None else host_copy.to_host(look)  # type: ignore[arg-type]
    if look.dtype == dtype:
        return made
    if look.dtype.kind == "h":
        made = dtypes.widen(made, look.dtype)
    if dtype.kind == "h":
        return dtypes.narrow(made.astype(np.float32), dtype)
    return made.astype(dtype.storage)


def _zeros(shape: tuple[int, ...], dtype: object, like: object) -> Buffer:
    """A look at a new array, of the library, dtype and device of like, or of dtype, if there is room."""
    kind, torch = dtypes.parse(dtype)
    model = None if like is None else buffer.as_buffer(buffer.detached(like))
    try:
        if model is None and not torch:  # pages of zeros cost nothing before they are used
            return buffer.as_buffer(np.zeros(shape, dtypes.numpy_dtype(kind)))
        made = buffer.empty(shape, kind, torch) if model is None else model.make(shape)
        set_zero(memory(made))
    except (MemoryError, ValueError, OverflowError, RuntimeError) as error:
        what = f"{math.prod(shape):,} elements, which this rank would hold, find no room: {error}"
        raise LayoutError(what, hint="a smaller whole or dtype, or more ranks") from None
    return made
