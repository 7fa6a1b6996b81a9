"""One rank's surroundings during a job: process group, device, clock, models alive, progress."""

import gc
import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import torch
import torch.distributed as dist

from shardscope.errors import MeasurementError
from shardscope.measure.device import Device, choose_device
from shardscope.measure.environment import Machine, inspect_machine, versions
from shardscope.measure.job import LOG_PREFIX, Agreed, Job, RankPhase, write_json
from shardscope.measure.peak import copy_bytes_per_s
from shardscope.measure.progress import Reporter
from shardscope.measure.rate import check_rate
from shardscope.measure.record import Environment, RateCheck, WireCount
from shardscope.measure.resolve import find_strategy
from shardscope.measure.timing import Batch, Clock
from shardscope.measure.wire import count_wire
from shardscope.strategies.base import BuildContext, Trainer
from shardscope.workload.data import batch, load_corpus

__all__ = ["SIMULATED_OOM", "Session", "is_allocation_error"]

# For tests of what happens when memory is short: names of strategies that "do not fit", or "together" when two models
# alive at the same time "do not fit". Comma-separated.
SIMULATED_OOM = "SHARDSCOPE_SIMULATE_OOM"

_BATCHES = 4  # timed steps go round these


class Session:
    """Initialises the process group; `close` destroys it."""

    def __init__(self, job: Job, agreed: Agreed) -> None:
        self.job, self.agreed = job, agreed
        self.rank, self.world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.folder = Path(job.folder)
        self.alive: list[str] = []
        self.wire: WireCount | None = None
        self.phase_name = "start"
        self._started = time.monotonic()
        self.enter("start")
        self._reporter = Reporter(self.folder) if self.rank == 0 else None
        self.tell("starting")
        self.machine: Machine = inspect_machine()
        torch.set_num_threads(agreed.threads_per_rank)
        self.device: Device = choose_device(int(os.environ["LOCAL_RANK"]), self.world_size)
        dist.init_process_group(self.device.backend)
        self.control = dist.new_group(backend="gloo")  # measuring must not use the group that is measured
        self.clock = Clock(self.device, self.control)
        self.memory_bytes_per_s = copy_bytes_per_s(self.device, self.control) if job.mode != "reference" else None
        self.rate_check = self._check_rate()
        self.corpus = load_corpus(job.spec)
        self.timed_batches = [self.batch(step) for step in range(_BATCHES)]
        gc.collect()
        gc.freeze()  # torch's own objects never die: collecting between timed steps need not look at them
        self.log(
            f"{job.strategy}: {self.world_size} ranks, {agreed.threads_per_rank} threads each, {self.device.kind}, "
            f"{self.device.backend}, pid {os.getpid()}"
        )

    def close(self) -> None:
        """Leave the process group."""
        dist.destroy_process_group()

    def _check_rate(self) -> RateCheck | None:
        rate = self.job.settings.rate_mbit
        if rate is None or self.job.mode == "reference":
            return None
        if self.device.backend != "gloo":
            raise MeasurementError(
                f"measure.rate_mbit: an emulated rate acts on the loopback, which {self.device.backend} does not use; "
                "remove it, or hide the GPUs with CUDA_VISIBLE_DEVICES="
            )
        check = check_rate(self.control, rate)
        if check is not None:
            ideal = check.loopback_bytes * 8 / rate / 1e6
            self.log(f"emulated {rate:g} Mbit/s: all-reduce in {check.took_ns / 1e9:.3f} s, by its bytes {ideal:.3f} s")
        return check

    def count_wire(self, step: Callable[[], None]) -> None:
        """Some steps more, on all ranks, for the bytes that they put on the loopback."""
        self.wire = count_wire(self.device.backend, self.clock, step)

    def enter(self, phase: str) -> None:
        """Say on disk what this rank does from now on, so that it is known should it die."""
        self.phase_name = phase
        message = RankPhase(rank=self.rank, pid=os.getpid(), phase=phase, alive=tuple(self.alive))
        write_json(self.folder / f"rank{self.rank}.phase.json", message)

    def log(self, text: str) -> None:
        """One line of the log, from rank 0. Lost where the log cannot be written: it is no part of the result."""
        if self.rank == 0:
            seconds = time.monotonic() - self._started
            with suppress(OSError):
                sys.stdout.write(f"{LOG_PREFIX} {seconds:6.1f} s  {self.phase_name}: {text}\n")
                sys.stdout.flush()

    def tell(self, phase: str, done: int = 0) -> None:
        """How far the job is, for whoever watches it, from rank 0. Not to be called while a clock runs."""
        if self._reporter is not None:
            self._reporter.tell(phase, done)

    def batch(self, step: int) -> Batch:
        """Inputs and targets of a training step, on the device."""
        inputs, targets = batch(self.job.spec, self.corpus, step)
        return inputs.to(self.device.device), targets.to(self.device.device)

    def build(self, role: str) -> Trainer:
        """Build "candidate" or "baseline" on all ranks."""
        candidate = role == "candidate"
        name = self.job.strategy if candidate else self.job.baseline
        self.alive.append(role)
        self.enter(self.phase_name)
        _simulate_shortage(name, len(self.alive))
        return find_strategy(name).build(
            BuildContext(
                spec=self.job.spec,
                rank=self.rank,
                world_size=self.world_size,
                device=self.device.device,
                parameters=self.job.parameters if candidate else self.job.baseline_parameters,
            )
        )

    def release(self, role: str, trainer: Trainer) -> None:
        """Free a model. The caller must drop its own reference."""
        trainer.close()
        self.alive.remove(role)
        gc.collect()
        self.device.start_phase()

    def environment(self) -> Environment:
        """Facts that the numbers depend on."""
        ranks_fit = torch.cuda.device_count() if self.device.kind == "cuda" else self.machine.cores_for_ranks
        return Environment(
            host=self.machine.host,
            cpu=self.machine.cpu,
            physical_cores=self.machine.physical_cores,
            usable_cores=self.machine.usable_cores,
            world_size=self.world_size,
            threads_per_rank=self.agreed.threads_per_rank,
            device=self.device.kind,
            device_names=(self.device.name,) if self.device.kind == "cuda" else (self.machine.cpu,),
            backend=self.device.backend,
            memory_bytes=self.machine.memory_bytes,
            versions=versions(),
            oversubscribed=self.world_size > ranks_fit,
            rate_mbit=self.job.settings.rate_mbit,
            rate_check=self.rate_check,
        )


def is_allocation_error(error: BaseException | None) -> bool:
    """Whether torch's allocator, and nothing else, is at the root of an exception."""
    while error is not None:
        if isinstance(error, torch.OutOfMemoryError):
            return True
        if isinstance(error, RuntimeError) and "DefaultCPUAllocator" in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False


def _simulate_shortage(name: str, models_alive: int) -> None:
    short = os.environ.get(SIMULATED_OOM, "").split(",")
    if name in short or ("together" in short and models_alive > 1):
        raise torch.OutOfMemoryError(f"simulated by {SIMULATED_OOM}: no memory for {name}")
