"""The document of a plan as text for a terminal, by ``plan.txt.jinja``."""

import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from configs.arguments import counted, duration
from configs.templates import fill_template

_TEMPLATE = Path(__file__).with_name("plan.txt.jinja")


def render(document: Mapping[str, Any]) -> str:
    """Return the whole text of `train.plan.document.plan_document`; it ends with a newline."""
    broken: dict[str, list[str]] = {}
    for ruleset, verdict in document["compliance"]["rulesets"].items():
        for rule in verdict["broken_rules"]:
            words = f"{rule['rule']}: {rule['key']} is {rule['got']}, allowed: {rule['allowed']}"
            broken.setdefault(words, []).append(ruleset)
    ways = {"counted": counted, "duration": duration, "wrapped": _wrapped}
    return fill_template(_TEMPLATE, **document, **ways, broken=broken)


def _wrapped(name: str, text: str) -> str:
    """Return a text of any length beside its name, in lines of at most 120 characters."""
    return textwrap.fill(f"{name:<11}{text}", 120, initial_indent="  ", subsequent_indent=" " * 13)
