"""What the report says of runs: what each is, what it is called, and what is remarkable of it."""

import shlex
from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from itertools import islice

from markupsafe import Markup

from configs.arguments import counted, short_path
from configs.registry import ENGINES, INVENTED_SOURCES
from logs.environment import machine_in_words
from logs.judge.compliance import Verdict
from logs.judge.official import RULESET
from logs.judge.unverified import RETIRED, TERM, footnote
from logs.show.reported_run import ReportedRun
from logs.slow_ranks import slow_stretches

NOTHING = "\u2013"
_REHEARSED = "This run is a rehearsal, not a result: ranks slept instead of computing, and the accuracies are invented."
_MOST_STRETCHES = 5
"""Parts of a run with a slow rank that a page names."""
_COMMIT_DIGITS = 12


def heading(runs: Sequence[ReportedRun]) -> str:
    """Return the heading of the page: recipe, cluster and date, or how many runs there are."""
    if len(runs) > 1:
        return f"{len(runs)} runs side by side"
    date = _moment(runs[0].record.began_s).partition(",")[0]
    return ", ".join(filter(None, (place_of(runs[0]) or runs[0].name, date)))


def place_of(run: ReportedRun) -> str:
    """Return recipe and cluster of a run, or submitter and platform of a log."""
    recipe, cluster = run.settings.get("recipe.name"), run.settings.get("cluster.name")
    log = ", ".join(text for text in (run.record.submitter, run.record.platform) if text)
    return log if recipe is None else f"{recipe} on {cluster}"


def common_and_differing(runs: Sequence[ReportedRun]) -> tuple[dict[str, str], dict[str, list[str | None]]]:
    """Return the facts that all runs share, and the facts in which they differ with the value of each run."""
    told = [_configured(run) if "recipe.name" in run.settings else _logged(run) for run in runs]
    facts = [{name: value for name, value in each if value} for each in told]
    names = list(dict.fromkeys(name for each in facts for name in each))
    values = {name: [each.get(name) for each in facts] for name in names}
    shared = {name: found[0] for name, found in values.items() if found[0] and len(set(found)) == 1}
    return shared, {name: found for name, found in values.items() if name not in shared}


def _configured(run: ReportedRun) -> Iterator[tuple[str, str]]:
    """Yield name and value of each fact of a run of this program, in the order of the page."""
    settings, surroundings = run.settings, run.environment
    yield "Recipe", f"{settings['recipe.name']}, {settings.get('recipe.mlperf.division')} division"
    parameters = "" if run.startup.parameters is None else f", {run.startup.parameters:,} parameters"
    yield "Network", f"{settings.get('recipe.model.name')}{parameters}"
    yield "Data", str(settings.get("recipe.data.name"))
    git = surroundings.get("git") or {}
    changed = " with changes" if git.get("dirty") else ""
    yield "Commit", f"{str(git['commit'])[:_COMMIT_DIGITS]}{changed}" if git.get("commit") else ""
    nodes, ranks = settings.get("cluster.num_nodes"), settings.get("cluster.ranks_per_node")
    if isinstance(nodes, int) and isinstance(ranks, int):
        total = f"{counted(nodes * ranks, 'rank')} on {counted(nodes, 'node')}"
        yield "Machine", "; ".join(filter(None, (total, machine_in_words(surroundings))))
    name, versions = str(settings.get("cluster.engine.name")), surroundings.get("packages") or {}
    entry = ENGINES.get(name)
    found = [str(versions[package]) for package in entry.distributions if package in versions] if entry else []
    title = " ".join([entry.title if entry else name, *found[:1]])
    yield "Engine", f"{title}, {settings.get('cluster.engine.precision')}"
    yield "Began", _moment(run.record.began_s)
    yield "Command", str(surroundings.get("command") or "")


def _logged(run: ReportedRun) -> Iterator[tuple[str, str]]:
    """Yield name and value of each fact of another submitter's log."""
    record = run.record
    yield "Submitter", record.submitter or ""
    yield "Platform", record.platform or ""
    yield "Benchmark", ", ".join(filter(None, (record.benchmark, record.division and f"{record.division} division")))
    yield "Rules", record.ruleset or ""
    yield "Began", _moment(record.began_s)


def _moment(time_s: float | None) -> str:
    """Return Unix seconds as day, month, year, and the time of day behind a comma; empty if they are None."""
    then = None if time_s is None else datetime.fromtimestamp(time_s, tz=timezone.utc)
    return f"{then.day} {then:%B %Y, %H:%M:%S} UTC" if then else ""


