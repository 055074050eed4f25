"""The node core, in C: built where a compiler is found; where there is none, all goes by MPI."""

import sys
import sysconfig
from pathlib import Path

from setuptools import Extension, setup

CORE = Path("hpcomm/node/_native")
# One binary for 3.11 and all later Pythons. It needs the lock, and a buffer protocol that is stable.
STABLE = sys.version_info >= (3, 11) and not sysconfig.get_config_var("Py_GIL_DISABLED")
FLAGS = ["-std=c11", "-O3", "-fno-strict-aliasing", "-ffp-contract=off", "-fvisibility=hidden"]

setup(
    ext_modules=[
        Extension(
            "hpcomm.node._native.core",
            sorted(str(path) for path in CORE.glob("*.c")),
            depends=sorted(str(path) for path in CORE.glob("*.h")),
            define_macros=[("_GNU_SOURCE", None)],
            extra_compile_args=FLAGS,
            py_limited_api=True,
            optional=True,
        )
    ]
    if STABLE
    else [],
    options={"bdist_wheel": {"py_limited_api": "cp311"}} if STABLE else {},
)
