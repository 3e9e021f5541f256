"""Runs the official compliance checker on a log, and returns its verdict.

The checker runs in a process of its own (0.14 s, two-core machine, 2026-11), because it configures the root logger and
keeps its queue of rules in a module. Nothing of the checker is imported.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from configs.errors import ConfigError, UserError, near
from configs.reading import is_file
from configs.schema import Recipe
from logs.disk import digest_of, dispensable, read_as, write_json
from logs.folder import VERDICT_FILE, Summary
from logs.judge.complaints import complaints_of, explain_crash
from logs.mlperf import RESULT_FILES, event_of
from logs.read.files import NO_EVENT, has_event, logs_in
from logs.read.lines import ROUNDS
from logs.read.parse import parse_log

RULESETS = ("0.6.0", *(ruleset for ruleset, _ in ROUNDS))
"""The rulesets with rules for ResNet. The checker's default is a later ruleset, which ends in a traceback on ResNet."""

_OLD, _NEW = "0.6.0", "4.0.0"

_REHEARSAL_WORDS = "this is the log of a rehearsal: nothing was trained, and the accuracies are invented"
_HEAD_BYTES = 4096
"""A rehearsal's log says in its first line what it is."""
_TIMES_WORDS = "run_start is before 1970, or run_stop is not after it; look at the machine's clock, and train again"
_RESUMED_WORDS = "the run was resumed, and a submission needs a run in one piece; train it again without a stop"


@dataclass(frozen=True)
class Verdict:
    """The verdict of the official checker on one log under one ruleset.

    Attributes:
        messages: The checker's complaints, one line each, with a remedy; empty if ``passed``. Events count from 1.
        log_sha256: Digest of the judged log, by which a reader knows whether the verdict belongs to the log at hand;
            None if there was no log.
    """

    ruleset: str
    passed: bool
    messages: tuple[str, ...]
    log_sha256: str | None = None


def asks_for_log(recipe: Recipe, summary: Summary) -> bool:
    """Return whether the judgement of a run's log belongs to the run's verdict.

    It does if the recipe submits, and the run is one that can be submitted: a success in one piece, which was trained
    on images that were not in memory.
    """
    is_whole = summary.status == "success" and summary.resumed_from_step is None and not summary.is_rehearsal
    return recipe.mlperf.submits and is_whole and summary.is_cold is not False


def judge(log: Path, ruleset: str, division: str | None = None) -> Verdict:
    """Run the official checker on one log.

    Args:
        log: A log file of any format.
        ruleset: One of `RULESETS`.
        division: ``open`` or ``closed``. If None, the division that the log names.

    Raises:
        UserError: If there is no such log, or the ruleset has no rules for ResNet.
    """
    if ruleset not in RULESETS:
        raise ConfigError("ruleset", ruleset, ", ".join(RULESETS), near(ruleset, RULESETS))
    if not is_file(log):
        raise UserError(f"{log}: no such log file; give a run folder or a log file")
    # Before the checker reads the log, so that a log that grows meanwhile has another digest than the verdict.
    digest = digest_of(log)
    # In another folder, because a file of the working folder could hide a module that the checker needs.
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report"
        judged = log.absolute() if division is None else _with_division(log, ruleset, division, Path(folder))
        command = [sys.executable, "-m", "mlperf_logging.compliance_checker", "--usage", "training", "--quiet"]
        command += ["--ruleset", ruleset, "--log_output", str(report), str(judged)]
        # The checker lists alternatives (x or y) in the order of a set, which follows the hash seed.
        environment = os.environ | {"PYTHONHASHSEED": "0"}
        environment.pop("PYTHONPATH", None)  # That of a module has other versions; -I would ignore the seed, too.
        # In a session of its own: Ctrl-C on the terminal must not make a good log one that the checker failed on.
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, errors="replace", check=False,
            start_new_session=True,
        )  # fmt: skip
        words = report.read_text(encoding="utf-8", errors="replace") if report.is_file() else ""

    def verdict(*messages: str) -> Verdict:
        return Verdict(ruleset, not messages, messages, digest)

    with log.open("rb") as file:
        if event_of("rehearsal").search(file.read(_HEAD_BYTES)):
            return verdict(_REHEARSAL_WORDS)
    if done.returncode == 0:
        record = parse_log(log)
        can_be = (record.began_s or 0) > 0 and (record.time_to_train_s or 0) > 0
        return verdict(*() if can_be else (_TIMES_WORDS,))
    content = log.read_bytes()
    if event_of("resumed_from_step").search(content):
        return verdict(_RESUMED_WORDS)
    if (ends := len(event_of("run_stop").findall(content))) > 1 < len(event_of("init_start").findall(content)):
        return verdict(f"{ends} runs began and ended in this file; give the log of each in a file of its own")
    if not has_event(log):
        return verdict(NO_EVENT)
    crash = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}, and no message"])[-1]
    complaints = list(complaints_of(words))
    return verdict(*(complaints or [explain_crash(crash)]))


