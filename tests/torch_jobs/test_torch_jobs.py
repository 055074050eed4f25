"""Jobs that use torch.distributed: how it is reached, how it ends, and what apps/train says."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
START = """
import os, signal, sys, time
from datetime import timedelta
import torch
import torch.distributed as dist
import hpcomm.torch_backend

dist.init_process_group("mpi", timeout=timedelta(seconds=20))
rank, size = dist.get_rank(), dist.get_world_size()
"""


def test_autoload_starts_nothing() -> None:
    code = (
        "import sys, torch, hpcomm.torch_backend as b; b.autoload();"
        "assert 'mpi4py.MPI' not in sys.modules and 'hpcomm.torch_backend.group' not in sys.modules;"
        "import torch.distributed as dist; assert dist.is_mpi_available()"
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", code], env=env, check=True, timeout=60)


def test_one_rank_without_any_launcher() -> None:
    code = (
        "import torch, torch.distributed as dist, hpcomm.torch_backend; dist.init_process_group('mpi');"
        "x = torch.ones(2); dist.all_reduce(x); print(dist.get_world_size(), x.tolist());"
        "dist.destroy_process_group()"
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout == "1 [1.0, 1.0]\n", done.stderr


def test_a_rank_that_raises_is_named_by_the_others_and_the_job_ends(job: Any) -> None:
    source = (
        START
        + """
dist.barrier()
if rank == 1:
    raise ValueError("rank one is broken")
dist.all_reduce(torch.ones(2))
"""
    )
    begin = time.monotonic()
    done = job(3, source, timeout=40, expect=None)
    assert done.returncode not in (0, 124)
    assert time.monotonic() - begin < 35
    assert "[rank1]: ValueError: rank one is broken" in done.stderr
    named = "PeerFailedError: all_reduce(float32 (2,), op='sum') (call #2 on 'world') needs rank 1"
    assert named in done.stderr, done.stderr


def test_waiting_for_a_message_of_a_rank_that_fails_is_an_error(job: Any) -> None:
    source = (
        START
        + """
if rank == 0:
    try:
        dist.recv(torch.ones(2), 1)
    except hpcomm.PeerFailedError as error:
        print("told:", error.ranks, flush=True)
else:
    raise ValueError("rank one is broken")
"""
    )
    done = job(2, source, timeout=40, expect=None)
    assert "told: (1,)" in done.stdout, done.stdout + done.stderr
    assert done.returncode not in (0, 124)


def test_a_killed_rank_ends_the_job(job: Any) -> None:
    source = (
        START
        + """
dist.barrier()
if rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
dist.all_reduce(torch.ones(2))
"""
    )
    begin = time.monotonic()
    done = job(2, source, timeout=40, expect=None)
    assert done.returncode not in (0, 124)
    assert time.monotonic() - begin < 35


def test_mismatched_shapes_are_an_exception_on_all_ranks(job: Any) -> None:
    source = (
        START
        + """
try:
    dist.all_reduce(torch.ones(2 + rank))
except hpcomm.MismatchError as error:
    print("rank 0: all_reduce(float32 (2,), op='sum')" in str(error) or rank, flush=True)
dist.all_reduce(x := torch.ones(1))
assert x.item() == size
dist.destroy_process_group()
"""
    )
    done = job(2, source)
    assert sorted(done.stdout.replace("True", " True ").split()) == ["1", "True"], done.stdout


def test_detail_compares_shapes(job: Any) -> None:
    source = (
        START
        + """
try:
    dist.all_reduce(torch.ones(2, 3) if rank else torch.ones(3, 2))
except RuntimeError as error:
    print(type(error).__name__, flush=True)
dist.destroy_process_group()
"""
    )
    done = job(2, source, env={"TORCH_DISTRIBUTED_DEBUG": "DETAIL"})
    assert done.stdout.count("MismatchError") == 2


def test_torchrun(tmp_path: Path) -> None:
    """MPICH's ranks find each other; Open MPI's say what to type."""
    program = tmp_path / "train.py"
    program.write_text(
        START + "dist.all_reduce(x := torch.ones(1)); print(f'sum {x.item()}\\n', end='', flush=True)\n"
    )
    env = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("OMPI_", "PMI_", "PMIX_", "HPCOMM_JOB"))
    }
    env["PYTHONPATH"] = str(ROOT)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    process = subprocess.Popen(
        [*command, str(program)],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        said, _ = process.communicate(timeout=90)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        pytest.fail(f"no end: {process.communicate()[0]}")
    if "needs its own launcher" in said:
        assert re.search(r"try: +mpirun -n 2 python", said)
    else:
        assert said.count("sum 2.0") == 2, said


TRAIN = {
    "ddp.py": (["--epochs", "2"], r"mpi .*samples/s"),
    "tensor_parallel.py": ([], r"loss"),
    "pipeline.py": ([], r"loss"),
    "fsdp.py": ([], r"loss"),
    "checkpoint.py": ([], r"loaded"),
    "zero.py": ([], r"loss"),
}


@pytest.mark.parametrize("name", TRAIN)
def test_the_programs_of_apps_train(job: Any, name: str) -> None:
    words, shown = TRAIN[name]
    done = job(2, ["python", str(ROOT / "apps" / "train" / name), *words], timeout=100)
    assert re.search(shown, done.stdout), done.stdout + done.stderr
