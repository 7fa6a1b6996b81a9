"""Sections 3, 4 and 6: the comparison, where the time goes, and the constraints, as rows of cells."""

from collections.abc import Sequence
from typing import Any

from markupsafe import Markup

from shardscope.report.answer import constraint_value, sent_bytes
from shardscope.report.figures import COLOURS, Bar
from shardscope.report.markdown import code, round_parts, tenths
from shardscope.report.sentences import Sentence, sentence
from shardscope.selection.claims import LedgerMean, Quantity, StrategyResult
from shardscope.selection.comparison import NOISE_LIMIT
from shardscope.selection.decision import Decision
from shardscope.selection.terms import Basis, CheckStatus, Standing
from shardscope.vocabulary import Kind

__all__ = ["Table", "bars", "comparison", "constraints", "ledger", "notes", "remedies", "why_no_figures", "why_waiting"]

MS = 1e6
LEAST_NS = 5_000  # less waiting would print as 0.00 ms
DASH = sentence("cell.none")
Cell = Sentence | Markup | str
Table = tuple[list[Sentence], list[list[Cell]]]


def why_no_figures(row: StrategyResult) -> Sentence:
    """Why a strategy cannot be chosen: the reason its row keeps."""
    return sentence(f"standing.{row.standing}", reason=row.reason, parity=row.run.parity)


def comparison(decision: Decision) -> Table:
    """Section 3: one row per strategy, in the order of the configuration."""
    columns = (
        "strategy",
        "memory",
        "throughput",
        "step",
        "request",
        "transfer",
        "stall",
        "bubble",
        "overlap",
        "converged",
    )
    header = [sentence(f"column.{name}") for name in columns]
    return header, [_comparison_row(decision, row) for row in decision.strategies]


def _comparison_row(decision: Decision, row: StrategyResult) -> list[Cell]:
    name: Cell = code(row.name)
    if row.name == decision.compared_with:
        name = sentence("cell.base", name=row.name)
    elif row.standing is Standing.REFERENCE:
        name = sentence("cell.reference", name=row.name)
    if not row.ran:
        return [name, why_no_figures(row), *([""] * 8)]
    if row.standing in (Standing.DISQUALIFIED, Standing.INCOMPARABLE):
        # Figures of a strategy that computes something else would only invite comparison.
        return [name, why_no_figures(row), *([""] * 8)]
    found = row.convergence
    return [
        name,
        _cell("memory", row.peak_bytes),
        _cell("throughput", row.throughput),
        _cell("step", row.step_ns, p95=row.step_p95_ns),
        _cell("request", row.request_ns, p95=row.request_p95_ns),
        _cell("share", row.transfer_fraction),
        _cell("share", row.stall_fraction),
        _cell("share", row.bubble_fraction),
        _cell("share", row.overlap_fraction),
        DASH if found is None else sentence("cell.converged", found=found),
    ]


def _cell(key: str, quantity: Quantity, **fields: Any) -> Cell:
    if quantity.value is None:
        return DASH
    return sentence(f"cell.{key}", value=quantity.value, change=quantity.change, **fields)


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
    if environment is not None and environment.oversubscribed:
        found.append(sentence("note.oversubscribed", environment=environment))
    if decision.mixed_environment:
        found.append(sentence("note.mixed", facts=list(decision.mixed_environment)))
    disagreeing = [row.name for row in rows if not all(audited.agrees for audited in row.audit)]
    if disagreeing:
        found.append(sentence("note.audit", names=disagreeing))
    return found + _strategy_notes(decision, rows)


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
    """Conspicuous host time, one sentence per cause."""
    by_cause: dict[tuple[str, str | None], list[Sentence]] = {}
    for row in rows:
        ledger = row.ledger
        if ledger is not None and ledger.host_cause is not None:
            item = sentence("note.host_item", name=row.name, share=ledger.host_ns / ledger.step_ns)
            by_cause.setdefault((ledger.host_cause.cause, ledger.host_cause.annotation), []).append(item)
    return [
        sentence("note.host", items=items, cause=cause, annotation=annotation)
        for (cause, annotation), items in by_cause.items()
    ]


def _parts(ledger: LedgerMean) -> list[tuple[str, float]]:
    """The parts of the step in the order of the formula, in ms."""
    kinds = {str(kind): ns for kind, ns in ledger.attributed_ns.items()}
    rest = {"copies": ledger.copies_ns, "bubble": ledger.bubble_ns or 0.0, "host": ledger.host_ns}
    found = {"compute": ledger.compute_ns, **kinds, **rest}
    return [(part, found.get(part, 0.0) / MS) for part in COLOURS]


