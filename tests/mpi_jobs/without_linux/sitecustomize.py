"""Python without what only Linux has, as on macOS, in all processes that find this file (PYTHONPATH).

Gone are /proc, /dev/shm, /sys, abstract sockets, fcntl's locks, functions that Linux alone has, and the parts
in C, which are built on Linux only. hpcomm sees another sys.platform; all others see the system's own, or
mpi4py would look for the libraries of macOS. MPI itself, which is in C, goes on as it is.
"""

import builtins
import errno
import fcntl
import os
import resource
import select
import signal
import sys
import time

HIDDEN = ("/proc", "/dev/shm", "/sys", "\0")
GONE = {
    os: "pidfd_open sched_getaffinity sched_setaffinity memfd_create eventfd pipe2 waitid fdatasync getrandom"
    " posix_fallocate posix_fadvise copy_file_range splice O_PATH O_TMPFILE O_DIRECT O_NOATIME",
    signal: "pidfd_send_signal sigtimedwait sigwaitinfo SIGRTMIN SIGRTMAX SIGPWR SIGSTKFLT",
    select: "POLLRDHUP epoll " + " ".join(name for name in dir(select) if name.startswith("EPOLL")),
    fcntl: "F_OFD_GETLK F_OFD_SETLK F_OFD_SETLKW F_ADD_SEALS F_SETPIPE_SZ F_GETPIPE_SZ F_NOTIFY",
    resource: "prlimit RUSAGE_THREAD",
    time: "CLOCK_BOOTTIME",
}
for module, names in GONE.items():  # before anybody looks which there are, as selectors does
    for name in names.split():
        delattr(module, name)
for name in ("node._native.core", "grids._native.geometry"):
    sys.modules[f"hpcomm.{name}"] = None


def refuse(event, given):
    path = given[1] if event == "socket.bind" else given[0] if given else None
    if event in ("open", "os.listdir", "os.scandir", "socket.bind") and is_hidden(path):
        raise absent(path)
    if event == "fcntl.lockf":
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))


def is_hidden(path):
    return isinstance(path, (str, bytes, os.PathLike)) and os.fsdecode(path).startswith(HIDDEN)


def absent(path):
    return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)


def looking(function, if_hidden=None):
    def look(path, *more, **named):
        if not is_hidden(path):
            return function(path, *more, **named)
        if if_hidden is None:
            raise absent(path)
        return if_hidden

    return look


for name in ("stat", "lstat", "readlink", "statvfs"):
    setattr(os, name, looking(getattr(os, name)))
os.access = looking(os.access, False)
sys.addaudithook(refuse)


class Sys:
    """What hpcomm imports as sys."""

    platform = "darwin"

    def __getattr__(self, name):
        return getattr(sys, name)

    def __setattr__(self, name, value):
        setattr(sys, name, value)


def imported(name, of=None, *more, **named):
    is_ours = name == "sys" and (of or {}).get("__name__", "").startswith("hpcomm")
    return ours if is_ours else real(name, of, *more, **named)


ours, real, builtins.__import__ = Sys(), builtins.__import__, imported
