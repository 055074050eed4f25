"""An ocean on a latitude-longitude grid with land: a mixed layer that stores and spreads heat.

Runs on a GPU if the spec gives it one and torch finds it, else on the CPU: see `device`. Takes the heat flux,
gives the surface temperature in degrees Celsius.
"""

import argparse
import os
from pathlib import Path

import numpy as np
from sphere import Bands, film, load, picture, save

import hpcomm

HOUR, DAY = 3600.0, 86400.0
CAPACITY = 4.2e6 * 50.0  # J/(m² K), 50 m of water
MERIDIONAL, ZONAL = 1.0e5, 1.0e-7

parser = argparse.ArgumentParser(formatter_class=argparse.ArgumentDefaultsHelpFormatter)
parser.add_argument("--days", type=float, default=5.0)
parser.add_argument("--read", help="go on from this restart file")
parser.add_argument("--write", help="write a restart file")
parser.add_argument("--picture", help="write a map")
parser.add_argument("--film", help="write a GIF, a map for each coupling period")
options = parser.parse_args()


def device():
    """cuda, where the spec asks for a GPU and there is one."""
    if os.environ.get("HPCOMM_DEVICE") == "gpu" and Path("/dev/nvidiactl").exists():
        import torch

        if torch.cuda.is_available():
            return torch.device("cuda")
    return None


def placed(x):
    """x where this program computes: on the GPU, or as it is."""
    if gpu is None:
        return x
    import torch

    return torch.from_numpy(np.ascontiguousarray(x)).to(gpu)


gpu = device()
me = hpcomm.join("ocean")
comm = me.comm
bands = Bands(comm, me.grid("sea"))
latitude, longitude = np.meshgrid(bands.latitude, bands.grid.u_centres, indexing="ij")
land = (np.cos(longitude - 1.0) > 0.55) & (np.abs(latitude - 0.2) < 0.9) | (latitude < -1.3)
wet = ~land
t, sea = 0.0, np.where(wet, -2.0 + 30.0 * np.cos(latitude) ** 2, 0.0)  # s, degC
if options.read:
    t, fields = load(bands, options.read)
    sea = fields["sea"]

points = bands.points[wet.ravel()]
surface = me.gives("surface_temperature", placed(sea[wet]), points, grid=bands.grid)
heat = me.takes("heat_flux", placed(np.zeros(len(points))), points, grid=bands.grid)  # kW/m²
rows = int(comm.rank == 0)  # of what is a few numbers, and no field over a grid
budget = me.gives("budget", np.zeros((rows, 2)), np.arange(rows))  # J, degC
me.connect(time=t)
me.put(surface, t)

every, step = 6 * HOUR, 3 * HOUR
begin = bands.total(CAPACITY * sea)
end = t + options.days * DAY
flux = np.zeros(bands.shape)


def shot():
    """(title, field) of a map of now; the field on rank 0 only."""
    return f"sea after {t / DAY:g} days", bands.gather(np.where(wet, sea, np.nan))


frames = [shot()] if options.film else []
while t < end - 1.0:
    got = me.get(heat, t + every)
    flux[wet] = 1000.0 * (got if gpu is None else got.cpu().numpy())
    for _ in range(round(every / step)):
        spread = bands.diffusion(sea, MERIDIONAL, ZONAL, wet.astype(float))
        sea = sea + step * np.where(wet, flux / CAPACITY + spread, 0.0)
        t += step
    surface.values = placed(sea[wet])
    me.put(surface, t)
    if options.film:
        frames.append(shot())

mean = bands.total(np.where(wet, sea, 0.0)) / bands.total(wet.astype(float))
budget.values[:] = bands.total(CAPACITY * sea) - begin, mean
me.put(budget)
me.report()
if options.write:
    save(bands, options.write, t, sea=sea)
title, whole = shot()
if options.picture and comm.rank == 0:
    picture(options.picture, title, whole, "degC")
if options.film and comm.rank == 0:
    film(options.film, frames, "degC")