def bars(decision: Decision) -> list[Bar]:
    """The stacked bars of section 4, with parts that add up in tenths of a millisecond."""
    found = []
    for row in decision.strategies:
        if row.ledger is None or row.standing in (Standing.DISQUALIFIED, Standing.INCOMPARABLE):
            continue
        parts = _parts(row.ledger)
        step, rounded = round_parts(row.ledger.step_ns / MS, [ms for _, ms in parts])
        named = zip((part for part, _ in parts), rounded, strict=True)
        found.append(Bar(name=row.name, parts=tuple(named), step=step))
    return found


def ledger(found: list[Bar]) -> Table:
    """Section 4: the bars as a table; parts that are zero everywhere are left out."""
    shown = [part for part in COLOURS if any(ms > 0 for bar in found for name, ms in bar.parts if name == part)]
    header = [sentence("column.strategy"), sentence("column.step_ms"), *(sentence(f"part.{part}") for part in shown)]
    rows: list[list[Cell]] = [
        [code(bar.name), tenths(bar.step), *(tenths(dict(bar.parts)[part]) for part in shown)] for bar in found
    ]
    return header, rows


def why_waiting(decision: Decision) -> Table:
    """Section 4: per strategy, what is waiting and what is transferring, on which axis."""
    header = [sentence(f"column.{name}") for name in ("strategy", "transferring", "waiting", "bubble_ms")]
    rows: list[list[Cell]] = []
    for row in decision.strategies:
        found = row.ledger
        if found is None or row.standing in (Standing.DISQUALIFIED, Standing.INCOMPARABLE):
            continue
        if not found.communication_ns and found.bubble_ns is None:
            continue
        moving, waiting = [], []
        for kind, ns in found.attributed_ns.items():
            waited = (found.waiting_ns or {}).get(kind, 0.0)
            axes = [axis for axis, part in found.attributed_by_axis_ns.get(kind, {}).items() if part]
            known = found.waiting_ns is not None
            moving.append(sentence("cell.kind", kind=kind, axes=axes, ns=ns - waited, unknown=not known))
            if known and waited >= LEAST_NS:
                waiting.append(sentence("cell.kind", kind=kind, axes=axes, ns=waited, unknown=False))
        rows.append(
            [
                code(row.name),
                sentence("cell.kinds", items=moving) if moving else DASH,
                sentence("cell.kinds", items=waiting) if waiting else DASH,
                DASH if found.bubble_ns is None else sentence("cell.ms", ns=found.bubble_ns),
            ]
        )
    return header, rows


def constraints(decision: Decision) -> Table:
    """Section 6: who passes what, one row per strategy that could be recommended."""
    judged = [row for row in decision.strategies if row.checks and row.standing is not Standing.REFERENCE]
    kinds = [check.constraint for check in judged[0].checks] if judged else []
    limits = {check.constraint: check.limit for row in judged for check in row.checks}
    header = [
        sentence("column.strategy"),
        *(sentence("column.constraint", **constraint_value(kind, None, limits[kind])) for kind in kinds),
        sentence("column.verdict"),
    ]
    rows: list[list[Cell]] = []
    for row in judged:
        cells: list[Cell] = [
            sentence("cell.check", check=check, **constraint_value(check.constraint, check.value, check.limit))
            for check in row.checks
        ]
        rows.append([code(row.name), *cells, _verdict(row)])
    return header, rows


def _verdict(row: StrategyResult) -> Sentence:
    if row.standing is not Standing.ELIGIBLE:
        return sentence(f"verdict.{row.standing}")
    unjudged = any(check.status is CheckStatus.NOT_JUDGED for check in row.checks)
    return sentence("verdict.fails" if row.failing else "verdict.open" if unjudged else "verdict.passes")


def remedies(decision: Decision) -> list[Sentence]:
    """Section 6: for each failing strategy, the smallest change that would make it pass."""
    found = []
    for row in decision.strategies:
        if row.standing is not Standing.ELIGIBLE or not row.failing:
            continue
        items = []
        for check in row.checks:
            if check.status is CheckStatus.FAILED:
                fields = constraint_value(check.constraint, check.value, check.limit)
                ways = [sentence(f"way.{way.what}", way=way, **fields) for way in check.remedies]
                items.append(sentence("remedy.item", check=check, ways=ways, **fields))
        found.append(sentence("remedy.strategy", name=row.name, items=items))
    return found
