"""One strategy on one machine: memory, step time, exposed transfer and bubble, from its plan."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from shardscope import strategies
from shardscope.errors import ShardscopeError
from shardscope.measure.record import ExpectedCollective, Plan
from shardscope.selection.node_claims import Machine, Missing, NodePrediction
from shardscope.selection.node_model import (
    Work,
    buckets_exposed,
    call_seconds,
    logits_bytes,
    scattered_exposed,
    unsharded_bytes,
    work,
)
from shardscope.selection.node_schedule import gpipe, one_f_one_b, play
from shardscope.strategies.pipeline import stage_layers
from shardscope.vocabulary import Axis, Kind
from shardscope.workload.shapes import block_flops, head_flops
from shardscope.workload.spec import WorkloadSpec

__all__ = ["planned", "predict", "usable_devices"]

SCHEDULES = {"gpipe": gpipe, "1f1b": one_f_one_b}


def usable_devices(spec: WorkloadSpec, names: Sequence[str], machine: Machine) -> int | None:
    """The most ranks, equally many per node, at which most of the strategies apply; None: none applies anywhere."""
    most, found = 0, None
    for ranks in range(machine.nodes * machine.devices, 1, -1):
        if ranks % machine.nodes:
            continue
        count = sum(_applies(spec, name, ranks) for name in names)
        if count > most:
            most, found = count, ranks
    return found


def _applies(spec: WorkloadSpec, name: str, ranks: int) -> bool:
    try:
        return strategies.get(name).not_applicable(spec, ranks) is None
    except (ShardscopeError, ImportError):
        return False


def planned(spec: WorkloadSpec, name: str, parameters: Mapping[str, Any], ranks: int) -> Plan | str:
    """The plan of a strategy at that many ranks, or why there is none."""
    try:
        strategy = strategies.get(name)
        chosen = strategies.resolve_parameters(name, parameters)
        return strategy.not_applicable(spec, ranks) or strategy.plan(spec, ranks, chosen)
    except (ShardscopeError, ImportError) as error:
        return str(error)


def predict(
    spec: WorkloadSpec, name: str, plan: Plan | str, machine: Machine, ranks: int, *, flops: float | None
) -> NodePrediction:
    """`plan`: at `ranks` ranks (a text: why there is none). flops: model FLOPs of one step, all ranks together."""
    if isinstance(plan, str):
        return NodePrediction(name=name, reason=plan)
    if flops is None:
        return NodePrediction(name=name, missing="flops")
    if spec.dtype not in machine.peak_flops:
        return NodePrediction(name=name, missing="peak")
    memory = _memory(spec, plan)
    result = (
        _pipeline(spec, name, plan, machine, ranks, flops) if plan.stages else _flat(spec, plan, machine, ranks, flops)
    )
    if isinstance(result, str):
        return NodePrediction(name=name, missing=result, memory_bytes=memory, fits=memory <= machine.memory_bytes)
    calls = max((_calls(plan, state.rank) for state in plan.state), default=0)
    overhead = calls * machine.call_s
    step = result["step_s"] + overhead
    return NodePrediction(
        name=name,
        memory_bytes=memory,
        fits=memory <= machine.memory_bytes,
        overhead_s=overhead,
        tokens_per_s=spec.tokens_per_step / step,
        **{**result, "step_s": step},
    )


def _memory(spec: WorkloadSpec, plan: Plan) -> float:
    """Of the fullest rank: state, activations in flight, logits, and what FSDP holds gathered."""
    most = 0.0
    active = [state for state in plan.state if state.parameter_bytes]
    # Without stages every rank makes logits, of the samples that the plan's data axis leaves it.
    data = max((len(line.group) for line in plan.collectives if line.axis is Axis.DATA), default=1)
    for state in active:
        held = float(state.parameter_bytes + state.gradient_bytes + state.optimizer_bytes)
        held += plan.activation_bytes[state.rank] if state.rank < len(plan.activation_bytes) else 0
        if not plan.stages or any(stage[-1] == state.rank for stage in plan.stages):
            held += logits_bytes(spec, spec.micro_batch_size / data)
        most = max(most, held + unsharded_bytes(spec, plan, state.rank))
    return most


def _calls(plan: Plan, rank: int) -> int:
    return sum(line.count for line in plan.collectives if rank in line.group)


def _lines(plan: Plan, rank: int) -> list[ExpectedCollective]:
    return [line for line in plan.collectives if rank in line.group and line.count]


def _flat(spec: WorkloadSpec, plan: Plan, machine: Machine, ranks: int, flops: float) -> dict[str, Any] | Missing:
    """All ranks do the same: compute, then what of the transfers is exposed."""
    active = [state.rank for state in plan.state if state.parameter_bytes]
    works = {r: work(spec, plan, machine, r, flops=flops / len(active), layers=spec.layers) for r in active}
    slowest = None
    for rank in active:
        transfer = _transfer(spec, plan, machine, ranks, rank, works[rank])
        if transfer is None:
            return "transfers"
        compute = spec.micro_batches * (works[rank].forward + works[rank].backward) + works[rank].optimizer
        found = (compute + transfer[0], compute, *transfer, works[rank].launch_bound)
        slowest = max(slowest, found) if slowest is not None else found
    assert slowest is not None
    step, compute, exposed, hidden, bound = slowest
    return {
        "step_s": step, "compute_s": compute, "transfer_s": exposed, "hidden_s": hidden, "launch_bound": bound
    }  # fmt: skip


def _transfer(
    spec: WorkloadSpec, plan: Plan, machine: Machine, ranks: int, rank: int, each: Work
) -> tuple[float, float] | None:
    """(exposed, hidden) seconds of the lines that are no pipeline messages."""
    exposed = total = 0.0
    buckets: list[tuple[float, float]] = []
    gathers: list[float] = []
    scatters: list[float] = []
    for line in _lines(plan, rank):
        if line.kind is Kind.SEND_RECEIVE:
            continue
        seconds = call_seconds(line, machine, ranks)
        if seconds is None:
            return None
        total += line.count * seconds
        if line.axis is not Axis.DATA or not machine.hides:
            exposed += line.count * seconds
        elif line.kind is Kind.ALL_REDUCE:
            buckets += [(line.bytes / line.count, seconds)] * line.count
        elif line.kind is Kind.ALL_GATHER and machine.backend == "nccl":
            gathers += [seconds] * line.count
        elif line.kind is Kind.REDUCE_SCATTER and machine.backend == "nccl":
            scatters += [seconds] * line.count
        else:
            exposed += line.count * seconds
    exposed += buckets_exposed(buckets, each.backward)
    exposed += scattered_exposed(gathers, scatters, spec.micro_batches * (each.forward + each.backward))
    return exposed, total - exposed


def _pipeline(
    spec: WorkloadSpec, name: str, plan: Plan, machine: Machine, ranks: int, flops: float
) -> dict[str, Any] | Missing:
    """The schedule played out with and without the messages' time; what other axes leave exposed is added."""
    stages = plan.stages[0]
    kind = next((kind for kind in SCHEDULES if kind in name), None)
    whole = flops / len(plan.stages)  # every pipeline has its part of the batch
    works = [
        work(spec, plan, machine, rank, flops=whole * part, layers=layers)
        for rank, (part, layers) in zip(stages, _shares(spec, len(stages), kind is not None), strict=True)
    ]
    crossing = _crossing(plan, machine, ranks)
    if crossing is None:
        return "messages"
    others = [_transfer(spec, plan, machine, ranks, rank, each) for rank, each in zip(stages, works, strict=True)]
    if any(other is None for other in others):
        return "transfers"
    extra = max(other for other in others if other is not None)
    m, bound = spec.micro_batches, any(each.launch_bound for each in works)
    forward, backward = [each.forward for each in works], [each.backward for each in works]
    optimizer = [each.optimizer for each in works]
    busy = sum(m * (f + b) for f, b in zip(forward, backward, strict=True)) / len(works)
    if kind is None:
        # A schedule that is not played out: the plan's closed form, as a share of the whole time; messages hidden.
        span = busy / (1 - (plan.bubble_fraction or 0.0))
        step = span + max(optimizer) + extra[0]
        return {
            "step_s": step, "compute_s": busy + max(optimizer), "transfer_s": extra[0], "hidden_s": extra[1],
            "bubble_s": span - busy, "launch_bound": bound,
        }  # fmt: skip
    orders = SCHEDULES[kind](len(stages), m)
    with_messages, without = play(orders, forward, backward, crossing), play(orders, forward, backward)
    step = max(end + own for end, own in zip(with_messages.finish, optimizer, strict=True))
    exposed = with_messages.makespan - without.makespan
    mean_optimizer = sum(optimizer) / len(optimizer)
    return {
        "step_s": step + extra[0],
        "compute_s": busy + mean_optimizer,
        "transfer_s": exposed + extra[0],
        "hidden_s": extra[1],
        "bubble_s": step - exposed - busy - mean_optimizer,
        "launch_bound": bound,
        "simulated": True,
    }


def _shares(spec: WorkloadSpec, stages: int, split: bool) -> list[tuple[float, float]]:
    """(share of the FLOPs, layers) of each stage; equal ones where the split is not ours or not known."""
    if not split or spec.model is not None:
        return [(1 / stages, spec.layers / stages)] * stages
    block, head = block_flops(spec), head_flops(spec)
    whole = spec.layers * block + head
    parts = [len(part) for part in stage_layers(spec, stages)]
    return [((n * block + (head if i == stages - 1 else 0)) / whole, float(n)) for i, n in enumerate(parts)]


def _crossing(plan: Plan, machine: Machine, ranks: int) -> list[float] | None:
    """Seconds of one message across each boundary of the first pipeline."""
    stages = plan.stages[0]
    found = []
    for left, right in pairwise(stages):
        line = next((line for line in plan.collectives if line.group == (left, right)), None)
        seconds = call_seconds(line, machine, ranks) if line is not None else 0.0
        if seconds is None:
            return None
        found.append(seconds)
    return found
