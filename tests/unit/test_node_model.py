"""The node model against numbers worked out by hand."""

import math

import pytest

from shardscope import strategies
from shardscope.measure.record import ExpectedCollective, Plan
from shardscope.selection.node import profiles
from shardscope.selection.node_claims import Link, Machine
from shardscope.selection.node_here import fit_link
from shardscope.selection.node_model import buckets_exposed, call_seconds, link_of, ring, scattered_exposed
from shardscope.selection.node_predict import planned, predict, usable_devices
from shardscope.selection.node_schedule import gpipe, one_f_one_b, play
from shardscope.vocabulary import Axis, Kind
from shardscope.workload.shapes import block_flops, flops_per_step, head_flops
from shardscope.workload.spec import WorkloadSpec

SPEC = WorkloadSpec(name="w", layers=4, hidden=64, heads=4, sequence_length=16, global_batch=32, micro_batches=4)
LINK = Link(base_s=5e-6, alpha_s=1e-5, bytes_per_s=1e9)
MACHINE = Machine(
    name="m", title="m", backend="nccl", nodes=1, devices=8, peak_flops={"float32": 1e12}, efficiency=0.5,
    memory_bytes=1e9, memory_bytes_per_s=None, link=LINK, link_share=0.5,
)  # fmt: skip


def line(kind: Kind, ranks: int, size: int, count: int = 1) -> ExpectedCollective:
    return ExpectedCollective(
        kind=kind, axis=Axis.DATA, group=tuple(range(ranks)), count=count, bytes=count * size, what="x"
    )


@pytest.mark.parametrize(
    ("kind", "backend", "steps", "sent"),
    [
        (Kind.ALL_REDUCE, "nccl", 6, 12e6),
        (Kind.ALL_GATHER, "nccl", 3, 6e6),
        (Kind.REDUCE_SCATTER, "nccl", 3, 6e6),
        (Kind.REDUCE_SCATTER, "gloo", 6, 12e6),  # it runs as an all-reduce
        (Kind.ALL_TO_ALL, "gloo", 3, 6e6),
        (Kind.BROADCAST, "nccl", 3, 8e6),
        (Kind.SEND_RECEIVE, "nccl", 1, 8e6),
    ],
)
def test_rings_by_hand(kind: Kind, backend: str, steps: int, sent: float) -> None:
    assert ring(kind, 4, 8e6, backend) == (steps, sent)
    assert ring(kind, 1, 8e6, backend) == (0, 0.0)


def test_time_of_a_collective_by_hand() -> None:
    # 5 µs + 6 · 10 µs + 12 MB / (0.5 · 1 GB/s) = 65 µs + 24 ms
    assert call_seconds(line(Kind.ALL_REDUCE, 4, 8_000_000, count=3), MACHINE, 4) == pytest.approx(0.024065)


def test_two_nodes_use_an_adapter_per_device_and_a_message_uses_one() -> None:
    outside = Link(base_s=8e-6, alpha_s=2e-5, bytes_per_s=1e8)
    nodes = Machine(**{f: getattr(MACHINE, f) for f in MACHINE.__struct_fields__} | {
        "nodes": 2, "network": outside, "network_links": 3
    })  # fmt: skip
    inside = link_of(nodes, (0, 1, 2, 3), 8)
    assert inside is not None and inside.bytes_per_s == 0.5e9 and inside.alpha_s == LINK.alpha_s
    across = link_of(nodes, tuple(range(8)), 8)  # 4 of each node, 3 adapters
    assert across is not None and across.bytes_per_s == pytest.approx(3 * 0.5e8) and across.alpha_s == 2e-5
    pair = link_of(nodes, (3, 4), 8, message=True)
    assert pair is not None and pair.bytes_per_s == pytest.approx(0.5e8)


@pytest.mark.parametrize("orders", [gpipe, one_f_one_b])
@pytest.mark.parametrize(("p", "m"), [(2, 2), (2, 4), (3, 5), (4, 4), (4, 8)])
def test_equal_stages_give_the_closed_form_exactly(orders: object, p: int, m: int) -> None:
    played = play(orders(p, m), [1.0] * p, [2.0] * p)  # type: ignore[operator]
    assert played.makespan == (m + p - 1) * 3.0
    assert played.idle_fraction == pytest.approx((p - 1) / (m + p - 1), abs=1e-12)


