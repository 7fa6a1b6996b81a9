"""How to measure: the `measure` section of the configuration. Torch-free."""

from typing import Literal

import msgspec

__all__ = ["MeasureSettings"]


class MeasureSettings(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """Raises ValueError for values that cannot give a result."""

    world_size: int | Literal["auto"] = "auto"  # resolved inside the job, so it never triggers reruns
    triples: int = 25  # A B A' steps
    warmup_steps: int = 3
    requests: int = 60  # request latency samples
    loss_steps: int = 12  # K: losses compared with `single`
    profiled_steps: int = 3
    timeout_s: int = 900  # a whole job
    rate_mbit: float | None = None  # emulate a link: all ranks together send at most this much, 10⁶ bit/s

    def __post_init__(self) -> None:
        if self.world_size != "auto" and self.world_size < 1:
            raise ValueError(f"measure.world_size must be auto or at least 1, not {self.world_size}")
        if self.rate_mbit is not None and not 1 <= self.rate_mbit <= 1e6:
            raise ValueError(f"measure.rate_mbit must lie between 1 and 1000000 (Mbit/s), not {self.rate_mbit}")
        for field, least in (
            ("triples", 3),
            ("warmup_steps", 1),
            ("requests", 3),
            ("loss_steps", 4),
            ("profiled_steps", 1),
            ("timeout_s", 10),
        ):
            if getattr(self, field) < least:
                raise ValueError(f"measure.{field} must be at least {least}, not {getattr(self, field)}")
