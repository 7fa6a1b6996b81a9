"""Which steps of a cut file are whole.

The profiler writes thread after thread and device records last, so a cut loses threads or device records of all steps
from some point on, not only the end of the last step.
"""

import numpy as np

from shardscope.attribution.view import RankView, Step
from shardscope.trace.events import Class

__all__ = ["drop_cut_steps", "drop_steps_without_spans"]

_LAUNCHES = ("Launch", "launch", "Memcpy", "memcpy", "Memset", "memset")


def drop_cut_steps(view: RankView) -> None:
    """Leave out the last marked step, and all from the first one on that launched work without a device record."""
    cut = view.timeline.cut
    if cut is None:
        return
    if view.steps:
        _drop(view, len(view.steps) - 1, f"is cut ({cut})")
    table = view.timeline
    device = (table.kind == Class.KERNEL) | (table.kind == Class.COPY)
    if not device.any():
        return
    launching = np.array([any(word in name for word in _LAUNCHES) for name in table.names], dtype=bool)
    calls = (table.kind == Class.RUNTIME) & launching[table.name] & (table.correlation > 0)
    lost = table.start[calls & ~np.isin(table.correlation, table.correlation[device])]
    for index, step in enumerate(view.steps):
        if ((lost >= step.host_start) & (lost < step.host_end)).any():
            _drop(view, index, "launched work whose device records are cut off")
            return


def drop_steps_without_spans(view: RankView) -> bool:
    """On CPU: leave out all steps from the first one on with a call whose gloo span is lost. True if any was."""
    if view.timeline.cut is None or not any(item.spans for item in view.communications):
        return False
    # monitored_barrier runs inside its call, and a wait has no span of its own.
    without = ("c10d::monitored_barrier_", "wait_tensor")
    lost = [item.step for item in view.communications if not item.spans and item.name not in without]
    steps = [index for index in lost if index is not None]
    if not steps:
        return False
    _drop(view, min(steps), "has calls whose gloo spans are cut off")
    return True


def _drop(view: RankView, index: int, why: str) -> None:
    left_out: list[Step] = view.steps[index:]
    names = ", ".join(str(step.number) for step in left_out)
    view.warn("incomplete_step", len(left_out), f"step {names} {why} and is left out")
    del view.steps[index:]
