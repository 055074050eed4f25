"""The second of two programs in one job: doubles the array that hello_a sends. See hello_a.py."""

import sys

import hpcomm

world = hpcomm.world
programs = world.all_gather_object("b")
if "a" not in programs:
    sys.exit("hello_b: hello_a is not in this job; start both as hello_a.py says")

if world.rank == programs.index("b"):
    partner = programs.index("a")
    x = world.recv(source=partner, dtype="float64")  # as long as it comes
    print(f"hello_b, rank {world.rank} of {world.size}: got {x}", flush=True)
    world.send(2 * x, dest=partner)
