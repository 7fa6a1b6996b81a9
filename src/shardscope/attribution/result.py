"""The machine-readable result of attribution (design: one JSON document per run or per folder of traces).

Times are integer nanoseconds on the analysed clock. `rank` None: unknown. `step` None: the trace has no step marks.
Kinds without time are left out of the per-kind maps. A row's wait and transfer are None where they cannot be known.
"""

import csv
from pathlib import Path

import msgspec

from shardscope.errors import ResultError
from shardscope.records import load_record
from shardscope.vocabulary import Axis, Evidence, Kind

__all__ = [
    "ATTRIBUTION_FILE",
    "COLLECTIVES_FILE",
    "HTA_FILE",
    "INTERVALS_FILE",
    "LEDGER_FILE",
    "MICRO_BATCHES_FILE",
    "Attribution",
    "BubblePhases",
    "Calls",
    "Clock",
    "Collective",
    "GroupTotal",
    "HostCause",
    "HtaRow",
    "PipelineBubble",
    "RankResult",
    "SecondOpinion",
    "SkippedFile",
    "StepRow",
    "Straggler",
    "Warn",
    "load_attribution",
    "read_table",
]

SCHEMA_VERSION = 1
# The files of an attribution's folder.
ATTRIBUTION_FILE = "attribution.json"
LEDGER_FILE = "ledger.csv"
COLLECTIVES_FILE = "collectives.csv"
INTERVALS_FILE = "intervals.csv"
MICRO_BATCHES_FILE = "micro_batches.csv"
HTA_FILE = "hta.json"
KindNs = dict[Kind, int]


class _Result(msgspec.Struct, kw_only=True):
    pass


class Warn(_Result, kw_only=True):
    """Something repaired or left out, counted."""

    code: str
    count: int
    detail: str


class BubblePhases(_Result, kw_only=True):
    """Bubble before, between and after the rank's own first and last micro-batch compute."""

    before: int = 0
    between: int = 0
    after: int = 0


class Calls(_Result, kw_only=True):
    """Communication events seen in one step of one rank, by kind, axis and group."""

    kind: Kind
    axis: Axis
    group: tuple[int, ...] | None
    count: int
    bytes: int | None  # sum of S, None where the trace and sidecar do not say


class HostCause(_Result, kw_only=True):
    """What a conspicuous host_other mainly is.

    `cause`: "data_loading", "late_launch", "held", "no_launch_record", "autograd_entries", "annotation", "python".
    """

    cause: str
    fraction: float  # of host_other
    annotation: str | None = None  # the name, where cause is "annotation"


class StepRow(_Result, kw_only=True):
    """One ledger row: window = compute + Σ attributed + copies_exposed + (bubble or 0) + host_other, exactly."""

    step: int | None
    start_ns: int
    window_ns: int
    complete: bool
    compute_ns: int
    busy_ns: KindNs
    exposed_ns: KindNs
    overlapped_ns: KindNs
    attributed_ns: KindNs
    attributed_by_axis_ns: dict[Axis, int]
    # kind → axis → ns: the same attributed time split both ways
    attributed_by_kind_axis_ns: dict[Kind, dict[Axis, int]]
    wait_ns: KindNs | None
    transfer_ns: KindNs | None
    exposed_wait_ns: KindNs | None
    exposed_transfer_ns: KindNs | None
    attributed_wait_ns: KindNs | None  # the waiting part of attributed_ns
    bounds: bool
    copies_exposed_ns: int
    bubble_ns: int | None
    bubble_phase_ns: BubblePhases | None
    host_other_ns: int
    data_loading_ns: int
    not_launched_ns: int | None
    queued_ns: int | None
    late_device_ns: int
    foreign_device_ns: int
    calls: list[Calls]
    flags: list[str]  # e.g. "host time 14 % of the step: 27 % of it dispatch in autograd entries"
    outlier: bool = False
    host_cause: HostCause | None = None  # only where host_other exceeds a tenth of the step

    @property
    def total_ns(self) -> int:
        """What the parts add up to; equals window_ns or the row is wrong."""
        parts = self.compute_ns + sum(self.attributed_ns.values()) + self.copies_exposed_ns
        return parts + (self.bubble_ns or 0) + self.host_other_ns


