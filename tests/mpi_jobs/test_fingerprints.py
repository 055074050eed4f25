"""Fingerprints of two runs: each of the planted differences is found at the first call that has it.

One job makes every case three times: as it is, again, and with the difference. Each time it writes to a
folder of its own; so what two runs of a job would write is compared here.
"""

from __future__ import annotations

import json
import re
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from processes import ROOT, finish, judge

from hpcomm.communicator import fingerprint
from hpcomm.communicator.program_calls import METHODS
from hpcomm.errors import ConfigError
from hpcomm.fields.numbers import Numbers
from hpcomm.job import installation, launch
from hpcomm.tools import diff

TIME = """
import asyncio, os, sys, threading
import numpy as np
import hpcomm
from hpcomm.communicator import fingerprint, program_calls
from hpcomm.communicator.shell import FINGERPRINT

top = os.environ[FINGERPRINT]

def each_time(cases, *given):
    for name, case in cases.items():
        for which in ("once", "again", "other"):
            os.environ[FINGERPRINT] = f"{top}/{name}/{which}"
            fingerprint._log = None
            case(*given, which == "other")
"""

SPMD = """
from mpi4py import MPI
from hpcomm import Field, Halo

world = hpcomm.world
rank, size = world.rank, world.size
near = np.roll([1e16, 1.0, -1e16], rank)  # whose sum depends on the order
cases = {}

def case(function):
    cases[function.__name__] = function
    return function

@case
def order_of_ranks(odd):
    comm = world.split(0, key=-rank if odd else rank, name="c")
    comm.barrier()
    comm.all_reduce(near)  #order_of_ranks
    comm.barrier()

@case
def algorithm(odd):
    world.barrier()
    world.all_reduce(near, algorithm="ring" if odd else None)  #algorithm

@case
def order_in_function(odd):
    f = (lambda a, b: b - a) if odd else (lambda a, b: a - b)
    f.__name__ = "f"
    world.barrier()
    world.all_reduce(near, f)  #order_in_function

@case
def seed_of_a_rank(odd):
    rng = np.random.default_rng(8 if odd and rank == 1 else rank)
    world.broadcast(rng.random(3), root=0)
    world.all_reduce(rng.random(3))  #seed_of_a_rank
    world.all_reduce(rng.random(3))

@case
def seed(odd):
    rng = np.random.default_rng(8 if odd else 9)
    world.barrier()
    world.scan(rng.random(3))  #seed

@case
def dtype(odd):
    world.barrier()
    world.all_reduce(np.ones(3, "f4" if odd else "f8"))  #dtype

@case
def shape(odd):
    world.barrier()
    world.all_gather(np.ones((2, 3) if odd else 6))  #shape

@case
def operator(odd):
    world.barrier()
    world.all_reduce(np.ones(3), op="max" if odd else "min")  #operator

@case
def root(odd):
    world.barrier()
    world.reduce(np.ones(3), root=int(odd))  #root

@case
def any_source(odd):
    first, second = (2, 1) if odd else (1, 2)
    world.barrier()
    if rank == second:
        world.mpi.recv(source=0)
    if rank:
        world.send(np.full(3, rank), 0)
    if rank == 0:
        for _ in range(2):
            world.recv(np.empty(3, int), hpcomm.ANY_SOURCE)  #any_source
            if _ == 0:
                world.mpi.send(0, second)

@case
def a_thread_writes(odd):
    x = np.ones(3)
    world.all_reduce(x)
    if odd and rank == 2:
        writer = threading.Thread(target=x.__setitem__, args=(0, 7.0))
        writer.start()
        writer.join()
    world.all_reduce(x)  #a_thread_writes

@case
def a_call_less(odd):
    world.all_reduce(1)
    if not odd:
        world.broadcast(3)  #a_call_less
    world.all_reduce(2)  #otherwise

@case
def message(odd):
    world.barrier()
    if rank == 1:
        world.isend(np.ones(3) + odd, 2, tag=4).wait()  #message
    if rank == 2:
        world.recv(dtype=np.float64, source=1)
    world.barrier()

@case
def tag(odd):
    world.barrier()
    if rank == 1:
        world.send(np.ones(3), 2, tag=odd)  #tag
    if rank == 2:
        world.recv(np.empty(3), 1)

@case
def exchanged(odd):
    world.barrier()
    x = np.full(3, rank) + (odd and rank == 1)
    world.sendrecv(x, (rank + 1) % size, (rank - 1) % size)  #exchanged

@case
def one_way(odd):  # what is given to nobody, or would come from there, is not looked at
    x = np.random.default_rng().random((2, 3))
    world.barrier()
    if rank == 0:
        world.sendrecv(np.ones(3) + odd, 1, MPI.PROC_NULL, out=x[0])  #one_way
    if rank == 1:
        world.sendrecv(x[0], MPI.PROC_NULL, 0, out=x[1])

@case
def two_groups(odd):
    half = world.split(rank > 0, name="half")
    both = half.create_intercomm(0, world, int(rank == 0), name="both")
    x = np.random.default_rng().random(3)  # tells what comes
    both.reduce(x if rank == 0 else np.ones(3), root=0 if rank else MPI.ROOT)
    both.broadcast(x if rank else np.ones(3) + odd, 0 if rank else MPI.ROOT)  #two_groups

@case
def in_background(odd):
    going = world.all_reduce(np.ones(3) + (odd and rank == 0), async_op=True)  #in_background
    world.broadcast(np.ones(3))
    going.wait()

    async def later():
        return await world.all_gather(3, async_op=True)

    asyncio.run(later())

@case
def in_place(odd):
    x = np.ones(3) + (odd and rank == 2)
    world.barrier()
    world.all_reduce(x, out=x)  #in_place

@case
def plan(odd):
    x, out = np.ones(3), np.empty(3)
    plan = world.plan("all_reduce", x, out=out)
    plan()
    x += odd
    plan()  #plan

@case
def plan_of_a_rank(odd):
    x, left = np.ones((3, 4))[:, ::2], np.random.default_rng().random((3, 2))  # where it comes
    plans = [world.plan("all_reduce", x, op="min"), world.plan("broadcast", x if rank == 1 else left, root=1)]
    for step in range(3):
        for plan in plans:
            plan.start()
        for plan in reversed(plans):
            plan.wait()
        x[2, 0] = -step - (odd and step == 2 and rank == 1)
    plans[0].start()  #plan_of_a_rank
    plans[0].wait()

@case
def root_of_a_plan(odd):
    plan = world.plan("reduce", np.ones(3), root=int(odd))
    world.barrier()
    plan()  #root_of_a_plan

@case
def plan_of_a_message(odd):
    x = np.random.default_rng(rank).random(3)
    going = [world.plan("send", x, dest=(rank + 1) % size), world.plan("recv", out=np.empty(3), tag=0)]
    for step in range(2):
        x[1] += odd and step == 1 and rank == 2
        for plan in going:
            plan.start()  #plan_of_a_message
        for plan in going:
            plan.wait()

@case
def plan_of_neighbours(odd):
    line = world.cart((size,), name="line")
    x = np.random.default_rng().random((2, 3))
    x[np.array([rank > 0, rank < size - 1])] = 1
    with line.plan("neighbour_all_to_all", x) as plan:
        plan()
        x[0, 2] += odd and rank == 1
        plan()  #plan_of_neighbours

@case
def an_object(odd):
    world.barrier()
    world.broadcast_object("other" if odd else "text")  #an_object
    world.broadcast_object({"a": [1, "b", {2, 3}, 1.5 + odd]} if rank == 0 else None)

@case
def shapes_within(odd):
    world.barrier()
    world.same([np.ones(2), np.ones(1)] if odd else [np.ones(1), np.ones(2)])  #shapes_within

@case
def slices(odd):
    field = Field(world, (6, 4))
    field.inner[...] = 1
    for i in range(3):
        field[i + (odd and i == 1) : 5, 2]  #slices

@case
def ragged(odd):
    world.barrier()
    world.all_gather_ragged(np.arange(rank + 1 + (odd and rank == 2)))  #ragged

@case
def own_elements(odd):
    field = Field(world, (6, 4), halo=1)
    field.inner[...] = 1
    field.update_halo()
    field.inner[0] += odd and rank == 1
    field.update_halo()  #own_elements

@case
def sum_of_a_field(odd):
    field = Field(world, (6, 4))
    field.inner[...] = 1 + (odd and rank == 1)
    world.barrier()
    field.sum()  #sum_of_a_field

@case
def another_factor(odd):
    field, other = Field(world, (6, 4)), Field(world, (6, 4))
    field.inner[...], other.inner[...] = 1, 1 + (odd and rank == 2)
    world.barrier()
    field.dot(other)  #another_factor

@case
def whether_all(odd):
    field = Field(world, (6, 4))
    field.inner[...] = not (odd and rank == 1)
    world.barrier()
    field.all()  #whether_all
    field.any()

@case
def neighbour(odd):
    ring = world.cart((size,), periodic=True, name="ring")
    world.barrier()
    ring.neighbour_all_gather(np.ones(2) + (odd and rank == 1))  #neighbour

@case
def neighbours_block(odd):
    line = world.cart((size,), name="line")
    world.barrier()
    for each in (1, 3):
        x = np.random.default_rng().random((2, 3))
        x[np.array([rank > 0, rank < size - 1])] = each  # what goes to nobody is not looked at
        if odd and rank == 1 and each == 3:
            x[0, 2] = 7
        line.neighbour_all_to_all(x)  #neighbours_block

@case
def operator_of_mpi(odd):
    world.barrier()
    world.all_reduce_object(rank, MPI.MAX if odd else MPI.SUM)  #operator_of_mpi

@case
def halo(odd):
    field = Field(world, (6, 4), halo=1, periodic=odd and [0])
    field.scatter(np.ones((6, 4)))
    field.redistribute(Field(world, (6, 4)), comm=world)
    Halo(field)()  #halo

@case
def block(odd):
    x = np.ones((size, 3))
    world.barrier()
    x[2] += odd and rank == 0
    world.reduce_scatter(x)  #block

@case
def sign_of_zero(odd):
    world.barrier()
    world.broadcast(np.array([0.0, 1.0, -0.0 if odd else 0.0, 2.0]))  #sign_of_zero

@case
def two_signs(odd):
    world.barrier()
    world.broadcast(np.array([1, 2, 3.0]) * ([-1, -1, 1] if odd else [1, 1, 1]))  #two_signs

@case
def communicator(odd):
    part = world.split(rank == 2, name=f"part {rank == 2}")
    part.all_reduce(np.ones(2) + (odd and rank == 2))  #communicator
    world.barrier()

@case
def mpi4py_surface(odd):
    from hpcomm.compat import MPI
    out, comm = np.empty(2), MPI.of(world)
    comm.Barrier()
    comm.Allreduce(np.ones(2) + odd, out)  #mpi4py_surface

def cut(odd):  # by two ranks, or by three
    n = 2 if odd else 3
    part = world.split(0 if rank < n else None, name="cut")
    if part is None:
        return
    whole = np.array([1e16, 1.0, -1e16, 3.0, 0.5, -0.25] * 4, "f8")
    mine = np.split(whole, n)[part.rank]
    program_calls.whose = lambda comm: (str(comm.rank), {"ranks": n, "mpi": "-"})
    part.all_gather(mine)
    part.plan("scatter", whole.astype("g").reshape(n, -1))()
    part.reduce_scatter(np.tile(np.arange(24) * (part.rank == 0), 1).reshape(n, -1))
    field = Field(part, (12, 4), halo=1)
    field.inner[...] = field.indices[0] * 4 + field.indices[1]
    field.update_halo()
    field.scatter(field.gather())
    field.redistribute(Field(part, (12, 4)))
    part.all_reduce(mine.sum())  #cut
    part.barrier()

def spelling(other):  # no difference
    from hpcomm.compat import MPI as surface
    x, one = np.arange(6.0).reshape(3, 2), np.int64(1)
    line, message = world.cart((size,), name="line"), {frozenset((0, 8)[::-1 if other else 1]): 1}
    if other:
        world.reduce(op="sum", root=0, x=x)
        world.reduce(x, sum, one)
        world.reduce(x, MPI.MAX, dst=1)
        world.all_reduce(x, np.maximum, algorithm=None, deterministic=False)
        world.allreduce(x, out=np.empty((3, 2)), op="sum")
        world.bcast(x, src=1)
        world.broadcast(out=x.copy(), root=2) if rank != 2 else world.broadcast(x, out=x, root=2)
        world.scatter(root=0, x=x, async_op=True).wait()
        world.reduce_object(root=one, op=MPI.SUM, obj=[rank])
        line.neighbor_all_gather(x=x)
        world.send(x, dst=(rank + 1) % size, tag=0, sync=False)
        world.irecv(shape=[3, 2], dtype="f8", source=MPI.ANY_SOURCE, tag=MPI.ANY_TAG).wait()
        world.isend_object(obj=message, dest=one, tag=0).wait() if rank == 0 else None
        world.recv_object(0, None) if rank == 1 else None
        world.sendrecv(x, dest=one, recvtag=0, source=MPI.PROC_NULL) if rank == 0 else None
        world.recv(np.empty((3, 2)), src=0, tag=0) if rank == 1 else None
        world.plan("all_reduce", x, op=MPI.SUM)()
        line.plan("neighbor_all_gather", x)()
        surface.of(world).Allreduce(x, np.empty((3, 2)), MPI.SUM)
        field = Field(world, (6, 4))
        field.inner[...] = 1
        field.gather(root=0), field.sum(deterministic=False), field.scatter(np.ones((6, 4)), 0)
    else:
        world.reduce(x)
        world.reduce(x, "sum", root=1)
        world.reduce(x, "max", 1)
        world.all_reduce(x, "max")
        world.all_reduce(x)
        world.broadcast(x, 1)
        world.broadcast(x, root=2)
        world.scatter(x)
        world.reduce_object([rank], "sum", 1)
        line.neighbour_all_gather(x)
        world.isend(x, (rank + 1) % size).wait()
        world.recv(dtype=np.float64, shape=(3, 2))
        world.send_object(message, 1) if rank == 0 else None
        world.irecv_object(source=0).wait() if rank == 1 else None
        world.sendrecv(x, 1, MPI.PROC_NULL, 0, 0) if rank == 0 else None
        world.recv(np.empty((3, 2)), 0, 0) if rank == 1 else None
        world.plan("all_reduce", x)()
        line.plan("neighbour_all_gather", x)()
        surface.of(world).Allreduce(x, np.empty((3, 2)))
        field = Field(world, (6, 4))
        field.inner[...] = 1
        field.gather(), field.sum(), field.scatter(np.ones((6, 4)))

each_time(cases)
each_time({"spelling": spelling, "cut": cut})
if rank == 0:
    x = np.ones(1)
    import timeit
    print("cost", min(timeit.repeat(lambda: hpcomm.self_.all_reduce(x, out=x), number=100)) / 100)
"""

