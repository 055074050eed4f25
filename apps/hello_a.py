"""The first of two programs in one job: sends an array to hello_b and gets it back doubled.

mpirun -n 1 python apps/hello_a.py : -n 1 python apps/hello_b.py
"""

import sys

import numpy as np

import hpcomm

world = hpcomm.world
programs = world.all_gather_object("a")  # every rank says which program it runs
if "b" not in programs:
    sys.exit("hello_a: hello_b is not in this job; start both as the first lines of this file say")

if world.rank == programs.index("a"):
    partner = programs.index("b")
    x = np.arange(5.0)
    world.send(x, dest=partner)
    doubled = world.recv(np.empty_like(x), source=partner)
    print(f"hello_a, rank {world.rank} of {world.size}: sent {x}, got {doubled} back", flush=True)
    if not np.array_equal(doubled, 2 * x):
        sys.exit("hello_a: that is not the double")
