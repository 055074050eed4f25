"""Libraries that take a communicator of mpi4py's, over hpcomm: each a small job.

    pip install emcee schwimmbad dynesty deap scipy pymoo adaptive pylops-mpi numba-mpi nifty8 pySDC
    python tests/outside/mpi4py_clients.py [-n 3] [NAME ...]

Each runs in three ways: with mpi4py alone; with the communicator that hpcomm.compat makes of hpcomm.world,
where the library has mpi4py's own module; and by `hpcomm run --check`. A fourth way gives the library
hpcomm.world itself, which has hpcomm's own names: that has to work, or to fail with what to give it instead.
Ends with 1 if one failed. A library that is not installed is left out.
"""

from __future__ import annotations

import argparse
import importlib.util
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np

WAYS: dict[str, list[str]] = {"mpi4py": [], "MPI.of(world)": [], "checked": ["--check"], "world": []}
LIMIT_S = 100.0
HINT = "MPI.of("  # what the error of a Communicator that is asked for mpi4py's names says


def bowl(x: Any) -> float:
    return float(np.sum((np.asarray(x) - 1.0) ** 2))


def likelihood(x: Any) -> float:
    return -0.5 * bowl(x)


def cube(u: Any) -> Any:
    return 4.0 * u - 2.0


def fitness(x: Any) -> tuple[float]:
    return (bowl(x),)


def pooled(comm: Any, main: Callable[[Callable[..., Any], Any], None]) -> None:
    """Have rank 0 do main with schwimmbad's pool of all ranks."""
    from schwimmbad import MPIPool

    with suppress(SystemExit), MPIPool(comm) as pool:  # workers leave by that
        main(pool.map, pool)


def emcee(comm: Any) -> None:
    import emcee

    def main(map: Callable[..., Any], pool: Any) -> None:
        chains = []
        for each in (pool, None):
            np.random.seed(1)
            sampler = emcee.EnsembleSampler(8, 2, likelihood, pool=each)
            sampler.run_mcmc(np.random.randn(8, 2), 20)
            chains.append(sampler.get_chain())
        assert (chains[0] == chains[1]).all()

    pooled(comm, main)


def dynesty(comm: Any) -> None:
    import dynesty

    def main(map: Callable[..., Any], pool: Any) -> None:
        how = {"nlive": 40, "rstate": np.random.default_rng(1), "bound": "single", "sample": "unif"}
        sampler = dynesty.NestedSampler(likelihood, cube, 2, pool=pool, queue_size=comm.size, **how)
        sampler.run_nested(maxiter=100, print_progress=False)
        assert np.isfinite(sampler.results.logz).all()

    pooled(comm, main)


def deap(comm: Any) -> None:
    from deap import algorithms, base, creator, tools

    creator.create("Least", base.Fitness, weights=(-1.0,))
    creator.create("One", list, fitness=creator.Least)

    def main(map: Callable[..., Any], pool: Any) -> None:
        box = base.Toolbox()
        box.register("mate", tools.cxBlend, alpha=0.5)
        box.register("mutate", tools.mutGaussian, mu=0, sigma=0.2, indpb=0.5)
        box.register("select", tools.selTournament, tournsize=3)
        box.register("evaluate", fitness)
        box.register("map", map)
        start = [creator.One(np.random.default_rng(i).normal(size=2).tolist()) for i in range(20)]
        last, _ = algorithms.eaSimple(start, box, 0.5, 0.3, 10, verbose=False)
        assert min(one.fitness.values[0] for one in last) < 0.5

    pooled(comm, main)


def scipy(comm: Any) -> None:
    from scipy.optimize import differential_evolution

    def main(map: Callable[..., Any], pool: Any) -> None:
        how = {"seed": 1, "maxiter": 20, "updating": "deferred"}
        both = [differential_evolution(bowl, [(-3, 3)] * 2, workers=each, **how).x for each in (map, 1)]
        assert (both[0] == both[1]).all()

    pooled(comm, main)


def pymoo(comm: Any) -> None:
    from pymoo.algorithms.soo.nonconvex.ga import GA
    from pymoo.core.problem import Problem
    from pymoo.optimize import minimize

    class Bowl(Problem):
        def __init__(self, map: Callable[..., Any]) -> None:
            super().__init__(n_var=2, n_obj=1, xl=-3, xu=3)
            self.map = map

        def _evaluate(self, x: Any, out: Any, *args: Any, **kwargs: Any) -> None:
            out["F"] = np.array([*self.map(bowl, [*x])])[:, None]

    def main(map: Callable[..., Any], pool: Any) -> None:
        assert minimize(Bowl(map), GA(pop_size=20), ("n_gen", 10), seed=1, copy_algorithm=False).F[0] < 0.5

    pooled(comm, main)


def futures(comm: Any) -> None:
    from mpi4py.futures import MPICommExecutor

    with MPICommExecutor(comm, root=0) as executor:
        if executor is not None:
            assert [*executor.map(bowl, [[1.0, 2.0], [3.0, 1.0]])] == [1.0, 4.0]


