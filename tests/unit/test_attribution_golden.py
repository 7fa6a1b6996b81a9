"""Two small real runs on gloo keep the ledgers they had, to the nanosecond.

Their traces (tests/data/runs, two steps of a tiny model, stripped of what is never time) were attributed once and the
result looked at; a change of any number here is a change of what attribution means.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from shardscope.attribution.api import attribute_run
from shardscope.attribution.tables import as_json

RUNS = Path(__file__).parents[1] / "data" / "runs"


def numbers(document: dict[str, Any]) -> dict[str, Any]:
    """Without the paths of the files, and without the remark on the cause of host time."""
    for rank in document["ranks"]:
        rank["files"] = [Path(file).name for file in rank["files"]]
        for row in rank["steps"]:
            row.pop("host_cause", None)
    return document


@pytest.mark.parametrize("strategy", ["zero2", "pipeline_1f1b"])
def test_own_runs_keep_their_ledgers(strategy: str) -> None:
    expected = json.loads((RUNS / strategy / "expected.json").read_text())
    assert numbers(json.loads(as_json(attribute_run(RUNS / strategy)))) == expected