COUPLED = """
me = hpcomm.join()
points = np.arange(4) + 4 * me.comm.rank if me.name == "ocean" else np.arange(8)
x = np.zeros(points.shape)
heat = (me.gives if me.name == "ocean" else me.takes)("heat", x, points=points)

def heat_flows(odd):
    for step in range(3):
        if me.name == "ocean":
            x[:] = points + step + (odd and step == 1)
            me.put(heat)  #put
        else:
            me.get(heat)  #get
        me.comm.barrier()

each_time({"heat": heat_flows})
"""

TORCH = """
import torch
import torch.distributed as dist
from torch.distributed import utils
dist.init_process_group("mpi")
rank = dist.get_rank()

def values(odd):
    works = [dist.barrier(async_op=True)]
    for i in range(3):
        x = torch.full((3,), i + (odd and i == 1 and rank == 1))
        works.append(dist.all_reduce(x, async_op=True))  #values
    for work in works:
        work.wait()

def kind(odd):
    dist.barrier()
    dist.broadcast(torch.ones(3, dtype=torch.float16 if odd else torch.bfloat16), 1)  #kind

def sent(odd):
    dist.barrier()
    if rank == 0:
        dist.send(torch.ones(3) + odd, 1)  #sent
    else:
        dist.recv(torch.empty(3), 0)

def gathered(odd):
    dist.barrier()
    dist.all_gather_into_tensor(torch.empty(4), torch.ones(2) * (1 + odd))  #gathered

def begin_training(model):  # as DistributedDataParallel, which loads compilers for seconds, does it
    utils._verify_param_shape_across_processes(dist.group.WORLD, [*model.parameters()])
    utils._sync_module_states(model, dist.group.WORLD, 1 << 20, 0, set())  #trained

def trained(odd):
    torch.manual_seed(1 + odd)
    begin_training(torch.nn.Linear(2, 2))

each_time({f.__name__: f for f in (values, kind, sent, gathered, trained)})
dist.destroy_process_group()
"""

