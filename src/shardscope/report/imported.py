"""The report on one imported run, in both languages: what its traces say, and what they do not."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from markupsafe import Markup

from shardscope.attribution.result import LEDGER_FILE, Attribution, SecondOpinion
from shardscope.attribution.stragglers import over_steps
from shardscope.errors import ResultError
from shardscope.report import imported_tables as tables
from shardscope.report.figures import COLOURS, Bar, step_bars
from shardscope.report.imported_units import Unit, rank_list, span, unit_of
from shardscope.report.sentences import LANGUAGES, Language, Sentence, sentence
from shardscope.selection.imported import ImportedResult, read_imported
from shardscope.selection.ledger import step_rows
from shardscope.vocabulary import Axis, Kind

__all__ = ["FIGURES", "SUFFIXES", "describe", "publish", "render_run"]

FIGURES = "figures"
SUFFIXES = {"en": ".md", "zh": ".zh.md"}
MOST_FILES = 32
MOST_BARS = 16  # more do not fit on a screen


def render_run(
    name: str, attribution: Path, source: Path, output_dir: Path, *, salvage: bool = False, compared: bool = False
) -> None:
    """Write <name>.md, <name>.zh.md and figures/<name>.svg into `output_dir`.

    `attribution`: folder of tables; `source`: where the traces are; `compared`: link to the comparison. Raises
    ResultError when the tables are missing or cannot be used.
    """
    run = read_imported(name, attribution, source)
    opinion = _opinion(attribution / "hta.json")
    unit = unit_of(run.step_ns)
    languages = [Language(language) for language in LANGUAGES]
    context = _context(run, source, attribution, unit, opinion)
    context |= {"salvage": salvage, "compared": compared, "figure": Markup(f"{FIGURES}/{name}.svg")}
    documents = {f"{name}{SUFFIXES[lang.name]}": lang.render("imported.md.j2", **context) for lang in languages}
    labels = {part: str(languages[0].say_key(f"part.{part}")) for part in COLOURS}
    bars: list[Bar] = context["bars"][:MOST_BARS]
    documents[f"{FIGURES}/{name}.svg"] = step_bars(
        bars,
        labels,
        title=f"One step of {name} by rank",
        axis=f"one step, {unit.name}",
        description=describe(bars, labels, unit),
    )
    publish(documents, output_dir)


def describe(bars: Sequence[Bar], labels: dict[str, str], unit: Unit) -> str:
    """A drawing in words."""
    lines = []
    for bar in bars:
        parts = ", ".join(f"{labels[part]} {value:.{unit.digits}f}" for part, value in bar.parts if value > 0)
        lines.append(f"{bar.name}: {bar.step:.{unit.digits}f} {unit.name} = {parts}.")
    return " ".join(lines)


def publish(documents: dict[str, str], output_dir: Path) -> None:
    """Write every file beside its place, then put all there; the order of `documents` reversed, so figures first."""
    try:
        fresh = []
        for name, content in reversed(documents.items()):
            path = output_dir / name
            path.parent.mkdir(parents=True, exist_ok=True)
            beside = path.with_name(f".{path.name}.tmp")
            beside.write_text(content, encoding="utf-8")
            fresh.append((beside, path))
        for beside, path in fresh:
            beside.replace(path)
    except OSError as error:
        raise ResultError(f"{output_dir}: the report cannot be written there ({error.strerror})") from error


def _opinion(path: Path) -> SecondOpinion:
    try:
        return msgspec.json.decode(path.read_bytes(), type=SecondOpinion)
    except FileNotFoundError:
        return SecondOpinion(available=False, reason="not asked for", version=None, rows=[])
    except (OSError, msgspec.MsgspecError, ValueError) as error:
        raise ResultError(f"{path}: cannot be read ({error}); attribute the run again") from error


def _context(
    run: ImportedResult, source: Path, attribution: Path, unit: Unit, opinion: SecondOpinion
) -> dict[str, Any]:
    result = run.attribution
    ledger, bars, more_ranks = tables.ledger(result, unit)
    groups, more_groups = tables.groups(result, unit)
    waiting, more_waiting = tables.waiting(result, unit)
    hta, hta_flagged = tables.hta(opinion, unit)
    files = [(rank.rank, file) for rank in result.ranks for file in rank.files]
    return {
        "run": run,
        "path": str(source),
        "data": str(attribution / LEDGER_FILE),
        "files": files[:MOST_FILES],
        "more_files": max(0, len(files) - MOST_FILES),
        "file_count": len(files),
        "answer": _answer(run, unit),
        "bars": bars,
        "marked": result.summary_step is not None,
        "outliers": sum(any(row.outlier for row in step_rows(result, step)) for step in _steps(result)),
        "steps": len(_steps(result)),
        "ledger": ledger,
        "more_ranks": more_ranks,
        "kinds": tables.kinds(result, run.ledger, unit),
        "bubble_measured": bool(run.ledger.bubble_ns),
        "residual": span(result.clock.residual_ns) if result.clock.residual_ns else None,
        "bounds": tables.why_bounds(result) if run.ledger.bounds else [],
        "close": sum(item.last_rank is None for item in result.collectives),
        "collectives": len(result.collectives),
        "messages": any(item.kind is Kind.SEND_RECEIVE for item in result.collectives),
        "unknown_kind": run.ledger.attributed_ns.get(Kind.UNKNOWN, 0.0) / run.ledger.step_ns,
        "groups": groups,
        "more_groups": more_groups,
        "waiting": waiting,
        "more_waiting": more_waiting,
        "bubbles": tables.bubbles(result),
        "no_bubble": _no_bubble(run),
        "evidence": tables.evidence(result),
        "clock": _clock(result),
        "warnings": tables.warnings(result),
        "skipped": [(item.file, item.reason) for item in result.skipped_files],
        "missing": rank_list(result.missing_ranks),
        "opinion": opinion,
        "hta": hta,
        "hta_flagged": hta_flagged,
        "limits": _limits(run),
    }


def _steps(result: Attribution) -> list[int | None]:
    return list(dict.fromkeys(row.step for rank in result.ranks for row in rank.steps))


def _answer(run: ImportedResult, unit: Unit) -> list[Sentence]:
    result, mean, shares = run.attribution, run.ledger, run.shares
    times = run.step_times_ns or (round(run.step_ns),)
    marked = result.summary_step is not None
    found = [
        sentence(
            "imported.answer.step", step=unit.fixed(run.step_ns), unit=unit.name, ranks=len(result.ranks),
            marked=marked, count=len(times), low=unit.fixed(min(times)), high=unit.fixed(max(times)),
        )
    ]  # fmt: skip
    parts = {part: ns for part, ns in tables.mean_parts(mean).items() if ns}
    items = [
        sentence("imported.answer.part", part=sentence(f"part.{part}"), share=ns / mean.step_ns)
        for part, ns in sorted(parts.items(), key=lambda item: -item[1])
    ]
    number = result.summary_step if marked else 0
    found.append(sentence("imported.answer.parts", ranks=len(result.ranks), marked=marked, number=number, items=items))
    found += _communication(run)
    late = over_steps(result)
    if late and late[0].caused_ns > (result.clock.residual_ns or 0):
        first = late[0]
        found.append(
            sentence(
                "imported.answer.straggler", rank=first.rank, caused=unit.show(first.caused_ns), unit=unit.name,
                last=first.last, count=first.collectives,
                messages=any(item.kind is Kind.SEND_RECEIVE for item in result.collectives),
            )
        )  # fmt: skip
    if result.missing_ranks:
        missing = result.missing_ranks
        found.append(sentence("imported.answer.missing", count=len(missing), text=Markup(rank_list(missing))))
    if shares.communication or len(parts) > 1:
        found.append(_next(run, late[0].rank if late else None))
    return found


def _communication(run: ImportedResult) -> list[Sentence]:
    mean, shares = run.ledger, run.shares
    if not mean.busy_ns:
        return [sentence("imported.answer.silent")]
    found = []
    by_axis = [(ns, kind, axis) for kind, axes in mean.attributed_by_axis_ns.items() for axis, ns in axes.items()]
    if any(ns for ns, *_ in by_axis):
        ns, kind, axis = max(by_axis, key=lambda item: item[0])
        known = None if axis is Axis.UNKNOWN else sentence(f"axis.{axis}")
        found.append(
            sentence(
                "imported.answer.most", kind=sentence(f"kind.{kind}"), axis=known,
                share=ns / mean.step_ns, whole=shares.communication,
            )
        )  # fmt: skip
    if shares.transfer is not None and shares.stall is not None:
        least = tables.least_share(run)
        found.append(
            sentence(
                "imported.answer.split", transfer=shares.transfer, stall=shares.stall, least=least,
                bubble=bool(mean.bubble_ns),
            )
        )  # fmt: skip
    else:
        found.append(sentence("imported.answer.unsplit"))
    for item in run.attribution.pipelines:
        if item.measured_fraction is not None:
            fields = {"share": item.measured_fraction, "form": item.closed_form_fraction, "bound": item.upper_bound}
            found.append(sentence("imported.answer.bubble", **fields))
    return found


def _next(run: ImportedResult, straggler: int | None) -> Sentence:
    """What to look at, by the largest part besides compute, or compute where it is more than all others together."""
    mean = run.ledger
    costs = {"host": mean.host_ns, "copies": mean.copies_ns, "bubble": mean.bubble_ns or 0.0}
    if mean.transfer_ns is None:
        costs["communication"] = mean.communication_ns
    else:
        costs |= {"transfer": mean.transfer_ns, "waiting": mean.waiting_total_ns or 0.0}
    part = max(costs, key=lambda name: costs[name])
    rows = [(row.window_ns, rank.rank) for rank in run.attribution.ranks for row in rank.steps
            if row.step == run.attribution.summary_step]  # fmt: skip
    if 2 * mean.compute_ns > mean.step_ns and costs[part] < mean.step_ns / 10:
        part = "compute"
    slowest = max(rows, key=lambda item: item[0])[1]
    rank = straggler if part == "waiting" and straggler is not None else slowest
    if part == "host" and run.device == "cpu":
        part = "host_cpu"
    return sentence(f"imported.next.{part}", rank=Markup("?") if rank is None else rank)


def _no_bubble(run: ImportedResult) -> Sentence:
    """Why there is no pipeline in the result."""
    rows = step_rows(run.attribution, run.attribution.summary_step)
    if len(run.attribution.ranks) == 1:
        return sentence("imported.bubble.one_rank")
    unknown = any(row.busy_ns.get(Kind.UNKNOWN) for row in rows)
    return sentence("imported.bubble.untold" if unknown else "imported.bubble.no_pipeline")


def _clock(result: Attribution) -> list[Sentence]:
    clock = result.clock
    if len(result.ranks) == 1:
        return [sentence("imported.clock.alone")]
    if clock.residual_ns is None:
        return [sentence("imported.clock.unknown")]
    moved = [(rank, ns) for rank, ns in clock.offset_ns.items() if ns]
    items = [sentence("imported.clock.item", rank=int(rank), moved=span(ns)) for rank, ns in moved]
    first = sentence("imported.clock.aligned", items=items[:16]) if items else sentence("imported.clock.agree")
    return [first, sentence("imported.clock.residual", residual=span(clock.residual_ns))]


def _limits(run: ImportedResult) -> list[Sentence]:
    result, mean = run.attribution, run.ledger
    found = [_known("memory", run.peak_bytes), _known("throughput", run.tokens_per_s)]
    if result.missing_ranks:
        found.append(sentence("imported.limits.missing", text=Markup(rank_list(result.missing_ranks))))
    if len(run.step_times_ns) < 2:
        found.append(sentence("imported.limits.one_step"))
    untold = sum(axes.get(Axis.UNKNOWN, 0.0) for axes in mean.attributed_by_axis_ns.values())
    if untold:
        found.append(sentence("imported.limits.axes", share=untold / mean.communication_ns))
    return [*found, *(sentence(f"imported.limits.{name}") for name in ("ceiling", "profiled", "parity"))]


def _known(what: str, value: float | None) -> Sentence:
    """From the run's own record, or that the traces do not say."""
    if value is None:
        return sentence(f"imported.limits.{what}")
    return sentence(f"imported.limits.{what}_known", value=value)
