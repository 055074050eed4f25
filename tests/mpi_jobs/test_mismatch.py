"""Ranks that make different calls, as jobs: what is said, by whom, and that the job ends."""

from __future__ import annotations

import re
from typing import Any

import pytest

PROLOGUE = """
import sys, time
import numpy as np
import hpcomm
comm = hpcomm.world
X = np.ones(6)
for _ in range({calls}):
    comm.barrier()
"""
DISAGREEMENTS = {
    "operator": ("comm.all_reduce(X, 'sum')", "comm.all_reduce(X, 'max')", "sum", "max"),
    "count": ("comm.all_gather(X)", "comm.all_gather(X[1:])", "(6,)", "(5,)"),
    "root": ("comm.broadcast(X, root=0)", "comm.broadcast(X, root=1)", "root=0", "root=1"),
    "object": ("comm.all_gather_object(X)", "comm.all_gather(X)", "all_gather_object", "all_gather("),
    "premul": (
        "comm.all_reduce(X, hpcomm.premul_sum(2))",
        "comm.all_reduce(X, np.maximum)",
        "op=premul_sum(2)",
        "op=maximum",
    ),
    "background": (
        "comm.all_reduce(X, async_op=True).wait()",
        "comm.all_gather(X, async_op=True).wait()",
        "all_reduce",
        "all_gather",
    ),
}


@pytest.mark.once
@pytest.mark.parametrize(
    ("about", "ranks", "odd"),
    [
        ("operator", 3, 0),
        ("count", 2, 1),
        ("root", 3, 2),
        ("object", 2, 1),
        ("premul", 2, 0),
        ("background", 2, 0),
    ],
)
def test_light_says_who_called_what_and_where_and_ends_the_job(
    job: Any, about: str, ranks: int, odd: int
) -> None:
    one, other, mine, theirs = DISAGREEMENTS[about]
    source = PROLOGUE.format(calls=5) + f"if comm.rank == {odd}:\n    {other}\nelse:\n    {one}\n"
    done = job(ranks, source, timeout=60, expect=None)
    assert done.returncode not in (0, 124), done.stderr
    assert "ranks disagree about call #6 on 'world'" in done.stderr
    rows = re.findall(r"^\s*rank (\d): (.*)$", done.stderr, re.MULTILINE)
    assert {int(rank) for rank, _ in rows} >= {odd}
    assert len({rank for rank, _ in rows}) >= 2
    # the root of a broadcast may have left it, and whom it sent to; they have no line of theirs any more
    assert mine in done.stderr or about == "root"
    assert theirs in done.stderr
    for call in (one, other) if about != "root" else ():
        assert f"device_call.py:{source.splitlines().index('    ' + call) + 1}" in done.stderr, call


@pytest.mark.once
def test_a_rank_that_cannot_answer_is_told_by_the_call_that_it_has_made(job: Any) -> None:
    source = (
        PROLOGUE.format(calls=0)
        + """
import os, signal
pid = comm.broadcast_object(os.getpid(), root=1)
if comm.rank == 1:
    comm.all_reduce(X, "max")
before = comm.context.node.calls()[0][0]
while comm.context.node.calls()[1][0] == before:
    time.sleep(0.01)
os.kill(pid, signal.SIGSTOP)
while not comm.context.near.regions[1].stopped:  # one thread takes the signal, and stops the others
    time.sleep(0.01)
try:
    comm.all_reduce(X)
finally:
    os.kill(pid, signal.SIGCONT)
"""
    )
    done = job(2, source, timeout=60, expect=None)
    assert done.returncode not in (0, 124), done.stderr
    assert "rank 0: all_reduce(float64 (6,), op='sum') at " in done.stderr
    assert "rank 1: all_reduce(float64, 6 elements, op='max'), and gave no answer when asked" in done.stderr


@pytest.mark.once
@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("comm.dup()", "comm.barrier()"),
        ("comm.split(0)", "comm.all_reduce(X)"),
        ("comm.mesh(a=1, b=-1)", "comm.mesh(a=-1)"),
        ("comm.cart((1, -1)).sub([0])", "comm.cart((1, -1)).barrier()"),
    ],
)
def test_making_a_communicator_is_a_call_that_light_compares(job: Any, one: str, other: str) -> None:
    source = PROLOGUE.format(calls=0) + f"if comm.rank:\n    {one}\nelse:\n    {other}\n"
    done = job(2, source, timeout=60, expect=None)
    assert done.returncode not in (0, 124), done.stderr
    assert "ranks disagree about call #" in done.stderr
    rows = dict(re.findall(r"^ *rank (\d): (\w+)\(", done.stderr, re.MULTILINE))
    names = [re.findall(r"\.(\w+)\(", call)[-1] for call in (other, one)]
    assert rows == {"0": names[0], "1": names[1]}


