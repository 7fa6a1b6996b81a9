"""The second table: this machine measured and predicted, named hardware predicted, and what is said about it."""

import dataclasses
import random
import re
from pathlib import Path
from types import SimpleNamespace
from typing import get_args

import msgspec
import pytest
import selection_runs as runs

from shardscope import strategies
from shardscope.attribution.result import Attribution, Collective
from shardscope.measure.record import RunRecord, WireCount
from shardscope.report.node import render_node
from shardscope.report.sentences import LANGUAGES, Language, catalogue
from shardscope.selection.api import decide
from shardscope.selection.audit_claims import Volume
from shardscope.selection.decision import Decision, load, save
from shardscope.selection.node import profiles
from shardscope.selection.node_claims import Missing, NodePrediction, NodeReport
from shardscope.selection.node_here import _call_cost
from shardscope.selection.node_model import ring
from shardscope.selection.terms import Constraints
from shardscope.selection.volumes import wire_check
from shardscope.vocabulary import Axis, Kind, Status

ALPHA, RATE = 1e-3, 5e8


def transfers(kinds: dict[Kind, Axis]) -> list[Collective]:
    """Transfers that an exact link took, of two sizes each."""
    found = []
    for kind, axis in kinds.items():
        for size in (200_000, 4_000_000):
            steps, sent = ring(kind, 2, size, "gloo")
            found.append(
                Collective(
                    step=2,
                    kind=kind,
                    group=(0, 1),
                    axis=axis,
                    matched_by="order",
                    bytes=size,
                    arrival_ns={},
                    wait_ns=None,
                    exposed_wait_ns=None,
                    transfer_ns=round((steps * ALPHA + sent / RATE) * 1e9),
                    last_rank=None,
                    exact=True,
                )
            )
    return found


def decision_of(root: Path, fakes: list[runs.Fake], *, linked: bool = True) -> Decision:
    """Made-up times under the strategies' real plans."""
    folders = runs.write(root, fakes)
    for fake in fakes:
        path = folders[fake.name][0] / "run.json"
        record = msgspec.json.decode(path.read_bytes(), type=RunRecord)
        plan = strategies.get(fake.name).plan(fake.spec, 2, strategies.resolve_parameters(fake.name, {}))
        path.write_bytes(msgspec.json.encode(msgspec.structs.replace(record, plan=plan)))
    for fake in fakes if linked else ():
        path = folders[fake.name][1] / "attribution.json"
        result = msgspec.json.decode(path.read_bytes(), type=Attribution)
        result.collectives = transfers({kind: axis for kind, (axis, *_) in fake.parts.items()})
        path.write_bytes(msgspec.json.encode(result))
    return decide("gpt3m", folders, Constraints())


def report_of(decision: Decision) -> NodeReport:
    assert decision.node is not None
    return decision.node


@pytest.fixture(scope="module")
def decision(tmp_path_factory: pytest.TempPathFactory) -> Decision:
    return decision_of(tmp_path_factory.mktemp("node"), runs.nine())


def test_this_machine_is_measured(decision: Decision) -> None:
    report = report_of(decision)
    assert report.calibration == "single"
    assert report.here.link is not None
    assert report.here.link.alpha_s == pytest.approx(ALPHA, rel=1e-3)
    assert report.here.link.bytes_per_s == pytest.approx(RATE, rel=1e-3)
    assert report.here.peak_flops == {"float32": 2.5e11}, "half of both ranks' peak"
    assert not report.here.hides, "2 ranks of one thread on 2 cores"


def test_the_calibration_is_no_test_and_the_others_are(decision: Decision) -> None:
    report = report_of(decision)
    checks = {check.predicted.name: check for check in report.checks}
    assert set(checks) == {fake.name for fake in runs.nine()}
    assert [name for name, check in checks.items() if check.calibration] == ["single"]
    single = checks["single"]
    assert single.predicted.step_s == pytest.approx(single.step_s, rel=1e-6)
    assert report.step_error is not None and 0 < report.step_error < 5
    assert checks["pipeline_gpipe"].predicted.simulated
    assert not any(check.own_transfers for check in report.checks)
    for check in report.checks:
        assert check.memory_bytes is not None and check.predicted.memory_bytes is not None


def test_a_strategy_alone_with_its_transfers_says_so(tmp_path: Path) -> None:
    names = ("single", "ddp")
    report = report_of(decision_of(tmp_path, [fake for fake in runs.nine() if fake.name in names]))
    assert {check.predicted.name: check.own_transfers for check in report.checks} == {"single": False, "ddp": True}


