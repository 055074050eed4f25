"""Which host this is, for processes that are to share something of it."""

from __future__ import annotations

import os


def host_mark(*shared: str) -> str:
    """The same text in all processes of this host that share these, too, and in no others.

    Where the system does not tell, as on macOS: the host's name.

    Args:
        shared: namespaces, as of a container ("net", "pid"), and folders of a file system ("/dev/shm").
    """
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:  # noqa: PTH123  which ranks read as they start
            boot = file.read().strip()
        its = [
            f"{os.stat(each).st_dev}" if "/" in each else os.readlink(f"/proc/self/ns/{each}")  # noqa: PTH115, PTH116
            for each in shared
        ]
    except OSError:
        return os.uname().nodename
    return " ".join([boot, *its])
