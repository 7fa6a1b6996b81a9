"""Who is to blame for calls that the plan does not expect: sidecars by hand. Real runs: test_audit_runs.py."""

from collections.abc import Iterable

import pytest
from msgspec import structs

from shardscope import strategies
from shardscope.measure.record import CommunicationCall, ExpectedCollective, RunRecord, StrategyRecord
from shardscope.report.evidence_audit import suspect_lines
from shardscope.selection.audit_blame import blamed
from shardscope.selection.audit_claims import AuditRow, Suspect
from shardscope.selection.claims import StrategyResult
from shardscope.selection.terms import Standing
from shardscope.strategies.accounting import make_plan, rank_state
from shardscope.vocabulary import Axis, Kind, Status
from shardscope.workload.shapes import parameter_shapes
from shardscope.workload.spec import WorkloadSpec

SPEC = WorkloadSpec(name="w", layers=2, hidden=64, heads=4, sequence_length=16, global_batch=8, micro_batches=2)
STEP = 3
VECTOR = 4 * 64
ACTIVATION = 4 * 16 * 64 * 4


def call(kind: Kind, axis: Axis, size: int, backward: bool | None = False) -> CommunicationCall:
    return CommunicationCall(step=STEP, kind=kind, axis=axis, group=(0, 1), bytes=size, op="op", backward=backward)


def suspects(
    kind: Kind,
    axis: Axis,
    expected: Iterable[ExpectedCollective],
    calls: Iterable[CommunicationCall],
    *,
    model: str | None = None,
) -> tuple[Suspect, ...]:
    state = rank_state(SPEC, 0, parameters=(1,), gradients=(1,), optimized=(1,))
    record = RunRecord(
        schema=1, status=Status.OK, reason=None, started_at="", finished_at="", workload=SPEC, baseline="ddp",
        strategy=StrategyRecord(name="x", display_name="x", shards=(), parameters={}),
        plan=make_plan(SPEC, [state], expected), communication={"0": tuple(calls)},
    )  # fmt: skip
    row = AuditRow(
        kind=kind, axis=axis, expected_count=(1,), seen_count=(2,), expected_bytes=(1,), seen_bytes=(2,), agrees=False,
        detail="differs",
    )  # fmt: skip
    record = structs.replace(record, workload=structs.replace(SPEC, model=model))
    (found,) = blamed([row], record, STEP)
    return found.suspects


def line(kind: Kind, axis: Axis, what: str, count: int, each: int) -> ExpectedCollective:
    return ExpectedCollective(kind=kind, axis=axis, group=(0, 1), count=count, bytes=count * each, what=what)


@pytest.mark.parametrize("times", [1, 3])
def test_a_flat_reduction_that_went_out_norm_by_norm(times: int) -> None:
    norms = [name for name in parameter_shapes(SPEC) if "norm" in name]
    assert len(norms) == 10
    flat = line(Kind.ALL_REDUCE, Axis.TENSOR, "norm gradients, once per step", 1, len(norms) * VECTOR)
    before = [call(Kind.ALL_GATHER, Axis.TENSOR, ACTIVATION, True)]
    each = [call(Kind.ALL_REDUCE, Axis.TENSOR, VECTOR) for _ in range(times * len(norms))]
    (found,) = suspects(Kind.ALL_REDUCE, Axis.TENSOR, [flat], before + each)
    assert (found.cause, found.times, found.count, found.each_bytes) == ("split", times, 10 * times, VECTOR)
    assert found.exact and set(found.parameters) == set(norms), "not the biases of the same size"
    assert found.phase == "after backward"


@pytest.mark.parametrize("matrices", [3, 2])
def test_input_gradients_of_query_key_and_value(matrices: int) -> None:
    unit = SPEC.layers * SPEC.micro_batches
    planned = line(Kind.ALL_REDUCE, Axis.TENSOR, "outputs and input gradients", 4 * unit, ACTIVATION)
    calls = [call(Kind.ALL_REDUCE, Axis.TENSOR, ACTIVATION, False)] * (2 * unit)
    calls += [call(Kind.ALL_REDUCE, Axis.TENSOR, ACTIVATION, True)] * ((1 + matrices) * unit)
    (found,) = suspects(Kind.ALL_REDUCE, Axis.TENSOR, [planned], calls)
    assert (found.count, found.per, found.per_count) == ((matrices - 1) * unit, "layer and micro-batch", matrices - 1)
    assert found.phase == "backward"
    if matrices == 3:
        assert found.cause == "shared_input"
        assert found.parameters[:3] == tuple(f"blocks.0.attention.{name}" for name in ("query", "key", "value"))
    else:
        assert (found.cause, found.parameters) == ("more", ()), "two of three: which, cannot be told"


def test_without_phases_the_place_stays_open() -> None:
    unit = SPEC.layers * SPEC.micro_batches
    planned = line(Kind.ALL_REDUCE, Axis.TENSOR, "outputs", 4 * unit, ACTIVATION)
    calls = [call(Kind.ALL_REDUCE, Axis.TENSOR, ACTIVATION, None)] * (6 * unit)
    (found,) = suspects(Kind.ALL_REDUCE, Axis.TENSOR, [planned], calls)
    assert (found.cause, found.phase) == ("more", None)


def test_zero1_broadcasts_of_single_parameters() -> None:
    plan = strategies.get("zero1").plan(SPEC, 2, strategies.resolve_parameters("zero1", {}))
    each = [
        call(Kind.BROADCAST, Axis.DATA, 4 * shape[0] * (shape[1] if len(shape) > 1 else 1))
        for shape in parameter_shapes(SPEC).values()
    ]
    (found,) = suspects(Kind.BROADCAST, Axis.DATA, plan.collectives, each)
    assert (found.cause, found.count, found.times) == ("split", len(each), 1)
    assert found.exact and set(found.parameters) == set(parameter_shapes(SPEC))
    assert found.what == "parameters updated by rank 0, parameters updated by rank 1"


