"""Where the doctor's facts come from: real ranks that probe their machines, the recipe's plan, and this machine."""

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from configs.errors import UserError
from configs.load import ROOT, dump, load_both, resolve_path
from configs.programs import Program, command_of
from configs.rank_variables import rank_environment
from configs.registry import BUILT_IN_SOURCES
from configs.schema import Cluster, Recipe
from launch.doctor.check_result import CheckResult, ProbeReport
from launch.doctor.diagnosis import judge
from launch.run import short_path
from launch.setup.gpu import NEEDS
from launch.setup.stages import make_stages
from launch.setup.state import State
from launch.start.commands import run_under
from launch.submit.schedulers import SCHEDULERS
from logs.folder import CONFIG_FILE


@dataclass(frozen=True)
class Examination:
    """What the doctor found.

    Attributes:
        cluster_name: The name in the cluster file.
        results: One or more for each check; none if a signal stopped the ranks.
        ranks: What each rank reported, by rank.
        stopped_by: The signal that stopped the ranks. If None, no signal did.
    """

    cluster_name: str
    results: Sequence[CheckResult]
    ranks: Sequence[dict[str, Any]]
    stopped_by: int | None

    @property
    def has_failed(self) -> bool:
        """Whether a check FAILed."""
        return any(result.level == "FAIL" for result in self.results)


def examine(
    recipe_name: str | None, cluster_name: str | None, overrides: Sequence[str], *, with_step: bool = False
) -> Examination:
    """Probe the cluster with real ranks, as far as they can be started from here, and check what they report.

    Args:
        recipe_name: The recipe of the run that is to follow. If None, data set and plan are not checked.
        cluster_name: The cluster; if None, ``laptop``.
        overrides: Changes to both, as ``--set`` takes them.
        with_step: Whether the ranks also take the recipe's step; needs ``recipe_name``.

    Raises:
        UserError: Recipe, cluster or plan are wrong, or the ranks cannot be started.
    """
    recipe, cluster = load_both(recipe_name or "digits", cluster_name, overrides)
    plan = _plan(recipe_name, cluster_name, overrides) if recipe_name else None
    reachable = reachable_part(cluster, os.environ)
    folder = _make_folder(reachable)
    wanted = [*(["--data"] if plan else []), *(["--step"] if with_step else [])]
    try:
        probed = recipe if plan is None else _for_ranks(recipe, plan, reachable.world_size)
        (folder / CONFIG_FILE).write_text(dump(probed, reachable), encoding="utf-8")
        ranks, stopped_by = _probe(reachable, folder, wanted)
        forecast = _forecast(folder) if with_step and stopped_by is None else None
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if stopped_by is not None:
        return Examination(cluster.name, [], ranks, stopped_by)
    base = kind.base if (kind := State().kind) else ""
    report = ProbeReport(reachable, ranks, plan, recipe.data.source in BUILT_IN_SOURCES, forecast, base)
    own = [_set_up(cluster), _scope(cluster, reachable), *_image(cluster)]
    return Examination(cluster.name, [*own, *judge(report)], ranks, None)


def _plan(recipe_name: str, cluster_name: str | None, overrides: Sequence[str]) -> dict[str, Any]:
    """Return the recipe's plan. The planner runs as a command, since `launch` must not import `train`."""
    sets = [word for override in overrides for word in ("--set", override)]
    place = ["--cluster", cluster_name] if cluster_name else []
    command = command_of(Program.PLAN_VERB, "plan", recipe_name, *place, *sets, "--json")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise UserError(done.stderr.strip().removeprefix("error: "))
    plan: dict[str, Any] = json.loads(done.stdout)
    return plan


def reachable_part(cluster: Cluster, environment: Mapping[str, str]) -> Cluster:
    """Return the part of the cluster on which ranks can be started from here.

    Args:
        cluster: The whole cluster.
        environment: The environment variables of this process, which show whether it runs inside a job.

    Returns:
        The whole cluster inside a job whose hosts the launcher finds by itself, else this node alone.
    """
    finders = [scheduler for scheduler in SCHEDULERS.values() if cluster.launcher in scheduler.host_finders]
    if cluster.launcher == "local" or any(scheduler.job_variable in environment for scheduler in finders):
        return cluster
    # The local launcher does not start MPI, so its ranks have to communicate by Gloo.
    backend = "gloo" if cluster.communication.backend == "mpi" else cluster.communication.backend
    communication = cluster.communication.model_copy(update={"backend": backend, "allreduce": "flat"})
    return cluster.model_copy(update={"num_nodes": 1, "launcher": "local", "communication": communication})


