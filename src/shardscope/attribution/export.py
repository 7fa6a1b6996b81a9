"""A CPU step as rows that HolisticTraceAnalysis reads: what we classified, written as device kernels."""

from pathlib import Path

import msgspec

from shardscope.attribution.intervals import IntArray
from shardscope.attribution.ledger import RowParts
from shardscope.attribution.view import RankView
from shardscope.vocabulary import Kind

__all__ = ["write_rows"]

_HOST, _DEVICE = 1, 0  # process ids
_COMPUTE_NAME = "computation"
_NAMES = {kind: f"ncclDevKernel_{kind.value}" for kind in Kind}
_LAUNCH_NS = 1


def write_rows(view: RankView, part: RowParts, path: Path) -> None:
    """Write one rank's step: every operator and every busy interval as its own row, overlapping as recorded.

    Times count from the start of the step, so that microseconds with three decimals survive as doubles.
    """
    start, end = part.row.start_ns, part.row.start_ns + part.row.window_ns
    rows = [(_COMPUTE_NAME, 7, piece) for piece in _clipped(view.compute_rows, start, end)]
    for item in view.communications:
        rows += [(_NAMES[item.kind], 20, piece) for piece in _clipped(item.busy, start, end)]
    events: list[dict[str, object]] = [
        _event("user_annotation", f"ProfilerStep#{part.row.step or 0}", _HOST, _HOST, 0, end - start, {})
    ]
    for correlation, (name, stream, (left, right)) in enumerate(sorted(rows, key=lambda row: row[2]), start=1):
        args = {"correlation": correlation, "device": 0, "stream": stream}
        events.append(_event("kernel", name, _DEVICE, stream, left - start, right - left, args))
        launch = {"correlation": correlation}
        events.append(_event("cuda_runtime", "cudaLaunchKernel", _HOST, _HOST, left - start, _LAUNCH_NS, launch))
    document = {
        "schemaVersion": 1,
        "distributedInfo": {"rank": view.rank or 0, "world_size": view.world_size or 1},
        "traceEvents": events,
    }
    path.write_bytes(msgspec.json.encode(document))


def _clipped(rows: IntArray, start: int, end: int) -> list[tuple[int, int]]:
    inside = rows[(rows[:, 0] < end) & (rows[:, 1] > start)]
    return [(max(left, start), min(right, end)) for left, right in inside.tolist() if right > left]


def _event(
    category: str, name: str, pid: int, tid: int, start_ns: int, duration_ns: int, args: dict[str, int]
) -> dict[str, object]:
    return {
        "ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid,
        "ts": start_ns / 1000, "dur": duration_ns / 1000, "args": args,
    }  # fmt: skip
