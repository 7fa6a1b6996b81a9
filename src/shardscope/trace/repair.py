"""Repairs of JSON text that do not touch timing, each counted by kind.

What producers got wrong: backslashes and quotes not escaped in names and paths, control characters, `nan` and `inf`
as numbers, trailing commas, bytes that are not UTF-8. Nothing is ever left out here.
"""

import re
from collections import Counter

__all__ = ["repair"]

# A string that is well formed and stands where a string may end; else whatever lies between two quotes of which the
# second is followed by what may follow a string. The first alternative keeps correct strings out of the guesswork.
_TOKEN = re.compile(
    rb'"(?:[^"\\\x00-\x1f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*"(?=\s*[,:}\]])'
    rb'|"(?P<broken>.*?)"(?=\s*(?:[:}\]]|,\s*["{\[\-0-9tfn]|,?\s*$))'
    rb"|(?P<number>[-+]?\b(?:nan|NaN|NAN|inf|Inf|INF|infinity|Infinity)\b)"
    rb"|(?P<comma>,)(?=\s*[}\]])",
    re.DOTALL,
)
_BACKSLASH_OR_QUOTE = re.compile(rb'["\\]')
_ESCAPES = {0x22: b'\\"', 0x5C: b"\\\\", **{code: f"\\u{code:04x}".encode() for code in range(0x20)}}


def repair(text: bytes) -> tuple[bytes, Counter[str]]:
    """The text with its repairable faults mended, and how many of each kind there were."""
    counts: Counter[str] = Counter()
    try:
        text.decode("utf-8")
    except UnicodeDecodeError:
        decoded = text.decode("utf-8", errors="replace")
        # One count per replacement; bytes that spell the replacement itself were there before.
        counts["bad_bytes"] += decoded.count("\N{REPLACEMENT CHARACTER}") - text.count(b"\xef\xbf\xbd")
        text = decoded.encode("utf-8")

    def mend(match: re.Match[bytes]) -> bytes:
        if match.lastgroup == "broken":
            counts["bad_escape" if _BACKSLASH_OR_QUOTE.search(match["broken"]) else "bad_bytes"] += 1
            return b'"' + b"".join(_ESCAPES.get(code) or bytes((code,)) for code in match["broken"]) + b'"'
        if match.lastgroup == "number":
            counts["not_a_number"] += 1
            return b"null"
        if match.lastgroup == "comma":
            counts["trailing_comma"] += 1
            return b""
        return match[0]

    return _TOKEN.sub(mend, text), counts
