"""Explains the official checker's complaints in plain words, and says what to change.

The checker prints rules as Python expressions. This module translates the expressions of the rules for ResNet.
"""

import json
import re
from collections.abc import Iterable, Sequence
from typing import Any

from logs.judge.clauses import broken_clauses

_CLAUSES = (
    (r"v\['value'\] != ''", "it must not be empty"),
    (r"v\['value'\] in \[([^\]]*)\]", "it must be one of {0}"),
    (r"v\['value'\] ==? ?True", "it must be true"),
    (r"v\['value'\] == ([\d.e-]+)", "it must be {0}"),
    (r"v\['value'\] >= ([\d.e-]+)", "it must be at least {0}"),
    (r"v\['value'\] > ([\d.e-]+)", "it must be above {0}"),
    (r"v\['value'\] < ([\d.e-]+)", "it must be below {0}"),
    (r"is_integer\(math.log2\(v\['value'\] / 0.0001\)\)", "it must be 0.0001 times a power of two (as 5e-5 or 2e-4)"),
    (r"is_integer\(v\['value'\] / 0.001\)", "it must be a multiple of 0.001"),
    (r"not s\['init_stopped'\]", "it must come before init_stop"),
    (r"(?<!not )s\['init_stopped'\](?! *==? *False)", "it must come after init_stop"),
    (r"s\['init_started'\] == False", "it must come before init_start"),
    (r"(?<!not )s\['init_started'\](?! *== *False)", "it must come after init_start"),
    (r"not s\['run_started'\]", "it must come before run_start"),
    (r"(?<!not )s\['run_started'\]", "it must come after run_start"),
    (r"not s\['run_stopped'\]", "it must come before run_stop"),
    (r"first_init_start", "init_stop must come at most 20 to 30 minutes after init_start (open division: 240)"),
    (r"not s\['in_eval'\]", "no evaluation may be open"),
    (r"(?<!not )s\['in_eval'\]", "an evaluation must be open"),
    (r"not s\['in_epoch'\]", "no epoch may be open"),
    (r"(?<!not )s\['in_epoch'\]", "an epoch must be open"),
    (r"not s\['in_block'\]", "no block may be open"),
    (r"(?<!not )s\['in_block'\]", "a block must be open"),
    (r"s\['block_first_epoch'\] ==", "first_epoch_num must be that of the block_start"),
    (r"v\['metadata'\]\['\w+'\] > s\['last_eval'\]", "epoch_num must be above that of the previous evaluation"),
    (r"v\['metadata'\]\['epoch_count'\] > 0", "epoch_count must be above 0"),
    (r"s\['accuracy_printed'\]", "the previous evaluation must have logged eval_accuracy"),
    (r"== ?\(?s\['last_epoch'\] ?\+ ?1\)?", "epochs must be numbered 1, 2, 3 and so on, without gaps and repetitions"),
    (r"\['epoch_num'\] (?:== |<= )s\['last_e\w+'\]", "epoch_num must be that of the enclosing epoch or evaluation"),
    (r"\['status'\] == 'success'", "the status must be success"),
    (r"'(\w+)' in v\['metadata'\]", "the metadata must contain {0}"),
)
"""(pattern in a rule, the requirement in words)."""

_OPEN = "or submit in the open division (recipe: mlperf.division: open)"

