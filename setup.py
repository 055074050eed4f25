"""The node core, in C: built where a compiler is found; where there is none, all goes by MPI."""

from pathlib import Path

from setuptools import Extension, setup

CORE = Path("hpcomm/node/_native")
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
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
