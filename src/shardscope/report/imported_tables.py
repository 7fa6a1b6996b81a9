"""Tables of the reports on imported runs, in both languages: every cell is a sentence, a code span or a number."""

import statistics
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from markupsafe import Markup

from shardscope.attribution.result import Attribution, RankResult, SecondOpinion, StepRow
from shardscope.attribution.stragglers import over_steps
from shardscope.report.figures import COLOURS, Bar
from shardscope.report.imported_units import Unit, fixed, rank_list
from shardscope.report.markdown import code, round_parts, text
from shardscope.report.sentences import Sentence, sentence
from shardscope.selection.claims import LedgerMean
from shardscope.selection.imported import ImportedResult
from shardscope.selection.ledger import step_rows
from shardscope.vocabulary import Axis, Evidence, Kind

__all__ = [
    "DASH",
    "Table",
    "bar",
    "bars_table",
    "bubbles",
    "column",
    "evidence",
    "groups",
    "hta",
    "kinds",
    "least_share",
    "ledger",
    "mean_parts",
    "name_of",
    "share",
    "waiting",
    "warnings",
    "why_bounds",
]

MOST_ROWS = 64
DASH = sentence("cell.none")
Table = tuple[list[Any], list[list[Any]]]


def column(name: str, **fields: Any) -> Sentence:
    """A heading."""
    return sentence(f"imported.column.{name}", **fields)


def share(value: float | None) -> Any:
    """A fraction in percent, with its sign."""
    return DASH if value is None else sentence("imported.share", value=value)


def least_share(run: ImportedResult) -> float:
    """What the clocks disagree by as a share of the step: no smaller share of waiting or transfer is claimed."""
    return (run.ledger.residual_ns or 0) / run.ledger.step_ns


def name_of(rank: int | None) -> Any:
    """A rank as a cell."""
    return Markup("?") if rank is None else rank


def row_parts(row: StepRow) -> dict[str, float]:
    """The parts of one row by the names of the figures, in ns. A bubble that was not measured is no part."""
    kinds = {str(kind): float(row.attributed_ns.get(kind, 0)) for kind in Kind}
    rest = {"copies": row.copies_exposed_ns, "bubble": row.bubble_ns, "host": row.host_other_ns}
    return {
        "compute": float(row.compute_ns),
        **kinds,
        **{part: float(ns) for part, ns in rest.items() if ns is not None},
    }


def mean_parts(ledger: LedgerMean) -> dict[str, float]:
    """The same of a mean over ranks."""
    kinds = {str(kind): ledger.attributed_ns.get(kind, 0.0) for kind in Kind}
    rest = {"copies": ledger.copies_ns, "bubble": ledger.bubble_ns, "host": ledger.host_ns}
    return {"compute": ledger.compute_ns, **kinds, **{part: ns for part, ns in rest.items() if ns is not None}}


def bar(name: str, step_ns: float, parts: dict[str, float], unit: Unit) -> Bar:
    """One bar, its parts rounded so that they add up."""
    order = [part for part in COLOURS if part in parts]
    # Rounding is to tenths of what it is given.
    scale = 10 ** (unit.digits - 1)
    step, rounded = round_parts(unit.of(step_ns) * scale, [unit.of(parts[part]) * scale for part in order])
    return Bar(
        name=name, parts=tuple((p, value / scale) for p, value in zip(order, rounded, strict=True)), step=step / scale
    )


def bars_table(head: Sentence, names: Sequence[Any], bars: Sequence[Bar], unit: Unit, *, step: str = "step") -> Table:
    """Bars as rows; parts that are nothing everywhere are left out."""
    shown = [part for part in COLOURS if any(value > 0 for bar in bars for name, value in bar.parts if name == part)]
    header = [head, column(step, unit=unit.name), *(column("part", part=sentence(f"part.{part}")) for part in shown)]
    rows: list[list[Any]] = [
        [
            name,
            fixed(bar.step, unit.digits),
            *(fixed(dict(bar.parts)[part], unit.digits) if part in dict(bar.parts) else DASH for part in shown),
        ]
        for name, bar in zip(names, bars, strict=True)
    ]
    return header, rows


def ledger(result: Attribution, unit: Unit) -> tuple[Table, list[Bar], int]:
    """(the summary step rank by rank, its bars, rows left out)."""
    found = [(rank, row) for rank in result.ranks for row in rank.steps if row.step == result.summary_step]
    bars = [bar(f"rank {'?' if r.rank is None else r.rank}", row.window_ns, row_parts(row), unit) for r, row in found]
    header, rows = bars_table(column("rank"), [name_of(r.rank) for r, _ in found], bars, unit)
    if any(row.flags for _, row in found):
        header.append(column("flags"))
        for cells, (_, row) in zip(rows, found, strict=True):
            cells.append(_flag(row))
    return (header, rows[:MOST_ROWS]), bars, max(0, len(rows) - MOST_ROWS)


