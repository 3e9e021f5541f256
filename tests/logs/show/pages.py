"""Pages as trees, as a browser reads them."""

from html.parser import HTMLParser
from xml.etree.ElementTree import Element, TreeBuilder

_VOID = frozenset({"meta", "br"})
"""Tags that have no end in HTML."""


class _Parser(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tree = TreeBuilder()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tree.start(tag, {name: value or "" for name, value in attrs})
        if tag in _VOID:
            self.tree.end(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tree.start(tag, {name: value or "" for name, value in attrs})
        self.tree.end(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.tree.end(tag).tag == tag

    def handle_data(self, data: str) -> None:
        self.tree.data(data)


def read_page(text: str) -> Element:
    """Return the body of a page; fails if a tag is not closed."""
    parser = _Parser()
    parser.feed(text)
    body = parser.tree.close().find("body")
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
