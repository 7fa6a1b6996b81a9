"""One trainer whose steps are controls in turn: compute, communication, both one after the other, both at once."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
import torch.distributed as dist

from shardscope.measure.record import Plan, RankState
from shardscope.strategies.base import BuildContext, Trainer
from shardscope.vocabulary import Axis
from shardscope.workload.spec import WorkloadSpec

WORK = 900  # rows of the products
TIMES = 12
ELEMENTS = 4 * 1024 * 1024  # float32
TURNS = 4


class Controls:
    """What a step does depends on how many came before."""

    name = display_name = "controls"
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

    def build(self, context: BuildContext) -> Trainer:
        return _Trainer()


class _Trainer:
    def __init__(self) -> None:
        self.turn = 0
        self.matrix, self.out = torch.rand(WORK, WORK), torch.empty(WORK, WORK)
        self.buffer = torch.ones(ELEMENTS)

    def compute(self) -> None:
        for _ in range(TIMES):
            torch.mm(self.matrix, self.matrix, out=self.out)

    def forward_backward(self, inputs: torch.Tensor, targets: torch.Tensor, *, share_loss: bool = True) -> float:
        turn = self.turn % TURNS
        self.turn += 1
        if turn == 0:
            self.compute()
        elif turn == 1:
            dist.all_reduce(self.buffer)
        elif turn == 2:
            self.compute()
            dist.all_reduce(self.buffer)
        else:
            pending = dist.all_reduce(self.buffer, async_op=True)
            self.compute()
            assert pending is not None
            pending.wait()
        return 1.0

    def optimizer_step(self) -> None:
        return None

    def request(self, inputs: torch.Tensor) -> None:
        return None

    def gradients(self) -> Iterable[tuple[str, torch.Tensor | None]]:
        return ()

    def state(self) -> tuple[list[torch.Tensor], list[torch.Tensor], list[torch.Tensor]]:
        return [self.matrix], [], []

    def axes(self) -> Mapping[tuple[int, ...], str]:
        return {(0, 1): Axis.DATA}

    def close(self) -> None:
        return None


CONTROLS = Controls()
