"""summary.html: the sentences of summary.md, both languages in one file, and no text that is more than text."""

import base64
import hashlib
import html
import re
from html.parser import HTMLParser
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from markupsafe import Markup
from selection_runs import ENVIRONMENT, Fake, nine, write

from shardscope.measure.record import Failure
from shardscope.report.api import render
from shardscope.report.html_text import inline
from shardscope.report.markdown import code, text
from shardscope.selection.api import decide, save
from shardscope.selection.terms import Constraints
from shardscope.vocabulary import Axis, Kind, Status

LIMITS = Constraints(memory_cap_mb=60, max_communication_fraction=0.25)
REDUCE = {Kind.ALL_REDUCE: (Axis.DATA, 6.0, 3.0, 4.0)}
HOSTILE = "</script><script>alert(1)</script> <img src=x onerror=alert(2)> \"'`|&lt; **b** [x](javascript:y) \u202eevil"
VOID = {"meta", "br", "hr", "img", "link", "input"}


def report(tmp_path: Path, fakes: list[Fake], limits: Constraints = LIMITS) -> dict[str, str]:
    """Render; returns file name → text."""
    found = write(tmp_path, fakes)
    path = tmp_path / "data" / "decision.json"
    save(decide(fakes[0].spec.name, found, limits), path)
    render([path], [attribution for _, attribution in found.values()], tmp_path / "reports")
    return {path.name: path.read_text(encoding="utf-8") for path in (tmp_path / "reports").rglob("*") if path.is_file()}


class Page(HTMLParser):
    """Elements, and the text of each language as a reader sees it."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[tuple[str, str | None]] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words: dict[str, list[str]] = {"en": [], "zh": []}
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        known = dict(attrs)
        self.elements.append((tag, known))
        only = next((name for name in ("en", "zh") if f"in-{name}" in (known.get("class") or "").split()), None)
        if tag not in VOID:
            self.open.append((tag, only))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open[-1][0] == tag, f"</{tag}> closes {self.open[-3:]}"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        if any(tag in ("script", "style", "title", "desc") for tag, _ in self.open):
            return
        only = next((name for _, name in self.open if name is not None), None)
        for name, found in self.words.items():
            if only in (None, name):
                found.append(data)

    def text(self, language: str) -> str:
        return squeezed("".join(self.words[language]))


def squeezed(words: str) -> str:
    return re.sub(r"\s+", "", words)


def plain(markdown: str) -> str:
    """A line of the report's Markdown as text, without white space."""
    return squeezed(html.unescape(re.sub(r"<[^>]*>", "", inline(markdown))))


def statements(document: str) -> list[str]:
    """Everything that summary.md says: lines, cells of tables, and clauses of the strategies' lines."""
    found = []
    for line in document.splitlines():
        bare = re.sub(r"^(#+|-) ", "", line.strip())
        if line.startswith("|"):
            found += [cell for cell in line.strip("| ").split(" | ") if set(cell) - set("- ")]
        elif match := re.match(r"\*\*(Benefit|Cost|Conditions|收益|代价|适用条件)\*\*(?:: |：)(.*)[.。]$", bare):
            found += re.split("; |；", match[2])
        elif match := re.match(r"(`[^`]+`)(?:, |，)(.*)$", bare):
            found += match.groups()  # the heading of a strategy's lines
        elif bare and not bare.startswith(("![", "```")):
            found.append(bare)
    return found


@pytest.mark.parametrize("limits", [LIMITS, Constraints(max_step_time_ms=1.0)], ids=["choice", "nothing passes"])
def test_the_page_says_what_the_summaries_say(tmp_path: Path, limits: Constraints) -> None:
    files = report(tmp_path, nine(), limits)
    page = Page(files["summary.html"])
    assert page.open == []
    for language, name in (("en", "summary.md"), ("zh", "summary.zh.md")):
        shown = page.text(language)
        said = statements(files[name])
        assert len(said) > 100
        assert [line for line in said if plain(line) not in shown] == []
        assert "**" not in shown and "`" not in shown and "](" not in shown


def test_a_page_of_failures(tmp_path: Path) -> None:
    killed = Failure(rank=1, exit_code=None, signal="SIGKILL", log_tail=("line one",))
    fakes = [
        Fake("ddp", "DDP", parts=REDUCE),
        Fake("zero1", status=Status.FAILED, reason="rank 1 was killed by SIGKILL", failure=killed),
        Fake("zero3", gradient_error=0.25, parts=REDUCE),
    ]
    page = Page(report(tmp_path, fakes)["summary.html"])
    shown = page.text("en")
    assert squeezed("1 of 3 strategies failed: zero1.") in shown
    assert squeezed("failed: rank 1 was killed by SIGKILL") in shown
    spanning = [known for tag, known in page.elements if tag == "td" and known.get("class") == "reason"]
    assert {known["colspan"] for known in spanning} == {"9"}


def test_nothing_ran(tmp_path: Path) -> None:
    files = report(tmp_path, [Fake("ddp", status=Status.FAILED, reason="boom")], Constraints())
    page = Page(files["summary.html"])
    assert page.open == [] and "boom" in page.text("en") and "boom" in page.text("zh")
    assert not any(tag == "svg" for tag, _ in page.elements)
    assert [name for name in files if name.endswith(".svg")] == []


def test_without_workloads_the_page_names_the_imported_runs(tmp_path: Path) -> None:
    render([], [], tmp_path, imported=["a job", "two"])
    page = Page((tmp_path / "summary.html").read_text(encoding="utf-8"))
    links = [known["href"] for tag, known in page.elements if tag == "a"]
    assert links == ["imported/a%20job.md", "imported/two.md", "imported/a%20job.zh.md", "imported/two.zh.md"]


