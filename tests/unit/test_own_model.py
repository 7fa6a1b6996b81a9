"""Models of the user's own: what is found out about them, what is said when something is amiss, and that they train."""

import dataclasses
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
import yaml
from own_model_worker import SIZES, WIDE, applicable, workloads
from test_parity import expected_of, seen_of

from shardscope import config, strategies
from shardscope.errors import ConfigError, MeasurementError
from shardscope.measure.launch import make_reference, run_strategy
from shardscope.measure.record import Plan
from shardscope.measure.settings import MeasureSettings
from shardscope.provenance import measuring_digest
from shardscope.selection.node_predict import planned
from shardscope.vocabulary import Kind, Status
from shardscope.workload import shapes
from shardscope.workload.experts import Mixture, Options
from shardscope.workload.model import build_model, build_stage, named
from shardscope.workload.source import check_model, source_files
from shardscope.workload.spec import WorkloadSpec

HERE = Path(__file__).parent
GUIDE = HERE.parents[1] / "docs" / "own-model.md"
BUILT_IN = WorkloadSpec(name="w", layers=3, hidden=48, heads=4, sequence_length=24, global_batch=16, micro_batches=4)
AS_OWN = msgspec.structs.replace(BUILT_IN, model="shardscope.workload.transformer:build")
EXPERTS = WorkloadSpec(name="moe", model="shardscope.workload.experts:build", **SIZES)


def own(model: str, **changed: Any) -> WorkloadSpec:
    return WorkloadSpec(name="w", model=f"own_models:{model}", model_path=str(HERE), **{**SIZES, **changed})


def plan_of(name: str, spec: WorkloadSpec, ranks: int) -> Plan:
    return strategies.get(name).plan(spec, ranks, strategies.resolve_parameters(name, {}))


