"""The part of a job script that all schedulers share: strict shell from the granted hosts to the exit status.

The script closes gaps that a scheduler, a launcher and Horovod leave open: other hosts than the job asked for, no
rendezvous server for ranks that communicate by Gloo under srun, ranks that outlive a dead rank, a notice before the
time limit that kills the launcher instead of reaching the ranks, a log without its last event, and an exit status that
says success after a failure.
"""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Template

from configs.programs import Program, command_of
from launch.restart import ANY_HOST
from launch.start.commands import INHERITED, launcher_command, local_words, stop_signal_of
from launch.start.launcher_signals import STOP_FILE
from launch.start.local import STOP_S
from launch.start.rendezvous import rendezvous_of
from launch.submit.job import MOVE, RESTART
from launch.submit.jobspec import JobSpec

_JOB = f'"$python" -I -m {Program.JOB.value}'

BAD_HOSTS = f'{_JOB} left-out "${{runs[@]}}"'
"""Shell command of a job script that prints the hosts that failed, and without which the runs go on, one a line."""


class _Script(Template):
    """Shell text, in which ``@@name`` and ``@@{name}`` stand for what `job_script` fills in."""

    delimiter = "@@"


_SCRIPT = _Script(r"""#!/usr/bin/env bash
@@{directives}
# @@name: @@size of @@cluster. Submitted by:
# @@submitted
set -euo pipefail

readonly python=@@python folder=@@folder num_hosts=@@num_hosts
@@{runs}@@{as_root}@@{redirection}@@{setup}@@{exports}
mapfile -t hosts < <(@@hosts)
if [[ ${#hosts[@]} -@@differs $num_hosts ]]; then
  printf 'error: the job got %s hosts (%s) and needs %s\n' "${#hosts[@]}" "${hosts[*]}" "$num_hosts" >&2
  exit 2
fi
printf 'job %s of %s on %s\n' @@job_id "$folder" "${hosts[*]}"
env | grep -E '^(HOROVOD|MXNET|NCCL|OMP|RANK)_' |
  grep -vE '^[^=]*(KEY|TOKEN|SECRET|PASSW|CREDENTIAL|AUTH)|://[^/ ]*@' | sort
@@{reach}
@@{commands}
# SIGUSR1 announces the time limit. SIGTERM, SIGINT (LSF's bkill sends it first) and SIGHUP stop the job. The
# ranks save their state and end.
signals=0 @@{limit_is_far}launched=
trap '@@{limit_is_near}@@pass_on' USR1
trap '@@pass_on' TERM INT HUP
@@{timer}
# Starts the ranks of one run and waits for their end. A signal interrupts the wait, but not the launcher.
launch() {
@@{choose}@@{serve}  # The kernel ends the launcher, and the launcher its ranks, if this script is killed.
  local guard=()
  ! command -v setpriv >/dev/null || guard=(setpriv --pdeathsig TERM)
  "${guard[@]}" "${launcher[@]}" "${rank[@]}" "$1" </dev/null &
  launched=$!
  while true; do
    local before=$signals
    status=0
    wait "$launched" || status=$?
    [[ $status -gt 128 && $signals -ne $before ]] || break
  done
  launched=
@@{end_server}}

@@{follow}@@{check}worst=0
for run in "${runs[@]}"; do
  result=@@restart
  # @@restart: the ranks failed, and are started again from the last checkpoint.
  while [[ $result -eq @@restart ]]; do
    status=0 began=1 result=0
    if [[ $signals -eq 0 ]]; then
      began=0
      @@job begin "$run" || began=$?
    fi
    if [[ $began -eq 0 ]]; then
      # Gives signs of life for the claim on the run folder, until this script and the launcher are gone.
      exec {claim}> >(exec @@job hold "$run")
      launch "$run"
      exec {claim}>&-
    elif [[ $began -ne 1 ]]; then
      result=2 # The folder is somebody else's.
      break
    fi
    @@job end "$run" --status "$status" --signals "$signals"@@{near_limit}@@{choices} ||
      result=$?
    # 75: the run was stopped before its end, and the next attempt of this job continues it.
    if [[ $result -eq 75 ]]; then
@@{requeue}      exit 75
    fi
@@{move}  done
  [[ $result -le $worst ]] || worst=$result
done
exit "$worst"
""")

