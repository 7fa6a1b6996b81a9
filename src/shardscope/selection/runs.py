"""Finished runs, each checked to be what its folder says."""

from pathlib import Path

from shardscope.errors import ResultError
from shardscope.measure.record import RunRecord, load_run

__all__ = ["run_of"]


def run_of(folder: Path, workload: str, name: str) -> RunRecord:
    """The run in `folder`. Raises ResultError when it is none, or one of another workload or strategy."""
    record = load_run(folder)
    if record.workload.name != workload or record.strategy.name != name:
        found = f"{record.workload.name}/{record.strategy.name}"
        raise ResultError(f"{folder}: holds {found}, not {workload}/{name}; remove the folder and measure it again")
    return record
