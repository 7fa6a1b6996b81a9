"""From paths to one timeline per rank: which files are traces, and whose."""

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from shardscope.errors import RankError, TraceError
from shardscope.trace.cycles import are_cycles, join
from shardscope.trace.read import read_timeline
from shardscope.trace.table import Timeline, integer

__all__ = ["Found", "load_files", "rank_of_name"]

_SUFFIXES = (".json", ".json.gz")
_NOT_TRACES = ("run.json", "expected.json", "attribution.json", "decision.json", "hta.json", "memory_snapshot.json")
# torchtitan: rank0_trace.json; Megatron and HTA: …rank-3…, rank_3; TensorBoard and DeepSpeed: worker0.…, r0-….
_NAMES = (
    re.compile(r"(?:^|[^a-z])rank[-_.]?(\d{1,7})(?!\d)", re.IGNORECASE),
    re.compile(r"(?:^|[^a-z])worker[-_.]?(\d{1,7})(?!\d)", re.IGNORECASE),
    re.compile(r"^r(\d{1,7})[-_.]", re.IGNORECASE),
)


@dataclass
class Found:
    """(rank or None, timeline) per rank, and the files that were left out with the reason."""

    timelines: list[tuple[int | None, Timeline]]
    skipped: list[tuple[Path, str]]


def rank_of_name(name: str) -> int | None:
    """The rank a file name states, by the conventions of the usual producers."""
    for pattern in _NAMES:
        found = pattern.search(name)
        if found:
            return int(found[1])
    return None


def load_files(paths: Sequence[Path], *, salvage: bool = False, ranks: Mapping[Path, int] | None = None) -> Found:
    """Read all traces under the paths and find out whose they are.

    A single unreadable file is an error; among several it is an error too, since numbers of the others would look
    whole. Raises RankError when two files claim one rank, or no file of several says its rank.
    """
    files, skipped = _collect(paths)
    if not files:
        names = ", ".join(str(path) for path in paths)
        raise TraceError(f"{names}: no trace files (.json or .json.gz) there")
    explicit = {path.resolve(): rank for path, rank in (ranks or {}).items()}
    timelines = [read_timeline(path, salvage=salvage) for path in files]
    owned = [(_rank_of(timeline, explicit), timeline) for timeline in timelines]
    if len(owned) == 1:
        return Found(owned, skipped)
    if all(rank is None for rank, _ in owned):
        raise RankError(
            f"{files[0].parent}: none of {len(files)} files says which rank it is; "
            "give each with --rank FILE=N, or analyse one file at a time"
        )
    for rank, timeline in owned:
        if rank is None:
            skipped.append((timeline.path, "says no rank, neither inside nor in its name"))
    return Found(_one_per_rank([(rank, timeline) for rank, timeline in owned if rank is not None]), skipped)


def _collect(paths: Sequence[Path]) -> tuple[list[Path], list[tuple[Path, str]]]:
    files: list[Path] = []
    skipped: list[tuple[Path, str]] = []
    for path in paths:
        if path.is_dir():
            for file in sorted(path.iterdir()):
                if file.name.endswith(".tmp"):
                    skipped.append((file, "unfinished: still a temporary file"))
                elif file.is_file() and file.name.endswith(_SUFFIXES) and file.name not in _NOT_TRACES:
                    files.append(file)
        elif path.exists():
            files.append(path)
        else:
            raise TraceError(f"{path}: no such file or folder")
    return list(dict.fromkeys(files)), skipped


def _rank_of(timeline: Timeline, explicit: Mapping[Path, int]) -> int | None:
    given = explicit.get(timeline.path.resolve())
    if given is not None:
        return given
    info = timeline.metadata.get("distributedInfo")
    inside = integer(info.get("rank")) if isinstance(info, dict) else -1
    return inside if inside >= 0 else rank_of_name(timeline.path.name)


def _one_per_rank(owned: list[tuple[int, Timeline]]) -> list[tuple[int | None, Timeline]]:
    by_rank: dict[int, list[Timeline]] = defaultdict(list)
    for rank, timeline in owned:
        by_rank[rank].append(timeline)
    result: list[tuple[int | None, Timeline]] = []
    for rank, timelines in sorted(by_rank.items()):
        if len(timelines) > 1 and not are_cycles(timelines):
            names = " and ".join(timeline.path.name for timeline in timelines)
            raise RankError(
                f"{timelines[0].path.parent}: {names} both claim rank {rank}; keep one, or say --rank FILE=N"
            )
        result.append((rank, join(timelines)))
    return result
