"""Every app on 1, 2 and 3 ranks: what it prints, how it ends, and that it notices a wrong result."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import NoneType
from typing import Any

import numpy as np
import pytest
import readme_environment
from processes import finish

from hpcomm.apps._dataset import read

ROOT = Path(__file__).parent.parent.parent
APP = "hpcomm.apps."

# app: (its arguments here, patterns that its output must have; {n} stands for the number of ranks)
APPS = {
    "allreduce_demo": (
        ["--no-torch"],
        [
            r"all_reduce on {n} ranks?",
            r"^dtype +numpy +array\.array +bytearray$",
            r"^complex128 +(\d+) of \1 +- +-$",
            r"^4194304( +[\d.]+){{4}}$",
            r"checks on each of {n} ranks?, all passed",
        ],
    ),
    "p2p_ring": (["--count", "100000"], [r"a ring of {n} ranks?", r"^0 .*True$", "seen every rank"]),
    "softmax_demo": (
        [],
        [r"1000003 elements on {n} ranks?", r"^softmax .* nan$", r"inf$", "parts make the whole"],
    ),
    "groups_demo": ([], [r"in 'even'", r"in 'ends'", "Every circle added up its own members"]),
    "heat2d": (
        ["--size", "60", "--steps", "41"],
        [r"60 x 75 points, from step 0 to 41", r": {n} ranks? on 1 node", r"to the last bit"],
    ),
    "fft_demo": ([], [r"numbers on {n} ranks?", r"^slab .*\de[-+]\d\d$", r"^pencil ", "numpy.fft on rank 0"]),
    "matmul_demo": ([], [r"^on {n} ranks?", r"^SUMMA over", r"^tensor parallel over", "numpy on rank 0"]),
    "restart_demo": ([], [r"^{n} ranks? read step 2", r"one bit spoilt: step 1", "found what was saved"]),
    "algorithms_demo": (
        ["--bytes", "4k"],
        [
            r"on {n} ranks?",
            r"^all_reduce +double_tree +\d+ +[\d.]+ +\+\d+% +([\d.]+ +[-+]\d+%|- +-)$",
            r"^(\d+ predictions: off by|No predictions:)",
            "Every algorithm found",
        ],
    ),
    "gpu_demo": (
        ["--most", "2097152"],
        [r"arrays between ranks 0 and \d of {n}$", r"^\w+ +2097152 +[\d.]+$", "arrived as it was sent"],
    ),
    "overlap_demo": (
        ["--bytes", "400000"],
        [
            r"^rank +one by one ms",
            r"^ +compute #+\.* +[\d.]+ ms$",
            r"^0( +-?[\d.]+){{3}} +-?\d+%$",
            "sums are right",
        ],
    ),
    "pingpong": ([], [r"of {n}$", r"^16777216( +[\d.]+){{4}}$", "arrived as it was sent"]),
    "stats_demo": (
        [],
        [
            r"1800 rows of 4 columns",
            r"^temperature \(degC\) +10\.126 ",
            r"histogram of pressure",
            "numpy on rank 0 finds the same",
        ],
    ),
}


def missing(patterns: list[str], n: int, output: str) -> list[str]:
    return [p for p in patterns if not re.search(p.format(n=n), output, re.MULTILINE)]


# Runs apps one after another on the same ranks, each as `python -m` would: starting takes longest.
ALL = """
import json, pathlib, runpy, sys, tempfile
from contextlib import redirect_stderr, redirect_stdout
import hpcomm.checkpoint, hpcomm.fields.exchange
from hpcomm import Communicator
rank = hpcomm.world.rank
folder = pathlib.Path(__file__).parent
tempfile.tempdir = str(folder)
places = [Communicator, hpcomm.fields.exchange.Exchange, hpcomm.checkpoint]
for turn, (app, wrong, arguments) in enumerate(json.loads((folder / "apps.json").read_text())):
    kept = [dict(vars(place)) for place in places]
    exec(wrong)
    sys.argv = [app, *arguments]
    status = 0
    with open(folder / f"turn-{turn}-{rank}", "w") as said, redirect_stdout(said), redirect_stderr(said):
        try:
            runpy.run_module("hpcomm.apps." + app, run_name="__main__", alter_sys=True)
        except SystemExit as end:
            status = end.code
        print("status:", status or 0)
    for place, old in zip(places, kept):
        for name in set(vars(place)) - {"__dict__", "__weakref__"}:
            if name not in old:
                delattr(place, name)
            elif vars(place)[name] is not old[name]:
                setattr(place, name, old[name])
