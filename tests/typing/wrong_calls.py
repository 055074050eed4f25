"""Calls that a type checker must refuse: each line says so, and one that passed would be an error, too."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

import hpcomm
from hpcomm import Communicator

comm: Communicator = hpcomm.world


def refused(x: NDArray[np.float64], name: str) -> None:
    comm.all_reduce(x, "summ")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
