"""What the programs of the earth share: coastlines, a tripolar grid, sunlight, maps and films."""

import sys
from pathlib import Path

import numpy as np

RADIUS, SUN = 6.371e6, 1361.0  # m, W/m²
LAYER = 4.2e6 * 50.0  # the heat capacity of the sea, of 50 m of water, J/(m² K)
# The temperature of each latitude on the first day after ten years, degC: coefficients of Legendre
# polynomials in its sine. `python globe.py FOLDER` prints them, of what programs without members kept there.
START = {
    "air": [6.04, -10.77, -22.75, -0.40, 0.10, -0.02, 0.84, -0.05, 0.21],
    "sea": [17.13, -1.90, -20.56, -2.53, -0.53, -3.82, 0.09, -2.12, 0.83],
}


def is_land(lon, lat):
    """Whether points lie within a coastline; degrees."""
    found = np.zeros(np.shape(lon), bool)
    lon = (np.asarray(lon) + 180.0) % 360.0 - 180.0
    for line in (Path(__file__).parent / "coasts.txt").read_text().splitlines()[1:]:
        x, y = np.array(line.split(": ")[1].split(), float).reshape(-1, 2).T
        for shift in (0.0, 360.0):
            inside = np.zeros(found.shape, bool)
            for x0, y0, x1, y1 in zip(x, y, np.roll(x, -1), np.roll(y, -1), strict=True):
                if y0 != y1:
                    crosses = (y0 > lat) != (y1 > lat)
                    inside ^= crosses & (lon + shift < x0 + (lat - y0) * (x1 - x0) / (y1 - y0))
            found |= inside
    return found


class Tripolar:
    """Rows and columns that are latitudes and longitudes up to 62 degrees north; above, ellipses.

    On the plane around the pole the circle at 62 degrees is pressed flat, row by row, to a line between two
    poles that lie on land, in Canada and in Siberia. There the last row folds onto itself.

    Attributes:
        lon, lat: of the centres, shape (rows, columns), degrees.
        corners: shape (rows, columns, 4, 2), degrees.
        area: of each cell, m².
    """

    def __init__(self, rows, columns, cap=0.2):
        south, north, first = -79.0, 62.0, -110.0  # first: the longitude of a pole
        flat = round(rows * (1 - cap))
        edges = np.linspace(south, north, flat + 1)
        angles = first + np.arange(columns + 1) * 360.0 / columns + 180.0 / columns
        lon, lat = np.meshgrid(angles, edges)
        share = np.arange(1, rows - flat + 1)[:, None] / (rows - flat)
        radius = np.tan(np.radians(90.0 - north) / 2)
        x = radius * np.cos(np.radians(angles - first)) * np.ones_like(share)
        y = radius * np.sin(np.radians(angles - first)) * (1.0 - share)
        lon = np.vstack([lon, np.degrees(np.arctan2(y, x)) + first])
        lat = np.vstack([lat, 90.0 - 2 * np.degrees(np.arctan(np.hypot(x, y)))])
        at = np.stack([lon, lat], axis=-1)
        self.corners = np.stack([at[:-1, :-1], at[:-1, 1:], at[1:, 1:], at[1:, :-1]], axis=2)
        middle = on_sphere(self.corners).mean(axis=2)
        self.lon, self.lat = np.moveaxis(lonlat(middle), -1, 0)
        self.shape = self.lat.shape

    def neighbours(self):
        """Pairs of cells that share an edge: their numbers, and the edge's length over their distance."""
        numbers = np.arange(self.lat.size).reshape(self.shape)
        centres, corners = on_sphere(np.stack([self.lon, self.lat], axis=-1)), on_sphere(self.corners)
        centres = centres / np.linalg.norm(centres, axis=-1, keepdims=True)
        pairs = [
            (numbers, np.roll(numbers, -1, axis=1), corners[..., 1, :] - corners[..., 2, :]),
            (numbers[:-1], numbers[1:], corners[:-1, :, 2, :] - corners[:-1, :, 3, :]),
        ]
        half = self.shape[1] // 2  # across the fold
        last = numbers[-1]
        pairs.append((last[:half], last[::-1][:half], (corners[..., 2, :] - corners[..., 3, :])[-1, :half]))
        a, b, edge = (
            np.concatenate([np.reshape(p[i], (-1, 3) if i == 2 else -1) for p in pairs]) for i in range(3)
        )
        flat = centres.reshape(-1, 3)
        distance = np.linalg.norm(flat[a] - flat[b], axis=-1)
        return a, b, np.linalg.norm(edge, axis=-1) / np.maximum(distance, 1e-3)


