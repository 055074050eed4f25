"""What hpcomm adds to raw mpi4py, and how torch's gloo compares: 2 ranks, 8 B to 64 MiB.

    hpcomm run -n 2 python benchmarks/overhead.py [--save [SUFFIX]] [--no-gloo] [--quick]

The same array lives on in all contenders; raw mpi4py always works on numpy arrays. "checks off" is a
communicator made with check="off", "hpcomm" the default. "tensor" is raw mpi4py given a torch tensor.

Tensors have communicators of their own. Otherwise the lengths of calls would be found for arrays and
tensors together, though raw mpi4py's times differ between the two, by the pages on which they lie.
"""

from __future__ import annotations

import argparse
import itertools
import os
import socket
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from measure import alternate, difference, library, machine, median, quietest, ratio, save, size_name
from mpi4py import MPI

import hpcomm

SIZES = [8, 64, 1 << 10, 8 << 10, 64 << 10, 512 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--save", nargs="?", const="", metavar="SUFFIX", help="keep tables and plot under benchmarks/results"
    )
    parser.add_argument("--no-gloo", action="store_true")
    parser.add_argument("--objects", action="store_true", help="objects only, in fresh processes")
    parser.add_argument("--quick", action="store_true", help="fewer sizes and rounds")
    arguments = parser.parse_args()
    world = MPI.COMM_WORLD
    if world.size != 2:
        sys.exit("this benchmark compares two ranks: hpcomm run -n 2 python benchmarks/overhead.py")
    import torch

    torch.set_num_threads(1)
    gloo = None if arguments.no_gloo or arguments.objects else start_gloo()
    rounds = 7 if arguments.quick else 21
    sizes = SIZES[::3] if arguments.quick else SIZES
    levels = {"off": "off", "torch": None, "off torch": "off"}
    comms = {"hpcomm": hpcomm.world} | {name: hpcomm.world.dup(check=level) for name, level in levels.items()}
    text, rows = [machine()], []

    def add(title: str, lines: list[str], found: list[dict[str, Any]]) -> None:
        say("\n".join(lines))
        text.extend(lines)
        rows.extend({"pattern": title} | row for row in found)

    add("objects, fresh", *objects(comms["hpcomm"], rounds, "in processes that have done nothing else"))
    if arguments.objects:
        if arguments.save is not None and world.rank == 0:
            save(f"objects_{library()}{arguments.save and '_' + arguments.save}", "\n".join(text), rows)
        return
    for pattern, make in PATTERNS.items():
        title = (
            f"\n{pattern}: microseconds a call (medians of {rounds} rounds, from 1 MiB on {2 * rounds}); "
            "in brackets what is added to raw, from 64 KiB on as a ratio\n(for torch to raw on the memory of "
            "the tensor, which lies on small pages where numpy asks for large ones; again: raw once more)\n"
            f"{'':>8} {'raw':>10} {'again':>8} {'there':>10} {'tensor':>10} {'checks off':>20} {'hpcomm':>20}"
            f" {'torch, checks off':>20} {'hpcomm torch':>20}"
            f" {'gloo':>12} {'gloo/hpcomm':>12}"
        )
        say(title)
        text.append(title)
        for nbytes in sizes:
            contenders = make(nbytes, comms, gloo)
            contenders["again"] = contenders["raw"]
            is_long = nbytes >= 1 << 20  # few calls in a turn, and what else uses the memory shows
            times = alternate(contenders, (1 + is_long) * rounds, span=0.03 if is_long else 0.01)
            line, row = report(nbytes, times)
            say(line)
            text.append(line)
            rows.append({"pattern": pattern, "bytes": nbytes} | row)
    add("8 B, quietest", *small(comms))
    add("in the background", *background(comms["hpcomm"], rounds))
    add("plans", *plans(comms["hpcomm"], rounds))
    after = "after arrays of 64 MiB, whose memory malloc has learnt to keep"
    add("objects, later", *objects(comms["hpcomm"], rounds, after))
    if arguments.save is not None and world.rank == 0:
        name = f"overhead_{library()}{arguments.save and '_' + arguments.save}"
        save(name, "\n".join(text), rows)
        plot(rows, name)


def say(text: str) -> None:
    if MPI.COMM_WORLD.rank == 0:
        print(text, flush=True)