def test_a_group_that_is_gathered_less_often_is_named() -> None:
    lines = [
        line(Kind.ALL_GATHER, Axis.DATA, "parameters of block 1", 4, 1000),
        line(Kind.ALL_GATHER, Axis.DATA, "parameters of root", 4, 700),
    ]
    calls = [call(Kind.ALL_GATHER, Axis.DATA, 1000)] * 4 + [call(Kind.ALL_GATHER, Axis.DATA, 700)] * 2
    (found,) = suspects(Kind.ALL_GATHER, Axis.DATA, lines, calls)
    assert (found.cause, found.what, found.count) == ("fewer", "parameters of root", 2)


def test_other_sizes_other_kinds_and_the_unknown() -> None:
    lines = [line(Kind.REDUCE_SCATTER, Axis.TENSOR, "outputs", 2, ACTIVATION)]
    reduced = [call(Kind.ALL_REDUCE, Axis.TENSOR, ACTIVATION, True)] * 2
    (found,) = suspects(Kind.ALL_REDUCE, Axis.TENSOR, lines, reduced)
    assert (found.cause, found.what) == ("other_kind", "outputs (reduce_scatter)")
    (found,) = suspects(Kind.ALL_REDUCE, Axis.TENSOR, [], [call(Kind.ALL_REDUCE, Axis.TENSOR, 12345)])
    assert (found.cause, found.what, found.parameters) == ("unknown", None, ())
    lines = [line(Kind.ALL_GATHER, Axis.DATA, "parameters of block 0", 4, 1000)]
    (found,) = suspects(Kind.ALL_GATHER, Axis.DATA, lines, [call(Kind.ALL_GATHER, Axis.DATA, 1008)] * 4)
    assert (found.cause, found.what, found.each_bytes, found.count) == ("resized", "parameters of block 0", 1008, 4)


def test_a_model_that_cannot_be_built_here_leaves_the_size_unknown() -> None:
    sent = [call(Kind.ALL_REDUCE, Axis.TENSOR, VECTOR)]
    (known,) = suspects(Kind.ALL_REDUCE, Axis.TENSOR, [], sent)
    (found,) = suspects(Kind.ALL_REDUCE, Axis.TENSOR, [], sent, model="not_installed_here:build")
    assert (known.cause, found.cause, found.parameters) == ("tensors", "unknown", ())


def test_calls_of_another_step_do_not_count() -> None:
    lines = [line(Kind.ALL_GATHER, Axis.DATA, "parameters", 1, 1000)]
    calls = [call(Kind.ALL_GATHER, Axis.DATA, 1000)]
    calls.append(CommunicationCall(step=9, kind=Kind.ALL_GATHER, axis=Axis.DATA, group=(0, 1), bytes=77, op="op"))
    assert suspects(Kind.ALL_GATHER, Axis.DATA, lines, calls) == ()


def test_the_evidence_says_who_is_to_blame_and_what_to_change() -> None:
    def said(suspect: Suspect) -> str:
        row = AuditRow(
            kind=Kind.ALL_REDUCE, axis=Axis.TENSOR, expected_count=(1,), seen_count=(2,), expected_bytes=(1,),
            seen_bytes=(2,), agrees=False, detail="differs", suspects=(suspect,),
        )  # fmt: skip
        fields = {
            "name": "tensor", "display_name": "t", "standing": Standing.ELIGIBLE, "reason": None, "shards": (),
            "run": None, "time_evidence": True, "no_time_reason": None, "audit": (row,),
        }  # fmt: skip
        (line,) = suspect_lines([StrategyResult(**fields)])  # type: ignore[arg-type]
        return str(line)

    text = said(
        Suspect(
            cause="split", rank=0, count=54, each_bytes=VECTOR, what="norm gradients, once per step", times=3,
            phase="after backward", parameters=("norm.weight", "norm.bias"), exact=True,
        )
    )  # fmt: skip
    assert text.startswith(
        "`tensor`, all-reduce (tensor axis): “norm gradients, once per step” went out tensor by tensor"
    )
    assert "54 calls after backward, in the optimizer, each tensor 3 times (`norm.weight`, `norm.bias`)" in text
    text = said(Suspect(cause="unknown", rank=0, count=4, each_bytes=3, per="layer|<b>", per_count=2))
    assert "2 per layer" in text and "<b>" not in text and "layer|" not in text.replace("\\|", "")
    names = tuple(f"blocks.{layer}.attention.{name}" for layer in range(4) for name in ("query", "key", "value"))
    text = said(
        Suspect(
            cause="shared_input", rank=0, count=32, each_bytes=131072, what="outputs", phase="backward",
            per="layer and micro-batch", per_count=2, parameters=names,
        )
    )  # fmt: skip
    assert "32 calls too many of 131,072 B in backward, 2 per layer and micro-batch" in text
    assert "`blocks.0.attention.query`" in text and "and 6 more" in text and "PrepareModuleInput" in text
    assert "cannot be told" in said(Suspect(cause="unknown", rank=0, count=1, each_bytes=3))
    for cause in ("more", "fewer", "resized", "tensors", "other_kind"):
        assert said(Suspect(cause=cause, rank=0, count=1, each_bytes=3, what="a|b*c", parameters=("x",))).count("|") < 2
