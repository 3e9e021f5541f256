"""The part of a job script that all schedulers share: strict shell from the granted hosts to the exit status.

The script closes gaps that a scheduler, a launcher and Horovod leave open: other hosts than the job asked for, no
rendezvous server for ranks that communicate by Gloo under srun, ranks that outlive a dead rank, a notice before the
time limit that kills the launcher instead of reaching the ranks, a log without its last event, and an exit status that
says success after a failure.
"""

import shlex
from collections.abc import Sequence
from pathlib import Path

from configs.programs import Program, command_of
from launch.start.commands import INHERITED, launcher_command, local_words, stop_signal_of
from launch.start.launcher_signals import STOP_FILE
from launch.start.local import STOP_S
from launch.start.meetings import meeting_of
from launch.submit.job import MOVE, RESTART
from launch.submit.jobspec import JobSpec
from launch.submit.scheduler import JobScheduler

_AS_ROOT = [
    "# mpirun refuses to run as root without these.",
    "[[ $EUID -ne 0 ]] || export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1",
]
_INHERITED = [
    "# These variables choose libraries and kernels, and mpirun passes on only what it is told to.",
    "inherited=()",
    "for name in " + " ".join(f'"${{!{prefix}@}}"' for prefix in INHERITED) + "; do",
    '  inherited+=(-x "$name")',
    "done",
]
_COLUMNS = 75
"""Longest line of an array, as far as its words allow."""


def render_script(spec: JobSpec, scheduler: JobScheduler, directives: Sequence[str]) -> str:
    """Return the whole script.

    Args:
        spec: The job.
        scheduler: The scheduler that runs it.
        directives: The lines at the head of the script by which the job asks the scheduler for resources.
    """
    cluster = spec.cluster
    submitted = f"{scheduler.submit} {_quote(spec.folder / scheduler.script_name)}"
    header = [
        f"# {spec.name}: {spec.size} of {cluster.name}. Submitted by:",
        f"# {submitted}",
        "set -euo pipefail",
    ]
    parts = [
        ["#!/usr/bin/env bash", *directives],
        header,
        _settings(spec, scheduler),
        _hosts(scheduler),
        _commands(spec, scheduler),
        _signals(spec, scheduler),
        _launch_function(spec),
        *([_check()] if _checks_first(spec, scheduler) else []),
        _main_loop(spec, scheduler),
    ]
    return "\n\n".join("\n".join(part) for part in parts) + "\n"


def _settings(spec: JobSpec, scheduler: JobScheduler) -> list[str]:
    variables = [f"export {name}={_quote(value)}" for name, value in sorted(spec.variables.items())]
    return [
        f"readonly python={_quote(spec.python)} folder={_quote(spec.folder)} num_hosts={spec.cluster.num_nodes}",
        *_array("runs", [str(run) for run in spec.run_folders]),
        *(_AS_ROOT if spec.cluster.launcher == "mpirun" else []),
        *([scheduler.redirection] if scheduler.redirection else []),
        *spec.cluster.scheduler.setup,
        *variables,
    ]


def _hosts(scheduler: JobScheduler) -> list[str]:
    """Return the lines that read the granted hosts and refuse another number of hosts than the job asks for."""
    return [
        f"mapfile -t hosts < <({scheduler.hosts})",
        "if [[ ${#hosts[@]} -ne $num_hosts ]]; then",
        '  printf \'error: the job got %s hosts (%s) and needs %s\\n\' "${#hosts[@]}" "${hosts[*]}" "$num_hosts" >&2',
        "  exit 2",
        "fi",
        f'printf \'job %s of %s on %s\\n\' {scheduler.job_id} "$folder" "${{hosts[*]}}"',
        "env | grep -E '^(HOROVOD|MXNET|NCCL|OMP|RANK)_' |",
        "  grep -vE '^[^=]*(KEY|TOKEN|SECRET|PASSW|CREDENTIAL|AUTH)|://[^/ ]*@' | sort",
        *([scheduler.reach] if scheduler.reach else []),
    ]


