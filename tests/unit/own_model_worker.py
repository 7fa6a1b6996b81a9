"""One rank of test_own_model.py: models from elsewhere under every strategy that they support, and recomputation."""

import argparse
import gc
import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
import torch.distributed as dist
from parity_worker import corpus, observe

from shardscope import strategies
from shardscope.measure.device import choose_device
from shardscope.measure.memory import measure_memory
from shardscope.measure.parity import gradient_errors, judge
from shardscope.measure.timing import train_step
from shardscope.selection.node_predict import planned
from shardscope.strategies.base import BuildContext
from shardscope.workload.data import batch
from shardscope.workload.spec import WorkloadSpec

SIZES: dict[str, Any] = {
    "layers": 4, "hidden": 32, "heads": 4, "sequence_length": 16, "global_batch": 16, "micro_batches": 4
}  # fmt: skip
# Activations outweigh what else a step needs, so that keeping fewer of them shows.
WIDE = WorkloadSpec(name="wide", layers=6, hidden=64, heads=4, sequence_length=128, global_batch=16, micro_batches=1)


def workloads(models: str) -> dict[str, WorkloadSpec]:
    """By name; `models` is the folder with the example of docs/own-model.md."""
    here = str(Path(__file__).parent)
    options: dict[str, bool | int | float | str] = {"key_value_heads": 2}
    return {
        "palm": WorkloadSpec(name="palm", model="own_models:palm", model_path=here, **SIZES),
        "llama": WorkloadSpec(name="llama", model="llama:build", model_path=models, model_options=options, **SIZES),
        "built-in recomputed": WorkloadSpec(name="built-in", recompute=True, **SIZES),
    }


def applicable(spec: WorkloadSpec, world_size: int) -> Iterator[str]:
    """`single` first."""
    for name in ("single", *(name for name in strategies.names() if name != "single")):
        found = planned(spec, name, strategies.resolve_parameters(name, {}), world_size)
        if not isinstance(found, str):
            yield name


def memory(spec: WorkloadSpec, name: str) -> dict[str, int]:
    """Measured state and peak of one strategy on this rank."""
    strategy = strategies.get(name)
    device = choose_device(0, dist.get_world_size())
    trainer = strategy.build(
        BuildContext(
            spec=spec, rank=dist.get_rank(), world_size=dist.get_world_size(), device=device.device,
            parameters=strategies.resolve_parameters(name, {}),
        )
    )  # fmt: skip
    step = partial(train_step, trainer, batch(spec, corpus(), 0))
    step()
    found = measure_memory(dist.get_rank(), device, step, trainer.state)
    trainer.close()
    gc.collect()
    return {"state": found.peak_bytes - found.other_bytes_at_peak, "other": found.other_bytes_at_peak}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("models")
    parser.add_argument("output", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    results: dict[str, Any] = {}
    for label, spec in workloads(given.models).items():
        reference: Any = None
        for name in applicable(spec, world_size):
            seen = results[f"{label}/{name}"] = observe(spec, name, {}, None, world_size)
            gradients = {key: np.asarray(value) for key, value in seen.pop("gradients").items() if value is not None}
            if rank == 0:
                reference = reference or (gradients, seen["losses"])
                errors = gradient_errors(gradients.items(), reference[0])
                seen["parity"] = msgspec.to_builtins(judge(errors, seen["losses"], reference[1], spec.dtype))
            gc.collect()
    for recompute in (False, True):
        results[f"memory, {recompute}"] = memory(msgspec.structs.replace(WIDE, recompute=recompute), "ddp")
    (given.output / f"rank{rank}.json").write_text(json.dumps(results))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