# One order under each MPI, unless the library chooses it: Open MPI and MPICH begin with other ranks.
BY_MPI = """
import numpy as np
import hpcomm
world = hpcomm.world
x = np.random.default_rng(world.rank).random(3003)
world.all_reduce(x)
world.reduce(x)
world.reduce(x, async_op=True).wait()
end = {0: {"dest": 1}, 1: {"source": hpcomm.ANY_SOURCE}, 2: {"source": hpcomm.PROC_NULL}}[world.rank]
world.plan("recv" if world.rank else "send", x, **end)()
world.sendrecv(x, hpcomm.PROC_NULL, hpcomm.PROC_NULL)
world.order = "fast"
world.reduce(x)  #by_mpi
world.barrier()
"""

# What is said of the difference: number of the call, ranks, why
SAID = {
    "order_of_ranks": "call 2 of ranks 0-2: other values came out of the same",
    "algorithm": "call 2 of ranks 0-2: other calls",
    "order_in_function": "call 2 of ranks 0-2: other values came out of the same",
    "seed_of_a_rank": "call 2 of ranks 0-2: rank 1 gave other values",
    "seed": "call 2 of ranks 0-2: ranks 0-2 gave other values",
    "dtype": "call 2 of ranks 0-2: other calls",
    "shape": "call 2 of ranks 0-2: other calls",
    "operator": "call 2 of ranks 0-2: other calls",
    "root": "call 2 of ranks 0-2: other calls",
    "any_source": "call 2 of rank 0: other values came",
    "a_thread_writes": "call 2 of ranks 0-2: rank 2 gave other values",
    "a_call_less": "call 2 of ranks 0-2: other calls",
    "message": "call 2 of rank 1: rank 1 gave other values",
    "tag": "call 2 of rank 1: other calls",
    "exchanged": "call 2 of rank 1: rank 1 gave other values",
    "one_way": "call 2 of rank 0: rank 0 gave other values",
    "two_groups": "call 2 of rank 0: rank 0 gave other values",
    "in_background": "call 1 of ranks 0-2: rank 0 gave other values",
    "in_place": "call 2 of ranks 0-2: rank 2 gave other values",
    "plan": "call 2 of ranks 0-2: ranks 0-2 gave other values",
    "plan_of_a_rank": "call 7 of ranks 0-2: rank 1 gave other values",
    "root_of_a_plan": "call 2 of ranks 0-2: other calls",
    "plan_of_a_message": "call 3 of rank 2: rank 2 gave other values",
    "plan_of_neighbours": "call 2 of rank 1: rank 1 gave other values",
    "an_object": "call 2 of ranks 0-2: rank 0 gave other values",
    "shapes_within": "call 2 of ranks 0-2: ranks 0-2 gave other values",
    "slices": "call 2 of ranks 0-2: other calls",
    "ragged": "call 2 of ranks 0-2: other calls",
    "own_elements": "call 2 of ranks 0-1: rank 1 gave other values",
    "sum_of_a_field": "call 2 of ranks 0-2: rank 1 gave other values",
    "another_factor": "call 2 of ranks 0-2: rank 2 gave other values",
    "whether_all": "call 2 of ranks 0-2: rank 1 gave other values",
    "neighbour": "call 2 of rank 1: rank 1 gave other values",
    "neighbours_block": "call 3 of rank 1: rank 1 gave other values",
    "operator_of_mpi": "call 2 of ranks 0-2: other calls",
    "halo": "call 3 of ranks 0, 2: other elements in the halo",
    "block": "call 2 of ranks 0, 2: rank 0 gave other values",
    "sign_of_zero": "call 2 of ranks 0-2: rank 0 gave other values",
    "two_signs": "call 2 of ranks 0-2: rank 0 gave other values",
    "communicator": "call 1 of rank 2: rank 2 gave other values",
    "mpi4py_surface": "call 2 of ranks 0-2: ranks 0-2 gave other values",
    "cut": "call 8 of those that all ranks make: other values came",
}

