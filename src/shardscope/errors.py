"""Every error a user can cause, as one tree.

    ShardscopeError
    ├── ConfigError          a key, value or combination in the configuration
    ├── MeasurementError     a benchmark that could not be launched or recorded
    ├── TraceError           a trace that cannot be analysed soundly
    │   ├── DamagedTrace     bytes are lost or mixed: position and file are named
    │   ├── EmptyTrace       nothing timed is in the file
    │   └── RankError        which rank a file belongs to is unknown or contradictory
    └── ResultError          a stage's output that is missing, malformed or does not add up

Each message is one line that says what is wrong, where, and what to do about it. The command line and the workflow
bridges print it and exit with status 2; nothing else about it is shown.
"""

import difflib
import errno
from collections.abc import Iterable
from pathlib import Path

__all__ = [
    "ConfigError",
    "DamagedTrace",
    "EmptyTrace",
    "MeasurementError",
    "RankError",
    "ResultError",
    "ShardscopeError",
    "TraceError",
    "cannot_write",
    "did_you_mean",
]

LONGEST = 1000


def did_you_mean(word: object, known: Iterable[str]) -> str:
    """' (did you mean …?)' with the closest known word, or nothing: the end of a message about an unknown word."""
    close = difflib.get_close_matches(str(word)[:100], list(known), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def cannot_write(path: str | Path, error: OSError) -> str:
    """A message: what could not be written, why, and what to do about it."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        full = "the disk is full" if error.errno == errno.ENOSPC else "the disk quota is used up"
        return f"{path}: cannot be written, {full}; free some space there and run the same command again"
    return f"{path}: cannot be written ({error.strerror or error}); make that possible, or choose another place"


class ShardscopeError(Exception):
    """Base of all errors that are reported as one line."""

    def __str__(self) -> str:
        # Messages may quote hostile text (file names, event names): one line, no control characters.
        text = " ".join(super().__str__().split())
        if len(text) > LONGEST:  # a quoted value can be of any length; what is wrong comes first, what to do last
            text = f"{text[: LONGEST // 2]} \N{HORIZONTAL ELLIPSIS} {text[-LONGEST // 2 :]}"
        return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


class ConfigError(ShardscopeError):
    """The configuration cannot be used as it is."""


class MeasurementError(ShardscopeError):
    """A benchmark could not be launched or recorded."""


class TraceError(ShardscopeError):
    """A trace cannot be analysed soundly."""


class DamagedTrace(TraceError):
    """Part of a trace is missing or two writers share one file."""


class EmptyTrace(TraceError):
    """A file holds no timed events."""


class RankError(TraceError):
    """The rank of a file is unknown, or several files claim the same one."""


class ResultError(ShardscopeError):
    """A result of an earlier stage is missing, malformed or inconsistent."""
