"""Reading one trace file into a Timeline."""

from pathlib import Path

import msgspec

from shardscope.errors import DamagedTrace, EmptyTrace
from shardscope.trace.builder import TimelineBuilder
from shardscope.trace.stream import EventStream
from shardscope.trace.table import Timeline

__all__ = ["read_timeline"]


def read_timeline(path: Path, *, salvage: bool = False) -> Timeline:
    """Read a .json or .json.gz trace in bounded memory.

    With `salvage` a cut file gives what is there before the cut and `Timeline.cut` says where it ends. Raises
    EmptyTrace when nothing timed is in the file, DamagedTrace when part of it is lost, TraceError when it cannot be
    opened.
    """
    stream = EventStream(path)
    builder = TimelineBuilder(path)
    for batch in stream:
        builder.add(batch)
        del batch  # its memory serves the next one
    if stream.cut and not salvage:
        raise DamagedTrace(f"{path}: {stream.cut}; write the trace again or use --salvage for its complete steps")
    base = stream.metadata.get("baseTimeNanoseconds")
    base_ns = base if isinstance(base, int) and not isinstance(base, bool) and abs(base) < 1 << 62 else 0
    builder.warnings += stream.repairs
    timeline = builder.finish(_plain(stream.metadata), base_ns, stream.cut)
    if not len(timeline):
        raise EmptyTrace(f"{path}: no timed events; profile at least one step with operators or device activity")
    return timeline


def _plain(metadata: dict[str, object]) -> dict[str, object]:
    return {
        key: value for key, value in metadata.items() if key != "traceEvents" and not isinstance(value, msgspec.Raw)
    }
