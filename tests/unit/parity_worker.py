"""One rank of test_parity.py: builds strategy after strategy in one process group and writes what it saw as JSON.

Also holds the strategies that are broken on purpose.
"""

import argparse
import gc
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
import torch.distributed as dist

from shardscope import strategies
from shardscope.measure.parity import gradient_errors, judge
from shardscope.measure.sidecar import Sidecar
from shardscope.selection.node_predict import planned
from shardscope.strategies.base import BuildContext
from shardscope.workload.data import batch, load_corpus
from shardscope.workload.spec import WorkloadSpec

STEPS = 5
OBSERVED_STEP = 3  # DDP rebuilds its buckets in the second step, so an early one would not be typical

TINY = WorkloadSpec(
    name="tiny", layers=4, hidden=32, heads=4, sequence_length=16, global_batch=16, micro_batches=4, vocabulary=256
)
# Sizes that no rank count divides: padded shards, unequal stages, biases of odd length.
ODD = WorkloadSpec(
    name="odd", layers=5, hidden=18, heads=2, sequence_length=9, global_batch=16, micro_batches=4, vocabulary=257,
    mlp_ratio=3,
)  # fmt: skip
HALF = msgspec.structs.replace(TINY, name="half", dtype="bfloat16")
# Two stages on each of 4 ranks; enough micro-batches for the zero-bubble schedule to fill.
DEEP = msgspec.structs.replace(TINY, name="deep", layers=9, micro_batches=8)
# Mixture of experts. Dense strategies train it too; those that need what it lacks do not apply.
EXPERTS = msgspec.structs.replace(
    TINY, name="experts", layers=2, model="shardscope.workload.experts:build", model_options={"experts": 4, "top": 2}
)


@cache
def corpus() -> bytes:
    """The default text, the same for all workloads here."""
    return load_corpus(TINY)


def scale_gradients(trainer: Any) -> None:
    """All gradients doubled: AdamW hides it from the losses."""
    original = trainer.forward_backward

    def forward_backward(*args: Any, **options: Any) -> float:
        loss: float = original(*args, **options)
        for parameter in trainer.model.parameters():
            if parameter.grad is not None:
                parameter.grad.mul_(2)
        return loss

    trainer.forward_backward = forward_backward


def leave_sums(trainer: Any) -> None:
    """Gradients stay sums over the ranks' losses, or never become sums."""
    trainer.after_backward = lambda: None


def skip_a_shard(trainer: Any) -> None:
    """Every rank trains on the first part of the batch."""
    trainer.replica = 0


def drop_a_stage(trainer: Any) -> None:
    """The last stage never has gradients."""
    original = trainer.forward_backward

    def forward_backward(*args: Any, **options: Any) -> float:
        loss: float = original(*args, **options)
        if len(trainer.stages) - 1 in trainer.parts:
            trainer.optimizer.zero_grad(set_to_none=True)
        return loss

    trainer.forward_backward = forward_backward


def reduce_every_micro_batch(trainer: Any) -> None:
    """DDP without no_sync: gradients stay right, communication is m-fold."""
    trainer.around_micro_batch = lambda _index: nullcontext()


def leave_norms_partial(trainer: Any) -> None:
    """No flat all-reduce: the optimizer reduces each norm gradient by itself, three times."""
    trainer.after_backward = lambda: None


def never_reshard(trainer: Any) -> None:
    """zero3 that keeps its parameters: less communication than planned, more state."""
    trainer.around_micro_batch = lambda _index: nullcontext()
    trainer.model.set_reshard_after_forward(False)
    trainer.model.set_reshard_after_backward(False)


BROKEN: Mapping[str, tuple[str, Callable[[Any], None]]] = {
    "ddp, gradients scaled": ("ddp", scale_gradients),
    "zero3, gradients scaled": ("zero3", scale_gradients),
    "tensor, gradients scaled": ("tensor", scale_gradients),
    "pipeline_1f1b, gradients scaled": ("pipeline_1f1b", scale_gradients),
    "ddp, a shard skipped": ("ddp", skip_a_shard),
    "zero2, a shard skipped": ("zero2", skip_a_shard),
    "pipeline_gpipe, a stage dropped": ("pipeline_gpipe", drop_a_stage),
    "sequence_ulysses, gradients skipped": ("sequence_ulysses", leave_sums),
    "expert, gradients skipped": ("expert", leave_sums),
    "ddp, reduced every micro-batch": ("ddp", reduce_every_micro_batch),
    "tensor_sequence, norms left partial": ("tensor_sequence", leave_norms_partial),
    "zero3, never resharded": ("zero3", never_reshard),
}


