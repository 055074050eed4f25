"""Program under a word of ours: `python -m hpcomm.WORD [-m] PROGRAM ...` runs it as Python itself would."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable
from pathlib import Path


def run(word: str, prepare: Callable[[], object]) -> None:
    """Prepare, then run the program, or `-m module`, that the command line names.

    Args:
        word: the module behind `python -m`, for the usage.
    """
    words = sys.argv[1:]
    is_module = words[:1] == ["-m"]
    if len(words) <= is_module:
        sys.exit(f"usage: mpirun -n 4 python -m {word} [-m] PROGRAM ...")
    prepare()
    sys.argv = words[is_module:]
    if is_module:
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = str(Path(sys.argv[0]).resolve().parent)
        runpy.run_path(sys.argv[0], run_name="__main__")
