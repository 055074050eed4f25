"""What one rank among 1,000, 10,000 and 100,000 keeps, needs for a moment, sends and takes: in one process.

    python benchmarks/scale.py [RANKS ...] [--save]

The package's own code runs on a stand-in for MPI's communicator (`Echo`). It answers as if all other ranks
did the same as this one, or with messages that were prepared. A node has 128 ranks. Memory is what Python
and numpy allocate, without what MPI itself needs: `kept` is what is left of it, `peak` the most at a time.
The limits of each line at 100,000 ranks are 20 MiB (without the result, as of all_gather_object), 1 s and
1000 messages. For fewer ranks they are less in proportion. The exit status is 1 where memory or messages
are more.
"""

from __future__ import annotations

import argparse
import pickle
import sys
import time
import tracemalloc
from collections import Counter, deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
from measure import save
from mpi4py import MPI

import hpcomm
from hpcomm.agree.differences import Call, alone, joined, rows
from hpcomm.agree.partners import Partners
from hpcomm.communicator.communicator import Communicator, over
from hpcomm.communicator.context import Context
from hpcomm.communicator.topology import node_order, nodes_of
from hpcomm.core.partition import Partition
from hpcomm.fields import routing
from hpcomm.grids import remap
from hpcomm.mpmd import handshake
from hpcomm.node import segment
from hpcomm.node.segment import open_segment
from hpcomm.transport.scheduled import comm_cache
from hpcomm.watch import start_up

RANKS = (1_000, 10_000, 100_000)
NODE = 128
MOST_MIB, MOST_S, MOST_MESSAGES = 20.0, 1.0, 1000


class Done:
    """A request that is over."""

    def Test(self, status: Any = None) -> bool:  # noqa: N802  mpi4py's words, here and below
        return True

    def Wait(self, status: Any = None) -> bool:  # noqa: N802
        return True


class Group:
    """Ranks first, first + 1, ... of the world."""

    def __init__(self, size: int, ranks: list[int] | None = None) -> None:
        self.size, self.ranks = size, ranks

    def Translate_ranks(self, ranks: Any, group: Any) -> list[int]:  # noqa: N802
        if isinstance(group, MPI.Group):  # of the real world, which these ranks are to be in
            return list(ranks)
        return [rank if rank < group.size else MPI.UNDEFINED for rank in range(self.size)]

    def Incl(self, ranks: list[int]) -> Group:  # noqa: N802
        return Group(len(ranks), ranks)

    def Free(self) -> None:  # noqa: N802
        pass


