"""What is said of a running job by a process that is none of its ranks."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from mistakes import MISTAKES
from processes import ROOT, finish, judge

from hpcomm.agree import last_calls
from hpcomm.errors import named
from hpcomm.job.process_role import who_has
from hpcomm.tools import where

JOB = """
import ctypes, json, os, signal, subprocess, sys, time
import numpy as np
from hpcomm import world as comm

def look(*words):
    env = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    command = [sys.executable, "-m", "hpcomm", *words]
    return subprocess.run(command, env=env, capture_output=True, text=True)

def exchange():
    comm.recv(np.empty(3), source=1 - comm.rank)

def hold():
    ctypes.PyDLL(None).sleep(60)  # keeps the interpreter lock

pids = comm.all_gather_object(os.getpid())
if comm.rank < 2:
    exchange()
if comm.rank == 3:
    os.kill(os.getpid(), signal.SIGSTOP)
if comm.rank == 4:
    hold()
for _ in range(200):
    done = look("where", str(os.getppid()), "--json")
    found = json.loads(done.stdout)
    ranks = found[0]["ranks"] if found else []
    silent = [rank["doing"] is None for rank in ranks]
    if found and found[0]["can_never_end"] and silent == [False] * 3 + [True] * 2:
        break
    time.sleep(0.5)
def answered(*words):
    for _ in range(100):  # a busy machine may keep a rank from answering in time
        told = look(*words, str(pids[1])).stdout
        if all(f"rank {rank}" in told for rank in range(3)):
            break
    return told

told = {"pids": pids, "jobs": found, "where": answered("where"), "all": answered("where", "--calls")}
told |= {"top": answered("top", "--once"), "none": look("where", "2").stderr}
print(json.dumps(told), flush=True)
os.kill(pids[3], signal.SIGCONT)
sys.exit(3)
"""


@pytest.mark.once
def test_another_process_sees_where_ranks_are_and_who_waits_for_whom(job: Any) -> None:
    told = json.loads(job(5, JOB, timeout=100, expect="failure").stdout)
    (found,) = told["jobs"]
    assert found["pids"] == sorted(told["pids"])
    assert found["can_never_end"] == [0, 1]
    assert [rank["pid"] for rank in found["ranks"]] == told["pids"]
    assert found["ranks"][3]["state"] == "stopped"
    first = found["ranks"][0]["doing"]
    assert first["text"] == "recv(float64 (3,), source=1) at device_call.py:12"
    held = "no answer: in code that holds the interpreter lock"
    assert f"rank 4 (process {told['pids'][4]}): {held}\n" in told["where"]
    assert re.search(r"job of \d+ processes here: \d.*\n  python\S* ", told["where"])
    spy = shutil.which("py-spy", path=Path(sys.executable).parent)
    lines = [line.partition(" at ")[0] for line in found["ranks"][4]["stack"]]
    assert lines == (["<module>", "hold"] if spy else [])
    assert [line.partition(" at ")[0] for line in first["stack"]] == ["<module>", "exchange"]
    assert f"rank 3 (process {told['pids'][3]}): no answer: stopped" in told["where"]
    line = "rank 1: recv(float64 (3,), source=0) at device_call.py:12 on 'world' waits for rank 0"
    assert line in told["where"]
    assert "rank 2: not in a call of hpcomm, in subprocess.run(...) at " in told["where"]
    assert re.search(
        r"\n  last calls of rank 0, rank 1, rank 2:\n    #1 .*all_gather_object\(\)", told["where"]
    )
    assert re.search(
        r"\n  last calls of rank 0, rank 1, rank 2:\n    #1 .*all_gather_object\(\)", told["all"]
    )
    rows = told["top"].splitlines()[4:]
    assert [row.split("  ")[0] for row in rows[:3]] == ["rank 0", "rank 1", "rank 2"]
    assert re.match(r"rank 1 +\d+ +\d+\.\d s +\d+ MiB +\d+ s  recv\(", rows[1])
    assert "no job that process 2 belongs to runs on this host" in told["none"]


MANY = """
import json, os, subprocess, sys
from hpcomm import world as comm
comm.barrier()
if comm.rank == 0:
    command = [sys.executable, "-m", "hpcomm", "where", "--json", str(os.getpid())]
    env = {name: os.environ[name] for name in ("PATH", "PYTHONPATH", "HOME") if name in os.environ}
    for looks in range(1, 100):  # it waits for an answer for less than a second
        [job] = json.loads(subprocess.run(command, env=env, capture_output=True, check=True).stdout)
        if all(rank["doing"] for rank in job["ranks"]):
            break
    privileges = open("/proc/self/status").read().partition("CapEff:")[2].split()[0]
    print(privileges, looks, sorted(rank["doing"]["who"] for rank in job["ranks"]))
