"""Several hosts: programs placed by the spec, and a cable that is cut ends the job with a clear word."""

import os
import re
import signal
import subprocess
import sys
import time

import pytest
from hosts import Hosts, why_not

from hpcomm.installation import find_mpi

REASON = why_not()
pytestmark = [
    pytest.mark.hosts,
    pytest.mark.skipif(REASON is not None, reason=REASON or ""),
    pytest.mark.timeout(170),
]
SPEC = """
[job]
timeout = 60
[program.ocean]
command = "python ocean.py"
ranks = 2
hosts = ["h1:1", "h2:1"]
[program.air]
command = "python air.py"
ranks = 1
hosts = ["h3"]
[[field]]
name = "sst"
from = "ocean"
to = "air"
timeout = 2.0
[[field]]
name = "wind"
from = "air"
to = "ocean"
lag = 1.0
every = 1.0
timeout = 2.0
"""
OCEAN = """
import os, sys, time
import numpy as np
import hpcomm
me = hpcomm.join()
sst = me.gives("sst", np.full(3, 1.0 + me.comm.rank))
wind = me.takes("wind", np.zeros(2))
for step in range(STEPS):
    me.put(sst)
    me.get(wind, step)
    time.sleep(PAUSE)
print("ocean on", os.uname().nodename, flush=True)
"""
AIR = """
import os
import numpy as np
import hpcomm
me = hpcomm.join()
sst = me.takes("sst", np.zeros(6))
wind = me.gives("wind", np.zeros(4))
for step in range(STEPS):
    me.put(wind, step)
    got = me.get(sst).tolist()
    print("step", step, got, flush=True)
print("air on", os.uname().nodename, flush=True)
"""


@pytest.fixture
def hosts(tmp_path):
    with Hosts(3, tmp_path) as up:
        yield up


def start(hosts, steps, pause, air=AIR):
    (hosts.folder / "job.toml").write_text(SPEC)
    for name, source in (("ocean.py", OCEAN), ("air.py", air)):
        (hosts.folder / name).write_text(source.replace("STEPS", str(steps)).replace("PAUSE", str(pause)))
    command = [sys.executable, "-m", "hpcomm", "run", "-v", "job.toml"]
    return hosts.start(command, hosts.environ(find_mpi().vendor))


def end(process, limit_s):
    try:
        return process.communicate(timeout=limit_s)[0]
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        pytest.fail(f"no end after {limit_s} s:\n{process.communicate()[0]}")


def test_programs_run_where_the_spec_places_them(hosts):
    process = start(hosts, 3, 0.0)
    out = end(process, 80)
    assert process.returncode == 0, out
    assert "step 2 [1.0, 1.0, 1.0, 2.0, 2.0, 2.0]" in out, out
    for words in ("ocean on h1", "ocean on h2", "air on h3"):
        assert words in out


def test_a_cut_cable_ends_the_job_with_a_clear_word(hosts):
    process = start(hosts, 1000, 0.1)
    lines = []
    for line in process.stdout:
        lines.append(line)
        if "step 3 " in line:
            break
    else:
        pytest.fail("".join(lines))
    hosts.cut(3)
    since = time.monotonic()
    out = "".join(lines) + end(process, 60)
    assert time.monotonic() - since < 45
    assert process.returncode != 0
    assert any(words in out for words in ("for program 'air'", "program 'air'", "lost")), out


def test_a_program_that_ends_before_init_alone_on_its_host_ends_the_job(hosts):
    """Seen by its supervisor; by hand, from the host of MPICH's launcher, or by a deadline."""
    since = time.monotonic()
    process = start(hosts, 3, 0.0, air="print('air came and went')")
    out = end(process, 80)
    assert process.returncode not in (0, 124), out
    assert time.monotonic() - since < 25, out
    assert "air came and went" in out
    assert "program 'air' (rank 0 of 1) ended (status 0), while 'ocean' still ran" in out

    since = time.monotonic()
    is_open_mpi = find_mpi().vendor == "openmpi"
    words = ["--host", "h1:1,h2:1,h3:1"] if is_open_mpi else ["-hosts", "h1,h2,h3"]
    ocean, air = ([sys.executable, f"{name}.py"] for name in ("ocean", "air"))
    command = [find_mpi().launcher, *words, "-n", "1", *air, ":", "-n", "2", *ocean]
    environ = hosts.environ(find_mpi().vendor) | {"HPCOMM_PROGRAM": "ocean"}
    process = hosts.start(command, environ | ({"HPCOMM_INIT_TIMEOUT": "4"} if is_open_mpi else {}))
    out = end(process, 60)
    assert process.returncode != 0, out
    if is_open_mpi:
        assert "or that have ended on a host that cannot be seen from here; rank " in out
    else:
        assert time.monotonic() - since < 25, out
        assert re.search(
            r"rank 0 of the world \(\S+ air.py\) on h1 has ended before MPI was up; rank [12] ", out
        ), out
        assert "hpcomm.mpmd.eye" in (hosts.folder / "agent.log").read_text()
