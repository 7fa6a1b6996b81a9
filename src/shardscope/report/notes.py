"""What a reader must know about the comparison, each note only where the data shows that it applies."""

from collections.abc import Sequence

from shardscope.report.answer import sent_bytes
from shardscope.report.sentences import Sentence, sentence
from shardscope.selection.claims import StrategyResult
from shardscope.selection.comparison import NOISE_LIMIT
from shardscope.selection.decision import Decision
from shardscope.selection.terms import Basis, Verdict
from shardscope.vocabulary import Kind

__all__ = ["notes"]

COSTLY = 1.25  # profiled step ÷ plain step from which on the profiler is named as part of what is seen


def notes(decision: Decision) -> list[Sentence]:
    """What a reader must know about the comparison, each only where it applies."""
    rows = [row for row in decision.strategies if row.ran]
    found = []
    environment = decision.environment
    if decision.baseline_reason is not None:
        found.append(
            sentence(
                "note.baseline",
                baseline=decision.baseline,
                reason=decision.baseline_reason,
                instead=decision.compared_with,
            )
        )
    bases = {row.throughput.change.basis for row in rows if row.throughput.change is not None}
    if Basis.SEPARATE_JOBS in bases:
        names = [r.name for r in rows if r.throughput.change and r.throughput.change.basis is Basis.SEPARATE_JOBS]
        found.append(sentence("note.separate", names=names))
    if bases - {Basis.SEPARATE_JOBS}:
        found.append(sentence("note.paired", against=decision.compared_with, count=_steps(rows)))
    noisy = [row for row in rows if row.no_time_reason == "noise"]
    if noisy:
        items = [sentence("sure.item", name=row.name, noise=row.noise) for row in noisy]
        found.append(sentence("note.noisy", items=items, limit=NOISE_LIMIT))
    found += _noisy_requests(rows) + _costly_profiler(rows)
    if environment is not None and environment.oversubscribed:
        found.append(sentence("note.oversubscribed", environment=environment))
    if decision.mixed_environment:
        found.append(sentence("note.mixed", facts=list(decision.mixed_environment)))
    disagreeing = [row.name for row in rows if not all(audited.agrees for audited in row.audit)]
    if disagreeing:
        found.append(sentence("note.audit", names=disagreeing))
    return found + _strategy_notes(decision, rows)


def _noisy_requests(rows: Sequence[StrategyResult]) -> list[Sentence]:
    """Whose request latency is left open, because the baseline's own requests in that run differ too much."""
    items = []
    for row in rows:
        change = row.request_ns.change
        if change is not None and change.verdict is Verdict.NOT_JUDGED and (change.floor or 0.0) > NOISE_LIMIT:
            items.append(sentence("note.latency_item", name=row.name, floor=change.floor))
    return [sentence("note.latency", items=items, limit=NOISE_LIMIT)] if items else []


def _costly_profiler(rows: Sequence[StrategyResult]) -> list[Sentence]:
    """Whose profiled steps are much slower than the plain ones: their shares are the profiled step's."""
    items = []
    for row in rows:
        slower = _by_profiler(row)
        if slower is not None and 1 + slower > COSTLY:
            items.append(sentence("note.profiler_item", name=row.name, cost=slower))
    return [sentence("note.profiler", items=items)] if items else []


def profiler_costs(decision: Decision) -> tuple[float, float] | None:
    """The least and the greatest relative change of a step by the profiler; None where none was measured."""
    found = [_by_profiler(row) for row in decision.strategies if row.ledger is not None]
    costs = [cost for cost in found if cost is not None]
    return (min(costs), max(costs)) if costs else None


def _by_profiler(row: StrategyResult) -> float | None:
    """Relative change of the step by the profiler."""
    cost = row.run.profiler
    return cost.profiled_step_ns / cost.plain_step_ns - 1 if cost is not None and cost.plain_step_ns else None


def _steps(rows: Sequence[StrategyResult]) -> int:
    return min(row.step_count for row in rows if row.step_count)


def _strategy_notes(decision: Decision, rows: Sequence[StrategyResult]) -> list[Sentence]:
    """What is known of these implementations and this backend, where the data shows that it applies."""
    found = []
    backend = decision.environment.backend if decision.environment is not None else None
    base = next((row for row in rows if row.shards == ("batch",)), None)
    for row in rows:
        kinds = {volume.kind for volume in row.volumes}
        optimizer_only = "optimizer_state" in row.shards and "gradients" not in row.shards
        if optimizer_only and {Kind.BROADCAST, Kind.ALL_REDUCE} <= kinds:
            mine, theirs = sent_bytes(row), sent_bytes(base)
            ratio = mine / theirs if mine and theirs else None
            found.append(sentence("note.zero1", name=row.name, base=base.name if base else None, ratio=ratio))
    scattering = [row.name for row in rows if any(volume.kind is Kind.REDUCE_SCATTER for volume in row.volumes)]
    if backend == "gloo" and scattering:
        found.append(sentence("note.gloo", names=scattering))
    on_cpu = decision.environment is not None and decision.environment.device == "cpu"
    fsdp = [row.name for row in rows if "FSDP2" in row.display_name]
    if on_cpu and fsdp:
        found.append(sentence("note.fsdp", names=fsdp))
    return [*found, *_host_notes(rows)]


def _host_notes(rows: Sequence[StrategyResult]) -> list[Sentence]:
    """Conspicuous host time, by its cause."""
    by_cause: dict[tuple[str, str | None], list[Sentence]] = {}
    for row in rows:
        ledger = row.ledger
        if ledger is not None and ledger.host_cause is not None:
            share, part = ledger.host_ns / ledger.step_ns, ledger.host_cause.fraction
            item = sentence("note.host_item", name=row.name, share=share, part=part)
            by_cause.setdefault((ledger.host_cause.cause, ledger.host_cause.annotation), []).append(item)
    causes = [
        sentence("note.host_cause", items=items, cause=cause, annotation=annotation)
        for (cause, annotation), items in by_cause.items()
    ]
    return [sentence("note.host", causes=causes)] if causes else []
