"""Recording of what a program gets from others, so that it can run alone again: --record and --only.

For each rank: ocean.0.heat, what its gets of the field returned, arrays one behind the other;
ocean.0.heat.npz, the weights of its mapping; ocean.0..verdicts, what leaders of implicit couplings said.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np

from .._lazy import NDArray
from ..core.types import AnyArray
from ..errors import ConfigError
from .coupled_field import Field

_VERDICTS = ".verdicts"  # no field is called so


class Recorder:
    """The files of one rank: FOLDER/ocean.0.*, written, or read in the same order."""

    def __init__(self, folder: Path, program: str, rank: int, replays: bool) -> None:
        self.replays = replays
        self._stem = folder / f"{program}.{rank}"
        self._files: dict[str, IO[bytes]] = {}
        if not replays:
            self._file(_VERDICTS)  # there, even if nothing comes

    def keep(self, name: str, values: AnyArray | int) -> None:
        """Write what a get returned."""
        np.save(self._file(name), values, allow_pickle=False)
        self._file(name).flush()

    def next(self, field: Field) -> AnyArray:
        """What the next get of a field returned then."""
        name = field.name
        values = self._next_array(name, f"field {name!r}", "get")
        shape = (len(field.points), *field.shape)
        if values.shape != shape or not np.can_cast(values.dtype, field.dtype, "same_kind"):
            kept = f"{values.dtype} {values.shape} is recorded in {self._stem}.{name}"
            what = f"field {name!r} is {field.dtype} {shape}, and {kept}"
            raise ConfigError(what, "get", "record a run of the same grids and ranks")
        return values

    def verdict(self, mine: int) -> int:
        """Keep what an implicit coupling has agreed on; in a replay, what it was then."""
        if self.replays:
            return int(self._next_array(_VERDICTS, "the verdicts of windows", "windows"))
        self.keep(_VERDICTS, mine)
        return mine

    def _next_array(self, name: str, what: str, verb: str) -> NDArray[Any]:
        try:
            file: Any = self._file(name)
            if file.peek(1):
                return np.lib.format.read_array(file, allow_pickle=False)
        except FileNotFoundError:
            pass
        except Exception as error:  # depends on what it is instead
            what = f"what is recorded of {what} in {self._stem}.{name} is damaged: {error}"
            raise ConfigError(what, verb, "record it again") from error
        what = f"nothing more is recorded of {what} in {self._stem}.{name}"
        raise ConfigError(what, verb, "record a run at least as long, of the same program")

    def keep_weights(self, name: str, weights: Any) -> None:
        """Write the weights of a field's mapping; None: it has none."""
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


def recorder_of(environ: Mapping[str, str], program: str, rank: int) -> Recorder | None:
    """What the launcher asks for: files to be read, or to be written; None: neither."""
    replayed = environ.get("HPCOMM_REPLAY")
    folder = replayed or environ.get("HPCOMM_RECORD")
    return Recorder(Path(folder), program, rank, bool(replayed)) if folder else None
