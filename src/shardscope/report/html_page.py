"""summary.html: what summary.md says, in both languages, with all drawings, in one file that asks for nothing."""

import base64
import hashlib
import shlex
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

import jinja2
from markupsafe import Markup

from shardscope.report import answer
from shardscope.report.conditions import Swept
from shardscope.report.figure_ranks import MOST_RANKS
from shardscope.report.figure_set import FigureSet
from shardscope.report.figures import label
from shardscope.report.html_svg import inlined
from shardscope.report.html_text import Speaker
from shardscope.report.markdown import LONGEST, code
from shardscope.report.sentences import Language, Sentence
from shardscope.report.strategies import strategy_lines
from shardscope.report.summary import workload_context
from shardscope.selection.claims import StrategyResult
from shardscope.selection.decision import Decision
from shardscope.selection.terms import Standing

__all__ = ["render_nothing", "render_page"]


def render_page(
    decisions: Sequence[Decision],
    figures: Mapping[str, FigureSet],
    languages: Sequence[Language],
    conditions: Mapping[str, Sequence[Swept]] | None = None,
) -> str:
    """The whole page. `figures`: workload → its drawings; `conditions`: workload → the factors that were swept."""
    speakers = [Speaker(language) for language in languages]
    count = 0
    workloads = []
    for index, decision in enumerate(decisions):
        found = figures[decision.workload.name]
        numbers = {drawing.stem: count + place for place, drawing in enumerate(found.drawings)}
        count += len(numbers)
        context = _workload(decision, found, numbers, list(zip(speakers, languages, strict=True)), index)
        factors = (conditions or {}).get(decision.workload.name, [])
        context["swept"] = [(each, inlined(each.drawing, count + place)) for place, each in enumerate(factors)]
        count += len(factors)
        workloads.append(context)
    opening = answer.opening(list(decisions))
    return _rendered(speakers=speakers, opening=opening, workloads=workloads, imported=[])


def render_nothing(imported: Sequence[str], languages: Sequence[Language]) -> str:
    """The page where nothing was measured: it names the reports on imported runs."""
    speakers = [Speaker(language) for language in languages]
    return _rendered(speakers=speakers, opening=[], workloads=[], imported=list(imported))


def _rendered(**context: Any) -> str:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("shardscope.report", "templates"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=True,
    )
    environment.filters["shown"] = lambda name: label(name, LONGEST)  # no control characters, no endless name
    style, script = (_part(name) for name in ("page.css", "page.js"))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    page = environment.get_template("summary.html.j2").render(style=style, script=script, digest=digest, **context)
    return "\n".join(line.rstrip() for line in page.splitlines() if line.strip()) + "\n"


def _part(name: str) -> Markup:
    """A style sheet or script of ours, stripped as it stands in the page."""
    text = (resources.files("shardscope.report") / "templates" / name).read_text(encoding="utf-8")
    return Markup("\n".join(line.rstrip() for line in text.splitlines() if line.strip()))


def _workload(
    decision: Decision,
    figures: FigureSet,
    numbers: Mapping[str, int],
    languages: Sequence[tuple[Speaker, Language]],
    index: int,
) -> dict[str, Any]:
    views = [(speaker, _view(decision, figures, speaker, language)) for speaker, language in languages]
    drawn = {drawing.stem: inlined(drawing, numbers[drawing.stem]) for drawing in figures.drawings}
    return {
        "id": f"w{index}",
        "name": decision.workload.name,
        "views": views,
        "drawn": {
            name: drawn[drawing.stem]
            for name in ("step", "memory", "plane", "ranks")
            if (drawing := getattr(figures, name)) is not None
        },
        "against": decision.compared_with,
        "no_times": decision.recommendation.no_time_reason,
        "timelines": _timelines(decision, figures, drawn),
        "opens": [
            f"shardscope open {shlex.quote(label(f'traces/{decision.workload.name}/{row.name}', LONGEST))}"
            for row in decision.strategies
            if row.run.traces
        ],
        "marked": any(result.pipelines for result in figures.results.values()),
    }


