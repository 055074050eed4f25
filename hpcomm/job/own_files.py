"""Files in folders that users share: read if they are this user's, and removed once nobody needs them.

A folder of a job holds a lock as long as its job lives: the kernel takes it away when that is killed, and
it is seen from other containers, too.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from ..errors import ConfigError

_MOST = 1 << 20  # bytes of a file
_YOUNG_S = 60.0  # a folder that is younger may not have its lock yet
_PREFIX = "hpcomm-job-"


def read(path: Path | str, mask: int = 0) -> bytes:
    """What is in a regular file of this user's. Never waits, as an open FIFO would let it.

    Args:
        mask: permission bits that the file must not have.

    Raises:
        PermissionError: it is another user's, or has such a bit. OSError: it is a link or no file.
    """
    opened = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(opened, "rb") as found:
        about = os.fstat(opened)
        if about.st_uid != os.geteuid():
            raise PermissionError(f"{path} belongs to another user (number {about.st_uid})")
        if not stat.S_ISREG(about.st_mode) or about.st_mode & mask:
            raise PermissionError(f"{path} is not a file of this user's alone")
        return found.read(_MOST)


@contextlib.contextmanager
def folder(environ: Mapping[str, str] = os.environ) -> Iterator[Path]:
    """A new folder that lives as long as this job. Those that killed jobs of this user left are removed."""
    made = Path(environ.get("TMPDIR", "/tmp"), _PREFIX + os.urandom(6).hex())
    try:
        made.mkdir(mode=0o700)
    except OSError as error:
        raise ConfigError(
            f"no folder can be made in {made.parent}: {error.strerror}.",
            where="hpcomm run",
            hint="set TMPDIR to a folder of this host that takes files",
        ) from None
    with _locked(made):
        for old in made.parent.glob(_PREFIX + "*"):
            with contextlib.suppress(OSError):  # it has a job, is another user's, or has just gone
                about = old.lstat()
                if about.st_uid == os.geteuid() and time.time() - about.st_mtime > _YOUNG_S:
                    with _locked(old):
                        _remove(old)
        try:
            yield made
        finally:
            _remove(made)


@contextlib.contextmanager
def _locked(made: Path) -> Iterator[None]:
    opened = os.open(made, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(opened)


def _remove(made: Path) -> None:
    for file in made.iterdir():
        file.unlink(missing_ok=True)
    made.rmdir()