def start_gloo() -> Any:
    import torch.distributed as dist

    world = MPI.COMM_WORLD
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = world.bcast(probe.getsockname()[1])
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    dist.init_process_group("gloo", rank=world.rank, world_size=world.size)
    return dist


Contenders = dict[str, Callable[[], Any]]


def arrays(nbytes: int) -> tuple[Any, Any, Any]:
    import torch

    n = nbytes // 4
    return np.ones(n, np.float32), np.ones(n, np.float32), torch.ones(n)


def contending(comms: dict[str, Any]) -> list[Any]:
    """The communicators of arrays, with checks and without, and those of tensors."""
    return [comms[name] for name in ("hpcomm", "off", "torch", "off torch")]


def there(tensor: Any) -> Any:
    """A tensor's memory as mpi4py takes it without looking into the tensor."""
    n = tensor.numel()
    return MPI.buffer.fromaddress(tensor.data_ptr(), 4 * n), n, MPI.FLOAT


def all_reduce_in_place(nbytes: int, comms: dict[str, Any], gloo: Any) -> Contenders:
    x, _, t = arrays(nbytes)
    raw, on, off, on_torch, off_torch = MPI.COMM_WORLD, *contending(comms)
    x[:] = 0  # sums stay finite however often they are repeated
    t.zero_()
    here = there(t)
    contenders: Contenders = {
        "raw": lambda: raw.Allreduce(MPI.IN_PLACE, x),
        "off": lambda: off.all_reduce(x, out=x),
        "hpcomm": lambda: on.all_reduce(x, out=x),
        "torch": lambda: on_torch.all_reduce(t, out=t),
        "off torch": lambda: off_torch.all_reduce(t, out=t),
        "raw there": lambda: raw.Allreduce(MPI.IN_PLACE, here),
        "raw tensor": lambda: raw.Allreduce(MPI.IN_PLACE, t),
    }
    if gloo:
        contenders["gloo"] = lambda: gloo.all_reduce(t)
    return contenders


def all_reduce_to_out(nbytes: int, comms: dict[str, Any], gloo: Any) -> Contenders:
    x, y, t = arrays(nbytes)
    u = t.clone()
    here, target = there(t), there(u)
    raw, on, off, on_torch, off_torch = MPI.COMM_WORLD, *contending(comms)
    return {
        "raw": lambda: raw.Allreduce(x, y),
        "off": lambda: off.all_reduce(x, out=y),
        "hpcomm": lambda: on.all_reduce(x, out=y),
        "torch": lambda: on_torch.all_reduce(t, out=u),
        "off torch": lambda: off_torch.all_reduce(t, out=u),
        "raw there": lambda: raw.Allreduce(here, target),
        "raw tensor": lambda: raw.Allreduce(t, u),
    }


def broadcast(nbytes: int, comms: dict[str, Any], gloo: Any) -> Contenders:
    x, _, t = arrays(nbytes)
    here = there(t)
    raw, on, off, on_torch, off_torch = MPI.COMM_WORLD, *contending(comms)

    def both(call: Callable[[int], Any]) -> Callable[[], Any]:
        """Root 0 then root 1, so that no rank runs ahead."""
        return lambda: (call(0), call(1))

    contenders: Contenders = {
        "raw": both(lambda root: raw.Bcast(x, root)),
        "off": both(lambda root: off.broadcast(x, root, out=x)),
        "hpcomm": both(lambda root: on.broadcast(x, root, out=x)),
        "torch": both(lambda root: on_torch.broadcast(t, root, out=t)),
        "off torch": both(lambda root: off_torch.broadcast(t, root, out=t)),
        "raw there": both(lambda root: raw.Bcast(here, root)),
        "raw tensor": both(lambda root: raw.Bcast(t, root)),
    }
    if gloo:
        contenders["gloo"] = both(lambda root: gloo.broadcast(t, root))
    return contenders


def ping_pong(nbytes: int, comms: dict[str, Any], gloo: Any) -> Contenders:
    """What comes is sent back: like most messages, it was written since the last one."""
    x, _, t = arrays(nbytes)
    return swings(x, x, t, t, comms, gloo)


def ping_pong_unchanged(nbytes: int, comms: dict[str, Any], gloo: Any) -> Contenders:
    """From an array that nobody writes into another: the receiver's core may keep it in its cache."""
    x, y, t = arrays(nbytes)
    return swings(x, y, t, t.clone(), comms, None)


