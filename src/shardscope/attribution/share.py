"""Sharing exposed communication time among kinds, axes and groups, to the nanosecond."""

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shardscope.attribution.intervals import EMPTY, IntArray, clip, covers, subtract, union
from shardscope.vocabulary import Axis, Kind

__all__ = ["NONE", "TRANSFER", "UNKNOWN", "WAIT", "Label", "Shares", "States", "share"]

NONE, WAIT, UNKNOWN, TRANSFER = 0, 1, 2, 3
_KINDS = list(Kind)


class Label(NamedTuple):
    """What a share is booked on."""

    kind: Kind
    axis: Axis
    group: tuple[int, ...] | None
    name: str


@dataclass
class States:
    """When a label's communication transfers, waits, or does either of the two without our knowing. Sets."""

    transfer: IntArray = field(default_factory=lambda: EMPTY)
    wait: IntArray = field(default_factory=lambda: EMPTY)
    unknown: IntArray = field(default_factory=lambda: EMPTY)

    def exposed(self, compute: IntArray, start: int, end: int) -> "States":
        """The same inside [start, end) and under no compute."""
        sets = (subtract(clip(s, start, end), compute) for s in (self.transfer, self.wait, self.unknown))
        return States(*sets)


@dataclass
class Shares:
    """Stretches of time at which the same labels share. left, right: (stretches,); ns, state: (labels, stretches)."""

    labels: list[Label]
    left: NDArray[np.int64]
    right: NDArray[np.int64]
    ns: NDArray[np.int64]
    state: NDArray[np.int8]

    def total(self, index: int, mask: NDArray[np.bool_] | None = None) -> int:
        """Nanoseconds booked on one label, over some stretches."""
        row = self.ns[index]
        return int(row.sum() if mask is None else row[mask].sum())


def share(exposed: dict[Label, States], cuts: tuple[int, ...] = ()) -> Shares:
    """Book every exposed instant.

    Kinds that transfer share equally; if none transfers those that wait share; where it is unknown whether one of them
    transfers, all share. Within a kind the same rule holds among its labels. Per stretch the left-over nanoseconds go
    one each in the order of the kinds (of the labels, within a kind). `cuts` are extra boundaries of stretches.
    """
    labels = sorted(exposed, key=lambda label: (_KINDS.index(label.kind), label.axis, label.group or (), label.name))
    left, right, state = _stretches([exposed[label] for label in labels], cuts)
    length = right - left
    ns = np.zeros(state.shape, dtype=np.int64)
    kinds = sorted({label.kind for label in labels}, key=_KINDS.index)
    members = [[i for i, label in enumerate(labels) if label.kind is kind] for kind in kinds]
    of_kind = np.array([state[rows].max(axis=0) for rows in members]) if labels else np.zeros((0, len(left)), np.int8)
    kind_ns = _equal_shares(length, _takers(of_kind))
    for row, rows in enumerate(members):
        ns[rows] = _equal_shares(kind_ns[row], _takers(state[rows]))
    return Shares(labels, left, right, ns, state)


def _takers(state: NDArray[np.int8]) -> NDArray[np.bool_]:
    """Which rows take a share in each column."""
    if not len(state):
        return np.zeros(state.shape, dtype=bool)
    present = state != NONE
    unsure = (state == UNKNOWN).any(axis=0)
    moving = (state == TRANSFER).any(axis=0)
    takers: NDArray[np.bool_] = np.where(unsure, present, np.where(moving, state == TRANSFER, present))
    return takers


def _equal_shares(length: NDArray[np.int64], takers: NDArray[np.bool_]) -> NDArray[np.int64]:
    count = takers.sum(axis=0)
    base, left_over = np.divmod(length, np.maximum(count, 1))
    turn = np.cumsum(takers, axis=0) - 1
    result: NDArray[np.int64] = np.where(takers, base + (turn < left_over), 0)
    return result


def _stretches(
    states: list[States], cuts: tuple[int, ...]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int8]]:
    everything = union(*(part for item in states for part in (item.transfer, item.wait, item.unknown)))
    empty = np.empty(0, dtype=np.int64)
    if not len(everything):
        return empty, empty, np.zeros((len(states), 0), dtype=np.int8)
    inner = [np.array([cut for cut in cuts if everything[0, 0] < cut < everything[-1, 1]], dtype=np.int64)]
    inner += [part.ravel() for item in states for part in (item.transfer, item.wait, item.unknown)]
    edges = np.sort(np.concatenate(inner))
    edges = edges[np.append(True, edges[1:] > edges[:-1])]
    left, right = edges[:-1], edges[1:]
    state = np.zeros((len(states), len(left)), dtype=np.int8)
    for row, item in enumerate(states):
        state[row][covers(item.wait, left)] = WAIT
        state[row][covers(item.unknown, left)] = UNKNOWN
        state[row][covers(item.transfer, left)] = TRANSFER
    used = (state != NONE).any(axis=0)
    left, right, state = left[used], right[used], state[:, used]
    # One stretch is as long as nothing changes: neighbours with equal states are one.
    same = (left[1:] == right[:-1]) & (state[:, 1:] == state[:, :-1]).all(axis=0) & ~np.isin(left[1:], cuts)
    heads = np.flatnonzero(np.concatenate(([True], ~same)))
    tails = np.append(heads[1:], len(left)) - 1
    return left[heads], right[tails], state[:, heads]
