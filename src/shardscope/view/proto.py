"""Perfetto's trace format: protobuf wire encoding, track descriptors and interned strings.

Field numbers are those of perfetto/protos/perfetto/trace (trace_packet, track_event, track_descriptor, interned_data),
which are stable by Perfetto's own rules. The format was chosen over Chrome's JSON because it keeps nanoseconds exact
(JSON goes through a double) and states the order and the parent of every track.
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

__all__ = ["annotations", "data", "integer", "json_annotation", "padded", "text", "track", "varint"]

_NAME_BYTES = 2000  # names of templated kernels reach this; longer ones are cut

_PACKET_TRACK, _PACKET = 60, 1
_UUID, _NAME, _PROCESS, _PARENT, _COUNTER = 1, 2, 3, 5, 8
_CHILD_ORDERING, _ORDER, _DESCRIPTION, _MERGING, _MERGE_KEY = 11, 12, 14, 15, 16
_BY_KEY = 3  # SIBLING_MERGE_BEHAVIOR_BY_SIBLING_MERGE_KEY
_EXPLICIT = 3
_PROCESS_ID, _PROCESS_NAME = 1, 6
_UNIT, _UNIT_BYTES = 3, 3
_ANNOTATION = 4  # in TrackEvent
_ANNOTATION_NAME, _BOOL, _INT, _DOUBLE, _STRING, _JSON = 10, 2, 4, 5, 6, 9


def varint(value: int) -> bytes:
    """A non-negative number below 2⁶⁴, or a negative one as 64-bit two's complement."""
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def integer(field: int, value: int) -> bytes:
    """A varint field."""
    return varint(field << 3) + varint(value)


def data(field: int, content: bytes) -> bytes:
    """A field of bytes: a message or a string."""
    return varint(field << 3 | 2) + varint(len(content)) + content


def text(field: int, content: str) -> bytes:
    """A string field. Whatever a trace calls a thing is text; only its length is bounded."""
    encoded = content.encode("utf-8", errors="replace")
    if len(encoded) > _NAME_BYTES:
        encoded = encoded[:_NAME_BYTES].decode("utf-8", errors="ignore").encode("utf-8") + "…".encode()
    return data(field, encoded)


def padded(values: NDArray[np.int64], width: int) -> NDArray[np.uint8]:
    """Non-negative numbers below 2^(7·width) as varints of equal length: shape (n, width).

    A varint may carry leading zero groups, so that records of one kind all have the same layout and numpy writes them.
    """
    shifts = np.arange(width, dtype=np.int64) * 7
    groups = (values[:, None] >> shifts & 0x7F).astype(np.uint8)
    groups[:, :-1] |= 0x80
    return groups


def track(
    uuid: int,
    name: str,
    *,
    parent: int | None = None,
    order: int = 0,
    process: int | None = None,
    counts_bytes: bool = False,
    merge_key: str | None = None,
    description: str = "",
) -> bytes:
    """The packet that declares a track.

    `order`: its place among its siblings. `process`: the number of the process it stands for. `counts_bytes`: a counter
    of bytes, not of slices. Siblings with one `merge_key` are shown as lanes of one track.
    """
    body = integer(_UUID, uuid) + text(_NAME, name) + integer(_CHILD_ORDERING, _EXPLICIT) + integer(_ORDER, order)
    if parent is not None:
        body += integer(_PARENT, parent)
    if process is not None:
        body += data(_PROCESS, integer(_PROCESS_ID, process) + text(_PROCESS_NAME, name))
    if counts_bytes:
        body += data(_COUNTER, integer(_UNIT, _UNIT_BYTES))
    if merge_key is not None:
        body += integer(_MERGING, _BY_KEY) + text(_MERGE_KEY, merge_key)
    if description:
        body += text(_DESCRIPTION, description)
    return data(_PACKET, data(_PACKET_TRACK, body))


def annotations(values: Mapping[str, object]) -> bytes:
    """Details of a slice, shown when it is selected: fields of a TrackEvent. None values are left out."""
    out = b""
    for name, value in values.items():
        if value is None:
            continue
        if isinstance(value, bool):
            encoded = integer(_BOOL, int(value))
        elif isinstance(value, int):
            encoded = integer(_INT, value)
        elif isinstance(value, float):
            encoded = varint(_DOUBLE << 3 | 1) + np.float64(value).tobytes()
        else:
            encoded = text(_STRING, str(value))
        out += data(_ANNOTATION, text(_ANNOTATION_NAME, name) + encoded)
    return out


_SMALL = [varint(number) for number in range(1 << 14)]
_ARGS = text(_ANNOTATION_NAME, "args") + varint(_JSON << 3 | 2)
_HEAD = varint(_ANNOTATION << 3 | 2)


def json_annotation(raw: bytes) -> bytes:
    """A JSON object as details of a slice, under "args" as in a trace without conversion."""
    size = len(raw)
    length = _SMALL[size] if size < 1 << 14 else varint(size)
    whole = len(_ARGS) + len(length) + size
    return b"".join((_HEAD, _SMALL[whole] if whole < 1 << 14 else varint(whole), _ARGS, length, raw))
