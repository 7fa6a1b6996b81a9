"""The ledger rescaled: what other bandwidths, batches and micro-batch counts would do. Everything here is a prediction.

The parts of the profiled summary step, as shares, are laid on the measured step time. Then
- bandwidth × f: exposed transfer / f; with f < 1 the transfer now hidden under compute stays hidden only as long as it
  does today, so all transfer grows and none of the growth hides;
- batch × k: compute, bubble, waiting and the transfer of activations (every axis but data) × k; gradients, parameters,
  copies and host time stay;
- m′ micro-batches of the same batch: bubble × m / m′, the closed form (p−1)/(m+p−1) of GPipe and 1F1B (Megatron-LM,
  arXiv 2104.04473) at constant work.
"""

import math
from dataclasses import dataclass, replace

from shardscope.selection.claims import LedgerMean, Prediction, Remedy
from shardscope.vocabulary import Axis
from shardscope.workload.spec import WorkloadSpec

__all__ = ["LARGEST_FACTOR", "Scaled", "predictions", "scaled_ledger"]

LARGEST_FACTOR = 64.0  # a prediction further away than this says nothing


@dataclass(frozen=True)
class Scaled:
    """Parts of one strategy's step in ns, on the measured time scale."""

    step: float
    transfer: float  # exposed
    waiting: float
    hidden: float  # transfer under compute
    bubble: float
    fixed: float  # does not grow with the batch
    micro_batches: int
    global_batch: int
    axes_known: bool

    def at_time(self, step: float) -> "Scaled":
        """The same shares on another step time."""
        by = step / self.step
        return replace(
            self,
            step=step,
            transfer=self.transfer * by,
            waiting=self.waiting * by,
            hidden=self.hidden * by,
            bubble=self.bubble * by,
            fixed=self.fixed * by,
        )

    def at_bandwidth(self, factor: float) -> float:
        """The step with transfers `factor` ≥ 1 times as fast."""
        return self.step - self.transfer * (1 - 1 / factor)

    def at_micro_batches(self, count: int) -> float:
        """The step with `count` micro-batches of the same batch."""
        return self.step - self.bubble * (1 - self.micro_batches / count)

    def to_speed(self, factor: float) -> tuple[Remedy, ...]:
        """What would make the step `factor` > 1 times as fast: bandwidth (or its ceiling), micro-batches."""
        saving = self.step * (1 - 1 / factor)
        found: list[Remedy] = []
        if saving < self.transfer and 1 / (1 - saving / self.transfer) <= LARGEST_FACTOR:
            found.append(Remedy(what="bandwidth", value=1 / (1 - saving / self.transfer), predicted=True))
        elif self.transfer > 0:
            reachable = self.step / (self.step - self.transfer)
            found.append(Remedy(what="ceiling", value=reachable, predicted=True))
        if saving < self.bubble:
            count = self.micro_batches_for(1 - saving / self.bubble)
            if count is not None:
                found.append(Remedy(what="micro_batches", value=float(count), predicted=True))
        return tuple(found)

    def to_communication(self, limit: float) -> tuple[Remedy, ...]:
        """The bandwidth at which Σ attributed / step falls to `limit`: (T/f + W) = limit · (step − T + T/f)."""
        room = limit * (self.step - self.transfer) - self.waiting
        if self.transfer <= 0 or limit >= 1:
            return ()
        kept = room / (1 - limit)
        if kept > 0 and self.transfer / kept <= LARGEST_FACTOR:
            return (Remedy(what="bandwidth", value=self.transfer / kept, predicted=True),)
        least = self.waiting / (self.step - self.transfer)
        return (Remedy(what="floor", value=least, predicted=True),)

    def micro_batches_for(self, share: float) -> int | None:
        """The least number of micro-batches that leaves at most `share` of the bubble and divides the batch."""
        least = math.ceil(self.micro_batches / share - 1e-9)
        return next((m for m in range(least, self.global_batch + 1) if self.global_batch % m == 0), None)


