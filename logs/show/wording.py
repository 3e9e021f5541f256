"""What the report says of runs: what each is called, how they are headed, and when a mean over them means something."""

import time
from collections.abc import Sequence
from statistics import mean, median
from typing import Any

from markupsafe import Markup

from configs.registry import INVENTED_SOURCES
from logs.judge.compliance import Verdict
from logs.judge.evidence import impossible_times
from logs.judge.official import RULESET
from logs.judge.unverified import RETIRED, TERM, footnote
from logs.metrics import METRICS_FILE
from logs.read.lines import to_number
from logs.read.record import IMAGENET_IMAGES
from logs.show.identity import moment
from logs.show.reported_run import ReportedRun
from logs.slow_ranks import slow_stretches

NOTHING = "\u2013"
_SUBMISSION_RUNS = 5
"""MLPerf scores the mean of five runs without the fastest and the slowest, the olympic mean."""
_SILENT_S = 600.0
"""A run without an end whose files were last written longer ago is not called running."""
_REHEARSED = "This run is a rehearsal, not a result: ranks slept instead of computing, and the accuracies are invented."
_MOST_COMPLAINTS = 3
"""Complaints of the checker that a page shows of a log; a log of a resumed run has a dozen, all for one reason."""
_MOST_STRETCHES = 5
"""Parts of a run with a slow rank that a page names."""
_LEAST_STALL_S = 0.01
"""A shorter wait for checkpoints is not told."""


def heading(runs: Sequence[ReportedRun]) -> str:
    """Return the heading of the page: recipe, cluster and date, or how many runs of what."""
    places = list(dict.fromkeys(place_of(run) for run in runs))
    if len(runs) == 1:
        return ", ".join(text for text in (places[0] or runs[0].name, _date(runs[0])) if text)
    in_time = sorted(runs, key=lambda run: run.record.began_s or 0.0)
    dates = [date for date in dict.fromkeys(map(_date, in_time)) if date]
    when = f", {dates[0]}" + (f" to {dates[-1]}" if len(dates) > 1 else "") if dates else ""
    what = f": {places[0]}" if len(places) == 1 and places[0] else ""
    return f"{len(runs)} runs side by side{what}{when}"


def place_of(run: ReportedRun) -> str:
    """Return recipe and cluster of a run, or submitter and platform of a log."""
    recipe, cluster = run.settings.get("recipe.name"), run.settings.get("cluster.name")
    if recipe is not None:
        return f"{recipe} on {cluster}"
    return ", ".join(text for text in (run.record.submitter, run.record.platform) if text)


def _date(run: ReportedRun) -> str:
    return moment(run.record.began_s).partition(",")[0]


def lead(runs: Sequence[ReportedRun]) -> Markup:
    """Return a sentence with the time to train; a mean only over runs that are alike."""
    reached = [run for run in runs if state_of(run)[1]]
    times = sorted(run.record.time_to_train_s for run in reached if run.record.time_to_train_s)
    without = sum(_has_no_target(run) for run in reached)
    if not times:
        states = ", ".join(dict.fromkeys(state_of(run)[0] for run in runs))
        goal = "has succeeded" if all(map(_has_no_target, runs)) else "has reached its target"
        return Markup("No run {}: {}.").format(goal, states)
    if len(runs) == 1:
        goal = "of training to the last epoch, without a target" if without else "to train"
        return Markup("{} {}{}.").format(_score(times[0], reached), goal, _attempts(runs[0]))
    if differing := _differing(reached):
        sentence = Markup("{} of {} runs {}, the fastest after {}. ")
        sentence = sentence.format(len(reached), len(runs), _ended(len(reached), without), _score(times[0], reached))
        return sentence + f"No mean: the runs differ in {', '.join(differing)}."
    sentence = Markup("{} to train: median of ").format(_score(median(times), reached))
    ended = "without a target" if without else "that reached the target"
    sentence += f"{len(times)} runs {ended}, out of {len(runs)}; fastest {in_seconds(times[0])}, slowest "
    olympic = f"; olympic mean {in_seconds(mean(times[1:-1]))}" if len(times) >= _SUBMISSION_RUNS else ""
    return sentence + f"{in_seconds(times[-1])}{olympic}."


def _score(seconds: float, runs: Sequence[ReportedRun]) -> Markup:
    """Return a time of the runs, with the word that MLCommons prescribes if it has not reviewed them."""
    word = f" ({TERM})" if any(map(is_unverified_score, runs)) else ""
    return Markup("<strong>{}</strong>{}").format(in_seconds(seconds), word)


def _has_no_target(run: ReportedRun) -> bool:
    """Return whether a run of this program trains to its last epoch; other submitters' logs seldom name the target."""
    return run.path.is_dir() and run.target is None


