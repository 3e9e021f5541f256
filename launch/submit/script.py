"""The part of a job script that all schedulers share: strict shell from the granted hosts to the exit status.

What a scheduler, a launcher and Horovod leave open is closed here: hosts other than asked for, a rendezvous for ranks
over Gloo, ranks that outlive a dead one, a notice that ends the launcher instead of reaching the ranks, a log without
its end, an exit status that says success.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from configs.programs import Program, command_of
from launch.start.commands import launcher_command, meets_over_srun, notice_of
from launch.submit.jobspec import JobSpec

__all__ = ["Dialect", "render_script"]


_COLUMNS = 75


@dataclass(frozen=True)
class Dialect:
    """What one scheduler adds.

    Attributes:
        hosts: Shell command that prints the granted hosts, one a line; the first runs the script.
        job_id: Shell word for the job's number.
        again: Shell command that queues the job again, once its work is saved; none: it cannot.
        notifies: The scheduler itself sends the script SIGUSR1 before the limit; else the script's own timer does.
        submit: Command that takes the script's path as its last word.
        watch: Command that shows job ``{job}``; ``cancel`` ends it.
        output: Shell line that lets the script write its output itself, where the scheduler would keep it to the end.
        script_name: What the script is called in the run folder.
    """

    hosts: str
    job_id: str
    submit: tuple[str, ...]
    watch: str
    cancel: str
    again: str = ""
    notifies: bool = False
    output: str = ""
    script_name: str = "job.sh"


def render_script(spec: JobSpec, dialect: Dialect, directives: Sequence[str]) -> str:
    """Write the whole script: ``directives`` at its head, then what every job does."""
    cluster = spec.cluster
    submitted = " ".join([*dialect.submit, _quote(spec.folder / dialect.script_name)])
    parts = [
        ["#!/usr/bin/env bash", *directives],
        [f"# {spec.name}: {cluster.world_size} ranks on {cluster.num_nodes} nodes of {cluster.name}. Handed over by:",
         f"# {submitted}", "set -euo pipefail"],
        _settings(spec, dialect),
        _hosts(dialect),
        _launcher(spec),
        _signals(spec, dialect),
        _function(spec),
        _main(spec, dialect),
    ]  # fmt: skip
    return "\n\n".join("\n".join(part) for part in parts) + "\n"


def _settings(spec: JobSpec, dialect: Dialect) -> list[str]:
    variables = [f"export {name}={shlex.quote(value)}" for name, value in sorted(spec.variables.items())]
    return [
        f"readonly python={_quote(spec.python)} folder={_quote(spec.folder)} num_hosts={spec.cluster.num_nodes}",
        *_array("runs", [str(run) for run in spec.run_folders]),
        *([dialect.output] if dialect.output else []),
        *spec.cluster.scheduler.setup,
        *variables,
    ]


def _hosts(dialect: Dialect) -> list[str]:
    return [
        f"mapfile -t hosts < <({dialect.hosts})",
        "if [[ ${#hosts[@]} -ne $num_hosts ]]; then",
        '  printf \'error: got hosts %s, the job is for %s of them\\n\' "${hosts[*]}" "$num_hosts" >&2',
        "  exit 2",
        "fi",
        f'printf \'job %s of %s on %s\\n\' {dialect.job_id} "$folder" "${{hosts[*]}}"',
        "env | grep -E '^(HOROVOD|MXNET|NCCL|OMP|RANK)_' | sort",
    ]


def _launcher(spec: JobSpec) -> list[str]:
    """Name the launcher's words and a rank's."""
    cluster, lines = spec.cluster, []
    if cluster.launcher == "local":
        words = command_of(Program.LOCAL_LAUNCHER, str(cluster.world_size), python=spec.python)
    else:
        words = launcher_command(cluster, [], spec.variables)
    quoted = [_quote(word) for word in words]
    if cluster.launcher == "mpirun" and cluster.scheduler.kind != "slurm":
        lines.append(f'printf \'%s slots={cluster.ranks_per_node}\\n\' "${{hosts[@]}}" >"$folder/hosts"')
        quoted += ["-hostfile", '"$folder/hosts"']
    if cluster.launcher == "horovodrun":
        quoted[0] = _quote(spec.python.parent / "horovodrun")
        lines.append(f"printf -v slots ',%s:{cluster.ranks_per_node}' \"${{hosts[@]}}\"")
        quoted += ["-H", '"${slots#,}"']
    if cluster.launcher == "srun" and cluster.container.runtime == "enroot":
        mounts = ",".join(spec.mounts)
        quoted += [_quote(f"--container-image={cluster.container.image}"), _quote(f"--container-mounts={mounts}")]
    if cluster.launcher == "srun" and cluster.node.cores:
        quoted.append(f"--cpus-per-task={max(1, cluster.node.cores // cluster.ranks_per_node)}")
    return [*lines, *_wrapped("launcher", quoted), *_wrapped("rank", [_quote(word) for word in spec.rank_command])]


def _signals(spec: JobSpec, dialect: Dialect) -> list[str]:
    """Pass the scheduler's signals on as what the launcher hands to its ranks."""
    passed = notice_of(spec.cluster.launcher).name.removeprefix("SIG")
    notice_s = spec.cluster.scheduler.notice_s
    near = "limit_is_near=1 " if _requeues(spec, dialect) else ""
    pass_on = f'signals=$((signals + 1)); kill -{passed} "$launched" 2>/dev/null || true'
    lines = [
        "# SIGUSR1: the limit is near. SIGTERM: the job is stopped. The ranks save their work and end.",
        f"signals=0 {near and 'limit_is_near=0 '}launched=",
        f"trap '{near}{pass_on}' USR1",
        f"trap '{pass_on}' TERM",
    ]
    if not dialect.notifies and spec.cluster.scheduler.kind != "none" and notice_s:
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


