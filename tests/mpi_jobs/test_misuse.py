"""What MPI answers by ending the job, or by a hang, is an error here, or right."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

AFTER_FINALIZE = """
import numpy as np
import hpcomm
from mpi4py import MPI

comm, x = hpcomm.world, np.ones(4)
plan = comm.plan("all_reduce", x)
kept = comm.all_reduce
field = hpcomm.Field(comm, (8,), halo=1, periodic=True)
for _ in range(2):
    kept(x), plan(), field.update_halo(), comm.barrier()
MPI.Finalize()
calls = [
    lambda: comm.all_reduce(x), lambda: kept(x), comm.barrier, lambda: comm.all_gather_object(1), plan,
    lambda: comm.send(x, 0), lambda: comm.isend(x, 0), lambda: comm.recv(x, 0), lambda: comm.recv_object(0),
    lambda: comm.all_reduce(x, async_op=True), lambda: comm.split(0), comm.dup, comm.probe, field.update_halo,
    lambda: hpcomm.Communicator(MPI.COMM_WORLD), lambda: comm.plan("barrier"),
]
for i, call in enumerate(calls):
    try:
        call()
    except hpcomm.UsageError as error:
        assert "finalized" in error.what or "is closed" in error.what, error
    else:
        raise AssertionError(i)
comm.close()
print("refused")
"""


def test_every_call_after_finalize_is_refused(job: Any) -> None:
    assert job(2, AFTER_FINALIZE, timeout=40).stdout.count("refused") == 2


OTHER_NAMES = """
import numpy as np
import hpcomm

comm, x = hpcomm.world, np.ones(2)
for call, hint in {
    (lambda: hpcomm.init(), "nothing: hpcomm.world is there when it is first used"),
    (lambda: hpcomm.Finalize(), "nothing: all ends at the exit"),
    (lambda: hpcomm.get_rank(), "hpcomm.world.rank"),
    (lambda: hpcomm.all_reduce(x), "hpcomm.world.all_reduce(...)"),
    (lambda: hpcomm.COMM_WORLD, "hpcomm.world"),
    (lambda: comm.plan("allreduce", x), "did you mean 'all_reduce'?"),
    (lambda: comm.broadcast(x, root=1), "`hpcomm run -n 2 python program.py` starts two"),
    (lambda: comm.send(x, dest=1), "`hpcomm run -n 2 python program.py` starts two"),
    (lambda: comm.broadcast_object(x, root=1), "`hpcomm run -n 2 python program.py` starts two"),
    (lambda: comm.Ssend(x, 0), "comm.send(..., sync=True)"),
    (lambda: comm.issend("x", 0), "comm.isend_object(..., sync=True)"),
}:
    try:
        call()
    except (AttributeError, hpcomm.UsageError) as error:
        assert f"try:   {hint}" in str(error) or f"{hint}" in str(error), error
    else:
        raise AssertionError(hint)
assert hpcomm.wtime() <= hpcomm.wtime()
assert "allreduce" not in dir(comm) and comm.allreduce
print("told")
"""


@pytest.mark.once
def test_names_of_other_libraries_say_what_to_use_here(job: Any) -> None:
    assert job(1, OTHER_NAMES).stdout == "told\n"
    done = job(2, "import hpcomm\nhpcomm.world.rank()\n", expect="failure")
    assert "hpcomm: rank is a number: comm.rank, without ()" in done.stderr


NOTES = """
import sys
import numpy as np
import hpcomm

comm, x = hpcomm.world, np.ones(2)


def rank(): comm.rank()
def size(): return range(comm.size())
def request(): return comm.all_reduce(x, async_op=True) + 1
def received():
    y = comm.irecv(np.empty(2), source=0)
    comm.send(x, 0)
    return y.shape
def gathered():
    parts = comm.gather(x) if comm.rank else None
    print(parts.shape)
def reduced(): return (None if comm.rank == 0 else comm.reduce(x)) + 1
def with_root(): comm.all_reduce(x, root=0)
def with_group(): comm.broadcast(x, group=None)
def with_axis(): comm.all_gather(x, axis=0)
def misspelt(): comm.alreduce(x)
def of_module(): hpcomm.init()
def own(): len(5)


for call in (rank, size, request, received, gathered, reduced, with_root, with_group, with_axis, misspelt,
             of_module, own):
    try:
        call()
    except (TypeError, AttributeError):
        print(call.__name__, file=sys.stderr)
        sys.excepthook(*sys.exc_info())
