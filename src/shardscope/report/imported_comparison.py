"""Imported runs side by side, compared like strategies: step, transfer and stall, bubble, overlap, every kind."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from shardscope.errors import ResultError
from shardscope.report import imported_tables as tables
from shardscope.report.figures import COLOURS, Bar, step_bars
from shardscope.report.imported import FIGURES, SUFFIXES, describe, publish
from shardscope.report.imported_tables import DASH, Table, column
from shardscope.report.imported_units import Unit, unit_of
from shardscope.report.markdown import code
from shardscope.report.sentences import LANGUAGES, Language, Sentence, sentence
from shardscope.selection.claims import Quantity
from shardscope.selection.imported import ImportedResult, read_imported, share_quantities, step_quantity
from shardscope.vocabulary import Axis, Kind

__all__ = ["COMPARISON", "render_comparison"]

COMPARISON = "comparison"
SHARES = ("communication", "transfer", "stall", "bubble", "overlap")


def render_comparison(runs: Sequence[tuple[str, Path, Path]], output_dir: Path) -> None:
    """Write comparison.md, comparison.zh.md and figures/comparison.svg into `output_dir`.

    `runs`: (name, folder of tables, where the traces are), the first one is what the others are compared with. Raises
    ResultError for fewer than two, and for tables that cannot be used.
    """
    if len(runs) < 2:
        raise ResultError("comparison of imported runs: it takes at least two")
    found = [read_imported(*run) for run in runs]
    unit = unit_of(max(run.step_ns for run in found))
    bars = [tables.bar(run.name, run.ledger.step_ns, tables.mean_parts(run.ledger), unit) for run in found]
    documents = {}
    for language in map(Language, LANGUAGES):
        suffix = SUFFIXES[language.name]
        names = [_link(run, found[0], suffix) for run in found]
        documents[f"{COMPARISON}{suffix}"] = language.render(
            "comparison.md.j2",
            answer=_answer(found, unit),
            steps=_steps(found, names, unit),
            no_records=any(run.peak_bytes is None or run.tokens_per_s is None for run in found),
            shares=_shares(found, names),
            parts=_parts(found, names, bars, unit),
            kinds=_kinds(found),
            figure=Markup(f"{FIGURES}/{COMPARISON}.svg"),
        )
    labels = {part: str(Language("en").say_key(f"part.{part}")) for part in COLOURS}
    documents[f"{FIGURES}/{COMPARISON}.svg"] = step_bars(
        bars,
        labels,
        title="One step of each imported run",
        axis=f"one step, {unit.name}",
        description=describe(bars, labels, unit),
    )
    publish(documents, output_dir)


def _link(run: ImportedResult, base: ImportedResult, suffix: str) -> Sentence:
    key = "comparison.run_base" if run.name == base.name else "comparison.run"
    return sentence(key, name=run.name, link=Markup(f"{run.name}{suffix}"))


def _answer(runs: Sequence[ImportedResult], unit: Unit) -> list[Sentence]:
    base = runs[0]
    differing = []
    if len({run.device for run in runs}) > 1:
        differing.append(sentence("comparison.device"))
    if len({run.world_size or len(run.attribution.ranks) for run in runs}) > 1:
        differing.append(sentence("comparison.world"))
    # No winner where the hardware differs.
    found = [sentence("comparison.hardware", items=differing) if differing else _fastest(runs, base, unit)]
    found += [sentence("comparison.against", name=base.name), sentence("comparison.work")]
    return found + [_why(run, base, unit) for run in runs[1:] if run.ledger.step_ns != base.ledger.step_ns]


def _fastest(runs: Sequence[ImportedResult], base: ImportedResult, unit: Unit) -> Sentence:
    fastest = min(runs, key=lambda run: run.step_ns)
    # Of the first one itself the nearest rival is more to the point than no change at all.
    rival = min((run for run in runs[1:]), key=lambda run: run.step_ns) if fastest is base else base
    change = step_quantity(fastest, rival).change
    step = unit.fixed(fastest.step_ns)
    return sentence("comparison.fastest", name=fastest.name, step=step, unit=unit.name, change=change)


def _why(run: ImportedResult, base: ImportedResult, unit: Unit) -> Sentence:
    """Which part of the summary step, averaged over ranks, makes the difference."""
    total = run.ledger.step_ns - base.ledger.step_ns
    theirs = tables.mean_parts(base.ledger)
    mine = tables.mean_parts(run.ledger)
    grown = {part: mine.get(part, 0.0) - theirs.get(part, 0.0) for part in COLOURS}
    part = (max if total > 0 else min)(grown, key=lambda name: grown[name])
    return sentence(
        "comparison.why", base=base.name, name=run.name, longer=total > 0, total=unit.show(abs(total)), unit=unit.name,
        part=sentence(f"part.{part}"), by=unit.show(abs(grown[part])),
    )  # fmt: skip


def _steps(runs: Sequence[ImportedResult], names: Sequence[Sentence], unit: Unit) -> Table:
    """The job as a whole: how long a step takes is up to the slowest rank."""
    header = [column(name) for name in ("run", "device", "ranks", "steps")]
    header += [column("slowest", unit=unit.name), column("memory"), column("throughput")]
    rows: list[list[Any]] = []
    for run, name in zip(runs, names, strict=True):
        rows.append([
            name,
            code(run.device),
            sentence("comparison.ranks", present=len(run.attribution.ranks), world=run.world_size),
            len(run.step_times_ns),
            sentence("comparison.step", value=unit.fixed(run.step_ns), change=step_quantity(run, runs[0]).change),
            _known("peak", run.peak_bytes),
            _known("rate", run.tokens_per_s),
        ])  # fmt: skip
    return header, rows


def _shares(runs: Sequence[ImportedResult], names: Sequence[Sentence]) -> Table:
    """Means over the ranks in the summary step, as everywhere but in the table of steps."""
    rows: list[list[Any]] = []
    for run, name in zip(runs, names, strict=True):
        found = share_quantities(run, runs[0])
        rows.append([name, *(_share(found[field], run, field) for field in SHARES)])
    return [column("run"), *map(column, SHARES)], rows


def _parts(runs: Sequence[ImportedResult], names: Sequence[Sentence], bars: Sequence[Bar], unit: Unit) -> Table:
    """Means over the ranks in the summary step, and which rank is the slowest in it."""
    header, rows = tables.bars_table(column("run"), names, bars, unit, step="mean_step")
    header.append(column("slowest_of_step", unit=unit.name))
    for run, cells in zip(runs, rows, strict=True):
        result = run.attribution
        steps = [(row.window_ns, rank.rank) for rank in result.ranks for row in rank.steps
                 if row.step == result.summary_step]  # fmt: skip
        longest, rank = max(steps, key=lambda item: item[0])
        cells.append(sentence("comparison.slowest", rank=tables.name_of(rank), step=unit.fixed(longest)))
    return header, rows


def _share(quantity: Quantity, run: ImportedResult, field: str) -> Sentence:
    if quantity.value is None:
        return DASH
    least = tables.least_share(run) if field in ("transfer", "stall") else 0.0
    if quantity.value < least:
        return sentence("comparison.below", value=least, change=quantity.change)
    return sentence("cell.share", value=quantity.value, change=quantity.change)


def _known(key: str, value: float | None) -> Sentence:
    if value is None:
        return sentence("comparison.nothing")
    return sentence(f"comparison.{key}", value=value)


def _kinds(runs: Sequence[ImportedResult]) -> Table:
    """Exposed communication of every kind on every axis, a column per run."""
    header = [column("kind"), column("axis"), *(code(run.name) for run in runs)]
    rows: list[list[Any]] = []
    for kind in Kind:
        for axis in Axis:
            spent = [run.ledger.attributed_by_axis_ns.get(kind, {}).get(axis, 0.0) for run in runs]
            if any(spent):
                cells = [tables.share(ns / run.ledger.step_ns) for ns, run in zip(spent, runs, strict=True)]
                rows.append([sentence(f"kind.{kind}"), sentence(f"axis.{axis}"), *cells])
    return header, rows