def adaptive(comm: Any) -> None:
    import adaptive
    from mpi4py.futures import MPICommExecutor

    with MPICommExecutor(comm, root=0) as executor:
        if executor is not None:
            learner = adaptive.Learner1D(bowl, bounds=(-1, 1))
            adaptive.BlockingRunner(learner, npoints_goal=9, executor=executor)
            assert learner.npoints >= 9


def pylops_mpi(comm: Any) -> None:
    import pylops
    import pylops_mpi

    x = pylops_mpi.DistributedArray.to_dist(np.arange(12.0), base_comm=comm)
    assert np.allclose(x.asarray(), np.arange(12.0))
    assert np.isclose(x.norm(), np.linalg.norm(np.arange(12.0)))
    n = x.local_shape[0]
    doubled = pylops_mpi.MPIBlockDiag([pylops.MatrixMult(2.0 * np.eye(n))], base_comm=comm) @ x
    assert np.allclose(doubled.asarray(), 2 * np.arange(12.0))


def numba_mpi(comm: Any) -> None:
    import numba
    import numba_mpi

    @numba.njit  # type: ignore[untyped-decorator]
    def ring() -> float:
        rank, size = numba_mpi.rank(), numba_mpi.size()
        here, got = np.full(3, float(rank)), np.empty(3)
        numba_mpi.allreduce(here, got)
        return got[0] - size * (size - 1) / 2

    assert ring() == 0.0
    assert comm.allreduce(1) == comm.size


def nifty8(comm: Any) -> None:
    from nifty8 import utilities

    lo, hi = utilities.shareRange(10, comm.Get_size(), comm.Get_rank())
    assert utilities.allreduce_sum([float(i) for i in range(lo, hi)], comm) == 45.0
    utilities.check_MPI_equality(np.arange(3.0), comm)


def pySDC(comm: Any) -> None:  # noqa: N802  its name
    from pySDC.implementations.controller_classes.controller_MPI import controller_MPI
    from pySDC.implementations.problem_classes.TestEquation_0D import testequation0d
    from pySDC.implementations.sweeper_classes.generic_implicit import generic_implicit

    description = {
        "problem_class": testequation0d,
        "problem_params": {"lambdas": [[-1.0]], "u0": 1.0},
        "sweeper_class": generic_implicit,
        "sweeper_params": {"quad_type": "RADAU-RIGHT", "num_nodes": 3, "QI": "IE"},
        "level_params": {"dt": 0.1, "restol": 1e-12},
        "step_params": {"maxiter": 50},
    }
    controller = controller_MPI({"logger_level": 40}, description, comm)
    end = 0.2 * comm.Get_size()
    last, _ = controller.run(controller.S.levels[0].prob.u_exact(0.0), 0.0, end)
    assert abs(complex(np.asarray(last).ravel()[0]) - np.exp(-end)) < 1e-6


CLIENTS: dict[str, Callable[[Any], None]] = {
    each.__name__: each
    for each in (
        emcee, dynesty, deap, scipy, pymoo, futures, adaptive, pylops_mpi, numba_mpi, nifty8, pySDC
    )
}  # fmt: skip
PACKAGES = {"futures": "mpi4py"}


def as_rank(name: str, way: str) -> None:
    if way == "world":
        import hpcomm

        comm: Any = hpcomm.world
    elif way == "MPI.of(world)":
        import hpcomm
        from hpcomm.compat import MPI as OURS

        comm = OURS.of(hpcomm.world)
    else:
        from mpi4py import MPI

        comm = MPI.COMM_WORLD
    CLIENTS[name](comm)
    print(f"rank {comm.rank} is done", flush=True)


def outcome(name: str, way: str, n: int) -> str:
    words = [sys.executable, "-m", "hpcomm", "run", "-n", str(n), "--timeout", f"{LIMIT_S:g}", *WAYS[way]]
    words += ["python", __file__, "--as-rank", name, way]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    said = done.stdout + done.stderr
    if done.returncode == 0 and done.stdout.count(" is done") == n:
        return "passed"
    if way == "world" and HINT in said:
        return "told"
    print(f"--- {name}, {way}: status {done.returncode}\n{said[-3000:]}", flush=True)
    return "FAILED"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("-n", type=int, default=3)
    parser.add_argument("--as-rank", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("names", nargs="*", help=f"of {', '.join(CLIENTS)}")
    given = parser.parse_args()
    if given.as_rank:
        as_rank(*given.as_rank)
        return 0
    rows = []
    for name in given.names or CLIENTS:
        if importlib.util.find_spec(PACKAGES.get(name, name)) is None:
            print(f"{name} is not installed")
            continue
        rows.append([name, *(outcome(name, way, given.n) for way in WAYS)])
        print(*(f"{word:15}" for word in rows[-1]), flush=True)
    print("\n", *(f"{word:15}" for word in ("client", *WAYS)), sep="")
    for row in rows:
        print(*(f"{word:15}" for word in row), sep="")
    return 1 if any("FAILED" in row for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
