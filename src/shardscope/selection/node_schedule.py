"""Pipeline schedules played out event by event: when each stage works, given its times and the messages' time.

Every stage runs its operations in a fixed order, one at a time. A forward needs the message of the stage before, a
backward that of the stage after; messages of one direction between two stages follow each other on the wire. Stages
that take the same time, and messages that take none, give (m + p − 1)·(forward + backward) exactly (Megatron-LM, arXiv
2104.04473, section 2.2).
"""

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Played", "gpipe", "one_f_one_b", "play"]

Op = tuple[bool, int]  # (backward, micro-batch)


@dataclass(frozen=True)
class Played:
    """busy, finish: seconds by stage; makespan: from the first start to the last end."""

    makespan: float
    busy: tuple[float, ...]
    finish: tuple[float, ...]

    @property
    def idle_fraction(self) -> float:
        """Mean share of the makespan in which a stage does not compute."""
        return 1 - sum(self.busy) / (len(self.busy) * self.makespan) if self.makespan else 0.0


def gpipe(stages: int, micro_batches: int) -> list[list[Op]]:
    """All forwards, then all backwards, both in the order of the micro-batches (as torch's ScheduleGPipe)."""
    order = [(False, i) for i in range(micro_batches)] + [(True, i) for i in range(micro_batches)]
    return [list(order) for _ in range(stages)]


def one_f_one_b(stages: int, micro_batches: int) -> list[list[Op]]:
    """p − 1 − stage forwards to warm up, then one forward and one backward in turn, then the backwards left over."""
    orders = []
    for stage in range(stages):
        warm = min(stages - 1 - stage, micro_batches)
        order: list[Op] = [(False, i) for i in range(warm)]
        for i in range(micro_batches - warm):
            order += [(False, warm + i), (True, i)]
        order += [(True, i) for i in range(micro_batches - warm, micro_batches)]
        orders.append(order)
    return orders


def play(
    orders: Sequence[Sequence[Op]], forward: Sequence[float], backward: Sequence[float], messages: Sequence[float] = ()
) -> Played:
    """forward, backward: seconds per micro-batch of each stage; messages: seconds across each boundary (none: 0).

    Raises ValueError for orders that wait for each other.
    """
    stages = len(orders)
    crossing = list(messages) or [0.0] * (stages - 1)
    done: dict[tuple[bool, int, int], float] = {}  # (backward, stage, micro-batch) → arrival of what it waits for
    wire: dict[tuple[bool, int], float] = {}
    clock, position = [0.0] * stages, [0] * stages
    while any(position[s] < len(orders[s]) for s in range(stages)):
        moved = False
        for stage in range(stages):
            while position[stage] < len(orders[stage]):
                back, index = orders[stage][position[stage]]
                ready = _ready(done, back, stage, index, stages)
                if ready is None:
                    break
                clock[stage] = max(clock[stage], ready) + (backward if back else forward)[stage]
                position[stage] += 1
                moved = True
                _send(done, wire, (back, stage, index), clock[stage], crossing)
        if not moved:
            raise ValueError("the schedule waits for itself")
    each = len(orders[0]) // 2
    busy = tuple(each * (forward[s] + backward[s]) for s in range(stages))
    return Played(makespan=max(clock), busy=busy, finish=tuple(clock))


def _ready(done: dict[tuple[bool, int, int], float], back: bool, stage: int, index: int, stages: int) -> float | None:
    """When the input of an operation is there; None: not known yet."""
    if not back:
        return 0.0 if stage == 0 else done.get((False, stage, index))
    return done.get((True, stage, index)) if stage < stages - 1 else done.get((False, stages, index))


def _send(
    done: dict[tuple[bool, int, int], float],
    wire: dict[tuple[bool, int], float],
    op: tuple[bool, int, int],
    now: float,
    crossing: Sequence[float],
) -> None:
    back, stage, index = op
    target = stage - 1 if back else stage + 1
    boundary = min(stage, target)
    if 0 <= boundary < len(crossing):
        start = max(now, wire.get((back, boundary), 0.0))
        wire[back, boundary] = now = start + crossing[boundary]
    done[back, target, index] = now
