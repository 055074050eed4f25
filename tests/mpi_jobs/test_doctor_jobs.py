"""The doctor on the MPI at hand, and on some that are broken on purpose."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from processes import finish, judge

from hpcomm.job.cores import here
from hpcomm.job.installation import VENDORS, find_mpi
from hpcomm.node import native

ROOT = Path(__file__).parents[2]


def doctor(*words, **environ):
    return finish([sys.executable, "-m", "hpcomm", "doctor", *words], 100, env=environ)


def test_a_working_mpi_is_healthy_and_known_by_name():
    done = doctor("--json")
    report = json.loads(done.stdout)
    assert (done.returncode, report["healthy"]) == (0, True), report["findings"]
    found = find_mpi()
    assert report["mpi"]["vendor"] == VENDORS[found.vendor]
    assert report["launcher"] == {"path": found.launcher, "vendor": VENDORS[found.vendor]}
    assert report["mpi"]["size"] == 2
    assert report["mpi"]["threads"] == "multiple"
    assert Path(report["mpi"]["library"]).is_file()
    assert isinstance(report["mpi"]["reads_memory_of_peers"], bool)
    assert report["packages"]["mpi4py"]


@pytest.mark.once
def test_the_text_says_the_same_to_people():
    text = doctor().stdout
    assert native.core() is None or "\nnode core     used\n" in text
    assert VENDORS[find_mpi().vendor] in text
    assert find_mpi().launcher in text
    assert text.endswith("\nhealthy\n")


@pytest.mark.parametrize("n", [1, 3])
def test_under_a_launcher_rank_0_shows_who_is_where(job, n):
    done = job(n, ["python", "-m", "hpcomm", "doctor", "--json"])
    report = json.loads(done.stdout)  # one rank spoke, and only one
    assert report["mpi"]["size"] == n
    [node] = report["nodes"]
    assert node["ranks"] == list(range(n))
    assert len(node["bound"]) == n
    assert ("ranks share" in str(report["findings"])) == (n > node["cores"])


@pytest.mark.skipif(not here().binds or here().cores < 2, reason="cores that others use too, or one")
def test_ranks_are_bound_to_their_cores_unless_the_user_says_otherwise(job):
    n = here().cores
    for options, each in (([], 1), (["--bind", "none"], n)):
        report = json.loads(job(n, ["python", "-m", "hpcomm", "doctor", "--json"], options=options).stdout)
        assert [len(cores) for cores in report["nodes"][0]["bound"]] == [each] * n


WITHOUT = """
import os
if os.environ.get("PMI_RANK", os.environ.get("OMPI_COMM_WORLD_RANK")) == "1":
    os.environ["HPCOMM_NODE"] = "off"
from hpcomm.__main__ import main
main(["doctor"])
"""


@pytest.mark.once
@pytest.mark.skipif(native.core() is None, reason="there is no node core")
def test_the_doctor_says_which_rank_does_without_the_node_core(job):
    done = job(2, WITHOUT)
    assert "\nnode core     not used: rank 1: HPCOMM_NODE=off\n" in done.stdout
    assert "no node core" not in done.stderr  # nobody who wants it is without


UNBUILT = """
import sys
sys.modules["hpcomm.node._native.core"] = None  # as if it had not been built
from hpcomm import world
total = world.all_reduce(1)
print(total) if world.rank == 0 else None
"""


@pytest.mark.once
def test_one_rank_says_that_the_node_core_could_be_there(job):
    done = job(3, UNBUILT)
    assert done.stdout == "3\n"
    assert done.stderr.count("hpcomm: no node core") == 1, done.stderr
    assert "this installation was built without it" in done.stderr
    assert "pip install --force-reinstall" in done.stderr
    assert "no node core" not in job(2, UNBUILT, env={"HPCOMM_NODE": "off"}).stderr
    stale = 'sys.modules["hpcomm.node._native.core"] = type(sys)("core")'
    done = job(2, UNBUILT.replace("from hpcomm", f"{stale}\nfrom hpcomm", 1))
    assert done.stdout == "2\n"
    assert "it was built from the sources of another version" in done.stderr
    wrong = job(2, UNBUILT, env={"HPCOMM_NODE": "no"}, expect=1)
    assert "ConfigError: HPCOMM_NODE is 'no'" in wrong.stderr


@pytest.fixture
def with_shared_memory():
    """with_shared_memory(options) -> words before a command that is to find such a /dev/shm."""

    def words(options):
        script = 'mount -t tmpfs -o "$0" none /dev/shm && exec "$@"'
        return ["unshare", "-rm", "sh", "-c", script, options]

    try:
        able = subprocess.run([*words("size=4k"), "true"], capture_output=True, timeout=20).returncode == 0
    except FileNotFoundError:
        able = False
    if not able:
        pytest.skip("this user may not mount a /dev/shm of his own here")
    return words


@pytest.mark.parametrize(
    ("options", "said"), [("ro", "takes no files"), ("size=1m", "has 1 MiB free")], ids=str
)
def test_too_little_shared_memory_is_the_first_problem(with_shared_memory, options, said):
    done = finish(
        [*with_shared_memory(options), sys.executable, "-m", "hpcomm", "doctor", "--json"], limit_s=100
    )
    first = json.loads(done.stdout)["findings"][0]
    assert (done.returncode, first["level"]) == (1, "problem")
    assert said in first["what"]
    assert first["hint"]


@pytest.mark.parametrize("options", ["ro", "size=64k", "size=16m"])
def test_a_job_does_without_shared_memory_where_its_mpi_does_and_is_told_where_not(
    with_shared_memory, options
):
    """UCX posix crashes at 16 MiB, which are enough without it."""
    code = "from hpcomm import world; assert world.all_reduce(1) == 2; world.broadcast_object(bytes(300_000))"
    command = [sys.executable, "-m", "hpcomm", "run", "-n", "2", "--timeout", "50", "python", "-c", code]
    does = find_mpi().vendor == "openmpi" or options == "size=16m"
    done = finish([*with_shared_memory(options), *command], limit_s=60)
    assert (done.returncode == 0) == does, done.stderr
    if not does:
        why = "takes no files" if options == "ro" else "has 65536 bytes free"
        assert f"ConfigError: MPICH crashes here: /dev/shm {why}, and its ranks share a file" in done.stderr
        assert "  try:   " in done.stderr
        assert "Fatal error" not in done.stderr


@pytest.mark.parametrize(
    ("limit", "said"),
    [
        ("-v 700000", "there is no address space left for it (ulimit -v)"),
        ("-f 10000", "no file may be as large as it is (ulimit -f)"),
        ("-f 2048", "no file may be larger than 1048576 bytes (ulimit -f)"),
    ],
)
def test_a_limit_of_the_shell_is_named_and_not_taken_for_a_full_memory(limit, said):
    refused = find_mpi().vendor == "mpich" and limit == "-f 2048"  # Open MPI goes by TCP
    if not refused and limit == "-f 2048":
        said = "no file may be as large as it is (ulimit -f)"
    code = "from hpcomm import world; assert world.all_reduce(1) == 2"
    command = [sys.executable, "-m", "hpcomm", "run", "-n", "2", "--timeout", "50", "python", "-c", code]
    done = finish(["sh", "-c", f'ulimit {limit}; exec "$@"', "sh", *command], limit_s=60)
    judge(done, 1 if refused else 0)
    assert said in done.stderr
    assert "no room in /dev/shm" not in done.stderr


FILLED = """
import os

