"""A rank on another host is killed, and the job goes on: `hpcomm run --survive`."""

import sys

import pytest
from hosts import Hosts, why_not
from processes import said

from hpcomm.job.installation import find_mpi

REASON = why_not()
pytestmark = [
    pytest.mark.hosts,
    pytest.mark.once,
    pytest.mark.skipif(REASON is not None, reason=REASON or ""),
    pytest.mark.skipif(find_mpi().vendor != "openmpi", reason="MPICH ends all ranks when one is killed"),
    pytest.mark.timeout(170),
]
PROGRAM = """
import os, signal, time
import numpy as np
import hpcomm
from hpcomm import world as comm

x, long = np.ones(4), np.ones(1_000_000)

def fails(verb, *given, on=comm, ranks=(2,), **named):
    try:
        done = getattr(on, verb)(*given, **named)
        if verb.startswith("i") or "async_op" in named:
            done.wait()
    except hpcomm.PeerFailedError as error:
        assert error.ranks == ranks, (verb, error)
    else:
        raise AssertionError(verb)

half = comm.rank // 2
between = comm.split(half).create_intercomm(0, comm, 2 - 2 * half)
comm.barrier()
if comm.rank == 2:  # the first one of its host, which sends the heartbeats
    time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGKILL)
first = [lambda: fails("all_reduce", x), lambda: fails("recv", out=x, source=2), None,
         lambda: fails("irecv", out=x, source=2)]
first[comm.rank]()
if comm.rank < 2:
    fails("recv", out=x, source=0, on=between, ranks=(0,))
fails("barrier")
fails("all_reduce", long, async_op=True)
fails("all_gather_object", "a")
fails("all_gather_ragged", x)
fails("recv_object", source=2)
fails("send", long, 2)
fails("split", 0)
assert not comm.agree(True)
comm = comm.shrink()
assert comm.all_reduce(x)[0] == 3 and comm.all_gather_object(comm.rank) == [0, 1, 2]
with comm.split(comm.rank % 2) as part:
    part.all_reduce(x, async_op=True).wait()
time.sleep(1.5)  # for those who look at this rank a few times a second
print("has gone on", flush=True)
"""


def test_ranks_of_all_hosts_go_on_without_one_that_died(tmp_path):
    (tmp_path / "dies.py").write_text(PROGRAM)
    command = [
        sys.executable,
        "-m",
        "hpcomm",
        "run",
        "--survive",
        "--hosts",
        "h1:2,h2:2",
        "python",
        "dies.py",
    ]
    with Hosts(2, tmp_path) as hosts:
        process = hosts.start(command, hosts.environ("openmpi"))
        out = said(process, 90)[0]
    assert process.returncode == 0, out
    assert out.count("has gone on\n") == 3, out
    assert "rank 2 was killed; the job has gone on without it" in out
    assert "Traceback" not in out