def scaled_ledger(ledger: LedgerMean, step_ns: float, spec: WorkloadSpec) -> Scaled | None:
    """Lay the shares of `ledger` on a measured step time. None where transfer and waiting are not told apart."""
    transfer, hidden, waiting = ledger.transfer_ns, ledger.hidden_transfer_ns, ledger.waiting_total_ns
    if transfer is None or hidden is None or waiting is None:
        return None
    data, known = 0.0, True
    for kind, axes in ledger.attributed_by_axis_ns.items():
        whole = sum(axes.values())
        moving = ledger.attributed_ns.get(kind, 0.0) - (ledger.waiting_ns or {}).get(kind, 0.0)
        known = known and not axes.get(Axis.UNKNOWN)
        data += moving * axes.get(Axis.DATA, 0.0) / whole if whole else 0.0
    parts = Scaled(
        step=ledger.step_ns,
        transfer=transfer,
        waiting=waiting,
        hidden=hidden,
        bubble=ledger.bubble_ns or 0.0,
        fixed=ledger.host_ns + ledger.copies_ns + data,
        micro_batches=spec.micro_batches,
        global_batch=spec.global_batch,
        axes_known=known,
    )
    return parts.at_time(step_ns)


def predictions(mine: Scaled, other: Scaled, against: str) -> tuple[Prediction, ...]:
    """Where the order of the two would turn. Call it only when one is faster beyond the noise."""
    behind = mine.step > other.step
    turned = "overtakes" if behind else "overtaken"
    found = []
    for by, factor in (("bandwidth", _bandwidth(mine, other)), ("batch", _batch(mine, other))):
        if factor is not None:
            found.append(Prediction(by=by, against=against, outcome=turned, factor=factor))
    if behind and not any(prediction.by == "bandwidth" for prediction in found):
        still = 1 - other.at_bandwidth(LARGEST_FACTOR) / mine.at_bandwidth(LARGEST_FACTOR)
        found.append(Prediction(by="bandwidth", against=against, outcome="never", factor=LARGEST_FACTOR, behind=still))
    if behind and mine.bubble > other.bubble and mine.micro_batches < mine.global_batch:
        found.append(_micro_batches(mine, other, against))
    return tuple(found)


def _micro_batches(mine: Scaled, other: Scaled, against: str) -> Prediction:
    share = 1 - (mine.step - other.step) / (mine.bubble - other.bubble)
    count = mine.micro_batches_for(share) if share > 0 else None
    if count is not None:
        return Prediction(by="micro_batches", against=against, outcome="overtakes", factor=float(count))
    most = mine.global_batch
    still = 1 - other.at_micro_batches(most) / mine.at_micro_batches(most)
    return Prediction(by="micro_batches", against=against, outcome="never", factor=float(most), behind=still)


def _bandwidth(mine: Scaled, other: Scaled) -> float | None:
    """The factor nearest to 1 at which both steps are equal; y is its inverse."""
    apart = mine.step - other.step
    faster = _root(apart, mine.transfer - other.transfer)
    slower = _root(apart, mine.transfer + mine.hidden - other.transfer - other.hidden)
    found = [1 / y for y in (faster,) if y is not None and 0 < y < 1]
    found += [1 / y for y in (slower,) if y is not None and y > 1]
    return _nearest(found)


def _root(apart: float, slope: float) -> float | None:
    """y with apart + slope · (y − 1) = 0."""
    return None if slope == 0 else 1 - apart / slope


def _batch(mine: Scaled, other: Scaled) -> float | None:
    """k with equal fixed + k · (step − fixed)."""
    if not (mine.axes_known and other.axes_known):
        return None
    slope = (mine.step - mine.fixed) - (other.step - other.fixed)
    if slope == 0:
        return None
    factor = (other.fixed - mine.fixed) / slope
    # A micro-batch has at least one sample.
    return _nearest([factor] if factor * mine.global_batch >= mine.micro_batches else [])


def _nearest(factors: list[float]) -> float | None:
    near = [factor for factor in factors if 1 / LARGEST_FACTOR <= factor <= LARGEST_FACTOR]
    return min(near, key=lambda factor: abs(math.log(factor)), default=None)
