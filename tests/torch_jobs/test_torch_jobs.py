"""Jobs that use torch.distributed: how it is reached, how it ends, and what apps/train says.

A start of ranks that import torch costs seconds: what one start can show is shown in one.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from processes import finish
from steady import steady_time

ROOT = Path(__file__).parents[2]
TRAIN = sorted(path.name for path in (ROOT / "apps" / "train").glob("*.py"))
START = """
import os, signal, sys, threading, time
from datetime import timedelta
import torch
import torch.distributed as dist
import hpcomm.torch_backend

dist.init_process_group("mpi", timeout=timedelta(seconds=20))
rank, size = dist.get_rank(), dist.get_world_size()
"""


def alone(code: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run code in one process without any launcher."""
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    env = {**os.environ, "PYTHONPATH": path, **variables}
    return subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.once
def test_a_torch_whose_interface_has_changed_gives_one_sentence() -> None:
    done = alone(
        "import torch.distributed as dist; del dist.distributed_c10d.rendezvous;"
        "import hpcomm.torch_backend; print('imported'); dist.init_process_group('mpi')",
        TORCH_DEVICE_BACKEND_AUTOLOAD="0",  # or the backend is there before torch has changed
    )
    assert done.stdout == "imported\n", done.stderr
    said = r"torch \S+ has no rendezvous in torch.distributed: its interface for backend 'mpi' has changed\n"
    assert re.search(rf"ConfigError: {said}.*\n +try: +pip install -U hpcomm, or torch>=2", done.stderr), (
        done.stderr
    )


@pytest.mark.once
def test_a_rank_that_raises_is_named_by_all_others_and_the_job_ends(job: Any) -> None:
    """Rank 0 waits for a message of it, rank 2 in a collective call."""
    source = (
        START
        + """
from hpcomm.agree import runtime
runtime.GRACE_S = 6  # by the clock, until rank 1 ends the others, who need some of it on a busy machine
dist.barrier()
if rank == 0:
    try:
        dist.recv(torch.ones(2), 1)
    except hpcomm.PeerFailedError as error:
        print("told:", error.ranks, flush=True)
        time.sleep(50)  # the job must end nevertheless
elif rank == 1:
    raise ValueError("rank one is broken")
else:
    dist.all_reduce(torch.ones(2))
"""
    )
    begin = steady_time()
    done = job(3, source, timeout=70, expect=None)
    assert done.returncode not in (0, 124)
    assert steady_time() - begin < 35
    assert "[rank1]: ValueError: rank one is broken" in done.stderr
    assert "told: (1,)" in done.stdout, done.stdout + done.stderr
    named = "PeerFailedError: all_reduce(float32 (2,), op='sum') (call #2 on 'world') needs rank 1"
    assert named in done.stderr, done.stderr


@pytest.mark.once
def test_groups_made_in_another_order_end_the_job_with_what_each_rank_makes(job: Any) -> None:
    source = (
        START
        + """
lists = [[0, 1, 2], [0, 2]]
for each in lists[::-1] if rank == 2 else lists:
    dist.new_group(each, timeout=timedelta(seconds=0.3))
dist.barrier()
"""
    )
    done = job(3, source, timeout=60, expect=None)
    assert done.returncode not in (0, 124), done.stdout + done.stderr
    for who, makes in (("[01]", [0, 1, 2]), ("2", [0, 2])):  # which rank ends the job first is open
        row = rf"new_group\({re.escape(str(makes))}\) at \S+\.py:\d+"  # as another rank tells it
        own = rf"WaitTimeoutError: making group '\S+' of {re.escape(str(makes))} on 'world'"
        assert re.search(rf"rank {who}: ({row}|{own})", done.stderr), (row, done.stderr)


