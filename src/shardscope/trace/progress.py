"""How much of the trace files has been read, for somebody who waits at a terminal.

`shown` opens a pipe and puts its path into the environment, so that the processes of trace.parallel, which inherit it,
tell the same place. Where nobody watches, `expect` and `advance` cost one look-up in the environment.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path

from shardscope.progress import Inbox, Outbox, StatusLine, on_terminal

__all__ = ["advance", "expect", "shown"]

_VARIABLE = "SHARDSCOPE_READ_PROGRESS"
_LEAST_BYTES = 20_000_000  # read in a second or two
_LOOK_S = 0.25


@contextmanager
def shown() -> Iterator[None]:
    """While the block runs, say on stderr how far its reading is; only on a terminal, and not of little."""
    if not on_terminal():
        yield
        return
    import tempfile  # only who watches waits for them to load
    import threading

    with tempfile.TemporaryDirectory(prefix="shardscope-", ignore_cleanup_errors=True) as folder:
        path = Path(folder) / "progress"
        try:
            inbox = Inbox(path)
        except OSError:  # a file system without pipes
            yield
            return
        line, ended = StatusLine(), threading.Event()
        watcher = threading.Thread(target=_watch, args=(inbox, line, ended.wait), daemon=True)
        os.environ[_VARIABLE] = str(path)
        watcher.start()
        try:
            yield
        finally:
            os.environ.pop(_VARIABLE, None)
            ended.set()
            watcher.join()
            inbox.close()
            line.clear()


def expect(paths: Sequence[Path]) -> None:
    """These files will be read."""
    outbox = _outbox(os.environ.get(_VARIABLE))
    if outbox is not None:
        for path in paths:
            with suppress(OSError):
                outbox.send(f"expect {path.stat().st_size}")


def advance(count: int) -> None:
    """So many more bytes of a file have been read."""
    outbox = _outbox(os.environ.get(_VARIABLE))
    if outbox is not None:
        outbox.send(f"read {count}")


@lru_cache(maxsize=1)
def _outbox(path: str | None) -> Outbox | None:
    return None if path is None else Outbox(Path(path))


def _watch(inbox: Inbox, line: StatusLine, ended: Callable[[float], bool]) -> None:
    files, expected, read = 0, 0, 0
    while not ended(_LOOK_S):
        for message in inbox.take():
            what, _, number = message.partition(" ")
            if what == "expect":
                files, expected = files + 1, expected + int(number)
            else:
                read += int(number)
        if read and expected > _LEAST_BYTES:
            line.show(_text(files, expected, read))


def _text(files: int, expected: int, read: int) -> str:
    if read >= expected:
        return f"{expected / 1e6:.0f} MB read, analysing"
    names = "1 trace file" if files == 1 else f"{files} trace files"
    return f"reading {names}: {read / 1e6:.0f} of {expected / 1e6:.0f} MB ({100 * read // expected} %)"