OF_TORCH = {
    "values": "call 3 of ranks 0-1: rank 1 gave other values",
    "kind": "call 2 of ranks 0-1: other calls",
    "sent": "call 2 of rank 0: rank 0 gave other values",
    "gathered": "call 2 of ranks 0-1: ranks 0-1 gave other values",
    "trained": "call 3 of ranks 0-1: rank 0 gave other values",
}


def said(capsys: Any, *folders: Path) -> tuple[int, str]:
    status = diff.main([str(folder) for folder in folders])
    return status, capsys.readouterr().out


def told(text: str) -> str:
    """`call 2 of ranks 0-2: other calls`"""
    first = re.search(r"first difference: (.*)", text)
    why = re.search(r"  why    (.*?)([,:].*)?\n", text)
    assert first is not None, text
    assert why is not None, text
    return f"{first[1]}: {why[1]}"


def differences(capsys: Any, folder: Path, source: str, cases: Any) -> dict[str, str]:
    """What is told of each case; the same run again has none, and the line is that of the case."""
    found = {}
    for name in cases:
        line = next(i for i, text in enumerate(source.splitlines(), 1) if text.endswith(f"#{name}"))
        once, again, other = (folder / name / which for which in ("once", "again", "other"))
        status, text = said(capsys, once, other)
        equal = said(capsys, once, again)
        calls = (once / f"0{fingerprint.CALLS}").read_bytes()
        assert all(any(calls[i : i + 4]) for i in range(0, len(calls), 16)), f"{name}: not all have ended"
        assert (equal[0], status, said(capsys, other, once)[0]) == (0, 1, 1), f"{name}: {equal[1]}{text}"
        found[name] = told(text) if re.search(rf"\.py:{line}\n", text) else text
    return found


