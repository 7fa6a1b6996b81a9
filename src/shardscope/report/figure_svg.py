"""The colours and hatches of all drawings, and SVG text with the same bytes for the same numbers.

A drawing is SVG by matplotlib. It stands alone in `figures/`, on white, and is put into summary.html by `html_svg`,
which swaps INK, PAPER and the other colours of THEME for those of the page; nothing else may use these colours.
"""

import io
import re
import xml.etree.ElementTree as ET  # parses what matplotlib just wrote, nothing foreign
from typing import Any

from matplotlib.figure import Figure

__all__ = ["BLAME", "COLOURS", "INK", "MEMORY", "MUTED", "PAPER", "RULE", "THEME", "finished", "look"]

INK, MUTED, RULE, PAPER = "#1f2328", "#6a737d", "#d0d7de", "#ffffff"
IDLE = "#c3c7cb"
THEME = {INK: "--ink", MUTED: "--muted", RULE: "--rule", PAPER: "--paper", IDLE: "--idle"}

# Colours that stay apart for the common forms of colour blindness (Okabe and Ito, 2008), with hatches besides, so that
# the parts are told apart without any colour. Each colour occurs once: it is how a drawn shape is known again.
COLOURS = {
    "compute": "#0072b2",
    "all_reduce": "#e69f00",
    "all_gather": "#f0e442",
    "reduce_scatter": "#d55e00",
    "all_to_all": "#cc79a7",
    "broadcast": "#e69f01",
    "send_receive": "#009e73",
    "other": "#d55e01",
    "unknown": "#999999",
    "copies": "#56b4e9",
    "bubble": "#fdfdfe",
    "host": IDLE,
}
# The same for drawings that show other things than the parts of a step.
MEMORY = {"parameters": "#3d5a80", "gradients": "#5b8fb9", "optimizer": "#e0b04b", "activations": "#b5524b"}
BLAME = {"transferring": "#2a7f9e", "waiting": "#f2c14e", "caused": "#b5524c"}
# Lines of a tile of TILE × TILE points. matplotlib's own hatches are an inch wide and a hundred times as long.
TILE = 6
_UP, _DOWN = "M-1 1L1 -1M0 6L6 0M5 7L7 5", "M-1 5L1 7M0 0L6 6M5 -1L7 1"
_HATCHES = {
    "all_reduce": _UP,
    "all_gather": _DOWN,
    "reduce_scatter": _UP + _DOWN,
    "all_to_all": "M0 3H6M3 0V6",
    "broadcast": "M3 0V6",
    "send_receive": "M0 3H6",
    "other": "M0 1.5H6M0 4.5H6",
    "unknown": "M1.5 0V6M4.5 0V6",
    "copies": "M0 4.5H6",
    "bubble": "M1.5 1.5h0M4.5 4.5h0",
    "gradients": _UP,
    "optimizer": _DOWN,
    "activations": _UP + _DOWN,
    "waiting": _UP,
    "caused": _UP + _DOWN,
}
_EVERY = {**COLOURS, **MEMORY, **BLAME}
_SVG = "http://www.w3.org/2000/svg"
_LINK = "{http://www.w3.org/1999/xlink}href"
_MEASURES = ("d", "x", "y", "width", "height", "transform")
_FONTS = "'DejaVu Sans', Verdana, 'Segoe UI', 'PingFang SC', 'Microsoft YaHei', sans-serif"


def look(part: str, *, waiting: bool = False) -> dict[str, Any]:
    """Keyword arguments of a matplotlib patch for a part of the step; waiting is its kind on a pale ground."""
    edge = MUTED if part == "bubble" else PAPER
    return {"facecolor": _pale(_EVERY[part]) if waiting else _EVERY[part], "edgecolor": edge, "linewidth": 0.6}


def _mix(colour: str, other: int, share: float) -> str:
    channels = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return "#" + "".join(f"{round(channel * share + other * (1 - share)):02x}" for channel in channels)


def _pale(colour: str) -> str:
    return _mix(colour, 255, 0.3)


def _patterns() -> dict[str, tuple[str, str, str, str]]:
    """Fill colour → (name of its pattern, ground, lines, their colour)."""
    found = {}
    for part, lines in _HATCHES.items():
        colour = _EVERY[part]
        found[colour] = (part, PAPER if part == "bubble" else colour, lines, MUTED if part == "bubble" else PAPER)
        found[_pale(colour)] = (f"{part}-waiting", _pale(colour), lines, _mix(colour, 0, 0.75))
    return found