"""

_NOTES = {
    "rank": "hpcomm: rank is a number: comm.rank, without ()",
    "size": "hpcomm: size is a number: comm.size, without ()",
    "request": "hpcomm: with async_op=True, and of isend and irecv, the result is what wait() of",
    "received": "hpcomm: with async_op=True, and of isend and irecv, the result is what wait() of",
    "gathered": "hpcomm: gather returns its result at root and None elsewhere; all_gather returns it",
    "reduced": "hpcomm: reduce returns its result at root and None elsewhere; all_reduce returns it",
    "with_root": "hpcomm: all_reduce has no root: every rank gets the result",
    "with_group": "hpcomm: a group is a communicator here: comm.group(ranks)",
    "with_axis": "hpcomm: all_gather works over ranks",
    "misspelt": "Did you mean: 'all_reduce'?",
    "of_module": "try:   nothing: hpcomm.world is there when it is first used",
    "own": "has no len()",
}


@pytest.mark.once
def test_exceptions_of_python_say_what_was_meant_on_one_rank_too(job: Any) -> None:
    said = job(1, "import warnings\nwarnings.simplefilter('ignore')\n" + NOTES).stderr
    for (name, note), following in zip(_NOTES.items(), [*_NOTES, ""][1:], strict=True):
        own = said.partition(f"{name}\n")[2].partition(f"\n{following}\n")[0]
        assert note in own, own
    assert "hpcomm:" not in own


REQUESTS = """
import sys
import numpy as np
from hpcomm import world as comm
from hpcomm.agree.mistakes import noting  # what the hook of a job does first

for begin in (
    lambda: comm.all_reduce(np.ones(3), async_op=True),
    lambda: comm.all_gather(np.ones(300_000), async_op=True),
    lambda: comm.all_reduce(np.ones(3), np.hypot, async_op=True),
    lambda: comm.broadcast_object(1, async_op=True),
    lambda: comm.barrier(async_op=True),
):
    request = begin()
    try:
        request + 1
    except TypeError:
        noting(lambda kind, error, trace: print(error.__notes__, flush=True))(*sys.exc_info())
    request.wait()
"""


@pytest.mark.once
@pytest.mark.parametrize("node", ["on", "off"])
def test_who_forgets_to_wait_is_told_whatever_carries_the_call(job: Any, node: str) -> None:
    said = job(2, REQUESTS, env={"HPCOMM_NODE": node}).stdout
    assert said.count("hpcomm: with async_op=True, and of isend and irecv, the result is what wait()") == 10


FOR_EVER = {  # what two ranks do, and what ends the job
    "a collective of one": (
        "if comm.rank == 0:\n    comm.all_reduce(x)",
        r"all_reduce.* on 'world' (needs|waits for) rank 1, which has ended",
    ),
    "both receive first": (
        "comm.recv(np.empty(3), source=1 - comm.rank)\ncomm.send(x, dest=1 - comm.rank)",
        (
            r"these calls can never end, since each waits for the next one:\n"
            r"  rank 0: recv\(.*source=1\) at both_receive_first.py:4 on 'world' waits for rank 1\n"
            r"  rank 1: recv\(.*source=0\) at both_receive_first.py:4 on 'world' waits for rank 0\n(?s:.*)"
            r"--stall \d+ \(HPCOMM_TIMEOUT\) ends the job"
        ),
    ),
    "several messages": (  # of two communicators; one has come
        (
            "import hpcomm\nother, two = 1 - comm.rank, comm.dup('two')\n"
            "got = [each.irecv(np.empty(3), other, tag=k) for k, each in enumerate((comm, two, two))]\n"
            "sent = comm.isend(x, other, tag=0)\n"
            "hpcomm.wait_all(got) if comm.rank == 0 else hpcomm.wait_any(got[1:])"
        ),
        (
            r"these calls can never end, since each waits for the next one:\n"
            r"  rank 0: wait_all\(recv\(.*, source=1, tag=1\) and 1 more\) at several_messages.py:8 on 'two'"
            r" waits for rank 1\n"
            r"  rank 1: wait_any\(recv\(.*, source=0, tag=1\) and 1 more\) at several_messages.py:8 on 'two'"
            r" waits for rank 0\n"
        ),
    ),
    "sends that buffers save": (
        (
            "import hpcomm\nhalo = comm.dup('halo', check='strict')\n"
            "hpcomm.wait_all([halo.isend(x, dest=1 - comm.rank) for _ in range(2)])"
        ),
        (
            r"  rank 0: wait_all\(send\(.*, dest=1, tag=0\) and 1 more\) at .*:6 on 'halo' waits for rank 1\n"
            r"  rank 1: wait_all\(send\(.*, dest=0, tag=0\) and 1 more\) at .*:6 on 'halo' waits for rank 0\n"
        ),
    ),
    "tags that differ": (
        "if comm.rank == 0:\n    comm.send(x, 1, tag=1)\nelse:\n    comm.recv(np.empty(3), 0, tag=2)",
        r"recv\(.*tag=2\) at .* on 'world' waits for rank 0, which has ended",
    ),
    "an exception of one": ("if comm.rank == 1:\n    1 / 0\ncomm.barrier()", "ZeroDivisionError: "),
}


def test_what_would_wait_for_ever_ends_the_job_and_says_why(job: Any, tmp_path: Path) -> None:
    def said(mistake: str) -> str:
        program = tmp_path / f"{mistake.replace(' ', '_')}.py"
        program.write_text(
            "import numpy as np\nfrom hpcomm import world as comm\nx = np.ones(3)\n" + FOR_EVER[mistake][0]
        )
        options = ("--stall", "40")  # in vain: all of them end before, on a busy machine, too
        text: str = job(2, ["python", str(program)], expect="failure", options=options).stderr
        return text

    with ThreadPoolExecutor(4) as several:
        for (_, words), text in zip(FOR_EVER.values(), several.map(said, FOR_EVER), strict=True):
            assert re.search(words, text), text
