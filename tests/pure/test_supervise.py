"""Shared memory of jobs that are gone is told from that of others; a launcher that never ends is ended."""

import mmap
import os
import re
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest
from processes import finish

from hpcomm.errors import ConfigError
from hpcomm.job import mpi_shared_memory as segments
from hpcomm.job import own_files, tracebacks
from hpcomm.job.launcher import FIRST, begun, command_of, environ_of, words_of
from hpcomm.job.mpi_shared_memory import YOUNG_S, _agent, stale_segments
from hpcomm.job.supervise import settings


@pytest.fixture
def segment():
    """segment(name) -> a file of a page in /dev/shm, looking a minute old; gone when the test is."""
    made = []

    def make(name, age_s=60.0):
        path = Path("/dev/shm", f"{name}_hpcomm_test_{os.getpid()}")
        made.append(path)
        path.write_bytes(bytes(mmap.PAGESIZE))
        os.utime(path, (time.time() - age_s,) * 2)
        return path

    if not Path("/dev/shm").is_dir():
        pytest.skip("this system has no /dev/shm")
    yield make
    for path in made:
        path.unlink(missing_ok=True)


@pytest.mark.parametrize("name", ["mpich_shm_1", "sm_segment.1", "vader_segment.1"])
def test_a_segment_that_nobody_uses_is_stale(segment, name):
    path = segment(name)
    assert stale_segments()[path] == mmap.PAGESIZE


def test_a_segment_in_use_is_not_stale(segment):
    path = segment("mpich_shm_2")
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0):
        os.utime(path, (time.time() - 60.0,) * 2)
        assert path not in stale_segments()
    assert path in stale_segments()


def test_a_segment_just_made_may_belong_to_a_job_that_comes_up(segment):
    assert segment("mpich_shm_3", age_s=YOUNG_S / 2) not in stale_segments()


def test_files_of_others_are_none_of_our_business(segment):
    assert segment("data") not in stale_segments()


def test_a_launcher_of_open_mpi_whose_job_would_share_files_with_another_one_gets_another_number(tmp_path):
    """Whatever is there at first: reserved by another `hpcomm run`, or a file of a job that goes on."""
    host, uid = socket.gethostname().partition(".")[0], os.geteuid()
    launcher = tmp_path / "prterun"
    launcher.write_text("#!/bin/sh\necho $$\n")
    launcher.chmod(0o755)
    begun = subprocess.Popen([sys.executable, "-c", "pass"])
    begun.wait()
    taken: dict[int, socket.socket | Path] = {}
    for more in range(1, 41):
        number = segments.family(f"prterun-{host}-{begun.pid + more}")
        with suppress(OSError):  # another job has this one
            if more % 2:
                mark = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
                mark.bind(f"\0hpcomm-{uid}-{number:x}")
                taken[number] = mark
            else:
                file = Path(f"/dev/shm/sm_segment.{host}.{uid}.{number << 16 | 1:x}.0")
                file.touch(exist_ok=False)
                taken[number] = file
    code = "import sys; from hpcomm.job.supervise import supervise; sys.exit(supervise(sys.argv[1:], {}))"
    try:
        done = finish([sys.executable, "-c", code, launcher], 30, tmp_path)
        assert done.returncode == 0, done.stderr
        assert segments.family(f"prterun-{host}-{int(done.stdout)}") not in taken
    finally:
        for each in taken.values():
            each.unlink() if isinstance(each, Path) else each.close()


MAKER = """
import mmap, os, subprocess, sys, time
if len(sys.argv) == 2:  # the launcher
    rank = subprocess.run([sys.executable, *sys.orig_argv[1:], "rank"])
    sys.exit(9)
with open(sys.argv[1], "wb+") as file:
    file.truncate(4096)
    time.sleep(0.5)  # as where many share a core
    memory = mmap.mmap(file.fileno(), 4096)
    os.kill(os.getpid(), 19)
"""


