"""What a program took, kept on disk, so that it can run alone again: --record and --only."""

from __future__ import annotations

from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from ..errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

__all__ = ["Recorder", "recorder"]


class Recorder:
    """A file per rank and field, of arrays one behind the other: FOLDER/ocean.0.heat."""

    def __init__(self, folder: Path, program: str, rank: int, replays: bool) -> None:
        self.replays = replays
        self._stem = folder / f"{program}.{rank}"
        self._files: dict[str, IO[bytes]] = {}

    def keep(self, name: str, values: NDArray[Any]) -> None:
        """Write what a get returned."""
        np.save(self._file(name), values, allow_pickle=False)
        self._file(name).flush()

    def next(self, name: str) -> NDArray[Any]:
        """What the next get returned then.

        Raises:
            ConfigError: nothing more was recorded.
        """
        try:
            values: NDArray[Any] = np.load(self._file(name), allow_pickle=False)
        except (EOFError, ValueError, FileNotFoundError):
            raise ConfigError(
                f"nothing more is recorded of field {name!r} in {self._stem}.{name}",
                "get",
                "record a run at least as long",
            ) from None
        return values

    def _file(self, name: str) -> IO[bytes]:
        if name not in self._files:
            path = Path(f"{self._stem}.{name}")
            path.parent.mkdir(parents=True, exist_ok=True)
            self._files[name] = path.open("rb" if self.replays else "wb")
        return self._files[name]


def recorder(environ: Mapping[str, str], program: str, rank: int) -> Recorder | None:
    """The recorder that the launcher asks for, if it does."""
    for variable, replays in (("HPCOMM_REPLAY", True), ("HPCOMM_RECORD", False)):
        if environ.get(variable):
            return Recorder(Path(environ[variable]), program, rank, replays)
    return None
