"""Slices that overlap without nesting need a track each: Perfetto drops them otherwise."""

from heapq import heappop, heappush

import numpy as np
from numpy.typing import NDArray

__all__ = ["assign_lanes"]

_DEPTH = 200  # Perfetto gives up on deeper stacks
_NESTING = 64  # lanes that are searched for a place to nest in; further ones hold one slice at a time


def assign_lanes(start: NDArray[np.int64], end: NDArray[np.int64]) -> NDArray[np.int32]:
    """The lane of every slice of one track, 0 for most. Slices come sorted by start, then longest first.

    Within a lane two slices are apart or nested, and not nested too deep. A slice takes the first lane it fits in.
    """
    lanes = np.zeros(len(start), dtype=np.int32)
    open_ends: list[list[int]] = [[]]  # per lane the ends of the slices that are open, innermost last
    further: list[tuple[int, int]] = []  # (end of its slice, lane), the earliest first
    for row, (begin, finish) in enumerate(zip(start.tolist(), end.tolist(), strict=True)):
        for lane, stack in enumerate(open_ends):
            while stack and stack[-1] <= begin:
                stack.pop()
            if not stack or (stack[-1] >= finish and len(stack) < _DEPTH):
                stack.append(finish)
                lanes[row] = lane
                break
        else:
            if len(open_ends) < _NESTING:
                open_ends.append([finish])
                lanes[row] = len(open_ends) - 1
            else:
                lane = heappop(further)[1] if further and further[0][0] <= begin else _NESTING + len(further)
                heappush(further, (finish, lane))
                lanes[row] = lane
    return lanes