@pytest.mark.once
def test_a_job_whose_ranks_caught_the_error_of_a_stopped_one_ends(job: Any) -> None:
    """MPI_Finalize of the others would wait for it."""
    source = (
        START
        + """
dist.barrier()
dist.distributed_c10d._set_pg_timeout(timedelta(seconds=1), dist.group.WORLD)
if rank == 1:
    os.kill(os.getpid(), signal.SIGSTOP)
try:
    dist.all_reduce(torch.ones(2))
except hpcomm.WaitTimeoutError as error:
    print(str(error).splitlines()[0], flush=True)
"""
    )
    done = job(2, source, timeout=60, expect=None)
    assert done.returncode not in (0, 124), done.stdout + done.stderr
    assert re.search(r"all_reduce\(.* waited [\d.]+ s for rank 1\n", done.stdout), done.stdout
    assert re.search(
        r"rank 0: has come to its end, and rank 1 of .*'world'.* is stopped: so the job ends", done.stderr
    ), done.stderr


@pytest.fixture
def lenient(tmp_path: Path) -> tuple[str, str]:
    """Options for a launcher that lets the others live when a rank is killed."""
    mpirun = Path(sys.executable).parent / "mpirun"
    if not mpirun.exists():
        pytest.skip("an MPI whose launcher's options are not known")
    said = subprocess.run([mpirun, "--version"], capture_output=True, text=True, check=False).stdout
    leave = "--enable-recovery" if "Open MPI" in said else "-disable-auto-cleanup"
    launcher = tmp_path / "mpirun"
    launcher.write_text(f'#!/bin/sh\nexec "{mpirun}" {leave} "$@"\n')
    launcher.chmod(0o755)
    return "--launcher", str(launcher)


KILLED = """
told = open(os.path.join(sys.argv[1], f'rank {rank}'), 'w')


def be_killed():
    # MPICH's launcher, told to let the others live, often kills them all the same if it sees the end of this
    # rank's connection before that of its process: another process holds the connection open
    if "OMPI_COMM_WORLD_RANK" not in os.environ and os.fork() == 0:
        time.sleep(4)
        os._exit(0)
    os.kill(os.getpid(), signal.SIGKILL)


"""


def told(job: Any, tmp_path: Path, source: str, options: tuple[str, str]) -> dict[str, str]:
    """What each rank of three wrote into its file: launchers may lose what is printed after a kill."""
    (tmp_path / "kill.py").write_text(START + KILLED + source)
    place = tmp_path / "told"
    place.mkdir()
    command = ["python", str(tmp_path / "kill.py"), str(place)]
    done = job(3, command, timeout=70, expect=None, options=options)
    assert done.returncode != 124, done.stdout + done.stderr
    return {path.name: path.read_text() for path in place.iterdir()}


@pytest.mark.once
def test_a_rank_that_is_killed_in_the_middle_of_a_call_is_named_by_the_others(
    job: Any, tmp_path: Path, lenient: tuple[str, str]
) -> None:
    """Rank 0 learns of it in the call, rank 2 from its work; then both in the call of another group."""
    source = """
other = dist.new_group([0, 1, 2])
dist.barrier()
if rank == 1:
    threading.Timer(0.2, be_killed).start()


def call(group):
    try:
        while True:
            work = dist.all_reduce(torch.ones(1_000_000), group=group, async_op=rank == 2)
            if rank == 2:
                work.wait()
    except hpcomm.PeerFailedError as error:
        told.write(str(error.ranks))


call(None)
call(other)
told.close()
until = time.monotonic() + 10
both = [os.path.join(sys.argv[1], f'rank {q}') for q in (0, 2)]
while not all(map(os.path.getsize, both)) and time.monotonic() < until:  # or the launcher kills the later
    time.sleep(0.01)
os._exit(0)  # MPI's own end would wait for the dead
"""
    found = told(job, tmp_path, source, lenient)
    assert found == {"rank 0": "(1,)(1,)", "rank 1": "", "rank 2": "(1,)(1,)"}


def test_a_rank_that_is_killed_while_others_stand_in_mpi_is_named_when_the_job_ends(
    job: Any, tmp_path: Path, lenient: tuple[str, str]
) -> None:
    source = """
dist.barrier()
sys.stderr = told
group, by = dist.group.WORLD, dist.group.WORLD._by
group._node = None
stand = be_killed if rank == 1 else by.comm.context.mpi_handle.Barrier
by.all_reduce = lambda x, op, out: (by.arrive(), stand())  # as of what the core does not take
dist.all_reduce(torch.ones(3))
"""
    found = told(job, tmp_path, source, lenient)
    what = r"PeerFailedError: all_reduce\(float32 .* on 'world' stands in MPI and needs ranks? .*1, which ha"
    assert any(re.search(what, text) for text in found.values()), found