def lead(runs: Sequence[ReportedRun]) -> Markup:
    """Return a sentence with the time to train; of several runs, those of the fastest and the slowest."""
    reached = [run for run in runs if state_of(run)[1]]
    times = sorted(run.record.time_to_train_s for run in reached if run.record.time_to_train_s)
    if not times:
        words = "No success has its time in the log" if reached else "No run has succeeded"
        return Markup("{}: {}.").format(words, ", ".join(dict.fromkeys(state_of(run)[0] for run in runs)))
    if len(runs) > 1:
        sentence = Markup("{} of {} runs succeeded, the fastest after {}, the slowest after {}.")
        return sentence.format(len(reached), len(runs), *(_score(end, reached) for end in (times[0], times[-1])))
    record = runs[0].record
    # Other submitters' logs seldom name the target.
    has_none = runs[0].path.is_dir() and runs[0].target is None
    goal = "of training to the last epoch, without a target" if has_none else "to train"
    attempts = f", in {record.attempts} attempts" if record.attempts > 1 else ""
    paused_s = sum(pause.end_s - pause.begin_s for pause in record.pauses)
    paused = in_seconds(paused_s) if paused_s > 0 else "unknown length, in which a clock was set back"
    attempts += f", without pauses of {paused}" if attempts and record.pauses else ""
    return Markup("{} {}{}.").format(_score(times[0], reached), goal, attempts)


def _score(seconds: float, runs: Sequence[ReportedRun]) -> Markup:
    """Return a time of the runs, with the word that MLCommons prescribes if it has not reviewed them."""
    word = f" ({TERM})" if any(map(is_unverified_score, runs)) else ""
    return Markup("<strong>{}</strong>{}").format(in_seconds(seconds), word)


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
    return ("running" if run.is_held else "no end in the log"), None


def verdicts_of(run: ReportedRun) -> list[Verdict]:
    """Return the checker's verdicts that mean something: none of a run that does not submit, or before its end."""
    does_submit = run.settings.get("recipe.mlperf.submits") is not False
    return run.verdicts if does_submit and not _was_stopped(run) else []


def _was_stopped(run: ReportedRun) -> bool:
    """Return whether the last attempt was told to stop, and nothing failed."""
    return run.summary.get("status") == "aborted" and str(run.summary.get("failure")).startswith("stopped")


def _doubt(run: ReportedRun, status: str) -> str:
    """Return why a run is not what its status says, in a word or two; empty if nothing speaks against it."""
    reached, is_success = run.record.final_accuracy, status == "success" and run.record.is_of_images
    # The quality of other benchmarks may be a loss or an error rate, of which less is better.
    if is_success and run.target is not None and reached is not None and reached < run.target:
        return "below its target"
    return run.problem.kind if run.problem else ""


def notes_of(run: ReportedRun) -> list[str]:
    """Return the notes on a run, each a sentence."""
    record = run.record
    notes = [_REHEARSED] if run.is_rehearsal else []
    notes += [f"{clause[:1].upper()}{clause[1:]}." for clause in run.predictions]
    if failure := run.summary.get("failure"):
        notes.append(f"The run ended early: {failure}.")
    if run.problem:
        notes.append(f"{run.problem.kind.capitalize()}: {run.problem.words}.")
    if record.began_s is not None and record.no_rate_because:
        notes.append(f"No images/s: {record.no_rate_because}.")
    notes += [f"Energy: {run.energy.words}."] if run.energy else []
    slow = slow_stretches(run.comparisons, has_ended=bool(run.summary))
    notes += [f"{clause[:1].upper()}{clause[1:]}." for clause in islice(slow, _MOST_STRETCHES)]
    notes += [f"Attempt {number} {each.description}." for number, each in enumerate(run.restarts, start=1)]
    if record.division == "open":
        notes.append("The log is of the open division, which MLPerf does not compare with its reference convergence.")
    elif is_compared(run):
        notes.append(f"Reference convergence: {run.comparison.words}.")
    if record.unreadable:
        notes.append(f"{record.unreadable} records of the log could not be read.")
    fails = f"the log fails MLPerf's check; ./run.sh check {shlex.quote(short_path(run.path))} explains why"
    return [*notes, *(f"{verdict.ruleset}: {fails}." for verdict in verdicts_of(run) if verdict.messages)]


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


def in_seconds(value: float | None) -> str:
    """Return a duration in seconds, from ten minutes on in minutes."""
    if value is None:
        return NOTHING
    if value < 600:  # noqa: PLR2004
        return f"{value:.2f} s"
    return f"{value / 60:.2f} min"
