"""Hosts on one machine: network namespaces on a bridge, each with a name, an address, and a stand-in for ssh.

Several runs of the tests may have hosts at a time. Each has a number of its own, by a locked file. Its
bridge, its network 10.78.NUMBER.0 and the namespaces of its hosts are called by that. What a killed run has
left behind is removed by the next one that gets its number.

Needs root and iproute2. MPICH's UCX would talk through shared memory across them: UCX_TLS=tcp,self.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

NUMBERS = 64  # of runs that may have hosts on this machine at a time
AGENT = """#!/bin/bash
# stands in for ssh: agent [options] HOST COMMAND..., and is a process between both ends, too; first it runs
# the file `there` there, if there is one
while [ $# -gt 0 ]; do case "$1" in -[lop]) shift 2;; -*) shift;; *) break;; esac; done
host=$1; shift
case "$host" in {net}.*) host=h${{host##*.}};; esac
echo "$host $*" >> {folder}/agent.log
there() {{
  ip netns exec {prefix}${{host#h}} unshare -u bash -c \\
    "hostname $host; export TMPDIR={folder}/$host; cd {cwd}; [ ! -e there ] || . ./there; $*"
}}
[ -e {folder}/apart ] || {{ there "$@"; exit; }}
mkfifo {folder}/$$
( (there "$@"; echo $? > {folder}/$$) <&0 & )
read status < {folder}/$$
exit $status
"""

CORES = """
#define _GNU_SOURCE
#include <sched.h>
#include <string.h>
#include <unistd.h>
int sched_getaffinity(pid_t pid, size_t size, cpu_set_t *set) {{
  char name[64];
  gethostname(name, sizeof name);
  memset(set, 0, size);
  for (int i = 0; i < ({count}); i++) CPU_SET_S(i, size, set);
  return 0;
}}
"""


def with_cores(folder: Path, cores: Mapping[str, int]) -> Path:
    """A library that tells each process that it is preloaded to how many cores its host has, by its name."""
    count = "".join(f'!strcmp(name, "{host}") ? {n} : ' for host, n in cores.items())
    (folder / "cores.c").write_text(CORES.format(count=f"{count}1"))
    subprocess.run(["cc", "-shared", "-fPIC", "-o", "cores.so", "cores.c"], cwd=folder, check=True)
    return folder / "cores.so"


def why_not() -> str | None:
    """Why there can be no such hosts here; None: there can."""
    if os.geteuid() != 0:
        return "needs root"
    if not shutil.which("ip"):
        return "needs iproute2"
    probe = f"hpcomm{os.getpid()}"  # others may ask at the same time
    made = {
        "network namespaces": ["netns", "add", probe],
        "bridges": ["link", "add", probe, "type", "bridge"],
    }
    for what, words in made.items():
        done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
        if done.returncode:
            return f"no {what} here: {done.stderr.strip()}"
        subprocess.run(["ip", words[0], "del", probe], check=False)
    return None


class Hosts:
    """n hosts h1, h2, ...; a context manager."""

    def __init__(self, n: int, folder: Path) -> None:
        self.n, self.folder = n, folder
        self.agent = folder / "agent"
        self.lock, number = _own_number()
        self.net, self.bridge = f"10.78.{number}", f"hpcommbr{number}"
        self.prefix, self.cable = f"hpcomm{number}-h", f"hpcommv{number}-"

    def __enter__(self) -> Hosts:
        self.down()
        ip("link", "add", self.bridge, "type", "bridge")
        ip("addr", "add", f"{self.net}.254/24", "dev", self.bridge)
        ip("link", "set", self.bridge, "up")
        names = "".join(f"{self.net}.{i} h{i}\n" for i in range(1, self.n + 1))
        for i in range(1, self.n + 1):
            space = f"{self.prefix}{i}"
            ip("netns", "add", space)
            ip("link", "add", f"{self.cable}{i}", "type", "veth", "peer", "name", "eth0", "netns", space)
            ip("link", "set", f"{self.cable}{i}", "master", self.bridge, "up")
            ip("-n", space, "addr", "add", f"{self.net}.{i}/24", "dev", "eth0")
            ip("-n", space, "link", "set", "lo", "up")
            ip("-n", space, "link", "set", "eth0", "up")
            (self.folder / f"h{i}").mkdir(exist_ok=True)
            Path("/etc/netns", space).mkdir(parents=True, exist_ok=True)
            Path("/etc/netns", space, "hosts").write_text(f"127.0.0.1 localhost\n{names}")
        words = {"net": self.net, "prefix": self.prefix, "folder": self.folder, "cwd": self.folder}
        self.agent.write_text(AGENT.format(**words))
        self.agent.chmod(0o755)
        return self

    def __exit__(self, *error: object) -> None:
        self.down()
        os.close(self.lock)

    def down(self) -> None:
        left = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=False).stdout
        for space in re.findall(rf"^{self.prefix}\d+", left, re.M):
            pids = subprocess.run(["ip", "netns", "pids", space], capture_output=True, text=True, check=False)
            for pid in pids.stdout.split():
                subprocess.run(["kill", "-9", pid], check=False, capture_output=True)
            subprocess.run(["ip", "netns", "del", space], check=False, capture_output=True)
            shutil.rmtree(Path("/etc/netns", space), ignore_errors=True)
            cable = f"{self.cable}{space.removeprefix(self.prefix)}"
            subprocess.run(["ip", "link", "del", cable], check=False, capture_output=True)
        subprocess.run(["ip", "link", "del", self.bridge], check=False, capture_output=True)

    def set_apart(self) -> None:
        """From now on what the agent runs on a host is no child of it, as with ssh; and may outlive it."""
        (self.folder / "apart").touch()

    def cut(self, i: int) -> None:
        """Pull the cable of host i."""
        ip("link", "set", f"{self.cable}{i}", "down")

    def start(self, command: list[str], env: dict[str, str], i: int = 1) -> subprocess.Popen[str]:
        """Run command on host i."""
        told = " ".join(f"{name}={value!r}" for name, value in env.items())
        words = " ".join(f"'{word}'" for word in command)
        line = f"hostname h{i}; cd {self.folder}; export TMPDIR={self.folder}/h{i} {told}; exec {words}"
        return subprocess.Popen(
            ["ip", "netns", "exec", f"{self.prefix}{i}", "unshare", "-u", "bash", "-c", line],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def environ(self, vendor: str) -> dict[str, str]:
        """What the launchers need to reach the others."""
        root = str(Path(__file__).parents[2])
        common = {"PYTHONPATH": root, "PATH": os.environ["PATH"]}
        if vendor == "openmpi":
            return common | {
                "OMPI_ALLOW_RUN_AS_ROOT": "1",
                "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
                "PRTE_MCA_plm_ssh_agent": str(self.agent),
                "PRTE_MCA_prte_if_include": f"{self.net}.0/24",
                "OMPI_MCA_btl_tcp_if_include": f"{self.net}.0/24",
                "OMPI_MCA_btl": "self,sm,tcp",
                "OMPI_MCA_pml": "ob1",
            }
        return common | {
            "UCX_TLS": "tcp,self",
            "HYDRA_LAUNCHER": "ssh",
            "HYDRA_LAUNCHER_EXEC": str(self.agent),
            "HYDRA_IFACE": "eth0",
        }


def _own_number() -> tuple[int, int]:
    """A number that no other run has, and the file that keeps it as long as it is open."""
    for number in range(NUMBERS):
        lock = os.open(Path(tempfile.gettempdir(), f"hpcomm-hosts-{number}"), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return lock, number
        except BlockingIOError:
            os.close(lock)
    raise RuntimeError(f"{NUMBERS} runs of these tests have hosts already")


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)
