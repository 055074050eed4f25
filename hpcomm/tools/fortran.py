"""`hpcomm fortran`: where the sources are that programs in Fortran and C are built with."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from ..job.command_line import Command, option

FOLDER = Path(__file__).parents[1] / "mpmd" / "fortran"
_HOW = """\
in C:        mpicc -I {0} -o river river.c {0}/hpcomm.c -lm
in Fortran:  mpicc -c {0}/hpcomm.c
             gfortran -c {0}/hpcomm_mod.f90 ocean.f90
             mpicc -o ocean ocean.o hpcomm_mod.o hpcomm.o -lgfortran -lm
with CMake:  find_package(hpcomm), target hpcomm::fortran or hpcomm::c; cmake -Dhpcomm_DIR={0} ...
pkg-config:  export PKG_CONFIG_PATH={0}"""

parser = partial(
    Command,
    "hpcomm fortran",
    "Say how to build programs in Fortran and C that hpcomm couples, and with which sources.",
    option("--path", action="store_true", help="the folder of these sources, and nothing else"),
)


def main(words: Sequence[str]) -> int:
    """Carry out the command; returns the exit status."""
    print(FOLDER if parser().parse_args(list(words)).path else _HOW.format(FOLDER))
    return 0
