"""The diagnosis for a terminal."""

from shardscope.attribution.doctor import Diagnosis, FileReport
from shardscope.attribution.text import duration, printable, ranks_text

__all__ = ["as_text", "refusals"]

_SOURCES = {"inside": "says the file itself", "name": "by its name", "given": "as given", "nothing": ""}
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
        lines.append("These files can be analysed: shardscope attribute with the same paths gives the numbers.")
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
        f"  steps: {_steps(report.steps)}",
        f"  used: {_counts(report.events)}",
    ]
    if report.ignored:
        lines.append(f"  never time: {_counts(report.ignored)}")
    groups = [f"{group.name}: {group.axis}, {group.size or '?'} ranks" for group in report.groups[:_MOST_GROUPS]]
    if len(report.groups) > _MOST_GROUPS:
        groups.append(f"{len(report.groups) - _MOST_GROUPS} more")
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


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {name or 'without category'}" for name, count in counts.items())