def test_without_transfers_nothing_that_communicates_is_predicted_here(tmp_path: Path) -> None:
    report = report_of(decision_of(tmp_path, runs.nine(), linked=False))
    assert report.here.link is None
    predicted = {check.predicted.name: check.predicted for check in report.checks}
    assert predicted["single"].step_s is not None
    assert predicted["ddp"].step_s is None and predicted["ddp"].missing == "transfers"
    assert report.step_error is None
    for name, said in (("en", "no transfer was seen on this hardware"), ("zh", "没有观察到任何传输")):
        found = render_node([decision_of(tmp_path, runs.nine(), linked=False)], Language(name))
        assert "`ddp`" in found and said in found


def test_one_gpu_gives_the_compute_of_nodes_with_its_like(tmp_path: Path) -> None:
    """`single` on a GPU, nothing else applies: the others are predicted from it, and that is said."""
    gpu = msgspec.structs.replace(
        runs.ENVIRONMENT, world_size=1, device="cuda", device_names=("NVIDIA H100 80GB HBM3",), backend="nccl"
    )
    refused = {"status": Status.NOT_APPLICABLE, "reason": "needs at least 2 ranks"}
    fakes = [runs.Fake("single", shards=(), environment=gpu), runs.Fake("ddp", environment=gpu, **refused)]  # type: ignore[arg-type]
    decision = decision_of(tmp_path, fakes, linked=False)
    report = report_of(decision)
    assert decision.next_step.why == "one_rank"
    for table, published in zip(report.nodes, profiles(), strict=True):
        like = published.gpu == "H100"
        assert table.machine.efficiency == (report.here.efficiency if like else published.efficiency)
        assert table.machine.peak_flops["float32"] == (report.here if like else published).peak_flops["float32"]
        assert table.machine.link == published.link
        (ddp,) = [row for row in table.rows if row.name == "ddp"]
        assert ddp.step_s is not None
    assert {each.gpu for each in profiles()} == {"H100", "A100"}
    document = render_node([decision], Language("en"))
    assert "1 rank on NVIDIA H100 80GB HBM3: matmul peak" in document
    hopper, ampere = document.index("### 8 × H100"), document.index("### 8 × A100")
    taken = "What one device computes is taken from `single` as measured here on NVIDIA H100 80GB HBM3"
    assert hopper < document.index(taken) < ampere and taken not in document[ampere : document.index("### 2 nodes")]
    assert "| measured here |" in document[hopper:ampere] and "change places" not in document


def test_every_reason_is_said_in_both_languages(decision: Decision) -> None:
    report = report_of(decision)
    for missing in get_args(Missing):
        row = NodePrediction(name="ddp", missing=missing)
        table = msgspec.structs.replace(report.nodes[0], rows=(row,), first=None, flips=())
        changed = msgspec.structs.replace(decision, node=msgspec.structs.replace(report, nodes=(table,)))
        for name in LANGUAGES:
            said = catalogue(name)[f"node_reason.{missing}"].replace("{{ dtype|text }}", "float32")
            assert f"| {said} |" in render_node([changed], Language(name))


def test_recomputation_is_part_of_what_the_calibration_computes(tmp_path: Path) -> None:
    again = msgspec.structs.replace(runs.SPEC, recompute=True)
    fakes = [dataclasses.replace(fake, spec=again) for fake in runs.nine()[:2]]
    (single, _) = report_of(decision_of(tmp_path, fakes)).checks
    assert single.calibration and single.predicted.step_s == pytest.approx(single.step_s, rel=1e-6)


def test_the_cost_of_a_call_counts_the_calls_beyond_those_of_the_calm_run() -> None:
    calm, busy, fewer = (
        SimpleNamespace(calls=calls, host_s=host) for calls, host in ((10, 5e-3), (30, 9e-3), (5, 9e-3))
    )
    assert _call_cost({"calm": calm, "busy": busy}, calm) == pytest.approx(4e-3 / 20)  # type: ignore[dict-item, arg-type]
    assert _call_cost({"calm": calm, "fewer": fewer}, calm) == 0  # type: ignore[dict-item, arg-type]


def test_flips_are_claimed_only_beyond_the_models_error(decision: Decision) -> None:
    report = report_of(decision)
    assert {table.machine.name for table in report.nodes} == {machine.name for machine in profiles()}
    missed = {c.predicted.name: (c.predicted.step_s or 0) / c.step_s for c in report.checks}
    seen = 0
    for table in report.nodes:
        there = {row.name: row.step_s or 0 for row in table.rows}
        for flip in table.flips:
            seen += 1
            assert decision.strategy(flip.first).step_ns.value < decision.strategy(flip.second).step_ns.value  # type: ignore[operator]
            assert flip.ratio == pytest.approx(there[flip.first] / there[flip.second]) and flip.ratio > 1
            error = missed[flip.first] / missed[flip.second]
            assert flip.error == pytest.approx(max(error, 1 / error))
            assert flip.claimed == (flip.ratio > flip.error)
    assert seen, "these runs change places somewhere"


