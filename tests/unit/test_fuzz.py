"""A thousand mutated traces: no traceback, no hang, no ledger that is negative or does not add up."""

from pathlib import Path

import pytest
from tests.fuzz import check, run_cases
from tests.unit.fuzz_seeds import write_seeds

BATCH = 250


@pytest.mark.timeout(400)
@pytest.mark.parametrize("first", range(0, 1000, BATCH))
def test_mutated_traces(first: int) -> None:
    outcomes = run_cases(range(first, first + BATCH))
    assert [outcome for outcome in outcomes if outcome.fault is not None] == []
    # Both ends are reached: mutations that refuse everything, or change nothing, would prove little.
    statuses = [outcome.status for outcome in outcomes]
    assert min(statuses.count(0), statuses.count(2)) > BATCH / 10


def test_the_traces_it_starts_from_are_sound(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from shardscope import cli

    for folder in write_seeds(tmp_path):
        status = cli.main(["attribute", str(folder), "--format", "json"])
        captured = capsys.readouterr()
        assert check(status, captured.out, captured.err, "json") is None, folder.name
        assert status == 0, (folder.name, captured.err)


@pytest.mark.parametrize(
    ("status", "out", "err", "words"),
    [
        (1, "", "defect: x\n", "status 1"),
        (0, "text", "warning\n", "status 0"),
        (2, "", "error: a\nb\n", "one line"),
        (2, "half a table", "error: a\n", "nothing on stdout"),
    ],
)
def test_the_check_sees_what_it_is_for(status: int, out: str, err: str, words: str) -> None:
    assert words in str(check(status, out, err, "table"))


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [("host_other_ns", 7, "parts"), ("host_other_ns", -5, "host_other_ns is -5"), ("late_device_ns", -1, "is -1")],
)
def test_the_check_sees_a_wrong_ledger(field: str, value: int, words: str) -> None:
    import json

    row = {
        "step": 1, "start_ns": -9, "window_ns": 10, "compute_ns": 4, "copies_exposed_ns": 0, "host_other_ns": 1,
        "bubble_ns": None, "late_device_ns": 0, "attributed_ns": {"all_reduce": 5}, "busy_ns": {"all_reduce": 5},
        "exposed_ns": {"all_reduce": 5}, "overlapped_ns": {}, "attributed_by_axis_ns": {"data": 5},
    }  # fmt: skip

    def answer(rows: dict[str, object]) -> str | None:
        ranks = [{"steps": [rows], "evidence_fraction": {"op": 1.0}}]
        return check(0, json.dumps({"ranks": ranks, "collectives": []}), "", "json")

    assert answer(row) is None
    assert words in str(answer({**row, field: value}))
