"""Many random mixtures: hpcomm run -n 3 python tests/mpi/random_mixtures.py --programs 200 --seed 1

Beside random_programs.py, which mixes the verbs of arrays: objects and ragged arrays, windows, counters,
shared arrays and pools, communicators that are divided, joined, closed and dropped in any order, background
calls waited for in another order on each rank, and wrong calls, which must give an error on every rank. And
from random_between.py: x and out in one memory, MPI's own calls, calls between two groups, and calls that are
waited for when their communicator is closed. From random_fields.py: fields, points, windows and graphs; from
random_coupling.py: two programs. --only fields,points,epochs,neighbours,coupled takes these alone.
Under MPICH at most 100 programs: they leave communicators behind, of which a rank has 2048.
Each step draws from a generator of its own, which is the same on all ranks. So every rank knows what all
bring, and what has to come out.
"""

from __future__ import annotations

import argparse
import faulthandler
import functools
import gc
import operator
import random
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI

sys.path.append(str(Path(__file__).parents[1]))
from random_between import Between
from random_coupling import Couplings
from random_fields import Fields
from random_things import array, same, short, thing

import hpcomm

LIMIT_S = 60.0  # one program
STEPS = 16


def cube(x: int) -> int:
    return x**3


def inverse(x: int) -> float:
    return 1 / x


def swapped(x: Any) -> Any:
    """x in the byte order that is not this machine's."""
    return x.astype(x.dtype.newbyteorder())


class Circle:
    """A communicator of the program. ranks: of the world, in its order; comm: None on ranks in no part."""

    def __init__(self, comm: Any, ranks: list[int]) -> None:
        self.comm, self.ranks, self.size = comm, ranks, len(ranks)


