"""`hpcomm where` and `hpcomm top`: what the ranks of running jobs are doing, seen from another terminal."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from ..agree import last_calls
from ..agree.doing import Doing, known
from ..errors import ConfigError, grouped
from ..job.command_line import AS_JSON, Command, option, table
from ..job.launcher import words_of
from ..watch import outside, report, stuck
from ..watch.outside import Job

_PID = "number of a process of the job, or of the one that started it (default: all jobs)"
_COMMON = option("job", nargs="?", type=int, metavar="PID", help=_PID), AS_JSON
_WHERE = "Say where the ranks of your jobs are that run on this host, and who waits for whom."
_TOP = "Show what the ranks of your jobs do that run on this host, again and again."
_ONCE = option("--once", action="store_true", help="show it once")
_CALLS = option("--calls", action="store_true", help="the last calls of all ranks")
_HOSTS = option(
    "--hosts", metavar="A,B", default="", help="look there, too, by ssh or what the launcher uses"
)
parser = partial(Command, "hpcomm where", _WHERE, _CALLS, _HOSTS, *_COMMON)
top_parser = partial(Command, "hpcomm top", _TOP, _ONCE, *_COMMON)
_EVERY_S = 1.0
_HOSTS_S = 20.0  # for other hosts to answer
_MOST, _WIDTH = 4, 100  # programs of a job, and characters of one
_CLEAR = "\x1b[H\x1b[2J"  # of a terminal


def main(words: Sequence[str]) -> int:
    """Carry out `hpcomm where`; returns the exit status."""
    options = parser().parse_args(list(words))
    found = _jobs(options.job, [host for host in options.hosts.split(",") if host])
    print(
        json.dumps([_record(job) for job in found], indent=1) if options.json else _text(found, options.calls)
    )
    return 0


def top(words: Sequence[str]) -> int:
    """Carry out `hpcomm top`."""
    options = top_parser().parse_args(list(words))
    is_once = options.once or options.json
    with suppress(KeyboardInterrupt):  # which is how it ends
        while True:
            found = _jobs(options.job)
            said = json.dumps([_record(job) for job in found], indent=1) if options.json else _table(found)
            print(said if is_once else f"{_CLEAR}{said}", flush=True)
            if is_once:
                break
            time.sleep(_EVERY_S)
    return 0


def tell(pid: int) -> list[int]:
    """Say on stderr where the ranks of the job are that this process has started; who has told it here."""
    found = outside.whole(outside.jobs(pid))
    if found:
        print(_text(found), file=sys.stderr, flush=True)
    return [rank.pid for job in found for rank in job.ranks if rank.doing and rank.pid]


def _jobs(pid: int | None, hosts: Sequence[str] = ()) -> list[Job]:
    found = outside.whole([*outside.jobs(pid), *_jobs_at(hosts)])
    if not found:
        which = "no job of yours" if pid is None else f"no job that process {pid} belongs to"
        raise ConfigError(f"{which} runs on this host", hint="a rank appears once it has used hpcomm")
    return found


def _jobs_at(hosts: Sequence[str]) -> Iterator[Job]:
    """The jobs of other hosts, as this command shows them there; a host that shows none is said on stderr."""
    told = map(os.environ.get, ("PRTE_MCA_plm_ssh_agent", "HYDRA_LAUNCHER_EXEC"))
    agent = shlex.split(next(filter(None, told), "ssh -o BatchMode=yes -o ConnectTimeout=5"))
    command = shlex.join([sys.executable, "-m", "hpcomm", "where", "--json"])
    pipe, end = subprocess.PIPE, time.monotonic() + _HOSTS_S
    begun = [
        subprocess.Popen([*agent, each, command], stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe)
        for each in hosts
    ]
    for host, each in zip(hosts, begun, strict=True):
        try:
            said, errors = each.communicate(timeout=max(0.0, end - time.monotonic()))
            yield from outside.jobs_of(json.loads(said), host)
        except subprocess.TimeoutExpired:
            each.kill()
            print(f"{host}: no answer", file=sys.stderr)
        except (KeyError, TypeError):
            print(f"{host}: another version of hpcomm", file=sys.stderr)
        except ValueError:  # it has said why
            print(f"{host}: {errors.decode().strip()}", file=sys.stderr)


def _record(job: Job) -> dict[str, object]:
    ranks = [{**each._asdict(), "doing": each.doing and each.doing._asdict()} for each in job.ranks]
    said = {"lack": job.lack, "unseen": job.unseen, "can_never_end": _held(job)[0]}
    return {"pids": job.pids, **said, "ranks": ranks}


def _held(job: Job) -> tuple[list[int], dict[int, Doing]]:
    """Who can never go on, and what all do."""
    doings = known({rank.doing.number: rank.doing for rank in job.ranks if rank.doing is not None})
    return stuck.stuck(doings), doings


def _head(job: Job) -> str:
    """Its processes, and below them the programs that they run."""
    commands = ((Path(word).name, *words) for word, *words in map(words_of, [] if job.host else job.pids))
    programs = {" ".join(shlex.join(command).split()) for command in commands if any(command)}
    lines = [each if len(each) <= _WIDTH else f"{each[:_WIDTH]}..." for each in sorted(programs)]
    place = f"on {job.host}" if job.host else "here"
    head = f"job of {len(job.pids)} processes {place}: {report.some([*map(str, job.pids)])}"
    return "\n  ".join([head, *lines[:_MOST]])


def _text(found: list[Job], all_calls: bool = False) -> str:
    return "\n\n".join("\n".join(_lines(job, all_calls)) for job in found)


def _lines(job: Job, all_calls: bool) -> Iterator[str]:
    """A job: ranks at the same place together, the smallest groups last; last calls; who can never go on."""
    yield _head(job)
    if job.lack:
        yield f"  {job.lack}"
    groups = grouped(((rank.words, rank.stack), rank) for rank in job.ranks)
    for (words, stack), ranks in sorted(groups.items(), key=lambda each: -len(each[1])):
        yield f"  {report.some([rank.who for rank in ranks])}: {words}"
        if waited_s := max(rank.waited_s for rank in ranks):
            yield f"    waits for {waited_s:.0f} s"
        yield from (f"    {line}" for line in stack)
    yield from (f"  {line}" for line in job.unseen)
    calls = {rank.who: rank.doing.calls for rank in job.ranks if rank.doing is not None}
    yield from last_calls.told(calls, report.some, len(calls) if all_calls else last_calls.RANKS)
    held, doings = _held(job)
    yield from (f"  {line}" for line in (report.never(held, doings).splitlines() if held else ()))


def _table(found: list[Job]) -> str:
    parts = []
    for job in found:
        rows = []
        for rank in job.ranks:
            used = f"{rank.core_s:.1f} s", f"{rank.nbytes >> 20} MiB"
            waits = f"{rank.waited_s:.0f} s" * bool(rank.waited_s)
            pid = rank.doing.pid if rank.host and rank.doing else rank.pid
            rows.append((rank.who, str(pid), *used, waits, rank.words))
        head = ("rank", "pid", "cores", "memory", "waits", "doing")
        shown = job.lack or table(head, rows, left=(0, 5))
        parts.append("\n".join([_head(job), shown, *job.unseen]))
    return "\n\n".join(parts)
