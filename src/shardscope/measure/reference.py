"""`single`'s gradients at step 0 and K losses, computed once per workload: one .npz file without pickle."""

import os
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from shardscope.errors import MeasurementError
from shardscope.measure.disk import writing
from shardscope.measure.parity import Gradient
from shardscope.workload.spec import WorkloadSpec

__all__ = ["Reference", "load_reference", "save_reference"]

_GRADIENT = "gradient/"


@dataclass(frozen=True)
class Reference:
    """gradients: by the plain model's parameter names, at step 0. losses: K values, step 0 first."""

    spec: WorkloadSpec
    gradients: dict[str, Gradient]
    losses: tuple[float, ...]


def save_reference(path: Path, reference: Reference) -> None:
    """Write `reference` whole or not at all. Raises MeasurementError."""
    with writing(path):
        handle, part = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with writing(path), os.fdopen(handle, "wb") as stream:
            np.savez(
                stream,
                allow_pickle=False,
                spec=np.frombuffer(msgspec.json.encode(reference.spec), dtype=np.uint8),
                losses=np.array(reference.losses, dtype=np.float64),
                **{_GRADIENT + name: gradient for name, gradient in reference.gradients.items()},
            )
        Path(part).chmod(0o644)
        Path(part).replace(path)
    except BaseException:
        Path(part).unlink(missing_ok=True)
        raise


def load_reference(path: Path, spec: WorkloadSpec, loss_steps: int) -> Reference:
    """Read the reference of `spec`.

    Raises MeasurementError when the file is missing, damaged, of another workload, or holds fewer than `loss_steps`
    losses (more are cut off).
    """
    try:
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as arrays:
            found = msgspec.json.decode(arrays["spec"].tobytes(), type=WorkloadSpec)
            losses = tuple(float(loss) for loss in arrays["losses"])
            names = [name for name in arrays.files if name.startswith(_GRADIENT)]
            gradients = {name.removeprefix(_GRADIENT): arrays[name] for name in names}
    except (OSError, ValueError, KeyError, zipfile.BadZipFile, msgspec.MsgspecError) as error:
        raise MeasurementError(f"{path}: not a usable reference ({error}); delete it and make it again") from error
    if found != spec:
        raise MeasurementError(f"{path}: made for another definition of workload {spec.name}; delete it, make it again")
    if len(losses) < loss_steps or not gradients:
        raise MeasurementError(
            f"{path}: holds {len(losses)} losses and {len(gradients)} gradients, {loss_steps} losses are wanted; "
            "delete it and make it again"
        )
    return Reference(spec=spec, gradients=gradients, losses=losses[:loss_steps])
