"""Save on some ranks, restart on others: a checkpoint does not know who wrote it.

    python -m hpcomm run -n 4 python -m hpcomm.apps.restart_demo [FOLDER]

Half of the ranks write two fields as rows; all ranks read them as blocks, and one rank alone reads them
too. Then a byte of the newest checkpoint is spoilt, and the one before it is taken.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import warnings
from pathlib import Path

import numpy as np

import hpcomm

from .. import Communicator, Field
from ..errors import counted
from ..fields.files import checkpoints
from ._arguments import require_folder
from ._report import Parser, Report

SHAPE = (60, 48)


def fields_on(comm: Communicator, step: int | None) -> list[Field]:
    """Temperature and velocity over a mesh of comm; filled with what step holds, or empty."""
    mesh = comm.mesh(y=-1, x=-1)
    fields = [
        Field(mesh, SHAPE, halo=1, name="temperature", unit="K"),
        Field(mesh, (*SHAPE, 2), split=("y", "x", None), dtype="float32", name="velocity", unit="m/s"),
    ]
    for i, field in enumerate(fields):
        if step is not None:
            field.inner[...] = sum(k * (7 + i + a) for a, k in enumerate(field.indices)) + 1000 * step
    return fields


def faults(fields: list[Field], step: int, who: str) -> list[str]:
    """Which of the fields do not hold what step holds."""
    right = fields_on(fields[0].comm, step)
    return [
        f"{who}: {field.name} is not that of step {step}"
        for field, expected in zip(fields, right, strict=True)
        if not np.array_equal(field.inner, expected.inner)
    ]


def folder_for(parser: Parser, comm: Communicator, given: str | None) -> Path:
    """Where to save: the folder that is given, if nothing else was saved there, or a temporary one."""
    if given:
        require_folder(parser, comm, given)
        if comm.broadcast_object({*checkpoints.steps(given)} - {1, 2}):
            parser.error(f"{given} holds checkpoints of something else: another folder")
    elif comm.rank == 0:
        given = tempfile.mkdtemp(prefix="restart_demo-")
    return Path(comm.broadcast_object(given))


def save(writers: Communicator, folder: Path, report: Report) -> None:
    """Two checkpoints, of steps 1 and 2."""
    for step in (1, 2):
        path = checkpoints.save(folder, fields_on(writers, step), step, {"writers": writers.size})
    mesh = writers.mesh(y=-1, x=-1).shape
    report.say(f"{counted(writers.size, 'rank')} saved {path.name} as {mesh}", writers=writers.size)


def spoil(folder: Path) -> None:
    """Change one bit of the newest checkpoint."""
    spoilt = next(folder.glob("step-00000002*")) / "temperature.npy"
    data = bytearray(spoilt.read_bytes())
    data[len(data) // 2] ^= 1
    spoilt.write_bytes(data)


def main(argv: list[str] | None = None) -> int:
    parser = Parser("restart_demo", "checkpoints across numbers of ranks")
    parser.add_argument("folder", nargs="?", help="where to save; a temporary folder if absent")
    options = parser.parse_args(argv)
    comm = hpcomm.world
    report = Report(comm, options.json)
    folder = folder_for(parser, comm, options.folder)

    writers = comm.split(0 if comm.rank < (comm.size + 1) // 2 else None)
    if writers is not None:
        save(writers, folder, report)
    comm.barrier()

    wrong: list[str] = []
    alone = [("one rank alone", hpcomm.self_)] * (comm.rank == 0)
    for who, readers in ((counted(comm.size, "rank"), comm), *alone):
        fields = fields_on(readers, None)
        found = checkpoints.load(folder, fields)
        wrong += faults(fields, 2, who)
        report.say(f"{who} read step {found.step}, saved by {found.metadata['writers']}", step=found.step)

    comm.barrier()
    if comm.rank == 0:
        spoil(folder)
    comm.barrier()
    fields = fields_on(comm, None)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        found = checkpoints.load(folder, fields)
    wrong += faults(fields, 1, "after the damage")
    if comm.rank == 0 and not told:
        wrong.append("nobody was told of the damage")
    report.say(f"one bit spoilt: step {found.step} taken instead", step_after_damage=found.step)
    comm.barrier()
    if comm.rank == 0 and not options.folder:
        shutil.rmtree(folder)
    return report.verdict(wrong, "Every reader found what was saved.")


if __name__ == "__main__":
    sys.exit(main())