def guide(language: str) -> str:
    found = re.search(rf"```{language}\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    return found.group(1)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the guide's example, exactly as it stands there."""
    folder = tmp_path_factory.mktemp("models")
    (folder / "llama.py").write_text(guide("python"), encoding="utf-8")
    return folder


@pytest.mark.parametrize("changed", [{}, {"recompute": True}, {"dtype": "bfloat16"}])
def test_the_meta_device_finds_what_the_formulas_say(changed: dict[str, Any]) -> None:
    """The built-in model taken as somebody's own: shapes, order of gradients, FLOPs, what recomputation repeats."""
    formula = shapes.outline(msgspec.structs.replace(BUILT_IN, **changed))
    found = shapes.outline(msgspec.structs.replace(AS_OWN, **changed))
    assert found.saved is not None and found.saved > 0
    assert dataclasses.replace(found, saved=None) == formula


@pytest.mark.parametrize("ranks", [2, 4])
def test_plans_do_not_care_where_the_model_comes_from(ranks: int) -> None:
    for name in strategies.names():
        chosen = strategies.resolve_parameters(name, {})
        plans = [planned(spec, name, chosen, ranks) for spec in (BUILT_IN, AS_OWN)]
        bare = [each if isinstance(each, str) else msgspec.structs.replace(each, activation_bytes=()) for each in plans]
        assert bare[0] == bare[1]


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("nothing", "module own_models has no nothing"),
        ("text", "text is a str, not a function"),
        ("number", "returned a int, not a torch.nn.Module"),
        ("crash", "cannot be built (KeyError: 'no such option')"),
        ("leave_early", "cannot be built (SystemExit: 0)"),
        ("frozen", "parameter layers.0.out.bias is frozen"),
        ("unused", "parameter extra.weight gets no gradient"),
        ("one_layer_more", "it has 5 blocks, the workload says layers: 4"),
        ("no_logits", "into [1, 16, 5], not into logits [1, 16, 256]"),
        ("unknown_style", "'diagonal' is not one of embedding, colwise"),
        ("unknown_module", "the model has no submodule leave.9"),
    ],
)
def test_a_model_that_cannot_be_used_is_one_clear_line(model: str, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        shapes.outline(own(model))
    line = str(caught.value)
    assert expected in line and "workload w" in line and "\n" not in line


def test_recomputation_needs_blocks() -> None:
    with pytest.raises(ConfigError, match="blocks"):
        shapes.outline(own("bare", recompute=True))


@pytest.mark.parametrize(
    ("name", "spec", "expected"),
    [
        ("single", own("bare"), None),
        ("ddp", own("bare"), None),
        ("zero1", own("bare"), None),
        ("zero2", own("bare"), "offers no `blocks`"),
        ("zero3", own("bare"), "offers no `blocks`"),
        ("pipeline_gpipe", own("bare"), "offers no `stage(first, layers, last)`"),
        ("tensor", own("bare"), "offers no `tensor_parallel_plan()`"),
        ("tensor_sequence", own("bare"), "offers no `tensor_parallel_plan()`"),
        ("tensor_sequence", own("palm"), "no entry of style `sequence`"),
        ("tensor", own("palm", hidden=33, heads=3), "33 cannot be divided by 2 ranks"),
        ("sequence_ulysses", own("bare"), "offers no `sequence_parallel_plan()`"),
        ("expert", own("palm"), "offers no `expert_modules()`"),
        ("expert", BUILT_IN, "offers no `expert_modules()`"),
        ("tensor", EXPERTS, "offers no `tensor_parallel_plan()`"),
        ("pipeline_1f1b", own("shared"), "the first and the last stage share parameter enter.words.weight"),
        ("tensor", own("shared"), "cuts enter.words, whose weight another submodule shares"),
        ("pipeline_1f1b", own("loss_of_the_whole"), "a stage needs it as a static method"),
        ("zero3", own("shared"), None),
    ],
)
def test_what_is_missing_is_named(name: str, spec: WorkloadSpec, expected: str | None) -> None:
    reason = strategies.get(name).not_applicable(spec, 2)
    assert (reason is None) if expected is None else (reason is not None and expected in reason)


def test_stages_are_the_whole_by_their_names(models: Path) -> None:
    for spec in workloads(str(models)).values():
        whole = {name: tensor.clone() for name, tensor in named(build_model(spec))}
        seen: dict[str, torch.Tensor] = {}
        for layers, first, last in ((range(1), True, False), (range(1, 4), False, True)):
            part = dict(named(build_stage(spec, layers, first=first, last=last)))
            assert {name: tuple(tensor.shape) for name, tensor in part.items()} == shapes.stage_names(
                spec, layers, first=first, last=last
            )
            seen |= part
        assert seen.keys() == whole.keys()
        assert all(torch.equal(seen[name], whole[name]) for name in whole)


def test_recomputation_changes_memory_not_results() -> None:
    again = msgspec.structs.replace(BUILT_IN, recompute=True)
    tokens = torch.arange(4 * 24).reshape(4, 24) % 256
    gradients = []
    for spec in (BUILT_IN, again):
        model = build_model(spec)
        model(tokens).square().mean().backward()
        gradients.append({name: parameter.grad for name, parameter in model.named_parameters()})
    assert all(torch.equal(gradients[0][name], gradients[1][name]) for name in gradients[0])  # type: ignore[arg-type]
    assert shapes.flops_per_step(BUILT_IN) == shapes.flops_per_step(again)
    # One block's activations and the inputs of all three, in place of the activations of all three.
    kept, inputs = shapes.activation_bytes(BUILT_IN, 4, layers=1), 4 * 24 * 48 * 4
    assert shapes.activation_bytes(again, 4, layers=3, in_flight=2) == kept + 2 * 3 * inputs
    assert shapes.activation_bytes(BUILT_IN, 4, layers=3, in_flight=2) == 2 * 3 * kept


@pytest.mark.parametrize("top", [1, 2])
def test_experts_route_every_sample_by_itself(top: int) -> None:
    spec = msgspec.structs.replace(EXPERTS, model_options={"experts": 4, "top": top, "capacity_factor": 1.0})
    layer: Any = build_model(spec).get_submodule("blocks.1.mlp")
    assert isinstance(layer, Mixture)
    x = torch.randn(6, 16, 32, generator=torch.Generator().manual_seed(3))
    weights = layer.route(x)
    assert weights.shape == (6, 16, 4, 4 * top)
    assert int((weights > 0).sum(1).max()) == 1, "a place holds one token"
    assert int((weights > 0).sum((2, 3)).max()) <= top
    best = layer.gate(x).argmax(-1)
    routed = weights.sum(-1)
    first = routed.argmax(-1)[(weights > 0).any(-1).sum(-1) == top]
    assert torch.equal(first, best[(weights > 0).any(-1).sum(-1) == top])
    assert 0 < int((routed.sum(-1) == 0).sum()) < 6 * 16, "some tokens find no place at this capacity, most do"
    alone = torch.cat([layer(sample[None]) for sample in x])
    assert torch.allclose(layer(x), alone, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("given", [{"experts": 1}, {"top": 3}, {"capacity_factor": 0.0}, {"expert": 4}])
def test_bad_options_of_the_experts(given: dict[str, Any]) -> None:
    with pytest.raises((ValueError, TypeError)):
        Options(**given)
    with pytest.raises(ConfigError, match="cannot be built"):
        shapes.outline(msgspec.structs.replace(EXPERTS, model_options=given))


def test_experts_are_described_for_the_plan() -> None:
    facts = shapes.outline(EXPERTS)
    assert [module.name for module in facts.experts] == [f"blocks.{layer}.mlp.experts" for layer in range(4)]
    assert all(module.dispatched == (4, 5, 32) for module in facts.experts)  # ⌈16 / 4 · 1.25⌉ places
    assert len(facts.experts[0].parameters) == 4


def test_a_changed_model_is_measured_again(tmp_path: Path) -> None:
    """Its file and what it imports from beside it; nothing of it runs."""
    (tmp_path / "mine.py").write_text("import parts\nfrom torch import nn\nraise SystemExit('nobody runs this')\n")
    (tmp_path / "parts.py").write_text("A = 1\n")
    (tmp_path / "other.py").write_text("A = 1\n")
    spec = WorkloadSpec(name="w", model="mine:build", model_path=str(tmp_path), **SIZES)
    check_model(spec)
    assert [name for name, _ in source_files(spec)] == ["mine.py", "parts.py"]
    plain, before = measuring_digest("ddp", workload=BUILT_IN), measuring_digest("ddp", workload=spec)
    assert plain == measuring_digest("ddp") != before
    (tmp_path / "other.py").write_text("A = 2\n")
    assert measuring_digest("ddp", workload=spec) == before
    (tmp_path / "parts.py").write_text("A = 2\n")
    after = measuring_digest("ddp", workload=spec)
    (tmp_path / "mine.py").write_text("import parts\n")
    assert len({before, after, measuring_digest("ddp", workload=spec)}) == 3
    assert measuring_digest("ddp", workload=BUILT_IN) == plain


def test_packages_and_what_is_not_there(tmp_path: Path) -> None:
    package = tmp_path / "zoo" / "big"
    package.mkdir(parents=True)
    files = {
        "zoo/__init__.py": "A = 1",
        "zoo/big/__init__.py": "",
        "zoo/big/cat.py": "from . import ear",
        "zoo/big/ear.py": "from ..skin import fur",
        "zoo/skin.py": "fur = 1",
    }
    for file, text in files.items():
        (tmp_path / file).write_text(text)

    def spec(model: str) -> WorkloadSpec:
        return WorkloadSpec(name="w", model=model, model_path=str(tmp_path), **SIZES)

    assert [name for name, _ in source_files(spec("zoo.big.cat:build"))] == [
        "zoo/__init__.py", "zoo/big/__init__.py", "zoo/big/cat.py", "zoo/big/ear.py", "zoo/skin.py"
    ]  # fmt: skip
    assert source_files(spec("torch.nn:Linear")) == ()
    for model, expected in (
        ("zoo.dog:build", "no module zoo.dog in its package"),
        ("nozoo:build", "no module nozoo in"),
    ):
        with pytest.raises(ConfigError, match=expected):
            check_model(spec(model))
    with pytest.raises(ValueError, match=r"write package.module:builder"):
        spec("zoo.big.cat")
    with pytest.raises(ValueError, match="belong to a `model`"):
        msgspec.structs.replace(BUILT_IN, model_path="x")


@pytest.fixture(scope="module")
def launched(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[dict[str, Any]]]:
    """One launch of two ranks: label → what each saw."""
    folder, worker = tmp_path_factory.mktemp("ranks"), HERE / "own_model_worker.py"
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", worker, models, folder]
    path = os.pathsep.join([str(HERE), str(HERE.parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    done = subprocess.run(
        [sys.executable, *map(str, command)], capture_output=True, text=True, timeout=280, env=environment
    )
    assert done.returncode == 0, done.stderr[-4000:]
    yield [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.slow
def test_third_party_models_under_all_they_support(launched: list[dict[str, Any]], models: Path) -> None:
    """Gradients and losses of `single`, state and communication of the plan, with and without recomputation."""
    wrong = []
    for label, spec in workloads(str(models)).items():
        names = list(applicable(spec, 2))
        assert {"single", "ddp", "zero1", "zero2", "zero3", "pipeline_gpipe", "pipeline_1f1b", "tensor"} <= set(names)
        for name in names:
            plan, seen = plan_of(name, spec, 2), [rank[f"{label}/{name}"] for rank in launched]
            if not seen[0]["parity"]["passed"]:
                wrong.append((label, name, seen[0]["parity"]))
            for rank, state in enumerate(plan.state):
                held = [state.parameter_bytes, state.gradient_bytes, state.optimizer_bytes]
                if seen[rank]["state"] != held or seen[rank]["losses"] != seen[0]["losses"]:
                    wrong.append((label, name, rank, seen[rank]["state"], held))
                calls = seen_of(seen[rank]["calls"])
                if calls != expected_of(plan.collectives, rank):
                    wrong.append((label, name, rank, calls, expected_of(plan.collectives, rank)))
    assert wrong == []
    assert "tensor_sequence" in list(applicable(workloads(str(models))["llama"], 2))
    assert "sequence_ulysses" in list(applicable(workloads(str(models))["palm"], 2))


@pytest.mark.slow
def test_recomputation_shows_in_the_measured_peak(launched: list[dict[str, Any]]) -> None:
    for rank in launched:
        kept, again = rank["memory, False"], rank["memory, True"]
        assert kept["state"] == again["state"]
        lower = shapes.activation_bytes(WIDE, 8, layers=WIDE.layers) - shapes.activation_bytes(
            msgspec.structs.replace(WIDE, recompute=True), 8, layers=WIDE.layers
        )
        assert kept["other"] - again["other"] > 0.8 * lower > 0


@pytest.mark.slow
def test_the_guides_example_by_its_configuration(models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the YAML and the code in the guide to a result; a mistake in the code is one line and starts no rank."""
    monkeypatch.chdir(models.parent)
    section = yaml.safe_load(guide("yaml"))["workloads"]["llama"]
    raw = {
        "workloads": {"llama": {**section, "model_path": models.name, "layers": 2, "hidden": 32}},
        "strategies": ["ddp"], "baseline": "ddp", "strategy_parameters": {}, "failures": "record", "constraints": {},
        "measure": {"world_size": 2, "triples": 3, "warmup_steps": 1, "requests": 3, "loss_steps": 4,
                    "profiled_steps": 2, "timeout_s": 120},
    }  # fmt: skip
    loaded = config.load(raw)
    spec, settings = loaded.workloads["llama"], loaded.measure
    reference, log = tmp_path / "reference.npz", tmp_path / "log"
    make_reference(spec=spec, settings=settings, output=reference, log=log)
    record = run_strategy(
        spec=spec, strategy="tensor", parameters={}, baseline="ddp", baseline_parameters={}, settings=settings,
        reference=reference, output=tmp_path / "tensor", log=log,
    )  # fmt: skip
    assert record.status is Status.OK, record.reason
    assert record.parity is not None and record.parity.passed
    assert record.timing is not None and record.timing.flops_per_step == shapes.flops_per_step(spec)
    assert record.plan is not None and {line.kind for line in record.plan.collectives} == {
        Kind.ALL_REDUCE, Kind.ALL_GATHER
    }  # fmt: skip
    wrong = msgspec.structs.replace(spec, layers=3, model_options={"key_value_heads": 3})
    with pytest.raises(MeasurementError, match="forward fails") as caught:
        make_reference(spec=wrong, settings=MeasureSettings(), output=tmp_path / "none.npz", log=log)
    assert "\n" not in str(caught.value) and not (tmp_path / "none.npz").exists()
