#!/usr/bin/env bash

# digits: 4 ranks on 2 nodes (+1 spare) of laptop. Submitted by:
# bash /shared/runs/digits-1/job.sh
set -euo pipefail

readonly python=/shared/resnet-records/.venv/bin/python folder=/shared/runs/digits-1 num_hosts=2
readonly runs=(
  /shared/runs/digits-1
)
export HOROVOD_CONTROLLER=gloo
export HOROVOD_CPU_OPERATIONS=gloo
export HOROVOD_CYCLE_TIME=1
export HOROVOD_FUSION_THRESHOLD=262144
export HOROVOD_GLOO_TIMEOUT_SECONDS=300
export MXNET_EXEC_BULK_EXEC_MAX_NODE_TRAIN_BWD=4
export MXNET_EXEC_BULK_EXEC_MAX_NODE_TRAIN_FWD=4
export MXNET_UPDATE_ON_KVSTORE=0
export OMP_NUM_THREADS=1
export RANK_DEVICE=cpu
export RANK_LOCAL_SIZE=2
export RANK_WORLD_SIZE=4

mapfile -t hosts < <("$python" -I -m launch.submit.reach "$folder" alpha beta gamma)
if [[ ${#hosts[@]} -lt $num_hosts ]]; then
  printf 'error: the job got %s hosts (%s) and needs %s\n' "${#hosts[@]}" "${hosts[*]}" "$num_hosts" >&2
  exit 2
fi
printf 'job %s of %s on %s\n' $$ "$folder" "${hosts[*]}"
env | grep -E '^(HOROVOD|MXNET|NCCL|OMP|RANK)_' |
  grep -vE '^[^=]*(KEY|TOKEN|SECRET|PASSW|CREDENTIAL|AUTH)|://[^/ ]*@' | sort

readonly granted=("${hosts[@]}")
readonly rank=(
  /shared/resnet-records/launch/rank.sh
  /shared/resnet-records/.venv/bin/python -I -u -m train
)

# Chooses the hosts of the next attempt. Those that failed, or that the check found slow, come last.
choose_hosts() {
  mapfile -t hosts < <(
    "$python" -I -m launch.submit.job choose "$1" --checked "$folder" \
      --hosts "${granted[*]}"
  )
  [[ ${#hosts[@]} -eq $num_hosts ]] || return 1
  printf -v slots ',%s:2' "${hosts[@]}"
  launcher=(
    /shared/resnet-records/.venv/bin/python -I -u -m launch.start.horovodrun -np
    4 --gloo -H "${slots#,}"
  )
}

# SIGUSR1 announces the time limit. SIGTERM, SIGINT (LSF's bkill sends it first) and SIGHUP stop the job. The
# ranks save their state and end.
signals=0 launched=
trap 'signals=$((signals + 1)); [[ $signals -gt 1 ]] || told=$SECONDS; { [[ -n ${run:-} && $((SECONDS - told)) -lt 60 ]] && touch "$run/stop"; } || kill -TERM "$launched" 2>/dev/null || true' USR1
trap 'signals=$((signals + 1)); [[ $signals -gt 1 ]] || told=$SECONDS; { [[ -n ${run:-} && $((SECONDS - told)) -lt 60 ]] && touch "$run/stop"; } || kill -TERM "$launched" 2>/dev/null || true' TERM INT HUP

# Starts the ranks of one run and waits for their end. A signal interrupts the wait, but not the launcher.
launch() {
  choose_hosts "$1" || { status=1 && return; }
  # The kernel ends the launcher, and the launcher its ranks, if this script is killed.
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
}

worst=0
for run in "${runs[@]}"; do
  result=79
  # 79: the ranks failed, and are started again from the last checkpoint.
  while [[ $result -eq 79 ]]; do
    status=0 began=1 result=0
    if [[ $signals -eq 0 ]]; then
      began=0
      "$python" -I -m launch.submit.job begin "$run" || began=$?
    fi
    if [[ $began -eq 0 ]]; then
      # Gives signs of life for the claim on the run folder, until this script and the launcher are gone.
      exec {claim}> >(exec "$python" -I -m launch.submit.job hold "$run")
      launch "$run"
      exec {claim}>&-
    elif [[ $began -ne 1 ]]; then
      result=2 # The folder is somebody else's.
      break
    fi
    "$python" -I -m launch.submit.job end "$run" --status "$status" --signals "$signals" \
      --hosts "${granted[*]}" ||
      result=$?
    # 75: the run was stopped before its end, and the next attempt of this job continues it.
    if [[ $result -eq 75 ]]; then
      exit 75
    fi
  done
  [[ $result -le $worst ]] || worst=$result
done
exit "$worst"
