"""Tracebacks of ranks that fail together: printed once by `hpcomm run`, without the frames of hpcomm.

A rank that is about to end leaves its traceback in the folder of its job, in place of writing it to stderr.
On another host than that folder's it sends it by stderr, as a line with a mark (read).
They are printed when the job has ended, or SOON_S after the first. Nothing else that ranks say is held back.
Those of several programs are said to be of [ocean 0-3], and so on.

    [ranks 0-7] Traceback (most recent call last):
      File "train.py", line 5, in step
        return comm.all_reduce(x)
      ... 9 frames of hpcomm (--full-traceback shows them)
    hpcomm.errors.UsageError: list is not an array
      where: all_reduce on communicator 'world' (ranks 0-7 of 8) at train.py:5
"""

from __future__ import annotations

import os
import re
import stat
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from select import PIPE_BUF
from threading import Lock, Thread
from types import MappingProxyType
from typing import NamedTuple
from zlib import crc32

from ..errors import grouped, in_package, named, spans
from .launcher import reader_of
from .process_role import world_rank

VARIABLE = "HPCOMM_TRACEBACK"
SENT = "HPCOMM_SENT"  # set: who has started the job takes tracebacks from what its launcher writes
MARK = b"\x1e!"  # begins such a line: name, checksum, and the lines of the traceback
FULL, BOTH = "full", "both"  # BOTH: here and on stderr, which goes to a file of the rank
SOON_S = 3.0
_LEFT = ".traceback-"
_SENT_LINE = re.compile(rb"\x1e!(\d+-[0-9a-f]+) ([0-9a-f]+) ([^\n\x1e]*)(?:\n|(?=\x1e)|\Z)")
_SAID = b"hpcomm: "  # begins what a rank says before it calls MPI_Abort
# What launchers say of that, and of statuses; Open MPI's writes a byte 0 behind it.
_OPENMPI = (
    b"MPI_ABORT was invoked on rank",
    b"prterun has exited due to process rank",
    b"prterun detected that one or more processes exited with non-zero status",
)
_MPICH = rb"Abort\(\d+\) on node \d+ .*: application called MPI_Abort\(.*\n"
_BANNER = re.compile(rb"-{70,}\n(?:%b)(?s:.*?)\n-{70,}\n\0?|%b|\A\0" % (b"|".join(_OPENMPI), _MPICH))
_HEAD = re.compile(rb"(?m:^)(?:-{70,}\n|-+\Z)")
_saying = Lock()  # the process may end at once when the last of its threads has said it
_FRAME = re.compile(r'(\s*)File "([^"]+)", line \d+, in ')
_MOST = 4  # of what ranks say differently in one place


class Left(NamedTuple):
    """What a rank has left; program: it is a rank of, if there are several."""

    rank: int
    lines: list[str]
    program: str = ""


def leave(life: str, text: str, sends: bool = False) -> bool:
    """Leave a traceback of this rank, if its stderr goes to the launcher; whether it need not be written.

    Args:
        life: the file that the rank has in the folder of its job; "": it has none on this host.
        sends: whether it can be sent then.
    """
    how = os.environ.get(VARIABLE, "")
    try:
        is_asked = how == BOTH or (how != FULL and _is_the_launchers())
        if not (text and (is_asked or (life and _is_lost()))):
            return False
        if life:
            _put(life, text.encode(errors="backslashreplace"))
        elif not (sends and _send(text)):
            return False
    except OSError:  # such as a full disk
        return False
    return how != BOTH


def _put(life: str, text: bytes) -> None:
    folder, _, name = life.rpartition("/")
    with open(f"{folder}/.leaving-{name}", "wb") as file:  # noqa: PTH123
        file.write(text)
    os.rename(file.name, f"{folder}/{_LEFT}{name}")  # noqa: PTH104  it is there whole, or not at all


