"""numpy's protocols and Python's operators on fields: a rank's own part, the whole, or a clear error.

numpy.asarray(field)          this rank's own part
numpy.sqrt(field), ...        a field in the same partition, element by element; not collective
numpy.sum(field), ...         over the whole, as field.sum(): collective
field + field, field += 1     a field in the same partition, without a halo; what is changed keeps its own
field == field, field > 1     the same of truth values
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import repeat
from typing import Any, NoReturn, Self, TypeVar, cast

from .._lazy import DTypeLike, np
from ..core.types import AnyArray
from ..errors import DtypeError, LayoutError, UsageError, where
from ..transport.late import dtypes
from .own_part import A, OwnPart, check_whole, on_host

_OVER_THE_WHOLE = {  # numpy's function: method of the field
    "sum": "sum", "mean": "mean", "min": "min", "amin": "min", "max": "max", "amax": "max",
    "norm": "norm", "vdot": "dot", "std": "std", "var": "var", "argmin": "argmin", "argmax": "argmax",
    "all": "all", "any": "any",
}  # fmt: skip
_OF_THE_WHOLE = ("shape", "ndim", "size")
_PYTHONS: dict[str, Callable[..., Any]] = {  # of numpy's functions
    "absolute": operator.abs, "add": operator.add, "divide": operator.truediv, "multiply": operator.mul,
    "negative": operator.neg, "power": operator.pow, "subtract": operator.sub,
    "equal": operator.eq, "not_equal": operator.ne, "less": operator.lt, "less_equal": operator.le,
    "greater": operator.gt, "greater_equal": operator.ge,
}  # fmt: skip

S = TypeVar("S", bound="Arithmetic[Any]")


class NumpyLike(OwnPart[A]):
    """numpy's protocols, of a field."""

    @property
    def ndim(self) -> int:
        """Axes of the whole."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Elements of the whole."""
        return math.prod(self.shape)

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> AnyArray:
        """What this rank owns, as numpy array: a view where it can be one. Not collective.

        bfloat16 and smaller kinds, which numpy does not have, come as float32.

        Raises:
            LayoutError: a partial field.
            ValueError: copy=False, and it cannot be a view.
        """
        check_whole(self, "numpy.asarray")
        own, kind = on_host(self), self.look.dtype
        if kind.name == "float16":
            own = own.view(np.float16)
        elif kind.kind == "h":
            own = dtypes.widen(own, kind)
        elif kind.kind == "q":
            what = f"numpy has no {kind}, which {self!r} holds"
            raise DtypeError(what, where("numpy.asarray", self.comm), "field.inner.float()")
        made = own if dtype is None else own.astype(dtype, copy=False)
        shares = self.look.place is None and np.may_share_memory(made, self.look.array)
        if copy is False and not shares:
            raise ValueError("what this rank owns cannot be seen as such an array without a copy")
        return made.copy() if copy and shares else made

    def __bool__(self) -> NoReturn:
        raise UsageError(
            f"{self!r} as a whole is neither true nor false",
            where("truth value", self.comm),
            "(a == b).all() or .any() of the whole, collective; numpy.array_equal of what two ranks own; "
            "`a is b`, `x is not None`",
        )

    def __iter__(self) -> NoReturn:
        raise UsageError(
            f"{self!r} is not iterated: its rows lie on {self.comm.size} ranks",
            where("iteration", self.comm),
            "for row in field.inner (this rank's), or in field.all_gather() (all; collective)",
        )

    def __array_function__(
        self,
        func: Callable[..., object],
        types: Iterable[type],
        args: Sequence[Any],
        kwargs: Mapping[str, object],
    ) -> object:
        name = func.__name__
        if len(args) == 1 and args[0] is self and not kwargs:
            if name in _OF_THE_WHOLE:
                return getattr(self, name)
            if name in _OVER_THE_WHOLE:
                return getattr(self, _OVER_THE_WHOLE[name])()
        if name == "vdot" and len(args) == 2 and all(isinstance(each, type(self)) for each in args):
            return args[0].dot(args[1])
        known = ", ".join(sorted(_OVER_THE_WHOLE))
        raise UsageError(
            f"numpy.{name} does not work on {self!r}, of which each rank holds a part",
            where(f"numpy.{name}", self.comm),
            f"field.inner (this rank's part), field.all_gather() (the whole); of the field alone: {known}",
        )

    def __array_ufunc__(
        self, ufunc: np.ufunc, method: str, *inputs: object, out: tuple[object, ...] = (), **options: object
    ) -> Self | tuple[Self, ...]:
        verb = f"numpy.{ufunc.__name__}"
        if method != "__call__" or options or ufunc.signature is not None:
            raise UsageError(
                f"{verb}.{method} does not work on {self!r}, of which each rank holds a part",
                where(verb, self.comm),
                "element by element, without where= and dtype=; or on field.inner",
            )
        given = [self._operand(verb, each) for each in inputs]
        targets = [self._target(verb, each) for each in out]
        made = ufunc(*given)
        found = [
            self._as_field(verb, part, target)
            for part, target in zip(
                made if isinstance(made, tuple) else (made,), targets or repeat(None, ufunc.nout), strict=True
            )
        ]
        return found[0] if ufunc.nout == 1 else tuple(found)

    def _operand(self, verb: str, given: Any) -> object:
        """This rank's part of what a ufunc was given."""
        if isinstance(given, type(self)):
            self._target(verb, given)
            return np.asarray(given)
        if np.ndim(given) == 0:
            return given
        raise LayoutError(
            f"{verb} of {self!r} and an array of shape {np.shape(given)}: which part of it is this rank's?",
            where(verb, self.comm),
            "field.inner with this rank's part; or a Field in the same partition",
        )

    def _like(self, verb: str, given: object) -> Self:
        """given, if it is a field in the same partition."""
        if not isinstance(given, type(self)) or not self.is_like(given):
            raise LayoutError(
                f"{verb} of {self!r} and {given!r:.80}: they are not in the same partition",
                where(verb, self.comm),
                "redistribute one to the other's",
            )
        return given

    def _target(self, verb: str, given: object) -> Self:
        """given, if numpy can take it with this one."""
        given = self._like(verb, given)
        if type(given.array) is not np.ndarray:
            raise UsageError(
                f"{verb} does not work on {given!r}, whose array is a {type(given.array).__name__}",
                where(verb, self.comm),
                f"its own library on field.inner, as torch.{verb.partition('.')[2]}(field.inner)",
            )
        return given

    def _as_field(self, verb: str, part: AnyArray, target: Self | None) -> Self:
        if target is None:
            made: Any = type(self)
            target = cast("Self", made(self.comm, self.partition, dtype=part.dtype, name=self.name, unit=""))
        elif not np.can_cast(part.dtype, target.dtype, "same_kind"):
            what = f"{verb} gives {part.dtype}, and out is {target!r}"
            raise DtypeError(what, where(verb, self.comm), f"out of {part.dtype}")
        filled: Any = target.inner
        filled[...] = part
        return target