class Mixture(Between, Fields, Couplings):
    """One program, on this rank."""

    def __init__(self, seed: int, world: Any, steps: int, show: bool, only: Any = ()) -> None:
        self.seed, self.world, self.steps, self.show = seed, world, steps, show
        self.only = only
        self.rank = world.rank
        self.own = random.Random(f"{seed} {self.rank}")  # in which order this rank waits
        self.circles = [Circle(world.dup(), list(range(world.size)))]
        self.pending: list[tuple[str, Any, Any]] = []
        self.problems: list[str] = []
        self.now = ""

    def run(self) -> list[str]:
        kinds: list[Callable[[random.Random, Circle], None]] = [
            *[self.collect] * 6, *[self.ragged] * 4, *[self.message] * 5, *[self.numbers] * 6, self.window,
            self.counter, self.shared, self.pool, *[self.divide] * 2, self.join, self.leave,
            *[self.mail] * 2, self.late, self.halo, *[self.between] * 2, *[self.raw] * 2,
            *[self.refuse] * 2, self.one_refuses, self.differ,
            *[self.fields] * 3, self.points, self.epochs, self.neighbours, self.coupled,
        ]  # fmt: skip
        kinds = [kind for kind in kinds if not self.only or kind.__name__ in self.only]
        for number in range(self.steps):
            rng = random.Random(f"{self.seed}-{number}")
            kind, circle = rng.choice(kinds), rng.choice(self.circles)
            if kind in (self.one_refuses, self.differ) and self.world.check == "off":
                continue  # as without the core: nobody is told
            self.now = f"step {number}, {kind.__name__} on ranks {circle.ranks}"
            if self.show:
                print(f"rank {self.rank}: {self.now}", flush=True)
            if self.rank in circle.ranks or kind in (self.divide, self.leave, self.differ, self.one_refuses):
                kind(rng, circle)
            while self.pending and self.own.randrange(3) == 0:
                self.wait(self.own.randrange(len(self.pending)))
        self.settle()
        self.now = "the end"
        for circle in self.circles[1:]:
            if circle.comm is not None and self.seed % 2:
                circle.comm.close()
        self.world.barrier()
        return self.problems

    # -- how results are looked at ---------------------------------------------------------------------
    def check(self, got: Any, expected: Any, what: str = "") -> None:
        if callable(expected):
            wrong = expected(got)
            if wrong:
                self.problems.append(f"{self.now} {what}: {wrong}")
        elif not same(got, expected):
            self.problems.append(f"{self.now} {what}: {short(got)}, not {short(expected)}")

    def later(self, request: Any, expected: Any) -> None:
        self.pending.append((self.now, request, expected))

    def wait(self, which: int) -> None:
        said, request, expected = self.pending.pop(which)
        now, self.now = self.now, f"{said}, waited for in {self.now}"
        self.check(request.wait(), expected)
        self.now = now

    def settle(self) -> None:
        while self.pending:
            self.wait(self.own.randrange(len(self.pending)))

    def call(
        self, rng: random.Random, comm: Any, verb: str, *given: Any, expected: Any, **words: Any
    ) -> None:
        """A collective call, blocking or in the background: alike on all ranks.

        expected: what it gives; or a function of that, which says what is wrong with it.
        """
        self.now += f", {verb}"
        if rng.randrange(2):
            self.later(getattr(comm, verb)(*given, async_op=True, **words), expected)
        else:
            self.check(getattr(comm, verb)(*given, **words), expected)

    # -- what is right ---------------------------------------------------------------------------------
    def collect(self, rng: random.Random, circle: Circle) -> None:
        n, me, root = circle.size, circle.ranks.index(self.rank), rng.randrange(circle.size)
        verb = rng.choice(
            ["all_gather", "gather", "broadcast", "scatter", "all_to_all", "all_reduce", "reduce"]
        )
        if verb in ("all_reduce", "reduce"):
            things: list[Any] = [[rng.randrange(9), "x"] for _ in range(n)]
            total = functools.reduce(operator.add, things)
            if verb == "reduce":
                got = circle.comm.reduce_object(things[me], operator.add, root)
                self.check(got, total if me == root else None)
            else:
                self.check(circle.comm.all_reduce_object(things[me], operator.add), total)
            return
        things = [thing(rng) for _ in range(n)]
        table = [[thing(rng, 2) for _ in range(n)] for _ in range(n)]
        give, expected = {
            "all_gather": ((things[me],), things),
            "gather": ((things[me], root), things if me == root else None),
            "broadcast": ((things[root] if me == root else None, root), things[root]),
            "scatter": ((things if me == root else None, root), things[me]),
            "all_to_all": ((table[me],), [row[me] for row in table]),
        }[verb]
        self.call(rng, circle.comm, f"{verb}_object", *give, expected=expected)

    def ragged(self, rng: random.Random, circle: Circle) -> None:
        n, me, root = circle.size, circle.ranks.index(self.rank), rng.randrange(circle.size)
        verb = rng.choice(["all_gather", "gather", "broadcast", "scatter", "all_to_all"])
        arrays = [array(rng) for _ in range(n)]
        table = [[array(rng) for _ in range(n)] for _ in range(n)]
        give, expected = {
            "all_gather": ((arrays[me],), arrays),
            "gather": ((arrays[me], root), arrays if me == root else None),
            "broadcast": ((arrays[root] if me == root else None, root), arrays[root]),
            "scatter": ((arrays if me == root else None, root), arrays[me]),
            "all_to_all": ((table[me],), [row[me] for row in table]),
        }[verb]
        self.call(rng, circle.comm, f"{verb}_ragged", *give, expected=expected)

    def message(self, rng: random.Random, circle: Circle) -> None:
        """Each rank sends to another one, round the ring or crosswise; sources and tags known or any."""
        n, me = circle.size, circle.ranks.index(self.rank)
        order = rng.sample(range(n), n)
        dest = {order[i]: order[(i + 1) % n] for i in range(n)}
        source = {there: here for here, there in dest.items()}
        tag, is_ragged = rng.randrange(5), rng.randrange(2)
        things = [array(rng) if is_ragged else thing(rng) for _ in range(n)]
        kind, comm, expected = "ragged" if is_ragged else "object", circle.comm, things[source[me]]
        if not is_ragged and rng.randrange(3) == 0:
            self.check(comm.sendrecv_object(things[me], dest[me], source[me], tag, tag), expected)
            return
        comm.barrier()  # what came before is not taken by a receive of any source
        known = self.own.randrange(2)
        coming = getattr(comm, f"irecv_{kind}")(source[me], tag if known else None)
        going = getattr(comm, f"isend_{kind}")(things[me], dest[me], tag)
        self.later(going, None)
        if self.own.randrange(2):
            self.check(coming.wait(), expected, kind)
        else:
            self.later(coming, expected)
            if not known:
                self.wait(len(self.pending) - 1)  # of any tag: before a later message could come
        comm.barrier()

    def window(self, rng: random.Random, circle: Circle) -> None:
        n, me = circle.size, circle.ranks.index(self.rank)
        length = rng.choice([4, 33])
        with circle.comm.window((n, length), "int64") as window:
            dest = rng.sample(range(n), n)
            window.put(np.arange(length) + me, dest[me], at=me)
            window.fence()
            expected = np.zeros((n, length), np.int64)
            for here in range(n):
                if dest[here] == me:
                    expected[here] = np.arange(length) + here
            self.check(window.array.copy(), expected, "put")
            window.fence()
            target, op = rng.randrange(n), rng.choice(["sum", "max", "min"])
            window.accumulate(np.full(length, me + 2), target, op, at=0)
            window.fence()
            function = {"sum": np.add, "max": np.maximum, "min": np.minimum}[op]
            row = np.zeros(length, np.int64)
            if dest[0] == target:
                row += np.arange(length)
            for here in range(n):
                row = function(row, here + 2)
            self.check(window.get(target, at=0), row, f"accumulate {op}")

    def counter(self, rng: random.Random, circle: Circle) -> None:
        times = [rng.randrange(4) for _ in range(circle.size)]
        me = circle.ranks.index(self.rank)
        with circle.comm.counter(5) as counter:
            mine = [counter.next() for _ in range(times[me])]
            every = circle.comm.all_gather_object(mine)
            self.check(sorted(number for each in every for number in each), list(range(5, 5 + sum(times))))
            self.check(counter.value, 5 + sum(times))

    def shared(self, rng: random.Random, circle: Circle) -> None:
        length = rng.choice([1, 6, 5000])
        with circle.comm.shared_array((circle.size, length), "int32") as shared:
            me = circle.ranks.index(self.rank)
            shared.array[me] = me + 1
            shared.fence()
            self.check(int(shared.array.sum()), length * circle.size * (circle.size + 1) // 2)
            shared.fence()

    def pool(self, rng: random.Random, circle: Circle) -> None:
        root, most = rng.randrange(circle.size), rng.randrange(20)
        with circle.comm.pool(root) as pool:
            if pool:
                self.check(list(pool.map(cube, range(most))), [i**3 for i in range(most)])
                divisor = rng.randrange(2)
                error = pool.submit(inverse, divisor).exception()
                self.check(type(error).__name__, "NoneType" if divisor else "ZeroDivisionError")

    # -- communicators -----------------------------------------------------------------------------------
    def divide(self, rng: random.Random, circle: Circle) -> None:
        way, inside = rng.choice(["dup", "split", "group"]), self.rank in circle.ranks
        if len(self.circles) > 8:
            return
        if way == "dup":
            self.circles.append(Circle(circle.comm.dup() if inside else None, circle.ranks))
            return
        if way == "group":
            ranks = rng.sample(circle.ranks, rng.randrange(1, circle.size + 1))
            made = circle.comm.group([circle.ranks.index(r) for r in ranks]) if self.rank in ranks else None
            self.circles.append(Circle(made, ranks))
            return
        colours = [rng.choice([0, 1, None]) for _ in circle.ranks]
        keys = rng.sample(range(circle.size), circle.size)
        made = None
        if inside:
            me = circle.ranks.index(self.rank)
            made = circle.comm.split(colours[me], keys[me])
        for colour in (0, 1):
            there = [i for i in range(circle.size) if colours[i] == colour]
            ranks = [circle.ranks[i] for i in sorted(there, key=keys.__getitem__)]
            if ranks:
                self.circles.append(Circle(made if self.rank in ranks else None, ranks))

    def join(self, rng: random.Random, circle: Circle) -> None:
        """Two halves of a circle meet: between them, and as one."""
        n, me = circle.size, circle.ranks.index(self.rank)
        if n < 2:
            return
        cut, is_low, half, inter = self.halves(rng, circle)
        low, high = [thing(rng) for _ in range(cut)], [thing(rng) for _ in range(n - cut)]
        mine, theirs = (low, high) if is_low else (high, low)
        self.check(inter.all_gather_object(mine[half.rank]), theirs, "all_gather_object between two")
        total = sum(range(cut, n)) if is_low else sum(range(cut))
        self.check(int(inter.all_reduce(np.array(me))), total, "all_reduce between two")
        root = rng.randrange(cut)
        given = (hpcomm.ROOT if half.rank == root else hpcomm.PROC_NULL) if is_low else root
        got = inter.broadcast_object(low[root] if is_low and half.rank == root else None, given)
        if not is_low:
            self.check(got, low[root], "broadcast_object between two")
        merged = inter.merge(not is_low)
        self.check(merged.all_gather_object(me), list(range(n)), "merged")
        if rng.randrange(2):
            for each in (merged, inter, half):
                each.close()

    def leave(self, rng: random.Random, circle: Circle) -> None:
        """Close or drop one, with calls under way or without."""
        if len(self.circles) < 2:
            return
        gone = self.circles.pop(rng.randrange(1, len(self.circles)))
        if gone.comm is not None and rng.randrange(2):
            gone.comm.close()
        elif self.own.randrange(4) == 0:
            del gone
            gc.collect()

    # -- what is wrong -------------------------------------------------------------------------------------
    def raises(self, function: Callable[[], Any], kind: type[BaseException] = hpcomm.HpcommError) -> bool:
        try:
            got = function()
        except kind as error:
            if "where:" not in str(error) and "try:" not in str(error):
                self.problems.append(f"{self.now}: an error says neither where nor what to try: {error}")
            return True
        self.problems.append(f"{self.now}: no error, but {short(got)}")
        return False

    def refuse(self, rng: random.Random, circle: Circle) -> None:
        """Wrong on all ranks: each says so, and goes on."""
        n, comm, memory = circle.size, circle.comm, np.ones(2 * circle.size + 9)
        wrong: list[Callable[[], Any]] = [
            lambda: comm.broadcast_object(1, n + 2),
            lambda: comm.broadcast(np.ones(3), root=-n - 1),
            lambda: comm.all_to_all_object([1] * (n + 1)),
            lambda: comm.all_reduce(np.ones(3), "median"),
            lambda: comm.all_reduce(np.array(["a"])),
            lambda: comm.send_object(1, n),
            lambda: comm.recv_object(source=n + 1),
            lambda: comm.send(np.ones(2), 0, tag=-5),
            lambda: comm.all_gather(np.ones(3), out=np.ones((n, 4))),
            lambda: comm.all_reduce(np.ones(4), out=np.ones(4, "float32")),
            lambda: comm.broadcast_object(lambda: 1, 0) if comm.rank == 0 and n == 1 else comm.gather(1, n),
            lambda: comm.split(-4),
            lambda: comm.group([0, 0]),
            lambda: comm.group([n]),
            lambda: comm.window((2, -1)),
            lambda: comm.cart([n, 2]),
            lambda: comm.dup(check="quick"),
            lambda: comm.merge(),
            lambda: comm.plan("all_reduce", np.ones(3), op="median"),
            lambda: comm.reduce_scatter(np.ones((n + 1, 2))),
            lambda: comm.all_reduce(memory[:-1], out=memory[1:]),
            lambda: comm.all_to_all(swapped(memory[:n])),
            lambda: comm.reduce([1, 2]),
            lambda: comm.all_gather(memory[1:3], out=memory[: 2 * n].reshape(n, 2)),
        ]
        which = rng.randrange(len(wrong))
        self.now += f", wrong {which}"
        self.raises(wrong[which])

    def one_refuses(self, rng: random.Random, circle: Circle) -> None:
        """Wrong on one rank: all hear of it. On a communicator of its own, which is out of step then."""
        if self.rank not in circle.ranks or circle.size < 2:
            return
        comm, me, culprit = circle.comm.dup(), circle.ranks.index(self.rank), rng.randrange(circle.size)
        bad, memory = me == culprit, np.ones(9)
        calls: list[Callable[[], Any]] = [
            lambda: comm.all_gather_object((lambda: 0) if bad else 1),
            lambda: comm.all_reduce(np.array(["x"]) if bad else np.ones(3)),
            lambda: comm.broadcast_object(1, comm.size if bad else culprit),
            lambda: comm.all_to_all_object([1] * (comm.size + bad)),
            lambda: comm.all_gather_ragged(object() if bad else np.ones(comm.rank)),
            lambda: comm.scatter_object([1] if bad else None, culprit),
            lambda: comm.all_reduce(np.ones(3), "median" if bad else "sum"),
            lambda: comm.split(-2 if bad else 0),
            lambda: comm.all_reduce(memory[:-1], out=memory[1:] if bad else np.ones(8)),
            lambda: comm.scatter_ragged([np.ones(2)] * (comm.size - 1) if bad else None, culprit),
            lambda: comm.all_reduce(swapped(memory) if bad else memory),
            lambda: comm.all_gather(memory, out=swapped(np.ones((comm.size, 9))) if bad else None),
            lambda: comm.reduce_scatter(swapped(np.ones(comm.size)) if bad else np.ones(comm.size)),
            lambda: comm.all_reduce([1.0] * 9 if bad else memory),
            lambda: comm.all_gather([1.0] * 9 if bad else memory),
        ]
        which = rng.randrange(len(calls))
        self.now += f", one refuses {which}"
        self.raises(calls[which])

    def differ(self, rng: random.Random, circle: Circle) -> None:
        """One rank makes another call: each gets an error, there or at its next call."""
        if self.rank not in circle.ranks or circle.size < 2:
            return
        comm, me, other = circle.comm.dup(), circle.ranks.index(self.rank), rng.randrange(circle.size)
        calls: list[Callable[[], Any]] = [
            comm.barrier,
            lambda: comm.all_reduce(np.ones(3)),
            lambda: comm.all_reduce(np.ones(4)),
            lambda: comm.all_gather_object("x"),
            lambda: comm.broadcast(np.ones(3), other),
            lambda: comm.all_reduce(np.ones(3), "max"),
            lambda: comm.all_gather_ragged(np.ones(2)),
        ]
        one, two = rng.sample(range(len(calls)), 2)
        self.now += f", calls {one} and {two}"
        try:
            calls[one if me == other else two]()
        except hpcomm.HpcommError:
            return
        self.raises(comm.barrier)


def run(given: argparse.Namespace) -> int:
    world = hpcomm.Communicator(MPI.COMM_WORLD, name="world")
    begin, failed = time.monotonic(), 0
    for seed in range(given.seed, given.seed + given.programs):
        again = f"hpcomm run -n {world.size} python tests/mpi/random_mixtures.py --seed {seed} --show"
        faulthandler.dump_traceback_later(given.limit, exit=True)
        mixture = Mixture(seed, world, given.steps, given.show, given.only)
        try:
            problems = mixture.run()
        except BaseException:
            print(
                f"\nMIXTURE {seed}: rank {world.rank} at {mixture.now}\n{traceback.format_exc()}{again}",
                flush=True,
            )
            time.sleep(0.5)  # another rank may have more to say
            MPI.COMM_WORLD.Abort(1)
        told = [each for rank in MPI.COMM_WORLD.allgather(problems) for each in rank]
        failed += bool(told)
        if told and world.rank == 0:
            print(f"\nMIXTURE {seed} failed; alone: {again}", *told, sep="\n", flush=True)
    faulthandler.cancel_dump_traceback_later()
    if world.rank == 0:
        print(f"{given.programs} mixtures, {failed} failed, {time.monotonic() - begin:.1f} s", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seed", type=int, default=1, help="of the first program")
    parser.add_argument("--programs", type=int, default=1, help="how many, one seed after the other")
    parser.add_argument("--steps", type=int, default=STEPS, help="of a program")
    parser.add_argument("--limit", type=float, default=LIMIT_S, help="seconds for one program")
    parser.add_argument("--only", type=lambda names: names.split(","), default=(), help="kinds of steps")
    parser.add_argument("--show", action="store_true", help="print each step")
    sys.exit(run(parser.parse_args()))
