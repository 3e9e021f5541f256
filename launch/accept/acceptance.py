"""An acceptance from its command line to its outputs: asks the machine, judges, and writes."""

import json
import os
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from datetime import datetime, timezone
from pathlib import Path

from configs.arguments import short_path
from configs.errors import UserError
from configs.interrupts import run_child
from configs.load import dump, load_recipe, resolve_path
from configs.lock import locked
from configs.plan import plan_run
from configs.programs import Program, command_of
from configs.reading import is_file
from configs.schema import Cluster, Recipe
from launch.accept.__main__ import Options
from launch.accept.document import FORMAT, Acceptance, Check, Figures
from launch.accept.judgement import Evidence, judge, judge_learning, nodes_of
from launch.accept.settings import load_settings, require_minutes
from launch.doctor.__main__ import Options as Examined
from launch.doctor.check_result import Expected, in_words
from launch.doctor.diagnosis import expected_bytes_per_s
from launch.doctor.examination import examine, for_ranks, named_hosts, reachable_part, train_ranks_alone
from launch.doctor.facts import RankFacts
from logs.disk import checked, explain_disk_errors, read_object, require_replaceable, write_json, write_text
from logs.energy import AttemptEnergy, Joules, RunEnergy, energy_of, read_attempts
from logs.folder import CONFIG_FILE, RunFolder
from logs.show.page import render_template
from train.networks.arch import network_of
from train.sim.conditions import predict, predict_allreduce

_FIXED_S, _LEAST_S = 75.0, 10.0
"""What an acceptance takes on two cores besides the samples of the step, and the least time for these."""


_LEAST_PER_RANK, _LEAST_BATCH, _STEPS_PER_EPOCH = 8, 64, 16
"""Batch norm needs some images of a rank."""


def accept(options: Options) -> int:
    """Accept a machine, write the outputs, and print the verdict.

    Returns:
        0 for pass, 1 for slow or failed.

    Raises:
        UserError: Recipe, cluster, hosts or baseline are wrong, or the ranks cannot be started.
        SystemExit: A signal stopped the ranks.
    """
    recipe, cluster = _settings(options)
    baseline = None if options.baseline is None else _read_baseline(options.baseline, cluster)
    with _out_folder(options, cluster) as out:
        evidence = _ask(options, recipe, cluster, out)
        checks, figures = judge(replace(evidence, baseline=baseline))
        commits = ((rank.machine.environment.get("git") or {}).get("commit") for rank in evidence.ranks if rank.machine)
        acceptance = Acceptance(
            time=datetime.now(timezone.utc).astimezone().isoformat(timespec="seconds"),
            cluster=cluster.name,
            recipe=recipe.name,
            commit=next(commits, None),
            rehearsal=cluster.rehearsal is not None,
            nodes=nodes_of(checks, evidence.ranks or evidence.alone),
            checks=checks,
            figures=figures,
            energy=evidence.energy or RunEnergy(),
        )
        _write(acceptance, evidence, out, options.save_baseline)
        sys.stdout.write(f"{acceptance}{short_path(out)}/accept.html\n")
    return int(acceptance.verdict != "pass")


def _settings(options: Options) -> tuple[Recipe, Cluster]:
    """Return recipe and cluster.

    Raises:
        UserError: They cannot be used, or the ranks of the cluster cannot be started from here.
    """
    if options.cluster is None and (options.recipe is None or Path(options.recipe).name != CONFIG_FILE):
        raise UserError("--cluster: got nothing, allowed: the machine to accept, for example --cluster laptop")
    require_minutes("--minutes", options.minutes)
    if options.save_baseline is not None and not options.save_baseline.absolute().parent.is_dir():
        raise UserError(f"--save-baseline: got {options.save_baseline}, allowed: a file in a folder that exists")
    if options.save_baseline is not None:
        read = [path for path in (options.recipe, options.cluster) if path]
        require_replaceable("--save-baseline", options.save_baseline, read)
    recipe, cluster = load_settings(options.recipe, options.cluster, options.overrides)
    plan = plan_run(recipe, cluster.world_size)
    if named := named_hosts(options.hosts, cluster):
        cluster = cluster.model_copy(update={"num_nodes": len(named)})
        recipe = for_ranks(recipe, plan, cluster.world_size)
    elif reachable_part(cluster, os.environ) is not cluster:
        raise UserError(
            f"{cluster.name}: its nodes cannot be reached from here; submit the acceptance as a job (./run.sh submit "
            "--accept), run it inside a job, or name the nodes with --hosts"
        )
    return recipe, cluster


