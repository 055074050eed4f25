"""Waits that last: they are reported, and end when the user has said so."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest

LATE = """
import sys, time
import numpy as np
from mpi4py import MPI
import hpcomm
MPI.COMM_WORLD.Barrier()  # no wait is counted until all are there
comm = hpcomm.world
comm.barrier()

if comm.rank == 1:
    time.sleep({late})  # computes
"""


@pytest.mark.once
def test_a_long_wait_is_reported_once_with_what_the_late_rank_does(job: Any) -> None:
    source = LATE.format(late=3.5) + "comm.all_reduce(np.ones(4))\n"
    done = job(3, source, timeout=60, env={"HPCOMM_STALL": "1.5"})
    assert done.stderr.count("has waited") == 1, done.stderr
    call = r"all_reduce\(float64 \(4,\), op='sum'\) at device_call.py:12"
    assert re.search(rf"hpcomm: rank [02]: {call} on 'world' has waited \d s\n"
                     r"  for rank 1: not in a call of hpcomm, in time.sleep\(3.5\) at device_call.py:11\n"
                     rf"  meanwhile rank [02]: {call} on 'world'\n", done.stderr), done.stderr  # fmt: skip
    row = "    #1 barrier() on 'world'\n"
    assert f"{row}    #2 all_reduce(float64, 4 elements, op='sum') on 'world'\n" in done.stderr, done.stderr
    assert f"\n  last calls of rank 1:\n{row}" in done.stderr, done.stderr


@pytest.mark.once
def test_a_wait_for_several_requests_is_reported_with_all_for_whom_it_still_waits(job: Any) -> None:
    source = LATE.replace("comm.barrier()", "two = comm.dup('two')").format(late=3.5) + (
        "requests = [each.irecv(np.empty(1), k) for k in (2, 1) for each in (comm, two)]\n"
        "[each.send(np.ones(1), k) for k in range(3) for each in (comm, two)]\n"
        "hpcomm.wait_all(requests)\n"
        "[each.recv(np.empty(1), 0) for each in (comm, two)]\n"
    )
    done = job(3, source, timeout=60, env={"HPCOMM_STALL": "1.5"})
    assert done.stderr.count("has waited") == 1, done.stderr
    late = r"not in a call of hpcomm, in time.sleep\(3.5\) at device_call.py:11\n"
    call = r"wait_all\(recv\(.*source=1.*\) and 1 more\) at device_call.py:14 on 'world'"
    rows = rf"  for rank 1: {late}  for rank 1 on 'two': {late}"
    assert re.search(rf"hpcomm: rank [02]: {call} has waited \d s\n{rows}", done.stderr), done.stderr


@pytest.mark.once
def test_a_report_names_ranks_of_a_part_by_their_numbers_in_the_job(job: Any) -> None:
    part = "half = comm.split(comm.rank // 2, name='half')\nif comm.rank == 3:\n    time.sleep(3.5)\n"
    source = LATE.format(late=0) + f"{part}half.barrier()\n"
    said = job(4, source, timeout=60, env={"HPCOMM_STALL": "1.5"}).stderr
    assert re.search(r"rank 2: barrier\(\) .* on 'half' has waited \d s\n  for rank 3: not in", said), said


@pytest.mark.once
@pytest.mark.parametrize("wait", ["comm.rank == 2 or comm.group([0, 1])", "step.start(); step.wait()"])
def test_a_wait_for_a_group_or_a_plan_is_reported_with_the_late_rank(job: Any, wait: str) -> None:
    """Who is no member of the group has ended meanwhile."""
    source = (
        LATE.replace("comm.barrier()", "step = comm.plan('all_reduce', np.ones(3))").format(late=3.5) + wait
    )
    said = job(3, source, timeout=60, env={"HPCOMM_STALL": "1.5"}).stderr
    assert re.search(
        r"rank [02]: .*(group|wait)\(.* on 'world' has waited \d s\n  for rank 1: not in", said
    ), said


@pytest.mark.parametrize("node", ["on", pytest.param("off", marks=pytest.mark.once)])
def test_a_wait_in_a_halo_that_has_gone_before_is_reported(job: Any, node: str) -> None:
    field = "field = hpcomm.Field(comm, (8,), halo=1)\nfield.update_halo()"
    source = LATE.replace("comm.barrier()", field).format(late=3.5) + "field.update_halo()\n"
    said = job(2, source, timeout=60, env={"HPCOMM_STALL": "1.5", "HPCOMM_NODE": node}).stderr
    peer = "peer=1" if node == "on" else ""
    assert re.search(rf"rank 0: halo exchange\({peer}\) at .*:13 on 'world' has waited \d s\n", said), said
    assert ("  for rank 1: not in a call of hpcomm, in time.sleep" in said) == (node == "on"), said


@pytest.mark.once
def test_a_circle_through_a_halo_is_named(job: Any) -> None:
    field = "field = hpcomm.Field(comm, (8,), halo=1)\nfield.update_halo()"
    rest = "if comm.rank:\n    comm.recv(np.empty(1), 0)\nfield.update_halo()\n"
    source = LATE.replace("comm.barrier()", field).format(late=0) + rest
    said = job(2, source, timeout=60, expect=1, options=("--stall", "8")).stderr
    assert "these calls can never end" in said, said
    assert re.search(r"  rank 0: halo exchange\(peer=1\) at .*:15 on 'world' waits for rank 1\n", said), said


@pytest.mark.once
def test_a_wait_for_the_lock_of_a_window_says_who_has_it(job: Any) -> None:
    source = LATE.replace("comm.barrier()", "window = comm.window(4)").format(late=0.5) + (
        "with window.lock(0, shared=False):\n    time.sleep(4 * (comm.rank == 0))\n"
    )
    said = job(2, source, timeout=60, env={"HPCOMM_STALL": "1.5"}).stderr
    assert re.search(r"rank 1: lock\(0, held by rank 0\) at .*:12 on 'world' has waited \d s\n", said), said


WAITS = {
    "a collective": "comm.all_reduce(np.ones(2_000_000))",
    "a halo": "hpcomm.Field(comm, (8,), halo=1, periodic=True).update_halo()",
    "another tag": "comm.send(np.ones(1), 0, 3); comm.recv(np.empty(1), 0, 7)",
}


@pytest.mark.parametrize(
    "wait", [pytest.param("a halo", marks=pytest.mark.once), "a collective", "another tag"]
)
def test_a_wait_ends_when_the_user_has_said_so_and_says_for_whom(job: Any, wait: str) -> None:
    source = LATE.format(late=40) + WAITS[wait] + "\n"
    done = job(2, source, timeout=20, expect=1, options=("--stall", "2"))
    assert "--stall 2 (HPCOMM_TIMEOUT) ends the job" in done.stderr
    assert "at device_call.py:12 on 'world' has waited" in done.stderr
    there = "  a message of tag 3 from rank 0 is there, which it does not take\n"
    assert (there in done.stderr) == (wait == "another tag")


def test_a_circle_of_waits_ends_the_job_at_once_if_waits_have_a_limit_also_in_pytest(
    job: Any, tmp_path: Path
) -> None:
    (tmp_path / "test_it.py").write_text(
        "import numpy as np\n"
        "from hpcomm import world as comm\n"
        "def test_both_receive():\n"
        "    comm.recv(np.empty(3), source=1 - comm.rank)\n"
    )
    command = ["python", "-m", "pytest", "-p", "no:cacheprovider", str(tmp_path / "test_it.py")]
    done = job(2, command, timeout=100, expect=None, options=("--stall", "600"))
    assert done.returncode not in (0, 124), done.stdout
    assert "these calls can never end" in done.stderr, done.stderr
    call = "recv(float64 (3,), source=1) at test_it.py:4 on 'world'"
    assert f"\n  rank 0: {call} waits for rank 1\n" in done.stderr
    assert "--stall 600 (HPCOMM_TIMEOUT) ends the job" in done.stderr


@pytest.mark.once
def test_a_job_is_not_ended_while_a_rank_stands_in_a_debugger(job: Any, tmp_path: Path) -> None:
    """The one that waits lets the other one go on when it would have ended the job twice."""
    source = """
