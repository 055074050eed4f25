"""The parts in C: built where a compiler is found. Else all goes by MPI, and mappings by numpy."""

import os
import re
import runpy
import shlex
import shutil
import sys
import sysconfig
import tomllib
from pathlib import Path

from setuptools import Extension, setup

PARTS = ("hpcomm.node._native.core", "hpcomm.grids._native.geometry")
# One binary for 3.11 and all later Pythons. It needs the lock.
STABLE = not sysconfig.get_config_var("Py_GIL_DISABLED")
FLAGS = ["-std=c11", "-O3", "-fno-strict-aliasing", "-ffp-contract=off", "-fvisibility=hidden"]
FLAGS += ["-Wno-pass-failed"]  # clang's: some loops have no gain from some vector widths


HEADER = Path("hpcomm/node/_native/verbs.h")


def compiler() -> str | None:
    """The command of a C compiler: $CC, the one of this Python, any other; None: there is none."""
    if "CC" in os.environ:
        return os.environ["CC"]
    usual = (sysconfig.get_config_var("CC") or "cc", "cc", "gcc", "clang")
    return next((command for command in usual if shutil.which(shlex.split(command)[0])), None)


if command := compiler():
    os.environ["CC"] = command
else:
    print("hpcomm: no C compiler: built without the node core, so all goes by MPI", file=sys.stderr)


def extension(name: str) -> Extension:
    """Of the C files in the folder of its package."""
    folder = Path(*name.split(".")[:-1])
    return Extension(
        name,
        sorted(str(path) for path in folder.glob("*.c")),
        depends=sorted(str(path) for path in folder.glob("*.h")),
        extra_compile_args=FLAGS,
        extra_link_args=["-s"],  # no symbols: they are half of it
        py_limited_api=True,
        optional=True,
    )


def verbs_header() -> str:
    """What tells the collective verbs apart, for the node core: the table of hpcomm/core/verbs.py."""
    known = runpy.run_path("hpcomm/core/verbs.py")
    names = sorted(known["TABLE"])
    sets = {
        name: " | ".join(f"1 << BY_{verb.upper()}" for verb in sorted(its))
        for name, its in known.items()
        if isinstance(its, frozenset)
    }
    return "\n".join(
        (
            "/* verbs.h: the table of hpcomm/core/verbs.py. setup.py writes it. */",
            "enum { " + ", ".join(["NO_VERB", *(f"BY_{name.upper()}" for name in names), "VERBS"]) + " };",
            "#define VERB_NAMES " + ", ".join(f'"{name}"' for name in ("", *names)),
            *(f"enum {{ {name} = {its} }};" for name, its in sets.items()),
            "",
        )
    )


def readme() -> str:
    """README.md with absolute links: who reads it elsewhere has no files beside it."""
    home = tomllib.loads(Path("pyproject.toml").read_text())["project"]["urls"]["Source"]
    return re.sub(r"\]\((?![a-z]+:|#)", f"]({home}/blob/main/", Path("README.md").read_text())


if HEADER.read_text() != verbs_header():
    HEADER.write_text(verbs_header())
setup(
    long_description=readme(),
    long_description_content_type="text/markdown",
    ext_modules=[extension(name) for name in PARTS] if STABLE and command else [],
    options={"bdist_wheel": {"py_limited_api": "cp311"}} if STABLE and command else {},
)
# Everything else about the package stands in pyproject.toml.