def test_a_file_that_a_killed_rank_has_made_is_removed(segment):
    """The rank stops until we have seen that it is noticed, as one that MPI_Init keeps busy."""
    path = segment("mpich_shm_4")
    path.unlink()
    code = (
        "import os, sys, time; from hpcomm.job import mpi_shared_memory as segments, supervise\n"
        "from hpcomm.job.launcher import below\n"
        "environ = {**os.environ, **supervise.settings(os.environ)}\n"
        "launcher = supervise.start([sys.executable, '-c', *sys.argv[1:]], environ)\n"
        "while not segments._noticed: time.sleep(0.01)\n"
        "supervise.send(below(launcher.pid), 9); launcher.wait(); segments.remove_noticed()"
    )
    done = finish([sys.executable, "-c", code, MAKER, str(path)], 20)
    assert (done.returncode, path.exists()) == (0, False), done


def test_a_host_is_asked_as_the_launcher_reaches_it_but_for_a_password():
    proxy = ['"/usr/bin/hydra_pmi_proxy"', "--launcher", "ssh"]
    batch = ["-o", "BatchMode=yes"]
    assert [*_agent(["/usr/bin/ssh", "-x", "h2", *proxy])] == ["/usr/bin/ssh", *batch, "-x", "h2"]
    assert [*_agent(["my-ssh", "h2", *proxy])] == ["my-ssh", "h2"]
    assert not _agent(proxy)  # of the launcher's own host
    assert not _agent(["/usr/bin/prted"])


@pytest.mark.parametrize(
    ("end", "status", "said"),
    [
        ("os.kill(os.getpid(), 9)", -9, "rank 1 on .* was ended by signal 9 .SIGKILL."),
        ("os.kill(os.getpid(), 15)", -15, "rank 1 on .* was ended by signal 15 .SIGTERM."),
        ("os.killpg(0, 15)", 128 + 15, None),
        ("sys.exit(len(sys.stdin.read()))", 4, None),
    ],
)
def test_the_shell_above_a_rank_names_it_if_a_signal_ends_it(tmp_path, end, status, said):
    rank = begun([sys.executable, "-c", f"import os, sys; {end}"], "export RANK=$PMI_RANK", names=True)
    environ = {**os.environ, "PMI_RANK": "1", "HPCOMM_LIVING": str(tmp_path)}
    how = {"env": environ, "text": True, "timeout": 20, "start_new_session": True, "stderr": subprocess.PIPE}
    done = subprocess.run(rank, input="four", check=False, **how)
    assert done.returncode == status
    assert ("hpcomm run: " in done.stderr) == bool(said)
    assert said is None or re.search(said, done.stderr)
    assert [int(file.read_text()) for file in tmp_path.glob(FIRST)] == ([128 - status] if said else [])
    for names in (True, False):
        assert command_of(1, ["mpiexec", "-n", "2", *begun(["python", "a.py"], ":", names)]) == "python a.py"


LAUNCHER = """
import ctypes, os, subprocess, sys, threading
from pathlib import Path
ctypes.CDLL(None).prctl(15, b"{name}")
rank = subprocess.Popen([sys.executable, "-c", "pass"])  # nobody asks for its status
if {aborted}:
    Path(os.environ["HPCOMM_LIVING"], "first").write_text("7")
{waits}
"""
IN_A_LOCK = "lock = threading.Lock(); lock.acquire(); lock.acquire()"
FOR_EVENTS = "import selectors; selectors.DefaultSelector().select(2)"
FOR_A_THREAD = """
import time
def work():
    while time.thread_time() < 1.5:
        pass
thread = threading.Thread(target=work)
thread.start()
thread.join()
"""


