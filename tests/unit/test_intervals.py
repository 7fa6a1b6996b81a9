"""Interval algebra against brute force: every instant of a small range, one by one."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from shardscope.attribution.intervals import (
    EMPTY,
    IntArray,
    clip,
    complement,
    covered_before,
    covers,
    from_pairs,
    intersect,
    single,
    subtract,
    total,
    union,
)

LIMIT = 40
instants = st.integers(0, LIMIT)
rows = st.lists(st.tuples(instants, instants), max_size=12)


def points(pairs: list[tuple[int, int]]) -> set[int]:
    return {t for start, end in pairs for t in range(start, end)}


def instants_of(intervals: IntArray) -> set[int]:
    return points([(int(a), int(b)) for a, b in intervals])


def is_set(intervals: IntArray) -> bool:
    """Sorted, disjoint, not touching, nothing empty."""
    flat = intervals.ravel()
    return intervals.dtype == np.int64 and intervals.shape[1:] == (2,) and bool((flat[1:] > flat[:-1]).all())


@given(rows)
def test_union(pairs: list[tuple[int, int]]) -> None:
    result = from_pairs(pairs)
    assert is_set(result)
    assert instants_of(result) == points(pairs)
    assert total(result) == len(points(pairs))


@given(rows, rows, rows)
def test_union_of_several_arrays(a: list[tuple[int, int]], b: list[tuple[int, int]], c: list[tuple[int, int]]) -> None:
    parts = [np.array(part, dtype=np.int64).reshape(-1, 2) for part in (a, b, c)]
    assert union(*parts).tolist() == from_pairs(a + b + c).tolist()


@given(rows, rows)
def test_intersect_and_subtract(a: list[tuple[int, int]], b: list[tuple[int, int]]) -> None:
    first, second = from_pairs(a), from_pairs(b)
    both, left = intersect(first, second), subtract(first, second)
    assert is_set(both)
    assert is_set(left)
    assert instants_of(both) == points(a) & points(b)
    assert instants_of(left) == points(a) - points(b)
    assert total(both) + total(left) == total(first)


@given(rows, instants, instants)
def test_clip_and_complement(pairs: list[tuple[int, int]], start: int, end: int) -> None:
    held = from_pairs(pairs)
    window = set(range(start, end))
    assert is_set(clip(held, start, end))
    assert instants_of(clip(held, start, end)) == points(pairs) & window
    assert instants_of(complement(held, start, end)) == window - points(pairs)


@given(rows, st.lists(instants, max_size=10))
def test_covers(pairs: list[tuple[int, int]], asked: list[int]) -> None:
    answer = covers(from_pairs(pairs), np.array(asked, dtype=np.int64))
    assert answer.tolist() == [t in points(pairs) for t in asked]


@given(rows, st.lists(instants, max_size=10))
def test_covered_before(pairs: list[tuple[int, int]], asked: list[int]) -> None:
    answer = covered_before(from_pairs(pairs), np.array(asked, dtype=np.int64))
    assert answer.tolist() == [len(points(pairs) & set(range(t))) for t in asked]


@given(instants, instants)
def test_single(start: int, end: int) -> None:
    assert is_set(single(start, end))
    assert single(start, end).tolist() == from_pairs([(start, end)]).tolist()


@given(rows)
def test_inputs_are_never_changed(pairs: list[tuple[int, int]]) -> None:
    held = from_pairs(pairs)
    before = held.copy()
    clip(held, 3, 17)
    subtract(held, from_pairs([(5, 9)]))
    union(held, from_pairs([(1, 2)]))
    assert (held == before).all()


def test_nanosecond_times_since_the_epoch_stay_exact() -> None:
    start = 1_759_276_800_123_456_789
    assert clip(from_pairs([(start, start + 3)]), start + 1, start + 2).tolist() == [[start + 1, start + 2]]


def test_nothing_is_nothing() -> None:
    assert total(EMPTY) == 0
    assert union().tolist() == from_pairs([]).tolist() == intersect(EMPTY, EMPTY).tolist() == []
