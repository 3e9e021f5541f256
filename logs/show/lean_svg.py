"""Turns an SVG that matplotlib wrote into a small one, many of which can share a page.

For a chart of a few lines matplotlib writes 30 KB: a group and an id for each artist, a list of fonts for each text,
numbers with six decimals. This module removes all of them. It replaces colours by CSS variables, so that one drawing
serves light and dark mode, and adds tooltips.
"""

import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from xml.etree.ElementTree import Element, SubElement, fromstring, tostring

_COLOURS = Path(__file__).parent / "colours.css"

Tooltips = dict[str, tuple[str, list[str]]]
"""Group id -> the tooltip of the group's line or bar, and the tooltips of the group's dots in their order."""

DOT_RADIUS = 2.4
"""In pixels. Every marker becomes a circle: matplotlib defines markers under ids, which must be unique in a page."""

_NAMESPACE = "{http://www.w3.org/2000/svg}"
_FONT = "font: 11.5px system-ui, sans-serif; stroke-linejoin: round"
_PLACES = ["d", "x", "y", "transform"]
_LONG_NUMBER = re.compile(r"-?\d+\.\d{2,}")


@lru_cache
def light_colours() -> dict[str, str]:
    """Return the colours of light mode: CSS variable -> ``#rrggbb``."""
    light, _, _ = _COLOURS.read_text(encoding="utf-8").partition("@media")
    return dict(re.findall(r"(--[\w-]+): (#[0-9a-f]{6})", light))


def lean_svg(text: str, title: str, description: str, tooltips: Tooltips) -> Element:
    """Return matplotlib's SVG as a small ``<svg>`` element.

    Args:
        text: What matplotlib wrote, drawn in the light colours.
        title: Tooltip of the whole drawing.
        description: What a screen reader says.
        tooltips: Tooltips of some of the groups.
    """
    root = fromstring(text)
    svg = Element("svg", {"viewBox": root.attrib["viewBox"], "role": "img", "aria-label": description, "style": _FONT})
    SubElement(svg, "title").text = title
    for child in root:
        svg.extend(_lean(child, tooltips))
    return svg


def standalone(svg: Element) -> str:
    """Return a drawing as the text of an SVG file, with a size, a background, and the colours of both modes."""
    _, _, width, height = svg.attrib["viewBox"].split()
    svg.attrib |= {"xmlns": "http://www.w3.org/2000/svg", "width": width, "height": height}
    style = Element("style")
    style.text = _COLOURS.read_text(encoding="utf-8")
    svg[1:1] = [style, Element("rect", {"width": "100%", "height": "100%", "style": "fill: var(--paper)"})]
    return tostring(svg, encoding="unicode") + "\n"


def _lean(node: Element, tooltips: Tooltips) -> Iterator[Element]:
    """Yield the elements that take the place of ``node``: groups dissolve into the elements that they hold."""
    tag = node.tag.removeprefix(_NAMESPACE)
    if tag in ("metadata", "defs"):
        return
    if tag == "g":
        children = [lean for child in node for lean in _lean(child, tooltips)]
        if node.get("id") in tooltips:
            _add_tooltips(children, *tooltips[node.attrib["id"]])
            if "series-" in node.attrib["id"]:
                _add_name(children, tooltips[node.attrib["id"]][0])
        yield from children
        return
    spot: dict[str, str] = {key: _rounded(node.attrib[key]) for key in _PLACES if key in node.attrib}
    if spot.get("transform", "").startswith("rotate(-0 "):
        del spot["transform"]
    if tag == "use":
        tag, spot = "circle", {"cx": spot["x"], "cy": spot["y"], "r": f"{DOT_RADIUS:g}"}
    lean = Element(tag, {**spot, "style": _style(node.get("style", ""))})
    lean.text = node.text if tag == "text" else None
    yield lean


def _add_tooltips(elements: list[Element], own: str, of_dots: list[str]) -> None:
    dots = [element for element in elements if element.tag == "circle"]
    for element, words in zip(dots, of_dots, strict=True):
        SubElement(element, "title").text = words
    for element in elements:
        if element.tag == "path":
            SubElement(element, "title").text = own


def _add_name(elements: list[Element], name: str) -> None:
    """Name the line of a series for the page's script, which shows the line's values at the pointer."""
    for element in elements:
        if element.tag == "path":
            element.set("data-name", name)


def _rounded(text: str) -> str:
    """Return ``text`` on one line, with at most one decimal in each number: 0.1 pixel is invisible."""
    return _LONG_NUMBER.sub(lambda found: f"{float(found[0]):.1f}".removesuffix(".0"), " ".join(text.split()))


def _style(text: str) -> str:
    """Return a style without fonts, which the root element has, and with CSS variables in place of colours."""
    variables = {colour: f"var({name})" for name, colour in light_colours().items()}
    parts = [part for part in text.split("; ") if not part.startswith("font")]
    return re.sub(r"#[0-9a-f]{6}", lambda found: variables.get(found[0], found[0]), "; ".join(parts))
