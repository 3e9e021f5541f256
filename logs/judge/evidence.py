"""Tells whether the files of a run folder can be read, are all there, and agree with the run's log.

The official checker reads one log. A reviewer has the other files of the run, too.
"""

import os
from collections.abc import Callable, Iterator, Set
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from configs.errors import UserError
from configs.load import load_run
from logs.classes import CLASSES_FILE, ClassResults
from logs.disk import read_as, read_object
from logs.environment import ENVIRONMENT_FILE, read_environment
from logs.folder import CONFIG_FILE, DATASET_FILE, STARTUP_FILE, SUMMARY_FILE, RunFolder, Summary
from logs.judge.compliance import asks_for_log
from logs.metrics import METRICS_FILE, RANKS_FILE, read_metrics
from logs.mlperf import RESULT_FILES
from logs.read.files import logs_in
from logs.read.parse import parse_log
from logs.read.record import RunRecord
from logs.usage import SAMPLES_FILE, USAGE_FILE, RankTimes, Startup, read_samples, read_usage

_TOLERANCE, _TIME_TOLERANCE_S = 1e-6, 1.0
"""A summary measures with a clock of its own, so its seconds differ a little from those of the log's events."""
_AFTER = "accuracy after epoch"


@dataclass(frozen=True)
class Problem:
    """Why the files of a run do not support its result: ``kind`` in two words, and ``words`` for a user."""

    kind: str
    words: str


def problem_of(folder: Path) -> Problem | None:
    """Return the first problem of a run folder; None if there is none, or if the folder is another submitter's."""
    if denied := [name for name in _readers() if (folder / name).is_file() and not os.access(folder / name, os.R_OK)]:
        return Problem(
            "permission denied", f"{', '.join(denied)}: only the owner may read this; the owner can chmod a+r"
        )
    if damaged := _damaged(folder):
        return Problem("damaged files", "; ".join(damaged))
    log = next((folder / name for name in RESULT_FILES.values() if (folder / name).is_file()), None)
    if log is None:
        return None
    record = parse_log(log)
    if missing := _missing(folder, record):
        return Problem("missing files", missing)
    words = _disagreement(RunFolder(folder), log, record)
    return Problem("files disagree", words) if words else None


@dataclass(frozen=True)
class RunVerdict:
    """The verdict on a run of this program, as ``train`` gave it.

    Attributes:
        kind: What the verdict rests on: ``run``, or ``files`` if the files of the run do not support its result.
        passed: Whether the run is a success and its files agree.
        words: How the run ended, or what is wrong.
        rulesets: Rulesets whose judgement of the log belongs to the verdict; all if None.
    """

    kind: str
    passed: bool
    words: str
    rulesets: Set[str] | None


def judge_run(path: Path) -> RunVerdict | None:
    """Return the verdict on a run; None for anything else, and for a rehearsal, where the logs decide."""
    run = RunFolder(path)
    if path.is_dir() and (problem := problem_of(path)):
        rulesets = None
        with suppress(UserError):  # Of a folder without a config that can be read, all logs decide.
            rulesets = frozenset({run.recipe.mlperf.ruleset} if run.recipe.mlperf.submits else ())
        return RunVerdict("files", passed=False, words=problem.words, rulesets=rulesets)
    if not run.is_begun or (run.has_summary and run.summary().is_rehearsal):
        return None
    if not run.has_summary:
        return RunVerdict("run", passed=False, words="has not ended", rulesets=frozenset())
    recipe, summary = run.recipe, run.summary()
    if asks_for_log(recipe, summary):
        return RunVerdict("run", passed=True, words="success", rulesets={recipe.mlperf.ruleset})
    words = summary.failure or summary.status
    if summary.status == "success":
        why = (
            "the run was resumed" if summary.resumed_from_step is not None else "images were in memory as the run began"
        )
        why = why if recipe.mlperf.submits else "the recipe does not submit (mlperf.submits: false)"
        words += f"; {why}, so the log decides nothing"
    return RunVerdict("run", passed=summary.status == "success", words=words, rulesets=frozenset())


def is_own(folder: Path) -> bool:
    """Return whether a folder is that of a run of this program, though files of it may be missing."""
    return any(os.path.lexists(folder / name) for name in (CONFIG_FILE, SUMMARY_FILE, METRICS_FILE))


def members(path: Path) -> list[Path]:
    """Return each run folder below a folder that is none itself, and each other log there; if it has none, the path."""
    logs = logs_in(path) if path.is_dir() and not is_own(path) else []
    found = list(dict.fromkeys(log.parent if is_own(log.parent) else log for log in logs))
    return found if any(each.is_dir() for each in found) else [path]


def _readers() -> dict[str, Callable[[Path], object]]:
    """Return the files of a run, and what reads each of them or raises a `UserError`."""
    return {
        CONFIG_FILE: load_run,
        SUMMARY_FILE: lambda path: RunFolder(path.parent).summary(),
        METRICS_FILE: read_metrics,
        ENVIRONMENT_FILE: lambda path: read_environment(path.parent),
        DATASET_FILE: read_object,
        STARTUP_FILE: partial(read_as, Startup),
        RANKS_FILE: partial(read_as, dict[str, list[RankTimes]]),
        CLASSES_FILE: partial(read_as, ClassResults),
        USAGE_FILE: lambda path: read_usage(path.parent),
        SAMPLES_FILE: lambda path: read_samples(path.parent),
        **dict.fromkeys(RESULT_FILES.values(), lambda _: None),
    }