def supervised(**how):
    """(status, what was said) of a launcher that waits after its rank has ended: for 0.6 s, not for 3."""
    source = LAUNCHER.format(**{"name": "prterun", "aborted": False, "waits": IN_A_LOCK} | how)
    code = (
        "import os, sys; from hpcomm.job import supervise;"
        "supervise._LOOK_S, supervise.LOCKED_S = 0.1, 0.6;"
        "command = [sys.executable, '-c', sys.argv[1]];"
        "print(supervise.supervise(command, {}, 20))"
    )
    done = finish([sys.executable, "-c", code, source], 40)
    return int(done.stdout), done.stderr


@pytest.mark.skipif(not Path("/proc/self/wchan").exists(), reason="this system does not say who waits where")
@pytest.mark.parametrize(("aborted", "status"), [(True, 7), (False, 128 + 9)])
def test_a_launcher_of_open_mpi_that_has_locked_itself_up_is_ended(aborted, status):
    said = supervised(aborted=aborted)
    assert said[0] == status
    assert "launcher waits for itself" in said[1]


def test_a_job_gets_a_home_where_there_is_none():
    """Services of the system have none, and Open MPI does not start without."""
    assert settings({})["HOME"].startswith("/")
    assert "HOME" not in settings({"HOME": "/home/x"})


def test_a_folder_for_what_is_short_lived_that_takes_no_files_is_refused(tmp_path):
    with (
        pytest.raises(ConfigError, match=r"no folder can be made in .*nowhere: No such file") as caught,
        own_files.folder({"TMPDIR": str(tmp_path / "nowhere")}),
    ):
        pass
    assert "set TMPDIR" in caught.value.hint


def test_a_process_has_words_and_an_environment_also_while_it_becomes_another_program():
    """The system shows none of both then, so a host of a job was not asked, and a rank was no member."""
    for i in range(100):
        process = subprocess.Popen(["sleep", "60"], env={"IS": "there"})  # returns while it does
        try:
            if i % 2:
                assert words_of(process.pid) == ["sleep", "60"]
            assert environ_of(process.pid) == {"IS": "there"}
        finally:
            process.kill()
            process.wait()


def test_the_next_job_removes_the_folders_of_killed_ones_and_no_others(tmp_path):
    place = {"TMPDIR": str(tmp_path)}
    leaves = "import os, sys; from hpcomm.job import own_files\nwith own_files.folder() as made: "
    for _ in range(2):
        finish([sys.executable, "-c", leaves + "(made / 'a').touch(); os._exit(0)"], 60, env=place)
    killed, young = tmp_path.iterdir()
    (tmp_path / "hpcomm-job-link").symlink_to(young)
    with own_files.folder(place) as living:
        for each in (killed, living):
            os.utime(each, (time.time() - 90,) * 2)
        with own_files.folder(place) as mine:
            assert {*tmp_path.iterdir()} == {young, living, mine, tmp_path / "hpcomm-job-link"}
    assert {*tmp_path.iterdir()} == {young, tmp_path / "hpcomm-job-link"}


@pytest.mark.timeout(60)
def test_a_file_in_a_shared_place_is_read_if_it_is_a_file_of_this_users_alone(tmp_path):
    file = tmp_path / "file"
    file.write_bytes(b"secret")
    file.chmod(0o600)
    assert own_files.read(file, 0o077) == b"secret"
    for mode in (0o640, 0o604, 0o620):
        file.chmod(mode)
        with pytest.raises(PermissionError, match="is not a file of this user's alone"):
            own_files.read(file, 0o077)
    os.mkfifo(tmp_path / "fifo", 0o600)
    with pytest.raises(PermissionError, match="is not a file"):
        own_files.read(tmp_path / "fifo")
    (tmp_path / "link").symlink_to(file)
    with pytest.raises(OSError, match="symbolic links"):
        own_files.read(tmp_path / "link")


RANK = """
import os
os.environ |= {"OMPI_COMM_WORLD_SIZE": "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "1"}
os.environ |= {"PMIX_NAMESPACE": f"prterun-here-{os.getppid()}@1", "PMIX_SERVER_TMPDIR": os.getcwd()}
os.environ.pop("HPCOMM_JOB", None)
from hpcomm.job import terminate
terminate.leave()
"""


