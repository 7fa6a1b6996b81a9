"""The closed vocabularies that every stage shares. Order matters where a docstring says so."""

from enum import StrEnum

__all__ = ["Axis", "Evidence", "Kind", "Status"]


class Kind(StrEnum):
    """Kinds of communication. The order decides who gets left-over nanoseconds (attribution rule 4)."""

    ALL_REDUCE = "all_reduce"
    ALL_GATHER = "all_gather"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_TO_ALL = "all_to_all"
    BROADCAST = "broadcast"
    SEND_RECEIVE = "send_receive"
    OTHER = "other"
    UNKNOWN = "unknown"


class Axis(StrEnum):
    """The dimension of parallelism that a process group serves."""

    DATA = "data"
    TENSOR = "tensor"
    PIPELINE = "pipeline"
    SEQUENCE = "sequence"
    EXPERT = "expert"
    UNKNOWN = "unknown"


class Evidence(StrEnum):
    """What told the kind of a communication event, strongest first."""

    METADATA = "metadata"
    OP = "op"
    NAME = "name"
    UNKNOWN = "unknown"


class Status(StrEnum):
    """How the measurement of one strategy ended."""

    OK = "ok"
    NOT_APPLICABLE = "not_applicable"
    OUT_OF_MEMORY = "out_of_memory"
    FAILED = "failed"
