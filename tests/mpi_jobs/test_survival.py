"""A rank is killed, and the job goes on: `hpcomm run --survive`."""

from __future__ import annotations

import re
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
import random_deaths

from hpcomm.job.installation import find_mpi

pytestmark = [
    pytest.mark.once,
    pytest.mark.skipif(find_mpi().vendor != "openmpi", reason="MPICH ends all ranks when one is killed"),
]

BEGIN = """
import os, signal, time
import numpy as np
import hpcomm
from hpcomm import world as comm

def die():
    os.kill(os.getpid(), signal.SIGKILL)

x = np.ones(4)
comm.barrier()
"""


def test_waits_of_every_kind_end_when_a_rank_dies(job: Any) -> None:
    """A collective of the core, a message and a request wait when it dies. What is begun later fails, too."""
    source = """
    def fails(verb, *given, **named):
        try:
            done = getattr(comm, verb)(*given, **named)
            if verb.startswith("i") or "async_op" in named:
                done.wait()
        except hpcomm.PeerFailedError as error:
            assert error.ranks == (3,), (verb, error)
            assert "rank 3 of 'world' has died" in str(error), error
        else:
            raise AssertionError(verb)

    if comm.rank == 3:
        time.sleep(0.3)
        die()
    waits = [
        lambda: fails("all_reduce", x),
        lambda: fails("recv", out=x, source=3),
        lambda: fails("irecv", out=x, source=3),
    ]
    waits[comm.rank]()
    fails("barrier")
    fails("all_reduce", x, async_op=True)
    fails("all_gather_object", "a")
    fails("all_gather_ragged", x)
    fails("recv_object", source=3)
    fails("send", np.ones(1_000_000), 3)
    fails("split", 0)
    fails("dup")
    fails("all_reduce", x, algorithm="ring")
    print("has gone on")
    """
    done = job(4, BEGIN + dedent(source), options=("--survive",))
    assert done.stdout.count("has gone on") == 3
    assert "hpcomm run: rank 3 was killed; the job has gone on without it" in done.stderr


def test_a_rank_that_fails_by_itself_is_missed_and_its_status_is_the_jobs(job: Any) -> None:
    source = """
    if comm.rank == 1:
        raise SystemExit(3)
    try:
        comm.barrier()
    except hpcomm.PeerFailedError as error:
        print("missed", error.ranks)
    """
    done = job(2, BEGIN + dedent(source), options=("--survive",), expect=3)
    assert "missed (1,)" in done.stdout
    assert "hpcomm run: rank 1 failed with status 3; the job has gone on without it" in done.stderr


def test_ranks_that_live_agree_and_go_on_by_themselves(job: Any) -> None:
    """Rank 0 waits for rank 3, which dies; the others wait for ranks that give the communicator up."""
    source = """
    assert comm.agree(True) and not comm.agree(comm.rank != 2)
    comm.split(0).close()  # leaves carriers, of all ranks
    part = comm.dup()
    assert part.all_reduce_object(1) == 4
    if comm.rank == 3:
        time.sleep(0.3)
        die()
    waits = [lambda: comm.barrier(), lambda: comm.recv(out=x, source=0), lambda: comm.recv_object(source=1)]
    try:
        waits[comm.rank]()
    except hpcomm.PeerFailedError:
        comm.revoke()
    assert not comm.agree(True)
    old, comm = comm, comm.shrink("rest")
    part.close()
    old.close()
    assert comm.name == "rest" and comm.size == 3 and comm.context.node is not None
    assert comm.agree(True)
    assert comm.all_reduce(x)[0] == 3 and comm.all_gather_object(comm.rank) == [0, 1, 2]
    with comm.split(comm.rank % 2) as part:
        part.all_reduce(x, async_op=True).wait()
    print("has gone on")
    """
    done = job(4, BEGIN + dedent(source), options=("--survive",))
    assert done.stdout.count("has gone on") == 3