@pytest.mark.once
def test_a_part_of_torchs_own_suite(tmp_path: Path) -> None:
    """A handful of its tests; all of them: see docs/torch.md."""
    suite = ROOT / "tests" / "torch" / "peer_suite.py"
    names = "all_reduce_coalesced_full_group_sum DistributedDataParallel_requires_grad isend"
    names += " isend_autograd_profiler isend_torch_profiler"
    only = ",".join(f"test_{name}" for name in names.split())
    command = [sys.executable, str(suite), "-n", "2", "--names", only, "--out", str(tmp_path / "said.json")]
    done = finish(command, 100)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"mpi, 2 ranks: [45] passed, [01] skipped, 0 failed, 0 hung", done.stdout), done.stdout


ALL_OF_THEM = """
import gc, os, runpy, sys, types
from importlib.util import find_spec, module_from_spec
import numpy as np

sys.modules["sklearn"] = sklearn = module_from_spec(find_spec("sklearn"))  # to load it takes seconds
sys.modules["sklearn.datasets"] = datasets = types.ModuleType("sklearn.datasets")

def load_digits(return_X_y):
    table = np.loadtxt(os.path.join(*sklearn.__path__, "datasets", "data", "digits.csv.gz"), delimiter=",")
    return table[:, :-1], table[:, -1].astype(int)

datasets.load_digits = load_digits
gc.disable()  # of half a million objects, which stay
for path in sys.argv[1:]:
    sys.argv = [path, "--epochs", "2"]
    try:
        runpy.run_path(path, run_name="__main__")
    except SystemExit as end:
        assert not end.code, (path, end.code)
    if os.environ["RANK"] == "0":
        print("end of", os.path.basename(path), flush=True)
gc.freeze()
"""


@pytest.mark.once
def test_the_programs_of_apps_train(job: Any, tmp_path: Path) -> None:
    (tmp_path / "all.py").write_text(ALL_OF_THEM)
    paths = [str(ROOT / "apps" / "train" / name) for name in TRAIN]
    done = job(2, ["python", str(tmp_path / "all.py"), *paths], timeout=100)
    said = dict(zip(TRAIN, re.split(r"end of .*\n", done.stdout), strict=False))
    assert len(said) == len(TRAIN) == 6
    assert "saved by 2 ranks, loaded by 1: the same" in said["checkpoint.py"]
    assert "as it should be" in said["ddp.py"]
    assert re.search(r"mpi [\d,]+ samples/s, gloo [\d,]+ samples/s", said["ddp.py"])
    for name in ("fsdp.py", "pipeline.py", "tensor_parallel.py", "zero.py"):
        losses = [float(x) for x in re.findall(r"loss +([\d.]+)", said[name])]
        assert losses[-1] < losses[0] / 2, said[name]


CAME_AND_ENDED = """
import sys, time
from pathlib import Path
import torch, torch.distributed as dist
from hpcomm.torch_backend import entry_barrier

dist.init_process_group("mpi")
waits, done = (Path(sys.argv[1], name) for name in ("waits", "done"))

def until(path):
    while not path.exists():
        time.sleep(0.01)

def lost(comm, ranks):  # the core saw nobody; now rank 0 comes, has its result, and ends
    waits.touch()
    until(done)
    return [0]

dist.barrier()
if dist.get_rank():
    entry_barrier.lost = lost
else:
    until(waits)
dist.all_reduce(x := torch.ones(1))
done.touch()
print(f"sum {x.item()}", flush=True)
"""


@pytest.mark.once
@pytest.mark.core
def test_a_rank_that_came_and_ended_between_two_looks_is_not_missed(job: Any, tmp_path: Path) -> None:
    source = tmp_path / "came.py"
    source.write_text(CAME_AND_ENDED)
    assert job(2, ["python", str(source), str(tmp_path)]).stdout.count("sum 2.0") == 2