"""


def run_apps(
    n: int, apps: list[tuple[str, str, list[str]]], job: Any, folder: Path, python: str = sys.executable
) -> list[str]:
    """What each of (app, statements that spoil hpcomm, arguments) printed, one rank after another."""
    (folder / "all.py").write_text(ALL, encoding="utf-8")
    (folder / "apps.json").write_text(json.dumps(apps), encoding="utf-8")
    job(n, ["python", str(folder / "all.py")], timeout=100, python=python)
    left = [path for path in folder.glob("*-*") if path.is_dir()]
    assert not left, "an app leaves its temporary folder behind"
    return [
        "".join((folder / f"turn-{turn}-{rank}").read_text() for rank in range(n))
        for turn in range(len(apps))
    ]


@pytest.mark.timed
@pytest.mark.parametrize("n", [pytest.param(1, marks=pytest.mark.once), 3])
def test_every_app_finds_its_results_right(n: int, job: Any, tmp_path: Path) -> None:
    """On one rank with what README's installation brings, and no more."""
    python = readme_environment.made(tmp_path / "my environment") if n == 1 else sys.executable
    apps = [(app, "", arguments) for app, (arguments, _) in APPS.items()]
    every = run_apps(n, apps, job, tmp_path, str(python))
    for (_, patterns), said in zip(APPS.values(), every, strict=True):
        assert not missing(patterns, n, said), said
        assert said.count("status: 0\n") == n, said


