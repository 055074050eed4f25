"""Halo exchange against what one writes by hand with mpi4py: 512² and 128³ elements on each of 2 ranks or 4.

    hpcomm run -n 2 python benchmarks/halo.py [--save] [--quick]

Each rank has a halo of one element on a ring of the ranks along one axis. So two faces go out and two come
in. By hand: Isend and Irecv of faces copied with numpy or described by derived datatypes, both also as
persistent requests. Also one persistent Neighbor_alltoallw on a Cartesian communicator.

Before each exchange the faces that are sent are written anew, as by a program that computes. Unchanged data
would be in the cache of the rank that read it last. The time of writing alone is subtracted.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import numpy as np
from measure import alternate, beyond, library, machine, median, ratio, save, say
from mpi4py import MPI

from hpcomm import Field, Halo, Partition
from hpcomm import world as comm

CASES = [
    ((512, 512), "float32"),
    ((512, 512), "float64"),
    ((128, 128, 128), "float32"),
    ((128,) * 3, "float64"),
]
Faces = list[tuple[Any, Any]]  # (what goes out, what comes in), towards both neighbours


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--save", action="store_true", help="keep the table under benchmarks/results")
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    if comm.size not in (2, 4):
        raise SystemExit("this benchmark is for 2 ranks or 4")
    rounds = 7 if options.quick else 15
    names = ["pack", "types", "pack, persistent", "types, persistent", "alltoallw_init", "hpcomm"]
    head = f"{'':>22} {'axis':>5}" + "".join(f"{n:>19}" for n in names) + f"{'to the best':>13}"
    text = [f"microseconds for one exchange of both faces (median of {rounds} alternated rounds)", head]
    say("\n".join([machine(), *text]))
    rows = []
    for shape, dtype in CASES:
        for axis in range(len(shape)):
            times = beyond(alternate(contenders(shape, dtype, axis), rounds), "writing")
            best = min(names[:-1], key=lambda n: median(times[n]))
            row = {"shape": shape, "dtype": dtype, "axis": axis, "best": best}
            row |= {n: round(median(times[n]), 2) for n in names}
            row["ratio"] = round(ratio(times["hpcomm"], times[best]), 3)
            rows.append(row)
            label = "x".join(map(str, shape)) + f" {dtype}"
            line = f"{label:>22} {axis:>5}" + "".join(f"{row[n]:>19.2f}" for n in names)
            text.append(f"{line}{row['ratio']:>13.2f}")
            say(text[-1])
    if options.save and comm.rank == 0:
        save(f"halo_{library()}{'' if comm.size == 2 else '_4'}", "\n".join(text), rows)


def contenders(shape: tuple[int, ...], dtype: str, axis: int) -> dict[str, Callable[[], Any]]:
    array = np.ones(tuple(n + 2 for n in shape), dtype)
    faces = cut(array, axis)
    whole = tuple(n * (comm.size if a == axis else 1) for a, n in enumerate(shape))
    split = tuple("p" if a == axis else None for a in range(len(shape)))
    partition = Partition(whole, {"p": comm.size}, split)
    width = tuple(1 if a == axis else 0 for a in range(len(shape)))
    inner = array[tuple(slice(None) if a == axis else slice(1, -1) for a in range(len(shape)))]
    field = Field(comm, partition, halo=width, periodic=[axis], array=inner)
    exchanges: dict[str, Callable[[], Any]] = {
        "pack": packed(faces),
        "types": typed(faces, array),
        "pack, persistent": packed_persistent(faces),
        "types, persistent": typed_persistent(faces, array),
        "alltoallw_init": neighbours(faces, array),
        "hpcomm": Halo(field),
    }
    leaving = [out for out, _ in faces]

    def writing() -> None:
        for face in leaving:
            face.fill(1.0)

    def written(exchange: Callable[[], Any]) -> Callable[[], None]:
        def act() -> None:
            for face in leaving:
                face.fill(1.0)
            exchange()

        return act

    return {"writing": writing} | {name: written(exchange) for name, exchange in exchanges.items()}


def cut(array: Any, axis: int) -> Faces:
    """The faces without edges: rows 1 and -2 go out, rows 0 and -1 come in."""

    def face(i: int) -> Any:
        return array[tuple(slice(i, i + 1 or None) if a == axis else slice(1, -1) for a in range(array.ndim))]

    return [(face(1), face(0)), (face(-2), face(-1))]


def ring() -> tuple[int, int]:
    """The ranks below and above."""
    return (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size


def packed(faces: Faces) -> Callable[[], None]:
    mpi, others = comm.mpi, ring()
    out = [np.empty(f[0].shape, f[0].dtype) for f in faces]
    back = [np.empty(f[1].shape, f[1].dtype) for f in faces]

    def exchange() -> None:
        requests = [mpi.Irecv(back[i], others[i], 1 - i) for i in (0, 1)]
        for i in (0, 1):
            out[i][...] = faces[i][0]
            requests.append(mpi.Isend(out[i], others[i], i))
        MPI.Request.Waitall(requests)
        for i in (0, 1):
            faces[i][1][...] = back[i]

    return exchange


def packed_persistent(faces: Faces) -> Callable[[], None]:
    mpi, others = comm.mpi, ring()
    out = [np.empty(f[0].shape, f[0].dtype) for f in faces]
    back = [np.empty(f[1].shape, f[1].dtype) for f in faces]
    requests = [mpi.Recv_init(back[i], others[i], 1 - i) for i in (0, 1)]
    requests += [mpi.Send_init(out[i], others[i], i) for i in (0, 1)]

    def exchange() -> None:
        for i in (0, 1):
            out[i][...] = faces[i][0]
        MPI.Prequest.Startall(requests)
        MPI.Request.Waitall(requests)
        for i in (0, 1):
            faces[i][1][...] = back[i]

    return exchange


def subarray(array: Any, view: Any) -> MPI.Datatype:
    offset = view.__array_interface__["data"][0] - array.__array_interface__["data"][0]
    starts = [int(i) for i in np.unravel_index(offset // array.itemsize, array.shape)]
    base = MPI.Datatype.fromcode(array.dtype.char)
    return base.Create_subarray(list(array.shape), list(view.shape), starts).Commit()


def typed(faces: Faces, array: Any) -> Callable[[], None]:
    mpi, others = comm.mpi, ring()
    kinds = [(subarray(array, out), subarray(array, back)) for out, back in faces]

    def exchange() -> None:
        requests = [mpi.Irecv([array, 1, kinds[i][1]], others[i], 1 - i) for i in (0, 1)]
        requests += [mpi.Isend([array, 1, kinds[i][0]], others[i], i) for i in (0, 1)]
        MPI.Request.Waitall(requests)

    return exchange


def typed_persistent(faces: Faces, array: Any) -> Callable[[], None]:
    mpi, others = comm.mpi, ring()
    kinds = [(subarray(array, out), subarray(array, back)) for out, back in faces]
    requests = [mpi.Recv_init([array, 1, kinds[i][1]], others[i], 1 - i) for i in (0, 1)]
    requests += [mpi.Send_init([array, 1, kinds[i][0]], others[i], i) for i in (0, 1)]

    def exchange() -> None:
        MPI.Prequest.Startall(requests)
        MPI.Request.Waitall(requests)

    return exchange


def neighbours(faces: Faces, array: Any) -> Callable[[], None]:
    grid = comm.mpi.Create_cart([comm.size], [True])
    kinds = [(subarray(array, out), subarray(array, back)) for out, back in faces]
    out = [array, ([1, 1], [0, 0]), [k[0] for k in kinds]]
    back = [array, ([1, 1], [0, 0]), [k[1] for k in kinds]]
    if not hasattr(grid, "Neighbor_alltoallw_init"):
        return lambda: None
    try:
        request = grid.Neighbor_alltoallw_init(out, back)
    except NotImplementedError:

        def exchange() -> None:
            grid.Neighbor_alltoallw(out, back)

        return exchange

    def start_and_wait() -> None:
        request.Start()
        request.Wait()

    return start_and_wait


if __name__ == "__main__":
    main()
