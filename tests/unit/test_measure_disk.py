"""A full disk is named with the path, whoever finds it; what a dead run left is cleared, and nothing else."""

import errno
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import isal.igzip
import pytest
from handmade import HandMade

from shardscope import beside
from shardscope.attribution.api import attribute_paths
from shardscope.attribution.tables import write_tables
from shardscope.errors import MeasurementError, ResultError, cannot_write
from shardscope.measure import process
from shardscope.measure.disk import Room, export, full_disk, writing

FULL = Path("/dev/full")  # every write to it fails as on a full disk
needs_full = pytest.mark.skipif(not FULL.exists(), reason="the system has no /dev/full")


def test_the_message_says_what_why_and_what_to_do() -> None:
    full = cannot_write("traces/x", OSError(errno.ENOSPC, "No space left on device"))
    assert full == "traces/x: cannot be written, the disk is full; free some space there and run the same command again"
    assert "quota" in cannot_write("x", OSError(errno.EDQUOT, "Disk quota exceeded"))
    assert "(Permission denied); make that possible" in cannot_write("x", OSError(errno.EACCES, "Permission denied"))


@needs_full
def test_a_write_to_an_open_file_that_fails_is_named(tmp_path: Path) -> None:
    trace = tmp_path / "rank0.json.gz"
    trace.symlink_to(FULL)
    said = pytest.raises(MeasurementError, match=r"rank0\.json\.gz: cannot be written, the disk is full")
    with said, writing(trace), isal.igzip.open(trace, "wb") as stream:
        stream.write(os.urandom(1 << 20))


@needs_full
def test_a_profiler_that_wrote_nothing_is_asked_why(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    export(lambda name: Path(name).touch(), path)
    path.unlink()
    with pytest.raises(MeasurementError, match=r"trace\.json: the profiler wrote no trace; see the log"):
        export(lambda name: None, path)
    assert full_disk(tmp_path) is None
    assert list(tmp_path.iterdir()) == []
    # Linux follows a link that another file hides behind: the probe is written to where nothing fits.
    for name in ("trace.json.probe", "probe.probe"):
        (tmp_path / name).symlink_to(FULL)
    with pytest.raises(MeasurementError, match=r"trace\.json: cannot be written, the disk is full"):
        export(lambda name: None, path)
    said = full_disk(tmp_path)
    assert said is not None
    assert said.startswith(f"{tmp_path}: cannot be written, the disk is full")


def test_room_kept_for_an_error_holds_it(tmp_path: Path) -> None:
    room = Room(tmp_path / "room")
    size = (tmp_path / "room").stat().st_size
    room.become(tmp_path / "error.json", b'{"a": 1}')
    assert [path.name for path in tmp_path.iterdir()] == ["error.json"]
    assert (tmp_path / "error.json").stat().st_size == size, "written in place, it needs no new block"
    assert (tmp_path / "error.json").read_bytes().rstrip() == b'{"a": 1}'


def test_counts_of_rounds_do_not_crowd_out_the_last_log_lines(tmp_path: Path) -> None:
    log = tmp_path / "log"
    counts = [f"[shardscope]  {i:5.1f} s  timing: {i} of 300" for i in range(60)]
    log.write_text("\n".join(["of an earlier launch", "useful", *counts, "RuntimeError: 1 of 2", ""]))
    assert process._tail(log, len("of an earlier launch\n")) == ("useful", counts[-1], "RuntimeError: 1 of 2")


def test_leftovers_of_dead_processes_go_and_others_stay(tmp_path: Path) -> None:
    output = tmp_path / "zero3"
    mine = beside.new_folder(output)
    assert mine.name.startswith(beside.prefix(output))
    dead = beside.prefix(output).replace(f".{os.getpid()}.", ".999999999.")
    (tmp_path / f"{dead}folder").mkdir()
    (tmp_path / f"{dead}folder" / "inside").touch()
    (tmp_path / f"{dead}file").touch()
    (tmp_path / f"{dead}link").symlink_to(mine)
    others = [".zero3.elsewhere.999999999.x", ".zero3.x", f"{dead[1:]}x", dead.replace("zero3", "zero3.b") + "x"]
    for name in others:
        (tmp_path / name).mkdir()
    beside.clear_dead(output)
    assert {path.name for path in tmp_path.iterdir()} == {mine.name, *others}
    beside.clear_dead(tmp_path / "absent" / "zero3")


def test_a_swap_that_fails_leaves_the_earlier_result(tmp_path: Path) -> None:
    output, new = tmp_path / "out", tmp_path / "new"
    output.mkdir()
    (output / "earlier").touch()
    with pytest.raises(OSError):
        beside.put_in_place(new, output)
    assert [path.name for path in tmp_path.rglob("*")] == ["out", "earlier"]
    output.rename(tmp_path / ".out.earlier")  # as a process killed between the renames leaves it
    beside.recover(output)
    assert [path.name for path in tmp_path.rglob("*")] == ["out", "earlier"]


def test_tables_that_cannot_be_written_leave_nothing_and_say_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = HandMade(0).step(1, 0, 60).op("aten::mm", 0, 10).write(tmp_path / "rank0.json")
    result = attribute_paths([trace])
    with pytest.raises(ResultError, match=r"rank0\.json/tables: cannot be written .*choose another place"):
        write_tables(result, trace / "tables")
    folder = tmp_path / "data" / "tables"
    left = folder.with_name(beside.prefix(folder).replace(f".{os.getpid()}.", ".999999999.") + "x")
    left.mkdir(parents=True)

    def full(*_: Any, **__: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", full)
        with pytest.raises(ResultError, match=r"data/tables: cannot be written, the disk is full; free some space"):
            write_tables(result, folder)
    assert list(folder.parent.iterdir()) == []
    write_tables(result, folder)
    assert [path.name for path in folder.parent.iterdir()] == ["tables"]


ON_A_SMALL_DISK = """
import sys
from pathlib import Path
import numpy as np
import test_measure_launch as t
from shardscope.measure.reference import Reference, save_reference
place, small = Path(sys.argv[1]), Path(sys.argv[2])
wrong = Reference(spec=t.SPEC, gradients={"none": np.zeros(1)}, losses=(1.0,) * t.SETTINGS.loss_steps)
save_reference(place / "reference.npz", wrong)  # nobody asks for parity here
record = t.run(place, "pipeline_1f1b", output=small / "run")
print(record.status, record.reason)
print(sorted(path.name for path in small.rglob("*")))
"""


@pytest.mark.slow
def test_ranks_say_that_the_disk_is_full_and_the_record_still_fits(tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    mount = 'mount -t tmpfs -o size=200k tmpfs "$1" && shift && exec "$@"'
    inside = ["unshare", "-rm", "sh", "-c", mount, "sh", str(small)]
    if subprocess.run([*inside, "true"], capture_output=True).returncode != 0:
        pytest.skip("no file system can be mounted here without being root")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    command = [*inside, sys.executable, "-c", ON_A_SMALL_DISK, str(tmp_path), str(small)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    reason, files = done.stdout.splitlines()
    assert reason.startswith("failed rank ") and " failed during profile: " in reason
    assert f"{small}/.run." in reason and "trace.json: cannot be written, the disk is full; free some" in reason
    assert files == "['run', 'run.json']"
