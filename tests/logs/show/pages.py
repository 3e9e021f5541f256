"""Pages as trees, as a browser reads them."""

import re
from xml.etree.ElementTree import Element, fromstring


def read_page(text: str) -> Element:
    """Return the body of a page; fails if a tag is not closed."""
    text = re.sub(r'^<!doctype html>| xmlns="[^"]*"', "", text.strip())
    text = re.sub(r"<(meta[^>]*|br)>", r"<\1/>", re.sub(r"<details([^>]*) open>", r'<details\1 open="">', text))
    body = fromstring(text).find("body")
    assert body is not None
    return body


def words(element: Element) -> str:
    """Return the words in an element."""
    return " ".join(" ".join(element.itertext()).split())


def section(page: Element, title: str) -> Element:
    """Return the section with a heading."""
    (found,) = [each for each in page.iter("section") if words(each[0]) == title]
    return found


def table(element: Element) -> list[list[str]]:
    """Return the rows of the only table in an element, each a list of its cells."""
    (found,) = element.iter("table")
    return [[words(cell) for cell in row if cell.tag in ("th", "td")] for row in found.iter("tr")]


def notes(page: Element) -> dict[str, list[str]]:
    """Return the notes of a page: the heading of a block -> its notes."""
    blocks = section(page, "Results").findall(".//details")
    return {words(block[0]).removesuffix(": notes"): [words(each) for each in block.iter("li")] for block in blocks}