@pytest.mark.once
def test_planted_differences_are_found_at_the_first_call(job: Any, tmp_path: Path, capsys: Any) -> None:
    folder, source = tmp_path / "prints", TIME + SPMD
    job(3, source, timeout=100, options=["--fingerprint", str(folder)])
    assert differences(capsys, folder, source, SAID) == SAID
    text = said(capsys, folder / "cut" / "once", folder / "cut" / "other")[1]
    assert "compared are dtypes and values of 9 calls" in text
    status, text = said(capsys, folder / "spelling" / "once", folder / "spelling" / "other")
    assert status == 0, text
    ended_early(capsys, folder / "seed" / "once", folder / "seed" / "again")


@pytest.mark.once
def test_the_first_sum_that_another_mpi_makes_in_another_order_is_found(
    job: Any, tmp_path: Path, capsys: Any
) -> None:
    other = {"openmpi": "mpich", "mpich": "openmpi"}[installation.find_mpi().vendor]
    pythons = [sys.executable, str(ROOT / f".venv-{other}" / "bin" / "python")]
    if not Path(pythons[1]).exists():
        pytest.skip(f"no .venv-{other}, which `make test` makes")
    folders = [tmp_path / name for name in "ab"]
    for python, folder in zip(pythons, folders, strict=True):
        options = ["--fingerprint", str(folder)]
        job(3, BY_MPI, env={"HPCOMM_NODE": "off"}, options=options, python=python)
    status, text = said(capsys, *folders)
    assert status == 1
    assert {"Open MPI", "MPICH"} == set(re.findall("3 ranks, (Open MPI|MPICH)", text))
    assert told(text) == "call 6 of rank 0: other values came out of the same"
    line = next(i for i, words in enumerate(BY_MPI.splitlines(), 1) if words.endswith("#by_mpi"))
    assert text.count(f".py:{line}\n") == 2


