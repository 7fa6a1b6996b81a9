"""node.md: what the strategies would do on named hardware, predicted, beside how well the same model does here."""

from collections.abc import Sequence
from typing import Any

from markupsafe import Markup

from shardscope.report.markdown import code, megabytes, milliseconds, percent, rate, signed_percent, text
from shardscope.report.sentences import Language, Sentence, sentence
from shardscope.selection.decision import Decision
from shardscope.selection.node_claims import Flip, Machine, NodePrediction, NodeReport, NodeTable, SelfCheck
from shardscope.selection.terms import REFERENCE

__all__ = ["FILES", "render_node"]

FILES = {"en": "node.md", "zh": "node.zh.md"}
Rows = tuple[list[Any], list[list[Any]]]
NONE = Markup("–")
NS = 1e9
SHOWN_FLIPS = 6


def render_node(decisions: Sequence[Decision], language: Language) -> str:
    """The whole document: a section per workload, its machine first, then each node."""
    workloads = [_workload(decision, language) for decision in decisions]
    summary = FILES[language.name].replace("node", "summary")
    return language.render("node.md.j2", workloads=workloads, summary=Markup(summary))


def _workload(decision: Decision, language: Language) -> dict[str, Any]:
    report = decision.node
    if report is None:
        return {"name": decision.workload.name, "report": None}
    dtype = decision.workload.dtype
    return {
        "name": decision.workload.name,
        "report": report,
        "here": _here(report, dtype),
        "checks": _checks(report, dtype, language),
        "nodes": [_node(table, report, dtype, language) for table in report.nodes],
    }


def _here(report: NodeReport, dtype: str) -> list[Sentence]:
    machine = report.here
    found = [sentence("node.here", machine=machine, peak=machine.peak_flops[dtype] / 1e9, of=report.calibration)]
    if machine.link is not None:
        link = machine.link
        found.append(
            sentence(
                "node.here_link",
                samples=report.samples,
                alpha=link.alpha_s * NS,
                rate=link.bytes_per_s / 1e6,
                call=machine.call_s * NS,
            )
        )
    found.append(sentence("node.here_hides" if machine.hides else "node.here_shares"))
    if report.step_error is not None:
        worst = max(
            (_off(c.predicted.step_s, c.step_s) for c in report.checks if c.predicted.step_s and not c.calibration),
            key=abs,
        )
        found.append(
            sentence(
                "node.error",
                step=report.step_error,
                worst=worst,
                memory=report.memory_error,
                transfer=report.transfer_error,
            )
        )  # fmt: skip
    return found


def _off(predicted: float | None, measured: float) -> float:
    return (predicted or 0.0) / measured - 1


def _pair(predicted: float | None, measured: float | None, *, relative: bool = True) -> Markup:
    """Predicted / measured in ms, with the error where one can be given."""
    if predicted is None or measured is None:
        return NONE
    shown = milliseconds(predicted * NS) + Markup(" / ") + milliseconds(measured * NS)
    if relative and measured:
        shown += Markup(" (") + signed_percent(_off(predicted, measured)) + Markup(" %)")
    return shown


def _checks(report: NodeReport, dtype: str, language: Language) -> Rows:
    header = [sentence(f"node.column.{key}") for key in ("strategy", "step", "transfer", "bubble", "memory", "remark")]
    return header, [[code(c.predicted.name), *_check_cells(c, dtype, language)] for c in report.checks]


def _check_cells(check: SelfCheck, dtype: str, language: Language) -> list[Any]:
    predicted = check.predicted
    memory: Markup = NONE
    if predicted.memory_bytes is not None and check.memory_bytes:
        memory = megabytes(predicted.memory_bytes) + Markup(" / ") + megabytes(check.memory_bytes) + Markup(" (")
        memory += signed_percent(_off(predicted.memory_bytes, check.memory_bytes)) + Markup(" %)")
    remarks = []
    if check.calibration:
        remarks.append(language.say_key("node.remark.calibration"))
    if check.own_transfers:
        remarks.append(language.say_key("node.remark.own_transfers"))
    remarks += _why_not(predicted, dtype, language)
    return [
        _pair(predicted.step_s, check.step_s),
        _pair(predicted.transfer_s, check.transfer_s, relative=False),
        _pair(predicted.bubble_s, check.bubble_s, relative=False),
        memory,
        _joined(remarks, language) if remarks else NONE,
    ]


def _why_not(row: NodePrediction, dtype: str, language: Language) -> list[Markup]:
    """Why there is no prediction; empty where there is one."""
    found = [] if row.reason is None else [text(row.reason)]
    return found if row.missing is None else [*found, language.say_key(f"node_reason.{row.missing}", dtype=dtype)]


