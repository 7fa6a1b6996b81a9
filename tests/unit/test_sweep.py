"""The sweep on made-up runs of known truth: points, winners, predictions, crossovers, verdicts, both documents."""

import math
import re
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from selection_runs import ENVIRONMENT, MB, SPEC, Fake, write

from shardscope import strategies
from shardscope.errors import ConfigError
from shardscope.measure.record import RateCheck
from shardscope.measure.settings import MeasureSettings
from shardscope.report.api import render
from shardscope.report.conditions import render_conditions
from shardscope.selection.api import decide
from shardscope.selection.conditions_report import analyse
from shardscope.selection.decision import save as save_decision
from shardscope.selection.sweep import Sweep, expand
from shardscope.selection.sweep_claims import AxisResult, ConditionsResult, save
from shardscope.selection.sweep_cross import Step, crossings
from shardscope.selection.sweep_predict import planned_sent_bytes
from shardscope.selection.terms import Constraints
from shardscope.strategies import resolve_parameters
from shardscope.vocabulary import Axis, Kind, Status

FLOPS = 20_000_000_000
# The baseline has no run of its own at a point: there its plan comes from the strategy, so here as well.
DDP_BYTES = sum(e.bytes for e in strategies.get("ddp").plan(SPEC, 2, resolve_parameters("ddp", {})).collectives)
DDP = {Kind.ALL_REDUCE: (Axis.DATA, 20.0, 0.0, 10.0)}
SEND = {Kind.SEND_RECEIVE: (Axis.PIPELINE, 4.0, 0.0, 0.0)}


def sweep_of(axes: dict[str, Any], **section: Any) -> Sweep:
    chosen = ("single", "ddp", "pipeline_1f1b", "tensor")
    return expand(
        {"strategies": ["ddp", "pipeline_1f1b"], "axes": axes, **section},
        workloads={"gpt3m": SPEC},
        chosen=chosen,
        parameters={name: resolve_parameters(name, {}) for name in chosen},
        baseline="ddp",
        settings=MeasureSettings(),
    )


def ddp_at(flops: float, *, rate: float | None = None) -> float:
    """What the rescaled ledger says ddp takes, in ms: 20 exposed and 10 hidden of transfer, 80 compute."""
    moved = 30.0 if rate is None else max(30.0, 2 * DDP_BYTES * 8e3 / rate / 1e6)
    return 80 * flops + moved - min(moved / 3, 10 * flops)


def pipeline_at(flops: float, *, micro: float = 1.0, rate: float | None = None) -> float:
    """As much compute, 16 of bubble, 4 of transfer: ahead of ddp at the base, where ddp takes 100 and this 98."""
    moved = 4.0 * flops if rate is None else max(4.0, 4 * MB * 8e3 / rate / 1e6)
    return 78 * flops + 16 * flops / micro + moved


def runs_of(
    root: Path,
    sweep: Sweep,
    truth: dict[str, tuple[float, float, float]],
    *,
    never: tuple[str, ...] = (),
    **common: Any,
) -> ConditionsResult:
    """Write base and points and analyse. truth: workload → (FLOPs ratio, ddp ms, pipeline ms)."""
    base = [
        Fake("single", step=180, compute=172, noise=0.002),
        Fake("ddp", step=ddp_at(1), compute=80, parts=DDP, plan_bytes=DDP_BYTES, noise=0.002),
        Fake("pipeline_1f1b", step=98, base=100, compute=78, parts=SEND, bubble=16, noise=0.002),
        Fake("tensor", step=200, compute=90, parts={Kind.ALL_REDUCE: (Axis.TENSOR, 50, 0, 0)}, noise=0.002),
    ]
    decision = decide("gpt3m", write(root, base), Constraints(require_convergence=False))
    for name, point in sweep.points.items():
        flops, ddp, pipeline = truth[name]
        rate = point.settings.rate_mbit
        check = (
            RateCheck(payload_bytes=8 * MB, loopback_bytes=16 * MB, took_ns=round(16 * MB * 8e3 / rate * 1.01))
            if rate
            else None
        )
        environment = structs.replace(ENVIRONMENT, rate_mbit=rate, rate_check=check)
        fields = {
            "base": ddp, "spec": point.spec, "flops": round(FLOPS * flops), "environment": environment, "noise": 0.002,
            "triples": 15, **common,
        }  # fmt: skip
        for strategy in point.strategies:
            step = ddp if strategy == "ddp" else pipeline
            parts, size = (DDP, 4 * MB) if strategy == "ddp" else (SEND, round(4 * MB * flops))
            write(root, [Fake(strategy, step=step, parts=parts, plan_bytes=size, compute=1.0, **fields)])
    if never:
        answer = structs.replace(decision.recommendation, name="ddp")
        decision = structs.replace(decision, recommendation=answer, never_overtakes=never, opportunities=())
    return analyse(sweep, decision, root / "traces")


