"""An atmosphere on a Gaussian grid: sun, long-wave radiation, transport, and the flux into the ocean.

    hpcomm run mpmd_configs/climate.toml

Takes the ocean's surface temperature (mapped conservatively, degrees made kelvins), gives the heat flux
into the ocean (averaged over the coupling period). The energy budget of both closes to rounding, and is
printed: nothing is lost between the grids.
"""

import argparse

import numpy as np
from sphere import Bands, film, load, picture, save

import hpcomm

HOUR, DAY = 3600.0, 86400.0
CAPACITY = 1.0e7  # J/(m² K)
MERIDIONAL, ZONAL = 2.0e6, 2.0e-6
EXCHANGE = 25.0  # W/(m² K)
ABSORBED = 0.25  # share of sunlight that stays in the air

parser = argparse.ArgumentParser(formatter_class=argparse.ArgumentDefaultsHelpFormatter)
parser.add_argument("--days", type=float, default=5.0)
parser.add_argument("--read", help="go on from this restart file")
parser.add_argument("--write", help="write a restart file")
parser.add_argument("--picture", help="write a map")
parser.add_argument("--film", help="write a GIF, a map for each coupling period")
options = parser.parse_args()

me = hpcomm.join("atmosphere")
comm, ocean = me.comm, me.link("ocean")
bands = Bands(comm, me.grid("sky"))
latitude = bands.latitude[:, None]
air = np.broadcast_to(255.0 + 30.0 * np.cos(latitude) ** 2, bands.shape).copy()  # K
flux, t = np.zeros(bands.shape), 0.0  # W/m², into the ocean; s
if options.read:
    t, fields = load(bands, options.read)
    air, flux = fields["air"], fields["flux"]

surface = me.takes("surface_temperature", np.full(bands.area.size, 285.0), bands.points, grid=bands.grid)
heat = me.gives("heat_flux", flux.ravel().copy(), bands.points, grid=bands.grid)
rows = int(comm.rank == 0)  # of what is a few numbers, and no field over a grid
budget = me.takes("budget", np.zeros((rows, 2)), np.arange(rows))  # J, degC
me.connect(time=t)
me.put(heat, t)
water = ocean.takes["surface_temperature"].weights.fraction.reshape(bands.shape)  # share of each cell

sun = 340.0 * (1.0 - 0.48 * (3 * np.sin(latitude) ** 2 - 1) / 2) * 0.7 * np.ones(bands.shape)
every, step = 6 * HOUR, HOUR
begin, sky, sea = bands.total(CAPACITY * air), [], []  # J
in_transit = bands.total(water * flux) * every
end = t + options.days * DAY


def shot():
    """(title, field) of a map of now; the field on rank 0 only."""
    return f"air after {t / DAY:g} days", bands.gather(air)


frames = [shot()] if options.film else []
while t < end - 1.0:
    sea_surface = me.get(surface, t + every).reshape(bands.shape)
    for _ in range(round(every / step)):
        flux = (1 - ABSORBED) * sun - EXCHANGE * (sea_surface - air)
        radiation = sun - (210.0 + 2.0 * (air - 273.15))
        sky.append(bands.total(radiation) * step)
        sea.append(bands.total(water * flux) * step)
        spread = CAPACITY * bands.diffusion(air, MERIDIONAL, ZONAL)
        air = air + step / CAPACITY * (radiation - water * flux + spread)
        t += step
        heat.values = flux.ravel()
        me.put(heat, t)
    if options.film:
        frames.append(shot())

gained = bands.total(CAPACITY * air) - begin
last = sum(sea[-round(every / step) :])
me.get(budget)
report = me.report()
mean = bands.total(air) / bands.total(np.ones(bands.shape))
if comm.rank == 0:
    [[warmed, warmth]] = budget.values
    total = gained + warmed + last - in_transit
    print(f"mean temperature of the air {mean:.9f} K, of the sea {warmth:.9f} degC")
    print(f"energy: air {gained:+.6e} J, sea {warmed:+.6e} J, under way {last - in_transit:+.6e} J")
    print(
        f"energy: radiation {sum(sky):+.6e} J, not accounted for {abs(total - sum(sky)) / begin:.1e} of all"
    )
    print(report)
if options.write:
    save(bands, options.write, t, air=air, flux=ocean.gives["heat_flux"].last.reshape(bands.shape))
title, whole = shot()
if options.picture and comm.rank == 0:
    picture(options.picture, title, whole, "K")
if options.film and comm.rank == 0:
    film(options.film, frames, "K")
if comm.rank == 0 and not abs(total - sum(sky)) <= 1e-13 * begin:
    raise SystemExit("atmosphere: energy was lost")
