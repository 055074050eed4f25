"""The atmosphere of the earth: an octahedral reduced Gaussian grid, and the land below it.

    hpcomm run mpmd_configs/earth.toml

One layer of air, heated by the sun and by what lies below it, cooled to space, mixed along and across its
rows. Takes the sea surface temperature where there is no ice, the ice fraction, and the heat of evaporation.
Gives the heat into the sea, winds, and rain over land, as means of a day. No heat is lost but by rounding.
"""

import argparse
import math
from pathlib import Path

import numpy as np
from globe import RADIUS, Map, lonlat, start, sunlight

import hpcomm

AIR, LAND = 1.0e7, 6.0e6  # heat capacities, J/(m² K)
EXCHANGE, MIXING = 15.0, 2.5e6  # W/(m² K), m²/s
FREEZING = -1.8  # degC
STEP, DAY = 21600.0, 86400.0

parser = argparse.ArgumentParser(formatter_class=argparse.ArgumentDefaultsHelpFormatter)
parser.add_argument(
    "--kept", help="go on from what is in this folder, and leave there what the next run needs"
)
parser.add_argument("--film", help="write a GIF of the temperature, and beside it a map as PNG")
options = parser.parse_args()

me = hpcomm.join("atmosphere")
comm, grid = me.comm, me.grid("sky")
columns = 20 + 4 * np.minimum(np.arange(96), 95 - np.arange(96))  # of each row, from the north
begins = np.concatenate([[0], np.cumsum(columns)])
rows = np.array_split(np.arange(96), comm.size)[comm.rank]
points = np.arange(begins[rows[0]], begins[rows[-1] + 1])
row = np.repeat(np.arange(96), columns)[points]
column = points - begins[row]
west, east = (begins[row] + (column + step) % columns[row] - points[0] for step in (-1, 1))
lon, lat = lonlat(grid.centres(points)).T
area = RADIUS**2 * grid.areas(points)


def of_rows(x):
    """Sums over each row, on every rank."""
    return comm.all_reduce(np.bincount(row, x, 96))


def total(x):
    """The integral of x, the same on any number of ranks."""
    return math.fsum(of_rows(area * x))


row_area = of_rows(area)
middle = of_rows(np.radians(lat)) / columns
edge = (middle[1:] + middle[:-1]) / 2
flow = STEP * MIXING * 2 * np.pi * np.cos(edge) / (middle[:-1] - middle[1:])  # m², between rows
mixing = np.diag(row_area)
for j, f in enumerate(flow):
    mixing[j : j + 2, j : j + 2] += [[f, -f], [-f, f]]
mixing = np.linalg.inv(mixing) * row_area - np.eye(96)  # what a step adds to the means of rows

air = 273.15 + start("air", lat)  # K
if me.member:
    air = air + 0.1 * np.random.default_rng(me.member).standard_normal(grid.size)[points]
land = air.copy()
zero = np.zeros(len(points))
sheet = (lat < -63) | (lat > 60) & (np.abs(lon + 42) < 17)  # of ice, in Antarctica and Greenland
heat = me.gives("heat", zero.copy(), points, grid=grid)  # W/m² of sea
wind = me.gives("wind", np.zeros((len(points), 2)), points, grid=grid)  # m/s
rain = me.gives("rain", zero.copy(), points, grid=grid)  # on land, kg/(m² s)
sst = me.takes("sst", zero + FREEZING, points, grid=grid)  # degC
ice = me.takes("ice", zero.copy(), points, grid=grid)
evaporation = me.takes("evaporation", zero.copy(), points, grid=grid)  # W/m² of sea
first = int(comm.rank == 0)
budget = me.takes("budget", np.zeros((first, 2)), np.arange(first))  # J
kept, sent = Path(options.kept or "") / f"{me.name}.npz", 0.0  # J, of the heat that no sea has taken yet
if options.kept and kept.exists():
    me.restore(options.kept)
    with np.load(kept) as saved:
        air, land, sent = saved["air"][points], saved["land"][points], float(saved["sent"])
else:
    me.connect()
    for field in (heat, wind, rain):
        me.put(field, me.start)
sea = me.link("ocean").takes["sst"].weights.fraction  # of each cell


