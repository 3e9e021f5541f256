"""Tables as text: in aligned columns, and as comma-separated values. Needs only the standard library."""

import csv
import io
from collections.abc import Iterable, Sequence

_WHOLE = 1000
"""Numbers from here on are shown without decimals."""


def table(rows: Sequence[Sequence[object]], titles: Sequence[str]) -> str:
    """Return rows in aligned columns under their titles; columns of numbers are aligned to the right."""
    cells = [list(titles), *([_cell(each) for each in row] for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(titles))]
    numbers = [all(_is_number(row[column]) for row in cells[1:]) for column in range(len(titles))]
    return "\n".join(
        "  ".join(
            text.rjust(width) if right else text.ljust(width)
            for text, width, right in zip(row, widths, numbers, strict=True)
        ).rstrip()
        for row in cells
    )


def csv_text(rows: Iterable[Sequence[object]], titles: Sequence[str]) -> str:
    """Return titles and rows as comma-separated values, a line each; None is an empty cell."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([titles, *rows])
    return text.getvalue()


def _cell(value: object) -> str:
    if not isinstance(value, float):
        return str(value)
    return f"{value:,.0f}" if abs(value) >= _WHOLE else f"{value:,.4g}"


def _is_number(text: str) -> bool:
    return text.replace(",", "").replace(".", "").replace("-", "").replace("+", "").replace("e", "").isdecimal()
