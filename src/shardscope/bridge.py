"""What every workflow script shares: the log, and errors as one line instead of a traceback."""

import os
import signal
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import NoReturn

from shardscope.errors import ShardscopeError
from shardscope.measure.lifetime import end_with_parent

__all__ = ["reporting_to"]


@contextmanager
def reporting_to(log: str | Path) -> Iterator[None]:
    """Run one job of the workflow; on an error say it in one line, on the console and in `log`, and exit.

    Status 2: something a user can mend, a ShardscopeError or a file system or memory that gave out. Status 1: a
    defect. The traceback of all but a ShardscopeError goes to `log`.
    """
    path = Path(log)
    # A scheduler that was killed must not leave a job behind that goes on measuring, beside the next run's.
    end_with_parent(os.getppid(), signal.SIGTERM)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _stop)  # as an exception, so that temporary folders are cleared away
    try:
        yield
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    except ShardscopeError as error:
        _leave(path, 2, f"error: {error}")
    except OSError as error:
        where = f"{error.filename}: " if error.filename is not None else ""
        reason = error.strerror or type(error).__name__
        told = ShardscopeError(
            f"{where}{reason}; is the disk full, or may this place not be written? Details in {path}"
        )
        _leave(path, 2, f"error: {told}", details=True)
    except KeyboardInterrupt:
        _leave(path, 130, "stopped: interrupted; earlier results are as they were, run the same command to go on")
    except MemoryError as error:
        told = ShardscopeError(f"this process ran out of memory ({error}); free some, or make the workload smaller")
        _leave(path, 2, f"error: {told}", details=True)
    except Exception as error:
        told = ShardscopeError(f"{type(error).__name__}: {error} (details in {path})")
        _leave(path, 1, f"defect: {told}", details=True)


def _stop(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def _leave(path: Path, status: int, line: str, *, details: bool = False) -> NoReturn:
    """Say `line` and exit. The log may be what cannot be written: the console gets the line in any case."""
    print(line, file=sys.stderr)
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as out:
            print(line, file=out)
            if details:
                traceback.print_exc(file=out)
    sys.exit(status)