_PATTERNS = _patterns()


def finished(figure: Figure, title: str, description: str) -> str:
    """The figure as SVG text, small, with a title and a description for readers that do not see it."""
    stream = io.StringIO()
    figure.savefig(stream, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    ET.register_namespace("", _SVG)
    root = ET.fromstring(stream.getvalue())
    for metadata in root.findall(f"{{{_SVG}}}metadata"):
        root.remove(metadata)
    definitions = root.find(f"{{{_SVG}}}defs")
    assert definitions is not None
    definitions.clear()  # a style sheet that would reach beyond the drawing, once inside a page
    root.set("style", "stroke-linejoin: round; stroke-linecap: butt")
    referred = set(re.findall(r'(?:href="#|url\(#)([^")]+)', stream.getvalue()))
    used: set[str] = set()
    for element in root.iter():
        _shrink(element, referred)
        _hatch(element, used)
    definitions.extend(_tile(*_PATTERNS[colour]) for colour in sorted(used))
    root.set("role", "img")
    root.set("aria-labelledby", "figure-title figure-description")
    for place, (tag, text) in enumerate((("title", title), ("desc", description))):
        element = ET.Element(f"{{{_SVG}}}{tag}", {"id": ("figure-title", "figure-description")[place]})
        element.text = text
        root.insert(place, element)
    for element in root.iter():
        element.tail = "\n"  # one element a line: small, and a change is seen where it is
        if element.text is not None and not element.text.strip():
            element.text = None
    return ET.tostring(root, encoding="unicode").strip() + "\n"


def _compact(path: str) -> str:
    """Straight lines in fewer letters: H and V where only one coordinate changes."""
    found, at = [], ("", "")
    tokens = path.split()
    if not {token for token in tokens if token.isalpha()} <= {"M", "L", "z"}:
        return path
    index = 0
    while index < len(tokens):
        if tokens[index] == "z":
            found.append("z")
            index += 1
            continue
        x, y = tokens[index + 1], tokens[index + 2]
        if tokens[index] == "M":
            found.append(f"M{x} {y}")
        elif y == at[1] and x != at[0]:
            found.append(f"H{x}")
        elif x == at[0]:
            found.append(f"V{y}")
        else:
            found.append(f"L{x} {y}")
        at = (x, y)
        index += 3
    return "".join(found)


def _shrink(element: ET.Element, referred: set[str]) -> None:
    """Two decimals of a point are enough; names that nothing refers to only take room."""
    if element.get("id") not in referred:
        element.attrib.pop("id", None)
    if (link := element.attrib.pop(_LINK, None)) is not None:
        element.set("href", link)
    for name in _MEASURES:
        if (value := element.get(name)) is not None:
            short = re.sub(r"-?\d+\.\d+", _rounded, " ".join(value.split()))
            element.set(name, _compact(short) if name == "d" else short)
    if (transform := element.get("transform")) is not None and transform.startswith("rotate(-0 "):
        del element.attrib["transform"]
    if (style := element.get("style")) is not None:
        element.set("style", style.replace("'DejaVu Sans', sans-serif", _FONTS))


def _hatch(element: ET.Element, used: set[str]) -> None:
    """Fill what has the colour of a hatched part with its pattern."""
    if match := re.search(r"fill: (#[0-9a-f]{6})\b", element.get("style", "")):
        colour = match[1]
        if colour in _PATTERNS:
            used.add(colour)
            element.set("style", element.get("style", "").replace(match[0], f"fill: url(#{_PATTERNS[colour][0]})"))


def _tile(name: str, ground: str, lines: str, colour: str) -> ET.Element:
    size = str(TILE)
    pattern = ET.Element(
        f"{{{_SVG}}}pattern", {"id": name, "width": size, "height": size, "patternUnits": "userSpaceOnUse"}
    )
    ET.SubElement(pattern, f"{{{_SVG}}}rect", {"width": size, "height": size, "style": f"fill: {ground}"})
    round_dots = "; stroke-linecap: round; stroke-width: 1.3" if "h0" in lines else "; stroke-width: 0.8"
    ET.SubElement(pattern, f"{{{_SVG}}}path", {"d": lines, "style": f"fill: none; stroke: {colour}{round_dots}"})
    return pattern


def _rounded(match: re.Match[str]) -> str:
    return f"{float(match[0]):.2f}".rstrip("0").rstrip(".")