def test_ranks_with_different_levels_are_told_before_one_waits_for_the_others(job: Any) -> None:
    source = r"""
import os, sys
from mpi4py import MPI
os.environ["HPCOMM_CHECK"] = "full" if MPI.COMM_WORLD.rank == 1 else "light"
import hpcomm
try:
    hpcomm.world.rank
except hpcomm.MismatchError as error:
    sys.stdout.write(str(error).splitlines()[0] + "\n")
"""
    done = job(3, source, timeout=60)
    said = {f"check='light' on rank {rank}, and full elsewhere" for rank in (0, 2)}
    assert set(done.stdout.splitlines()) == said | {"check='full' on rank 1, and another one elsewhere"}


@pytest.mark.once
def test_a_rank_that_an_exception_ends_is_said_to_be_where_that_was_raised(job: Any) -> None:
    source = (
        PROLOGUE.format(calls=0)
        + """
import threading
from hpcomm.agree import runtime
from hpcomm.agree.present_calls import describe_call

runtime._leave = time.sleep  # for a second
if comm.rank == 1:
    timer = threading.Timer(0.5, lambda: print(describe_call(), flush=True))
    timer.name = "hpcomm test"  # as the watchdog, which speaks of the main thread
    timer.start()
comm.all_reduce(X, "nonsense")
"""
    )
    line = source.splitlines().index('comm.all_reduce(X, "nonsense")') + 1
    done = job(2, source, timeout=60, expect=None)
    assert (
        done.stdout
        == f"all_reduce(float64 (6,), op='nonsense') at device_call.py:{line}, ended by UsageError\n"
    )


@pytest.mark.once
@pytest.mark.parametrize("begin", ["step()", "step.start(); step.wait()"])
def test_light_finds_plans_that_differ_in_whichever_order_they_were_made(job: Any, begin: str) -> None:
    """None of three ranks is there yet when the one before it looks: making a plan waits for nobody."""
    source = PROLOGUE.format(calls=0) + (
        "comm.mpi.Barrier()\n"
        "time.sleep(0.3 * comm.rank)\n"
        "step = comm.plan('all_reduce', X, op='max' if comm.rank == 1 else 'sum')\n" + begin + "\n"
    )
    done = job(3, source, timeout=60, expect=None)
    assert done.returncode not in (0, 124), done.stderr
    assert "ranks disagree about call #1 on 'world'" in done.stderr
    assert "op='max'" in done.stderr


ONE_OF_THREE = {
    "dtype, in the background": (
        "comm.{verb}(np.ones((3, 4), 'f4' if comm.rank == 1 else 'f8'), root=0, async_op=True).wait()"
    ),
    "root, within the node": "comm.{verb}(np.ones((3, 4)), root=1 if comm.rank == 1 else 0)",
}


@pytest.mark.once
@pytest.mark.parametrize("verb", ["broadcast", "gather", "scatter", "reduce"])
@pytest.mark.parametrize("about", ONE_OF_THREE)
def test_light_finds_one_that_differs_whoever_waits_for_nobody(job: Any, about: str, verb: str) -> None:
    """Of three ranks; the last to come always sees one on either side, and one may have gone on.

    They sleep longer than it takes the watchdog to end the job, on a busy machine too.
    """
    order = "012" if ("within" in about) == (verb in ("gather", "reduce")) else "210"
    source = PROLOGUE.format(calls=1) + (
        "comm.mpi.Barrier()\n"
        f"time.sleep(0.25 * '{order}'.index(str(comm.rank)))\n" + ONE_OF_THREE[about].format(verb=verb) + "\n"
        "time.sleep(20)\n"
        "print('unnoticed')\n"
        "comm.mpi.Barrier()\n"
    )
    done = job(3, source, timeout=60, expect=None)
    assert done.returncode not in (0, 124), done.stdout
    assert "ranks disagree about call #2 on 'world'" in done.stderr


