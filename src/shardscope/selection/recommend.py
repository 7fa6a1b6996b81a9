"""The answer: which strategy, how sure, whether parallelism pays at all, and what to verify next."""

import math
import shlex
import statistics

from shardscope.selection.claims import StrategyResult
from shardscope.selection.comparison import Side, change_of, judge
from shardscope.selection.constraints import nearest_miss
from shardscope.selection.decision import AllCoresClaim, NextStep, Recommendation, Rejected
from shardscope.selection.ranking import Order
from shardscope.selection.statistics import Interval, pair_logs, student, triple_logs, welch
from shardscope.selection.terms import Basis, Constraints, Standing, Verdict

__all__ = ["all_cores", "next_step", "recommend"]

CORES = 4  # as in the documented commands; the measuring rule takes all it is given
NS_PER_S = 1e9


def recommend(order: Order) -> Recommendation:
    """The choice among the strategies that meet every constraint."""
    passing = [row.name for row in order.rows.values() if row.passes]
    chosen, tied = order.choose(passing)
    if chosen is None:
        return Recommendation(
            name=None,
            by=order.by,
            no_time_reason=order.no_time_reason,
            passing=(),
            tied=(),
            runner_up=None,
            runner_up_change=None,
            rejected=(),
            unranked=(),
            nearest_miss=nearest_miss(order.rows.values()),
        )
    ranked = order.rankable(passing)
    by_time = order.by == "throughput" and order.rows[chosen].time_evidence
    others = [name for name in ranked if name != chosen]
    rejected = [
        Rejected(name=row.name, change=change, failing=row.failing)
        for row in order.rows.values()
        if row.standing is Standing.ELIGIBLE and row.failing and by_time
        if (change := order.change(row.name, chosen)) is not None and change.verdict is Verdict.BETTER
    ]
    runner_up = others[0] if others else None
    return Recommendation(
        name=chosen,
        by="throughput" if by_time else "memory",
        no_time_reason=order.no_time_reason or order.rows[chosen].no_time_reason,
        passing=tuple(ranked) if by_time else tuple(sorted(passing, key=lambda n: order.peak(n) or math.inf)),
        tied=tied,
        runner_up=runner_up,
        runner_up_change=order.change(runner_up, chosen) if runner_up and by_time else None,
        rejected=tuple(sorted(rejected, key=lambda r: -r.change.difference)),
        unranked=tuple(name for name in passing if name not in ranked) if by_time else (),
        nearest_miss=None,
    )


def all_cores(order: Order, single: Side | None, against: str | None, limits: Constraints) -> AllCoresClaim | None:
    """One process with all cores against the recommended strategy, both paired with the same baseline.

    None when it was not measured, or when times are no evidence.
    """
    found = single.record.all_cores if single is not None else None
    if single is None or found is None or against is None or not found.step_ns or not single.usable:
        return None
    timing = single.record.timing
    if timing is None or single.no_time_reason or not order.rows[against].time_evidence:
        return None
    interval = _all_cores_interval(single, order.sides[against])
    if interval is None:
        return None
    floors = [side.noise.floor for side in (single, order.sides[against]) if side.noise is not None]
    floor = math.hypot(*(math.log1p(value) for value in floors))
    step = statistics.median(found.step_ns)
    throughput = timing.tokens_per_step * NS_PER_S / step
    fits = None
    if limits.memory_cap_mb is None:
        fits = True
    elif found.peak_bytes is not None:
        fits = found.peak_bytes <= limits.memory_cap_mb * 1e6
    passes = (
        (limits.min_throughput_tokens_per_s is None or throughput >= limits.min_throughput_tokens_per_s)
        and (limits.max_step_time_ms is None or step <= limits.max_step_time_ms * 1e6)
        and (not limits.require_convergence or _converged(order.rows.get(single.name)))
    )
    verdict = judge(-interval, floor)  # of throughput: higher is better
    return AllCoresClaim(
        threads=found.threads,
        step_ns=float(step),
        throughput=throughput,
        peak_bytes=found.peak_bytes,
        change=change_of(
            interval,
            floor,
            Basis.PAIRED if against == single.record.baseline else Basis.VIA_BASELINE,
            verdict,
            against,
        ),
        fits=fits,
        passes=passes,
        pays=verdict is Verdict.BETTER and fits is True and passes,
    )


def _all_cores_interval(single: Side, against: Side) -> Interval | None:
    """log of throughput of all cores / throughput of `against`."""
    found, timing = single.record.all_cores, against.record.timing
    if found is None or not found.baseline_ns:
        return None
    mine = pair_logs(found.baseline_ns, found.step_ns)
    if against.name == single.record.baseline:
        return -student(mine)
    if timing is None or not timing.triples or timing.baseline != single.record.baseline:
        return None
    return welch(triple_logs(timing.triples)[0], mine)


def _converged(row: StrategyResult | None) -> bool:
    return row is not None and row.convergence is not None and row.convergence.converged


def next_step(
    order: Order, workload: str, answer: Recommendation, failed: tuple[str, ...], ranks: int | None
) -> NextStep:
    """The most useful thing to verify, as a command. ranks: of the jobs."""
    report = f"snakemake --cores {CORES} reports/summary.md"
    if failed:
        return NextStep(why="failed", targets=failed, command=report)
    if answer.name is None:
        targets: tuple[str, ...] = (answer.nearest_miss,) if answer.nearest_miss else ()
        why = "nearest_miss" if targets else "nothing_ran" if ranks != 1 else "one_rank"
    elif answer.no_time_reason == "oversubscribed":
        return NextStep(why="oversubscribed", targets=(answer.name,), command=report)
    elif answer.no_time_reason is not None:
        targets, why = answer.passing, "noise"
    elif answer.unranked:
        targets, why = answer.unranked, "unranked"
    elif len(answer.tied) > 1:
        targets, why = answer.tied, "tie"
    elif answer.name == order.base and answer.runner_up is not None:
        targets, why = (answer.runner_up,), "runner_up"
    else:
        targets, why = (answer.name,), "confirm"
    if not targets:
        return NextStep(why=why, targets=(), command=report)
    paths = " ".join(shlex.quote(f"traces/{workload}/{name}") for name in targets)
    return NextStep(why=why, targets=targets, command=f"snakemake --cores {CORES} --force {paths} && {report}")
