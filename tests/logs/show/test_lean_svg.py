"""What becomes of the parts of an SVG that matplotlib wrote."""

import re
from xml.etree.ElementTree import Element

import pytest

from configs.load import ROOT
from logs.show.lean_svg import DOT_RADIUS, Tooltips, _rounded, _style, lean_svg, light_colours, standalone

WRITTEN = """<svg xmlns="http://www.w3.org/2000/svg" width="9pt" viewBox="0 0 30 20">
 <metadata><path d="M 8 8"/></metadata>
 <defs><path id="m0" d="M 9 9"/></defs>
 <g id="figure_1">
  <g id="1-series-0"><path d="M 1.26 2.00
L 3 4" style="fill: none"/><use x="1.26" y="2.04"/><use x="3" y="4"/></g>
  <g id="bar-0-0"><path d="M 5 5"/></g>
  <g id="other"><path d="M 6 6"/></g>
  <text x="1" y="2" transform="rotate(-0 1 2)" style="font: 9px 'Sans'; text-anchor: end">level</text>
  <text transform="rotate(-90 1 2)" style="font-size: 9px"><extra/>upright</text>
 </g>
</svg>"""


def _lean(tooltips: Tooltips) -> Element:
    return lean_svg(WRITTEN, "Title", "In words.", tooltips)


def test_groups_dissolve_and_definitions_and_metadata_are_gone() -> None:
    svg = _lean({})
    assert [(each.tag, each.get("d") or each.text) for each in svg] == [
        ("title", "Title"), ("path", "M 1.3 2 L 3 4"), ("circle", None), ("circle", None), ("path", "M 5 5"),
        ("path", "M 6 6"), ("text", "level"), ("text", None),
    ]  # fmt: skip
    assert not list(svg.iter("extra"))
    assert {key: svg.attrib[key] for key in ("viewBox", "role", "aria-label")} == {
        "viewBox": "0 0 30 20", "role": "img", "aria-label": "In words.",
    }  # fmt: skip
    assert svg.attrib["style"] == "font: 11.5px system-ui, sans-serif; stroke-linejoin: round"
    assert "width" not in svg.attrib


def test_markers_become_circles_and_texts_keep_their_turn_unless_there_is_none() -> None:
    _, _, first, second, _, _, level, upright = _lean({})
    assert [{key: dot.get(key) for key in ("cx", "cy", "r", "x")} for dot in (first, second)] == [
        {"cx": "1.3", "cy": "2", "r": f"{DOT_RADIUS:g}", "x": None},
        {"cx": "3", "cy": "4", "r": "2.4", "x": None},
    ]
    assert (level.get("transform"), level.get("x"), level.get("style")) == (None, "1", "text-anchor: end")
    assert (upright.get("transform"), upright.get("style")) == ("rotate(-90 1 2)", "")


def test_a_line_a_bar_and_each_dot_have_their_tooltips_and_a_line_its_name_for_the_pointer() -> None:
    svg = _lean({"1-series-0": ("line", ["one", "two"]), "bar-0-0": ("bar", []), "absent": ("x", [])})
    assert [(each.tag, each.findtext("title"), each.get("data-name")) for each in list(svg)[1:6]] == [
        ("path", "line", "line"), ("circle", "one", None), ("circle", "two", None), ("path", "bar", None),
        ("path", None, None),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "rounded"),
    [("1.25 1.35", "1.2 1.4"), ("-0.04", "-0"), ("1.5 20", "1.5 20"), ("9.96", "10"), ("1.04\n  2.06", "1 2.1")],
)
def test_numbers_have_at_most_one_decimal(text: str, rounded: str) -> None:
    assert _rounded(text) == rounded


def test_colours_of_the_light_mode_become_variables_and_unknown_ones_stay() -> None:
    light = light_colours()
    css = (ROOT / "logs/show/colours.css").read_text(encoding="utf-8")
    assert light == dict(re.findall(r"(--[\w-]+): (#\w{6})", css.split("@media")[0]))
    assert _style(f"fill: {light['--c1']}; font-family: x; stroke: #123456") == "fill: var(--c1); stroke: #123456"


def test_an_svg_file_has_its_namespace_its_colours_and_a_background_of_paper() -> None:
    text = standalone(_lean({}))
    assert text.startswith("<svg ")
    assert text.endswith("</svg>\n")
    assert 'xmlns="http://www.w3.org/2000/svg"' in text
    assert 'width="30"' in text
    assert '<rect width="100%" height="100%" style="fill: var(--paper)" />' in text
    assert "@media (prefers-color-scheme: dark)" in text
