"""Plans by hand of the strategies beyond the first nine, and why they do not apply. Live runs: test_parity.py."""

from collections import Counter

import msgspec
import pytest

from shardscope import strategies
from shardscope.errors import ConfigError
from shardscope.measure.record import Plan
from shardscope.vocabulary import Axis, Kind
from shardscope.workload.shapes import parameter_shapes
from shardscope.workload.spec import WorkloadSpec

SPEC = WorkloadSpec(
    name="w", layers=8, hidden=64, heads=4, sequence_length=16, global_batch=16, micro_batches=4
)  # fmt: skip
EXPERTS = msgspec.structs.replace(
    SPEC, name="x", layers=2, model="shardscope.workload.experts:build",
    model_options={"experts": 4, "top": 1, "capacity_factor": 1.25},
)  # fmt: skip
M = 4
LAYER = 4 * (12 * 64**2 + 13 * 64)  # bytes
FIRST, LAST = 4 * (256 + 16) * 64, 4 * (2 * 64 + 256 * 64)
P = 8 * LAYER + FIRST + LAST
ACTIVATION = 4 * 16 * 64 * 4  # one micro-batch


def plan_of(name: str, world_size: int, spec: WorkloadSpec = SPEC) -> Plan:
    strategy = strategies.get(name)
    assert strategy.not_applicable(spec, world_size) is None
    return strategy.plan(spec, world_size, strategies.resolve_parameters(name, {}))


def totals(plan: Plan, rank: int) -> dict[tuple[Kind, Axis], tuple[int, int]]:
    """(Kind, axis) → calls and bytes per step that a rank takes part in."""
    counts: Counter[tuple[Kind, Axis]] = Counter()
    sizes: Counter[tuple[Kind, Axis]] = Counter()
    for line in plan.collectives:
        if rank in line.group:
            counts[line.kind, line.axis] += line.count
            sizes[line.kind, line.axis] += line.bytes
    return {key: (counts[key], sizes[key]) for key in counts}