def _view(decision: Decision, figures: FigureSet, speaker: Speaker, language: Language) -> dict[str, Any]:
    """One language's context: that of summary.md, with tables and the card taken apart for HTML."""
    found = workload_context(decision, f"figures/step-time-{figures.stem}.svg", language, detail=True)
    tables = {name: speaker.table(found[name]) for name in ("comparison", "ledger", "waiting", "constraints")}
    card = found["card"]
    lines = {line.name: line for line in strategy_lines(decision)}
    return {
        **found,
        **tables,
        "card": None if card is None else {**card, "parsed": speaker.card(card["text"])},
        "headline": _headline(decision, found["comparison"], speaker),
        "strategies": [(lines[row.name], _badge(decision, row)) for row in decision.strategies if row.name in lines],
    }


def _headline(decision: Decision, comparison: Any, speaker: Speaker) -> dict[str, Any]:
    """The recommended strategy, or the nearest miss, with its figures of the comparison."""
    chosen = decision.recommendation
    name = chosen.name or chosen.nearest_miss
    key = "recommended" if chosen.name else "nearest_miss" if name else "no_answer"
    tiles: list[tuple[Markup, Markup]] = []
    if name is not None:
        header, rows = comparison
        mine = next(row for row in rows if _names(row[0], name))
        # What little communication there is may well be exposed, and a bubble is all of a pipeline's stall: the card
        # shows what decides, the comparison everything.
        left_out = {"column.overlap", *(["column.stall"] if _has_bubble(decision, name) else [])}
        pairs = [pair for pair in list(zip(header, mine, strict=True))[1:-1] if pair[0].key not in left_out]
        cells = [(speaker.line(column), speaker.cell(cell)) for column, cell in pairs]
        tiles = [(column, cell) for column, cell in cells if cell and cell.striptags() != "–"]
    row = decision.strategy(name) if name is not None else None
    return {"key": f"html.{key}", "name": name, "row": row, "tiles": tiles}


def _has_bubble(decision: Decision, name: str) -> bool:
    """Whether the strategy is a pipeline whose bubble was measured."""
    return decision.strategy(name).bubble_fraction.value is not None


def _names(cell: Any, name: str) -> bool:
    """Whether the first cell of a row is that of this strategy."""
    return cell.fields.get("name") == name if isinstance(cell, Sentence) else cell == code(name)


def _badge(decision: Decision, row: StrategyResult) -> str:
    """Which word stands beside a strategy's name."""
    if row.name == decision.recommendation.name:
        return "recommended"
    if row.standing is not Standing.ELIGIBLE:
        return ""
    return "passes" if row.passes else "fails"


def _timelines(decision: Decision, figures: FigureSet, drawn: Mapping[str, Markup]) -> dict[str, Any]:
    """Those that show most stand open: the recommended strategy, pipelines, and what shards its parameters."""
    found: dict[str, list[dict[str, Any]]] = {"first": [], "more": []}
    for row in decision.strategies:
        drawing = figures.timelines.get(row.name)
        if drawing is None:
            continue
        result = figures.results[row.name]
        steps = {rank.rank: step for rank in result.ranks for step in rank.steps if step.step == result.summary_step}
        bubbles = [
            {"rank": rank, "total": step.bubble_ns, **{name: getattr(phases, name) for name in _PHASES}}
            for rank, step in steps.items()
            if step.bubble_ns and (phases := step.bubble_phase_ns) is not None
        ]
        first = row.name == decision.recommendation.name or bool(bubbles) or "parameters" in row.shards
        found["first" if first else "more"].append(
            {
                "row": row,
                "svg": drawn[drawing.stem],
                "bubbles": bubbles[:MOST_RANKS],
                "ranks": len(steps),
                "cut": len(steps) > MOST_RANKS,
                "most": MOST_RANKS,
            }
        )
    found["first"].sort(key=lambda one: one["row"].name != decision.recommendation.name)
    if not found["first"]:
        found = {"first": found["more"], "more": []}
    return found


_PHASES = ("before", "between", "after")
