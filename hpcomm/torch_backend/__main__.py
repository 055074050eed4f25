"""`mpirun -n 4 python -m hpcomm.torch_backend train.py ...`: run it with the variables that torchrun sets."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

from .rendezvous import announce


def main() -> None:
    """Run the program, or `-m module`, that the command line names."""
    words = sys.argv[1:]
    is_module = words[:1] == ["-m"]
    if len(words) <= is_module:
        sys.exit("usage: mpirun -n 4 python -m hpcomm.torch_backend [-m] PROGRAM ...")
    announce()
    sys.argv = words[is_module:]
    if is_module:
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = str(Path(sys.argv[0]).resolve().parent)
        runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
