"""The left square: takes the temperature of the wall, gives its heat flux; several steps in each window."""

import argparse

import numpy as np
from heat import Square, exact

import hpcomm
from hpcomm.mpmd.coupling.implicit import SCHEMES, Accelerator, windows

parser = argparse.ArgumentParser(formatter_class=argparse.ArgumentDefaultsHelpFormatter)
parser.add_argument("--meshes", type=int, default=16)
parser.add_argument("--window", type=float, default=0.1)
parser.add_argument("--steps", type=int, default=5, help="windows")
parser.add_argument("--substeps", type=int, default=2, help="steps of this program in a window")
parser.add_argument("--parallel", action="store_true", help="both squares at once; in both programs")
parser.add_argument("--scheme", choices=SCHEMES, default="iqn-ils", help="with --parallel, as of neumann")
parser.add_argument("--tolerance", type=float, default=1e-10, help="with --parallel, of the flux")
options = parser.parse_args()

me = hpcomm.join("dirichlet")
link = me.link("neumann")
square = Square(me.comm, 0.0, options.meshes, is_dirichlet=True)
temperature = me.takes(
    "temperature", exact(1.0, square.y, 0.0), square.rows, every=options.window, time="linear", implicit=True
)
flux = me.gives("flux", np.full(len(square.rows), 2.0), square.rows)  # u_x at the wall, at the start
how = {"save": square.save, "restore": square.restore}
if options.parallel:
    accelerator = Accelerator(me.together("neumann"), options.scheme)
    how |= {"fields": flux, "accelerator": accelerator, "tolerance": options.tolerance}
dt = options.window / options.substeps

for _window in range(options.steps):
    for _ in windows(link, **how):
        for _ in range(options.substeps):
            old, t = square.u, square.t + dt
            square.step(dt, link.get(temperature, t))
            flux.values[:] = square.flux(dt, old)
            link.put(flux, t)
    print(f"t = {square.t:.2f}: error {square.error():.1e}") if me.comm.rank == 0 else square.error()