def test_near_the_first_are_those_the_model_cannot_tell_from_it(decision: Decision) -> None:
    report = report_of(decision)
    missed = {c.predicted.name: (c.predicted.step_s or 0) / c.step_s for c in report.checks}
    near = 0
    for table in report.nodes:
        there = {row.name: row.step_s for row in table.rows if row.step_s is not None and row.fits}
        assert table.first is not None and table.first not in table.near and "single" not in table.near
        for name in set(there) - {table.first, "single"}:
            error = missed[name] / missed[table.first]
            assert (name in table.near) == (there[name] / there[table.first] <= max(error, 1 / error))
            near += name in table.near
    assert near, "some are told apart by less than the error"
    assert "Not told apart from it: " in render_node([decision], Language("en"))


def test_it_survives_decision_json(decision: Decision, tmp_path: Path) -> None:
    save(decision, tmp_path / "decision.json")
    assert load(tmp_path / "decision.json").node == decision.node


def test_both_languages_say_the_same_numbers(decision: Decision) -> None:
    texts = [render_node([decision], Language(name)) for name in LANGUAGES]
    found = [
        sorted(re.findall(r"\d[\d,.]*", re.sub(r"`[^`]*`|node\.\w*|bf16|fp32|10⁶|10¹²", "", text))) for text in texts
    ]
    assert found[0] == found[1]
    for text in texts:
        assert "None" not in text and "{{" not in text
        assert text.count("| `ddp` |") == 1 + len(profiles())
        assert "NVIDIA H100 Tensor Core GPU Datasheet" in text and "tuning.cc" in text
    assert "predicted, nothing of it was measured" in texts[0] and "全部是预测" in texts[1]


def test_every_published_figure_names_its_document_and_every_assumption_its_sentence() -> None:
    keys = catalogue("en")
    for machine in profiles():
        figures = {"peak", "efficiency", "memory", "memory_rate", "link", "link_latency"}
        if machine.nodes > 1:
            assert machine.network is not None
            figures |= {"network", "network_latency"}
        assert set(machine.sources) == figures
        assert machine.assumed and all(f"assumed.{key}" in keys for key in machine.assumed)
        assert all(f"node.figure.{key}" in keys for key in figures)
    one, _, two, _ = profiles()
    assert (two.nodes, two.devices, two.peak_flops) == (2, one.devices, one.peak_flops), "like takes over"


def test_nothing_measured_nothing_predicted(tmp_path: Path) -> None:
    fakes = [fake for fake in runs.nine() if fake.name == "ddp"]
    fakes[0].gradient_error = 1.0  # disqualified: not compared
    found = decision_of(tmp_path, fakes)
    assert found.node is None
    for name in LANGUAGES:
        assert catalogue(name)["node.nothing"][:20] in render_node([found], Language(name))


@pytest.mark.parametrize(
    ("counted", "idle", "expected", "verdict"),
    [
        (20_100_000, 0, 10_000_000, "agrees"),
        (20_500_000, 0, 10_000_000, "differs"),
        (19_000_000, 0, 10_000_000, "differs"),
        (20_100_000, 500_000, 10_000_000, "polluted"),
        (2_010_000, 0, 1_000_000, "small"),
    ],
)
def test_wire_bytes(counted: int, idle: int, expected: int, verdict: str) -> None:
    record = runs.record_of(runs.nine()[1], random.Random(1))
    wire = WireCount(steps=2, loopback_bytes=counted, took_ns=200, idle_bytes=idle, idle_ns=100)
    volume = Volume(
        kind=Kind.ALL_REDUCE, axis=Axis.DATA, count=1, payload_bytes=1, backend_bytes=float(expected), nccl_bytes=1.0
    )
    found = wire_check(msgspec.structs.replace(record, wire=wire), [volume])
    assert found is not None and found.verdict == verdict
    assert found.difference == pytest.approx(counted / 2 / expected - 1)
    unknown = msgspec.structs.replace(volume, backend_bytes=None)
    assert wire_check(msgspec.structs.replace(record, wire=wire), [unknown]) is None
    assert isinstance(record, RunRecord) and wire_check(record, [volume]) is None
