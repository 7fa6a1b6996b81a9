"""What the node model claims, as parts of decision.json. Seconds, bytes, fractions; None: not known, never zero."""

from typing import Literal

import msgspec

__all__ = ["Flip", "Link", "Machine", "Missing", "NodePrediction", "NodeReport", "NodeTable", "SelfCheck"]


# What is not known, so that nothing can be predicted: keys of report/catalogue/node_reasons.*.toml.
Missing = Literal["flops", "peak", "transfers", "messages"]


class _Claim(msgspec.Struct, kw_only=True, frozen=True):
    pass


class Link(_Claim, kw_only=True, frozen=True):
    """base: seconds per collective call; alpha: seconds per step of a ring; bytes_per_s: of one rank, one direction."""

    base_s: float
    alpha_s: float
    bytes_per_s: float


class Machine(_Claim, kw_only=True, frozen=True):
    """Hardware as the model sees it. sources: figure → document that publishes it; assumed: what none does, as keys.

    gpu: part of the name of its device. measured: figures that were measured here, on such a device.
    """

    name: str
    title: str
    backend: str  # whose algorithms move the bytes: "nccl", "gloo"
    nodes: int
    devices: int  # per node
    peak_flops: dict[str, float]  # dtype → FLOP/s of one device
    efficiency: float  # share of the peak that the matrix products of a step reach
    memory_bytes: float
    memory_bytes_per_s: float | None  # None: not measured, its traffic is within the efficiency
    memory_share: float = 1.0
    link: Link | None = None  # within a node; None: no transfer was ever seen
    link_share: float = 1.0
    network: Link | None = None  # between nodes
    network_links: int = 1  # adapters per node
    launch_s: float = 0.0  # host time per kernel
    call_s: float = 0.0  # host time per communication call that nothing hides
    hides: bool = True  # transfers run beside compute; not where both need the same cores
    sources: dict[str, str] = {}
    assumed: tuple[str, ...] = ()
    gpu: str | None = None
    measured: tuple[str, ...] = ()


class NodePrediction(_Claim, kw_only=True, frozen=True):
    """One strategy on one machine, per training step. step = compute + transfer + bubble (+ overhead of calls)."""

    name: str
    reason: str | None = None  # why there is no plan, in the strategy's own words
    missing: Missing | None = None  # or what else keeps it from being predicted
    memory_bytes: float | None = None  # fullest device
    fits: bool | None = None
    step_s: float | None = None
    compute_s: float | None = None  # busiest device, optimizer included
    transfer_s: float | None = None  # exposed
    hidden_s: float | None = None  # transfer under compute
    bubble_s: float | None = None  # of the mean stage
    overhead_s: float | None = None
    tokens_per_s: float | None = None
    launch_bound: bool = False  # the host cannot launch kernels as fast as they run
    simulated: bool = False  # the pipeline's schedule was played out; otherwise its closed form is used


class SelfCheck(_Claim, kw_only=True, frozen=True):
    """One strategy predicted for the machine it was measured on, and what was measured. Seconds and bytes.

    `calibration`: the efficiency comes from this run, so its step is no test. `own_transfers`: the link's figures
    come from this strategy's own transfers, for lack of others.
    """

    predicted: NodePrediction
    calibration: bool
    own_transfers: bool
    step_s: float
    transfer_s: float | None
    bubble_s: float | None
    memory_bytes: float | None


class Flip(_Claim, kw_only=True, frozen=True):
    """`first` is faster than `second` as measured here, and slower as predicted there.

    ratio: predicted throughput of second ÷ first there. error: the factor by which the model misses the ratio of these
    two here. `claimed`: the ratio there is further from 1 than that.
    """

    first: str
    second: str
    ratio: float
    error: float
    claimed: bool


class NodeTable(_Claim, kw_only=True, frozen=True):
    """All strategies on one machine. `devices`: ranks that are used, the most at which most strategies apply."""

    machine: Machine
    devices: int
    rows: tuple[NodePrediction, ...]
    first: str | None  # the fastest that fits
    near: tuple[str, ...] = ()  # slower than it by less than the model misses the ratio of the two here
    flips: tuple[Flip, ...] = ()


class NodeReport(_Claim, kw_only=True, frozen=True):
    """The second table: this machine, measured and predicted by the same model, and named hardware, predicted."""

    here: Machine
    checks: tuple[SelfCheck, ...]
    step_error: float | None  # median |error| of the step times that were no calibration
    memory_error: float | None
    transfer_error: float | None = None  # median |error| of the exposed transfers
    fastest: str | None  # here, as measured
    nodes: tuple[NodeTable, ...]
    calibration: str | None  # the run that gave the efficiency
    samples: int  # transfers that gave the link's figures
