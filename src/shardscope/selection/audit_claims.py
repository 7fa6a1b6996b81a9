"""What the audit claims: expected against seen, who is to blame, volumes, and the bytes that the kernel counted."""

import msgspec

from shardscope.vocabulary import Axis, Kind

__all__ = ["AuditRow", "Claim", "Suspect", "Volume", "WireCheck"]


class Claim(msgspec.Struct, kw_only=True, frozen=True):
    """Base of everything that is claimed."""


class Suspect(Claim, kw_only=True, frozen=True):
    """What a difference between plan and calls comes from, as far as order, sizes and shapes tell.

    cause: "split" (`what` went out tensor by tensor, each `times` times), "shared_input" (matrices that read one input
    each reduce its gradient), "more" (`what` more often), "fewer" (`what` less often), "resized" (`what` with
    `each_bytes` per call), "tensors" (of the size of parameters that the plan does not send), "other_kind" (of the size
    of `what`, which the plan sends by another kind of collective), "unknown".
    """

    cause: str
    rank: int
    count: int  # calls too many, or too few
    each_bytes: int
    what: str | None = None  # lines of the plan
    times: int | None = None
    per: str | None = None  # the count is a multiple of: "layer and micro-batch", "micro-batch", "layer"
    per_count: int | None = None
    phase: str | None = None  # "forward", "backward", "after backward"
    parameters: tuple[str, ...] = ()
    exact: bool = False  # the parameters' sizes add up to what was sent; otherwise they are those of that size


class AuditRow(Claim, kw_only=True, frozen=True):
    """Collectives of one step that the plan expects against those seen, per rank, for one kind and axis."""

    kind: Kind
    axis: Axis
    expected_count: tuple[int, ...]  # by rank
    seen_count: tuple[int, ...]
    expected_bytes: tuple[int, ...]
    seen_bytes: tuple[int | None, ...]
    agrees: bool
    detail: str | None  # where they disagree
    suspects: tuple[Suspect, ...] = ()  # what is to blame for it


class Volume(Claim, kw_only=True, frozen=True):
    """Bytes per step of one kind and axis.

    payload: Σ S over the collectives. backend and nccl: sent by all ranks together, by this backend's algorithm and by
    NCCL's rings.
    """

    kind: Kind
    axis: Axis
    count: int
    payload_bytes: int
    backend_bytes: float | None  # None: this backend's algorithm is not known
    nccl_bytes: float


class WireCheck(Claim, kw_only=True, frozen=True):
    """Bytes of one step on the loopback: as this backend's algorithms send, as the kernel counted, and of others."""

    expected_bytes: float
    counted_bytes: float
    other_bytes: float  # what an idle stretch of the same length would carry
    difference: float  # counted ÷ expected − 1
    verdict: str
