"""Calls of every kind beside raw mpi4py doing the same: ratios, worst first; and memory beside arrays.

    hpcomm run -n 2 python benchmarks/every_call.py [--only WORD] [--seconds 2] [--save]

Works on 2 or 4 ranks. The two take turns, and the quietest hundredth of many short turns counts. Messages go
there and back between ranks 0 and 1, 2 and 3. Raw mpi4py does by hand what it has no call for: it makes the
result, copies a strided array, asks for a length. It reduces float32 where hpcomm reduces half types, which
MPI does not know. Memory beside the arrays is what a rank has more of at most during a second call with out=.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from measure import library, machine, quietest, save, say, size_name
from mpi4py import MPI

from hpcomm import P2POp, wait_all, world

mpi, rank, size = MPI.COMM_WORLD, MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
peer, first = rank ^ 1, rank % 2 == 0
Row = tuple[str, Callable[[], Any], Callable[[], Any]]  # what, raw mpi4py, hpcomm


def there_and_back(send: Callable[[], Any], recv: Callable[[], Any]) -> Callable[[], None]:
    """A message to the peer, and one from it."""
    if first:
        return lambda: (send(), recv())  # type: ignore[func-returns-value, return-value]
    return lambda: (recv(), send())  # type: ignore[func-returns-value, return-value]


def messages() -> Iterator[Row]:
    x, y = np.ones(1), np.empty(1)
    give, send = partial(mpi.Send, x, peer), partial(world.send, x, peer)

    def of_any_length() -> np.ndarray:
        status = MPI.Status()
        came = mpi.Mprobe(peer, status=status)
        out = np.empty(status.Get_count(MPI.DOUBLE))
        came.Recv(out)
        return out

    def row(what: str, raw: Callable[[], Any], ours: Callable[[], Any]) -> Row:
        return what, there_and_back(give, raw), there_and_back(send, ours)

    yield row("send, recv into out, 8 B", lambda: mpi.Recv(y, peer), lambda: world.recv(y, peer))
    new = partial(world.recv, source=peer, dtype="float64", shape=1)
    yield row("send, recv of dtype and shape, 8 B", lambda: mpi.Recv(np.empty(1), peer), new)
    yield row(
        "send, recv of any length, 8 B", of_any_length, partial(world.recv, source=peer, dtype="float64")
    )
    yield row("send, recv from any source, 8 B", lambda: mpi.Recv(y), lambda: world.recv(y))
    both = partial(mpi.Sendrecv, x, peer, recvbuf=y, source=peer)
    yield "sendrecv into out, 8 B", both, lambda: world.sendrecv(x, peer, peer, out=y)
    yield (
        "sendrecv, new result, 8 B",
        lambda: mpi.Sendrecv(x, peer, recvbuf=np.empty(1), source=peer),
        lambda: world.sendrecv(x, peer, peer),
    )


def requests() -> Iterator[Row]:
    x, y = np.ones(1), np.empty(1)
    many, room = np.ones((64, 1)), np.empty((64, 1))

    def raw(n: int) -> None:
        made = [mpi.Irecv(room[i], peer, i) for i in range(n)]
        made += [mpi.Isend(many[i], peer, i) for i in range(n)]
        MPI.Request.Waitall(made)

    def ours(n: int) -> None:
        made = [world.irecv(room[i], peer, i) for i in range(n)]
        made += [world.isend(many[i], peer, i) for i in range(n)]
        wait_all(made)

    def sends(begin: Callable[..., Any], recv: Callable[..., Any], wait: Callable[..., Any]) -> None:
        if first:
            wait([begin(many[i], peer, i) for i in range(64)])
            recv(y, peer, 99)
        else:
            for i in range(64):
                recv(room[i], peer, i)
            begin(x, peer, 99).wait()

    def batch() -> None:
        ops = [P2POp("isend", x, peer), P2POp("irecv", y, peer)]
        wait_all(world.batch_isend_irecv(ops))

    starts = [mpi.Recv_init(y, peer, 7), mpi.Send_init(x, peer, 7)]
    plans = [world.plan("recv", out=y, source=peer, tag=7), world.plan("send", x, dest=peer, tag=7)]

    def raw_plan() -> None:
        MPI.Prequest.Startall(starts)
        MPI.Request.Waitall(starts)

    def our_plan() -> None:
        for each in plans:
            each.start()
        for each in plans:
            each.wait()

    yield "irecv, isend, wait for both, 8 B", partial(raw, 1), partial(ours, 1)
    yield "128 requests, 8 B", partial(raw, 64), partial(ours, 64)
    yield (
        "64 isends, 64 recvs, 8 B",
        partial(sends, mpi.Isend, mpi.Recv, MPI.Request.Waitall),
        partial(sends, world.isend, world.recv, wait_all),
    )
    yield "batch_isend_irecv of two, 8 B", partial(raw, 1), batch
    yield "plans of a send and a recv, 8 B", raw_plan, our_plan
    for nbytes in (8, 64 << 10, 1 << 20):
        yield in_background(np.ones(nbytes // 4, np.float32), "float32")
    for dtype in (np.float16, ml_dtypes.bfloat16):
        yield in_background(np.ones((1 << 20) // 2, dtype), np.dtype(dtype).name)


def in_background(x: np.ndarray, name: str) -> Row:
    out, like = np.empty_like(x), np.ones(x.nbytes // 4, np.float32)
    made = np.empty_like(like)
    return (
        f"all_reduce in the background, {name}, {size_name(x.nbytes)}",
        lambda: mpi.Iallreduce(like, made).Wait(),
        lambda: world.all_reduce(x, out=out, async_op=True).wait(),
    )


def collectives() -> Iterator[Row]:
    def reduced(what: str, x: np.ndarray, like: np.ndarray) -> Row:
        out, made = np.empty_like(x), np.empty_like(like)
        return what, lambda: mpi.Allreduce(like, made), lambda: world.all_reduce(x, out=out)

    bf16 = np.ones(4, ml_dtypes.bfloat16)
    yield reduced("all_reduce, float32, 8 B", np.ones(2, np.float32), np.ones(2, np.float32))
    yield reduced("all_reduce, bfloat16, 8 B", bf16, np.ones(2, np.float32))
    yield "all_reduce of a number", lambda: mpi.allreduce(1.0), lambda: world.all_reduce(1.0)
    x, out = np.ones(16), np.empty(16)
    yield (
        "all_reduce, new result, 128 B",
        lambda: mpi.Allreduce(x, np.empty_like(x)),
        lambda: world.all_reduce(x),
    )
    for n, name in ((16, "128 B"), (128 << 10, "1 MiB")):
        yield strided(np.ones(2 * n)[::2], f"all_reduce of every other element, {name}")
    record = np.zeros(1024, [("a", "f8"), ("b", "i4")])
    as_bytes = record.view(np.uint8)
    yield (
        "broadcast of records, 12 KiB",
        lambda: mpi.Bcast(as_bytes),
        lambda: world.broadcast(record, out=record),
    )
    fortran = np.ones((256, 512), order="F")
    yield (
        "broadcast in Fortran order, 1 MiB",
        lambda: mpi.Bcast(fortran.T),
        lambda: world.broadcast(fortran, out=fortran),
    )
    long, made = np.ones(128 << 10), np.empty(128 << 10)

    def largest(a: Any, b: Any, datatype: Any) -> None:
        theirs = np.frombuffer(b)
        np.fmax(np.frombuffer(a), theirs, out=theirs)

    op = MPI.Op.Create(largest, commute=True)
    yield (
        "all_reduce by a function, 1 MiB",
        lambda: mpi.Allreduce(long, made, op),
        lambda: world.all_reduce(long, lambda a, b: np.fmax(a, b), out=made),
    )
    yield (
        "all_reduce by np.add, 1 MiB",
        lambda: mpi.Allreduce(long, made),
        lambda: world.all_reduce(long, np.add, out=made),
    )
    half = mpi.Split(rank % 2)
    raw = half.Create_intercomm(0, mpi, 1 - rank % 2)
    ours = world.split(rank % 2).create_intercomm(0, world, 1 - rank % 2)
    yield (
        "all_reduce of two groups, 128 B",
        lambda: raw.Allreduce(x, out),
        lambda: ours.all_reduce(x, out=out),
    )


def strided(x: np.ndarray, what: str) -> Row:
    """Raw: a copy there and one back."""
    out = np.empty(2 * x.size)[::2]

    def raw() -> None:
        given, made = np.ascontiguousarray(x), np.empty(x.size)
        mpi.Allreduce(given, made)
        out[...] = made

    return what, raw, lambda: world.all_reduce(x, out=out)


def memory() -> Iterator[Row]:
    x, y = np.ones(1), np.empty(1)
    raw, ours = MPI.Win.Allocate(64, 8, comm=mpi), world.window(8)
    counting, counter = MPI.Win.Allocate(8, 8, comm=mpi), world.counter()
    one = np.ones(1, np.int64)
    before = np.empty(1, np.int64)

    raw.Lock_all()
    counting.Lock_all()

    def there(call: Callable[[], Any], until: Callable[[int], object]) -> Callable[[], None]:
        def made() -> None:
            call()
            until(peer)

        return made

    def next_number() -> None:
        counting.Fetch_and_op(one, before, 0)
        counting.Flush(0)

    near, far = raw.Flush_local, raw.Flush
    yield "window: put, 8 B", there(lambda: raw.Put(x, peer), near), lambda: ours.put(x, peer, slice(0, 1))
    yield "window: get, 8 B", there(lambda: raw.Get(y, peer), far), lambda: ours.get(peer, slice(0, 1), y)
    yield (
        "window: accumulate, 8 B",
        there(lambda: raw.Accumulate(x, peer, op=MPI.SUM), near),
        lambda: ours.accumulate(x, peer, at=slice(0, 1)),
    )
    yield "counter: next", next_number, counter.next

    def freed(make: Callable[[], Any]) -> Callable[[], None]:
        return lambda: make().Free()

    def closed(make: Callable[[], Any]) -> Callable[[], None]:
        return lambda: make().close()

    yield (
        "make and close: window",
        freed(lambda: MPI.Win.Allocate(64, 8, comm=mpi)),
        closed(lambda: world.window(8)),
    )
    shared = freed(lambda: MPI.Win.Allocate_shared(64, 8, comm=mpi))
    yield "make and close: shared array", shared, closed(lambda: world.shared_array(8))
    yield "make and close: cart", freed(lambda: mpi.Create_cart([size])), closed(lambda: world.cart([size]))
    yield "make and close: split", freed(lambda: mpi.Split(0)), closed(lambda: world.split(0))
    yield "make and close: dup", freed(mpi.Dup), closed(world.dup)
    for window in (raw, counting):
        window.Unlock_all()
        window.Free()
    for each in (ours, counter):
        each.close()


def beside_arrays() -> Iterator[tuple[str, float]]:
    """MiB at most, on any rank, beside arrays of 64 MiB."""
    n = (64 << 20) // 8

    def resident(word: str) -> int:
        status = Path("/proc/self/status").read_text()
        return int(status.partition(f"{word}:")[2].split()[0])  # KiB

    def most(call: Callable[[], Any]) -> float:
        call()
        Path("/proc/self/clear_refs").write_text("5")  # the most so far is now
        before = resident("VmRSS")
        call()
        return world.all_reduce((resident("VmHWM") - before) / 1024, "max")

    def fortran(is_so: int) -> np.ndarray:
        return np.ones((n // 1024, 1024), order="F" if is_so else "C")

    kinds = {
        "in order": lambda: np.ones(n),
        "every other element": lambda: np.ones(2 * n)[::2],
        "in Fortran order": lambda: fortran(1),
        "in Fortran order on rank 1": lambda: fortran(rank),
    }
    for kind, make in kinds.items():
        x, out = make(), make()
        yield f"all_reduce, {kind}", most(partial(world.all_reduce, x, out=out))
        yield f"broadcast, {kind}", most(partial(world.broadcast, x, out=out))
    x, out = np.ones(n), np.ones(n)
    yield "all_reduce by a function", most(partial(world.all_reduce, x, lambda a, b: np.fmax(a, b), out))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="", metavar="WORD", help="rows that have it in their names")
    parser.add_argument("--seconds", type=float, default=2.0, help="for each row")
    parser.add_argument("--save", action="store_true", help="keep it under benchmarks/results")
    arguments = parser.parse_args()
    if size % 2:
        raise SystemExit("the ranks go in pairs: hpcomm run -n 2 python benchmarks/every_call.py")
    say(f"{machine()}, {size} ranks")
    found = []
    for rows in (messages, requests, collectives, memory):
        for what, raw, ours in rows():
            if arguments.only in what:
                times = quietest({"raw": raw, "hpcomm": ours}, arguments.seconds)
                found.append(
                    (times["hpcomm"] / times["raw"], what, times["raw"] * 1e6, times["hpcomm"] * 1e6)
                )
                say("{:7.2f}  {:45} {:9.2f} {:9.2f}".format(*found[-1]))
    lines = [f"{size} ranks: hpcomm by raw mpi4py, and microseconds of either, worst first", ""]
    lines += ["{:7.2f}  {:45} {:9.2f} {:9.2f}".format(*row) for row in sorted(found, reverse=True)]
    lines += ["", "MiB beside arrays of 64 MiB", ""]
    lines += [f"{mib:7.1f}  {what}" for what, mib in beside_arrays() if arguments.only in what]
    say("\n".join(lines[len(found) + 2 :]))
    if arguments.save and rank == 0:
        names = ("ratio", "call", "raw", "hpcomm")
        save(
            f"every_call_{library()}_{size}",
            "\n".join(lines),
            [dict(zip(names, row, strict=True)) for row in found],
        )


if __name__ == "__main__":
    main()
