"""`hpcomm tune`: measure which algorithm is fastest on this machine, and keep it for `algorithm="tuned"`.

python -m hpcomm tune --ranks 4                      a table on screen and in the user's cache
python -m hpcomm tune --ranks 4 --plot tuned.svg     and measured against modelled (needs matplotlib)

Measured are the library's default, its own algorithms chosen at run time, and our schedules, in rounds that
alternate between them. The default stays unless the fastest wins by 5 % twice: when all are compared, and
again alone against the default, in three of four rounds.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NotRequired, TypedDict

from .._lazy import np
from ..communicator.communicator import Communicator
from ..core.types import AnyArray
from ..core.verbs import INPUT_BLOCKS, OUTPUT_BLOCKS, ROOT_RECEIVES, TABLE
from ..errors import ConfigError, TransportError, UsageError, grouped
from ..job.command_line import AS_JSON, LOAD, Command, check_file, make_folder, option
from ..job.command_line import table as laid_out
from ..schedule.cost.machine_model import machine
from ..schedule.cost.simulator import predict
from ..schedule.registry import algorithms, load
from ..transport import mpi_control_variables
from ..transport.scheduled import tuned
from . import fit
from .canvas import pyplot, save, writable
from .fit import job, seconds_of
from .sim import numbers

VERBS = tuple(verb for verb in TABLE if verb != "barrier")  # a barrier has no size to choose by
_PLOT = "draw measured against modelled times (default: tuned.svg)"
parser = partial(
    Command,
    "hpcomm tune",
    "Measure which algorithm of each collective is fastest here, and keep a table.",
    option("--ranks", type=int, default=2, help="how many ranks measure; the table is for that many"),
    option(
        "--verb",
        metavar="OPERATION",
        default="all",
        help=f"one or several of {', '.join(VERBS)}, with commas",
    ),
    option(
        "--bytes", default="8,512,8k,64k,512k,4M", help="sizes to measure: of a rank's x, or of one block"
    ),
    option("--rounds", type=int, default=9, help="how often each is measured; the median counts"),
    option("-o", "--output", help="the table (default: HPCOMM_TUNED, or the user's cache)"),
    option("--plot", metavar="FILE", nargs="?", const="tuned.svg", help=_PLOT),
    option("--no-model", action="store_true", help="do not fit the model, and do not compare"),
    LOAD,
    AS_JSON,
)
MARGIN = 1.05  # the default stays unless it takes this many times as long
HOPELESS = 4.0  # times the default in a first try: not measured further
ROUND_S = 2e-3  # how long one algorithm is repeated in one round, about
MOST = 1000  # times
AGAIN, SAFE = 2, 1.15  # other jobs in which a choice must win too, and by how much: jobs differ by a tenth
LIMIT_S = 3600


class Record(TypedDict):
    """What one candidate takes for a verb and size."""

    verb: str
    bytes: int
    ranks: int
    algorithm: str  # "": the default
    seconds: float
    chosen: bool
    hopeless: bool
    modelled: NotRequired[float]


def main(words: Sequence[str]) -> int:
    """Carry out the command; returns the exit status."""
    options = parser().parse_args(list(words))
    verbs = VERBS if options.verb == "all" else tuple(options.verb.split(","))
    if unknown := [verb for verb in verbs if verb not in VERBS]:
        raise UsageError(f"{unknown[0]!r} cannot be tuned", hint=f"one of {', '.join(VERBS)}")
    if min(options.ranks, options.rounds) < 1:
        raise UsageError(f"{options.ranks} ranks, {options.rounds} rounds", hint="1 or more of both")
    if options.plot:
        pyplot()
        writable(Path(options.plot))
    sizes = numbers(options.bytes)
    if options.load:
        load(options.load)
    if own := options.output or os.environ.get("HPCOMM_TUNED"):
        make_folder("-o", Path(own).parent)
        check_file(Path(own))
        tuned.kept(Path(own))
    asked = verbs, sizes, options.rounds, options.load
    found = job(options.ranks, "tune.measure", *asked, limit_s=LIMIT_S)
    records: list[Record] = found["records"]
    _try_again(options, records)
    if not options.no_model:
        _model(records)
    path = Path(options.output or found["path"])
    _keep(path, found, options.ranks)
    print(json.dumps(records, indent=1) if options.json else table(records))
    print(f"\nkept in {path}", file=sys.stderr)
    if options.plot:
        _plot(records, Path(options.plot))
    return 0


def measure(
    verbs: Sequence[str], sizes: Sequence[int], rounds: int, own: str | None
) -> dict[str, str | list[Record]]:
    """On all ranks of a job: every candidate for every verb and size.

    Args:
        own: a Python file that registers more of them.
    """
    import hpcomm

    if own:
        load(own)
    comm = hpcomm.world
    records = [each for verb in verbs for nbytes in sizes for each in _compare(comm, verb, nbytes, rounds)]
    return {"mpi": mpi_control_variables.vendor(), "path": str(tuned.table_path()), "records": records}


def confirm(chosen: Sequence[tuple[str, int, str]], rounds: int, own: str | None) -> list[tuple[str, int]]:
    """The same for what another job chose, (verb, bytes, algorithm): which did not win here."""
    import hpcomm

    if own:
        load(own)
    comm = hpcomm.world
    lost = []
    for verb, nbytes, name in chosen:
        arrays = _arrays(comm, verb, nbytes)
        calls = {each: _call(comm, verb, each, *arrays) for each in ("", name)}
        if not confirmed(_in_turns(comm, calls, ["", name], 3 * rounds), name, SAFE):
            lost.append((verb, nbytes))
    return lost


def _try_again(options: argparse.Namespace, records: list[Record]) -> None:
    """Let other jobs try what was chosen: where arrays lie differs, and makes some look better.

    Where it did not win again, the default serves.
    """
    for _ in range(AGAIN):
        chosen = [(r["verb"], r["bytes"], r["algorithm"]) for r in records if r["chosen"] and r["algorithm"]]
        asked = chosen, options.rounds, options.load
        lost = job(options.ranks, "tune.confirm", *asked, limit_s=LIMIT_S) if chosen else []
        for record in records:
            if [record["verb"], record["bytes"]] in lost:
                record["chosen"] = not record["algorithm"]


def fastest(seconds: dict[str, float]) -> str:
    """The fastest of the candidates; "" (the default) unless it takes MARGIN times as long as that."""
    best = min(seconds, key=lambda name: seconds[name])
    return best if seconds[best] * MARGIN <= seconds[""] else ""


def confirmed(times: dict[str, list[float]], chosen: str, margin: float = MARGIN) -> str:
    """chosen, if it wins by margin in three of four rounds, each beside the default's; else "" (the default).

    Noise that lasts for some rounds slows both of them, and cannot make one look better for long.
    """
    wins = sum(one * margin <= other for one, other in zip(times[chosen], times[""], strict=True))
    return chosen if 4 * wins >= 3 * len(times[""]) else ""


def table(records: list[Record]) -> str:
    """Per verb and size the default, the fastest of the library's own and of ours, and what is chosen."""
    cells = []
    for verb, nbytes in dict.fromkeys((r["verb"], r["bytes"]) for r in records):
        rows = [r for r in records if (r["verb"], r["bytes"]) == (verb, nbytes)]
        default = next(r for r in rows if not r["algorithm"])
        library = _best([r for r in rows if r["algorithm"].startswith("mpi:")])
        own = _best([r for r in rows if r["algorithm"] and not r["algorithm"].startswith("mpi:")])
        chosen = next(r["algorithm"] for r in rows if r["chosen"]) or "default"
        cells.append((verb, nbytes, f"{default['seconds'] * 1e6:.1f}", library, own, chosen))
    header = ("operation", "bytes", "default us", "the library, chosen", "our schedule", "choice")
    return laid_out(header, cells, left=(0, 3, 4, 5), rule=False)


