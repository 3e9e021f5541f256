"""The official checker's report as complaints of one line each, and these in plain words with a remedy.

The checker prints its rules as Python expressions on a line ``v`` and a state ``s``. They are shown with plain names;
none is executed here.
"""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from logs.read.lines import read_events, to_number

_NO_EVENT = "No log lines detected"
_SEPARATOR = "\n" + "-" * 30 + "\n"
_UNREADABLE_SHOWN = 3

_OPEN = ", or submit in the open division (recipe: mlperf.division: open)"
_LATER = ", or judge the log by ruleset 4.0.0 in the open division (recipe: mlperf.ruleset: 4.0.0)"
_WITHOUT_DIVISIONS = "0.6.0"
"""The ruleset that asks the same of both divisions."""

_REMEDIES = {
    "submission_org": "set submission.org in the cluster file",
    "submission_platform": "set submission.platform in the cluster file",
    "submission_division": "set mlperf.division in the recipe to open or closed; for another log, give --division",
    "submission_status": "set submission.status in the cluster file",
    "submission_poc_name": "set submission.poc_name in the cluster file",
    "cache_clear": (
        "drop the images from the page cache before init_start, and log it; a run of this program does so with images "
        "that it owns: set paths.stage in the cluster file to a folder on a local disk, or use a copy of your own"
    ),
    "init_stop": "end the initialisation with init_stop in time, before run_start",
    "run_stop": "let the run reach its target",
    "seed": "log seed once, from rank 0, with another value in each run",
}
"""Key of the log -> what to do about a complaint on it; other keys need no more than to be logged right."""

_MISSING = {
    "run_stop": "let the run come to its end",
    **dict.fromkeys(("eval_start", "eval_stop", "eval_accuracy"), "let the run come to an evaluation"),
}
"""Key -> what to do if it is not there, where that is another thing."""

_VALUES = {
    "eval_accuracy": "train until an evaluation reaches the target",
    "opt_name": "use optimizer.name lars or sgd",
    "opt_learning_rate_warmup_epochs": "set schedule.warmup_epochs above 0",
    "lars_epsilon": "set optimizer.epsilon to 0",
    "lars_opt_learning_rate_decay_poly_power": "set schedule.decay.power to 2",
    "lars_opt_end_learning_rate": "set schedule.decay.end_lr to 0.0001",
    "sgd_opt_end_learning_rate": "set schedule.decay.end_lr to 0.0001",
    "lars_opt_weight_decay": "set optimizer.weight_decay to 0.0001 times a power of 2",
    "sgd_opt_weight_decay": "set optimizer.weight_decay to 0.0001 times a power of 2",
    "sgd_opt_base_learning_rate": "round schedule.base_lr to a multiple of 0.001",
}
"""Key -> what to do about its value, if the rules of the division or of the ruleset refuse it."""


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
    for pattern, words in _COMPLAINTS:
        if found := re.match(pattern, message):
            return words(found, ruleset)
    return message


def _required(found: re.Match[str], _ruleset: str) -> str:
    keys = re.findall(r"'(\w+)'", found[1])
    names, count = " or ".join(keys), found[2] or "0"
    if count == "0":
        return f"{names} is missing; {_MISSING.get(keys[0]) or _remedy(keys[0])}"
    values = f", with different values ({found[3]})" if found[3] else ""
    return f"{names} is logged {count} times{values}, allowed: once; log {names} once, from rank 0"


def _checked(found: re.Match[str], ruleset: str) -> str:
    line, key, rule, state, got = found.groups()
    remedy = _value_remedy(key, ruleset) if key in _VALUES and key != "eval_accuracy" else _remedy(key)
    return f"line {line}: {key} has {_listed(_mapping(got))}; {_rule(rule, state)}; {remedy}"


def _never(found: re.Match[str], ruleset: str) -> str:
    key, rule, got = found[1], found[2], _mapping(found[3])
    values, remedy = "", _value_remedy(key, ruleset) if key in _VALUES else _remedy(key)
    if got.keys() >= {"lowest", "highest"}:
        values = f" (from {got['lowest']} to {got['highest']})"
        if key == "eval_accuracy" and got["lowest"] >= 1:
            remedy = "evaluate earlier (run.eval_first_epoch), or more images: the checker accepts no perfect score"
    return f"no {key} passes{values}; {_rule(rule)}; {remedy}"


def _rule(rule: str, state: str | None = None) -> str:
    """Return a rule with plain names, and the state that decides it."""
    plain = re.sub(r"[vs](?:\['metadata'\])?\['(\w+)'\]", r"\1", " ".join(rule.split()))
    return f"the rule is {plain}" + (f", where {_listed(_mapping(state))}" if state else "")


def _listed(values: Mapping[str, Any]) -> str:
    shown = [f"{name} {json.dumps(value)}" for name, value in values.items() if value is not None]
    return ", ".join(shown).replace('"', "") or "no value"


def _remedy(key: str) -> str:
    return _REMEDIES.get(key, f"log {key} from rank 0, as the rule asks")


def _value_remedy(key: str, ruleset: str) -> str:
    """Return what to do about a value, and which division or ruleset leaves the value free."""
    if ruleset == _WITHOUT_DIVISIONS:
        return _VALUES[key] + (_LATER if key.startswith("opt_") else "")
    # In round v0.7, the open division had a target, too.
    return _VALUES[key] + (_LATER if (key, ruleset) == ("eval_accuracy", "0.7.0") else _OPEN)


_COMPLAINTS = (
    (r"Required \w+ occurrence of (.*?)(?: but found (\d+)(?: with different values: \[(.*)\])?)?$", _required),
    (r"line (\d+): CHECK for '(\w+)' failed: (.*?)(?:; with (\{.*?\}))?; got (\{.*\})$", _checked),
    (r"Failed checks for (\w+) : (.*?)(?:; got (\{.*\}))?$", _never),
    (
        r"failed test: (.*?)(?:; with (\{.*\}))?$",
        lambda found, _: f"{_rule(found[1], found[2])}; log each hyperparameter of the optimizer exactly once",
    ),
    (
        "No log lines detected",
        lambda *_: (
            "the file contains no MLPerf event, or none in the format of this ruleset; give the log of a run, or "
            "another --ruleset"
        ),
    ),
    (
        r"cannot be read \((.*?)\): (.*)",
        lambda found, _: (
            f"a line is damaged, or in another format ({found[1]}): {found[2]}; write each of the two "
            "formats into a file of its own"
        ),
    ),
    (
        r"FileNotFoundError: .*/closed_resnet_(\w+)\.yaml",
        lambda found, ruleset: (
            f"opt_name has value {found[1]}, for which the closed division has no rules; "
            f"{_value_remedy('opt_name', ruleset)}"
        ),
    ),
    (
        r"(\w*(?:Error|Exception): .*)",
        lambda found, _: (
            f"the checker crashed on a value of the wrong form in this log ({found[1]}); correct the log: "
            "each accuracy must be a number, and all metadata JSON objects"
        ),
    ),
)
"""(pattern of a complaint, function that explains the complaint)."""