@contextmanager
def _out_folder(options: Options, cluster: Cluster) -> Iterator[Path]:
    """Yield the folder for the outputs, which is made, and is this acceptance's alone."""
    name = f"accept-{cluster.name}-{time.strftime('%Y%m%d-%H%M%S')}"
    folder = options.out or resolve_path(cluster.paths.runs) / name
    with ExitStack() as lock:
        with explain_disk_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
            try:
                lock.enter_context(locked(folder, wait=False, is_needed=False))
            except BlockingIOError:
                told = f"{folder}: another acceptance writes into it; wait for its end, or give another --out"
                raise UserError(told) from None
            for each in filter(is_file, (folder / name for name in ("accept.json", "accept.xml", "accept.html"))):
                each.replace(each.with_name(f"earlier-{each.name}"))  # If this acceptance is stopped, it has none.
        yield folder


def _ask(options: Options, recipe: Recipe, cluster: Cluster, out: Path) -> Evidence:
    """Ask the machine; return the evidence."""
    config = str(out / CONFIG_FILE)
    write_text(Path(config), dump(recipe, cluster))
    examined = examine(
        Examined(
            config, (), config, step=True, hosts=options.hosts, accept_s=max(_LEAST_S, 60 * options.minutes - _FIXED_S)
        )
    )
    steps = [rank.step for rank in examined.ranks if rank.step is not None]
    evidence = Evidence(
        examined.results,
        examined.ranks,
        # Ranks that sleep, some times faster than the described ones, have no rate to compare.
        forecast=expected_rate(*examined.started) if cluster.rehearsal is None else (),
        predicted_buckets_s=_predicted_allreduces_s(examined.cluster, steps[0].buckets_bytes) if steps else (),
        link_bytes_per_s=expected_bytes_per_s(examined.cluster),
    )
    if cluster.rehearsal is not None:
        why_not = "the ranks of a rehearsal compute nothing"
        skipped = [Check(each, "", "skipped", why_not) for each in ("bits", "learning", "energy")]
        return replace(evidence, others=skipped)
    named = named_hosts(options.hosts, cluster)
    alone, run = train_ranks_alone(recipe, cluster, named), None
    if named or examined.has_failed:
        why_not = "the launcher finds hosts by itself only in a job" if named else "the doctor's checks failed"
        learned = Check("learning", "", "skipped", why_not)
    else:
        learned, run = learn(cluster, out / "learning"), RunFolder(out / "learning")
    return replace(evidence, alone=alone, others=[learned], energy=energy_of_parts([examined.ranks, alone], run))


def expected_rate(recipe: Recipe, cluster: Cluster) -> list[Expected]:
    """Return what images/s are expected: by the simulator, and of GPUs by their data sheet."""
    try:
        forecast = predict(recipe, cluster)
    except UserError as error:
        return [Expected("the simulator", note=str(error))]
    is_measured = forecast.interval.basis != "unseen" and not forecast.is_unmeasured
    found = [Expected("the simulator", *forecast.rate_bounds, decides=is_measured)]
    if cluster.device == "gpu":
        machine, macs = forecast.scenario.machine, network_of(recipe.model).macs
        # Backward multiplies for the inputs and for the weights, too.
        at_peak = machine.ranks * machine.peak / (2 * 3 * macs)
        found.append(Expected("the data sheet", high=at_peak, note="all multiply-adds at peak FLOP/s"))
    return found


def _predicted_allreduces_s(cluster: Cluster, sizes: Sequence[int]) -> list[float]:
    """Return the simulator's time of an allreduce of each size; none if it does not know the machine."""
    try:
        return [predict_allreduce(cluster, size) for size in sizes]
    except UserError:
        return []


