"""The diagnosis for a terminal."""

from collections import defaultdict
from collections.abc import Sequence

from shardscope.attribution.doctor import Diagnosis, FileReport, Group
from shardscope.attribution.words import counted, duration, printable, ranks_text
from shardscope.vocabulary import Axis

__all__ = ["as_text", "refusals"]

_SOURCES = {
    "inside": "says the file itself",
    "name": "by its name",
    "given": "as given",
    "record": "by run.json",
    "nothing": "",
}
_AXES = {
    "name": "by its name",
    "record": "by run.json",
    "traffic": "by its ranks and traffic",
    "unused": "carries nothing in these traces",
    "nothing": "axis unknown",
}
_ONE = {"copies": "copy"}
_MOST_GROUPS = 12


def as_text(diagnosis: Diagnosis) -> str:
    """One block per readable file, then what holds for all."""
    lines: list[str] = []
    for report in diagnosis.files:
        lines += [*_file(report), ""]
    for heading, body in (
        ("LEFT OUT", [f"{item.file}: {item.reason}" for item in diagnosis.left_out]),
        ("NO TRACE OF", [ranks_text([str(r) for r in diagnosis.missing_ranks])] if diagnosis.missing_ranks else []),
        ("NOTICED", [f"{item.detail} ({item.code} × {item.count})" for item in diagnosis.remarks]),
        ("CANNOT BE SAID", [f"{item.what}: {item.why}" for item in diagnosis.unsaid]),
    ):
        if body:
            lines += [heading, *(f"  {line}" for line in body), ""]
    if diagnosis.analysable:
        lines.append("These files can be analysed: shardscope attribute with the same arguments gives the numbers.")
    return "\n".join(printable(line) for line in lines).strip("\n") + "\n"


def refusals(diagnosis: Diagnosis) -> list[str]:
    """One line per file that cannot be analysed."""
    return [printable(f"{item.file}: {item.reason}") for item in diagnosis.refused]


def _file(report: FileReport) -> list[str]:
    rank = "rank unknown" if report.rank is None else f"rank {report.rank} ({_SOURCES[report.rank_from]})"
    world = "" if report.world_size is None else f" of {report.world_size}"
    size = f"{report.bytes / 1e6:.1f} MB" if report.bytes >= 1e5 else f"{report.bytes / 1e3:.1f} kB"
    devices = f", devices {', '.join(map(str, report.devices))}" if len(report.devices) > 1 else ""
    lines = [
        report.file,
        f"  {rank}{world}, {report.device}{devices}, {duration(report.span_ns)} recorded, "
        f"{size}{' compressed' if report.compressed else ''}",
        f"  {'step' if len(report.steps) == 1 else 'steps'}: {_steps(report.steps)}",
        f"  used: {_counts(report.events)}",
    ]
    if report.ignored:
        lines.append(f"  not counted as time: {_ignored(report.ignored)}")
    groups = _groups(report.groups)
    if len(groups) > _MOST_GROUPS:
        groups[_MOST_GROUPS:] = [f"{len(groups) - _MOST_GROUPS} more"]
    if groups:
        lines.append(f"  process groups: {'; '.join(groups)}")
    repaired = [f"{item.count} × {item.detail}" for item in report.repairs]
    lines += [f"  repaired: {text}" for text in repaired]
    if report.cut:
        lines.append(f"  salvaged: {report.cut}")
    return lines


def _steps(numbers: list[int]) -> str:
    if not numbers:
        return "not marked"
    if len(numbers) > 1 and numbers == list(range(numbers[0], numbers[-1] + 1)):
        return f"{numbers[0]} to {numbers[-1]}"
    return ", ".join(map(str, numbers[:20])) + (f" and {len(numbers) - 20} more" if len(numbers) > 20 else "")


def _groups(groups: Sequence[Group]) -> list[str]:
    """Each group with its axis and what tells it; groups of the same ranks that say the same stand together."""
    together: dict[tuple[object, ...], list[str]] = defaultdict(list)
    for place, group in enumerate(groups):
        same = group.ranks if group.axis_from != "name" and group.ranks is not None else place
        together[same, group.axis, group.axis_from, group.size].append(group.name)
    lines = []
    for (_, axis, source, size), names in together.items():
        told = _AXES[str(source)] if axis is Axis.UNKNOWN else f"{axis} ({_AXES[str(source)]})"
        ranks = "of unknown size" if not isinstance(size, int) else counted(size, "rank")
        lines.append(f"{', '.join(names)}: {told}, {'the same ' if len(names) > 1 else ''}{ranks}")
    return lines


def _ignored(counts: dict[str, int]) -> str:
    first = True
    parts = []
    for name, count in counts.items():
        events = counted(count, "event") if first else f"{count:,}"
        parts.append(f"{events} of category {name}" if name else f"{events} without category")
        first = False
    return ", ".join(parts)


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(counted(count, _ONE.get(name, name.removesuffix("s")), name) for name, count in counts.items())
