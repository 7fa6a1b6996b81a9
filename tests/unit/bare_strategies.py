"""A strategy without a model, to be filled with known work, and how such a one is measured here."""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from shardscope.measure.launch import run_strategy
from shardscope.measure.record import Plan, RankState, RunRecord
from shardscope.measure.reference import Reference, save_reference
from shardscope.measure.settings import MeasureSettings
from shardscope.strategies.base import BuildContext, Trainer
from shardscope.vocabulary import Axis, Status
from shardscope.workload.spec import WorkloadSpec


class Bare:
    """Declares nothing and communicates nothing by its plan."""

    shards: tuple[str, ...] = ()
    defaults: Mapping[str, Any] = {}
    memory_formula = "nothing"

    def not_applicable(self, spec: WorkloadSpec, world_size: int) -> str | None:
        return None

    def plan(self, spec: WorkloadSpec, world_size: int, parameters: Mapping[str, Any]) -> Plan:
        states = tuple(
            RankState(rank=rank, parameter_bytes=1, gradient_bytes=0, optimizer_bytes=0) for rank in range(world_size)
        )
        return Plan(parameter_count=1, state=states, collectives=())


class BareTrainer:
    """Everything but the step itself."""

    def __init__(self, held: torch.Tensor) -> None:
        self.held = held

    def optimizer_step(self) -> None:
        return None

    def request(self, inputs: torch.Tensor) -> None:
        return None

    def gradients(self) -> Iterable[tuple[str, torch.Tensor | None]]:
        return ()

    def state(self) -> tuple[list[torch.Tensor], list[torch.Tensor], list[torch.Tensor]]:
        return [self.held], [], []

    def axes(self) -> Mapping[tuple[int, ...], str]:
        return {(0, 1): Axis.DATA}

    def close(self) -> None:
        return None


class Idle(Bare):
    """To be compared with: its steps take no time."""

    name = display_name = "idle"

    def build(self, context: BuildContext) -> Trainer:
        return _IdleTrainer(torch.ones(1))


class _IdleTrainer(BareTrainer):
    def forward_backward(self, inputs: torch.Tensor, targets: torch.Tensor, *, share_loss: bool = True) -> float:
        return 1.0


IDLE = Idle()


def measured(strategy: str, folder: Path, spec: WorkloadSpec, settings: MeasureSettings) -> RunRecord:
    """Measure `module:NAME` of this folder against `Idle` into `folder`/NAME. Nothing is compared with `single`."""
    gradients = {"none": np.zeros(1, dtype=np.float32)}
    save_reference(folder / "reference.npz", Reference(spec=spec, gradients=gradients, losses=(1.0,) * 4))
    name = strategy.rpartition(":")[2]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)
        record = run_strategy(
            spec=spec, strategy=strategy, parameters={}, baseline="bare_strategies:IDLE", baseline_parameters={},
            settings=settings, reference=folder / "reference.npz", output=folder / name, log=folder / f"{name}.log",
        )  # fmt: skip
    assert record.status is Status.OK, record.reason
    return record
