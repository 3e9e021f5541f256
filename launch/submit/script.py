"""Renders jobs from ``templates``: ``job.sh.jinja`` is the script of every job, a file for each scheduler has the rest.

A template sees the job (``spec``), the cluster, and ``asked``, the cluster's block ``scheduler``.
"""

import re
import shlex
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from configs.errors import UserError
from configs.programs import Program, command_of
from launch.restart import ANY_HOST
from launch.start.commands import INHERITED, launcher_command, local_words, stop_signal_of
from launch.start.launcher_signals import STOP_FILE
from launch.start.local import STOP_S
from launch.start.rendezvous import rendezvous_of
from launch.submit.job import MOVE, RESTART
from launch.submit.jobspec import JobSpec


def job_text(spec: JobSpec) -> str:
    """Return the script of a job, or the manifest around the script.

    Raises:
        UserError: The scheduler takes no such path as that of the run folder.
    """
    cluster = spec.cluster
    ending = Path(spec.scheduler.script_name).suffix
    return _TEMPLATES.get_template(f"{cluster.scheduler.kind}{ending}.jinja").render(
        spec=spec,
        cluster=cluster,
        asked=cluster.scheduler,
        launcher=_launcher_words(spec),
        rank=[quote(word) for word in spec.rank_command],
        stop_signal=stop_signal_of(cluster.launcher).name.removeprefix("SIG"),
        is_served=rendezvous_of(cluster.communication.kind).is_served(cluster),
        # An acceptance examines the nodes by itself.
        checks_first=cluster.scheduler.check_first and spec.starts_ranks and spec.accept_minutes is None,
        limits=_limits(spec),
    )


def _launcher_words(spec: JobSpec) -> list[str]:
    """Return the words that start all ranks, quoted; some name a file or an array that the script has made before."""
    cluster = spec.cluster
    if cluster.launcher == "local":
        words = command_of(Program.LOCAL_LAUNCHER, *local_words(cluster), python=spec.python)
    else:
        named = {name: value for name, value in spec.variables.items() if not name.startswith(INHERITED)}
        words = launcher_command(cluster, [], named, spec.python)
    quoted = [quote(word) for word in words]
    if cluster.launcher == "mpirun":
        return [*quoted, "-hostfile", '"$folder/hosts"', '"${inherited[@]}"']
    if cluster.launcher == "horovodrun":
        return [*quoted, "-H", '"${slots#,}"']
    if cluster.launcher == "srun":
        if cluster.container.runtime == "enroot":
            quoted.append(quote(f"--container-image={cluster.container.image}"))
            quoted.append(quote(f"--container-mounts={','.join(spec.mounts)}"))
        quoted += [f"--cpus-per-task={spec.cores_per_rank}"] if spec.cores_per_rank else []
        # Only this distribution takes the nodes in the order in which a file lists them, a line a rank.
        quoted += ["--distribution=arbitrary"] if spec.spares else []
    return quoted


def _limits(spec: JobSpec) -> dict[str, int | str]:
    """Return the resources of a pod that runs ranks: its GPUs, and what the cluster file asks for."""
    gpus = {"nvidia.com/gpu": spec.cluster.ranks_per_node} if spec.cluster.device == "gpu" else {}
    return gpus | {resource: amount for resource, _, amount in (word.partition("=") for word in spec.resources)}


def _label(name: str, longest: int) -> str:
    """Return a name in the letters that Kubernetes allows: small ones, digits and dashes, a letter first."""
    word = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    return (word if word[:1].isalpha() else f"run-{word}")[:longest].rstrip("-")


def quote(path: Path | str) -> str:
    """Return a word quoted for the shell; also with a comma in it or a = before it, which shellcheck reports."""
    word = str(path)
    is_suspicious = "," in word or word.startswith("=")
    return f"'{word}'" if is_suspicious and shlex.quote(word) == word else shlex.quote(word)


def _lines(text: str) -> str:
    """Return the lines of a text, without those that are empty: directives whose value a cluster file does not give."""
    return "".join(f"{line}\n" for line in text.split("\n") if line)


def _directive_path(path: Path) -> Path:
    """Return a path as a word of a scheduler's directive.

    Args:
        path: A file in the run folder.

    Raises:
        UserError: The path has a character that some scheduler replaces, or splits paths at.
    """
    if not re.fullmatch(r"[\w./+@=-]+", str(path)):
        raise UserError(
            f"{str(path)!r}: got a path for a scheduler's directive, allowed: letters, digits and any of ./_+@=-; give "
            "another folder with --run-dir"
        )
    return path


def _python(program: Program, *words: str) -> str:
    return " ".join(['"$python" -I -m', program.value, *words])


_TEMPLATES = Environment(
    loader=FileSystemLoader(Path(__file__).with_name("templates")),
    undefined=StrictUndefined,
    keep_trailing_newline=True,
    autoescape=False,
    comment_start_string="{*",  # because ${#array[@]} is shell
    comment_end_string="*}",
)
_TEMPLATES.filters |= {
    "array": lambda quoted, name: f"{name}=({' '.join(quoted)})",
    "clock_time": lambda seconds: f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}",
    "directive_path": _directive_path,
    "label": _label,
    "lines": _lines,
    "quote": quote,
}
_TEMPLATES.globals |= {
    "ACCEPT": _python(Program.ACCEPT_VERB),
    "ANY_HOST": ANY_HOST,
    "BAD_HOSTS": _python(Program.JOB, 'left-out "${runs[@]}"'),
    "DOCTOR": _python(Program.DOCTOR_VERB),
    "INHERITED": INHERITED,
    "JOB": _python(Program.JOB),
    "MOVE": MOVE,
    "REACH": _python(Program.REACH),
    "RENDEZVOUS": _python(Program.RENDEZVOUS),
    "RESTART": RESTART,
    "STOP_FILE": STOP_FILE,
    "STOP_S": f"{STOP_S:.0f}",
}
