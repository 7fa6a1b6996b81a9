"""A strategy with wrong gradients, measured for real: disqualified with the number, and the safe way named."""

import os
from pathlib import Path

import pytest
from negative_control import ZBV_DDP

from shardscope import strategies
from shardscope.attribution.api import attribute_run
from shardscope.attribution.tables import write_tables
from shardscope.measure.launch import make_reference, run_strategy
from shardscope.measure.settings import MeasureSettings
from shardscope.report.api import render
from shardscope.selection.api import decide, save
from shardscope.selection.terms import Constraints, Standing
from shardscope.vocabulary import Status
from shardscope.workload.spec import WorkloadSpec

SPEC = WorkloadSpec(name="control", layers=4, hidden=32, heads=2, sequence_length=16, global_batch=16, micro_batches=4)
SETTINGS = MeasureSettings(
    world_size=4, triples=3, warmup_steps=1, requests=3, loss_steps=4, profiled_steps=1, timeout_s=150
)


def test_the_remedy_names_a_row() -> None:
    assert any(f"({name})" in ZBV_DDP.remedy for name in strategies.names())
    assert strategies.get("pipeline_zero3").not_applicable(SPEC, 4) is None


@pytest.mark.slow
def test_the_gate_disqualifies_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)
    runs = tmp_path / "traces" / SPEC.name
    make_reference(spec=SPEC, settings=SETTINGS, output=runs / "reference.npz", log=tmp_path / "reference.log")
    record = run_strategy(
        spec=SPEC, strategy="negative_control:ZBV_DDP", parameters={}, baseline="negative_control:ZBV_DDP",
        baseline_parameters={}, settings=SETTINGS, reference=runs / "reference.npz", output=runs / "zbv_ddp",
        log=tmp_path / "zbv_ddp.log",
    )  # fmt: skip
    assert record.status is Status.OK, record.reason
    assert record.parity is not None
    assert record.parity.gradient_error > 0.1, "far beyond rounding"
    assert record.parity.loss_error < 0.05, "the losses hardly show it"
    assert any("pipeline_zero3" in note for note in record.notes)
    data = tmp_path / "data" / SPEC.name / "zbv_ddp"
    write_tables(attribute_run(runs / "zbv_ddp"), data)
    decision = decide(SPEC.name, {"zbv_ddp": (runs / "zbv_ddp", data)}, Constraints(require_convergence=False))
    assert decision.strategy("zbv_ddp").standing is Standing.DISQUALIFIED
    assert decision.recommendation.name is None
    save(decision, tmp_path / "decision.json")
    render([tmp_path / "decision.json"], [data], tmp_path / "report")
    summary = (tmp_path / "report" / "summary.md").read_text(encoding="utf-8")
    assert "disqualified: gradient error" in summary
    evidence = (tmp_path / "report" / "evidence.md").read_text(encoding="utf-8")
    assert "pipeline × FSDP2" in evidence
