"""The live set rebuilt from the profiler's memory events."""

import pytest
import torch

from shardscope.errors import MeasurementError
from shardscope.measure.memory import MemoryEvent, Rise, read_memory_events, rise_between, unique_bytes


def events(*rows: tuple[int, int, int]) -> list[MemoryEvent]:
    return [MemoryEvent(time_ns=time, address=address, bytes=size) for time, address, size in rows]


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        pytest.param([(10, 1, 100), (11, 2, 50), (12, 1, -100), (13, 2, -50)], Rise(150, 0), id="all seen"),
        pytest.param([(1, 1, 100), (10, 1, -100), (11, 1, 100)], Rise(0, 0), id="held before, replaced"),
        # The profiler does not know block 9: its free counts as part of what was held at the start.
        pytest.param([(10, 9, -40), (11, 2, 40)], Rise(0, 0), id="allocated before the profiler"),
        # Block 1 is freed unseen: the second allocation at its address proves it. Until then it may have been live.
        pytest.param(
            [(10, 1, 100), (11, 2, 30), (12, 1, 100), (13, 1, -100), (14, 2, -30)], Rise(130, 0), id="reused at once"
        ),
        pytest.param(
            [(10, 1, 100), (11, 2, 30), (12, 2, -30), (13, 3, 20), (14, 1, 10), (15, 1, -10), (16, 3, -20)],
            Rise(130, 100),
            id="unseen free: with it 130, without it 30",
        ),
        pytest.param([(10, 1, 100), (11, 2, 30), (12, 2, -30)], Rise(130, 100), id="left over at the end"),
        pytest.param([(1, 1, 70), (10, 1, -70)], Rise(0, 70), id="less at the end than at the start"),
        pytest.param([(10, 1, 10), (20, 2, 1000)], Rise(10, 10), id="the window's end is outside"),
        pytest.param([], Rise(0, 0), id="nothing"),
    ],
)
def test_rise(rows: list[tuple[int, int, int]], expected: Rise) -> None:
    assert rise_between(events(*rows), 10, 20) == expected


def test_unseen_free_is_proved_by_seeding_before_the_window() -> None:
    # Freed unseen in the step before; without that step the rise would be 100 too low.
    seeded = events((1, 1, 100), (10, 1, 100), (11, 1, -100))
    assert rise_between(seeded, 10, 20).peak_bytes == 0
    assert rise_between(seeded[1:], 10, 20).peak_bytes == 100


def test_read_memory_events_keeps_nanoseconds_order_and_the_host_only() -> None:
    text = b"""{"traceEvents": [
        {"ph": "i", "name": "[memory]", "ts": 4503599627370497.125, "args": {"Addr": 7, "Bytes": -8, "Device Type": 0}},
        {"ph": "i", "name": "[memory]", "ts": 4503599627370497.124, "args": {"Addr": 7, "Bytes": 8, "Device Type": 0}},
        {"ph": "i", "name": "[memory]", "ts": 5, "args": {"Addr": 7, "Bytes": 8, "Device Type": 1}},
        {"ph": "X", "name": "shardscope::memory", "cat": "user_annotation", "ts": 12.5, "dur": 1},
        {"ph": "X", "name": "aten::add", "cat": "cpu_op", "ts": 13, "dur": 1, "args": {}}
    ]}"""
    memory, marks = read_memory_events(text)
    assert memory == events((4503599627370497124, 7, 8), (4503599627370497125, 7, -8))
    assert marks == [12500]


def test_a_damaged_memory_trace_is_an_error() -> None:
    with pytest.raises(MeasurementError, match="memory trace cannot be read"):
        read_memory_events(b'{"traceEvents": [{"name": "[memory]", "ts": 1, "args": {"Addr": 1}}]}')


def test_storages_shared_by_views_count_once() -> None:
    bucket = torch.zeros(100)
    other = torch.zeros(10)
    seen: set[int] = set()
    assert unique_bytes([bucket[:40], bucket[40:], other], seen) == 440
    assert unique_bytes([bucket.view(10, 10)], seen) == 0