def _send(text: str) -> bool:
    """Write it to stderr as one line with a mark, at once: launchers mix those of several ranks."""
    lines = "\v".join(_folded(text)).encode(errors="backslashreplace")
    head = f"{world_rank()}-{os.urandom(4).hex()} {crc32(lines):x}".encode()
    said = b"%b%b %b\n" % (MARK, head, lines)
    return len(said) <= PIPE_BUF and os.write(2, said) > 0


def read(folder: Path, file: int, fd: int, take: Callable[[bytes], bytes] | None = None) -> Thread:
    """Show what comes, at once. Tracebacks of ranks of other hosts are left in the folder of their job.

    What launchers say of an MPI_Abort or of a status is left out where a rank has said why.

    Args:
        file: where it comes; fd: where to show it.
        take: what of these lines is to be shown, without what is for us.

    Returns:
        The thread that does it.
    """
    reader = Thread(target=_show, args=(folder, file, fd, take or bytes), daemon=True)
    reader.start()
    return reader


def _show(folder: Path, file: int, fd: int, take: Callable[[bytes], bytes]) -> None:
    said, shown, new, has_said = b"", b"", b"\0", False
    while new:
        new = os.read(file, 1 << 16)
        said += new
        has_said = has_said or _SAID in shown + said or any(folder.glob(f"{_LEFT}*"))
        said = _BANNER.sub(b"", said) if has_said else said
        at = _begun(said, has_said) if new else -1
        whole, said = (said, b"") if at < 0 else (said[:at], said[at:])
        shown = (shown + whole)[-len(_SAID) :]
        with suppress(OSError):  # nobody reads it any more; the launcher must be able to go on
            os.write(fd, take(_SENT_LINE.sub(partial(_keep, folder), whole)))


def _begun(said: bytes, with_banners: bool) -> int:
    """Where a line for us or a banner begins of which the rest is still to come; -1: nowhere."""
    for head in _HEAD.finditer(said) if with_banners else ():
        rest = said[head.end() :]
        if any(rest.startswith(each) or each.startswith(rest) for each in _OPENMPI):
            return head.start()
    last = said.rfind(b"\n") + 1
    is_banner = with_banners and said[last:] and b"Abort(".startswith(said[last : last + 6])
    return last if is_banner else said.find(MARK[:1], last)


def _keep(folder: Path, found: re.Match[bytes]) -> bytes:
    """What is to be shown of such a line: all that it says, where others' words have got into it."""
    name, checksum, lines = found.groups()
    text = lines.replace(b"\v", b"\n") + b"\n"
    with suppress(OSError):
        if crc32(lines) == int(checksum, 16):
            _put(f"{folder}/{name.decode()}", text)
            return b""
    return text


def _is_lost() -> bool:
    """Whether stderr goes to a file without a name, as under pytest, which shows it at its own end."""
    file = os.fstat(2)
    return stat.S_ISREG(file.st_mode) and file.st_nlink == 0


def _is_the_launchers() -> bool:
    """Whether stderr goes to the launcher, and to no file, and no pipe of the program's (`2>&1 | tee`)."""
    kind = os.fstat(2).st_mode
    try:
        if stat.S_ISFIFO(kind):
            its, ours = Path(f"/proc/{reader_of(os.getpid())}/fd"), Path("/proc/self/fd/2").readlink()
            return any(_target(each) == ours for each in its.iterdir())
    except OSError:  # another user's (slurmstepd), or a system without /proc
        return True
    return not stat.S_ISREG(kind)


def _target(link: Path) -> Path | None:
    """Where it leads to; None: it has been closed meanwhile."""
    try:
        return link.readlink()
    except FileNotFoundError:
        return None


def say(folder: Path, age_s: float = 0.0, programs: Mapping[str, range] = MappingProxyType({})) -> None:
    """Print what has been left in a folder, once the first is so old; then it is gone.

    programs: their ranks of the job, if there are several.
    """
    with _saying, suppress(OSError):  # the job has ended meanwhile
        files = sorted(folder.glob(f"{_LEFT}*"), key=lambda file: file.stat().st_mtime_ns)
        if files and time.time() - files[0].stat().st_mtime >= age_s:
            left = [_read(file, programs) for file in files]
            sys.stderr.write("".join(f"{line}\n" for line in _merged(left)))
            sys.stderr.flush()
            for file in files:
                file.unlink()


