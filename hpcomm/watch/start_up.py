"""Start of a rank: MPI comes up, or it does without, and all that watches over this rank and the others."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from .._lazy import MPI
from ..agree import doing, mistakes, runtime, survival
from ..agree.job_ends import ByMPI, ByRecords, await_all
from ..errors import ConfigError, HpcommError, UsageError
from ..job import exit_hooks, process_role, variables
from ..node import segment
from ..node.segment import NodeSegment
from . import watchdog

_failed: Exception | None = None  # why it could not be started


def start(everybody: MPI.Intracomm | None = None, name: str = "") -> None:
    """Bring MPI up once (collective over everybody, by default the world): hooks, node segment, watchdog.

    Args:
        everybody: the ranks that use hpcomm, where a job has others too.
        name: this rank's, for messages.

    Raises:
        ConfigError: mpi4py was told not to bring MPI up, and nobody did. UsageError: MPI has been finalized.
    """
    process_role.check_has_mpi()
    from mpi4py import MPI

    if MPI.Is_finalized():
        raise UsageError(
            "MPI has been finalized", hint="MPI.Finalize() after the last use of hpcomm, or not at all"
        )
    if _failed is not None:
        raise _failed.with_traceback(None)
    if runtime.started():
        return
    if not MPI.Is_initialized():
        what = "MPI has not been started: mpi4py.rc.initialize, or MPI4PY_RC_INITIALIZE, says not to."
        raise ConfigError(
            what, hint="MPI.Init_thread() before hpcomm's first use, or leave that setting alone"
        )
    world, users = MPI.COMM_WORLD, MPI.COMM_WORLD if everybody is None else everybody

    def begin() -> None:
        exit_hooks.last(runtime.stop_progress)  # our last: who ends before may wait for messages to go
        runtime.job = ByMPI(users.Dup())
        _remove_segments()
        _hurry_to_launcher()
        if world.size > 1:
            _watch(runtime.job.everybody)

    process_role.check_process("hpcomm")
    process_role.check_launcher(world.size, MPI.get_vendor()[0])
    _begin(world.rank, world.size, name, begin)


def start_on_node(near: NodeSegment) -> None:
    """Be a rank of a job on one node, whose ranks have found each other without MPI: the same for them."""

    def begin() -> None:
        segment.current, process_role.is_without_mpi = near, True
        runtime.job = job = ByRecords(near)
        if job.size > 1:
            runtime.install_hooks()
            runtime.looks.append(job.look)
            runtime.farewells.append(await_all)
            watchdog.start()

    _begin(near.here, len(near.regions), "", begin)


def _begin(rank: int, size: int, name: str, begin: Callable[[], None]) -> None:
    """What is the same for all ranks, whatever else there is to begin; name: for messages."""
    global _failed
    process_role.mark(rank, size)
    if rank == 0:
        variables.warn()
    runtime.name, runtime.process = name or f"rank {rank}", os.getpid()
    try:
        sys.excepthook = mistakes.noting(sys.excepthook)
        begin()
        os.register_at_fork(after_in_child=_be_no_rank)
    except BaseException as error:  # parts of it cannot be done again
        what = f"hpcomm's first use was interrupted by {type(error).__name__}"
        _failed = error if isinstance(error, Exception) else HpcommError(what, hint="start the job again")
        raise


def expect_foreigners() -> None:
    """From now on there are programs of another job, which does not end with this one. Collective."""
    assert isinstance(runtime.job, ByMPI)
    runtime.has_foreigners = True
    if runtime.end_notices is None:  # this rank was alone
        _watch(runtime.job.everybody)


def _be_no_rank() -> None:
    """In a child that was forked: all communicators refuse calls, as if they were closed."""
    process_role.fork()
    for each in runtime.living():
        each.forget_mpi()


def _watch(everybody: MPI.Intracomm) -> None:
    from ..agree.end_notices import EndNotices

    runtime.install_hooks()
    runtime.notice_finalize()
    runtime.note_life()
    if survival.tells:
        runtime.farewells.append(partial(survival.meet_at_end, everybody))
    node_segment = segment.current = segment.open_segment(everybody)
    runtime.end_notices = notices = EndNotices(
        everybody, node_segment, lambda: doing.own().as_text(), doing.answer
    )
    if notices.by_message:
        runtime.farewells.insert(0, notices.stop)
        runtime.farewells.append(notices.say)
        runtime.looks.append(notices.hear)
    if node_segment is None or len(node_segment.regions) < everybody.size:
        from ..agree.heartbeat import pulse

        beat = pulse(everybody, node_segment is not None and node_segment.here == 0)
        if beat is not None:
            runtime.farewells.append(beat.stop)
            runtime.looks.append(beat.beat)
    watchdog.start()


def _hurry_to_launcher() -> None:
    """Have what this rank tells Open MPI's launcher sent at once.

    MPI_Finalize ends with two messages (PMIx: forget my events, I am done), and TCP holds the second one
    back until the first is acknowledged, which takes 40 ms (Nagle's algorithm with delayed acknowledgements).
    """
    servers = {uri for name, uri in os.environ.items() if name.startswith("PMIX_SERVER_URI")}
    if not servers or sys.platform != "linux":
        return
    import _socket  # socket itself takes 2 ms at every start

    for number in os.listdir("/proc/self/fd"):  # noqa: PTH208
        with suppress(OSError):  # closed meanwhile, no socket, or one without a peer
            if not os.readlink(f"/proc/self/fd/{number}").startswith("socket:"):  # noqa: PTH115
                continue
            connection = _socket.socket(fileno=os.dup(int(number)))
            try:
                if connection.family in (_socket.AF_INET, _socket.AF_INET6):
                    host, port, *_ = connection.getpeername()
                    if any(host in uri and uri.endswith(f":{port}") for uri in servers):
                        connection.setsockopt(_socket.IPPROTO_TCP, _socket.TCP_NODELAY, 1)
            finally:
                connection.close()


def _remove_segments() -> None:
    """Take the names of MPICH's files in /dev/shm away: it leaves them there when a rank is killed.

    All ranks have them open once any has come out of MPI_Init, and nobody opens them again.
    """
    if os.environ.get("MPI_LOCALRANKID", "0") != "0" or "OMPI_COMM_WORLD_SIZE" in os.environ:
        return
    with suppress(OSError), open("/proc/self/maps", "rb") as maps:  # noqa: PTH123
        for line in maps:
            if b"/dev/shm/mpich_shm_" in line:
                with suppress(OSError):  # it has gone
                    os.unlink(line.split()[5])  # noqa: PTH108
