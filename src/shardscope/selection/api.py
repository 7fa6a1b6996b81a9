"""Decide about one workload from its finished runs and their attributions."""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import msgspec
from msgspec import structs

from shardscope.attribution.result import ATTRIBUTION_FILE, load_attribution
from shardscope.errors import ResultError
from shardscope.measure.record import Environment, RunRecord
from shardscope.selection.audit import passes_gate
from shardscope.selection.budget import budget, outdone
from shardscope.selection.claims import StrategyResult
from shardscope.selection.comparison import Side, candidate_times, noise_of
from shardscope.selection.conditions import opportunities, predicted, scale
from shardscope.selection.constraints import checks
from shardscope.selection.decision import Decision, load, save
from shardscope.selection.node import node_report
from shardscope.selection.ranking import Order
from shardscope.selection.recommend import all_cores, next_step, recommend
from shardscope.selection.rows import build_row
from shardscope.selection.runs import run_of
from shardscope.selection.terms import REFERENCE, Constraints, Standing
from shardscope.vocabulary import Status

__all__ = ["decide", "load", "save"]

CONDITIONS = ("world_size", "device", "backend", "rate_mbit")  # of the environment: what compared runs share
_STANDINGS = {
    Status.NOT_APPLICABLE: Standing.NOT_APPLICABLE,
    Status.OUT_OF_MEMORY: Standing.OUT_OF_MEMORY,
    Status.FAILED: Standing.FAILED,
}


def decide(workload: str, folders: Mapping[str, tuple[Path, Path]], constraints: Constraints) -> Decision:
    """Compare the strategies of `workload` and choose.

    `folders`: strategy → (its traces folder with run.json, its attribution folder), in the order of the report.
    Raises ResultError when a result is missing or belongs to something else than its folder says.
    """
    records = {name: run_of(run, workload, name) for name, (run, _) in folders.items()}
    if not records:
        raise ResultError(f"{workload}: no strategy was run; name some under strategies in the configuration")
    usual = _usual(list(records.values()))
    sides = {name: _side(name, records[name], folders[name][1], usual) for name in folders}
    baseline = usual.baseline
    base, reason = _compared_with(sides, baseline)
    single = sides.get(REFERENCE)
    rows = {name: build_row(side, sides[base] if base else None, single) for name, side in sides.items()}
    scales = {name: scale(row, usual.workload) for name, row in rows.items()}
    rows = {
        name: structs.replace(row, checks=checks(row, constraints, scales[name])) if row.ran else row
        for name, row in rows.items()
    }
    order = Order(sides=sides, rows=rows, base=base)
    choices = budget(order)
    rows = {
        name: structs.replace(
            row,
            predictions=predicted(order, name, base, scales) if base is not None else (),
            outdone=outdone(order, choices, name),
        )
        for name, row in rows.items()
    }
    order = Order(sides=sides, rows=rows, base=base)
    answer = recommend(order)
    turning, never = opportunities(order, answer.name, scales) if answer.name else ((), ())
    failed = tuple(name for name, row in rows.items() if row.standing is Standing.FAILED)
    environment = usual.environment
    ranks = environment.world_size if environment else None
    return Decision(
        workload=usual.workload,
        baseline=baseline,
        compared_with=base,
        baseline_reason=reason,
        world_size=ranks,
        environment=environment,
        mixed_environment=_mixed(rows),
        constraints=constraints,
        strategies=tuple(rows.values()),
        failed=failed,
        stale=tuple(name for name, row in rows.items() if row.run.last_failure_reason or row.run.last_failure),
        recommendation=answer,
        all_cores=all_cores(order, single, answer.name or base, constraints),
        budget=choices,
        opportunities=turning,
        never_overtakes=never,
        next_step=next_step(order, workload, answer, failed, ranks),
        node=node_report(records, {n: s.attribution for n, s in sides.items() if s.attribution is not None}, rows),
    )


def _usual(records: list[RunRecord]) -> RunRecord:
    """A run made under the conditions that most runs share, preferring those that measured something."""
    measured = [record for record in records if record.status is Status.OK] or records
    conditions = Counter(_conditions(record) for record in measured)
    most = conditions.most_common(1)[0][0]
    return next(record for record in measured if _conditions(record) == most)


def _conditions(record: RunRecord) -> tuple[object, ...]:
    """What must be equal for two runs to be compared at all."""
    environment = record.environment
    where = tuple(getattr(environment, fact) for fact in CONDITIONS) if environment else None
    return msgspec.json.encode(record.workload), where, record.baseline


def _side(name: str, record: RunRecord, attribution: Path, usual: RunRecord) -> Side:
    if record.status is not Status.OK:
        return Side(name, record, None, _STANDINGS[record.status], record.reason)
    if record.parity is None:
        raise ResultError(f"{name}: parity with `{REFERENCE}` was not measured; measure it again")
    result = load_attribution(attribution / ATTRIBUTION_FILE)
    standing, reason = Standing.ELIGIBLE, None
    differences = _differences(record, usual)
    if differences:
        standing, reason = Standing.INCOMPARABLE, differences
    elif not passes_gate(record.parity):
        standing = Standing.DISQUALIFIED
    elif name == REFERENCE:
        standing = Standing.REFERENCE
    noise = noise_of(record)
    no_time = "not_measured" if noise is None or not candidate_times(record) else "noise" if noise.too_noisy else None
    if record.environment is not None and record.environment.oversubscribed:
        no_time = "oversubscribed"
    return Side(name, record, result, standing, reason, noise, no_time)


def _differences(record: RunRecord, usual: RunRecord) -> str | None:
    found = []
    for field in record.workload.__struct_fields__:
        one, two = getattr(record.workload, field), getattr(usual.workload, field)
        if one != two:
            found.append(f"{field} {one}, others {two}")
    if record.baseline != usual.baseline:
        found.append(f"baseline {record.baseline}, others {usual.baseline}")
    mine, theirs = record.environment, usual.environment
    for field in CONDITIONS:
        one, two = getattr(mine, field, None), getattr(theirs, field, None)
        if one != two:
            found.append(f"{field} {one}, others {two}")
    return "; ".join(found) or None


def _compared_with(sides: Mapping[str, Side], baseline: str) -> tuple[str | None, str | None]:
    """The baseline, or the first that fits and is right, and why it is not the baseline."""
    wanted = sides.get(baseline)
    if wanted is not None and wanted.usable:
        return baseline, None
    reason = "missing" if wanted is None else str(wanted.standing)
    eligible = [name for name, side in sides.items() if side.standing is Standing.ELIGIBLE]
    usable = eligible or [name for name, side in sides.items() if side.usable]
    return (usable[0] if usable else None), reason


def _mixed(rows: Mapping[str, StrategyResult]) -> tuple[str, ...]:
    """Facts about the machine and software that differ between the runs that are compared."""
    compared = (Standing.ELIGIBLE, Standing.REFERENCE)
    found = [row.run.environment for row in rows.values() if row.standing in compared]
    environments = [environment for environment in found if environment is not None]

    def facts(field: str, environment: Environment) -> str:
        return repr(getattr(environment, field))

    fields = ("host", "cpu", "usable_cores", "threads_per_rank", "device_names", "versions")
    return tuple(field for field in fields if len({facts(field, environment) for environment in environments}) > 1)
