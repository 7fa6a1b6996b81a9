"""The tables of an attribution: attribution.json, ledger.csv, collectives.csv, intervals.csv, hta.json.

micro_batches.csv besides, where a pipeline's micro-batches are marked.
"""

import csv
import io
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from shardscope import beside
from shardscope.attribution.analysis import analysis_of
from shardscope.attribution.micro_batches import HEADER, micro_batch_rows
from shardscope.attribution.partition import partition
from shardscope.attribution.result import (
    ATTRIBUTION_FILE,
    COLLECTIVES_FILE,
    HTA_FILE,
    INTERVALS_FILE,
    LEDGER_FILE,
    MICRO_BATCHES_FILE,
    Attribution,
    Collective,
    RankResult,
    SecondOpinion,
    StepRow,
)
from shardscope.errors import ResultError, cannot_write
from shardscope.vocabulary import Axis, Kind

__all__ = ["as_json", "ledger_csv", "write_tables"]

_UNKNOWN = ""  # an empty cell: not known, as opposed to 0


def write_tables(result: Attribution, folder: Path, second_opinion: SecondOpinion | None = None) -> None:
    """Write all tables into `folder`, which appears whole or not at all.

    `result` comes fresh from analysis; a loaded one does not know its intervals. Raises ResultError for that, and when
    the folder cannot be written.
    """
    folder = Path(folder)
    try:
        fresh = beside.new_folder(folder)
    except OSError as error:
        raise ResultError(cannot_write(folder, error)) from error
    try:
        (fresh / ATTRIBUTION_FILE).write_bytes(as_json(result))
        (fresh / LEDGER_FILE).write_text(ledger_csv(result), encoding="utf-8")
        (fresh / COLLECTIVES_FILE).write_text(_collectives_csv(result.collectives), encoding="utf-8")
        (fresh / INTERVALS_FILE).write_text(_intervals_csv(result), encoding="utf-8")
        if micro_batches := list(micro_batch_rows(analysis_of(result))):
            (fresh / MICRO_BATCHES_FILE).write_text(_csv(HEADER, micro_batches), encoding="utf-8")
        if second_opinion is not None:
            (fresh / HTA_FILE).write_bytes(msgspec.json.format(msgspec.json.encode(second_opinion), indent=1))
        fresh.chmod(0o755)
        beside.put_in_place(fresh, folder)
    except OSError as error:
        raise ResultError(cannot_write(folder, error)) from error
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def as_json(result: Attribution) -> bytes:
    """The machine-readable result, indented. Intervals are a table of their own."""
    return msgspec.json.format(msgspec.json.encode(result), indent=1) + b"\n"


def ledger_csv(result: Attribution) -> str:
    """One line per rank and step. Empty cells: not known."""
    kinds = list(Kind)
    header = ["rank", "step", "is_summary_step", "start_ns", "window_ns", "compute_ns"]
    for what in ("attributed", "busy", "exposed", "wait", "transfer", "exposed_wait", "exposed_transfer"):
        header += [f"{what}_{kind}_ns" for kind in kinds]
    header += [f"attributed_axis_{axis}_ns" for axis in Axis]
    header += ["copies_exposed_ns", "bubble_ns", "bubble_before_ns", "bubble_between_ns", "bubble_after_ns"]
    header += [
        "host_other_ns",
        "data_loading_ns",
        "not_launched_ns",
        "queued_ns",
        "late_device_ns",
        "foreign_device_ns",
    ]
    header += ["bounds", "outlier", "flags", "device_index"]
    lines = (
        [*_head(rank.rank, row, result), *_ledger_cells(row), _device(rank)]
        for rank in result.ranks
        for row in rank.steps
    )
    return _csv(header, lines)


def _device(rank: RankResult) -> int | None:
    """Which device, where one process used several."""
    return None if rank.device_index is msgspec.UNSET else rank.device_index


def _head(rank: int | None, row: StepRow, result: Attribution) -> list[Any]:
    return [rank, row.step, row.step == result.summary_step]


def _ledger_cells(row: StepRow) -> Iterable[Any]:
    yield from (row.start_ns, row.window_ns, row.compute_ns)
    maps = (row.attributed_ns, row.busy_ns, row.exposed_ns)
    for values in (*maps, row.wait_ns, row.transfer_ns, row.exposed_wait_ns, row.exposed_transfer_ns):
        yield from ((None if values is None else values.get(kind, 0)) for kind in Kind)
    yield from (row.attributed_by_axis_ns.get(axis, 0) for axis in Axis)
    phases = row.bubble_phase_ns
    yield from (row.copies_exposed_ns, row.bubble_ns)
    yield from ((phases.before, phases.between, phases.after) if phases else (None, None, None))
    yield from (row.host_other_ns, row.data_loading_ns, row.not_launched_ns, row.queued_ns)
    yield from (row.late_device_ns, row.foreign_device_ns, row.bounds, row.outlier, "; ".join(row.flags))


def _collectives_csv(collectives: Sequence[Collective]) -> str:
    header = [
        "number", "step", "kind", "axis", "group", "matched_by", "bytes", "rank", "arrival_ns", "wait_ns",
        "exposed_wait_ns", "transfer_ns", "last_rank", "exact", "algbw_bytes_per_s", "busbw_bytes_per_s",
    ]  # fmt: skip
    lines = []
    for number, item in enumerate(collectives):
        group = " ".join(map(str, item.group)) if item.group else None
        for rank, arrival in item.arrival_ns.items():
            lines.append([
                number, item.step, item.kind, item.axis, group, item.matched_by, item.bytes, rank, arrival,
                (item.wait_ns or {}).get(rank), (item.exposed_wait_ns or {}).get(rank), item.transfer_ns,
                item.last_rank, item.exact, item.algbw_bytes_per_s, item.busbw_bytes_per_s,
            ])  # fmt: skip
    return _csv(header, lines)


def _intervals_csv(result: Attribution) -> str:
    """The summary step of every rank, of its busiest device, filled without gap (attribution.partition)."""
    analysis = analysis_of(result)
    lines = []
    for key, view in sorted(analysis.views.items()):
        part = analysis.parts.get((key, result.summary_step))
        if part is not None and not view.secondary:
            lines += [
                [view.rank, result.summary_step, piece.category, piece.start, piece.end] for piece in partition(part)
            ]
    return _csv(["rank", "step", "category", "start_ns", "end_ns"], lines)


def _csv(header: Sequence[str], lines: Iterable[Iterable[Any]]) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(header)
    for line in lines:
        writer.writerow(
            [_UNKNOWN if cell is None else str(cell).lower() if isinstance(cell, bool) else cell for cell in line]
        )
    return out.getvalue()
