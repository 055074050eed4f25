"""The hot part of mappings, in C."""

from ...core.types import Floats, Ints

def overlaps(ours: Floats, others: Floats, a: Ints, b: Ints, area: Floats, moment: Floats) -> None:
    """Fill area (n) and moment (n, wide) of the overlaps of convex polygons, ours[a] with others[b].

    Args:
        ours, others: (polygons, corners, 2 or 3), anticlockwise; 3: on the unit sphere, with great circles.
        a, b: (n) of int64.

    Raises:
        TypeError, ValueError: arrays of other types or shapes, or an index of no polygon.
    """

def within(ours: Floats, bounds: Floats, a: Ints, b: Ints, area: Floats, moment: Floats) -> None:
    """The same of parts of polygons on the unit sphere in rectangles.

    Args:
        bounds: (rectangles, 4): longitudes, less than half a turn apart, and sines of latitudes.
    """