@pytest.mark.once
def test_light_finds_a_rank_that_left_out_one_of_many_calls(job: Any) -> None:
    source = (
        PROLOGUE.format(calls=0)
        + """
for i in range(300):
    if (comm.rank, i) != (1, 200):
        comm.all_reduce(np.ones(i % 7 + 1))
"""
    )
    done = job(2, source, timeout=60, expect=None)
    assert done.returncode not in (0, 124)
    assert "ranks disagree about call #201 on 'world'" in done.stderr
    calls = [
        f"    #{i + 1} all_reduce(float64, {i % 7 + 1} elements, op='sum') on 'world'\n" for i in range(201)
    ]
    assert f"  last calls of rank 0:\n{''.join(calls[-8:])}" in done.stderr, done.stderr


def test_full_lets_every_rank_catch_and_go_on(job: Any) -> None:
    source = (
        PROLOGUE.format(calls=3)
        + """
try:
    comm.all_reduce(X, "sum" if comm.rank else "max")
except hpcomm.MismatchError as error:
    said = str(error)
assert comm.all_reduce(np.ones(1)).tolist() == [comm.size]
for rank in range(comm.size):
    assert f"rank {rank}: all_reduce" in said, said
print("went on")
"""
    )
    done = job(3, source, env={"HPCOMM_CHECK": "full"})
    assert done.stdout.count("went on") == 3
    assert done.stderr == ""


def test_full_that_nobody_catches_ends_the_job_with_every_rank_named(job: Any) -> None:
    source = PROLOGUE.format(calls=0) + "comm.all_reduce(X[comm.rank :])\n"
    done = job(3, source, timeout=60, expect=1, env={"HPCOMM_CHECK": "full"})
    assert "MismatchError: ranks disagree about call #1 on 'world'" in done.stderr
    for shape in ("(6,)", "(5,)", "(4,)"):
        assert shape in done.stderr


def test_a_rank_that_has_refused_a_call_and_goes_on_says_so_in_the_next_one(job: Any) -> None:
    source = (
        PROLOGUE.format(calls=4)
        + """
from mpi4py import MPI
try:
    comm.scatter(np.arange(3.0) if comm.rank == 0 else None, root=0)
except hpcomm.UsageError:
    pass
MPI.COMM_WORLD.Barrier()
try:
    comm.all_reduce(np.float32(1.0))
except hpcomm.HpcommError as error:
    print(f"=== {comm.rank}\\n{error}", flush=True)
MPI.COMM_WORLD.Barrier()
"""
    )
    said = job(3, source).stdout
    for rank in (1, 2):
        told = re.search(rf"=== {rank}\n([^=]|=(?!==))*", said)
        assert told is not None, said
        # Where the core finds it at once, this rank's own refused call is not told.
        own = r"(scatter\(root=0\) at .* refused: UsageError: .*, and has gone on to )?all_reduce\("
        assert re.search(f"rank {rank}: {own}", told[0]), told[0]
        assert re.search(r"rank 0: scatter\(.*, and ", told[0]), told[0]


def test_who_is_inside_mpi_ends_with_the_job_in_the_words_of_the_rank_that_refused(job: Any) -> None:
    code = """
    import time, hpcomm
    comm = hpcomm.world
    if comm.rank == 0:
        comm.split(0)
    time.sleep(0.3)
    try:
        comm.split(-3)
    except hpcomm.UsageError:
        time.sleep(30)
    """
    done = job(2, code, timeout=20, expect=None)
    assert done.returncode not in (0, 124)
    assert "rank 0: split(color=0, key=0) at device_call.py:5" in done.stderr, done.stderr
    assert "rank 1: split(color=-3, key=0) at device_call.py:8 refused: UsageError: color -3" in done.stderr


@pytest.mark.parametrize(
    ("send", "receive"),
    [
        ("comm.send_object({}, 1, 3)", "comm.recv(X, 0, 3)"),
        pytest.param("comm.send_ragged(X, 1, 3)", "comm.irecv(X, 0, 3).wait()", marks=pytest.mark.once),
        ("comm.send(X, 1, 3)", "comm.recv_object(0, 3)"),
        pytest.param("comm.send_object({}, 1, 3)", "comm.probe(0, 3)", marks=pytest.mark.once),
    ],
)
def test_a_receive_of_another_sort_than_what_was_sent_is_told_at_once(
    job: Any, send: str, receive: str
) -> None:
    source = PROLOGUE.format(calls=1) + f"if comm.rank == 0:\n    {send}\n    time.sleep(60)\n{receive}\n"
    done = job(2, source, timeout=30, expect=None)
    assert done.returncode not in (0, 124)
    assert re.search(
        r"MismatchError: a (receive|probe) waits for an? .*, and an? .* is there", done.stderr
    ), done.stderr
    lines = source.splitlines()
    for rank, line in enumerate((f"    {send}", receive)):
        rows = re.findall(
            rf"^  rank {rank}: .* at device_call.py:{lines.index(line) + 1}$", done.stderr, re.M
        )
        assert rows, done.stderr


