"""A strategy's step on a machine, from its plan's bytes and FLOPs: rings, roofline, overlap, schedule. All predicted.

- A collective of n ranks: base + steps·α + bytes/β with the ring's steps and the bytes that one rank sends (the factors
  of NCCL's tests): all-reduce 2(n−1) steps, 2(n−1)/n·S; all-gather, reduce-scatter and all-to-all (n−1), (n−1)/n·S;
  broadcast n−1, S; a message 1, S. gloo runs a reduce-scatter as an all-reduce.
- Compute: FLOPs / (efficiency · peak), plus the traffic of weights and gradients over the memory's bandwidth, but at
  least the host's time to launch the kernels.
- Overlap, assumed where the strategy asks for it: gradient buckets under the last micro-batch's backward, each from
  when its gradients are there; with NCCL, FSDP's gathers but the first and reduce-scatters but the last under compute,
  as far as there is any. Everything else is exposed; all is, where transfers and compute share the cores.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from shardscope.measure.record import ExpectedCollective, Plan
from shardscope.selection.node_claims import Link, Machine
from shardscope.vocabulary import Axis, Kind
from shardscope.workload.shapes import element_size
from shardscope.workload.spec import WorkloadSpec

__all__ = [
    "BACKWARD_SHARE",
    "Work",
    "buckets_exposed",
    "call_seconds",
    "gathered",
    "link_of",
    "ring",
    "scattered_exposed",
    "work",
]

KERNELS_FORWARD, KERNELS_BACKWARD = 12, 36  # of one block of the model, eager
WEIGHT_PASSES = 6  # per micro-batch: weights read twice, gradients written, then added (two reads, one write)
OPTIMIZER_PASSES = 3.5  # of the moments' bytes: AdamW reads and writes weight and two moments, and reads the gradient
BACKWARD_SHARE = 2 / 3  # of the FLOPs


def ring(kind: Kind, ranks: int, size: float, backend: str) -> tuple[int, float]:
    """(steps, bytes that one rank sends) of one collective of `size` bytes S as in ExpectedCollective."""
    if ranks < 2:
        return 0, 0.0
    if kind is Kind.ALL_REDUCE or (kind is Kind.REDUCE_SCATTER and backend == "gloo"):
        return 2 * (ranks - 1), 2 * (ranks - 1) / ranks * size
    if kind in (Kind.ALL_GATHER, Kind.REDUCE_SCATTER, Kind.ALL_TO_ALL):
        return ranks - 1, (ranks - 1) / ranks * size
    if kind is Kind.SEND_RECEIVE:
        return 1, size
    return ranks - 1, size


def link_of(machine: Machine, group: Sequence[int], ranks: int, *, message: bool = False) -> Link | None:
    """What a group of ranks, spread evenly over the nodes in order, communicates over: α of the slowest hop.

    Rings of a collective use one adapter per rank of a node, as far as there are any; a message uses one.
    """
    inside = machine.link
    if inside is None:
        return None
    rate = inside.bytes_per_s * machine.link_share
    per_node = max(1, ranks // machine.nodes)
    nodes = {rank // per_node for rank in group}
    if len(nodes) < 2 or machine.network is None:
        return Link(base_s=inside.base_s, alpha_s=inside.alpha_s, bytes_per_s=rate)
    adapters = 1 if message else min(machine.network_links, max(1, len(group) // len(nodes)))
    outside = machine.network.bytes_per_s * machine.link_share * adapters
    return Link(base_s=machine.network.base_s, alpha_s=machine.network.alpha_s, bytes_per_s=min(rate, outside))


def call_seconds(line: ExpectedCollective, machine: Machine, ranks: int) -> float | None:
    """Seconds of one call of a plan's line; None without a link."""
    link = link_of(machine, line.group, ranks, message=line.kind is Kind.SEND_RECEIVE)
    if link is None:
        return None
    steps, sent = ring(line.kind, len(line.group), line.bytes / line.count, machine.backend)
    return link.base_s + steps * link.alpha_s + sent / link.bytes_per_s


