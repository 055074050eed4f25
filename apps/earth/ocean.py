"""The ocean of the earth: a mixed layer with ice, on a tripolar grid with coastlines; on one rank.

Takes the heat from the atmosphere, winds, and what rivers bring. Gives the sea surface temperature where
there is no closed ice (nan elsewhere: a mask that changes), the ice fraction, and the heat of evaporation.
"""

import argparse
import math
from pathlib import Path

import numpy as np
from globe import LAYER, RADIUS, Map, Tripolar, is_land, start

import hpcomm
from hpcomm.regrid import Cells

MELTING = 3.0e8  # J/m³ of ice
FREEZING, MIXING, DAY = -1.8, 6.0e3, 86400.0  # degC, m²/s, s

parser = argparse.ArgumentParser(formatter_class=argparse.ArgumentDefaultsHelpFormatter)
parser.add_argument(
    "--kept", help="go on from what is in this folder, and leave there what the next run needs"
)
parser.add_argument("--film", help="write a GIF of the temperature and the ice, and beside it a map as PNG")
options = parser.parse_args()

me = hpcomm.join("ocean")
if me.comm.size > 1:
    raise SystemExit("ocean: one rank is enough for this grid, and all it can use")
whole = Tripolar(120, 180)
wet = ~is_land(whole.lon, whole.lat).ravel()
points = np.flatnonzero(wet)
lat = whole.lat.ravel()[wet]
grid = Cells(whole.corners.reshape(-1, 4, 2)[wet])
area = RADIUS**2 * grid.areas(np.arange(len(points)))
a, b, doors = whole.neighbours()
here = np.full(wet.size, -1)
here[points] = np.arange(len(points))
open_ = wet[a] & wet[b]
a, b = here[a[open_]], here[b[open_]]
smallest = np.minimum(area[a], area[b])
doors = np.minimum(MIXING * DAY * doors[open_], 0.1 * smallest)  # m²; less where cells are small

zero = np.zeros(len(points))
heat = me.takes("heat", zero.copy(), points, grid=grid)  # W/m²
wind = me.takes("wind", np.zeros((len(points), 2)), points, grid=grid)  # m/s
discharge = me.takes("discharge", zero.copy(), points, grid=grid)  # kg/s
sst = me.gives("sst", zero.copy(), points, grid=grid)  # degC, nan under closed ice
ice = me.gives("ice", zero.copy(), points, grid=grid)
evaporation = me.gives("evaporation", zero.copy(), points, grid=grid)  # W/m²
budget = me.gives("budget", np.zeros((1, 2)), np.arange(1))  # J
energy = LAYER * start("sea", lat)  # J/m², below freezing: of ice
fresh = zero.copy()  # kg of river water


def surface():
    """Temperature of the water, and its share of ice."""
    thick = np.maximum(FREEZING * LAYER - energy, 0.0) / MELTING
    return np.maximum(energy / LAYER, FREEZING), np.minimum(thick / 0.3, 1.0)


def show():
    """Set what this program gives."""
    water, closed = surface()
    sst.values[:] = np.where(closed < 1.0, water, np.nan)
    ice.values[:] = closed


kept = Path(options.kept or "") / f"{me.name}.npz"
if options.kept and kept.exists():
    me.restore(options.kept)
    with np.load(kept) as saved:
        energy, fresh, evaporation.values[:] = saved["energy"], saved["fresh"], saved["evaporation"]
else:
    me.connect()
    show()
    for field in (sst, ice, evaporation):
        me.put(field, me.start)

print(f"the sea begins with a mean of {math.fsum(area * surface()[0]) / math.fsum(area):.2f} °C", flush=True)
begin, risen, frames = math.fsum(area * energy), math.fsum(area * evaporation.values) * DAY, []
for now, then in me.steps():
    for field in (heat, wind, discharge):
        me.get(field, then)
    water, closed = surface()
    speed = np.hypot(*wind.values.T)
    evaporation.values[:] = 0.7 * (1 - closed) * speed * np.maximum(water - FREEZING, 0.0)
    energy += DAY * (heat.values - evaporation.values)
    moved = LAYER * doors * (water[a] - water[b])  # J
    energy += (np.bincount(b, moved, len(points)) - np.bincount(a, moved, len(points))) / area
    fresh += DAY * discharge.values
    show()
    for field in (sst, ice, evaporation):
        me.put(field, then)
    if options.film and (now - me.start).days % 10 == 0:
        shown = np.full(wet.size, np.nan)
        shown[points] = np.where(ice.values > 0.5, -8.0, water)
        frames.append((f"{then.strftime('%d %B')}: sea, and ice (white)", shown, "°C", "turbo", -2, 30))

rising = math.fsum(area * evaporation.values) * DAY
budget.values[:] = math.fsum(area * energy) - begin, rising - risen
me.put(budget)
if options.kept:
    me.save(options.kept, then)
    np.savez(kept, energy=energy, fresh=fresh, evaporation=evaporation.values, lat=lat, area=area)
water, closed = surface()
frozen = math.fsum(area * closed) / 1e12
print(
    f"mean sea {math.fsum(area * water) / math.fsum(area):.9f} °C, {frozen:.3f} million km² of ice,", end=" "
)
print(f"{math.fsum(fresh):.9e} kg from rivers", flush=True)
if options.film:
    everywhere = np.stack([whole.lon, whole.lat], axis=-1).reshape(-1, 2)
    Map(everywhere).film(options.film, frames, Path(options.film).with_suffix(".png"))