def _damaged(folder: Path) -> list[str]:
    """Return what is wrong with files of a run that are none, or not what they should be."""
    found = []
    for name, read in _readers().items():
        if os.path.lexists(folder / name):
            try:
                if not (folder / name).is_file():
                    raise UserError(f"{name}: cannot be read, because it is not a file")
                read(folder / name)
            except UserError as error:
                words = str(error).removeprefix(f"{folder}/")
                # A config.yaml that is cut off at the end of a line can be read, but lacks keys.
                found.append(words if words.startswith(name) else f"{name}: {words}")
    return found


def _missing(folder: Path, record: RunRecord) -> str:
    """Return which files of a run of this program are gone that its log, which has ended, would have to agree with."""
    if record.status is None or not is_own(folder):
        return ""
    names = [CONFIG_FILE, *RESULT_FILES.values()]
    # The ranks end the log of a run whose launcher was killed, and nobody writes its summary.
    names += [SUMMARY_FILE, METRICS_FILE, ENVIRONMENT_FILE] if record.status == "success" else []
    missing = [name for name in names if not (folder / name).is_file()]
    return f"missing: {', '.join(missing)}; changes to the other files cannot be detected" if missing else ""


def _disagreement(run: RunFolder, log: Path, record: RunRecord) -> str:
    """Return the first fact that two files of a run tell differently, in words; empty if all files agree."""
    if not run.has_summary:
        return ""
    summary = run.summary()
    if record.status is None:
        words = f"run_stop is missing in {log.name}, but {SUMMARY_FILE} has success"
        return words if summary.status == "success" else ""
    known: dict[str, tuple[Any, str]] = {"status": (record.status, log.name)}
    for source, facts in _facts(run, summary):
        for name, value in facts.items():
            other, where = known.setdefault(name, (value, source))
            agree = value == other
            if isinstance(value, int | float) and isinstance(other, int | float):
                agree = abs(value - other) <= (_TIME_TOLERANCE_S if name == "run time in s" else _TOLERANCE)
            if not agree:
                return f"{name} is {value} in {source}, but {other} in {where}"
    (target, _), (reached, _) = (known.get(name, (None, "")) for name in ("target", "accuracy"))
    if target is not None and (reached is None or reached < target):
        return f"the last accuracy in {log.name} is {reached}, below the target of {target}"
    return ""


def _facts(run: RunFolder, summary: Summary) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield what each file tells of a run: (file, name of a fact -> value). Only a success is told in all files."""
    # A run can fail after its run_stop: rank 0 was killed, or could not save the network. The summary says so.
    has_failed = summary.status == "aborted" and summary.failure is not None
    is_later = has_failed and (summary.steps is None or summary.is_saved is False)
    yield SUMMARY_FILE, {} if is_later else {"status": summary.status}
    if summary.status != "success" or summary.is_rehearsal:
        return
    configured = {
        "recipe": run.recipe.name,
        "target": run.recipe.run.target_top1,
        "seed": run.recipe.run.seed,
        "global_batch_size": run.recipe.batch.global_size,
        "world_size": run.cluster.world_size,
    }
    rows = read_metrics(run / METRICS_FILE)
    steps = [row["step"] for row in rows if row.get("kind") == "interval" and isinstance(row.get("step"), int)]
    evaluations = [row for row in rows if row.get("kind") == "evaluation"]
    measured = {f"{_AFTER} {row.get('epoch')}": row.get("top1", row.get("mean_auc")) for row in evaluations}
    told = {
        **{name: getattr(summary, name) for name in configured},
        "accuracy": summary.top1 if summary.mean_auc is None else summary.mean_auc,
        "last epoch": summary.epochs,
        "run time in s": summary.run_s if summary.resumed_from_step is None else None,
        "steps": summary.steps,
    }
    logs = [run / name for name in RESULT_FILES.values() if (run / name).is_file()]
    sources = {log.name: _logged(parse_log(log)) for log in logs} | {CONFIG_FILE: configured, SUMMARY_FILE: told}
    sources[METRICS_FILE] = {"steps": max(steps, default=-1) + 1, "evaluations": len(evaluations), **measured}
    for source, facts in sources.items():
        yield source, {name: value for name, value in facts.items() if value is not None}


def _logged(record: RunRecord) -> dict[str, Any]:
    """Return the facts of a log: name -> value."""
    return {
        **record.settings,
        "status": record.status,
        "seed": record.seeds[0] if len(record.seeds) == 1 else record.seeds or None,
        "global_batch_size": record.global_batch_size,
        "training images": record.train_samples,
        "accuracy": record.final_accuracy,
        "last epoch": record.epochs,
        "run time in s": record.time_to_train_s,
        "evaluations": len(record.evaluations),
        **{f"{_AFTER} {each.epoch}": each.accuracy for each in record.evaluations},
    }