def _function(spec: JobSpec) -> list[str]:
    nodes, per_node = spec.cluster.num_nodes, spec.cluster.ranks_per_node
    meets = meets_over_srun(spec.cluster, spec.variables)
    serving = [
        "  # Ranks over Gloo meet here; it ends with this script, whose pipe it reads.",
        f"  coproc rendezvous {{ exec \"$python\" -I -m {Program.RENDEZVOUS.value} {nodes} {per_node}; }}",
        "  local server=$!",
        "  read -r HOROVOD_GLOO_RENDEZVOUS_PORT <&\"${rendezvous[0]}\" || { status=1 && return; }",
        "  export HOROVOD_GLOO_RENDEZVOUS_PORT",
    ]  # fmt: skip
    return [
        "# Starts the ranks of a run and waits for their end; a signal ends a wait, not the launcher.",
        "launch() {",
        *(serving if meets else []),
        '  "${launcher[@]}" "${rank[@]}" "$1" </dev/null &',
        "  launched=$!",
        "  while true; do",
        "    local before=$signals",
        "    status=0",
        '    wait "$launched" || status=$?',
        "    [[ $status -gt 128 && $signals -ne $before ]] || break",
        "  done",
        "  launched=",
        *(['  kill "$server" 2>/dev/null && wait "$server" || true'] if meets else []),
        "}",
    ]


def _main(spec: JobSpec, dialect: Dialect) -> list[str]:
    queue = [f"    [[ $limit_is_near -eq 0 ]] || {dialect.again}"] if _requeues(spec, dialect) else []
    return [
        "worst=0",
        'for run in "${runs[@]}"; do',
        "  status=0",
        f'  if [[ $signals -eq 0 ]] && "$python" -I -m {Program.JOB.value} begin "$run"; then',
        '    launch "$run"',
        "  fi",
        "  result=0",
        f'  "$python" -I -m {Program.JOB.value} end "$run" --status "$status" --signals "$signals" || result=$?',
        "  # 75: stopped before its end, to be continued.",
        "  if [[ $result -eq 75 ]]; then",
        *queue,
        "    exit 75",
        "  fi",
        "  [[ $result -le $worst ]] || worst=$result",
        "done",
        'exit "$worst"',
    ]


def _requeues(spec: JobSpec, dialect: Dialect) -> bool:
    return spec.cluster.scheduler.requeue and bool(dialect.again)


def _array(name: str, words: Sequence[str]) -> list[str]:
    return [f"readonly {name}=(", *(f"  {shlex.quote(word)}" for word in words), ")"]


def _wrapped(name: str, words: Sequence[str]) -> list[str]:
    """Write an array of quoted words, as many on a line as fit; a variable's name stays with its -x."""
    lines = [""]
    for before, word in zip(["", *words], words, strict=False):
        if len(lines[-1]) + len(word) > _COLUMNS and before != "-x":
            lines.append("")
        lines[-1] += f" {word}" if lines[-1] else word
    return [f"readonly {name}=(", *(f"  {line}" for line in lines), ")"]


def _quote(path: Path | str) -> str:
    """Quote for the shell, a comma too: in an array it looks like a mistake."""
    word = str(path)
    return f"'{word}'" if "," in word and shlex.quote(word) == word else shlex.quote(word)
