"""Two real runs that communicate more than planned: the audit names what is to blame."""

import sys
from pathlib import Path

import pytest
from bare_strategies import measured

from shardscope.attribution.api import attribute_run
from shardscope.measure.record import RunRecord
from shardscope.measure.settings import MeasureSettings
from shardscope.selection.audit import audit, volumes
from shardscope.selection.audit_blame import blamed
from shardscope.selection.claims import AuditRow
from shardscope.selection.volumes import wire_check
from shardscope.vocabulary import Kind
from shardscope.workload.spec import WorkloadSpec

pytestmark = pytest.mark.slow

SPEC = WorkloadSpec(name="audit", layers=4, hidden=64, heads=4, sequence_length=32, global_batch=8, micro_batches=2)
SETTINGS = MeasureSettings(
    world_size=2, triples=3, warmup_steps=1, requests=3, loss_steps=4, profiled_steps=3, timeout_s=120
)
HIDDEN = 4 * 32 * 64 * 4  # one micro-batch's activation


def run(name: str, folder: Path) -> tuple[RunRecord, tuple[AuditRow, ...]]:
    record = measured(f"audit_strategies:{name}", folder, SPEC, SETTINGS)
    assert record.plan is not None
    result = attribute_run(folder / name)
    rows = blamed(audit(record.plan.collectives, result), record, result.summary_step)
    check = wire_check(record, volumes(result, "gloo"))
    if sys.platform == "linux":
        assert check is not None and check.expected_bytes > 0 and check.counted_bytes > check.expected_bytes * 0.9
    return record, rows


def test_separate_inputs_of_query_key_and_value_are_named(tmp_path: Path) -> None:
    record, rows = run("SEPARATE_INPUTS", tmp_path)
    assert record.parity is not None
    (row,) = (row for row in rows if not row.agrees)
    layers, m = SPEC.layers, SPEC.micro_batches
    assert row.kind is Kind.ALL_REDUCE
    assert row.seen_count[0] - row.expected_count[0] == 2 * layers * m, "6 per layer and micro-batch instead of 4"
    (suspect,) = row.suspects
    assert (suspect.cause, suspect.each_bytes, suspect.phase) == ("shared_input", HIDDEN, "backward")
    assert (suspect.per, suspect.per_count) == ("layer and micro-batch", 2)
    assert "blocks.0.attention.query" in suspect.parameters and "blocks.3.attention.value" in suspect.parameters


def test_partial_norm_gradients_are_named(tmp_path: Path) -> None:
    _, rows = run("PARTIAL_NORMS", tmp_path)
    (row,) = (row for row in rows if not row.agrees)
    norms = 2 * (2 * SPEC.layers + 1)
    assert row.kind is Kind.ALL_REDUCE and row.expected_count == (1, 1) and row.seen_count == (3 * norms,) * 2
    (suspect,) = row.suspects
    assert (suspect.cause, suspect.count, suspect.times, suspect.each_bytes) == ("split", 54, 3, 4 * SPEC.hidden)
    assert suspect.exact and suspect.phase == "after backward"
    assert len(suspect.parameters) == norms and all("norm" in name for name in suspect.parameters)
