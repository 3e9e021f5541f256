"""Where the doctor's facts come from: real ranks that probe their machines, the recipe's plan, and this machine."""

import json
import os
import shutil
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timezone
from typing import Any

from configs.arguments import short_path
from configs.errors import UserError
from configs.load import ROOT, dump, load_both, resolve_path
from configs.lock import partial_folder
from configs.plan import RunPlan, plan_run
from configs.programs import Program, command_of
from configs.rank_variables import rank_environment
from configs.registry import ENGINES
from configs.schema import Cluster, Recipe
from launch.doctor.__main__ import Options
from launch.doctor.check_result import CheckResult, ProbeReport
from launch.doctor.diagnosis import judge
from launch.doctor.facts import RankFacts, read_facts
from launch.doctor.step_checks import rankings_of
from launch.failure_cause import Ending
from launch.setup.stages import make_stages
from launch.setup.state import State
from launch.start.commands import run_under, without_cuda
from launch.submit.hosts import parse_hosts
from launch.submit.reach import leads_here
from launch.submit.schedulers import SCHEDULERS
from logs.claims import job_id
from logs.disk import explain_disk_errors
from logs.folder import CONFIG_FILE, RunFolder
from logs.metrics import MetricsFollower
from logs.nodes import NodeScore
from train.plan.document import plan_document

_LAST = 20
"""Checks that are looked at, so that a node that was repaired is forgotten."""


@dataclass(frozen=True)
class Examination:
    """What the doctor found.

    Attributes:
        cluster: The cluster of the run.
        results: One or more for each check.
        ranks: What each rank reported, by rank.
        checks: For each set of samples, the scores of the nodes, slowest first; none without a step.
        started: The recipe and the cluster of the ranks that were started.
    """

    cluster: Cluster
    results: Sequence[CheckResult]
    ranks: Sequence[RankFacts]
    checks: Sequence[Sequence[NodeScore]]
    started: tuple[Recipe, Cluster]

    @property
    def has_failed(self) -> bool:
        """Whether a check FAILed."""
        return any(result.level == "FAIL" for result in self.results)

    @property
    def nodes(self) -> list[NodeScore]:
        """The score of every node that was examined, slowest first, with the problem that a check found on it."""
        problems = {
            host: f"{result.topic}: {result.words}"
            for result in reversed(self.results)
            if result.level == "FAIL"
            for host in result.hosts
        }
        scores = {node.host: node for node in self.checks[0]} if self.checks else {}
        for host in (*(rank.host for rank in self.ranks), *problems):
            scores.setdefault(host, NodeScore(host, 0.0, "compute", is_slow=False))
        return [replace(node, problem=problems.get(node.host, "")) for node in scores.values()]

    @property
    def is_runnable(self) -> bool:
        """Whether no check FAILed but on single nodes, and enough nodes are left for the run."""
        is_common = any(result.level == "FAIL" and not result.hosts for result in self.results)
        return not is_common and sum(not node.problem for node in self.nodes) >= self.cluster.num_nodes


def examine(options: Options) -> Examination:
    """Probe the cluster with real ranks, as far as they can be started from here, and check what they report.

    Raises:
        UserError: Recipe, cluster, plan or hosts are wrong, or the ranks cannot be started.
        SystemExit: A signal stopped the ranks.
    """
    recipe, cluster = load_both(options.recipe or "digits", options.cluster, options.overrides)
    plan = plan_document(recipe, cluster) if options.recipe else None
    if plan:
        plan |= plan["memory"] | ({"total_bytes": 0, "certain_bytes": 0} if cluster.rehearsal else {})
    named = named_hosts(options.hosts, cluster)
    spares = cluster.scheduler.spare_nodes if options.run else 0
    # In a rehearsal on this machine, each rank is a node of its own.
    size = "ranks_per_node" if cluster.rehearsal and cluster.num_nodes == 1 else "num_nodes"
    examined = cluster.model_copy(update={size: len(named) or getattr(cluster, size) + spares})
    reachable = examined if named else reachable_part(examined, os.environ)
    probed = for_ranks(recipe, plan_run(recipe, cluster.world_size), reachable.world_size) if plan else recipe
    wanted = {"data": bool(plan and not cluster.rehearsal), "step": options.step, "times": options.times}
    ranks = _probe(probed, reachable, named, accept_s=options.accept_s, **wanted)
    report = ProbeReport(reachable, ranks, plan, State().kind, named, options.times)
    own = [_set_up(cluster), _scope(examined, reachable)]
    if cluster.container.runtime != "none":
        words = f"the ranks checked the host, not the image {cluster.container.image}"
        own.append(
            CheckResult("WARN", "container", words, "run ./run.sh doctor inside the image to check its libraries")
        )
    checks = [ranking.nodes for ranking in rankings_of(ranks, options.times)] if options.step else []
    if checks and not cluster.rehearsal:
        own += _remember(options.recipe or "", cluster, checks[0])
    return Examination(cluster, [*own, *judge(report)], ranks, checks, (probed, reachable))