def _make_folder(cluster: Cluster) -> Path:
    """Make a folder for the reports of the ranks, on a disk that all hosts see."""
    runs = resolve_path(cluster.paths.runs)
    try:
        runs.mkdir(parents=True, exist_ok=True)
        return Path(tempfile.mkdtemp(prefix=".doctor-", dir=runs))
    except OSError as error:
        remedy = "set cluster.paths.runs to a folder that you may write to"
        raise UserError(f"{runs}: {error.strerror}; {remedy}") from None


def _for_ranks(recipe: Recipe, plan: Mapping[str, Any], world_size: int) -> Recipe:
    """Return the recipe with the global batch that gives each of ``world_size`` ranks the micro-batches of the plan."""
    accumulation = plan["accumulation_steps"]
    size = world_size * plan["per_rank_batch_size"] * accumulation
    batch = recipe.batch.model_copy(update={"global_size": size, "accumulation_steps": accumulation, "bn_span": None})
    return recipe.model_copy(update={"batch": batch})


def _probe(cluster: Cluster, folder: Path, wanted: Sequence[str]) -> tuple[list[dict[str, Any]], int | None]:
    """Start the ranks; return the report of each rank, and the signal that stopped the ranks, or None."""
    command = command_of(Program.PROBE, str(folder), *wanted)
    outcome = run_under(cluster, command, rank_environment(cluster))
    reports = [json.loads(path.read_text(encoding="utf-8")) for path in folder.glob("rank_*.json")]
    return sorted(reports, key=lambda report: report["rank"]), outcome.interrupted_by or outcome.stopped_by


def _forecast(folder: Path) -> dict[str, Any]:
    """Return the simulator's forecast for the config in ``folder``, or why there is none."""
    command = command_of(Program.SIMULATE_VERB, "simulate", str(folder / CONFIG_FILE), "--json")
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        return {"problem": (done.stderr.strip().splitlines() or ["the simulator failed"])[-1].removeprefix("error: ")}
    forecast: dict[str, Any] = json.loads(done.stdout)
    return forecast


def _set_up(cluster: Cluster) -> CheckResult:
    """Check the environment that ./run.sh setup made."""
    state, engine = State(), cluster.engine.name
    if state.kind and engine not in state.kind.engines:
        words, remedy = (
            f"the environment is for {state.kind}, engine.name: {engine}",
            f"./run.sh setup --engine {engine}",
        )
        return CheckResult("FAIL", "set-up", words, remedy)
    if state.kind and cluster.device == "gpu" and state.kind.variant == "cpu":
        return CheckResult("FAIL", "set-up", "the environment is for a CPU", f"{NEEDS[engine].command} --gpu")
    if state.kind is None:
        return CheckResult("WARN", "set-up", f"{short_path(ROOT / '.venv')} was not made by set-up", "./run.sh setup")
    stages = make_stages(state.kind, has_mpi=state.has_mpi, extras=())
    pending = [stage.name for stage in stages if not state.is_done(stage.name, stage.digest)]
    if pending:
        return CheckResult("WARN", "set-up", f"not done, or changed since: {', '.join(pending)}", "./run.sh setup")
    return CheckResult("OK", "set-up", f"complete, for {state.kind}")


def _scope(cluster: Cluster, reachable: Cluster) -> CheckResult:
    """Report whether the whole cluster was probed."""
    if reachable is cluster:
        return CheckResult("OK", "launcher", f"{cluster.launcher}, as in the cluster file")
    missing = "" if shutil.which(cluster.launcher) else f"; {cluster.launcher} is not on this machine"
    words = f"not inside a job, so only this machine was checked, without {cluster.launcher}{missing}"
    commands = ", ".join(scheduler.interactive for scheduler in SCHEDULERS.values() if scheduler.interactive)
    return CheckResult("WARN", "launcher", words, f"run the doctor again inside a job: {commands}")


def _image(cluster: Cluster) -> list[CheckResult]:
    if cluster.container.runtime == "none":
        return []
    words = f"the ranks checked the host, not the image {cluster.container.image}"
    return [CheckResult("WARN", "container", words, "run ./run.sh doctor inside the image to check its libraries")]
