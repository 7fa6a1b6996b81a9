"""The part of the evidence that comes from the attributions: ranks, stragglers, evidence levels, bubbles, HTA."""

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from markupsafe import Markup

from shardscope.attribution.result import HTA_FILE, Attribution, SecondOpinion, StepRow
from shardscope.attribution.stragglers import over_steps
from shardscope.errors import ResultError
from shardscope.report.figures import COLOURS
from shardscope.report.markdown import code, milliseconds, percent, round_parts, tenths, text
from shardscope.report.sentences import sentence
from shardscope.vocabulary import Evidence, Kind

__all__ = ["TraceTables", "trace_tables"]

Rows = tuple[list[Any], list[list[Any]]]
NONE = Markup("–")
MS = 1e6


@dataclass(frozen=True)
class TraceTables:
    """Tables over all strategies of a workload that ran."""

    ranks: Rows
    stragglers: Rows
    clocks: Rows
    levels: Rows
    bubbles: Rows
    bandwidth: Rows
    hta: Rows
    hta_flagged: Rows
    hta_missing: list[tuple[str, str]]
    hta_version: str | None
    warnings: Rows


def trace_tables(
    workload: str, folders: Mapping[tuple[str, str], Path], results: Mapping[str, Attribution]
) -> TraceTables:
    """`results`: the attribution of every strategy that ran. Raises ResultError for a second opinion that is broken."""
    opinions = {name: _opinion(folders[workload, name] / HTA_FILE) for name in results}
    hta, flagged, missing, version = _hta(opinions)
    return TraceTables(
        ranks=_ranks(results),
        stragglers=_stragglers(results),
        clocks=_clocks(results),
        levels=_levels(results),
        bubbles=_bubbles(results),
        bandwidth=_bandwidth(results),
        hta=hta,
        hta_flagged=flagged,
        hta_missing=missing,
        hta_version=version,
        warnings=_warnings(results),
    )