def _read(file: Path, programs: Mapping[str, range]) -> Left:
    rank, lines = int(file.name.removeprefix(_LEFT).partition("-")[0]), _folded(file.read_text("utf-8"))
    for program, ranks in programs.items():
        if rank in ranks:
            return Left(rank - ranks[0], lines, program)
    return Left(rank, lines)


def _folded(text: str) -> list[str]:
    """The lines of a traceback, with one for those of hpcomm's frames that follow each other."""
    made: list[str] = []
    hidden: list[list[str]] = []
    indent: str | None = None  # of the frame that is left out
    for line in text.splitlines():
        frame = _FRAME.match(line)
        if frame and in_package(frame[2]):
            indent = frame[1]
            hidden.append([line])
        elif indent is not None and not frame and line.startswith((f"{indent}  ", f"{indent}[")):
            hidden[-1].append(line)
        else:
            made += _in_place_of(hidden, is_ours=frame is not None or line.startswith("hpcomm.errors."))
            hidden, indent = [], None
            made.append(line)
    return made


def _in_place_of(hidden: Sequence[Sequence[str]], is_ours: bool) -> Iterator[str]:
    """The line for these frames.

    is_ours: else an exception follows that is none of ours, and its frame is shown.
    """
    left_out = hidden if is_ours else hidden[:-1]
    if left_out:
        some = "a frame" if len(left_out) == 1 else f"{len(left_out)} frames"
        yield f"  ... {some} of hpcomm (--full-traceback shows {'it' if len(left_out) == 1 else 'them'})"
    for frame in hidden[len(left_out) :]:
        yield from frame


def _merged(left: Sequence[Left]) -> Iterator[str]:
    """Those with the same frames and kinds of exceptions as one, with what differs."""
    alike = grouped(((each.program, *(_kind(each.rank, line) for line in each.lines)), each) for each in left)
    for (program, *_), group in alike.items():
        group.sort()
        ranks = [each.rank for each in group]
        yield f"{_named(ranks, program)} {group[0].lines[0]}"
        differing: list[tuple[str, ...]] = []  # lines one behind the other
        for lines in list(zip(*(each.lines for each in group), strict=True))[1:]:
            if (same := _of_all(ranks, lines)) is None:
                differing.append(lines)
                continue
            yield from _each(ranks, differing, program)
            differing = []
            yield same
        yield from _each(ranks, differing, program)


def _kind(rank: int, line: str) -> str:
    """What two lines must have in common to be of one failure."""
    found = _without(rank, line).partition(":")[0] if line[:1].strip() else ""
    return line if _FRAME.match(line) else found


def _without(rank: int, line: str) -> str:
    return re.sub(rf"\brank {rank}\b", "rank \0", line)


def _of_all(ranks: Sequence[int], lines: Sequence[str]) -> str | None:
    """The line that all have, or with the ranks in place of each one's own; None: they differ."""
    own = [*map(_without, ranks, lines)]
    if len({*lines}) == 1:
        return lines[0]
    return own[0].replace("rank \0", named(ranks, len(ranks))) if len({*own}) == 1 else None


def _each(ranks: Sequence[int], differing: Sequence[Sequence[str]], program: str) -> Iterator[str]:
    """The lines of each rank, those of ranks that have the same once."""
    of = grouped(zip(zip(*differing, strict=True), ranks, strict=False))
    for lines, some in list(of.items())[:_MOST]:
        yield f"{_named(some, program)} {lines[0]}"
        yield from lines[1:]
    if len(of) > _MOST:
        yield f"... and others of {len(of) - _MOST} more ranks (--full-traceback shows them)"


def _named(ranks: Sequence[int], program: str) -> str:
    return f"[{program} {spans(ranks)}]" if program else f"[{named(ranks, len(ranks))}]"
