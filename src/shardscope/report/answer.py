"""Section 1, the answer, and section 2, the choice by memory budget, as sentences with their fields."""

from typing import Any

from shardscope.report.sentences import Sentence, sentence
from shardscope.selection.claims import StrategyResult
from shardscope.selection.decision import Decision
from shardscope.selection.rescale import LARGEST_FACTOR
from shardscope.selection.terms import CheckStatus, Constraint, Standing, Verdict
from shardscope.template import summarize_parallel_result

__all__ = ["answer", "budget", "card", "constraint_value", "opening", "sent_bytes", "setting"]

MB, MS = 1e6, 1e6


def opening(decisions: list[Decision]) -> list[Sentence]:
    """What the report opens with: strategies that failed, and results that a failed rerun left in place."""
    several = len(decisions) > 1
    found = []
    for decision in decisions:
        workload = decision.workload.name if several else None
        if decision.failed:
            found.append(
                sentence(
                    "opening.failed",
                    count=len(decision.failed),
                    total=len(decision.strategies),
                    names=decision.failed,
                    workload=workload,
                )
            )
        found += [
            sentence(
                "opening.stale",
                name=name,
                reason=decision.strategy(name).run.last_failure_reason,
                date=decision.strategy(name).run.finished_at,
                workload=workload,
            )
            for name in decision.stale
        ]
    return found


def setting(decision: Decision) -> Sentence:
    """What was measured, where and when."""
    counts = [row.run.parameter_count for row in decision.strategies if row.run.parameter_count]
    dates = sorted(row.run.finished_at for row in decision.strategies)
    return sentence(
        "setting",
        spec=decision.workload,
        parameters=counts[0] if counts else None,
        environment=decision.environment,
        first=dates[0],
        last=dates[-1],
    )


def answer(decision: Decision) -> list[list[Sentence]]:
    """The paragraphs of section 1 before what would change the answer."""
    paragraphs = [_all_cores(decision), _recommended(decision), _sure(decision)]
    return [paragraph for paragraph in paragraphs if paragraph]


def _all_cores(decision: Decision) -> list[Sentence]:
    """Said first: whether parallelism pays at all."""
    claim = decision.all_cores
    if claim is None:
        return []
    key = "all_cores.worse"
    if claim.pays:
        key = "all_cores.pays"
    elif claim.change.verdict is Verdict.BETTER:
        key = "all_cores.faster_but"
    elif claim.change.verdict is Verdict.WITHIN_NOISE:
        key = "all_cores.same"
    peak = decision.strategy(claim.change.against).peak_bytes.value
    least = peak is not None and claim.peak_bytes is not None and peak < claim.peak_bytes
    return [sentence(key, claim=claim, cap=decision.constraints.memory_cap_mb, least=least)]


def _recommended(decision: Decision) -> list[Sentence]:
    answer = decision.recommendation
    if answer.name is None:
        return _no_answer(decision)
    row = decision.strategy(answer.name)
    count = sum(1 for other in decision.strategies if other.standing is Standing.ELIGIBLE)
    fields: dict[str, Any] = {
        "row": row,
        "passing": len(answer.passing),
        "meeting": len(answer.passing) + len(answer.unranked),
        "eligible": count,
        "reason": answer.no_time_reason,
    }
    tied = [name for name in answer.tied if name != answer.name]
    if answer.by == "memory":
        key = "answer.memory"
    elif len(answer.passing) == 1:
        key = "answer.only_ranked" if answer.unranked else "answer.only"
    elif tied:
        key = "answer.tied"
        peaks = [decision.strategy(name).peak_bytes.value or 0.0 for name in tied]
        fields |= {"tied": tied, "least": (row.peak_bytes.value or 0.0) < min(peaks), "next_peak": min(peaks)}
    else:
        key = "answer.fastest"
    found = [sentence(key, **fields)]
    if row.throughput.change is not None and row.name != decision.compared_with:
        change, memory = row.throughput.change, row.peak_bytes
        judged = change.verdict is not Verdict.NOT_JUDGED
        if judged or memory.change is not None:
            found.append(sentence("answer.against", change=change, memory=memory, judged=judged))
    for rejected in answer.rejected:
        found.append(
            sentence(
                "answer.rejected",
                name=rejected.name,
                change=rejected.change,
                failing=_failing(decision.strategy(rejected.name)),
            )
        )
    if answer.runner_up_change is not None and answer.runner_up not in answer.tied:
        found.append(sentence("answer.runner_up", name=answer.runner_up, change=answer.runner_up_change))
    return found


