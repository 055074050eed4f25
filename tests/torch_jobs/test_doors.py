"""How ranks come to torch.distributed, or pass by: without a word of "mpi", alone, by arguments, by torchrun.

A start of ranks that import torch costs seconds: what one start can show is shown in one.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import processes
import pytest

import hpcomm.job.installation as installation
from hpcomm.tools import diff

ROOT = Path(__file__).parents[2]
PATH = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
NODE = (pytest.param("on", marks=pytest.mark.once), "off")  # with the node core they need no MPI
LAUNCHERS = ("OMPI_", "PMI_", "PMIX_", "HPCOMM_", "TORCHELASTIC_", "RANK", "WORLD_SIZE", "LOCAL_", "MASTER_")


def start(*command: str | Path, **variables: str) -> subprocess.Popen[str]:
    """Run Python with words, in an environment that tells nothing of ranks but variables."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(LAUNCHERS)}
    return subprocess.Popen(
        [sys.executable, "-W", "ignore", *map(str, command)],
        env={**env, "PYTHONPATH": PATH, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def said(process: subprocess.Popen[str]) -> str:
    text: str = processes.said(process, 90)[0]
    return text


@pytest.fixture
def can_join() -> bool:
    """Whether this MPI's ranks find each other without its launcher."""
    library = installation.library_folder()
    assert library is not None
    return installation.vendor_in(library) == "mpich"


def free_port() -> str:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return str(free.getsockname()[1])


FEW = """
import os, re, sys
if os.environ.get("HPCOMM_NODE") != "off" and sys.argv[1:]:
    sys.modules["mpi4py.MPI"] = None  # as where there is no MPI
import torch, torch.distributed as dist
import hpcomm.torch_backend
from torch.distributed import distributed_c10d as c10d

def ours():
    return [name for name, what in vars(c10d).items() if "hpcomm" in str(getattr(what, "__code__", ""))]

def total():
    dist.all_reduce(x := torch.ones(1))
    return dist.get_world_size(), x.item()

def refused(**how):
    try:
        dist.init_process_group(**how)
    except hpcomm.ConfigError as error:
        print(str(error).replace("\\n", " "), flush=True)
    else:
        print("nothing was said", how, flush=True)

def forked(*sizes):
    "Go on as each rank of jobs of these sizes, (job, rank); torch is loaded once, by who tells how they end."
    ranks = {}
    for job, size in enumerate(sizes):
        for rank in range(size):
            pid = os.fork()
            if pid == 0:
                return job, rank
            ranks[pid] = job, rank
    while ranks:
        pid, status = os.wait()
        os.write(1, f"\\nended {ranks.pop(pid)} {os.waitstatus_to_exitcode(status)}\\n".encode())
    sys.exit()
"""

ALONE = (
    FEW
    + """
dist.init_process_group("gloo", init_method="tcp://127.0.0.1:0", rank=0, world_size=1)
dist.destroy_process_group()
print("before:", dist.is_mpi_available(), ours(), [m for m in sys.modules if m.startswith("mpi4py")])
refused(backend="mpi", init_method="tcp://127.0.0.1:1")
refused(backend="mpi", rank=0)
for backend in ("cpu:mpi", "mpi", "gloo", "mpi", "cpu:gloo", "cpu:mpi,cuda:mpi"):
    dist.init_process_group(backend)
    print(backend, *total(), dist.is_mpi_available())
    dist.destroy_process_group()
refused(backend="mpi", init_method="tcp://127.0.0.1:1", rank=1, world_size=2)
"""
)


@pytest.mark.once
def test_a_process_of_its_own_has_nothing_of_mpi_until_it_says_so_and_is_one_rank_then() -> None:
    """Backends follow each other; and nothing that says there are others makes silent worlds of one."""
    lines = said(start("-c", ALONE)).splitlines()
    assert lines[0] == "before: False [] []"
    assert lines[1].startswith("init_method='tcp://127.0.0.1:1' says where ranks meet, but not which ranks")
    assert lines[2].startswith("rank= and world_size= say which rank this is or how many there are, but not")
    backends = "cpu:mpi", "mpi", "gloo", "mpi", "cpu:gloo", "cpu:mpi,cuda:mpi"
    assert lines[3:9] == [f"{backend} 1 1.0 True" for backend in backends]
    assert "say rank 1 of 2, MPI says rank 0 of 1: it was started for one rank" in lines[9]
    assert len(lines) == 10


JOIN = (
    FEW
    + """
count, port = int(sys.argv[1]), int(sys.argv[2])
print("available:", dist.is_mpi_available(), flush=True)
_, rank = forked(count)
try:
    dist.init_process_group("mpi", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
except hpcomm.ConfigError as error:
    print(str(error).replace("\\n", " "), flush=True)
else:
    numbered = [name for name in os.environ if name.startswith("PMI")]
    ours = hpcomm.from_torch().size
    print(f"joined {dist.get_rank()} {total()} {numbered}, from_torch: {ours}", flush=True)
"""
)


def test_without_the_core_ranks_by_arguments_join_by_an_mpi_or_say_what_to_type(can_join: bool) -> None:
    port = free_port()
    # Who cannot join says so without the others: rank 0 alone would wait for them in the store.
    text = said(start("-c", JOIN, str(1 + can_join), port, HPCOMM_NODE="off"))
    assert "available: False" in text
    if can_join:
        assert all(f"joined {rank} (2, 2.0) [], from_torch: 2" in text for rank in range(2)), text
    else:
        assert re.search(
            r"no MPI launcher started these 2 ranks \(rank= and world_size=\)\. They need MPI, as .*"
            r"HPCOMM_NODE=off, and this MPI needs its",
            text,
        )
        assert re.search(r"try: +mpirun -n 2 python", text)
        assert "or init_process_group('gloo')" in text
        assert "TORCH_DEVICE_BACKEND_AUTOLOAD=0 keeps hpcomm out" in text


SPAWN = (
    FEW
    + """
import torch.multiprocessing as mp
from hpcomm.agree import doing
from hpcomm.node import segment

def run(rank, address, url, file):
    numbers = dict(rank=rank, world_size=2)
    for backend, how in (
        ("mpi", dict(init_method=address, **numbers)),
        ("cpu:hpcomm", dict(init_method=f"{url}?rank={rank}&world_size=2")),
        ("hpcomm", dict(init_method=file, **numbers)),
    ):
        found = dist.is_mpi_available()
        dist.init_process_group(backend, **how)
        numbered = [name for name in os.environ if name.startswith("PMI")]
        print(f"{backend} rank {rank} {total()} {found} {numbered}\\n", end="", flush=True)
        x = torch.ones(1)
        if rank == 0:
            dist.recv(x, 1)
        else:
            while not (told := doing.ask(segment.current.regions[:1])[0]).waited_s:
                pass
            print(f"{told.who}: {told.text}, {told.others}\\n", end="", flush=True)
            dist.send(x, 0)
        dist.destroy_process_group()
    dist.init_process_group("mpi", init_method=f"{file}2", **numbers)
    try:
        hpcomm.from_torch()
    except hpcomm.ConfigError as error:
        print(f"from_torch: {error.what}\\n", end="", flush=True)

if __name__ == "__main__":
    mp.spawn(run, args=(sys.argv[1:]), nprocs=2)
"""
)


@pytest.mark.once
def test_spawned_ranks_meet_at_an_address_and_in_a_file(tmp_path: Path) -> None:
    """As docs/torch_tutorials.md says; most of its other rows are tests of this file. Without any MPI."""
    program = tmp_path / "spawned.py"
    program.write_text(SPAWN)
    addresses = [f"tcp://127.0.0.1:{free_port()}" for _ in range(2)]
    text = said(start(program, *addresses, f"file://{tmp_path}/meet"))
    for rank in range(2):
        assert f"mpi rank {rank} (2, 2.0) False []" in text, text
        assert f"hpcomm rank {rank} (2, 2.0) True []" in text, text
        assert f"cpu:hpcomm rank {rank} (2, 2.0) True []" in text, text
    assert text.count("from_torch: the ranks of this job") == 2, text
    assert "rank 0: recv(float32 (1,), source=1, tag=0) at spawned.py:" in text  # what a look at it is told


RANK = (
    "import atexit, os\n"
    "atexit.register(lambda: os.write(1, f'handler {total()}\\n'.encode()))\n"
    + FEW
    + """
import signal, threading

def listens():  # on which addresses beside the loopback one
    files = [f"/proc/self/fd/{n}" for n in os.listdir("/proc/self/fd")]
    mine = {os.readlink(file) for file in files if os.path.lexists(file)}
    rows = [line.split() for kind in ("tcp", "tcp6") for line in list(open(f"/proc/self/net/{kind}"))[1:]]
    rows = [row for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in mine]
    return [row[1] for row in rows if not row[1].startswith("0100007F")]

attempt, rank = os.environ["TORCHELASTIC_RESTART_COUNT"], os.environ["RANK"]
print("available:", dist.is_mpi_available(), flush=True)
dist.init_process_group("mpi", init_method="env://")
memory = re.findall("/dev/shm/(mpich_shm_[0-9a-f]+_0|hpcomm-\\\\S+)", open("/proc/self/maps").read())
there = [name for name in set(memory) if os.path.exists(f"/dev/shm/{name}")]
print(f"attempt {attempt} rank {rank} memory {memory[0]} there {there}\\n", end="", flush=True)
print(f"listens {listens()}\\n", end="", flush=True)
for i in range(10**9 * (attempt == "0" and len(sys.argv) > 1)):
    dist.all_reduce(torch.ones(3))
    if i == 20 and rank == "1":
        exec(sys.argv[1])
print(f"sum {total()}\\n", end="", flush=True)
for backend in ("gloo", "cpu:mpi"):
    dist.destroy_process_group()
    dist.init_process_group(backend)
    print(f"{backend} {total()}\\n", end="", flush=True)
"""
)


@pytest.mark.parametrize("node", NODE)
def test_torchruns_at_once_and_again_after_a_crash(tmp_path: Path, can_join: bool, node: str) -> None:
    """Ranks find each other, without MPI or by MPICH, and without a name that another job or attempt has.

    However rank 1 leaves while rank 0 goes on, every process ends. More ways: test_endings.py.
    """
    if node == "off" and not can_join:
        pytest.skip("this MPI's ranks need its own launcher")
    program = tmp_path / "rank_supervisor.py"
    program.write_text(RANK)
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    again = start(*torchrun, "--max-restarts", "1", program, "os.kill(os.getpid(), 9)", HPCOMM_NODE=node)
    way, rank, status = ("sys.exit(0)", 0, 1) if node == "on" else ("raise ValueError(3)", 1, 1)
    once = start(*torchrun, program, way, HPCOMM_NODE=node)
    text, of_once = said(again), said(once)
    assert [text.count(f"{word} (2, 2.0)") for word in ("sum", "gloo", "cpu:mpi")] == [2, 2, 2], text
    assert text.count("handler (2, 2.0)\n") == 2, text
    assert once.returncode == 1, of_once
    exits = {int(r): int(c) for r, c in re.findall(r"rank +: (\d) .*\n +exitcode +: (-?\d+)", of_once)}
    # torchrun ends the other one if rank 0 was quicker
    assert exits.get(rank) in {status, *([-15] if exits.get(0) == 1 else [])}, of_once
    found = set()
    for told in (text, of_once):
        assert re.search(r"rank +(: )?1\b", told), told  # torchrun may be quicker than rank 0
        assert told.count("application called MPI_Abort") <= 2, told
        assert "available: False" not in told
        assert set(re.findall(r"listens (.*)", told)) == {"[]"}  # on no network
        found |= set(re.findall(r"attempt (\d) rank \d memory (\S+) there \[\]", told))
    assert len(found) == len({name for _, name in found}) == 3, found  # one of them has begun twice
    assert not [name for _, name in found if Path("/dev/shm", name).exists()]


BY_HAND = (
    FEW
    + """
import signal, time
ways = sys.argv[2:]
job, rank = forked(2, 2, 3)
file = f"file://{sys.argv[1]}{job}"
dist.init_process_group("hpcomm", init_method=file, rank=rank, world_size=2 + job // 2)
dist.barrier()
if rank == 2:
    os.kill(os.getpid(), signal.SIGSTOP)
while rank == 0:
    time.sleep(1)
time.sleep(0.2)
exec(ways[job])
"""
)


@pytest.mark.once
def test_ranks_that_nobody_supervises_end_together(tmp_path: Path) -> None:
    """Rank 0, in no call, leaves after rank 1; rank 2, which is stopped, is killed."""
    ways = "raise ValueError(3)", "os._exit(7)", "os.kill(os.getpid(), signal.SIGKILL)"
    text = said(start("-c", BY_HAND, tmp_path / "meet", *ways))
    for words in ("ValueError: 3", "leaves by os._exit(7)", "rank 1 was killed"):
        assert words in text, text
    ended = re.findall(r"^ended \((\d), (\d)\) (-?\d+)", text, re.MULTILINE)
    statuses = [int(status) for *_, status in sorted(ended)]
    assert statuses == [1, 1, 7, 7, 1, -9, -9], text


CIRCLE = (
    FEW
    + """
by_file = {}
if sys.argv[1:]:
    by_file = {"init_method": sys.argv[1], "rank": forked(2)[1], "world_size": 2}
dist.init_process_group("mpi", **by_file)
x, other = torch.ones(50_000), 1 - dist.get_rank()
going = dist.isend(x, other, tag=7)  # which nobody receives
if other:
    dist.recv(x, other)
else:
    for work in dist.batch_isend_irecv([dist.P2POp(dist.irecv, x, other)]):
        work.wait()
"""
)


@pytest.mark.once
def test_receives_that_wait_for_each_other_are_named_and_end_after_the_time_that_was_set(
    tmp_path: Path,
) -> None:
    """With MPI and without it."""
    program = tmp_path / "circle.py"
    program.write_text(CIRCLE)
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    ways = ("-m", "hpcomm", "run", "-n", "2", "python", program), (program, f"file://{tmp_path}/meet")
    jobs = [start(*way, HPCOMM_TIMEOUT="12", HPCOMM_STALL_DIR=str(tmp_path), **root) for way in ways]
    recv = r"recv\(float32 \(50000,\), source=%d, tag=0\) at circle.py:\d+ on 'world'"
    rows = "".join(rf"  rank {r}: {recv % (1 - r)} waits for rank {1 - r}\n" for r in range(2))
    for job in jobs:
        text = said(job)
        assert re.search(rf"can never end, since each waits for the next one:\n{rows}", text), text
        assert re.search(
            r"  rank ([01]): a message of tag 7 from rank (?!\1)[01] is there, which it does not take\n"
            r"  try:   .*\n  stacks: .*\n  --stall 12 \(HPCOMM_TIMEOUT\) ends the job",
            text,
        ), text
        statuses = re.findall(r"^ended \(0, \d\) (-?\d+)", text, re.MULTILINE) or [str(job.returncode)]
        assert set(statuses) == {"1"}, text


PRINTED = (
    FEW
    + """
dist.init_process_group("hpcomm")
part = dist.new_group([1])
if dist.get_rank() == 1:
    dist.all_reduce(torch.ones(3) + int(sys.argv[1] == "other"), group=part)
dist.barrier()
"""
)


@pytest.mark.once
def test_fingerprints_without_mpi_are_by_ranks_of_the_job(tmp_path: Path, capsys: Any) -> None:
    """Also where the first call of a rank is one of a part of them."""
    program = tmp_path / "printed.py"
    program.write_text(PRINTED)
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", program)
    folders = [str(tmp_path / name) for name in ("once", "other")]
    jobs = [start(*torchrun, Path(folder).name, HPCOMM_FINGERPRINT=folder) for folder in folders]
    texts = [said(job) for job in jobs]
    assert [job.returncode for job in jobs] == [0, 0], texts
    assert diff.main(folders) == 1
    text = capsys.readouterr().out
    assert "A: 2 ranks, no MPI, 3 calls\n" in text
    assert "first difference: call 1 of rank 1\n" in text
    assert "  why    rank 1 gave other values: look before this call\n" in text


READS = """
import os, sys
numbers = [os.environ[name] for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE")]
print("early", *numbers, sys.argv[1], flush=True)
import torch, torch.distributed as dist
for backend in ("gloo", "mpi"):
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group(backend, rank=rank, world_size=size)
    dist.all_reduce(x := torch.ones(1))
    print(backend, dist.get_rank() == rank, x.item(), flush=True)
    dist.destroy_process_group()
"""


def test_one_word_sets_what_torchrun_sets_under_mpirun(tmp_path: Path) -> None:
    """`python -m hpcomm.torch_backend`; hpcomm run needs no such word."""
    program = tmp_path / "reads.py"
    program.write_text(READS)
    library = installation.find_mpi(None)
    options = ["--oversubscribe"] if library.vendor == "openmpi" else []
    word = "-m", "hpcomm.torch_backend"
    env = {name: value for name, value in os.environ.items() if not name.startswith(LAUNCHERS)}
    env |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "PYTHONPATH": PATH}
    run = [library.launcher, *options, "-n", "2", sys.executable, *word, program, "word"]
    done = subprocess.run([*map(str, run)], env=env, capture_output=True, text=True, timeout=90, check=False)
    wanted = [f"early {rank} {rank} 2 word" for rank in range(2)] + ["gloo True 2.0", "mpi True 2.0"] * 2
    assert sorted(done.stdout.splitlines()) == sorted(wanted), done.stderr