_CLAUSE_REMEDIES = (
    (
        r"v\['value'\] >= (0\.7\d+)$",
        f"train longer or with another schedule until an evaluation reaches {{0}}, {_OPEN}",
    ),
    (r"'(\w+)' in v\['metadata'\]", "add {0} to the metadata of each {key}"),
    (r"v\['value'\] < 1\.0$", "log accuracies as shares from 0 to 1, not in percent"),
    (r"\['status'\]", "let the run reach its target, because this ruleset accepts no aborted or killed run"),
    (r"first_init_start", "make the initialisation shorter, or log init_start later, but before it touches the data"),
    (
        r"'in_(eval|epoch|block)'|accuracy_printed",
        "end each epoch, evaluation and block before the next",
    ),
    (r"'(last_e\w+|block_first_epoch)'", "number the epochs as the run trains them, and log each once, from rank 0"),
    (r"s\['\w+_(started|stopped)'\]", "write the events in the order in which they happen"),
)
"""(pattern in a clause, remedy), where the remedy follows from the broken clause and not from the key."""
_REMEDIES = {
    "submission_org": "set submission.org in the cluster file",
    "submission_platform": "set submission.platform in the cluster file",
    "submission_division": "set mlperf.division in the recipe to open or closed; for another log, give --division",
    "submission_status": "set submission.status in the cluster file",
    "submission_benchmark": "log submission_benchmark resnet",
    "submission_poc_name": "set submission.poc_name in the cluster file",
    "submission_entry": "log submission_entry with hardware and framework of the run",
    "cache_clear": "drop the page cache before the run, and log cache_clear true before init_start",
    "init_start": "log init_start from rank 0 only, before anything that prepares the run",
    "init_stop": "end the initialisation with init_stop, before run_start",
    "run_start": "log run_start once, from rank 0, before the first training byte is read",
    "run_stop": "let the run reach its target, because this ruleset accepts no aborted or killed run",
    "epoch_start": "log each epoch once, from rank 0",
    "epoch_stop": "log each epoch once, from rank 0",
    "eval_start": "log each evaluation once, after its epochs",
    "eval_stop": "log each evaluation once, after its epochs",
    "eval_accuracy": "train until an evaluation has ended, and log its eval_accuracy",
    "block_start": "log block_start with first_epoch_num and epoch_count, one block for each evaluation",
    "block_stop": "log block_stop after the eval_accuracy of the block",
    "train_samples": "log train_samples, the number of training images",
    "eval_samples": "log eval_samples, the number of validation images",
    "gradient_accumulation_steps": "log gradient_accumulation_steps (1 without accumulation)",
    "global_batch_size": "log global_batch_size once, with one value",
    "opt_name": f"use optimizer.name lars or sgd, {_OPEN}",
    "lars_epsilon": f"set optimizer.epsilon to 0, {_OPEN}",
    "lars_opt_learning_rate_decay_poly_power": f"set schedule.decay.power to 2, {_OPEN}",
    "lars_opt_end_learning_rate": f"set schedule.decay.end_lr to 0.0001, {_OPEN}",
    "sgd_opt_end_learning_rate": f"set schedule.decay.end_lr to 0.0001, {_OPEN}",
    "lars_opt_weight_decay": f"change optimizer.weight_decay, {_OPEN}",
    "sgd_opt_weight_decay": f"change optimizer.weight_decay, {_OPEN}",
    "sgd_opt_base_learning_rate": f"round schedule.base_lr to a multiple of 0.001, {_OPEN}",
    "seed": "log seed once, from rank 0, with another value in each run",
}


def explain(message: str) -> str:
    """Return a message of `logs.judge.compliance.Verdict` in plain words, with a remedy."""
    for pattern, words in _COMPLAINTS:
        if found := re.match(pattern, message):
            return words(found)
    return f"{message} (the checker's own words; the rule is in the mlperf_logging package)"


def _required(found: re.Match[str]) -> str:
    keys = re.findall(r"'(\w+)'", found[2])
    names, count = " or ".join(keys), found[3] or "0"
    if count == "0":
        return f"{names} is missing; {_remedy(keys[0])}"
    values = f", with different values ({found[4]})" if found[4] else ""
    return f"{names} is logged {count} times{values}, allowed: once; log {names} once, from rank 0"


def _checked(found: re.Match[str]) -> str:
    line, key, rule, state, got = found.groups()
    values = json.loads(got)
    shown = {name: value for name, value in values.items() if value is not None}
    if list(shown) == ["value"]:
        words = f"is {shown['value']}"
    else:
        words = "has " + (", ".join(f"{name} {value}" for name, value in shown.items()) or "no value")
    broken = broken_clauses(rule, values, state=_mapping(state))
    return f"line {line}: {key} {words}: {_in_words(broken)}; {_remedy(key, broken)}"


