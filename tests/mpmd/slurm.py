"""A Slurm of three virtual nodes on this machine, without systemd: Debian's slurm-wlm and munge, as root.

Each slurmd gets a host name of its own (UTS namespace), else Open MPI does not find its local peers.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path

from steady import steady_time

NODES = 3
PMIX = Path("/usr/lib/x86_64-linux-gnu/pmix2/lib")
CONF = """
ClusterName=hpcomm
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
AuthType=auth/munge
MpiDefault=pmi2
MpiParams=ports=21000-21100
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
ReturnToService=2
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
TmpFS={folder}/tmp-%n
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
SlurmdParameters=config_overrides
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
KillWait=5
NodeName=n[1-{nodes}] NodeHostname={host} NodeAddr=127.0.0.1 Port=[17101-{last}] CPUs=4 State=UNKNOWN
PartitionName=all Nodes=n[1-{nodes}] Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE:4
"""


def why_not(vendor: str) -> str | None:
    """Why there can be no Slurm here that starts this MPI; None: there can."""
    if os.geteuid() != 0:
        return "needs root"
    missing = [
        name for name in ("slurmctld", "slurmd", "srun", "munged", "unshare") if not shutil.which(name)
    ]
    missing += ["libpmix2"] if vendor == "openmpi" and not PMIX.is_dir() else []
    if missing:
        return f"not installed: {', '.join(missing)} (Debian: slurm-wlm munge libpmi2-0 libpmix2)"
    if (
        Path("/etc/slurm/slurm.conf").exists()
        and "ClusterName=hpcomm" not in Path("/etc/slurm/slurm.conf").read_text()
    ):
        return "this machine has a Slurm of its own"
    return None


class Slurm:
    """A context manager."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._own_munge = False
        self._nodes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Slurm:
        host = os.uname().nodename.split(".")[0]
        for name in ("state", *(f"{kind}-n{i}" for i in range(1, NODES + 1) for kind in ("spool", "tmp"))):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        self._munge()
        Path("/etc/slurm").mkdir(exist_ok=True)
        Path("/etc/slurm/slurm.conf").write_text(
            CONF.format(host=host, folder=self.folder, nodes=NODES, last=17100 + NODES)
        )
        Path("/etc/slurm/cgroup.conf").write_text(
            "CgroupPlugin=cgroup/v1\nCgroupAutomount=no\nConstrainCores=no\nConstrainRAMSpace=no\n"
        )
        known = Path("/etc/hosts").read_text()
        with Path("/etc/hosts").open("a") as file:
            file.writelines(f"127.0.0.1 n{i}\n" for i in range(1, NODES + 1) if f" n{i}\n" not in known)
        if (PMIX / "libpmix.so.2").exists() and not (PMIX / "libpmix.so").exists():
            (PMIX / "libpmix.so").symlink_to("libpmix.so.2")  # Debian's plugin loads the unversioned name
        self._run(["slurmctld"])
        for i in range(1, NODES + 1):
            self._run(["unshare", "-u", "sh", "-c", f"hostname n{i}; exec slurmd -N n{i}"])
        deadline = steady_time() + 40
        while steady_time() < deadline:
            idle = subprocess.run(
                ["sinfo", "-h", "-t", "idle", "-o", "%D"], capture_output=True, text=True, check=False
            )
            if idle.stdout.strip() == str(NODES):
                return self
            time.sleep(0.5)
        self.__exit__()
        raise RuntimeError(f"no Slurm within 40 s: {idle.stdout}{idle.stderr}")

    def _munge(self) -> None:
        if subprocess.run(["munge", "-n"], capture_output=True, check=False).returncode == 0:
            return
        key = Path("/etc/munge/munge.key")
        if not key.exists() or not key.stat().st_size:
            key.write_bytes(os.urandom(1024))
        for folder in ("/run/munge", "/var/log/munge", "/var/lib/munge", "/etc/munge"):
            Path(folder).mkdir(parents=True, exist_ok=True)
            subprocess.run(["chown", "-R", "munge:", folder], check=True)
        Path("/run/munge").chmod(0o755)
        key.chmod(0o400)
        self._run(["runuser", "-u", "munge", "--", "/usr/sbin/munged", "--force"])
        self._own_munge = True

    def _run(self, command: list[str]) -> None:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=30, check=False
        )
        if done.returncode:
            raise RuntimeError(f"{command}: {done.stdout}{done.stderr}")

    def __exit__(self, *error: object) -> None:
        files = [*self.folder.glob("slurm*.pid")]
        files += [Path("/run/munge/munged.pid")] if self._own_munge else []
        pids = [int(file.read_text()) for file in files if file.exists()]
        for number in (15, 9):
            for pid in pids:
                if Path(f"/proc/{pid}").exists():
                    os.kill(pid, number)
            time.sleep(2 if number == 15 else 0)
        Path("/etc/slurm/slurm.conf").unlink(missing_ok=True)
        Path("/etc/slurm/cgroup.conf").unlink(missing_ok=True)
