"""The configuration of a workflow run, from the plain mapping that YAML gives to typed, checked values."""

import datetime
import math
import os
from collections.abc import Mapping, MutableMapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

import jsonschema
import msgspec

from shardscope import strategies
from shardscope.errors import ConfigError, TraceError, did_you_mean
from shardscope.measure.record import RUN_FILE
from shardscope.measure.settings import MeasureSettings
from shardscope.selection.constraints import Constraints
from shardscope.selection.sweep import Point, Sweep, expand
from shardscope.workload.source import check_model
from shardscope.workload.spec import WorkloadSpec

T = TypeVar("T")

__all__ = ["Config", "ImportedRun", "explain", "load", "settle_models"]

RESERVED = "comparison"  # reports/imported/comparison.md compares the imported runs


@dataclass(frozen=True, kw_only=True)
class ImportedRun:
    """Traces of a run that happened elsewhere. `ranks`: file → rank, where the files do not say."""

    path: Path
    ranks: Mapping[Path, int]
    salvage: bool
    patterns: Path | None
    second_opinion: bool

    def files(self) -> list[str]:
        """Every file the attribution may depend on: traces, unfinished ones, a run's record, further patterns.

        Raises TraceError when there is no trace.
        """
        # Not at the top: a workflow without imported runs starts faster without the analysis.
        from shardscope.trace.find import collect

        traces, left_out = collect([self.path])
        others = [path for path, _ in left_out] + [self.path / RUN_FILE, *([self.patterns] if self.patterns else [])]
        return [str(path) for path in (*traces, *others) if path.is_file()]

    def fingerprint(self) -> list[tuple[str, int, int]]:
        """(file, bytes, time of last change in ns) of all of them: other files, another attribution."""
        return [(name, found.st_size, found.st_mtime_ns) for name in self.files() for found in (Path(name).stat(),)]


@dataclass(frozen=True, kw_only=True)
class Config:
    """Everything the workflow needs to know. `constraints` is per workload; without workloads nothing is measured."""

    workloads: Mapping[str, WorkloadSpec]
    strategies: tuple[str, ...]
    strategy_parameters: Mapping[str, Mapping[str, Any]]
    baseline: str
    measure: MeasureSettings
    failures: str
    constraints: Mapping[str, Constraints]
    imported: Mapping[str, ImportedRun]
    conditions: Sweep | None = None  # what reports/conditions.md measures besides

    @property
    def measured(self) -> tuple[str, ...]:
        """Everything that has a folder under traces/: the workloads and the points of the sweep."""
        return (*self.workloads, *(self.conditions.points if self.conditions is not None else ()))

    def spec_of(self, workload: str) -> WorkloadSpec:
        """The sizes of a workload, or of a point of the sweep."""
        point = self._point(workload)
        return self.workloads[workload] if point is None else point.spec

    def settings_of(self, workload: str) -> MeasureSettings:
        """How it is measured."""
        point = self._point(workload)
        return self.measure if point is None else point.settings

    def parameters_of(self, workload: str, strategy: str) -> Mapping[str, Any]:
        """The parameters of `strategy` when it is what is measured there. As a baseline it keeps its usual ones."""
        point = self._point(workload)
        return (point.parameters if point is not None else {}).get(strategy, self.strategy_parameters[strategy])

    def constraints_of(self, workload: str) -> Constraints:
        """What a recommendation must satisfy there."""
        point = self._point(workload)
        base = self.conditions.base.workload if point is not None and self.conditions is not None else workload
        return self.constraints[base]

    def _point(self, workload: str) -> Point | None:
        return self.conditions.points.get(workload) if self.conditions is not None else None


def explain(error: jsonschema.ValidationError) -> str:
    """One line for a violation of the JSON schema: which key, what is wrong, what was probably meant."""
    where = ".".join(["config", *(str(part) for part in error.absolute_path)])
    if error.validator == "additionalProperties" and isinstance(error.schema, dict):
        known = list(cast(Mapping[str, Any], error.schema)["properties"])
        given = cast(Mapping[Any, Any], error.instance)
        unknown = next(str(key) for key in given if key not in known)
        return f"{where}: unknown key {unknown!r}{did_you_mean(unknown, known)}; known are {', '.join(known)}"
    return str(ConfigError(f"{where}: {_violation(error)}"))


def _violation(error: jsonschema.ValidationError) -> str:
    """What is wrong with one value, in the words of someone who wrote YAML."""
    given, schema = error.instance, error.schema if isinstance(error.schema, dict) else {}
    if given is None:
        return "has no value; give it one, or remove the key"
    if error.validator in ("anyOf", "pattern") and "description" in schema:
        return f"{given!r} is not allowed here; {schema['description']}"
    hint = ""
    if error.validator == "type":
        value: Any = error.validator_value
        wanted = [value] if isinstance(value, str) else list(value)
        if wanted == ["string"] and isinstance(given, (bool, int, float, datetime.date)):
            hint = "; to YAML this is no text: put it in quotes"
        elif isinstance(given, str) and _is_number(given) and {"number", "integer"} & set(wanted):
            hint = "; to YAML this is text: write it without quotes, and with a decimal point, like 1.0e-3"
        elif wanted in (["array"], ["object"]):
            hint = "; write a list, like [a, b]" if wanted == ["array"] else "; write a section of keys with values"
    return f"{error.message}{hint}"


def _is_number(word: str) -> bool:
    try:
        return math.isfinite(float(word))
    except ValueError:
        return False


