"""The document of a plan as text for a terminal, by ``plan.txt.jinja``."""

import textwrap
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from configs.arguments import counted, duration
from configs.templates import fill_template

_TEMPLATE = Path(__file__).with_name("plan.txt.jinja")
_WIDTH, _HEIGHT = 72, 10


def render(document: Mapping[str, Any]) -> str:
    """Return the whole text of `train.plan.document.plan_document`; it ends with a newline."""
    broken: dict[str, list[str]] = {}
    for ruleset, verdict in document["compliance"]["rulesets"].items():
        for rule in verdict["broken_rules"]:
            words = f"{rule['rule']}: {rule['key']} is {rule['got']}, allowed: {rule['allowed']}"
            broken.setdefault(words, []).append(ruleset)
    ways = {"counted": counted, "duration": duration, "wrapped": _wrapped}
    return fill_template(_TEMPLATE, **document, **ways, broken=broken, chart=_chart(document["schedule"]))


def _chart(schedule: Sequence[Sequence[float]]) -> list[str]:
    """Return a chart of rows [step, value, ...] as lines of ``#``; the highest bar reaches the top."""
    steps = [row[0] for row in schedule]
    last, top = steps[-1], max(row[1] for row in schedule)
    columns = [
        schedule[bisect_right(steps, last * column / (_WIDTH - 1)) - 1][1] / top if top else 0.0
        for column in range(_WIDTH)
    ]
    lines = []
    for level in range(_HEIGHT, 0, -1):
        bars = "".join("#" if share > (level - 0.5) / _HEIGHT else " " for share in columns)
        lines.append(f"{top * level / _HEIGHT:8.3g} |{bars}".rstrip())
    return [*lines, f"{'':8} +{'-' * _WIDTH}", f"{'step':>8}  0{last:>{_WIDTH - 1}}"]


def _wrapped(name: str, text: str) -> str:
    """Return a text of any length beside its name, in lines of at most 120 characters."""
    return textwrap.fill(f"{name:<11}{text}", 120, initial_indent="  ", subsequent_indent=" " * 13)
