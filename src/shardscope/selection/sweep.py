"""A sweep: the points that the configuration's `conditions` section asks for, each a workload of its own.

A point differs from the base workload in one factor (or, in a grid, in two). It has a folder name made from the factor
and its value, so that a point that was measured once is found again however the sweep is edited. A factor is a size of
the workload, the emulated rate, or a parameter of one strategy (`ddp.bucket_cap_mb`); there only that strategy is
measured, against the baseline with its usual parameters.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
from msgspec import structs

from shardscope import strategies
from shardscope.errors import ConfigError
from shardscope.measure.settings import MeasureSettings
from shardscope.workload.spec import WorkloadSpec

__all__ = ["AXES", "RATE", "Axis", "Point", "Sweep", "expand"]

RATE = "rate_mbit"
# Workload fields that may be swept → how a point's name says it.
AXES = {
    "global_batch": "batch",
    "micro_batches": "micro",
    "sequence_length": "seq",
    "hidden": "hidden",
    "layers": "layers",
    RATE: "rate",
}
LONGEST_NAME = 40
Value = float | None  # None: the machine's own rate


@dataclass(frozen=True, kw_only=True)
class Point:
    """One place of the sweep. `workload`: its name, and that of its folder under traces/; `at`: factor → value."""

    workload: str
    at: Mapping[str, Value]
    spec: WorkloadSpec
    settings: MeasureSettings
    strategies: tuple[str, ...]  # measured here; the baseline is timed in each of their jobs
    parameters: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # where they differ from the usual


@dataclass(frozen=True, kw_only=True)
class Axis:
    """One factor: its points in ascending order, the base among them (for the rate last: the machine's own)."""

    name: str
    values: tuple[Value, ...]
    workloads: tuple[str, ...]  # by value
    strategies: tuple[str, ...]
    parameter: tuple[str, str] | None = None  # (strategy, parameter)


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """Everything there is to measure for the conditions report. The base point is the main report's own measurement."""

    base: Point
    baseline: str
    axes: tuple[Axis, ...]
    grid: tuple[Axis, Axis] | None
    grid_workloads: Mapping[tuple[Value, Value], str]
    points: Mapping[str, Point]  # by workload, without the base

    def point(self, workload: str) -> Point:
        """The point called `workload`, the base included."""
        return self.base if workload == self.base.workload else self.points[workload]


def expand(
    section: Mapping[str, Any],
    *,
    workloads: Mapping[str, WorkloadSpec],
    chosen: Sequence[str],
    parameters: Mapping[str, Mapping[str, Any]],
    baseline: str,
    settings: MeasureSettings,
) -> Sweep:
    """The sweep that `section` (accepted by the JSON schema) describes. Raises ConfigError naming the key."""
    name = section.get("workload", next(iter(workloads), ""))
    if name not in workloads:
        raise ConfigError(f"config: conditions.workload: {name!r} is not among workloads {', '.join(workloads)}")
    swept = tuple(dict.fromkeys(section.get("strategies", chosen)))
    for strategy in swept:
        if strategy not in chosen:
            raise ConfigError(
                f"config: conditions.strategies: {strategy!r} is not among strategies {', '.join(chosen)}; "
                "the sweep starts from their results, so name it there as well"
            )
    # `single` does not parallelise, and the baseline is timed in every job.
    measured = tuple(strategy for strategy in swept if strategy not in (baseline, "single"))
    if not measured:
        raise ConfigError(f"config: conditions.strategies: nothing to compare with the baseline {baseline!r}")
    builder = _Builder(
        base=Point(workload=name, at={}, spec=workloads[name], settings=settings, strategies=(baseline, *measured)),
        settings=_settings(section.get("measure", {}), settings),
        measured=measured,
        configured=workloads,
    )
    given = dict(section["axes"])
    nested = given.pop("strategy_parameters", {})
    axes = [builder.axis(axis, values) for axis, values in given.items()]
    for strategy, swept_parameters in nested.items():
        usual = _usual(strategy, builder.base.strategies, parameters)
        axes += [builder.parameter_axis(strategy, key, values, usual) for key, values in swept_parameters.items()]
    grid = section.get("grid")
    pair = tuple(next((axis for axis in axes if axis.name == wanted), None) for wanted in grid) if grid else None
    if pair is not None and (None in pair or pair[0] is pair[1] or any(axis and axis.parameter for axis in pair)):
        known = ", ".join(axis.name for axis in axes if axis.parameter is None)
        raise ConfigError(f"config: conditions.grid: name two different axes out of {known or 'sizes and rates'}")
    both = (pair[0], pair[1]) if pair is not None and pair[0] is not None and pair[1] is not None else None
    return Sweep(
        base=builder.base,
        baseline=baseline,
        axes=tuple(axes),
        grid=both,
        grid_workloads=builder.grid(*both) if both is not None else {},
        points=builder.points,
    )


def _usual(strategy: str, swept: Sequence[str], parameters: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Any]:
    if strategy not in swept:
        raise ConfigError(
            f"config: conditions.axes.strategy_parameters: {strategy!r} is not measured in the sweep "
            f"({', '.join(swept)}); name it in conditions.strategies as well"
        )
    return parameters[strategy]


def _settings(section: Mapping[str, Any], usual: MeasureSettings) -> MeasureSettings:
    try:
        found = msgspec.convert({**structs.asdict(usual), **section}, MeasureSettings)
    except (msgspec.ValidationError, ValueError) as error:
        raise ConfigError(f"config: conditions.measure: {error}") from error
    for key in ("world_size", "rate_mbit"):
        if getattr(found, key) != getattr(usual, key):
            raise ConfigError(
                f"config: conditions.measure.{key}: must be that of the base, {getattr(usual, key)}, or points would "
                "differ from it in more than one factor; rates are swept by conditions.axes.rate_mbit"
            )
    return found


@dataclass
class _Builder:
    base: Point
    settings: MeasureSettings
    measured: tuple[str, ...]
    configured: Mapping[str, WorkloadSpec]
    points: dict[str, Point] = field(default_factory=dict)

    def axis(self, name: str, values: Sequence[Value]) -> Axis:
        own = self.base.settings.rate_mbit if name == RATE else getattr(self.base.spec, name)
        # JSON schema takes 32.0 for an integer.
        given = [int(value) if name != RATE and value is not None else value for value in values]
        every = sorted({own, *given}, key=lambda value: float("inf") if value is None else value)
        return Axis(
            name=name,
            values=tuple(every),
            workloads=tuple(self._place({name: value} if value != own else {}) for value in every),
            strategies=self.base.strategies,
        )

    def grid(self, one: Axis, other: Axis) -> dict[tuple[Value, Value], str]:
        found = {}
        for x, first in zip(one.values, one.workloads, strict=True):
            for y, second in zip(other.values, other.workloads, strict=True):
                at = {**self._at(first), **self._at(second)}
                found[(x, y)] = self._place(at)
        return found

    def parameter_axis(self, strategy: str, key: str, values: Sequence[Any], usual: Mapping[str, Any]) -> Axis:
        where = f"config: conditions.axes.strategy_parameters.{strategy}"
        own = usual.get(key)
        if own is not None and (isinstance(own, bool) or not isinstance(own, (int, float))):
            raise ConfigError(f"{where}.{key}: only numbers can be swept")
        values = [int(value) if isinstance(own, int) and value == int(value) else value for value in values]
        for value in values:
            try:
                strategies.resolve_parameters(strategy, {**usual, key: value})
            except ConfigError as error:
                raise ConfigError(f"{where}: {error}") from error
        every = sorted({own, *values})
        workloads = []
        for value in every:
            at = {f"{strategy}.{key}": value} if value != own else {}
            workloads.append(self._place(at, {strategy: {**usual, key: value}}, (strategy,)))
        return Axis(
            name=f"{strategy}.{key}",
            values=tuple(every),
            workloads=tuple(workloads),
            strategies=(strategy,),
            parameter=(strategy, key),
        )

    def _at(self, workload: str) -> Mapping[str, Value]:
        return {} if workload == self.base.workload else self.points[workload].at

    def _place(
        self,
        at: Mapping[str, Value],
        parameters: Mapping[str, Mapping[str, Any]] | None = None,
        measured: tuple[str, ...] | None = None,
    ) -> str:
        """The name of the point at `at`, added if it is new."""
        if not at:
            return self.base.workload
        name = _name(self.base.workload, at)
        fields = {key: value for key, value in at.items() if key in AXES and key != RATE}
        try:
            spec = structs.replace(self.base.spec, name=name, **fields)
            settings = structs.replace(self.settings, rate_mbit=at[RATE]) if RATE in at else self.settings
        except ValueError as error:
            raise ConfigError(f"config: conditions.axes: {error}") from error
        if name in self.configured:
            raise ConfigError(
                f"config: workloads.{name}: this name is taken by a point of the sweep; choose another, or remove "
                f"{', '.join(f'{key} {value}' for key, value in at.items())} from conditions.axes"
            )
        self.points[name] = Point(
            workload=name,
            at=dict(at),
            spec=spec,
            settings=settings,
            strategies=measured or self.measured,
            parameters=parameters or {},
        )
        return name


def _name(base: str, at: Mapping[str, Value]) -> str:
    """A folder name: the base's, then every factor with its value; cut and made unique where that is too long."""
    parts = []
    for key, value in at.items():
        shown = f"{value:g}"
        if value is not None and float(shown) != value:
            shown = repr(value)  # six digits would make one point of two values
        shown = shown.replace(".", "p").replace("+", "").replace("-", "m")
        parts.append(f"{AXES.get(key, key.replace('.', '-').lower())}{shown}")
    name = "-".join([base, *parts])
    if len(name) <= LONGEST_NAME:
        return name
    return f"{name[: LONGEST_NAME - 9]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