def load(raw: Mapping[str, Any]) -> Config:
    """Build the typed configuration from a mapping that the JSON schema accepted.

    Raises ConfigError, one line naming the key, for an unknown strategy or parameter, sizes that cannot work
    together, or a file that is not there.
    """
    workloads, imported = raw.get("workloads", {}), raw.get("imported", {})
    if not workloads and not imported:
        raise ConfigError("config: nothing to do; name workloads and strategies to measure, or imported runs")
    if bool(workloads) != bool(raw.get("strategies")):
        lacking = "strategies" if workloads else "workloads"
        raise ConfigError(f"config: no {lacking}; to measure, name both workloads and strategies")
    chosen = tuple(dict.fromkeys(raw.get("strategies", ())))
    baseline = raw["baseline"]
    sections = raw["strategy_parameters"]
    parameters = {name: _parameters("strategies", name, sections.get(name, {})) for name in chosen}
    # Sections of strategies that are not chosen now are checked as well: a typing error would hide in them.
    parameters |= {name: _parameters("strategy_parameters", name, section) for name, section in sections.items()}
    if workloads and baseline not in chosen:
        raise ConfigError(f"config: baseline {baseline!r} is not among strategies {', '.join(chosen)}; add it there")
    specs = {name: _workload(name, section) for name, section in workloads.items()}
    settings = _convert(raw["measure"], MeasureSettings, "measure")
    swept = raw.get("conditions") if workloads else None
    conditions = None
    if swept is not None:
        conditions = expand(
            swept, workloads=specs, chosen=chosen, parameters=parameters, baseline=baseline, settings=settings
        )
        for point in conditions.points.values():
            if point.spec.data is not None:  # a longer sample needs a longer text
                _data(conditions.base.workload, point.spec, point.spec.data)
    return Config(
        workloads=specs,
        strategies=chosen,
        strategy_parameters=parameters,
        baseline=baseline,
        measure=settings,
        failures=raw["failures"],
        constraints={
            name: _convert(raw["constraints"] | section.get("constraints", {}), Constraints, "constraints")
            for name, section in workloads.items()
        },
        imported={name: _imported(name, section) for name, section in imported.items()},
        conditions=conditions,
    )


def settle_models(raw: MutableMapping[str, Any], folder: Path) -> None:
    """Look for the workloads' own models beside the configuration file as well, which lies in `folder`.

    Sets `model_path` where it is not given and the model is found there but neither in the working folder nor on the
    Python path.
    """
    for name, section in raw.get("workloads", {}).items():
        if not section.get("model") or section.get("model_path") is not None:
            continue
        with suppress(ConfigError):  # sizes that cannot be are told by load()
            spec = _convert({**_sizes(section), "name": name}, WorkloadSpec, f"workloads.{name}")
            if not _is_there(spec):
                check_model(msgspec.structs.replace(spec, model_path=str(folder)))
                section["model_path"] = str(folder)


def _is_there(spec: WorkloadSpec) -> bool:
    try:
        check_model(spec)
    except ConfigError:
        return False
    return True


def _sizes(section: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in section.items() if key != "constraints"}


def _imported(name: str, section: Mapping[str, Any]) -> ImportedRun:
    key = f"config: imported.{name}"
    if name == RESERVED:
        raise ConfigError(f"{key}: this name is taken by the comparison of all imported runs; choose another")
    path = Path(section["path"])
    if not path.exists():
        raise ConfigError(f"{key}.path: no such file or folder: {path}; name a trace, or the folder of a run's traces")
    folder = path if path.is_dir() else path.parent
    for file in section.get("ranks", {}):
        if not (folder / file).is_file() or not (folder / file).resolve().is_relative_to(folder.resolve()):
            raise ConfigError(f"{key}.ranks: no file {file} in {folder}; name the files there")
    patterns = section.get("patterns")
    if patterns is not None and not Path(patterns).is_file():
        raise ConfigError(f"{key}.patterns: no such file: {patterns}; write one like attribution/kinds.toml")
    run = ImportedRun(
        path=path,
        ranks={folder / file: rank for file, rank in section.get("ranks", {}).items()},
        salvage=section.get("salvage", False),
        patterns=None if patterns is None else Path(patterns),
        second_opinion=section.get("second_opinion", True),
    )
    try:
        run.files()
    except TraceError as error:
        raise ConfigError(f"{key}.path: {error}") from error
    return run


def _workload(name: str, section: Mapping[str, Any]) -> WorkloadSpec:
    spec = _convert({**_sizes(section), "name": name}, WorkloadSpec, f"workloads.{name}")
    if name == "imported":
        raise ConfigError("config: workloads.imported: this name is taken by runs from elsewhere; choose another")
    if spec.model is not None:
        try:
            check_model(spec)
        except ConfigError as error:
            raise ConfigError(f"config: workloads.{name}.model: {error}") from error
    return spec if spec.data is None else msgspec.structs.replace(spec, data=_data(name, spec, spec.data))


def _data(name: str, spec: WorkloadSpec, given: str) -> str:
    """The path of the text to train on, checked as far as it can be without reading it."""
    key, least = f"config: workloads.{name}.data", spec.sequence_length + 2
    try:
        path = Path(given).expanduser()
        if path.exists() and not path.is_file():
            raise ConfigError(f"{key}: not a file but a folder or device: {given}; name a text file or leave it out")
        if not path.is_file():
            raise ConfigError(f"{key}: no such file: {given}; name a text file or leave it out")
        size = path.stat().st_size
        if not os.access(path, os.R_OK):
            raise ConfigError(f"{key}: may not be read: {given}; change its permissions or leave it out")
    except (OSError, RuntimeError, ValueError) as error:
        raise ConfigError(f"{key}: no such file: {given} ({error}); name a text file or leave it out") from error
    if size < least:
        raise ConfigError(f"{key}: {given} has {size} bytes, one sample needs {least}; name a longer text file")
    return str(path)


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
