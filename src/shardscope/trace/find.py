"""From paths to one timeline per rank: which files are traces, and whose."""

import os
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardscope.errors import RankError, TraceError
from shardscope.trace.cycles import are_cycles, join
from shardscope.trace.parallel import read_all
from shardscope.trace.table import Timeline, integer

__all__ = [
    "LARGEST_WORLD",
    "Found",
    "assign_ranks",
    "collect",
    "load_files",
    "plausible_world",
    "rank_of",
    "rank_of_name",
    "world_size_of",
]

LARGEST_WORLD = 1 << 20  # ranks; the largest jobs have a tenth of it

_SUFFIXES = (".json", ".json.gz")
_RECORD = "run.json"  # marks a folder as one of our own runs
_NOT_TRACES = (_RECORD, "expected.json", "attribution.json", "decision.json", "hta.json", "memory_snapshot.json")
_MOST_NAMES = 12
_MOST_FILES = 4
_DEEPEST = 3  # torchtitan: profile_trace/iteration_10/rank0_trace.json
# torchtitan, vLLM: rank0_trace.json; Megatron-LM, HTA: …rank-3…, rank_3; TensorBoard, DeepSpeed: worker0.…, r0-….;
# Accelerate: profile_0.json; SGLang: …-TP-0.trace.json.gz.
_NAMES = (
    re.compile(r"(?:^|[^a-z])rank[-_.]?(\d{1,7})(?!\d)", re.IGNORECASE),
    re.compile(r"(?:^|[^a-z])worker[-_.]?(\d{1,7})(?!\d)", re.IGNORECASE),
    re.compile(r"^r(\d{1,7})[-_.]", re.IGNORECASE),
    re.compile(r"^profile_(\d{1,7})\.json"),
    re.compile(r"-TP-(\d{1,7})\.trace\.json"),
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
    files, skipped = collect(paths)
    return assign_ranks(read_all(files, salvage=salvage), skipped, ranks)


def assign_ranks(
    timelines: Sequence[Timeline], skipped: list[tuple[Path, str]], ranks: Mapping[Path, int] | None = None
) -> Found:
    """Whose the timelines are; those that say no rank, while others do, are added to `skipped`. Raises RankError."""
    explicit = {path.resolve(): rank for path, rank in (ranks or {}).items()}
    owned = [(rank_of(timeline, explicit), timeline) for timeline in timelines]
    if len(owned) == 1:
        return Found(owned, skipped)
    if all(rank is None for rank, _ in owned):
        raise RankError(
            f"{timelines[0].path.parent}: none of {len(timelines)} files says which rank it is; "
            "give each with --rank FILE=N, or analyse one file at a time"
        )
    for rank, timeline in owned:
        if rank is None:
            skipped.append((timeline.path, "says no rank, neither inside nor in its name"))
    return Found(_one_per_rank([(rank, timeline) for rank, timeline in owned if rank is not None]), skipped)


def collect(paths: Sequence[Path]) -> tuple[list[Path], list[tuple[Path, str]]]:
    """The trace files under the paths, and what was passed over with the reason.

    A folder gives the traces in it; one without any gives those of its folders. Raises TraceError when there is none,
    RankError for a folder of several runs.
    """
    files: list[Path] = []
    skipped: list[tuple[Path, str]] = []
    for path in paths:
        if path.is_dir():
            files += _in_folder(path, skipped, _DEEPEST)
        elif path.exists():
            files.append(path)
        else:
            raise TraceError(f"{path}: no such file or folder")
    if not files:
        names = ", ".join(str(path) for path in paths)
        raise TraceError(f"{names}: no trace files (.json or .json.gz) there")
    return list(dict.fromkeys(files)), skipped


def _in_folder(folder: Path, skipped: list[tuple[Path, str]], depth: int) -> list[Path]:
    try:
        entries = sorted(folder.iterdir())
    except OSError as error:
        raise TraceError(f"{folder}: cannot be read ({error.strerror})") from error
    files = []
    for file in entries:
        if file.name.endswith(".tmp"):
            skipped.append((file, "unfinished: still a temporary file"))
        elif file.is_file() and file.name.endswith(_SUFFIXES) and file.name not in _NOT_TRACES:
            files.append(file)
    if files or not depth:
        return files
    inner = [entry for entry in entries if entry.is_dir() and not entry.is_symlink() and entry.name[0] != "."]
    runs = [entry.name for entry in inner if (entry / _RECORD).is_file()]
    if len(runs) > 1:
        raise RankError(_several_runs(folder, runs))
    return [file for entry in inner for file in _in_folder(entry, skipped, depth - 1)]


def rank_of(timeline: Timeline, explicit: Mapping[Path, int]) -> int | None:
    """The rank a file belongs to: as given (by resolved path), as it says inside, as its name says."""
    given = explicit.get(timeline.path.resolve())
    if given is not None:
        return given
    inside = integer(_info(timeline).get("rank"))
    return inside if inside >= 0 else rank_of_name(timeline.path.name)


def _one_per_rank(owned: list[tuple[int, Timeline]]) -> list[tuple[int | None, Timeline]]:
    by_rank: dict[int, list[Timeline]] = defaultdict(list)
    for rank, timeline in owned:
        by_rank[rank].append(timeline)
    result: list[tuple[int | None, Timeline]] = []
    everything = [timeline for _, timeline in owned]
    for rank, timelines in sorted(by_rank.items()):
        if len(timelines) > 1 and not are_cycles(timelines):
            raise RankError(_contradiction(rank, timelines, everything))
        result.append((rank, join(timelines)))
    return result


def _contradiction(rank: int, timelines: Sequence[Timeline], everything: Sequence[Timeline]) -> str:
    """Why files that claim one rank cannot be used together: other runs, other jobs, or copies."""
    paths = [timeline.path for timeline in timelines]
    said_by_name = not any(_info(timeline) for timeline in timelines)
    runs = _run_folders([timeline.path for timeline in everything])
    if not said_by_name and runs is not None and len({runs[1][path] for path in paths}) == len(paths):
        return _several_runs(runs[0], sorted(set(runs[1].values())))
    together = len({path.name for path in paths}) == len(paths)
    shown = [path.name if together else str(path) for path in paths]
    names = _listed([*shown[:_MOST_FILES], f"{len(shown) - _MOST_FILES} more"] if len(shown) > _MOST_FILES else shown)
    claim = "both claim" if len(paths) == 2 else "all claim"
    sizes = {size for timeline in timelines if (size := world_size_of(timeline)) is not None}
    if len(sizes) > 1:
        worlds = _listed([str(size) for size in sorted(sizes)])
        return f"{names} {claim} rank {rank}, in worlds of {worlds} ranks; these are different jobs, analyse them apart"
    hint = " (names may count the ranks of each node)" if said_by_name else ""
    where = f"{paths[0].parent}: " if together else ""
    return f"{where}{names} {claim} rank {rank}{hint}; keep one, or say --rank FILE=N"


def _run_folders(paths: Sequence[Path]) -> tuple[Path, dict[Path, str]] | None:
    """(the folder above all files, by file the folder in it that holds the file); None where a file lies in it itself,
    or where it is no folder that anybody would name."""
    if len({path.is_absolute() for path in paths}) != 1:
        return None
    above = Path(os.path.commonpath(paths))
    inside = {path: path.relative_to(above).parts for path in paths}
    if above == Path("/") or any(len(parts) < 2 for parts in inside.values()):
        return None
    return above, {path: parts[0] for path, parts in inside.items()}


def _listed(names: Sequence[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _several_runs(folder: Path, names: Sequence[str]) -> str:
    shown = ", ".join(names[:_MOST_NAMES]) + (", …" if len(names) > _MOST_NAMES else "")
    return f"{folder}: contains {len(names)} runs ({shown}); name one, such as {folder / names[0]}"


def _info(timeline: Timeline) -> dict[str, Any]:
    info = timeline.metadata.get("distributedInfo")
    return info if isinstance(info, dict) else {}


def world_size_of(timeline: Timeline) -> int | None:
    """The number of ranks of the job, where the file states it."""
    return plausible_world(_info(timeline).get("world_size"))


def plausible_world(stated: Any) -> int | None:
    """A stated number of ranks as a positive int; None for what no job has, which would be counted to for hours."""
    size = integer(stated)
    return size if 0 < size <= LARGEST_WORLD else None