@pytest.mark.skipif(not Path("/proc/self/wchan").exists(), reason="this system does not say who waits where")
def test_without_hpcomm_run_the_rank_that_aborts_leaves_behind_what_ends_a_locked_launcher(tmp_path):
    (tmp_path / "prterun").symlink_to(sys.executable)
    locked = LAUNCHER.replace('"pass"', "sys.argv[1]").replace("sys.executable", "sys.argv[2]")
    source = locked.format(name="prterun", aborted=False, waits=IN_A_LOCK)
    done = finish([tmp_path / "prterun", "-c", source, RANK, sys.executable], 20, tmp_path)
    assert done.returncode == -9
    assert "aborted, but its launcher waits for itself" in done.stderr


@pytest.mark.parametrize("waits", [FOR_EVENTS, FOR_A_THREAD], ids=["events", "a thread that works"])
def test_a_launcher_that_waits_for_what_will_come_is_left_alone(waits):
    assert supervised(waits=waits) == (0, "")


def test_the_status_of_an_abort_counts_where_the_launcher_crashes():
    assert supervised(aborted=True, waits="os.kill(os.getpid(), 11)")[0] == 7
    assert supervised(waits="os.kill(os.getpid(), 11)")[0] == 128 + 11


def test_another_launcher_may_wait_in_a_lock():
    waits = "threading.Lock().acquire(); threading.Event().wait(2)"
    assert supervised(name="srun", waits=waits) == (0, "")


def test_a_launcher_that_does_not_end_when_asked_is_asked_once(tmp_path):
    """Another three seconds would pass for each time."""
    asked = tmp_path / "asked"
    launcher = (
        "import pathlib, signal, sys, time\n"
        f"note = lambda *_: open({str(asked)!r}, 'a').write('asked ')\n"
        "signal.signal(signal.SIGTERM, note)\n"
        "print('up', flush=True)\n"
        "while True: time.sleep(0.1)\n"
    )
    code = (
        "import sys; from hpcomm.job.supervise import *;"
        "sys.exit(supervise([sys.executable, '-c', sys.argv[1]], {}, 20))"
    )
    command = [sys.executable, "-c", code, launcher]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "up\n"
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=30)
    assert process.returncode == 128 + signal.SIGTERM
    assert asked.read_text() == "asked "


