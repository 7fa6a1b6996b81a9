"""Write the report: both summaries, the evidence, the page and the figures, all of them or none."""

import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from shardscope import beside
from shardscope.errors import ResultError, cannot_write
from shardscope.report.evidence import render_evidence
from shardscope.report.figure_set import FigureSet, figure_set, stem_of
from shardscope.report.html_page import render_nothing, render_page
from shardscope.report.node import FILES as NODE_FILES
from shardscope.report.node import render_node
from shardscope.report.sentences import LANGUAGES, Language
from shardscope.report.summary import render_summaries
from shardscope.selection.decision import Decision, load

__all__ = ["render"]

FILES = {"en": "summary.md", "zh": "summary.zh.md"}
EVIDENCE = "evidence.md"
PAGE = "summary.html"
FIGURES = "figures"


def render(
    decision_files: Sequence[Path],
    attribution_folders: Iterable[Path],
    output_dir: Path,
    *,
    imported: Sequence[str] = (),
) -> None:
    """Write summary.md, summary.zh.md, evidence.md, node.md, node.zh.md, summary.html and figures/ into `output_dir`.

    `attribution_folders`: …/<workload>/<strategy>, with the tables that the evidence shows. The first decision is the
    answer at the top. Everything is rendered before anything is written. Without any decision, but with `imported`
    runs, all documents say that nothing was measured and where the reports on those are. Raises ResultError for
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
    figures = _figures(decisions, folders, languages)
    links = {name: f"{FIGURES}/step-time-{found.stem}.svg" for name, found in figures.items()}
    files: dict[str, str] = {}
    for found in figures.values():
        for drawing in found.drawings:
            files |= {f"{drawing.stem}.svg": drawing.svg, f"{drawing.stem}.csv": drawing.csv}
    summaries, left_out = render_summaries(decisions, links, languages)
    documents = {FILES[name]: text for name, text in summaries.items()}
    documents[EVIDENCE] = render_evidence(decisions, folders, languages[0], links, left_out)
    documents |= {NODE_FILES[language.name]: render_node(decisions, language) for language in languages}
    documents[PAGE] = render_page(decisions, figures, languages)
    _publish(documents, files, output_dir)


def _nothing(imported: Sequence[str]) -> dict[str, str]:
    """Document name → text, where the configuration names no workload."""
    found = {}
    for name in LANGUAGES:
        suffix = FILES[name].removeprefix("summary")
        found[FILES[name]] = Language(name).render("nothing.md.j2", imported=imported, suffix=suffix)
    page = render_nothing(imported, [Language(name) for name in LANGUAGES])
    nodes = {NODE_FILES[name]: found[FILES[name]] for name in LANGUAGES}
    return {**found, **nodes, EVIDENCE: found[FILES["en"]], PAGE: page}


def _figures(
    decisions: Sequence[Decision], folders: Mapping[tuple[str, str], Path], languages: Sequence[Language]
) -> dict[str, FigureSet]:
    """Workload → its drawings, each with a file name of its own."""
    found: dict[str, FigureSet] = {}
    for decision in decisions:
        stem = stem_of(decision.workload.name, {earlier.stem for earlier in found.values()})
        found[decision.workload.name] = figure_set(decision, folders, stem, languages)
    return found


def _publish(documents: dict[str, str], figures: dict[str, str], output_dir: Path) -> None:
    """Write beside, then swap: figures first, the summary last, so that a summary never links to what is not there."""
    try:
        work = beside.new_folder(output_dir / "report")
    except OSError as error:
        raise ResultError(cannot_write(output_dir, error)) from error
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
        raise ResultError(cannot_write(output_dir, error)) from error
    finally:
        shutil.rmtree(work, ignore_errors=True)
