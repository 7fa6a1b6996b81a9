"""Markdown from text that nobody vouches for, and numbers as they are printed in both languages."""

import html
import math
import re

from markupsafe import Markup

__all__ = ["FILTERS", "code", "round_parts", "shortened", "text"]

MINUS = "\N{MINUS SIGN}"
_INLINE = re.compile(r"([\\`*\[\]|~$]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9]))")  # a_b is no emphasis
_LEADING = re.compile(r"^([#+=!-]|\d+(?=[.)]\s))")
MB, MS = 1e6, 1e6
LONGEST = 500


def _one_line(value: object) -> str:
    """Control characters, line breaks and bidirectional overrides would let text leave its cell."""
    flat = " ".join(str(value).split())
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in shortened(flat))


def shortened(line: str) -> str:
    """At most LONGEST characters: a foreign text may explain itself, but not push the report off the page."""
    return line if len(line) <= LONGEST else f"{line[:LONGEST]}\N{HORIZONTAL ELLIPSIS}"


def text(value: object) -> Markup:
    """Any text as literal Markdown: HTML and every character that Markdown gives a meaning are escaped."""
    if isinstance(value, Markup):
        return value
    escaped = _INLINE.sub(r"\\\1", html.escape(_one_line(value), quote=False))
    # At the start of a line these would begin a heading, a list or a rule.
    return Markup(_LEADING.sub(lambda match: f"&#{ord(match[0][0])};{match[0][1:]}", escaped))


def code(value: object) -> Markup:
    """Any text as a code span that also holds inside a table cell."""
    flat = _one_line(value).replace("`", "'").replace("|", "\N{BROKEN BAR}").strip() or "?"
    return Markup(f"`{flat}`")


def _fixed(value: float, digits: int, *, sign: bool = False) -> Markup:
    """Thousands separated, true minus sign, never a negative zero."""
    if not math.isfinite(value):
        return Markup("\N{INFINITY}" if value > 0 else f"{MINUS}\N{INFINITY}")
    shown = f"{abs(value):,.{digits}f}"
    zero = not any(c in "123456789" for c in shown)
    mark = "" if zero else MINUS if value < 0 else "+" if sign else ""
    return Markup(mark + shown)


def megabytes(value: float) -> Markup:
    """Bytes in MB (10⁶), one decimal."""
    return _fixed(value / MB, 1)


def megabytes_up(value: float) -> Markup:
    """Bytes in MB, rounded up: a cap of that size really holds it."""
    return _fixed(math.ceil(value / MB * 10 - 1e-9) / 10, 1)


def signed_megabytes(value: float) -> Markup:
    """Bytes in MB with their sign."""
    return _fixed(value / MB, 1, sign=True)


def milliseconds(value: float) -> Markup:
    """Nanoseconds in ms: one decimal, two below 10."""
    return _fixed(value / MS, 1 if abs(value / MS) >= 9.995 else 2)


def tenths(value: float) -> Markup:
    """Milliseconds with one decimal, for parts that were rounded to add up."""
    return _fixed(value, 1)


def signed_milliseconds(value: float) -> Markup:
    """Nanoseconds in ms with their sign, one decimal."""
    return _fixed(value / MS, 1, sign=True)


def size_milliseconds(value: float) -> Markup:
    """The magnitude of a difference, nanoseconds in ms, one decimal."""
    return _fixed(abs(value) / MS, 1)


def rate(value: float) -> Markup:
    """Tokens per second: whole numbers, below 10 with two decimals."""
    return _fixed(value, 0 if abs(value) >= 10 else 2)


def percent(value: float) -> Markup:
    """A fraction in percent without the sign %, one decimal, more where it would read 0."""
    return _fixed(value * 100, _digits(value * 100))


def near(value: float, limit: float, scale: float = 1.0, digits: int = 1) -> Markup:
    """`value / scale` with as many decimals as it takes to look different from `limit` (in the printed unit)."""
    while digits < 6 and value / scale != limit and f"{value / scale:.{digits}f}" == f"{limit:.{digits}f}":
        digits += 1
    return _fixed(value / scale, digits)


def up(value: float) -> Markup:
    """One decimal, rounded up: a limit of that size is really met."""
    return _fixed(math.ceil(value * 10 - 1e-9) / 10, 1)


def down(value: float) -> Markup:
    """A whole number, rounded down."""
    return _fixed(math.floor(value + 1e-9), 0)


def loss(value: float) -> Markup:
    """Two decimals."""
    return _fixed(value, 2)


def size_percent(value: float) -> Markup:
    """The magnitude of a difference, in percent."""
    return percent(abs(value))


def signed_percent(value: float) -> Markup:
    """A difference in percent, or in percentage points, with its sign."""
    return _fixed(value * 100, _digits(value * 100), sign=True)


def factor(value: float) -> Markup:
    """A ratio with two significant digits."""
    digits = max(0, 1 - math.floor(math.log10(abs(value)))) if value else 0
    return _fixed(value, min(digits, 4))


def three(value: float) -> Markup:
    """A value with three significant digits, thousands separated, as it would stand in the configuration."""
    digits = max(0, 2 - math.floor(math.log10(abs(value)))) if value else 0
    return number(round(value, min(digits, 4)))


def factor_up(value: float) -> Markup:
    """A ratio with two significant digits, rounded up: that much is really enough."""
    scale = 10 ** (1 - math.floor(math.log10(value)))
    return factor(math.ceil(value * scale - 1e-9) / scale)


def number(value: float) -> Markup:
    """A number of the configuration, as it was written: at most four decimals, no trailing zeros."""
    shown = f"{value:,.4f}".rstrip("0").rstrip(".")
    return Markup(shown.replace("-", MINUS))


def scientific(value: float) -> Markup:
    """An error: 1.2e-06; the largest float stands for infinity."""
    return Markup("\N{INFINITY}" if value > 1e300 else f"{value:.1e}")


def whole(value: float) -> Markup:
    """An integer with thousands separated."""
    return _fixed(value, 0)


def day(value: str) -> Markup:
    """The date of an ISO 8601 time."""
    return text(value[:10])


def round_parts(total: float, parts: list[float]) -> tuple[float, list[float]]:
    """(total, parts) in tenths that add up exactly: largest remainders get what rounding down left over.

    Parts may be zero but not negative. The total is rounded first.
    """
    whole_total = round(total * 10)
    floors = [math.floor(part * 10 + 1e-9) for part in parts]
    missing = whole_total - sum(floors)
    by_remainder = sorted(range(len(parts)), key=lambda i: floors[i] - parts[i] * 10)
    for index in by_remainder[: max(0, missing)]:
        floors[index] += 1
    for index in reversed(by_remainder):
        if missing >= 0:
            break
        if floors[index] > 0:
            floors[index] -= 1
            missing += 1
    return whole_total / 10, [tenth / 10 for tenth in floors]


def _digits(percents: float) -> int:
    if percents == 0 or abs(percents) >= 0.05:
        return 1
    return 2


FILTERS = {
    "text": text,
    "code": code,
    "mb": megabytes,
    "mb_up": megabytes_up,
    "signed_mb": signed_megabytes,
    "ms": milliseconds,
    "tenths": tenths,
    "signed_ms": signed_milliseconds,
    "size_ms": size_milliseconds,
    "factor_up": factor_up,
    "rate": rate,
    "near": near,
    "up": up,
    "down": down,
    "loss": loss,
    "pct": percent,
    "size_pct": size_percent,
    "signed_pct": signed_percent,
    "factor": factor,
    "three": three,
    "number": number,
    "scientific": scientific,
    "whole": whole,
    "day": day,
}
