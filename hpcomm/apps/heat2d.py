"""Heat spreading over a plate whose pieces live on a mesh of ranks: halos, overlap, checkpoints, a picture.

    python -m hpcomm run -n 4 python -m hpcomm.apps.heat2d [--size 512] [--steps 500] [--picture FILE.png]
    python -m hpcomm run -n 3 python -m hpcomm.apps.heat2d --checkpoint FOLDER [--every 100]

While the rim of each piece is on its way the inside is computed. With --checkpoint the run goes on from
the newest one found there, on any number of ranks. At the end rank 0 computes the same alone. Both results
are equal to the last bit, because every point is computed by the same operations in the same order.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import hpcomm

from .. import Field, Halo, LayoutError, Mesh
from ..core.types import AnyArray
from ..fields.files import checkpoints
from ._arguments import positive, require_folder, require_memory
from ._picture import draw_field, require_picture
from ._report import Parser, Progress, Report

KAPPA = 0.2  # diffusivity * time step / spacing², stable below 0.25
Part = tuple[slice, slice]


def diffuse(u: NDArray[np.float64], new: NDArray[np.float64], part: Part) -> None:
    """One explicit step (FTCS) for the points in part of u, which has a rim of one around all of them."""
    y, x = part
    up, down = slice(y.start - 1, y.stop - 1), slice(y.start + 1, y.stop + 1)
    left, right = slice(x.start - 1, x.stop - 1), slice(x.start + 1, x.stop + 1)
    here = u[y, x]
    new[y, x] = here + KAPPA * (((u[up, x] + u[down, x]) + (u[y, left] + u[y, right])) - 4 * here)


def inside_and_rim(shape: tuple[int, int]) -> tuple[Part, list[Part]]:
    """The points that need no halo, and the four strips that do, of an array with a rim of one."""
    ny, nx = shape
    inside = (slice(2, max(2, ny)), slice(2, max(2, nx)))
    strips = [(slice(1, min(2, ny + 1)), slice(1, nx + 1))]
    strips += [(slice(max(2, ny), ny + 1), slice(1, nx + 1))]
    strips += [(inside[0], slice(1, min(2, nx + 1))), (inside[0], slice(max(2, nx), nx + 1))]
    return inside, [s for s in strips if all(a.stop > a.start for a in s)]


def begin(field: Field) -> None:
    """A warm left side, a hot spot, and a cold remainder."""
    y, x = field.indices
    ny, nx = field.shape
    field.inner[...] = np.where((y - ny // 3) ** 2 + (x - nx // 2) ** 2 < (min(ny, nx) // 6) ** 2, 100.0, 0.0)
    field.inner[...] += np.where(x < nx // 8, 40.0, 0.0)


def run(u: Field, first: int, last: int, folder: str | None, every: int) -> None:
    """Steps first to last; checkpoints on the way and of the last step."""
    other = Field(u.comm, u.partition, halo=1, corners=False, name=u.name, unit=u.unit)
    pair = [(u, other, Halo(u)), (other, u, Halo(other))]
    assert u.box is not None
    inside, rim = inside_and_rim((u.box.shape[0], u.box.shape[1]))
    progress = Progress(u.comm, "steps", last - first)
    for step in range(first, last):
        old, new, halo = pair[(step - first) % 2]
        halo.start()
        diffuse(old.array, new.array, inside)
        halo.wait()
        for strip in rim:
            diffuse(old.array, new.array, strip)
        progress.step()
        if folder and ((step + 1) % every == 0 or step + 1 == last):
            checkpoints.save(folder, [new], step + 1, {"kappa": KAPPA}, keep=2)
    if (last - first) % 2:
        u.inner[...] = other.inner


def alone(shape: tuple[int, int], steps: int) -> AnyArray:
    """The same on one rank, in one array."""
    u = Field(hpcomm.self_, shape, halo=1)
    begin(u)
    new = u.array.copy()
    whole = (slice(1, shape[0] + 1), slice(1, shape[1] + 1))
    for _ in range(steps):
        diffuse(u.array, new, whole)
        u.array[whole], new[whole] = new[whole], u.array[whole].copy()
    return np.asarray(u.inner)


def plate(mesh: Mesh, size: int) -> Field:
    return Field(mesh, (size, size + size // 4), halo=1, corners=False, name="temperature", unit="degree")


def resumed(parser: Parser, folder: str, u: Field, steps: int) -> int:
    """The step from which the run goes on, with what was saved in folder, if there is something."""
    require_folder(parser, u.comm, folder)
    if not u.comm.broadcast_object(bool(checkpoints.steps(Path(folder)))):
        return 0
    try:
        first = checkpoints.load(folder, [u]).step
    except LayoutError as error:
        parser.error(f"another plate was saved: {error.what}")
    if first > steps:
        parser.error(f"{folder} is at step {first} already: more --steps, or another folder")
    return first


def main(argv: list[str] | None = None) -> int:
    parser = Parser("heat2d", "heat on a plate over a mesh of ranks")
    parser.add_argument(
        "--size", type=positive, default=256, help="points along one side (the other is 1.25 times)"
    )
    parser.add_argument("--steps", type=positive, default=200, help="of the whole run")
    parser.add_argument("--checkpoint", metavar="FOLDER", help="go on from here, and save here")
    parser.add_argument("--every", type=positive, default=100, help="steps between checkpoints")
    parser.add_picture("--picture", "draw the plate at the end")
    options = parser.parse_args(argv)
    require_picture(parser, options.picture)

    comm = hpcomm.world
    report = Report(comm, options.json)
    whole_nbytes = 8 * options.size * (options.size + options.size // 4)
    needed = 2 * whole_nbytes // comm.size + 6 * whole_nbytes * (comm.rank == 0)
    require_memory(parser, comm, "--size", needed)
    mesh = comm.mesh(y=-1, x=-1)
    u = plate(mesh, options.size)
    begin(u)
    folder = options.checkpoint
    first = resumed(parser, folder, u, options.steps) if folder else 0
    points = f"{u.shape[0]} x {u.shape[1]} points"
    said = f"{points}, from step {first} to {options.steps}\n{mesh.describe()}"
    report.say(said, shape=u.shape, first=first)
    start = time.perf_counter()
    run(u, first, options.steps, folder, options.every)
    took = time.perf_counter() - start
    mean, highest = u.mean(), u.max()
    whole = u.gather()
    wrong = []
    if comm.rank == 0:
        rate = u.array.size * mesh.size * max(0, options.steps - first) / max(took, 1e-9)
        report.say(
            f"{took:.2f} s, {rate / 1e6:.0f} million points a second; mean {mean:.6f}, highest {highest:.3f}",
            seconds=took, points_per_second=rate, mean=float(mean), highest=float(highest),
        )  # fmt: skip
        if folder and first < options.steps:
            report.say(f"saved: step {options.steps} in {folder}", saved=str(folder))
        assert whole is not None
        expected = alone((u.shape[0], u.shape[1]), options.steps)
        if not np.array_equal(whole, expected):
            wrong.append(f"{np.sum(whole != expected)} points differ from one rank's result")
        if options.picture:
            draw_field(whole, u.name, [u.partition.box(r) for r in range(mesh.size)], options.picture)  # type: ignore[union-attr]
            report.say(f"drawn: {options.picture}", picture=options.picture)
    return report.verdict(wrong, "Identical to one rank's result, to the last bit.")


if __name__ == "__main__":
    sys.exit(main())