def read_verdicts(run_folder: Path) -> list[Verdict]:
    """Return the verdicts in ``verdict.json`` that belong to the run's logs as they are now, by digest.

    If the file is missing or damaged, there are none. A verdict on a missing log counts as long as the log is missing.
    """
    try:
        found = read_as(dict[str, Verdict], run_folder / VERDICT_FILE)
    except UserError:
        return []
    logs = {ruleset: run_folder / name for ruleset, name in RESULT_FILES.items()}
    digests = {ruleset: digest_of(log) if is_file(log) else None for ruleset, log in logs.items()}
    return [found[ruleset] for ruleset in logs if ruleset in found and found[ruleset].log_sha256 == digests[ruleset]]


def judge_all(pairs: Iterable[tuple[Path, str]], division: str | None = None) -> list[Verdict]:
    """Return the verdicts on (log, ruleset) pairs, in the same order; two checkers run at a time."""
    with ThreadPoolExecutor(max_workers=2) as pool:
        return list(pool.map(lambda pair: judge(pair[0], pair[1], division), pairs))


def keep_verdicts(run_folder: Path, judged: Iterable[tuple[Path, Verdict]]) -> dict[str, Verdict]:
    """Write the verdicts on a run's logs into the run folder as ``verdict.json``; a missing log fails.

    Args:
        run_folder: A run folder.
        judged: (log, verdict) pairs; logs of other folders, other names or other rulesets are left out.

    Returns:
        The verdicts by ruleset.
    """
    found = {(log, verdict.ruleset): verdict for log, verdict in judged}
    verdicts = {
        ruleset: found.get((run_folder / name, ruleset))
        or Verdict(ruleset, passed=False, messages=(f"no {name} was written",))
        for ruleset, name in RESULT_FILES.items()
    }
    with dispensable():
        write_json(run_folder / VERDICT_FILE, {ruleset: asdict(verdict) for ruleset, verdict in verdicts.items()})
    return verdicts


def write_verdict(run_folder: Path) -> dict[str, Verdict]:
    """Judge the logs of a run folder, write the verdicts as ``verdict.json``, and return them by ruleset."""
    pairs = [(run_folder / name, ruleset) for ruleset, name in RESULT_FILES.items() if is_file(run_folder / name)]
    return keep_verdicts(run_folder, zip((log for log, _ in pairs), judge_all(pairs), strict=True))


def find_logs(path: Path, ruleset: str | None = None, *, may_lack: bool = False) -> list[tuple[Path, str]]:
    """Return the logs at ``path``, each with the ruleset to judge the log by.

    Args:
        path: A log, or a folder with logs.
        ruleset: In a folder, only logs in the format of this ruleset are returned. If None, each log's own ruleset:
            0.6.0 has a format of its own, the later rulesets share one, and the date of the run tells them apart.
        may_lack: Whether a folder may be without a log.

    Raises:
        UserError: If there is no such file or folder, or no log in the folder.
    """
    if path.is_file():
        return [(path, ruleset or _own_ruleset(path))]
    if not path.is_dir():
        raise UserError(f"{path}: is no file or folder; give a run folder or a log")
    found = [(log, _own_ruleset(log)) for log in logs_in(path)]
    if ruleset:
        found = [(log, ruleset) for log, own in found if (own == _OLD) == (ruleset == _OLD)]
    if not found and not may_lack:
        raise UserError(f"{path}: no log for {ruleset or 'any ruleset'} in it; give a run folder or a log")
    return found


def _own_ruleset(log: Path) -> str:
    """Return the ruleset of a log according to its events; without events, according to the file name."""
    found = parse_log(log).ruleset
    if found == "0.5.0":
        remedy = "./run.sh report can show this log"
        raise UserError(f"{log}: is of round v0.5, for which the official checker has no rules; {remedy}")
    return found or (_OLD if log.name.endswith(".mll.txt") else _NEW)


def _with_division(log: Path, ruleset: str, division: str, folder: Path) -> Path:
    """Copy a log into ``folder`` with another division; return the copy. A log that names none gets a first line."""
    key, value = "submission_division", {"value": division, "metadata": {}}
    line = f":::MLL 0 {key}: {json.dumps(value)}"
    if ruleset != _OLD:
        line = f":::MLLOG {json.dumps({'time_ms': 0, 'key': key, **value})}"
    lines = log.read_bytes().split(b"\n")
    named = [number for number, each in enumerate(lines) if b":::MLL" in each and key.encode() in each]
    for number in named:
        lines[number] = line.encode()
    copy = folder / "log"
    copy.write_bytes(b"\n".join(lines if named else [line.encode(), *lines]))
    return copy
