"""The hot part of mappings, in C."""

from ...core.types import Floats

def overlaps(ours: Floats, others: Floats, has_moments: bool) -> bytearray:
    """All overlaps of convex cells, ours[a] with others[b], ordered by a, then by b.

    Of each: int64 a and b, float64 area and moment, of three numbers; without moments of zeros.

    Args:
        ours, others: (cells, corners, 2 or 3), anticlockwise; 3: on the unit sphere, with great circles. One
            of the two may be rectangles on the sphere, (cells, 4): longitudes, less than half a turn apart,
            and sines of latitudes.

    Raises:
        ValueError: arrays of other types or shapes.
    """

def locate(points: Floats, polygons: Floats) -> bytearray:
    """int64 number of the first convex polygon that each point lies in; -1: none.

    A point lies in one that it is inside all planes of, through the origin and an edge, but for rounding.

    Args:
        points: (points, 1, 3).
        polygons: (polygons, corners, 3), anticlockwise.

    Raises:
        ValueError: arrays of other types or shapes.
    """

def moments(corners: Floats) -> bytearray:
    """float64 area and moment, of three numbers, of each convex polygon, (cells, corners, 2 or 3)."""