def swings(x: Any, y: Any, t: Any, u: Any, comms: dict[str, Any], gloo: Any) -> Contenders:
    """There and back: of x into y, of t into u."""
    here, target = there(t), there(u)
    raw, on, off, on_torch, off_torch = MPI.COMM_WORLD, *contending(comms)
    other = 1 - raw.rank

    def swing(send: Callable[[], Any], recv: Callable[[], Any]) -> Callable[[], Any]:
        return (lambda: (send(), recv())) if raw.rank == 0 else (lambda: (recv(), send()))

    contenders: Contenders = {
        "raw": swing(lambda: raw.Send(x, other), lambda: raw.Recv(y, other)),
        "off": swing(lambda: off.send(x, other), lambda: off.recv(y, other)),
        "hpcomm": swing(lambda: on.send(x, other), lambda: on.recv(y, other)),
        "torch": swing(lambda: on_torch.send(t, other), lambda: on_torch.recv(u, other)),
        "off torch": swing(lambda: off_torch.send(t, other), lambda: off_torch.recv(u, other)),
        "raw there": swing(lambda: raw.Send(here, other), lambda: raw.Recv(target, other)),
        "raw tensor": swing(lambda: raw.Send(t, other), lambda: raw.Recv(u, other)),
    }
    if gloo:
        contenders["gloo"] = swing(lambda: gloo.send(t, other), lambda: gloo.recv(u, other))
    return contenders


PATTERNS = {
    "all_reduce in place": all_reduce_in_place,
    "all_reduce into out": all_reduce_to_out,
    "broadcast from either root": broadcast,
    "ping-pong, there and back": ping_pong,
    "ping-pong of arrays that nobody writes": ping_pong_unchanged,
}


def report(nbytes: int, times: dict[str, list[float]]) -> tuple[str, dict[str, Any]]:
    row: dict[str, Any] = {name: round(median(t), 3) for name, t in times.items()}
    again = (difference if nbytes < 64 << 10 else ratio)(times["again"], times["raw"])
    sign = "+" if nbytes < 64 << 10 else ""
    row["again_added_us" if sign else "again_ratio"] = round(again, 4)
    beside = (f"{row[name]:10.2f}" for name in ("raw there", "raw tensor"))
    cells = [f"{size_name(nbytes):>8} {row['raw']:10.2f} {again:{sign}8.3f} {' '.join(beside)}"]
    for name in ("off", "hpcomm", "off torch", "torch"):
        base = times["raw there" if "torch" in name and nbytes >= 64 << 10 else "raw"]
        added, times_raw = difference(times[name], base), ratio(times[name], base)
        row[f"{name}_added_us"], row[f"{name}_ratio"] = round(added, 3), round(times_raw, 4)
        cells.append(
            f"{row[name]:10.2f} ({added:+6.2f})"
            if nbytes < 64 << 10
            else f"{row[name]:10.1f} ({times_raw:6.3f})"
        )
    if "gloo" in times:
        cells.append(f"{row['gloo']:12.1f} {ratio(times['gloo'], times['hpcomm']):11.1f}x")
    return "  ".join(cells), row


def small(comms: dict[str, Any]) -> tuple[list[str], list[dict[str, Any]]]:
    """What calls cost while nobody else slows them."""
    lines = [
        "\n8 B, the quietest hundredth of short turns: microseconds; in brackets what is added to raw",
        f"{'':>42} {'raw':>8} {'again':>8} {'hpcomm':>18} {'torch':>18}",
    ]
    rows = []
    for pattern, make in (PATTERNS | {"plan of all_reduce in place": planned}).items():
        made = make(8, comms, None)
        contenders = {name: made[name] for name in ("raw", "hpcomm", "torch")} | {"again": made["raw"]}
        row = {name: taken * 1e6 for name, taken in quietest(contenders, 8.0).items()}
        for end in made.get("ends", ()):
            end()
        cells = f"{pattern:>42} {row['raw']:8.2f} {row['again'] - row['raw']:+8.3f}"
        for name in ("hpcomm", "torch"):
            row[f"{name}_added_us"] = row[name] - row["raw"]
            cells += f" {row[name]:8.2f} ({row[f'{name}_added_us']:+6.2f})"
        lines.append(cells)
        rows.append({"call": pattern} | row)
    return lines, rows