class Inbox:
    """A message that has come."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def Recv(self, spec: Any) -> None:  # noqa: N802
        memoryview(spec[0]).cast("B")[: len(self.data)] = self.data


class Echo:
    """A communicator of many ranks, the others of which do as this one does.

    Attributes:
        told: what was sent and how much of it, by kind: counts "messages", "bytes" and "collectives".
        coming: (source, tag, bytes) that others have sent, for probes.
        absent: ranks that never answer.
    """

    def __init__(self, size: int, rank: int = 0, remote: int = 0) -> None:
        self.size, self.rank, self.remote_size = size, rank, remote
        self.told: Counter[str] = Counter()
        self.coming: deque[tuple[int, int, bytes]] = deque()
        self._sent: deque[bytes] = deque(maxlen=100)

    def Get_rank(self) -> int:  # noqa: N802
        return self.rank

    def Get_size(self) -> int:  # noqa: N802
        return self.size

    def Is_inter(self) -> bool:  # noqa: N802
        return self.remote_size > 0

    def Dup(self) -> Echo:  # noqa: N802
        made = Echo(self.size, self.rank, self.remote_size)
        made.told = self.told
        return made

    def Idup(self) -> tuple[Echo, MPI.Request]:  # noqa: N802
        return self.Dup(), MPI.REQUEST_NULL

    def Split_type(self, kind: int) -> Echo:  # noqa: N802
        return Echo(min(NODE, self.size), self.rank)

    def Create_group(self, group: Group, tag: int) -> Echo:  # noqa: N802
        return Echo(group.size, 0)

    def Get_group(self) -> Group:  # noqa: N802
        return Group(self.size)

    def Set_errhandler(self, handler: Any) -> None:  # noqa: N802
        pass

    def Free(self) -> None:  # noqa: N802
        pass

    def Barrier(self) -> None:  # noqa: N802
        self.told["collectives"] += 1

    def Bcast(self, spec: Any, root: int = 0) -> None:  # noqa: N802
        self.told["collectives"] += 1

    def Allreduce(self, x: Any, out: Any, op: Any = None) -> None:  # noqa: N802
        self.told["collectives"] += 1
        if x is not MPI.IN_PLACE:
            _bytes(out)[:] = _bytes(x)

    def Iallreduce(self, x: Any, out: Any, op: Any = None) -> Done:  # noqa: N802
        self.Allreduce(x, out, op)
        return Done()

    def Allgather(self, x: Any, out: Any) -> None:  # noqa: N802
        self.told["collectives"] += 1
        mine, all_ = _bytes(x), _bytes(out)
        np.frombuffer(all_, np.uint8).reshape(-1, len(mine))[...] = np.frombuffer(mine, np.uint8)

    def Iallgather(self, x: Any, out: Any) -> Done:  # noqa: N802
        self.Allgather(x, out)
        return Done()

    def Gather(self, x: Any, out: Any, root: int = 0) -> None:  # noqa: N802
        self.Allgather(x, out)

    def Isend(self, spec: Any, dest: int, tag: int = 0) -> Done:  # noqa: N802
        self._sent.append(bytes(_bytes(spec)))
        self.told["messages"] += 1
        self.told["bytes"] += len(self._sent[-1])
        return Done()

    def Irecv(self, spec: Any, source: int, tag: int = 0) -> Done:  # noqa: N802
        """What this rank has sent as just as many messages ago: all have said the same, in one order."""
        _bytes(spec)[:] = self._sent.popleft()
        return Done()

    def Sendrecv(self, x: Any, dest: int, tag: int, out: Any, source: int, other: int) -> None:  # noqa: N802
        self.told["messages"] += 1
        self.told["bytes"] += len(_bytes(x))
        _bytes(out)[:] = _bytes(x)

    def Improbe(self, source: int, tag: int, status: Any = None) -> Inbox | None:  # noqa: N802
        for i, (rank, its, data) in enumerate(self.coming):
            if its == tag and source in (rank, MPI.ANY_SOURCE):
                del self.coming[i]
                status.Set_elements(MPI.BYTE, len(data))
                return Inbox(data)
        return None

    def Iprobe(self, *args: Any) -> bool:  # noqa: N802
        return False

    def issend(self, data: Any, dest: int, tag: int) -> Done:
        return self.Isend([pickle.dumps(data), MPI.BYTE], dest, tag)

    def improbe(self, source: int, tag: int, status: Any) -> None:
        """Nobody sends to this rank."""

    def Ibarrier(self) -> Done:  # noqa: N802
        self.told["collectives"] += 1
        return Done()


def _bytes(spec: Any) -> memoryview:
    buffer = spec[0] if isinstance(spec, (list, tuple)) else spec
    return memoryview(buffer).cast("B")


def is_over(requests: Any) -> bool:
    """For MPI.Request.Testall and Waitall, which know nothing of Done."""
    return True


def communicator(p: int) -> tuple[Communicator, Echo]:
    mpi = Echo(p, p // 2 % NODE)
    return over(Context(mpi, "many")), mpi  # type: ignore[arg-type]


def making(p: int) -> Any:
    """A communicator."""
    comm, mpi = communicator(p)
    return comm, mpi.told


def rooted(p: int) -> Any:
    """Fast paths of calls with a root, for four dtypes."""
    comm, mpi = communicator(p)
    for dtype in ("f4", "f8", "i4", "i8"):
        for root in (0, 1, p // 3, p - 1):
            comm.broadcast(np.zeros(9, dtype), root=root)
    return comm, mpi.told


def grouping(p: int) -> Any:
    """comm.group() of half of the ranks."""
    comm, mpi = communicator(p)
    return comm.group(range(p // 2)), mpi.told


def placing(p: int) -> Any:
    """Which rank sits where on a grid, so that those of a node sit together."""
    comm, mpi = communicator(p)
    nodes = nodes_of(comm.context)
    return (node_order(nodes, (p // 10, 10), tiles=True)[0], nodes, comm), mpi.told


def nearby(p: int) -> Any:
    """What a rank of one program sends to those of the other near it, for a mapping between their grids."""
    mpi, kind = Echo(p, 3), [("is_giver", "?"), ("low", "f8", 3), ("high", "f8", 3)]
    entries = np.zeros(p, kind)
    strip = np.arange(p) % (p // 2)  # each program lies on all strips of a plane, a rank on each
    entries["is_giver"] = np.arange(p) < p // 2
    entries["low"][:, 0], entries["high"][:, 0], entries["high"][:, 1] = strip, strip + 1, 9
    corners = np.array([[3.5, row] for row in range(9)], float)[:, None]
    said = np.arange(9), corners, np.ones(9)
    return remap._nearby(mpi, entries, said, 1.0), mpi.told  # type: ignore[arg-type]


def differing(p: int) -> Any:
    """What a rank hears and says if no two ranks make the same call, compared in full."""
    found = {Call(f"all_reduce(float64[{rank}], sum) at step.py:{rank}"): alone(rank) for rank in range(9)}
    told: Counter[str] = Counter()
    for turn in range(p.bit_length()):  # of a tree, up and down
        other = {Call(call.text + str(turn)): alone(9 + turn) for call in found}
        found = joined(found, other)
        told += {"messages": 2, "bytes": 2 * len(pickle.dumps(found))}
    return rows(found), told


def scheduling(p: int) -> Any:
    """What a communicator keeps for algorithms of our own."""
    comm, mpi = communicator(p)
    return (comm_cache.own(comm.context), comm), mpi.told


def objects(p: int) -> Any:
    """all_gather_object of a number."""
    comm, mpi = communicator(p)
    return comm.all_gather_object(7), mpi.told


def parts(p: int) -> Any:
    """all_gather_object of 70 bytes, which do not fit on a card, where there are so many."""
    comm, mpi = communicator(p)
    got = comm.all_gather_object("x" * 70)
    assert len(got) == p
    assert got[-1] == "x" * 70
    return got, mpi.told


class Said:
    """A store in which all but two ranks have said that they are there."""

    def __init__(self, size: int) -> None:
        self.missing, self.asked = {f"here/1/{rank}" for rank in (5, size - 1)}, 0

    def check(self, keys: list[str]) -> bool:
        self.asked += 1
        return self.missing.isdisjoint(keys)


def silent(p: int) -> Any:
    """Who has not come to a call of torch's, of all ranks."""
    from hpcomm.torch_backend import store_reports

    store: Any = Said(p)
    assert store_reports.silent(store, "here/1", p, []) == [5, p - 1]
    return store, {"messages": store.asked}


