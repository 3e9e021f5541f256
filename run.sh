#!/usr/bin/env bash
# The one door: sets up what is missing, then hands over to the module that knows the verb. ./run.sh --help lists them.
set -euo pipefail

root=$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")
readonly root venv_python=$root/.venv/bin/python
# verb | package that knows it | purpose
readonly verbs=(
  "setup|launch.setup|make the environment in .venv, or finish it (--cpu, --gpu)"
  "train|launch|run a recipe here to its accuracy target (without a verb: train digits)"
  "plan|train.plan|everything that run would do, without doing it (--json)"
  "prepare|data|pack images into RecordIO, or --verify a packed data set"
  "check|logs|the official MLPerf checker's verdict on a run"
  "report|logs|one page with the curves of one or several runs, ours or anybody's logs"
  "watch|logs|a running job's figures, live in the terminal"
  "package|logs|the submission tree of five runs, judged by the official tools"
  "submit|launch.submit|render the job script of a recipe and hand it to the scheduler (--dry-run)"
  "export|train.export|a run's network as MXNet parameters and ONNX, evaluated again after loading"
  "doctor|launch.doctor|checks this node, or all of an allocation, before a run (--cluster C, --recipe R)"
  "sweep|launch.study|a study: its runs, one after another and resumable, its table and plot"
  "simulate|train.sim|predicted time to train on a described machine"
  "bench|train.bench|one measured question: a table, and JSON rows (bench --help lists them)"
  "test|pytest|the test suite; arguments go to pytest"
)

print_help() {
  printf 'usage: ./run.sh [VERB] [ARGUMENTS]\n\n'
  printf '%s\n' "${verbs[@]}" | while IFS='|' read -r name _ purpose; do printf '  %-9s %s\n' "$name" "$purpose"; done
  printf '\n./run.sh VERB --help tells more of each.\n'
}

# The environment's own Python, else a system one; candidates are run, since pyenv's stand-ins exist and fail. Set-up
# refuses a .venv that is a symbolic link, and nothing behind the link runs before.
find_python() {
  local candidates=("$venv_python" python3.11 python3.10 python3)
  [[ ! -L $root/.venv ]] || candidates=("${candidates[@]:1}")
  for python in "${candidates[@]}"; do
    "$python" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 11))' &>/dev/null && return
  done
  printf 'error: Python 3.10 or 3.11 is needed (MXNet 1.9.1 needs NumPy below 1.24), found: %s; %s\n' "$(python3 --version 2>/dev/null || echo none)" "install one beside it: apt-get install python3.11 python3.11-venv" >&2
  exit 2
}

set_up() { (cd -- "$root" && "$python" -m launch.setup "$@"); }
[[ $# -gt 0 ]] || set -- train digits
readonly verb=$1 && shift
[[ $verb != help && $verb != --help && $verb != -h ]] || { print_help && exit; }
find_python
for row in "${verbs[@]}"; do
  IFS='|' read -r name package _ <<<"$row"
  [[ $name == "$verb" ]] || continue
  if [[ $verb == setup ]]; then
    cd -- "$root"
    exec "$python" -m launch.setup "$@"
  elif [[ $verb == test ]]; then
    set_up --quiet --extra test
    cd -- "$root"
    exec "$venv_python" -m pytest "$@"
  fi
  set_up --quiet
  # -I: a train.py or a PYTHONPATH of the caller's must not come before ours.
  exec "$venv_python" -I -m "$package" "$verb" "$@"
done
cd -- "$root"
"$python" -c 'import sys; from configs.errors import nearest; verb, *known = sys.argv[1:]
sys.stderr.write(f"error: {verb}: no such verb; {nearest(verb, known)}\n")' "$verb" "${verbs[@]%%|*}"
exit 2