_AS_ROOT = (
    "# mpirun refuses to run as root without these.",
    "[[ $EUID -ne 0 ]] || export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1",
)
_INHERITED = (
    "# These variables choose libraries and kernels, and mpirun passes on only what it is told to.",
    "inherited=()",
    "for name in " + " ".join(f'"${{!{prefix}@}}"' for prefix in INHERITED) + "; do",
    '  inherited+=(-x "$name")',
    "done",
)
_CHECK = (
    "# The nodes are examined first; --set cluster.scheduler.check_first=false switches this off.",
    "printf -v listed ',%s' \"${hosts[@]}\"",
    f'if ! "$python" -I -m {Program.DOCTOR_VERB.value} doctor --recipe "$folder/config.yaml" --step \\',
    '  --run "$folder" --hosts "${listed#,}"; then',
    "  printf 'error: the nodes failed a check, see above; nothing was trained\\n' >&2",
    "  exit 1",
    "fi",
    "",
)
_COLUMNS = 75
"""Longest line of an array, as far as its words allow."""


@dataclass(frozen=True, kw_only=True)
class InsideJob:
    """Shell texts in which the job scripts of schedulers differ, apart from the directives.

    Attributes:
        hosts: Command that prints the granted hosts, one a line. The job script runs on the first of them.
        job_id: Word for the job's id.
        requeue: Command that queues the job again after its ranks saved their state. If empty, the scheduler cannot do
            that, and ``scheduler.requeue`` has no effect on the script.
        move: Lines that let the job go on without the hosts that `BAD_HOSTS` prints. If empty, a run without spare
            nodes is always started again on the same hosts.
        topology: Words that print which nodes are at which switch, see `launch.submit.hosts.slurm_leaves`.
        redirection: Line that sends the script's output to ``job.log``, for a scheduler that shows the output of a job
            only after its end.
        follow: Lines by which every node but the first starts its ranks when the first one does, and ends, where the
            job script runs on every node; empty for launchers that start the ranks of all nodes.
        reach: Lines that end the job if its hosts do not reach each other; empty where the scheduler vouches for them.
        sends_notice: Whether the scheduler sends SIGUSR1 to the script before the time limit. If False, a timer in the
            script does.
        places_mpirun_ranks: Whether mpirun needs no host file, because the scheduler's count of slots per host is
            always the number of ranks.
    """

    hosts: str
    job_id: str
    requeue: str = ""
    move: Sequence[str] = ()
    topology: str = ""
    redirection: str = ""
    follow: Sequence[str] = ()
    reach: str = ""
    sends_notice: bool = False
    places_mpirun_ranks: bool = False


def job_script(spec: JobSpec, directives: Sequence[str], inside: InsideJob) -> str:
    """Return the whole script.

    Args:
        spec: The job.
        directives: The lines at the head of the script by which the job asks the scheduler for resources.
        inside: What the scheduler's jobs do in their own way.
    """
    cluster, asked = spec.cluster, spec.cluster.scheduler
    requeues = asked.requeue and bool(inside.requeue)
    # A host that failed twice can be left out. Without a spare node, a scheduler has to queue the job again for that.
    moves = bool(inside.move) and asked.max_restarts > 1 and asked.requeue and not spec.spares
    serve, end_server = _server(spec)
    choose, commands = _commands(spec, inside)
    return _SCRIPT.substitute(
        directives=_lines(*directives),
        name=spec.name,
        size=spec.size,
        cluster=cluster.name,
        submitted=f"{spec.scheduler.submit} {_quote(spec.script)}",
        python=_quote(spec.python),
        folder=_quote(spec.folder),
        num_hosts=cluster.num_nodes,
        runs=_lines("readonly runs=(", *(f"  {shlex.quote(str(run))}" for run in spec.run_folders), ")"),
        as_root=_lines(*(_AS_ROOT if cluster.launcher == "mpirun" else ())),
        redirection=_lines(*filter(None, [inside.redirection])),
        setup=_lines(*asked.setup),
        exports=_lines(*(f"export {name}={_quote(value)}" for name, value in sorted(spec.variables.items()))),
        hosts=inside.hosts,
        differs="lt" if spec.spares else "ne",
        job_id=inside.job_id,
        reach=_lines(*filter(None, [inside.reach])),
        commands=commands,
        choose=choose,
        limit_is_far="limit_is_near=0 " if requeues else "",
        limit_is_near="limit_is_near=1 " if requeues else "",
        pass_on=_pass_on(cluster.launcher),
        timer=_timer(spec, inside),
        serve=serve,
        end_server=end_server,
        follow=_lines(*inside.follow),
        check=_lines(*(_CHECK if _checks_first(spec) else ())),
        job=_JOB,
        restart=RESTART,
        near_limit=' --near-limit "$limit_is_near"' if requeues else "",
        choices=f" \\\n      --hosts {choices}" if (choices := _choices(spec, moves=moves)) else "",
        requeue=_lines(f"      [[ $limit_is_near -eq 0 ]] || {inside.requeue}") if requeues else "",
        move=_move(inside) if moves else "",
    )


