"""Outputs appear whole or not at all: they are made under a hidden name beside their place, then renamed.

The hidden name says who makes them, so that the next run of the same output can clear away what a killed one left and
leave alone what another is still making.
"""

import os
import shutil
import socket
import tempfile
from contextlib import suppress
from pathlib import Path

__all__ = ["clear_dead", "new_folder", "prefix", "put_in_place", "recover"]


def prefix(output: Path) -> str:
    """How the names of this process's temporary files and folders beside `output` begin."""
    return f"{_of_this_host(output)}{os.getpid()}."


def new_folder(output: Path) -> Path:
    """A new folder beside `output`, the caller's to remove. Clears what dead runs left there. Raises OSError."""
    output.parent.mkdir(parents=True, exist_ok=True)
    recover(output)
    return Path(tempfile.mkdtemp(prefix=prefix(output), dir=output.parent.resolve()))


def put_in_place(new: Path, output: Path) -> None:
    """Make the folder `new` the folder `output`, replacing what was there. Raises OSError, with `output` as it was."""
    old = _earlier(output)
    if output.exists():
        output.rename(old)  # a rename cannot replace a folder that has something in it
    try:
        new.rename(output)
    except OSError:
        if old.exists():
            old.rename(output)
        raise
    shutil.rmtree(old, ignore_errors=True)


def recover(output: Path) -> None:
    """Undo what a process killed between the two renames, or before its clean-up, has left behind. Raises OSError."""
    old = _earlier(output)
    if old.exists() and not output.exists():
        old.rename(output)
    elif old.exists():
        shutil.rmtree(old, ignore_errors=True)
    clear_dead(output)


def clear_dead(output: Path) -> None:
    """Remove the temporary files and folders of `output` whose process is gone; those of other hosts stay."""
    start = _of_this_host(output)
    with suppress(OSError):
        for entry in list(output.parent.iterdir()):
            pid = entry.name.removeprefix(start).split(".")[0]
            # A number that belongs to another process by now keeps its leftovers until that one has ended too.
            if not entry.name.startswith(start) or not pid.isdecimal() or _alive(int(pid)):
                continue
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry, ignore_errors=True)
            else:
                entry.unlink(missing_ok=True)


def _earlier(output: Path) -> Path:
    return output.with_name(f".{output.name}.earlier")


def _of_this_host(output: Path) -> str:
    return f".{output.name}.{socket.gethostname()}."


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        return True  # somebody else's
    return True
