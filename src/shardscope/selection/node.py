"""The second table: what the strategies would do on named hardware, and how well the same model does here."""

import math
import statistics
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib import resources
from typing import Any

import msgspec

from shardscope.attribution.result import Attribution
from shardscope.errors import ResultError
from shardscope.measure.record import RunRecord
from shardscope.selection.claims import StrategyResult
from shardscope.selection.node_claims import Flip, Machine, NodePrediction, NodeReport, NodeTable, SelfCheck
from shardscope.selection.node_here import Run, as_measured, here
from shardscope.selection.node_predict import planned, predict, usable_devices
from shardscope.selection.terms import REFERENCE, Standing, Verdict

__all__ = ["node_report", "profiles"]

NS = 1e9
PROFILES = "profiles.toml"
COMPARED = (Standing.ELIGIBLE, Standing.REFERENCE)


@cache
def profiles() -> tuple[Machine, ...]:
    """The named hardware. `like`: takes over what another profile says and adds to its sources and assumptions."""
    table = tomllib.loads((resources.files("shardscope.selection") / PROFILES).read_text(encoding="utf-8"))
    found: dict[str, dict[str, Any]] = {}
    for name, fields in table.items():
        base = found.get(fields.get("like", ""), {})
        own = {key: value for key, value in fields.items() if key != "like"}
        own["sources"] = {**base.get("sources", {}), **own.get("sources", {})}
        own["assumed"] = [*base.get("assumed", []), *own.get("assumed", [])]
        found[name] = {"backend": "nccl", **base, **own, "name": name}
    try:
        return tuple(msgspec.convert(fields, Machine) for fields in found.values())
    except msgspec.ValidationError as error:
        raise ResultError(f"selection/{PROFILES}: {error}; correct the profile") from error


def node_report(
    records: Mapping[str, RunRecord], results: Mapping[str, Attribution], rows: Mapping[str, StrategyResult]
) -> NodeReport | None:
    """Everything about one workload; None where too little was measured to say how well the model does.

    records, results, rows: by strategy, in the order of the report; results only of those that ran.
    """
    runs = _runs(records, results, rows)
    found = here(runs)
    if found is None:
        return None
    machine, calibration, samples, _ = found
    checks = tuple(_check(runs, name, calibration) for name in runs)
    judged = [check for check in checks if check.predicted.step_s is not None and not check.calibration]
    ranked = [name for name in runs if rows[name].standing is Standing.ELIGIBLE and rows[name].time_evidence]
    measured = {name: runs[name].step_ns / NS for name in ranked}
    environment = runs[calibration].record.environment
    assert environment is not None
    machines = [as_measured(profile, machine, environment) for profile in profiles()]
    tables = [_table(records, each, runs, checks, rows) for each in machines]
    return NodeReport(
        here=machine,
        checks=checks,
        step_error=_median_error((each.predicted.step_s, each.step_s) for each in judged),
        memory_error=_median_error((each.predicted.memory_bytes, each.memory_bytes) for each in checks),
        transfer_error=_median_error((each.predicted.transfer_s, each.transfer_s) for each in judged),
        fastest=min(measured, key=lambda name: measured[name], default=None),
        nodes=tuple(table for table in tables if table is not None),
        calibration=calibration,
        samples=samples,
    )


def _runs(
    records: Mapping[str, RunRecord], results: Mapping[str, Attribution], rows: Mapping[str, StrategyResult]
) -> dict[str, Run]:
    """What can be compared: correct, under the usual conditions, with times."""
    found = {}
    for name, row in rows.items():
        if row.ledger is None or row.step_ns.value is None or row.standing not in COMPARED:
            continue
        if records[name].plan is not None and records[name].environment is not None and name in results:
            found[name] = Run(records[name], results[name], row.ledger, row.step_ns.value)
    return found


def _check(runs: Mapping[str, Run], name: str, calibration: str) -> SelfCheck:
    """One strategy predicted from the other strategies' runs."""
    run, found = runs[name], here(runs, without=name)
    assert found is not None and run.record.plan is not None and run.record.timing is not None
    machine, _, _, own = found
    predicted = predict(
        run.record.workload, name, run.record.plan, machine, machine.devices, flops=run.record.timing.flops_per_step
    )
    scale = run.step_ns / run.ledger.step_ns / NS
    transfer = run.ledger.transfer_ns
    peaks = [memory.peak_bytes for memory in run.record.memory]
    return SelfCheck(
        predicted=predicted,
        calibration=name == calibration,
        own_transfers=own,
        step_s=run.step_ns / NS,
        transfer_s=None if transfer is None else transfer * scale,
        bubble_s=None if run.ledger.bubble_ns is None else run.ledger.bubble_ns * scale,
        memory_bytes=float(max(peaks)) if peaks else None,
    )


