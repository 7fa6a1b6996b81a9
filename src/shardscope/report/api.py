"""Write the report: summaries, evidence, predictions for named nodes, page and figures, all of them or none."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from shardscope.attribution.result import Attribution
from shardscope.errors import ResultError
from shardscope.report.attributions import attributions
from shardscope.report.conditions import swept
from shardscope.report.evidence import render_evidence
from shardscope.report.figure_set import FigureSet, figure_set, stem_of
from shardscope.report.html_page import render_nothing, render_page
from shardscope.report.node import FILES as NODE_FILES
from shardscope.report.node import render_node
from shardscope.report.publish import publish
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
        publish(_nothing(imported), {}, FIGURES, output_dir)
        return
    decisions = [load(path) for path in decision_files]
    names = [decision.workload.name for decision in decisions]
    if not decisions or len(set(names)) != len(names):
        raise ResultError(f"report: needs one decision per workload, not {', '.join(names) or 'none'}")
    folders = {(folder.parent.name, folder.name): folder for folder in attribution_folders}
    languages = [Language(name) for name in LANGUAGES]
    results = {decision.workload.name: attributions(decision, folders) for decision in decisions}
    figures = _figures(decisions, folders, results, languages)
    links = {name: f"{FIGURES}/step-time-{found.stem}.svg" for name, found in figures.items()}
    files: dict[str, str] = {}
    for found in figures.values():
        for drawing in found.drawings:
            files |= {f"{drawing.stem}.svg": drawing.svg, f"{drawing.stem}.csv": drawing.csv}
    summaries, left_out = render_summaries(decisions, links, languages)
    documents = {FILES[name]: text for name, text in summaries.items()}
    documents[EVIDENCE] = render_evidence(decisions, folders, results, languages[0], links, left_out)
    documents |= {NODE_FILES[language.name]: render_node(decisions, language) for language in languages}
    # Made on demand, so no input of this stage: shown when it is there.
    conditions = swept(output_dir / "data" / "conditions.json", decisions, languages)
    documents[PAGE] = render_page(decisions, figures, languages, conditions)
    publish(documents, files, FIGURES, output_dir)


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
    decisions: Sequence[Decision],
    folders: Mapping[tuple[str, str], Path],
    results: Mapping[str, Mapping[str, Attribution]],
    languages: Sequence[Language],
) -> dict[str, FigureSet]:
    """Workload → its drawings, each with a file name of its own."""
    found: dict[str, FigureSet] = {}
    for decision in decisions:
        stem = stem_of(decision.workload.name, {earlier.stem for earlier in found.values()})
        name = decision.workload.name
        found[name] = figure_set(decision, folders, results[name], stem, languages)
    return found
