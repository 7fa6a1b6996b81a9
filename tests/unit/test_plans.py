"""Plans by hand, the registry, the reasons why a strategy does not apply. Live runs against plans: test_parity.py."""

import importlib
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from shardscope import strategies
from shardscope.errors import ConfigError
from shardscope.measure.record import Plan
from shardscope.strategies.ddp import bucket_sizes, gradient_order, greedy_partition
from shardscope.strategies.pipeline import stage_layers
from shardscope.vocabulary import Axis, Kind
from shardscope.workload.shapes import parameter_shapes
from shardscope.workload.spec import WorkloadSpec

SIZES = {"layers": 4, "hidden": 64, "heads": 4, "sequence_length": 16, "global_batch": 16, "micro_batches": 4}
ALL = (
    "ddp", "pipeline_1f1b", "pipeline_gpipe", "single", "tensor", "tensor_sequence", "zero1", "zero2", "zero3"
)  # fmt: skip


def spec_of(**changed: int) -> WorkloadSpec:
    return WorkloadSpec(name="w", **{**SIZES, **changed})  # type: ignore[arg-type]


SPEC = spec_of()
LAYER = 12 * 64**2 + 13 * 64
ROOT = (256 + 16) * 64 + 2 * 64 + 256 * 64
P = 4 * (4 * LAYER + ROOT)  # bytes of all parameters
TENSORS = 4 * 16 + 5
ACTIVATION = 4 * 16 * 64 * 4  # one micro-batch: samples · sequence · hidden · 4 bytes


def plan_of(name: str, world_size: int, spec: WorkloadSpec = SPEC) -> Plan:
    return strategies.get(name).plan(spec, world_size, strategies.resolve_parameters(name, {}))


def totals(plan: Plan) -> dict[Kind, tuple[int, int]]:
    """Kind → calls and bytes per step."""
    counts: Counter[Kind] = Counter()
    sizes: Counter[Kind] = Counter()
    for line in plan.collectives:
        counts[line.kind] += line.count
        sizes[line.kind] += line.bytes
    return {kind: (counts[kind], sizes[kind]) for kind in counts}


@pytest.mark.parametrize("n", [2, 4])
def test_communication_by_hand(n: int) -> None:
    m, per_layer = 4, 4 * 4
    hidden = (per_layer + 2) * m
    logits = 4 * 16 * 256 * 4
    groups = 5  # four blocks and the root
    assert totals(plan_of("single", n)) == {}
    assert totals(plan_of("ddp", n))[Kind.ALL_REDUCE][1] == P
    assert totals(plan_of("zero1", n)) == {**totals(plan_of("ddp", n)), Kind.BROADCAST: (n, P)}
    assert totals(plan_of("zero2", n)) == {Kind.ALL_GATHER: (groups, P), Kind.REDUCE_SCATTER: (groups * m, P * m)}
    assert totals(plan_of("zero3", n)) == {
        Kind.ALL_GATHER: (groups * 2 * m, P * 2 * m),
        Kind.REDUCE_SCATTER: (groups * m, P * m),
    }
    assert totals(plan_of("tensor", n)) == {
        Kind.ALL_REDUCE: (hidden, hidden * ACTIVATION),
        Kind.ALL_GATHER: (m, m * logits),
    }
    assert totals(plan_of("tensor_sequence", n)) == {
        Kind.ALL_GATHER: (hidden + m, hidden * ACTIVATION + m * logits),
        Kind.REDUCE_SCATTER: (hidden, hidden * ACTIVATION),
        Kind.ALL_REDUCE: (1, (2 * 4 + 1) * 2 * 64 * 4),
    }
    for name in ("pipeline_gpipe", "pipeline_1f1b"):
        messages = 2 * m * (n - 1)
        assert totals(plan_of(name, n)) == {Kind.SEND_RECEIVE: (messages, messages * ACTIVATION)}