import numpy as np

from hpcomm import world

world.all_reduce(np.ones(2))
if world.rank == 0:
    file = os.open("/dev/shm/others", os.O_WRONLY | os.O_CREAT)
    try:
        while True:
            os.write(file, bytes(4096))
    except OSError:
        pass
world.barrier()
made = [world.dup() for _ in range(30)]
for comm in made:
    assert comm.all_reduce(np.ones(2)).tolist() == [2, 2]
    assert comm.all_reduce(np.ones(3000))[-1] == 2
    assert comm.broadcast_object(bytes(300_000)) == bytes(300_000)
has_node = [comm.context.node is not None for comm in made]
assert has_node == sorted(has_node, reverse=True) and not has_node[-1], has_node
"""


def test_shared_memory_that_others_fill_meanwhile_kills_nobody(with_shared_memory):
    """To touch a page that cannot be had is SIGBUS."""
    command = [sys.executable, "-m", "hpcomm", "run", "-n", "2", "--timeout", "50", "python", "-c", FILLED]
    judge(finish([*with_shared_memory("size=12m"), *command], limit_s=60), 0)


@pytest.mark.once
def test_what_hpcomm_itself_refuses_is_a_problem_with_its_own_next_step():
    done = doctor("--json", HPCOMM_CHECK="loud")
    [problem] = [entry for entry in json.loads(done.stdout)["findings"] if entry["level"] == "problem"]
    assert problem["what"] == "hpcomm does not start: there is no check level 'loud'"
    assert problem["hint"] == "one of off, light, full, values, strict (HPCOMM_CHECK, check=)"


@pytest.mark.once
def test_a_missing_library_is_a_problem_with_a_next_step():
    done = doctor("--json", MPI4PY_LIBMPI="/nowhere/libmpi.so")
    problems = [entry for entry in json.loads(done.stdout)["findings"] if entry["level"] == "problem"]
    assert done.returncode == 1
    assert "MPI does not come up" in problems[0]["what"]
    assert "/nowhere/libmpi.so" in problems[0]["what"]
    assert "pip install" in problems[0]["hint"]


@pytest.mark.once
@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("import os; os.abort()", "killed by SIGABRT"),
        ("raise RuntimeError('cannot load MPI library')", "cannot load MPI library"),
    ],
)
def test_an_mpi_that_crashes_does_not_take_the_doctor_along(tmp_path, code, said):
    (tmp_path / "mpi4py").mkdir()
    (tmp_path / "mpi4py" / "__init__.py").write_text(code)
    done = doctor(PYTHONPATH=f"{tmp_path}{os.pathsep}{ROOT}")
    assert done.returncode == 1
    assert "problem: MPI does not come up: " in done.stdout
    assert said in done.stdout
