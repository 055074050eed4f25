"""Jobs of several programs, each in processes that are gone when the test is."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest
from coupled import COMMON
from processes import CLOCK, finish, judge

from hpcomm.tools.fortran import FOLDER

END_S = 15.0
ONE_THREAD = {"OMP_NUM_THREADS": "1"}
STRICT_FORTRAN = ["-Wall", "-Wextra", "-Werror"]
STRICT = ["-Wall", "-Wextra", "-Wpedantic", "-Werror"]


@pytest.fixture
def programs(tmp_path):
    """programs([(n, source or command), ...], timeout=40, expect=0, env=None) -> CompletedProcess

    Starts programs side by side through `hpcomm run`, without a spec. expect: the exit status; None: any;
    "failure": any but 0 and that of the time limit.
    """

    def run(parts, timeout=40, expect=0, env=None):
        words = []
        for i, (n, what) in enumerate(parts):
            command = what
            if isinstance(what, str):
                script = tmp_path / f"program_{i}.py"
                script.write_text(dedent(what))
                command = ["python", str(script)]
            head = [":"] if i else ["--timeout", str(CLOCK * timeout)]
            words += [*head, "-n", str(n), *command] if i else ["-n", str(n), *head, *command]
        done = finish(
            [sys.executable, "-m", "hpcomm", "run", *words],
            timeout + END_S,
            tmp_path,
            {**ONE_THREAD, **(env or {})},
        )
        judge(done, expect)
        return done

    return run


@pytest.fixture
def spec(tmp_path):
    """spec(text, *options, files={name: source}, ...) -> CompletedProcess of `hpcomm run job.toml`."""

    def run(text, *options, files=None, timeout=60, expect=0, env=None, python=sys.executable):
        for name, source in (files or {}).items():
            (tmp_path / name).write_text(dedent(source))
        (tmp_path / "job.toml").write_text(dedent(text))
        words = ["--timeout", str(CLOCK * timeout), *options, "job.toml"]
        command = [python, "-m", "hpcomm", "run", *words]
        done = finish(command, timeout + END_S, tmp_path, {**ONE_THREAD, **(env or {})})
        judge(done, expect)
        return done

    return run


@pytest.fixture
def couple(programs, tmp_path):
    """couple(code, {name: ranks}, expect=0): every program runs the same code, which looks at me.name."""

    def run(code, sizes, expect=0, timeout=60, env=None):
        script = tmp_path / "couple.py"
        script.write_text(COMMON + code)
        return programs(
            [(n, ["python", str(script), name]) for name, n in sizes.items()], timeout, expect=expect, env=env
        )

    return run


@pytest.fixture(scope="session")
def compiled(tmp_path_factory):
    """compiled(compiler="gcc", *flags): hpcomm.c as an object, and the command that links with this MPI."""
    objects = {}

    def make(compiler="gcc", *flags):
        mpicc = shutil.which("mpicc", path=str(Path(sys.prefix) / "bin"))
        if not shutil.which(compiler) or not mpicc:
            pytest.skip(f"no {compiler}, or no mpicc beside this Python")
        environ = {**os.environ, "OMPI_CC": compiler, "MPICH_CC": compiler}
        if (compiler, flags) not in objects:
            objects[compiler, flags] = tmp_path_factory.mktemp("compiled") / "hpcomm.o"
            words = [
                mpicc,
                "-std=c11",
                *STRICT,
                *flags,
                "-c",
                "-o",
                objects[compiler, flags],
                FOLDER / "hpcomm.c",
            ]
            subprocess.run(words, check=True, timeout=100, env=environ)
        return mpicc, environ, objects[compiler, flags]

    return make


@pytest.fixture
def in_c(compiled, tmp_path):
    """in_c(source, name, *flags): builds a program in tmp_path; skips where there is no compiler.

    compiler: of C++, in its place.
    """

    def build(source, name, *flags, compiler=None):
        mpicc, environ, library = compiled("gcc", *flags)
        if compiler:
            if not shutil.which(compiler):
                pytest.skip(f"no {compiler} here")
            environ |= {"OMPI_CXX": compiler, "MPICH_CXX": compiler}
            mpicc, flags = mpicc.replace("mpicc", "mpicxx"), [*flags, "-std=c++11", *STRICT]
        file = tmp_path / f"{name}.{'cpp' if compiler else 'c'}"
        file.write_text(source)
        words = [mpicc, *flags, "-I", FOLDER, "-o", tmp_path / name, file, library, "-lm"]
        subprocess.run(words, check=True, timeout=100, env=environ)

    return build


@pytest.fixture
def in_fortran(compiled, tmp_path):
    """in_fortran(source, name, *links): builds a program in tmp_path; skips where there is no compiler.

    links: words for the linker; modules: a folder of others that it uses.
    """

    def build(source, name, *links, modules="."):
        mpicc, environ, library = compiled()
        if not shutil.which("gfortran"):
            pytest.skip("no gfortran here")
        (tmp_path / f"{name}.f90").write_text(source)
        made = ["gfortran", *STRICT_FORTRAN, "-I", modules, "-c", FOLDER / "hpcomm_mod.f90", f"{name}.f90"]
        subprocess.run(made, check=True, timeout=100, cwd=tmp_path)
        words = [mpicc, "-o", name, f"{name}.o", "hpcomm_mod.o", library, *links, "-lgfortran", "-lm"]
        subprocess.run(words, check=True, timeout=100, cwd=tmp_path, env=environ)

    return build
