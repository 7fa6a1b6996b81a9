"""The workload: sizes computed without torch agree with the model, data are deterministic, parts equal the whole."""

import random
from pathlib import Path

import msgspec
import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from shardscope.errors import ConfigError
from shardscope.workload.data import batch, load_corpus
from shardscope.workload.model import build_model, build_stage
from shardscope.workload.shapes import (
    activation_bytes,
    flops_per_step,
    parameter_count,
    parameter_shapes,
    stage_names,
)
from shardscope.workload.spec import WorkloadSpec
from shardscope.workload.training import micro_batch_loss

SPEC = WorkloadSpec(name="w", layers=3, hidden=48, heads=4, sequence_length=24, global_batch=8, micro_batches=2)
GPT3M = WorkloadSpec(name="g", layers=4, hidden=256, heads=4, sequence_length=32, global_batch=16, micro_batches=4)


@pytest.mark.parametrize("spec", [SPEC, GPT3M])
def test_shapes_are_the_models(spec: WorkloadSpec) -> None:
    model = build_model(spec)
    assert {name: tuple(p.shape) for name, p in model.named_parameters()} == parameter_shapes(spec)
    assert list(parameter_shapes(spec)) == [name for name, _ in model.named_parameters()]
    assert sum(p.numel() for p in model.parameters()) == parameter_count(spec)
    assert list(model.buffers()) == []


def test_parameter_count_by_hand() -> None:
    # Per layer: 4 projections h² + h, MLP 8h² + 4h + h, two norms 2·2h; embeddings (256 + 32)·h, norm 2h, head 256·h.
    hidden = 256
    layer = 12 * hidden**2 + 13 * hidden
    assert parameter_count(GPT3M) == 4 * layer + (256 + 32) * hidden + 2 * hidden + 256 * hidden == 3298816


def test_flops_are_what_the_model_multiplies() -> None:
    """Torch's own counter sees the same products (with attention unfused: it does not know the CPU's fused kernel)."""
    inputs, targets = batch(SPEC, bytes(range(256)) * 8, 0)
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        micro_batch_loss(build_model(SPEC)(inputs), targets).backward()
    assert flops_per_step(SPEC) == counter.get_total_flops()
    # Megatron's closed form (arXiv 2104.04473) without recomputation.
    b, s, n, h, v = 16, 32, 4, 256, 256
    assert flops_per_step(GPT3M) == round(72 * b * s * n * h * h * (1 + s / (6 * h) + v / (12 * n * h)))


def test_activation_bytes_follow_the_formula() -> None:
    token = 4 * 24 * 48  # samples · sequence · hidden
    assert activation_bytes(SPEC, 4, layers=1) == token * 16 * 4
    assert activation_bytes(SPEC, 4, layers=3, tensor=2) == token * 10 * 4 * 3
    assert activation_bytes(SPEC, 4, layers=1, tensor=2, sequence=True) == token * 8 * 4


def test_a_part_of_the_model_equals_that_part_of_the_whole() -> None:
    whole = build_model(SPEC).state_dict()
    for layers, first, last in (([0], True, False), ([1, 2], False, True)):
        part = build_stage(SPEC, layers, first=first, last=last).state_dict()
        assert list(part) == list(stage_names(SPEC, layers, first=first, last=last))
        assert all(torch.equal(part[name], whole[name]) for name in part)


def test_the_seed_decides_the_model() -> None:
    one, two, other = (build_model(spec).state_dict() for spec in (SPEC, SPEC, msgspec.structs.replace(SPEC, seed=7)))
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert not torch.equal(one["token.weight"], other["token.weight"])


def test_causal() -> None:
    """A later byte changes no earlier prediction."""
    model = build_model(SPEC)
    tokens = torch.zeros(1, SPEC.sequence_length, dtype=torch.int64)
    changed = tokens.clone()
    changed[0, 10] = 1
    before, after = model(tokens), model(changed)
    assert torch.equal(before[:, :10], after[:, :10])
    assert not torch.equal(before[:, 10:], after[:, 10:])


def test_batches_are_deterministic_text() -> None:
    corpus = load_corpus(SPEC)
    assert corpus == load_corpus(SPEC)
    assert b"def " in corpus and len(corpus) > 1_000_000
    inputs, targets = batch(SPEC, corpus, 3)
    again, _ = batch(SPEC, corpus, 3)
    other, _ = batch(SPEC, corpus, 4)
    assert inputs.shape == targets.shape == (8, 24) and inputs.dtype == torch.int64
    assert torch.equal(inputs, again) and not torch.equal(inputs, other)
    for sample, wanted in zip(inputs, targets, strict=True):
        assert bytes([*sample.tolist(), int(wanted[-1])]) in corpus
        assert sample[1:].tolist() == wanted[:-1].tolist()


def test_a_users_file(tmp_path: Path) -> None:
    text = bytes(random.Random(1).randrange(256) for _ in range(26))
    (tmp_path / "text").write_bytes(text)
    spec = WorkloadSpec(
        name="w", layers=1, hidden=8, heads=1, sequence_length=24, global_batch=64, micro_batches=1,
        data=str(tmp_path / "text"),
    )  # fmt: skip
    inputs, targets = batch(spec, load_corpus(spec), 0)
    # 26 bytes hold two windows of 25: the first and the last position are both used, none reaches beyond.
    assert {bytes(row.tolist()) for row in inputs} == {text[:24], text[1:25]}
    assert {int(row[-1]) for row in targets} == {text[24], text[25]}


@pytest.mark.parametrize(
    ("content", "expected"),
    [(None, "cannot be read (No such file or directory)"), (b"short", "has 5 bytes, one sample needs 26")],
)
def test_bad_data_is_one_clear_line(tmp_path: Path, content: bytes | None, expected: str) -> None:
    path = tmp_path / "text"
    if content is not None:
        path.write_bytes(content)
    spec = WorkloadSpec(
        name="w", layers=1, hidden=8, heads=1, sequence_length=24, global_batch=4, micro_batches=1, data=str(path)
    )
    with pytest.raises(ConfigError) as caught:
        load_corpus(spec)
    assert expected in str(caught.value) and str(path) in str(caught.value) and "\n" not in str(caught.value)