def _joined(parts: Sequence[Markup], language: Language) -> Markup:
    return Markup("; " if language.name == "en" else "；").join(parts)


def _node(table: NodeTable, report: NodeReport, dtype: str, language: Language) -> dict[str, Any]:
    machine = table.machine
    claimed = [flip for flip in table.flips if flip.claimed]
    open_ones = [flip for flip in table.flips if not flip.claimed]
    first = next((row for row in table.rows if row.name == table.first), None)
    return {
        "title": text(machine.title),
        "intro": [
            sentence("node.devices", devices=table.devices, machine=machine),
            *([sentence("node.from_here", title=report.here.title, of=report.calibration)] if machine.measured else []),
            sentence("node.first", row=first, fastest=report.fastest, error=report.step_error),
            *([sentence("node.near", names=table.near)] if table.near else []),
            *([sentence("node.launch_bound")] if any(row.launch_bound for row in table.rows) else []),
        ],
        "table": _predictions(table, dtype, language),
        "flips": [_flip(flip) for flip in claimed[:SHOWN_FLIPS]],
        "compared": sum(check.predicted.name != REFERENCE for check in report.checks) > 1,
        "more": max(0, len(claimed) - SHOWN_FLIPS),
        "open": [sentence("node.pair", first=flip.first, second=flip.second) for flip in open_ones[:SHOWN_FLIPS]],
        "figures": _figures(machine, dtype),
        "assumed": [
            sentence(f"assumed.{key}", machine=machine, launch=machine.launch_s * NS) for key in machine.assumed
        ],
    }


def _flip(flip: Flip) -> Sentence:
    return sentence("node.flip", first=flip.first, second=flip.second, ratio=flip.ratio - 1, error=flip.error - 1)


def _predictions(table: NodeTable, dtype: str, language: Language) -> Rows:
    keys = (
        "strategy",
        "memory_device",
        "step_there",
        "compute",
        "exposed",
        "hidden",
        "bubble_there",
        "speed",
        "remark",
    )
    header = [sentence(f"node.column.{key}") for key in keys]
    return header, [[code(row.name), *_prediction_cells(row, dtype, language)] for row in table.rows]


def _prediction_cells(row: NodePrediction, dtype: str, language: Language) -> list[Any]:
    def ms(seconds: float | None) -> Markup:
        return NONE if seconds is None else milliseconds(seconds * NS)

    remarks = _why_not(row, dtype, language)
    if row.fits is False:
        remarks.append(language.say_key("node.remark.does_not_fit"))
    if row.bubble_s is not None:
        remarks.append(language.say_key("node.remark.simulated" if row.simulated else "node.remark.closed_form"))
    if row.launch_bound:
        remarks.append(language.say_key("node.remark.launch_bound"))
    return [
        NONE if row.memory_bytes is None else megabytes(row.memory_bytes),
        ms(row.step_s),
        ms(row.compute_s),
        ms(row.transfer_s),
        ms(row.hidden_s),
        ms(row.bubble_s),
        NONE if row.tokens_per_s is None else rate(row.tokens_per_s),
        _joined(remarks, language) if remarks else NONE,
    ]


def _source(machine: Machine, key: str) -> Any:
    if key in machine.measured:
        return sentence("node.measured_here")
    return text(machine.sources[key]) if key in machine.sources else NONE


def _figures(machine: Machine, dtype: str) -> Rows:
    """The published figures that the prediction rests on, each with the document."""
    header = [sentence(f"node.column.{key}") for key in ("figure", "value", "source")]
    values: dict[str, Markup] = {"efficiency": percent(machine.efficiency) + Markup(" %")}
    if dtype in machine.peak_flops:
        values["peak"] = Markup(f"{machine.peak_flops[dtype] / 1e12:,.1f} TFLOP/s, {dtype}")
    values["memory"] = Markup(f"{machine.memory_bytes / 1e9:,.0f} GB")
    if machine.memory_bytes_per_s is not None:
        values["memory_rate"] = Markup(f"{machine.memory_bytes_per_s / 1e9:,.0f} GB/s")
    for key, link in (("link", machine.link), ("network", machine.network)):
        if link is not None:
            times = f"{machine.network_links} × " if key == "network" and machine.network_links > 1 else ""
            values[key] = Markup(f"{times}{link.bytes_per_s / 1e9:,.0f} GB/s")
            values[f"{key}_latency"] = Markup(f"{link.base_s * 1e6:.1f} + {link.alpha_s * 1e6:.1f} µs")
    rows: list[list[Any]] = [
        [sentence(f"node.figure.{key}"), value, _source(machine, key)] for key, value in values.items()
    ]
    return header, rows