def _ended(succeeded: int, without_target: int) -> str:
    """Return how the runs that succeeded ended, in words."""
    if not without_target:
        return "reached their target"
    if without_target == succeeded:
        return "ran to their last epoch, without a target"
    return f"succeeded ({succeeded - without_target} reached their target, {without_target} had none)"


def _attempts(run: ReportedRun) -> str:
    """Return in how many attempts a resumed run trained, and how long it paused; empty if it was not resumed."""
    pauses = run.record.pauses
    if run.record.attempts == 1:
        return ""
    paused_s = sum(pause.end_s - pause.begin_s for pause in pauses)
    return f", in {run.record.attempts} attempts" + (f", without pauses of {in_seconds(paused_s)}" if pauses else "")


def _differing(runs: Sequence[ReportedRun]) -> list[str]:
    """Return in what runs differ so much that their times have no common mean."""
    kinds: dict[str, set[Any]] = {
        "benchmark": {run.record.benchmark for run in runs},
        "submitter": {run.record.submitter for run in runs},
        "platform": {run.record.platform for run in runs},
        "recipe": {run.settings.get("recipe.name") for run in runs},
        "global batch": {run.record.global_batch_size for run in runs},
        "target": {run.target for run in runs},
        "training images": {run.record.train_samples for run in runs},
    }
    return [name for name, values in kinds.items() if len(values) > 1]


def state_of(run: ReportedRun) -> tuple[str, bool | None]:
    """Return what a run's outcome is called, and whether it is good; None if it is neither good nor bad."""
    status = str(run.summary.get("status") or run.record.status or "")
    if run.is_rehearsal:
        return f"rehearsal: {status or 'running'}", None
    if doubt := _doubt(run, status):
        return doubt, False
    if status in ("success", "aborted"):
        return ("stopped", None) if _was_stopped(run) else (status, status == "success")
    if run.log is not None and run.record.ruleset is None:
        return "no event in the log", None
    if run.record.began_s is None:
        return ("not started" if run.settings else "no run"), None
    return ("running" if _is_written_now(run) else "no end in the log"), None


def verdicts_of(run: ReportedRun) -> list[Verdict]:
    """Return the checker's verdicts that mean something: a run that was stopped has none before its end."""
    return [] if _was_stopped(run) else run.verdicts


def _was_stopped(run: ReportedRun) -> bool:
    """Return whether the last attempt was told to stop, and nothing failed."""
    return run.summary.get("status") == "aborted" and str(run.summary.get("failure")).startswith("stopped")


def _doubt(run: ReportedRun, status: str) -> str:
    """Return why a run is not what its status says, in a word or two; empty if nothing speaks against it."""
    if impossible_times(run.record):
        return "impossible times"
    reached, is_success = run.record.final_accuracy, status == "success" and run.record.is_of_images
    # The quality of other benchmarks may be a loss or an error rate, of which less is better.
    if is_success and run.target is not None and reached is not None and reached < run.target:
        return "below its target"
    return run.problem.kind if run.problem else ""


def _is_written_now(run: ReportedRun) -> bool:
    """Return whether a run of this program has written its log or its metrics lately."""
    if not run.path.is_dir():
        return False
    files = [file for file in (run.log, run.path / METRICS_FILE) if file is not None and file.is_file()]
    return any(time.time() - file.stat().st_mtime < _SILENT_S for file in files)


def notes_of(run: ReportedRun) -> list[str]:
    """Return the notes on a run, each a sentence."""
    record = run.record
    notes = [_REHEARSED] if run.is_rehearsal else []
    notes += [f"{clause[:1].upper()}{clause[1:]}." for clause in run.predictions]
    if failure := run.summary.get("failure"):
        notes.append(f"The run ended early: {failure}.")
    if run.problem:
        notes.append(f"{run.problem.kind.capitalize()}: {run.problem.words}.")
    if odd := impossible_times(record):
        notes.append(f"The times of the log cannot be: {odd}.")
    if not record.is_of_images:
        notes.append(
            f"This log is of MLPerf's benchmark {record.benchmark}: its epochs and quality are not those of images."
        )
    elif record.began_s is not None and record.no_rate_because:
        notes.append(f"No images/s: {record.no_rate_because}.")
    if record.attempts > 1:
        notes.append(f"The run was stopped and resumed: {record.attempts} attempts.")
    if (stall_s := to_number(run.summary.get("checkpoint_s"))) is not None and stall_s >= _LEAST_STALL_S:
        notes.append(f"Training waited {stall_s:.2f} s for checkpoints.")
    notes += [f"Energy: {run.energy.words}."] if run.energy else []
    notes += _about_start(run)
    notes += _about_slow_ranks(run)
    notes += [f"Attempt {number} {each.description}." for number, each in enumerate(run.restarts, start=1)]
    notes += _about_images(run)
    if record.division == "open":
        notes.append("The log is of the open division, which MLPerf does not compare with its reference convergence.")
    elif is_compared(run):
        notes.append(f"Reference convergence: {run.comparison.words}.")
    ranks, spread = record.init_starts
    if ranks > 1:
        notes.append(f"{ranks} ranks logged init_start, the last rank {spread:.3f} s after the first.")
    if record.unreadable:
        notes.append(f"{record.unreadable} records of the log could not be read.")
    for verdict in verdicts_of(run):
        notes += _complaints(run, verdict)
    return notes


