"""The two summaries: one context, two languages, at most 200 lines each."""

from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from shardscope.report import answer, tables
from shardscope.report.markdown import text
from shardscope.report.notes import notes, profiler_costs
from shardscope.report.sentences import Language, Sentence, sentence
from shardscope.report.strategies import strategy_lines
from shardscope.selection.decision import Decision
from shardscope.selection.terms import Constraint
from shardscope.template import format_parallel_report

__all__ = ["MOST_LINES", "constraints_intro", "render_summaries", "workload_context"]

MOST_LINES = 200


def render_summaries(
    decisions: Sequence[Decision], figures: Mapping[str, str], languages: Sequence[Language]
) -> tuple[dict[str, str], tuple[str, ...]]:
    """(language → document, workloads whose details are left out). `figures`: workload → link to its figure.

    What does not fit into 200 lines goes to the evidence, the same in both languages: first sections 4 and 5 of later
    workloads, then the template's cards, then all of later workloads but their answer, then sections 4 and 5 of the
    first.
    """
    rendered: dict[str, str] = {}
    left_out: tuple[str, ...] = ()
    for level in range(5):
        detailed = (len(decisions), 1, 1, 1, 0)[level]
        left_out = tuple(decision.workload.name for decision in decisions[detailed:])
        rendered = {language.name: _render(decisions, figures, language, level, detailed) for language in languages}
        if max(len(document.splitlines()) for document in rendered.values()) <= MOST_LINES:
            break
    return rendered, left_out


def _render(
    decisions: Sequence[Decision], figures: Mapping[str, str], language: Language, level: int, detailed: int
) -> str:
    workloads = []
    for index, decision in enumerate(decisions):
        found = workload_context(decision, figures[decision.workload.name], language, detail=index < detailed)
        found["brief"] = level >= 3 and index > 0
        if level >= 2:
            found["card"] = None
        workloads.append(found)
    return language.render("summary.md.j2", opening=answer.opening(list(decisions)), workloads=workloads)


def workload_context(decision: Decision, figure: str, language: Language, *, detail: bool) -> dict[str, Any]:
    """Everything that the summaries say of one workload, as sentences and tables for any of the documents."""
    found = tables.bars(decision)
    ranks = max((row.ledger.ranks for row in decision.strategies if row.ledger is not None), default=0)
    header, rows = tables.ledger(found)
    return {
        "name": decision.workload.name,
        "setting": answer.setting(decision),
        "answer": answer.answer(decision),
        "changes": answer.changes(decision),
        "next": answer.next_step(decision),
        "command": Markup(_one_line(decision.next_step.command)),
        "card": _card(decision, language),
        "budget": answer.budget(decision),
        "comparison": tables.comparison(decision),
        "notes": notes(decision),
        "detail": detail and bool(found),
        "left_out": not detail and bool(found),
        "formula": [
            sentence("time.formula", ranks=ranks, parts=header[2:], costs=profiler_costs(decision)),
            sentence("time.waiting"),
        ],
        "figure": Markup(figure),
        "ledger": (header, rows),
        "waiting": tables.why_waiting(decision),
        "strategies": strategy_lines(decision),
        "constraints_intro": constraints_intro(decision),
        "constraints": tables.constraints(decision),
        "remedies": tables.remedies(decision),
    }


def _one_line(value: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in value).replace("```", "'''")


def constraints_intro(decision: Decision) -> list[Sentence]:
    """Which constraints were set before the runs."""
    limits = decision.constraints
    values: list[tuple[Constraint, float | None]] = [
        (constraint, getattr(limits, constraint))
        for constraint in Constraint
        if constraint is not Constraint.CONVERGENCE
    ]
    items = [sentence("constraints.item", constraint=c, limit=float(v)) for c, v in values if v is not None]
    if limits.require_convergence:
        items.append(sentence("constraints.item", constraint=Constraint.CONVERGENCE, limit=1.0))
    if not items:
        return [sentence("constraints.nothing")]
    found = [sentence("constraints.intro", items=items)]
    if not any(row.checks for row in decision.strategies):
        found.append(sentence("constraints.empty"))
    elif decision.recommendation.name is None and decision.recommendation.nearest_miss is not None:
        found.append(sentence("constraints.nearest", name=decision.recommendation.nearest_miss))
    return found


def _card(decision: Decision, language: Language) -> dict[str, Any] | None:
    """The benchmark template's report: in Chinese by its own function, in English the same fields in the same form."""
    found = answer.card(decision)
    if found is None:
        return None
    if language.name == "zh":
        conclusion = str(language.say(found["conclusion"]))
        first, *table, last = format_parallel_report(str(text(found["name"])), found["summary"], conclusion).split("\n")
        shown = "\n".join([first, "", *table, "", last])
    else:
        shown = language.render("card.md.j2", card=found)
    return {"name": found["name"], "base": found["base"], "text": Markup(shown)}
