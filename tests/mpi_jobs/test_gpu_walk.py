"""tests/gpu, the benchmark for GPUs, doctor and apps, walked without one: on stand-ins for libcuda and CuPy.

Nothing is measured; but that they run, and that what they move arrives, holds for them as they stand.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest
from processes import finish

ROOT = Path(__file__).parents[2]
PURE = ROOT / "tests" / "pure"
PAGE = "page.py"  # the examples of docs/gpu.md, one after the other
DEMOS = """
import runpy, sys
import hpcomm
for app, *words in (["gpu_demo", "--most", "4000000"], ["overlap_demo", "--bytes", "4000000"]):
    sys.argv[:] = [app, *words]
    try:
        runpy.run_module(f"hpcomm.apps.{app}", run_name="__main__", alter_sys=True)
    except SystemExit as end:
        assert not end.code, app
    if hpcomm.world.rank == 0:
        print("end of", app)
"""
BENCHMARK = """
import runpy, sys
sys.modules["torch"] = None  # it takes seconds to load, and would not take these stand-ins
sys.argv[:] = ["benchmarks/gpu.py", "--max", "4", "--budget", "0"]
sys.path.insert(0, "benchmarks")
runpy.run_path(sys.argv[0], run_name="__main__")
"""
sys.path.insert(0, str(PURE))
from test_cuda import compiled  # noqa: E402


@pytest.mark.once
@pytest.mark.parametrize(
    "words",
    [
        ["-c", BENCHMARK],
        ["-m", "hpcomm", "doctor"],
        ["-c", DEMOS],
        # A torch that was built with CUDA would believe the stand-in for libcuda, which is not enough for it.
        [
            "-m",
            "pytest",
            "-q",
            "--color=no",
            "-pno:cacheprovider",
            "--with-mpi",
            "-k",
            # messages of that length to another rank go the same ways
            "not torch and not ((collectives or objects) and 6291456) and not 6291456-0",
            "tests/gpu/test_gpu.py",
        ],
        [PAGE],
    ],
    ids=["benchmark", "doctor", "demos", "tests", "page"],
)
def test_what_is_for_gpus_runs_on_the_stand_ins(tmp_path: Path, words: list[str]) -> None:
    compiled(tmp_path / "libcuda.so.1")
    if words == [PAGE]:
        blocks = re.findall(
            r"^```python\n(.*?)^```", (ROOT / "docs/gpu.md").read_text(), re.MULTILINE | re.DOTALL
        )
        words = [str(tmp_path / PAGE)]
        Path(words[0]).write_text("\n".join(blocks))
    environ = {
        **os.environ,
        "LD_LIBRARY_PATH": f"{tmp_path}:{os.environ.get('LD_LIBRARY_PATH', '')}",
        "HPCOMM_GPU": "auto",
        "HPCOMM_NCCL": str(tmp_path / "none.so"),  # not that of such a torch
        "PYTHONPATH": str(PURE / "stand_in"),
    }
    ranks = "3" if words[-1] == "doctor" else "2"  # of two GPUs
    command = [sys.executable, "-m", "hpcomm", "run", "-n", ranks, sys.executable, *words]
    done = finish(command, 160, ROOT, environ)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    if words[-1] == "doctor":
        assert "by ipc (an own schedule, all messages from device to device)" in done.stdout
        assert "nccl: refused, rank 0: NCCL cannot be loaded" in done.stdout
        assert "from rank 1, 2: device to device" in done.stdout
        assert "ranks 0, 2 share a GPU without MPS" in done.stdout
        (tmp_path / "control").touch()
        done = finish(command, 160, ROOT, {**environ, "CUDA_MPS_PIPE_DIRECTORY": str(tmp_path)})
        assert done.returncode == 0
        assert "share a GPU" not in done.stdout
    elif "pytest" in words:
        assert " passed" in done.stdout
    elif words[0].endswith(PAGE):
        assert done.stdout.count("device to device") >= 2, done.stdout
    elif words[1] == DEMOS:
        gpu, _, overlap = done.stdout.partition("end of gpu_demo\n")
        assert "cupy" in gpu
        assert "cupy" in overlap
        assert re.search(r"^ipc +2097152 ", gpu, re.MULTILINE)
        assert "nccl: not here: nccl is forced" in gpu
    else:
        assert "!" not in done.stdout
        assert re.search(
            r"^-  message, nccl: nccl is forced, .*: NCCL cannot be loaded", done.stdout, re.MULTILINE
        )
        assert re.search(r"^-  all_reduce, direct: .* this MPI", done.stdout, re.MULTILINE)
        assert re.search(r"^message, ipc, slab .*\d", done.stdout, re.MULTILINE)