import os, pdb, threading, time
import numpy as np
from hpcomm import world as comm
from hpcomm.watch import watchdog

keys = os.open(os.environ["KEYS"], os.O_RDWR)
comm.barrier()
excused = set()
def type_it():
    while len(excused) < 2:
        excused.add(watchdog.current._asked_s)
        excused.discard(0.0)
        time.sleep(0.05)
    os.write(keys, b"c\\n")
if comm.rank == 0:
    threading.Thread(target=type_it).start()
else:
    os.dup2(keys, 0)
    pdb.set_trace()
comm.all_reduce(np.ones(3))
"""
    os.mkfifo(tmp_path / "keys")
    job(2, source, timeout=60, env={"KEYS": str(tmp_path / "keys")}, options=("--stall", "1"))


@pytest.mark.once
def test_a_rank_that_its_threads_keep_from_ending_says_which(job: Any) -> None:
    source = """
import threading, time
from hpcomm import world as comm
comm.barrier()
if comm.rank == 1:
    threading.Thread(target=time.sleep, args=(4,), name="server").start()
"""
    done = job(2, source, timeout=40, env={"HPCOMM_STALL": "1"})
    said = r"rank 1: has come to the end of its program \d s ago, and waits for its threads:\n  server: "
    assert re.search(said, done.stderr), done.stderr
    assert "MainThread" not in done.stderr


@pytest.mark.once
def test_a_deadline_that_is_no_number_is_refused(job: Any) -> None:
    """Each time: what could not be started is not used half started."""
    source = """
