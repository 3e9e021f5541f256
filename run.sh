#!/usr/bin/env bash
# Sets up what is missing, then starts the module that handles the verb. ./run.sh --help lists the verbs.
[ -n "${BASH_VERSION-}" ] || exec bash "$0" "$@" # started as: sh run.sh
set -euo pipefail

root=$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")
readonly root venv_python=$root/.venv/bin/python
unset PYTHONHOME # that of Conda or of a module would break every other Python; -E ignores PYTHONPATH, too
# verb | Python module that handles it | purpose
readonly verbs=(
  "setup|launch.setup|create or complete the environment in .venv (--engine torch, --cpu, --gpu)"
  "train|launch|run a recipe here to its accuracy target (without a verb: train digits)"
  "plan|train.plan|print everything that a run would do, without doing it (--json)"
  "prepare|data|pack images into RecordIO, or --verify a packed data set"
  "check|logs|judge the log of a run with the official MLPerf checker"
  "report|logs|write one page with the curves of one or several runs, of this program or any other"
  "watch|logs|show the progress of a running job in the terminal"
  "package|logs|write the submission tree of five runs, judged by the official tools"
  "submit|launch.submit|write the job script of a recipe and submit it to the scheduler (--dry-run)"
  "export|train.export|write a run's network in its framework's format and as ONNX, and evaluate both"
  "predict|train.export.predict|name the class of images and its probability, by the network of a run"
  "doctor|launch.doctor|check this node, or all nodes of an allocation, before a run (--cluster C, --recipe R, --step)"
  "accept|launch.accept|accept a machine: one verdict on all nodes, against what they should do (--cluster C)"
  "sweep|launch.study|run a study: its runs one after another, resumable, then its table and plot"
  "simulate|train.sim|predict the time to train on a described machine"
  "rehearse|train.rehearse|rehearse a run of many ranks on this machine, with sleeps instead of compute"
  "bench|train.bench|measure the answer to one question: a table, and JSON rows (bench --help lists them)"
  "recipes|configs.shipped|list the recipes that come with the program: data, time, hardware"
  "keys|configs.keys|explain the keys of recipe, cluster and study files, or find one by a word (keys WORD)"
  "test|pytest|run the test suite; arguments go to pytest"
)

print_help() {
  printf 'usage: ./run.sh [VERB] [ARGUMENTS]\n       ./run.sh VERB --help explains a verb, ./run.sh --version the version\n\n'
  printf '%s\n' "${verbs[@]}" | while IFS='|' read -r name _ purpose; do printf '  %-9s %s\n' "$name" "$purpose"; done
}

# difflib stands for the modules that Debian's python3-minimal lacks.
runs_python() { "$1" -E -c "import difflib, sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, $2))" &>/dev/null; }

# find_python NEWEST: finds the Python of .venv, unless that is a link, or 3.10 to 3.NEWEST on the PATH, where some may
# fail. 3.11 comes first, because MXNet and PyTorch can share an environment there. MXNet has no 3.13: set-up then takes
# PyTorch, or refuses if MXNet was asked for.
find_python() {
  python=$venv_python
  [[ -L $root/.venv ]] || ! runs_python "$python" 14 || return 0
  for python in python3.11 python3.12 python3.10 python3.13 python3.14 python3; do
    runs_python "$python" "$1" && return
  done
  local found
  found=$(python3 --version 2>/dev/null) || found=none
  [[ $found == none ]] || python3 -c 'import difflib' &>/dev/null || found+=' without its standard library'
  printf 'error: Python 3.10 to 3.%s is needed, found: %s; %s\n' "$1" "$found" "$(python_remedy)" >&2
  exit 2
}

# Says how this machine gets such a Python; launch/setup/checks.py names all else. apt has the distribution's
# own version alone, which is no help if that is too old.
python_remedy() {
  local as_root=
  [[ $EUID -eq 0 ]] || as_root='as root: '
  if [[ -n ${CONDA_PREFIX-} ]] && command -v conda >/dev/null; then
    printf 'conda install python=3.12'
  elif command -v dnf >/dev/null; then
    printf '%sdnf install python3.12' "$as_root"
  elif command -v zypper >/dev/null; then
    printf '%szypper install python311' "$as_root"
  elif command -v apt-get >/dev/null && ! /usr/bin/python3 -c 'import sys; sys.exit(sys.version_info >= (3, 10))' &>/dev/null; then
    printf '%sapt-get update && apt-get install python3 python3-venv' "$as_root"
  else
    printf 'install one beside it: a module of the site, conda, uv and pyenv have such versions'
  fi
}

# Help needs only the standard library: nothing is installed or written for it, and any newer Python will do.
run_bare() { find_python 99 && cd -- "$root" && exec "$python" -B -E -s "$@"; }
[[ $# -gt 0 ]] || set -- train digits
readonly verb=$1 && shift
[[ $verb != --version ]] || {
  sed -n 's/^version = "\(.*\)"$/resnet-records \1/p' "$root/pyproject.toml"
  exit
}
[[ $verb != help && $verb != --help && $verb != -h ]] || {
  print_help
  exit
}
for row in "${verbs[@]}"; do
  IFS='|' read -r name module _ <<<"$row"
  [[ $name == "$verb" ]] || continue
  [[ $verb == setup || $verb == test ]] || set -- "$verb" "$@"
  if [[ " $* " == *' --help '* || " $* " == *' -h '* ]]; then
    [[ $verb != test ]] || {
      printf 'usage: ./run.sh test [FILE ...] [-m quick] [-k WORDS] [any argument of pytest]\n'
      exit
    }
    run_bare -m "$module" "$@"
  fi
  [[ . -ef ${PWD-} ]] || { printf 'error: the current folder was deleted; change to another one\n' >&2 && exit 2; }
  find_python 14
  [[ $verb != setup ]] || { set -- --start "$PWD" "$@" && cd -- "$root" && exec "$python" -E -m "$module" "$@"; }
  # -I: a train.py in the caller's folder or PYTHONPATH must not come before ours. pytest starts in the root instead.
  extra=() isolation=-I
  [[ $verb != test ]] || { extra=(--extra test) isolation=-Es && cd -- "$root"; }
  (cd -- "$root" && "$python" -E -m launch.setup --quiet "${extra[@]}")
  exec "$venv_python" "$isolation" -m "$module" "$@"
done
run_bare -c 'import sys; from os.path import exists; from configs.errors import nearest; verb, *known = sys.argv[1:]
hint = f"write ./run.sh train {verb}" if exists(f"configs/recipes/{verb}.yaml") else nearest(verb, known)
sys.stderr.write(f"error: {verb}: no such verb; {hint}\n"); sys.exit(2)' "$verb" "${verbs[@]%%|*}"
