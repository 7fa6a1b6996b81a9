"""summary.html in a browser: all of it is drawn, it sorts, it speaks both languages, and it asks for nothing."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from chrome import Browser
from tests.unit.selection_runs import ENVIRONMENT, Fake, nine, write

from shardscope.report.api import render
from shardscope.selection.api import decide, save
from shardscope.selection.terms import Constraints
from shardscope.vocabulary import Axis, Kind, Status

HOSTILE = "</script><script>window.intruder=1</script> <img src=x onerror=window.intruder=2> \"'`&amp; **b** \u202eevil"
REDUCE = {Kind.ALL_REDUCE: (Axis.DATA, 6.0, 3.0, 4.0)}
# Elements in a language that is not chosen, or inside closed details, are not drawn.
OVERFLOWING = """
(() => {
    const wide = document.documentElement.clientWidth, found = [];
    for (const element of document.querySelectorAll('body *')) {
        const box = element.getBoundingClientRect();
        if (box.width && box.right > wide + 1 && !element.closest('.scroll, .drawing, pre'))
            found.push(element.tagName + ' ' + element.textContent.trim().slice(0, 40));
    }
    return JSON.stringify({page: document.documentElement.scrollWidth - wide, found});
})()
"""
DRAWINGS = """
JSON.stringify(Array.from(document.querySelectorAll('.drawing svg'), svg => {
    const box = svg.getBoundingClientRect();
    const parts = Array.from(svg.querySelectorAll('path, use, text')).filter(part => !part.closest('defs'));
    const texts = Array.from(svg.querySelectorAll('text'), text => text.getBBox().width);
    const inside = parts.map(part => part.getBoundingClientRect()).filter(one => one.width || one.height).every(
        one => one.left >= box.left - 2 && one.right <= box.right + 2 && one.top >= box.top - 2 && one.bottom <= box.bottom + 2);
    return {width: box.width, height: box.height, parts: parts.length, narrowest: Math.min(...texts), inside};
}))
"""  # noqa: E501
COLUMN = """
((table, column) => JSON.stringify(Array.from(
    document.querySelectorAll('.in-en table.sortable')[table].tBodies[0].rows,
    row => row.cells[column] ? row.cells[column].innerText : null)))(%d, %d)
