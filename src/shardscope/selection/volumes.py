"""The bytes that this backend's algorithms should have sent, against those that the kernel counted on the loopback."""

from collections.abc import Sequence

from shardscope.measure.record import RunRecord
from shardscope.selection.claims import Volume, WireCheck

__all__ = ["wire_check"]

TOLERANCE = 0.02  # headers of TCP and IP, acknowledgements, and gloo's own
ENOUGH_BYTES = 8e6  # per step: below, headers and barriers weigh more than that
QUIET = 0.01  # of the expected bytes


def wire_check(record: RunRecord, volumes: Sequence[Volume]) -> WireCheck | None:
    """Per training step; None where nothing was counted or the backend's algorithms are not known.

    `verdict`: "agrees", "differs", "polluted" (others used the loopback meanwhile), "small" (too few bytes to judge).
    """
    wire = record.wire
    sent = [volume.backend_bytes for volume in volumes]
    if wire is None or not wire.steps or not sent or None in sent:
        return None
    expected = sum(each or 0.0 for each in sent)
    counted = wire.loopback_bytes / wire.steps
    others = wire.idle_bytes / wire.idle_ns * wire.took_ns / wire.steps if wire.idle_ns else 0.0
    difference = counted / expected - 1 if expected else 0.0
    if others > QUIET * expected:
        verdict = "polluted"
    elif expected < ENOUGH_BYTES:
        verdict = "small"
    else:
        verdict = "agrees" if abs(difference) <= TOLERANCE else "differs"
    return WireCheck(
        expected_bytes=expected, counted_bytes=counted, other_bytes=others, difference=difference, verdict=verdict
    )
