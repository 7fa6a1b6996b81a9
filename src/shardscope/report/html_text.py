"""The report's Markdown as HTML: the same sentences, whatever they hold, as text.

The catalogues and tables make a small part of Markdown: escaped text, code spans, **strong**, *emphasis* and links to
documents beside the page. Only what is in this list becomes an element, so no text can bring its own.
"""

import html
import re
from collections.abc import Sequence
from typing import Any

from markupsafe import Markup

from shardscope.report.sentences import Language, Sentence

__all__ = ["Speaker", "inline"]

_TOKEN = re.compile(
    r"\\(?P<escaped>[!-/:-@\[-`{-~])"
    r"|`(?P<code>[^`]*)`"
    r"|\[(?P<label>(?:[^\[\]\\]|\\.)*)\]\((?P<target>[^()\s]*)\)"
    r"|(?P<strong>\*\*)|(?P<emphasis>\*)"
    r"|(?P<entity>&(?:amp|lt|gt|#\d{1,7});)"
    r"|(?P<bare>[&<>\"'])"
)
# Documents beside the page, or below its folder.
_TARGET = re.compile(r"(?:[A-Za-z0-9_-][A-Za-z0-9_.-]*/)*[A-Za-z0-9_-][A-Za-z0-9_.-]*\.(?:md|html)")
_NUMBER = re.compile(r"[<≥≤±+−-]? ?\d")
_DASH = ("–", "")
LANGUAGE_TAGS = {"en": "en", "zh": "zh-Hans"}


def inline(markdown: str) -> Markup:
    """One line of the report's Markdown as HTML. Emphasis that is not closed ends with the line."""
    found: list[str] = []
    still_open: list[str] = []
    at = 0
    for match in _TOKEN.finditer(markdown):
        found.append(markdown[at : match.start()])
        found.append(_element(match, still_open))
        at = match.end()
    found.append(markdown[at:])
    found += [f"</{tag}>" for tag in reversed(still_open)]
    return Markup("".join(found))


def _element(match: re.Match[str], still_open: list[str]) -> str:
    kind = match.lastgroup
    if kind in ("strong", "emphasis"):
        tag = "strong" if kind == "strong" else "em"
        if tag in still_open:
            closed = still_open[still_open.index(tag) :]
            del still_open[still_open.index(tag) :]
            return "".join(f"</{inner}>" for inner in reversed(closed))
        still_open.append(tag)
        return f"<{tag}>"
    if kind == "entity":
        return match[0]
    if kind == "target":
        label = inline(match["label"])
        return f'<a href="{match["target"]}">{label}</a>' if _TARGET.fullmatch(match["target"]) else str(label)
    if kind == "code":
        return f"<code>{html.escape(match['code'])}</code>"
    return html.escape(match["escaped"] if kind == "escaped" else match[0])


class Speaker:
    """One language of the page: what summary.md says, as HTML."""

    def __init__(self, language: Language) -> None:
        self._language = language
        self.name = language.name
        self.tag = LANGUAGE_TAGS[language.name]

    def say(self, key: str, **fields: Any) -> Markup:
        """The sentence `key` of the catalogue."""
        return inline(self._language.say_key(key, **fields))

    def line(self, value: Sentence | Markup | str) -> Markup:
        """A sentence or a cell."""
        return inline(self._language.say(value))

    def paragraph(self, values: Sequence[Sentence]) -> Markup:
        """Several sentences."""
        return inline(self._language.sentences(values))

    def title(self, row: Any) -> Markup:
        """What a strategy is called."""
        return inline(self._language.title(row))

    def cell(self, value: Sentence | Markup | str) -> Markup:
        """A table's cell; a change against the baseline is set apart, in the same words."""
        whole = self._language.say(value)
        change = value.fields.get("change") if isinstance(value, Sentence) else None
        if isinstance(value, Sentence) and change is not None and value.key.startswith("cell."):
            key = "cell.change_points" if value.key == "cell.share" else "cell.change_relative"
            figure = self._language.say(Sentence(value.key, {**value.fields, "change": None}))
            words = self._language.say_key(key, change=change)
            if f"{figure}{words}".replace(" ", "") == whole.replace(" ", ""):
                pieces = '<span class="figure">{}</span> <span class="change {}">{}</span>'
                return Markup(pieces).format(inline(figure), change.verdict, inline(words))
        return inline(whole)

    def table(self, found: tuple[Sequence[Any], Sequence[Sequence[Any]]]) -> dict[str, Any]:
        """Header and rows for the template. Each cell: content, class, columns it spans."""
        header, rows = found
        cells = [[self.cell(cell) for cell in row] for row in rows]
        numeric = [_numeric([row[column] for row in cells if column < len(row)]) for column in range(len(header))]
        return {
            "header": [(self.line(cell), "number" if numeric[column] else "") for column, cell in enumerate(header)],
            "rows": [
                self._row(values, [_status(cell) for cell in row], numeric)
                for values, row in zip(cells, rows, strict=True)
            ],
        }

    def _row(self, values: list[Markup], states: list[str], numeric: list[bool]) -> list[tuple[Markup, str, int]]:
        last = max((column for column, value in enumerate(values) if value), default=0)
        found = [
            (value, f"{'number ' if numeric[column] else ''}{states[column]}".strip(), 1)
            for column, value in enumerate(values[: last + 1])
        ]
        if last < len(values) - 1:
            # A reason in place of figures takes their columns.
            found[-1] = (values[last], "reason", len(values) - last)
        return found

    def card(self, markdown: str) -> dict[str, Any]:
        """The benchmark template's report: lines before and after its table, and the table."""
        lines = [line for line in markdown.split("\n") if line.strip()]
        table = [line for line in lines if line.startswith("|")]
        rows = [[inline(cell.strip()) for cell in line.strip("| ").split(" | ")] for line in table]
        at = lines.index(table[0])
        return {
            "before": [inline(line) for line in lines[:at]],
            "header": rows[0],
            "rows": rows[2:],
            "after": [inline(line) for line in lines[at + len(table) :]],
        }


def _numeric(column: list[Markup]) -> bool:
    texts = [Markup(cell).striptags() for cell in column]
    known = [text for text in texts if text not in _DASH]
    return bool(known) and sum(bool(_NUMBER.match(text)) for text in known) * 2 > len(known)


def _status(cell: Any) -> str:
    """The outcome of a constraint, where the cell is one."""
    check = cell.fields.get("check") if isinstance(cell, Sentence) else None
    return str(check.status) if check is not None else ""