def _opinion(path: Path) -> SecondOpinion | None:
    """None when no second opinion was asked for."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=SecondOpinion)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError, ValueError) as error:
        raise ResultError(f"{path}: cannot be read ({error}); attribute the run again") from error


def _ranks(results: Mapping[str, Attribution]) -> Rows:
    """The summary step, rank by rank, in tenths of a millisecond that add up."""
    lines: list[tuple[str, int | None, StepRow]] = [
        (name, rank.rank, row)
        for name, result in results.items()
        for rank in result.ranks
        for row in rank.steps
        if row.step == result.summary_step
    ]
    parted = [(name, rank, row, _parts(row)) for name, rank, row in lines]
    shown = [part for part in COLOURS if any(found[part] for *_, found in parted)]
    header = ["Strategy", "Rank", "Step", *(sentence(f"part.{part}") for part in shown), "Flags"]
    rows: list[list[Any]] = []
    for name, rank, row, found in parted:
        step, rounded = round_parts(row.window_ns / MS, [found[part] / MS for part in shown])
        flags = text("; ".join(row.flags)) if row.flags else NONE
        rows.append([code(name), "?" if rank is None else rank, tenths(step), *map(tenths, rounded), flags])
    return header, rows


def _parts(row: StepRow) -> dict[str, int]:
    found = {"compute": row.compute_ns, "copies": row.copies_exposed_ns, "bubble": row.bubble_ns or 0}
    found |= {str(kind): row.attributed_ns.get(kind, 0) for kind in Kind} | {"host": row.host_other_ns}
    return found


def _stragglers(results: Mapping[str, Attribution]) -> Rows:
    """Who arrives last, and how much exposed waiting of the others that causes, over all profiled steps."""
    header = ["Strategy", "Rank", "Last to arrive or post", "Of collectives", "Exposed waiting it caused, ms"]
    rows: list[list[Any]] = []
    for name, result in results.items():
        for found in over_steps(result):
            numbers = [found.rank, found.last, found.collectives, milliseconds(found.caused_ns)]
            rows.append([code(name), *numbers])
    return header, rows


def _clocks(results: Mapping[str, Attribution]) -> Rows:
    header = ["Strategy", "Offsets applied", "Residual, µs"]
    rows = [
        [code(name), "yes" if r.clock.applied else "no", Markup(f"{r.clock.residual_ns / 1000:.1f}")]
        for name, r in results.items()
        if r.clock.residual_ns is not None
    ]
    return header, rows


def _levels(results: Mapping[str, Attribution]) -> Rows:
    """Mean over ranks of the share of communication time per evidence level."""
    header = ["Strategy", *(f"By {level.value}" for level in Evidence if level is not Evidence.UNKNOWN), "Unknown"]
    rows: list[list[Any]] = []
    for name, result in results.items():
        found = [rank.evidence_fraction for rank in result.ranks if any(rank.evidence_fraction.values())]
        if found:
            means = [statistics.fmean(levels.get(level, 0.0) for levels in found) for level in Evidence]
            rows.append([code(name), *(percent(mean) + Markup(" %") for mean in means)])
    return header, rows


def _bubbles(results: Mapping[str, Attribution]) -> Rows:
    header = [
        "Strategy",
        "Micro-batches",
        "Measured",
        "Closed form",
        "Imbalance",
        "Communication wait",
        "Overhead",
        "Remark",
    ]

    def share(value: float | None) -> Markup:
        return NONE if value is None else percent(value) + Markup(" %")

    rows: list[list[Any]] = []
    for name, result in results.items():
        for found in result.pipelines:
            remark = found.reason or ("upper bound" if found.upper_bound else "")
            rows.append(
                [
                    code(name),
                    NONE if found.micro_batches is None else found.micro_batches,
                    share(found.measured_fraction),
                    share(found.closed_form_fraction),
                    share(found.imbalance_fraction),
                    share(found.communication_wait_fraction),
                    share(found.overhead_fraction),
                    text(remark) if remark else NONE,
                ]
            )
    return header, rows


def _bandwidth(results: Mapping[str, Attribution]) -> Rows:
    """Median bandwidth per kind, over collectives long enough for the clocks."""
    header = ["Strategy", "Kind", "Collectives", "Median size, MB", "Median transfer, ms", "Bus bandwidth, MB/s"]
    rows: list[list[Any]] = []
    for name, result in results.items():
        for kind in Kind:
            found = [c for c in result.collectives if c.kind is kind and c.busbw_bytes_per_s is not None]
            if found:
                sizes = statistics.median(c.bytes or 0 for c in found) / 1e6
                moving = statistics.median(c.transfer_ns or 0 for c in found)
                speed = statistics.median(c.busbw_bytes_per_s or 0.0 for c in found) / 1e6
                numbers = [Markup(f"{sizes:,.3f}"), milliseconds(moving), Markup(f"{speed:,.0f}")]
                rows.append([code(name), sentence(f"kind.{kind}"), len(found), *numbers])
    return header, rows


def _hta(
    opinions: Mapping[str, SecondOpinion | None],
) -> tuple[Rows, Rows, list[tuple[str, str]], str | None]:
    """(largest difference per quantity, flagged rows, strategies without a second opinion and why, version)."""
    header = ["Strategy", "Quantity", "Rows", "Ours, ms (sum)", "HTA, ms (sum)", "Largest difference, µs", "Flagged"]
    rows: list[list[Any]] = []
    flagged: list[list[Any]] = []
    missing: list[tuple[str, str]] = []
    versions = set()
    for name, opinion in opinions.items():
        if opinion is None or not opinion.available:
            missing.append((name, (opinion.reason if opinion is not None else None) or "not run"))
            continue
        versions.add(opinion.version or "?")
        for quantity in dict.fromkeys(row.quantity for row in opinion.rows):
            found = [row for row in opinion.rows if row.quantity == quantity]
            largest = max(abs(row.difference_ns) for row in found)
            count = sum(row.flagged for row in found)
            ours, theirs = sum(row.ours_ns for row in found), sum(row.hta_ns for row in found)
            numbers = [Markup(f"{value / MS:,.3f}") for value in (ours, theirs)]
            rows.append([code(name), text(quantity), len(found), *numbers, Markup(f"{largest / 1000:,.1f}"), count])
            for row in found:
                if row.flagged:
                    shown = Markup(f"{row.difference_ns / 1000:,.1f}")
                    cause = text(row.cause) if row.cause else Markup("cause not known")
                    flagged.append([code(name), row.rank, text(quantity), shown, cause])
    flagged_header = ["Strategy", "Rank", "Quantity", "Difference, µs", "Cause"]
    return (header, rows), (flagged_header, flagged), missing, ", ".join(sorted(versions)) or None


def _warnings(results: Mapping[str, Attribution]) -> Rows:
    header = ["Strategy", "Rank", "Warning", "Count", "Detail"]
    rows: list[list[Any]] = [
        [code(name), "?" if rank.rank is None else rank.rank, code(found.code), found.count, text(found.detail)]
        for name, result in results.items()
        for rank in result.ranks
        for found in rank.warnings
    ]
    return header, rows