def batches(root: Path, **common: Any) -> tuple[ConditionsResult, AxisResult]:
    sweep = sweep_of({"global_batch": [8, 32, 64]})
    truth = {f"gpt3m-batch{b}": (b / 16, ddp_at(b / 16), pipeline_at(b / 16)) for b in (8, 32, 64)}
    result = runs_of(root, sweep, truth, **common)
    return result, result.axes[0]


def test_points_are_workloads_with_stable_names() -> None:
    sweep = sweep_of(
        {"global_batch": [8, 16], "rate_mbit": [0.5e3], "strategy_parameters": {"ddp": {"bucket_cap_mb": [0.5, 2.0]}}},
        measure={"triples": 5},
    )
    assert list(sweep.points) == ["gpt3m-batch8", "gpt3m-rate500", "gpt3m-ddp-bucket_cap_mb0p5"]
    batch, rate, bucket = sweep.points.values()
    assert batch.spec == structs.replace(SPEC, name="gpt3m-batch8", global_batch=8)
    assert batch.strategies == ("pipeline_1f1b",) and batch.settings == MeasureSettings(triples=5)
    assert rate.settings == MeasureSettings(triples=5, rate_mbit=500)
    assert bucket.strategies == ("ddp",) and bucket.parameters == {"ddp": {"bucket_cap_mb": 0.5}}
    assert sweep.axes[0].values == (8, 16) and sweep.axes[0].workloads == ("gpt3m-batch8", "gpt3m")
    assert sweep.axes[1].values == (500, None) and sweep.axes[1].workloads[1] == "gpt3m"
    assert sweep_of({"global_batch": [8, 32, 64]}).points["gpt3m-batch8"].spec == batch.spec


def test_values_that_differ_beyond_six_digits_are_points_of_their_own() -> None:
    sweep = sweep_of({"rate_mbit": [1000.0, 1000.0001], "global_batch": [1_000_000, 1_000_004]})
    assert sweep.axes[0].workloads == ("gpt3m-rate1000", "gpt3m-rate1000p0001", "gpt3m")
    assert [point.spec.global_batch for point in sweep.points.values()][2:] == [1_000_000, 1_000_004]
    assert len(sweep.points) == 4 and all("." not in name and "+" not in name for name in sweep.points)


def test_whole_numbers_written_as_fractions_are_the_same_points() -> None:
    sweep = sweep_of({"hidden": [128.0, 256.0], "strategy_parameters": {"ddp": {"bucket_cap_mb": [1]}}})
    assert [point.spec.hidden for point in sweep.points.values()] == [128, 256]
    assert all(isinstance(point.spec.hidden, int) for point in sweep.points.values())


def test_a_grid_has_every_pair_once() -> None:
    sweep = sweep_of({"global_batch": [8], "layers": [2]}, grid=["global_batch", "layers"])
    assert set(sweep.points) == {"gpt3m-batch8", "gpt3m-layers2", "gpt3m-batch8-layers2"}
    assert sweep.points["gpt3m-batch8-layers2"].spec.layers == 2
    assert sweep.grid_workloads[(16, 4)] == "gpt3m" and len(sweep.grid_workloads) == 4


