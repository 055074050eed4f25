"""More steps of a random mixture: arrays in any memory, MPI itself, two groups, calls of what is closed."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import random_model as model
from arrays import make
from random_things import array, thing

import hpcomm

DTYPES = ("bool", "uint8", "int32", "int64", "float16", "bfloat16", "float32", "float64", "complex128")
SHAPES = ((), (0,), (0, 3), (1,), (5,), (33, 2), (1000,), (4000,), (100_000,))
VERBS = ("broadcast", "gather", "all_gather", "scatter", "all_to_all", *model.REDUCTIONS * 2)
SAME_SHAPE = ("broadcast", "reduce", "all_reduce", "all_to_all", "scan", "exscan")
AT_ROOT = ("gather", "reduce")  # only the root gets something


class Between:
    """A part of a Mixture."""

    rank: int
    own: random.Random
    check: Any
    later: Any
    call: Any
    settle: Any
    raises: Any

    # -- arrays ------------------------------------------------------------------------------------------
    def numbers(self, rng: random.Random, circle: Any) -> None:
        """Arrays of all dtypes; where x and out lie, each rank chooses for itself."""
        n, me, root = circle.size, circle.ranks.index(self.rank), rng.randrange(circle.size)
        verb, dtype, shape = rng.choice(VERBS), rng.choice(DTYPES), rng.choice(SHAPES)
        op = rng.choice([op for op in model.OPS[model.sort_of(dtype)] if op not in ("avg", "premul_sum")])
        whole, key = (n, *shape) if verb in model.STACKED else shape, rng.randrange(1 << 30)
        given = [model.values(model.rng_of(key, r), dtype, whole, "fold") for r in range(n)]
        wanted = model.collective(verb, given, me, root, op, dtype)
        words: dict[str, Any] = {"op": op} if verb in model.REDUCTIONS else {}
        words |= {"root": root} if verb in ("broadcast", "gather", "scatter", "reduce") else {}
        result = None if verb in AT_ROOT and me != root else np.shape(wanted)
        x, out = self.memory(dtype, given[me], result if verb not in SAME_SHAPE else whole, result, verb)
        words |= {} if out is None else {"out": out}

        def judge(got: Any) -> str:
            if wanted is None or got is None:
                return "" if wanted is got else f"{got!r}, not {wanted!r}"
            if out is not None and got is not out:
                return "the result is not out"
            return model.difference(got, wanted, dtype, exact=False)

        self.call(rng, circle.comm, verb, x, expected=judge, **words)

    def memory(
        self, dtype: str, x: Any, like: tuple[int, ...] | None, result: tuple[int, ...] | None, verb: str
    ) -> tuple[Any, Any]:
        """x, and an out or None, as one rank may have them."""
        kind, way = (
            self.own.choice(("numpy", "torch")),
            self.own.choice(("new", "out", "both", "beside", "same")),
        )
        layout = self.own.choice(("contiguous", "sliced")) if x.ndim and x.size else "contiguous"
        if way == "new" or result is None or like is None:
            return make(kind, dtype, layout, x), None
        if way == "same" and verb in SAME_SHAPE:
            made = make(kind, dtype, layout, x)
            return made, made
        if way == "beside" and verb in SAME_SHAPE and x.ndim:  # element by element in turns, but no overlap
            both = make(kind, dtype, "contiguous", np.repeat(x, 2, axis=0))
            return both[::2], both[1::2]
        room = np.zeros(result, x.dtype)
        layout = "contiguous" if way == "out" or not (room.ndim and room.size) else "sliced"
        return make(kind, dtype, layout, x) if x.ndim and x.size else make(
            kind, dtype, "contiguous", x
        ), make(kind, dtype, layout, room)

    # -- MPI itself ----------------------------------------------------------------------------------------
    def raw(self, rng: random.Random, circle: Any) -> None:
        """MPI's own calls on the same communicator, also at one end of a message only."""
        self.settle()  # MPI's own calls do not move ours on
        n, me, comm, mpi = circle.size, circle.ranks.index(self.rank), circle.comm, circle.comm.mpi
        x = np.arange(rng.choice([0, 3, 5000])) + me
        there, source, tag = (me + 1) % n, (me - 1) % n, 70
        got = np.empty_like(x)
        which = rng.randrange(5)
        if which == 0:
            mpi.Allreduce(x, got)
            self.check(got, np.sum([np.arange(x.size) + r for r in range(n)], 0))
        elif which == 1:
            self.check(mpi.allgather(me), list(range(n)))
        elif which == 2:
            going = mpi.Isend(x, there, tag)
            self.check(comm.recv(got, source, tag), x - me + source)
            going.Wait()
        elif which == 3:
            self.later(comm.isend(x, there, tag), None)
            mpi.Recv(got, source, tag)
            self.check(got, x - me + source)
        else:
            plain = mpi.Split(me % 2, -me)
            with hpcomm.Communicator(plain) as made:
                self.check(made.all_gather_object(me), sorted(range(me % 2, n, 2), reverse=True))
            plain.Free()

    # -- two groups ----------------------------------------------------------------------------------------
    def halves(self, rng: random.Random, circle: Any) -> tuple[int, bool, Any, Any]:
        """Where a circle is cut, whether this rank is below that, its half, what joins it with the other."""
        me = circle.ranks.index(self.rank)
        cut = rng.randrange(1, circle.size)
        is_low = me < cut
        half = circle.comm.split(int(not is_low), me)
        inter = half.create_intercomm(0, circle.comm, cut if is_low else 0, tag=rng.randrange(3))
        return cut, is_low, half, inter

    def between(self, rng: random.Random, circle: Any) -> None:
        """Calls between two halves of a circle, which is closed, dropped or merged with some under way."""
        n, me = circle.size, circle.ranks.index(self.rank)
        if n < 2:
            return
        cut, is_low, half, inter = self.halves(rng, circle)
        sizes = (cut, n - cut) if is_low else (n - cut, cut)
        for _ in range(rng.randrange(1, 6)):
            rng.choice([self.all_between, self.rooted_between, self.mail_between])(
                rng, inter, is_low, sizes, half.rank
            )
        end = rng.randrange(3)
        if end == 0:
            with inter.merge(not is_low) as merged:
                self.check(merged.all_gather_object(me), list(range(n)), "merged")
        if end:
            half.close()
            inter.close()

    def drawn(
        self, rng: random.Random, is_low: bool, sizes: tuple[int, int], draw: Callable[[random.Random], Any]
    ) -> tuple[list[Any], list[Any]]:
        """For each rank here and each over there something; the same on all ranks."""
        low, high = sizes if is_low else sizes[::-1]
        both = [draw(rng) for _ in range(low)], [draw(rng) for _ in range(high)]
        return both if is_low else both[::-1]

    def all_between(
        self, rng: random.Random, inter: Any, is_low: bool, sizes: tuple[int, int], me: int
    ) -> None:
        draw, sort = rng.choice([(thing, "object"), (array, "ragged")])
        if rng.randrange(2):
            mine, theirs = self.drawn(rng, is_low, sizes, draw)
            self.call(rng, inter, f"all_gather_{sort}", mine[me], expected=theirs)
            return
        most = max(sizes)
        mine, theirs = self.drawn(rng, is_low, sizes, lambda rng: [draw(rng) for _ in range(most)])
        row, column = mine[me][: sizes[1]], [each[me] for each in theirs]
        self.call(rng, inter, f"all_to_all_{sort}", row, expected=column)

    def rooted_between(
        self, rng: random.Random, inter: Any, is_low: bool, sizes: tuple[int, int], me: int
    ) -> None:
        """One rank of one group with all of the other."""
        draw, sort = rng.choice([(thing, "object"), (array, "ragged")])
        verb, is_root_low = rng.choice(["broadcast", "gather", "scatter"]), bool(rng.randrange(2))
        has_root = is_low == is_root_low
        root = rng.randrange(sizes[0] if has_root else sizes[1])
        is_root = has_root and me == root
        said = (hpcomm.ROOT if is_root else hpcomm.PROC_NULL) if has_root else root
        mine, theirs = self.drawn(rng, is_low, sizes, draw)
        given: Any = None
        expected: Any = None
        if verb == "broadcast":
            given, expected = (mine[root] if is_root else None), (None if has_root else theirs[root])
        elif verb == "gather":
            given, expected = (None if has_root else mine[me]), (theirs if is_root else None)
        else:
            given, expected = (theirs if is_root else None), (None if has_root else mine[me])
        self.call(
            rng, inter, f"{verb}_{sort}", given, said, expected=None if has_root and not is_root else expected
        )

    def mail_between(
        self, rng: random.Random, inter: Any, is_low: bool, sizes: tuple[int, int], me: int
    ) -> None:
        mine, theirs = self.drawn(rng, is_low, sizes, thing)
        if me < min(sizes):
            coming = inter.irecv_object(me, 3)
            self.later(inter.isend_object(mine[me], me, 3), None)
            self.later(coming, theirs[me])

    # -- messages of a closed one ----------------------------------------------------------------------------
    def mail(self, rng: random.Random, circle: Any) -> None:
        """Messages and a call that are under way when their communicator is closed or dropped."""
        n, me, comm = circle.size, circle.ranks.index(self.rank), circle.comm.dup()
        order = rng.sample(range(n), n)
        dest = {order[i]: order[(i + 1) % n] for i in range(n)}
        source = {there: here for here, there in dest.items()}[me]
        for tag in range(rng.randrange(1, 4)):
            sort = rng.choice(["_object", "_ragged", ""])
            if sort:
                things = [thing(rng) if sort == "_object" else array(rng) for _ in range(n)]
                coming = getattr(comm, f"irecv{sort}")(source, tag)
            else:
                length = rng.choice([0, 4, 5000])
                things = [np.arange(length) + r for r in range(n)]
                coming = comm.irecv(np.empty(length, things[0].dtype), source, tag)
            self.later(getattr(comm, f"isend{sort}")(things[me], dest[me], tag), None)
            self.later(coming, things[source])
        if rng.randrange(2):
            self.later(comm.all_gather_object(me, async_op=True), list(range(n)))
        if rng.randrange(2):
            comm.close()

    def late(self, rng: random.Random, circle: Any) -> None:
        """Receives that are given up for a while, or for good, before their messages are sent."""
        n, me, comm = circle.size, circle.ranks.index(self.rank), circle.comm.dup()
        source, dest, things = (me - 1) % n, (me + 1) % n, [thing(rng) for _ in range(n)]
        arrays = [np.arange(3) + r for r in range(n)]
        coming = comm.irecv_object(source, 1), comm.irecv(np.empty_like(arrays[0]), source, 2)
        for each in coming:
            self.raises(lambda each=each: each.wait(timeout=0.002), hpcomm.WaitTimeoutError)
        is_given_up = rng.randrange(2)
        if is_given_up:
            comm.timeout = 0.002
            self.raises(lambda: comm.recv(np.empty_like(arrays[0]), source, 3), hpcomm.WaitTimeoutError)
            comm.timeout = None
        comm.barrier()
        for tag in (2, 3)[: 1 + is_given_up]:
            self.later(comm.isend(arrays[me], dest, tag), None)
        self.later(comm.isend_object(things[me], dest, 1), None)
        if is_given_up:
            self.check(comm.recv(np.empty_like(arrays[0]), source, 3), arrays[source])
        self.later(coming[0], things[source])
        self.later(coming[1], arrays[source])
        if rng.randrange(2):
            comm.close()

    def halo(self, rng: random.Random, circle: Any) -> None:
        """A field's halo, under way while its communicator is closed, or while others are."""
        comm, rows, columns = circle.comm.dup(), rng.randrange(2, 6), rng.choice([1, 3, 9000])
        width, dtype = rng.randrange(3), rng.choice(["float64", "float32", "int16", "complex128"])
        shape = (rows * circle.size, columns)
        whole = (np.arange(shape[0] * columns) % 199).reshape(shape).astype(dtype)
        parts = hpcomm.Partition(shape, {"y": circle.size}, ("y", None))
        field = hpcomm.Field(comm, parts, dtype=dtype, halo=(width, 0), periodic=[0])
        field.inner[...] = whole[field.box.slices()]
        exchange, first = hpcomm.Halo(field), comm.rank * rows
        exchange.start()
        if rng.randrange(2):
            comm.close()
        if rng.randrange(2):
            self.check(circle.comm.all_gather_object(self.rank), circle.ranks)
        exchange.wait()
        there = range(first - width, first + rows + width)
        self.check(np.asarray(field.array), whole.take(there, axis=0, mode="wrap"), "halo")