def blow(day):
    """Trade winds, westerlies, and waves that travel east."""
    away, phi = np.abs(lat), np.radians(lat)
    u = 10 * np.exp(-(((away - 48) / 12) ** 2)) - 7 * np.exp(-(((away - 15) / 10) ** 2))
    v = -3 * np.sign(lat) * np.exp(-(((away - 12) / 10) ** 2))
    wave = 6 * np.cos(phi) ** 2 * np.sin(2 * phi) ** 2
    angle = 5 * np.radians(lon) - 2 * np.pi * day / 7
    return np.stack([u + wave * np.sin(angle), v + wave * np.cos(angle)], axis=-1)


def fall(day):
    """Rain, kg/(m² s): a belt that follows the sun, and storms of the westerlies."""
    belt = lat - 10 * np.sin(2 * np.pi * (day - 100) / 365)
    return 8e-5 * np.exp(-((belt / 9) ** 2)) + 3e-5 * np.exp(-(((np.abs(lat) - 48) / 14) ** 2))


def step(day):
    """Six hours: the new air and land, the heat into the sea, and net radiation, W/m² each."""
    down = 0.72 * sunlight(lat, day)  # below the clouds
    snow = np.maximum(np.clip((268.0 - land) / 10.0, 0.0, 1.0), sheet)
    open_water = np.where(np.isnan(sst.values), FREEZING, sst.values) + 273.15 - air
    from_sea = EXCHANGE * ((1 - ice.values) * open_water + 0.2 * ice.values * (FREEZING + 273.15 - air))
    into_sea = 0.8 * down * (0.9 - 0.5 * ice.values)
    into_land = 0.8 * down * (0.8 - 0.5 * snow)
    from_land = EXCHANGE * (land - air)
    to_space = 198.5 + 2.1 * (air - 273.15)
    gain = 0.2 * down - to_space + sea * (from_sea + evaporation.values) + (1 - sea) * from_land
    radiation = 0.2 * down - to_space + sea * into_sea + (1 - sea) * into_land
    moved = (mixing @ (of_rows(air) / columns))[row] + 0.2 * (air[west] + air[east] - 2 * air)
    return (
        air + STEP / AIR * gain + moved,
        land + STEP / LAND * (into_land - from_land) * (sea < 1),
        into_sea - from_sea,
        radiation,
    )


def held():
    """The heat of air and land, J."""
    return total(AIR * air + (1 - sea) * LAND * land)


begin, sunned, frames = held(), [], []
for now, then in me.steps():
    for field in (sst, ice, evaporation):
        me.get(field, then)
    number = (now - me.start).days
    day, late = float(now.dayofyr), []
    for k in range(round(DAY / STEP)):
        air, land, flux, radiation = step(day + k * STEP / DAY)
        sunned.append(total(radiation) * STEP)
        late.append(total(sea * flux) * STEP)
        heat.values[:], wind.values[:] = flux, blow(day + k * STEP / DAY)
        rain.values[:] = (1 - sea) * fall(day)
        at = now + (then - now) * (k + 1) / round(DAY / STEP)
        for field in (heat, wind, rain):
            me.put(field, at)
    if options.film and number % 10 == 0:
        whole = comm.gather_object(air * sea + land * (1 - sea) - 273.15)
        if whole is not None:
            frames.append(
                (f"{then.strftime('%d %B')}: air and land", np.concatenate(whole), "°C", "RdYlBu_r", -40, 35)
            )

gained = held() - begin
me.get(budget)
mean = total(air) / total(zero + 1.0) - 273.15
if comm.rank == 0:
    [[warmed, rising]] = budget.values
    lost = gained + warmed + (math.fsum(late) - sent) + rising - math.fsum(sunned)
    print(f"mean air {mean:.9f} °C; of all heat {abs(lost) / begin:.0e} is not accounted for", flush=True)
    if not abs(lost) <= 1e-12 * begin:
        raise SystemExit("atmosphere: heat was lost")
if options.kept:
    me.save(options.kept, then)
    parts = comm.gather_object({"air": air, "land": land, "lat": lat, "area": area})
    if parts is not None:
        whole = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        np.savez(kept, **whole, sent=math.fsum(late))
if options.film and comm.rank == 0:
    everywhere = lonlat(grid.centres(np.arange(grid.size)))
    Map(everywhere).film(options.film, frames, Path(options.film).with_suffix(".png"))
