"""Strategies that communicate other than their plan says, as careless tensor parallelism does."""

from collections.abc import Mapping
from typing import Any
from unittest.mock import patch

from shardscope.strategies.base import BuildContext, Trainer
from shardscope.strategies.tensor import Tensor, TensorSequence


class SeparateInputs(Tensor):
    """Query, key and value each take the plain input themselves: three input gradients are summed instead of one."""

    name = "separate_inputs"

    def build(self, context: BuildContext) -> Trainer:
        from torch.distributed.tensor import parallel

        plain = parallel.parallelize_module

        def naive(module: Any, mesh: Any, styles: Mapping[str, Any], **options: Any) -> Any:
            kept = {n: style for n, style in styles.items() if not isinstance(style, parallel.PrepareModuleInput)}
            return plain(module, mesh, kept, **options)

        with patch.object(parallel, "parallelize_module", naive):
            return super().build(context)


class PartialNorms(TensorSequence):
    """The norms' gradients stay partial sums: the optimizer reduces each of them, each time it reads one."""

    name = "partial_norms"

    def build(self, context: BuildContext) -> Trainer:
        import torch

        trainer: Any = super().build(context)
        trainer.after_backward = lambda: None
        # Not fused: it reads each gradient three times.
        trainer.optimizer = torch.optim.AdamW(trainer.model.parameters(), foreach=False)
        result: Trainer = trainer
        return result


SEPARATE_INPUTS, PARTIAL_NORMS = SeparateInputs(), PartialNorms()