Case = tuple[str, WorkloadSpec, str, dict[str, Any], Callable[[Any], None] | None]


def cases(world_size: int) -> Iterator[Case]:
    """Label, workload, strategy, parameters, what to break. `single` comes first on each workload.

    More ranks than cores are slow, so bfloat16 and most of the broken strategies run at 2 ranks only.
    """
    others = [name for name in strategies.names() if name != "single"]
    chosen = [(TINY, others), (ODD, others), (EXPERTS, ["ddp", "expert", "pipeline_1f1b"])]
    if world_size == 2:
        chosen.append((HALF, ["ddp", "zero1", "zero3", "pipeline_1f1b", "tensor_sequence"]))
    else:
        chosen.append((DEEP, ["pipeline_interleaved", "pipeline_zbv"]))
    for spec, names in chosen:
        for name in ("single", *names):
            if not isinstance(planned(spec, name, strategies.resolve_parameters(name, {}), world_size), str):
                yield f"{spec.name}/{name}", spec, name, {}, None
    for cap in (0.01, 0.05):
        yield f"tiny/ddp at {cap}", TINY, "ddp", {"bucket_cap_mb": cap}, None
        if world_size == 2:
            yield f"odd/ddp at {cap}", ODD, "ddp", {"bucket_cap_mb": cap}, None
    for label in broken(world_size):
        name, breakage = BROKEN[label]
        yield label, EXPERTS if name == "expert" else TINY, name, {}, breakage


def broken(world_size: int) -> list[str]:
    """Labels of the broken strategies that run at this world size."""
    few = ("ddp, a shard skipped", "pipeline_gpipe, a stage dropped", "tensor_sequence, norms left partial")
    return list(BROKEN) if world_size == 2 else list(few)


def observe(
    spec: WorkloadSpec, name: str, given: dict[str, Any], breakage: Callable[[Any], None] | None, world_size: int
) -> dict[str, Any]:
    """What this rank sees of one strategy: losses, gradients at step 0, state bytes and c10d calls of one step."""
    rank, strategy = dist.get_rank(), strategies.get(name)
    parameters = strategies.resolve_parameters(name, given)
    trainer: Any = strategy.build(
        BuildContext(
            spec=spec, rank=rank, world_size=world_size, device=torch.device("cpu"), parameters=parameters
        )
    )  # fmt: skip
    if breakage is not None:
        breakage(trainer)
    seen: dict[str, Any] = {"losses": []}
    with Sidecar(trainer.axes()) as sidecar:
        for step in range(STEPS):
            inputs, targets = batch(spec, corpus(), step)
            observed = step == OBSERVED_STEP
            sidecar.step = step if observed else None
            loss = trainer.forward_backward(inputs, targets, share_loss=not observed)
            if step == 0:
                seen["gradients"] = {
                    key: None if gradient is None else gradient.float().numpy().copy()
                    for key, gradient in trainer.gradients()
                }
            trainer.optimizer_step()
            if not observed:
                seen["losses"].append(loss)
        sidecar.step = None
        seen["calls"] = msgspec.to_builtins(sidecar.calls)
    seen["state"] = [sum(part.numel() * part.element_size() for part in kind) for kind in trainer.state()]
    trainer.request(inputs[:1])
    seen["state after a request"] = [sum(p.numel() * p.element_size() for p in kind) for kind in trainer.state()]
    again = trainer.forward_backward(inputs, targets)  # a request must leave training able to go on
    seen["loss after a request"] = again
    trainer.close()
    return seen


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("output", type=Path)
    output = parser.parse_args().output
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    results: dict[str, Any] = {}
    references: dict[str, Any] = {}
    for label, spec, name, given, breakage in cases(world_size):
        seen = observe(spec, name, given, breakage, world_size)
        gradients = seen.pop("gradients")
        if rank == 0:
            gradients = {key: np.asarray(value) for key, value in gradients.items() if value is not None}
            reference = references.setdefault(spec.name, (gradients, seen["losses"]))
            errors = gradient_errors(gradients.items(), reference[0])
            seen["parity"] = msgspec.to_builtins(judge(errors, seen["losses"], reference[1], spec.dtype))
        results[label] = seen
        gc.collect()
    (output / f"rank{rank}.json").write_text(json.dumps(results))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