def test_signals_that_come_while_the_launcher_is_started_end_it():
    code = (
        "import os, sys, threading; from hpcomm.job.supervise import *;"
        "started, ask = threading.Thread.start, lambda number: os.kill(os.getpid(), number);"
        "threading.Thread.start = lambda thread: (started(thread), ask(15), ask(2));"
        "sys.exit(supervise(['sleep', '60'], {}, 20))"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    assert (ended.returncode, ended.stderr) == (128 + signal.SIGTERM, "")


def test_files_that_a_launcher_reads_are_there_as_long_as_the_job():
    code = (
        "import os, sys; from hpcomm.job.supervise import *;"
        "from hpcomm.job.program_watch import Watch; from hpcomm.job.spec.programs import *;"
        "watch, file = Watch(RunSpec(Path(), '', {})), {'two.multiprog': '0 a\\n1 b\\n'};"
        "sys.exit(supervise([sys.executable, '-c', sys.argv[1], 'two.multiprog'], {}, 20, watch, file))"
    )
    launcher = "import sys; print(open(sys.argv[1]).read(), end=sys.argv[1])"
    ended = subprocess.run([sys.executable, "-c", code, launcher], capture_output=True, text=True, timeout=30)
    assert (ended.returncode, ended.stderr) == (0, "")
    *lines, file = ended.stdout.splitlines()
    assert lines == ["0 a", "1 b"]
    assert file.endswith("/two.multiprog")
    assert not Path(file).parent.exists()


def test_a_launcher_that_cannot_be_started_leaves_signals_that_end():
    code = (
        "import os, signal; from hpcomm.job.supervise import *\n"
        "try: supervise(['/nowhere'], {}, 20)\n"
        "except FileNotFoundError: signal.raise_signal(signal.SIGINT)"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    assert ended.returncode == 1
    assert "EndedBySignalError: 2" in ended.stderr


def test_tracebacks_are_printed_once_with_what_differs_and_the_frame_of_a_fault_of_ours(tmp_path, capsys):
    head, frame = "Traceback (most recent call last):", '  File "/home/a/train.py", line 7, in step\n    go()'
    ours = "".join(
        f'  File "{Path(tracebacks.__file__).parent}/x.py", line {n}, in f\n    g()\n' for n in (1, 2)
    )
    start = f"{head}\n{frame}\n{ours}"
    said = {0: f"{start}KeyError: 'x'"} | {
        rank: f"{start}hpcomm.errors.UsageError: rank {rank} has a\n  of shape {n}\n"
        f"rank {rank} stops\n  where: rank {rank} of 4"
        for rank, n in ((1, 3), (2, 4), (3, 3))
    }
    for rank, text in said.items():
        (tmp_path / f".traceback-{rank}-1").write_text(text)
        os.utime(tmp_path / f".traceback-{rank}-1", (rank, rank))
    tracebacks.say(tmp_path, 1e12)
    assert capsys.readouterr().err == ""
    tracebacks.say(tmp_path)
    told = "(--full-traceback shows"
    assert capsys.readouterr().err == (
        f"[rank 0] {head}\n{frame}\n  ... a frame of hpcomm {told} it)\n{''.join(ours.splitlines(True)[2:])}"
        f"KeyError: 'x'\n"
        f"[ranks 1-3] {head}\n{frame}\n  ... 2 frames of hpcomm {told} them)\n"
        "hpcomm.errors.UsageError: ranks 1-3 has a\n[ranks 1, 3]   of shape 3\n[rank 2]   of shape 4\n"
        "ranks 1-3 stops\n  where: ranks 1-3 of 4\n"
    )
    assert not [*tmp_path.iterdir()]


def _open_and_close(done: threading.Event) -> None:
    while not done.is_set():
        os.close(os.open(os.devnull, os.O_RDONLY))


def test_a_traceback_is_left_in_any_locale_but_not_where_somebody_else_reads_stderr(tmp_path, capsys):
    code = (
        "import os, sys, tempfile\n"
        "from hpcomm.job import tracebacks\n"
        "tracebacks.reader_of = lambda pid: os.getppid()\n"
        "left = [tracebacks.leave(sys.argv[1], text) for text in ('', 'KeyError: gr\\xf6\\udcff')]\n"
        "os.dup2(os.pipe()[1], 2)\n"
        "left.append(any(tracebacks.leave(sys.argv[1], 'KeyError: 2') for _ in range(200)))\n"
        "kept, os.environ['HPCOMM_TRACEBACK'] = tempfile.TemporaryFile(), 'full'\n"
        "os.dup2(kept.fileno(), 2)  # as pytest does\n"
        "print(*left, tracebacks.leave(sys.argv[1].replace('/3-', '/4-'), '4'))"
    )
    ascii_only = {"HPCOMM_TRACEBACK": "once", "LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    done = threading.Event()
    opens = threading.Thread(target=_open_and_close, args=(done,))  # as a launcher does meanwhile
    opens.start()
    try:
        ended = subprocess.run(
            [sys.executable, "-c", code, f"{tmp_path}/3-1"],
            capture_output=True,
            text=True,
            timeout=30,
            env={**os.environ, **ascii_only},
        )
    finally:
        done.set()
        opens.join()
    assert (ended.stdout, ended.stderr) == ("False True False True\n", "")
    tracebacks.say(tmp_path)
    said = "[rank 3] KeyError: gr\xf6\\udcff\n[rank 4] 4\n"
    assert capsys.readouterr().err == said


def test_a_traceback_of_another_host_is_printed_with_the_others_or_as_it_came(tmp_path, capfd, monkeypatch):
    monkeypatch.setenv("HPCOMM_TRACEBACK", "both")
    text = "Traceback:\n  one\nKeyError: gr\xf6\udcff\n"
    assert not tracebacks.leave("", text)
    assert not tracebacks.leave("", 4096 * "a", sends=True)
    assert capfd.readouterr().err == ""
    for rank in range(3):
        monkeypatch.setenv("PMI_RANK", str(rank))
        assert not tracebacks.leave("", text, sends=True)
    sent = capfd.readouterr().err.encode().rstrip()
    read, write = os.pipe()
    os.write(write, b"a prompt: " + sent.replace(b"one", b"othersne", 1))
    os.close(write)
    tracebacks.read(tmp_path, read, 2).join()
    os.close(read)
    rest = "KeyError: gr\xf6\\udcff\n"
    assert capfd.readouterr().err == f"a prompt: Traceback:\n  othersne\n{rest}"
    tracebacks.say(tmp_path)
    assert capfd.readouterr().err == f"[ranks 1-2] Traceback:\n  one\n{rest}"


LINE = "-" * 74 + "\n"
ABORT = f"{LINE}MPI_ABORT was invoked on rank 1 in communicator MPI_COMM_WORLD\n  Errorcode: 1\n{LINE}"
BECAUSE = f'{LINE}prterun has exited due to process rank 1 with PID 0 on node vm calling\n"abort".\n{LINE}\0'
MPICH = "Abort(1) on node 1 (rank 1 in comm 0): application called MPI_Abort(MPI_COMM_WORLD, 1) - process 1\n"
BANNERS = ABORT + BECAUSE + MPICH


@pytest.mark.parametrize("cut", [1, 7, 80, 1000])
@pytest.mark.parametrize(
    ("said", "shown"),
    [
        (f"hpcomm: rank 1: late\n{BANNERS}a\n", "hpcomm: rank 1: late\na\n"),
        (f"hpcomm: no\n{LINE}a table\n{LINE}{ABORT}b", f"hpcomm: no\n{LINE}a table\n{LINE}b"),
        (f"hpcomm: no\n{LINE}MPI_ABORT was invoked on rank 1\n", None),
        (f"{BANNERS}a\n", None),
    ],
    ids=["why", "tables", "cut off", "nobody said why"],
)
def test_what_launchers_say_of_an_abort_is_left_out_where_a_rank_has_said_why(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], said: str, shown: str | None, cut: int
) -> None:
    read, write = os.pipe()
    reader = tracebacks.read(tmp_path, read, 2)
    for at in range(0, len(said), cut):
        os.write(write, said[at : at + cut].encode())
        while select.select([read], [], [], 0)[0]:  # until it has been taken
            time.sleep(1e-4)
    os.close(write)
    reader.join()
    os.close(read)
    assert capfd.readouterr().err == (said if shown is None else shown)


def test_a_job_that_a_rank_starts_inherits_nothing_that_is_said_of_the_outer_one():
    outer = {"HPCOMM_SPEC": "/a.toml", "HPCOMM_ON_FAILURE": "continue", "HPCOMM_PROGRESS": "7"}
    shows = "import os; print(*(name for name in os.environ if name.startswith('HPCOMM_')))"
    starts = (
        "import sys; from hpcomm.job.supervise import supervise;"
        f"sys.exit(supervise([sys.executable, '-c', {shows!r}], {{}}))"
    )
    done = finish(
        [sys.executable, "-c", starts], 60, env={**outer, "HPCOMM_JOB": "1-2", "HPCOMM_CHECK": "full"}
    )
    said = {*done.stdout.split()}
    assert said.isdisjoint(outer), done
    assert {"HPCOMM_CHECK", "HPCOMM_JOB", "HPCOMM_LIVING"} <= said, done
