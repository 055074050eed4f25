"""What the two climate programs share: bands of a grid over the ranks, diffusion, budgets, restart files."""

import math

import numpy as np

RADIUS = 6.371e6  # m


class Bands:
    """Whole rows of a grid, dealt out over the ranks from the south; arrays have shape (rows, nlon)."""

    def __init__(self, comm, grid):
        if comm.size > grid.nv:
            raise SystemExit(f"{comm.size} ranks, but the grid has {grid.nv} rows: at most one rank for each")
        self.comm, self.grid = comm, grid
        rows = np.array_split(np.arange(grid.nv), comm.size)[comm.rank]
        self.rows, self.shape = rows, (len(rows), grid.nu)
        self.points = (rows[:, None] * grid.nu + np.arange(grid.nu)).ravel()
        self.latitude = grid.v_centres[rows]
        self.area = RADIUS**2 * grid.areas(self.points).reshape(self.shape)
        edge = np.cos(grid.v_edges)
        between = RADIUS * np.diff(np.concatenate(([-np.pi / 2], grid.v_centres, [np.pi / 2])))
        length = RADIUS * 2 * np.pi / grid.nu * edge  # of the edge below each row, and above the last
        self.south = (length[rows] / between[rows])[:, None]
        self.north = (length[rows + 1] / between[rows + 1])[:, None]
        self.south[rows == 0], self.north[rows == grid.nv - 1] = 0.0, 0.0  # no way through the poles

    def beside(self, x):
        """The rows of x south and north of each row here."""
        comm, nlon = self.comm, self.grid.nu
        first, last = np.zeros(nlon), np.zeros(nlon)
        if comm.rank > 0:
            first = comm.sendrecv(x[0].copy(), comm.rank - 1, comm.rank - 1, out=np.empty(nlon))
        if comm.rank < comm.size - 1:
            last = comm.sendrecv(x[-1].copy(), comm.rank + 1, comm.rank + 1, out=np.empty(nlon))
        whole = np.vstack([first, x, last])
        return whole[:-2], whole[2:]

    def diffusion(self, x, meridional, zonal, is_open=None):
        """Of x: conservative; is_open: 1 where there is something to diffuse through.

        meridional in (unit of x) m²/s; zonal in 1/s, the same at every latitude, so that steps need not
        become small where meridians meet.
        """
        south, north = self.beside(x)
        doors = np.ones(self.shape) if is_open is None else is_open
        low, high = self.beside(doors)
        gain = self.north * (north - x) * high * doors - self.south * (x - south) * low * doors
        east, west = np.roll(doors, -1, axis=1) * doors, np.roll(doors, 1, axis=1) * doors
        around = east * (np.roll(x, -1, axis=1) - x) + west * (np.roll(x, 1, axis=1) - x)
        return meridional * gain / self.area + zonal * around

    def total(self, x):
        """The integral of x, exact to the last bit, so the same on any number of ranks."""
        parts = self.comm.all_gather_object((self.area * x).ravel().tolist())
        return math.fsum(value for part in parts for value in part)

    def gather(self, x):
        """The whole field on rank 0, None elsewhere."""
        parts = self.comm.gather_object(np.asarray(x))
        return None if parts is None else np.vstack(parts)


def save(bands, path, t, **fields):
    """Write a restart file: whole fields, whatever the number of ranks."""
    whole = {name: bands.gather(x) for name, x in fields.items()}
    if bands.comm.rank == 0:
        np.savez(path, t=t, **whole)


def load(bands, path):
    """(time, {name: this rank's rows})."""
    with np.load(path) as kept:
        return float(kept["t"]), {name: kept[name][bands.rows] for name in kept.files if name != "t"}


def picture(path, title, x, unit):
    """A map of a whole field, if matplotlib is there."""
    pyplot = plotting(title)
    if pyplot is not None:
        figure, _, _ = draw(pyplot, title, x, unit)
        figure.savefig(path, dpi=90)


def film(path, frames, unit, most=200):
    """Maps of whole fields one after the other, as a GIF, if matplotlib is there.

    frames: (title, field) of each; where there are more than most, some are left out, never the last.
    """
    pyplot = plotting(frames[-1][0])
    if pyplot is None:
        return
    from matplotlib.animation import PillowWriter

    shown = frames[:: -len(frames) // most][::-1]
    writer = PillowWriter(fps=8)
    figure, axes, image = draw(pyplot, *shown[0], unit)
    image.set_clim(*(extreme([extreme(x) for _, x in shown]) for extreme in (np.nanmin, np.nanmax)))
    with writer.saving(figure, path, dpi=90):
        for title, x in shown:
            image.set_data(x)
            axes.set_title(title)
            writer.grab_frame()


def plotting(title):
    """pyplot without a screen, or None and a word about it."""
    try:
        import matplotlib
    except ImportError:
        print(f"no picture of {title}: matplotlib is not installed")
        return None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def draw(pyplot, title, x, unit):
    """(figure, axes, image) of a map."""
    figure, axes = pyplot.subplots(figsize=(7, 3.5), layout="constrained")
    image = axes.imshow(x, origin="lower", extent=(0, 360, -90, 90), cmap="RdYlBu_r")
    figure.colorbar(image, axes.inset_axes((1.03, 0, 0.03, 1)), label=unit)  # as high as the map
    axes.set(title=title, xlabel="longitude", ylabel="latitude")
    return figure, axes, image