comm.barrier()
"""


@pytest.mark.once
def test_a_user_without_privileges_sees_all_of_sixteen_ranks_by_one_look() -> None:
    plain = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"] if os.geteuid() == 0 else []
    launch = [sys.executable, "-m", "hpcomm", "run", "-n", "16", "--timeout", "150", "python", "-c", MANY]
    done = finish([*plain, *launch], 170)
    judge(done, 0)
    privileges, looks, ranks = done.stdout.split(maxsplit=2)
    assert (int(privileges, 16), ranks.strip()) == (0, str(sorted(f"rank {i}" for i in range(16))))
    assert int(looks) < 20  # a busy machine may keep a rank from answering in time


@pytest.mark.once
def test_ctrl_c_ends_top_without_a_traceback(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    def interrupt(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(where, "_jobs", lambda pid: [])
    monkeypatch.setattr(where.time, "sleep", interrupt)
    assert where.top([]) == 0
    assert capsys.readouterr().out.startswith("\x1b[H")


@pytest.mark.once
def test_who_gives_no_answer_is_known_by_what_its_launcher_has_said() -> None:
    spec = {"HPCOMM_PROGRAM": "air", "HPCOMM_PROGRAMS": "ocean=0-3 air=4-5"}
    assert who_has({"OMPI_COMM_WORLD_RANK": "5", **spec}) == "rank 1 of 'air'"
    assert who_has({"PMI_RANK": "5"}) == "rank 5"
    assert who_has({}) == ""


def test_the_last_calls_of_many_ranks_are_shown_if_asked_for_and_of_the_odd_ones_else() -> None:
    calls = {rank: (f"#{rank % 8} barrier()",) for rank in range(11)} | {11: ()}
    few, all_of_them = (last_calls.told(calls, named, most) for most in (last_calls.RANKS, 11))
    names = ["ranks 0, 8", "ranks 1, 9", "ranks 2, 10", *(f"rank {rank}" for rank in range(3, 8))]
    told = {name: [f"  last calls of {name}:", f"    #{n} barrier()"] for n, name in enumerate(names)}
    odd = [line for name in names[3:7] for line in told[name]]
    assert few == [*odd, "  others: hpcomm where --calls, while the job runs"]
    assert sorted(all_of_them) == sorted(line for lines in told.values() for line in lines)


def test_the_page_tells_at_which_level_each_kind_of_mistake_is_named() -> None:
    page = (ROOT / "docs/watching.md").read_text()
    rows = [row.split(" | ") for row in re.findall(r"^\| (.* \| (?:light|full|strict)) \|$", page, re.M)]
    told = [(name, row[-1]) for row in rows for name in row[0].split("; ")]
    assert sorted(told) == sorted((name, kind.level) for name, kind in MISTAKES.items())
    assert f"such a table of {len(MISTAKES)} kinds" in page


CIRCLES = """
import hpcomm
import numpy as np
from hpcomm import world as comm
pair, x = comm.split(comm.rank // 2, name="pair"), np.ones(3)
one, two = pair.dup("one"), pair.dup("two")
half = pair.split(pair.rank)
both = half.create_intercomm(0, pair, 1 - pair.rank, name="both")
for k in range(3):
    pair.sendrecv(x, dest=1 - pair.rank, source=1 - pair.rank)
if comm.rank < 2:
    (one if comm.rank else two).barrier()
elif comm.rank == 2:
    both.recv(x, source=0)
elif comm.rank == 3:
    pair.sendrecv(x, dest=0, source=0, sendtag=4)
elif comm.rank in (5, 7):
    one.recv(x, source=0)
elif comm.rank == 4:
    step = pair.plan("all_reduce", x)
    step.start(); step.wait()
else:
    hpcomm.Field(pair, (8,), halo=1).update_halo()
"""


@pytest.mark.once
def test_all_circles_are_named_with_communicators_and_kept_for_programs(job: Any, tmp_path: Path) -> None:
    env = {"HPCOMM_STALL_DIR": str(tmp_path)}
    said = job(8, CIRCLES, timeout=60, expect=1, env=env, options=("--stall", "12")).stderr
    assert said.count("these calls can never end") == 1, said
    rows = [
        "rank 0: barrier() at device_call.py:12 on 'two' waits for rank 1",
        "rank 1: barrier() at device_call.py:12 on 'one' waits for rank 0",
        "rank 2: recv(float64 (3,), source=0) at device_call.py:14 on 'both' waits for rank 3",
        "rank 3: sendrecv(float64 (3,), dest=0, sendtag=4, source=0) at device_call.py:16 on 'pair' ",
        "rank 4: wait(all_reduce(float64 (3,)), op='sum') at device_call.py:21 on 'pair' waits for rank 5",
        "rank 5: recv(float64 (3,), source=0) at device_call.py:18 on 'one' waits for rank 4",
        "rank 6: a planned exchange() at device_call.py:23 on 'pair' waits for rank 7",
    ]
    for row in rows:
        assert f"\n  {row}" in said, said
    for rank, last in enumerate(("two", "one")):
        assert re.search(
            rf"\n  last calls of rank {rank}:\n( {{4}}#.*\n)* {{4}}#1 barrier\(\) on '{last}'\n", said
        )
    (file,) = tmp_path.glob("hpcomm-stall-*.json")
    kept = json.loads(file.read_text())
    assert kept["can_never_end"] == [*range(8)]
    names = ["two", "one", "both", "pair", "pair", "one", "pair", "one"]
    assert [rank["comm"] for rank in kept["ranks"]] == names