def _never(found: re.Match[str]) -> str:
    key, rule, got = found[1], found[2], _mapping(found[3])
    ends = [{"value": got[name]} for name in ("lowest", "highest") if name in got]
    broken = broken_clauses(rule, *ends, state={})
    words = f" (from {ends[0]['value']} to {ends[1]['value']})" if ends else ""
    return f"no {key} passes{words}: {_in_words(broken)}; {_remedy(key, broken)}"


def _at_the_end(found: re.Match[str]) -> str:
    keys = re.findall(r"s\['(\w+)'\]", " ".join(broken_clauses(found[1], {}, state=_mapping(found[2]))))
    words = ", ".join(sorted(set(keys)))
    return f"not all hyperparameters of the optimizer are logged exactly once: {words}; log each once"


def _mapping(text: str | None) -> dict[str, Any]:
    """Return a JSON object; an empty one for text that is none."""
    try:
        tree = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return {}
    return tree if isinstance(tree, dict) else {}


def _none_seen(_: re.Match[str]) -> str:
    remedy = "give the log of a run, or another --ruleset"
    return f"the file contains no MLPerf event, or none in the format of this ruleset; {remedy}"


def _damaged(found: re.Match[str]) -> str:
    remedy = "write each of the two formats into a file of its own"
    return f"a line is damaged, or in another format ({found[1]}): {found[2]}; {remedy}"


def _malformed(found: re.Match[str]) -> str:
    rule, line, key = found.groups()
    words = f"{key} has a value or metadata of the wrong form: {_in_words([rule])}"
    return f"{words}; {_remedy(key)}. The line is: {line[:200]}"


def _crashed(found: re.Match[str]) -> str:
    remedy = "correct the log: each accuracy must be a number, and all metadata JSON objects"
    return f"the checker crashed on a value of the wrong form in this log ({found[1]}); {remedy}"


def _more_lines(found: re.Match[str]) -> str:
    return f"{found[1]}; correct the lines named above first"


_REQUIRED = r"Required (\w+) occurrence of (.*?)(?: but found (\d+)(?: with different values: \[(.*)\])?)?$"
_COMPLAINTS = (
    (r"this is the log of a rehearsal", lambda found: found.string),  # by this program, not by the checker
    (_REQUIRED, _required),
    (r"line (\d+): CHECK for '(\w+)' failed: (.*?)(?:; with (\{.*?\}))?; got (\{.*\})$", _checked),
    (r"Failed checks for (\w+) : (.*?)(?:; got (\{.*\}))?$", _never),
    (r"failed test: (.*?)(?:; with (\{.*\}))?$", _at_the_end),
    (
        r"Failed executing (?:CHECK )?code:? (.*?) triggered by line ?: (.*?(?:\"key\": \"|:::MLL \S+ )(\w+).*)",
        _malformed,
    ),
    (r"No log lines detected", _none_seen),
    (r"(\w*(?:Error|Exception): .*)", _crashed),
    (r"cannot be read \((.*?)\): (.*)", _damaged),
    (r"(and \d+ more lines cannot be read|Log lines had parsing errors)", _more_lines),
)
"""(pattern of a complaint, function that explains the complaint)."""


def _in_words(clauses: Iterable[str]) -> str:
    asked = []
    rule = " and ".join(clauses)
    for pattern, words in _CLAUSES:
        for found in re.finditer(pattern, rule):
            text = words.format(*(group.replace("'", "") for group in found.groups() if group is not None))
            if text not in asked:
                asked.append(text)
    return ", and ".join(asked) or f"the rule is {rule}"


def _remedy(key: str, broken: Sequence[str] = ()) -> str:
    """Return what to do about ``key``: what the first broken clause asks for, otherwise what the key needs."""
    for pattern, words in _CLAUSE_REMEDIES:
        if broken and (found := re.search(pattern, broken[0])):
            return words.format(*found.groups(), key=key)
    return _REMEDIES.get(key, f"log {key} once, from rank 0, as the rules ask")