def test_a_shrink_that_fails_on_one_rank_is_tried_again_by_all(job: Any) -> None:
    source = """
    from mpi4py import MPI
    from hpcomm.communicator.making import shrunk

    tried, real = [], shrunk._shrunk

    class Fails:
        def __init__(self, mpi):
            self.mpi = mpi

        def __getattr__(self, name):
            return getattr(self.mpi, name)

        def Shrink(self):
            made = self.mpi.Shrink()
            tried.append(made)
            if comm.rank == 1 and len(tried) == 1:
                raise MPI.Exception(MPI.ERR_INTERN)
            return made

    shrunk._shrunk = lambda plain: real(Fails(plain))
    if comm.rank == 2:
        die()
    rest = comm.shrink()
    assert rest.all_reduce(x)[0] == 2 and len(tried) == 2
    print("has gone on")
    """
    done = job(3, BEGIN + dedent(source), options=("--survive",))
    assert done.stdout.count("has gone on") == 2


def test_letters_of_a_rank_that_has_died_are_taken_and_keep_no_others_back(job: Any) -> None:
    source = """
    from mpi4py import MPI
    from hpcomm.agree.letters import Letters

    mpi = MPI.COMM_WORLD.Dup()
    mpi.Set_errhandler(MPI.ERRORS_RETURN)
    letters = Letters(mpi)
    if comm.rank == 1:
        letters.send([0], 5, b"last words")
        time.sleep(0.3)
        die()
    if comm.rank == 0:
        while letters.failed() != {1}:  # its letter has come before
            mpi.Iprobe(2, 6)
        mpi.send("go on", 2, 7)
        found = []
        while len(found) < 2:
            found += letters.come()
        assert sorted(found) == [(1, 5, b"last words"), (2, 5, b"more")], found
        print("heard both")
    else:
        mpi.recv(source=0, tag=7)
        letters.send([0], 5, b"more")
        time.sleep(0.5)
    """
    done = job(3, BEGIN + dedent(source), options=("--survive",))
    assert "heard both" in done.stdout


@pytest.mark.once
def test_calls_of_torch_distributed_say_who_has_died_and_another_group_goes_on(job: Any) -> None:
    pytest.importorskip("torch")
    source = """
    import os, signal
    import torch
    import torch.distributed as dist
    import hpcomm.torch_backend

    dist.init_process_group("hpcomm")
    x, long = torch.ones(4), torch.ones(1_000_000)
    dist.all_reduce(x)
    if dist.get_rank() == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    calls = {
        "all_reduce": lambda: dist.all_reduce(x), "wait": lambda: dist.all_reduce(x, async_op=True).wait(),
        "barrier": dist.barrier, "recv": lambda: dist.recv(x, 2), "send": lambda: dist.send(long, 2),
        "objects": lambda: dist.all_gather_object([None] * 3, 1),
    }
    for name, call in calls.items():
        try:
            call()
        except hpcomm.PeerFailedError as error:
            assert [*error.ranks] == [2], error
        else:
            raise AssertionError(name)
    dist.destroy_process_group()
    dist.init_process_group("hpcomm")  # of the ranks that live
    assert dist.get_world_size() == 2 and os.environ["RANK"] == str(dist.get_rank())
    x = torch.ones(4)
    dist.all_reduce(x)
    assert x.tolist() == [2.0] * 4
    print("has gone on")
    """
    done = job(3, dedent(source), options=("--survive",))
    assert done.stdout.count("has gone on") == 2


def test_the_training_of_the_page_reaches_the_same_loss_when_a_rank_dies(job: Any) -> None:
    page = (Path(__file__).parents[2] / "docs/surviving.md").read_text(encoding="utf-8")
    training = page.partition("```python\n")[2].partition("```")[0]
    dies = "if step == 150 and comm.rank == 1 and comm.size == 4: import os; os.kill(os.getpid(), 9)"
    source = training.replace(
        "        while step < steps:\n", f"        while step < steps:\n            {dies}\n"
    )
    done = job(4, source, options=("--survive",))
    assert done.stdout.count("3 ranks, loss") == 3, done.stdout
    assert re.search(r"rank 0: \(1,\) died in step 1(50|49)", done.stdout), done.stdout
    losses = set(re.findall(r"loss (\S+)", done.stdout))
    assert losses == set(re.findall(r"loss (\S+)", job(1, training, options=("--survive",)).stdout))


@pytest.mark.parametrize(("kind", "after_s"), [("core", 0.1), ("message", 0.3), ("between", 0.2)])
def test_a_job_goes_on_rightly_after_a_kill_at_random(tmp_path: Path, kind: str, after_s: float) -> None:
    wrong, said = random_deaths.kill(kind, 2, after_s, tmp_path, steps=20)
    assert not wrong, f"{wrong}\n{said}"
