"""Write the report: both summaries, the evidence and the figures, all of them or none."""

import csv
import io
import re
import shutil
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from shardscope.errors import ResultError
from shardscope.report import tables
from shardscope.report.evidence import render_evidence
from shardscope.report.figures import Bar, step_bars
from shardscope.report.sentences import LANGUAGES, Language
from shardscope.report.summary import render_summaries
from shardscope.selection.decision import Decision, load

__all__ = ["render"]

FILES = {"en": "summary.md", "zh": "summary.zh.md"}
EVIDENCE = "evidence.md"
FIGURES = "figures"


def render(
    decision_files: Sequence[Path],
    attribution_folders: Iterable[Path],
    output_dir: Path,
    *,
    imported: Sequence[str] = (),
) -> None:
    """Write summary.md, summary.zh.md, evidence.md and figures/ into `output_dir`.

    `attribution_folders`: …/<workload>/<strategy>, with the tables that the evidence shows. The first decision is the
    answer at the top. Everything is rendered before anything is written. Without any decision, but with `imported`
    runs, all three documents say that nothing was measured and where the reports on those are. Raises ResultError for
    results that are missing or contradict each other.
    """
    if imported and not decision_files:
        _publish(_nothing(imported), {}, output_dir)
        return
    decisions = [load(path) for path in decision_files]
    names = [decision.workload.name for decision in decisions]
    if not decisions or len(set(names)) != len(names):
        raise ResultError(f"report: needs one decision per workload, not {', '.join(names) or 'none'}")
    folders = {(folder.parent.name, folder.name): folder for folder in attribution_folders}
    languages = [Language(name) for name in LANGUAGES]
    links, files = _figures(decisions, languages[0])
    summaries, left_out = render_summaries(decisions, links, languages)
    documents = {FILES[name]: text for name, text in summaries.items()}
    documents[EVIDENCE] = render_evidence(decisions, folders, languages[0], links, left_out)
    _publish(documents, files, output_dir)


def _nothing(imported: Sequence[str]) -> dict[str, str]:
    """Document name → text, where the configuration names no workload."""
    found = {}
    for name in LANGUAGES:
        suffix = FILES[name].removeprefix("summary")
        found[FILES[name]] = Language(name).render("nothing.md.j2", imported=imported, suffix=suffix)
    return {**found, EVIDENCE: found[FILES["en"]]}


def _figures(decisions: Sequence[Decision], language: Language) -> tuple[dict[str, str], dict[str, str]]:
    """(workload → link, file name → content): one drawing per workload and its numbers as CSV beside it."""
    links: dict[str, str] = {}
    files: dict[str, str] = {}
    for decision in decisions:
        bars = tables.bars(decision)
        stem = f"step-time-{re.sub(r'[^A-Za-z0-9._-]+', '_', decision.workload.name)}"
        while f"{stem}.svg" in files:
            stem += "_"
        links[decision.workload.name] = f"{FIGURES}/{stem}.svg"
        if not bars:
            continue
        labels = {part: str(language.say_key(f"part.{part}")) for part, _ in bars[0].parts}
        files[f"{stem}.svg"] = step_bars(
            bars,
            labels,
            title=f"Step time of {decision.workload.name} by strategy",
            axis="one step, ms",
            description=_description(bars, labels),
        )
        files[f"{stem}.csv"] = _numbers(bars)
    return links, files


def _description(bars: Sequence[Bar], labels: dict[str, str]) -> str:
    """The drawing in words."""
    lines = []
    for bar in bars:
        parts = ", ".join(f"{labels[part]} {ms:.1f}" for part, ms in bar.parts if ms > 0)
        lines.append(f"{bar.name}: {bar.step:.1f} ms = {parts}.")
    return " ".join(lines)


def _numbers(bars: Sequence[Bar]) -> str:
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(["strategy", "step_ms", *(f"{part}_ms" for part, _ in bars[0].parts)])
    for bar in bars:
        writer.writerow([bar.name, f"{bar.step:.1f}", *(f"{ms:.1f}" for _, ms in bar.parts)])
    return stream.getvalue()


def _publish(documents: dict[str, str], figures: dict[str, str], output_dir: Path) -> None:
    """Write beside, then swap: figures first, the summary last, so that a summary never links to what is not there."""
    output_dir.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=".report.", dir=output_dir))
    try:
        new = work / FIGURES
        new.mkdir()
        new.chmod(0o755)
        for name, content in figures.items():
            (new / name).write_text(content, encoding="utf-8")
        for name, content in documents.items():
            (work / name).write_text(content, encoding="utf-8")
        old = output_dir / FIGURES
        if old.exists():
            old.rename(work / "earlier")
        new.rename(old)
        for name in sorted(documents, reverse=True):
            (work / name).replace(output_dir / name)
    except OSError as error:
        raise ResultError(f"{output_dir}: the report cannot be written there ({error.strerror})") from error
    finally:
        shutil.rmtree(work, ignore_errors=True)
