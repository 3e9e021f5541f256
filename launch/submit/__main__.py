"""``./run.sh submit RECIPE --cluster C``: make the run folders, write the job script into them, hand it over."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from configs.arguments import Parser
from configs.errors import UserError
from configs.load import ROOT, load_both, with_resolved_paths
from configs.plan import plan_run
from configs.rank_variables import binding_environment, rank_environment
from configs.schema import Cluster, Recipe
from launch.run import new_folder, open_run, shown
from launch.submit import gridengine, hosts, kubernetes, lsf, pbs, slurm
from launch.submit.jobspec import IMAGE_PROGRAM, JobSpec, require_submittable
from launch.submit.script import Dialect
from logs.disk import write_text

__all__ = ["main", "make_job", "render", "submit_run"]

_SCHEDULERS: dict[str, tuple[Dialect, Callable[[JobSpec], str]]] = {
    "slurm": (slurm.SLURM, slurm.render),
    "gridengine": (gridengine.GRID_ENGINE, gridengine.render),
    "pbs": (pbs.PBS, pbs.render),
    "lsf": (lsf.LSF, lsf.render),
    "kubernetes": (kubernetes.KUBERNETES, kubernetes.render),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Submit, or show what would be; gives 0, or 2 where nothing was handed over."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        options = _parser().parse_args(words[words[:1] == ["submit"] :])
        recipe, cluster = load_both(options.recipe, options.cluster, options.overrides)
        named = tuple(options.hosts.split(",")) if options.hosts else ()
        require_submittable(cluster, named)
        plan_run(recipe, cluster.world_size)
        spec = make_job(
            recipe, cluster, named, _folders(options.run_dir or new_folder(recipe, cluster), options.repeat)
        )
        dialect, script = render(spec)
        if options.dry_run:
            sys.stdout.write(f"{script}\n# {_shell(dialect, spec)}\n")
            return 0
        _require_command(dialect)
        _write(recipe, spec, dialect.script_name, script)
        sys.stdout.write(_told(spec, dialect, _hand_over(spec, dialect)))
    except UserError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    return 0


def submit_run(recipe: Recipe, cluster: Cluster, folder: Path) -> None:
    """Hand over one run as a job of its own: a cell of a study.

    Raises:
        UserError: No job can be made of it, or the scheduler does not take it.
    """
    require_submittable(cluster, ())
    spec = make_job(recipe, cluster, (), (folder.absolute(),))
    dialect, script = render(spec)
    _require_command(dialect)
    _write(recipe, spec, dialect.script_name, script)
    sys.stdout.write(_told(spec, dialect, _hand_over(spec, dialect)))


def _parser() -> Parser:
    parser = Parser(prog="./run.sh submit", description=__doc__)
    parser.add_argument("recipe", metavar="RECIPE", help="a name in configs/recipes, a YAML file, a run's config.yaml")
    parser.add_argument("--cluster", metavar="C", required=True, help="a name in configs/clusters or a YAML file")
    parser.add_argument("--set", metavar="KEY=VALUE", dest="overrides", action="append", default=[],
                        help="change a value of the recipe or, as cluster.KEY, of the cluster; repeatable")  # fmt: skip
    parser.add_argument("--run-dir", metavar="DIR", type=Path, help="the run's folder (default: runs/RECIPE-DATE-TIME)")
    parser.add_argument("--repeat", metavar="N", type=int, default=1, help="N runs with N seeds in one job")
    parser.add_argument("--hosts", metavar="A,B", help="machines, for a cluster without a scheduler")
    parser.add_argument("--dry-run", action="store_true", help="print the script and the command; make nothing")
    return parser


def make_job(recipe: Recipe, cluster: Cluster, named: tuple[str, ...], folders: tuple[Path, ...]) -> JobSpec:
    """Describe the job of a recipe's runs in ``folders``, whose paths a container sees under the same names."""
    cluster = with_resolved_paths(cluster)
    in_pod = cluster.scheduler.kind == "kubernetes"
    spec = JobSpec(
        name=recipe.name,
        cluster=cluster,
        run_folders=folders,
        program=IMAGE_PROGRAM if in_pod else ROOT,
        python=IMAGE_PROGRAM / ".venv/bin/python" if in_pod else Path(sys.executable),
        variables=rank_environment(cluster) | binding_environment(cluster),
        hosts=named,
    )
    missing = set(spec.mounts) - set(cluster.container.mounts)
    if in_pod and missing:
        path = min(missing).partition(":")[0]
        raise UserError(f"container.mounts: nothing shows {path} to the pods; add CLAIM:{path}, and keep it here too")
    return spec


def render(spec: JobSpec) -> tuple[Dialect, str]:
    """Give the job's script, and what its scheduler is like."""
    kind = spec.cluster.scheduler.kind
    if kind == "none":
        return hosts.hosts_scheduler(spec.hosts), hosts.render(spec)
    dialect, write = _SCHEDULERS[kind]
    return dialect, write(spec)


def _folders(folder: Path, repeat: int) -> tuple[Path, ...]:
    if repeat < 1:
        raise UserError(f"--repeat: got {repeat}, allowed: 1 or more")
    folder = folder.absolute()
    return (folder,) if repeat == 1 else tuple(Path(f"{folder}-{number}") for number in range(1, repeat + 1))


def _require_command(dialect: Dialect) -> None:
    if shutil.which(dialect.submit[0]) is None:
        raise UserError(f"{dialect.submit[0]} is not on this machine; submit where it is, or look with --dry-run")


def _write(recipe: Recipe, spec: JobSpec, script_name: str, script: str) -> None:
    """Make the runs' folders, each with its own seed and the script of them all."""
    for number, folder in enumerate(spec.run_folders):
        run = recipe.run.model_copy(update={"seed": recipe.run.seed + number})
        open_run(recipe.model_copy(update={"run": run}), spec.cluster, folder)
        write_text(folder / script_name, script)


def _hand_over(spec: JobSpec, dialect: Dialect) -> str:
    """Submit the script; gives the job's number.

    Raises:
        UserError: The scheduler does not take it; the folders are removed again.
    """
    if spec.hosts:
        with spec.log.open("ab") as log:
            command = [*dialect.submit, str(spec.folder / dialect.script_name)]
            return str(subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                        start_new_session=True).pid)  # fmt: skip
    done = subprocess.run(["bash", "-c", _shell(dialect, spec)], capture_output=True, text=True, check=False)
    if done.returncode:
        for folder in spec.run_folders:
            shutil.rmtree(folder)
        words = " ".join((done.stderr or done.stdout).split())
        raise UserError(f"{dialect.submit[0]} does not take the job: {words}")
    number = re.search(r"<(\d+)>", done.stdout)
    return number[1] if number else done.stdout.strip().partition(";")[0]


def _shell(dialect: Dialect, spec: JobSpec) -> str:
    words = [word if word == "<" else shlex.quote(word) for word in dialect.submit]
    return " ".join([*words, shlex.quote(str(spec.folder / dialect.script_name))])


def _told(spec: JobSpec, dialect: Dialect, job: str) -> str:
    lines = [
        f"{spec.name}: job {job}, {spec.cluster.world_size} ranks on {spec.cluster.num_nodes} nodes",
        *(f"  {shown(folder)}" for folder in spec.run_folders),
        f"  watch   {dialect.watch.format(job=job)}; tail -f {shown(spec.log)}; ./run.sh watch {shown(spec.folder)}",
        f"  cancel  {dialect.cancel.format(job=job)}",
    ]
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    sys.exit(main())