def named_hosts(listed: str | None, cluster: Cluster) -> tuple[str, ...]:
    """Return the hosts of ``--hosts``; none without the option.

    Raises:
        UserError: The list cannot be read, or the launcher would start the ranks of another host on this machine.
    """
    named = () if listed is None else parse_hosts(listed)
    # A scheduler may know its one node by a name of its own.
    others = named[1:] if job_id() else [host for host in named if not leads_here(host)] or named[1:]
    if cluster.launcher in ("local", "torchrun") and others:
        raise UserError(
            f"--hosts: got {others[0]}, but cluster.launcher={cluster.launcher} starts ranks on this machine alone; "
            "leave --hosts out, or set cluster.launcher to horovodrun, mpirun or srun"
        )
    return named


def train_ranks_alone(recipe: Recipe, cluster: Cluster, named: Sequence[str]) -> list[RankFacts]:
    """Let every rank train the same short problem without the others; return the reports.

    Args:
        recipe: The recipe, with a global batch for the ranks of the cluster; its network learns synthetic images.
        cluster: The ranks to start.
        named: The hosts to start them on; if empty, the launcher finds them.

    Raises:
        SystemExit: A signal stopped the ranks.
    """
    one = for_ranks(recipe, plan_run(recipe, cluster.world_size), 1)
    one = one.model_copy(update={"data": one.data.model_copy(update={"source": "synthetic"})})
    # Compiling takes longer than all steps.
    engine = cluster.engine.model_copy(update={"deterministic": True, "cuda_graphs": "none", "compile": False})
    return _probe(one, cluster.model_copy(update={"engine": engine}), named, alone=True)


def _probe(recipe: Recipe, cluster: Cluster, named: Sequence[str], **wanted: Any) -> list[RankFacts]:
    """Start the doctor's ranks, with what is `launch.doctor.probe.Wanted`; return their reports, by rank.

    Raises:
        SystemExit: A signal stopped them; the status is 128 + its number.
    """
    runs = resolve_path(cluster.paths.runs)  # A disk that all hosts see.
    with explain_disk_errors(runs):
        runs.mkdir(parents=True, exist_ok=True)  # It stays, also if it is empty.
    with partial_folder(runs, ".doctor-") as folder:
        (folder / CONFIG_FILE).write_text(dump(recipe, cluster), encoding="utf-8")
        command = command_of(Program.PROBE, json.dumps(wanted), str(folder))
        outcome = run_under(cluster, command, rank_environment(cluster), hosts=named)
        kill = Ending.read(RunFolder(folder), outcome).kill
        ranks = [replace(_with_kill(rank, kill), host=_host_of(rank, cluster, named)) for rank in read_facts(folder)]
    if stopped_by := outcome.interrupted_by or outcome.stopped_by:
        raise SystemExit(128 + stopped_by)
    if kill and kill["rank"] not in {rank.rank for rank in ranks}:  # The local launcher prints nothing of it.
        sys.stderr.write(f"{kill['message']}\n")
    return ranks


def _with_kill(rank: RankFacts, kill: Mapping[str, Any]) -> RankFacts:
    """Return the report of a rank; if a signal killed this one, with what the rank could not report."""
    if rank.rank != kill.get("rank"):
        return rank
    failure = kill["message"].removeprefix(f"rank {rank.rank} on {kill['host']} ")
    return replace(rank, failure=failure, is_second_hand=False)