@pytest.mark.parametrize(
    ("axes", "section", "expected"),
    [
        ({"micro_batches": [3]}, {}, "global_batch 16 is not a multiple of micro_batches 3"),
        ({"hidden": [130]}, {}, "hidden 130 is not a multiple of heads 4"),
        ({"layers": [2]}, {"workload": "other"}, "conditions.workload: 'other' is not among workloads gpt3m"),
        ({"layers": [2]}, {"strategies": ["zero3"]}, "conditions.strategies: 'zero3' is not among strategies"),
        ({"layers": [2]}, {"strategies": ["ddp", "single"]}, "nothing to compare with the baseline 'ddp'"),
        ({"layers": [2]}, {"measure": {"triples": 1}}, "conditions.measure: measure.triples must be at least 3"),
        ({"layers": [2]}, {"grid": ["layers", "hidden"]}, "name two different axes out of layers"),
        ({"strategy_parameters": {"ddp": {"bucket": [1]}}}, {}, "strategy ddp has no parameter bucket"),
        ({"strategy_parameters": {"zero3": {"x": [1]}}}, {}, "'zero3' is not measured in the sweep"),
        ({"strategy_parameters": {"tensor": {"x": [1]}}}, {}, "name it in conditions.strategies as well"),
    ],
)
def test_mistakes_name_the_key(axes: dict[str, Any], section: dict[str, Any], expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        sweep_of(axes, **section)
    assert expected in str(caught.value) and str(caught.value).startswith("config: conditions")


def test_the_rescaled_ledger_predicts_what_scales_as_it_says(tmp_path: Path) -> None:
    result, axis = batches(tmp_path)
    for point in axis.points:
        rows = {row.name: row for row in point.strategies}
        assert set(rows) == {"ddp", "pipeline_1f1b"}
        for row in rows.values():
            assert row.error is None if point.base else abs(row.error or 1.0) < 0.01
    assert result.median_error is not None and result.greatest_error is not None and result.greatest_error < 0.01
    assert (result.right, result.judged) == (3, 3)


def test_what_scales_otherwise_is_the_error_that_is_told(tmp_path: Path) -> None:
    sweep = sweep_of({"global_batch": [64]})
    result = runs_of(tmp_path, sweep, {"gpt3m-batch64": (4, ddp_at(4) * 0.8, pipeline_at(4) * 0.5)})
    rows = {row.name: row for row in result.axes[0].points[1].strategies}
    assert rows["ddp"].error == pytest.approx(1 / 0.8 - 1, abs=0.01)
    assert rows["pipeline_1f1b"].error == pytest.approx(1, abs=0.02)
    assert rows["pipeline_1f1b"].ratio_error == pytest.approx(0.8 / 0.5 - 1, abs=0.02)
    assert rows["ddp"].ratio_error is None
    assert result.axes[0].points[1].fastest == "pipeline_1f1b" != result.axes[0].points[1].predicted_fastest


def test_winners_ties_and_the_crossover_with_its_interval(tmp_path: Path) -> None:
    _, axis = batches(tmp_path)
    assert [point.leaders for point in axis.points] == [("pipeline_1f1b",), ("pipeline_1f1b",), ("ddp",), ("ddp",)]
    (crossing,) = axis.crossovers
    assert (crossing.below, crossing.above) == ("pipeline_1f1b", "ddp")
    # 80k + 20 = 98k at k = 10/9, where linear interpolation of the logarithms between 1 and 2 puts it a little later.
    assert crossing.estimate is not None and crossing.high is not None
    assert 16 < crossing.low <= crossing.estimate <= crossing.high < 22
    assert crossing.error is not None and abs(crossing.error) < 0.05


def test_a_difference_inside_the_noise_is_a_tie_and_no_crossover(tmp_path: Path) -> None:
    sweep = sweep_of({"global_batch": [32]})
    result = runs_of(tmp_path, sweep, {"gpt3m-batch32": (2, 180.0, 180.1)}, noise=0.03)
    (point,) = [point for point in result.axes[0].points if not point.base]
    assert set(point.leaders) == {"ddp", "pipeline_1f1b"}
    assert result.axes[0].crossovers == ()
    floor = max(row.log_floor for row in point.strategies)
    assert f"(noise floor +{100 * math.expm1(floor):.1f} %)" in rendered(tmp_path, result)["conditions.md"]


def test_a_slower_link_turns_the_order_as_its_bytes_say(tmp_path: Path) -> None:
    sweep = sweep_of({"rate_mbit": [200, 1000]})
    truth = {f"gpt3m-rate{rate}": (1.0, ddp_at(1, rate=rate), pipeline_at(1, rate=rate)) for rate in (200, 1000)}
    result = runs_of(tmp_path, sweep, truth)
    slow, fast, own = result.axes[0].points
    assert own.base and own.value is None and slow.fastest == "pipeline_1f1b"
    row = slow.strategy("ddp")
    assert row is not None and row.step_ns == pytest.approx(70e6 + 2 * DDP_BYTES * 8e3 / 200, rel=0.01)
    for point in (slow, fast):
        assert all(abs(row.error or 1) < 0.01 for row in point.strategies), point
        assert point.rate_check is not None


def test_runs_at_another_rate_than_asked_for_are_not_compared(tmp_path: Path) -> None:
    sweep = sweep_of({"rate_mbit": [200]})
    result = runs_of(tmp_path, sweep, {"gpt3m-rate200": (1, 390, 160)}, environment=ENVIRONMENT)
    row = result.axes[0].points[0].strategy("pipeline_1f1b")
    assert row is not None and row.status == "incomparable" and "rate own" in str(row.reason)
    assert result.axes[0].points[0].leaders != ("pipeline_1f1b",)


def test_strategies_behind_the_fastest_change_places_too(tmp_path: Path) -> None:
    """tensor is twice as slow as ddp here and faster on a slow link, and neither is ever the fastest alone."""
    sweep = sweep_of({"rate_mbit": [200]}, strategies=["ddp", "pipeline_1f1b", "tensor"])
    result = runs_of(tmp_path, sweep, {"gpt3m-rate200": (1.0, ddp_at(1, rate=200), pipeline_at(1, rate=200))})
    (crossing,) = result.axes[0].crossovers
    assert (crossing.below, crossing.above, crossing.leads) == ("tensor", "ddp", False)
    texts = rendered(tmp_path, result)
    assert "Behind the fastest: `tensor` is faster below, `ddp` above." in texts["conditions.md"]
    assert "在最快者之后：低于它时 `tensor` 更快" in texts["conditions.zh.md"]
    assert "No crossover: of the strategies that lead" in texts["conditions.md"]
    assert "crossover from" not in texts["conditions.md"]


def test_where_no_rate_can_be_emulated_the_report_says_so(tmp_path: Path) -> None:
    sweep = sweep_of({"rate_mbit": [200]})
    reason = "a rate of 200 Mbit/s cannot be emulated: tc is missing; install iproute2"
    result = runs_of(tmp_path, sweep, {"gpt3m-rate200": (1, 390, 160)}, status=Status.NOT_APPLICABLE, reason=reason)
    assert result.axes[0].unchecked == reason and result.axes[0].points[0].fastest is None
    for text in rendered(tmp_path, result).values():
        assert "install iproute2" in text and "predicted* at" not in text


def test_a_strategy_that_does_not_apply_does_not_make_the_rates_unchecked(tmp_path: Path) -> None:
    sweep = sweep_of({"rate_mbit": [200]}, strategies=["ddp", "pipeline_1f1b", "tensor"])
    runs_of(tmp_path, sweep, {"gpt3m-rate200": (1, ddp_at(1, rate=200), pipeline_at(1, rate=200))})
    decision = decide(
        "gpt3m",
        {name: (tmp_path / "traces/gpt3m" / name, tmp_path / "data/gpt3m" / name) for name in sweep.base.strategies},
        Constraints(require_convergence=False),
    )
    spec = sweep.points["gpt3m-rate200"].spec
    write(tmp_path, [Fake("tensor", spec=spec, status=Status.NOT_APPLICABLE, reason="heads 4 over 3 ranks")])
    found = analyse(sweep, decision, tmp_path / "traces").axes[0]
    row = found.points[0].strategy("tensor")
    assert row is not None and row.status == "not_applicable"
    assert found.points[0].fastest == "pipeline_1f1b" and found.unchecked is None


def test_the_baselines_own_parameters_are_predicted_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[dict[str, Any]] = []

    def without_torch(spec: Any, name: str, parameters: dict[str, Any], ranks: int) -> str:
        seen.append(parameters)
        return "a model that needs torch"

    monkeypatch.setattr("shardscope.selection.conditions_report.planned", without_torch)
    _, axis = batches(tmp_path)
    rows = [row for point in axis.points if not point.base for row in point.strategies]
    assert {row.predicted_ns is None for row in rows if row.name == "ddp"} == {True}
    assert {row.predicted_ns is None for row in rows if row.name != "ddp"} == {False}
    assert seen and all(parameters == resolve_parameters("ddp", {}) for parameters in seen)


def test_a_factor_called_like_a_path_stays_in_its_folder(tmp_path: Path) -> None:
    result, axis = batches(tmp_path)
    hostile = structs.replace(axis, name="../../a b](x)<i>", parameter=("ddp", "x"), crossovers=(), statements=())
    english = rendered(tmp_path, structs.replace(result, axes=(hostile,)))["conditions.md"]
    (drawn,) = (tmp_path / "out" / "conditions").iterdir()
    assert drawn.name == ".._.._a_b_x_i_.svg" and f"](conditions/{drawn.name})" in english
    assert {path.name for path in tmp_path.iterdir()} == {"traces", "data", "conditions.json", "out"}


def test_what_is_sent_is_known_for_known_backends_only() -> None:
    plan = strategies.get("zero3").plan(SPEC, 4, resolve_parameters("zero3", {}))
    size = {kind: sum(e.bytes for e in plan.collectives if e.kind is kind) for kind in Kind}
    gathered, scattered = size[Kind.ALL_GATHER], size[Kind.REDUCE_SCATTER]
    assert gathered and scattered and gathered + scattered == sum(size.values())
    assert planned_sent_bytes(plan, "nccl") == 3 * (gathered + scattered)
    assert planned_sent_bytes(plan, "gloo") == 3 * (gathered + 2 * scattered)
    assert planned_sent_bytes(plan, "mpi") is None


def test_a_strategy_with_wrong_gradients_wins_nowhere(tmp_path: Path) -> None:
    sweep = sweep_of({"global_batch": [8]})
    result = runs_of(tmp_path, sweep, {"gpt3m-batch8": (0.5, 60, 20)}, gradient_error=0.1)
    row = result.axes[0].points[0].strategy("pipeline_1f1b")
    assert row is not None and row.status == "disqualified" and row.step_ns is None


def test_predictions_of_the_summary_get_their_verdicts(tmp_path: Path) -> None:
    _, axis = batches(tmp_path)
    said = [s for s in axis.statements if s.prediction is not None and s.prediction.by == "batch"]
    assert said and {s.verdict for s in said} == {"supported"}
    assert all(s.seen_at in (32, 64) and 17 < (s.at or 0) < 19 for s in said)
    sweep = sweep_of({"global_batch": [32, 64]})
    truth = {f"gpt3m-batch{b}": (b / 16, 200.0, 100.0) for b in (32, 64)}
    other = runs_of(tmp_path / "other", sweep, truth).axes[0].statements
    assert {s.verdict for s in other} == {"contradicted"} and all((s.seen_difference or 0) != 0 for s in other)
    near = runs_of(tmp_path / "near", sweep_of({"global_batch": [8]}), {"gpt3m-batch8": (0.5, 60.0, 50.0)})
    assert {(s.verdict, s.why) for s in near.axes[0].statements} == {("undecided", "no_point")}


def test_a_swept_parameter_of_the_baseline_is_compared_in_its_own_job(tmp_path: Path) -> None:
    sweep = sweep_of({"strategy_parameters": {"ddp": {"bucket_cap_mb": [0.5]}}})
    (name,) = sweep.points
    sweep_runs = runs_of(tmp_path, sweep, {name: (1, 100.0, 0.0)}, base=110.0)
    small, own = sweep_runs.axes[0].points
    assert own.base and small.value == 0.5 and own.value == 2.0
    row = small.strategies[0]
    assert row.name == "ddp" and math.exp(row.log_ratio or 0) == pytest.approx(100 / 110, rel=0.01)
    assert row.predicted_ns is None
    text = rendered(tmp_path, sweep_runs)["conditions.md"]
    assert "faster" in text
    assert re.search(r"\| (109\.9|110\.\d) \| −9", text), "the baseline's step in the job of the swept one"


@pytest.mark.parametrize(
    ("means", "half", "expected"),
    [
        ((-0.2, -0.1, 0.1), 0.02, [(16 * 2**0.4, 16 * 2**0.6, 16 * 2**0.5)]),
        ((-0.2, -0.01, 0.2), 0.05, [(8 * 2 ** (0.15 / 0.19), 16 * 2 ** (0.06 / 0.21), 16 * 2 ** (0.01 / 0.21))]),
        ((-0.2, -0.01, 0.01), 0.05, []),
        (
            (0.2, -0.2, 0.2),
            0.01,
            [(8 * 2**0.475, 8 * 2**0.525, 8 * 2**0.5), (16 * 2**0.475, 16 * 2**0.525, 16 * 2**0.5)],
        ),
    ],
)
def test_crossings(means: tuple[float, ...], half: float, expected: list[tuple[float, float, float]]) -> None:
    steps = [Step(8 * 2.0**i, mean, mean - half, mean + half, 0.0) for i, mean in enumerate(means)]
    found = [(crossing.low, crossing.high, crossing.estimate) for crossing in crossings(steps)]
    assert len(found) == len(expected)
    for one, two in zip(found, expected, strict=True):
        assert one == pytest.approx(two)


def test_a_crossing_up_to_the_machines_own_rate_has_no_upper_end() -> None:
    steps = [Step(200, -0.5, -0.6, -0.4, 0.1), Step(1000, -0.2, -0.3, -0.1, 0.1), Step(None, 0.3, 0.2, 0.4, 0.1)]
    (crossing,) = crossings(steps)
    assert (crossing.low, crossing.high, crossing.estimate) == (1000, None, None)


def rendered(tmp_path: Path, result: ConditionsResult) -> dict[str, str]:
    save(result, tmp_path / "conditions.json")
    render_conditions(tmp_path / "conditions.json", tmp_path / "out")
    return {
        name: (tmp_path / "out" / name).read_text(encoding="utf-8") for name in ("conditions.md", "conditions.zh.md")
    }


def test_both_documents_say_the_same_numbers(tmp_path: Path) -> None:
    sweep = sweep_of({"global_batch": [8, 64], "rate_mbit": [200]}, grid=["global_batch", "rate_mbit"])
    truth = {
        point.workload: (
            flops := point.at.get("global_batch", 16) / 16,  # type: ignore[operator]
            ddp_at(flops, rate=point.at.get("rate_mbit")),
            pipeline_at(flops, rate=point.at.get("rate_mbit")),
        )
        for point in sweep.points.values()
    }
    result = runs_of(tmp_path, sweep, truth)
    english, chinese = rendered(tmp_path, result).values()
    for text in (english, chinese):
        assert "gpt3m-batch8" in text and "None" not in text and "{{" not in text and "+1.0" in text
        for axis in ("global_batch", "rate_mbit"):
            assert f"(conditions/{axis}.svg)" in text
    rows = [[line for line in text.splitlines() if line.startswith("|")] for text in (english, chinese)]
    numbers = [[sorted(re.findall(r"\d(?:[\d,.]*\d)?", line)) for line in found] for found in rows]
    assert numbers[0] == numbers[1] and sum(map(len, numbers[0])) > 30
    assert (tmp_path / "out" / "conditions" / "rate_mbit.svg").read_text(encoding="utf-8").count("<desc") == 1
    assert rendered(tmp_path, result)["conditions.md"] == english


def test_never_is_contradicted_by_a_point_where_it_happens(tmp_path: Path) -> None:
    sweep = sweep_of({"rate_mbit": [200, 1000]}, strategies=["ddp", "tensor"])
    ahead = {"gpt3m-rate200": (1.0, 390.0, 300.0), "gpt3m-rate1000": (1.0, 130.0, 230.0)}
    result = runs_of(tmp_path / "ahead", sweep, ahead, never=("tensor",))
    (said,) = [s for s in result.axes[0].statements if s.source == "never"]
    assert (said.verdict, said.name, said.against, said.seen_at) == ("contradicted", "tensor", "ddp", 200)
    assert "no bandwidth from 1/64 to 64 times" in rendered(tmp_path, result)["conditions.md"]
    behind = {"gpt3m-rate200": (1.0, 390.0, 400.0), "gpt3m-rate1000": (1.0, 130.0, 230.0)}
    result = runs_of(tmp_path / "behind", sweep, behind, never=("tensor",))
    assert [s.verdict for s in result.axes[0].statements if s.source == "never"] == ["supported"]


def test_the_page_shows_the_sweep_of_its_own_workload_only(tmp_path: Path) -> None:
    result, axis = batches(tmp_path / "sweep")
    out = tmp_path / "out"
    folders = write(tmp_path / "runs", [Fake("ddp", parts=DDP), Fake("pipeline_1f1b", parts=SEND, bubble=16)])
    save_decision(decide(SPEC.name, folders, Constraints()), tmp_path / "decision.json")

    def page() -> str:
        render([tmp_path / "decision.json"], [attribution for _, attribution in folders.values()], out)
        return (out / "summary.html").read_text(encoding="utf-8")

    bare = page()
    assert "Where each strategy wins" not in bare
    (out / "data").mkdir()
    save(result, out / "data" / "conditions.json")
    shown = page()
    assert axis.crossovers and "7. Where each strategy wins" in shown and "7. 各策略在何处占优" in shown
    assert shown.count("<svg") == bare.count("<svg") + len(result.axes)
    assert 'href="conditions.md"' in shown and 'href="conditions.zh.md"' in shown
    other = structs.replace(result, workload=structs.replace(SPEC, layers=8))
    save(other, out / "data" / "conditions.json")
    assert page() == bare
    (out / "data" / "conditions.json").write_text("{")
    assert page() == bare
