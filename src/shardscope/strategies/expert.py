"""Expert parallelism: each rank holds 1/n of the experts of every layer; all else is data parallel.

Every rank routes the tokens of its own samples. One all-to-all takes them to the ranks that hold their experts, another
brings the results back (GShard, arXiv 2006.16668; Switch, arXiv 2101.03961).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from shardscope.strategies.accounting import collective, make_plan, rank_state, undivided, world
from shardscope.strategies.base import BuildContext, Trainer
from shardscope.strategies.ddp import bucket_sizes
from shardscope.strategies.exchange import exchange, same_for_all
from shardscope.vocabulary import Axis, Kind
from shardscope.workload.shapes import activation_bytes, element_size, missing, numel, outline, parameter_shapes

if TYPE_CHECKING:
    import torch

    from shardscope.measure.record import ExpectedCollective, Plan
    from shardscope.workload.spec import WorkloadSpec

__all__ = ["STRATEGIES", "Expert"]


class Expert:
    """DDP for everything but the experts, which are divided among the ranks."""

    name = "expert"
    display_name = "expert parallel"
    shards: tuple[str, ...] = ("batch", "experts")
    defaults: Mapping[str, Any] = {"bucket_cap_mb": 2.0}  # as ddp, of which it is a variation
    memory_formula = "16 bytes per parameter outside the experts, 16/n inside"

    def not_applicable(self, spec: WorkloadSpec, world_size: int) -> str | None:
        """Experts and micro-batches are divided in equal parts."""
        if (reason := missing(spec, "expert_modules")) is not None:
            return reason
        experts = {f"experts of {module.name}": module.dispatched[0] for module in outline(spec).experts}
        return undivided(world_size, {**same_for_all("experts", experts), "micro-batch size": spec.micro_batch_size})

    def plan(self, spec: WorkloadSpec, world_size: int, parameters: Mapping[str, Any]) -> Plan:
        """Two all-to-alls per layer and micro-batch forward and two backward; ddp's buckets of the other gradients."""
        divided = _expert_names(spec)
        held = [
            numel(shape) // (world_size if name in divided else 1) for name, shape in parameter_shapes(spec).items()
        ]
        ranks = world(world_size)
        state = [rank_state(spec, rank, parameters=held, gradients=held, optimized=held) for rank in ranks]
        lines = [*self._exchanges(spec, ranks), *self._reduction(spec, ranks, parameters)]
        active = activation_bytes(spec, spec.micro_batch_size // world_size, layers=spec.layers)
        return make_plan(spec, state, lines, activation_bytes=(active,) * world_size)

    def _exchanges(self, spec: WorkloadSpec, ranks: tuple[int, ...]) -> Iterator[ExpectedCollective]:
        samples = spec.micro_batch_size // len(ranks)
        for module in outline(spec).experts:
            yield collective(
                Kind.ALL_TO_ALL,
                Axis.EXPERT,
                ranks,
                f"tokens to {module.name} and back, and their gradients",
                count=2 * (2 + module.again) * spec.micro_batches,
                each=samples * numel(module.dispatched) * element_size(spec),
            )

    def _reduction(
        self, spec: WorkloadSpec, ranks: tuple[int, ...], parameters: Mapping[str, Any]
    ) -> Iterator[ExpectedCollective]:
        for size in bucket_sizes(spec, parameters["bucket_cap_mb"], _expert_names(spec)):
            yield collective(
                Kind.ALL_REDUCE, Axis.DATA, ranks, "gradient bucket outside the experts", count=1, each=size
            )

    def build(self, context: BuildContext) -> Trainer:
        """DDP that leaves the experts alone + all-to-alls in their hooks."""
        import torch
        import torch.distributed as dist
        from torch.nn.parallel import DistributedDataParallel

        from shardscope.workload.model import build_model
        from shardscope.workload.training import Loop, make_optimizer, mean_over_ranks

        spec, n = context.spec, context.world_size
        model = build_model(spec)
        divided = _expert_names(spec)
        for expert in outline(spec).experts:
            _divide(model.get_submodule(expert.name), context.rank, n)
        model.to(context.device)
        ignore: Any = DistributedDataParallel._set_params_and_buffers_to_ignore_for_model
        ignore(model, list(divided))
        replicated = DistributedDataParallel(
            model,
            gradient_as_bucket_view=True,
            bucket_cap_mb=context.parameters["bucket_cap_mb"],
            forward_sync_buffers=False,
        )
        own = [parameter for name, parameter in model.named_parameters() if name in divided]

        def divide_gradients() -> None:
            # They are sums over the tokens of all ranks, each rank's loss a mean over its own samples.
            for parameter in own:
                if parameter.grad is not None:
                    parameter.grad.div_(n)

        class ExpertLoop(Loop):
            """Gradients of the experts come from all ranks."""

            def gradients(self) -> Iterator[tuple[str, torch.Tensor | None]]:
                for name, gradient in super().gradients():
                    if name in divided and gradient is not None:
                        parts = [torch.empty_like(gradient) for _ in range(n)]
                        dist.all_gather(parts, gradient.contiguous())
                        gradient = torch.cat(parts)
                    yield name, gradient

        return ExpertLoop(
            spec=spec,
            model=model,
            forward=replicated,
            optimizer=make_optimizer(model.parameters(), spec),
            device=context.device,
            group_axes={world(n): {Kind.ALL_TO_ALL: Axis.EXPERT, Kind.ALL_REDUCE: Axis.DATA}},
            replicas=n,
            replica=context.rank,
            around_micro_batch=lambda i: nullcontext() if i == spec.micro_batches - 1 else replicated.no_sync(),
            after_backward=divide_gradients,
            clear_gradients=lambda optimizer: optimizer.zero_grad(set_to_none=False),
            share=mean_over_ranks,
        )


def _expert_names(spec: WorkloadSpec) -> frozenset[str]:
    return frozenset(name for module in outline(spec).experts for name in module.parameters)


def _divide(module: torch.nn.Module, rank: int, ranks: int) -> None:
    """Keep this rank's experts, and let the module see the tokens that all ranks send to them."""
    import torch

    for inner in module.modules():
        for name, parameter in inner.named_parameters(recurse=False):
            inner.register_parameter(name, torch.nn.Parameter(parameter.detach().chunk(ranks)[rank].clone()))

    def gather(_module: torch.nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        parts = inputs[0].unflatten(1, (ranks, -1)).transpose(0, 1)  # [destination, samples, its experts, …]
        return (exchange(parts).flatten(0, 1), *inputs[1:])

    def scatter(_module: torch.nn.Module, _inputs: Any, output: Any) -> torch.Tensor:
        parts = output.unflatten(0, (ranks, -1))  # [origin, its samples, experts here, …]
        return exchange(parts).transpose(0, 1).flatten(1, 2)

    module.register_forward_pre_hook(gather)
    module.register_forward_hook(scatter)


STRATEGIES = (Expert(),)
