"""A drawing inside a page: names that no other drawing has, the page's colours, and words in both languages."""

import re
import xml.etree.ElementTree as ET  # parses what figure_svg wrote, nothing foreign

from markupsafe import Markup

from shardscope.report.figure_svg import THEME
from shardscope.report.figures import Drawing
from shardscope.report.html_text import LANGUAGE_TAGS

__all__ = ["inlined"]

_SVG = "http://www.w3.org/2000/svg"
_REFERENCES = ("clip-path", "style", "fill")


def inlined(drawing: Drawing, number: int) -> Markup:
    """The drawing as an SVG element of the page; `number`: unique there."""
    ET.register_namespace("", _SVG)
    root = ET.fromstring(drawing.svg)
    prefix = f"d{number}-"
    for element in list(root.iter()):
        _rename(element, prefix)
        _recolour(element)
        if element.tag == f"{{{_SVG}}}text" and (chinese := drawing.words.get(element.text or "")) is not None:
            _translate(element, chinese)
    root.attrib.pop("version", None)
    width = root.attrib.pop("width").removesuffix("pt")
    root.attrib.pop("height")
    root.set("style", f"{root.get('style', '')}; --width: {width}")
    return Markup(ET.tostring(root, encoding="unicode"))


def _rename(element: ET.Element, prefix: str) -> None:
    if (name := element.get("id")) is not None:
        element.set("id", prefix + name)
    if (link := element.get("href")) is not None:
        element.set("href", re.sub("^#", f"#{prefix}", link))
    if (labels := element.get("aria-labelledby")) is not None:
        element.set("aria-labelledby", " ".join(prefix + label for label in labels.split()))
    for name in _REFERENCES:
        if (value := element.get(name)) is not None:
            element.set(name, value.replace("url(#", f"url(#{prefix}"))


def _recolour(element: ET.Element) -> None:
    if (style := element.get("style")) is not None:
        for colour, variable in THEME.items():
            style = style.replace(colour, f"var({variable})")
        element.set("style", style)


def _translate(element: ET.Element, chinese: str) -> None:
    for name, words in (("en", element.text), ("zh", chinese)):
        part = ET.SubElement(element, f"{{{_SVG}}}tspan", {"class": f"in-{name}", "lang": LANGUAGE_TAGS[name]})
        part.text = words
    element.text = None
