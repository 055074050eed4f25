"""Planner: plans fields for the other programs of a job, where none of them is in Python.

In a spec:

    [program.planner]
    command = "python -m hpcomm.mpmd.planner"
    ranks = 1
"""

from __future__ import annotations

import os

from .join import NAME, join

if __name__ == "__main__":
    join(os.environ.get(NAME, "planner")).connect()
