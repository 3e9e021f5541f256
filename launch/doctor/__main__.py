"""``./run.sh doctor``: looks at a node, or at all nodes of an allocation, before they are paid for in vain.

Real ranks look, started as a run's are (`train.doctor.probe`), and `launch.doctor.diagnosis` judges.
Exit status: 0, or 1 where something FAILs, 2 for wrong arguments.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from configs.arguments import Parser
from configs.errors import UserError
from configs.load import ROOT, dump, load_both, resolve_path
from configs.programs import Program, command_of
from configs.rank_variables import rank_environment
from configs.registry import BUILT_IN_SOURCES
from configs.schema import Cluster, Recipe
from launch.doctor.diagnosis import judge
from launch.doctor.finding import Finding, Subject
from launch.run import shown
from launch.setup.stages import make_stages
from launch.setup.state import State
from launch.start.commands import run_under
from launch.submit.scheduler import all_schedulers
from logs.folder import CONFIG_FILE

__all__ = ["main", "within_reach"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Look, judge, tell; gives the exit status."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        options = _parser().parse_args(words[words[:1] == ["doctor"] :])
        recipe, cluster = load_both(options.recipe or "digits", options.cluster, options.overrides)
        plan = _plan(options) if options.recipe else None
        reach = within_reach(cluster, os.environ)
        folder = _make_folder(reach)
        try:
            ranks, stopped_by = _probe(recipe, reach, folder, with_data=options.recipe is not None)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    except UserError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    if stopped_by is not None:
        return 128 + stopped_by
    is_built_in = recipe.data.source in BUILT_IN_SOURCES
    findings = [*_findings_here(cluster, reach), *judge(Subject(reach, ranks, plan, is_built_in))]
    has_failed = any(finding.level == "FAIL" for finding in findings)
    if options.json:
        told = {"cluster": cluster.name, "recipe": options.recipe, "ok": not has_failed}
        rows = [asdict(finding) for finding in findings]
        sys.stdout.write(json.dumps({**told, "findings": rows, "ranks": ranks}, indent=1) + "\n")
    else:
        sys.stdout.write("".join(f"{finding}\n" for finding in findings))
    return 1 if has_failed else 0


def _parser() -> Parser:
    parser = Parser(prog="./run.sh doctor", description=__doc__)
    parser.add_argument("--cluster", metavar="C", help="a name in configs/clusters or a YAML file (default: laptop)")
    parser.add_argument("--recipe", metavar="R", help="also its data set, and what its plan needs of memory and disk")
    parser.add_argument("--set", metavar="KEY=VALUE", dest="overrides", action="append", default=[],
                        help="change a value of the recipe or, as cluster.KEY, of the cluster; repeatable")  # fmt: skip
    parser.add_argument("--json", action="store_true", help="findings, and all that the ranks saw, for tools")
    return parser


def _plan(options: Any) -> dict[str, Any]:
    """Ask the planner, which `launch` runs but never imports."""
    sets = [word for override in options.overrides for word in ("--set", override)]
    place = ["--cluster", options.cluster] if options.cluster else []
    command = command_of(Program.PLAN_VERB, "plan", options.recipe, *place, *sets, "--json")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise UserError(done.stderr.strip().removeprefix("error: "))
    plan: dict[str, Any] = json.loads(done.stdout)
    return plan


def within_reach(cluster: Cluster, environment: Mapping[str, str]) -> Cluster:
    """Give the part of the cluster that a launcher reaches from here: all of it, or without an allocation this node."""
    finders = [scheduler for scheduler in all_schedulers() if cluster.launcher in scheduler.host_finders]
    if cluster.launcher == "local" or any(scheduler.job_variable in environment for scheduler in finders):
        return cluster
    # Our own launcher starts no MPI: here its ranks meet over Gloo.
    backend = "gloo" if cluster.communication.backend == "mpi" else cluster.communication.backend
    communication = cluster.communication.model_copy(update={"backend": backend, "allreduce": "flat"})
    return cluster.model_copy(update={"num_nodes": 1, "launcher": "local", "communication": communication})


def _make_folder(cluster: Cluster) -> Path:
    """Make a folder that all hosts see, for what the ranks tell."""
    runs = resolve_path(cluster.paths.runs)
    try:
        runs.mkdir(parents=True, exist_ok=True)
        return Path(tempfile.mkdtemp(prefix=".doctor-", dir=runs))
    except OSError as error:
        raise UserError(f"{runs}: {error.strerror}; set cluster.paths.runs to a folder that you may write") from None


def _probe(
    recipe: Recipe, cluster: Cluster, folder: Path, *, with_data: bool
) -> tuple[list[dict[str, Any]], int | None]:
    """Let real ranks look; gives what each of them told, and the signal that stopped it, if one did."""
    (folder / CONFIG_FILE).write_text(dump(recipe, cluster), encoding="utf-8")
    command = command_of(Program.PROBE, str(folder), *(["--data"] if with_data else []))
    outcome = run_under(cluster, command, rank_environment(cluster))
    told = [json.loads(path.read_text(encoding="utf-8")) for path in folder.glob("rank_*.json")]
    return sorted(told, key=lambda row: row["rank"]), outcome.interrupted_by


def _findings_here(cluster: Cluster, reach: Cluster) -> list[Finding]:
    """Look at what only this side knows: set-up, launcher, how far it reaches."""
    return [_set_up(cluster), _scope(cluster, reach), *_image(cluster)]


def _set_up(cluster: Cluster) -> Finding:
    state = State()
    if cluster.device == "gpu" and state.variant == "cpu":
        return Finding("FAIL", "set-up", "the environment is for a CPU", "./run.sh setup --gpu")
    if state.variant is None:
        return Finding("WARN", "set-up", f"{shown(ROOT / '.venv')} was not made by set-up", "./run.sh setup")
    stages = make_stages(state.variant, has_mpi=state.has_mpi, with_test=False)
    pending = [stage.name for stage in stages if not state.is_done(stage.name, stage.digest)]
    if pending:
        return Finding("WARN", "set-up", f"not done or changed since: {', '.join(pending)}", "./run.sh setup")
    return Finding("OK", "set-up", f"complete, for {state.variant.upper()}")


def _scope(cluster: Cluster, reach: Cluster) -> Finding:
    if reach is cluster:
        return Finding("OK", "launcher", f"{cluster.launcher}, as the cluster file says")
    missing = "" if shutil.which(cluster.launcher) else f"; {cluster.launcher} is not on this machine"
    words = f"no allocation, so only this machine was looked at, without {cluster.launcher}{missing}"
    commands = ", ".join(scheduler.interactive for scheduler in all_schedulers() if scheduler.interactive)
    return Finding("WARN", "launcher", words, f"run it again inside a job: {commands}")


def _image(cluster: Cluster) -> list[Finding]:
    if cluster.container.runtime == "none":
        return []
    words = f"ranks looked at the host, not into {cluster.container.image}"
    return [Finding("WARN", "container", words, "run ./run.sh doctor in the image for its libraries")]


if __name__ == "__main__":
    sys.exit(main())
