"""The left square: takes the temperature of the wall, gives its heat flux; several steps in each window."""

import argparse

import numpy as np
from heat import Square, exact

import hpcomm
from hpcomm.mpmd.coupling.implicit import windows

parser = argparse.ArgumentParser(formatter_class=argparse.ArgumentDefaultsHelpFormatter)
parser.add_argument("--meshes", type=int, default=16)
parser.add_argument("--window", type=float, default=0.1)
parser.add_argument("--steps", type=int, default=5, help="windows")
parser.add_argument("--substeps", type=int, default=2, help="steps of this program in a window")
options = parser.parse_args()

me = hpcomm.join("dirichlet")
link = me.link("neumann")
square = Square(me.comm, 0.0, options.meshes, is_dirichlet=True)
temperature = me.takes("temperature", exact(1.0, square.y, 0.0), square.rows)
flux = me.gives("flux", np.zeros(len(square.rows)), square.rows)
dt = options.window / options.substeps

for _window in range(options.steps):
    before = square.u[:, square.side].copy()
    for _ in windows(link, save=square.save, restore=square.restore):
        link.get(temperature)
        for k in range(1, options.substeps + 1):  # the wall is linear in time within the window
            old = square.u
            part = k / options.substeps
            square.step(dt, (1 - part) * before + part * temperature.values)
        flux.values[:] = square.flux(dt, old)
        link.put(flux)
    print(f"t = {square.t:.2f}: error {square.error():.1e}") if me.comm.rank == 0 else square.error()
