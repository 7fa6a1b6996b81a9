"""The sweep in the workflow: only points that are new are measured, and the summary does not wait for it."""

import json

import pytest

from tests.workflow.conftest import Project

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

TARGET = "reports/conditions.md"
QUICK = {"triples": 3, "warmup_steps": 1, "requests": 3, "loss_steps": 4, "profiled_steps": 1}
SWEEP = {
    "strategies": ["ddp", "pipeline_1f1b"],
    "measure": QUICK,
    "axes": {"global_batch": [8], "strategy_parameters": {"ddp": {"bucket_cap_mb": [0.01]}}},
}


def test_points_are_measured_once_and_the_base_not_again(finished: Project) -> None:
    before = finished.planned()
    finished.reconfigure(conditions=SWEEP)
    assert finished.planned() == before == {}, "the summary must not depend on the sweep"
    planned = finished.planned(TARGET)
    assert planned == {"reference": 2, "measure": 2, "sweep": 1, "conditions": 1}
    done = finished.snakemake(TARGET)
    assert done.returncode == 0, done.stdout + done.stderr
    traces = finished.work / "traces"
    names = {"tiny", "tiny-batch8", "tiny-ddp-bucket_cap_mb0p01"}
    assert {path.name for path in traces.iterdir()} == names
    run = json.loads((traces / "tiny-ddp-bucket_cap_mb0p01" / "ddp" / "run.json").read_text(encoding="utf-8"))
    assert run["strategy"]["parameters"] == {"bucket_cap_mb": 0.01} and len(run["timing"]["triples"]) == 3
    for name in ("conditions.md", "conditions.zh.md"):
        text = (finished.work / "reports" / name).read_text(encoding="utf-8")
        assert "pipeline_1f1b" in text and "None" not in text
        assert (finished.work / "reports" / "conditions" / "global_batch.svg").is_file()
    assert finished.planned(TARGET) == {}

    # Another value: one point more. The other way round it is a point less, and its folder stays.
    finished.reconfigure(conditions={**SWEEP, "axes": {"global_batch": [8, 32]}})
    assert finished.planned(TARGET) == {"reference": 1, "measure": 1, "sweep": 1, "conditions": 1}
    finished.reconfigure(conditions=SWEEP)
    assert "measure" not in finished.planned(TARGET)
    # Measured again only when what it depends on changes: here how much is measured at the points.
    finished.reconfigure(conditions={**SWEEP, "measure": {**QUICK, "triples": 4}})
    planned = finished.planned(TARGET)
    assert planned["measure"] == 2 and "attribute" not in planned
    assert finished.planned() == {}


def test_without_a_section_the_line_says_what_to_write(finished: Project) -> None:
    done = finished.snakemake("--dry-run", TARGET)
    assert done.returncode != 0
    assert "no `conditions` section; name the factors to sweep there" in done.stdout + done.stderr
