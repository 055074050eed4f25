"""Run what docs/notebooks.md shows: engines of ipyparallel as ranks (needs it; not part of the tests).

python tests/outside/notebook.py
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import ipyparallel

from hpcomm.job.installation import find_mpi

RANKS = 2


def first() -> list[float]:
    """The page's cell."""
    import numpy as np

    import hpcomm

    hpcomm.world.timeout = 60
    got: list[float] = hpcomm.world.all_reduce(np.full(3, hpcomm.world.rank)).tolist()
    return got


def alone() -> str:
    """On one engine: the others do not come."""
    import hpcomm

    hpcomm.world.timeout = 2
    try:
        hpcomm.world.barrier()
    except hpcomm.WaitTimeoutError as error:
        return str(error)
    return "nobody was missing"


def shown() -> str:
    """What a notebook shows of the world."""
    import hpcomm

    html: str = hpcomm.world._repr_html_()
    return html


def main() -> int:
    """0 if all went as the page says."""
    os.environ |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    os.environ["PATH"] = f"{Path(find_mpi().launcher).parent}{os.pathsep}{os.environ['PATH']}"
    cluster = ipyparallel.Cluster(engines="mpi", n=RANKS)
    engines = cluster.start_and_connect_sync()
    try:
        sums = engines[:].apply_sync(first)
        print(sums)
        print(engines[:].apply_sync(shown)[1])
        late = engines[0].apply_sync(alone)
        print(late)
    finally:
        cluster.stop_cluster_sync()
    right = sums == [[1, 1, 1]] * RANKS and "barrier" in late
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
