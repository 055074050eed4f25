"""How far off `hpcomm sim --fit` is on this machine: predicted against measured, kept as text.

python benchmarks/fit.py openmpi      # a name for the MPI of this Python; starts jobs of 2 and 3 ranks
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import sys
import tempfile
from datetime import date
from pathlib import Path

from hpcomm.tools import fit

RESULTS = Path(__file__).parent / "results"


def main(library: str) -> int:
    said = io.StringIO()
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(said):
        path = Path(folder) / "here.json"
        status = fit.report(str(path))
    text = f"{library}, {os.cpu_count()} cores, {date.today()}; all_reduce by own schedules\n\n"
    text += said.getvalue().replace(str(path), "fitted")
    print(text)
    (RESULTS / f"fit_{library}.txt").write_text(text)
    return status


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("library", choices=["openmpi", "mpich"], help="the MPI of this Python")
    sys.exit(main(parser.parse_args().library))
