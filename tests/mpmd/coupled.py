"""What the programs of tests of coupling begin with."""

COMMON = """
import sys
import numpy as np
import hpcomm
from hpcomm import regrid

me = hpcomm.join(sys.argv[1])
comm = me.comm

def mine(total, seed=None):
    points = np.arange(total) if seed is None else np.random.default_rng(seed).permutation(total)
    return np.array_split(points, comm.size)[comm.rank]
"""