def _reference_ran(decision: Decision) -> bool:
    return any(row.standing is Standing.REFERENCE for row in decision.strategies)


def _no_answer(decision: Decision) -> list[Sentence]:
    missed = decision.recommendation.nearest_miss
    if missed is None:
        return [sentence("answer.nothing", total=len(decision.strategies), reference=_reference_ran(decision))]
    row = decision.strategy(missed)
    return [sentence("answer.none"), sentence("answer.nearest_miss", row=row, failing=_failing(row))]


def _failing(row: StrategyResult) -> list[Sentence]:
    """Every failing constraint with its numbers."""
    return [
        sentence("failing", check=check, **constraint_value(check.constraint, check.value, check.limit))
        for check in row.checks
        if check.status is CheckStatus.FAILED
    ]


def sent_bytes(row: StrategyResult | None) -> float | None:
    """Bytes per step that all ranks send; None where the run or its backend does not tell."""
    if row is None or not row.ran or any(volume.backend_bytes is None for volume in row.volumes):
        return None
    return sum(volume.backend_bytes or 0.0 for volume in row.volumes)


def constraint_value(constraint: Constraint, value: float | None, limit: float) -> dict[str, Any]:
    """Fields that let a sentence print value and limit of a constraint in the right unit."""
    scale = {Constraint.MEMORY: MB, Constraint.STEP_TIME: MS, Constraint.LATENCY: MS}.get(constraint, 1.0)
    return {
        "constraint": constraint,
        "value": None if value is None else value * scale,
        "limit": limit,
    }


def _sure(decision: Decision) -> list[Sentence]:
    answer = decision.recommendation
    found: list[Sentence] = []
    row = decision.strategy(answer.name) if answer.name else None
    if answer.no_time_reason == "noise":
        floors = [r.noise.floor for r in decision.strategies if r.noise and r.standing is Standing.ELIGIBLE]
        found.append(sentence("sure.too_noisy", least=min(floors), most=max(floors)))
    elif answer.no_time_reason == "oversubscribed":
        found.append(sentence("sure.oversubscribed", environment=decision.environment))
    elif row is not None and row.noise is not None:
        found.append(sentence("sure.floor", noise=row.noise, paired=row.run.timing_mode != "alone"))
    if answer.no_time_reason is not None:
        sent = [(sent_bytes(r), r.name) for r in decision.strategies if r.standing is Standing.ELIGIBLE]
        items = [sentence("sure.sent", name=n, bytes=b) for b, n in sorted((b, n) for b, n in sent if b is not None)]
        if items:
            found.append(sentence("sure.bytes", items=items))
    if answer.unranked:
        noise = [(name, decision.strategy(name).noise) for name in answer.unranked]
        found.append(sentence("sure.unranked", items=[sentence("sure.item", name=n, noise=f) for n, f in noise]))
    if row is not None:
        marginal = [check for check in row.checks if check.marginal]
        found += [
            sentence("sure.marginal", **constraint_value(check.constraint, check.value, check.limit))
            for check in marginal
        ]
    return found


def changes(decision: Decision) -> list[Sentence]:
    """What would change the answer: what was measured first, then what is predicted."""
    batch = decision.workload.global_batch
    found = [
        sentence(
            f"change.{by.by}",
            found=by,
            left=bool(decision.budget.left_out),
            **({"batch": by.value * batch, "now": batch} if by.by == "batch" else {}),
            **(constraint_value(by.constraint, by.value, 0.0) if by.constraint else {}),
        )
        for by in decision.opportunities
    ]
    answer = decision.recommendation
    tied = [name for name in answer.tied if name != answer.name]
    if tied:
        found.insert(0, sentence("change.tie" if answer.by == "throughput" else "change.tie_memory", tied=tied))
    if decision.never_overtakes and not any(by.predicted for by in decision.opportunities):
        fields = {"names": list(decision.never_overtakes), "factor": LARGEST_FACTOR, "tied": bool(tied)}
        found.append(sentence("change.no_crossover", **fields))
    return found


