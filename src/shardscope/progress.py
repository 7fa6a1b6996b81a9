"""How far a long job is, said in one line on a terminal and nowhere else.

The processes that work tell the one that shows it through a named pipe. Writing there never waits and never touches a
disk: with nobody at the other end, or a full pipe, the line is lost, and the work goes on.
"""

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import TextIO

__all__ = ["Inbox", "Outbox", "StatusLine", "on_terminal", "time_left"]

_MOST_BYTES = 512  # a write of at most PIPE_BUF bytes is not mixed with others'
_READ_BYTES = 1 << 16
_COLUMNS = 80


class Inbox:
    """The reading end of a new named pipe. Raises OSError where the file system has none."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path, 0o600)
        self._fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        self._rest = b""

    def take(self) -> list[str]:
        """The whole lines that have come since the last call; does not wait."""
        data = self._rest
        with suppress(BlockingIOError):
            while more := os.read(self._fd, _READ_BYTES):
                data += more
        *lines, self._rest = data.split(b"\n")
        return [line.decode("ascii", errors="replace") for line in lines]

    def close(self) -> None:
        """Whoever still writes is not disturbed by it."""
        os.close(self._fd)


class Outbox:
    """The writing end of the pipe at `path`; does nothing where there is none."""

    def __init__(self, path: Path) -> None:
        self._fd = -1
        with suppress(OSError):
            self._fd = os.open(path, os.O_WRONLY | os.O_NONBLOCK)

    def send(self, line: str) -> None:
        """Send one line of ASCII, or lose it."""
        if self._fd >= 0:
            with suppress(OSError):
                os.write(self._fd, line.encode("ascii", errors="replace")[:_MOST_BYTES] + b"\n")


class StatusLine:
    """A line on a terminal that is written over and over. `clear` leaves the cursor where it began."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._shown = ""

    def show(self, text: str) -> None:
        """Replace the line; what does not fit is cut off, since a line that wraps cannot be overwritten."""
        with suppress(OSError, ValueError):  # a terminal that was closed
            columns = _COLUMNS
            with suppress(OSError, ValueError):
                columns = os.get_terminal_size(self._stream.fileno()).columns or _COLUMNS
            line = "".join(c if c.isprintable() else "?" for c in text)[: columns - 1]
            if line != self._shown:
                self._stream.write(f"\r{line}{' ' * (len(self._shown) - len(line))}")
                self._stream.flush()
                self._shown = line

    def clear(self) -> None:
        """Remove the line, so that what comes next starts on a clean one."""
        if self._shown:
            with suppress(OSError, ValueError):
                self._stream.write(f"\r{' ' * len(self._shown)}\r")
                self._stream.flush()
            self._shown = ""


def on_terminal(stream: TextIO | None = None) -> bool:
    """Whether a line can be shown and overwritten there; by default on stderr."""
    stream = sys.stderr if stream is None else stream
    try:
        return stream.isatty() and os.environ.get("TERM") != "dumb"
    except (AttributeError, ValueError):  # none at all, or closed
        return False


def time_left(seconds: float) -> str:
    """An estimate in words, no more exact than it is."""
    if seconds >= 90:
        return f"about {round(seconds / 60)} min left"
    if seconds >= 10:
        return f"about {5 * round(seconds / 5)} s left"
    return f"about {max(1, round(seconds))} s left"
