"""Libraries that take a communicator of mpi4py's, over hpcomm: each a small job.

    pip install emcee schwimmbad dynesty deap scipy pymoo adaptive pylops-mpi numba-mpi nifty8 pySDC heat \\
        mpi4py-fft libensemble dask-mpi executorlib  # petsc4py, and h5py with MPI: Debian has them
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
import tempfile
from collections.abc import Callable
from contextlib import suppress
from typing import Any
from unittest.mock import MagicMock

import numpy as np

WAYS: dict[str, list[str]] = {"mpi4py": [], "MPI.of(world)": [], "checked": ["--check"], "world": []}
LIMIT_S = 250.0
HINT = "MPI.of("  # what the error of a Communicator that is asked for mpi4py's names says
REFUSALS = {"petsc4py": "Cannot convert"}  # of what looks at the class alone, in C


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


def mpi4py_fft(comm: Any) -> None:
    from mpi4py_fft import PFFT, newDistArray

    x = np.random.default_rng(1).normal(size=(8, 6, 10))
    fft = PFFT(comm, x.shape, dtype=float)
    u = newDistArray(fft, False)
    u[:] = x[u.local_slice()]
    there = newDistArray(fft, True)
    fft.forward(u.copy(), there)
    assert np.allclose(there, (np.fft.rfftn(x) / x.size)[there.local_slice()])
    assert np.allclose(fft.backward(there, newDistArray(fft, False)), x[u.local_slice()])
    fft.destroy()


def heat(comm: Any) -> None:
    try:
        import torchvision  # noqa: F401
    except (ImportError, RuntimeError):  # a wheel for another torch; heat needs it to read images
        sys.modules.update({f"torchvision{each}": MagicMock() for each in ("", ".datasets", ".transforms")})
    import heat as ht

    ours = ht.MPICommunication(comm)
    x = ht.arange(12, dtype=ht.float64, split=0, comm=ours).reshape((4, 3))
    assert (x.T @ x).numpy().tolist() == (x.numpy().T @ x.numpy()).tolist()
    assert np.isclose(x.mean().item(), 5.5)
    assert ht.cumsum(x, 0).numpy().tolist() == x.numpy().cumsum(0).tolist()
    assert ht.resplit(x, 1).numpy().tolist() == np.arange(12.0).reshape(4, 3).tolist()


def squares(h: Any, persis_info: Any, sim_specs: Any, *others: Any) -> Any:
    out = np.zeros(len(h), dtype=sim_specs["out"])
    out["f"] = h["x"] ** 2
    return out, persis_info


def points(h: Any, persis_info: Any, gen_specs: Any, *others: Any) -> Any:
    out = np.zeros(5, dtype=gen_specs["out"])
    out["x"] = np.arange(5.0) + len(h)
    return out, persis_info


def libensemble(comm: Any) -> None:
    from libensemble.alloc_funcs.give_sim_work_first import give_sim_work_first
    from libensemble.libE import libE

    history, _, flag = libE(
        {"sim_f": squares, "in": ["x"], "out": [("f", float)]},
        {"gen_f": points, "out": [("x", float)]},
        {"sim_max": 10},
        alloc_specs={"alloc_f": give_sim_work_first, "user": {"num_active_gens": 1}},
        libE_specs={"mpi_comm": comm, "comms": "mpi", "disable_log_files": True, "save_every_k_sims": 1000},
    )
    if comm.Get_rank() == 0:
        assert flag == 0
        done = history[history["sim_ended"]]
        assert len(done) >= 10
        assert (done["f"] == done["x"] ** 2).all()


def dask_mpi(comm: Any) -> None:
    from dask.distributed import Client
    from dask_mpi import initialize

    with suppress(SystemExit):  # scheduler and workers leave by that
        initialize(comm=comm, dashboard=False)
        with Client() as client:
            assert client.gather(client.map(bowl, [[1.0, 2.0], [3.0, 1.0]])) == [1.0, 4.0]


def petsc4py(comm: Any) -> None:
    import petsc4py as package

    package.init(comm=comm)
    from petsc4py import PETSc

    n = 20
    matrix = PETSc.Mat().createAIJ((n, n), nnz=3, comm=comm)
    for row in range(*matrix.getOwnershipRange()):
        for column in range(max(row - 1, 0), min(row + 2, n)):
            matrix[row, column] = 2.5 if row == column else -1.0
    matrix.assemble()
    x, b = matrix.createVecs()
    b.set(1.0)
    solver = PETSc.KSP().create(comm)
    solver.setOperators(matrix)
    solver.setTolerances(rtol=1e-12)
    solver.solve(b, x)
    whole = 2.5 * np.eye(n) - np.eye(n, k=1) - np.eye(n, k=-1)
    assert np.allclose(x.array, np.linalg.solve(whole, np.ones(n))[slice(*x.getOwnershipRange())])
    assert isinstance(comm, type(matrix.comm.tompi4py()))


def h5py(comm: Any) -> None:
    import h5py as package

    with tempfile.TemporaryDirectory() as place:
        path = comm.bcast(f"{place}/x.h5", root=0)
        with package.File(path, "w", driver="mpio", comm=comm) as file:
            file.create_dataset("x", (comm.size, 4))[comm.rank] = comm.rank
        with package.File(path, "r", driver="mpio", comm=comm) as file:
            assert (file["x"][:] == np.arange(comm.size)[:, None]).all()
        comm.Barrier()


def spread(way: str, x: int) -> Any:
    comm = communicator(way)
    return comm.rank, comm.allreduce(x + comm.rank)


def executorlib(way: Any) -> None:
    """Starts ranks of its own by mpiexec, which make a communicator each."""
    from executorlib import SingleNodeExecutor

    with SingleNodeExecutor(resource_dict={"cores": 2}) as executor:
        assert executor.submit(spread, way, 10).result() == [(0, 21), (1, 21)]


CLIENTS: dict[str, Callable[[Any], None]] = {
    each.__name__: each
    for each in (
        emcee, dynesty, deap, scipy, pymoo, futures, adaptive, pylops_mpi, numba_mpi, nifty8, pySDC,
        mpi4py_fft, heat, libensemble, dask_mpi, petsc4py, h5py, executorlib,
    )
}  # fmt: skip
PACKAGES = {"futures": "mpi4py"}


def is_parallel() -> bool:
    import h5py

    return bool(h5py.get_config().mpi)


FITS = {"h5py": is_parallel}
STARTERS = {
    "executorlib": ("mpi4py", "MPI.of(world)")
}  # those that start ranks themselves, and the ways of these


def communicator(way: str) -> Any:
    if way in ("mpi4py", "checked"):
        from mpi4py import MPI

        return MPI.COMM_WORLD
    import hpcomm

    if way == "world":
        return hpcomm.world
    from hpcomm.compat import MPI as OURS

    return OURS.of(hpcomm.world)


def as_rank(name: str, way: str) -> None:
    CLIENTS[name](way if name in STARTERS else communicator(way))
    print("this rank is done", flush=True)


def outcome(name: str, way: str, n: int) -> str:
    if way not in STARTERS.get(name, WAYS):
        return "-"
    words = [
        sys.executable,
        "-m",
        "hpcomm",
        "run",
        "-n",
        str(n),
        "--timeout",
        f"{LIMIT_S:g}",
        *WAYS[way],
        "python",
    ]
    if name in STARTERS:
        words, n = [sys.executable], 1
    words += [__file__, "--as-rank", name, way]
    with tempfile.TemporaryDirectory() as place:  # libensemble leaves files
        done = subprocess.run(words, cwd=place, capture_output=True, text=True, check=False)
    said = done.stdout + done.stderr
    if done.returncode == 0 and done.stdout.count(" is done") == n:
        return "passed"
    if way == "world" and HINT in said:
        return "told"
    if way == "world" and REFUSALS.get(name, HINT) in said:
        return "refused"
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
        if importlib.util.find_spec(PACKAGES.get(name, name)) is None or not FITS.get(name, lambda: True)():
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
