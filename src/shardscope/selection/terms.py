"""The closed vocabularies of selection, and the constraints a user sets."""

from enum import StrEnum

import msgspec

__all__ = ["REFERENCE", "Basis", "CheckStatus", "Constraint", "Constraints", "Standing", "Verdict"]

REFERENCE = "single"  # the strategy that parity is measured against and that does not parallelise


class Verdict(StrEnum):
    """What may be said about a difference."""

    BETTER = "better"
    WORSE = "worse"
    WITHIN_NOISE = "within_noise"
    NOT_JUDGED = "not_judged"


class Basis(StrEnum):
    """How the two sides of a difference were measured."""

    PAIRED = "paired"  # in turn, in the same processes
    VIA_BASELINE = "via_baseline"  # each paired with the same baseline in its own job
    SEPARATE_JOBS = "separate_jobs"  # drift between the jobs is not cancelled
    RESIDUE = "residue"  # two peaks, each with its residue as error
    PROFILED_STEPS = "profiled_steps"  # over the profiled steps of two jobs


class Standing(StrEnum):
    """Whether a strategy can be recommended, and if not, why."""

    ELIGIBLE = "eligible"
    REFERENCE = "reference"  # one process: what parity and scaling are measured against
    NOT_APPLICABLE = "not_applicable"
    OUT_OF_MEMORY = "out_of_memory"
    FAILED = "failed"
    DISQUALIFIED = "disqualified"  # its gradients or losses are wrong
    INCOMPARABLE = "incomparable"  # measured with another number of ranks, or on another kind of device


class Constraint(StrEnum):
    """The names of the constraints, as in the configuration."""

    MEMORY = "memory_cap_mb"
    THROUGHPUT = "min_throughput_tokens_per_s"
    STEP_TIME = "max_step_time_ms"
    LATENCY = "max_request_latency_ms"
    COMMUNICATION = "max_communication_fraction"
    CONVERGENCE = "require_convergence"


class CheckStatus(StrEnum):
    """Outcome of one constraint."""

    PASSED = "passed"
    FAILED = "failed"
    NOT_JUDGED = "not_judged"


class Constraints(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """What a strategy must satisfy to be recommended. None: no limit. MB is 10⁶ bytes.

    Raises ValueError for limits that nothing could be measured against.
    """

    memory_cap_mb: float | None = None  # peak of any rank
    min_throughput_tokens_per_s: float | None = None
    max_step_time_ms: float | None = None  # median
    max_request_latency_ms: float | None = None  # median
    max_communication_fraction: float | None = None  # Σ attributed / step
    require_convergence: bool = True

    def __post_init__(self) -> None:
        for field in ("memory_cap_mb", "min_throughput_tokens_per_s", "max_step_time_ms", "max_request_latency_ms"):
            value = getattr(self, field)
            if value is not None and not 0 < value < float("inf"):
                raise ValueError(f"constraints.{field} must be a positive number, not {value}")
        share = self.max_communication_fraction
        if share is not None and not 0 <= share <= 1:
            raise ValueError(f"constraints.max_communication_fraction must lie between 0 and 1, not {share}")