def _commands(spec: JobSpec, scheduler: JobScheduler) -> list[str]:
    """Return the arrays ``launcher`` and ``rank``: the words that start all ranks, and those that start one."""
    cluster, lines = spec.cluster, []
    if cluster.launcher == "local":
        words = command_of(Program.LOCAL_LAUNCHER, *local_words(cluster), python=spec.python)
    else:
        named = {name: value for name, value in spec.variables.items() if not name.startswith(INHERITED)}
        words = launcher_command(cluster, [], named, spec.python)
    quoted = [_quote(word) for word in words]
    if cluster.launcher == "mpirun" and not scheduler.places_mpirun_ranks:
        lines.append(f'printf \'%s slots={cluster.ranks_per_node}\\n\' "${{hosts[@]}}" >"$folder/hosts"')
        quoted += ["-hostfile", '"$folder/hosts"']
    if cluster.launcher == "mpirun":
        lines += _INHERITED
        quoted.append('"${inherited[@]}"')
    if cluster.launcher == "horovodrun":
        lines.append(f"printf -v slots ',%s:{cluster.ranks_per_node}' \"${{hosts[@]}}\"")
        quoted += ["-H", '"${slots#,}"']
    if cluster.launcher == "srun":
        quoted += _srun_options(spec)
    return [*lines, *_wrapped("launcher", quoted), *_wrapped("rank", [_quote(word) for word in spec.rank_command])]


def _srun_options(spec: JobSpec) -> list[str]:
    """Return the options of srun that only a job script knows, quoted: the container and the cores of a rank."""
    cluster, options = spec.cluster, []
    if cluster.container.runtime == "enroot":
        options.append(_quote(f"--container-image={cluster.container.image}"))
        options.append(_quote(f"--container-mounts={','.join(spec.mounts)}"))
    if cluster.node.cores:
        options.append(f"--cpus-per-task={max(1, cluster.node.cores // cluster.ranks_per_node)}")
    return options


def _signals(spec: JobSpec, scheduler: JobScheduler) -> list[str]:
    """Return the traps that pass the scheduler's signals on, as the signal that the launcher passes to its ranks."""
    passed = stop_signal_of(spec.cluster.launcher).name.removeprefix("SIG")
    notice_s = spec.cluster.scheduler.notice_s
    near = "limit_is_near=1 " if _requeues(spec, scheduler) else ""
    pass_on = f'kill -{passed} "$launched" 2>/dev/null || true'
    if spec.cluster.launcher == "horovodrun":  # It cannot pass a signal on to other hosts: the ranks look for a file.
        is_patient = f"-n ${{run:-}} && $((SECONDS - told)) -lt {STOP_S:.0f}"
        pass_on = (
            f'[[ $signals -gt 1 ]] || told=$SECONDS; {{ [[ {is_patient} ]] && touch "$run/{STOP_FILE}"; }} || {pass_on}'
        )
    pass_on = f"signals=$((signals + 1)); {pass_on}"
    lines = [
        "# SIGUSR1 announces the time limit. SIGTERM, SIGINT (LSF's bkill sends it first) and SIGHUP stop the job. The",
        "# ranks save their state and end.",
        f"signals=0 {near and 'limit_is_near=0 '}launched=",
        f"trap '{near}{pass_on}' USR1",
        f"trap '{pass_on}' TERM INT HUP",
    ]
    if scheduler.has_time_limit and not scheduler.sends_notice and notice_s:
        delay = spec.wall_time_s - notice_s
        lines += [
            "{",
            "  trap 'kill $!' TERM",
            f"  sleep {delay} &",
            "  wait $! && kill -USR1 $$",
            "} &",
            "readonly timer=$!",
            "trap 'kill \"$timer\" 2>/dev/null || true' EXIT",
        ]
    return lines


def _launch_function(spec: JobSpec) -> list[str]:
    nodes, per_node = spec.cluster.num_nodes, spec.cluster.ranks_per_node
    meeting = meeting_of(spec.cluster.communication.kind)
    serves = meeting.is_served(spec.cluster)
    start_server = (
        [
            "  # The server by which the ranks find each other. It ends when the pipe from this script closes.",
            f'  coproc meeting {{ exec "$python" -I -m {meeting.PROGRAM.value} {nodes} {per_node}; }}',
            "  local server=$! found",
            '  read -ra found <&"${meeting[0]}" || { status=1 && return; }',
            '  export "${found[@]}"',
        ]
        if meeting.PROGRAM
        else []
    )
    return [
        "# Starts the ranks of one run and waits for their end. A signal interrupts the wait, but not the launcher.",
        "launch() {",
        *(start_server if serves else []),
        "  # The kernel ends the launcher, and the launcher its ranks, if this script is killed.",
        "  local guard=()",
        "  ! command -v setpriv >/dev/null || guard=(setpriv --pdeathsig TERM)",
        '  "${guard[@]}" "${launcher[@]}" "${rank[@]}" "$1" </dev/null &',
        "  launched=$!",
        "  while true; do",
        "    local before=$signals",
        "    status=0",
        '    wait "$launched" || status=$?',
        "    [[ $status -gt 128 && $signals -ne $before ]] || break",
        "  done",
        "  launched=",
        *(['  kill "$server" 2>/dev/null && wait "$server" || true'] if serves else []),
        "}",
    ]


