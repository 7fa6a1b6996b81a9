"""Configurations as tired people write them: each mistake is one line that names the place and the remedy."""

from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from shardscope.config import explain, load, settle_models
from shardscope.configfile import refuse_unreadable
from shardscope.errors import ConfigError, did_you_mean

SCHEMA = Path(__file__).resolve().parents[2] / "workflow" / "schemas" / "config.schema.yaml"
DEFAULTS = {"strategy_parameters": {}, "baseline": "ddp", "failures": "record", "measure": {}, "constraints": {}}
SIZES = "layers: 2, hidden: 32, heads: 2, sequence_length: 16, global_batch: 8, micro_batches: 2"


def _line(text: str) -> str:
    """The one line that the workflow prints for the configuration `text`."""
    raw = DEFAULTS | yaml.safe_load(text)
    validator = jsonschema.Draft202012Validator(yaml.safe_load(SCHEMA.read_text(encoding="utf-8")))
    found = next(validator.iter_errors(raw), None)  # the first, as Snakemake does
    if found is not None:
        return explain(found)
    with pytest.raises(ConfigError) as caught:
        load(raw)
    return str(caught.value)


def _with(extra: str = "", *, name: str = "tiny", more: str = "", sizes: str = SIZES) -> str:
    return f"workloads:\n  {name}: {{{sizes}{extra}}}\nstrategies: [single, ddp]\n{more}"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (_with(", learning_rate: 1e-3"), "to YAML this is text: write it without quotes, and with a decimal point"),
        (_with(", learning_rate: .nan"), "learning_rate must be a finite number"),
        (_with(", learning_rate: .inf"), "greater than the maximum"),
        (_with(", weight_decay: .nan"), "weight_decay must be a finite number"),
        (_with(f", seed: {10**50}"), "greater than the maximum"),
        (_with(sizes=SIZES.replace("layers: 2", "layers: 1000000000")), "greater than the maximum"),
        (_with(name="123"), "config.workloads: 123 is not of type 'string'; to YAML this is no text: put it in quotes"),
        (_with(name="yes"), "put it in quotes"),
        (_with(name='"a\\n"'), "a name is made of a-z"),
        (_with(name="wörk"), "a name is made of a-z"),
        (_with(name="a" * 900), "a name is made of a-z"),
        (_with(name="imported"), "this name is taken"),
        (_with(more="measure:\n"), "config.measure: has no value; give it one, or remove the key"),
        (_with(more="measure: {world_size: two}"), "'two' is not allowed here; ranks, 1 to 256, or auto"),
        (_with(more="measure: {world_size: 100000}"), "ranks, 1 to 256, or auto"),
        (_with(more=f"measure: {{timeout_s: {10**20}}}"), "greater than the maximum"),
        (_with(more="strategy_parameters: {ddp: {1: 1}}"), "put it in quotes"),
        (_with(more="strategy_parameters: {ddp: }"), "config.strategy_parameters.ddp: has no value"),
        ("workloads: [a]\nstrategies: [ddp]", "write a section of keys with values"),
        (_with().replace("[single, ddp]", "ddp"), "write a list, like [a, b]"),
        (_with(", data: /"), "not a file but a folder or device: /"),
        (_with(", data: /dev/null"), "not a file but a folder or device: /dev/null"),
        (_with(f", data: {'a' * 5000}"), "name a text file or leave it out"),
        (_with(', data: "a\\0b"'), "name a text file or leave it out"),
        (_with(", data: ~/no/such/text"), "no such file: ~/no/such/text"),
        (_with(", model: no.such:build"), "config: workloads.tiny.model: workload tiny: model no.such:build"),
        (_with(", model: build"), "config.workloads.tiny.model: 'build' is not allowed here"),
        (_with(", model_options: {a: 1}"), "model_options and model_path belong to a `model`"),
        (_with(more="measure: {rate_mbit: 0}"), "config.measure.rate_mbit: 0 is less than the minimum of 1"),
        (_with(more="conditions: {}"), "config.conditions: 'axes' is a required property"),
        (_with(more="conditions: {axes: {}}"), "config.conditions.axes"),
        (_with(more="conditions: {axes: {layer: [2]}}"), "unknown key 'layer' (did you mean 'layers'?)"),
        (_with(more="conditions: {axes: {layers: 2}}"), "write a list, like [a, b]"),
        (
            _with(more="conditions: {axes: {layers: [0]}}"),
            "config.conditions.axes.layers.0: 0 is less than the minimum",
        ),
        (
            _with(more="conditions: {axes: {layers: [4]}, measure: {rate_mbit: 200}}").replace("ddp]", "ddp, zero3]"),
            "conditions.measure.rate_mbit: must be that of the base, None, or points would differ from it in more than",
        ),
        (
            _with(more="conditions: {axes: {layers: [4]}, measure: {world_size: 4}}").replace("ddp]", "ddp, zero3]"),
            "conditions.measure.world_size: must be that of the base, auto",
        ),
        (
            _with(f", data: {__file__}", more="conditions: {axes: {sequence_length: [9000000]}}").replace(
                "ddp]", "ddp, zero3]"
            ),
            "bytes, one sample needs 9000002",
        ),
        (_with(", model: 'bad:good', model_path: '~nobody_here/x'"), "model_path '~nobody_here/x' names no folder"),
        (_with(', model: "bad:good", model_path: "\\0x"'), "names no folder (embedded null byte)"),
        (_with(", model: 'bad:good', model_options: {a: .nan}"), "model_options.a must be finite, not nan"),
        (_with(more="conditions: {axes: {layers: [4]}}"), "nothing to compare with the baseline 'ddp'"),
    ],
)
def test_mistakes_name_the_place_and_the_remedy(text: str, expected: str) -> None:
    line = _line(text)
    assert line.startswith("config") and expected in line
    assert "\n" not in line and len(line) < 1100