def _flag(row: StepRow) -> Any:
    """The remark on a row's host time in the reader's language, or as it stands."""
    cause = row.host_cause
    if cause is None:
        return text("; ".join(row.flags)) if row.flags else DASH
    share, part = (fixed(100 * value, 0) for value in (row.host_other_ns / row.window_ns, cause.fraction))
    words = sentence(f"imported.cause.{cause.cause}", annotation=cause.annotation)
    return sentence("imported.flag", share=share, part=part, cause=words)


def kinds(result: Attribution, mean: LedgerMean, unit: Unit) -> Table:
    """Per kind: busy, hidden, attributed with its axes, and of that transferring and waiting; mean over ranks."""
    names = ("kind", "axes", "busy", "hidden", "attributed", "transferring", "waiting", "share", "bandwidth")
    header = [column(name, **({"unit": unit.name} if name in _TIMED else {})) for name in names]
    step = step_rows(result, result.summary_step)
    rows: list[list[Any]] = []
    for kind in Kind:
        busy = statistics.fmean(row.busy_ns.get(kind, 0) for row in step)
        if not busy:
            continue
        hidden = statistics.fmean(row.overlapped_ns.get(kind, 0) for row in step)
        spent = mean.attributed_ns.get(kind, 0.0)
        waited = None if mean.waiting_ns is None else mean.waiting_ns.get(kind, 0.0)
        residual = result.clock.residual_ns
        split: list[Any] = (
            [DASH, DASH] if waited is None else [unit.told(spent - waited, residual), unit.told(waited, residual)]
        )
        rates = [c.busbw_bytes_per_s for c in result.collectives if c.kind is kind and c.busbw_bytes_per_s is not None]
        rows.append([
            sentence(f"kind.{kind}"), _axes(kind, mean), unit.show(busy), share(hidden / busy),
            unit.show(spent), *split,
            share(spent / mean.step_ns), fixed(statistics.median(rates) / 1e9, 2) if rates else DASH,
        ])  # fmt: skip
    return header, rows


_TIMED = ("busy", "attributed", "transferring", "waiting", "step", "caused")


def _axes(kind: Kind, mean: LedgerMean) -> Markup | Sentence:
    found = [(axis, ns) for axis, ns in mean.attributed_by_axis_ns.get(kind, {}).items() if ns]
    items = [sentence("imported.answer.part", part=sentence(f"axis.{a}"), share=ns / mean.step_ns) for a, ns in found]
    return sentence("cell.kinds", items=items) if items else DASH


def groups(result: Attribution, unit: Unit) -> tuple[Table, int]:
    """(every process group with its axis, mean over its ranks that have a trace; rows left out). No rows where there is
    one group only: its kinds are told without it."""
    header = [column("group"), column("members"), column("axis"), column("kind")]
    header += [column("busy", unit=unit.name), column("attributed", unit=unit.name)]
    busy: dict[tuple[str, tuple[int, ...] | None, Axis, Kind], list[int]] = defaultdict(list)
    spent: dict[tuple[str, tuple[int, ...] | None, Axis, Kind], list[int]] = defaultdict(list)
    for rank in result.ranks:
        for found in rank.groups:
            for kind, ns in found.busy_ns.items():
                key = (found.name, found.ranks, found.axis, kind)
                busy[key].append(ns)
                spent[key].append(found.attributed_ns.get(kind, 0))
    if len({(name, ranks) for name, ranks, _, _ in busy}) < 2:
        return (header, []), 0
    order = sorted(busy, key=lambda key: (-statistics.fmean(spent[key]), str(key)))
    rows: list[list[Any]] = [
        [
            code(key[0]) if key[0] else DASH,
            Markup(rank_list(key[1])) if key[1] else DASH,
            sentence(f"axis.{key[2]}"),
            sentence(f"kind.{key[3]}"),
            unit.show(statistics.fmean(busy[key])),
            unit.show(statistics.fmean(spent[key])),
        ]
        for key in order
    ]
    return (header, rows[:MOST_ROWS]), max(0, len(rows) - MOST_ROWS)


def why_bounds(result: Attribution) -> list[Sentence]:
    """Why some waiting of the summary step is a bound."""
    rows = step_rows(result, result.summary_step)
    kinds = {kind for row in rows for kind in row.busy_ns}
    found = {
        "missing": bool(result.missing_ranks),
        "all_to_all": Kind.ALL_TO_ALL in kinds,
        "message": Kind.SEND_RECEIVE in kinds and any(rank.device == "cpu" for rank in result.ranks),
    }
    names = [name for name, holds in found.items() if holds] or ["unmatched"]
    return [sentence(f"imported.bounds.{name}") for name in names]