def _lines(ranks: range, p: int) -> bytes:
    """What a captain says of its ranks."""
    roster = handshake.Roster()
    for rank in ranks:
        name = "sea" if rank < p // 2 else "air"
        roster.add(f"{rank}-{rank}/1\t{name}\thpcomm\t/home/user/{name}.py\tnode{rank // NODE:05d}\t")
    return roster.text().encode()


ENTRY = handshake.Entry("sea", "hpcomm", "/home/user/sea.py", "node00000", "")


def joining(p: int, missing: int = 0) -> Echo:
    """The first rank of a job, what its captains say to it laid out before; some of them do not come."""
    world, n = Echo(p), handshake.BLOCK
    for first in range(n, p - missing * n, n):
        block = range(first, min(first + n, p))
        world.coming.append((first, handshake.TO_FIRST, _lines(block, p)))
    world.coming.append((1, handshake.TO_FIRST, _lines(range(1, min(n, p)), p)))
    return world


def first(p: int) -> Callable[[], Any]:
    """hpcomm.join() of the first rank."""
    world = joining(p)

    def join() -> Any:
        ranks, said = handshake.gather_roster(world, range(p), ENTRY, 10.0)  # type: ignore[arg-type]
        return handshake.check(ranks, said, {}, 10.0), world.told

    return join


def member(p: int) -> Callable[[], Any]:
    """hpcomm.join() of another rank."""
    roster, world = joining(p), Echo(p, 1)
    known = handshake.Roster()
    known.add(_lines(range(1), p).decode())
    for _, _, data in roster.coming:
        known.add(data.decode())
    world.coming.append((0, handshake.FROM_FIRST, known.text().encode()))

    def join() -> Any:
        ranks, said = handshake.gather_roster(world, range(p), ENTRY, 10.0)  # type: ignore[arg-type]
        return handshake.check(ranks, said, {}, 10.0), world.told

    return join


