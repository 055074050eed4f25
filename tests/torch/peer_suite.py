"""torch's own distributed test suite, as shipped in its wheel, over any backend.

    python tests/torch/peer_suite.py [-n 4] [--backend mpi] [--as gloo] [--only WORD | --names NAMES]
                                     [--out FILE] [--more] [--torchrun]

Starts jobs of n ranks in which all ranks run each test of torch.testing._internal.distributed in turn. A
test that fails, or takes longer than its limit, ends its job, and the next job goes on behind it. Skips that
torch's suite prescribes for "mpi" by name are lifted. --as gloo runs what the suite holds for gloo, with the
backend in its place: also what only gloo is asked, and none of what gloo is excused from. "hpcomm", which the
suite does not know, runs as "mpi". The outcomes stand
in FILE; --more goes on where an earlier run was interrupted. --torchrun starts the ranks by it, without any
MPI. Ends with 1 if a test failed or hung.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import Any
from unittest import mock

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tests"))
from steady import steady_time  # noqa: E402

LIMIT_S = 60.0  # for one test, of time that the machine gives
WORST = ("hung", "failed", "skipped", "passed")


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("-n", type=int, default=4)
    parser.add_argument("--backend", default="mpi")
    parser.add_argument("--as", dest="guise", default="", help="the backend whose tests are run")
    parser.add_argument("--only", default="", help="comma-separated parts of names")
    parser.add_argument("--names", default="", help="comma-separated: these, without a look at what there is")
    parser.add_argument("--out", default="peer_suite.json")
    parser.add_argument("--more", action="store_true")
    parser.add_argument("--torchrun", action="store_true")
    parser.add_argument("--as-rank", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.as_rank:
        as_rank(arguments.backend)
        return 0
    arguments.guise = arguments.guise or {"hpcomm": "mpi"}.get(arguments.backend, "")
    names = [name for name in arguments.names.split(",") if name] or [
        name
        for name in all_tests(arguments.n, arguments.guise or arguments.backend)
        if any(part in name for part in arguments.only.split(","))
    ]
    out = Path(arguments.out)
    done: dict[str, list[str]] = json.loads(out.read_text()) if arguments.more and out.exists() else {}
    while rest := [name for name in names if name not in done]:
        run_job(rest, arguments, done)
        out.write_text(json.dumps(done, indent=1))
    count = Counter(outcome for outcome, _ in done.values())
    for name, (outcome, words) in done.items():
        if outcome in ("failed", "hung"):
            print(f"{outcome}: {name}\n{words}")
    print(
        f"{arguments.backend}{' as ' * bool(arguments.guise)}{arguments.guise}, {arguments.n} ranks: "
        + ", ".join(f"{count[w]} {w}" for w in reversed(WORST))
    )
    return 1 if count["failed"] or count["hung"] else 0


def all_tests(n: int, guise: str) -> list[str]:
    """The names of all tests, asked of a process of its own: importing the suite changes torch."""
    code = "import peer_suite; print(*peer_suite.names())"
    env = {**os.environ, **settings(n, guise, tempfile.gettempdir())}
    said = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
    if said.returncode:
        sys.exit(said.stderr)
    return said.stdout.split()


def settings(n: int, guise: str, place: str) -> dict[str, str]:
    """What the suite reads from the environment when it is imported."""
    path = [str(ROOT), str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    return {
        "BACKEND": guise,
        "INIT_METHOD": f"file://{place}/init_dir/shared_init_file",
        "WORLD_SIZE": str(n),
        "TEMP_DIR": place,
        "PYTHONPATH": os.pathsep.join(filter(None, path)),
    }


def names() -> list[str]:
    suite = the_suite()
    return sorted(name for name in dir(suite) if name.startswith("test_"))


def the_suite() -> Any:
    """torch's class of tests, with what it forbids "mpi" by name lifted."""
    from torch.testing._internal.common_distributed import DistTestCases

    for backends in DistTestCases.skip_collective.values():
        backends.discard("mpi")
    for feature in ("cuda", "ddp", "gpu", "subgroup"):  # what needs a GPU in fact says so itself
        DistTestCases.backend_feature[feature].add("mpi")
    from torch.testing._internal.common_utils import TestCase
    from torch.testing._internal.distributed import distributed_test

    class Suite(TestCase, distributed_test.DistributedTest._DistTestBase):  # type: ignore[misc]
        def _test_accumulate_gradients_no_sync(self, *given: Any, **named: Any) -> None:
            """It makes no model for a name that it does not know."""
            with mock.patch.object(distributed_test, "BACKEND", "mpi"):
                super()._test_accumulate_gradients_no_sync(*given, **named)

    return Suite


