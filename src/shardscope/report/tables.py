"""Sections 3, 4 and 6: the comparison, where the time goes, and the constraints, as rows of cells."""

from typing import Any

from markupsafe import Markup

from shardscope.report.answer import constraint_value
from shardscope.report.figures import COLOURS, Bar
from shardscope.report.markdown import code, round_parts, tenths
from shardscope.report.sentences import Sentence, sentence
from shardscope.selection.claims import LedgerMean, Quantity, StrategyResult
from shardscope.selection.decision import AllCoresClaim, Decision
from shardscope.selection.terms import CheckStatus, Standing

__all__ = ["Table", "bars", "comparison", "constraints", "ledger", "remedies", "why_no_figures", "why_waiting"]

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
    rows = []
    for row in decision.strategies:
        rows.append(_comparison_row(decision, row))
        if row.standing is Standing.REFERENCE and decision.all_cores is not None:
            rows.append(_all_cores_row(decision.all_cores))
    return header, rows


def _all_cores_row(claim: AllCoresClaim) -> list[Cell]:
    """One process with all cores: what was measured of it."""
    peak = DASH if claim.peak_bytes is None else sentence("cell.memory", value=claim.peak_bytes, change=None)
    throughput = sentence("cell.throughput", value=claim.throughput, change=None)
    step = sentence("cell.one_ms", value=claim.step_ns)
    return [sentence("cell.all_cores", threads=claim.threads), peak, throughput, step, *([DASH] * 6)]


def _comparison_row(decision: Decision, row: StrategyResult) -> list[Cell]:
    name: Cell = code(row.name)
    if row.name == decision.compared_with:
        name = sentence("cell.base", name=row.name)
    elif row.standing is Standing.REFERENCE:
        threads = row.run.environment.threads_per_rank if row.run.environment is not None else None
        name = sentence("cell.reference", name=row.name, threads=threads)
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
            residual = found.residual_ns or 0
            if known and residual >= LEAST_NS and 0 < waited < residual:
                waiting.append(sentence("cell.below_residual", kind=kind, axes=axes, ns=residual))
            elif known and waited >= LEAST_NS:
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