def _table(
    records: Mapping[str, RunRecord],
    machine: Machine,
    runs: Mapping[str, Run],
    checks: Sequence[SelfCheck],
    rows: Mapping[str, StrategyResult],
) -> NodeTable | None:
    names = [name for name in rows if name != REFERENCE]
    record = next(iter(runs.values())).record
    assert record.timing is not None
    spec, flops = record.workload, record.timing.flops_per_step
    ranks = usable_devices(spec, names, machine)
    if ranks is None:
        return None
    predictions = []
    for name in rows:
        # One process has one device, wherever it is.
        count = 1 if name == REFERENCE else ranks
        plan = planned(spec, name, records[name].strategy.parameters, count)
        predictions.append(predict(spec, name, plan, machine, count, flops=flops))
    fitting = {p.name: p.step_s for p in predictions if p.fits and p.step_s is not None and p.name != REFERENCE}
    first = min(fitting, key=lambda name: fitting[name], default=None)
    missed = _missed(checks)
    return NodeTable(
        machine=machine,
        devices=ranks,
        rows=tuple(predictions),
        first=first,
        near=tuple(
            name
            for name in fitting
            if first in missed and name in missed and name != first
            if fitting[name] / fitting[first] <= _pair_error(missed, first, name)
        ),
        flips=_flips(predictions, missed, runs, rows),
    )


def _flips(
    predictions: Sequence[NodePrediction],
    missed: Mapping[str, float],
    runs: Mapping[str, Run],
    rows: Mapping[str, StrategyResult],
) -> tuple[Flip, ...]:
    """Pairs that change places: apart beyond the noise here, as the model says too, the other way round there.

    The largest change first.
    """
    there = {p.name: p.step_s for p in predictions if p.step_s is not None and p.fits}
    predicted_here = {name: missed[name] + math.log(runs[name].step_ns) for name in missed if name in runs}
    names = [name for name in runs if name in there and name in missed and name != REFERENCE]
    found = []
    for one in names:
        for two in names:
            known_here = predicted_here[one] < predicted_here[two]  # else the model has the pair wrong here already
            if not known_here or not _faster(rows, runs, one, two) or there[one] <= there[two]:
                continue
            ratio, error = there[one] / there[two], _pair_error(missed, one, two)
            found.append(Flip(first=one, second=two, ratio=ratio, error=error, claimed=ratio > error))
    return tuple(sorted(found, key=lambda flip: flip.error / flip.ratio))


def _missed(checks: Sequence[SelfCheck]) -> dict[str, float]:
    """Logarithm of predicted ÷ measured step here."""
    steps = {check.predicted.name: (check.predicted.step_s, check.step_s) for check in checks}
    return {name: math.log(predicted / own) for name, (predicted, own) in steps.items() if predicted is not None}


def _pair_error(missed: Mapping[str, float], one: str, two: str) -> float:
    """The factor by which the model misses the ratio of the two here."""
    return math.exp(abs(missed[one] - missed[two]))


def _faster(rows: Mapping[str, StrategyResult], runs: Mapping[str, Run], one: str, two: str) -> bool:
    """Whether `one` was measured faster than `two` by more than both runs' noise floors."""
    sides = (rows[one], rows[two])
    if not all(row.time_evidence and row.noise is not None for row in sides):
        return False
    floor = math.hypot(*(math.log1p(row.noise.floor) for row in sides if row.noise is not None))
    against = {rows[one].name: rows[two].name, rows[two].name: rows[one].name}
    for change, row in ((row.throughput.change, row) for row in sides):
        if change is not None and change.against == against[row.name] and change.verdict is Verdict.WITHIN_NOISE:
            return False
    return math.log(runs[two].step_ns / runs[one].step_ns) > floor


def _median_error(pairs: Iterable[tuple[float | None, float | None]]) -> float | None:
    """Of (predicted, measured), by size; None where no pair has both."""
    found = [abs(predicted / own - 1) for predicted, own in pairs if predicted is not None and own]
    return statistics.median(found) if found else None
