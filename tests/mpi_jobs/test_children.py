"""Processes that are no ranks say so: children of ranks, and those of another MPI's launcher."""

import sys
from pathlib import Path
from typing import Any

import pytest
from processes import finish

POOLS = """
    from hpcomm import world as comm
    import concurrent.futures, multiprocessing, subprocess, sys
    import hpcomm

    def square(x):
        return x * x

    def use(verb):
        try:
            getattr(comm, verb)(1)
        except hpcomm.UsageError as error:
            return str(error)

    def show(how, results, said):
        total = comm.all_reduce(sum(results))
        if comm.rank == 0:
            children = len({words for words in said if "is a child of rank 0 (process " in words})
            print(f"{how} {total} {children}\\n", end="")  # in one piece: ranks' lines get mixed

    if __name__ == "__main__":
        verbs = ["all_reduce", "scan", "all_gather_object", "broadcast_object", "recv_object"]
        began = multiprocessing.get_context("fork").Pool(1)  # before MPI is up
        comm.barrier()
        with began as pool:
            is_child = "is a child of the rank that is process" in pool.map(use, verbs)[0]
            print(f"early {is_child}\\n", end="", flush=True)
        for how in ("fork", "spawn", "forkserver"):
            with multiprocessing.get_context(how).Pool(1) as pool:
                show(how, pool.map(square, range(3)), pool.map(use, verbs))
        with concurrent.futures.ProcessPoolExecutor(1) as pool:
            show("futures", pool.map(square, range(3)), map(use, []))
        try:
            import joblib
        except ImportError:
            print("no joblib")
        else:
            run = joblib.Parallel(n_jobs=2)
            show("joblib", run(map(joblib.delayed(square), range(3))), [])
        code = "from hpcomm import world\\nworld.barrier()"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        show("subprocess", [done.returncode], [done.stderr])
        again = [sys.executable, "-m", "hpcomm", "run", "-n", "1", "python", "-c", code]
        show("a job of its own", [subprocess.run(again).returncode], [])
"""
OF_TORCH = """
    import os, torch, torch.distributed as dist, hpcomm.torch_backend
    from hpcomm import world as comm

    class Numbers(torch.utils.data.Dataset):
        def __len__(self):
            return 4

        def __getitem__(self, i):
            return comm.rank if torch.utils.data.get_worker_info() is None else torch.tensor(i)

    dist.init_process_group("mpi")
    dist.barrier()
    x, other = torch.ones(1), 1 - dist.get_rank()
    calls = [lambda: dist.all_reduce(x), lambda: dist.all_reduce(x, async_op=True).wait(), dist.barrier]
    calls += [lambda: dist.send(x, other), lambda: dist.irecv(x, other).wait()]
    group = dist.group.WORLD
    for group._node in (group._node, None):  # by the core; by MPI
        if os.fork() == 0:
            for call in calls:
                try:
                    call()
                except hpcomm.UsageError as error:
                    print(f"refused {'is a child of rank' in str(error)}\\n", end="", flush=True)
            os._exit(0)
        os.wait()
        dist.barrier()
    dist.destroy_process_group()

    loader = torch.utils.data.DataLoader(Numbers(), 2, num_workers=2)  # others each import torch: 5 s
    total = comm.all_reduce(sum(batch.sum() for batch in loader))
    print(f"loaded {int(total)}\\n", end="")
"""


def test_pools_and_other_children_work_in_ranks_and_are_no_ranks(job: Any) -> None:
    said = sorted(set(job(2, POOLS, timeout=90).stdout.splitlines()))
    joblib = [] if "no joblib" in said else ["joblib 10 0"]
    assert [line for line in said if line != "no joblib"] == [
        "a job of its own 0 0",
        "early True",
        "fork 10 5",
        "forkserver 10 1",
        "futures 10 0",
        *joblib,
        "spawn 10 1",
        "subprocess 2 1",
    ]


def test_naming_the_world_starts_nothing(job: Any) -> None:
    code = """
        from hpcomm import self_, world
        import copy, inspect, sys
        assert isinstance(world, __import__("hpcomm").Communicator)
        assert not callable(world) and not hasattr(world, "__array__") and inspect.unwrap(world) is world
        assert "mpi4py.MPI" not in sys.modules
        assert (self_.size, world.size, type(world) is type(self_.dup())) == (1, 2, True)
        assert repr(world) == f"<Communicator 'world', rank {world.rank} of 2>"
    """
    job(2, code)


@pytest.mark.parametrize("variable", ["SLURM_STEP_NUM_TASKS", "PMI_SIZE"])
def test_a_rank_under_another_launcher_is_told_that_it_is_alone(tmp_path: Path, variable: str) -> None:
    """Started by one of its own MPI's it sees all; MPICH reads PMI_SIZE itself, and finds no launcher."""
    code = "from hpcomm import world; world.barrier()"
    done = finish([sys.executable, "-c", code], 60, tmp_path, {variable: "2"})
    assert done.returncode != 0
    if "sees only itself" not in done.stderr:
        assert variable == "PMI_SIZE"
        return
    assert "launcher started 2 ranks, but this program's MPI (" in done.stderr
    assert "start it with its own MPI's launcher" in done.stderr


@pytest.mark.once
def test_a_forked_child_of_a_rank_of_torch_says_so_and_workers_of_data_loaders_work(job: Any) -> None:
    pytest.importorskip("torch")
    said = job(2, OF_TORCH, timeout=120).stdout.split("\n")
    assert (said.count("refused True"), said.count("loaded 12")) == (20, 2), said
