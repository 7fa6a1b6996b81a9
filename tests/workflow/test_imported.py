"""Imported runs through the real scheduler: only they are configured, and nothing is measured."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.unit.imported_jobs import job
from tests.workflow.conftest import Project

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

HOSTILE = "we|ird `<b>` {x} 名 'q' $y"


@pytest.fixture
def imported(fresh: Project) -> Project:
    """Two runs and no workload; the first in a folder whose name is trouble, the second without HTA."""
    job(fresh.work / "in" / HOSTILE)
    job(fresh.work / "in" / "second", longer=300.0)
    runs: dict[str, Any] = {
        "first": {"path": f"in/{HOSTILE}"},
        "second": {"path": "in/second", "second_opinion": False},
    }
    (fresh.root / "config.yaml").write_text(yaml.safe_dump({"imported": runs}, allow_unicode=True), encoding="utf-8")
    return fresh


def page(project: Project, name: str) -> str:
    return (project.work / "reports" / "imported" / name).read_text(encoding="utf-8")


def planned(project: Project) -> dict[str, int]:
    return dict(project.planned("reports/imported/first.md", "reports/imported/comparison.md"))


def test_imported_runs_are_attributed_compared_and_redone_when_a_trace_changes(imported: Project) -> None:
    done = imported.snakemake()
    assert done.returncode == 0, done.stdout + done.stderr
    names = ("first.md", "first.zh.md", "second.md", "comparison.md", "comparison.zh.md", "figures/first.svg")
    assert all(page(imported, name) for name in names)
    first, second = page(imported, "first.md"), page(imported, "second.md")
    assert "Rank 1 makes the others wait most: 400 µs" in first
    assert "HolisticTraceAnalysis 0." in first
    assert "No second opinion: switched off in the configuration." in second
    assert "[comparison.md](comparison.md)" in second
    assert "`we¦ird '<b>' {x} 名 'q' $y`" in first.replace("in/", "")
    assert "a step of `second` is" in page(imported, "comparison.md")
    assert not (imported.work / "reports" / "summary.md").exists(), "a measured report would be lost"
    assert imported.snakemake("reports/summary.md").returncode == 0
    summary = (imported.work / "reports" / "summary.md").read_text(encoding="utf-8")
    assert "only imported runs" in summary and "(imported/first.md)" in summary
    tables = imported.work / "reports" / "imported" / "data" / "first" / "attribution.json"
    assert [rank["rank"] for rank in json.loads(tables.read_bytes())["ranks"]] == [0, 1]
    assert planned(imported) == {}
    job(imported.work / "in" / HOSTILE, late=200.0)
    assert planned(imported) == {"attribute_imported": 1, "report_imported": 1, "compare_imported": 1}
    assert imported.snakemake("reports/imported/first.md").returncode == 0
    assert "Rank 1 makes the others wait most: 800 µs" in page(imported, "first.md")
    # A rank that arrives later redoes its run only.
    (imported.work / "in" / "second" / "rank2.json.tmp").write_text("{")
    assert imported.planned("reports/imported/second.md") == {"attribute_imported": 1, "report_imported": 1}


def test_a_damaged_trace_is_one_line_and_no_report(imported: Project) -> None:
    path = imported.work / "in" / "second" / "rank1.json"
    path.write_bytes(path.read_bytes()[:-400])
    done = imported.snakemake("--quiet", "all", "--", "reports/imported/second.md")
    assert done.returncode != 0
    lines = [line for line in (done.stdout + done.stderr).splitlines() if "error: " in line and "rank1.json" in line]
    assert len(lines) == 1 and "--salvage" in lines[0]
    assert "Traceback" not in done.stdout + done.stderr
    assert not (imported.work / "reports" / "imported" / "second.md").exists()
    changed = yaml.safe_load((imported.root / "config.yaml").read_text(encoding="utf-8"))
    changed["imported"]["second"]["salvage"] = True
    imported.reconfigure(**changed)
    done = imported.snakemake("reports/imported/second.md")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "**partial**" in page(imported, "second.md")


def test_beside_workloads_and_mistakes(fresh: Project) -> None:
    job(fresh.work / "in", steps=1)
    fresh.reconfigure(imported={"run": {"path": "in"}})
    both = fresh.planned("reports/imported/run.md")
    assert both["attribute_imported"] == both["report_imported"] == 1 and both["measure"] == 4
    fresh.reconfigure(imported={"run": {"path": "in"}}, strategies=["ddp"])
    for changes, expected in (
        ({"run": {"path": "in", "rank": {}}}, "unknown key 'rank' (did you mean 'ranks'?)"),
        ({"Up/..": {"path": "in"}}, "is not allowed here"),
    ):
        fresh.reconfigure(imported=changes)
        done = fresh.snakemake("--quiet", "all", "--", "reports/summary.md")
        assert done.returncode != 0
        assert [line for line in (done.stdout + done.stderr).splitlines() if "error:" in line and expected in line]
        assert "Traceback" not in done.stdout + done.stderr
    config = fresh.root / "config.yaml"
    for text, expected in (
        ("{}", "nothing to do"),
        ("strategies: [ddp]\nimported: {run: {path: in}}", "no workloads"),
    ):
        config.write_text(text, encoding="utf-8")
        done = fresh.snakemake("--quiet", "all", "--", "reports/summary.md")
        assert [line for line in (done.stdout + done.stderr).splitlines() if "error:" in line and expected in line]
    assert not Path(fresh.work / "traces").exists()