@pytest.mark.once
def test_stats_demo_reads_csv_and_npy(job: Any, tmp_path: Path) -> None:
    rows = np.random.default_rng(0).normal(1e6, [1.0, 5.0], (100, 2))
    np.save(tmp_path / "rows.npy", rows)
    lines = ["city,warm,wet", *(f"x,{a!r},{b!r}" for a, b in rows.tolist()), "gap,,1.0"]
    (tmp_path / "rows.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    np.save(tmp_path / "ids.npy", np.full((4, 1), 10**17 + 1))
    files = ["rows.npy"], ["rows.csv"], ["ids.npy", "--bins", "5"]
    apps = [("stats_demo", "", [str(tmp_path / name), *options]) for name, *options in files]
    npy, csv, alike = run_apps(3, apps, job, tmp_path)
    assert "rows.npy: 100 rows of 2 columns" in npy
    assert "left out: 1 columns without numbers, 1 rows with gaps): 100 rows of 2 columns" in csv
    assert re.search(r"^wet +1e\+06 ", csv, re.MULTILINE), csv
    assert "[0, 0, 4, 0, 0]" in alike  # bins around large numbers that are all one
    assert all(said.count("status: 0\n") == 3 for said in (npy, csv, alike))
    done = job(2, ["python", "-m", APP + "stats_demo", str(tmp_path / "nowhere.csv")], expect=1)
    assert re.search(r"cannot read .*nowhere\.csv", done.stderr), done.stderr


@pytest.mark.once
def test_the_apps_draw(job: Any, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    np.save(tmp_path / "rows.npy", np.random.default_rng(0).normal(1e6, [1.0, 5.0], (100, 2)))
    draws = {
        "stats_demo": [str(tmp_path / "rows.npy"), "--picture"],
        "pingpong": ["--plot"],
        "gpu_demo": ["--most", "4096", "--plot"],
        "overlap_demo": ["--bytes", "4000", "--picture"],
    }
    run_apps(
        2, [(app, "", [*words, str(tmp_path / f"{app}.png")]) for app, words in draws.items()], job, tmp_path
    )
    for app in draws:
        assert (tmp_path / f"{app}.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.once
def test_heat2d_goes_on_from_its_checkpoint_on_other_ranks_and_draws(job: Any, tmp_path: Path) -> None:
    app = [
        "python",
        "-m",
        APP + "heat2d",
        "--size",
        "40",
        "--checkpoint",
        str(tmp_path / "cp"),
        "--every",
        "10",
    ]
    assert "saved: step 35 in" in job(4, [*app, "--steps", "35"]).stdout
    picture = tmp_path / "heat.png"
    draws = ["--picture", str(picture)] if importlib.util.find_spec("matplotlib") else []
    done = job(3, [*app, "--steps", "50", *draws])
    assert "from step 35 to 50" in done.stdout
    assert "to the last bit" in done.stdout
    assert not draws or picture.read_bytes().startswith(b"\x89PNG")
    wrong = [("heat2d", "", [*app[3:], *more]) for more in (["--steps", "40"], ["--size", "30"])]
    every = run_apps(2, [*wrong, ("restart_demo", "", [str(tmp_path / "cp")])], job, tmp_path)
    assert all(said.count("status: 2\n") == 2 for said in every), every
    assert "is at step 50 already: more --steps, or another folder" in every[0]
    assert "heat2d: error: another plate was saved: 'temperature' has shape (40, 50)" in every[1]
    assert "holds checkpoints of something else" in every[2]


TOO_LARGE = {
    "p2p_ring": ["--count", str(10**24)],
    "softmax_demo": ["--length", str(10**13)],
    "heat2d": ["--size", str(10**7)],
    "fft_demo": ["--shape", *["1000000"] * 3],
    "matmul_demo": ["--size", str(10**7)],
    "algorithms_demo": ["--bytes", "1000000g"],
    "overlap_demo": ["--bytes", str(10**15)],
}


NO_PLACE = [  # below the folder of the test; what is said
    ("pingpong", ["--plot", "nowhere/a.png"], "there is no folder"),
    ("pingpong", ["--plot", "a.txt"], "is no picture"),
    ("heat2d", ["--checkpoint", "file"], "heat2d: error: no folder to save in: "),
    ("restart_demo", ["file"], "restart_demo: error: no folder to save in: "),
]


@pytest.mark.once
def test_what_no_machine_holds_and_places_where_nothing_can_be_kept_are_refused_before_work_begins(
    job: Any, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    apps = [(app, "", arguments) for app, arguments in TOO_LARGE.items()]
    apps += [(app, "", [*options, str(tmp_path / name)]) for app, (*options, name), _ in NO_PLACE]
    every = run_apps(2, apps, job, tmp_path)
    large, elsewhere = every[: len(TOO_LARGE)], every[len(TOO_LARGE) :]
    for (app, (option, *_)), said in zip(TOO_LARGE.items(), large, strict=True):
        wanted = rf"^{app}: error: argument {option}: takes \d+ GB on a node that has \d+ GB: take a"
        assert len(re.findall(wanted, said, re.MULTILINE)) == 2, said
    for (_, _, words), said in zip(NO_PLACE, elsewhere, strict=True):
        assert words in said
        assert all(
            line.startswith(("usage:", " ", "status:")) or "error:" in line for line in said.splitlines()
        )
    assert all(said.count("status: 2\n") == 2 for said in every), every


@pytest.mark.once
def test_arrays_larger_than_a_job_may_have_are_refused(job: Any) -> None:
    """As Slurm and containers bound a job: the ranks share what their control group may have."""
    group = Path(f"/sys/fs/cgroup/memory/hpcomm-{os.getpid()}")
    try:
        group.mkdir()
        (group / "memory.limit_in_bytes").write_text("2000000000\n")
    except OSError as error:
        pytest.skip(f"may make no control group: {error}")
    try:
        command = f"echo $$ > {group}/cgroup.procs && exec {sys.executable} -m {APP}p2p_ring --count"
        said = job(2, ["sh", "-c", f"{command} 40000000"], expect=2).stderr
        # by both, but the first to end ends the other one after a second
        assert "takes 3.2 GB on a node where this job may have 2.0 GB: take a smaller number" in said
        job(2, ["sh", "-c", f"{command} 1000"])
    finally:
        group.rmdir()


TABLES = {  # what stats_demo makes of a file: its columns and rows, or the end of what it says
    "# from a station\na,b\n1,2\n\n3,4\n": (["a", "b"], [[1, 2], [3, 4]]),
    '"warm, wet","b\nc"\n"1","2"\n': (["warm, wet", "b\nc"], [[1, 2]]),
    "\ufeffa;b\r\n1;x # y\r\n2;3\r\n": (["a", "b"], [[2, 3]]),
    "1\t2\n3\tnan\n": (["column 0", "column 1"], [[1, 2]]),
    "a,b\n": "holds no row of numbers: it takes columns of them, below names or not",
    "a,b\n1,2\n3\n": "line 3 has 1 cells, line 1 has 2",
    "": "holds no row of numbers: it takes columns of them, below names or not",
    "a\n1e200\n": "holds numbers past 1e+150: their squares would be no float64",
}


@pytest.mark.once
@pytest.mark.parametrize("text", TABLES, ids=repr)
def test_stats_demo_reads_what_people_call_a_csv(text: str, tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text(text, encoding="utf-8", newline="")
    wanted = TABLES[text]
    if isinstance(wanted, str):
        with pytest.raises(SystemExit, match=re.escape(wanted) + "$"):
            read(str(tmp_path / "x.csv"))
    else:
        rows, names, _ = read(str(tmp_path / "x.csv"))
        assert (names, rows.tolist()) == wanted


@pytest.mark.once
@pytest.mark.parametrize("held", [b"", b"\x93NUMP", b"PK\x03\x04"], ids=repr)
def test_stats_demo_refuses_what_is_no_npy(held: bytes, tmp_path: Path) -> None:
    (tmp_path / "x.npy").write_bytes(held)
    with pytest.raises(SystemExit, match=r"stats_demo: cannot read .*x\.npy: "):
        read(str(tmp_path / "x.npy"))


@pytest.mark.once
def test_every_app_is_tried_and_introduced() -> None:
    folder = ROOT / "hpcomm/apps"
    apps = {path.stem for path in folder.glob("*.py") if not path.stem.startswith("_")}
    assert apps == {*APPS, "stats_demo"} == set(SABOTAGE)
    for introduction in (folder / "__init__.py", ROOT / "apps/README.md"):
        assert all(app in introduction.read_text(encoding="utf-8") for app in apps)


# What hpcomm would do wrongly, put in place before the app starts.
MULTIPLIES_FOR_SUM = """
real = Communicator.all_reduce
def all_reduce(self, x, op="sum", **others):
    return real(self, x, "prod" if op == "sum" else op, **others)
Communicator.all_reduce = all_reduce
"""
SENDS_NOTHING = """
def sendrecv(self, x, dest, source, *, out=None, **others):
    return x if out is None else out
Communicator.sendrecv = sendrecv
"""
MOVES_NOTHING = """
from hpcomm.fields.exchange import Exchange
Exchange.start = Exchange.wait = Exchange.__call__ = lambda self, timeout=None: None
"""
BELIEVES_ALL = """
from hpcomm.fields.files import checkpoints
checkpoints.checksum = lambda *_: 7
"""
SABOTAGE = {
    "allreduce_demo": (MULTIPLIES_FOR_SUM, ["--no-torch", "--no-timing"]),
    "softmax_demo": (MULTIPLIES_FOR_SUM, []),
    "stats_demo": (MULTIPLIES_FOR_SUM, []),
    "groups_demo": (MULTIPLIES_FOR_SUM, []),
    "algorithms_demo": (MULTIPLIES_FOR_SUM, ["--bytes", "64"]),
    "p2p_ring": (SENDS_NOTHING, []),
    "pingpong": (SENDS_NOTHING, []),
    "gpu_demo": (SENDS_NOTHING, ["--most", "4096"]),
    "overlap_demo": (MULTIPLIES_FOR_SUM, ["--bytes", "4000"]),
    "heat2d": (MOVES_NOTHING, ["--size", "30", "--steps", "5"]),
    "fft_demo": (MOVES_NOTHING, []),
    "matmul_demo": (MULTIPLIES_FOR_SUM, []),
    "restart_demo": (BELIEVES_ALL, []),
}


RECORDS = {  # what --json prints as lists of rows, each with its columns as keys
    "allreduce_demo": "checks", "softmax_demo": "results", "stats_demo": "columns", "groups_demo": "places",
    "algorithms_demo": "algorithms", "p2p_ring": "ring", "pingpong": "sizes", "gpu_demo": "paths",
    "overlap_demo": "saved", "fft_demo": "transforms", "matmul_demo": "products",
}  # fmt: skip


@pytest.mark.once
def test_a_wrong_result_makes_every_app_fail_and_is_in_its_record(job: Any, tmp_path: Path) -> None:
    apps = [(app, wrong, [*arguments, "--json"]) for app, (wrong, arguments) in SABOTAGE.items()]
    for app, said in zip(SABOTAGE, run_apps(2, apps, job, tmp_path), strict=True):
        text, _, other = said.partition("status: 1\n")
        assert other.endswith("status: 1\n"), app + said
        assert "ranks" not in other  # rank 1 prints nothing but Python's warnings
        record = json.loads(text[text.index("{\n") :])
        assert record["ranks"] == 2
        assert set(record["wrong"]) <= {"0", "1"}
        assert all(record["wrong"].values())
        rows = record.get(RECORDS.get(app, ""), [])
        assert bool(rows) == (app in RECORDS), text
        assert all(isinstance(each, (int, float, str, NoneType)) for row in rows for each in row.values())


@pytest.mark.once
def test_a_wrong_result_is_told_with_its_rank(job: Any) -> None:
    code = """
        import sys
        from hpcomm import Communicator
        Communicator.sendrecv = lambda self, x, *others, out=None, **more: x if out is None else out
        from hpcomm.apps.p2p_ring import main
        sys.exit(main(["--count", "5"]))
    """
    said = job(2, code, expect=1).stdout
    assert "WRONG on rank 0: shift: not the array of rank 1" in said
    assert "WRONG on rank 1: shift: not the array of rank 0" in said
    assert "every array came" not in said


def test_two_programs_in_one_job_exchange_an_array(job: Any) -> None:
    first, second = str(ROOT / "apps/hello_a.py"), str(ROOT / "apps/hello_b.py")
    done = job(1, ["python", first, ":", "-n", "1", "python", second])
    assert "hello_a, rank 0 of 2: sent [0. 1. 2. 3. 4.], got [0. 2. 4. 6. 8.] back" in done.stdout
    assert "hello_b, rank 1 of 2: got [0. 1. 2. 3. 4.]" in done.stdout


def test_one_of_two_programs_alone_says_what_is_missing(job: Any) -> None:
    done = job(1, ["python", str(ROOT / "apps/hello_a.py")], expect=1)
    assert "hello_b is not in this job" in done.stderr


def test_mpmd_config_starts_both_programs(tmp_path: Path) -> None:
    """With what README's installation brings, and no more."""
    launcher = Path(sys.prefix, "bin", "mpirun")
    if not launcher.exists():
        pytest.skip("no MPI wheel in this environment")
    version = subprocess.run([launcher, "--version"], capture_output=True, text=True, check=True).stdout
    option = ["--oversubscribe", "--app"] if "Open MPI" in version else ["-configfile"]
    python = readme_environment.made(tmp_path / "my environment")
    env = {
        "PATH": os.pathsep.join([str(python.parent), os.environ["PATH"]]),
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    }
    done = finish([launcher, *option, "mpmd_configs/hello.txt"], 60, ROOT, env)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "got [0. 2. 4. 6. 8.] back" in done.stdout
