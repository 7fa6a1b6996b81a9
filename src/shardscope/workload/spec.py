"""The one spec of everything that a comparison holds fixed (sizes, data, batch, optimizer, seed). Torch-free."""

import math
import re

import msgspec

__all__ = ["WorkloadSpec"]

_BUILDER = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*", re.ASCII)


class WorkloadSpec(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """A decoder-only transformer, or the user's own model of tokens, trained on bytes of text.

    Every strategy processes the same `micro_batches` micro-batches of `global_batch / micro_batches` samples per step:
    pipelines stream them, tensor parallelism accumulates over them, data-parallel ranks take 1/n of each.
    Raises ValueError for sizes that cannot work together.
    """

    name: str
    layers: int
    hidden: int
    heads: int
    sequence_length: int
    global_batch: int  # samples per step, all ranks together
    micro_batches: int  # per step (m)
    vocabulary: int = 256  # bytes
    mlp_ratio: int = 4
    dtype: str = "float32"
    learning_rate: float = 3e-4  # at 1e-3 rounding alone drives correct losses 1e-5 apart within 16 steps
    weight_decay: float = 0.01
    seed: int = 1234
    data: str | None = None  # a text file; None: the Python standard library's sources
    model: str | None = None  # "package.module:builder" (workload/protocol.py); None: the built-in transformer
    model_path: str | None = None  # folder searched for it before the Python path; None: the working folder
    model_options: dict[str, bool | int | float | str] = {}  # for the builder of `model`
    recompute: bool = False  # each block's activations again in backward, instead of keeping them

    def __post_init__(self) -> None:
        for field in ("layers", "hidden", "heads", "sequence_length", "global_batch", "micro_batches", "mlp_ratio"):
            if getattr(self, field) < 1:
                raise ValueError(f"workload {self.name}: {field} must be at least 1, not {getattr(self, field)}")
        if self.hidden % self.heads:
            raise ValueError(f"workload {self.name}: hidden {self.hidden} is not a multiple of heads {self.heads}")
        if self.global_batch % self.micro_batches:
            raise ValueError(
                f"workload {self.name}: global_batch {self.global_batch} is not a multiple of "
                f"micro_batches {self.micro_batches}"
            )
        if self.vocabulary < 256:
            raise ValueError(f"workload {self.name}: vocabulary {self.vocabulary} cannot hold all 256 byte values")
        for field in ("learning_rate", "weight_decay"):
            if not math.isfinite(getattr(self, field)):
                raise ValueError(f"workload {self.name}: {field} must be a finite number, not {getattr(self, field)}")
        if not 0 <= self.seed < 2**63:
            raise ValueError(f"workload {self.name}: seed must lie between 0 and 2^63 - 1, not {self.seed}")
        if self.model is not None and not _BUILDER.fullmatch(self.model):
            raise ValueError(
                f"workload {self.name}: model {self.model!r} does not name a builder; write package.module:builder"
            )
        if self.model is None and (self.model_options or self.model_path is not None):
            raise ValueError(f"workload {self.name}: model_options and model_path belong to a `model`; name one")
        for key, value in self.model_options.items():
            if isinstance(value, float) and not math.isfinite(value):
                raise ValueError(f"workload {self.name}: model_options.{key} must be finite, not {value}")
        if self.dtype not in ("float32", "bfloat16"):
            raise ValueError(f"workload {self.name}: dtype {self.dtype!r} is not one of float32, bfloat16")

    @property
    def micro_batch_size(self) -> int:
        """Samples per micro-batch, all data-parallel ranks together."""
        return self.global_batch // self.micro_batches

    @property
    def tokens_per_step(self) -> int:
        """Tokens per training step, all ranks together."""
        return self.global_batch * self.sequence_length