def run_job(rest: list[str], arguments: argparse.Namespace, done: dict[str, list[str]]) -> None:
    """Run tests in one job until one fails or hangs; note the outcomes in done."""
    n, backend = arguments.n, arguments.backend
    start = ["torch.distributed.run", "--standalone", "--nproc-per-node", str(n)]
    if not arguments.torchrun:
        start = ["hpcomm", "run", "-n", str(n), "python"]
    with tempfile.TemporaryDirectory() as place:
        for folder in ("barrier", "test_dir", "init_dir"):
            (Path(place) / folder).mkdir()
        (Path(place) / "tests").write_text("\n".join(rest))
        command = [sys.executable, "-m", *start, __file__, "--as-rank", "--backend", backend]
        env = {**os.environ, **settings(n, arguments.guise or backend, place)}
        with (Path(place) / "log").open("w") as log:
            job = subprocess.Popen(command, env=env, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        watch(job, Path(place) / "outcomes", rest, done, Path(place) / "log")


def watch(
    job: subprocess.Popen[bytes], outcomes: Path, rest: list[str], done: dict[str, list[str]], log: Path
) -> None:
    """Read outcomes as they come; end a job in which nothing comes."""
    seen, last = 0, steady_time()
    while True:
        over = job.poll() is not None
        lines = outcomes.read_text().splitlines() if outcomes.exists() else []
        for line in lines[seen:]:
            name, outcome, words = json.loads(line)
            done[name] = [outcome, words]
            print(f"{outcome:8s}{name}", flush=True)
            last = steady_time()
        seen = len(lines)
        following = next((name for name in rest if name not in done), None)
        hung = steady_time() - last > LIMIT_S
        if hung and not over:
            job.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                job.wait(15)
            job.kill()
            job.wait()
        if (over or hung) and following is not None:
            if hung or not outcomes.with_name("ended").exists():
                done[following] = ["hung" if hung else "failed", log.read_text(errors="replace")[-3000:]]
                print(f"{done[following][0]:8s}{following}", flush=True)
            return
        if over or hung:
            return
        time.sleep(0.1)


class World:
    """All ranks, which tell each other things by a file."""

    def __init__(self, place: Path) -> None:
        from torch.distributed import FileStore

        self.rank, self.size, self._calls = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), 0
        self.store = FileStore(str(place / "world"), self.size)

    def told(self, what: Any = None) -> list[Any]:
        """What each rank says."""
        self._calls += 1
        keys = [f"{self._calls}/{rank}" for rank in range(self.size)]
        self.store.set(keys[self.rank], json.dumps(what))
        return [json.loads(self.store.get(key)) for key in keys]


def as_rank(backend: str) -> None:
    """All ranks run the tests of the list, agree about each, and end after a failure or a spoilt group."""
    if "TORCHELASTIC_RUN_ID" in os.environ:
        sys.modules["mpi4py.MPI"] = None  # type: ignore[assignment]
    import torch
    import torch.distributed as dist

    import hpcomm.torch_backend  # noqa: F401  where the package is not installed

    place = Path(os.environ["TEMP_DIR"])
    world = World(place)
    torch.set_num_threads(1)
    suite = the_suite()
    from torch.testing._internal.distributed import distributed_test

    distributed_test.BACKEND = backend  # from here on, when all that is asked of a name has been asked
    dist.init_process_group(backend)
    group = dist.group.WORLD
    with (place / "outcomes").open("a") if world.rank == 0 else contextlib.nullcontext() as out:
        for name in (place / "tests").read_text().split():
            outcome, words = run_test(suite, name, world)
            everyone = world.told((outcome, words))
            worst = min(everyone, key=lambda each: WORST.index(each[0]))
            if out is not None:
                told = f"rank {everyone.index(worst)}: {worst[1]}" if worst[0] == "failed" else worst[1]
                out.write(json.dumps([name, worst[0], told]) + "\n")
                out.flush()
            failed = getattr(getattr(group, "entry", None), "failed", None)
            if worst[0] == "failed" or any(world.told(failed is not None or dist.group.WORLD is not group)):
                (place / "ended").touch()
                break
    world.told()
    os._exit(0)


def run_test(suite: Any, name: str, world: World) -> tuple[str, str]:
    import unittest

    from torch.testing._internal.distributed.distributed_test import Barrier

    if world.rank == 0:
        Barrier.init()
    Barrier.barrier_id = 0
    world.told()
    test = suite(name)
    test.rank, test.world_size = world.rank, world.size
    test.file_name = str(Path(os.environ["TEMP_DIR"]) / "init")
    if getattr(getattr(test, name), "__unittest_skip__", False):
        return "skipped", str(getattr(test, name).__unittest_skip_why__)
    try:
        test.setUp()
        try:
            getattr(test, name)()
        finally:
            test.tearDown()
    except unittest.SkipTest as reason:
        return "skipped", str(reason)
    except SystemExit as reason:  # the suite's word for a skip, between processes
        return "skipped", f"exit {reason.code}"
    except NameError as error:
        if "torchvision" in str(error):
            return "skipped", "torchvision is not installed"
        return "failed", traceback.format_exc()[-3000:]
    except BaseException:
        return "failed", traceback.format_exc()[-3000:]
    return "passed", ""


if __name__ == "__main__":
    sys.exit(main())
