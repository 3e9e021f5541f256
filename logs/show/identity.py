"""What a run is: recipe, network, data, command, commit, machine, engine, seed and time, for the head of its page."""

from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from typing import Any

from configs.registry import ENGINES
from logs.environment import machine_in_words
from logs.show.reported_run import ReportedRun

Fact = tuple[str, str]
"""Name and value."""

_COMMIT_DIGITS = 12
_ALSO_SETTINGS = ("Recipe", "Network", "Data", "Engine", "Seed")
"""Facts that follow from settings, which the table of several runs has anyway."""


def identity(run: ReportedRun) -> dict[str, str]:
    """Return what is known of a run, name -> value in the order of the page."""
    told = dict(_configured(run)) if "recipe.name" in run.settings else dict(_logged(run))
    return {name: value for name, value in told.items() if value}


def common_and_differing(runs: Sequence[ReportedRun]) -> tuple[dict[str, str], dict[str, list[str | None]]]:
    """Return the facts that all runs share, and the facts in which they differ with the value of each run.

    Of several runs, what differs in a setting is left to the table of settings.
    """
    facts = [identity(run) for run in runs]
    names = list(dict.fromkeys(name for each in facts for name in each))
    shared = {name: facts[0][name] for name in names if all(each.get(name) == facts[0].get(name) for each in facts)}
    is_setting = _ALSO_SETTINGS if all("recipe.name" in run.settings for run in runs) else ()
    differing = [name for name in names if name not in shared and name not in is_setting]
    return shared, {name: [each.get(name) for each in facts] for name in differing}


def _configured(run: ReportedRun) -> Iterator[Fact]:
    """Yield the facts of a run of this program."""
    settings, surroundings = run.settings, run.environment
    side, classes = settings.get("recipe.model.image_size"), settings.get("recipe.model.num_classes")
    yield "Recipe", f"{settings['recipe.name']}, {settings.get('recipe.mlperf.division')} division"
    count = "" if run.startup.parameters is None else f", {run.startup.parameters:,} parameters"
    yield "Network", f"{settings.get('recipe.model.name')}{count}"
    images = [_grouped(settings.get(f"recipe.data.{part}_samples")) for part in ("train", "eval")]
    where = f"{settings.get('recipe.data.name')}: {images[0]} training and {images[1]} evaluation images"
    yield "Data", f"{where} of {side} px, {classes} classes"
    yield "Commit", _commit(surroundings.get("git"))
    nodes, ranks = settings.get("cluster.num_nodes"), settings.get("cluster.ranks_per_node")
    if isinstance(nodes, int) and isinstance(ranks, int):
        place = f" on {nodes} nodes" if nodes > 1 else ""
        total = f"{nodes * ranks} rank{'s' if nodes * ranks > 1 else ''}{place}"
        machine = machine_in_words(surroundings)
        yield "Machine", f"{total}; {machine}" if machine else total
    yield "Engine", _engine(settings, surroundings.get("packages"))
    yield "Seed", str(settings.get("recipe.run.seed"))
    yield "Began", moment(run.record.began_s)
    yield "Command", str(surroundings.get("command") or "")


def _logged(run: ReportedRun) -> Iterator[Fact]:
    """Yield the facts of another submitter's log."""
    record = run.record
    yield "Submitter", record.submitter or ""
    yield "Platform", record.platform or ""
    yield "Benchmark", ", ".join(filter(None, (record.benchmark, record.division and f"{record.division} division")))
    if record.train_samples:
        counted = f"{_grouped(record.train_samples)} training"
        more = f" and {_grouped(record.eval_samples)} evaluation" if record.eval_samples else ""
        yield "Data", f"{counted}{more} samples"
    yield "Rules", record.ruleset or ""
    yield "Seed", ", ".join(map(str, record.seeds)) if len(record.seeds) == 1 else ""
    yield "Began", moment(record.began_s)


def _engine(settings: dict[str, Any], packages: Any) -> str:
    name, versions = str(settings.get("cluster.engine.name")), packages if isinstance(packages, dict) else {}
    entry = ENGINES.get(name)
    found = [str(versions[package]) for package in entry.distributions if package in versions] if entry else []
    title = " ".join([entry.title if entry else name, *found[:1]])
    return f"{title}, {settings.get('cluster.engine.precision')}"


def _commit(git: Any) -> str:
    if not isinstance(git, dict) or not git.get("commit"):
        return ""
    return f"{str(git['commit'])[:_COMMIT_DIGITS]}{' with changes' if git.get('dirty') else ''}"


def moment(time_s: float | None) -> str:
    """Return Unix seconds as day, month, year, and the time of day behind a comma; empty if they are None."""
    if time_s is None:
        return ""
    then = datetime.fromtimestamp(time_s, tz=timezone.utc)
    return f"{then.day} {then:%B %Y, %H:%M:%S} UTC"


def _grouped(number: Any) -> str:
    return f"{number:,}" if isinstance(number, int) else str(number)
