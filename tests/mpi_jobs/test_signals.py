"""Handlers of signals that a program has set run while it waits, and may raise there."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from processes import said

# Rank 1 does its part only when the handler of rank 0 has run: else both wait until their time is up.
BEGIN = """
import os, signal, sys, threading, time
from pathlib import Path
import numpy as np
import hpcomm
from hpcomm import wait_all, wait_any, world as comm

folder, other, x, long, done = Path(sys.argv[1]), 1 - comm.rank, np.ones(4), np.ones(1_000_000), []

class Raised(Exception):
    pass

def handle(number, frame):
    (folder / f"ran-{len(done)}").touch()
    if raises:
        raise Raised

def is_asking():
    frame = sys._current_frames()[threading.main_thread().ident]
    return frame.f_code.co_filename.endswith(("core/patience.py", "single_request.py"))  # or in the core

def meet(name, waits, comes):
    if comm.rank == 0:
        def send():
            while not is_asking():
                time.sleep(0.005)
            os.kill(os.getpid(), signal.SIGUSR1)
        thread = threading.Thread(target=send)
        thread.start()
        try:
            return waits()
        finally:
            thread.join()
            done.append(name)
    while not (folder / f"ran-{len(done)}").exists():
        time.sleep(0.01)
    done.append(name)
    return comes()

signal.signal(signal.SIGUSR1, handle)

