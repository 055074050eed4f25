"""Traces of jobs: their reports count what the program has called, and say at which of its lines."""

from __future__ import annotations

import json
import pickle
import re
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from processes import finish, judge

from hpcomm.errors import ConfigError
from hpcomm.job import launch
from hpcomm.tools import report

SPMD = """
import asyncio
import numpy as np
import hpcomm

world = hpcomm.world
rank, x = world.rank, np.ones(1000)
with hpcomm.trace.range("early"):
    pass
for _ in range(5):
    world.all_reduce(x)  #all_reduce
with hpcomm.trace.range("background"):
    going = world.all_reduce(x, async_op=True)
    going.wait()
if rank < 2:
    world.sendrecv(x, 1 - rank, 1 - rank)  #sendrecv
world.broadcast_object({"a": 1}, root=1)
if rank == 0:
    world.send(x, 2, tag=3)
elif rank == 2:
    world.recv(np.empty(1000), 0)
if rank == 1:
    for each in (np.ones(500), "once more"):
        world.send_object(each, 2)
elif rank == 2:
    world.irecv_object(1).wait()
    world.recv_object()
field = hpcomm.Field(world, (6, 4), halo=1)
for _ in range(2):
    field.update_halo()  #halo
field.sum()  #sum
part = world.split(rank % 2, name="part")
part.barrier()
window = world.window(8)
window.put(np.ones(8), 0)
window.fence()
plan = world.plan("all_gather", x)
plan()
"""

PART = """
import numpy as np
import hpcomm

world = hpcomm.world
plain = type(world).all_reduce
world.all_reduce(1)
with hpcomm.trace("steps"):
    world.all_gather(np.ones(2))  #traced
    try:
        hpcomm.trace("other").begin()
    except hpcomm.UsageError as error:
        print(error)
world.all_reduce(1)
assert type(world).all_reduce is plain
"""

COUPLED = """
import numpy as np
import hpcomm

me = hpcomm.join()
points = np.arange(4) + 4 * me.comm.rank if me.name == "ocean" else np.arange(8)
x = np.zeros(points.shape)
heat = (me.gives if me.name == "ocean" else me.takes)("heat", x, points=points)
for _ in range(3):
    (me.put if me.name == "ocean" else me.get)(heat)
    me.comm.barrier()
"""


TORCH = """
import torch
import torch.distributed as dist
dist.init_process_group("mpi")
x = torch.ones(10)
works = [dist.all_reduce(x, async_op=True) for _ in range(3)]
for work in works:
    work.wait()
dist.broadcast(x, 1)
if dist.get_rank() == 0:
    dist.send(x, 1)
else:
    dist.recv(x, 0)
dist.all_reduce(torch.eye(2).to_sparse())
dist.destroy_process_group()
"""

ANALYSE = """
import sys
from torch.distributed.flight_recorder.components.builder import build_db
from torch.distributed.flight_recorder.components.config_manager import JobConfig
from torch.distributed.flight_recorder.components.loader import read_dir

args = JobConfig().parse_args([sys.argv[1]])
found = build_db(*read_dir(args)[:1], args, "2.10")
print(len(found.collectives), sum(each.type_of_mismatch is not None for each in found.collectives))
"""