def test_unequal_stages_by_hand() -> None:
    # GPipe: stage 1 does F0 1–3, F1 3–5, B0 5–9, B1 9–13; stage 0 B0 9–11, B1 13–15.
    assert play(gpipe(2, 2), [1, 2], [2, 4]).makespan == 15
    # 1F1B: stage 1 does F0 1–3, B0 3–7, F1 7–9, B1 9–13; stage 0 F1 1–2, B0 7–9, B1 13–15.
    played = play(one_f_one_b(2, 2), [1, 2], [2, 4])
    assert played.finish == (15, 13) and played.busy == (6, 12)
    # A message of 0.5 each way: stage 1 does F0 1.5–3.5, …, B1 9.5–13.5; stage 0 B1 14–16.
    assert play(gpipe(2, 2), [1, 2], [2, 4], [0.5]).makespan == 16
    # A slow wire: F1's message waits for F0's: they arrive at 11 and 21.
    assert play(gpipe(2, 2), [1, 1], [1, 1], [10]).finish == (44, 24)


def test_a_schedule_that_waits_for_itself_is_refused() -> None:
    with pytest.raises(ValueError, match="waits for itself"):
        play([[(True, 0), (False, 0)], [(False, 0), (True, 0)]], [1, 1], [1, 1])


def test_overlap_of_gradient_buckets_by_hand() -> None:
    assert buckets_exposed([], 10.0) == 0
    assert buckets_exposed([(1, 3.0), (1, 3.0)], 10.0) == 3.0  # ready at 5 and 10: the last is exposed
    assert buckets_exposed([(1, 8.0), (1, 8.0)], 10.0) == 11.0  # 5 → 13 → 21
    assert buckets_exposed([(3, 1.0), (1, 1.0)], 8.0) == 1.0  # ready at 6 and 8


def test_overlap_of_gathers_by_hand() -> None:
    assert scattered_exposed([1.0, 1.0], [2.0, 2.0], compute=3.0) == 3.0
    assert scattered_exposed([1.0, 1.0], [2.0, 2.0], compute=1.0) == 5.0


def test_the_link_is_found_again_from_exact_transfers() -> None:
    samples = [(steps, sent, steps * 2e-4 + sent / 5e8) for steps, sent in ((2, 1e5), (1, 3e6), (2, 2e6), (1, 6e6))]
    found = fit_link(samples)
    assert found is not None
    assert (found.alpha_s, found.bytes_per_s) == (pytest.approx(2e-4), pytest.approx(5e8))
    alone = fit_link([(2, 1e6, 1e-2)])  # one size cannot tell latency from bandwidth
    assert alone is not None and alone.bytes_per_s == pytest.approx(1e8) and alone.alpha_s == 0
    assert fit_link([(1, 1e3, 1e-3), (1, 1e6, 1e-3)]) is None  # size does not matter: no bandwidth to be told
    assert fit_link([]) is None


def test_ddp_by_hand() -> None:
    plan = planned(SPEC, "ddp", {"bucket_cap_mb": 1000.0}, 4)
    assert isinstance(plan, Plan)
    flops = flops_per_step(SPEC)
    found = predict(SPEC, "ddp", plan, MACHINE, 4, flops=flops)
    compute = flops / 4 / (0.5e12)
    (bucket,) = plan.collectives
    transfer = 5e-6 + 6e-5 + 1.5 * bucket.bytes / 0.5e9
    assert found.compute_s == pytest.approx(compute)
    assert found.transfer_s == pytest.approx(transfer), "one bucket is ready when backward ends"
    assert found.step_s == pytest.approx(compute + transfer)
    assert found.tokens_per_s == pytest.approx(512 / (compute + transfer))
    state = plan.state[0]
    logits = 8 / 4 * 16 * 256 * 12
    whole = state.parameter_bytes + state.gradient_bytes + state.optimizer_bytes + plan.activation_bytes[0] + logits
    assert found.memory_bytes == pytest.approx(whole) and found.fits


def test_pipeline_by_hand() -> None:
    plan = planned(SPEC, "pipeline_gpipe", {}, 2)
    assert isinstance(plan, Plan)
    fast = Machine(**{f: getattr(MACHINE, f) for f in MACHINE.__struct_fields__} | {
        "link": Link(base_s=0, alpha_s=0, bytes_per_s=math.inf)
    })  # fmt: skip
    flops = flops_per_step(SPEC)
    found = predict(SPEC, "pipeline_gpipe", plan, fast, 2, flops=flops)
    first, last = 2 * block_flops(SPEC) / 0.5e12, (2 * block_flops(SPEC) + head_flops(SPEC)) / 0.5e12
    # m = 4: the first forward of stage 0, all of the heavier stage 1, the last backward of stage 0.
    assert found.step_s == pytest.approx(first / 4 + last)
    assert found.simulated and found.transfer_s == 0
    assert found.compute_s == pytest.approx((first + last) / 2)
    assert found.bubble_s == pytest.approx(first / 4 + last - (first + last) / 2)