def _of_two(name: str) -> Callable[[S, object], S]:
    """field + x."""
    return lambda self, other: self._made(name, self, other)


def _turned(name: str) -> Callable[[S, object], S]:
    """x + field."""
    return lambda self, other: self._made(name, other, self)


def _in_place(name: str) -> Callable[[S, object], S]:
    """field += x."""
    return lambda self, other: self._made(name, self, other, out=self)


def _comparison(name: str) -> Any:  # what object says of == is otherwise
    """field == x, as the arrays' own operators, which compare records and text, too."""
    return lambda self, other: self._compared(name, other)


def _of_one(name: str) -> Callable[[S], S]:
    return lambda self: self._made(name, self)


class Arithmetic(NumpyLike[A]):
    """Python's operators, of a field."""

    def _made(self, name: str, *given: object, out: Self | None = None) -> Self:
        """What numpy's function of that name, or the array's own library, makes of this rank's parts."""
        if type(self.array) is np.ndarray:
            function = getattr(np, name)
            result: Self = function(*given) if out is None else function(*given, out=out)
            return result
        check_whole(self, name)
        parts = [self._part_of(name, each) for each in given]
        made = _PYTHONS[name](*parts)
        kind: Any = type(self)
        target: Any = kind(self.comm, self.partition, like=made, name=self.name) if out is None else out
        target.inner[...] = made
        return target  # type: ignore[no-any-return]  # of this kind

    def _compared(self, name: str, other: object) -> Self:
        """The same of a comparison; numpy's operators take records, of which its functions know nothing."""
        if type(self.array) is not np.ndarray:
            return self._made(name, self, other)
        mine, theirs = (self._operand(f"numpy.{name}", each) for each in (self, other))
        return self._as_field(name, np.asarray(_PYTHONS[name](mine, theirs)), None)

    def _part_of(self, name: str, given: Any) -> object:
        if not isinstance(given, type(self)):
            return self._operand(name, given)
        if type(given.array) is not type(self.array):
            kinds = [type(each.array).__name__ for each in (self, given)]
            what = f"{name} of {self!r} and {given!r}: a {kinds[0]} and a {kinds[1]}"
            raise UsageError(what, where(name, self.comm), "two fields whose arrays are of one library")
        return self._like(name, given).inner

    __add__, __radd__, __iadd__ = _of_two("add"), _turned("add"), _in_place("add")
    __sub__, __rsub__, __isub__ = _of_two("subtract"), _turned("subtract"), _in_place("subtract")
    __mul__, __rmul__, __imul__ = _of_two("multiply"), _turned("multiply"), _in_place("multiply")
    __truediv__, __rtruediv__, __itruediv__ = _of_two("divide"), _turned("divide"), _in_place("divide")
    __pow__, __rpow__, __ipow__ = _of_two("power"), _turned("power"), _in_place("power")
    __eq__, __ne__ = _comparison("equal"), _comparison("not_equal")
    __lt__, __le__ = _comparison("less"), _comparison("less_equal")
    __gt__, __ge__ = _comparison("greater"), _comparison("greater_equal")
    __hash__ = object.__hash__  # by identity: in a dict or set a field is itself
    __neg__, __abs__ = _of_one("negative"), _of_one("absolute")