def waiting(result: Attribution, unit: Unit) -> tuple[Table, int]:
    """(who makes others wait, over all steps; rows left out)."""
    messages = any(item.kind is Kind.SEND_RECEIVE for item in result.collectives)
    header = [column("rank"), column("last", messages=messages), column("collectives", messages=messages)]
    header.append(column("caused", unit=unit.name))
    found = over_steps(result)
    residual = result.clock.residual_ns
    rows: list[list[Any]] = [
        [item.rank, item.last, item.collectives, unit.told(item.caused_ns, residual)] for item in found[:MOST_ROWS]
    ]
    return (header, rows), max(0, len(found) - MOST_ROWS)


def bubbles(result: Attribution) -> Table:
    """Every pipeline beside its closed form."""
    names = ("members", "micro_batches", "measured", "closed_form", "imbalance", "message_wait", "overhead", "remark")
    rows: list[list[Any]] = []
    for item in result.pipelines:
        remark = text(item.reason) if item.reason else sentence("imported.bubble.bound") if item.upper_bound else DASH
        rows.append([
            Markup(rank_list(item.ranks)), DASH if item.micro_batches is None else item.micro_batches,
            share(item.measured_fraction), share(item.closed_form_fraction), share(item.imbalance_fraction),
            share(item.communication_wait_fraction), share(item.overhead_fraction), remark,
        ])  # fmt: skip
    return [column(name) for name in names], rows


def evidence(result: Attribution) -> Table:
    """The mean over ranks, and the rank whose kinds are least sure."""
    header = [column("rank"), *(column(level.value) for level in Evidence)]
    found = [rank for rank in result.ranks if any(rank.evidence_fraction.values())]
    if not found:
        return header, []
    means = [statistics.fmean(rank.evidence_fraction.get(level, 0.0) for rank in found) for level in Evidence]
    rows: list[list[Any]] = [[sentence("imported.evidence.mean"), *map(share, means)]]
    worst = max(found, key=_unsure)
    if _unsure(worst) > min(_unsure(rank) for rank in found):
        cells = [share(worst.evidence_fraction.get(level, 0.0)) for level in Evidence]
        rows.append([sentence("imported.evidence.worst", rank=name_of(worst.rank)), *cells])
    return header, rows


def _unsure(rank: RankResult) -> tuple[float, float]:
    return rank.evidence_fraction.get(Evidence.UNKNOWN, 0.0), rank.evidence_fraction.get(Evidence.NAME, 0.0)


def warnings(result: Attribution) -> Table:
    """Each kind of trouble once per wording, with the ranks that have it and the counts added."""
    counts: dict[tuple[str, str], int] = defaultdict(int)
    ranks: dict[tuple[str, str], list[int]] = defaultdict(list)
    for rank in result.ranks:
        for found in rank.warnings:
            counts[found.code, found.detail] += found.count
            if rank.rank is not None:
                ranks[found.code, found.detail].append(rank.rank)
    header = [column(name) for name in ("warning", "rank", "count", "detail")]
    rows: list[list[Any]] = [
        [code(key[0]), Markup(rank_list(set(ranks[key]))) if ranks[key] else Markup("?"), counts[key], text(key[1])]
        for key in counts
    ]
    return header, rows[:MOST_ROWS]


def hta(opinion: SecondOpinion, unit: Unit) -> tuple[Table, Table]:
    """(each quantity with its sums and largest difference, flagged differences by cause)."""
    names = ("quantity", "ours", "theirs", "difference", "flagged")
    header = [column(name, **({"unit": unit.name} if name in ("ours", "theirs") else {})) for name in names]
    rows: list[list[Any]] = []
    causes: dict[tuple[str, str], list[int]] = defaultdict(list)
    for quantity in dict.fromkeys(row.quantity for row in opinion.rows):
        found = [row for row in opinion.rows if row.quantity == quantity]
        # To the microsecond where the unit is ms: the point is where the two differ.
        sums = [fixed(unit.of(sum(values)), 3) for values in ([r.ours_ns for r in found], [r.hta_ns for r in found])]
        largest = max(abs(row.difference_ns) for row in found)
        rows.append([code(quantity), *sums, fixed(largest / 1000, 3), sum(row.flagged for row in found)])
    for row in opinion.rows:
        if row.flagged:
            causes[row.quantity, row.cause or ""].append(row.rank)
    flagged: list[list[Any]] = [
        [code(quantity), Markup(rank_list(ranks)), text(cause) if cause else sentence("imported.hta.no_cause")]
        for (quantity, cause), ranks in causes.items()
    ]
    return (header, rows), ([column("quantity"), column("rank"), column("cause")], flagged)
