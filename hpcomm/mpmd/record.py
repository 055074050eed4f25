"""Recording of what a program gets from others, so that it can run alone again: --record and --only.

For each rank: ocean.0.heat, what its gets of the field returned, arrays one behind the other;
ocean.0.heat.npz, the weights of its mapping; ocean.0.verbs, what the verbs of link.comm returned, pickled.
"""

from __future__ import annotations

import pickle
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from ..core.request import Request
from ..errors import ConfigError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from ..communicator.communicator import Communicator
    from ..core.types import AnyArray
    from .coupled_field import Field

_VERBS = "verbs"


class Recorder:
    """The files of one rank: FOLDER/ocean.0.*, written, or read in the same order."""

    def __init__(self, folder: Path, program: str, rank: int, replays: bool) -> None:
        self.replays = replays
        self._stem = folder / f"{program}.{rank}"
        self._files: dict[str, IO[bytes]] = {}
        if not replays:
            self._file(_VERBS)  # there, even if nothing comes

    def keep(self, name: str, values: AnyArray) -> None:
        """Write what a get returned."""
        np.save(self._file(name), values, allow_pickle=False)
        self._file(name).flush()

    def next(self, field: Field) -> AnyArray:
        """What the next get of a field returned then.

        Raises:
            ConfigError: nothing more was recorded, or a field of another shape or kind.
        """
        name = field.name
        values: NDArray[Any] = self._next(
            name,
            f"field {name!r}",
            lambda file: np.lib.format.read_array(file, allow_pickle=False),
            "get",
        )
        shape = (len(field.points), *field.shape)
        if values.shape != shape or not np.can_cast(values.dtype, field.dtype, "same_kind"):
            raise ConfigError(
                f"field {name!r} is {field.dtype} {shape}, and {values.dtype} {values.shape} is recorded in"
                f" {self._stem}.{name}",
                "get",
                "record a run of the same grids and ranks",
            )
        return values

    def keep_result(self, verb: str, result: object) -> None:
        """Write what a verb of link.comm returned.

        Raises:
            UsageError: it cannot be read again, as a communicator could not.
        """
        try:
            packed = pickle.dumps(result)
        except Exception as error:  # depends on what it is
            raise UsageError(
                f"what {verb} returns cannot be recorded: {error}", verb, "run without --record"
            ) from error
        self._file(_VERBS).write(packed)
        self._file(_VERBS).flush()

    def next_result(self, verb: str) -> object:
        """What the next verb returned then.

        Raises:
            ConfigError: nothing more was recorded.
        """
        return self._next(_VERBS, "link.comm", pickle.load, verb)

    def _next(self, name: str, what: str, read: Callable[[Any], Any], verb: str) -> Any:
        """What read finds next in a file."""
        try:
            file: Any = self._file(name)
            if file.peek(1):
                return read(file)
        except FileNotFoundError:
            pass
        except Exception as error:  # depends on what it is instead
            raise ConfigError(
                f"what is recorded of {what} in {self._stem}.{name} is damaged: {error}",
                verb,
                "record it again",
            ) from error
        raise ConfigError(
            f"nothing more is recorded of {what} in {self._stem}.{name}",
            verb,
            "record a run at least as long, of the same program",
        )

    def keep_weights(self, name: str, weights: Any) -> None:
        """Write the weights of a field's mapping; None: it has none.

        Raises:
            ConfigError: they cannot be written.
        """
        path = self.weights_file(name)
        try:
            path.unlink(missing_ok=True)
            if weights is not None:
                weights.save(path)
        except OSError as error:
            hint = "a folder that can be written, with room, for hpcomm run --record"
            raise ConfigError(f"{path} cannot be written: {error.strerror}", "connect", hint) from error

    def weights_file(self, name: str) -> Path:
        """Where the weights of a field are kept."""
        return Path(f"{self._stem}.{name}.npz")

    def _file(self, name: str) -> IO[bytes]:
        if name not in self._files:
            path = Path(f"{self._stem}.{name}")
            path.parent.mkdir(parents=True, exist_ok=True)
            self._files[name] = path.open("rb" if self.replays else "wb")
        return self._files[name]


class Recorded:
    """A communicator whose results are kept."""

    def __init__(self, comm: Communicator, recorder: Recorder) -> None:
        self._comm = comm
        self._recorder = recorder

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._comm, name)
        return partial(self._call, name, found) if callable(found) else found

    def _call(self, name: str, verb: Callable[..., object], *args: object, **options: object) -> Any:
        result = verb(*args, **options)
        if isinstance(result, Request):
            return _Pending(result, partial(self._recorder.keep_result, name))
        self._recorder.keep_result(name, result)
        return result


class _Pending:
    """A request whose result is kept at the first wait."""

    def __init__(self, request: Request[object], keep: Callable[[object], None]) -> None:
        self._request = request
        self._keep: Callable[[Any], None] | None = keep

    def __getattr__(self, name: str) -> Any:
        return getattr(self._request, name)

    def wait(self, timeout: float | None = None) -> object:
        result = self._request.wait(timeout)
        if self._keep is not None:
            self._keep(result)
            self._keep = None
        return result


def recorder(environ: Mapping[str, str], program: str, rank: int) -> Recorder | None:
    """The recorder that the launcher asks for, if it does."""
    for variable, replays in (("HPCOMM_REPLAY", True), ("HPCOMM_RECORD", False)):
        if environ.get(variable):
            return Recorder(Path(environ[variable]), program, rank, replays)
    return None
