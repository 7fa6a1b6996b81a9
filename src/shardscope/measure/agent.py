"""torchrun for one job: settles the world size, then starts the ranks and says how each that failed ended.

Started by launch.py as `python -m shardscope.measure.agent FOLDER PARENT`. It is `python -m torch.distributed.run
--standalone` called as a library, because only there are exit codes and signals of single ranks to be had as data.
"""

import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

import msgspec
import torch
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.run import parse_args, run

from shardscope.errors import ConfigError, MeasurementError
from shardscope.measure.environment import inspect_machine, resolve_world_size, threads_per_rank
from shardscope.measure.job import (
    AGREED_FILE,
    EXITS_FILE,
    JOB_FILE,
    Agreed,
    Job,
    RankExit,
    RankExits,
    read_json,
    write_json,
)
from shardscope.measure.lifetime import end_with_parent
from shardscope.measure.resolve import find_strategy
from shardscope.workload.shapes import flops_per_step

__all__ = ["main"]


def main(folder: Path, parent: int) -> int:
    """Run the job described in `folder`. Returns an exit status; what happened is in the files of `folder`."""
    end_with_parent(parent, signal.SIGTERM)
    job = read_json(folder / JOB_FILE, Job)
    agreed = _agree(job)
    write_json(folder / AGREED_FILE, agreed)
    if agreed.refused is not None:
        print(agreed.refused, file=sys.stderr)
        return 1
    if agreed.not_applicable is not None:
        return 0
    os.environ["OMP_NUM_THREADS"] = str(agreed.threads_per_rank)
    os.environ["SHARDSCOPE_AGENT"] = str(os.getpid())
    if Path("/sys/class/net/lo").exists():
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # one machine: the host name need not resolve
    options = ["--standalone", f"--nproc-per-node={agreed.world_size}", "--max-restarts=0"]
    try:
        run(parse_args([*options, "-m", "shardscope.measure.worker", str(folder)]))  # type: ignore[no-untyped-call]
    except ChildFailedError as error:
        exits = tuple(
            RankExit(
                rank=rank,
                exit_code=failure.exitcode if failure.exitcode >= 0 else None,
                signal=signal.Signals(-failure.exitcode).name if failure.exitcode < 0 else None,
                time_s=failure.timestamp,
            )
            for rank, failure in error.failures.items()
        )
        with suppress(MeasurementError):  # on a full disk the ranks' own errors must do
            write_json(folder / EXITS_FILE, RankExits(exits=exits))
        return 1
    return 0


def _agree(job: Job) -> Agreed:
    """World size, threads, and whether the strategy applies there."""
    machine = inspect_machine()
    alone = Agreed(
        world_size=1,
        threads_per_rank=machine.cores_for_ranks,
        not_applicable=None,
        baseline_not_applicable=None,
        plan=None,
    )
    try:
        flops = flops_per_step(job.spec)
    except ConfigError as error:  # an own model that cannot be imported or built
        return msgspec.structs.replace(alone, refused=str(error))
    if job.mode == "reference":
        return alone
    size = resolve_world_size(job.settings.world_size, torch.cuda.device_count(), machine)
    strategy = find_strategy(job.strategy)
    reason, plan = strategy.not_applicable(job.spec, size), None
    if reason is None:
        try:
            plan = strategy.plan(job.spec, size, job.parameters)
        except ConfigError as error:  # the strategy applies, but not with these parameters
            reason = str(error)
    if reason is not None and size == 1 and job.settings.world_size == "auto":
        # Not a claim about this strategy: one GPU holds one rank.
        reason += "; this machine has one GPU, where only `single` is measured; measure.world_size: 2 takes CPU ranks"
    return Agreed(
        world_size=size,
        threads_per_rank=threads_per_rank(size, machine),
        not_applicable=reason,
        baseline_not_applicable=find_strategy(job.baseline).not_applicable(job.spec, size),
        plan=plan,
        flops_per_step=flops,
    )


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1]), int(sys.argv[2])))