def test_only_our_script_may_run_and_nothing_may_be_fetched(tmp_path: Path) -> None:
    source = report(tmp_path, nine())["summary.html"]
    page = Page(source)
    (policy,) = [k["content"] for tag, k in page.elements if k.get("http-equiv") == "Content-Security-Policy"]
    (script,) = re.findall(r"<script>(.*?)</script>", source, flags=re.S)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert policy == (
        f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; "
        "base-uri 'none'; form-action 'none'"
    )
    fetching = {"img", "link", "iframe", "object", "embed", "image", "video", "audio", "source", "form"}
    assert not fetching & {tag for tag, _ in page.elements}
    references = [known[name] for _, known in page.elements for name in ("href", "src") if name in known]
    beside = ("evidence.md", "node.md", "node.zh.md")
    assert all(str(found).startswith("#") or str(found) in beside for found in references)
    assert "url(" not in re.sub(r"url\(#", "", source) and "@import" not in source
    assert len(source) < 600_000


def test_drawings_of_one_page_share_no_names(tmp_path: Path) -> None:
    page = Page(report(tmp_path, nine())["summary.html"])
    ids = [known["id"] for _, known in page.elements if "id" in known]
    assert len(ids) == len(set(ids)) and sum(tag == "svg" for tag, _ in page.elements) == 13
    used = {f"#{known['id']}" for _, known in page.elements if "id" in known}
    values = " ".join(str(value) for _, known in page.elements for value in known.values())
    targets = set(re.findall(r"url\((#[^)]+)\)", values))
    targets |= {str(known["href"]) for _, known in page.elements if str(known.get("href", "")).startswith("#")}
    assert len(targets) > 50 and targets <= used


def test_each_language_is_marked_as_what_it_is(tmp_path: Path) -> None:
    page = Page(report(tmp_path, nine())["summary.html"])
    marked = [known for _, known in page.elements if {"in-en", "in-zh"} & set((known.get("class") or "").split())]
    assert len(marked) > 100
    for known in marked:
        assert known["lang"] == ("en" if "in-en" in str(known["class"]) else "zh-Hans")
    assert not re.search("[\u4e00-\u9fff]", page.text("en").replace("中文", ""))
    # The drawings speak both languages too.
    assert "allgather" not in page.text("zh").lower().replace("all-gather", "") and "气泡" in page.text("zh")


def test_hostile_text_stays_text(tmp_path: Path) -> None:
    spec = msgspec.structs.replace(Fake("ddp").spec, name="<b>w</b>".replace("/", "\\"))
    fakes = [
        Fake("ddp", HOSTILE, spec=spec, flags=(HOSTILE,), parts=REDUCE,
             environment=msgspec.structs.replace(ENVIRONMENT, cpu=HOSTILE)),
        Fake("<img src=x onerror=alert(3)>\u202e" + "x" * 120, HOSTILE, spec=spec, parts=REDUCE, peak=50),
        Fake("zero1", spec=spec, status=Status.FAILED, reason=HOSTILE,
             failure=Failure(rank=0, exit_code=1, signal=None, log_tail=(HOSTILE,))),
    ]  # fmt: skip
    files = report(tmp_path, fakes, Constraints())
    page = Page(files["summary.html"])
    assert page.open == []
    assert [tag for tag, _ in page.elements if tag in ("img", "b")] == []
    assert sum(tag == "script" for tag, _ in page.elements) == 1
    assert not any(name.startswith("on") for _, known in page.elements for name in known)
    shown = page.text("en")
    assert squeezed("</script><script>alert(1)</script>") in shown and squeezed("<imgsrc=xonerror=alert(3)>") in shown
    assert "**b**" in shown and "[x](javascript:y)" in shown and "\u202e" not in files["summary.html"]
    assert not any("javascript" in str(known.get("href")) for _, known in page.elements)
    for name, svg in files.items():
        if name.endswith(".svg"):
            assert "<img" not in svg and "<script" not in svg and "\u202e" not in svg


@given(st.text())
def test_any_text_comes_back_as_it_was(value: str) -> None:
    shown = " ".join(value.split())
    shown = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in shown)
    page = inline(text(value))
    assert not re.search("<", page) and html.unescape(page) == shown
    spanned = inline(code(value))
    inside = re.fullmatch("<code>([^<]*)</code>", spanned)
    expected = shown.replace("`", "'").replace("|", "\N{BROKEN BAR}").strip() or "?"
    assert inside is not None and html.unescape(inside[1]) == expected


@pytest.mark.parametrize(
    ("markdown", "expected"),
    [
        ("**a `b*` c** *d*", "<strong>a <code>b*</code> c</strong> <em>d</em>"),
        ("[evidence.md](evidence.md)", '<a href="evidence.md">evidence.md</a>'),
        ("[x](javascript:alert)", "x"),
        ("[x](//host/a.md)", "x"),
        ("[x](../../a.md)", "x"),
        (r"\*a\* \[b\](c.md) a_b", "*a* [b](c.md) a_b"),
        ("a &lt; b &amp; &copy; <b> \"'", "a &lt; b &amp; &amp;copy; &lt;b&gt; &#34;&#39;"),
        ("**never closed", "<strong>never closed</strong>"),
        ("*a **b* c", "<em>a <strong>b</strong></em> c"),
    ],
)
def test_inline(markdown: str, expected: str) -> None:
    assert str(inline(Markup(markdown))).replace("&quot;", "&#34;").replace("&#x27;", "&#39;") == expected
