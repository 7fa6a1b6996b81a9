"""One trainer whose steps are controls in turn: compute, communication, both one after the other, both at once."""

import torch
import torch.distributed as dist
from bare_strategies import Bare, BareTrainer

from shardscope.strategies.base import BuildContext, Trainer

WORK = 900  # rows of the products
TIMES = 12
ELEMENTS = 4 * 1024 * 1024  # float32
TURNS = 4


class Controls(Bare):
    """What a step does depends on how many came before."""

    name = display_name = "controls"

    def build(self, context: BuildContext) -> Trainer:
        return _Trainer()


class _Trainer(BareTrainer):
    def __init__(self) -> None:
        self.turn = 0
        self.matrix, self.out = torch.rand(WORK, WORK), torch.empty(WORK, WORK)
        super().__init__(self.matrix)
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


CONTROLS = Controls()
