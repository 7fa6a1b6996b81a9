"""Closed forms and activations of the schedules with several stages per rank, against torch's own order of actions.

No processes: the order is played with stages that take the same time for a forward and for each half of a backward.
"""

from collections import Counter
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.distributed.pipelining import schedules

from shardscope import strategies
from shardscope.strategies.pipeline import Pipeline
from shardscope.workload.shapes import activation_bytes
from shardscope.workload.spec import WorkloadSpec


@dataclass
class Played:
    """What came out of one step. kept: per rank the largest sum of layers over the micro-batches not yet done."""

    idle: float
    kept: list[int]
    crossing: Counter[tuple[int, int]] = field(default_factory=Counter)  # (source, destination) → messages


def spec_of(layers: int, micro_batches: int) -> WorkloadSpec:
    return WorkloadSpec(
        name="w", layers=layers, hidden=16, heads=2, sequence_length=8, global_batch=micro_batches * 2,
        micro_batches=micro_batches,
    )  # fmt: skip


def order_of(schedule: str, ranks: int, stages: int, micro_batches: int) -> tuple[dict[int, list[Any]], dict[int, int]]:
    """torch's actions per rank, communication included, and the rank of each stage."""
    mine: Any = [
        SimpleNamespace(
            group_size=ranks, group_rank=0, num_stages=stages, stage_index=index, is_first=index == 0,
            is_last=index == stages - 1, submod=torch.nn.Identity(), has_backward=True, stage_index_to_group_rank={},
        )
        for index in range(stages // ranks)
    ]  # fmt: skip
    made = getattr(schedules, schedule)(mine, micro_batches, loss_fn=lambda output, target: output, scale_grads=False)
    return made.pipeline_order_with_comms, made.stage_index_to_group_rank


def play(order: dict[int, list[Any]], where: dict[int, int], layers: list[int], halves: float) -> Played:
    """Run the actions as their inputs allow. A forward takes 1, each half of a backward takes `halves`."""
    clock, place, busy = dict.fromkeys(order, 0.0), dict.fromkeys(order, 0), dict.fromkeys(order, 0.0)
    ready: dict[tuple[str, int, int], float] = {}
    held, played = Counter[int](), Played(0.0, [0] * len(order))
    last = len(layers) - 1
    while any(place[rank] < len(order[rank]) for rank in order):
        before = dict(place)
        for rank, actions in order.items():
            while place[rank] < len(actions):
                action = actions[place[rank]]
                kind, stage, batch = action.computation_type.name, action.stage_index, action.microbatch_index
                needs, took = None, 0.0
                if kind == "FORWARD":
                    needs, took = (("F", stage - 1, batch) if stage else None), 1.0
                elif kind in ("FULL_BACKWARD", "BACKWARD_INPUT"):
                    needs = ("B", stage + 1, batch) if stage < last else None
                    # torch does all of the first stage's backward with its weights: nobody waits for its inputs.
                    took = {"FULL_BACKWARD": 2 * halves}.get(kind, halves if stage else 0.0)
                elif kind == "BACKWARD_WEIGHT":
                    took = halves if stage else 2 * halves
                elif kind in ("SEND_F", "SEND_B"):
                    played.crossing[rank, where[stage + (1 if kind == "SEND_F" else -1)]] += 1
                if needs is not None and needs not in ready:
                    break
                clock[rank] = max(clock[rank], ready[needs] if needs else 0.0) + took
                busy[rank] += took
                if kind == "FORWARD":
                    ready["F", stage, batch] = clock[rank]
                    held[rank] += layers[stage]
                    played.kept[rank] = max(played.kept[rank], held[rank])
                if kind in ("FULL_BACKWARD", "BACKWARD_INPUT"):
                    ready["B", stage, batch] = clock[rank]
                if kind in ("FULL_BACKWARD", "BACKWARD_WEIGHT"):
                    held[rank] -= layers[stage]
                place[rank] += 1
        assert place != before, "the schedule is stuck"
    played.idle = 1 - sum(busy.values()) / (len(order) * max(clock.values()))
    return played


@pytest.mark.parametrize(
    ("name", "schedule", "halves", "ranks", "stages_per_rank", "micro_batches"),
    [("pipeline_interleaved", "ScheduleInterleaved1F1B", 0.5, p, v, m)
     for p, v, m in ((2, 2, 2), (2, 2, 4), (2, 3, 6), (3, 2, 4), (4, 2, 4), (4, 2, 10), (4, 3, 8))]
    + [("pipeline_zbv", "ScheduleZBVZeroBubble", 1.0, p, 2, m)
       for p in (2, 3, 4, 5) for m in (p, p + 1, 2 * p - 1, 2 * p, 3 * p)],
)  # fmt: skip
def test_plans_say_what_the_schedule_does(
    name: str, schedule: str, halves: float, ranks: int, stages_per_rank: int, micro_batches: int
) -> None:
    strategy = strategies.get(name)
    assert isinstance(strategy, Pipeline)
    spec = spec_of(ranks * stages_per_rank + 1, micro_batches)  # one stage has two layers
    given = {} if name == "pipeline_zbv" else {"stages_per_rank": stages_per_rank}
    plan = strategy.plan(spec, ranks, strategies.resolve_parameters(name, given))
    stages = strategy.stages(spec, ranks, {**strategy.defaults, **given})
    order, where = order_of(schedule, ranks, len(stages), micro_batches)
    assert {stage.index: stage.place for stage in stages} == where
    found = play(order, where, [len(stage.layers) for stage in stages], halves)
    assert plan.bubble_fraction == pytest.approx(found.idle)
    kept = [activation_bytes(spec, spec.micro_batch_size, layers=layers) for layers in found.kept]
    assert list(plan.activation_bytes) == kept
    messages: Counter[tuple[int, ...]] = Counter()
    for line in plan.collectives:
        messages[line.group] += line.count
    assert messages == found.crossing


def test_more_stages_per_rank_idle_less_and_the_zero_bubble_least() -> None:
    spec = spec_of(8, 8)
    names = ("pipeline_1f1b", "pipeline_interleaved", "pipeline_zbv")
    shares = [
        strategies.get(name).plan(spec, 4, strategies.resolve_parameters(name, {})).bubble_fraction for name in names
    ]
    assert shares == [pytest.approx(3 / 11), pytest.approx(3 / 19), pytest.approx(1.5 / 25.5)]