@pytest.mark.parametrize("content", [b"", b"abc", b"x" * 17])
def test_a_text_shorter_than_one_sample_is_refused_before_anything_runs(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "text"
    path.write_bytes(content)
    assert f"has {len(content)} bytes, one sample needs 18" in _line(_with(f", data: '{path}'"))


def test_a_model_beside_the_configuration_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "mine_beside.py").write_text("def build(spec): ...\n")
    monkeypatch.chdir(tmp_path)
    raw = DEFAULTS | yaml.safe_load(_with(", model: mine_beside:build"))
    settle_models(raw, Path("config"))
    assert load(raw).workloads["tiny"].model_path == "config"
    (tmp_path / "mine_beside.py").write_text("def build(spec): ...\n")
    again = DEFAULTS | yaml.safe_load(_with(", model: mine_beside:build"))
    settle_models(again, Path("config"))
    assert load(again).workloads["tiny"].model_path is None, "the working folder comes first"


def test_home_is_expanded_in_the_data_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "text").write_bytes(b"x" * 18)
    config = load(DEFAULTS | yaml.safe_load(_with(", data: ~/text")))
    assert config.workloads["tiny"].data == str(tmp_path / "text")


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("workloads: [", "line 1, column 13: not YAML: expected the node content"),
        ("a: 1\n\tb: 2\n", "line 2, column 1: not YAML"),
        ("", "holds no keys"),
        ("# nothing\n", "holds no keys"),
        ("- a\n- b\n", "holds no keys"),
        ("[1, 2]", "holds no keys"),
        ("a: 1\nb:\n  c: 1\n  d: 2\n  c: 3\n", "line 5: the key 'c' is given twice, first in line 3"),
        ('{"a": 1, "a": 2}', "the key 'a' is given twice"),
        ("a: &x\n  b: *x\n", "contains itself"),
        ("a: *x\n", "found undefined alias"),
        ("a: 1\n---\nb: 2\n", "but found another document"),
    ],
)
def test_files_that_are_no_configuration(tmp_path: Path, content: str, expected: str) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        refuse_unreadable(path)
    assert str(caught.value).startswith(str(path)) and expected in str(caught.value)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "latin").write_bytes(b"a: \xff")
    for name, expected in (("latin", "not UTF-8 text, at byte 3"), ("none", "no such file"), (".", "cannot be read")):
        with pytest.raises(ConfigError, match=expected):
            refuse_unreadable(tmp_path / name)


@pytest.mark.parametrize(
    "content",
    ["\ufeffa: 1\n", "a: &x {b: 1}\nc: *x\nd: {<<: *x, b: 2}\n", '{"a": {"b": 1}, "c": {"b": 2}}', "'a': 1\n2: 3\n"],
)
def test_sound_files_pass(tmp_path: Path, content: str) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(content, encoding="utf-8")
    refuse_unreadable(path)


def test_aliases_of_aliases_cost_nothing(tmp_path: Path) -> None:
    """Nine to the ninth power nodes, were each alias followed."""
    lines = ["a0: &a0 [x]"] + [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 10)]
    (tmp_path / "config.yaml").write_text("\n".join(lines), encoding="utf-8")
    refuse_unreadable(tmp_path / "config.yaml")


def test_messages_stay_short_and_on_one_line() -> None:
    error = ConfigError("what is wrong:\n\x1b[31m\u202e" + "z" * 100_000 + " what to do")
    assert len(str(error)) < 1100 and str(error).isprintable()
    assert str(error).startswith("what is wrong:") and str(error).endswith("what to do")
    assert did_you_mean(1, ["a"]) == "" and "ddp" in did_you_mean("dpd", ["ddp"])


def test_every_schema_key_says_what_it_is() -> None:
    def sections(node: Any) -> None:
        for key, value in node.get("properties", {}).items():
            assert value.get("description"), key
            sections(value)

    sections(yaml.safe_load(SCHEMA.read_text(encoding="utf-8")))
