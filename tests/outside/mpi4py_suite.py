"""Run mpi4py's own tests and demos through hpcomm.compat.

    pip download --no-binary :all: --no-deps mpi4py==4.1.2; tar xf mpi4py-4.1.2.tar.gz
    .venv-openmpi/bin/python tests/outside/mpi4py_suite.py mpi4py-4.1.2 --ranks 1 3

Prints a table: for each of its files, how many tests pass on all ranks through mpi4py itself, and how many of
these through hpcomm.compat. Each test is noted as it ends: so it is known which one ends the job, or hangs.
Of the tests only the line `from mpi4py import MPI` is changed. Demos (--demos) run by `hpcomm run --check`
with no line changed. One passes if it ends with status 0, on three ranks.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.machinery
import importlib.util
import json
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

# About the package, its building, other languages, or programs that it starts
_OTHERS = (
    "cffi", "ctypes", "doc", "dynproc", "environ", "mpiabi", "mpiapi", "mpimem", "package", "pickle",
    "session", "spawn", "threads", "toplevel", "ulfm", "util_dtlib", "util_pkl5", "util_pool", "util_sync",
)  # fmt: skip
# Among the demos: programs that start others, those in other languages, on devices or on the web, benchmarks,
# and those for one rank or two
_NOT_HERE = re.compile(
    "dynproc|dpm|-seq|-master|spawning|wrap-|cffi|cuda-aware|crawl|perf_|osu_|test-run|futures/test_"
)
_DEMO_S = 100
_IMPORT = re.compile(r"^(\s*)from mpi4py import MPI\b", re.MULTILINE)


class Renamed(importlib.machinery.SourceFileLoader):
    """Loads a file of theirs with its import of MPI changed."""

    def get_data(self, path: str) -> bytes:
        data = super().get_data(path)
        if not path.endswith(".py"):
            raise OSError(path)  # no compiled file of the unchanged source
        return _IMPORT.sub(r"\1from hpcomm.compat import MPI", data.decode()).encode()


class Finder(importlib.machinery.PathFinder):
    """Finds modules of theirs for Renamed."""

    folder = ""

    @classmethod
    def find_spec(cls, name: str, path: Any = None, target: Any = None) -> Any:
        file = Path(cls.folder) / f"{name}.py"
        if path is not None or not file.exists():
            return None
        return importlib.util.spec_from_file_location(name, file, loader=Renamed(name, str(file)))


class Noted(unittest.TestResult):
    """Notes each test as it ends: one line of JSON."""

    def __init__(self, out: Any) -> None:
        super().__init__()
        self._out = out

    def note(self, test: unittest.TestCase, outcome: str, why: str = "") -> None:
        self._out.write(json.dumps([test.id(), outcome, why]) + "\n")
        self._out.flush()

    def startTest(self, test: unittest.TestCase) -> None:  # noqa: N802
        self.note(test, "begun")

    def addSuccess(self, test: unittest.TestCase) -> None:  # noqa: N802
        self.note(test, "passed")

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:  # noqa: N802
        self.note(test, "skipped", reason)

    def addFailure(self, test: unittest.TestCase, err: Any) -> None:  # noqa: N802
        self.note(test, "failed", f"{err[0].__name__}: {err[1]}"[:600])

    addError = addFailure  # noqa: N815

    def addExpectedFailure(self, test: unittest.TestCase, err: Any) -> None:  # noqa: N802
        self.note(test, "passed")

    def addSubTest(self, test: unittest.TestCase, subtest: Any, err: Any) -> None:  # noqa: N802
        if err is not None:
            self.addFailure(test, err)


def as_rank(folder: str, module: str, through: str, out: str) -> None:
    """Run one file's tests on this rank."""
    sys.path.insert(0, folder)
    for name in ("cupy", "numba"):
        sys.modules[name] = None  # type: ignore[assignment]
    if through == "hpcomm":
        Finder.folder = folder
        sys.meta_path.insert(0, Finder)
    from mpi4py import MPI

    suite = unittest.defaultTestLoader.loadTestsFromModule(importlib.import_module(module))
    with (Path(out) / f"rank-{MPI.COMM_WORLD.Get_rank()}").open("w") as file:
        suite.run(Noted(file))


Outcomes = dict[str, tuple[str, str]]  # of tests: how it went, and why


def outcomes(folder: Path, module: str, through: str, ranks: int) -> Outcomes:
    """What came of each test of a file: the worst of all ranks. In a job of its own, since ranks that have
    disagreed about a call stay out of step.
    """
    found: Outcomes = {}
    for row in job(folder, module, through, ranks):
        for name, (outcome, why) in row.items():
            known = found.get(name, ("passed", ""))
            if _ORDER.index(outcome) <= _ORDER.index(known[0]):
                found[name] = outcome, why
    return found


