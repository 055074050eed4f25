"""Mapping by radial basis functions: each point from a number of sources around it.

The value there is a sum of Wendland's C2 functions (1995) of the distances to these, and of a linear function
of the place, which takes the values of all of them. So constants and linear functions are kept. A direction
in which the sources hardly spread, as across a wall, has no linear part.
"""

from __future__ import annotations

import numpy as np

from ..core.types import Floats
from .interpolate import closest
from .weights import Ask, Entries

_AROUND = 32  # sources of a point
_WIDE = 32.0  # times the way to the farthest of them: where the functions end
_THIN = 0.05, 1e-4  # of the widest spread: less is none, on a plane and on the sphere
_SAME = 1e-12  # of where the functions end: sources that are nearer are in one place
_NONE = 1e-12  # of a weight
_FAR, _BESIDE = 0.5, 3.0  # farther than this part of the way to the last source, and this many deviations
_PART = 500  # points at a time


def rbf(ask: Ask, far: float = 0.0) -> Entries:
    """A point far outside all sources gets nothing, or far of the nearest: see _FAR and _BESIDE."""
    distance, which, needed = closest(ask, _AROUND)
    parts = [slice(i, i + _PART) for i in range(0, max(len(which), 1), _PART)]
    thin = _THIN[ask.target.sphere]
    made = [_shares(ask.wanted[part], ask.x[which[part]], thin) for part in parts]
    share, beside = (np.concatenate(each) for each in zip(*made, strict=True))
    inside = (distance[:, 0] <= _FAR * distance[:, -1]) | (beside <= _BESIDE)
    share[~inside] = 0.0
    share[~inside, 0] = far
    return Entries.of_each(which, share, np.where(inside, 1.0, far), needed)


def to_rbf(ask: Ask) -> Entries:
    """The other way round: each of ask.points has an amount, which goes to those of ask.given around it.

    The sum is kept, and on flat walls moments are. What is far outside goes to the nearest.
    """
    return rbf(ask, 1.0)


def _shares(x: Floats, sources: Floats, thin: float) -> tuple[Floats, Floats]:
    """(weight of each source, standard deviations from their middle): places (n, d), sources (n, k, d)."""
    n, k, d = sources.shape
    middle = sources.mean(axis=1, keepdims=True)
    at = np.concatenate([sources, x[:, None]], axis=1) - middle  # the last of these is the place
    reach = np.sqrt((at[:, :k] ** 2).sum(axis=2).max(axis=1))
    at = at / np.where(reach > 0, _WIDE * reach, 1.0)[:, None, None]
    apart = np.sqrt(((at[:, :, None] - at[:, None, :k]) ** 2).sum(axis=3))
    linear, wide = _linear(at, k, thin)
    terms = np.concatenate([np.ones((n, k + 1, 1)), linear], axis=2)
    system = np.zeros((n, k + 1 + d, k + 1 + d))
    system[:, :k, :k], system[:, :k, k:] = _wendland(apart[:, :k]), terms[:, :k]
    system[:, k:, :k] = np.moveaxis(terms[:, :k], 1, 2)
    right = np.concatenate([_wendland(apart[:, k]), terms[:, k]], axis=1)
    idle = np.zeros((n, k + 1 + d), bool)  # what has no part: all but the first source in one place
    idle[:, :k] = np.tril(apart[:, :k] < _SAME, -1).any(axis=2)
    idle[:, k + 1 :] = wide == 0
    system[idle[:, :, None] | idle[:, None]] = 0.0
    which, each = np.nonzero(idle)
    system[which, each, each], right[idle] = 1.0, 0.0
    share = np.ascontiguousarray(np.linalg.solve(system, right[..., None])[:, :k, 0])
    share[np.abs(share) < _NONE] = 0.0
    beside = np.sqrt(k * np.where(wide > _THIN[0], linear[:, k] ** 2, 0.0).sum(axis=1))
    return share / share.sum(axis=1, keepdims=True), beside


def _linear(at: Floats, k: int, thin: float) -> tuple[Floats, Floats]:
    """(coordinates along axes of the first k places of each row, how wide these spread along each).

    That is relative to the widest spread, and 0 where it is less than thin.
    """
    first = at[:, :k]
    strength, axes = np.linalg.eigh((first[..., None] * first[:, :, None]).sum(axis=1))
    wide = np.sqrt(np.maximum(strength, 0.0))
    part = wide / np.maximum(wide[:, -1:], 1e-300)
    part[part < thin] = 0.0
    axes = axes * np.divide(1.0, wide, out=np.zeros_like(wide), where=part > 0)[:, None]
    return (at[..., None] * axes[:, None]).sum(axis=2), part


def _wendland(r: Floats) -> Floats:
    return np.maximum(1.0 - r, 0.0) ** 4 * (4.0 * r + 1.0)
