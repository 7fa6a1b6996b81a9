"""Training text as bytes, and deterministic batches of it. Torch is imported only where a batch is made."""

from __future__ import annotations

import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from shardscope.errors import ConfigError
from shardscope.workload.spec import WorkloadSpec

if TYPE_CHECKING:
    import torch

__all__ = ["batch", "load_corpus"]

# Tests and third-party packages differ from installation to installation; the rest is the same for one Python version.
_SKIPPED = frozenset({"site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3", "__pycache__"})


def load_corpus(spec: WorkloadSpec) -> bytes:
    """The file that the spec names, or the Python standard library's sources in a fixed order.

    Raises ConfigError when there is nothing to read or less than one sample of it.
    """
    corpus = _standard_library() if spec.data is None else _user_file(spec)
    if len(corpus) < spec.sequence_length + 2:
        source = spec.data or "the standard library"
        raise ConfigError(
            f"workload {spec.name}: data {source} has {len(corpus)} bytes, one sample needs "
            f"{spec.sequence_length + 2}; name a longer text file"
        )
    return corpus


def _user_file(spec: WorkloadSpec) -> bytes:
    path = Path(str(spec.data)).expanduser()
    try:
        return path.read_bytes()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ConfigError(
            f"workload {spec.name}: data file {path} cannot be read ({reason}); correct `data` or leave it out"
        ) from error


def _standard_library() -> bytes:
    root = Path(sysconfig.get_paths()["stdlib"])
    files = (
        path
        for path in root.rglob("*.py")
        if not _SKIPPED.intersection(path.relative_to(root).parts) and not path.is_symlink()
    )
    texts = [path.read_bytes() for path in sorted(files, key=lambda path: path.relative_to(root).as_posix())]
    if not texts:
        raise ConfigError(f"no Python sources under {root} to train on; name a text file as the workload's `data`")
    return b"\n".join(texts)


def batch(spec: WorkloadSpec, corpus: bytes, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and targets of training step `step`: int64 [global_batch, sequence_length] each, targets one byte on.

    The same on every rank: positions come from the seed and the step alone.
    """
    import torch

    length = spec.sequence_length
    starts = np.random.default_rng((spec.seed, step)).integers(0, len(corpus) - length, size=spec.global_batch)
    view = np.frombuffer(corpus, dtype=np.uint8)
    windows = torch.from_numpy(view[starts[:, None] + np.arange(length + 1)].astype(np.int64))
    return windows[:, :-1].contiguous(), windows[:, 1:].contiguous()
