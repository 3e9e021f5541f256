"""The official checker's report as complaints of one line each, in the checker's own words, with a remedy.

The checker prints its rules as Python expressions on a line ``v`` and a state ``s``. None is executed here.
"""

import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import yaml

_NO_EVENT = "No log lines detected"
_SEPARATOR = "\n" + "-" * 30 + "\n"
_UNREADABLE_SHOWN = 3

_KEY = re.compile(r"(?:CHECK for|occurrence of) '(\w+)'|Failed checks for (\w+)")


def complaints_of(report: str) -> Iterator[str]:
    """Yield the complaints of the checker's report, one line each."""
    report = re.sub(r"^INFO - .*\n", "", report, flags=re.MULTILINE)
    report = re.sub(r"^(ERROR - FAILED|WARNING - +Found parsing errors:)\n", "", report, flags=re.MULTILINE)
    parse_error = re.compile(r"^WARNING -   (.*)\nWARNING -    \^\^  (.*)\n", re.MULTILINE)
    unreadable = parse_error.findall(report)
    for text, reason in unreadable[:_UNREADABLE_SHOWN]:
        yield f"cannot be read ({reason}): {text[:120]}"
    if len(unreadable) > _UNREADABLE_SHOWN:
        yield f"and {len(unreadable) - _UNREADABLE_SHOWN} more lines cannot be read"
    if _NO_EVENT in report:
        # Without an event, every key is missing; one complaint says more than seventeen.
        yield "the file contains no MLPerf event in the format of this ruleset; give the log of a run"
        return
    for complaint in parse_error.sub("", report).removeprefix("WARNING -  ").split(_SEPARATOR):
        if complaint.strip():
            yield _with_remedy(_shortened(complaint))


def explain_crash(message: str) -> str:
    """Return the last line of a checker that crashed with what it means: a value without rules, or of another form."""
    if found := re.match(r"FileNotFoundError: .*/(.*)\.yaml", message):
        return (
            f"the ruleset has no rules called {found[1]}, allowed: submission_benchmark resnet, opt_name lars or sgd, "
            "and submission_division open or closed, which --division replaces"
        )
    return f"the checker crashed on this log ({message}); correct the value of the wrong form"


def _shortened(complaint: str) -> str:
    """Return a complaint in one line: what failed, the number of the event, and what the event has."""
    words, _, _ = complaint.partition("\ncurrent context[s]=")
    head = re.match(r"CHECK for '(\w+)' failed in line (\d+):\n.*\nfailed test: (.*)\n", complaint)
    if head is None:
        return " ".join(words.split())
    line = _mapping(complaint.partition("\ncurrent line[v]=")[2])
    metadata = line.get("metadata")
    got = {"value": line.get("value"), **(metadata if isinstance(metadata, dict) else {})}
    shown = {name: value for name, value in got.items() if name not in ("file", "lineno")}
    # The checker counts events from 0.
    return f"event {int(head[2]) + 1}: CHECK for '{head[1]}' failed: {head[3].strip()}; got {json.dumps(shown)}"


def _mapping(text: str) -> dict[str, Any]:
    """Return a JSON object; an empty one for text that is none."""
    try:
        tree = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return tree if isinstance(tree, dict) else {}


def _with_remedy(complaint: str) -> str:
    """Return a complaint with what to do about the key that it names, if that is known."""
    found = _KEY.search(complaint)
    remedy = _remedies().get(found[1] or found[2]) if found else None
    return f"{complaint}; {remedy}" if remedy else complaint


@cache
def _remedies() -> dict[str, str]:
    tree: dict[str, str] = yaml.safe_load(Path(__file__).with_name("remedies.yaml").read_text(encoding="utf-8"))
    return tree
