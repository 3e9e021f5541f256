"""The official checker's report as complaints of one line each, and these in plain words with a remedy.

The checker prints its rules as Python expressions on a line ``v`` and a state ``s``. They are shown with plain names;
none is executed here.
"""

import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from logs.read.lines import read_events, to_number

_NO_EVENT = "No log lines detected"
_SEPARATOR = "\n" + "-" * 30 + "\n"
_UNREADABLE_SHOWN = 3

_OPEN = ", or submit in the open division (recipe: mlperf.division: open)"
_LATER = ", or judge the log by ruleset 4.0.0 in the open division (recipe: mlperf.ruleset: 4.0.0)"


def complaints_of(report: str, log: Path, ruleset: str, *, inserted: bool) -> Iterator[str]:
    """Yield the complaints of the checker's report, one line each, in the checker's own words.

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
            yield _with_values(_shortened(complaint, event_lines), log)


def _event_lines(log: Path, ruleset: str, *, inserted: bool) -> list[int]:
    """Return the 1-based line number of each event in the log file, because the checker counts events from 0."""
    token = ":::MLL" if ruleset == "0.6.0" else ":::MLLOG "
    with log.open(encoding="latin-1") as file:
        lines = enumerate(file, start=1)
        own = (number for number, line in lines if token in line and not (inserted and "submission_division" in line))
        return [*([0] if inserted else []), *own]


def _shortened(complaint: str, event_lines: list[int]) -> str:
    """Return a complaint in one line: what failed, the part of the state that the test asks for, and the log's line."""
    head = re.match(r"CHECK for '(\w+)' failed in line (\d+):\n.*\nfailed test: (.*)\n", complaint)
    words, _, context = complaint.partition("\ncurrent context[s]=")
    state_text, _, line_text = context.partition("\ncurrent line[v]=")
    test = head[3].strip() if head else words
    state = {name: value for name, value in _mapping(state_text).items() if f"s['{name}']" in test}
    told = f"; with {json.dumps(state)}" if state else ""
    if head is None:
        return " ".join(words.split()) + told
    line = _mapping(line_text or complaint.partition("\ncurrent line[v]=")[2])
    metadata = line.get("metadata")
    got = {"value": line.get("value"), **(metadata if isinstance(metadata, dict) else {})}
    shown = {name: value for name, value in got.items() if name not in ("file", "lineno")}
    number = dict(enumerate(event_lines)).get(int(head[2]), int(head[2]) + 1)
    return f"line {number}: CHECK for '{head[1]}' failed: {test}{told}; got {json.dumps(shown)}"


def _with_values(message: str, log: Path) -> str:
    """Add the lowest and the highest logged value to a complaint that no value of a key passes."""
    never = re.match(r"Failed checks for (\w+) : ", message)
    if never is None:
        return message
    values = [to_number(event.value) for event in read_events(log) if event is not None and event.key == never[1]]
    numbers = [value for value in values if value is not None]
    return f"{message}; got {json.dumps({'lowest': min(numbers), 'highest': max(numbers)})}" if numbers else message


def _mapping(text: str | None) -> dict[str, Any]:
    """Return a JSON object; an empty one for text that is none."""
    try:
        tree = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return {}
    return tree if isinstance(tree, dict) else {}


def explain(message: str, ruleset: str) -> str:
    """Return a message of `logs.judge.compliance.Verdict` in plain words with a remedy; an unknown one unchanged.

    Args:
        message: The message.
        ruleset: The ruleset of the verdict.
    """
    for complaint in _remedies()["complaints"]:
        if found := re.match(complaint["pattern"], message):
            told = _told({**complaint, **found.groupdict()}, ruleset)
            return str(complaint["words"].format(**told))
    return message


@cache
def _remedies() -> dict[str, Any]:
    tree: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("remedies.yaml").read_text(encoding="utf-8"))
    return tree


def _told(groups: Mapping[str, Any], ruleset: str) -> dict[str, Any]:
    """Return the groups of a complaint's pattern in plain words, and the remedy."""
    told, about, key = dict(groups), groups.get("about", ""), groups.get("key", "")
    told["keys"] = (groups.get("keys") or "").replace("'", "")
    told["got"] = _listed(_mapping(groups.get("got")))
    told["range"], ends = "", _mapping(groups.get("range"))
    if ends.keys() >= {"lowest", "highest"}:
        told["range"] = f" (from {ends['lowest']} to {ends['highest']})"
        about = "perfect" if key == "eval_accuracy" and ends["lowest"] >= 1 else about
    # A rule is a Python expression on a line v and a state s.
    rule = re.sub(r"[vs](?:\['metadata'\])?\['(\w+)'\]", r"\1", " ".join((groups.get("rule") or "").split()))
    state = groups.get("state")
    told["rule"] = f"the rule is {rule}" + (f", where {_listed(_mapping(state))}" if state else "")
    return told | {"remedy": _remedy(key, about, ruleset)}


def _listed(values: Mapping[str, Any]) -> str:
    shown = [f"{name} {json.dumps(value)}" for name, value in values.items() if value is not None]
    return ", ".join(shown).replace('"', "") or "no value"


def _remedy(key: str, about: str, ruleset: str) -> str:
    """Return what to do about a key; about its value, also which division or ruleset leaves the value free."""
    known = _remedies()["keys"].get(key, {})
    if about == "never" and about not in known:
        about = "value"
    if about not in known:
        return str(known.get("else", f"log {key} from rank 0, as the rule asks"))
    if about not in ("value", "never"):
        return str(known[about])
    if ruleset == "0.6.0":  # It asks the same of both divisions.
        return str(known[about]) + (_LATER if key.startswith("opt_") else "")
    # In round v0.7, the open division had a target, too.
    return str(known[about]) + (_LATER if (key, ruleset) == ("eval_accuracy", "0.7.0") else _OPEN)