@pytest.mark.once
def test_every_number_of_a_field_is_a_call_that_is_written_down() -> None:
    assert {name for name in vars(Numbers) if name[0] != "_"} <= METHODS["Field"].keys()


def ended_early(capsys: Any, once: Path, cut: Path) -> None:
    """A rank that was killed has written whole calls, and a line that has no end; another MPI is named."""
    calls, kinds = cut / f"0{fingerprint.CALLS}", cut / f"0{fingerprint.KINDS}"
    calls.write_bytes(calls.read_bytes()[: 16 + 7])
    about, *rest = kinds.read_text().splitlines(keepends=True)
    kinds.write_text(json.dumps({**json.loads(about), "mpi": "another MPI"}) + "\n" + rest[0] + rest[1][:9])
    status, text = said(capsys, once, cut)
    assert status == 1
    assert told(text) == "call 2 of rank 0: a run that ended early"
    assert "nothing more: 1 call\n" in text
    assert "B: 3 ranks, another MPI" in text
    for file in cut.iterdir():
        file.unlink()
    with pytest.raises(ConfigError, match="has no fingerprints"):
        diff.main([str(once), str(cut)])
    with pytest.raises(ConfigError, match="there is no folder"):
        diff.main([str(once), str(cut / "nowhere")])


@pytest.mark.once
def test_what_a_killed_rank_has_called_is_there(tmp_path: Path, capsys: Any) -> None:
    code = (
        "import os, signal, hpcomm\n"
        "for i in range(40):\n"
        "    hpcomm.self_.all_reduce(i)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    command = [sys.executable, "-c", code]
    done = finish(command, 60, env={"HPCOMM_FINGERPRINT": str(tmp_path)})
    assert done.returncode == -9, done.stderr
    assert said(capsys, tmp_path, tmp_path)[1].count("40 calls") == 2
    with pytest.raises(ConfigError, match="something is there"):
        launch.parse(["--fingerprint", str(tmp_path), "true"])


@pytest.mark.once
def test_programs_of_a_job_are_compared_by_name(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "model.py").write_text(TIME + COUPLED)
    table = '[program.{}]\ncommand = ["python", "model.py"]\nranks = {}\n'
    (tmp_path / "job.toml").write_text(table.format("ocean", 2) + table.format("air", 1))
    words = ["--timeout", "300", "--fingerprint", "prints", "job.toml"]
    judge(finish([sys.executable, "-m", "hpcomm", "run", *words], 60, tmp_path), 0)
    folder = tmp_path / "prints" / "heat"
    assert said(capsys, folder / "once", folder / "again")[0] == 0
    status, text = said(capsys, folder / "once", folder / "other")
    assert status == 1
    ocean, air = text[text.index("program") :].split("program 'air'")
    assert told(ocean) == "call 3 of ranks 0-1: ranks 0-1 gave other values"
    assert "Program.put(heat float64) on 'ocean' at model.py" in ocean
    assert told(air) == "call 3 of rank 0: other values came"
    for file in (folder / "other").glob("air.*"):
        file.unlink()
    assert "only A has program 'air'" in said(capsys, folder / "once", folder / "other")[1]


@pytest.mark.once
@pytest.mark.skipif(find_spec("torch") is None, reason="no torch")
def test_calls_of_torch_are_compared(job: Any, tmp_path: Path, capsys: Any) -> None:
    folder, source = tmp_path / "prints", TIME + TORCH
    job(2, source, timeout=100, options=["--fingerprint", str(folder)])
    assert differences(capsys, folder, source, OF_TORCH) == OF_TORCH
