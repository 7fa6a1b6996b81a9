"""Sentences as data, and the two catalogues that put them into words.

Contexts say *what* is true as Sentence(key, fields); `catalogue/<language>.toml` holds one Jinja template per key. Both
languages get the same fields, so they cannot say different numbers. Nothing reaches a document unescaped: whatever is
not Markup is escaped as it is printed, and a bare float is refused, because it lacks a unit and a number of digits.
"""

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any

import jinja2
from markupsafe import Markup

from shardscope.report.markdown import FILTERS, code, text

__all__ = ["LANGUAGES", "Language", "Sentence", "catalogue"]

LANGUAGES = ("en", "zh")
_CHINESE = re.compile(r"[\u4e00-\u9fff]")
_BEFORE = re.compile(r"([\u4e00-\u9fff])([A-Za-z0-9±])")
_AFTER = re.compile(r"([A-Za-z0-9%])([\u4e00-\u9fff])")
_CODE = re.compile(r"(`[^`]*`)")


@dataclass(frozen=True)
class Sentence:
    """One statement: a key of the catalogue and the numbers and names it is made of."""

    key: str
    fields: Mapping[str, Any] = field(default_factory=dict)


def sentence(key: str, **fields: Any) -> Sentence:
    """Shorthand for Sentence(key, fields)."""
    return Sentence(key, fields)


@cache
def catalogue(language: str) -> dict[str, str]:
    """Key → sentence template. Nested tables of the TOML files become dotted keys."""
    found: dict[str, str] = {}

    def flatten(prefix: str, table: Mapping[str, Any]) -> None:
        for key, value in table.items():
            if isinstance(value, dict):
                flatten(f"{prefix}{key}.", value)
            else:
                found[f"{prefix}{key}"] = value

    # One file per document and language; titles.*.toml holds names, no sentences.
    for path in sorted((resources.files("shardscope.report") / "catalogue").iterdir(), key=lambda path: path.name):
        own = path.name == f"{language}.toml" or path.name.endswith(f".{language}.toml")
        if own and not path.name.startswith("titles."):
            flatten("", tomllib.loads(path.read_text(encoding="utf-8")))
    return found


@cache
def _titles(language: str) -> dict[str, str]:
    """Strategy name → what it is called in `language`, where that differs from its own display name."""
    path = resources.files("shardscope.report") / "catalogue" / f"titles.{language}.toml"
    return tomllib.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


class Language:
    """Says sentences in one language and renders whole documents with them."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._sentences = catalogue(name)
        self._compiled: dict[str, jinja2.Template] = {}
        self.environment = jinja2.Environment(
            loader=jinja2.PackageLoader("shardscope.report", "templates"),
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            keep_trailing_newline=True,
            autoescape=False,
            finalize=_printed,
        )
        self.environment.filters |= {
            **FILTERS,
            "say": self.say,
            "sentences": self.sentences,
            "names": self.names,
            "listed": self.listed,
            "title": self.title,
            "parts": self.parts,
            "plus": self.plus,
            "table": self.table,
            "raw": Markup,
        }
        self.environment.globals["say"] = self.say_key
        self.environment.globals["language"] = name
        self.environment.globals["gap"] = Markup(" " if name == "en" else "")  # between a colon and what follows

    def say(self, value: Any) -> Markup:
        """A Sentence in words; Markup and text pass as the cell they are."""
        return self.say_key(value.key, **value.fields) if isinstance(value, Sentence) else text(value)

    def say_key(self, key: str, **fields: Any) -> Markup:
        """The sentence `key` with `fields`. KeyError: not in the catalogue."""
        if key not in self._compiled:
            self._compiled[key] = self.environment.from_string(self._sentences[key])
        words = " ".join(self._compiled[key].render(**fields).split())
        return Markup(_spaced(words) if self.name == "zh" else words)

    def sentences(self, values: Sequence[Sentence]) -> Markup:
        """A paragraph."""
        return Markup(" " if self.name == "en" else "").join(self.say(value) for value in values)

    def parts(self, values: Sequence[Sentence]) -> Markup:
        """Several clauses of one sentence."""
        return Markup("; " if self.name == "en" else "；").join(self.say(value) for value in values)

    def names(self, values: Sequence[str]) -> Markup:
        """Names as code: `a`, `b` and `c`."""
        return self._joined([code(value) for value in values])

    def listed(self, keys: Sequence[str], table: str) -> Markup:
        """The entries `keys` of one table of the catalogue: a, b and c."""
        return self._joined([self.say_key(f"{table}.{key}") for key in keys])

    def title(self, row: Any) -> Markup:
        """What a strategy (anything with `name` and `display_name`) is called."""
        return text(_titles(self.name).get(row.name, row.display_name))

    def _joined(self, shown: Sequence[Markup]) -> Markup:
        if len(shown) < 2:
            return Markup("").join(shown)
        comma, last = (", ", " and ") if self.name == "en" else ("、", "和")
        return Markup(comma).join(shown[:-1]) + Markup(last) + shown[-1]

    def plus(self, values: Sequence[Sentence]) -> Markup:
        """A sum in words."""
        return Markup(" + ").join(self.say(value) for value in values)

    def table(self, found: tuple[Sequence[Any], Sequence[Sequence[Any]]]) -> Markup:
        """Header and rows as a Markdown table."""
        header, rows = found
        lines = [self._cells(header), Markup("|") + Markup(" --- |") * len(header), *map(self._cells, rows)]
        return Markup("\n").join(lines)

    def _cells(self, row: Sequence[Any]) -> Markup:
        return Markup("| ") + Markup(" | ").join(self.say(cell) for cell in row) + Markup(" |")

    def render(self, template: str, **context: Any) -> str:
        """A whole document, ending in one newline, without runs of blank lines."""
        rendered = self.environment.get_template(template).render(**context)
        lines: list[str] = []
        for line in rendered.splitlines():
            if line.strip() or (lines and lines[-1]):
                lines.append(line.rstrip())
        return "\n".join(lines).strip("\n") + "\n"


def _spaced(words: str) -> str:
    """A space between Chinese and Latin letters, digits or code, as Chinese technical texts are set."""
    pieces = _CODE.split(words)  # code spans are at the odd places and stay as they are
    for index in range(0, len(pieces), 2):
        piece = _AFTER.sub(r"\1 \2", _BEFORE.sub(r"\1 \2", pieces[index]))
        if index and _CHINESE.match(piece):
            piece = f" {piece}"
        if index + 1 < len(pieces) and piece and _CHINESE.match(piece[-1]):
            piece = f"{piece} "
        pieces[index] = piece
    return "".join(pieces)


def _printed(value: Any) -> Any:
    """Escape what a template prints. Integers print as they are; a float must pass a filter."""
    if isinstance(value, float):
        raise TypeError(f"a number without a format in a template: {value!r}")
    if value is None:
        raise TypeError("a template prints None")
    return value if isinstance(value, Markup | jinja2.Undefined) else text(value)