def _read_baseline(path: Path, cluster: Cluster) -> Figures:
    """Return the figures of an earlier acceptance.

    Raises:
        UserError: The file is none, or of another machine.
    """
    remedy = "give an accept.json of this program; make one with --save-baseline"
    document = read_object(path, f"for --baseline, {remedy}")
    if document.get("format") != FORMAT or "figures" not in document:
        raise UserError(f"--baseline: {path} has no figures of an acceptance; {remedy}")
    if document.get("cluster") != cluster.name:
        raise UserError(
            f"--baseline: {path} is of the cluster {document.get('cluster')!r}, got {cluster.name!r}; give one of this "
            "machine"
        )
    return checked(Figures, json.dumps(document["figures"]), str(path))


def _write(acceptance: Acceptance, evidence: Evidence, out: Path, baseline: Path | None) -> None:
    alone = {rank.rank: rank.alone for rank in evidence.alone}
    ranks = [asdict(replace(rank, alone=alone.get(rank.rank))) for rank in evidence.ranks]
    document = acceptance.to_json(ranks)
    write_json(out / "accept.json", document)
    for template, name in (("junit.xml", "accept.xml"), ("page.html", "accept.html")):
        text = render_template(Path(__file__).with_name(template), acceptance=acceptance, in_words=in_words)
        write_text(out / name, text)
    if baseline is not None and acceptance.verdict == "pass":
        write_json(baseline, document)
    elif baseline is not None:
        sys.stderr.write(f"--save-baseline: {baseline} was not written, because the verdict is {acceptance.verdict}\n")


def learn(cluster: Cluster, folder: Path) -> Check:
    """Train synthetic classes to a target on all ranks of a cluster, in a folder for the run; return how it ended."""
    per_rank = max(_LEAST_PER_RANK, _LEAST_BATCH // cluster.world_size)
    batch = per_rank * cluster.world_size
    sizes = [f"batch.global_size={batch}", f"data.train_samples={_STEPS_PER_EPOCH * batch}"]
    evaluated = [f"data.eval_samples={max(256, cluster.world_size)}"]
    recipe = load_recipe(str(Path(__file__).with_name("learning.yaml")), [*sizes, *evaluated])
    run = RunFolder(folder)
    # An earlier acceptance may have had the same outputs, and a run that has ended cannot begin again.
    if run.is_begun and run.settings[0].name == recipe.name:
        shutil.rmtree(folder)
    config = str(folder.with_name("learning.yaml"))
    engine = cluster.engine.model_copy(update={"compile": False, "cuda_graphs": "none"})  # a minute for few steps
    write_text(Path(config), dump(recipe, cluster.model_copy(update={"engine": engine})))
    command = command_of(Program.TRAIN_VERB, "train", config, "--cluster", config, "--run-dir", str(folder))
    # The verdict alone goes to the standard output.
    status = run_child(command, stdout=sys.stderr)
    return judge_learning(recipe, status, run.summary() if run.has_summary else None, folder)


def energy_of_parts(parts: Sequence[Sequence[RankFacts]], learning: RunFolder | None) -> RunEnergy:
    """Return the energy of all nodes in all parts, with the images per joule of the run that learns.

    A part that a node did not count makes the sums unknown, because none of its devices is known there.

    Args:
        parts: The reports of the ranks in each part.
        learning: The run that learns; None if there was none.
    """
    hosts = list(dict.fromkeys(rank.host for ranks in parts for rank in ranks))
    attempts = read_attempts(learning.path) if learning else []
    rows = []
    for number, ranks in enumerate([*parts, *([()] if learning and not attempts else [])]):
        counted = {rank.host: rank.joules for rank in ranks if rank.joules is not None}
        rows += [AttemptEnergy(number, len(hosts), host, counted.get(host, Joules())) for host in hosts]
    learned = learning.summary().energy if learning and learning.has_summary else None
    found = energy_of([*rows, *attempts]) or RunEnergy()
    return replace(found, images_per_joule=learned.images_per_joule if learned else None)
