"""A mistake in the configuration is one clear line before anything runs."""

from typing import Any

import pytest
import yaml

from tests.workflow.conftest import Project

TINY = {"layers": 2, "hidden": 32, "heads": 2, "sequence_length": 16, "global_batch": 8, "micro_batches": 2}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"strategies": ["ddp", "zero33"]}, "unknown strategy 'zero33' (did you mean 'zero3'?)"),
        ({"mesure": {"triples": 3}}, "unknown key 'mesure' (did you mean 'measure'?)"),
        ({"measure": {"triples": "many"}}, "config.measure.triples: 'many' is not of type 'integer'"),
        ({"measure": {"world_size": 0}}, "config.measure.world_size"),
        ({"workloads": {"tiny": {**TINY, "layres": 2}}}, "unknown key 'layres' (did you mean 'layers'?)"),
        ({"workloads": {"tiny": {**TINY, "heads": 3}}}, "hidden 32 is not a multiple of heads 3"),
        ({"workloads": {"tiny": {**TINY, "data": "no/such.txt"}}}, "workloads.tiny.data: no such file: no/such.txt"),
        ({"workloads": {"../up": TINY}}, "'../up' is not allowed here; a name is made of a-z"),
        ({"baseline": "tensor"}, "baseline 'tensor' is not among strategies"),
        (
            {"strategy_parameters": {"ddp": {"bucket_cap": 1}}},
            "strategy ddp has no parameter bucket_cap (did you mean 'bucket_cap_mb'?)",
        ),
        ({"constraints": {"memory_cap_mb": -5}}, "config.constraints.memory_cap_mb"),
        ({"failures": "ignore"}, "config.failures"),
    ],
)
def test_mistakes_are_one_line(fresh: Project, changes: dict[str, Any], expected: str) -> None:
    fresh.reconfigure(**changes)
    done = fresh.snakemake("--quiet", "all", "--", "reports/summary.md")
    assert done.returncode != 0
    lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    assert [line for line in lines if "error:" in line and expected in line], lines
    assert "Traceback" not in done.stdout + done.stderr
    assert not (fresh.work / "traces").exists()


@pytest.mark.slow
def test_a_section_given_twice_is_refused_and_not_half_ignored(fresh: Project) -> None:
    path = fresh.root / "config.yaml"
    path.write_text(path.read_text(encoding="utf-8") + "measure: {triples: 30}\n", encoding="utf-8")
    done = fresh.snakemake("--quiet", "all", "--", "reports/summary.md")
    assert done.returncode != 0
    assert "the key 'measure' is given twice" in done.stderr and "Traceback" not in done.stderr


def test_the_shipped_configurations_are_valid(fresh: Project) -> None:
    for path in sorted((fresh.root / "repo" / "config").glob("*.yaml")):
        (fresh.root / "config.yaml").write_text(path.read_text(encoding="utf-8"), encoding="utf-8")
        planned, raw = fresh.planned(), yaml.safe_load(path.read_text())
        assert planned["measure"] == len(raw["strategies"]) * len(raw["workloads"]), path.name
        if "conditions" in raw:
            # The sweep waits to be asked for, and asks for nothing but points of its own.
            assert fresh.planned("reports/conditions.md")["measure"] > planned["measure"]
