#!/usr/bin/env bash
#SBATCH --job-name=digits
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=2
#SBATCH --time=00:10:00
#SBATCH --output=/shared/runs/digits-1/job.log
#SBATCH --open-mode=append
#SBATCH --no-requeue
#SBATCH --signal=B:USR1@120
#SBATCH --cpus-per-task=4

# digits: 4 ranks on 2 nodes of laptop. Submitted by:
# sbatch --parsable /shared/runs/digits-1/job.sh
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
export RANK_CORES='0-3 4-7'
export RANK_DEVICE=cpu
export RANK_LOCAL_SIZE=2
export RANK_WORLD_SIZE=4

mapfile -t hosts < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
if [[ ${#hosts[@]} -ne $num_hosts ]]; then
  printf 'error: the job needs %s hosts and got %s (%s)\n' "$num_hosts" "${#hosts[@]}" "${hosts[*]}" >&2
  exit 2
fi
printf 'job %s of %s on %s\n' "$SLURM_JOB_ID" "$folder" "${hosts[*]}"
env | grep -E '^(HOROVOD|MXNET|NCCL|OMP|RANK)_' |
  grep -vE '^[^=]*(KEY|TOKEN|SECRET|PASSW|CREDENTIAL|AUTH)|://[^/ ]*@' | sort

readonly launcher=(srun -K1 --export=ALL --nodes=2 --ntasks=4 --ntasks-per-node=2 --distribution=block --cpu-bind=none --cpus-per-task=4)
readonly rank=(/shared/resnet-records/launch/rank.sh /shared/resnet-records/.venv/bin/python -I -u -m train)

# SIGUSR1 announces the time limit. SIGTERM, SIGINT (LSF's bkill sends it first), SIGHUP, SIGUSR2 (LSF's run
# limit) and SIGXCPU stop the job. The ranks save their state and end.
signals=0 launched=
trap 'signals=$((signals + 1)); kill -USR1 "$launched" 2>/dev/null || true' USR1
trap 'signals=$((signals + 1)); kill -USR1 "$launched" 2>/dev/null || true' TERM INT HUP USR2 XCPU

# Starts the ranks of one run and waits for their end. A signal interrupts the wait, but not the launcher.
launch() {
  # The server by which the ranks find each other. It ends when the pipe from this script closes.
  coproc meeting { exec "$python" -I -m launch.start.rendezvous --kind horovod 2 2; }
  local server=$! found
  read -ra found <&"${meeting[0]}" || { status=1 && return; }
  export "${found[@]}"
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
  kill "$server" 2>/dev/null && wait "$server" || true
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
      exec {claim}> >(trap '' TERM INT HUP USR1 USR2 XCPU && exec "$python" -I -m launch.submit.job hold "$run")
      launch "$run"
      exec {claim}>&-
    elif [[ $began -ne 1 ]]; then
      result=2 # The folder is somebody else's.
      break
    fi
    (trap '' TERM INT HUP USR1 USR2 XCPU && exec "$python" -I -m launch.submit.job end "$run" --status "$status" --signals "$signals") ||
      result=$?
    # 75: the run was stopped before its end, and the next attempt of this job continues it.
    if [[ $result -eq 75 ]]; then
      exit 75
    fi
  done
  [[ $result -le $worst ]] || worst=$result
done
exit "$worst"