class GroupTotal(_Result, kw_only=True):
    """Communication of one process group on one rank in the summary step."""

    ranks: tuple[int, ...] | None
    name: str
    axis: Axis
    busy_ns: KindNs
    attributed_ns: KindNs


class RankResult(_Result, kw_only=True):
    """All rows of one rank."""

    rank: int | None
    files: list[str]
    device: str
    world_size: int | None
    warnings: list[Warn]
    evidence_fraction: dict[Evidence, float]
    steps: list[StepRow]
    groups: list[GroupTotal]
    # which device, where one process used several; each has its own entry then, all with the process's rank
    device_index: int | msgspec.UnsetType = msgspec.UNSET


class Collective(_Result, kw_only=True):
    """One collective (or send/receive pair) matched across ranks. Maps are keyed by rank as text."""

    step: int | None
    kind: Kind
    group: tuple[int, ...] | None
    axis: Axis
    matched_by: str
    bytes: int | None
    arrival_ns: dict[str, int]
    wait_ns: dict[str, int] | None
    exposed_wait_ns: dict[str, int] | None
    transfer_ns: int | None
    last_rank: int | None
    exact: bool
    algbw_bytes_per_s: float | None = None
    busbw_bytes_per_s: float | None = None


class PipelineBubble(_Result, kw_only=True):
    """The bubble of one pipeline in the summary step beside its closed form."""

    ranks: tuple[int, ...]
    micro_batches: int | None
    makespan_ns: int | None
    measured_fraction: float | None  # mean over ranks of bubble/(Z − A)
    closed_form_fraction: float | None
    fraction_by_rank: dict[str, float] = {}
    imbalance_fraction: float | None = None  # part of measured − closed form due to unequal stages
    communication_wait_fraction: float | None = None
    overhead_fraction: float | None = None
    upper_bound: bool = False
    reason: str | None = None  # why it is not measurable


class Clock(_Result, kw_only=True):
    """Clock alignment across ranks; nothing below the residual is claimed."""

    applied: bool
    offset_ns: dict[str, int]
    residual_ns: int | None


class SkippedFile(_Result, kw_only=True):
    """A file that was left out, and why."""

    file: str
    reason: str


class Straggler(_Result, kw_only=True):
    """One rank in one step: how often it was the last to arrive (a message: to post), of how many it took part in.

    caused_ns: the exposed waiting of the others for it, each moment of each rank counted once.
    """

    step: int | None
    rank: int
    last: int
    collectives: int
    caused_ns: int


class Attribution(_Result, kw_only=True, dict=True):
    """Everything `shardscope attribute --format json` prints.

    A result fresh from analysis also carries what it was computed from (attribution.api.analysis_of); a loaded one not.
    """

    schema: int = SCHEMA_VERSION
    summary_step: int | None = None
    ranks: list[RankResult]
    collectives: list[Collective]
    pipelines: list[PipelineBubble]
    clock: Clock
    missing_ranks: list[int]
    skipped_files: list[SkippedFile]
    stragglers: list[Straggler] = []


class HtaRow(_Result, kw_only=True):
    """One quantity of one rank as we and HolisticTraceAnalysis compute it over the same steps."""

    rank: int
    quantity: str
    ours_ns: float
    hta_ns: float
    difference_ns: float
    flagged: bool  # differs by more than 1 µs
    cause: str | None


class SecondOpinion(_Result, kw_only=True):
    """HolisticTraceAnalysis on the same run. A difference is flagged; it does not block."""

    available: bool
    reason: str | None
    version: str | None
    rows: list[HtaRow]


def read_table(path: Path) -> list[dict[str, str]]:
    """Rows of one of an attribution's CSV tables. Raises ResultError when it cannot be read."""
    try:
        with path.open(encoding="utf-8", newline="") as stream:
            return list(csv.DictReader(stream, strict=True))
    except (OSError, ValueError, csv.Error) as error:
        raise ResultError(f"{path}: cannot be read ({error}); attribute the run again") from error


def load_attribution(path: Path) -> Attribution:
    """Read an attribution document. Raises ResultError when it is missing or of another schema."""
    return load_record(
        path, Attribution, schema=SCHEMA_VERSION, called="an attribution", remedy="attribute the run again"
    )
