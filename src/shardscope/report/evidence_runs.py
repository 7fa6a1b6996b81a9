"""The part of the evidence that comes from single runs: memory, environment, failures."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from shardscope.measure.record import RateCheck
from shardscope.report.markdown import code, megabytes, shortened, signed_percent, text, whole
from shardscope.selection.claims import StrategyResult
from shardscope.selection.decision import Decision

__all__ = ["FailureText", "environment_table", "failure_texts", "memory_table", "state_table"]

Rows = tuple[list[str], list[list[Any]]]
NONE = Markup("–")


def state_table(rows: Sequence[StrategyResult]) -> Rows:
    """Predicted against measured: the bytes the plan gives each rank, and the bytes its tensors hold."""
    header = ["Strategy", "Rank", "Parameters", "Gradients", "Optimizer", "Sum, planned", "Sum, measured", "Difference"]
    found: list[list[Any]] = []
    for row in rows:
        planned = {state.rank: state for state in row.run.planned_state}
        for memory in row.run.memory:
            state = planned.get(memory.rank)
            measured = memory.parameter_bytes + memory.gradient_bytes + memory.optimizer_bytes
            plan = state.parameter_bytes + state.gradient_bytes + state.optimizer_bytes if state is not None else None
            found.append(
                [
                    code(row.name),
                    memory.rank,
                    megabytes(memory.parameter_bytes),
                    megabytes(memory.gradient_bytes),
                    megabytes(memory.optimizer_bytes),
                    NONE if plan is None else megabytes(plan),
                    megabytes(measured),
                    signed_percent(measured / plan - 1) + Markup(" %") if plan else NONE,
                ]
            )
    return header, found


def memory_table(rows: Sequence[StrategyResult]) -> Rows:
    """Peak of every rank with its residue."""
    header = [
        "Strategy",
        "Rank",
        "State held",
        "Activations and temporaries at the peak",
        "Peak",
        "Residue (error)",
        "Resident set, whole process",
    ]
    found: list[list[Any]] = []
    for row in rows:
        for memory in row.run.memory:
            state = memory.parameter_bytes + memory.gradient_bytes + memory.optimizer_bytes
            rss = memory.rss_peak_bytes
            found.append(
                [
                    code(row.name),
                    memory.rank,
                    megabytes(state),
                    megabytes(memory.other_bytes_at_peak),
                    megabytes(memory.peak_bytes),
                    Markup(f"±{memory.residue_bytes / 1e6:.3f}"),
                    NONE if rss is None else megabytes(rss),
                ]
            )
    return header, found


def environment_table(decision: Decision) -> Rows:
    """Facts about the machine and software."""
    found: list[list[Any]] = []
    environment = decision.environment
    if environment is not None:
        for field in environment.__struct_fields__:
            value = getattr(environment, field)
            if value is None:
                continue  # the machine's own rate: nothing was emulated
            if isinstance(value, RateCheck):
                sizes = f"{value.payload_bytes / 1e6:.1f} MB put {value.loopback_bytes / 1e6:.1f} MB on the loopback"
                found.append(["rate check", code(f"an all-reduce of {sizes} in {value.took_ns / 1e6:.1f} ms")])
            elif field == "versions":
                found += [[text(name), code(version)] for name, version in sorted(value.items())]
            elif field == "memory_bytes":
                found.append(["memory, MB", whole(value / 1e6)])
            else:
                shown = ", ".join(value) if isinstance(value, tuple) else str(value)
                found.append([text(field.replace("_", " ")), code(shown) if shown else NONE])
    return ["Fact", "Value"], found


@dataclass(frozen=True)
class FailureText:
    """What is known of a run that failed, for the document."""

    name: str
    reason: str
    facts: str
    log: Markup


def failure_texts(rows: Sequence[StrategyResult]) -> list[FailureText]:
    """Failed runs, and failed reruns of runs that are shown, with the last lines of their logs."""
    found = []
    for row in rows:
        for failure, reason in ((row.run.failure, row.reason), (row.run.last_failure, row.run.last_failure_reason)):
            if failure is None:
                continue
            facts = [("rank", failure.rank), ("exit code", failure.exit_code), ("signal", failure.signal)]
            known = ", ".join(f"{name} {value}" for name, value in facts if value is not None)
            lines = ("".join(c if c.isprintable() else "?" for c in shortened(line)) for line in failure.log_tail)
            # The fence is longer than any run of backticks a log line can hold after this.
            log = Markup("\n".join(line.replace("`", "'") for line in lines))
            found.append(FailureText(name=row.name, reason=reason or "?", facts=known, log=log))
    return found
