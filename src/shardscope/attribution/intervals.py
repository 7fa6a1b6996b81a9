"""Algebra of half-open intervals [start, end) in integer nanoseconds.

A *set* is an int64 array of shape (n, 2): sorted, disjoint, not touching, no empty interval. Every function returns
sets; only `union` accepts arbitrary rows. Empty sets have shape (0, 2).
"""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "EMPTY",
    "IntArray",
    "clip",
    "complement",
    "covered_before",
    "covers",
    "from_pairs",
    "intersect",
    "single",
    "subtract",
    "total",
    "union",
]

IntArray = NDArray[np.int64]

EMPTY: IntArray = np.empty((0, 2), dtype=np.int64)
EMPTY.setflags(write=False)


def from_pairs(pairs: Iterable[tuple[int, int]]) -> IntArray:
    """The union of (start, end) pairs; pairs that are empty or reversed hold no time and are dropped."""
    rows = list(pairs)
    return union(np.array(rows, dtype=np.int64)) if rows else EMPTY


def single(start: int, end: int) -> IntArray:
    """The set of one interval, without time if it is empty or reversed."""
    return np.array(((start, end),), dtype=np.int64) if end > start else EMPTY


def union(*parts: IntArray) -> IntArray:
    """The union of any number of arrays of shape (n, 2), which may overlap and be unsorted."""
    filled = [part for part in parts if len(part)]
    if not filled:
        return EMPTY
    rows = filled[0] if len(filled) == 1 else np.concatenate(filled)
    filled_rows = rows[:, 1] > rows[:, 0]
    if not filled_rows.all():
        rows = rows[filled_rows]
    if not len(rows):
        return EMPTY
    starts = rows[:, 0]
    if np.any(starts[1:] < starts[:-1]):
        rows = rows[np.argsort(starts, kind="stable")]
    reach = np.maximum.accumulate(rows[:, 1])
    first = np.empty(len(rows), dtype=bool)
    first[0] = True
    np.greater(rows[1:, 0], reach[:-1], out=first[1:])
    heads = np.flatnonzero(first)
    tails = np.append(heads[1:], len(rows)) - 1
    return np.column_stack((rows[heads, 0], reach[tails]))


def total(intervals: IntArray) -> int:
    """Nanoseconds in a set."""
    return int((intervals[:, 1] - intervals[:, 0]).sum())


def covers(intervals: IntArray, points: IntArray) -> NDArray[np.bool_]:
    """For each of the points (shape (k,)): does the set hold it?"""
    if not len(intervals):
        return np.zeros(len(points), dtype=bool)
    index = np.searchsorted(intervals[:, 0], points, side="right") - 1
    held: NDArray[np.bool_] = (index >= 0) & (points < intervals[np.maximum(index, 0), 1])
    return held


def covered_before(intervals: IntArray, points: IntArray) -> IntArray:
    """For each of the points (shape (k,)): how many nanoseconds of the set lie before it."""
    if not len(intervals):
        return np.zeros(len(points), dtype=np.int64)
    lengths = intervals[:, 1] - intervals[:, 0]
    before = np.concatenate(([0], np.cumsum(lengths)))
    index = np.searchsorted(intervals[:, 0], points, side="right")
    last = np.maximum(index - 1, 0)
    missing = np.where(index > 0, np.maximum(intervals[last, 1] - points, 0), 0)
    found: IntArray = before[index] - missing
    return found


def intersect(first: IntArray, second: IntArray) -> IntArray:
    """The instants in both sets."""
    return _combine(first, second, inside_second=True)


def subtract(first: IntArray, second: IntArray) -> IntArray:
    """The instants of `first` that `second` does not hold."""
    return _combine(first, second, inside_second=False)


def clip(intervals: IntArray, start: int, end: int) -> IntArray:
    """The instants of a set inside [start, end)."""
    if end <= start or not len(intervals):
        return EMPTY
    low = int(np.searchsorted(intervals[:, 1], start, side="right"))
    high = int(np.searchsorted(intervals[:, 0], end, side="left"))
    if low >= high:
        return EMPTY
    part = intervals[low:high].copy()
    part[0, 0] = max(int(part[0, 0]), start)
    part[-1, 1] = min(int(part[-1, 1]), end)
    return part


def complement(intervals: IntArray, start: int, end: int) -> IntArray:
    """The instants of [start, end) that a set does not hold."""
    return subtract(single(start, end), intervals)


def _combine(first: IntArray, second: IntArray, *, inside_second: bool) -> IntArray:
    if not len(first):
        return EMPTY
    if not len(second):
        return EMPTY if inside_second else first
    # Between two neighbouring boundaries nothing changes, so the left one speaks for the whole stretch.
    # Boundaries that fall together give stretches without length, which `union` drops.
    edges = np.sort(np.concatenate((first.ravel(), second.ravel())))
    left = edges[:-1]
    keep = covers(first, left) & (covers(second, left) == inside_second)
    return union(np.column_stack((left[keep], edges[1:][keep])))
