"""The configuration of a workflow run, from the plain mapping that YAML gives to typed, checked values."""

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema
import msgspec

from shardscope import strategies
from shardscope.errors import ConfigError
from shardscope.measure.settings import MeasureSettings
from shardscope.selection.constraints import Constraints
from shardscope.workload.spec import WorkloadSpec

__all__ = ["Config", "did_you_mean", "explain", "load"]


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


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """' (did you mean …?)' for the closest known word, or nothing."""
    close = difflib.get_close_matches(word, list(known), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def explain(error: jsonschema.ValidationError) -> str:
    """One line for a violation of the JSON schema: which key, what is wrong, what was probably meant."""
    where = ".".join(["config", *(str(part) for part in error.absolute_path)])
    if error.validator == "additionalProperties" and isinstance(error.instance, dict):
        known = list(error.schema.get("properties", {}))
        unknown = [key for key in error.instance if key not in known]
        return f"{where}: unknown key {unknown[0]!r}{did_you_mean(str(unknown[0]), known)}; known are {', '.join(known)}"
    return " ".join(f"{where}: {error.message}".split())


def load(raw: Mapping[str, Any]) -> Config:
    """Build the typed configuration from a mapping that the JSON schema accepted.

    Raises ConfigError, one line naming the key, for an unknown strategy or parameter, sizes that cannot work
    together, or a data file that is not there.
    """
    chosen = tuple(dict.fromkeys(raw["strategies"]))
    baseline = raw["baseline"]
    for name in chosen:
        _known_strategy(name, "strategies")
    _known_strategy(baseline, "baseline")
    if baseline not in chosen:
        raise ConfigError(f"config: baseline {baseline!r} is not among strategies {', '.join(chosen)}; add it there")
    return Config(
        workloads={name: _workload(name, section) for name, section in raw["workloads"].items()},
        strategies=chosen,
        strategy_parameters={name: _parameters(name, raw["strategy_parameters"].get(name, {})) for name in chosen}
        | {name: _parameters(name, section) for name, section in raw["strategy_parameters"].items()},
        baseline=baseline,
        measure=_convert(raw["measure"], MeasureSettings, "measure"),
        failures=raw["failures"],
        constraints={
            name: _convert(raw["constraints"] | section.get("constraints", {}), Constraints, "constraints")
            for name, section in raw["workloads"].items()
        },
    )


def _known_strategy(name: str, key: str) -> None:
    known = strategies.names()
    if name not in known:
        hint = did_you_mean(name, known)
        raise ConfigError(f"config: {key}: unknown strategy {name!r}{hint}; known are {', '.join(known)}")


def _workload(name: str, section: Mapping[str, Any]) -> WorkloadSpec:
    fields = {key: value for key, value in section.items() if key != "constraints"}
    spec = _convert({**fields, "name": name}, WorkloadSpec, f"workloads.{name}")
    if spec.data is not None and not Path(spec.data).is_file():
        raise ConfigError(f"config: workloads.{name}.data: no such file: {spec.data}; name a text file or leave it out")
    return spec


def _parameters(name: str, section: Mapping[str, Any]) -> Mapping[str, Any]:
    _known_strategy(name, "strategy_parameters")
    defaults = strategies.get(name).defaults
    for key, value in section.items():
        where = f"config: strategy_parameters.{name}.{key}"
        if key not in defaults:
            known = ", ".join(defaults) or "none"
            raise ConfigError(f"{where}: unknown parameter{did_you_mean(key, defaults)}; known are {known}")
        numeric = isinstance(defaults[key], int | float) and not isinstance(defaults[key], bool)
        fits = isinstance(value, int | float) if numeric else isinstance(value, type(defaults[key]))
        if not fits or (numeric and isinstance(value, bool)):
            raise ConfigError(f"{where}: {value!r} is not a {type(defaults[key]).__name__}")
    return {**defaults, **section}


def _convert(section: Mapping[str, Any], type_: type[Any], key: str) -> Any:
    try:
        return msgspec.convert(section, type_)
    except (msgspec.ValidationError, ValueError) as error:
        raise ConfigError(f"config: {key}: {error}") from error
