"""Host monitor: which ranks have ended before MPI was up, seen from the launcher's host.

    startup_monitor.py on h2 ── ssh ──> this file, on the launcher's host h1
                   <─ a sentence ─

MPICH's launcher keeps a proxy, or an ssh to one, for each host until all ranks there have ended. Open MPI's
answers questions (prrte.py). Ends when its standard input does. Needs the standard library only.
"""

from __future__ import annotations

import re
import select
import time
from collections.abc import Mapping, Sequence
from itertools import takewhile
from pathlib import Path

from ...job.launcher import (
    HYDRA,
    after,
    command_of,
    environ_of,
    is_ours,
    name_of,
    parent_of,
    read_of,
    words_of,
)
from . import prrte
from .startup_monitor import GRACE_S, Ended

__all__ = ["Hydra", "hosts_of", "main", "placed", "told"]

_LOOK_S = 1.0


def main(words: Sequence[str]) -> None:
    """`PORT SIZE` of MPICH or `SPACE` of Open MPI: say that we can look, then who has ended."""
    if words[1:]:
        _watch(Hydra(words[0], int(words[1])))
    else:
        with prrte.Tool(words[0]) as tool:
            _watch(tool)


def _watch(look: Hydra | prrte.Tool) -> None:
    print("sees", flush=True)
    last: list[Ended] = []
    since = time.monotonic()
    while not select.select([0], [], [], _LOOK_S)[0]:
        now, ended = time.monotonic(), look.ended()
        if ended != last:
            last, since = ended, now
        if ended and now - since > GRACE_S:
            print(told(ended, look.line), flush=True)
            return


def told(ended: Sequence[Ended], line: Sequence[str]) -> str:
    """The sentence about those who have ended. line: the launcher's words."""
    parts = [
        f"rank {rank} of the world ({command_of(rank, line)}) on {host}"
        if rank is not None
        else f"each process of {host}"
        for rank, host in ended[:3]
    ]
    more = f" and {len(ended) - 3} more" if len(ended) > 3 else ""
    return f"{' and '.join(parts)}{more} {'has' if len(ended) == 1 else 'have'} ended before MPI was up"


class Hydra:
    """MPICH's launcher: one proxy for each host, which ends with its ranks; on this host, or an ssh to it.

    port: of the launcher, which all its proxies are told.
    """

    def __init__(self, port: str, size: int) -> None:
        self._port = port
        found = self._proxies()
        if not found:
            raise SystemExit(f"no proxies of {port} here")
        launcher = next(iter(found.values()))
        while launcher > 1 and name_of(launcher) not in HYDRA:
            launcher = parent_of(launcher)
        self.line = words_of(launcher)
        environ = environ_of(launcher)
        self._ranks = placed(hosts_of(self.line, environ, Path(f"/proc/{launcher}/cwd")), size)

    def ended(self) -> list[Ended]:
        living = self._proxies()
        if not living:  # the launcher has ended
            return []
        count = len(self._ranks) or max(living) + 1
        ended = []
        for i in sorted(set(range(count)) - set(living)):
            host, ranks = self._ranks[i] if self._ranks else (f"host {i + 1} of this job", ())
            ended += [Ended(rank, host) for rank in ranks] or [Ended(None, host)]
        return ended

    def _proxies(self) -> dict[int, int]:
        """Number of each proxy: a process of our user's that is it, or is told to start it."""
        found = {}
        for process in filter(is_ours, Path("/proc").glob("[0-9]*")):
            text = read_of(int(process.name), "cmdline").replace("\0", " ")
            if f"--control-port {self._port} " in text and (number := re.search(r"--proxy-id (\d+)", text)):
                found[int(number[1])] = int(process.name)
        return found


def hosts_of(line: Sequence[str], environ: Mapping[str, str], folder: Path) -> list[tuple[str, int]]:
    """The hosts that mpiexec was given, with their slots; [] if it is not to be seen."""
    items = _given(line)
    if not items:
        names = ("-f", "-hostfile", "-machinefile", "--hostfile")
        file = next(filter(None, (after(line, name) for name in names)), environ.get("HYDRA_HOST_FILE", ""))
        try:
            items = (folder / file).read_text().split("\n") if file else []
        except OSError:
            items = []
    hosts = []
    for item in items:
        name, _, slots = (item.partition("#")[0].split() or [""])[0].partition(":")
        if name:
            hosts.append((name, int(slots) if slots.isdecimal() else 1))
    each = next(filter(None, (after(line, name) for name in ("-ppn", "-perhost"))), "")
    if each.isdecimal():
        hosts = [(name, int(each)) for name, _ in hosts]
    return hosts if len({name for name, _ in hosts}) == len(hosts) else []


def _given(line: Sequence[str]) -> list[str]:
    """What stands behind -hosts; mpiexec itself cuts these words to pieces, in its own command line."""
    at = next((i for i, word in enumerate(line) if word in ("-hosts", "-host", "--hosts", "--host")), None)
    if at is None:
        return []
    items: list[str] = []
    for word in takewhile(lambda word: not word.startswith("-"), line[at + 1 :]):
        for item in word.split(","):
            if item.isdecimal() and items:
                items[-1] += f":{item}"
            else:
                items.append(item)
    return items


def placed(hosts: Sequence[tuple[str, int]], size: int) -> list[tuple[str, tuple[int, ...]]]:
    """The ranks of each host that has some: dealt out in the order of the hosts, in turn until all are."""
    ranks: list[list[int]] = [[] for _ in hosts]
    first = 0
    while hosts and first < size:
        for i, (_, slots) in enumerate(hosts):
            ranks[i] += range(first, min(first + slots, size))
            first = min(first + slots, size)
    return [(name, tuple(mine)) for (name, _), mine in zip(hosts, ranks, strict=True) if mine]
