"""A real Slurm, as `hpcomm run` uses it: srun with a multi-prog file, and mpiexec."""

import shutil
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hosts import with_cores
from processes import finish
from slurm import Slurm, why_not

from hpcomm.job.installation import find_mpi

REASON = why_not(find_mpi().vendor)
pytestmark = [
    pytest.mark.slurm,
    pytest.mark.skipif(REASON is not None, reason=REASON or ""),
    pytest.mark.timeout(200),
]
SPEC = """
[program.ocean]
command = "python couple.py"
ranks = 2
{ocean}
[program.air]
command = "python couple.py"
ranks = 1
{air}
[[field]]
name = "sst"
from = "ocean"
to = "air"
"""
COUPLE = """
import os
import numpy as np
import hpcomm
me = hpcomm.join()
if me.name == "ocean":
    me.put(me.gives("sst", np.full(2, 1.0 + me.comm.rank)))
    assert me.comm.size == 2
else:
    got = me.get(me.takes("sst", np.zeros(4)))
    print("air got", got.tolist(), flush=True)
print(me.name, "on", os.uname().nodename, flush=True)
"""


@pytest.fixture(scope="module")
def slurm():
    """In a folder with a short name: sockets live there."""
    with (
        TemporaryDirectory(prefix="slurm-", dir="/var/tmp") as folder,
        Slurm(Path(folder)) as up,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("OMPI_MCA_btl_tcp_if_include", "lo")  # a bridge of containers leads nowhere
        yield up


def run(folder, text, source=COUPLE):
    (folder / "job.toml").write_text(text)
    (folder / "couple.py").write_text(source)
    hpcomm = [sys.executable, "-m", "hpcomm", "run", "--timeout", "60", "-v", "job.toml"]
    return finish(["salloc", "-N3", "-n6", *hpcomm], 120, folder)


def test_an_allocation_starts_the_programs(slurm, tmp_path):
    done = run(tmp_path, SPEC.format(ocean="", air=""))
    assert done.returncode == 0, done.stdout + done.stderr
    assert ("--multi-prog" if find_mpi().vendor == "openmpi" else "mpiexec -n 2") in done.stderr
    assert "air got [1.0, 1.0, 2.0, 2.0]" in done.stdout


def test_hosts_of_the_spec_place_the_programs(slurm, tmp_path):
    done = run(tmp_path, SPEC.format(ocean='hosts = ["n1", "n2"]', air='hosts = ["n3"]'))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "air got [1.0, 1.0, 2.0, 2.0]" in done.stdout
    assert "air on n3" in done.stdout


def test_programs_share_hosts_in_the_order_of_the_spec(slurm, tmp_path):
    done = run(tmp_path, SPEC.format(ocean='hosts = ["n2", "n1"]', air='hosts = ["n2"]'))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "air got [1.0, 1.0, 2.0, 2.0]" in done.stdout
    for words in ("air on n2", "ocean on n1", "ocean on n2"):
        assert words in done.stdout


def test_ranks_are_on_hosts_in_the_order_of_the_command_line(slurm, tmp_path):
    (tmp_path / "here.py").write_text(
        "import os, hpcomm\nnear = hpcomm.world.split_node().size\n"
        "print(hpcomm.world.rank, os.uname().nodename, near, flush=True)"
    )
    command = ["hpcomm", "run", "--hosts", "n3,n1,n3", "--timeout", "60", "python", "here.py"]
    done = finish(["salloc", "-N3", "-n6", sys.executable, "-m", *command], 120, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    for words in ("0 n3 2", "1 n1 1", "2 n3 2"):
        assert words in done.stdout


def test_a_program_that_fails_ends_the_step_by_name(slurm, tmp_path):
    failing = COUPLE.replace(
        "me = hpcomm.join()", "me = hpcomm.join()\nif me.name == 'ocean': raise SystemExit(3)"
    )
    done = run(tmp_path, SPEC.format(ocean="", air=""), failing)
    assert done.returncode not in (0, 124), done.stdout + done.stderr
    assert "of 'ocean' ends with status 3" in done.stderr


@pytest.mark.skipif(not shutil.which("cc"), reason="no C compiler")
@pytest.mark.parametrize(("tasks", "said"), [("3", "n1 2\nn1 2\nn2 2\n"), ("2", "n1 2\nn2 2\n")])
def test_ranks_share_the_cores_that_the_step_has_on_their_node(slurm, tmp_path, tasks, said):
    """Also a rank that is alone there: the node has more cores."""
    library = with_cores(tmp_path, {"n1": 8, "n2": 8})
    allotted = ["salloc", "-N2", f"-n{tasks}", "--cpus-per-task=2"]
    command = [
        "hpcomm",
        "run",
        "-x",
        f"LD_PRELOAD={library}",
        "sh",
        "-c",
        "echo $(uname -n) $OMP_NUM_THREADS",
    ]
    done = finish([*allotted, sys.executable, "-m", *command], 60, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "".join(sorted(done.stdout.splitlines(keepends=True))) == said


def test_by_hand_a_program_that_ends_before_init_alone_on_its_node_ends_the_job(slurm, tmp_path):
    """Nobody of hpcomm's is there to see that, so the others wait until a deadline."""
    (tmp_path / "ocean.py").write_text("print('came and went')")
    (tmp_path / "air.py").write_text("import hpcomm\nhpcomm.join('air')\nprint('went on')")
    python, mpi = sys.executable, find_mpi()
    if mpi.vendor == "mpich":
        command = [mpi.launcher, "-n", "2", python, "air.py", ":", "-n", "1", python, "ocean.py"]
    else:
        (tmp_path / "both").write_text(f"0-1 {python} air.py\n2 {python} ocean.py\n")
        command = ["srun", "--mpi=pmix", "--multi-prog", "both"]
    env = {"OPAL_PREFIX": sys.prefix, "PMIX_PREFIX": sys.prefix, "PMIX_MCA_psec": "native"}
    env["HPCOMM_INIT_TIMEOUT"] = "4"
    done = finish(["salloc", "-N3", "-n3", "--ntasks-per-node=1", *command], 60, tmp_path, env)
    assert done.returncode != 0
    assert "came and went" in done.stdout
    assert "went on" not in done.stdout
    assert "MPI has not come up within 4 s" in done.stderr
    assert "air.py) on n" in done.stderr
    assert mpi.vendor == "mpich" or f"rank 2 of the world ({python} ocean.py)" in done.stderr


TRAIN = """
import torch, torch.distributed as dist
import hpcomm.torch_backend
dist.init_process_group("mpi")
x = torch.full((2,), 1.0 + dist.get_rank())
dist.all_reduce(x)
print("rank", dist.get_rank(), "of", dist.get_world_size(), x.tolist(), flush=True)
dist.destroy_process_group()
"""


def test_srun_starts_a_tutorial_of_torch_distributed(slurm, tmp_path):
    """The row of docs/torch_tutorials.md."""
    (tmp_path / "train.py").write_text(TRAIN)
    mpi = "pmi2" if find_mpi().vendor == "mpich" else "pmix"
    env = {"OPAL_PREFIX": sys.prefix, "PMIX_PREFIX": sys.prefix, "PMIX_MCA_psec": "native"}
    command = ["salloc", "-N2", "-n2", "srun", f"--mpi={mpi}", sys.executable, "train.py"]
    done = finish(command, 90, tmp_path, env)
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(done.stdout.splitlines()) == [f"rank {rank} of 2 [3.0, 3.0]" for rank in range(2)]


TRAINS_ON = """
import signal, sys, time
from pathlib import Path
from hpcomm import world as comm
saved, asked, step = Path(f"saved-{comm.rank}"), [], 0
signal.signal(signal.SIGUSR1, lambda number, frame: asked.append(number))
while not comm.all_reduce(len(asked)):
    step += 1
    time.sleep(0.02)
saved.write_text(f"{step}")
comm.barrier()
sys.exit(3)
"""
BATCH = """#!/bin/bash
#SBATCH --nodes=3 --ntasks=3 --ntasks-per-node=1 --time=1 --signal=B:USR1@30 --output=said
exec {python} -m hpcomm run python train.py
"""


def test_ranks_save_before_the_time_limit_and_the_job_ends_with_their_status(slurm, tmp_path):
    """As docs/launching.md shows. Slurm looks at time limits twice a minute, and counts them in minutes.

    So ranks have half a minute to set their handlers, and half a minute to save. But it may send a signal a
    minute early, and then ends a job that has just begun: this one is sent again.
    """
    (tmp_path / "train.py").write_text(TRAINS_ON)
    (tmp_path / "job.sh").write_text(BATCH.format(python=sys.executable))
    for _ in range(3):
        done = finish(["sbatch", "--wait", "job.sh"], 150, tmp_path)
        said = (tmp_path / "said").read_text()
        if [*tmp_path.glob("saved-*")]:
            break
    steps = [file.read_text() for file in sorted(tmp_path.glob("saved-*"))]
    assert (len(steps), len({*steps})) == (3, 1), said
    assert done.returncode == 3, said
