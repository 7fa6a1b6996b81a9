"""evidence.md: what the summary rests on, as tables. In English only."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from shardscope.attribution.result import Attribution
from shardscope.report import answer, tables
from shardscope.report.evidence_audit import suspect_lines, wire_table
from shardscope.report.evidence_pipeline import pipeline_idle, pipelines, split_lines
from shardscope.report.evidence_runs import environment_table, failure_texts, memory_table, state_table
from shardscope.report.evidence_traces import TraceTables, trace_tables
from shardscope.report.markdown import (
    code,
    factor,
    megabytes,
    milliseconds,
    percent,
    scientific,
    signed_percent,
    whole,
)
from shardscope.report.notes import notes
from shardscope.report.sentences import Language, Sentence, sentence
from shardscope.report.strategies import strategy_lines
from shardscope.report.summary import constraints_intro
from shardscope.selection.claims import Change, StrategyResult
from shardscope.selection.decision import Decision
from shardscope.selection.terms import Basis

__all__ = ["render_evidence"]

Rows = tuple[list[str], list[list[Any]]]
NONE = Markup("–")
_BASES = {
    Basis.PAIRED: "paired",
    Basis.VIA_BASELINE: "via the baseline",
    Basis.SEPARATE_JOBS: "separate jobs",
    Basis.RESIDUE: "residues",
    Basis.PROFILED_STEPS: "profiled steps",
}


def render_evidence(
    decisions: Sequence[Decision],
    folders: Mapping[tuple[str, str], Path],
    results: Mapping[str, Mapping[str, Attribution]],
    language: Language,
    figures: Mapping[str, str],
    left_out: Sequence[str],
) -> str:
    """The whole document.

    `folders`: (workload, strategy) → attribution folder; `results`: workload → strategy → what was read there;
    `left_out`: workloads shown in full. Raises ResultError when a table that the evidence shows cannot be read.
    """
    workloads = [
        _workload(
            decision, folders, results[decision.workload.name], figures[decision.workload.name],
            full=decision.workload.name in left_out,
        )
        for decision in decisions
    ]  # fmt: skip
    return language.render("evidence.md.j2", workloads=workloads)


def _workload(
    decision: Decision,
    folders: Mapping[tuple[str, str], Path],
    results: Mapping[str, Attribution],
    figure: str,
    *,
    full: bool,
) -> dict[str, Any]:
    ran = [row for row in decision.strategies if row.ran]
    traced: TraceTables = trace_tables(decision.workload.name, folders, results)
    idle = pipelines(decision, folders, results)
    environment = decision.environment
    peak = _matmul_peak(ran)
    return {
        "name": decision.workload.name,
        "full": full,
        "figure": Markup(figure),
        "comparison": tables.comparison(decision),
        "strategies": strategy_lines(decision),
        "budget": answer.budget(decision),
        "constraints_intro": constraints_intro(decision),
        "constraints": tables.constraints(decision),
        "remedies": tables.remedies(decision),
        "noise": _noise(ran),
        "parity": _parity(ran),
        "audit": _audit(ran),
        "disagreements": [(row.name, a.detail) for row in ran for a in row.audit if not a.agrees],
        "suspects": suspect_lines(ran),
        "volumes": _volumes(ran),
        "wire": wire_table(ran),
        "idle": pipeline_idle(idle),
        "splits": split_lines(decision, idle),
        "state": state_table(ran),
        "memory": memory_table(ran),
        "speed": _speed(ran, environment.world_size if environment else None, peak),
        "peak": None if peak is None else whole(peak / 1e9),
        "profiler": _profiler(ran),
        "traced": traced,
        "environment": environment_table(decision),
        "failures": failure_texts(decision.strategies),
        "notes": [(row.name, note) for row in decision.strategies for note in row.run.notes],
        "limits": _limits(decision),
        "traces": [
            (row.name, f"traces/{decision.workload.name}/{row.name}/{trace.file}")
            for row in ran
            for trace in row.run.traces[:1]
        ],
        "on_cpu": environment is None or environment.device == "cpu",
    }


def _interval(change: Change | None) -> Markup:
    if change is None:
        return NONE
    shown = signed_percent(change.difference) + Markup(" %")
    if change.low is not None and change.high is not None:
        shown += Markup(" (") + signed_percent(change.low) + Markup(" to ") + signed_percent(change.high) + Markup(")")
    return shown


def _noise(rows: Sequence[StrategyResult]) -> Rows:
    header = ["Strategy", "Timing", "Pairs", "A′ against A, 95 % interval", "Noise floor", "Ranked by time",
              "Step time against the one compared with", "Verdict", "How compared"]  # fmt: skip
    found: list[list[Any]] = []
    for row in rows:
        noise, change = row.noise, row.step_ns.change
        spread = NONE
        if noise is not None:
            spread = signed_percent(noise.difference) + Markup(" % (") + signed_percent(noise.low)
            spread += Markup(" to ") + signed_percent(noise.high) + Markup(")")
        found.append(
            [
                code(row.name),
                row.run.timing_mode or NONE,
                noise.count if noise is not None else NONE,
                spread,
                NONE if noise is None else Markup("±") + percent(noise.floor) + Markup(" %"),
                "yes" if row.time_evidence else f"no: {row.no_time_reason}",
                _interval(change),
                NONE if change is None else sentence(f"verdict_word.{change.verdict}"),
                NONE if change is None else _BASES[change.basis],
            ]
        )
    return header, found


def _parity(rows: Sequence[StrategyResult]) -> Rows:
    header = [
        "Strategy",
        "Gradient error",
        "Worst parameter",
        "Loss error",
        "Steps",
        "Allowed",
        "Passed",
        "Loss, first → last quarter",
    ]
    found: list[list[Any]] = []
    for row in rows:
        parity, losses = row.run.parity, row.convergence
        if parity is None:
            continue
        passed = parity.gradient_error <= parity.tolerance and parity.loss_error <= parity.tolerance
        found.append(
            [
                code(row.name),
                scientific(parity.gradient_error),
                code(parity.worst_parameter),
                scientific(parity.loss_error),
                parity.loss_steps,
                scientific(parity.tolerance),
                "yes" if passed else Markup("**no**"),
                NONE if losses is None else sentence("cell.converged", found=losses),
            ]
        )
    return header, found


def _audit(rows: Sequence[StrategyResult]) -> Rows:
    header = ["Strategy", "Kind", "Axis", "Expected per rank", "Seen per rank", "Expected, MB", "Seen, MB", "Agrees"]
    found: list[list[Any]] = []
    for row in rows:
        for line in row.audit:
            found.append(
                [
                    code(row.name),
                    sentence(f"kind.{line.kind}"),
                    str(line.axis),
                    _by_rank(line.expected_count),
                    _by_rank(line.seen_count),
                    _sizes_by_rank(line.expected_bytes),
                    _sizes_by_rank(line.seen_bytes),
                    "yes" if line.agrees else Markup("**no**"),
                ]
            )
    return header, found


def _by_rank(values: Sequence[int]) -> str:
    """One number when all ranks agree, else one per rank."""
    return str(values[0]) if len(set(values)) == 1 else " / ".join(map(str, values))


def _sizes_by_rank(values: Sequence[int | None]) -> Markup:
    shown = [Markup("not recorded") if value is None else Markup(f"{value / 1e6:,.3f}") for value in values]
    return shown[0] if len(set(shown)) == 1 else Markup(" / ").join(shown)


def _volumes(rows: Sequence[StrategyResult]) -> Rows:
    header = [
        "Strategy",
        "Kind",
        "Axis",
        "Collectives",
        "Payload Σ S, MB",
        "Sent with this backend, MB",
        "Sent with NCCL, MB",
    ]
    found: list[list[Any]] = []
    for row in rows:
        for volume in row.volumes:
            found.append(
                [
                    code(row.name),
                    sentence(f"kind.{volume.kind}"),
                    str(volume.axis),
                    volume.count,
                    megabytes(volume.payload_bytes),
                    NONE if volume.backend_bytes is None else megabytes(volume.backend_bytes),
                    megabytes(volume.nccl_bytes),
                ]
            )
    return header, found


def _matmul_peak(rows: Sequence[StrategyResult]) -> float | None:
    """The highest matmul peak that the runs measured, in FLOP/s: one yardstick for all."""
    peaks = [row.run.flops_per_s / row.run.mfu for row in rows if row.run.flops_per_s and row.run.mfu]
    return max(peaks, default=None)


def _mfu(row: StrategyResult, peak: float | None, ranks: int | None) -> Markup:
    """`peak` is that of all ranks together; `single` uses one of them."""
    used = sum(state.parameter_bytes > 0 for state in row.run.planned_state)
    if row.run.flops_per_s is None or not peak or not ranks or not used:
        return NONE
    return percent(row.run.flops_per_s / (peak * used / ranks)) + Markup(" %")


def _speed(rows: Sequence[StrategyResult], ranks: int | None, peak: float | None) -> Rows:
    header = ["Strategy", "Against one process with a rank's threads", "Efficiency", "Model GFLOP/s", "MFU"]
    found: list[list[Any]] = []
    for row in rows:
        ratio = None if row.speedup is None else 1 + row.speedup.difference
        found.append(
            [
                code(row.name),
                NONE if ratio is None else Markup("× ") + factor(ratio),
                NONE if ratio is None or not ranks else percent(ratio / ranks) + Markup(" %"),
                NONE if row.run.flops_per_s is None else whole(row.run.flops_per_s / 1e9),
                _mfu(row, peak, ranks),
            ]
        )
    return header, found


def _profiler(rows: Sequence[StrategyResult]) -> Rows:
    header = ["Strategy", "Step with the profiler, ms", "Step without, ms", "Cost"]
    found: list[list[Any]] = []
    for row in rows:
        cost = row.run.profiler
        if cost is None or not cost.plain_step_ns:
            continue
        added = signed_percent(cost.profiled_step_ns / cost.plain_step_ns - 1) + Markup(" %")
        found.append([code(row.name), milliseconds(cost.profiled_step_ns), milliseconds(cost.plain_step_ns), added])
    return header, found


def _limits(decision: Decision) -> list[Sentence]:
    """What the numbers do not say: the notes that apply, and what the backend cannot show."""
    return [note for note in notes(decision) if note.key != "note.paired"]
