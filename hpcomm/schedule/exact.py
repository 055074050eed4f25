"""Order-independent sums of floating-point numbers: exact, and rounded once.

Each number is cut into integers of 40 bits at fixed places below the largest one (which is exact), these
are summed as integers (exact, too), and their sum is rounded to nearest even. So the result depends on
nothing but the set of numbers. Idea: Demmel and Nguyen 2015, "Parallel reproducible summation"; here with as
many pieces as it takes to leave nothing out.
"""

from __future__ import annotations

from functools import reduce
from typing import Any

import numpy as np

from ..core.types import NpArray
from ..core.ufuncs import UFUNCS

_BITS = 40
_COLUMNS = 1 << 14  # that are summed at a time, and stay in cache


def reduce_ranks(parts: NpArray, op: str) -> NpArray:
    """Reduce parts, of shape (ranks, n), over the ranks: sums of floats exactly, all else in rank order."""
    if op == "SUM" and parts.dtype.kind == "c":
        half = parts.view(parts.real.dtype).reshape(len(parts), -1)
        return exact_sum(half).view(parts.dtype)
    if op == "SUM" and parts.dtype in (np.float32, np.float64):
        return exact_sum(parts)
    return np.asarray(reduce(UFUNCS[op], parts))


def exact_sum(parts: NpArray) -> NpArray:
    """The sum over the first axis, rounded once, to nearest even. float32 or float64, shape (ranks, n)."""
    made = np.empty(parts.shape[1], parts.dtype)
    for low in range(0, made.size, _COLUMNS):
        made[low : low + _COLUMNS] = _exact_sum(parts[:, low : low + _COLUMNS])
    return made


def _exact_sum(parts: NpArray) -> NpArray:
    is_number = np.isfinite(parts)
    with np.errstate(invalid="ignore"):  # of infinities and NaNs alone: the numbers might overflow
        plain = np.where(is_number, 0, parts).sum(axis=0)
    finite = is_number.all(axis=0)
    rest = np.where(finite, parts, 0).astype(np.float64)
    top = np.frexp(np.abs(rest).max(axis=0, initial=0))[1].astype(np.int64)
    pieces = []
    place = top.copy()
    while True:
        place -= _BITS
        digit = np.trunc(_scaled(rest, -place))
        pieces.append(digit.sum(axis=0).astype(np.int64))
        rest = rest - _scaled(digit, place)
        if not rest.any():
            break
    total = _rounded([np.zeros_like(top), *pieces], top + _BITS, parts.dtype)
    return np.where(finite, total, plain)


def _scaled(x: NpArray, power: NpArray) -> NpArray:
    """x * 2**power; in two steps, because 2**power alone may not be representable."""
    half = power // 2
    return np.asarray(np.ldexp(np.ldexp(x, half), power - half))


def _rounded(pieces: list[NpArray], top: NpArray, dtype: np.dtype[Any]) -> NpArray:
    """The number whose digits to the base 2**40 are pieces, the first one just below 2**top."""
    digits = _carried(pieces)
    negative = digits[0] < 0
    digits = _carried([np.where(negative, -d, d) for d in digits])
    stack = np.stack(digits).astype(np.uint64)
    lead = np.argmax(stack != 0, axis=0)  # the first digit that counts
    column = np.arange(stack.shape[1])
    padded = np.concatenate([stack, np.zeros((2, stack.shape[1]), np.uint64)])
    a, b, c = (padded[lead + i, column] for i in range(3))
    below = np.cumsum(stack[::-1] != 0, axis=0)[::-1]
    beyond = np.concatenate([below, np.zeros((3, stack.shape[1]), below.dtype)])[lead + 3, column] > 0
    length = np.frexp(a.astype(np.float64))[1]  # a < 2**40, so this is exact
    up = (64 - length).astype(np.uint64)  # the top 64 bits of a b c ...
    word = np.where(a > 0, a << np.minimum(up, np.uint64(63)), np.uint64(0))
    right = length - 24  # b goes below a: 40 bits into what is left of 64
    word |= np.where(right > 0, b >> _u(right), b << _u(-right))
    lost = np.where(right > 0, (b & ((np.uint64(1) << _u(right)) - np.uint64(1))) != 0, False)
    down = np.where(right > 0, 40, right + 40)
    word |= np.where(right > 0, np.uint64(0), c >> _u(down))
    lost |= np.where(right > 0, c != 0, (c & ((np.uint64(1) << _u(down)) - np.uint64(1))) != 0)
    word |= (lost | beyond).astype(np.uint64)  # what is below decides ties
    power = top - _BITS * (lead + 1) + length - 64
    value = _scaled(word.astype(dtype).astype(np.float64), power)
    return np.asarray(np.where(negative, -value, value).astype(dtype))


def _u(shift: NpArray) -> NpArray:
    return np.clip(shift, 0, 63).astype(np.uint64)


def _carried(pieces: list[NpArray]) -> list[NpArray]:
    """Digits from 0 to 2**40 - 1, except the first, which may be negative."""
    digits: list[NpArray] = []
    carry = np.zeros_like(pieces[0])
    for piece in reversed(pieces[1:]):
        value = piece + carry
        carry = value >> _BITS
        digits.insert(0, value & ((1 << _BITS) - 1))
    return [pieces[0] + carry, *digits]
