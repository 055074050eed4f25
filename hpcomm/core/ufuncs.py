"""Functions of numpy's that reduce two arrays, by the names of MPI's operators."""

from __future__ import annotations

from typing import Any

import numpy as np

UFUNCS: dict[str, Any] = {
    "PROD": np.multiply, "MIN": np.minimum, "MAX": np.maximum, "BAND": np.bitwise_and, "SUM": np.add,
    "BOR": np.bitwise_or, "BXOR": np.bitwise_xor, "LAND": np.logical_and, "LOR": np.logical_or,
}  # fmt: skip
