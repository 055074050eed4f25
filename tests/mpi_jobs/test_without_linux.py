"""Without what only Linux has all but the node core works, by MPI: as on macOS, see without_linux/."""

import sys
from pathlib import Path

import pytest
from processes import finish, judge

WITHOUT = {"PYTHONPATH": f"{Path(__file__).with_name('without_linux')}"}

VERBS = """
import os, signal, sys
import numpy as np
import hpcomm
from hpcomm import checkpoint
from hpcomm.job.cores import here
from hpcomm.node import native

assert not os.path.exists("/proc") and not hasattr(os, "pidfd_open") and sys.platform == "linux"
comm, folder = hpcomm.world, sys.argv[1]
assert native.core() is None and native.missing() is native.LINUX and here().cores > 0
x = np.arange(4.0) + comm.rank
assert (comm.all_reduce(x, async_op=True).wait() == 2 * np.arange(4.0) + 1).all()
assert comm.all_gather_object({comm.rank: "rank"}) == [{0: "rank"}, {1: "rank"}]
assert [len(each) for each in comm.all_gather_ragged(np.ones(comm.rank))] == [0, 1]
got = comm.sendrecv(x, dest=1 - comm.rank, source=1 - comm.rank)
assert got[0] == 1 - comm.rank
with comm.shared_array((2, 3)) as shared:
    shared.array[comm.rank] = comm.rank
    shared.fence()
    assert shared.array.sum() == 3
with comm.window((2,)) as window:
    window.put(np.full(2, 7.0), 1 - comm.rank)
    window.fence()
    assert (window.array == 7).all()
with comm.pool() as pool:
    assert pool is None or pool.submit(abs, -3).result() == 3
field = hpcomm.Field(comm.mesh(y=2), (8, 4), halo=1, name="T")
field.inner[...] = comm.rank
field.update_halo()
checkpoint.save(folder, field)
field.inner[...] = 0
checkpoint.load(folder, field)
assert field.mean() == 0.5
TORCH
print(comm.rank)
"""
TORCH = """
import torch
import torch.distributed as dist
dist.init_process_group("mpi")
dist.all_reduce(t := torch.ones(3))
assert t.tolist() == [2, 2, 2]
dist.destroy_process_group()
"""


@pytest.mark.parametrize("torch", [pytest.param(TORCH, id="torch", marks=pytest.mark.once), ""])
def test_verbs_arrays_files_and_torch_work(job, tmp_path, torch):
    (tmp_path / "verbs.py").write_text(VERBS.replace("TORCH", torch))
    done = job(2, ["python", str(tmp_path / "verbs.py"), str(tmp_path / "saved")], env=WITHOUT)
    assert sorted(done.stdout.split()) == ["0", "1"]
    assert "no node core" not in done.stderr  # nobody could do anything about that


def test_the_doctor_says_why_there_is_no_core(job):
    done = job(2, ["hpcomm", "doctor"], env=WITHOUT)
    assert "\nnode core     not used: ranks 0-1: it needs Linux\n" in done.stdout
    assert done.stdout.endswith("\nhealthy\n")


def test_a_rank_that_fails_or_is_killed_ends_the_job(job):
    fails = "from hpcomm import world\nif world.rank: 1 / 0\nworld.barrier()"
    done = job(2, fails, env=WITHOUT, expect=1)
    assert done.stderr.count("ZeroDivisionError: division by zero") == 1, done.stderr
    killed = fails.replace("1 / 0", "__import__('os').abort()")
    job(2, killed, env=WITHOUT, expect="failure")


def test_calls_that_do_not_end_are_named(job):
    source = "from hpcomm import world\nworld.recv(bytearray(8), source=1 - world.rank)"
    done = job(2, source, env={**WITHOUT, "HPCOMM_TIMEOUT": "2"}, expect="failure")
    for rank in range(2):
        assert (
            f"rank {rank}: recv(bytearray, source={1 - rank}) at device_call.py:2 on 'world'" in done.stderr
        )


SPEC = """
[program.plate]
command = "python plate.py"
ranks = 1
[program.air]
command = "python air.py"
ranks = 1
[[field]]
name = "heat"
from = "plate"
to = "air"
"""
PLATE = "import hpcomm, numpy; me = hpcomm.join('plate'); me.put(me.gives('heat', numpy.full(4, 2.5)))"
AIR = "import hpcomm, numpy; me = hpcomm.join('air'); print(me.get(me.takes('heat', numpy.zeros(4))))"


def test_programs_of_a_spec_meet(tmp_path):
    for name, text in (("job.toml", SPEC), ("plate.py", PLATE), ("air.py", AIR)):
        (tmp_path / name).write_text(text)
    command = [sys.executable, "-m", "hpcomm", "run", "--timeout", "300", "job.toml"]
    done = finish(command, 100, tmp_path, WITHOUT)
    judge(done, 0)
    assert "[2.5 2.5 2.5 2.5]" in done.stdout
