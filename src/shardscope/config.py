"""The configuration of a workflow run, from the plain mapping that YAML gives to typed, checked values."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

import jsonschema
import msgspec

from shardscope import strategies
from shardscope.errors import ConfigError, did_you_mean
from shardscope.measure.settings import MeasureSettings
from shardscope.selection.constraints import Constraints
from shardscope.workload.spec import WorkloadSpec

T = TypeVar("T")

__all__ = ["Config", "explain", "load"]


@dataclass(frozen=True, kw_only=True)
class Config:
    """Everything the workflow needs to know. `constraints` is per workload."""

    workloads: Mapping[str, WorkloadSpec]
    strategies: tuple[str, ...]
    strategy_parameters: Mapping[str, Mapping[str, Any]]
    baseline: str
    measure: MeasureSettings
    failures: str
    constraints: Mapping[str, Constraints]


def explain(error: jsonschema.ValidationError) -> str:
    """One line for a violation of the JSON schema: which key, what is wrong, what was probably meant."""
    where = ".".join(["config", *(str(part) for part in error.absolute_path)])
    if error.validator == "additionalProperties" and isinstance(error.schema, dict):
        known = list(error.schema["properties"])
        given = cast(Mapping[Any, Any], error.instance)
        unknown = next(str(key) for key in given if key not in known)
        return f"{where}: unknown key {unknown!r}{did_you_mean(unknown, known)}; known are {', '.join(known)}"
    return " ".join(f"{where}: {error.message}".split())


def load(raw: Mapping[str, Any]) -> Config:
    """Build the typed configuration from a mapping that the JSON schema accepted.

    Raises ConfigError, one line naming the key, for an unknown strategy or parameter, sizes that cannot work
    together, or a data file that is not there.
    """
    chosen = tuple(dict.fromkeys(raw["strategies"]))
    baseline = raw["baseline"]
    sections = raw["strategy_parameters"]
    parameters = {name: _parameters("strategies", name, sections.get(name, {})) for name in chosen}
    # Sections of strategies that are not chosen now are checked as well: a typing error would hide in them.
    parameters |= {name: _parameters("strategy_parameters", name, section) for name, section in sections.items()}
    if baseline not in chosen:
        raise ConfigError(f"config: baseline {baseline!r} is not among strategies {', '.join(chosen)}; add it there")
    return Config(
        workloads={name: _workload(name, section) for name, section in raw["workloads"].items()},
        strategies=chosen,
        strategy_parameters=parameters,
        baseline=baseline,
        measure=_convert(raw["measure"], MeasureSettings, "measure"),
        failures=raw["failures"],
        constraints={
            name: _convert(raw["constraints"] | section.get("constraints", {}), Constraints, "constraints")
            for name, section in raw["workloads"].items()
        },
    )


def _workload(name: str, section: Mapping[str, Any]) -> WorkloadSpec:
    fields = {key: value for key, value in section.items() if key != "constraints"}
    spec = _convert({**fields, "name": name}, WorkloadSpec, f"workloads.{name}")
    if spec.data is not None and not Path(spec.data).is_file():
        raise ConfigError(f"config: workloads.{name}.data: no such file: {spec.data}; name a text file or leave it out")
    return spec


def _parameters(key: str, name: str, section: Mapping[str, Any]) -> Mapping[str, Any]:
    try:
        return strategies.resolve_parameters(name, section)
    except ConfigError as error:
        raise ConfigError(f"config: {key}: {error}") from error


def _convert(section: Mapping[str, Any], type_: type[T], key: str) -> T:
    try:
        return msgspec.convert(section, type_)
    except (msgspec.ValidationError, ValueError) as error:
        raise ConfigError(f"config: {key}: {error}") from error