@pytest.mark.parametrize("n", [2, 4])
def test_state_by_hand(n: int) -> None:
    steps = 4 * TENSORS  # one step counter per tensor

    def bytes_of(name: str) -> list[tuple[int, int, int]]:
        state = plan_of(name, n).state
        assert [part.rank for part in state] == list(range(n))
        return [(part.parameter_bytes, part.gradient_bytes, part.optimizer_bytes) for part in state]

    assert bytes_of("single") == [(P, P, 2 * P + steps)] + [(0, 0, 0)] * (n - 1)
    assert bytes_of("ddp") == [(P, P, 2 * P + steps)] * n
    assert bytes_of("zero2") == bytes_of("zero3") == [(P // n, P // n, 2 * P // n + steps)] * n
    zero1 = bytes_of("zero1")
    assert all(part[:2] == (P, P) for part in zero1) and sum(part[2] for part in zero1) == 2 * P + steps
    for name in ("pipeline_gpipe", "pipeline_1f1b"):
        assert [sum(column) for column in zip(*bytes_of(name), strict=True)] == [P, P, 2 * P + steps]
    # On every rank: norms, the biases of output and down, positions (unless the sequence is cut).
    whole = 4 * (9 * 2 * 64 + 4 * 2 * 64)
    positions = 4 * 16 * 64
    for name, uncut in (("tensor", whole + positions), ("tensor_sequence", whole)):
        held = (P - uncut) // n + uncut
        assert bytes_of(name) == [(held, held, 2 * held + steps)] * n


def test_axes_groups_and_closed_forms() -> None:
    for name in ALL:
        plan = plan_of(name, 4)
        axis = {"t": Axis.TENSOR, "p": Axis.PIPELINE}.get(name[0], Axis.DATA)
        assert {line.axis for line in plan.collectives} <= {axis}
        pipeline = name.startswith("pipeline")
        assert plan.stages == (((0, 1, 2, 3),) if pipeline else ())
        assert plan.bubble_fraction == (pytest.approx(3 / 7) if pipeline else None)
        if pipeline:
            pairs = Counter({(0, 1): 4, (1, 0): 4, (1, 2): 4, (2, 1): 4, (2, 3): 4, (3, 2): 4})
            assert Counter({line.group: line.count for line in plan.collectives}) == pairs
        else:
            assert all(line.group == (0, 1, 2, 3) for line in plan.collectives)
    # Micro-batches in flight: GPipe all of them, 1F1B one per stage still to come.
    flight = {name: plan_of(name, 4).activation_bytes for name in ("pipeline_gpipe", "pipeline_1f1b")}
    assert [a / b for a, b in zip(*flight.values(), strict=True)] == [4 / 4, 4 / 3, 4 / 2, 4 / 1]


@pytest.mark.parametrize(
    ("changed", "stages", "expected"),
    [
        ({}, 2, [2, 2]),
        ({}, 4, [1, 1, 1, 1]),
        ({"layers": 3}, 2, [2, 1]),  # the head goes to the lighter stage
        ({"vocabulary": 4096}, 2, [3, 1]),  # a head of several layers' weight
        ({"layers": 10}, 4, [2, 3, 3, 2]),
    ],
)
def test_stages_are_balanced_with_the_head(changed: dict[str, int], stages: int, expected: list[int]) -> None:
    layers = stage_layers(spec_of(**changed), stages)
    assert [len(part) for part in layers] == expected
    assert [index for part in layers for index in part] == list(range(spec_of(**changed).layers))


def test_buckets_close_once_full() -> None:
    sizes = bucket_sizes(SPEC, 0.1)
    assert sum(sizes) == P and len(sizes) > 5
    assert all(size >= int(0.1 * 2**20) for size in sizes[:-1])
    assert bucket_sizes(SPEC, 1000) == [P]
    assert sorted(gradient_order(SPEC)) == sorted(parameter_shapes(SPEC))


def test_greedy_partition() -> None:
    assert greedy_partition([5, 9, 4, 4], 2) == [[9, 4], [5, 4]]


@pytest.mark.parametrize(
    ("name", "changed", "world_size", "expected"),
    [
        ("tensor", {"heads": 2}, 4, "heads 2 cannot be divided by 4 ranks"),
        ("tensor", {"vocabulary": 257}, 2, "vocabulary 257 cannot be divided by 2 ranks"),
        ("tensor_sequence", {"sequence_length": 18}, 4, "sequence length 18 cannot"),
        ("tensor_sequence", {"sequence_length": 18, "heads": 2}, 4, "heads 2 and sequence length 18 cannot"),
        ("ddp", {"global_batch": 8}, 4, "micro-batch size 2 cannot be divided by 4 ranks"),
        ("zero1", {}, 3, "micro-batch size 4 cannot be divided by 3 ranks"),
        ("zero2", {}, 3, "micro-batch size 4 cannot"),
        ("zero3", {}, 3, "micro-batch size 4 cannot"),
        ("pipeline_gpipe", {"layers": 2}, 4, "layers 2 cannot be divided among 4 ranks"),
        ("pipeline_1f1b", {"micro_batches": 2}, 4, "micro_batches 2 are fewer than the 4 ranks"),
        ("pipeline_gpipe", {"micro_batches": 2}, 4, None),
        ("pipeline_gpipe", {}, 1, "at least 2 ranks"),
        ("ddp", {}, 1, "at least 2 ranks"),
        ("tensor_sequence", {}, 1, "at least 2 ranks"),
        ("single", {"heads": 1}, 7, None),
    ],
)
def test_not_applicable(name: str, changed: dict[str, int], world_size: int, expected: str | None) -> None:
    reason = strategies.get(name).not_applicable(spec_of(**changed), world_size)
    assert (reason is None) if expected is None else (reason is not None and expected in reason)


RENAMED = "from shardscope.strategies.ddp import DDP\nclass T(DDP):\n    name = '{}'\nSTRATEGIES = (T(),)"


def test_registry() -> None:
    assert set(ALL) < set(strategies.names()) and list(strategies.names()) == sorted(strategies.names())
    for name in strategies.names():
        strategy = strategies.get(name)
        assert strategy.name == name and strategy.display_name and strategy.memory_formula
    with pytest.raises(
        ConfigError, match=r"unknown strategy 'zero4' \(did you mean 'zero[123]'\?\); known: ddp, .*zero3"
    ):
        strategies.get("zero4")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x = (", r"strategies/broken.py cannot be imported \(SyntaxError: "),
        ("import no_such_module", "No module named 'no_such_module'"),
        ("from shardscope.strategies.ddp import DDP\nSTRATEGIES = (DDP,)", "is a class, not an object"),
        ("class T: name = 't'\nSTRATEGIES = (T(),)", "lacks display_name, shards"),
        (RENAMED.format("../up"), r"'\.\./up' cannot be a strategy's name"),
        (RENAMED.format("checked"), "'checked' cannot be a strategy's name"),
        (RENAMED.format("ddp"), "strategy ddp is defined in"),
    ],
)
def test_a_broken_strategy_file_is_one_line(tmp_path: Path, text: str, expected: str) -> None:
    (tmp_path / "broken.py").write_text(text, encoding="utf-8")
    before = list(strategies.__path__)
    strategies._registry.cache_clear()
    strategies.__path__.append(str(tmp_path))
    try:
        with pytest.raises(ConfigError, match=expected):
            strategies.names()
    finally:
        strategies.__path__[:] = before
        strategies._registry.cache_clear()
        sys.modules.pop("shardscope.strategies.broken", None)


@pytest.mark.parametrize(
    ("name", "given", "expected"),
    [
        ("ddp", {"bucket_cap_mb": 10**400}, "must be a positive number, 10^9 at most"),
        ("ddp", {"bucket_cap_mb": float("nan")}, "must be a positive number, 10^9 at most"),
        ("ddp", {"bucket_cap": 4}, "no parameter bucket_cap (did you mean 'bucket_cap_mb'?); it takes: bucket_cap_mb"),
        ("ddp", {"bucket_cap_mb": "4"}, "bucket_cap_mb must be a positive number, 10^9 at most, not '4'"),
        ("ddp", {"bucket_cap_mb": True}, "must be a positive number, 10^9 at most, not True"),
        ("zero1", {"bucket_cap_mb": 0}, "must be a positive number, 10^9 at most, not 0"),
        ("tensor", {"degree": 2}, "it takes: none"),
    ],
)
def test_bad_parameters(name: str, given: dict[str, object], expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        strategies.resolve_parameters(name, given)
    assert expected in str(caught.value)


def test_parameters_reach_the_plan() -> None:
    assert strategies.resolve_parameters("ddp", {}) == {"bucket_cap_mb": 2.0}
    parameters = strategies.resolve_parameters("ddp", {"bucket_cap_mb": 1})
    assert sum(line.count for line in strategies.get("ddp").plan(SPEC, 2, parameters).collectives) == len(
        bucket_sizes(SPEC, 1)
    )


def test_digest_files() -> None:
    def files(name: str) -> set[str]:
        return {path.name for path in strategies.source_files(name)}

    assert files("tensor") == {"tensor.py", "accounting.py", "base.py"}
    assert files("zero2") == files("zero3") == {"fsdp.py", "accounting.py", "base.py"}


def test_one_new_file_adds_a_strategy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").write_text(
        "from shardscope.strategies.single import Single\n"
        "class Mine(Single):\n    name = 'mine'\nSTRATEGIES = (Mine(),)\n"
    )
    monkeypatch.setattr(strategies, "__path__", [*strategies.__path__, str(tmp_path)])
    strategies._registry.cache_clear()
    try:
        importlib.invalidate_caches()
        assert "mine" in strategies.names()
        assert {path.name for path in strategies.source_files("mine")} == {
            "mine.py", "single.py", "accounting.py", "base.py"
        }  # fmt: skip
    finally:
        strategies._registry.cache_clear()
        sys.modules.pop("shardscope.strategies.mine", None)


def test_plans_need_no_torch() -> None:
    code = (
        "import sys; from shardscope import strategies; from shardscope.workload.spec import WorkloadSpec\n"
        "from shardscope.selection.node_predict import planned\n"
        f"spec = WorkloadSpec(name='w', **{SIZES!r})\n"
        "for name in strategies.names():\n"
        "    for n in (2, 4):\n"
        "        planned(spec, name, strategies.resolve_parameters(name, {}), n)\n"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