"""


def made(folder: Path, fakes: list[Fake], limits: Constraints) -> Path:
    """The page for these runs."""
    found = write(folder, fakes)
    decision = folder / "decision.json"
    save(decide(fakes[0].spec.name, found, limits), decision)
    render([decision], [attribution for _, attribution in found.values()], folder / "reports")
    return folder / "reports" / "summary.html"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    limits = Constraints(memory_cap_mb=60, max_communication_fraction=0.25)
    return made(tmp_path_factory.mktemp("page"), nine(), limits)


def shown(browser: Browser, page: Path, width: int = 1000, theme: str = "light") -> None:
    browser.forget()
    browser.resize(width, 900)
    browser.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": theme}])
    browser.open(page.as_uri())
    browser.wait(f"location.href === {json.dumps(page.as_uri())} && document.readyState === 'complete'")
    choose(browser, "en")


def choose(browser: Browser, language: str) -> None:
    browser.run(f"document.querySelector('[data-choose={language}]').click()")


def clean(browser: Browser, page: Path) -> None:
    assert browser.errors == [] and browser.console == []
    assert set(browser.requests) == {page.as_uri()} and not browser.blocked


def parsed(browser: Browser, code: str) -> Any:
    return json.loads(browser.run(code))


def whole_picture(browser: Browser, path: Path, width: int) -> None:
    browser.resize(width, int(browser.run("document.documentElement.scrollHeight")))
    browser.picture(path)


@pytest.mark.parametrize("width", [1000, 1600])
@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("language", ["en", "zh"])
def test_everything_is_drawn(
    browser: Browser, page: Path, pictures: Path, width: int, theme: str, language: str
) -> None:
    shown(browser, page, width, theme)
    choose(browser, language)
    assert browser.run("document.documentElement.lang") == {"en": "en", "zh": "zh-Hans"}[language]
    whole_picture(browser, pictures / f"page-{width}-{theme}-{language}.png", width)
    browser.run("document.querySelectorAll('details').forEach(details => { details.open = true; })")
    assert parsed(browser, OVERFLOWING) == {"page": 0, "found": []}
    drawings = parsed(browser, DRAWINGS)
    assert len(drawings) == 13
    for drawing in drawings:
        assert drawing["width"] > 500 and drawing["height"] > 50 and drawing["parts"] > 10
        assert drawing["narrowest"] > 0 and drawing["inside"], drawing
    text = str(browser.run("document.body.innerText"))
    assert ("气泡" in text, "bubble" in text) == (language == "zh", language == "en")
    assert ("Recommended" in text, "推荐" in text) == (language == "en", language == "zh")
    clean(browser, page)


def test_light_and_dark(browser: Browser, page: Path) -> None:
    def colours() -> list[str]:
        code = "const s = getComputedStyle(%s); [s.%s]"
        found = [("document.body", "backgroundColor"), ("document.querySelector('.drawing svg text')", "fill")]
        return [browser.run("(() => {" + (code % one).replace("; [", "; return [") + "[0];})()") for one in found]

    shown(browser, page, theme="dark")
    dark = colours()
    shown(browser, page, theme="light")
    light = colours()
    assert light[0] != dark[0] and light[1] != dark[1]
    assert _brightness(light[0]) > 240 > 60 > _brightness(light[1])
    assert _brightness(dark[0]) < 40 < 200 < _brightness(dark[1])
    browser.run("document.getElementById('theme').click()")
    assert colours() == dark
    browser.run("document.getElementById('theme').click()")
    assert colours() == light
    # A choice outlives the page where there is storage; the next test starts without one.
    browser.run("localStorage.clear()")
    clean(browser, page)


def _brightness(colour: str) -> float:
    return sum(int(channel) for channel in colour.strip("rgb()").split(",")[:3]) / 3


def test_sorting(browser: Browser, page: Path) -> None:
    shown(browser, page)
    before = parsed(browser, COLUMN % (0, 0))
    heading = "document.querySelector('.in-en table.sortable').tHead.rows[0].cells[%d]"
    browser.run(f"{heading % 2}.firstElementChild.click()")
    numbers = [float(cell.split("\n")[0].split("(")[0].replace(",", "")) for cell in parsed(browser, COLUMN % (0, 2))]
    assert numbers == sorted(numbers) and len(set(numbers)) > 5
    assert browser.run(f"{heading % 2}.getAttribute('aria-sort')") == "ascending"
    # By keyboard the other way round, and only one column says that it is sorted.
    browser.run(f"{heading % 2}.firstElementChild.focus()")
    for kind in ("keyDown", "keyUp"):
        key = {"key": "Enter", "code": "Enter", "windowsVirtualKeyCode": 13, "text": "\r"}
        browser.send("Input.dispatchKeyEvent", type=kind, **key)
    assert browser.run(f"{heading % 2}.getAttribute('aria-sort')") == "descending"
    # "–" has no value and comes last in both directions.
    for _ in range(2):
        browser.run(f"{heading % 7}.firstElementChild.click()")
        bubbles = parsed(browser, COLUMN % (0, 7))
        assert bubbles[-1] == "–" and bubbles[0] != "–" and bubbles.index("–") == len([b for b in bubbles if b != "–"])
    assert (
        browser.run("document.querySelectorAll('.in-en table.sortable')[0].querySelectorAll('[aria-sort]').length") == 1
    )
    browser.run(f"{heading % 0}.firstElementChild.click()")
    after = parsed(browser, COLUMN % (0, 0))
    assert sorted(before) == sorted(after) and after == sorted(after, key=str.lower)
    clean(browser, page)


def test_the_browsers_language_is_the_first_choice(browser: Browser, page: Path) -> None:
    for tag, language in (("zh-CN", "zh"), ("de-DE", "en"), ("en-GB", "en")):
        browser.send("Emulation.setUserAgentOverride", userAgent="test", acceptLanguage=tag)
        browser.forget()
        browser.open("about:blank")
        browser.open(page.as_uri())
        browser.wait(f"location.href === {json.dumps(page.as_uri())} && document.readyState === 'complete'")
        browser.run("localStorage.clear()")
        browser.send("Page.reload")
        browser.wait("document.readyState === 'complete' && document.title !== ''")
        assert browser.run("document.documentElement.dataset.language") == language, tag
        title = str(browser.run("document.title"))
        assert title == {"en": "Which parallel strategy?", "zh": "该选哪种并行策略？"}[language]
        pressed = browser.run("document.querySelector('[data-choose][aria-pressed=true]').dataset.choose")
        assert pressed == language
    browser.send("Emulation.setUserAgentOverride", userAgent="")


def test_hostile_names_are_shown_as_text(browser: Browser, tmp_path: Path, pictures: Path) -> None:
    spec = msgspec.structs.replace(Fake("ddp").spec, name="<img src=x onerror=window.intruder=3>")
    fakes = [
        Fake("ddp", HOSTILE, spec=spec, parts=REDUCE, flags=(HOSTILE,),
             environment=msgspec.structs.replace(ENVIRONMENT, cpu=HOSTILE)),
        Fake("<svg onload=window.intruder=4>\"'`|" + "long" * 40, HOSTILE, spec=spec, parts=REDUCE, peak=50),
        Fake("שלום", "עברית", spec=spec, parts=REDUCE, peak=48, step=104),
        Fake("zero1", spec=spec, status=Status.FAILED, reason=HOSTILE),
    ]  # fmt: skip
    page = made(tmp_path, fakes, Constraints(memory_cap_mb=60))
    shown(browser, page)
    whole_picture(browser, pictures / "page-hostile.png", 1000)
    assert browser.run("window.intruder") is None
    assert browser.run("document.querySelectorAll('img, b, svg[onload]').length") == 0
    assert browser.run("document.querySelectorAll('script').length") == 1
    text = str(browser.run("document.body.innerText"))
    assert "</script><script>window.intruder=1</script> <img src=x onerror=window.intruder=2>" in text
    assert "<svg onload=window.intruder=4>" in text and "**b**" in text and "\u202e" not in text
    labels = parsed(
        browser, "JSON.stringify(Array.from(document.querySelectorAll('svg text'), one => one.textContent))"
    )
    assert any(one.startswith("<svg onload=window.intruder=4") for one in labels)
    assert parsed(browser, OVERFLOWING) == {"page": 0, "found": []}
    clean(browser, page)