@pytest.mark.once
def test_messages_of_both_sorts_under_way_raise_no_alarm(job: Any) -> None:
    """Long ones move on while their sender is in MPI only, so that what was sent later is there first."""
    code = """
    import time
    import numpy as np
    from hpcomm import world as comm

    x = np.ones(1 << 20)
    if comm.rank == 0:
        array, obj = comm.isend(x, 1, 1), comm.isend_object({"x": x}, 1, 2)
        comm.send_object({}, 1, 1), comm.send(np.ones(3), 1, 2)
        time.sleep(2)  # an alarm would come after 1 s
        array.wait(), obj.wait()
        time.sleep(2)
        comm.send_object({}, 1, 3)
    else:
        comm.recv(x, 0, 1), comm.recv_object(0, 1)
        comm.recv_object(0, 2), comm.recv(np.ones(3), 0, 2)
        comm.recv_object(0, 3)
    print("right")
    """
    assert job(2, code, timeout=40).stdout.count("right") == 2


def test_off_says_nothing_where_mpi_says_nothing(job: Any) -> None:
    """That is what off means; it also proves that the checks above are not MPI's own."""
    source = PROLOGUE.format(calls=1) + "comm.all_reduce(X, 'sum' if comm.rank else 'prod')\n"
    done = job(2, source, timeout=60, env={"HPCOMM_CHECK": "off"})
    assert "disagree" not in done.stderr


def test_a_message_of_another_length_is_told_by_the_receiver(job: Any) -> None:
    source = PROLOGUE.format(calls=0) + (
        "comm.send(np.ones(3), 1) if comm.rank == 0 else comm.recv(np.zeros(5), 0)\ncomm.barrier()\n"
    )
    done = job(2, source, timeout=60, expect=1)
    assert (
        "MismatchError: the message from rank 0 (tag 0) has 24 bytes, the array that receives it 40"
        in done.stderr
    )


@pytest.mark.once
def test_ranks_whose_collectives_agree_are_never_accused(job: Any) -> None:
    """Thousands of small calls, unevenly slow, with messages of all sorts between."""
    source = (
        PROLOGUE.format(calls=0)
        + """
rng = np.random.default_rng(comm.rank)
n = 0
for _ in range(10):
    for _ in range(50):
        n += 1
        if rng.random() < 0.02:
            time.sleep(0.001)
        comm.broadcast(X, root=n % comm.size, out=X)
        comm.reduce(X, root=(n + 1) % comm.size)
        if n % 10 == 0:
            requests = [comm.all_reduce(X, async_op=True) for _ in range(5)]
            comm.send(bytearray(comm.rank + 1), comm.rank)
            comm.recv(dtype="uint8", source=comm.rank)
            hpcomm.wait_all(requests, timeout=60)
        if n % 25 == 0:
            comm.all_gather_object(n)
            comm.all_gather_ragged(X[: comm.rank])
sys.stdout.write(f"agreed {n}\\n")
"""
    )
    done = job(4, source, timeout=40)
    assert done.stdout == "agreed 500\n" * 4
    assert done.stderr == ""


KINDS = r"""
import numpy as np
import hpcomm

world = hpcomm.world
X, Y = np.ones(3), np.empty(3, np.int64)
LONG, LONG_Y = np.ones(2000), np.empty(2000, np.int64)
CASES = {
    "fast path": (lambda c: c.send(X, 1), lambda c: c.recv(Y, 0)),
    "handed over": (lambda c: c.send(LONG, 1), lambda c: c.recv(LONG_Y, 0)),
    "strided": (lambda c: c.send(np.ones(6)[::2], 1), lambda c: c.recv(np.empty(6, int)[::2], 0)),
    "background": (lambda c: c.isend(X, 1, 5).wait(), lambda c: c.irecv(Y, 0, 5).wait()),
    "from anybody": (lambda c: c.send(X, 1), lambda c: c.recv(Y)),
    "of any length": (lambda c: c.send(X, 1), lambda c: c.recv(dtype="int64")),
    "plan": (lambda c: run(c.plan("send", X, dest=1)), lambda c: run(c.plan("recv", Y, source=0))),
    "other tag": (
        lambda c: (c.send(Y, 1, 1), c.send(X, 1, 2)),
        lambda c: (c.recv(Y, 0, 1), c.recv(Y, 0, 2)),
    ),
    "fits: both kinds": (
        lambda c: (c.send(Y, 1), c.send(X, 1)), lambda c: (c.recv(Y, 0), c.recv(X.copy(), 0)),
    ),
    "fits: bytes": (lambda c: c.send(X.view("u1"), 1), lambda c: c.recv(Y, 0)),
    "fits: into bytes": (lambda c: c.send(X, 1), lambda c: c.recv(np.empty(24, "u1"), 0)),
    "fits: sent unseen": (lambda c: c.mpi.Send(X, 1), lambda c: c.recv(X.copy(), 0)),
}


def run(plan):
    plan.start()
    plan.wait()


for name, sides in CASES.items():
    with world.dup() as comm:
        try:
            sides[comm.rank](comm)
            said = "fits"
        except hpcomm.MismatchError as error:
            said = str(error).replace("\n", "|")
        if comm.rank == 1:
            print(f"{name} = {said}")
"""


