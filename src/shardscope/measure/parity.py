"""Does a strategy compute the same as `single`? Gradients at step 0 and losses over K steps."""

import math
import sys
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from shardscope.measure.record import NOT_FINITE, Parity

__all__ = ["TOLERANCES", "gradient_errors", "judge", "loss_error"]

# fp32: strategies.md, "Gate before ranking". bfloat16 keeps 8 bits: sums in another order differ by a few roundings.
TOLERANCES: Mapping[str, float] = {"float32": 1e-5, "bfloat16": 5e-2}

_SMALL = 1e-4  # below this share of a typical gradient a difference is rounding (a key bias has gradient 0)

Gradient = npt.NDArray[np.floating]


def gradient_errors(
    found: Iterable[tuple[str, Gradient | None]], reference: Mapping[str, Gradient]
) -> dict[str, float]:
    """Error per parameter: ‖g − g_ref‖ / max(‖g_ref‖, 10⁻⁴ · ‖all g_ref‖ / √(number of parameter tensors)).

    Formula: strategies.md, "Traps". A gradient that is missing, has another shape or is not finite, and a parameter
    that `single` does not have, have error infinity. `found` is consumed one tensor at a time.
    """
    norms = {name: _norm(gradient) for name, gradient in reference.items()}
    everything = math.sqrt(sum(norm * norm for norm in norms.values()))
    floor = _SMALL * everything / math.sqrt(max(1, len(reference)))
    errors = dict.fromkeys(reference, math.inf)
    for name, gradient in found:
        expected = reference.get(name)
        if gradient is None or expected is None or gradient.shape != expected.shape:
            errors[name] = math.inf
            continue
        distance = _norm(gradient.astype(np.float64) - expected.astype(np.float64))
        scale = max(norms[name], floor)
        error = distance / scale if scale > 0 else (0.0 if distance == 0 else math.inf)
        errors[name] = error if math.isfinite(error) else math.inf
    return errors


def loss_error(losses: Sequence[float], reference: Sequence[float]) -> float:
    """Largest |loss − reference| / |reference| over the steps; infinity if lengths differ or a loss is not finite."""
    if len(losses) != len(reference) or not losses:
        return math.inf
    worst = 0.0
    for loss, expected in zip(losses, reference, strict=True):
        if not (math.isfinite(loss) and math.isfinite(expected)):
            return math.inf
        worst = max(worst, abs(loss - expected) / max(abs(expected), sys.float_info.min))
    return worst


def judge(errors: Mapping[str, float], losses: Sequence[float], reference: Sequence[float], dtype: str) -> Parity:
    """The verdict. Infinite errors are stored as record.NOT_FINITE."""
    worst = max(errors, key=lambda name: errors[name])
    tolerance = TOLERANCES[dtype]
    by_loss = loss_error(losses, reference)
    return Parity(
        tolerance=tolerance,
        gradient_error=min(errors[worst], NOT_FINITE),
        worst_parameter=worst,
        loss_error=min(by_loss, NOT_FINITE),
        loss_steps=len(reference),
        passed=errors[worst] <= tolerance and by_loss <= tolerance,
    )


def _norm(values: Gradient) -> float:
    return float(np.linalg.norm(values.astype(np.float64).ravel()))