def next_step(decision: Decision) -> Sentence:
    """What to verify next."""
    step = decision.next_step
    row = decision.strategy(step.targets[0]) if len(step.targets) == 1 else None
    change = row.throughput.change if row is not None else None
    return sentence(f"next.{step.why}", targets=step.targets, change=change)


def card(decision: Decision) -> dict[str, Any] | None:
    """The benchmark template's summary of the recommended strategy, or of the runner-up where the baseline is best."""
    answer, base = decision.recommendation, decision.compared_with
    name = answer.runner_up if answer.name == base else answer.name
    if name is None or base is None or name == base:
        return None
    row, other = decision.strategy(name), decision.strategy(base)
    # The baseline's speed in the same processes, where it was measured there: the drift between jobs is not a change.
    paired = row.base_step_ns if base == decision.baseline else None
    mine, theirs = _template_metrics(row), _template_metrics(other, paired)
    if mine is None or theirs is None:
        return None
    key = "card.keep_base" if answer.name == base else "card.choose"
    watch = row.blame.part if row.blame is not None and row.blame.part_ns > 0 else None
    return {
        "name": name,
        "summary": summarize_parallel_result(theirs, mine),
        "conclusion": sentence(key, row=row, base=base, watch=watch),
        "base": base,
    }


def _template_metrics(row: StrategyResult, step_ns: float | None = None) -> dict[str, float] | None:
    """What the template compares; `step_ns` replaces the row's own median step."""
    throughput, step = row.throughput.value, row.step_ns.value
    if row.peak_bytes.value is None or throughput is None or step is None or row.ledger is None:
        return None
    return {
        "peak_mem_mb": row.peak_bytes.value / MB,
        "throughput": throughput if step_ns is None else throughput * step / step_ns,
        "latency_ms": (step if step_ns is None else step_ns) / MS,
        "communication_ms": row.ledger.communication_ns / MS,
    }


def budget(decision: Decision) -> list[Sentence]:
    """The sentences of section 2."""
    found = decision.budget
    if not found.entries:
        return [sentence("budget.nothing", reference=_reference_ran(decision))]
    entries = [sentence("budget.entry", entry=entry) for entry in found.entries]
    sentences = []
    nothing, left = found.nothing_below_bytes, bool(found.left_out)
    if found.by == "throughput":
        sentences.append(sentence("budget.choice", entries=entries, nothing=nothing, left=left))
        for entry in found.entries:
            if entry.tied:
                peaks = [(name, decision.strategy(name).peak_bytes.value or 0.0) for name in entry.tied]
                items = [sentence("budget.tied_item", name=name, peak=peak) for name, peak in peaks]
                sentences.append(sentence("budget.tied", entry=entry, items=items))
    else:
        fits = [sentence("budget.fit", entry=entry) for entry in reversed(found.entries)]
        sentences.append(sentence("budget.fits", entries=fits, nothing=nothing, left=left))
    if found.constraints_ignored:
        sentences.append(sentence("budget.ignored"))
    if found.left_out:
        items = [sentence("budget.left_item", name=n, constraints=list(c)) for n, c in found.left_out.items()]
        sentences.append(sentence("budget.left_out", items=items))
    if found.unconstrained and found.by == "throughput":
        entries = [sentence("budget.entry", entry=entry) for entry in found.unconstrained]
        nothing = min(entry.from_bytes for entry in found.unconstrained)
        sentences.append(sentence("budget.unconstrained", entries=entries, nothing=nothing))
    if decision.all_cores is not None and decision.all_cores.peak_bytes is not None:
        sentences.append(sentence("budget.all_cores", claim=decision.all_cores))
    return sentences