import hpcomm
try:
    hpcomm.world.rank
except hpcomm.ConfigError as error:
    print(error.what)
hpcomm.self_.rank
"""
    done = job(2, source, timeout=40, expect=1, env={"HPCOMM_TIMEOUT": "soon"})
    assert done.stdout.count("HPCOMM_TIMEOUT is 'soon'") == 2
    assert "ConfigError: HPCOMM_TIMEOUT is 'soon'" in done.stderr


def test_a_communicator_with_a_timeout_gives_up_and_can_go_on(job: Any) -> None:
    """Receives are taken back, and a collective stays under way until the late rank comes.

    The core is four calls ahead at most: a further one is withdrawn, so the late rank fails there.
    """
    source = """
import time
import numpy as np
import hpcomm

world = hpcomm.world
comm = world.dup()
comm.timeout = 0.2
assert world.timeout is None
assert comm.split(0).timeout == comm.cart((-1,)).timeout == 0.2
x = np.ones(4)
other = 1 - comm.rank
assert comm.all_reduce(x)[0] == comm.allreduce(x, "sum")[0] == 2
assert comm.sendrecv(x, other, other)[0] == 1
assert comm.sendrecv_object("a", other, other) == "a"
calls = [
    lambda: comm.recv(np.empty(3), 1),
    lambda: comm.recv(dtype="f8", source=1),
    lambda: comm.recv_object(1),
    lambda: comm.recv_ragged(1),
    lambda: comm.probe(1),
    lambda: comm.probe_object(1),
    lambda: comm.irecv(np.empty(3), 1, 9).wait(),
    lambda: comm.plan("recv", out=np.empty(3), source=1, tag=8)(),
    lambda: comm.all_reduce(x),
    lambda: comm.broadcast_object(None, root=1),
    *[comm.barrier] * 3,
]
if comm.rank == 0:
    for call in calls:
        try:
            call()
        except hpcomm.WaitTimeoutError as error:
            assert "0.2 s" in str(error), error
        else:
            raise AssertionError("it did not wait")
    world.barrier()
    time.sleep(0.1)
    comm.timeout = 20
    got = comm.recv(np.empty(3), 1), comm.recv_object(1), comm.recv_ragged(1)
    assert [got[0].tolist(), got[1], got[2].tolist()] == [[7, 7, 7], "seven", [1, 1]]
else:
    world.barrier()
    comm.timeout = 20
    comm.send(np.full(3, 7.0), 0)
    comm.send_object("seven", 0)
    comm.send_ragged(np.ones(2), 0)
    assert comm.all_reduce(x)[0] == 2
    given_up = []
    for call in (lambda: comm.broadcast_object("b", root=1), *[comm.barrier] * 3):
        try:
            call()
            given_up.append(False)
        except hpcomm.PeerFailedError as error:
            given_up.append("rank 0" in str(error))
    # the last one is the fifth call that rank 0 has given up
    assert given_up == [*[False] * 3, comm.context.node is not None], given_up
assert comm.all_reduce(x)[0] == 2
comm.timeout = None
assert comm.all_reduce(x)[0] == 2
try:
    comm.timeout = -1
except hpcomm.UsageError as error:
    print(error.what)
"""
    assert job(2, source, timeout=40).stdout.count("timeout must be a number of seconds above 0, not -1") == 2