def planned(nbytes: int, comms: dict[str, Any], gloo: Any) -> dict[str, Any]:
    """Start and Wait of plans; ends: what gives them back."""
    x, y, t = arrays(nbytes)
    for each in (x, y, t):
        each[:] = 0
    raw = MPI.COMM_WORLD.Allreduce_init(MPI.IN_PLACE, x)
    ours = comms["hpcomm"].plan("all_reduce", y, out=y)
    on_tensor = comms["torch"].plan("all_reduce", t, out=t)
    return {
        "raw": lambda: (raw.Start(), raw.Wait()),
        "hpcomm": lambda: (ours.start(), ours.wait()),
        "torch": lambda: (on_tensor.start(), on_tensor.wait()),
        "ends": (raw.Free, ours.close, on_tensor.close),
    }


def background(comm: Any, rounds: int) -> tuple[list[str], list[dict[str, Any]]]:
    """Both ranks begin to receive and to send, and wait for both; or they reduce in the background."""
    lines, rows = [], []
    raw, other = MPI.COMM_WORLD, 1 - comm.rank
    patterns = ("irecv, isend and a wait for each", "all_reduce(async_op=True) and a wait")
    for what, nbytes in itertools.product(patterns, (8, 1 << 10, 64 << 10, 1 << 20)):
        if nbytes == 8:
            lines.append(f"\n{what}: microseconds; in brackets what is added to raw, and as a ratio")
            lines.append(f"{'':>8} {'raw':>10} {'hpcomm':>10} {'':>18} {'torch':>10}")
        x, y, t = arrays(nbytes)
        u = t.clone()

        def by_mpi(x: Any = x, y: Any = y) -> None:
            incoming, outgoing = raw.Irecv(y, other), raw.Isend(x, other)
            incoming.Wait()
            outgoing.Wait()

        def ours(x: Any = x, y: Any = y) -> None:
            incoming, outgoing = comm.irecv(y, other), comm.isend(x, other)
            incoming.wait()
            outgoing.wait()

        def reduced_by_mpi(x: Any = x, y: Any = y) -> None:
            raw.Iallreduce(x, y).Wait()

        def reduced(x: Any = x, y: Any = y) -> None:
            comm.all_reduce(x, out=y, async_op=True).wait()

        is_message = what == patterns[0]
        own = ours if is_message else reduced
        contenders = {"raw": by_mpi if is_message else reduced_by_mpi, "hpcomm": own}
        times = alternate(contenders | {"torch": partial(own, t, u)}, rounds, span=0.01)
        row: dict[str, Any] = {"what": what, "bytes": nbytes} | {
            name: median(taken) for name, taken in times.items()
        }
        cells = f"{size_name(nbytes):>8} {row['raw']:10.2f}"
        for name in ("hpcomm", "torch"):
            added, times_raw = difference(times[name], times["raw"]), ratio(times[name], times["raw"])
            row |= {f"{name}_added_us": added, f"{name}_ratio": times_raw}
            cells += f" {row[name]:10.2f} ({added:+6.2f}, {times_raw:6.3f})"
        lines.append(cells)
        rows.append(row)
    return lines, rows