@dataclass(frozen=True)
class Work:
    """Seconds of one rank: one micro-batch forward and backward, and the optimizer."""

    forward: float
    backward: float
    optimizer: float
    launch_bound: bool


def gathered(plan: Plan, rank: int) -> dict[str, float]:
    """Bytes of each group of parameters that the data axis gathers whole on `rank`, by what the plan calls it."""
    return {
        line.what: line.bytes / line.count
        for line in plan.collectives
        if line.kind is Kind.ALL_GATHER and line.axis is Axis.DATA and rank in line.group and line.count
    }


def work(spec: WorkloadSpec, plan: Plan, machine: Machine, rank: int, *, flops: float, layers: float) -> Work:
    """A rank that does `flops` per step in m micro-batches through `layers` blocks."""
    state = next(state for state in plan.state if state.rank == rank)
    m, peak = spec.micro_batches, machine.peak_flops[spec.dtype] * machine.efficiency
    weights = sum(gathered(plan, rank).values()) or float(state.parameter_bytes)
    traffic = optimizer = 0.0
    if machine.memory_bytes_per_s is not None:
        rate = machine.memory_bytes_per_s * machine.memory_share
        traffic, optimizer = weights / rate, OPTIMIZER_PASSES * state.optimizer_bytes / rate
    forward = flops / m * (1 - BACKWARD_SHARE) / peak + traffic
    backward = flops / m * BACKWARD_SHARE / peak + (WEIGHT_PASSES - 1) * traffic
    backward += forward if spec.recompute else 0.0
    least_forward, least_backward = (
        layers * kernels * machine.launch_s for kernels in (KERNELS_FORWARD, KERNELS_BACKWARD)
    )
    return Work(
        forward=max(forward, least_forward),
        backward=max(backward, least_backward),
        optimizer=optimizer,
        launch_bound=forward + backward < least_forward + least_backward,
    )


def buckets_exposed(buckets: Iterable[tuple[float, float]], backward: float) -> float:
    """What is left of gradient reductions after a backward of that length. buckets: (bytes, seconds) in their order.

    A bucket is ready when backward has made its share of the gradients; reductions follow each other.
    """
    listed = list(buckets)
    total = sum(size for size, _ in listed)
    ready = end = 0.0
    for size, seconds in listed:
        ready += backward * size / total if total else 0.0
        end = max(end, ready) + seconds
    return max(0.0, end - backward) if listed else 0.0


def scattered_exposed(gathers: Sequence[float], scatters: Sequence[float], compute: float) -> float:
    """Exposed seconds of FSDP's collectives of one step, prefetched: the first gather, the last reduce-scatter, and
    what the compute is too short to hide."""
    first = gathers[0] if gathers else 0.0
    last = scatters[-1] if scatters else 0.0
    rest = sum(gathers) + sum(scatters) - first - last
    return first + last + max(0.0, rest - compute)


def unsharded_bytes(spec: WorkloadSpec, plan: Plan, rank: int) -> float:
    """Parameters that the data axis holds gathered at the peak, with the largest group's gradients and their buffer.

    All groups where they are gathered once per step; else the largest and the one gathered ahead of it. The gradients
    of a group are there twice while they are copied into the buffer that is reduced.
    """
    groups = gathered(plan, rank)
    if not groups:
        return 0.0
    counts = [
        line.count
        for line in plan.collectives
        if line.kind is Kind.ALL_GATHER and line.axis is Axis.DATA and rank in line.group
    ]
    largest = sorted(groups.values(), reverse=True)
    kept = sum(largest) if min(counts) == 1 else sum(largest[:2])
    return kept + 2 * largest[0]


def logits_bytes(spec: WorkloadSpec, samples: float) -> float:
    """Logits, their copy in float32 and their gradient, of one micro-batch."""
    return samples * spec.sequence_length * spec.vocabulary * (2 * element_size(spec) + 4)
