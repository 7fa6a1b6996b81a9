"""What one rank did, ready for the ledger: compute, copies, communication, steps."""

from bisect import bisect_right
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from shardscope.attribution.communication import Communication
from shardscope.attribution.groups import GroupTable
from shardscope.attribution.intervals import EMPTY, IntArray
from shardscope.attribution.result import Warn
from shardscope.trace.table import Timeline

__all__ = ["Launches", "Mark", "RankView", "Step"]


@dataclass(slots=True)
class Step:
    """One step's window on the rank's clock; `number` None without marks."""

    number: int | None
    start: int
    end: int
    host_start: int
    host_end: int
    late: int = 0  # device work after the host end, ns of union
    foreign: int = 0  # device work of other steps inside the window, ns of union
    complete: bool = True


@dataclass(slots=True)
class Mark:
    """A micro-batch annotation of a pipeline stage."""

    backward: bool
    index: int
    start: int
    end: int


@dataclass(slots=True)
class Launches:
    """Device work by start, with its end, its stream and the host time of its launch (LAUNCH_UNKNOWN where none is
    recorded). Shape (n,) each."""

    start: NDArray[np.int64]
    end: NDArray[np.int64]
    stream: NDArray[np.int64]
    launch: NDArray[np.int64]


@dataclass
class RankView:
    """One rank. All times are ns on its own clock, counted from a base all ranks share."""

    rank: int | None
    timeline: Timeline
    groups: GroupTable
    device: str
    world_size: int | None
    compute: IntArray = field(default_factory=lambda: EMPTY)
    compute_rows: IntArray = field(default_factory=lambda: EMPTY)  # the same as single, overlapping rows (CPU only)
    copies: IntArray = field(default_factory=lambda: EMPTY)
    loading: IntArray = field(default_factory=lambda: EMPTY)  # operators inside the data loader
    communications: list[Communication] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    mark_spans: IntArray = field(default_factory=lambda: EMPTY)  # union of the marks, host time
    micro_compute: IntArray = field(default_factory=lambda: EMPTY)  # compute of marked micro-batches
    optimizer_compute: IntArray = field(
        default_factory=lambda: EMPTY
    )  # compute from the optimizer's start on, per step
    launches: Launches | None = None
    device_index: int | None = None  # where a file holds several devices: which of them this is
    secondary: bool = False  # not the busiest of these: not compared with other ranks
    warnings: list[Warn] = field(default_factory=list)
    files: list[str] = field(default_factory=list)

    def warn(self, code: str, count: int, detail: str) -> None:
        """Record something repaired, left out or not knowable."""
        self.warnings.append(Warn(code=code, count=count, detail=detail))

    def group_name(self, ranks: tuple[int, ...]) -> str:
        """What the trace calls the group of these ranks, or the ranks themselves."""
        for group in self.groups.groups.values():
            if group.ranks == ranks and group.name:
                return group.name
        return "-".join(str(rank) for rank in ranks)

    def step_at(self, instant: int) -> int | None:
        """Position of the step whose window holds an instant."""
        index = bisect_right(self.steps, instant, key=lambda step: step.start) - 1
        return index if index >= 0 and instant < self.steps[index].end else None