def test_a_message_of_another_kind_of_elements_is_refused(job: Any) -> None:
    done = job(2, KINDS, timeout=60)
    said = dict(line.split(" = ", 1) for line in done.stdout.splitlines())
    assert len(said) == 12
    for name, text in said.items():
        if name.startswith("fits"):
            assert text == "fits", name
            continue
        assert text.startswith("a message of float64 came to an array of int64.|  rank 1: recv("), (
            name,
            text,
        )
        assert re.search(
            r"rank 0: has sent it float64 only, first by i?send\(float64 .*at device_call\.py:\d+", text
        )


@pytest.mark.parametrize("check", [pytest.param("light", marks=pytest.mark.once), "off"])
def test_a_number_is_reduced_alike_whether_numpy_was_loaded_or_not(job: Any, check: str) -> None:
    """One rank has imported numpy, or made calls of its own; to others the number is the first array."""
    source = """
        import hpcomm
        from hpcomm import world as comm
        {loads}
        print([comm.all_reduce(i) for i in range(3)], comm.dup().all_reduce(2.5), flush=True)
    """
    for loads in ("comm.rank or __import__('numpy')", "comm.rank or hpcomm.self_.all_reduce(1)"):
        done = job(2, source.format(loads=loads), env={"HPCOMM_CHECK": check}, timeout=30)
        assert done.stdout.splitlines() == ["[0, 2, 4] 5.0"] * 2


@pytest.mark.once
def test_strict_says_at_the_end_what_nobody_has_waited_for_or_received(job: Any) -> None:
    source = """
import json
import numpy as np
import hpcomm

comm, x = hpcomm.world, np.ones(3)
if comm.rank == 0:
    json.kept = comm.irecv(np.empty(3), source=1, tag=4)  # where it outlives the program
    late = comm.irecv(np.empty(3), source=1, tag=6)
    json.plan = comm.plan("recv", out=x, source=1, tag=8)
    json.plan.start()
else:
    comm.send(x, dest=1, tag=7)  # to itself: copied
"""
    done = job(2, source, env={"HPCOMM_CHECK": "strict"})
    at = "started at device_call.py:"
    assert f"recv(float64 (3,), source=1, tag=4) on 'world', {at}8, was never waited for" in done.stderr
    assert f"the plan of recv(float64 (3,), source=1, tag=8) on 'world', {at}11, was never" in done.stderr
    assert f"recv(float64 (3,), source=1, tag=6) on 'world' (rank 0 of 2), {at}9, was dropped" in done.stderr
    assert "a message of rank 1 with tag 7 on 'world' was never received" in done.stderr
    assert re.findall(r"rank (\d): at the end of this rank", done.stderr) in (["0", "1"], ["1", "0"])


def test_strict_names_who_sends_a_message_that_nobody_receives(job: Any) -> None:
    source = """
import numpy as np
import hpcomm

if hpcomm.world.rank == 0:
    hpcomm.world.send(np.ones(3), dest=1)
hpcomm.world.probe(source=0)  # so that it is there
"""
    done = job(2, source, expect=None, env={"HPCOMM_CHECK": "strict"})
    assert done.returncode not in (0, 124)
    call = "send(float64 (3,), dest=1, tag=0) at device_call.py:6"
    assert f"rank 0: {call} on 'world' waits for rank 1, which has ended" in done.stderr
    assert "rank 1: at the end of this rank\n  a message of rank 0 with tag 0 on 'world'" in done.stderr