def _choices(spec: JobSpec, *, moves: bool) -> str:
    """Return the word with the hosts among which the run can choose, see `launch.restart.may_restart`."""
    return '"${granted[*]}"' if spec.spares else ANY_HOST if moves else ""


def _commands(spec: JobSpec, inside: InsideJob) -> tuple[str, str]:
    """Return the line by which an attempt chooses its hosts, and the arrays ``launcher`` and ``rank``.

    The arrays hold the words that start all ranks, and those that start one. With spare nodes, a function sets the
    first array for the hosts that it chooses; without, there is nothing to choose.
    """
    cluster = spec.cluster
    before: list[str] = []
    placing: list[str] = []
    if cluster.launcher == "local":
        words = command_of(Program.LOCAL_LAUNCHER, *local_words(cluster), python=spec.python)
    else:
        named = {name: value for name, value in spec.variables.items() if not name.startswith(INHERITED)}
        words = launcher_command(cluster, [], named, spec.python)
    quoted = [_quote(word) for word in words]
    if cluster.launcher == "mpirun" and not inside.places_mpirun_ranks:
        placing.append(f'printf \'%s slots={cluster.ranks_per_node}\\n\' "${{hosts[@]}}" >"$folder/hosts"')
        quoted += ["-hostfile", '"$folder/hosts"']
    if cluster.launcher == "mpirun":
        before += _INHERITED
        # Open MPI starts its daemons by srun, which would keep the variables from them after sbatch --export=NONE.
        before += ["export SLURM_EXPORT_ENV=ALL"] if cluster.scheduler.kind == "slurm" else []
        quoted.append('"${inherited[@]}"')
    if cluster.launcher == "horovodrun":
        placing.append(f"printf -v slots ',%s:{cluster.ranks_per_node}' \"${{hosts[@]}}\"")
        quoted += ["-H", '"${slots#,}"']
    if cluster.launcher == "srun":
        quoted += _srun_options(spec)
    if cluster.launcher == "srun" and spec.spares:
        # Only this distribution takes the nodes in the order in which a file lists them, a line a rank.
        each = " ".join(['"$host"'] * cluster.ranks_per_node)
        placing.append(f'for host in "${{hosts[@]}}"; do printf \'%s\\n\' {each}; done >"$folder/hosts"')
        placing.append('export SLURM_HOSTFILE="$folder/hosts"')
        quoted.append("--distribution=arbitrary")
    rank = _wrapped("rank", [_quote(word) for word in spec.rank_command])
    if not spec.spares:
        return "", _lines(*placing, *before, *_wrapped("launcher", quoted), *rank)
    topology = f' --topology "{inside.topology}"' if inside.topology else ""
    function = [
        "# Chooses the hosts of the next attempt. Those that failed, or that the check found slow, come last.",
        "choose_hosts() {",
        "  mapfile -t hosts < <(",
        f'    {_JOB} choose "$1" --checked "$folder" \\',
        f'      --hosts "${{granted[*]}}"{topology}',
        "  )",
        "  [[ ${#hosts[@]} -eq $num_hosts ]] || return 1",
        *(f"  {line}" for line in [*placing, *_wrapped("launcher", quoted, keyword="")]),
        "}",
    ]
    chosen = '  choose_hosts "$1" || { status=1 && return; }\n'
    return chosen, _lines('readonly granted=("${hosts[@]}")', *before, *rank, "", *function)