@pytest.mark.parametrize("n", [2, 4])
def test_sequence_by_hand(n: int) -> None:
    calls = M * 8 * (4 + 4)
    for rank in range(n):
        assert totals(plan_of("sequence_ulysses", n), rank) == {
            (Kind.ALL_TO_ALL, Axis.SEQUENCE): (calls, calls * ACTIVATION // n),
            (Kind.ALL_REDUCE, Axis.SEQUENCE): (1, P),
        }
    state = plan_of("sequence_ulysses", n).state
    assert {(part.parameter_bytes, part.gradient_bytes) for part in state} == {(P, P)}


@pytest.mark.parametrize("n", [2, 4])
def test_expert_by_hand(n: int) -> None:
    """Per sample 4 experts of ⌈16/4 · 1.25⌉ = 5 places, 64 wide; a gate of 4 · 64 and the experts' own matrices."""
    plan = plan_of("expert", n, EXPERTS)
    calls = M * 2 * (2 + 2)
    experts = 2 * 4 * 4 * (2 * 64 * 256 + 256 + 64)  # bytes of all experts of both layers
    whole = sum(4 * _product(shape) for shape in parameter_shapes(EXPERTS).values())
    for rank in range(n):
        assert totals(plan, rank) == {
            (Kind.ALL_TO_ALL, Axis.EXPERT): (calls, calls * 4 * (4 // n) * 4 * 5 * 64),
            (Kind.ALL_REDUCE, Axis.DATA): (1, whole - experts),
        }
    assert {part.parameter_bytes for part in plan.state} == {whole - experts + experts // n}
    ddp = plan_of("ddp", n, EXPERTS)
    assert totals(ddp, 0) == {(Kind.ALL_REDUCE, Axis.DATA): (1, whole)}


def _product(shape: tuple[int, ...]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count


def test_pipelines_of_several_stages_by_hand() -> None:
    # Two ranks: three boundaries between four stages, all crossed, or the middle one inside rank 1.
    for name, boundaries in (("pipeline_interleaved", 3), ("pipeline_zbv", 2)):
        plan = plan_of(name, 2)
        calls = 2 * M * boundaries
        for rank in range(2):
            assert totals(plan, rank) == {(Kind.SEND_RECEIVE, Axis.PIPELINE): (calls, calls * ACTIVATION)}
        assert sum(part.parameter_bytes for part in plan.state) == P
        assert plan.stages == ((0, 1),)
    assert {line.group for line in plan_of("pipeline_interleaved", 4).collectives} == {
        (0, 1), (1, 2), (2, 3), (3, 0), (1, 0), (2, 1), (3, 2), (0, 3)
    }  # fmt: skip
    # The V: rank 0 holds both ends, the embeddings and the head.
    ends = plan_of("pipeline_zbv", 4).state[0].parameter_bytes
    assert ends == 2 * LAYER + FIRST + LAST


def test_zero3_tensor_by_hand() -> None:
    """tensor's volume with half the samples, zero3's with half of every cut matrix."""
    plan = plan_of("zero3_tensor", 4)
    single = 4 * (16 * 64 + 17 * 2 * 64 + 8 * 2 * 64)  # positions, norms, the biases of output and down: not cut
    held = (P - single) // 2 + single
    hidden = (4 * 8 + 2) * M
    for rank in range(4):
        assert totals(plan, rank) == {
            (Kind.ALL_REDUCE, Axis.TENSOR): (hidden, hidden * ACTIVATION // 2),
            (Kind.ALL_GATHER, Axis.TENSOR): (M, M * 2 * 16 * 256 * 4),
            (Kind.ALL_GATHER, Axis.DATA): (9 * 2 * M, 2 * M * held),
            (Kind.REDUCE_SCATTER, Axis.DATA): (9 * M, M * held),
        }
        assert plan.state[rank].parameter_bytes == held // 2
    groups = {
        line.axis: {other.group for other in plan.collectives if other.axis == line.axis} for line in plan.collectives
    }
    assert groups == {Axis.TENSOR: {(0, 1), (2, 3)}, Axis.DATA: {(0, 2), (1, 3)}}


def test_pipeline_zero3_by_hand() -> None:
    """1F1B's messages of half a micro-batch, m + 1 gathers of a stage's groups, one reduction of them."""
    plan = plan_of("pipeline_zero3", 4)
    for rank, (stage, groups) in enumerate([(4 * LAYER + FIRST, 5)] * 2 + [(4 * LAYER + LAST, 5)] * 2):
        assert totals(plan, rank) == {
            (Kind.SEND_RECEIVE, Axis.PIPELINE): (2 * M, 2 * M * ACTIVATION // 2),
            (Kind.ALL_GATHER, Axis.DATA): ((M + 1) * groups, (M + 1) * stage),
            (Kind.REDUCE_SCATTER, Axis.DATA): (groups, stage),
        }
        assert plan.state[rank].parameter_bytes == stage // 2
    assert plan.stages == ((0, 2), (1, 3))
    assert plan.bubble_fraction == pytest.approx(1 / (M + 1))


@pytest.mark.parametrize(
    ("name", "changed", "world_size", "expected"),
    [
        ("pipeline_interleaved", {"layers": 3}, 4, "layers 3 cannot be divided among 4 ranks"),
        ("pipeline_zbv", {"layers": 3}, 2, "layers 3 cannot be divided among 2 ranks, 2 stages each"),
        (
            "pipeline_interleaved",
            {"global_batch": 10, "micro_batches": 5},
            2,
            "5 cannot be divided into 2 equal rounds",
        ),
        ("pipeline_interleaved", {"micro_batches": 2}, 4, "micro_batches 2 are fewer than the 4 ranks"),
        ("pipeline_zbv", {"micro_batches": 2}, 4, "micro_batches 2 are fewer than the 4 ranks"),
        ("sequence_ulysses", {"heads": 2}, 4, "heads 2 cannot be divided by 4 ranks"),
        ("sequence_ulysses", {"sequence_length": 18}, 4, "sequence length 18 cannot be divided by 4 ranks"),
        ("expert", {}, 2, "no mixture-of-experts layers"),
        ("zero3_tensor", {}, 2, "laid out for 4 ranks, 2 data × 2 tensor; there are 2"),
        ("zero3_tensor", {"vocabulary": 257}, 4, "vocabulary 257 cannot be divided by 2"),
        ("zero3_tensor", {"micro_batches": 16}, 4, "micro-batch size 1 cannot be divided by 2"),
        ("pipeline_zero3", {}, 8, "laid out for 4 ranks, 2 stages × 2 data; there are 8"),
        ("pipeline_zero3", {"layers": 1}, 4, "layers 1 cannot be divided among 2 ranks"),
        ("pipeline_zero3", {"micro_batches": 16}, 4, "micro-batch size 1 cannot be divided by 2"),
    ],
)
def test_not_applicable(name: str, changed: dict[str, int], world_size: int, expected: str) -> None:
    reason = strategies.get(name).not_applicable(msgspec.structs.replace(SPEC, **changed), world_size)
    assert reason is not None and expected in reason


@pytest.mark.parametrize(
    ("name", "world_size", "expected"),
    [
        ("tensor", 2, "tensor_parallel_plan"),
        ("zero3_tensor", 4, "tensor_parallel_plan"),
        ("sequence_ulysses", 2, "sequence"),
        ("expert", 8, "experts 4 and micro-batch size 4 cannot be divided by 8 ranks"),
    ],
)
def test_what_a_mixture_of_experts_lacks(name: str, world_size: int, expected: str) -> None:
    reason = strategies.get(name).not_applicable(EXPERTS, world_size)
    assert reason is not None and expected in reason


@pytest.mark.parametrize(("layers", "given", "ranks"), [(8, 5, 2), (7, 2, 4), (2, 2, 2)])
def test_too_many_stages_are_told_by_the_plan(layers: int, given: int, ranks: int) -> None:
    spec = msgspec.structs.replace(SPEC, layers=layers)
    strategy = strategies.get("pipeline_interleaved")
    parameters = strategies.resolve_parameters("pipeline_interleaved", {"stages_per_rank": given})
    assert strategy.not_applicable(spec, ranks) is None
    said = f"layers {layers} cannot be divided among {ranks} ranks, {given} stages each"
    with pytest.raises(ConfigError, match=said):
        strategy.plan(spec, ranks, parameters)


def test_fewer_stages_than_the_default_fit_where_the_default_does_not() -> None:
    spec = msgspec.structs.replace(SPEC, layers=2)
    strategy = strategies.get("pipeline_interleaved")
    parameters = strategies.resolve_parameters("pipeline_interleaved", {"stages_per_rank": 1})
    assert strategy.not_applicable(spec, 2) is None and strategy.plan(spec, 2, parameters).stages
