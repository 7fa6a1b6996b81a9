"""A result appears whole or not at all: work beside it, swap at the end, keep the earlier one if a rerun fails."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from shardscope import beside
from shardscope.errors import MeasurementError, ResultError, cannot_write
from shardscope.measure.record import RUN_FILE, RunRecord, load_run

__all__ = ["earlier_result", "kept_files", "publish", "working_folder"]


@contextmanager
def working_folder(output: Path) -> Iterator[Path]:
    """A new hidden folder beside `output`, gone afterwards. Clears what a killed run left there before."""
    try:
        folder = beside.new_folder(output)
    except OSError as error:
        raise MeasurementError(cannot_write(output.parent, error)) from error
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def publish(record: RunRecord, files: dict[str, Path], output: Path, work: Path) -> None:
    """Make `output` a folder of `files` (name → where it lies now) and `record`, replacing what was there.

    Raises MeasurementError when that cannot be done; `output` is then as it was.
    """
    if output.exists() and not output.is_dir():
        raise MeasurementError(f"{output}: is a file, a folder is to be written there; remove it")
    try:
        new = work / "new"
        new.mkdir()
        for name, source in files.items():
            try:
                os.link(source, new / name)
            except OSError:
                shutil.copyfile(source, new / name)
        part = new / f"{RUN_FILE}.part"
        with part.open("wb") as stream:
            stream.write(msgspec.json.format(msgspec.json.encode(record), indent=1))
            stream.flush()
            os.fsync(stream.fileno())
        part.replace(new / RUN_FILE)
        new.chmod(0o755)
        beside.put_in_place(new, output)
    except OSError as error:
        raise MeasurementError(cannot_write(output, error)) from error


def earlier_result(output: Path) -> RunRecord | None:
    """The record of the result that is there now, None if there is none that this version can read."""
    beside.recover(output)
    try:
        return load_run(output)
    except ResultError:
        return None


def kept_files(record: RunRecord, output: Path) -> dict[str, Path]:
    """Trace files of the result in `output`; empty if one is missing, for then it is no result any more."""
    files = {trace.file: output / Path(trace.file).name for trace in record.traces}
    return files if all(path.is_file() for path in files.values()) else {}