def _host_of(rank: RankFacts, cluster: Cluster, named: Sequence[str]) -> str:
    """Return the name of a rank's host: the user's, if it differs by its domain; in a rehearsal, a node of its own."""
    if cluster.rehearsal and cluster.num_nodes == 1:
        return f"node{rank.rank}"
    alike = [host for host in named if host.partition(".")[0] == rank.host.partition(".")[0]]
    if alike:
        return alike[0]
    if not named or cluster.launcher == "srun":
        return rank.host
    # Addresses name no host; the launchers that take a list start the ranks in its order.
    return named[rank.rank // cluster.ranks_per_node]


def reachable_part(cluster: Cluster, environment: Mapping[str, str]) -> Cluster:
    """Return the part of the cluster on which ranks can be started from here.

    Args:
        cluster: The whole cluster.
        environment: The environment variables of this process, which show whether it runs inside a job.

    Returns:
        The whole cluster inside a job whose hosts the launcher finds by itself, and in a rehearsal on this machine;
        else this node alone.
    """
    finders = [scheduler for scheduler in SCHEDULERS.values() if cluster.launcher in scheduler.host_finders]
    is_here = cluster.launcher == "local" or (cluster.rehearsal is not None and cluster.num_nodes == 1)
    if is_here or any(scheduler.job_variable in environment for scheduler in finders):
        return cluster
    # The local launcher does not start MPI, so its ranks have to communicate by Gloo.
    backend = "gloo" if cluster.communication.backend == "mpi" else cluster.communication.backend
    communication = cluster.communication.model_copy(update={"backend": backend, "allreduce": "flat"})
    return cluster.model_copy(update={"num_nodes": 1, "launcher": "local", "communication": communication})


def for_ranks(recipe: Recipe, plan: RunPlan, world_size: int) -> Recipe:
    """Return the recipe with the global batch that gives each of ``world_size`` ranks the micro-batches of the plan."""
    size = world_size * plan.per_rank_batch_size * plan.accumulation_steps
    update = {"global_size": size, "accumulation_steps": plan.accumulation_steps, "bn_span": None}
    return recipe.model_copy(update={"batch": recipe.batch.model_copy(update=update)})


def _set_up(cluster: Cluster) -> CheckResult:
    """Check the environment that ./run.sh setup made."""
    state, engine = State(), cluster.engine.name
    if state.kind and ENGINES[engine].computes and engine not in state.kind.engines:
        words = f"the environment is for {state.kind}, engine.name: {engine}"
        return CheckResult("FAIL", "set-up", words, f"./run.sh setup --engine {engine}")
    if problem := without_cuda(cluster):
        return CheckResult("FAIL", "set-up", *problem)
    if state.kind is None:
        return CheckResult("WARN", "set-up", f"{short_path(ROOT / '.venv')} was not made by set-up", "./run.sh setup")
    pending = [stage.name for stage in make_stages(state.kind) if not state.is_done(stage.name, stage.digest)]
    if pending:
        return CheckResult("WARN", "set-up", f"not done, or changed since: {', '.join(pending)}", "./run.sh setup")
    return CheckResult("OK", "set-up", f"complete, for {state.kind}")


def _scope(cluster: Cluster, reachable: Cluster) -> CheckResult:
    """Report whether the whole cluster was probed."""
    if reachable is cluster:
        return CheckResult("OK", "launcher", f"{cluster.launcher}, as in the cluster file")
    missing = "" if shutil.which(cluster.launcher) else f"; {cluster.launcher} is not on this machine"
    words = f"not inside a job, so only this machine was checked, without {cluster.launcher}{missing}"
    return CheckResult("WARN", "launcher", words, "run the doctor again inside a job, or name nodes with --hosts")


def _remember(recipe_name: str, cluster: Cluster, nodes: Sequence[NodeScore]) -> list[CheckResult]:
    """Add a check to the history; return a warning for each of its nodes that was slow in two jobs or more.

    A file that cannot be read or written is a warning, too. Damaged lines are passed over.

    Args:
        recipe_name: The recipe as the user named it.
        cluster: What was examined; its ``health`` names the file.
        nodes: The scores of all nodes.
    """
    path = resolve_path(cluster.health or f"{cluster.paths.runs}/health.jsonl")
    row = {
        "time": datetime.now(timezone.utc).astimezone().isoformat(timespec="seconds"),
        "job": job_id() or f"{socket.gethostname()}-{os.getpid()}",
        "cluster": cluster.name,
        "recipe": recipe_name,
        "num_nodes": len(nodes),
        "slow": [asdict(node) for node in nodes if node.is_slow],
    }
    try:
        with explain_disk_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("a", encoding="utf-8") as file:  # in one piece, as other jobs may do the same
                file.write(f"{json.dumps(row)}\n")
            rows = [row for row in MetricsFollower(path).read() if row.get("cluster") == cluster.name][-_LAST:]
    except UserError as error:
        return [CheckResult("WARN", "history", str(error))]
    results = []
    for host in (node.host for node in nodes):
        found = [(each["job"], slow) for each in rows for slow in each["slow"] if slow["host"] == host]
        if len({job for job, _ in found}) > 1:
            parts = ", ".join(sorted({slow["part"] for _, slow in found}))
            worst = 100 * max(slow["excess"] for _, slow in found)
            words = f"slow in {len(found)} of the last {len(rows)} checks, in {parts}, by up to {worst:.1f} %"
            results.append(CheckResult("WARN", "history", words, "have the node repaired, or leave it out", (host,)))
    return results