def _complaints(run: ReportedRun, verdict: Verdict) -> list[str]:
    """Return the first complaints of the official checker, in words; how many there are if the run is not to submit."""
    count, command = len(verdict.messages), f"./run.sh check {run.path.name} explains"
    if count and run.record.attempts > 1:
        return [f"{verdict.ruleset}: the log fails MLPerf's check: a resumed run is not for submission; {command} why."]
    if count and run.settings.get("recipe.mlperf.submits") is False:
        return [f"{verdict.ruleset}: the log fails MLPerf's check, and the recipe does not submit; {command} why."]
    shown = [f"{verdict.ruleset}: {words}." for words in verdict.explained[:_MOST_COMPLAINTS]]
    left = count - len(shown)
    return [*shown, f"{verdict.ruleset}: {left} more; {command} {'them' if left > 1 else 'it'}."] if left else shown


def _about_start(run: ReportedRun) -> list[str]:
    """Return a note on the rank that was ready last, if the run has several ranks."""
    last, ranks = run.startup.last, run.summary.get("world_size")
    if last is None or not isinstance(ranks, int) or ranks <= 1:
        return []
    return [
        f"Rank {last.rank} on {last.host} was ready last, {last.ready_s - last.median_s:.2f} s after the median rank; "
        f"most of that in {last.phase}: {last.phase_s:.2f} s, where the median rank took {last.phase_median_s:.2f} s."
    ]


def _about_slow_ranks(run: ReportedRun) -> list[str]:
    """Return a note on each part of the run in which a rank was slow, the first ones if there are many."""
    clauses = list(slow_stretches(run.comparisons, has_ended=bool(run.summary)))
    notes = [f"{clause[:1].upper()}{clause[1:]}." for clause in clauses[:_MOST_STRETCHES]]
    left = len(clauses) - len(notes)
    return [*notes, f"Ranks were slow again, {left} more in {METRICS_FILE}."] if left else notes


def is_compared(run: ReportedRun) -> bool:
    """Return whether the run's epochs are compared with MLPerf's reference: a closed run on images."""
    return run.record.global_batch_size is not None and run.record.is_of_images and run.record.division != "open"


def is_unverified_score(run: ReportedRun) -> bool:
    """Return whether the run's time to train is a score of MLPerf's benchmark that MLCommons has not reviewed."""
    is_invented = run.is_rehearsal or run.settings.get("recipe.data.source") in INVENTED_SOURCES
    return _is_for_mlperf(run) and run.record.is_of_imagenet and not is_invented


def footnotes(runs: Sequence[ReportedRun]) -> list[str]:
    """Return what MLCommons asks to be said below the results; nothing if none of our runs is meant for MLPerf."""
    ours = [run for run in runs if _is_for_mlperf(run)]
    has_others = any("recipe.name" not in run.settings for run in runs)
    texts = [
        footnote(
            run.settings.get("recipe.mlperf.ruleset", RULESET),
            run.settings.get("recipe.mlperf.division", "open"),
            is_score=is_unverified_score(run),
            beside_verified=has_others,
        )
        for run in ours
    ]
    return [*dict.fromkeys(texts), *([RETIRED] if ours else [])]


def _is_for_mlperf(run: ReportedRun) -> bool:
    return run.settings.get("recipe.mlperf.submits") is True


def _about_images(run: ReportedRun) -> list[str]:
    """Return a note if another submitter's log counts other training images than ImageNet has."""
    images = run.record.train_samples
    if run.path.is_dir() or not run.record.is_of_images or not run.record.benchmark:
        return []
    if images is None:
        return [f"The log does not say how many images it trains on; images/s count ImageNet's {IMAGENET_IMAGES:,}."]
    if not run.record.is_of_imagenet:
        counted = f"The log counts {images:,} training images; ImageNet has {IMAGENET_IMAGES:,}"
        return [f"{counted}, and images/s follow the log."]
    return []


def in_seconds(value: float | None) -> str:
    """Return a duration in seconds, from ten minutes on in minutes."""
    if value is None:
        return NOTHING
    if value < 600:  # noqa: PLR2004
        return f"{value:.2f} s"
    return f"{value / 60:.2f} min"
