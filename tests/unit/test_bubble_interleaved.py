"""Receives posted before their rank waits for them, as schedules with several stages per rank do."""

from pathlib import Path

import pytest
from handmade import HandMade
from test_bubble import US, compute, message

from shardscope.attribution.api import attribute_paths
from shardscope.vocabulary import Kind


@pytest.mark.parametrize("sent", [50.0, 150.0])
def test_waiting_for_one_message_is_not_the_transfer_of_another(tmp_path: Path, sent: float) -> None:
    """Rank 1 posts a receive at 1 and waits for it at 250; at 100 it waits for another message, which comes at 200.

    Whenever the first was sent, rank 1 idles from 100 to 200 for want of the second.
    """
    first, second = HandMade(0), HandMade(1)
    compute(first, "forward", 0, 0, sent)
    message(first, 1, True, sent, 310)  # torch waits for its sends at the end of the step
    compute(first, "forward", 1, sent + 1, 200)
    message(first, 1, True, 200, 311)
    compute(first, "backward", 0, 201, 300)
    message(second, 0, False, 1, 251)
    compute(second, "forward", 0, 2, 100)
    message(second, 0, False, 100, 200.5)
    compute(second, "forward", 1, 200.5, 250)
    compute(second, "backward", 0, 251, 300)
    for trace in (first, second):
        trace.op("aten::add_", 320, 330).span("Optimizer.step#AdamW.step", 320, 330, tid=1).step(1, 0, 340)
    first.write(tmp_path / "rank0.json")
    second.write(tmp_path / "rank1.json")
    result = attribute_paths([tmp_path])
    row = result.ranks[1].steps[0]
    assert row.bubble_phase_ns is not None
    assert row.bubble_phase_ns.between == pytest.approx(100 * US, abs=US)
    assert row.attributed_ns.get(Kind.SEND_RECEIVE, 0) < 3 * US
    assert row.total_ns == row.window_ns