from hpcomm.compat import MPI
its, column = MPI.COMM_WORLD, [np.ones((4, 4)), 1, MPI.DOUBLE.Create_vector(4, 1, 4).Commit()]
"""


@pytest.mark.parametrize("node", ["on", "off"])
def test_a_handler_runs_in_every_wait_for_a_message(job: Any, tmp_path: Path, node: str) -> None:
    source = """
    raises = False
    CALLS = {
        "recv": (lambda: comm.recv(out=x, source=1), lambda: comm.send(x, 0)),
        "recv again": (lambda: comm.recv(out=x, source=1), lambda: comm.send(x, 0)),
        "recv from any": (lambda: comm.recv(out=x), lambda: comm.send(x, 0)),
        "recv of no length": (lambda: comm.recv(dtype="float64"), lambda: comm.send(x, 0)),
        "recv_object": (lambda: comm.recv_object(source=1), lambda: comm.send_object("a", 0)),
        "recv_ragged": (lambda: comm.recv_ragged(source=1), lambda: comm.send_ragged(x, 0)),
        "send, long": (lambda: comm.send(long, 1), lambda: comm.recv(out=long, source=0)),
        "send, sync": (lambda: comm.send(x, 1, sync=True), lambda: comm.recv(out=x, source=0)),
        "send_object, long": (
            lambda: comm.send_object("a" * 4_000_000, 1), lambda: comm.recv_object(source=0),
        ),
        "sendrecv": (lambda: comm.sendrecv(x, 1, 1), lambda: comm.sendrecv(x, 0, 0)),
        "sendrecv again": (lambda: comm.sendrecv(x, 1, 1), lambda: comm.sendrecv(x, 0, 0)),
        "sendrecv_object": (lambda: comm.sendrecv_object(1, 1, 1), lambda: comm.sendrecv_object(1, 0, 0)),
        "wait of irecv": (lambda: comm.irecv(x, 1).wait(), lambda: comm.send(x, 0)),
        "wait of isend": (lambda: comm.isend(long, 1).wait(), lambda: comm.recv(long, 0)),
        "wait of irecv_object": (lambda: comm.irecv_object(1).wait(), lambda: comm.send_object(1, 0)),
        "wait of barrier": (
            lambda: comm.barrier(async_op=True).wait(), lambda: comm.barrier(async_op=True).wait(),
        ),
        "wait_all": (
            lambda: wait_all([comm.irecv(x, 1), comm.irecv_object(1)]),
            lambda: (comm.send(x, 0), comm.send_object(1, 0)),
        ),
        "wait_any": (lambda: wait_any([comm.irecv(x, 1)]), lambda: comm.send(x, 0)),
        "probe": (lambda: comm.probe(1) and comm.recv(x, 1), lambda: comm.send(x, 0)),
        "probe_object": (
            lambda: comm.probe_object(1) and comm.recv_object(1), lambda: comm.send_object(1, 0),
        ),
        "plan of all_reduce": (plan := comm.plan("all_reduce", x), plan),
        "Recv of a column": (lambda: its.Recv(column, 1), lambda: its.Send(x, 0)),
        "Ssend": (lambda: its.Ssend(x, 1), lambda: its.Recv(x, 0)),
        "Sendrecv of a column": (
            lambda: its.Sendrecv(column, 1, 0, column, 1, 0), lambda: its.Sendrecv(x, 0, 0, x.copy(), 0, 0),
        ),
        "mprobe": (lambda: its.mprobe(1).recv(), lambda: its.send(1, 0)),
        "Wait for a column": (lambda: its.Irecv(column, 1).Wait(), lambda: its.Send(x, 0)),
        "Waitany": (lambda: MPI.Request.Waitany([its.Irecv(column, 1)]), lambda: its.Send(x, 0)),
    }
    for name, (waits, comes) in CALLS.items():
        print(comm.rank, name, flush=True)
        meet(name, waits, comes)
    comm.barrier()
    """
    (tmp_path / "waits.py").write_text(BEGIN + dedent(source))
    options = ("-x", f"HPCOMM_NODE={node}")
    job(2, ["python", str(tmp_path / "waits.py"), str(tmp_path)], options=options)


@pytest.mark.parametrize("node", ["on", "off"])
def test_a_handler_that_raises_leaves_the_rank_in_step(job: Any, tmp_path: Path, node: str) -> None:
    """What it waited for is for the next one that asks; a message that it sent is delivered."""
    source = """
    raises = True

    def raised(name, waits, comes):
        try:
            meet(name, waits, comes)
            assert comm.rank == 1, name
        except Raised as error:
            return getattr(error, "__notes__", [])

    def same(name, call):
        "Rank 0 is interrupted in a call, then makes it anew."
        raised(name, call, lambda: None)

    raised("recv", lambda: comm.recv(x, 1), lambda: comm.send(x + 1, 0))
    assert comm.rank or comm.recv(np.empty(4), 1)[0] == 2
    raised("recv_object", lambda: comm.recv_object(1), lambda: comm.send_object("a", 0))
    assert comm.rank or comm.recv_object(1) == "a"
    raised("probe", lambda: comm.probe(1), lambda: comm.send(x + 2, 0))
    assert comm.rank or comm.recv(np.empty(4), 1)[0] == 3
    going = [comm.irecv(x, 1)] if comm.rank == 0 else []
    raised("wait", lambda: going[0].wait(), lambda: comm.send(x + 3, 0))
    assert comm.rank or going[0].wait()[0] == 4
    notes = raised("send", lambda: comm.send(long, 1), lambda: comm.recv(np.empty(1_000_000), 0))
    assert comm.rank or "goes on, and its memory must stay as it is" in notes[0], notes
    raised("sendrecv", lambda: comm.sendrecv(x, 1, 1), lambda: comm.sendrecv(x + 4, 0, 0))
    assert comm.rank or comm.recv(np.empty(4), 1)[0] == 5
    raised("Recv", lambda: its.Recv(column, 1), lambda: its.Send(x + 5, 0))
    assert comm.rank or its.Recv(column, 1) or column[0][0, 0] == 6
    notes = raised("Ssend", lambda: its.Ssend(x, 1), lambda: its.Recv(x, 0))
    assert comm.rank or "goes on, and its memory must stay as it is" in notes[0], notes
    assert comm.all_reduce(1) == 2
    print("in step")
    """
    (tmp_path / "raises.py").write_text(BEGIN + dedent(source))
    options = ("-x", f"HPCOMM_NODE={node}")
    done = job(2, ["python", str(tmp_path / "raises.py"), str(tmp_path)], options=options)
    assert done.stdout.count("in step") == 2
    assert "dropped before it was complete" not in done.stderr


def test_a_rank_whose_handler_raised_amid_the_rounds_of_a_call_makes_no_more_there(job: Any) -> None:
    """Those of the next call would come to this one: the requests and the memory are the same."""
    source = """
    import signal, time
    import numpy as np
    import hpcomm
    from hpcomm import world
    from hpcomm.node import segment
    from hpcomm.transport import rank_order

    segment.ranks_here = lambda mpi: [mpi.rank]  # a node each
    rank_order.ORDER_GATHERED_FAR = 0
    x = np.arange(3.0) + world.rank
    CALLS = {
        "kept": lambda comm: comm.all_reduce(x),
        "algorithm": lambda comm: comm.broadcast(x, 1, algorithm="tree"),
    }

    class Raised(Exception):
        pass

    def handle(number, frame):
        raise Raised

    signal.signal(signal.SIGALRM, handle)
    for name, call in CALLS.items():
        comm = world.dup(check="off")
        first = call(comm)
        world.barrier()
        if comm.rank:
            time.sleep(0.5)
            assert (call(comm) == first).all(), name
        else:
            signal.setitimer(signal.ITIMER_REAL, 0.1)
            try:
                call(comm)
            except Raised:
                pass
            else:
                raise AssertionError(name)
            try:
                call(comm)
            except hpcomm.MismatchError as error:
                assert "an error ended a call of this one midway" in str(error), error
                print("said", flush=True)
        world.barrier()
    """
    done = job(3, ["python", "-c", dedent(source)], options=("-x", "HPCOMM_NODE=off"))
    assert done.stdout.count("said") == 2


@pytest.mark.parametrize("node", ["on", "off"])
def test_a_handler_that_raises_at_any_moment_leaves_its_message_to_the_next_wait(job: Any, node: str) -> None:
    """Also between two of the waiting function's own steps, where its error is none of MPI's."""
    job(2, ["python", "-c", dedent(OFTEN)], options=("-x", f"HPCOMM_NODE={node}"))


OFTEN = """
    import signal, time
    import numpy as np
    from hpcomm import wait_all, wait_any, world as comm
    from hpcomm.core import patience

    class Raised(Exception):
        pass

    def handle(number, frame):
        signal.setitimer(signal.ITIMER_REAL, 0.05)  # once more: Python swallows it in a __del__
        if frame.f_code.co_name != "often_interrupted":
            raise Raised

    def often_interrupted(wait):
        "Wait until it has been interrupted 100 times."
        for _ in range(100):
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.001)
                wait()
            except Raised:
                signal.setitimer(signal.ITIMER_REAL, 0)
                continue
            raise AssertionError("it ended without its message")

    def known():
        return comm.irecv(np.zeros(4), 1)

    def objects():
        return comm.irecv_object(1)

    def ragged():
        return comm.irecv_ragged(1)

    SENDS = {
        known: lambda: comm.send(np.full(4, 7.0), 0),
        objects: lambda: comm.send_object([7.0] * 4, 0),
        ragged: lambda: comm.send_ragged(np.full(4, 7.0), 0),
    }
    WAITS = {
        "wait": lambda request: request.wait(),
        "wait, a time": lambda request: request.wait(60),
        "wait_all": lambda request: wait_all([request]),
        "wait_any": lambda request: wait_any([request]),
    }
    if comm.rank == 0:
        signal.signal(signal.SIGALRM, handle)
        patience.look()  # as the watchdog does in time
    for begin, send in SENDS.items():
        for name, wait in WAITS.items():
            if comm.rank == 0:
                request = begin()
                often_interrupted(lambda: wait(request))
                comm.send_object("now", 1)
                assert [*request.wait()] == [7.0] * 4, (begin, name)
            else:
                while comm.iprobe_object(0) is None:
                    time.sleep(0.02)  # to wait would take a core
                comm.recv_object(0)
                send()
    comm.barrier()
    """


@pytest.mark.parametrize("waits", ["time.sleep(600)", "comm.barrier() if comm.rank else time.sleep(600)"])
def test_ranks_run_their_finally_blocks_after_ctrl_c(tmp_path: Path, waits: str) -> None:
    """As from a terminal: launcher and `hpcomm run` get it both."""
    code = f"""
        import time
        from hpcomm import world as comm
        comm.barrier()
        try:
            print("up", flush=True)
            {waits}
        finally:
            print("finally", flush=True)
        """
    (tmp_path / "waits.py").write_text(dedent(code))
    words = [sys.executable, "-m", "hpcomm", "run", "-n", "2", "python", str(tmp_path / "waits.py")]
    pipe = subprocess.PIPE
    process = subprocess.Popen(words, stdout=pipe, stderr=pipe, text=True, start_new_session=True)
    assert process.stdout is not None
    assert [process.stdout.readline() for _ in range(2)] == ["up\n", "up\n"]
    os.killpg(process.pid, signal.SIGINT)
    out, err = said(process, 60)
    assert process.returncode == 130, err
    assert out.count("finally") == 2, (out, err)


def test_the_status_of_a_job_is_that_of_one_of_its_ranks(job: Any) -> None:
    """MPICH's launcher adds the bits of them all up."""
    source = "import sys; from hpcomm import world as comm; comm.barrier(); sys.exit(1 << comm.rank)"
    assert job(3, source, expect="failure").returncode in (1, 2, 4)
