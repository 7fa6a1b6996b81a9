"""Controls of the overlap: steps that only compute, only communicate, do both in turn, do both at once. One launch."""

import control_strategies as controls
import pytest
from bare_strategies import measured

from shardscope.attribution.api import attribute_run
from shardscope.attribution.result import StepRow
from shardscope.measure.settings import MeasureSettings
from shardscope.vocabulary import Kind
from shardscope.workload.spec import WorkloadSpec

pytestmark = [pytest.mark.slow, pytest.mark.alone]

SPEC = WorkloadSpec(name="controls", layers=1, hidden=16, heads=2, sequence_length=8, global_batch=4, micro_batches=1)
SETTINGS = MeasureSettings(
    world_size=2, triples=3, warmup_steps=1, requests=3, loss_steps=4, profiled_steps=4, timeout_s=120
)


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> list[list[StepRow]]:
    """The four profiled steps, each on both ranks."""
    folder = tmp_path_factory.mktemp("controls")
    measured("control_strategies:CONTROLS", folder, SPEC, SETTINGS)
    result = attribute_run(folder / "CONTROLS")
    steps = sorted({row.step for rank in result.ranks for row in rank.steps if row.step is not None})
    return [[row for rank in result.ranks for row in rank.steps if row.step == step] for step in steps]


def busy(row: StepRow) -> int:
    return sum(row.busy_ns.values())


def overlapped(row: StepRow) -> int:
    return sum(row.overlapped_ns.values())


def products(row: StepRow) -> bool:
    """Whether a step holds the known products: a step without them computes next to nothing."""
    return row.compute_ns > 0.2 * max(row.window_ns - busy(row) + overlapped(row), 1) and row.compute_ns > 5_000_000


def test_every_row_adds_up(rows: list[list[StepRow]]) -> None:
    assert len(rows) == controls.TURNS
    for row in (row for step in rows for row in step):
        assert row.total_ns == row.window_ns


def test_the_controls_show_what_they_are(rows: list[list[StepRow]]) -> None:
    """The turns follow each other; which comes first depends on the steps before the profiled ones."""
    kinds = []
    for step in rows:
        computes, communicates = products(step[0]), bool(busy(step[0]))
        hides = communicates and overlapped(step[0]) > 0.25 * busy(step[0])
        kinds.append(
            "both at once" if hides else "in turn" if computes and communicates else "compute" if computes else "moves"
        )
    start = kinds.index("compute")
    assert kinds[start:] + kinds[:start] == ["compute", "moves", "in turn", "both at once"]
    by_kind = dict(zip(kinds, rows, strict=True))
    for row in by_kind["compute"]:
        assert busy(row) == 0 and row.attributed_ns == {}
    for row in by_kind["moves"]:
        assert row.attributed_ns[Kind.ALL_REDUCE] > 0.5 * row.window_ns
        assert overlapped(row) < 0.05 * busy(row)
    for row in by_kind["in turn"]:
        assert overlapped(row) < 0.05 * busy(row), "nothing ran beside it"
    for row in by_kind["both at once"]:
        assert row.exposed_ns[Kind.ALL_REDUCE] == busy(row) - overlapped(row)