def on_sphere(lonlat):
    """Unit vectors."""
    lon, lat = np.radians(lonlat[..., 0]), np.radians(lonlat[..., 1])
    return np.stack([np.cos(lat) * np.cos(lon), np.cos(lat) * np.sin(lon), np.sin(lat)], axis=-1)


def lonlat(vectors):
    """Degrees, of unit vectors."""
    x, y, z = np.moveaxis(vectors, -1, 0)
    return np.degrees(np.stack([np.arctan2(y, x), np.arctan2(z, np.hypot(x, y))], axis=-1))


def sunlight(lat, day):
    """The mean of a day at the top of the atmosphere, W/m²; a year of 365 days."""
    tilt = np.radians(-23.44) * np.cos(2 * np.pi * (day + 10.0) / 365.0)
    phi = np.radians(lat)
    noon = np.arccos(np.clip(-np.tan(phi) * np.tan(tilt), -1.0, 1.0))  # half a day, as an angle
    return SUN / np.pi * (noon * np.sin(phi) * np.sin(tilt) + np.cos(phi) * np.cos(tilt) * np.sin(noon))


def start(what, lat):
    """The temperature of air or sea on the first day, degC. A sea that is colder than it can be is ice."""
    return np.polynomial.legendre.legval(np.sin(np.radians(lat)), START[what])


def fitted(lat, area, temperature):
    """The coefficients for START that fit the temperature of these cells best."""
    return np.polynomial.legendre.legfit(np.sin(np.radians(lat)), temperature, 8, w=np.sqrt(area))


class Map:
    """Maps of points anywhere: each pixel shows the point that is nearest to it."""

    def __init__(self, points, rows=180):
        from scipy.spatial import cKDTree

        lon, lat = np.meshgrid(
            (np.arange(2 * rows) + 0.5) * 180 / rows - 180, (np.arange(rows) + 0.5) * 180 / rows - 90
        )
        self.land = is_land(lon, lat)
        self._nearest = cKDTree(on_sphere(points)).query(on_sphere(np.stack([lon, lat], axis=-1)))[1]

    def film(self, path, frames, still=None):
        """A GIF of (title, values, unit, colours, low, high), nan not shown; still: a PNG of the last one."""
        try:
            import matplotlib
        except ImportError:
            print(f"no {path}: matplotlib is not installed")
            return
        matplotlib.use("Agg")
        from matplotlib import pyplot
        from matplotlib.animation import PillowWriter

        title, values, unit, colours, low, high = frames[0]
        figure, axes = pyplot.subplots(figsize=(8, 4.2), layout="constrained")
        extent = (-180, 180, -90, 90)
        colours = matplotlib.colormaps[colours].with_extremes(under="white", bad="#c9c2ae")
        image = axes.imshow(
            values[self._nearest], origin="lower", extent=extent, cmap=colours, vmin=low, vmax=high
        )
        axes.contour(self.land, [0.5], origin="lower", extent=extent, colors="#333333", linewidths=0.6)
        figure.colorbar(image, shrink=0.8, label=unit)
        axes.set(
            xticks=range(-180, 181, 60), yticks=range(-90, 91, 30), xlabel="longitude", ylabel="latitude"
        )
        writer = PillowWriter(fps=6)
        with writer.saving(figure, path, dpi=80):
            for title, values, *_ in frames:
                image.set_data(values[self._nearest])
                axes.set_title(title)
                writer.grab_frame()
        if still is not None:
            figure.savefig(still, dpi=110)


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    with np.load(folder / "atmosphere.npz") as sky, np.load(folder / "ocean.npz") as sea:
        found = {"air": (sky, sky["air"] - 273.15), "sea": (sea, sea["energy"] / LAYER)}
        for name, (of, values) in found.items():
            print(f'    "{name}": [{", ".join(f"{c:.2f}" for c in fitted(of["lat"], of["area"], values))}],')
