"""The official checker's report as complaints of one line each, with the line numbers of the log file."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from logs.read.lines import read_events, to_number

_NO_EVENT = "No log lines detected"
_SEPARATOR = "\n" + "-" * 30 + "\n"
_UNREADABLE_SHOWN = 3


def shortened(report: str, log: Path, ruleset: str, *, inserted: bool) -> Iterator[str]:
    """Yield the complaints of the checker's report, one line each.

    Args:
        report: What the checker wrote.
        log: The judged log.
        ruleset: The ruleset by which the log was judged.
        inserted: Whether the checker read a copy of the log with one event more, in front.
    """
    event_lines = _event_lines(log, ruleset, inserted=inserted)
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
        yield _NO_EVENT
        return
    for complaint in parse_error.sub("", report).removeprefix("WARNING -  ").split(_SEPARATOR):
        if complaint.strip():
            yield _with_values(_shorten_complaint(complaint, event_lines), log)


def _event_lines(log: Path, ruleset: str, *, inserted: bool) -> list[int]:
    """Return the 1-based line number of each event in the log file, because the checker counts events from 0.

    Args:
        log: The log file.
        ruleset: The ruleset by which the log is judged.
        inserted: Whether the checker reads the copy of `_with_division`, which has an event more.
    """
    token = ":::MLL" if ruleset == "0.6.0" else ":::MLLOG "
    with log.open(encoding="latin-1") as file:
        lines = enumerate(file, start=1)
        own = (number for number, line in lines if token in line and not (inserted and "submission_division" in line))
        return [*([0] if inserted else []), *own]


def _shorten_complaint(complaint: str, event_lines: list[int]) -> str:
    head = re.match(r"CHECK for '(\w+)' failed in line (\d+):\n.*\nfailed test: (.*)\n", complaint)
    if head:
        key, index, test = head.groups()
        got = _value_and_metadata(complaint.partition("current line[v]=")[2])
        number = dict(enumerate(event_lines)).get(int(index), int(index) + 1)
        state = _state(complaint, test)
        return f"line {number}: CHECK for '{key}' failed: {test.strip()}{state}; got {json.dumps(got)}"
    words, _, context = complaint.partition("\ncurrent context[s]=")
    if words.startswith("failed test:") and context:
        words += f"; with {' '.join(context.split())}"
    return " ".join(words.split())


def _with_values(message: str, log: Path) -> str:
    """Add the lowest and the highest logged value to a complaint that no value of a key passes."""
    never = re.match(r"Failed checks for (\w+) : ", message)
    if never is None:
        return message
    values = [to_number(event.value) for event in read_events(log) if event is not None and event.key == never[1]]
    numbers = [value for value in values if value is not None]
    return f"{message}; got {json.dumps({'lowest': min(numbers), 'highest': max(numbers)})}" if numbers else message


def _state(complaint: str, test: str) -> str:
    """Return the part of the checker's state that a test asks for, as words of a message; empty if there is none."""
    _, _, after = complaint.partition("\ncurrent context[s]=")
    try:
        state = json.loads(after.partition("\ncurrent line[v]=")[0])
    except ValueError:
        return ""
    asked = {name: state[name] for name in re.findall(r"\bs\['(\w+)'\]", test) if name in state}
    return f"; with {json.dumps(asked)}" if asked else ""


def _value_and_metadata(dumped: str) -> dict[str, Any]:
    """Return value and metadata of the log line that the checker printed; either may be missing."""
    try:
        line = json.loads(dumped)
    except ValueError:
        line = None
    if not isinstance(line, dict):
        return {}
    metadata = line.get("metadata")
    shown = {"value": line.get("value"), **(metadata if isinstance(metadata, dict) else {})}
    return {name: value for name, value in shown.items() if name not in ("file", "lineno")}