def _srun_options(spec: JobSpec) -> list[str]:
    """Return the options of srun that only a job script knows, quoted: the container and the cores of a rank."""
    cluster, options = spec.cluster, []
    if cluster.container.runtime == "enroot":
        options.append(_quote(f"--container-image={cluster.container.image}"))
        options.append(_quote(f"--container-mounts={','.join(spec.mounts)}"))
    if cluster.node.cores:
        options.append(f"--cpus-per-task={max(1, cluster.node.cores // cluster.ranks_per_node)}")
    return options


def _pass_on(launcher: str) -> str:
    """Return the command of a trap that passes a signal on, as the signal that the launcher gives its ranks."""
    pass_on = f'kill -{stop_signal_of(launcher).name.removeprefix("SIG")} "$launched" 2>/dev/null || true'
    if launcher == "horovodrun":  # It cannot pass a signal on to other hosts: the ranks look for a file.
        is_patient = f"-n ${{run:-}} && $((SECONDS - told)) -lt {STOP_S:.0f}"
        pass_on = (
            f'[[ $signals -gt 1 ]] || told=$SECONDS; {{ [[ {is_patient} ]] && touch "$run/{STOP_FILE}"; }} || {pass_on}'
        )
    return f"signals=$((signals + 1)); {pass_on}"


def _timer(spec: JobSpec, inside: InsideJob) -> str:
    """Return the lines that announce the time limit where the scheduler does not."""
    notice_s = spec.cluster.scheduler.notice_s
    if not spec.scheduler.has_time_limit or inside.sends_notice or not notice_s:
        return ""
    return _lines(
        "{",
        "  trap 'kill $!' TERM",
        f"  sleep {spec.wall_time_s - notice_s} &",
        "  wait $! && kill -USR1 $$",
        "} &",
        "readonly timer=$!",
        "trap 'kill \"$timer\" 2>/dev/null || true' EXIT",
    )


def _server(spec: JobSpec) -> tuple[str, str]:
    """Return the lines that start and end the server by which the ranks find each other, empty if there is none."""
    cluster, kind = spec.cluster, spec.cluster.communication.kind
    if not rendezvous_of(kind).is_served(cluster):
        return "", ""
    program = f"{Program.RENDEZVOUS.value} --kind {kind} {cluster.num_nodes} {cluster.ranks_per_node}"
    start = _lines(
        "  # The server by which the ranks find each other. It ends when the pipe from this script closes.",
        f'  coproc meeting {{ exec "$python" -I -m {program}; }}',
        "  local server=$! found",
        '  read -ra found <&"${meeting[0]}" || { status=1 && return; }',
        '  export "${found[@]}"',
    )
    return start, _lines('  kill "$server" 2>/dev/null && wait "$server" || true')


def _checks_first(spec: JobSpec) -> bool:
    """Return whether the job examines its nodes first; the doctor has to be able to start ranks by itself."""
    cluster = spec.cluster
    is_in_place = cluster.container.runtime == "none" or spec.scheduler.runs_script_in_image
    return cluster.scheduler.check_first and is_in_place and cluster.launcher != "torchrun"


def _move(inside: InsideJob) -> str:
    return _lines(
        f"    # {MOVE}: a host failed twice, and the run goes on without it.",
        f"    if [[ $result -eq {MOVE} ]]; then",
        *(f"      {line}" for line in inside.move),
        "      exit 75",
        "    fi",
    )


def _lines(*lines: str) -> str:
    return "".join(f"{line}\n" for line in lines)


def _wrapped(name: str, words: Sequence[str], keyword: str = "readonly ") -> list[str]:
    """Return the lines of an array of quoted words; the name of a variable stays on one line with its -x."""
    lines = [""]
    for before, word in zip(["", *words], words, strict=False):
        if len(lines[-1]) + len(word) > _COLUMNS and before != "-x":
            lines.append("")
        lines[-1] += f" {word}" if lines[-1] else word
    return [f"{keyword}{name}=(", *(f"  {line}" for line in lines), ")"]


def _quote(path: Path | str) -> str:
    """Return a word quoted for the shell; also with a comma in it or a = before it, which shellcheck reports."""
    word = str(path)
    is_suspicious = "," in word or word.startswith("=")
    return f"'{word}'" if is_suspicious and shlex.quote(word) == word else shlex.quote(word)
