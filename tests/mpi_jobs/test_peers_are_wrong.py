"""Where other libraries are silently wrong or hang, hpcomm is right or says what is wrong.

Each test is a row of a table measured on mpi4py, torch's gloo and Heat at two ranks. Those of an operator and
of a root that differ: test_mismatch.py.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

VALUES = """
import json
import numpy as np
import torch
import ml_dtypes
import hpcomm

comm = hpcomm.world
seen = {}
seen["bfloat16"] = comm.all_reduce(torch.ones(3, dtype=torch.bfloat16)).tolist()
seen["float16"] = comm.all_reduce(torch.ones(3, dtype=torch.float16)).tolist()
seen["numpy bfloat16"] = comm.all_reduce(np.ones(3, ml_dtypes.bfloat16)).astype(float).tolist()
seen["numpy float16"] = comm.all_reduce(np.ones(3, np.float16)).tolist()
seen["strided"] = comm.all_reduce(torch.arange(8.0)[::2]).tolist()
seen["strided in place"] = (x := torch.arange(8.0), comm.all_reduce(x[::2], out=x[::2]))[0].tolist()
for name in ("int16", "uint16", "uint32", "uint64"):
    seen[name] = comm.all_reduce(torch.ones(2, dtype=getattr(torch, name))).tolist()
seen["float8"] = comm.all_gather(torch.ones(1).to(torch.float8_e4m3fn)).float().tolist()
seen["premul_sum"] = comm.all_reduce(torch.ones(2), hpcomm.premul_sum(0.5)).tolist()
seen["uneven"] = [len(a) for a in comm.all_gather_ragged(torch.ones(comm.rank + 1))]
try:
    comm.all_reduce(torch.ones(2, dtype=torch.int32), "avg")
except hpcomm.DtypeError as error:
    seen["integer average"] = str(error)
request = comm.irecv_object(1 - comm.rank)
sending = comm.isend_object(b"x" * 800_000, 1 - comm.rank)
seen["object"] = len(request.wait(timeout=60))
sending.wait(timeout=60)
if comm.rank == 1:
    print(json.dumps(seen))
"""
EXPECTED = {
    "bfloat16": [2.0] * 3,
    "float16": [2.0] * 3,
    "numpy bfloat16": [2.0] * 3,
    "numpy float16": [2.0] * 3,
    "strided": [0.0, 4.0, 8.0, 12.0],
    "strided in place": [0.0, 1.0, 4.0, 3.0, 8.0, 5.0, 12.0, 7.0],
    "int16": [2, 2],
    "uint16": [2, 2],
    "uint32": [2, 2],
    "uint64": [2, 2],
    "float8": [[1.0], [1.0]],
    "premul_sum": [1.0, 1.0],
    "uneven": [1, 2],
    "object": 800_000,
}


@pytest.mark.once
def test_results_that_others_get_wrong_or_refuse_are_right(job: Any) -> None:
    seen = json.loads(job(2, VALUES).stdout)
    said = seen.pop("integer average")
    assert seen == EXPECTED
    assert "int32" in said
    assert "try:" in said


PROLOGUE = "import numpy as np\nimport hpcomm\ncomm = hpcomm.world\nfirst = comm.rank == 0\n"
ROWS = {
    "two all_reduces in swapped order": """
a, b = np.ones(2), np.ones(3)
for x in (a, b) if first else (b, a):
    comm.all_reduce(x)
""",
    "float32 here and float64 there": "comm.all_reduce(np.ones(2, np.float32 if first else np.float64))",
    "two roots of one broadcast in place": """
x = np.full(2, comm.rank)
comm.broadcast(x, root=comm.rank, out=x)
""",
    "all_reduce here and broadcast there": "(comm.all_reduce if first else comm.broadcast)(np.ones(2))",
}


@pytest.mark.once
@pytest.mark.parametrize("n", [2, 20_000])
@pytest.mark.parametrize("verb", ["broadcast", "scatter"])
def test_two_roots_of_the_last_call_are_told_though_neither_waits(job: Any, verb: str, n: int) -> None:
    source = f"""
def call(root):
    comm.{verb}(np.ones((2, {n})), root=root)
for turn in range(6):  # by now calls of this kind go as quickly as they can
    call(turn % 2)
comm.barrier()
call(comm.rank)
print('came through')
"""
    done = job(2, PROLOGUE + source, timeout=60, expect=None)
    assert done.returncode not in (0, 124), done.stdout
    assert "ranks disagree about call #8 on 'world'" in done.stderr


@pytest.mark.once
@pytest.mark.parametrize("row", ROWS)
def test_ranks_that_disagree_are_told_and_the_job_ends(job: Any, row: str) -> None:
    done = job(2, PROLOGUE + ROWS[row] + "\nprint('came through')\n", timeout=60, expect=None)
    assert done.returncode not in (0, 124), done.stdout
    assert done.stdout.count("came through") < 2
    assert "ranks disagree about call #1 on 'world'" in done.stderr
    assert "rank 0: " in done.stderr
    assert "rank 1: " in done.stderr
    assert "device_call.py:" in done.stderr


def test_an_exception_on_one_rank_does_not_hang_the_other(job: Any) -> None:
    source = PROLOGUE + "if first:\n    raise ValueError('mine')\ncomm.all_reduce(np.ones(2))\n"
    done = job(2, source, timeout=60, expect=1)
    assert "ValueError: mine" in done.stderr