def test_sizes_of_the_host_and_of_the_memory_count() -> None:
    plan = planned(SPEC, "single", {}, 1)
    assert isinstance(plan, Plan)
    slow = Machine(**{f: getattr(MACHINE, f) for f in MACHINE.__struct_fields__} | {"launch_s": 1e-3})
    found = predict(SPEC, "single", plan, slow, 1, flops=flops_per_step(SPEC))
    assert found.launch_bound and found.step_s == pytest.approx(4 * 4 * 48 * 1e-3)
    memory = Machine(**{f: getattr(MACHINE, f) for f in MACHINE.__struct_fields__} | {"memory_bytes_per_s": 1e9})
    found = predict(SPEC, "single", plan, memory, 1, flops=flops_per_step(SPEC))
    state = plan.state[0]
    traffic = 4 * 6 * state.parameter_bytes / 1e9 + 3.5 * state.optimizer_bytes / 1e9
    assert found.step_s == pytest.approx(flops_per_step(SPEC) / 0.5e12 + traffic)


def test_what_cannot_be_predicted_says_why() -> None:
    plan = planned(SPEC, "tensor", {}, 3)
    assert isinstance(plan, str) and "heads 4" in plan
    assert predict(SPEC, "tensor", plan, MACHINE, 3, flops=1.0).reason == plan
    whole = planned(SPEC, "tensor", {}, 2)
    assert predict(SPEC, "tensor", whole, MACHINE, 2, flops=None).missing == "flops"
    unlinked = Machine(**{f: getattr(MACHINE, f) for f in MACHINE.__struct_fields__} | {"link": None})
    found = predict(SPEC, "tensor", whole, unlinked, 2, flops=1.0)
    assert found.step_s is None and found.memory_bytes and found.missing == "transfers"
    stages = planned(SPEC, "pipeline_gpipe", {}, 2)
    assert predict(SPEC, "pipeline_gpipe", stages, unlinked, 2, flops=1.0).missing == "messages"
    assert predict(SPEC, "single", planned(SPEC, "single", {}, 1), unlinked, 1, flops=1.0).step_s is not None
    half = Machine(**{f: getattr(MACHINE, f) for f in MACHINE.__struct_fields__} | {"peak_flops": {"bfloat16": 1.0}})
    assert predict(SPEC, "single", planned(SPEC, "single", {}, 1), half, 1, flops=1.0).missing == "peak"


def test_as_many_devices_as_most_strategies_can_use() -> None:
    names = ("ddp", "tensor", "pipeline_gpipe")
    assert usable_devices(SPEC, names, MACHINE) == 4  # 4 heads, 4 layers; ddp alone could use 8
    assert usable_devices(SPEC, ("ddp",), MACHINE) == 8
    assert usable_devices(SPEC, ("tensor",), profiles()[2]) == 4  # two nodes: a multiple of 2
    tiny = WorkloadSpec(name="w", layers=1, hidden=3, heads=3, sequence_length=5, global_batch=1, micro_batches=1)
    assert usable_devices(tiny, ("ddp",), MACHINE) is None


@pytest.mark.parametrize("name", strategies.names())
def test_every_strategy_is_predicted_on_every_profile(name: str) -> None:
    spec = WorkloadSpec(
        name="big", layers=16, hidden=2048, heads=16, sequence_length=1024, global_batch=256, micro_batches=16,
        vocabulary=32768, dtype="bfloat16",
    )  # fmt: skip
    for machine in profiles():
        ranks = 1 if name == "single" else machine.nodes * machine.devices
        plan = planned(spec, name, {}, ranks)
        found = predict(spec, name, plan, machine, ranks, flops=flops_per_step(spec))
        if isinstance(plan, str):
            assert found.reason == plan and found.missing is None
            continue
        assert (
            found.reason is None and found.missing is None and found.step_s is not None and found.compute_s is not None
        )
        parts = found.compute_s + (found.transfer_s or 0) + (found.bubble_s or 0) + (found.overhead_s or 0)
        assert found.step_s == pytest.approx(parts, rel=1e-6)
        assert found.step_s >= flops_per_step(spec) / ranks / machine.peak_flops["bfloat16"], "faster than the peak"
