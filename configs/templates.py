"""Text for a terminal by a template of jinja2, in which ``value | as(",.1f")`` is Python's `format`."""

from pathlib import Path
from typing import Any


def fill_template(path: Path, **values: Any) -> str:
    """Return the text of a template with these values; what the template lacks is an error of ours."""
    from jinja2 import Environment, StrictUndefined  # noqa: PLC0415 (only what prints such a text waits for it)

    environment = Environment(
        undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )
    environment.filters["as"] = format
    text: str = environment.from_string(path.read_text(encoding="utf-8")).render(values)
    return text
