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
parser.add_argument("--substeps", type=int, default=1, help="steps of this program in a window")
parser.add_argument("--width", type=float, default=1.0, help="of this square; a narrow one converges slowly")
parser.add_argument("--scheme", choices=SCHEMES, default="iqn-ils")
parser.add_argument("--tolerance", type=float, default=1e-10)
parser.add_argument("--parallel", action="store_true", help="both squares at once; in both programs")
options = parser.parse_args()

me = hpcomm.join("neumann")
link = me.link("dirichlet")
square = Square(me.comm, 1.0, options.meshes, is_dirichlet=False, width=options.width)
temperature = me.gives("temperature", exact(1.0, square.y, 0.0), square.rows)
flux = me.takes(  # u_x at the wall, at the start
    "flux", np.full(len(square.rows), 2.0), square.rows, every=options.window, time="linear", implicit=True
)
accelerator = Accelerator(me.together("dirichlet") if options.parallel else me.comm, options.scheme)
dt = options.window / options.substeps

counts, worst, k = [], 0.0, 0
for _window in range(options.steps):
    for k in windows(  # noqa: B007  the last one counts
        link, temperature, accelerator, tolerance=options.tolerance, save=square.save, restore=square.restore
    ):
        for _ in range(options.substeps):
            t = square.t + dt
            square.step(dt, link.get(flux, t))
            temperature.values[:] = square.u[:, square.side]
            link.put(temperature, t)
    counts.append(k)
    worst = max(worst, square.error())
if me.comm.rank == 0:
    print(f"{options.scheme}: iterations {' '.join(map(str, counts))}, largest error {worst:.1e}")
if not worst <= 1e-7:
    sys.exit("neumann: that is not the exact solution")
