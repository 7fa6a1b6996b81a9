"""The one place that knows CPU from GPU: device, backend, memory counters, synchronisation, profiler activities.

cpu with gloo is what is tested; cuda with nccl is chosen when every rank has a GPU of its own.
"""

import gc
from dataclasses import dataclass

import torch
from torch.profiler import ProfilerActivity

__all__ = ["Device", "choose_device"]


@dataclass(frozen=True)
class Device:
    """Where one rank computes and what it communicates with."""

    device: torch.device
    backend: str  # "gloo", "nccl"

    @property
    def kind(self) -> str:
        """ "cpu" or "cuda"."""
        return self.device.type

    @property
    def name(self) -> str:
        """The model name of a GPU, "cpu" otherwise."""
        return torch.cuda.get_device_name(self.device) if self.kind == "cuda" else "cpu"

    def synchronize(self) -> None:
        """Wait until all work this rank has launched is done (CPU operators return when they are done)."""
        if self.kind == "cuda":
            torch.cuda.synchronize(self.device)

    def activities(self) -> list[ProfilerActivity]:
        """What the profiler records."""
        cpu = [ProfilerActivity.CPU]
        return [*cpu, ProfilerActivity.CUDA] if self.kind == "cuda" else cpu

    def start_phase(self) -> None:
        """Forget what earlier phases left: garbage, cached blocks, peak counters."""
        gc.collect()
        if self.kind == "cuda":
            torch.cuda.synchronize(self.device)
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(self.device)

    def allocator_peak_bytes(self) -> int | None:
        """Peak of the allocator's counter since start_phase(), None on CPU, which has no such counter."""
        return torch.cuda.max_memory_allocated(self.device) if self.kind == "cuda" else None

    def allocator_bytes(self) -> int | None:
        """The allocator's counter now, None on CPU."""
        return torch.cuda.memory_allocated(self.device) if self.kind == "cuda" else None


def choose_device(local_rank: int, world_size: int) -> Device:
    """cuda:`local_rank` with nccl if every one of `world_size` ranks has a GPU, else cpu with gloo."""
    if torch.cuda.is_available() and torch.cuda.device_count() >= world_size:
        device = torch.device("cuda", local_rank)
        torch.cuda.set_device(device)
        return Device(device, "nccl")
    return Device(torch.device("cpu"), "gloo")
