"""The check raises on every kind of defect, and on nothing else."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from selection_runs import Fake, write

from shardscope.errors import ResultError
from shardscope.selection.check import check
from shardscope.vocabulary import Axis, Kind, Status

FAKE = Fake("ddp", parts={Kind.ALL_REDUCE: (Axis.DATA, 6.0, 3.0, 4.0)})
Json = dict[str, Any]


def _run(tmp_path: Path, fake: Fake = FAKE) -> tuple[Path, Path]:
    return write(tmp_path, [fake])[fake.name]


def _edit(path: Path, change: Callable[[Json], None]) -> None:
    content = msgspec.json.decode(path.read_bytes())
    change(content)
    path.write_bytes(msgspec.json.encode(content))


def test_a_sound_run_passes(tmp_path: Path) -> None:
    check(*_run(tmp_path))
    check(*_run(tmp_path, Fake("single", "single process", ())))


@pytest.mark.parametrize("status", [Status.FAILED, Status.NOT_APPLICABLE, Status.OUT_OF_MEMORY])
def test_other_statuses_need_a_reason_only(tmp_path: Path, status: Status) -> None:
    check(*_run(tmp_path, Fake("ddp", status=status, reason="because")))
    with pytest.raises(ResultError, match="without a reason"):
        check(*_run(tmp_path, Fake("ddp", status=status, reason=" ")))


def _set(key: str, value: object) -> Callable[[Json], None]:
    return lambda content: content.__setitem__(key, value)


def _in(*path: Any, value: object) -> Callable[[Json], None]:
    def change(content: Json) -> None:
        found: Any = content
        for part in path[:-1]:
            found = found[part]
        found[path[-1]] = value

    return change


RUN_DEFECTS = [
    (_set("parity", None), "parity is missing"),
    (_in("parity", "passed", value=False), "parity says failed"),
    (_in("parity", "gradient_error", value=0.5), "parity says passed"),
    (_in("parity", "loss_steps", value=0), "parity was measured over 0 steps"),
    (_set("plan", None), "the plan is missing"),
    (_set("environment", None), "the environment is missing"),
    (_set("timing", None), "step times are missing"),
    (_in("timing", "triples", 3, value=[1, 0, 1]), "not positive"),
    (_in("timing", "tokens_per_step", value=0), "is not one of this workload"),
    (_in("timing", "flops_per_step", value=-1), "is not one of this workload"),
    (_in("timing", "matmul_peak_flops_per_s", value=0.0), "matmul peak is 0.0"),
    (_in("latency", "candidate_ns", 0, value=-5), "a time is not positive"),
    (_in("memory", 1, "peak_bytes", value=1), "memory of rank 1 adds up to"),
    (_in("memory", 0, "optimizer_bytes", value=-1), "memory of rank 0 has a negative size"),
    (_in("parity", "loss_error", value=-1.0), "parity has a negative error"),
    (lambda content: content["losses"].pop(), "there are 15 losses, and 16 of the reference"),
    (lambda content: content["traces"].append(content["traces"][0]), "two traces claim one rank"),
    (_set("latency", None), "request latencies are missing"),
    (_set("losses", []), "losses are missing"),
    (_set("memory", []), "memory of rank 0 is missing"),
    (lambda content: content["traces"].pop(), "trace of rank 1 is missing"),
    (_in("traces", 0, "file", value="../../../etc/passwd"), "not a file of this folder"),
    (_in("traces", 0, "bytes", value=10), "has 9 bytes, 10 were written"),
]


@pytest.mark.parametrize(("change", "message"), RUN_DEFECTS, ids=[message for _, message in RUN_DEFECTS])
def test_defective_runs(tmp_path: Path, change: Callable[[Json], None], message: str) -> None:
    run, attribution = _run(tmp_path)
    _edit(run / "run.json", change)
    with pytest.raises(ResultError, match=message):
        check(run, attribution)


MATCHED = {
    "step": 2,
    "kind": "all_reduce",
    "axis": "data",
    "group": [0, 1],
    "matched_by": "order",
    "bytes": 1,
    "arrival_ns": {"0": 1, "1": 2},
    "wait_ns": None,
    "exposed_wait_ns": None,
    "transfer_ns": 1,
    "last_rank": 1,
    "exact": True,
}
ROW = ("ranks", 1, "steps", 2)
ATTRIBUTION_DEFECTS = [
    (_in(*ROW, "host_other_ns", value=0), "the parts add up to"),
    (_in(*ROW, "compute_ns", value=84_084_001), "rank 1 step 3: the parts add up to"),
    (_in(*ROW, "copies_exposed_ns", value=-1), "a part is negative"),
    (_in(*ROW, "attributed_by_axis_ns", value={}), "the axes add up to 0"),
    (_in(*ROW, "attributed_by_kind_axis_ns", "all_reduce", "data", value=1), "by axis adds up to 1"),
    (_in(*ROW, "overlapped_ns", value={}), "busy"),
    (_in(*ROW, "attributed_wait_ns", "all_reduce", value=10**12), "waits"),
    (_in(*ROW, "window_ns", value=0), "the window is 0"),
    (_set("missing_ranks", [1]), "ranks 1 are missing"),
    (_set("skipped_files", [{"file": "x.json", "reason": "cut"}]), "x.json was skipped: cut"),
    (lambda content: content["ranks"].pop(), "rank 1 was not attributed"),
    (_set("summary_step", 9), "lacks the summary step 9"),
    (_set("summary_step", None), "lacks the summary step None"),
    (lambda content: content["ranks"].append(content["ranks"][0]), "a rank was attributed twice"),
    (lambda content: content["ranks"][0]["steps"].append(content["ranks"][0]["steps"][0]), "rank 0 has a step twice"),
    (_set("collectives", [{**MATCHED, "arrival_ns": {"x|": 1}}]), r"names rank 'x\|', which was not attributed"),
    (_set("collectives", [{**MATCHED, "last_rank": 99}]), "names rank '99'"),
    (_set("schema", 99), "schema 99, expected"),
]


@pytest.mark.parametrize(
    ("change", "message"), ATTRIBUTION_DEFECTS, ids=[message for _, message in ATTRIBUTION_DEFECTS]
)
def test_ledgers_that_do_not_add_up(tmp_path: Path, change: Callable[[Json], None], message: str) -> None:
    run, attribution = _run(tmp_path)
    _edit(attribution / "attribution.json", change)
    with pytest.raises(ResultError, match=message):
        check(run, attribution)


@pytest.mark.parametrize("missing", ["run.json", "rank1.json.gz", "attribution.json", "ledger.csv", "intervals.csv"])
def test_missing_files(tmp_path: Path, missing: str) -> None:
    run, attribution = _run(tmp_path)
    (run / missing if (run / missing).exists() else attribution / missing).unlink()
    with pytest.raises(ResultError, match=missing.split(".")[0]):
        check(run, attribution)


def test_a_trace_that_is_a_link_is_not_a_trace(tmp_path: Path) -> None:
    run, attribution = _run(tmp_path)
    (run / "rank0.json.gz").rename(tmp_path / "elsewhere")
    (run / "rank0.json.gz").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ResultError, match="rank 0 is missing"):
        check(run, attribution)


def test_the_error_says_the_command_that_mends_it(tmp_path: Path) -> None:
    run, attribution = _run(tmp_path)
    (run / "rank1.json.gz").unlink()
    with pytest.raises(ResultError, match=r"snakemake --cores 4 --force .*ddp$"):
        check(run, attribution)


def test_many_defects_are_one_line(tmp_path: Path) -> None:
    run, attribution = _run(tmp_path)
    for key in ("parity", "plan", "environment", "timing", "latency"):
        _edit(run / "run.json", _set(key, None))
    _edit(run / "run.json", _set("losses", []))
    with pytest.raises(ResultError, match="more") as caught:
        check(run, attribution)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        ("ledger.csv", "0,1,99900000,", "0,1,99900001,", "ledger.csv, rank 0 step 1: 99900000 ns of 99900001 ns"),
        ("ledger.csv", "window_ns", "window", "malformed"),
        ("ledger.csv", "0,1,99900000,", "0,1,x,", "malformed"),
        ("ledger.csv", "rank", "\x00", "cannot be read|malformed"),
        ("intervals.csv", "1,host_other,", "0,host_other,", "intervals.csv, rank 0: 1"),
        ("intervals.csv", "end_ns", "end", "malformed"),
    ],
)
def test_tables_that_contradict_the_ledger(tmp_path: Path, file: str, old: str, new: str, message: str) -> None:
    run, attribution = _run(tmp_path)
    path = attribution / file
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(ResultError, match=message):
        check(run, attribution)


def test_a_cut_ledger_table(tmp_path: Path) -> None:
    run, attribution = _run(tmp_path)
    path = attribution / "ledger.csv"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))
    with pytest.raises(ResultError, match="5 rows, the attribution 6"):
        check(run, attribution)
