"""Digests of the package files that a stage depends on: the workflow reruns what an edit touches and no more."""

import hashlib
from collections.abc import Iterable
from pathlib import Path

from shardscope import strategies
from shardscope.workload.source import source_files
from shardscope.workload.spec import WorkloadSpec

__all__ = ["digest", "measuring_digest", "stage_digest"]

PACKAGE = Path(__file__).resolve().parent
SHARED = ("errors.py", "records.py", "vocabulary.py")


def digest(paths: Iterable[Path]) -> str:
    """Hexadecimal digest of names (relative to the package) and contents; the order of `paths` does not matter."""
    total = hashlib.sha256()
    for path in sorted(set(paths)):
        total.update(str(path.relative_to(PACKAGE)).encode() + b"\0")
        total.update(hashlib.sha256(path.read_bytes()).digest())
    return total.hexdigest()[:16]


def stage_digest(*folders: str) -> str:
    """Digest of whole stages: every file under the named folders, plus what all stages share."""
    return digest([*_files(*folders), *(PACKAGE / name for name in SHARED)])


def measuring_digest(*names: str, workload: WorkloadSpec | None = None) -> str:
    """Digest of measure/, workload/, the files of the named strategies and the workload's own model, nothing else.

    Adding a strategy or editing the report therefore never measures again. Raises ConfigError where the model's module
    is not found.
    """
    own = [path for name in names for path in strategies.source_files(name)]
    inside = digest([*_files("measure", "workload"), *own])
    model = source_files(workload) if workload is not None else ()
    if not model:
        return inside
    total = hashlib.sha256(inside.encode())
    for name, path in model:
        total.update(name.encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    return total.hexdigest()[:16]


def _files(*folders: str) -> list[Path]:
    return [
        path
        for folder in folders
        for path in (PACKAGE / folder).rglob("*")
        if path.is_file() and path.suffix not in (".pyc", ".pyo")
    ]
