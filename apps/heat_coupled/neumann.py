"""The right square: takes the heat flux through the wall, gives the wall's temperature, and accelerates.

    hpcomm run mpmd_configs/heat_coupled.toml

or  mpirun -n 1 python dirichlet.py : -n 1 python neumann.py --scheme aitken
"""

import argparse
import sys

import numpy as np
from heat import Square, exact

import hpcomm
from hpcomm.mpmd.coupling.implicit import SCHEMES, Accelerator, windows

parser = argparse.ArgumentParser(formatter_class=argparse.ArgumentDefaultsHelpFormatter)
parser.add_argument("--meshes", type=int, default=16)
parser.add_argument("--window", type=float, default=0.1)
parser.add_argument("--steps", type=int, default=5, help="windows")
parser.add_argument("--width", type=float, default=1.0, help="of this square; a narrow one converges slowly")
parser.add_argument("--scheme", choices=SCHEMES, default="iqn-ils")
parser.add_argument("--tolerance", type=float, default=1e-10)
options = parser.parse_args()

me = hpcomm.join("neumann")
link = me.link("dirichlet")
square = Square(me.comm, 1.0, options.meshes, is_dirichlet=False, width=options.width)
temperature = me.gives("temperature", exact(1.0, square.y, 0.0), square.rows)
flux = me.takes("flux", np.zeros(len(square.rows)), square.rows)
accelerator = Accelerator(me.comm, options.scheme)

counts, worst, k = [], 0.0, 0
for _window in range(options.steps):
    for k in windows(  # noqa: B007  the last one counts
        link, temperature, accelerator, tolerance=options.tolerance, save=square.save, restore=square.restore
    ):
        link.get(flux)
        square.step(options.window, flux.values)
        temperature.values[:] = square.u[:, square.side]
    counts.append(k)
    worst = max(worst, square.error())
if me.comm.rank == 0:
    print(f"{options.scheme}: iterations {' '.join(map(str, counts))}, largest error {worst:.1e}")
if not worst <= 1e-7:
    sys.exit("neumann: that is not the exact solution")