def absent(p: int) -> Callable[[], Any]:
    """hpcomm.join() of the first rank, in vain for one block; and of a rank whose captain does not come."""
    world, other = joining(p, 1), Echo(p, p - 1)

    def join() -> Any:
        told: Counter[str] = Counter()
        for each, its in ((world, 0), (other, p - 1)):
            handshake._LISTENING_S = handshake._BATCH_S = 0.01
            ranks, said = handshake.gather_roster(each, range(p), ENTRY, 0.01)  # type: ignore[arg-type]
            try:
                handshake.check(ranks, said, {}, 0.01)
            except hpcomm.ConfigError as error:
                told["of the message"] += len(str(error))
            told += each.told
            assert told["of the message"] < 5000, its
        return None, told

    return join


def partners(p: int) -> Any:
    """A link between two programs, and the farewell to all ranks of the other one."""
    mpi = Echo(p // 2, 0, p // 2)
    link: Any = SimpleNamespace(
        mpi_handle=mpi, object_comm=mpi, block_channel=mpi, remote_size=mpi.remote_size, begun=0
    )
    made = Partners(link, "air")
    made.say_farewell()
    return made, mpi.told


def slabs(p: int) -> Any:
    """The halo of one of p slabs."""
    whole = Partition((4 * p, 8), {"y": p}, ("y", None))
    route = routing.halo(whole, p // 2, (1, 0))
    return (whole, route), {"messages": len(route.sends) + len(route.receives)}


NOW: dict[str, Callable[[int], Any]] = {
    "a communicator": making,
    "calls with a root": rooted,
    "a group": grouping,
    "grids: who sits where": placing,
    "grids: who is near": nearby,
    "own algorithms": scheduling,
    "full: calls that differ": differing,
    "torch: who is missing": silent,
    "objects: a number": objects,
    "objects: 70 bytes": parts,
    "programs: farewell": partners,
    "fields: a halo of slabs": slabs,
}
LATER: dict[str, Callable[[int], Callable[[], Any]]] = {
    "programs: join, first": first,
    "programs: join, member": member,
    "programs: absent ranks": absent,
}


def cost(name: str, p: int) -> dict[str, Any]:
    """What a subject costs; what is made once, imported or compiled, has been made before."""

    def ready(size: int) -> Callable[[], Any]:
        return (lambda: NOW[name](size)) if name in NOW else LATER[name](size)

    ready(300)()
    work = ready(p)
    begin = time.perf_counter()
    work()
    took = time.perf_counter() - begin
    work = ready(p)
    tracemalloc.start()
    held, told = work()
    now, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    row = {"subject": name, "ranks": p, "kept_mib": now / 2**20, "peak_mib": peak / 2**20, "s": took}
    del held
    return row | {"messages": told["messages"], "mib_sent": told["bytes"] / 2**20 if "bytes" in told else 0.0}


def stand_in() -> None:
    """Let the package take Echo for MPI, with this process as a rank of a node of 128."""
    start_up.start()
    segment.current = open_segment(Echo(NODE))  # type: ignore[arg-type]
    MPI.Request = type("Request", (MPI.Request,), {"Testall": is_over, "Waitall": is_over})  # type: ignore[misc]


def is_much(row: dict[str, Any]) -> bool:
    most = MOST_MIB * max(row["ranks"], 10_000) / 100_000
    needed = max(row["kept_mib"], row["peak_mib"] - row["kept_mib"])
    return bool(needed > most or row["messages"] > MOST_MESSAGES)


def report(rows: list[dict[str, Any]]) -> str:
    lines = [
        f"{'':26s}{'ranks':>8s}{'kept MiB':>10s}{'peak MiB':>10s}{'s':>8s}{'messages':>10s}{'MiB sent':>10s}"
    ]
    for row in rows:
        flag = "  more than asked" * (is_much(row) or row["s"] > MOST_S)
        lines.append(
            f"{row['subject']:26s}{row['ranks']:8d}{row['kept_mib']:10.2f}{row['peak_mib']:10.2f}{row['s']:8.3f}"
            f"{row['messages']:10d}{row['mib_sent']:10.2f}{flag}"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("ranks", nargs="*", type=int, default=RANKS)
    parser.add_argument("--save", action="store_true", help="keep the table in benchmarks/results")
    options = parser.parse_args()
    stand_in()
    rows = [cost(name, p) for name in (*NOW, *LATER) for p in options.ranks]
    text = report(rows)
    print(text)
    if options.save:
        save("scale", text, rows)
    sys.exit(any(map(is_much, rows)))


if __name__ == "__main__":
    main()