_ORDER = ("failed", "begun", "skipped", "passed")


def job(folder: Path, module: str, through: str, ranks: int) -> list[Outcomes]:
    """What each rank has noted."""
    with tempfile.TemporaryDirectory() as out:
        words = [__file__, "--as-rank", str(folder), module, through, out]
        launch = [
            sys.executable,
            "-m",
            "hpcomm",
            "run",
            "-n",
            str(ranks),
            "--timeout",
            "600",
            "python",
            *words,
        ]
        subprocess.run(launch, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=700, check=False)
        return [_read(Path(out) / f"rank-{rank}") for rank in range(ranks)]


def _read(path: Path) -> Outcomes:
    """Of each test the last line, but one that failed does not pass afterwards."""
    found: Outcomes = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        name, outcome, why = json.loads(line)
        if found.get(name, ("",))[0] != "failed":
            found[name] = outcome, why
    return found


def demos(folder: Path) -> list[Path]:
    """Its demo programs that several ranks run."""
    paths = sorted(folder.rglob("*.py"))
    return [path for path in paths if not _NOT_HERE.search(str(path.relative_to(folder)))]


def ends_badly(path: Path, *options: str) -> str:
    """The last of what a demo has said that does not end with status 0."""
    by = ["-m", "mpi4py.futures"] if path.parent.name == "futures" else []
    launch = [sys.executable, "-m", "hpcomm", "run", "-n", "3", "--timeout", f"{_DEMO_S}", *options]
    with tempfile.TemporaryDirectory() as place:
        shutil.copytree(path.parent, place, dirs_exist_ok=True)
        done = subprocess.run(
            [*launch, "python", *by, path.name],
            cwd=place, input="100\n0\n", capture_output=True, text=True, timeout=2 * _DEMO_S, check=False,
        )  # fmt: skip
    return (done.stdout + done.stderr)[-1500:] if done.returncode else ""


def show_demos(folder: Path, only: str, says_why: bool) -> None:
    """How many of the demos end well, and which do not."""
    paths = [path for path in demos(folder) if re.search(only, str(path.relative_to(folder)))]
    raw = {path: ends_badly(path) for path in paths}
    own = {path: ends_badly(path, "--check") for path in paths if not raw[path]}
    lost = {path: why for path, why in own.items() if why}
    print(f"demos: of {len(paths)}, {len(own)} end well through mpi4py;")
    print(f"of these {len(own) - len(lost)} by --check")
    for kind, whys in (("mpi4py", raw), ("--check", lost)):
        for path, why in whys.items():
            if why:
                print(f"not by {kind}: {path.relative_to(folder)}", *([why] if says_why else []), sep="\n")


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("sdist", type=Path, help="unpacked source of the mpi4py that is installed")
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 3])
    parser.add_argument("--only", default="", help="files whose name this regular expression finds")
    parser.add_argument("--why", action="store_true", help="say of each test that does not pass why")
    parser.add_argument("--demos", action="store_true", help="the demos alone")
    given = parser.parse_args(words)
    if given.demos:
        show_demos(given.sdist.resolve() / "demo", given.only, given.why)
        return
    folder = given.sdist.resolve() / "test"
    modules = sorted(path.stem for path in folder.glob("test_*.py"))
    modules = [m for m in modules if re.search(given.only, m) and m.removeprefix("test_") not in _OTHERS]
    for ranks in given.ranks:
        show(folder, modules, ranks, given.why)


def show(folder: Path, modules: list[str], ranks: int, says_why: bool) -> None:
    """Print the table of one number of ranks."""
    print(f"| file ({ranks} ranks) | pass with mpi4py | of these with hpcomm.compat | fail | end the job |")
    print("|---|---|---|---|---|")
    total: Counter[str] = Counter()
    whys = []
    for module in modules:
        raw, own = (outcomes(folder, module, through, ranks) for through in ("mpi4py", "hpcomm"))
        names = [name for name, (how, _) in raw.items() if how == "passed"]
        after = Counter(own.get(name, ("begun", ""))[0] for name in names)
        after["all"] = len(names)
        total += after
        show_row(module.removeprefix("test_"), after)
        whys += [f"{name}: {how}: {why}" for name, (how, why) in own.items() if how in ("failed", "begun")]
    show_row("all", total)
    if says_why:
        print(*whys, sep="\n")


def show_row(name: str, counts: Counter[str]) -> None:
    columns = counts["all"], counts["passed"], counts["failed"] + counts["skipped"], counts["begun"]
    print("|", name, *(f"| {number}" for number in columns), "|", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--as-rank"]:
        as_rank(*sys.argv[2:6])
    else:
        main()