def told(folder: Path, capsys: Any) -> dict[str, Any]:
    assert report.main([str(folder), "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def line(source: str, mark: str) -> int:
    return next(i for i, text in enumerate(source.splitlines(), 1) if text.endswith(f"#{mark}"))


@pytest.mark.once
def test_a_report_counts_calls_and_bytes_by_line(job: Any, tmp_path: Path, capsys: Any) -> None:
    folder = tmp_path / "trace"
    job(3, SPMD, options=["--trace", str(folder)])
    found = told(folder, capsys)
    calls = {
        each["call"].partition("(")[0]: each
        for each in found["operations"]
        if "all_reduce" not in each["call"]
    }
    at = {each["line"].partition(":")[2]: each for each in found["operations"]}
    reduced = at[str(line(SPMD, "all_reduce"))]
    assert reduced["call"] == "all_reduce(float64 (1000,)) on world"
    assert (reduced["calls"], reduced["nbytes"]) == (15, 15 * 8000)
    assert reduced["waiting_s"] <= reduced["time_s"]
    assert {name: each["calls"] for name, each in calls.items()} == {
        "early": 3, "background": 3, "sendrecv": 2, "broadcast_object": 3, "send": 1, "recv": 1,
        "send_object": 2, "irecv_object": 1, "recv_object": 1,
        "Field.update_halo": 6, "Field.sum": 3,
        "Window.put": 3, "Window.fence": 3, "barrier": 3, "plan of all_gather": 3,
    }  # fmt: skip
    assert at[str(line(SPMD, "halo"))]["nbytes"] == 2 * 4 * 8 * 4
    assert at[str(line(SPMD, "sum"))]["nbytes"] <= 3 * 8
    assert found["moved"][0] == [0, 8000 + 64, 8000]
    nbytes = {name: calls[name]["nbytes"] for name in calls if name.endswith("_object")}
    assert 4000 < nbytes["irecv_object"] < 4200
    assert nbytes["recv_object"] > len("once more")
    assert found["moved"][1] == [8000 + 64, 0, 64 + nbytes["irecv_object"] + nbytes["recv_object"]]
    assert nbytes["broadcast_object"] == 3 * len(pickle.dumps({"a": 1}, 5))
    assert found["clock_error_s"] == 0
    assert report.main([str(folder), "--machine", "cluster"]) == 0
    text = capsys.readouterr().out
    assert "3 ranks" in text
    assert "at least" in text
    with pytest.raises(ConfigError, match="something is there"):
        launch.parse(["--trace", str(folder), "true"])
    files(folder, tmp_path, capsys)


def files(folder: Path, tmp_path: Path, capsys: Any) -> None:
    """Chrome's JSON has a bar for each call, and torch's analyser puts its calls together."""
    out, dumps = tmp_path / "trace.json", tmp_path / "dumps"
    assert report.main([str(folder), "-o", str(out), "--torch", str(dumps)]) == 0
    capsys.readouterr()
    made = json.loads(out.read_text())
    bars = [each for each in made["traceEvents"] if each["ph"] == "X"]
    assert made["baseTimeNanoseconds"] > 10**18
    assert sum(each["name"] == "all_reduce" for each in bars) == 18
    assert {each["pid"] for each in bars} == {0, 1, 2}
    assert all(each["ts"] >= 0 and each["dur"] >= 0 for each in bars)
    if find_spec("torch.distributed.flight_recorder"):
        done = finish([sys.executable, "-c", ANALYSE, str(dumps)], 60)
        judge(done, 0)
        assert "8 0" in done.stdout, done.stdout  # collective calls, and those that do not match
    with pytest.raises(ConfigError, match=r"\.html or \.json"):
        report.main([str(folder), "-o", str(tmp_path / "trace.txt")])


@pytest.mark.once
def test_a_part_of_a_program_is_traced_and_nothing_stays_wrapped(tmp_path: Path, capsys: Any) -> None:
    done = finish([sys.executable, "-c", PART], 60, tmp_path)
    judge(done, 0)
    assert "a trace is being written to steps" in done.stdout
    (only,) = told(tmp_path / "steps", capsys)["operations"]
    assert only["call"].startswith("all_gather(float64 (2,))")


@pytest.mark.once
def test_all_programs_of_a_job_are_in_one_report(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "model.py").write_text(COUPLED)
    table = '[program.{}]\ncommand = ["python", "model.py"]\nranks = {}\n'
    (tmp_path / "job.toml").write_text(table.format("ocean", 2) + table.format("air", 1))
    words = ["--timeout", "300", "--trace", "trace", "job.toml"]
    judge(finish([sys.executable, "-m", "hpcomm", "run", *words], 60, tmp_path), 0)
    found = told(tmp_path / "trace", capsys)
    assert [each["rank"] for each in found["ranks"]] == ["air 0", "ocean 0", "ocean 1"]
    calls = {each["call"]: each for each in found["operations"]}
    assert calls["Program.put(heat float64) on ocean"]["calls"] == 6
    assert calls["Program.get(heat float64) on air"]["calls"] == 3
    assert calls["Program.get(heat float64) on air"]["whom"] in ("ocean 0", "ocean 1", "")


@pytest.mark.once
@pytest.mark.skipif(find_spec("torch") is None, reason="no torch")
def test_calls_of_torch_are_in_the_report(job: Any, tmp_path: Path, capsys: Any) -> None:
    job(2, TORCH, options=["--trace", str(tmp_path / "t")])
    found = told(tmp_path / "t", capsys)
    calls = {
        re.match(r"\w+(\(sparse)?", each["call"])[0]: (each["calls"], each["nbytes"])  # type: ignore[index]
        for each in found["operations"]
    }
    of_sparse = 2 * 2 * (4 + 2 * 8)  # of each rank the values, and their places
    assert calls == {
        "all_reduce": (6, 240),
        "broadcast": (2, 80),
        "send": (1, 40),
        "recv": (1, 40),
        "all_reduce(sparse": (2, of_sparse),
    }
    assert found["moved"] == [[0, 40], [0, 0]]