def _best(rows: list[Record]) -> str:
    if not rows:
        return "-"
    best = min(rows, key=lambda row: float(row["seconds"]))
    return f"{best['algorithm'].removeprefix('mpi:')} {best['seconds'] * 1e6:.1f}"


def _compare(comm: Communicator, verb: str, nbytes: int, rounds: int) -> list[Record]:
    """Records of one verb and size; all ranks find the same, since every time is the slowest rank's."""
    calls = _calls(comm, verb, nbytes)
    names = list(calls)
    first = {name: seconds_of(comm, calls[name], 3) for name in names}
    hopeful = [name for name in names if first[name] <= HOPELESS * first[""]]
    times = _in_turns(comm, calls, hopeful, rounds)
    seconds = first | {name: sorted(found)[len(found) // 2] for name, found in times.items()}  # the median
    chosen = fastest({name: seconds[name] for name in hopeful})
    if chosen:
        chosen = confirmed(_in_turns(comm, calls, ["", chosen], 3 * rounds), chosen)
    return [
        {"verb": verb, "bytes": nbytes, "ranks": comm.size, "algorithm": name, "seconds": seconds[name],
         "chosen": name == chosen, "hopeless": name not in hopeful}
        for name in names
    ]  # fmt: skip


def _calls(comm: Communicator, verb: str, nbytes: int) -> dict[str, Callable[[], object]]:
    """A call by each algorithm; the library may lack some of its own."""
    calls, arrays = {}, _arrays(comm, verb, nbytes)
    for name in ["", *(f"mpi:{name}" for name in mpi_control_variables.choices(verb)), *algorithms(verb)]:
        try:
            calls[name] = _call(comm, verb, name, *arrays)
        except TransportError:
            if not name.startswith("mpi:"):
                raise
    return calls


def _arrays(comm: Communicator, verb: str, nbytes: int) -> tuple[AnyArray, AnyArray | None]:
    """What a verb takes and fills, of nbytes on one rank or of one block.

    All candidates use the same: where arrays happen to lie in memory makes some a tenth slower.
    """
    count, p, r = max(1, nbytes // 4), comm.size, comm.rank
    blocks, one = (p, count), (count,)
    x = np.full(blocks if verb in INPUT_BLOCKS else one, r + 1, np.float32)
    if verb == "broadcast":
        return x, x
    if verb in ROOT_RECEIVES and r:
        return x, None
    return x, np.zeros(blocks if verb in OUTPUT_BLOCKS else one, np.float32)


def _call(comm: Communicator, verb: str, name: str, x: object, out: object) -> Callable[[], object]:
    """One call, made once already, and right."""
    p, r = comm.size, comm.rank
    options: dict[str, Any] = {"algorithm": name} if name else {}
    if out is not None:
        options["out"] = out
    every, totals = np.arange(1, p + 1)[:, None], np.arange(1, p + 1).cumsum()
    expected = {"broadcast": 1, "scatter": 1, "scan": totals[r], "exscan": totals[r] - r - 1,
                "all_gather": every, "gather": every, "all_to_all": every}.get(verb, totals[-1])  # fmt: skip
    verb_of = getattr(comm, verb)

    def call() -> object:
        return verb_of(x, **options)

    found = call()
    wrong = found is not None and not (found == expected).all()
    if comm.context.mpi_handle.allreduce(int(wrong)):
        raise ConfigError(f"{verb} by {name or 'default'}: a wrong result", hint="python -m hpcomm doctor")
    return call


def _in_turns(
    comm: Communicator, calls: dict[str, Callable[[], object]], names: list[str], rounds: int
) -> dict[str, list[float]]:
    """Seconds of each, round by round, which go through all of them, in another order each time."""
    once = ROUND_S
    for part in (30, 10):  # a few calls after others are slower than many
        once = seconds_of(comm, calls[""], max(3, min(MOST, int(ROUND_S / part / max(once, 1e-7)))))
    repeats = max(1, min(MOST, int(ROUND_S / max(once, 1e-7))))
    times: dict[str, list[float]] = {name: [] for name in names}
    order, same = list(names), random.Random(0)  # on all ranks
    for _ in range(rounds):
        same.shuffle(order)
        for name in order:
            times[name].append(seconds_of(comm, calls[name], repeats))
    return times


def _model(records: list[Record]) -> None:
    """Add to our schedules what the model, fitted to a ping-pong of 2 ranks here, says that they take."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "here.json"
        path.write_text(json.dumps(fit.fitted(job(2, "fit.pingpong", limit_s=fit.LIMIT_S))))
        on = machine(str(path))
    for row in records:
        if row["algorithm"] and not row["algorithm"].startswith("mpi:"):
            row["modelled"] = predict(row["verb"], row["algorithm"], row["ranks"], row["bytes"], on).seconds


def _keep(path: Path, found: dict[str, Any], ranks: int) -> None:
    """Put the choices into the table at path, beside those for other verbs and numbers of ranks."""
    kept: Any = None
    try:
        kept = tuned.kept(path)
    except ConfigError as error:  # in the cache; main has looked at one of the user's
        print(f"hpcomm tune: {error.what}; it is replaced", file=sys.stderr)
    if kept is None or kept["mpi"] != found["mpi"]:
        kept = {"mpi": found["mpi"], "ranks": {}, "records": []}
    chosen = grouped(
        (row["verb"], (row["bytes"], row["algorithm"] or None)) for row in found["records"] if row["chosen"]
    )
    kept["ranks"].setdefault(str(ranks), {}).update(chosen)
    old = [r for r in kept.get("records", ()) if r["ranks"] != ranks or r["verb"] not in chosen]
    kept["records"] = old + found["records"]
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(f".{os.getpid()}")  # other jobs may read it now
    fresh.write_text(json.dumps(kept, indent=1) + "\n")
    fresh.replace(path)


def _plot(records: list[Record], path: Path) -> None:
    """Measured against modelled, a dot for every schedule and size."""
    figure, axes = pyplot().subplots(figsize=(6, 5))
    rows = [row for row in records if "modelled" in row]
    for verb in dict.fromkeys(row["verb"] for row in rows):
        some = [row for row in rows if row["verb"] == verb]
        axes.loglog([r["modelled"] * 1e6 for r in some], [r["seconds"] * 1e6 for r in some], "o", label=verb)
    if rows:
        every = [row[key] * 1e6 for row in rows for key in ("modelled", "seconds")]
        ends = [10 ** math.floor(math.log10(min(every))), 10 ** math.ceil(math.log10(max(every)))]
        axes.plot(ends, ends, color="grey", linewidth=1)
        axes.legend()
    axes.set(xlabel="modelled, µs", ylabel="measured, µs")
    save(figure, path)
