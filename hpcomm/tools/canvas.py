"""What all pictures have in common: matplotlib without a display, files, titles, axes of ranks, colours.

In pictures of one algorithm a colour is a step, and no other thing has one. Charts that compare algorithms
have a colour for each of them, as their legends say.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from ..errors import UsageError
from ..job.command_line import check_file, size
from ..job.optional_packages import load

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from types import ModuleType

    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

    from ..schedule.cost.machine_model import Machine
    from ..schedule.stream import Schedule

PICTURES = (".svg", ".png", ".pdf")
_TICKS = 16  # up to which every rank, and every step, has its number
_LIGHTEST = 0.88  # of the colour map that can still be seen on white


def pyplot() -> ModuleType:
    """matplotlib without a display."""
    matplotlib = load("matplotlib", "pictures need matplotlib", None, "pip install 'hpcomm[plot]'")
    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "hpcomm"  # the same picture gives the same file
    return import_module("matplotlib.pyplot")


def writable(out: Path, kinds: Sequence[str] = PICTURES) -> None:
    """Refuse, before anything is computed, a name that no picture can be kept under."""
    if out.suffix not in kinds:
        raise UsageError(f"{out} is no picture", hint=f"a name ending in {', '.join(kinds)}")
    check_file(out)


def save(figure: Figure, out: Path) -> None:
    """Write a figure, and be done with it."""
    figure.savefig(out, bbox_inches="tight", metadata={"Date": None} if out.suffix == ".svg" else None)
    pyplot().close(figure)


def title(schedule: Schedule, nbytes: float, on: Machine) -> str:
    """What every picture of one algorithm says above it."""
    what = f"{schedule.verb} by {schedule.name}"
    return f"{what}: {schedule.size} rank{'s' * (schedule.size > 1)}, {size(nbytes)}, {on.name}"


def rank_axis(axes: Axes, size: int) -> None:
    """Ranks as whole numbers on the vertical axis, rank 0 at the top."""
    axes.set_ylabel("rank")
    whole_numbers(axes.yaxis, range(size))
    axes.set_ylim(size - 0.5, -0.5)


def whole_numbers(axis: Axis, numbers: range) -> None:
    """Ticks at these numbers, or at some of them."""
    if len(numbers) <= _TICKS:
        axis.set_ticks(numbers)
    else:
        from matplotlib.ticker import MaxNLocator

        axis.set_major_locator(MaxNLocator(integer=True))


def step_colour(step: int, steps: int) -> tuple[float, ...]:
    """The colour of a step, from 1 on, of so many: the later, the lighter."""
    share = (step - 1) / max(1, steps - 1)
    return tuple(pyplot().get_cmap("viridis")(_LIGHTEST * share))


def step_bar(figure: Figure, axes: Axes | Sequence[Axes], steps: int, label: str = "step") -> None:
    """Beside a picture: which colour is which step."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import BoundaryNorm, ListedColormap

    colours = ListedColormap([step_colour(i + 1, steps) for i in range(steps)])
    norm = BoundaryNorm([i + 0.5 for i in range(steps + 1)], steps)
    ticks = range(1, steps + 1, -(-steps // _TICKS))
    bar = figure.colorbar(ScalarMappable(norm, colours), ax=axes, ticks=ticks, fraction=0.04, pad=0.03)
    bar.set_label(label)
    bar.ax.tick_params(which="minor", length=0)


def arrow(
    axes: Axes, start: tuple[float, float], end: tuple[float, float], colour: object, shrink: float = 1
) -> None:
    """From start to end, shorter by so many points at both."""
    line = {"arrowstyle": "->", "color": colour, "shrinkA": shrink, "shrinkB": shrink}
    axes.annotate("", end, start, arrowprops=line, zorder=1 + 2 * (shrink > 1))


def algorithm_colour(index: int) -> tuple[float, ...]:
    """A colour for each of twenty algorithms: ten strong ones, then ten light ones."""
    return tuple(pyplot().get_cmap("tab20")(2 * index % 20 + index // 10 % 2))
