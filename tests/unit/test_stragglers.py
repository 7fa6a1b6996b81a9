"""Who keeps the others waiting: no moment of a rank is counted twice, and none that it uses."""

from pathlib import Path

import pytest

from shardscope.attribution.api import attribute_run
from shardscope.attribution.result import Attribution
from shardscope.attribution.stragglers import over_steps

RUNS = Path(__file__).parents[1] / "data" / "runs"


def suffered(result: Attribution, step: int | None, rank: int) -> int:
    """Waiting and bubble of a rank in a step, in ns."""
    row = next(row for each in result.ranks if each.rank == rank for row in each.steps if row.step == step)
    return sum((row.attributed_wait_ns or {}).values()) + (row.bubble_ns or 0)


@pytest.mark.parametrize("name", ["zero2", "pipeline_1f1b"])
def test_the_waiting_caused_never_exceeds_the_waiting_suffered(name: str) -> None:
    result = attribute_run(RUNS / name)
    ranks = [each.rank for each in result.ranks if each.rank is not None]
    assert len(ranks) == 2 and any(item.caused_ns for item in result.stragglers)
    for item in result.stragglers:
        (other,) = [rank for rank in ranks if rank != item.rank]
        assert 0 <= item.caused_ns <= suffered(result, item.step, other)
        assert 0 <= item.last <= item.collectives


def test_waits_at_the_same_moment_are_one() -> None:
    result = attribute_run(RUNS / "pipeline_1f1b")
    once = sum(item.caused_ns for item in over_steps(result))
    each = sum(
        ns
        for item in result.collectives
        if item.last_rank is not None
        for rank, ns in (item.exposed_wait_ns or {}).items()
        if int(rank) != item.last_rank
    )
    assert 0 < once < each  # a stage waits for its next input and its next gradient together


def test_sums_over_steps() -> None:
    result = attribute_run(RUNS / "zero2")
    summed = {item.rank: item for item in over_steps(result)}
    for rank, total in summed.items():
        mine = [item for item in result.stragglers if item.rank == rank]
        assert total.caused_ns == sum(item.caused_ns for item in mine)
        assert total.last == sum(item.last for item in mine)
    (first, *_) = over_steps(result)
    assert first.caused_ns == max(item.caused_ns for item in summed.values())
    one = over_steps(result, result.summary_step)
    assert {item.rank for item in one} == set(summed) and all(item.step == result.summary_step for item in one)