def plans(comm: Any, rounds: int) -> tuple[list[str], list[dict[str, Any]]]:
    """A plan against MPI's own Start and Wait; again: of one more of MPI's own.

    Where MPI finds memory for what it prepares makes one request slower than another for all its life, so
    all of them are made anew several times, each time another one first.
    """
    makings = rounds
    turns = f"medians of {makings} makings of {rounds // 3} rounds"
    lines = [
        f"\nplans of all_reduce in place: Start and Wait, microseconds ({turns})",
        f"{'':>8} {'raw':>10} {'again':>8} {'start, wait':>12} {'added':>8} {'plan()':>10} {'added':>8}",
    ]
    rows = []
    for nbytes in (8, 1 << 10, 64 << 10):
        x = np.zeros(nbytes // 4, np.float32)
        times: dict[str, list[float]] = {}
        for i in range(makings):
            made: dict[str, Any] = {}
            for name in (*KINDS[i % 3 :], *KINDS[: i % 3]):
                if name == "plan":
                    made[name] = comm.plan("all_reduce", x, out=x)
                else:
                    made[name] = MPI.COMM_WORLD.Allreduce_init(MPI.IN_PLACE, x)
            for name, each in alternate(rounds_of(**made), rounds // 3, span=0.004).items():
                times.setdefault(name, []).extend(each)
            made["raw"].Free()
            made["again"].Free()
            made["plan"].close()
        row: dict[str, Any] = {"bytes": nbytes} | {name: median(t) for name, t in times.items()}
        for name in ("again", "start, wait", "plan"):
            row[f"{name} added_us"] = difference(times[name], times["raw"])
        cells = (
            f"{row[n]:{w}.2f} {row[f'{n} added_us']:+8.2f}" for n, w in (("start, wait", 12), ("plan", 10))
        )
        lines.append(
            f"{size_name(nbytes):>8} {row['raw']:10.2f} {row['again added_us']:+8.2f} {' '.join(cells)}"
        )
        rows.append(row)
    return lines, rows


KINDS = ("raw", "again", "plan")


def rounds_of(raw: Any, again: Any, plan: Any) -> Contenders:
    return {
        "raw": lambda: (raw.Start(), raw.Wait()),
        "again": lambda: (again.Start(), again.Wait()),
        "start, wait": lambda: (plan.start(), plan.wait()),
        "plan": plan,
    }


def objects(comm: Any, rounds: int, when: str) -> tuple[list[str], list[dict[str, Any]]]:
    """An object that holds 1 MiB, there and back, against mpi4py's lowercase calls.

    Beside it a bare message of the array, back into the same memory: what no object can beat. How mpi4py
    fares depends on malloc: fresh memory for every pickle is a page fault per 4 KiB. What came last is kept
    until the next has come, as `data = comm.recv()` in a loop does.
    """
    import torch

    kept: dict[str, Any] = {}

    world = MPI.COMM_WORLD
    other = 1 - world.rank
    lines = [
        f"\nobjects holding 1 MiB, there and back, {when}: microseconds",
        f"{'':>8} {'bare':>10} {'mpi4py':>10} {'hpcomm':>10} {'ratio':>8}",
    ]
    rows = []
    for name, array in (("numpy", np.ones(1 << 17)), ("torch", torch.ones(1 << 17, dtype=torch.float64))):
        obj = {"step": 1, "data": array}

        flat = np.asarray(array)

        def bare(flat: Any = flat) -> None:
            if world.rank == 0:
                world.Send(flat, other)
                world.Recv(flat, other)
            else:
                world.Recv(flat, other)
                world.Send(flat, other)

        def raw(obj: Any = obj) -> None:
            if world.rank == 0:
                world.send(obj, other)
                kept["raw"] = world.recv(source=other)
            else:
                kept["raw"] = world.recv(source=other)
                world.send(kept["raw"], other)

        def ours(obj: Any = obj) -> None:
            if world.rank == 0:
                comm.send_object(obj, other)
                kept["hpcomm"] = comm.recv_object(other)
            else:
                kept["hpcomm"] = comm.recv_object(other)
                comm.send_object(kept["hpcomm"], other)

        times = alternate({"bare": bare, "raw": raw, "hpcomm": ours}, rounds, span=0.03)
        medians = {name: median(taken) for name, taken in times.items()}
        faster = ratio(times["raw"], times["hpcomm"])
        lines.append(f"{name:>8} {''.join(f'{taken:10.1f} ' for taken in medians.values())}{faster:7.1f}x")
        rows.append({"kind": name, "faster": faster} | medians)
    return lines, rows


def plot(rows: list[dict[str, Any]], name: str) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from measure import RESULTS

    figure, axes = plt.subplots(1, len(PATTERNS), figsize=(4.2 * len(PATTERNS), 3.8), sharey=True)
    for axis, pattern in zip(axes, PATTERNS, strict=True):
        here = [row for row in rows if row["pattern"] == pattern]
        for contender, style in (("raw", "k-"), ("hpcomm", "o-"), ("torch", "s--"), ("gloo", "^-")):
            points = [(row["bytes"], row[contender]) for row in here if contender in row]
            if points:
                axis.loglog(
                    *zip(*points, strict=True),
                    style,
                    label={"raw": "raw mpi4py", "torch": "hpcomm, torch"}.get(contender, contender),
                    markersize=4,
                )
        axis.set_title(pattern)
        axis.set_xlabel("bytes")
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("microseconds a call")
    axes[0].legend()
    figure.tight_layout()
    figure.savefig(RESULTS / f"{name}.png", dpi=110)


main()