def _checks_first(spec: JobSpec, scheduler: JobScheduler) -> bool:
    """Return whether the job examines its nodes first; the doctor has to be able to start ranks by itself."""
    cluster = spec.cluster
    can_start = cluster.launcher == "local" or cluster.launcher in scheduler.host_finders
    return cluster.scheduler.check_first and can_start and cluster.container.runtime == "none"


def _check() -> list[str]:
    return [
        "# The nodes are examined first; --set cluster.scheduler.check_first=false switches this off.",
        f'if ! "$python" -I -m {Program.DOCTOR_VERB.value} doctor --recipe "${{runs[0]}}/config.yaml" --step; then',
        "  printf 'error: the nodes failed a check, see above; nothing was trained\\n' >&2",
        "  exit 1",
        "fi",
    ]


def _main_loop(spec: JobSpec, scheduler: JobScheduler) -> list[str]:
    """Return the loop over the runs; the job's exit status is the worst one of its runs."""
    requeues = _requeues(spec, scheduler)
    queue = [f"      [[ $limit_is_near -eq 0 ]] || {scheduler.requeue}"] if requeues else []
    job = f'"$python" -I -m {Program.JOB.value}'
    near_limit = ' --near-limit "$limit_is_near"' if requeues else ""
    moves = _moves(spec, scheduler)
    hosts = [f"      --hosts {_quote(scheduler.choices)} ||"] if moves else []
    return [
        "worst=0",
        'for run in "${runs[@]}"; do',
        f"  result={RESTART}",
        f"  # {RESTART}: the ranks failed, and are started again from the last checkpoint.",
        f"  while [[ $result -eq {RESTART} ]]; do",
        "    status=0 began=1 result=0",
        "    if [[ $signals -eq 0 ]]; then",
        "      began=0",
        f'      {job} begin "$run" || began=$?',
        "    fi",
        "    if [[ $began -eq 0 ]]; then",
        "      # Gives signs of life for the claim on the run folder, until this script and the launcher are gone.",
        f'      exec {{claim}}> >(exec {job} hold "$run")',
        '      launch "$run"',
        "      exec {claim}>&-",
        "    elif [[ $began -ne 1 ]]; then",
        "      result=2 # The folder is somebody else's.",
        "      break",
        "    fi",
        f'    {job} end "$run" --status "$status" --signals "$signals"{near_limit}' + (" \\" if moves else " ||"),
        *hosts,
        "      result=$?",
        "    # 75: the run was stopped before its end, and the next attempt of this job continues it.",
        "    if [[ $result -eq 75 ]]; then",
        *queue,
        "      exit 75",
        "    fi",
        *(_move(scheduler, job) if moves else []),
        "  done",
        "  [[ $result -le $worst ]] || worst=$result",
        "done",
        'exit "$worst"',
    ]


def _requeues(spec: JobSpec, scheduler: JobScheduler) -> bool:
    return spec.cluster.scheduler.requeue and bool(scheduler.requeue)


def _moves(spec: JobSpec, scheduler: JobScheduler) -> bool:
    """Return whether a job can go on without a host that failed twice; a scheduler has to queue it again for that."""
    asked = spec.cluster.scheduler
    return bool(scheduler.move) and asked.max_restarts > 1 and (asked.requeue or not scheduler.requeue)


def _move(scheduler: JobScheduler, job: str) -> list[str]:
    return [
        f"    # {MOVE}: a host failed twice, and the run goes on without it.",
        f"    if [[ $result -eq {MOVE} ]]; then",
        *([f'      without=$({job} left-out "${{runs[@]}}" | {scheduler.leave_out})'] if scheduler.leave_out else []),
        f"      {scheduler.move}",
        "      exit 75",
        "    fi",
    ]


def _array(name: str, words: Sequence[str]) -> list[str]:
    return [f"readonly {name}=(", *(f"  {shlex.quote(word)}" for word in words), ")"]


def _wrapped(name: str, words: Sequence[str]) -> list[str]:
    """Return the lines of an array of quoted words; the name of a variable stays on one line with its -x."""
    lines = [""]
    for before, word in zip(["", *words], words, strict=False):
        if len(lines[-1]) + len(word) > _COLUMNS and before != "-x":
            lines.append("")
        lines[-1] += f" {word}" if lines[-1] else word
    return [f"readonly {name}=(", *(f"  {line}" for line in lines), ")"]


def _quote(path: Path | str) -> str:
    """Return a word quoted for the shell; also with a comma in it or a = before it, which shellcheck reports."""
    word = str(path)
    is_suspicious = "," in word or word.startswith("=")
    return f"'{word}'" if is_suspicious and shlex.quote(word) == word else shlex.quote(word)
