"""What every workflow script shares: the log, and errors as one line instead of a traceback."""

import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from shardscope.errors import ShardscopeError

__all__ = ["reporting_to"]


@contextmanager
def reporting_to(log: str | Path) -> Iterator[None]:
    """Run one job of the workflow; on an error say it in one line, on the console and in `log`, and exit.

    Status 2: a ShardscopeError, something a user can mend. Status 1: a defect, whose traceback goes to `log`.
    """
    path = Path(log)
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        yield
    except ShardscopeError as error:
        _say(path, f"error: {error}")
        sys.exit(2)
    except Exception as error:
        _say(path, f"defect: {type(error).__name__}: {error} (details in {path})")
        with path.open("a", encoding="utf-8") as out:
            traceback.print_exc(file=out)
        sys.exit(1)
    path.touch()


def _say(path: Path, line: str) -> None:
    print(line, file=sys.stderr)
    with path.open("a", encoding="utf-8") as out:
        print(line, file=out)
