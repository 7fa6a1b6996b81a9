"""Every case of the corpus of strange traces against the answers typed in beside it."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from shardscope.attribution.api import attribute_paths
from shardscope.attribution.result import Attribution, StepRow
from shardscope.errors import DamagedTrace, EmptyTrace, RankError
from shardscope.vocabulary import Kind

CORPUS = Path(__file__).parents[1] / "data" / "corpus"
EXPECTED: dict[str, Any] = json.loads((CORPUS / "expected.json").read_text())

# (case, rank label in expected.json, paths under the corpus, rank, salvage)
ROWS: list[tuple[str, str, list[str], int | None, bool]] = [
    ("case_04", "rank0 step 7 only", ["case_04_truncated"], 0, True),
    ("case_05", "rank0", ["case_05_gzip/gzip_bytes_named.json"], 0, False),
    ("case_05", "rank0", ["case_05_gzip/plain_text_named.json.gz"], 0, False),
    ("case_05", "rank0", ["case_05_gzip/two_members.json.gz"], 0, False),
    ("case_06", "rank0", ["case_06_commas/trailing_commas.json"], 0, False),
    ("case_10", "rank0", ["case_10_units/display_ns.json"], 0, False),
    ("case_10", "old integer microseconds", ["case_10_units/old_integer_us.json"], 0, False),
    ("case_11", "rank0", ["case_11_precision/absolute_us_3_decimals.json.gz"], 0, False),
    ("case_11", "rank0", ["case_11_precision/string_ts.json.gz"], 0, False),
    ("case_20", "trace_a.pt.trace.json", ["case_20_no_rank/trace_a.pt.trace.json"], None, False),
    (
        "case_20",
        "gpuhost_4021.1718116821592181759.pt.trace.json",
        ["case_20_no_rank/gpuhost_4021.1718116821592181759.pt.trace.json"],
        None,
        False,
    ),
    *(("case_21", f"a/rank{rank}", ["case_21_same_names/a_distinct_ranks_inside"], rank, False) for rank in (0, 1, 2)),
    ("case_21", "c/cycle0", ["case_21_same_names/c_two_cycles_one_rank"], 0, False),
    ("case_21", "c/cycle1", ["case_21_same_names/c_two_cycles_one_rank"], 0, False),
]
_SPECIAL = {case for case, *_ in ROWS}
for _case, _ranks in EXPECTED.get("attribution", {}).items():
    if _case not in _SPECIAL:
        _path = next(CORPUS.glob(f"{_case}_*")).name
        ROWS += [
            (_case, label, [_path], int(label.removeprefix("rank")), False)
            for label in _ranks
            if label.startswith("rank")
        ]


def attribution(paths: list[str], *, salvage: bool = False) -> Attribution:
    return attribute_paths([CORPUS / path for path in paths], salvage=salvage)


def row_of(result: Attribution, rank: int | None, step: int | None) -> StepRow:
    owner = next(item for item in result.ranks if item.rank == rank)
    return next(row for row in owner.steps if row.step == step)


def test_every_case_with_answers_is_tested() -> None:
    assert {case for case, *_ in ROWS} == set(EXPECTED["attribution"])


@pytest.mark.parametrize(("case", "label", "paths", "rank", "salvage"), ROWS, ids=lambda value: str(value)[:60])
def test_ledger(case: str, label: str, paths: list[str], rank: int | None, salvage: bool) -> None:
    result = attribution(paths, salvage=salvage)
    for step_text, expected in EXPECTED["attribution"][case][label].items():
        row = row_of(result, rank, None if step_text == "None" else int(step_text))
        assert row.total_ns == row.window_ns
        seen: dict[str, Any] = {
            "step_us": row.window_ns / 1000,
            "compute": row.compute_ns / 1000,
            "copies_exposed": row.copies_exposed_ns / 1000,
        }
        busy, exposed = Counter(row.busy_ns), Counter(row.exposed_ns)
        # expected.json books broadcasts under "other"; here they are a kind of their own.
        busy[Kind.OTHER] += busy.pop(Kind.BROADCAST, 0)
        exposed[Kind.OTHER] += exposed.pop(Kind.BROADCAST, 0)
        for kind in Kind:
            if busy[kind]:
                seen[kind.value] = [busy[kind] / 1000, exposed[kind] / 1000]
        pipeline_wait = (row.exposed_wait_ns or {}).get(Kind.SEND_RECEIVE, 0) if row.bubble_ns is not None else 0
        seen["exposed_comm"] = (sum(row.attributed_ns.values()) + pipeline_wait) / 1000
        seen["idle"] = (row.host_other_ns + (row.bubble_ns or 0) - pipeline_wait) / 1000
        wanted = {"copies_exposed": 0, **{key: value for key, value in expected.items() if key != "attributed_ns"}}
        assert seen == wanted
        if "attributed_ns" in expected:
            assert row.attributed_ns == expected["attributed_ns"]


@pytest.mark.parametrize(
    ("path", "error", "words"),
    [
        ("case_04_truncated", DamagedTrace, ["rank0_trace.json", "4916"]),
        ("case_05_gzip/truncated.json.gz", DamagedTrace, ["truncated.json.gz", "597"]),
        ("case_05_gzip/zero_bytes.json.gz", EmptyTrace, ["no timed events"]),
        ("case_06_commas/two_ranks_interleaved.json", DamagedTrace, ["more than one writer"]),
        ("case_08_empty/empty_object.json", EmptyTrace, ["no timed events"]),
        ("case_08_empty/zero_bytes.json", EmptyTrace, ["no timed events"]),
        ("case_08_empty/no_events.json", EmptyTrace, ["no timed events"]),
        ("case_08_empty/metadata_only.json", EmptyTrace, ["no timed events"]),
        ("case_20_no_rank", RankError, ["--rank"]),
        (
            "case_21_same_names/b_both_say_rank_0",
            RankError,
            ["rank 0", "1741988781221064630", "1741988781256638216"],
        ),
    ],
)
def test_refusals_are_one_line(path: str, error: type[Exception], words: list[str]) -> None:
    with pytest.raises(error) as caught:
        attribution([path])
    text = str(caught.value)
    assert "\n" not in text
    for word in words:
        assert word in text


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("case_01_unescaped_backslash.json", "bad_escape"),
        ("case_03_inf_nan.json", "not_a_number"),
        ("case_06_commas/trailing_commas.json", "trailing_comma"),
        ("case_07_non_utf8.json", "bad_bytes"),
        ("case_13_rocm_duration_overflow.json", "duration_overflow"),
        ("case_16_no_profiler_step.json", "no_step_marks"),
    ],
)
def test_one_counted_warning(path: str, code: str) -> None:
    warnings = attribution([path]).ranks[0].warnings
    assert [warning.code for warning in warnings] == [code]
    assert warnings[0].count >= 1


def test_salvage_names_what_is_lost() -> None:
    result = attribution(["case_04_truncated"], salvage=True)
    assert [row.step for row in result.ranks[0].steps] == [7]
    assert any("step 8" in warning.detail for warning in result.ranks[0].warnings)
    assert [Path(skipped.file).name for skipped in result.skipped_files] == ["rank1_trace.json.tmp"]


def test_late_device_work() -> None:
    row = row_of(attribution(["case_18_async_spill.json"]), 0, 1)
    assert row.late_device_ns == EXPECTED["attribution"]["case_18"]["late_device_work_us"] * 1000


def waits(result: Attribution, rank: int, axis: str | None = None) -> list[float]:
    found = [c for c in result.collectives if axis is None or c.axis == axis]
    return [c.wait_ns[str(rank)] / 1000 for c in found if c.wait_ns and str(rank) in c.wait_ns]


def test_missing_rank() -> None:
    expected = EXPECTED["cross_rank"]["case_23"]
    result = attribution(["case_23_missing_rank"])
    assert result.missing_ranks == expected["ranks_missing"]
    assert [item.rank for item in result.ranks] == expected["ranks_present"]
    assert [Path(skipped.file).name for skipped in result.skipped_files] == ["engine.async_llm.pt.trace.json"]
    (collective,) = result.collectives
    assert len(collective.group or ()) == expected["group_size"]
    assert not collective.exact
    assert {rank: waits(result, int(rank))[0] for rank in ("0", "1", "3")} == expected["wait_us_at_least"]
    assert collective.transfer_ns == expected["transfer_us_at_most"] * 1000
    assert all(row.bounds for item in result.ranks for row in item.steps)


def test_clock_skew() -> None:
    expected = EXPECTED["cross_rank"]["case_25"]
    result = attribution(["case_25_clock_skew"])
    assert result.clock.applied
    assert {rank: ns / 1000 for rank, ns in result.clock.offset_ns.items()} == expected["clock_offset_us"]
    assert {rank: waits(result, int(rank)) for rank in ("0", "1")} == expected["wait_us"]
    assert [(c.transfer_ns or 0) / 1000 for c in result.collectives] == expected["transfer_us"]


def test_straggler() -> None:
    expected = EXPECTED["cross_rank"]["case_27"]
    result = attribution(["case_27_straggler"])
    (collective,) = result.collectives
    assert collective.last_rank == expected["straggler"]
    assert collective.exact
    assert {rank: waits(result, int(rank))[0] for rank in ("0", "1", "2", "3")} == expected["wait_us"]
    assert collective.transfer_ns == expected["transfer_us"] * 1000
    rows = [item.steps[0] for item in result.ranks]
    sums = {
        "sum_busy": sum(row.busy_ns[Kind.ALL_REDUCE] for row in rows),
        "sum_wait": sum((row.wait_ns or {}).get(Kind.ALL_REDUCE, 0) for row in rows),
        "sum_transfer": sum((row.transfer_ns or {}).get(Kind.ALL_REDUCE, 0) for row in rows),
    }
    assert sums == {name: expected[name] * 1000 for name in sums}


def test_process_groups_with_reused_names() -> None:
    expected = EXPECTED["cross_rank"]["case_28"]
    result = attribution(["case_28_process_groups"])
    for axis, label in (("tensor", "TP"), ("data", "DP")):
        assert {rank: sum(waits(result, int(rank), axis)) for rank in ("0", "1", "2", "3")} == expected[
            f"wait_us_{label}"
        ]
        busy = {
            str(item.rank): sum(g.busy_ns[Kind.ALL_REDUCE] for g in item.groups if g.axis == axis) / 1000
            for item in result.ranks
        }
        assert busy == expected["per_group_busy"][label]
    for item in result.ranks:
        assert sum(item.steps[0].attributed_by_axis_ns.values()) == item.steps[0].attributed_ns[Kind.ALL_REDUCE]


def test_pipeline_bubble() -> None:
    expected = EXPECTED["cross_rank"]["case_41"]
    result = attribution(["case_41_pipeline_bubble"])
    rows = {str(item.rank): item.steps[0] for item in result.ranks}
    kind = Kind.SEND_RECEIVE
    assert {rank: row.transfer_ns[kind] / 1000 for rank, row in rows.items() if row.transfer_ns} == expected[
        "transfer_us"
    ]
    exposed = {rank: (row.exposed_transfer_ns or {})[kind] / 1000 for rank, row in rows.items()}
    assert exposed == expected["exposed_transfer_us"]
    assert {rank: (row.exposed_wait_ns or {})[kind] / 1000 for rank, row in rows.items()} == expected["p2p_wait_us"]
    assert {rank: (row.bubble_ns or 0) / 1000 for rank, row in rows.items()} == expected["bubble_us"]
    (pipeline,) = result.pipelines
    assert pipeline.micro_batches == 2
    assert pipeline.measured_fraction == pytest.approx(295 / 930)
    assert pipeline.closed_form_fraction == pytest.approx(1 / 3)


def test_merge_collisions_stay_apart() -> None:
    """Two ranks with equal process, correlation and flow ids."""
    result = attribution(["case_45_merge_collisions"])
    assert [rank.rank for rank in result.ranks] == [0, 1]
    assert all(rank.warnings == [] for rank in result.ranks)


SHARED = Path(__file__).parents[3] / "shared" / "corpus"


@pytest.mark.shared
@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared corpus is not beside this checkout")
def test_the_copy_is_the_whole_corpus() -> None:
    def contents(folder: Path) -> dict[str, bytes]:
        files = [path for path in folder.rglob("*") if path.is_file() and path.name not in ("README.md", "gen_big.py")]
        return {str(path.relative_to(folder)): path.read_bytes() for path in files}

    assert contents(CORPUS) == contents(SHARED)
