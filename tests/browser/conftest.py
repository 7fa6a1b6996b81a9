"""A browser for the session, and two small runs to look at."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from chrome import Browser, find_chromium

from shardscope.measure.launch import make_reference, run_strategy
from shardscope.measure.settings import MeasureSettings
from shardscope.vocabulary import Status
from shardscope.workload.spec import WorkloadSpec

SPEC = WorkloadSpec(name="tiny", layers=4, hidden=32, heads=2, sequence_length=16, global_batch=16, micro_batches=4)
SETTINGS = MeasureSettings(
    world_size=2, triples=3, warmup_steps=1, requests=3, loss_steps=4, profiled_steps=2, timeout_s=120
)


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """One page, for all tests. Without a browser they are skipped, unless SHARDSCOPE_REQUIRE_BROWSER is 1."""
    if find_chromium() is None:
        reason = "no Chromium: install one, or name it in CHROMIUM"
        if os.environ.get("SHARDSCOPE_REQUIRE_BROWSER") == "1":
            pytest.fail(reason)
        pytest.skip(reason)
    with Browser(tmp_path_factory.mktemp("profile")) as found:
        yield found


@pytest.fixture(scope="session")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where screenshots go: SHARDSCOPE_PICTURES, or a temporary folder."""
    given = os.environ.get("SHARDSCOPE_PICTURES")
    return Path(given) if given else tmp_path_factory.mktemp("pictures")


@pytest.fixture(scope="session")
def runs(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a real run each of zero3 and pipeline_1f1b. Depends on the browser: no run without one."""
    folder = tmp_path_factory.mktemp("runs")
    reference = folder / "reference.npz"
    make_reference(spec=SPEC, settings=SETTINGS, output=reference, log=folder / "reference.log")
    for strategy in ("zero3", "pipeline_1f1b"):
        record = run_strategy(
            spec=SPEC, strategy=strategy, parameters={}, baseline="ddp", baseline_parameters={}, settings=SETTINGS,
            reference=reference, output=folder / strategy, log=folder / f"{strategy}.log",
        )  # fmt: skip
        assert record.status is Status.OK, record.reason
    return folder
