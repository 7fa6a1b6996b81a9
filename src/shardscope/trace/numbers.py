"""Integer nanoseconds from the text of `ts` and `dur`.

The trace writes microseconds with up to three decimals. A double has 53 bits, so a time since the epoch, or since a
boot more than 50 days ago, does not survive it; the digits of the text do.
"""

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

__all__ = ["ABSENT", "nanoseconds", "parse_microseconds"]

ABSENT = np.iinfo(np.int64).min
_LIMIT = 1 << 61  # 73 years in ns; sums of two still fit
_DOT, _COMMA = ord("."), ord(",")
_POWERS = np.array([1000, 100, 10, 1], dtype=np.int64)


def nanoseconds(texts: Sequence[msgspec.Raw]) -> NDArray[np.int64]:
    """One int64 per JSON value, in nanoseconds; ABSENT where the text is no finite time within ±73 years.

    Values may be numbers or strings that hold numbers; digits beyond the nanosecond are rounded half up.
    """
    if not texts:
        return np.empty(0, dtype=np.int64)
    joined = b",".join(texts)
    if not joined.translate(None, b"0123456789.,"):
        fast = _plain(joined, len(texts))
        if fast is not None:
            return fast
    return np.array([_or_absent(bytes(text)) for text in texts], dtype=np.int64)


def _plain(joined: bytes, count: int) -> NDArray[np.int64] | None:
    """All values plain decimals: read the digits as one integer each and scale. None if some value is not that."""
    data = np.frombuffer(joined, dtype=np.uint8)
    ends = np.append(np.flatnonzero(data == _COMMA), len(data))
    if len(ends) != count:
        return None
    starts = np.append(0, ends[:-1] + 1)
    dots = np.flatnonzero(data == _DOT)
    if len(dots) == count and (dots == ends - 4).all():  # as torch writes them today
        decimals, digits = np.full(count, 3), ends - starts - 1
    else:
        owner = np.searchsorted(ends, dots)
        if (owner[1:] == owner[:-1]).any():
            return None
        decimals, digits = np.zeros(count, dtype=np.int64), ends - starts
        decimals[owner] = ends[owner] - dots - 1
        digits[owner] -= 1
    width = digits + 3 - decimals
    if decimals.max() > 3 or (digits - decimals).min() < 1 or width.max() > 19:
        return None
    # 18 digits always fit; of 19 only those that start with 1 do (dates until 2033).
    if (data[starts[width == 19]] != ord("1")).any():
        return None
    values = np.fromstring(joined.replace(b".", b"").decode("ascii"), dtype=np.int64, sep=",")
    return values * _POWERS[decimals] if len(values) == count else None


def _or_absent(text: bytes) -> int:
    value = parse_microseconds(text)
    return ABSENT if value is None else value


def parse_microseconds(text: bytes) -> int | None:
    """Nanoseconds of one JSON number or quoted number, None if it is neither or out of range. Exact, no floats."""
    body = text.strip().strip(b'"').strip().lower()
    negative = body.startswith(b"-")
    body = body.lstrip(b"+-") if body[:1] in b"+-" else body
    mantissa, _, exponent_text = body.partition(b"e")
    whole, _, fraction = mantissa.partition(b".")
    if not (whole + fraction).isdigit():
        return None
    try:
        exponent = int(exponent_text) if exponent_text else 0
    except ValueError:
        return None
    if len(whole) + len(fraction) > 40 or abs(exponent) > 40:
        return None
    shift = 3 + exponent - len(fraction)
    digits = int(whole + fraction)
    if shift >= 0:
        value: int = digits * 10**shift
    else:
        divisor = 10**-shift
        value = (digits + divisor // 2) // divisor
    if value > _LIMIT:
        return None
    return -value if negative else value
