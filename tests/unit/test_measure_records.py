"""The documents that stages hand to each other: one line for each way that one cannot be read."""

import errno
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from shardscope.attribution.result import Clock, load_attribution
from shardscope.errors import ResultError
from shardscope.measure.record import RUN_FILE, load_run
from shardscope.records import save_record
from shardscope.selection import decision

RUN = '{"schema": 1, "status": "ok", "reason": null, "started_at": "", "finished_at": "", "baseline": "ddp", \
"workload": {"name": "w", "layers": 2, "hidden": 8, "heads": 2, "sequence_length": 8, "global_batch": 4, \
"micro_batches": 2}, "strategy": {"name": "ddp", "display_name": "DDP", "shards": [], "parameters": %s}}'
OTHER = RUN.replace('"schema": 1', '"schema": 9') % "{}"
DEEP = RUN % ('{"a":' * 100_000 + "1" + "}" * 100_000)


def run_folder(path: Path) -> object:
    return load_run(path.parent)


@pytest.mark.parametrize(
    ("load", "text", "message"),
    [
        (run_folder, None, "{folder}: not a finished run, run.json is missing (No such file or directory); measure it"),
        (run_folder, "{", "{path}: not a run record of this version (Input data was truncated); measure it again"),
        (run_folder, OTHER, "{path}: schema 9, expected 1; measure it again"),
        (run_folder, DEEP, "{path}: not a run record of this version ("),
        (load_attribution, None, "{path}: cannot be read (No such file or directory); attribute the run again"),
        (load_attribution, "[]", "{path}: not an attribution of this version (Expected `object`, got `array`); attri"),
        (decision.load, None, "{path}: cannot be read (No such file or directory); run the workflow again"),
        (decision.load, b"\xff", "{path}: not a decision of this version ("),
    ],
)  # fmt: skip
def test_messages(load: Callable[[Path], object], text: str | bytes | None, message: str, tmp_path: Path) -> None:
    path = tmp_path / RUN_FILE
    if text is not None:
        path.write_bytes(text.encode() if isinstance(text, str) else text)
    with pytest.raises(ResultError) as caught:
        load(path)
    assert str(caught.value).startswith(message.format(path=path, folder=tmp_path)[:480])


def test_a_record_is_saved_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "new" / "clock.json"
    save_record(Clock(applied=True, offset_ns={"0": 1}, residual_ns=None), path)
    before = path.read_bytes()
    assert msgspec.json.decode(before, type=Clock).offset_ns == {"0": 1}

    def full(self: Path, target: Path) -> Path:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(ResultError, match=r"clock\.json: cannot be written, the disk is full"):
        save_record(Clock(applied=False, offset_ns={}, residual_ns=None), path)
    assert path.read_bytes() == before and [entry.name for entry in path.parent.iterdir()] == ["clock.json"]


def test_a_decision_that_cannot_be_saved(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ResultError, match=r"file/decision\.json: cannot be written"):
        decision.save(None, tmp_path / "file" / "decision.json")  # type: ignore[arg-type]
