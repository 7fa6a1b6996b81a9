"""The process that trace.parallel starts: reads the files it is told on stdin, writes what it found to stdout."""

import pickle
import sys
from pathlib import Path

from shardscope.errors import ShardscopeError
from shardscope.trace.read import read_timeline

__all__ = ["main"]


def main() -> None:
    """Answer one pickled (paths, salvage) with one pickled timeline or error per file."""
    paths, salvage = pickle.load(sys.stdin.buffer)
    for path in paths:
        answer: object
        try:
            answer = read_timeline(Path(path), salvage=salvage)
        except ShardscopeError as error:
            answer = error
        except Exception as error:  # a defect: the caller reports it as its own
            answer = RuntimeError(f"{type(error).__name__}: {error}, reading {path}")
        pickle.dump(answer, sys.stdout.buffer, protocol=pickle.HIGHEST_PROTOCOL)
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
